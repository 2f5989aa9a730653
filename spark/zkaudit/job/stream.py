"""A repeated audit: the logs are recorded as they grow, and a round audits the groups that
changed.

``OUT/recorded`` has the audit's data from the logs (``job.buckets``) and from snapshots. Spark's
``OUT/checkpoint`` shows how far the logs were read. The tables have data for the next round. A
batch that Spark repeats after a crash is recorded once. Data that ZooKeeper purges is kept until
``job.retention`` deletes it. Runs in the driver's thread; Spark calls ``Recorder`` on a thread of
its own while the driver's thread waits.

After any round the tables are those of one run over the whole history. Nearly everything in them
follows from one group's znodes, the sessions that used the group, topics, and the log gaps. So a
round audits these groups:

- those with new rows, even if these are only another server's copies of known rows;
- those that were used by a session with new rows: the end of the session also ends its ownership,
  and a refused create may be a refused claim;
- those whose findings depend on when the history ends (``waiting`` in ``history.batches``), such as
  a partition that has had no owner for some time.

It audits all groups when something changes that they share: topics, log gaps, snapshots behind
them, proposals that were never committed, options; when the end of the history moves back in time,
or a transaction is confirmed to which no new row belongs; and always with journals, offsets in
Kafka or ZooKeeper's own logs, since these are not recorded. Table ``partitions`` is written in each
round. In table ``sessions``, only the sessions that used these groups or have new rows are
replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.group import LogGap
from zkaudit.history import committed, doubt
from zkaudit.history.committed import subtracted
from zkaudit.history.staging import BUCKETS
from zkaudit.job import inputs, retention
from zkaudit.job.audit import Options, Snapshots, audit
from zkaudit.job.buckets import (
    Batches,
    BucketStore,
    Recorder,
    State,
    Touched,
    config_in,
    covered,
    logged_runs,
    read,
    runs_of,
    take,
    touched_by,
)
from zkaudit.job.coverage import (
    Coverage,
    LoggedRun,
    as_runs,
    check_agreement,
    check_times,
    coverage_of,
)
from zkaudit.job.output import kept, save, staged, stored
from zkaudit.job.place import prepare, write_atomically
from zkaudit.job.spark import check_group, errors_named
from zkaudit.sources import selection, server_logs
from zkaudit.sources.files import Piece, absolute
from zkaudit.sources.zookeeper import register
from zkaudit.storage import local_url
from zkaudit.tables import journals
from zkconsumer.runtime.undisturbed import Alarm

MOST_GROUPS: Final = 20_000
"""Largest number of groups that a round audits separately. If more are affected, all
are audited."""
_WAITS: Final = (0, 5, 10, 20, 40, 80, 160)
"""Seconds to wait before a query is tried again whose Python process did not start in time. That
process may still be starting, and take CPU time from the next one."""
_LAYOUT: Final = 11
"""Version of the layout. It changes when a stream of an earlier version cannot be continued."""


def stream(
    spark: SparkSession,
    options: Options,
    every: float,
    stop: Alarm,
    on_summary: Callable[[dict[str, Any]], object],
    once: bool = False,
    after_round: Callable[[], object] = lambda: None,
) -> None:
    """Record the new content of the logs and audit it, every ``every`` seconds, until ``stop`` is
    set.

    ``on_summary``: called with the summary after each audit. Without new transactions there is no
    audit. ``after_round``: called after each round, even without an audit. Readers of ``OUT`` see
    the last finished round. Raises the errors of ``audit.run``, and AuditError if ``OUT`` has data
    from other directories.
    """
    out = prepare(options.out)
    # What is recorded is by these names: another working directory must not make other servers.
    options = replace(options, logs=[absolute(log) for log in options.logs])
    journals.check(options.journals)
    server_logs.check(options.server_logs)
    check_group(spark, options.group)
    _same_inputs(out, options)
    while True:
        record(spark, options, stop)
        last = Recorder(out).last()
        before = State.of((out / "tables").resolve())
        # Also what was recorded by a process that was killed before it had audited.
        if last != (-1 if before is None else before.last):
            on_summary(refresh(spark, options))
        after_round()
        if once or stop.wait(every):
            return


def _same_inputs(out: Path, options: Options) -> None:
    """Check that the inputs are those of earlier rounds. Servers may be added: their logs are
    read from the beginning. A server that is left out would look like one whose logs ended."""
    place = out / "stream.json"
    if place.exists():
        found = json.loads(place.read_text())
        if found.get("layout") != _LAYOUT:
            raise AuditError(f"{out} is a stream of another zkaudit version: choose another --out")
        left_out = set(found["logs"]) - set(options.logs)
        if left_out:
            raise AuditError(
                f"{place}: the stream also reads {', '.join(sorted(left_out))}: also name these "
                "directories, or choose another --out"
            )
    elif (out / "tables").exists():
        raise AuditError(f"{out} contains an audit that is not a stream: choose another --out")
    write_atomically(place, json.dumps({"layout": _LAYOUT, "logs": list(options.logs)}))


def record(spark: SparkSession, options: Options, stop: Alarm | None = None) -> bool:
    """Record the new content of the logs. Return whether there was any.

    Spark gives the process of a Python source 10 seconds to start, so on a busy machine the query
    is tried again, unless ``stop`` is set.
    """
    selection.find(options.logs)
    register(spark)
    recorder = Recorder(Path(options.out))
    recorder.check()
    stop = stop or Alarm()
    for seconds in (*_WAITS, None):
        try:
            _record(spark, options, recorder)
            break
        except StreamingQueryException as error:
            if seconds is None or "Python worker failed to connect back" not in str(error):
                raise
            if stop.wait(seconds):
                stop.set()  # for the caller, because ``wait`` cleared it
                break
    return recorder.new


def _record(spark: SparkSession, options: Options, recorder: Recorder) -> None:
    source = spark.readStream.format("zookeeper_txnlog").option("table", "groups")
    rows = source.option("paths", json.dumps([str(log) for log in options.logs])).load()
    with errors_named():
        query = (
            rows.writeStream.foreachBatch(recorder.write)
            .option("checkpointLocation", local_url(recorder.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def refresh(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Update all tables from the recorded history. Return the summary."""
    options = replace(options, growing=True)
    out = Path(options.out)
    before = (out / "tables").resolve()
    with errors_named(), staged(out):
        retention.clean(out)
        history = _history(spark, options)
        if options.retention is not None and _dropped(spark, options, history):
            retention.clean(out)
            history = _history(spark, options)
        state = _state(options, history)
        touched = _touched(options, history, before, state)
        return _round(spark, options, history, state, touched)


@dataclass(frozen=True, slots=True)
class _History:
    """The recorded data, and the history that it represents."""

    batches: Sequence[Batches]
    runs: Sequence[dict[str, Any]]
    plan: committed.History
    coverage: Coverage
    snapshots: Snapshots
    files: tuple[Sequence[Piece], Sequence[Piece]]
    """The logs and snapshots that currently exist."""


def _history(spark: SparkSession, options: Options) -> _History:
    folder = Path(options.out) / "recorded"
    begin = retention.begin_of(folder).zxid
    logs, snapshots = selection.find(options.logs)
    batches = Recorder(Path(options.out)).batches()
    runs = retention.after(runs_of(batches), begin)
    logged = logged_runs(runs)
    plan = _plan(spark, batches, logged, _voters(options, batches, snapshots))
    check_agreement(logged)
    servers = {log.server for log in logs}
    coverage = coverage_of(logged, servers, plan, options.start, options.end)
    log_gaps = committed.log_gaps_of(plan)
    usable = [
        piece
        for piece in snapshots
        if piece.zxid >= begin and not committed.within(piece.zxid, plan.dropped)
    ]
    taken = _snapshots(spark, options, usable, log_gaps, begin) if log_gaps else Snapshots()
    return _History(batches, runs, plan, coverage, taken, (logs, snapshots))


def _plan(
    spark: SparkSession,
    batches: Sequence[Batches],
    logged: Sequence[LoggedRun],
    voters: int | None,
) -> committed.History:
    """Decide which transactions were committed, as in a single run."""
    # A limit that follows the end of the logs would change findings of groups that are quiet.
    plan = committed.plan(as_runs(logged), voters, None)
    return doubt.decided(lambda: read(spark, batches).where("kind is null"), plan)


def _voters(options: Options, batches: Sequence[Batches], snapshots: Sequence[Piece]) -> int | None:
    """Return the number of voting servers, as in a single run; ``None`` if unknown."""
    known = options.servers
    return known or committed.participants(config_in(batches), _newest_config(tuple(snapshots)))


@lru_cache(maxsize=1)
def _newest_config(snapshots: tuple[Piece, ...]) -> tuple[int, bytes] | None:
    """Return the result of ``selection.config_in``. It reads a whole snapshot, so it is called
    only once for the same snapshots."""
    return selection.config_in(snapshots)


def _dropped(spark: SparkSession, options: Options, history: _History) -> bool:
    """Delete data older than ``options.retention``. Return whether there was any."""
    out = Path(options.out)
    assert options.retention is not None
    begin = retention.begin_of(out / "recorded")
    last = retention.too_old(history.batches, begin, _end_us(history.runs), options.retention)
    if last is None:
        return False
    known = history.snapshots.rows
    return retention.drop(out, history.batches, last, history.plan, known, spark)


def _round(
    spark: SparkSession,
    options: Options,
    history: _History,
    state: State,
    touched: Touched | None,
) -> dict[str, Any]:
    """Audit some groups; ``None``: all."""
    out = Path(options.out)
    before = (out / "tables").resolve()
    keys = sessions = None
    if touched is None:
        rows = read(spark, history.batches).drop("key")
    else:
        keys = touched.keys
        rows, sessions = take(spark, history.batches, touched, before)
        rows = kept(out, "staging/rows", rows)
    if touched is None:
        check_times(history.coverage, options.start, options.end)
    store = BucketStore(spark, out, keys, sessions, before, state)
    return audit(
        store, options, rows, history.plan, history.coverage, *history.files,
        lambda _: history.snapshots,
    )  # fmt: skip


def _state(options: Options, history: _History) -> State:
    """Return the state of a round at its start."""
    plan = history.plan
    names = [one.name for one in sorted((Path(options.out) / "recorded" / "snapshots").glob("*"))]
    asked = {name: str(value) for name, value in asdict(options).items() if name != "out"}
    same = {
        "version": version("zkconsumer"),
        "buckets": BUCKETS,
        "options": asked,
        "log_gaps": [list(gap) for gap in committed.log_gaps_of(plan)],
        "dropped": [list(part) for part in plan.dropped],
        "snapshots": names,
    }
    unconfirmed = [list(part) for part in plan.unconfirmed]
    return State(history.batches[-1].last, same, unconfirmed, _end_us(history.runs))


def _end_us(runs: Sequence[dict[str, Any]]) -> int | None:
    """Return the time of the last transaction in microseconds since 1970."""
    ends = [(row["last_zxid"], row["last_time"]) for row in runs if row["last_time"] is not None]
    return int(max(ends)[1].timestamp() * 1e6) if ends else None


def _touched(options: Options, history: _History, tables: Path, now: State) -> Touched | None:
    """Return the groups that a round must audit; ``None``: all."""
    plan = history.plan
    before = State.of(tables)
    if before is None or before.same != now.same or before.last > now.last:
        return None
    if options.journals or options.bootstrap or options.server_logs:
        return None
    if before.end_us is None or now.end_us is None or now.end_us < before.end_us:
        return None
    new = [one for one in history.batches if one.last > before.last]
    was = [(first, last) for first, last in before.unconfirmed]
    changed = subtracted(was, plan.unconfirmed) + subtracted(plan.unconfirmed, was)
    if subtracted(changed, covered(runs_of(new))):
        return None
    found = touched_by(new, tables)
    if found is None or len(found.keys) + len(before.always) > MOST_GROUPS:
        return None
    return replace(found, keys=found.keys.union(before.always))


def _snapshots(
    spark: SparkSession,
    options: Options,
    found: Sequence[Piece],
    log_gaps: Sequence[LogGap],
    begin: int = 0,
) -> Snapshots:
    """Record the snapshots that ``selection.behind`` names. Return all that were ever recorded,
    and those that were read now. Snapshots before ``begin`` are ignored."""
    folder = Path(options.out) / "recorded" / "snapshots"
    wanted = schema.spark_type(schema.SNAPSHOT)
    late = F.col("zxid") >= begin

    def known() -> DataFrame | None:
        places = [place.parent for place in sorted(folder.glob("*/_SUCCESS"))]
        return stored(spark, wanted, places).where(late) if places else None

    def read(chosen: Sequence[Piece]) -> Iterable[int]:
        place = retention.new_snapshots(folder.parent)
        save(inputs.snapshots(spark, options.logs, chosen), place)
        new = inputs.whole(stored(spark, wanted, [place]))
        if not new:
            shutil.rmtree(place)
        return new.values()

    rows = known()
    before = () if rows is None else inputs.whole(rows).values()
    files = selection.read_behind(found, log_gaps, read, before)
    return Snapshots(known(), files)
