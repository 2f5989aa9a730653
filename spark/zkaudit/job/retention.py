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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from zkaudit import schema
from zkaudit.group import Act, FactsReader, TopicEvent
from zkaudit.history import committed
from zkaudit.history.facts import read_facts
from zkaudit.history.staging import Stage, shared_nodes, shared_rows, stage
from zkaudit.job import inputs
from zkaudit.job.buckets import BEGIN, Batches, Recorder, read, runs_of
from zkaudit.job.output import kept, save
from zkaudit.job.place import write_atomically
from zkaudit.sources import selection
from zkaudit.tables.build import time_at

PARTS: Final = 8
"""Smallest part of the history to delete, as a fraction of the retention, because all groups are
audited after each deletion."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the recorded history of a stream begins.

    Args:
        zxid: the last zxid before the beginning, which is ignored.
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
    state = state_at(rows, plan, begin.zxid, snapshots, partial(kept, out / "staging"))
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
    rows: DataFrame,
    plan: committed.History,
    zxid: int,
    snapshots: DataFrame | None,
    keep: Callable[[str, DataFrame], DataFrame],
) -> DataFrame:
    """Return the znodes that existed after a transaction, as rows of ``schema.SNAPSHOT``. Returns
    the same kinds of znodes as ``inputs.snapshots``. ``rows``: the recorded rows, with all runs."""
    log_gaps = [gap for gap in committed.log_gaps_of(plan) if gap[1] <= zxid]
    if snapshots is not None:
        earlier = (F.col("zxid") <= zxid) & (F.greatest("czxid", "mzxid") <= zxid)
        snapshots = snapshots.where(earlier) if log_gaps else None
    found = rows.where(F.col("kind").isNull() & (F.col("zxid") <= zxid))
    found = committed.apply(found, plan)
    events = stage(found, log_gaps, snapshots, None, keep)
    shared = shared_rows(found)
    nodes = None if snapshots is None else shared_nodes(snapshots)
    closed = shared.filter(pc.equal(shared["type"], "closeSession"))["session"].to_pylist()
    every = _existing(events, read_facts(shared, nodes, log_gaps), set(closed))
    values_of: dict[str, Column] = {
        "server": F.lit(""),
        "file": F.lit(f"state.{zxid:x}"),
        "zxid": F.lit(zxid),
        "complete_zxid": F.lit(zxid),
        "data": F.col("written.data"),
        "czxid": F.coalesce(
            "created.zxid",
            F.when(~F.col("path").contains("/brokers/topics/"), F.col("written.zxid")),
            F.lit(0),
        ),
        "mzxid": F.coalesce("written.zxid", F.lit(0)),
        "ctime": F.col("created.time"),
        "mtime": F.col("written.time"),
    }
    columns = schema.spark_type(schema.SNAPSHOT)
    return every.select(
        *[
            values_of.get(c.name, F.col(c.name) if c.name in every.columns else F.lit(None))
            .cast(c.dataType)
            .alias(c.name)
            for c in columns
        ]
    ).na.fill(0)


def _existing(events: Stage, facts: FactsReader, closed: Collection[int]) -> DataFrame:
    """Return the znodes at the end of a history: path, ``created`` and ``written`` (zxid and
    time), ``ephemeral_owner``, version. ``closed``: sessions that have ended."""
    at = F.struct("zxid", "idx")
    created, written = F.col("act") == "create", F.col("act") != "delete"
    last = F.max_by("act", F.when(F.col("act") != "set", at)).alias("last")
    values = F.max_by(F.struct("zxid", "time", "data"), F.when(written, at)).alias("written")
    creation = F.max_by(F.struct("zxid", "time"), F.when(created, at)).alias("created")
    exists = "written is not null and coalesce(last != 'delete', true)"
    version = F.max_by("version", F.when(written, at)).alias("version")
    moved = events.rows("changes").where("tree in ('migration', 'mode')")
    moved = moved.groupBy("path").agg(last, values, creation, version).where(exists)
    held = events.folded.where("ended = 'still held' and session is not null")
    start = F.struct(F.col("start_zxid").alias("zxid"), F.col("start_time").alias("time"))
    held = held.select(
        "path",
        start.alias("created"),
        start.withField("data", F.col("data")).alias("written"),
        F.col("session").alias("ephemeral_owner"),
    )
    spark = held.sparkSession
    brokers = [
        (path, session)
        for session, paths in facts.brokers.items()
        if session not in closed
        for path in paths
    ]
    brokers_ = spark.createDataFrame(brokers, "path string, ephemeral_owner long")
    root = spark.range(1).select(F.lit("/").alias("path"))
    parts = (held, moved, _topics(spark, facts.events()), root, brokers_)
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)


def _topics(spark: SparkSession, events: Iterable[TopicEvent]) -> DataFrame:
    """Return the znodes of the topics that exist."""
    created: dict[str, tuple[int, datetime | None]] = {}
    written: dict[str, tuple[int, datetime | None, bytes | None]] = {}
    for event in sorted(events, key=lambda event: (event.zxid, event.idx)):
        path = f"{event.chroot}/brokers/topics/{event.topic}"
        if event.act is Act.DELETE:
            created.pop(path, None)
            written.pop(path, None)
            continue
        at = event.zxid, time_at(event.time)
        written[path] = (*at, event.data)
        if event.act is Act.CREATE:
            created[path] = at
    rows = [(path, last, created.get(path)) for path, last in written.items()]
    kinds = "zxid long, time timestamp"
    return spark.createDataFrame(
        rows, f"path string, written struct<{kinds}, data binary>, created struct<{kinds}>"
    )
