"""The fold of ``zkaudit.group`` over Arrow batches. Runs in Spark's Python workers.

Groups follow one another in the batches. The rows of a group are its znodes in snapshots, then the
events that ``LaterEvents`` reads, then all events in order. Only the group's state is in memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from zkaudit.group import (
    ACTS,
    UNKNOWN,
    Act,
    Began,
    Burst,
    Change,
    Commit,
    Coverage,
    Deleted,
    Event,
    Facts,
    Finding,
    Fold,
    LaterEvents,
    Lifetime,
    LiveMove,
    Membership,
    Moment,
    Refused,
    Row,
    Rules,
    Shown,
    Write,
    Znode,
    member_of,
)
from zkaudit.group.live_moves import COORDINATIONS, Phase, Span
from zkaudit.group.znodes import OFFSETS, OWNERS
from zkaudit.history.fold_input import LATER, SHOWN, columns_of
from zkaudit.limits import Limits
from zkaudit.schema import Kind

if TYPE_CHECKING:
    import pyarrow as pa

_ACTS: Final = ACTS | {"error": Act.REFUSED}
_NODE: Final = ("table", "chroot", "group_id", "topic", "partition", "path", "name")
_LIFETIME: Final = (
    *_NODE, "session", "data", "member", "stream", "start_zxid", "start_idx", "start_time",
    "end_zxid", "end_idx", "end_time", "end_after_zxid", "ended", "ended_by",
)  # fmt: skip
_COMMIT: Final = (
    *_NODE, "zxid", "idx", "time", "session", "committed_offset", "content", "previous",
    "previous_zxid", "previous_time", "kind", "created", "owner_state", "owner_session",
    "owner_member", "owner_start_zxid", "free_since_zxid",
)  # fmt: skip
_CHANGE: Final = (*_NODE, "zxid", "idx", "time", "session", "act", "data", "version", "tree")
_MODE: Final = (
    "table", "chroot", "group_id", "session", "start_zxid", "start_time", "end_zxid", "end_time",
    "mode", "coordination", "version", "ended", "members", "acknowledged", "settled_zxid",
    "settled_time", "late",
)  # fmt: skip
_PHASE: Final = (*_MODE[:8], "coordination")
_MEMBER_ID: Final = ("table", "chroot", "group_id", "member")
_SESSION: Final = ("table", "chroot", "group_id", "session")
_GROUP: Final = ("table", "chroot", "group_id")
_NAME: Final = (*_GROUP, "tree")
_REFUSED: Final = (*_GROUP, "zxid", "idx", "time", "member", "session")
_MEMBERSHIP: Final = (
    *_GROUP, "zxid", "idx", "time", "member", "session", "change", "cause", "step", "members",
)  # fmt: skip
_COUNTS: Final = ("ends", "partitions", "members", "rounds", "refused", "joins", "leaves")
_BURST: Final = (
    *_GROUP, "first_zxid", "last_zxid", "start_time", "end_time", "claims", *_COUNTS,
)  # fmt: skip
_FINDING: Final = (
    "table", "chroot", "group_id", "severity", "kind", "basis", "sentence", "evidence", "zxid",
    "time", "end_zxid", "end_time", "topic", "partition", "member", "session", "effect", "messages",
)  # fmt: skip

OUTPUT: Final = columns_of(
    table=Kind.STRING, chroot=Kind.STRING, group_id=Kind.STRING, topic=Kind.STRING,
    partition=Kind.LONG, path=Kind.STRING, name=Kind.STRING, session=Kind.LONG, data=Kind.BINARY,
    member=Kind.STRING, stream=Kind.STRING, start_zxid=Kind.LONG, start_idx=Kind.INT,
    start_time=Kind.TIMESTAMP, end_zxid=Kind.LONG, end_idx=Kind.INT, end_time=Kind.TIMESTAMP,
    end_after_zxid=Kind.LONG, ended=Kind.STRING, ended_by=Kind.LONG, zxid=Kind.LONG, idx=Kind.INT,
    time=Kind.TIMESTAMP, committed_offset=Kind.LONG, content=Kind.STRING, previous=Kind.LONG,
    previous_zxid=Kind.LONG, previous_time=Kind.TIMESTAMP, kind=Kind.STRING, created=Kind.BOOLEAN,
    owner_state=Kind.STRING, owner_session=Kind.LONG, owner_member=Kind.STRING,
    owner_start_zxid=Kind.LONG, free_since_zxid=Kind.LONG, act=Kind.STRING, version=Kind.INT,
    tree=Kind.STRING, severity=Kind.STRING, basis=Kind.STRING, sentence=Kind.STRING,
    evidence=Kind.EVIDENCE, effect=Kind.STRING, messages=Kind.LONG, first_zxid=Kind.LONG,
    last_zxid=Kind.LONG, claims=Kind.LONG, **dict.fromkeys(_COUNTS, Kind.LONG),
    change=Kind.STRING, cause=Kind.STRING, step=Kind.LONG, mode=Kind.STRING,
    coordination=Kind.STRING, acknowledged=Kind.ACKNOWLEDGEMENTS, settled_zxid=Kind.LONG,
    settled_time=Kind.TIMESTAMP, late=Kind.STRINGS,
)  # fmt: skip
"""``table``: the tree of a lifetime (``ids``, ``owners``, ``foreign``, ``members``), ``offsets``
for a commit, ``membership`` for a join or leave, ``changes`` for a change of the znodes of a
migration (``tree``), ``failed_claims``, ``rebalances``, ``migrations`` for a mode, ``phases`` for
an interval in which a session followed one coordination, ``member_ids`` for a migratable member's
id on the coordinator, ``used`` for a session that changed a znode of the group, ``findings`` for
findings of the rules, ``waiting`` for a group with more findings if the history ended later,
``names`` for each ``tree`` in which a group has znodes. Columns of other tables are null."""

_TABLES: Final = (
    _LIFETIME, _COMMIT, _MEMBERSHIP, _CHANGE, _REFUSED, _BURST, _MODE, _PHASE, _MEMBER_ID, _SESSION,
    _FINDING, _GROUP, _NAME,
)  # fmt: skip
_ROWS: Final = 10_000
"""Number of rows in one Arrow batch."""
_NOWHERE: Final = (None, None, None)
_NEVER: Final = 1000 * 365 * 86_400 * 1_000_000
"""Microseconds until a time at which all thresholds are exceeded."""


def fold_batches(
    columns: pa.Schema,
    coverage: Coverage,
    batches: Iterable[pa.RecordBatch],
    facts: Facts | None = None,
    limits: Limits | None = None,
    only_findings: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Run the histories of groups through ``Fold`` in Spark's workers. Yield the results in batches
    of ``columns``.

    ``columns``: the schema of ``OUTPUT``. ``batches``: rows of ``fold_input.INPUT``, ordered by
    group. ``facts`` and ``limits``: needed for findings. ``only_findings``: leave out all other
    rows. Python's cycle collector is switched off, because ``Fold`` creates many small objects
    without cycles.
    """
    output = _Output(columns, only_findings)
    rows = (row for batch in batches for row in zip(*_lists(batch), strict=True))
    gc.disable()
    try:
        for _, group in groupby(rows, itemgetter(0)):
            rules = None if facts is None else Rules(coverage, facts, limits or Limits())
            yield from _fold_group(group, coverage, output, rules)
            if rules is not None and facts is not None:
                output.add_last_findings(rules, facts.end)
        yield from output.flush()
    finally:
        gc.enable()


def _lists(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    """Return the values of each column. Times are microseconds."""
    import pyarrow as pa

    for column in batch.columns:
        is_time = pa.types.is_timestamp(column.type)
        yield (column.cast(pa.int64()) if is_time else column).to_pylist()


def _fold_group(
    rows: Iterable[tuple[Any, ...]], coverage: Coverage, output: _Output, rules: Rules | None
) -> Iterator[pa.RecordBatch]:
    shown: list[Shown] = []
    later: LaterEvents | None = None
    fold: Fold | None = None
    for row in rows:
        part = row[1]
        if part == SHOWN:
            shown.append(_shown(row))
            continue
        if later is None:
            later = LaterEvents(coverage, shown)
        if part == LATER:
            later.read(_event(row))
            continue
        if fold is None:
            fold = Fold(coverage, shown, later)
            if rules is not None:
                rules.later = later
        for done in fold.apply(_event(row)):
            output.add(done)
            if rules is not None:
                output.add_findings(rules, rules.read(done))
        if output.is_full:
            yield from output.flush()
    fold = fold or Fold(coverage, shown, later or LaterEvents(coverage, shown))
    for last in fold.finish():
        output.add(last)
        if rules is not None:
            output.add_findings(rules, rules.read(last))
    output.add_group(fold)
    if output.is_full:
        yield from output.flush()


def _event(row: tuple[Any, ...]) -> Event:
    _, _, zxid, idx, time, session, kind, path, data, ephemeral, cxid, deleted, version = row[:13]
    return Event(
        zxid, idx, time, session, _ACTS[kind], path, data, ephemeral, cxid, deleted, version
    )


def _shown(row: tuple[Any, ...]) -> Shown:
    czxid, ctime, mzxid, mtime = row[13:]
    return Shown(row[2], row[7], row[8], czxid, ctime, mzxid, mtime, row[5], row[12])


class _Output:
    """Rows of the fold, until there are enough for an Arrow batch."""

    def __init__(self, columns: pa.Schema, only_findings: bool = False) -> None:
        self._columns = columns
        self._only_findings = only_findings
        self._count = 0
        self._rows: dict[tuple[str, ...], list[tuple[Any, ...]]] = {names: [] for names in _TABLES}

    def add(self, row: Row | LiveMove) -> None:
        """Add a row of a fold."""
        if self._only_findings:
            return
        if isinstance(row, Began | Deleted) or (isinstance(row, Burst) and not row.is_rebalance):
            return
        self._count += 1
        if isinstance(row, Commit):
            self._rows[_COMMIT].append(_of_commit(row))
        elif isinstance(row, Lifetime):
            self._rows[_LIFETIME].append(_of_lifetime(row))
        elif isinstance(row, Burst):
            self._rows[_BURST].append(_of_burst(row))
        elif isinstance(row, Refused):
            self._rows[_REFUSED].append(_of_refused(row))
        elif isinstance(row, Membership):
            self._rows[_MEMBERSHIP].append(_of_membership(row))
        elif isinstance(row, LiveMove):
            self._add_move(row)
        else:
            self._rows[_CHANGE].append(_of_change(row))

    def _add_move(self, move: LiveMove) -> None:
        place = move.znode.chroot, move.znode.group
        self._rows[_MODE] += (("migrations", *place, *_of_mode(span)) for span in move.spans)
        self._rows[_PHASE] += (("phases", *place, *_of_phase(phase)) for phase in move.phases())
        self._rows[_MEMBER_ID] += (("member_ids", *place, name) for name in move.member_ids)

    def add_group(self, fold: Fold) -> None:
        """Add the trees in which a group has znodes, and its sessions."""
        place = fold.group
        if place is not None and not self._only_findings:
            self._rows[_NAME] += (("names", *place, tree) for tree in fold.trees)
            rows = self._rows[_SESSION]
            rows += (("used", *place, session) for session in fold.sessions if session)

    def add_findings(self, rules: Rules, found: Iterable[Finding]) -> None:
        """Add the findings of a group's rules."""
        for finding in found:
            assert rules.group is not None
            self._count += 1
            values = (getattr(finding, name) for name in _FINDING[3:])
            row = ("findings", rules.group.chroot, rules.group.name, *values)
            self._rows[_FINDING].append(row)

    def add_last_findings(self, rules: Rules, end: Moment) -> None:
        """Add the findings of a group's rules at the end of the history, and record whether the
        rules would find more if the history ended later."""
        found = rules.finish(end)
        self.add_findings(rules, found)
        later = rules.finish(end._replace(time=(end.time or 0) + _NEVER))
        if rules.group is not None and later != found:
            self._rows[_GROUP].append(("waiting", rules.group.chroot, rules.group.name))

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a batch."""
        return self._count >= _ROWS

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        self._count = 0
        for names, rows in self._rows.items():
            if rows:
                yield self._batch(names, rows)
                rows.clear()

    def _batch(self, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        import pyarrow as pa

        values = dict(zip(names, zip(*rows, strict=True), strict=True))
        arrays = [
            pa.array(values[field.name], field.type)
            if field.name in values
            else pa.nulls(len(rows), field.type)
            for field in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)


def _place(znode: Znode) -> tuple[Any, ...]:
    return znode.chroot, znode.group, znode.topic, znode.partition, znode.path, znode.name


def _of_lifetime(row: Lifetime) -> tuple[Any, ...]:
    start = row.start if isinstance(row.start, Moment) else _NOWHERE
    member, stream = member_of(row.data) if row.znode.tree == OWNERS else (None, None)
    return (
        row.znode.tree, *_place(row.znode), row.session, row.data, member, stream, *start,
        *(row.end or _NOWHERE), row.last_seen, row.ended, row.ended_by,
    )  # fmt: skip


def _of_commit(row: Commit) -> tuple[Any, ...]:
    znode, before, owner = row.znode, row.previous, row.owner
    content = None
    if row.offset is None and row.data is not None:
        content = row.data.decode("utf-8", "replace")
    previous: tuple[int | None, ...] = _NOWHERE
    if isinstance(before, Write):
        previous = before[1:]
    state: tuple[Any, ...]
    if isinstance(owner, Lifetime):
        state = "owner", owner.session, owner.member, owner.start_zxid
    else:
        state = ("unknown" if owner is UNKNOWN else "none"), *_NOWHERE
    return (
        OFFSETS, znode.chroot, znode.group, znode.topic, znode.partition, None, None, row.zxid,
        row.idx, row.time, row.session, row.offset, content, *previous, row.kind, row.created,
        *state, row.free_since,
    )  # fmt: skip


def _of_refused(row: Refused) -> tuple[Any, ...]:
    of = row.registration
    znode = of.znode
    return "failed_claims", znode.chroot, znode.group, *row.at, znode.name, of.session


def _of_membership(row: Membership) -> tuple[Any, ...]:
    one = row.registration
    cause = one.ended if row.change == "leave" else None
    return (
        "membership", one.znode.chroot, one.znode.group, *row.at, one.znode.name, one.session,
        row.change, cause, row.step, row.members,
    )  # fmt: skip


def _of_burst(row: Burst) -> tuple[Any, ...]:
    counts = (getattr(row, name) for name in _COUNTS)
    return (
        "rebalances", row.znode.chroot, row.znode.group, row.first_zxid, row.last_zxid,
        row.start_time, row.end_time, row.claims.total(), *counts,
    )  # fmt: skip


def _at(moment: Moment | None) -> tuple[int | None, int | None]:
    """Return transaction and time."""
    return (None, None) if moment is None else (moment.zxid, moment.time)


def _of_mode(span: Span) -> tuple[Any, ...]:
    named = (None, None) if span.mode is None else (span.mode.value, COORDINATIONS[span.mode])
    acknowledged = [(ack.member, ack.session, *_at(ack.at)) for ack in span.acknowledged]
    return (
        span.session or None, *_at(span.start), *_at(span.end), *named, span.version, span.ended,
        span.members, acknowledged, *_at(span.settled), list(span.late),
    )  # fmt: skip


def _of_phase(phase: Phase) -> tuple[Any, ...]:
    return phase.session, *_at(phase.begin), *_at(phase.end), phase.coordination


def _of_change(row: Change) -> tuple[Any, ...]:
    event = row.event
    return (
        "changes", *_place(row.znode), event.zxid, event.idx, event.time, event.session, event.act,
        event.data, event.version, row.znode.tree,
    )  # fmt: skip
