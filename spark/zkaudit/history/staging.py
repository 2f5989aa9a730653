"""Turns rows of the transaction log into the rows of groups.

Sends all events of a group to one task, in the order of (zxid, idx), and lets ``zkaudit.group``
fold them there. Keeps what else an audit of groups needs: sessions, refused writes, topics and
brokers. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.errors import AuditError
from zkaudit.group import ACTS, Coverage, Event, Facts, FactsReader, LogGap, Moment, Shown
from zkaudit.group.znodes import BROKER_PATH, GROUP_PATH, OFFSET_PATH, TOPIC_PATH
from zkaudit.history.batches import EVENTS, INPUT, LATER, OUTPUT, SHOWN, fold_batches
from zkaudit.limits import Limits
from zkaudit.schema import CREATES, DELETES, NODE_EXISTS, arrow_schema, spark_type

BUCKETS: Final = 256
"""How many buckets the groups of a stream are divided into, by a hash."""

MAX_LOG_GAPS: Final = 10_000
"""With more log gaps than this, the logs of some server are missing."""


@dataclass(frozen=True)
class Stage:
    """The frames from which the tables are built."""

    folded: DataFrame
    """What the fold returns, as ``history.batches.OUTPUT``: lifetimes, commits, and changes of a
    migration's znodes."""
    sessions: DataFrame
    """Rows of type createSession and closeSession, unchanged."""
    brokers: Mapping[int, str]
    """As in ``Facts``."""

    @property
    def names(self) -> DataFrame:
        """The trees in which each group has znodes: chroot, group, tree
        (``zkaudit.group.znodes``)."""
        return self.folded.where("table = 'names'").select("chroot", "group", "tree")

    def lifetimes(self, tree: str) -> DataFrame:
        """Return the lifetimes of the znodes of a tree: ``ids``, ``owners``, ``foreign`` or
        ``members``."""
        return self.folded.where(F.col("table") == tree)

    @property
    def commits(self) -> DataFrame:
        """The writes of offsets, each with the owner at that transaction."""
        commits = self.folded.where("table = 'offsets'").withColumn("store", F.lit("zookeeper"))
        return commits.withColumns(
            {name: F.lit(None) for name in ("log_partition", "log_offset", "metadata")}
        )

    @property
    def changes(self) -> DataFrame:
        """The changes of migrations' znodes."""
        return self.folded.where("table = 'changes'")

    def rows(self, spec: str) -> DataFrame:
        """Return the rows of table ``failed_claims`` or ``rebalances``."""
        return self.folded.where(F.col("table") == spec)

    @property
    def findings(self) -> DataFrame:
        """The findings of the groups' rules, without places in the logs."""
        return self.folded.where("table = 'findings'")

    @property
    def waiting(self) -> DataFrame:
        """The groups in which rules would find more if the history ended later: chroot and
        group."""
        return self.folded.where("table = 'waiting'").select("chroot", "group")

    @property
    def used(self) -> DataFrame:
        """The sessions that changed a znode of a group: chroot, group, session."""
        return self.folded.where("table = 'used'").select("chroot", "group", "session")


def text_of(data: Column) -> Column:
    """Return bytes as text. Invalid UTF-8 becomes U+FFFD."""
    return F.make_valid_utf8(data.cast("string"))


def stage(
    rows: DataFrame,
    log_gaps: Sequence[LogGap] = (),
    snapshots: DataFrame | None = None,
    group: str | None = None,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
    known: Sequence[int | None] = (0,),
    facts: Facts | None = None,
    limits: Limits | None = None,
) -> Stage:
    """Reduce a history (``schema.TXNLOG``, each transaction once) to the events of groups.

    ``log_gaps``: pairs (after, before); all zxids strictly between the two are missing. A history
    that does not reach back to the first transaction begins with (0, its first zxid).
    ``snapshots`` (``schema.SNAPSHOT``) add znodes whose create is not in the logs. ``group``: a
    Java regex that must match a group's whole name. ``keep`` stores a frame that is used several
    times under a name, and returns the stored frame. ``known``: as ``selection.known`` returns it.
    Without ``facts``, there are no findings; ``limits``: the thresholds of rules.
    """
    if len(log_gaps) > MAX_LOG_GAPS:
        raise AuditError(
            f"the logs have {len(log_gaps)} log gaps, more than {MAX_LOG_GAPS}: add the logs of "
            "the other servers"
        )
    return Stage(
        keep("folded", _folded(rows, snapshots, group, Coverage(log_gaps, known), facts, limits)),
        rows.where(F.col("type").isin("createSession", "closeSession")).select(
            "type", "zxid", "time", "session", "cxid", "timeout"
        ),
        {} if facts is None else facts.brokers,
    )


def facts_of(
    rows: DataFrame,
    snapshots: DataFrame | None,
    log_gaps: Sequence[LogGap],
    end: DataFrame,
    known_us: int | None,
) -> Facts:
    """Collect the data that rules need from outside the groups. ``end``: one row with zxid and time
    of the last transaction. ``known_us``: as in ``Facts``."""
    ((zxid, time),) = _collected(end.select("zxid", F.unix_micros("time")))
    return read_facts(rows, snapshots, log_gaps).facts(Moment(zxid or 0, 0, time), known_us)


def read_facts(
    rows: DataFrame, snapshots: DataFrame | None, log_gaps: Sequence[LogGap]
) -> FactsReader:
    """Collect the sessions, topics and brokers of a history."""
    reader = FactsReader(Coverage(log_gaps))
    of, path = F.col("type"), F.col("path")
    named = path.contains("/brokers/ids/") | path.contains("/brokers/topics/")
    acts = of.isin(*ACTS) & (of != "closeSession") & named
    logged = rows.where((of == "createSession") | F.coalesce(acts, F.lit(False))).select(
        "type", "zxid", "idx", F.unix_micros("time"), "session", "path", "data"
    )
    for kind, zxid, idx, time, *rest in _collected(logged):
        if kind == "createSession":
            reader.open(rest[0], zxid)
        else:
            session, name, data = rest
            reader.read(Event(zxid, idx, time, session, ACTS[kind], name, data))
    if snapshots is not None:
        shown = snapshots.where(named).select(
            "zxid", "path", "data", "czxid", F.unix_micros("ctime"), "mzxid",
            F.unix_micros("mtime"), "ephemeral_owner",
        )  # fmt: skip
        for row in _collected(shown):
            reader.show(Shown(*row))
    return reader


def _collected(frame: DataFrame) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True)


def _folded(
    rows: DataFrame,
    snapshots: DataFrame | None,
    group: str | None,
    coverage: Coverage,
    facts: Facts | None,
    limits: Limits | None,
) -> DataFrame:
    """``Stage.folded``: all rows of a group are in one task, in order."""
    parts = _of_groups(rows, snapshots, group, bool(coverage.log_gaps))
    fold = partial(fold_batches, arrow_schema(OUTPUT), coverage, facts=facts, limits=limits)
    every = reduce(DataFrame.unionByName, (_as_input(number, part) for number, part in parts))
    return (
        every.repartition("key")
        .sortWithinPartitions("key", "part", "zxid", "idx")
        .mapInArrow(fold, spark_type(OUTPUT))
    )


def _of_groups(
    rows: DataFrame, snapshots: DataFrame | None, group: str | None, later: bool
) -> list[tuple[int, DataFrame]]:
    """The rows of groups, each with the ``key`` of its group, and which part of the fold's input
    they are."""
    offset = F.col("path").rlike(OFFSET_PATH)
    created = F.col("type").isin(*CREATES)
    held = created & F.col("ephemeral") & ~offset
    held |= F.col("type").isin(*ACTS) & F.col("path").endswith("/live/mode")
    sessions = _keyed(rows.where(held), group).select("key", "session")
    closes = rows.where(F.col("type") == "closeSession")
    parts = []
    if snapshots is not None:
        shown = _keyed(snapshots, group).withColumnsRenamed({"ephemeral_owner": "session"})
        parts.append((SHOWN, shown))
        sessions = sessions.unionByName(shown.select("key", "session"))
    if later:
        listed = closes.select("session", F.explode("deleted").alias("path"))
        sessions = sessions.unionByName(_keyed(listed, group).select("key", "session"))
    else:
        closes = closes.withColumn("deleted", F.lit(None).cast("array<string>"))
    refused = rows.where((F.col("type") == "error") & (F.col("error") == NODE_EXISTS))
    sessions = sessions.where("session != 0").distinct()
    closes, refused = (part.join(sessions, "session") for part in (closes, refused))
    # A session's end may list znodes of several groups.
    mine = F.filter("deleted", lambda path: _key(path) == F.col("key"))
    closes = closes.withColumn("deleted", mine)
    acts = rows.where(F.col("type").isin(*ACTS))
    parts += [(EVENTS, _keyed(acts, group)), (EVENTS, closes), (EVENTS, refused)]
    others = created & F.col("path").contains("/ids/")
    if later:
        others = (created | F.col("type").isin(*DELETES)) & ~offset
        parts.append((LATER, closes))
    others |= F.col("path").endswith("/migration")
    parts.append((LATER, _keyed(acts.where(others), group)))
    return parts


def _keyed(rows: DataFrame, group: str | None) -> DataFrame:
    """The rows of znodes below ``/consumers``, with the ``key`` of their group."""
    path = F.col("path")
    rows = rows.where(path.contains("/consumers/"))
    if group is not None:
        rows = rows.where(F.substring_index(_place(path), "/", -1).rlike(rf"\A(?:{group})\z"))
    return rows.withColumn("key", _key(path))


def _place(path: Column) -> Column:
    """The path of a znode's group; empty if it is not of a group."""
    return F.regexp_extract(path, GROUP_PATH, 1)


def _key(path: Column) -> Column:
    """The key of a path's group. The fold ignores znodes of no group: each has a key of its own,
    because there may be too many for one task."""
    return F.xxhash64(F.coalesce(F.nullif(_place(path), F.lit("")), path))


def _as_input(part: int, rows: DataFrame) -> DataFrame:
    """Rows of transactions or of snapshots, in the columns of ``history.batches.INPUT``."""
    of_snapshot = part == SHOWN
    stat = F.array("czxid", F.unix_micros("ctime"), "mzxid", F.unix_micros("mtime"))
    values: dict[str, Column] = {
        "part": F.lit(part),
        "time": F.unix_micros("time"),
        "stat": F.lit(None),
    }
    if of_snapshot:
        absent = ("idx", "time", "type", "ephemeral", "cxid", "deleted")
        values |= dict.fromkeys(absent, F.lit(None)) | {"stat": stat}
    columns = spark_type(INPUT)
    return rows.select(
        *(values.get(c.name, F.col(c.name)).cast(c.dataType).alias(c.name) for c in columns)
    )


GROUP_KEY: Final = "xxhash64(concat(chroot, '/consumers/', `group`))"
"""``group_key`` in SQL."""


def group_key() -> Column:
    """Return a hash of a row's chroot and group."""
    return F.expr(GROUP_KEY)


def group_key_of(path: Column) -> Column:
    """Return the hash of ``group_key`` from the path of a znode; null if no audit table needs the
    znode for a group."""
    is_of_group = path.contains("/consumers/") & (_place(path) != "")
    return F.when(is_of_group, F.xxhash64(_place(path)))


def bucket(key: Column) -> Column:
    """Return the bucket of a ``group_key``, from 0 to ``BUCKETS`` - 1."""
    return F.pmod(key, F.lit(BUCKETS)).cast("int")


def is_shared(path: Column) -> Column:
    """Whether a path is that of a topic or a broker."""
    return path.contains("/brokers/") & (path.rlike(TOPIC_PATH) | path.rlike(BROKER_PATH))
