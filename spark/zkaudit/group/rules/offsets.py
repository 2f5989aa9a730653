"""Rules about offsets that were written by the wrong session, or lowered.

Each is rated by its effect: an offset has an effect only if a member starts from it. So each such
write is pending until the next write or claim of its partition, and after a claim until the new
owner's first write. Several writes by one session during the time of one owner are one finding. No
state is kept across a log gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from zkaudit.group.events import Commit, Kind, Lifetime, Moment, Write
from zkaudit.group.rules.judged import judge_lowered, judge_writes
from zkaudit.group.rules.pending import Lowered, Next, Position, Start, Waiting, Writes, highest
from zkaudit.group.rules.rule import Finding, Group, Rule
from zkaudit.group.rules.writers import Role, Writer, is_threaded, is_tool, writer_of
from zkaudit.group.znodes import OWNERS

_WRONG: Final = frozenset({Role.ZOMBIE, Role.ORPHAN, Role.TOOL, Role.BROKER})
_MOVES: Final = frozenset({Role.OWNER, Role.ORPHAN, Role.MIGRATION, Role.BROKER, Role.UNKNOWN})
"""Roles whose offset is the position of the partition's owners."""


@dataclass(slots=True, eq=False)
class _Partition:
    """The state of a partition since the last log gap."""

    begun: Write | None = None
    """The offset before the first write, from a snapshot."""
    is_begun: bool = False
    """Whether the first write was read."""
    stored: int | None = None
    """The last offset written by any session."""
    stored_at: int | None = None
    setter: Role | None = None
    """The role that last changed it. A stranger counts as a tool."""
    delivered: int | None = None
    """The highest offset written by a member."""
    position: Position | None = None
    owner: Lifetime | None = None
    """The owner, if it wrote the stored offset, which is then its position, and no write is
    pending."""
    was_claimed: bool = False
    owners: set[int | str | None] = field(default_factory=set)
    """The sessions and the members that have owned the partition."""
    had_streams: bool = False
    """Whether an owner znode named a stream."""
    by_brokers: bool = False
    """Whether brokers write for the last owner's client, because its owner znode named
    no stream."""
    own: dict[int, int] = field(default_factory=dict)
    """Since the last claim, the last offset of each session that may not be the owner."""
    writes: dict[object, Writes] = field(default_factory=dict)
    """Wrong writes since the last claim, by session and owner."""
    unanswered: list[Writes] = field(default_factory=list)
    """Wrong writes that no other write followed."""
    lowered: list[Lowered] = field(default_factory=list)
    """Lowered offsets that no write followed."""
    started: list[Waiting] = field(default_factory=list)
    """The pending writes before the last claim, until the new owner writes."""

    def begin(self, before: Write | None) -> None:
        """Record the offset before the first write."""
        self.is_begun, self.begun = True, before
        if before is not None and before.offset is not None:
            self.stored, self.stored_at = before.offset, before.zxid
            self.delivered = before.offset
            self.position = Position(before.offset, before.zxid, self.was_claimed, is_sure=False)

    def claim(self) -> None:
        """Record that an owner starts from the stored offset."""
        self.was_claimed = True
        self.own.clear()
        if self.stored is not None:
            sure = self._is_sure(self.stored_at, self.setter)
            self.position = Position(self.stored, self.stored_at, True, self.setter, sure)

    def interrupt(self) -> None:
        """Record that an unusual write follows."""
        if self.owner is not None and self.stored is not None:
            self.position = Position(self.stored, self.stored_at)
            self.owner = None

    def write(self, commit: Commit, writer: Writer) -> None:
        """Record any other write."""
        offset, zxid, role = commit.offset, commit.zxid, writer.role
        if commit.kind is Kind.CLAIM:
            if self.stored is None and offset is not None:
                sure = self.setter is not Role.BROKER
                self.position = Position(offset, None, True, self.setter, sure)
        # An owner with streams writes its own offsets, so a broker's write does not move it.
        elif offset is not None and not _has_not_delivered(writer):
            self.delivered = highest(self.delivered, offset)
            if role in _MOVES:
                self.position = Position(offset, zxid, is_sure=self._is_sure(zxid, role))
        if offset is not None:
            self.stored, self.stored_at = offset, zxid
        if commit.kind is Kind.COMMIT:
            self.setter = Role.TOOL if writer.is_stranger else role

    def waiting(self) -> Iterator[Waiting]:
        """The pending writes, in no particular order."""
        yield from self.started
        yield from self.writes.values()
        yield from self.lowered

    def _is_sure(self, at: int | None, writer: Role | None) -> bool:
        known = self.begun is None or at is None or at > self.begun.zxid
        return known and writer is not Role.BROKER


def _has_not_delivered(writer: Writer) -> bool:
    """Whether a write shows nothing about what members have delivered."""
    return writer.role is Role.TOOL or writer.is_past_owner or writer.is_stranger


class WrongOffsets(Rule):
    """Finds offsets that were written by a session that did not own the partition, and lowered
    offsets."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._partitions: dict[str, _Partition] = {}
        """Partitions by the path of the offset."""
        self._of_topic: defaultdict[str, set[int | None]] = defaultdict(set)
        """The partitions of each topic that have an offset."""
        self._of_tool: defaultdict[tuple[str, int], set[int | None]] = defaultdict(set)
        """The partitions of a topic that were written by a session that is not a member's."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Note that a partition has a new owner, which starts from the stored offset."""
        znode = lifetime.znode
        if znode.tree != OWNERS or is_tool(lifetime.member):
            return
        path = f"{znode.chroot}/consumers/{znode.group}/offsets/{znode.name}"
        state = self._partitions.setdefault(path, _Partition())
        state.interrupt()
        threaded = is_threaded(lifetime) is True
        waiting, state.started = state.started, []
        ended: list[Waiting] = [*state.writes.values(), *state.lowered]
        for pending in ended:
            pending.start = Start(lifetime)
            (state.started if pending.next is None else waiting).append(pending)
        state.writes, state.unanswered, state.lowered = {}, [], []
        state.had_streams = state.had_streams or threaded
        state.by_brokers = not threaded
        state.owners |= {lifetime.session, lifetime.member} - {None}
        state.claim()
        yield from self._judged(state, waiting)

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Judge earlier writes whose effect this write shows. Keep this one if its effect is not
        known yet."""
        state, offset = self._partitions.get(commit.znode.path), commit.offset
        if state is not None and (owner := state.owner) is not None:  # nearly always
            usual = commit.owner is owner and commit.session == owner.session
            if usual and offset is not None and offset >= (state.stored or 0):
                state.stored, state.stored_at = offset, commit.zxid
                if offset > (state.delivered or 0):
                    state.delivered = offset
                return ()
            state.interrupt()
        return self._written(state, commit)

    def _written(self, state: _Partition | None, commit: Commit) -> Iterator[Finding]:
        if state is None:
            state = self._partitions[commit.znode.path] = _Partition()
        if not state.is_begun:
            state.begin(commit.previous if isinstance(commit.previous, Write) else None)
            self._of_topic[commit.znode.topic].add(commit.znode.partition)
        writer = writer_of(commit, self.group)
        writer = writer._replace(has_owned=self._has_owned(state, commit, writer.member))
        if commit.kind is not Kind.CLAIM:
            yield from self._answered(state, commit, writer.role)
            if writer.role in _WRONG:
                self._add(state, commit, writer)
            else:
                self._compare(state, commit, writer)
            if writer.role is not Role.OWNER and commit.offset is not None:
                state.own[commit.session] = commit.offset
        state.write(commit, writer)
        usual = writer.role is Role.OWNER and commit.offset is not None
        if usual and commit.kind is Kind.COMMIT and not any(state.waiting()):
            state.owner = commit.owner if isinstance(commit.owner, Lifetime) else None

    def _has_owned(self, state: _Partition, commit: Commit, member: str | None) -> bool | None:
        """Return ``Writer.has_owned``."""
        if not state.owners.isdisjoint((commit.session, member)):
            return True
        is_known = self.group.segment == 0 or self.group.is_new(commit.session)
        return False if is_known and member is not None and state.position is not None else None

    def _answered(self, state: _Partition, commit: Commit, role: Role) -> Iterator[Finding]:
        """Evaluate the writes that were pending until the next write."""
        following = Next(commit, role)
        waiting, state.lowered = list[Waiting](state.lowered), []
        for pending in (*waiting, *state.unanswered):
            pending.next = following
        state.unanswered.clear()
        if role is Role.OWNER and state.started:
            for pending in state.started:
                assert pending.start is not None
                pending.start.first = commit.offset
            waiting += state.started
            state.started = []
        yield from self._judged(state, waiting)

    def _add(self, state: _Partition, commit: Commit, writer: Writer) -> None:
        """Add a write to those of its session."""
        if writer.role is Role.TOOL:
            self._of_tool[commit.znode.topic, commit.session].add(commit.znode.partition)
        if writer.role is Role.BROKER and writer.is_threaded is False:
            return  # that is normal
        if writer.role is Role.BROKER and commit.owner is None and state.by_brokers:
            return  # a last commit of that owner
        if self.group.moved_to_kafka is not None and commit.kind is Kind.COMMIT:
            return  # that is another finding
        owner = commit.owner
        since = owner.start_zxid if isinstance(owner, Lifetime) else owner
        key = commit.session, writer.role, owner is None, since, commit.free_since
        writes = state.writes.get(key)
        if writes is None:
            alive = self.group.registered_before(commit.zxid)
            writes = Writes(writer, commit, commit, alive, state.was_claimed, state.position)
            state.writes[key] = writes
        writes.add(commit, state.position, state.delivered)
        state.unanswered.append(writes)

    def _compare(self, state: _Partition, commit: Commit, writer: Writer) -> None:
        """Check whether a session lowered the offset that is, or may be, its own."""
        position, before = state.position, commit.previous
        if commit.offset is None:
            return
        if writer.role is Role.OWNER:
            # An owner that overwrites the offset of a tool has not moved.
            if position is None or commit.offset >= position.offset:
                return
            if position.is_start and position.setter is Role.TOOL:
                return
            lowered = Lowered(commit, writer, position.offset, position.at, position)
        else:
            if writer.role is not Role.UNKNOWN or not isinstance(before, Write):
                return
            own = state.own.get(commit.session)
            if before.offset is None or commit.offset >= before.offset:
                return
            if state.setter is Role.TOOL or (own is not None and commit.offset >= own):
                return
            lowered = Lowered(commit, writer, before.offset, before.zxid, position, own)
        if not self._was_recreated(commit, position):
            state.lowered.append(lowered)

    def _was_recreated(self, commit: Commit, position: Position | None) -> bool:
        """Whether the offset was lowered because the topic was recreated and its messages begin at
        0 again."""
        made = self.group.facts.partition(commit.znode)
        if made is None or position is None or position.at is None:
            return False
        created = made.zxid if made.is_created else None
        return any(
            zxid is not None and position.at < zxid < commit.zxid
            for zxid in (made.deleted_zxid, created)
        )

    def gap(self) -> Iterable[Finding]:
        """Judge all writes that were kept, and forget what may have changed in the log gap."""
        yield from self._judge_all(before_gap=True)
        self._partitions.clear()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Judge all writes that were kept."""
        return self._judge_all(self.group.coverage.segment(end.zxid) > self.group.segment)

    def _judge_all(self, before_gap: bool) -> Iterator[Finding]:
        for state in self._partitions.values():
            yield from self._judged(state, state.waiting(), before_gap)

    def _judged(
        self, state: _Partition, waiting: Iterable[Waiting], before_gap: bool = False
    ) -> Iterator[Finding]:
        for pending in waiting:
            if isinstance(pending, Lowered):
                yield judge_lowered(self.group, pending)
            # That a broker writes is normal, unless owners write themselves.
            elif pending.writer.role is not Role.BROKER or state.had_streams:
                extent = self._extent(pending)
                yield from judge_writes(self.group, pending, extent, before_gap)

    def _extent(self, writes: Writes) -> int | None:
        """Return the number of the topic's partitions, if a tool wrote all of them while the group
        was stopped."""
        topic, tool = writes.first.znode.topic, writes.writer.role is Role.TOOL
        count = len(self._of_topic[topic])
        whole = len(self._of_tool.get((topic, writes.first.session), ())) == count > 1
        return count if whole and tool and writes.alive == 0 else None
