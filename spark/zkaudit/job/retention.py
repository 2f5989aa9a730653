"""Deletes old records of a stream, as ZooKeeper purges its logs. Driver's thread.

Whole directories of ``recorded`` (``job.buckets``) are deleted, the oldest first. Before that,
the state after their last transaction is recorded like a snapshot, so the owners at that time
remain known. Then ``recorded/begin.json`` is written, after which the history begins after that
transaction. Remaining rows of earlier transactions, such as copies from a slower server, are
ignored.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit import schema
from zkaudit.group import ACTS
from zkaudit.history import committed
from zkaudit.history.staging import group_key_of, is_shared
from zkaudit.job import inputs
from zkaudit.job.buckets import BEGIN, Batches, Recorder, read, runs_of
from zkaudit.job.output import save
from zkaudit.job.place import write_atomically
from zkaudit.schema import CREATES, DELETES
from zkaudit.sources import selection

PARTS: Final = 8
"""Smallest part of the history to delete, as a fraction of the retention, because all groups are
audited after each deletion."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the recorded history of a stream begins.

    Args:
        zxid: the last zxid before the beginning; transactions up to it are ignored.
        time_us: the time of the last deleted transaction, in microseconds since 1970.
    """

    zxid: int = 0
    time_us: int | None = None


def begin_of(folder: Path) -> Begin:
    """Return where the recorded history in a directory begins."""
    file = folder / BEGIN
    return Begin(**json.loads(file.read_text())) if file.exists() else Begin()


def after(runs: Iterable[Mapping[str, Any]], zxid: int) -> list[dict[str, Any]]:
    """Return runs of zxids without the transactions up to ``zxid``."""
    return [
        {**row} if row["first_zxid"] > zxid else _shortened(row, zxid)
        for row in runs
        if row["last_zxid"] > zxid
    ]


def _shortened(row: Mapping[str, Any], zxid: int) -> dict[str, Any]:
    """Return a run that begins later. The times of its first transactions are unknown."""
    return {**row, "first_zxid": zxid + 1, "first_time": None, "times": None}


def too_old(
    batches: Sequence[Batches], begin: Begin, end_us: int | None, seconds: float
) -> Begin | None:
    """Return where the history will begin when directories that are older than ``seconds`` at
    ``end_us`` are deleted; ``None`` if too few are so old."""
    if end_us is None:
        return None
    found = begin
    for one in batches:
        ends = [(row["last_zxid"], row["last_time"]) for row in runs_of([one])]
        if not ends or any(time is None for _, time in ends):
            break
        zxid, time = max(ends)
        time_us = int(time.timestamp() * 1e6)
        if time_us > end_us - seconds * 1e6:
            break
        if zxid > found.zxid:
            found = Begin(zxid, time_us)
    if found.time_us is None or found == begin:
        return None
    if begin.time_us is not None and found.time_us - begin.time_us < seconds * 1e6 / PARTS:
        return None
    return found


def drop(
    out: Path,
    batches: Sequence[Batches],
    last: Begin,
    plan: committed.History,
    snapshots: DataFrame | None,
    spark: SparkSession,
) -> bool:
    """Let the recorded history begin after the transaction ``last``. ``clean`` then deletes the
    data before it.

    Return ``False``, and change nothing, if not all ephemeral znodes at that time are known.
    """
    log_gaps = committed.log_gaps_of(plan)
    taken = [] if snapshots is None else inputs.whole(snapshots).values()
    known = selection.known(log_gaps, taken)[sum(first <= last.zxid for _, first in log_gaps)]
    later = [
        max(first, last.zxid + 1)
        for ranges in plan.take.values()
        for first, end in ranges
        if end > last.zxid
    ]
    if known is None or known > last.zxid or not later:
        return False
    if any(last.zxid <= before and first <= min(later) for before, first in log_gaps):
        return False
    begin = replace(last, zxid=min(later) - 1)  # a later epoch's: no zxid is in between
    rows = read(spark, batches).drop("key")
    folder = out / "recorded"
    state = state_at(rows, plan, begin.zxid, snapshots)
    save(state, new_snapshots(folder))
    write_atomically(folder / BEGIN, json.dumps(asdict(begin)))
    return True


def new_snapshots(folder: Path) -> Path:
    """Return the directory in ``folder`` for the next rows of snapshots."""
    numbers = [int(place.name) for place in (folder / "snapshots").glob("[0-9]*")]
    return folder / "snapshots" / f"{max(numbers, default=-1) + 1:010}"


def clean(out: Path) -> None:
    """Delete the directories with batches from before the start of the history, but never the last
    directory."""
    folder = out / "recorded"
    begin = begin_of(folder)
    if not begin.zxid:
        return
    batches = Recorder(out).batches()[:-1]
    unused = [one.place for one in batches if not after(runs_of([one]), begin.zxid)]
    for done in (folder / "snapshots").glob("*/_SUCCESS"):
        files = list(done.parent.glob("*.parquet"))
        zxids = [pq.read_table(file, columns=["zxid"])["zxid"] for file in files]
        if max((pc.max(zxid).as_py() or 0 for zxid in zxids), default=0) < begin.zxid:
            unused.append(done.parent)
    for place in unused:
        # A snapshot without it does not count, even if it is only half deleted.
        (place / "_SUCCESS").unlink(missing_ok=True)
        shutil.rmtree(place)


def state_at(
    rows: DataFrame, plan: committed.History, zxid: int, snapshots: DataFrame | None
) -> DataFrame:
    """Return the znodes after a transaction as rows of ``schema.SNAPSHOT``.

    They are those of the newest snapshot up to ``zxid``, if there is a log gap, with the changes by
    later operations. ``rows``: the recorded rows, with all runs. ``snapshots``: the result of
    ``inputs.snapshots``.
    """
    parts, since = [], 0
    if snapshots is not None and any(first <= zxid for _, first in committed.log_gaps_of(plan)):
        snapshots = snapshots.where(F.col("zxid") <= zxid)
        (server, file), since = max(inputs.whole(snapshots).items(), key=itemgetter(1))
        chosen = (F.col("server") == server) & (F.col("file") == file) & (F.col("path") != "/")
        nodes = snapshots.where(chosen & (F.greatest("czxid", "mzxid") <= zxid))
        for act, at in (("create", "c"), ("set", "m")):
            columns = {"zxid": f"{at}zxid", "time": f"{at}time", "session": "ephemeral_owner"}
            parts.append(nodes.withColumns({name: F.col(of) for name, of in columns.items()})
                         .withColumns({"act": F.lit(act), "idx": F.lit(0)}))  # fmt: skip
    every = rows.where(F.col("kind").isNull() & F.col("zxid").between(since + 1, zxid))
    every = committed.apply(every, plan)
    kind, path = F.col("type"), F.col("path")
    acts = every.where(kind.isin(*ACTS) & (group_key_of(path).isNotNull() | is_shared(path)))
    act = F.when(kind.isin(*CREATES), "create").when(kind.isin(*DELETES), "delete").otherwise("set")
    session = F.when(F.col("ephemeral"), F.col("session")).otherwise(0)
    parts.append(acts.withColumns({"act": act, "session": session}))
    names = ("path", "act", "zxid", "idx", "time", "session", "data", "version")
    events = reduce(DataFrame.unionByName, (part.select(*names) for part in parts))
    closed = every.where("type = 'closeSession'").select(F.col("session").alias("ephemeral_owner"))
    root = every.sparkSession.range(1).select(F.lit("/").alias("path"))
    found = _existing(events).join(closed, "ephemeral_owner", "left_anti")
    found = found.unionByName(root, allowMissingColumns=True)
    place = {"server": F.lit(""), "file": F.lit(f"state.{zxid:x}"), "zxid": F.lit(zxid)}
    found = found.withColumns(place | {"complete_zxid": F.lit(zxid)})
    columns = schema.spark_type(schema.SNAPSHOT)
    return found.select(
        *(
            (F.col(c.name) if c.name in found.columns else F.lit(None)).cast(c.dataType)
            .alias(c.name)
            for c in columns
        )
    ).na.fill(0)  # fmt: skip


def _existing(events: DataFrame) -> DataFrame:
    """Return the znodes that exist after some operations."""
    at, act = F.struct("zxid", "idx"), F.col("act")
    version = F.when(act == "create", 0).otherwise(F.col("version"))
    values = F.struct("zxid", "time", "data", version.alias("version"))
    created = F.max_by(F.struct("zxid", "time", "session"), F.when(act == "create", at))
    nodes = events.groupBy("path").agg(
        created.alias("created"),
        F.max_by(values, F.when(act != "delete", at)).alias("written"),
        F.max_by("act", at).alias("last"),
    )
    return nodes.where("last != 'delete'").selectExpr(
        "path", "written.data", "coalesce(created.zxid, written.zxid) as czxid",
        "written.zxid as mzxid", "created.time as ctime", "written.time as mtime",
        "written.version", "created.session as ephemeral_owner",
    )  # fmt: skip
