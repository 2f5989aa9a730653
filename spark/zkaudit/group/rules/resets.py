"""Rules about owners that continued at an offset other than the one that they had reached.

No session wrote that offset for them: ``auto.offset.reset``, a seek or a recreated topic chose it.
"""

from __future__ import annotations

import heapq
import struct
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN, Unknown
from zkaudit.group.events import Commit, Deleted, Kind, Lifetime, Moment, Write
from zkaudit.group.facts import Partition
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule, raised
from zkaudit.group.rules.words import clocks, offset_text, partition_of, span, who
from zkaudit.group.rules.writers import Role, writer_of
from zkaudit.group.znodes import OWNERS, Znode
from zkaudit.text import hex_of

JUMP_LEAST: Final = 10_000
"""Smallest step that is compared with other steps of the topic, in offsets."""
JUMP_TIMES: Final = 20
"""How many times faster than 99 % of the topic's commits a step must be."""
JUMP_STEPS: Final = 100
"""Number of commits below which a topic's usual rate is unknown."""
_USUAL: Final = 0.99
_MOST: Final = 1_000
"""Largest number of steps of a topic that are kept for comparison. The fastest ones are kept."""
_AT_ONCE: Final = 512
_SECOND: Final = 1_000_000
_BITS: Final = 42
"""Number of bits of a rate that are ignored: all but the exponent and ten binary digits."""


class _Step(NamedTuple):
    """A large step of an owner's offset."""

    commit: Commit
    before: int
    before_at: int | None
    seconds: float
    is_first: bool
    """Whether it is the owner's first write after its claim."""

    @property
    def size(self) -> int:
        """Number of offsets from ``before`` to the commit."""
        return (self.commit.offset or 0) - self.before


class Pace:
    """The usual rate, in offsets per second, at which the offsets of a topic rise.

    Rates are counted in a histogram with a precision of a thousandth. The fastest step of each
    partition is not counted. Otherwise a reset of all partitions would make its own rate the usual
    one.
    """

    def __init__(self) -> None:
        self.rates = array("d")
        """Rates that are not counted yet."""
        self._fastest_of: dict[str, float] = {}
        """The fastest rate of each partition, by path."""
        self._counts = Counter[int]()
        self._fastest: list[tuple[float, int, _Step]] = []
        """A heap of large steps by rate."""
        self._kept = 0

    def add(self, path: str, rate: float) -> None:
        """Record how fast a partition's offset rose."""
        fastest = self._fastest_of.setdefault(path, 0.0)
        if rate > fastest:
            self._fastest_of[path] = rate
            rate = fastest
        if rate > 0.0:
            self.rates.append(rate)
        if len(self.rates) >= _AT_ONCE:
            self._count()

    def _count(self) -> None:
        self._counts.update(_upper_bits(self.rates))
        self.rates = array("d")

    def keep(self, rate: float, step: _Step) -> None:
        """Keep a large rise, to be judged when the usual rate is known."""
        self._kept += 1
        if len(self._fastest) < _MOST:
            heapq.heappush(self._fastest, (rate, self._kept, step))
        else:
            heapq.heappushpop(self._fastest, (rate, self._kept, step))

    def usual(self) -> float | None:
        """Return the rate that 99 % of the counted rises do not exceed; ``None`` if there are too
        few rises."""
        counts = self._counts + Counter(_upper_bits(self.rates))
        least = _USUAL * counts.total()
        if counts.total() < JUMP_STEPS:
            return None
        for number in sorted(counts):
            least -= counts[number]
            if least <= 0:
                break
        (rate,) = struct.unpack("d", struct.pack("q", number << _BITS))
        return float(rate)

    def faster(self, rate: float) -> Iterator[_Step]:
        """Yield the large rises with at least this rate, in the order of the log."""
        steps = [step for speed, _, step in self._fastest if speed >= rate]
        yield from sorted(steps, key=lambda step: (step.commit.zxid, step.commit.idx))

    @property
    def has_steps(self) -> bool:
        """Whether any large rises were kept."""
        return bool(self._fastest)


def _upper_bits(rates: array[float]) -> list[int]:
    """Return integers in the same order, which are equal for rates that differ by less than a
    thousandth."""
    return [number >> _BITS for number in memoryview(rates).cast("B").cast("q")]


class Jumps(Rule):
    """Finds owners whose offset rose faster than a consumer can read (``medium``), or much faster
    than is usual for the topic in this group (``low``). There is one finding for each owner.
    Larger rises are worse (see ``raised``).

    A partition that was created within the logs began at 0. For the first commit after a claim, the
    time is measured from the claim. A topic's usual rate is known only at the end. If the offset
    was deleted, it is unknown where the owner started, so any higher offset is a finding.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._writers: dict[str, int] = {}
        """The session that last wrote each offset, by path."""
        self._reached: dict[str, Write] = {}
        """By path, the stored offset before a session that is not the owner lowered it."""
        self._deleted: dict[str, Deleted] = {}
        """By path, the deletion of an offset until the next write."""
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._least = min(group.limits.jump_rate, JUMP_LEAST)

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Compare an owner's write with the previous one."""
        offset, owner, before = commit.offset, commit.owner, commit.previous
        deleted = self._deleted.pop(commit.znode.path, None) if self._deleted else None
        is_own = True
        if owner is UNKNOWN:
            # A session that writes twice in a row is treated as the owner.
            path = commit.znode.path
            is_own = self._writers.get(path) == commit.session
            self._writers[path] = commit.session
        elif owner is None or (
            owner.session != commit.session and not _is_for_owner(commit, self.group)
        ):
            self._lowered(commit)
            return ()
        if offset is None or commit.kind is not Kind.COMMIT:
            return ()
        if isinstance(before, Write) and before.offset is not None:
            start, start_at, start_time = before.offset, before.zxid, before.time
            reached = self._reached.get(commit.znode.path) if self._reached else None
            if reached is not None and reached.offset is not None and reached.offset > start:
                start, start_at, start_time = reached.offset, reached.zxid, reached.time
        elif deleted is not None and _has_begun(owner, deleted):
            return self._begun(commit, deleted)
        elif commit.created and (made := self._created(commit.znode)) is not None:
            start, start_at, start_time = 0, None, made.time
        else:
            return ()
        size = offset - start
        if size > 0:
            rate = size / _seconds(start_time, commit.time)
            self._paces[commit.znode.topic].add(commit.znode.path, rate)
            if size >= self._least and (
                is_own or raised("info", size, self.group.limits) != "info"
            ):
                return self._large(commit, start, start_at, start_time)
        return ()

    def _lowered(self, commit: Commit) -> None:
        """Record the owner's position, because it does not read the lower offset that another
        session wrote, and overwrites it."""
        before, path = commit.previous, commit.znode.path
        if not isinstance(before, Write) or before.offset is None or commit.offset is None:
            return
        known = self._reached.get(path)
        reached = -1 if known is None or known.offset is None else known.offset
        if commit.offset < before.offset and before.offset > reached:
            self._reached[path] = before

    def deleted(self, deleted: Deleted) -> Iterable[Finding]:
        """Remember the deleted offset until the next write."""
        if deleted.previous is not None and deleted.previous.offset is not None:
            self._deleted[deleted.znode.path] = deleted
        return ()

    def gap(self) -> Iterable[Finding]:
        """Forget what may have changed in the log gap."""
        self._writers.clear()
        self._reached.clear()
        self._deleted.clear()
        return ()

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Record that a new owner starts from the stored offset."""
        znode = lifetime.znode
        if znode.tree == OWNERS and self._reached:
            path = f"{znode.chroot}/consumers/{znode.group}/offsets/{znode.name}"
            self._reached.pop(path, None)
        return ()

    def _created(self, znode: Znode) -> Partition | None:
        """Return data of a partition that was created within the logs."""
        made = self.group.facts.partition(znode)
        return made if made is not None and made.is_created else None

    def _large(
        self, commit: Commit, start: int, start_at: int | None, start_time: int | None
    ) -> Iterator[Finding]:
        if self.group.is_migration(commit):
            return  # it owns the partitions while it writes the offsets of the other store
        owner, claimed = commit.owner, None
        if isinstance(owner, Lifetime) and isinstance(owner.start, Moment):
            claimed = owner.start.time
        is_first = claimed is not None and start_time is not None and claimed >= start_time
        since = claimed if is_first or start_time is None else start_time
        seconds = _seconds(since, commit.time)
        step = _Step(commit, start, start_at, seconds, is_first)
        rate = step.size / seconds
        if rate >= self.group.limits.jump_rate:
            yield self._finding(step, None)
        elif step.size >= JUMP_LEAST:
            self._paces[commit.znode.topic].keep(rate, step)

    def _begun(self, commit: Commit, deleted: Deleted) -> Iterator[Finding]:
        """Check an owner's first write after the offset was deleted, except for a recreated topic,
        whose messages begin at 0 again."""
        before = deleted.previous
        assert before is not None
        assert before.offset is not None
        made = self.group.facts.partition(commit.znode)
        changed = () if made is None else (made.deleted_zxid, made.zxid)
        again = any(zxid is not None and before.zxid < zxid < commit.zxid for zxid in changed)
        if again or self.group.is_migration(commit) or (commit.offset or 0) <= before.offset:
            return
        yield self._after_deletion(commit, deleted, before.offset)

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Compare the large rises of each topic with its usual rate."""
        for pace in self._paces.values():
            usual = pace.usual() if pace.has_steps else None
            if usual is not None:
                for step in pace.faster(JUMP_TIMES * usual):
                    yield self._finding(step, usual)

    def _after_deletion(self, commit: Commit, deleted: Deleted, before: int) -> Finding:
        group, offset = self.group.name, commit.offset or 0
        member, writer = _owner_as_writer(commit, group, "session")
        return Finding(
            severity=raised("medium", offset - before, self.group.limits),
            kind="offset jump",
            basis="inferred",
            sentence=f"Session {hex_of(deleted.session)} deleted the offset {before} of "
            f"{partition_of(commit.znode)} of group {group}. The next one is {offset}, written by "
            f"its owner, {writer}. `auto.offset.reset` chose where it began, so up to "
            f"{span(before, offset)} were not delivered, or earlier ones were delivered again.",
            evidence=(
                Evidence("commits", deleted.zxid, deleted.idx, deleted.session,
                         f"deleted {before}"),
                Evidence("commits", commit.zxid, commit.idx, commit.session, f"wrote {offset}"),
            ),
            zxid=commit.zxid,
            time=commit.time,
            topic=commit.znode.topic,
            partition=commit.znode.partition,
            member=member,
            session=commit.session,
            effect="unknown",
            messages=offset - before,
        )  # fmt: skip

    def _finding(self, step: _Step, usual: float | None) -> Finding:
        """Return the finding. ``usual``: the usual rate of the topic; ``None``: the rise is faster
        than any consumer."""
        commit, group, size = step.commit, self.group.name, step.size
        before = step.before_at
        member, writer = _owner_as_writer(commit, group, "session")
        is_known = isinstance(commit.owner, Lifetime)
        writer = f"its owner, {writer}" if is_known else f"{writer} while the owner is unknown"
        first = ", as its first commit after the claim" if step.is_first else ""
        if usual is None:
            cause = "No consumer reads so fast, so a reset may have skipped these messages."
        else:
            cause = (
                f"99 % of the commits of this topic rise by less than {max(usual, 1):,.0f} a "
                "second. Either the owner read a backlog, or `auto.offset.reset` skipped these "
                "messages."
            )
        return Finding(
            severity=raised("medium" if usual is None else "low", size, self.group.limits),
            kind="offset jump",
            basis="inferred",
            sentence=f"The committed offset of {partition_of(commit.znode)} of group {group} rose "
            f"by {size} within {step.seconds:,.1f} s, written by {writer}{first}. "
            f"{cause}{'' if before is None else clocks(before, commit.zxid)}",
            evidence=(
                Evidence("commits", before, None, None, f"wrote {step.before}"),
                Evidence("commits", commit.zxid, commit.idx, commit.session,
                         f"{step.before} -> {commit.offset}"),
            ),
            zxid=commit.zxid,
            time=commit.time,
            topic=commit.znode.topic,
            partition=commit.znode.partition,
            member=member,
            session=commit.session,
            effect="unknown",
            messages=size,
        )  # fmt: skip


class StaleOffsets(Rule):
    """Finds offsets of deleted topics that were still stored when a member read the recreated
    topic."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._changed: dict[str, Commit] = {}
        """By path, the last write that changed an offset."""
        self._again: dict[str, Mapping[int, Partition]] = {}
        """The partitions of each recreated topic."""

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Compare the first write after the recreation with the last one before the deletion."""
        topic = commit.znode.topic
        partitions = self._again.get(topic)
        if partitions is None:
            partitions = self._again[topic] = self._recreated(commit.znode.chroot, topic)
        if not partitions or commit.kind is not Kind.COMMIT:
            return ()
        return self._compared(commit, partitions)

    def _compared(self, commit: Commit, partitions: Mapping[int, Partition]) -> Iterator[Finding]:
        stale = self._changed.get(commit.znode.path)
        self._changed[commit.znode.path] = commit
        made = partitions.get(commit.znode.partition or 0)
        if made is None or made.deleted_zxid is None or stale is None or stale.offset is None:
            return
        if not stale.zxid < made.deleted_zxid or commit.zxid <= made.zxid:
            return
        owner, before = commit.owner, commit.previous
        own = owner is UNKNOWN or (owner is not None and owner.session == commit.session)
        if self.group.is_migration(commit):
            return  # it knows from the other store where the group is
        if own and isinstance(before, Write) and before.offset == stale.offset:
            yield self._finding(commit, stale.offset, made)

    def _recreated(self, chroot: str, topic: str) -> Mapping[int, Partition]:
        every = self.group.facts.topics.get((chroot, topic), {})
        return {
            number: made
            for number, made in every.items()
            if made.deleted_zxid is not None and made.gone_zxid is None
        }

    def _finding(self, commit: Commit, stale: int, made: Partition) -> Finding:
        group, offset = self.group.name, commit.offset
        member, writer = _owner_as_writer(commit, group, "Session")
        is_past = offset is not None and offset >= stale
        effect = ""
        if is_past:
            effect = f" If the member began there, {span(0, stale)} of the new topic were not "
            effect += "delivered."
        elif offset is not None:
            effect = " The member did not begin there. The offset was probably out of range, so "
            effect += "that `auto.offset.reset` chose another."
        what = f"{stale} -> {offset_text(offset)}"
        return Finding(
            severity="high" if is_past else "medium",
            kind="offset of a deleted topic",
            basis="inferred",
            sentence=f"{writer} first committed {offset_text(offset)} for "
            f"{partition_of(commit.znode)} of group {group} when the stored offset was still "
            f"{stale}, of a deleted topic of the same name.{effect}",
            evidence=(
                Evidence("partitions", made.deleted_zxid, None, None, "topic deleted"),
                Evidence("partitions", made.zxid, None, None, "topic created again"),
                Evidence("commits", commit.zxid, commit.idx, commit.session, what),
            ),
            zxid=commit.zxid,
            time=commit.time,
            topic=commit.znode.topic,
            partition=commit.znode.partition,
            member=member,
            session=commit.session,
            effect="lost" if is_past else "unknown",
            messages=stale if is_past else None,
        )


def _owner_as_writer(commit: Commit, group: str, session: str) -> tuple[str | None, str]:
    """Return the owner that wrote an offset, if known, and the writer's name for sentences.
    ``session`` is the word for a writer whose member is unknown."""
    member = commit.owner.member if isinstance(commit.owner, Lifetime) else None
    if member is None:
        return None, f"{session} {hex_of(commit.session)}"
    return member, who(group, member, commit.session)


def _is_for_owner(commit: Commit, group: Group) -> bool:
    """Whether a broker wrote an offset for an owner that always commits through brokers."""
    writer = writer_of(commit, group)
    return writer.role is Role.BROKER and writer.is_threaded is False


def _has_begun(owner: Lifetime | Unknown | None, deleted: Deleted) -> bool:
    """Whether an owner claimed the partition after its offset was deleted. A running owner
    continues, and rewrites the offset."""
    return isinstance(owner, Lifetime) and (owner.start_zxid or 0) > deleted.zxid


def _seconds(since: int | None, until: int | None) -> float:
    """Return the time between two writes, at least one second."""
    if since is None or until is None or until - since < _SECOND:
        return 1.0
    return (until - since) / _SECOND
