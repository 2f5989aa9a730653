"""Makes untrusted text safe for messages and terminals, and shortens lists of names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 3


def printable(text: str) -> str:
    """Return text with everything but printable ASCII escaped, as ``\\x1b`` or ``\\u202e``.

    Anyone who reaches ZooKeeper can make znodes of almost any name: control characters would reach
    the terminal, bidirectional ones would show a name that is not there.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one if one.isascii() and one.isprintable() else one.encode("unicode_escape").decode()
        for one in text
    )


def shown(texts: Iterable[str]) -> str:
    """Return the first three texts and the number of the others."""
    every = list(texts)
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
