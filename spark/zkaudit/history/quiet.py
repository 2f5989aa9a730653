"""Quiet groups: their owners committed offsets in a time range, and nothing else happened.

The audit of a time range begins with a snapshot that shows all groups. Most of them are quiet, and
no rule finds anything in a quiet group, so the audit leaves it out. A group is quiet only if that
is certain:

- All its operations after the snapshot are commits of owners. No offset goes back or jumps.
- No session with a znode of the group ended, and none of its claims was refused.
- Each owner is registered in the owner's session. Each partition of the topics that members want
  has an owner, and each member has its share.
- None of these topics changed. No member that commits regularly stopped.
- It has no migration marker and no mode, and its members' registrations can be read.

A fuzzy snapshot shows znodes that are newer than itself. A group with such a member or owner is not
quiet.

Pure: numpy and pyarrow, in one of Spark's Python workers. Nothing is kept for each znode but
numbers, about 150 bytes for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group.rules.members import REGULAR
from zkaudit.group.rules.resets import JUMP_LEAST, JUMP_STEPS, JUMP_TIMES
from zkaudit.group.subscriptions import FILTERS, topics_of_filter
from zkaudit.schema import NODE_EXISTS, QUIET_GROUP, arrow_schema

Numbers: TypeAlias = "np.ndarray[Any, Any]"
_CONTAINER: Final = -(2**63)
"""What a container znode has instead of a session."""
_IN_GROUP: Final = re.compile(r"(?=/consumers/([^/]*)/)")
_OWNER: Final = re.compile(r"(.+)-([0-9]+)", re.DOTALL)
_NUMBER: Final = r"\A(0|[1-9][0-9]{0,8})\z"
_OFFSET: Final = r"\A[0-9]{1,18}\z"
_REPLACED: Final = "\ufffd"
_TIMESTAMP: Final = r'"timestamp"\s*:\s*"?[0-9]+"?'
"""Differs in all registrations, and no rule reads it."""
_NO_TIME: Final = '"timestamp":0'
_BITS: Final = 30
"""Bits of a partition, which has at most nine digits."""
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading JSON that does not have the expected form."""

_OTHER, _IDS, _OWNERS, _OFFSETS, _GROUP, _LIVE, _MEMBERS, _TOPICS = range(8)
"""What the parent of a znode is."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range, and the thresholds of rules that find something in commits."""

    start_ms: int
    """Findings before this time are left out."""
    jump_rate: float
    stalled_ms: int


class _Codes(dict[Any, int]):
    """Numbers its keys from 0."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class _Ids(NamedTuple):
    """Registrations. Names and contents have numbers too."""

    group: Numbers
    name: Numbers
    session: Numbers
    content: Numbers


class _Owners(NamedTuple):
    """Owner znodes. ``key``: the topic in the group (upper bits) and the partition (30 bits)."""

    group: Numbers
    key: Numbers
    thread: Numbers
    session: Numbers


class _Offsets(NamedTuple):
    """Offsets in the snapshot. ``good``: it is a number; ``new``: it is newer than the snapshot."""

    group: Numbers
    key: Numbers
    offset: Numbers
    good: Numbers
    new: Numbers


class _Writes(NamedTuple):
    """Writes of offsets after the snapshot."""

    group: Numbers
    key: Numbers
    zxid: Numbers
    idx: Numbers
    ms: Numbers
    session: Numbers
    offset: Numbers


_R = TypeVar("_R", _Ids, _Owners, _Offsets, _Writes)


def _joined(kind: type[_R], blocks: Sequence[_R]) -> _R:
    if not blocks:
        return kind(*(np.empty(0, np.int64) for _ in kind._fields))
    return kind(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))


class QuietGroups:
    """Finds the quiet groups from the znodes of one snapshot, and the rows of the logs after it.

    Call ``nodes`` and ``rows`` with all batches, then ``table``, then ``chosen``.
    """

    NODE_COLUMNS: Final = ("path", "data", "czxid", "mzxid", "ctime", "ephemeral_owner")
    """The columns of ``schema.SNAPSHOT`` that ``nodes`` needs."""

    def __init__(self, zxid: int, time_range: TimeRange) -> None:
        """``zxid``: the one in the snapshot's name. The logs continue with the next one."""
        self._zxid = zxid
        self._range = time_range
        self._parents: dict[str, tuple[int, int, int]] = {}
        self._groups = _Codes()  # (chroot, group)
        self._topics = _Codes()  # (chroot, topic)
        self._of_group = _Codes()  # (number of the group, number of the topic)
        self._names = _Codes()  # members
        self._threads = _Codes()  # contents of owner znodes
        self._contents = _Codes()  # contents of registrations, without their time
        self._busy: set[int] = set()
        self._changed: set[tuple[str, str]] = set()
        self._listed: dict[tuple[str, str], int] = {}
        self._ended: set[int] = set()
        self._all: list[Numbers] = []
        self._ids: list[_Ids] = []
        self._owners: list[_Owners] = []
        self._offsets: list[_Offsets] = []
        self._writes: list[_Writes] = []
        self._is_quiet: Numbers = np.empty(0, bool)

    def nodes(self, batch: pa.RecordBatch) -> None:
        """Take note of some znodes of the snapshot: columns of ``schema.SNAPSHOT``."""
        leaves, kinds, groups, topics = self._split(batch["path"])
        self._all.append(groups.astype(np.int32))
        sessions = _numbers(batch["ephemeral_owner"])
        new = np.maximum(_numbers(batch["czxid"]), _numbers(batch["mzxid"])) > self._zxid
        late = _numbers(batch["ctime"].cast(pa.int64())) >= self._range.start_ms * 1000
        ephemeral = (sessions != 0) & (sessions != _CONTAINER)
        of_member = ephemeral & ((kinds == _IDS) | (kinds == _OWNERS))
        unsure = of_member & (new | late)
        partitions = self._partitions(leaves, kinds)
        unsure |= ephemeral & ((kinds == _MEMBERS) | (kinds == _OWNERS) & (partitions < 0))
        unsure |= (kinds == _GROUP) & _equal(leaves, "migration")
        unsure |= (kinds == _LIVE) & _equal(leaves, "mode")
        self._busy.update(np.unique(groups[unsure & (groups >= 0)]).tolist())
        for row in np.flatnonzero(kinds == _TOPICS).tolist():
            path, data = batch["path"][row].as_py(), batch["data"][row].as_py()
            self._note_topic(path, data, bool(new[row]))
        data = batch["data"].fill_null(b"")

        rows = np.flatnonzero((kinds == _IDS) & ephemeral)
        if len(rows):
            names = _coded(leaves.take(pa.array(rows)), self._names)
            text = pc.replace_substring_regex(data.take(pa.array(rows)), _TIMESTAMP, _NO_TIME)
            contents = _coded(text, self._contents)
            self._ids.append(_Ids(groups[rows], names, sessions[rows], contents))

        rows = np.flatnonzero((kinds == _OWNERS) & ephemeral & (partitions >= 0))
        if len(rows):
            threads = _coded(data.take(pa.array(rows)), self._threads)
            keys = topics[rows] << _BITS | partitions[rows]
            self._owners.append(_Owners(groups[rows], keys, threads, sessions[rows]))

        rows = np.flatnonzero((kinds == _OFFSETS) & (partitions >= 0))
        if len(rows):
            offsets, good = _parsed(data.take(pa.array(rows)))
            keys = topics[rows] << _BITS | partitions[rows]
            self._offsets.append(_Offsets(groups[rows], keys, offsets, good, new[rows]))

    def rows(self, batch: pa.RecordBatch) -> None:
        """Take note of some rows after the snapshot: columns of ``schema.TXNLOG_GROUPS``."""
        kinds = batch["type"]
        ended = pc.equal(kinds, "closeSession")
        refused = pc.equal(batch["error"], NODE_EXISTS).fill_null(False)
        refused = pc.and_(pc.equal(kinds, "error"), refused)
        self._ended.update(batch["session"].filter(pc.or_(ended, refused)).to_pylist())
        for path in pc.unique(pc.list_flatten(batch["deleted"].filter(ended))).to_pylist():
            self._touch(path)
        applied = pc.and_(pc.is_null(batch["kind"]), pc.not_equal(kinds, "error"))
        batch = batch.filter(pc.and_(applied, pc.is_valid(batch["path"])))
        if not batch.num_rows:
            return
        leaves, places, groups, topics = self._split(batch["path"])
        partitions = self._partitions(leaves, places)
        sets = pc.equal(batch["type"], "setData").to_numpy(zero_copy_only=False)
        offsets, good = _parsed(batch["data"].fill_null(b""))
        writes = (places == _OFFSETS) & (partitions >= 0) & sets & good
        others = np.flatnonzero(~writes)
        self._busy.update(np.unique(groups[others][groups[others] >= 0]).tolist())
        for row in others[places[others] == _TOPICS].tolist():
            self._touch(batch["path"][row].as_py())
        rows = np.flatnonzero(writes)
        self._writes.append(
            _Writes(
                groups[rows],
                topics[rows] << _BITS | partitions[rows],
                _numbers(batch["zxid"])[rows],
                _numbers(batch["idx"])[rows],
                # Spark may have written INT96, which Arrow reads as nanoseconds.
                _numbers(batch["time"].cast(pa.timestamp("us")).cast(pa.int64()))[rows] // 1000,
                _numbers(batch["session"])[rows],
                offsets[rows],
            )
        )

    def table(self) -> pa.RecordBatch:
        """Return the quiet groups: columns of ``schema.QUIET_GROUP``."""
        ids, owners = _joined(_Ids, self._ids), _joined(_Owners, self._owners)
        offsets, writes = _joined(_Offsets, self._offsets), _joined(_Writes, self._writes)
        busy = np.zeros(len(self._groups), bool)
        busy[list(self._busy)] = True
        ended = np.array(sorted(self._ended), np.int64)
        busy[ids.group[np.isin(ids.session, ended)]] = True
        busy[owners.group[np.isin(owners.session, ended)]] = True
        busy[_shared(ids)] = True
        self._check_shares(ids, owners, self._registered(ids, owners, busy), busy)
        _check_commits(owners, offsets, writes, self._range, busy)
        seen = np.zeros(len(self._groups), bool)
        for groups in (ids.group, owners.group, offsets.group):
            seen[groups] = True
        self._is_quiet = seen & ~busy
        places = np.flatnonzero(self._is_quiet)
        members, partitions, commits = (
            np.bincount(rows.group, minlength=len(busy))[places] for rows in (ids, owners, writes)
        )
        names = list(self._groups)
        topics = self._owned_topics(owners)
        schema = arrow_schema(QUIET_GROUP)
        columns = [
            [names[place][0] for place in places.tolist()],
            [names[place][1] for place in places.tolist()],
            members,
            [sorted(topics.get(place, ())) for place in places.tolist()],
            partitions,
            commits,
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(values, f.type) for values, f in zip(columns, schema, strict=True)],
            schema=schema,
        )

    def _owned_topics(self, owners: _Owners) -> dict[int, list[str]]:
        pairs, topics = list(self._of_group), list(self._topics)
        found: dict[int, list[str]] = {}
        for place in np.unique(owners.key >> _BITS).tolist():
            group, topic = pairs[place]
            found.setdefault(group, []).append(topics[topic][1])
        return found

    def chosen(self) -> Numbers:
        """Return the numbers of the znodes that are not of quiet groups, after ``table``."""
        groups = np.concatenate(self._all) if self._all else np.empty(0, np.int32)
        return np.flatnonzero((groups < 0) | ~np.append(self._is_quiet, False)[groups])

    def _split(self, paths: pa.Array) -> tuple[pa.Array, Numbers, Numbers, Numbers]:
        """The last part of each path, and what its parent is: the kind, and the numbers of its
        group, and of its topic in the group; -1: it has none."""
        parts = pc.split_pattern(paths, "/", max_splits=1, reverse=True).flatten()
        if len(parts) != 2 * len(paths):  # a path without a slash: not from a server
            paths = pc.if_else(pc.match_substring(paths, "/"), paths, "/")
            parts = pc.split_pattern(paths, "/", max_splits=1, reverse=True).flatten()
        parents = np.arange(0, len(parts), 2)
        encoded = parts.take(pa.array(parents)).dictionary_encode()
        each = [self._place(parent) for parent in encoded.dictionary.to_pylist()]
        places = np.array(each, np.int64).reshape(-1, 3)[_numbers(encoded.indices)]
        return parts.take(pa.array(parents + 1)), places[:, 0], places[:, 1], places[:, 2]

    def _place(self, parent: str) -> tuple[int, int, int]:
        found = self._parents.get(parent)
        if found is None:
            found = self._parents[parent] = self._new_place(parent)
        return found

    def _new_place(self, parent: str) -> tuple[int, int, int]:
        kind, group, topic = _OTHER, -1, -1
        found = list(_IN_GROUP.finditer(parent + "/"))
        if len(found) > 1:  # one of these is the group
            for match in found:
                self._busy.add(self._groups[parent[: match.start()], match[1]])
        elif found and found[0][1]:
            chroot, name = parent[: found[0].start()], found[0][1]
            group = self._groups[chroot, name]
            match parent[found[0].end(1) :].split("/")[1:]:
                case []:
                    kind = _GROUP
                case ["ids"]:
                    kind = _IDS
                case ["owners" | "offsets" as tree, found_topic] if found_topic:
                    kind = _OWNERS if tree == "owners" else _OFFSETS
                    topic = self._of_group[group, self._topics[chroot, found_topic]]
                case ["live"]:
                    kind = _LIVE
                case ["live", "members"]:
                    kind = _MEMBERS
        elif parent.endswith("/brokers/topics"):
            kind = _TOPICS
        return kind, group, topic

    def _partitions(self, leaves: pa.Array, kinds: Numbers) -> Numbers:
        """The number of each partition; -1 for other znodes."""
        rows = np.flatnonzero((kinds == _OWNERS) | (kinds == _OFFSETS))
        found = np.full(len(leaves), -1, np.int64)
        some = leaves.take(pa.array(rows))
        good = pc.match_substring_regex(some, _NUMBER)
        numbers = _numbers(pc.if_else(good, some, "0").cast(pa.int64()))
        found[rows] = np.where(good.to_numpy(zero_copy_only=False), numbers, -1)
        return found

    def _touch(self, path: str | None) -> None:
        """A znode was created, set or deleted."""
        parent, _, leaf = (path or "").rpartition("/")
        if parent.endswith("/brokers/topics"):
            self._changed.add((parent.removesuffix("/brokers/topics"), leaf))
        for match in _IN_GROUP.finditer(parent + "/"):
            self._busy.add(self._groups[parent[: match.start()], match[1]])

    def _note_topic(self, path: str, data: bytes | None, new: bool) -> None:
        parent, _, name = path.rpartition("/")
        topic = parent.removesuffix("/brokers/topics"), name
        count = _partition_count(data)
        if count is None or new:
            self._changed.add(topic)
        self._listed[topic] = count or 0

    def _registered(self, ids: _Ids, owners: _Owners, busy: Numbers) -> Numbers:
        """The row in ``ids`` of each owner; -1: it has none, or its session is another one. Groups
        with such an owner are busy."""
        members = []
        for content in self._threads:
            text = content.decode("utf-8", "replace")
            match = _OWNER.fullmatch(text)
            members.append(self._names[match[1]] if match and _REPLACED not in text else -1)
        member = _lookup(members)[owners.thread]
        registered = ids.group << 32 | ids.name
        order = np.argsort(registered, kind="stable")
        found = _found(registered[order], owners.group << 32 | np.maximum(member, 0))
        rows = np.full(len(found), -1)
        known = (found >= 0) & (member >= 0)
        rows[known] = order[found[known]]
        known[known] = ids.session[rows[known]] == owners.session[known]
        busy[owners.group[~known]] = True
        return np.where(known, rows, -1)

    def _check_shares(self, ids: _Ids, owners: _Owners, of_member: Numbers, busy: Numbers) -> None:
        """Groups are busy if a wanted partition has no owner, if a member owns less than its share
        or what it does not want, or if a topic of theirs changed. ``of_member``: the rows of the
        owners in ``ids``."""
        row, topic, streams = self._wants(ids, busy)
        count, members = len(self._of_group), max(1, len(ids.group))
        pairs = np.array(list(self._of_group), np.int64).reshape(-1, 2)
        group_of = pairs[:, 0]
        listed, changed = (column[pairs[:, 1]] for column in self._lists())
        wanted = np.bincount(topic, streams, count)  # by how many streams
        place, partition = owners.key >> _BITS, owners.key & ((1 << _BITS) - 1)
        owned = np.bincount(place, minlength=count)
        highest = np.zeros(count, np.int64)
        np.maximum.at(highest, place, partition)
        known = listed > 0  # the topic's znode is in the tree
        wrong = changed | (known & ((owned != listed) | (highest >= listed)))
        busy[group_of[wrong & ((owned > 0) | (wanted > 0))]] = True
        # What each member owns of each topic.
        sure = of_member >= 0
        mine, times = np.unique(place[sure] * members + of_member[sure], return_counts=True)
        asked = topic * members + row
        busy[ids.group[mine[~np.isin(mine, asked)] % members]] = True
        at = _found(mine, asked)
        own = np.where(at >= 0, np.append(times, 0)[at], 0)
        least = streams * (listed[topic] // np.maximum(wanted[topic], 1).astype(np.int64))
        missing = np.where(known[topic], least - own, 0)
        busy[ids.group[np.bincount(row, missing, len(ids.group)) > 0]] = True
        # Where no znode lists the partitions, two in one stream show that there are enough.
        threads = max(1, len(self._threads))
        stream, times = np.unique(place * threads + owners.thread, return_counts=True)
        crowded = np.zeros(count, bool)
        crowded[stream[times > 1] // threads] = True
        busy[ids.group[row[~known[topic] & (own == 0) & crowded[topic]]]] = True

    def _wants(self, ids: _Ids, busy: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Rows of ``ids`` with each topic that the member wants, and with its streams there."""
        read = [_subscription(content) for content in self._contents]
        same, inverse = np.unique(ids.group << 32 | ids.content, return_inverse=True)
        chroots = [chroot for chroot, _ in self._groups]
        known: dict[str, set[str]] = {}
        for chroot, topic in self._topics.keys() | self._listed.keys() | self._changed:
            known.setdefault(chroot, set()).add(topic)
        matched: dict[tuple[str, str, str], list[str]] = {}
        begins, topics, streams = [0], list[int](), list[int]()
        for pair in same.tolist():
            group, content = pair >> 32, pair & 0xFFFFFFFF
            found = read[content]
            if found is None:
                busy[group] = True
            else:
                pattern, wants = found
                for name, threads in wants.items():
                    names = [name]
                    if pattern in FILTERS:
                        key = chroots[group], pattern, name
                        if key not in matched:
                            every = sorted(known.get(key[0], ()))
                            matched[key] = topics_of_filter(pattern, name, every)
                        names = matched[key]
                    for topic in names:
                        topics.append(self._of_group[group, self._topics[chroots[group], topic]])
                        streams.append(threads)
            begins.append(len(topics))
        # Groups and topics that only a subscription names have numbers of their own now.
        lengths = np.diff(begins)[inverse]
        rows = np.repeat(np.arange(len(inverse)), lengths)
        first = np.repeat(np.array(begins[:-1], np.int64)[inverse], lengths)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = first + within
        return rows, _lookup(topics)[at], _lookup(streams)[at]

    def _lists(self) -> tuple[Numbers, Numbers]:
        """How many partitions each topic lists, and whether it changed."""
        return (
            _lookup([self._listed.get(topic, 0) for topic in self._topics]),
            np.array([topic in self._changed for topic in self._topics], bool),
        )


def _shared(ids: _Ids) -> Numbers:
    """Groups of which two members have one session: their commits cannot be distinguished."""
    order = np.lexsort((ids.session, ids.group))
    group, session = ids.group[order], ids.session[order]
    found: Numbers = group[1:][(group[1:] == group[:-1]) & (session[1:] == session[:-1])]
    return found


def _check_commits(
    owners: _Owners, offsets: _Offsets, writes: _Writes, time_range: TimeRange, busy: Numbers
) -> None:
    """Groups are busy if another session wrote an offset than the owner's, if one went back or
    jumped, or if a member that committed regularly stopped."""
    order = np.lexsort((writes.idx, writes.zxid, writes.key))
    writes = _Writes(*(column[order] for column in writes))
    by_key = np.argsort(owners.key)
    at = _found(owners.key[by_key], writes.key)
    wrong = at < 0
    wrong[~wrong] = owners.session[by_key[at[~wrong]]] != writes.session[~wrong]
    by_key = np.argsort(offsets.key)
    at = _found(offsets.key[by_key], writes.key)
    there = at >= 0
    before, good, new = (np.zeros(len(at), column.dtype) for column in offsets[2:])
    for found, column in zip((before, good, new), offsets[2:], strict=True):
        found[there] = column[by_key[at[there]]]
    wrong |= ~there | (good == 0)
    first = np.ones(len(at), bool)
    first[1:] = writes.key[1:] != writes.key[:-1]
    step = np.diff(writes.offset, prepend=0)
    # The snapshot may show a write that is later than the first one in the logs.
    unknown = first & (new != 0)
    step = np.where(unknown, 0, np.where(first, writes.offset - before, step))
    wrong |= (step < 0) | (step >= time_range.jump_rate)
    busy[writes.group[wrong]] = True
    busy[writes.group[_odd(writes, step, first)]] = True
    moved = unknown | (step != 0)
    _check_stalls(_Writes(*(column[moved] for column in writes)), time_range.stalled_ms, busy)


def _odd(writes: _Writes, step: Numbers, first: Numbers) -> Numbers:
    """Writes that may be an *offset jump* compared with their topic. The rule knows more about the
    time of the first step, so this finds more: half of its limits are enough."""
    passed = np.diff(writes.ms, prepend=writes.ms[:1]) / 1000
    rate = step / np.where(first, 1.0, np.maximum(passed, 1.0))
    topics, place = np.unique(writes.key >> _BITS, return_inverse=True)
    usual = ~first & (step > 0)
    high, count = np.zeros(len(topics)), np.bincount(place[usual], minlength=len(topics))
    order = np.lexsort((rate[usual], place[usual]))
    ends = np.cumsum(count)
    there = np.flatnonzero(count)
    at = ends[there] - count[there] + np.ceil(0.99 * count[there]).astype(np.int64) - 1
    high[there] = rate[usual][order][at]
    often = count >= JUMP_STEPS // 2
    found: Numbers = (step >= JUMP_LEAST) & often[place] & (rate >= JUMP_TIMES / 2 * high[place])
    return found


def _check_stalls(writes: _Writes, wait: int, busy: Numbers) -> None:
    """Groups are busy if a member commits regularly, and one that had done so pauses while others
    commit."""
    order = np.lexsort((writes.ms, writes.session, writes.group))
    group, session, ms = writes.group[order], writes.session[order], writes.ms[order]
    if not len(group):
        return
    first = np.append(True, (group[1:] != group[:-1]) | (session[1:] != session[:-1]))
    begins = np.flatnonzero(first)
    ends = np.append(begins[1:], len(group)) - 1
    count = ends - begins + 1
    often = (count > REGULAR) & (ms[ends] - ms[begins] <= wait * (count - 1))
    newest = np.full(len(busy), ms.min())
    np.maximum.at(newest, group, ms)
    silent = np.diff(ms, append=ms[-1]) >= wait
    silent[ends] = newest[group[ends]] - ms[ends] >= wait
    silent &= np.repeat(count > REGULAR, count)
    regular, paused = np.zeros(len(busy), bool), np.zeros(len(busy), bool)
    regular[group[ends[often]]] = True
    paused[group[silent]] = True
    busy |= regular & paused


def _numbers(values: pa.Array) -> Numbers:
    found: Numbers = values.to_numpy(zero_copy_only=False)
    return found


def _lookup(values: Iterable[int]) -> Numbers:
    return np.fromiter(values, np.int64)


def _equal(values: pa.Array, text: str) -> Numbers:
    return _numbers(pc.equal(values, text))


def _coded(values: pa.Array, codes: _Codes) -> Numbers:
    """The number of each value."""
    encoded = values.dictionary_encode()
    known = np.array([codes[value] for value in encoded.dictionary.to_pylist()], np.int64)
    found: Numbers = known[_numbers(encoded.indices)]
    return found


def _parsed(data: pa.Array) -> tuple[Numbers, Numbers]:
    """Offsets, and whether they are numbers."""
    good = pc.match_substring_regex(data, _OFFSET)
    numbers = pc.if_else(good, data, b"0").cast(pa.string()).cast(pa.int64())
    return _numbers(numbers), _numbers(good)


def _found(keys: Numbers, wanted: Numbers) -> Numbers:
    """Where each wanted key is among the sorted ``keys``; -1: it is not."""
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    if not len(keys):
        return at - 1
    return np.where(keys[at] == wanted, at, -1)


def _partition_count(data: bytes | None) -> int | None:
    """How many partitions a topic lists; ``None`` if they are not numbered from 0."""
    try:
        listed = json.loads(data or b"")["partitions"]
        from_0 = listed and listed.keys() == set(map(str, range(len(listed))))
        return len(listed) if from_0 else None
    except _UNREADABLE:
        return None


def _subscription(content: bytes) -> tuple[str, dict[str, int]] | None:
    """Pattern, and topics or filters with their streams; ``None`` if a group with such a
    registration cannot be quiet: it cannot be read, or it is a migration's, which wants nothing."""
    try:
        read = json.loads(content, object_pairs_hook=_once)
        pattern, wants = read["pattern"], read["subscription"]
        counts = [type(count) is int and 0 < count < 2**31 for count in wants.values()]
    except _UNREADABLE:
        return None
    if pattern not in ("static", *FILTERS) or not counts or not all(counts):
        return None
    return pattern, wants


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found
