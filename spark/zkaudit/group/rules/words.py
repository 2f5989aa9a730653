"""Phrases for the sentences of findings."""

from __future__ import annotations

import re
from typing import Final

from zkaudit.group.znodes import Znode
from zkaudit.text import hex_of

_GENERATED: Final = re.compile(r"(?s)(.+)-[0-9]{13}-[0-9a-f]{1,8}")


def offset_text(offset: int | None) -> str:
    """Return an offset as text; ``?`` for ``None``."""
    return "?" if offset is None else str(offset)


def partition_of(znode: Znode) -> str:
    """Return ``topic-partition``."""
    return f"{znode.topic}-{znode.partition}"


def host_of(group: str, member: str) -> str:
    """Return the host in a generated consumer id (``group_host-milliseconds-8 digits``); empty for
    other ids."""
    parts = _GENERATED.fullmatch(member[len(group) + 1 :])
    return "" if parts is None else parts[1]


def who(group: str, member: str, session: int) -> str:
    """Return ``Member M (host H, session 0x1)``."""
    host = host_of(group, member)
    return f"Member {member} ({f'host {host}, ' if host else ''}session {hex_of(session)})"


def span(low: int, high: int) -> str:
    """Return ``N offsets (LOW to HIGH - 1)``. The log may have fewer messages, because of
    compaction and transaction markers."""
    if high - low == 1:
        return f"1 offset ({low})"
    return f"{high - low} offsets ({low} to {high - 1})" if high - low > 1 else f"0 offsets ({low})"


def two_leaders(first: int, last: int) -> bool:
    """Whether ZooKeeper elected a new leader between two zxids, so that their times are from
    different clocks."""
    return first >> 32 != last >> 32


def clocks(first: int, last: int) -> str:
    """Return a sentence which says that two times are from different clocks; empty if ZooKeeper
    elected no new leader between the two zxids."""
    if not two_leaders(first, last):
        return ""
    return (
        f" The leader changed (epoch {first >> 32} to {last >> 32}), so the time is by the clocks "
        "of two servers."
    )


def timed(first: int, last: int) -> str:
    """Return the basis (``proven`` or ``inferred``) of a finding that is certain, except for the
    time between two transactions."""
    return "inferred" if two_leaders(first, last) else "proven"


def seconds_between(begin: int | None, end: int | None) -> float:
    """Return the seconds between two times, negative if one is unknown."""
    return -1.0 if begin is None or end is None else (end - begin) / 1_000_000


def latest(*times: int | None) -> int | None:
    """Return the latest of some times; ``None`` if all are unknown."""
    return max((time for time in times if time is not None), default=None)
