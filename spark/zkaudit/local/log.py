"""The history of a group as sentences: one entry for each change, in the order of zxids.

Changes of unknown formats are entries, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group import (
    UNKNOWN,
    Act,
    Commit,
    Coverage,
    Ended,
    Event,
    Fold,
    Kind,
    Lifetime,
    Unknown,
    Write,
    Znode,
    member_of,
    znode_of,
)
from zkaudit.group.live_moves import is_lock_record
from zkaudit.group.znodes import FOREIGN, IDS, OFFSETS, OWNERS
from zkaudit.history.committed import within
from zkaudit.history.facts import events_of, shown_of
from zkaudit.local.events import Sessions, fold_of, sessions_of
from zkaudit.local.history import GroupHistory, subscription_of
from zkaudit.text import hex_of, printable
from zkconsumer.admin.ids_lock import moved_to
from zkconsumer.admin.snapshot import RECORD
from zkconsumer.core.common.types import Pattern
from zkconsumer.core.zookeeper.znodes import decode_topic
from zkconsumer.errors import ZnodeFormatError

_TREES: Final = (IDS, OWNERS, OFFSETS, FOREIGN)
_PARENTS: Final = ("ids", "owners", "offsets", "live", "live/members")
_PARENT: Final = re.compile("(owners|offsets)/[^/]+")
"""Znodes below a group that only have children."""
_MOST_TEXT: Final = 60


class Entry(NamedTuple):
    """A line of ``zkaudit log``. ``kind``: what was changed. ``None`` in a field means unknown or
    not applicable."""

    zxid: int
    idx: int
    time_us: int | None
    kind: str
    text: str
    chroot: str = ""
    topic: str | None = None
    partition: int | None = None
    member: str | None = None
    session: int | None = None
    committed_offset: int | None = None
    previous: int | None = None
    confirmed: bool = True
    lost: tuple[tuple[str, int | None], ...] = ()
    """The partitions that lost their owner at the end of a session."""


def entries(history: GroupHistory, group: str) -> Iterator[Entry]:
    """Yield the changes of a group in order, and also the log gaps and the transactions that were
    left out."""
    events = events_of(history.rows)
    sessions = sessions_of(history)
    words = _Words(group, sessions, fold_of(history, events), _Topics(history))
    others = [*_gaps(history, group), *_left_out(history), *_access_lists(history, group, sessions)]
    waiting = iter(sorted(others, key=lambda entry: entry.zxid))
    unsure = history.plan.unconfirmed
    unsure_from = unsure[0][0] if unsure else 2**63
    other = next(waiting, None)
    for event in events:
        while other is not None and other.zxid <= event.zxid:
            yield other
            other = next(waiting, None)
        for entry in words.of(event):
            if event.zxid >= unsure_from and within(event.zxid, unsure):
                entry = entry._replace(confirmed=False)
            yield entry
    if other is not None:
        yield other
    yield from waiting


def _gaps(history: GroupHistory, group: str) -> Iterator[Entry]:
    """Return the log gaps, and the znodes that snapshots show behind them."""
    for after, before in history.log_gaps:
        if before == history.begin:  # the logs were not read from their begin on
            continue
        text = f"log gap: no log has the transactions {after + 1:#x} to {before - 1:#x}"
        if not after:
            text = "the logs begin here: what happened before is unknown"
        yield Entry(after + 1 if after else before, 0, None, "log gap", text)
        yield from _in_snapshot(history, group, before)


def _in_snapshot(history: GroupHistory, group: str, before: int) -> Iterator[Entry]:
    """Return the members and owners in a snapshot that existed when the logs continued."""
    segment = Coverage(history.log_gaps).segment
    shown: dict[int, set[Znode]] = {}
    for row in shown_of(history.nodes):
        znode = znode_of(row.path)
        if znode is None or znode.group != group or znode.tree not in (IDS, OWNERS):
            continue
        if row.is_ephemeral and row.czxid < before and segment(row.zxid + 1) == segment(before):
            shown.setdefault(row.session, set()).add(znode)
    for session, znodes in sorted(shown.items()):
        members = sorted(znode.name for znode in znodes if znode.tree == IDS)
        owned = _owned(znodes)
        text = f"a snapshot shows session {hex_of(session)}"
        if members:
            text += f" of member {', '.join(map(printable, members))}"
        if owned:
            text += f"; it owned {_ranges(owned)}"
        member = members[0] if len(members) == 1 else None
        yield Entry(before, 0, None, "snapshot", text, member=member, session=session)


def _left_out(history: GroupHistory) -> Iterator[Entry]:
    """Return the transactions that were never committed."""
    for first, last in history.plan.dropped:
        count = last - first + 1
        text = (
            f"left out: {count:,} transaction{'' if count == 1 else 's'}, {first:#x} to {last:#x}, "
            "rolled back when a leader changed"
        )
        yield Entry(first, 0, None, "rolled back", text)


def _access_lists(history: GroupHistory, group: str, sessions: Sessions) -> Iterator[Entry]:
    """Return changes of ACLs, which the fold does not read."""
    rows = history.rows.filter(pc.equal(history.rows["type"], "setACL"))
    rows = rows.append_column("us", rows["time"].cast(pa.int64()))
    names = ["zxid", "idx", "us", "session", "path", "confirmed"]
    for row in rows.select(names).to_pylist():
        chroot, consumers, _ = row["path"].partition(f"/consumers/{group}/")
        if consumers:
            who = sessions.who(row["session"])
            text = f"access list of {printable(row['path'])} changed by {who}"
            yield Entry(row["zxid"], row["idx"], row["us"], "access list", text, chroot,
                        session=row["session"], confirmed=row["confirmed"])  # fmt: skip


def _owned(znodes: Iterable[Znode]) -> list[Znode]:
    """Return the partitions among the znodes, in order."""
    owned = (znode for znode in znodes if znode.tree == OWNERS)
    return sorted(owned, key=lambda znode: (znode.topic, znode.partition or 0))


class _Topics:
    """The number of partitions of each topic, by its path."""

    def __init__(self, history: GroupHistory) -> None:
        self._segment = Coverage(history.log_gaps).segment
        self._counts: dict[str, list[tuple[int, int, int]]] = {}
        """By path, the zxid that wrote the topic, the segment in which it is known, and the
        number."""
        topics = history.nodes.filter(pc.match_substring(history.nodes["path"], "/brokers/topics/"))
        for row in topics.select(["path", "data", "zxid", "mzxid"]).to_pylist():
            self._add(row["path"], row["mzxid"], self._segment(row["zxid"] + 1), row["data"])

    def _add(self, path: str, zxid: int, segment: int, data: bytes | None) -> int | None:
        count = partitions_of(path, data)
        if count is not None:
            self._counts.setdefault(path, []).append((zxid, segment, count))
        return count

    def change(self, event: Event, path: str) -> tuple[int | None, int | None]:
        """Return the number before and after an event; ``None`` if unknown."""
        here = self._segment(event.zxid)
        known = [(zxid, count) for zxid, segment, count in self._counts.get(path, ())
                 if segment == here and zxid < event.zxid]  # fmt: skip
        after = self._add(path, event.zxid, here, event.data)
        return (max(known)[1] if known else None), after


class _Words:
    """Describes events. ``fold`` gets each event once, in order."""

    def __init__(self, group: str, sessions: Sessions, fold: Fold, topics: _Topics) -> None:
        self._group = group
        self._sessions = sessions
        self._fold = fold
        self._topics = topics
        self._znodes: dict[str, Znode | None] = {}

    def of(self, event: Event) -> Iterator[Entry]:
        """Yield the entries of the next event."""
        rows = self._fold.apply(event)
        path = event.path
        if path is None:
            yield from self._close(event, _ended(rows, event))
            return
        if path in self._znodes:
            znode = self._znodes[path]
        else:
            znode = self._znodes[path] = znode_of(path)
        if znode is None or znode.tree not in _TREES:
            yield from self._other(event, path)
        elif znode.group == self._group:
            if znode.tree == OFFSETS:
                yield self._offset(event, znode, rows)
            elif event.act is Act.CREATE:
                yield self._begin(event, znode)
            elif event.act is Act.DELETE:
                yield from (self._end(event, row) for row in _ended(rows, event))
            else:
                yield self._overwritten(event, znode)

    def _who(self, event: Event) -> str:
        return self._sessions.who(event.session)

    def _begin(self, event: Event, znode: Znode) -> Entry:
        session = f" (session {hex_of(event.session)})"
        if znode.tree == IDS:
            pattern, names = subscription_of(znode.path, event.data)
            topics = ", ".join(map(printable, names))
            about = {
                Pattern.STATIC: f"for {topics}",
                Pattern.WHITE_LIST: f"for topics that match {topics}",
                Pattern.BLACK_LIST: f"for all topics but {topics}",
                None: f"with data in an unknown format: {_text(event.data)}",
            }[pattern]
            text = f"member {printable(znode.name)} registered {about}{session}"
            return self._entry(event, "registered", text, znode, znode.name)
        if znode.tree == FOREIGN:
            text = (
                f"{self._who(event)} claimed {_topic(znode)} in another client's layout, which "
                f"members ignore: {printable(znode.path)}"
            )
            return self._entry(event, "foreign claim", text, znode)
        member, _ = member_of(event.data)
        of_session = self._sessions.member(event.session)
        name = "an empty consumer id" if member is None else printable(member)
        text = f"{_topic(znode)} claimed by {name}"
        if not event.ephemeral:
            text += " with a znode that is not ephemeral: it stays until it is deleted"
        elif of_session is not None and of_session != member:
            text += f", written by member {printable(of_session)}{session}"
        elif of_session is None:
            text += (
                ", whose registration is not in the logs"
                if not self._sessions.complete
                else (", a consumer id that its session did not register")
            )
            text += session
        return self._entry(event, "claimed", text, znode, member)

    def _end(self, event: Event, lifetime: Lifetime) -> Entry:
        """Describe the deletion of a registration or an owner znode."""
        znode = lifetime.znode
        member = znode.name if znode.tree == IDS else lifetime.member
        what = "its registration was" if znode.tree == IDS else _topic(znode)
        by = self._who(event)
        if lifetime.ended is Ended.RELEASED:
            if znode.tree == IDS:
                text = f"member {printable(znode.name)} left: it deleted its registration"
                return self._entry(event, "left", text, znode, member)
            if znode.tree == FOREIGN:
                text = f"{by} released {_topic(znode)} in another client's layout: "
                return self._entry(event, "foreign release", text + printable(znode.path), znode)
            name = printable(member or hex_of(event.session))
            return self._entry(event, "released", f"{what} released by {name}", znode, member)
        if znode.tree == IDS:
            text = f"registration of {printable(znode.name)} deleted by {by}"
            return self._entry(event, "registration deleted", text, znode, member)
        owner = f"owner {printable(member)}" if member else "an owner that the logs do not show"
        text = f"{_topic(znode)} taken from {owner}: {by} deleted the owner znode"
        if lifetime.start is UNKNOWN or lifetime.ended is Ended.UNKNOWN:
            text = f"{_topic(znode)}: {by} deleted the owner znode of {owner}"
        return self._entry(event, "owner deleted", text, znode, member)

    def _close(self, event: Event, rows: Sequence[Lifetime]) -> Iterator[Entry]:
        """Describe the end of a session in one entry for all of its znodes."""
        rows = [row for row in rows if row.znode.group == self._group]
        if not rows:
            return
        members = sorted(row.znode.name for row in rows if row.znode.tree == IDS)
        owned = _owned(row.znode for row in rows)
        foreign = sum(row.znode.tree == FOREIGN for row in rows)
        expired = event.cxid == 0
        how = "expired" if expired else "was closed by its client"
        session = f"session {hex_of(event.session)}"
        if members:
            names = ", ".join(map(printable, members))
            text = f"member {names} left: its {session} {how}"
        else:
            text = f"{session} {how}"
            if (member := self._sessions.member(event.session)) is not None:
                text += f" (member {printable(member)})"
        if owned:
            text += f"; no longer owned: {_ranges(owned)}"
        if foreign:
            text += f"; {foreign} owner znode{'' if foreign == 1 else 's'} of another layout gone"
        topics = {row.znode.topic for row in rows}  # "" is that of a registration
        yield Entry(
            event.zxid, event.idx, event.time, "expired" if expired else "closed", text,
            rows[0].znode.chroot, (next(iter(topics)) if len(topics) == 1 else None) or None, None,
            members[0] if len(members) == 1 else self._sessions.member(event.session),
            event.session, lost=tuple((znode.topic, znode.partition) for znode in owned),
        )  # fmt: skip

    def _offset(self, event: Event, znode: Znode, rows: Sequence[object]) -> Entry:
        place = _topic(znode)
        commit = next((row for row in rows if isinstance(row, Commit)), None)
        if commit is None:
            text = f"{place}: offset deleted by {self._who(event)}"
            return self._entry(event, "offset deleted", text, znode)
        old = commit.previous
        before = None if old is UNKNOWN or old is None else old.offset
        shown = "?" if old is UNKNOWN else "none" if old is None else _content(old.data, before)
        new = _content(commit.data, commit.offset)
        owner = commit.owner
        mine = owner is not UNKNOWN and owner is not None and owner.session == commit.session
        if mine and commit.kind is Kind.CLAIM:
            text = f"{place}: offset {new} kept at the claim"
        elif commit.kind is Kind.COMMIT:
            text = f"{place}: offset {shown} -> {new}"
        else:
            text = f"{place}: offset {new} written again"
        if None not in (before, commit.offset) and (commit.offset or 0) < (before or 0):
            text += f" (back by {(before or 0) - (commit.offset or 0):,})"
        if commit.offset is None:
            text += ", which is not an offset"
        if commit.session in self._sessions.brokers:
            text += f", written by {self._who(event)} for a client that commits through brokers"
        elif mine:
            name = owner.member if isinstance(owner, Lifetime) else None
            text += f" by its owner {printable(name)}" if name else " by its owner"
        else:
            if owner is UNKNOWN:
                state = "its owner is unknown"
            elif owner is None:
                state = "no member owned it"
            else:
                state = f"its owner was {printable(owner.member or hex_of(owner.session or 0))}"
            mirror = "the group's mirror, " if commit.by_mirror else ""
            text += f" by {mirror}{self._who(event)}; {state}"
        return Entry(
            event.zxid, event.idx, event.time, "offset", text, znode.chroot, znode.topic,
            znode.partition, self._sessions.member(event.session), event.session,
            commit.offset, before,
        )  # fmt: skip

    def _overwritten(self, event: Event, znode: Znode) -> Entry:
        what = {IDS: f"the registration of {printable(znode.name)}"}.get(
            znode.tree, f"the owner znode of {_topic(znode)}"
        )
        text = f"{self._who(event)} wrote {_text(event.data)} into {what}"
        return self._entry(event, "overwritten", text, znode)

    def _other(self, event: Event, path: str) -> Iterator[Entry]:
        """Describe a change of a topic, a znode of a live migration, or a znode of an unknown
        format."""
        chroot, consumers, rest = path.partition(f"/consumers/{self._group}/")
        if not consumers:
            yield from self._topic(event, path)
            return
        created = event.act is Act.CREATE
        by = self._who(event)

        def entry(kind: str, text: str) -> Entry:
            return Entry(
                event.zxid, event.idx, event.time, kind, text, chroot, session=event.session
            )

        deleted = event.act is Act.DELETE
        if rest == "live/mode":
            yield entry("mode", self._mode(event, path))
        elif rest.startswith("live/members/"):
            yield entry("acknowledged", self._acknowledged(event, path))
        elif rest == "migration":
            text = f"migration marker deleted by {by}"
            if not deleted:
                text = (
                    f"migration marker: offsets moved to {_moved_to(event.data)}, written by {by}"
                )
            yield entry("migration", text)
        elif rest.partition("/")[0] == RECORD:
            verb = "deleted" if deleted else "written"
            yield entry("record", f"record of the migration ({rest}) {verb} by {by}")
        elif rest == "ids" and not deleted and is_lock_record(event.data):
            yield entry("lock", f"registrations locked by {by}")
        elif rest == "ids" and event.act is Act.SET:
            yield entry("lock", f"registrations unlocked by {by}")
        elif rest in _PARENTS or (
            rest.count("/") == 1 and rest.startswith(("owners/", "offsets/"))
        ):
            if not created:
                verb = "deleted" if deleted else f"set to {_text(event.data)}"
                yield entry("znode", f"{printable(path)} {verb} by {by}")
        else:
            verb = {Act.CREATE: "created", Act.DELETE: "deleted"}.get(event.act, "wrote")
            content = "" if deleted or not event.data else f" with {_text(event.data)}"
            text = f"not understood: {by} {verb} {printable(path)}{content}"
            yield entry("not understood", text)

    def _mode(self, event: Event, path: str) -> str:
        from zkconsumer.core.migration.znodes import decode_mode
        from zkconsumer.errors import ZnodeFormatError

        by = self._who(event)
        if event.act is Act.DELETE:
            return f"live mode deleted by {by}"
        try:
            return f"live mode {decode_mode(path, event.data or b'').value} written by {by}"
        except ZnodeFormatError as error:
            return f"{by} wrote {_text(event.data)} as the live mode: {printable(str(error))}"

    def _acknowledged(self, event: Event, path: str) -> str:
        from zkconsumer.core.migration.znodes import decode_member
        from zkconsumer.errors import ZnodeFormatError

        member = printable(path.rpartition("/")[2])
        if event.act is Act.DELETE:
            return f"{member} is no longer migratable: {self._who(event)} deleted its znode"
        try:
            number = decode_member(path, event.data or b"")
        except ZnodeFormatError as error:
            return f"{member} stored an unreadable acknowledgement: {printable(str(error))}"
        if number is None:
            return f"{member} can be moved while it runs, and has acknowledged no mode yet"
        return f"{member} acknowledged live mode number {number}"

    def _topic(self, event: Event, path: str) -> Iterator[Entry]:
        head, _, topic = path.rpartition("/")
        if not head.endswith("/brokers/topics"):
            return
        chroot = head.removesuffix("/brokers/topics")
        if event.act is Act.DELETE:
            text = f"topic {printable(topic)} deleted by {self._who(event)}"
        else:
            before, count = self._topics.change(event, path)
            if count is None:
                text = f"topic {printable(topic)}: not understood: {_text(event.data)}"
            elif event.act is Act.CREATE:
                text = f"topic {printable(topic)} created with {count} partitions"
            elif before == count:
                return  # its replicas changed
            else:
                text = f"topic {printable(topic)}: {'?' if before is None else before} -> {count} "
                text += "partitions"
        yield Entry(
            event.zxid, event.idx, event.time, "topic", text, chroot, topic, session=event.session
        )

    def _entry(
        self, event: Event, kind: str, text: str, znode: Znode, member: str | None = None
    ) -> Entry:
        return Entry(
            event.zxid, event.idx, event.time, kind, text, znode.chroot, znode.topic or None,
            znode.partition, member, event.session,
        )  # fmt: skip


def written(
    offset: Write | Unknown | None,
    commit: Commit | None,
    sessions: Sessions,
    shown: Callable[[int | None], str],
) -> str:
    """Describe the content of an offset znode, with time and writer. ``shown``: formats times."""
    if offset is UNKNOWN:
        return "unknown: a log gap hides it"
    if offset is None:
        return "none"
    text = _content(offset.data, offset.offset)
    text += f", written {shown(offset.time)}, transaction {offset.zxid:#x}"
    if commit is None:
        return f"{text} (from a snapshot)"
    owner = commit.owner
    if isinstance(owner, Lifetime) and owner.session == commit.session:
        return f"{text} by the owner {printable(owner.member or '')}".rstrip()
    return f"{text} by {sessions.who(commit.session)}"


def _ended(rows: Iterable[object], event: Event) -> list[Lifetime]:
    """Return the lifetimes that an event ended. Rows may also contain lifetimes that ended
    earlier, in a log gap, as a snapshot shows."""
    lifetimes = (row for row in rows if isinstance(row, Lifetime))
    return [row for row in lifetimes if row.end is not None and row.end.zxid == event.zxid]


def partitions_of(path: str, data: bytes | None) -> int | None:
    """Return the number of partitions in a topic's znode; ``None`` if its format is unknown."""
    try:
        return len(decode_topic(path, data or b""))
    except ZnodeFormatError:
        return None


def _moved_to(data: bytes | None) -> str:
    store = moved_to(data or b"")
    return f"an unknown store ({_text(data)})" if store is None else printable(store)


def _topic(znode: Znode) -> str:
    number = "?" if znode.partition is None else znode.partition
    return f"{printable(znode.topic)}-{number}"


def _text(data: bytes | None) -> str:
    """Return the content of a znode in quotes."""
    if not data:
        return "nothing"
    text = data.decode("utf-8", "replace")
    return f"'{printable(text[:_MOST_TEXT])}'" + ("..." if len(text) > _MOST_TEXT else "")


def _content(data: bytes | None, offset: int | None) -> str:
    return _text(data) if offset is None else str(offset)


def _ranges(znodes: Iterable[Znode]) -> str:
    """Return partitions in order, as in ``orders-0 to 3, orders-7``."""
    parts = []
    for topic, of_topic in groupby(znodes, key=lambda znode: znode.topic):
        runs: list[list[int]] = []
        for number in (znode.partition or 0 for znode in of_topic):
            if runs and number == runs[-1][-1] + 1:
                runs[-1][1:] = [number]
            else:
                runs.append([number])
        name = printable(topic)
        parts += [f"{name}-{run[0]}" + (f" to {run[1]}" if run[1:] else "") for run in runs]
    return ", ".join(parts)
