"""Decides from later transactions about proposals that may never have been committed.

If a later transaction is possible only without a proposal, the proposal was never committed: a
znode cannot be created or deleted twice in a row, a closed session does not write, and each write
of a znode increases its version by one.

The rules are ``of_znode`` and ``of_session``. ``decided_rows`` applies them to rows in memory;
``decided`` chooses the rows of a data frame that it needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zkaudit.history.committed import History, Range, apply, epoch, is_open, settled, within
from zkaudit.schema import CREATES, DELETES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACTS: Final[Mapping[str, str]] = (
    dict.fromkeys(CREATES, "create") | dict.fromkeys(DELETES, "delete") | {"setData": "set"}
)
"""The effect of each type of operation on a znode. No other type changes data of an audit."""
_EDGES: Final = ("createSession", "closeSession")
NEEDED: Final = ("zxid", "idx", "session", "type", "path", "version", "ephemeral")
"""The required columns of rows."""


class Change(NamedTuple):
    """A change of a znode. ``closed_zxid``: the end of the session that made the change, if the
    logs show it."""

    zxid: int
    act: str
    version: int | None
    ephemeral: bool | None
    confirmed: bool
    closed_zxid: int | None


def of_znode(changes: Sequence[Change], log_gaps: Sequence[Range]) -> Iterator[tuple[int, bool]]:
    """Yield each unconfirmed change of a znode that the next confirmed change decides: its zxid,
    and whether it was committed.

    ``changes`` and ``log_gaps`` are in order.
    """
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
    """Whether a change can have happened before the next confirmed one; ``None`` if unknown."""
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
    """Return whether an unconfirmed start or end of a session was committed; ``None`` if unknown.

    ``used``: the last confirmed transaction of the session.
    """
    return kind == "createSession" if used > zxid else None


def decided_rows(rows: Iterable[Mapping[str, Any]], plan: History) -> History:
    """Decide which unconfirmed transactions were committed, like ``decided``, from rows in memory.

    The rows may be in any order. Rows before the first unconfirmed one are ignored.
    """
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
    """Decide which unconfirmed transactions were committed, from the rows of a data frame.

    ``read``: returns the frame (``schema.TXNLOG``). It is not called if no row can decide anything.
    Runs in the driver, and collects about two rows for each unconfirmed transaction.
    """
    from pyspark.sql import Window, functions as F

    if is_open(plan):
        return settled(plan)
    rows = apply(read().where(F.col("zxid") >= plan.unconfirmed[0][0]), plan)
    unsure = rows.where("not confirmed")
    # Of each znode the changes in doubt, and the first one after them.
    of_path = Window.partitionBy("path").orderBy("zxid", "idx")
    changes = rows.where(F.col("type").isin(*ACTS))
    changes = changes.join(unsure.select("path").distinct(), "path", "left_semi")
    changes = changes.withColumn("before", F.lag("confirmed", 1, True).over(of_path))
    changes = changes.where("not confirmed or not before")
    # Of each session the start or end in doubt, the end, and the last confirmed transaction.
    edges = unsure.where(F.col("type").isin(*_EDGES))
    closes = rows.where("type = 'closeSession'").join(
        changes.select("session").distinct(), "session", "left_semi"
    )
    used = rows.where("confirmed and session != 0 and type != 'error'").groupBy("session")
    used = used.agg(F.max("zxid").alias("zxid"), F.lit("").alias("type"))
    used = used.join(edges.select("session").distinct(), "session", "left_semi")
    parts = [*(part.select(*NEEDED) for part in (changes, edges, closes)), used]
    needed = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return decided_rows((row.asDict() for row in needed.collect()), plan)
