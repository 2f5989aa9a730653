"""One pass over the events of a group, in the order of (zxid, idx)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from zkaudit.group.coverage import UNKNOWN, Coverage, Unknown
from zkaudit.group.events import (
    FROM_SNAPSHOT,
    Act,
    Began,
    Change,
    Commit,
    Deleted,
    Ended,
    Event,
    Kind,
    Lifetime,
    Moment,
    Refused,
    Row,
    Shown,
    Write,
    member_of,
    offset_of,
)
from zkaudit.group.later import FirstEvent, LaterEvents, Listed
from zkaudit.group.live_moves import LiveMove, LiveMoves
from zkaudit.group.membership import Members
from zkaudit.group.rebalances import Bursts
from zkaudit.group.znodes import (
    IDS,
    MEMBERS,
    MIGRATION,
    MIRROR,
    MODE,
    OFFSETS,
    OWNERS,
    WITH_CHANGES,
    WITH_LIFETIMES,
    Znode,
    Znodes,
)


class _Node:
    """The state of a registration or an owner znode."""

    __slots__ = ("event_in", "last", "znode")

    def __init__(self, znode: Znode) -> None:
        self.znode = znode
        self.last: Lifetime | None = None
        self.event_in = -1
        """The segment of its last create or delete."""

    @property
    def live(self) -> Lifetime | None:
        """Its current lifetime, if it has not ended."""
        return self.last if self.last is not None and self.last.end is None else None


class _Offset:
    """The state of an offset znode."""

    __slots__ = ("last", "owner", "written_in", "znode")

    def __init__(self, znode: Znode, owner: _Node) -> None:
        self.znode = znode
        self.owner = owner
        self.last: Write | None = None
        """The last write; ``None`` if the znode was deleted, or no write is known."""
        self.written_in = -1
        """The segment of its last write or delete."""


class _Snapshots:
    """The znodes of a group in snapshots."""

    def __init__(self, coverage: Coverage, shown: Iterable[Shown], znodes: Znodes) -> None:
        self.offsets: dict[tuple[str, int], Write] = {}
        """By path and segment, the last write before the segment began."""
        self.modes: dict[int, int] = {}
        """The last snapshot that shows a mode, by the zxid that wrote the mode."""
        self._seen_in: dict[tuple[str, int], int] = {}
        self._waiting: dict[tuple[str, int], Event] = {}
        """By path and zxid, the events that the logs have not shown yet."""
        for row in shown:
            znode = znodes[row.path]
            segment = coverage.segment(row.zxid + 1)
            if znode is None:
                continue
            if znode.tree == OFFSETS:
                if coverage.segment(row.mzxid) < segment:
                    write = Write(row.data, offset_of(row.data), row.mzxid, row.mtime)
                    self.offsets.setdefault((row.path, segment), write)
            elif znode.tree in (MIGRATION, MODE):
                if znode.tree == MODE:
                    self.modes[row.mzxid] = max(row.zxid, self.modes.get(row.mzxid, 0))
                event = Event(row.mzxid, 0, row.mtime, 0, Act.SET, row.path, row.data, False,
                              version=row.version)  # fmt: skip
                self._waiting.setdefault((row.path, row.mzxid), event)
            elif row.is_ephemeral and znode.tree in WITH_LIFETIMES:
                key = row.path, row.czxid
                self._seen_in[key] = max(segment, self._seen_in.get(key, 0))
                event = Event(row.czxid, FROM_SNAPSHOT, row.ctime, row.session, Act.CREATE,
                              row.path, row.data, True)  # fmt: skip
                self._waiting.setdefault(key, event)
        self._in_order = sorted(self._waiting.values(), key=attrgetter("zxid"), reverse=True)

    def before(self, zxid: int) -> Iterable[Event]:
        """Return the events before a transaction that the logs did not show."""
        while self._in_order and self._in_order[-1].zxid < zxid:
            event = self._in_order.pop()
            if (event.path, event.zxid) in self._waiting:
                yield event

    def logged(self, path: str, zxid: int) -> None:
        """Record that the logs show the event themselves."""
        self._waiting.pop((path, zxid), None)

    def seen_in(self, path: str, zxid: int) -> int:
        """Return the last segment in which a snapshot shows a lifetime; 0 if there is none."""
        return self._seen_in.get((path, zxid), 0)


class Fold:
    """Follows a group's registrations, owners and offsets through its history, and returns what
    happens to them as rows.

    Args:
        coverage: the segments of the history.
        shown: the group's registrations, owners and offsets in snapshots.
        later: the same history, read to its end. Needed only if there are log gaps.
    """

    def __init__(
        self,
        coverage: Coverage | None = None,
        shown: Iterable[Shown] = (),
        later: LaterEvents | None = None,
    ) -> None:
        self.coverage = coverage or Coverage()
        self.sessions: set[int] = set()
        """Sessions that changed a znode of the group."""
        self._later = later
        self._znodes = Znodes()
        self._snapshots = _Snapshots(self.coverage, shown, self._znodes)
        self._nodes: dict[str, _Node] = {}
        self._offsets: dict[str, _Offset] = {}
        self._of_session: defaultdict[int, dict[str, Lifetime]] = defaultdict(dict)
        self._closed: dict[int, int] = {}
        """Transactions that ended sessions."""
        self._listed = Listed(self.coverage)
        self._bursts = Bursts()
        self._members = Members(self.coverage)
        self._live_moves = LiveMoves(self.coverage)
        self._has_owners = False
        self._mirrored: int | None = None
        """The last transaction of the group's mirror."""

    @property
    def group(self) -> tuple[str, str] | None:
        """Chroot and name of the group; ``None`` if it has no znode."""
        for znode in self._znodes.values():
            if znode is not None:
                return znode.chroot, znode.group
        return None

    @property
    def trees(self) -> set[str]:
        """The parts of the group's tree, such as ``ids``, in which it has znodes. ``owners`` counts
        only if there was an owner znode in it."""
        trees = {znode.tree for znode in self._znodes.values() if znode is not None}
        return trees if self._has_owners else trees - {OWNERS}

    def apply(self, event: Event) -> Sequence[Row]:
        """Apply the next event. Return the rows that it causes: begun and ended lifetimes, writes
        and deletions of offsets, changes of a migration, refused writes of members, and ended
        bursts."""
        rows: list[Row] = []
        for earlier in self._snapshots.before(event.zxid):
            self._change(earlier, rows)
        if event.act is Act.CLOSE:
            self._close(event, rows)
        elif event.act is Act.REFUSED:
            at = Moment(*event[:3])
            mine = self._of_session.get(event.session, {})
            rows += (
                Refused(lifetime, at) for lifetime in mine.values() if lifetime.znode.tree == IDS
            )
        elif event.path is not None and (znode := self._znodes[event.path]) is not None:
            if znode.tree == OFFSETS:
                self._offset(event, znode, rows)
            elif znode.tree == MIRROR:  # before the offsets of its transaction
                self._mirrored = event.zxid
            else:
                if event.act is Act.CREATE:
                    self._listed.create(event)
                if event.act is Act.CREATE or znode.tree not in WITH_LIFETIMES:
                    self._snapshots.logged(event.path, event.zxid)
                self._change(event, rows)
        if len(rows) == 1 and isinstance(rows[0], Commit):
            return rows  # nearly always
        return self._read(rows)

    def finish(self) -> Sequence[Row | LiveMove]:
        """Return the rows at the end of the history: the last burst, the lifetimes that have not
        ended, and the live move of a group that has a mode."""
        rows: list[Row] = []
        for event in self._snapshots.before(2**63):
            self._change(event, rows)
        last: list[Row | LiveMove] = [*self._read(rows), *self._bursts.finish()]
        for node in self._nodes.values():
            if (lifetime := node.live) is not None:
                if lifetime.seen_in < self.coverage.last_segment:
                    self._hide(lifetime)
                last.append(lifetime)
        if (move := self._live_moves.finish(self._closed, self._snapshots.modes)) is not None:
            last.append(move)
        return last

    def _read(self, rows: Iterable[Row]) -> list[Row]:
        """Add the rows that are derived from several others."""
        read = list(self._members.read(self._bursts.read(rows)))
        for row in read:
            self._live_moves.read(row)
        return read

    def owner(self, path: str, zxid: int) -> tuple[Lifetime | Unknown | None, int | None]:
        """Return the owner of a partition after a transaction, by the path of its owner znode.

        If there is none, also return the zxid at which the last owner znode was certainly gone.
        Call it when all events up to the transaction have been applied, and no later ones.
        """
        rows: list[Row] = []
        for event in self._snapshots.before(zxid + 1):
            self._change(event, rows)
        after = Event(zxid, FROM_SNAPSHOT, None, 0, Act.SET)
        return self._owner(self._node(path), after, self.coverage.segment(zxid))

    def offset(self, path: str, zxid: int) -> Write | Unknown | None:
        """Return the content of an offset znode after a transaction.

        Call it when all events up to the transaction have been applied, and no later ones.
        """
        state, segment = self._offsets.get(path), self.coverage.segment(zxid)
        write = self._content(state, path, segment)
        known_from = self.coverage.known_from(segment)
        known = known_from is not None and known_from <= zxid
        is_known = known or (state is not None and state.written_in == segment)
        return write if write is not None or is_known else UNKNOWN

    def _change(self, event: Event, rows: list[Row]) -> None:
        """Apply an event of a znode that is not an offset."""
        assert event.path is not None
        znode = self._znodes[event.path]
        assert znode is not None
        self.sessions.add(event.session)
        self._has_owners |= znode.tree == OWNERS
        if znode.tree in WITH_CHANGES:
            rows.append(Change(znode, event))
        if znode.tree in WITH_LIFETIMES:
            if event.act is Act.CREATE:
                self._create(event, rows)
            elif event.act is Act.DELETE:
                self._delete(event, rows)
            elif znode.tree == MEMBERS and (lifetime := self._node(event.path).live) is not None:
                lifetime.data = event.data

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            znode = self._znodes[path]
            assert znode is not None
            node = self._nodes[path] = _Node(znode)
        return node

    def _create(self, event: Event, rows: list[Row]) -> None:
        assert event.path is not None
        node = self._node(event.path)
        if (before := node.live) is not None:
            self._end(before, event, Ended.UNKNOWN, rows)
            before.ended_by = None  # another event, which a log gap hides, deleted it
        segment = self.coverage.segment(event.zxid)
        lifetime = Lifetime(
            node.znode,
            event.session if event.ephemeral else None,
            event.data,
            Moment(*event[:3]),
            max(segment, self._snapshots.seen_in(event.path, event.zxid)),
        )
        if node.znode.tree == OWNERS:
            lifetime.member = member_of(event.data)[0]
        node.last, node.event_in = lifetime, segment
        if lifetime.session is not None and lifetime.session not in self._closed:
            self._of_session[lifetime.session][event.path] = lifetime
        rows.append(Began(lifetime))

    def _delete(self, event: Event, rows: list[Row]) -> None:
        assert event.path is not None
        node = self._node(event.path)
        if (lifetime := node.live) is not None:
            mine = lifetime.session == event.session
            self._end(lifetime, event, Ended.RELEASED if mine else Ended.FOREIGN_DELETE, rows)
        else:
            node.last = Lifetime(node.znode, None, None, UNKNOWN, 0)
            self._end(node.last, event, Ended.UNKNOWN, rows)
        node.event_in = self.coverage.segment(event.zxid)

    def _close(self, event: Event, rows: list[Row]) -> None:
        """Delete the ephemeral znodes of a session at its end. Only its first close is used."""
        if event.session in self._closed:
            return
        self._closed[event.session] = event.zxid
        how = Ended.EXPIRED if event.cxid == 0 else Ended.CLOSED
        mine = self._of_session.pop(event.session, {})
        for _, lifetime in sorted(mine.items()):
            self._end(lifetime, event, how, rows)
        listed = self._listed.close(event)
        if self.coverage.log_gaps:
            segment = self.coverage.segment(event.zxid)
            for path in listed:
                znode = self._znodes[path]
                if znode is not None and znode.tree in WITH_LIFETIMES:
                    if (before := mine.get(path)) is not None:
                        before.gone_in, before.expired = segment, how is Ended.EXPIRED
                    else:
                        self._end_listed(path, event, how, rows)
                    self._node(path).event_in = segment

    def _end_listed(self, path: str, event: Event, how: Ended, rows: list[Row]) -> None:
        """End a lifetime that was created in a log gap and is listed by the close of
        its session."""
        self.sessions.add(event.session)
        node = self._node(path)
        if (lifetime := node.live) is not None:  # another session's, from before a log gap
            self._end(lifetime, event, Ended.FOREIGN_DELETE, rows)
        else:
            node.last = Lifetime(node.znode, event.session, None, UNKNOWN, 0)
            self._end(node.last, event, how, rows)

    def _end(self, lifetime: Lifetime, event: Event, how: Ended, rows: list[Row]) -> None:
        idx = 0 if event.act is Act.CLOSE else event.idx
        lifetime.end = Moment(event.zxid, idx, event.time)
        lifetime.ended, lifetime.ended_by = how, event.session
        segment = self.coverage.segment(event.zxid)
        hidden = lifetime.start is not UNKNOWN and lifetime.seen_in < segment
        if hidden:
            self._hide(lifetime)
        by_close = event.act is Act.CLOSE and event.session == lifetime.session
        lifetime.gone_in = None if hidden and by_close else segment
        lifetime.expired = lifetime.ended is Ended.EXPIRED
        if lifetime.session is not None and not by_close:
            self._of_session[lifetime.session].pop(lifetime.znode.path, None)
        rows.append(lifetime)

    def _hide(self, lifetime: Lifetime) -> None:
        """Record that a log gap hides the end of a lifetime."""
        lifetime.ended = Ended.UNKNOWN
        lifetime.last_seen = lifetime.seen_until(self.coverage)

    def _offset(self, event: Event, znode: Znode, rows: list[Row]) -> None:
        path = znode.path
        self.sessions.add(event.session)
        state = self._offsets.get(path)
        if state is None:
            owner = f"{znode.chroot}/consumers/{znode.group}/owners/{znode.name}"
            state = self._offsets[path] = _Offset(znode, self._node(owner))
        segment = self.coverage.segment(event.zxid)
        if event.act is Act.DELETE:
            before = self._content(state, path, segment)
            rows.append(Deleted(znode, *event[:4], before))
            state.last, state.written_in = None, segment
            return
        write = Write(event.data, offset_of(event.data), event.zxid, event.time)
        rows.append(self._commit(event, state, write, segment))
        state.last, state.written_in = write, segment

    def _commit(self, event: Event, state: _Offset, write: Write, segment: int) -> Commit:
        created = event.act is Act.CREATE
        before = self._content(state, state.znode.path, segment)
        data = None if before is None else before.data
        same = data is not None and data == event.data
        lifetime = state.owner.last
        claimed = (
            lifetime is not None
            and lifetime.start is not UNKNOWN
            and lifetime.start.zxid == event.zxid
            and _holds(lifetime, event)
        )
        if claimed and not created and (same or data is None):
            kind = Kind.CLAIM
        else:
            kind = Kind.SAME if same else Kind.COMMIT
        owner, free_since = self._owner(state.owner, event, segment)
        return Commit(
            state.znode,
            event.zxid,
            event.idx,
            event.time,
            event.session,
            event.data,
            write.offset,
            before if before is not None or created else UNKNOWN,
            kind,
            created,
            owner,
            free_since,
            self._mirrored == event.zxid,
        )

    def _content(self, state: _Offset | None, path: str, segment: int) -> Write | None:
        """Return the content of an offset znode; ``None`` if there is none, or it is unknown."""
        if state is not None and state.written_in == segment:
            return state.last
        return self._snapshots.offsets.get((path, segment))

    def _owner(
        self, node: _Node, event: Event, segment: int
    ) -> tuple[Lifetime | Unknown | None, int | None]:
        """Return the owner at an operation. Without one, return the zxid at which the last one was
        certainly gone."""
        lifetime = node.last
        if lifetime is not None and lifetime.seen_in >= segment and _holds(lifetime, event):
            return lifetime, None  # nearly always
        first = None
        if node.event_in < segment and self._later is not None:
            first = self._later.first(node.znode.path, segment)
            if first is not None and not first.is_create and self._is_older(lifetime, first):
                return self._older(node, first), None
        known_from = self.coverage.known_from(segment)
        known = known_from is not None and event.zxid >= known_from
        if lifetime is None:
            return (None if known else UNKNOWN), None
        if _holds(lifetime, event):
            # The snapshot of this segment does not have it, and it did not end in this segment.
            gone = known and lifetime.end is None and first is None
            gone = gone and not self._closes_in(lifetime, segment)
            return (None if gone else UNKNOWN), None
        assert lifetime.end is not None
        if lifetime.end.zxid == event.zxid and (
            lifetime.start is UNKNOWN or lifetime.seen_in < segment
        ):
            return UNKNOWN, None  # a multi is atomic, and it is unknown whose znode it deleted
        if known or lifetime.gone_in == segment:
            return None, lifetime.end.zxid
        return UNKNOWN, None

    def _closes_in(self, lifetime: Lifetime, segment: int) -> bool:
        """Whether the session of a lifetime ends in a segment."""
        closed = self._later.closed(lifetime.session) if self._later is not None else None
        return closed is not None and self.coverage.segment(closed) == segment

    def _is_older(self, lifetime: Lifetime | None, first: FirstEvent) -> bool:
        """Whether a deleted znode existed since the log gap before its segment. This is so if the
        last lifetime that the logs show ended earlier, or if the close of its session lists the
        znode."""
        if lifetime is None or lifetime.end is not None:
            return True
        if first.listed_by is not None and first.listed_by == lifetime.session:
            return True
        assert self._later is not None
        closed = self._later.closed(lifetime.session)
        return closed is not None and closed < first.zxid

    def _older(self, node: _Node, first: FirstEvent) -> Lifetime | Unknown:
        """Return the owner since a log gap, of which only the end is known."""
        if first.listed_by is None:
            return UNKNOWN
        assert self._later is not None
        znode = node.znode
        lifetime = Lifetime(
            znode, first.listed_by, None, UNKNOWN, self.coverage.segment(first.zxid)
        )
        lifetime.end = Moment(*first[:3])
        lifetime.ended = Ended.EXPIRED if first.expired else Ended.CLOSED
        lifetime.ended_by = first.listed_by
        lifetime.member = self._later.only_member(znode.chroot, znode.group, first.listed_by)
        return lifetime


def _holds(lifetime: Lifetime, event: Event) -> bool:
    """Whether the znode exists at a write, or its own session deletes it in the same multi, which
    is atomic."""
    end = lifetime.end
    if end is None:
        return True
    return (
        end.zxid == event.zxid
        and lifetime.start is not UNKNOWN
        and lifetime.session == event.session
    )
