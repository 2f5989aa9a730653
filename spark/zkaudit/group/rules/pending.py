"""Pending writes of offsets, whose effect a later write or claim shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from zkaudit.group.events import Commit, Kind, Lifetime
from zkaudit.group.rules.writers import Role, Writer


class Position(NamedTuple):
    """The offset that the owners of a partition had reached."""

    offset: int
    at: int | None
    """The transaction that wrote it."""
    is_start: bool = False
    """Whether an owner claimed the partition and starts there."""
    setter: Role | None = None
    """The role that stored the offset from which it starts."""
    is_sure: bool = True
    """Whether the logs show who wrote it, and it was not a broker."""


class Next(NamedTuple):
    """The next write of a partition's offset, unless the partition is claimed before it."""

    commit: Commit
    role: Role

    @property
    def offset(self) -> int | None:
        """The offset that this write stored."""
        return self.commit.offset


@dataclass(slots=True, eq=False)
class Start:
    """The next claim of a partition, and where the new owner starts."""

    claim: Lifetime
    first: int | None = None
    """The first offset that the new owner wrote."""


@dataclass(slots=True, eq=False)
class Writes:
    """The writes of a partition's offset by one session that was not the owner, until the next
    claim."""

    writer: Writer
    first: Commit
    last: Commit
    alive: int | None
    """Number of members that were registered before the first write; ``None``: unknown."""
    was_claimed: bool
    """Whether a member had claimed the partition before."""
    position_before: Position | None
    """The owners' position before the first write."""
    position: Position | None = None
    """The owners' position before the last write."""
    delivered: int | None = None
    """The highest offset that any member had written before the last write."""
    highest: int | None = None
    """The highest offset of these writes."""
    has_changed: bool = False
    """Whether one of them changed the offset."""
    times: int = 0
    next: Next | None = None
    start: Start | None = None

    def add(self, commit: Commit, position: Position | None, delivered: int | None) -> None:
        """Add a write."""
        self.last, self.position, self.delivered, self.next = commit, position, delivered, None
        self.highest = highest(self.highest, commit.offset)
        self.has_changed = self.has_changed or commit.kind is Kind.COMMIT
        self.times += 1

    @property
    def reached(self) -> int | None:
        """The offset that the partition's owners had reached."""
        if self.writer.role is Role.ORPHAN and not self.writer.is_stranger:
            before = self.position_before
            return highest(None if before is None else before.offset, self.highest)
        return None if self.position is None else self.position.offset

    @property
    def is_restarted(self) -> bool:
        """Whether the next owner started below the last written offset, or the last write was not a
        valid offset."""
        first = None if self.start is None else self.start.first
        written = self.last.offset
        return written is None or (first is not None and first < written)

    @property
    def started(self) -> int | None:
        """The offset at which the next owner started; ``None`` if another write came before, or no
        owner followed."""
        if self.next is not None or self.start is None:
            return None
        return self.start.first if self.is_restarted else self.last.offset


@dataclass(slots=True, eq=False)
class Lowered:
    """A write that lowered a partition's offset, by the owner or a session that may be the
    owner."""

    commit: Commit
    writer: Writer
    before: int
    """The previous offset."""
    before_at: int | None
    position: Position | None
    own: int | None = None
    """The last offset of the same session since the last claim."""
    next: Next | None = None
    start: Start | None = None


Waiting = Writes | Lowered


def highest(*offsets: int | None) -> int | None:
    """Return the highest of some offsets; ``None`` if there is none."""
    return max((offset for offset in offsets if offset is not None), default=None)
