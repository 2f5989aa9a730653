"""What later transactions show about proposals that may never have been committed.

A proposal that is followed by one that only fits without it was never committed: a znode cannot be
created or deleted twice in a row, a closed session does not write, and each write of a znode raises
its version by one.

The rules are ``of_znode`` and ``of_session``. ``decided`` applies them to a data frame,
``decided_rows`` to rows in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zkaudit.history.committed import History, Range, apply, epoch, is_open, settled, within
from zkaudit.schema import CREATES, DELETES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ACTS: Final[Mapping[str, str]] = (
    dict.fromkeys(CREATES, "create") | dict.fromkeys(DELETES, "delete") | {"setData": "set"}
)
"""What a type of operation does to a znode. Others do not change what an audit reads."""
_EDGES: Final = ("createSession", "closeSession")
_VERDICTS: Final = "zxid long, right boolean"


class Change(NamedTuple):
    """A change of a znode. ``closed_zxid``: the end of its session, if the logs have it."""

    zxid: int
    act: str
    version: int | None
    ephemeral: bool | None
    confirmed: bool
    closed_zxid: int | None


def of_znode(changes: Sequence[Change], log_gaps: Sequence[Range]) -> Iterator[tuple[int, bool]]:
    """Yield unconfirmed changes of one znode (zxid) that the next confirmed change of it proves
    (``True``) or refutes. ``changes`` are in order, ``log_gaps`` too."""
    then: Change | None = None
    last = False  # whether the next change is confirmed
    for change in reversed(changes):
        # A log gap may hide the next change of the znode.
        if not change.confirmed and then and not _between(change.zxid, then.zxid, log_gaps):
            right = _fits(change, then, last)
            if right is not None:
                yield change.zxid, right
        last = change.confirmed
        then = change if last else then


def _between(first: int, last: int, log_gaps: Sequence[Range]) -> bool:
    at = bisect_right(log_gaps, first, key=lambda gap: gap[1])
    return at < len(log_gaps) and log_gaps[at][0] < last


def _fits(change: Change, then: Change, last: bool) -> bool | None:
    """Whether a change can have happened before the next confirmed one; ``None``: unknown."""
    if change.act == then.act == "set" and None not in (change.version, then.version):
        step = (then.version or 0) - (change.version or 0)
        if step <= 0:
            return False
        if last and step == 1:
            return True
    if not last:
        return None
    if change.act == "delete":
        return None if then.act == "create" else False
    if change.act != "create":
        return None
    if then.act == "delete":
        return True
    if then.act == "set":
        return None if then.version is None else then.version == 1
    ended = change.closed_zxid is not None and change.zxid <= change.closed_zxid <= then.zxid
    return None if change.ephemeral and ended else False


def of_session(kind: str, zxid: int, used: int) -> bool | None:
    """Whether the unconfirmed begin or end of a session happened; ``None``: unknown. ``used``: its
    last confirmed transaction."""
    return kind == "createSession" if used > zxid else None


def decided_rows(rows: Iterable[Mapping[str, Any]], plan: History) -> History:
    """``decided`` for rows in memory, in any order, that the plan takes. Those before the first
    unconfirmed one decide nothing."""
    if is_open(plan):
        return settled(plan)
    changes: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = defaultdict(list)
    closed: dict[int, int] = {}
    used: dict[int, int] = {}
    edges = []
    for row in rows:
        zxid, kind = row["zxid"], row["type"]
        if kind == "closeSession":
            closed[row["session"]] = min(zxid, closed.get(row["session"], zxid))
        if kind in ACTS:
            changes[row["path"]].append((zxid, row["idx"], row))
        if not within(zxid, plan.unconfirmed):
            if row["session"] and kind != "error":
                used[row["session"]] = max(zxid, used.get(row["session"], 0))
        elif kind in _EDGES:
            edges.append((row["session"], zxid, kind))
    verdicts = [
        (zxid, of_session(kind, zxid, used[session]))
        for session, zxid, kind in edges
        if session in used
    ]
    for of_path in changes.values():
        ordered = [
            Change(
                zxid, ACTS[row["type"]], row["version"], row["ephemeral"],
                not within(zxid, plan.unconfirmed), closed.get(row["session"]),
            )
            for zxid, _, row in sorted(of_path, key=lambda entry: entry[:2])
        ]  # fmt: skip
        verdicts += of_znode(ordered, plan.log_gaps)
    refuted: dict[int, int] = {}
    proven: dict[int, int] = {}
    for zxid, right in verdicts:
        of = epoch(zxid)
        if right:
            proven[of] = max(zxid, proven.get(of, zxid))
        elif right is not None:
            refuted[of] = min(zxid, refuted.get(of, zxid))
    return settled(plan, refuted, proven)


def decided(read: Callable[[], DataFrame], plan: History) -> History:
    """Return the plan without the doubt that later rows remove. ``read`` returns the rows
    (``schema.TXNLOG``) and is not called if they cannot decide anything.

    Driver's thread; collects two numbers for each epoch.
    """
    from pyspark.sql import functions as F

    if is_open(plan):
        return settled(plan)
    rows = read().where(F.col("zxid") >= plan.unconfirmed[0][0])
    verdicts = _of_znodes(rows, plan).unionByName(_of_sessions(rows, plan))
    limits = verdicts.groupBy(F.shiftright("zxid", 32).alias("epoch")).agg(
        F.min(F.when(~F.col("right"), F.col("zxid"))).alias("refuted"),
        F.max(F.when(F.col("right"), F.col("zxid"))).alias("proven"),
    )
    every = limits.collect()
    return settled(
        plan,
        {row["epoch"]: row["refuted"] for row in every if row["refuted"] is not None},
        {row["epoch"]: row["proven"] for row in every if row["proven"] is not None},
    )


def _of_znodes(rows: DataFrame, plan: History) -> DataFrame:
    from pyspark.sql import functions as F

    changes = apply(rows.where(F.col("type").isin(*ACTS)), plan)
    doubted = changes.where("not confirmed").select("path").distinct()
    closed = rows.where("type = 'closeSession'").groupBy("session")
    closed = closed.agg(F.min("zxid").alias("closed_zxid"))
    names = ("zxid", "idx", "type", "version", "ephemeral", "confirmed", "closed_zxid")
    changes = changes.join(doubted, "path", "left_semi").join(closed, "session", "left")
    log_gaps = plan.log_gaps

    def judged(table: pa.Table) -> pa.Table:
        rows = table.sort_by([("zxid", "ascending"), ("idx", "ascending")]).to_pylist()
        ordered = [
            Change(row["zxid"], ACTS[row["type"]], *(row[name] for name in names[3:]))
            for row in rows
        ]
        return _verdicts(of_znode(ordered, log_gaps))

    return changes.select("path", *names).groupBy("path").applyInArrow(judged, _VERDICTS)


def _of_sessions(rows: DataFrame, plan: History) -> DataFrame:
    from pyspark.sql import functions as F

    every = apply(rows, plan).where("session != 0 and type != 'error'")
    used = every.where("confirmed").groupBy("session").agg(F.max("zxid").alias("used"))
    edges = every.where("not confirmed").where(F.col("type").isin(*_EDGES)).join(used, "session")

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [(row["zxid"], of_session(**row)) for row in batch.to_pylist()]
            known = [(zxid, right) for zxid, right in rows if right is not None]
            yield from _verdicts(known).to_batches()

    return edges.selectExpr("type as kind", "zxid", "used").mapInArrow(judged, _VERDICTS)


def _verdicts(verdicts: Iterable[tuple[int, bool]]) -> pa.Table:
    import pyarrow as pa

    zxids, right = zip(*verdicts, strict=True) if (verdicts := list(verdicts)) else ((), ())
    return pa.table({"zxid": pa.array(zxids, pa.int64()), "right": pa.array(right, pa.bool_())})
