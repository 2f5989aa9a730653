"""Makes untrusted text and times printable, and converts group names to a regex and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, tzinfo


def printable(text: str) -> str:
    """Return a text in which characters that are invisible or change the text direction are
    escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    """Return a time converted to a zone (``None``: this machine's zone). If the year would not be
    from 1 to 9999, the time is returned unchanged."""
    with suppress(OverflowError, ValueError):
        return moment.astimezone(zone)
    return moment


def hex_of(number: int) -> str:
    """Return a session or a zxid as ZooKeeper prints it."""
    return f"{number & (1 << 64) - 1:#x}"


def regex_of(names: Sequence[str]) -> str:
    """Return the Java regex that matches exactly these group names."""
    return "|".join("\\Q" + name.replace("\\E", "\\E\\\\E\\Q") + "\\E" for name in names)


def names_of(regex: str) -> list[str] | None:
    """Return the names in a regex made by ``regex_of``; ``None`` for any other regex."""
    if not (regex.startswith("\\Q") and regex.endswith("\\E")):
        return None
    names = [part.replace("\\E\\\\E\\Q", "\\E") for part in regex[2:-2].split("\\E|\\Q")]
    return names if regex_of(names) == regex else None


def group_option(regex: str) -> str:
    """Return the command-line option that gives this regex."""
    names = names_of(regex)
    if names is None:
        return f"--groups-regex {printable(regex)!r}"
    return " ".join(f"--group {printable(name)!r}" for name in names)


def no_group(regex: str, where: str) -> str:
    """Return the message that no group matches. ``where``: its subject and verb, such as "the logs
    have"."""
    text = f"{group_option(regex)}: {where} no group with such a name"
    return (
        text
        if names_of(regex) is not None
        else (f"{text}: a pattern must match the whole name, as 'orders.*' does")
    )
