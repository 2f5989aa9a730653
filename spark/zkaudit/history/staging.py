"""Turns rows of the transaction log into events of groups, without state.

Keeps only what an audit of groups needs (znodes below ``/consumers``, sessions, refused writes) and
numbers the segments between log gaps. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.errors import AuditError
from zkaudit.schema import CREATES, DELETES, NODE_EXISTS
from zkconsumer.core.common.foreign_layout import BROKER_PARTITION

LogGap = tuple[int, int]
BUCKETS: Final = 256
"""How many buckets the groups of a stream are divided into, by a hash."""

MAX_LOG_GAPS: Final = 10_000
"""With more log gaps than this, the logs of some server are missing."""

_PATH: Final = (
    r"(?s)\A(.*?)/consumers/([^/]+)/"
    r"(?:(ids|owners|offsets)/(.+)|(migration|ids|live/mode|live/members/[^/]+))\z"
)
_MEMBERS: Final = "live/members/"
_OF_WRITES: Final = ("key", "zxid", "idx", "time", "session", "act", "data")
_BROKER: Final = r"(?s)\A(.*?)/brokers/ids/([0-9]+)\z"
_TOPIC: Final = r"(?s)\A(.*?)/brokers/topics/([^/]+)\z"
_OFFSET: Final = r"/consumers/[^/]+/offsets/[^/]+/[0-9]+\z"
"""The end of the path of an offset. No other znode of a group has such a path."""
_FOREIGN_TOPIC: Final = r"(?s)\A(b(['\"]))?([^/]*?)\2?/[^/]+\z"
_FOREIGN_PARTITION: Final = (
    rf"case when name rlike r'/{BROKER_PARTITION}\z' then "
    r"try_cast(regexp_extract(name, r'-([0-9]+)\z', 1) as bigint) end"
)
_PARTITION: Final = r"\A([^/]+)/(0|[1-9][0-9]{0,9})\z"


@dataclass(frozen=True)
class Stage:
    """The frames from which the tables are built."""

    names: DataFrame
    """One row for each znode of a group: path, chroot, group, tree, name, topic, partition, key.
    ``tree`` is ids, owners, offsets, foreign (an owner that is not named like a partition, with the
    topic and partition that pykafka means by it), migration (the migration marker), or a znode of
    a live migration: mode, members (each with the mode that it has acknowledged), lock (the znode
    ``ids`` itself, whose data has its original access list). ``key`` is a hash for each partition,
    member and other znode of each group. Rows sort faster by it than by names."""
    events: DataFrame
    """One row for each create, delete and write of a znode that is not an offset: the columns of
    ``names``, zxid, idx, time, session, cxid, act, data, ephemeral, version, segment, sure,
    listed.
    ``listed``: a delete known only from the list in the closeSession of the znode's own session."""
    writes: DataFrame
    """Writes of offsets, which are most rows: key, zxid, idx, time, session, act, data, segment.
    An offset that a snapshot shows and that was written before the logs has the act ``known``, the
    zxid of that write, and the segment that it is known in."""
    sessions: DataFrame
    """Rows of type createSession and closeSession, unchanged."""
    refused: DataFrame
    """Rows of type error with the code for a znode that exists (-110)."""
    topics: DataFrame
    """Events of topics (``/brokers/topics/T``): chroot, topic, zxid, idx, time, act, data, segment.
    Data that only a snapshot shows has the zxid of its write and the segment of the snapshot."""
    brokers: DataFrame
    """Sessions of brokers: chroot, broker (its id), session. One row for each registration."""
    used: DataFrame
    """Sessions that did any of this in a group: chroot, group, session; not distinct."""
    log_gaps: tuple[LogGap, ...]

    @property
    def last_segment(self) -> int:
        """Number of the segment in which the history ends."""
        return len(self.log_gaps)


def _numbers(values: Sequence[int | None]) -> Column:
    """An array of numbers, built in one call instead of one call for each number."""
    text = ",".join("" if value is None else str(value) for value in values)
    return F.split(F.lit(text), ",").cast("array<string>").try_cast("array<bigint>")


def _up_to(zxid: Column, numbers: Sequence[int]) -> Column:
    """How many of the sorted ``numbers`` are not greater than a zxid.

    Spark has no binary search in arrays. So a row is compared with the start of each block and then
    with the numbers of one block: 200 comparisons for 10,000 numbers.
    """
    size = math.isqrt(len(numbers)) + 1
    blocks = F.size(F.filter(_numbers(numbers[::size]), lambda number: number <= zxid))
    before = F.greatest(blocks - 1, F.lit(0)) * size
    inside = F.slice(_numbers(numbers), before + 1, size)
    return before + F.size(F.filter(inside, lambda number: number <= zxid))


def segment_of(zxid: Column, log_gaps: Sequence[LogGap]) -> Column:
    """Number of log gaps before a zxid."""
    if not log_gaps:
        return F.lit(0)
    return _up_to(zxid, [before for _, before in sorted(log_gaps)])


def last_of(segment: Column, log_gaps: Sequence[LogGap]) -> Column:
    """Last zxid of a segment; known only if a log gap follows."""
    if not log_gaps:
        return F.lit(None).cast("bigint")
    return F.get(_numbers([after for after, _ in sorted(log_gaps)]), segment)


def log_gap_between(first: Column, last: Column, log_gaps: Sequence[LogGap]) -> Column:
    """Whether transactions are missing between a known zxid and a later one."""
    if not log_gaps:
        return F.lit(False)
    ends = [after for after, _ in sorted(log_gaps)]
    return (first < last) & (_up_to(last - 1, ends) > _up_to(first - 1, ends))


def first_of(segment: Column, log_gaps: Sequence[LogGap]) -> Column:
    """First zxid of a segment; 0 for the first segment."""
    return F.get(_numbers([0, *[before for _, before in sorted(log_gaps)]]), segment)


def known_at(zxid: Column, log_gaps: Sequence[LogGap], known: Sequence[int | None]) -> Column:
    """Whether all ephemeral znodes at that zxid are known; ``known`` is as ``selection.known``
    returns it."""
    return F.coalesce(zxid >= known_from(segment_of(zxid, log_gaps), known), F.lit(False))


def known_from(segment: Column, known: Sequence[int | None]) -> Column:
    """The zxid from which all ephemeral znodes of a segment are known; null if they never are."""
    return F.get(_numbers(known), segment)


def text_of(data: Column) -> Column:
    """Bytes as text; invalid UTF-8 becomes U+FFFD."""
    return F.make_valid_utf8(data.cast("string"))


def stage(
    rows: DataFrame,
    log_gaps: Sequence[LogGap] = (),
    snapshots: DataFrame | None = None,
    group: str | None = None,
    paths: DataFrame | None = None,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
) -> Stage:
    """Reduce a history (``schema.TXNLOG``, each transaction once) to the events of groups.

    ``log_gaps``: pairs (after, before); all zxids strictly between the two are missing. A history
    that does not reach back to the first transaction begins with (0, its first zxid).
    ``snapshots`` (``schema.SNAPSHOT``) add znodes whose create is not in the logs. ``group``: a
    Java regex that must match a group's whole name. ``paths``: at least all paths below
    ``/consumers``, if they are known without reading ``rows``. ``keep`` stores a frame that is used
    several times under a name, and returns the stored frame.
    """
    if len(log_gaps) > MAX_LOG_GAPS:
        raise AuditError(
            f"the logs have {len(log_gaps)} log gaps, more than {MAX_LOG_GAPS}: add the logs of "
            "the other servers"
        )
    act = (
        F.when(F.col("type").isin(*CREATES), "create")
        .when(F.col("type").isin(*DELETES), "delete")
        .when(F.col("type") == "setData", "set")
    )
    logged = rows.where(F.col("path").contains("/consumers/")).withColumn("act", act)
    logged = logged.where(F.col("act").isNotNull()).select(
        "path", "zxid", "idx", "time", "session", "cxid", "data", "ephemeral", "version", "act"
    )
    topics = _topics(rows.withColumn("act", act), snapshots, log_gaps)
    paths = logged.select("path") if paths is None else paths.select("path")
    if snapshots is not None:
        shown = snapshots.where(F.col("path").isNotNull() & ~F.col("path").rlike(_OFFSET))
        paths = paths.unionByName(shown.select("path"))
    names = keep("names", _names(paths.distinct(), group))
    offset = F.col("tree") == "offsets"
    writes = _writes(logged, group)
    offsets = writes.select(*_OF_WRITES).withColumn("segment", segment_of(F.col("zxid"), log_gaps))
    if snapshots is not None:
        offsets = offsets.unionByName(_offsets_at(snapshots, names.where(offset), log_gaps))
    others = logged.where(~F.col("path").rlike(_OFFSET))  # before the shuffle: most are offsets
    events = others.join(names.where(~offset).select("path"), "path").withColumn(
        "sure", segment_of(F.col("zxid"), log_gaps)
    )
    events = events.withColumn("listed", F.lit(False))
    if log_gaps:
        events = _with_listed(events, rows, names.where(~offset), log_gaps)
    if snapshots is not None:
        events = _with_snapshots(events, snapshots, log_gaps)
    events = events.join(names.where(~offset), "path")
    segment = segment_of(F.col("zxid"), log_gaps)
    events = keep("events", events.withColumn("segment", segment))
    who = ("chroot", "group", "session")
    return Stage(
        names,
        events,
        offsets,
        rows.where(F.col("type").isin("createSession", "closeSession")).select(
            "type", "zxid", "time", "session", "cxid", "timeout"
        ),
        rows.where((F.col("type") == "error") & (F.col("error") == NODE_EXISTS)).select(
            "zxid", "idx", "time", "session"
        ),
        topics,
        _brokers(rows, snapshots),
        events.select(*who).unionByName(writes.select(*who)).where("session != 0"),
        tuple(sorted(log_gaps)),
    )


def group_key() -> Column:
    """A hash of a row's group, from columns chroot and group."""
    return F.xxhash64("chroot", "group")


def group_key_of(path: Column) -> Column:
    """The same from the path of a znode; null where no audit table needs the znode for a group."""
    chroot, group = (F.regexp_extract(path, _PATH, number) for number in (1, 2))
    return F.when(path.contains("/consumers/") & path.rlike(_PATH), F.xxhash64(chroot, group))


def bucket(key: Column) -> Column:
    """The bucket of a group, from 0 to ``BUCKETS`` - 1, from ``group_key``."""
    return F.pmod(key, F.lit(BUCKETS)).cast("int")


def is_shared(path: Column) -> Column:
    """Whether a path is that of a topic's or a broker's znode."""
    return path.contains("/brokers/") & (path.rlike(_TOPIC) | path.rlike(_BROKER))


def _brokers(rows: DataFrame, snapshots: DataFrame | None) -> DataFrame:
    path = F.col("path")
    found = rows.where(F.col("type").isin(*CREATES)).select("path", "session")
    if snapshots is not None:
        owned = snapshots.select("path", F.col("ephemeral_owner").alias("session"))
        found = found.unionByName(owned)
    found = found.where(path.contains("/brokers/ids/") & path.rlike(_BROKER))
    return found.distinct().select(
        F.regexp_extract("path", _BROKER, 1).alias("chroot"),
        F.regexp_extract("path", _BROKER, 2).alias("broker"),
        "session",
    )


def _topics(rows: DataFrame, snapshots: DataFrame | None, log_gaps: Sequence[LogGap]) -> DataFrame:
    named = F.regexp_extract("path", _TOPIC, 2)
    columns = ("path", "zxid", "idx", "time", "act", "data", "segment")
    found = rows.where(F.col("path").contains("/brokers/topics/") & F.col("act").isNotNull())
    found = found.withColumn("segment", segment_of(F.col("zxid"), log_gaps)).select(*columns)
    if snapshots is not None:
        shown = snapshots.where(F.col("path").contains("/brokers/topics/"))
        shown = shown.withColumn("segment", segment_of(F.col("zxid") + 1, log_gaps))
        in_snapshots = shown.select(
            "path",
            F.col("mzxid").alias("zxid"),
            F.lit(0).alias("idx"),
            F.col("mtime").alias("time"),
            F.when(F.col("czxid") == F.col("mzxid"), "create").otherwise("set").alias("act"),
            "data",
            "segment",
        )
        known = found.select("path", "zxid").distinct()
        found = found.unionByName(
            in_snapshots.distinct().join(known, ["path", "zxid"], "left_anti")
        )
    return found.where(named != "").select(
        F.regexp_extract("path", _TOPIC, 1).alias("chroot"), named.alias("topic"), *columns[1:]
    )


def _names(paths: DataFrame, group: str | None) -> DataFrame:
    """``Stage.names`` from the paths of groups. Regexes are applied once to each path, not to each
    write."""
    part = [F.regexp_extract("path", _PATH, number) for number in range(1, 6)]
    live = part[4].startswith(_MEMBERS)
    alone = (
        F.when(live, "members")
        .when(part[4] == "live/mode", "mode")
        .when(part[4] == "ids", "lock")
        .otherwise(part[4])
    )
    named = paths.withColumns(
        {
            "chroot": part[0],
            "group": part[1],
            "tree": F.concat(part[2], alone),
            "name": F.when(live, F.substring_index(part[4], "/", -1)).otherwise(part[3]),
        }
    ).where(F.col("tree") != "")
    named = named.withColumns(
        {
            "topic": F.regexp_extract("name", _PARTITION, 1),
            "partition": F.expr(f"try_cast(regexp_extract(name, r'{_PARTITION}', 2) as bigint)"),
        }
    )
    if group is not None:
        named = named.where(F.col("group").rlike(rf"\A(?:{group})\z"))
    foreign = (
        (F.col("tree") == "owners") & F.col("partition").isNull() & F.col("name").contains("/")
    )
    named = named.withColumns(
        {
            "tree": F.when(foreign, "foreign").otherwise(F.col("tree")),
            "topic": F.when(foreign, F.regexp_extract("name", _FOREIGN_TOPIC, 3)).otherwise(
                F.col("topic")
            ),
            "partition": F.when(foreign, F.expr(_FOREIGN_PARTITION)).otherwise(F.col("partition")),
        }
    )
    of_partition = F.col("tree").isin("owners", "offsets")
    member = (F.col("tree") == "ids") & ~F.col("name").contains("/")
    named = named.where(
        F.when(of_partition, F.col("partition").isNotNull()).otherwise(
            member | F.col("tree").isin("foreign", "migration", "mode", "members", "lock")
        )
    )
    other = F.xxhash64("chroot", "group", "tree", "name")
    return named.withColumn("key", F.when(of_partition, _partition_key()).otherwise(other))


def _partition_key() -> Column:
    """``Stage.names.key`` of a partition, from columns chroot, group, topic and partition.

    Ranking in one window would be a single task. With 10 million names, the probability that any
    two have the same hash is 1 in 400,000.
    """
    return F.xxhash64("chroot", "group", "topic", "partition")


def _writes(logged: DataFrame, group: str | None) -> DataFrame:
    """Operations on the offsets of partitions, with their ``key``.

    These are most rows of a log, and nearly every row may have another name. So each path is split
    at its last slashes, in place, instead of being joined with its name in a shuffle.
    """
    last = F.substring_index("path", "/", -5)  # consumers/GROUP/offsets/TOPIC/PARTITION
    part = F.split(last, "/")
    parts = {"group": 1, "topic": 3, "number": 4}
    rows = logged.where(F.col("path").contains("/offsets/")).withColumns(
        {
            "chroot": F.left("path", F.length("path") - F.length(last) - 1),
            "consumers": F.get(part, F.lit(0)) == "consumers",
            "offsets": F.get(part, F.lit(2)) == "offsets",
            **{name: F.get(part, F.lit(number)) for name, number in parts.items()},
        }
    )
    rows = rows.where("consumers and offsets and topic != ''")
    rows = rows.where(F.col("number").rlike(r"\A(0|[1-9][0-9]{0,9})\z"))
    if group is not None:
        rows = rows.where(F.col("group").rlike(rf"\A(?:{group})\z"))
    rows = rows.withColumn("partition", F.col("number").try_cast("bigint"))
    return rows.withColumn("key", _partition_key())


def _with_listed(
    events: DataFrame, rows: DataFrame, names: DataFrame, log_gaps: Sequence[LogGap]
) -> DataFrame:
    """Add the ends of ephemeral znodes that a closeSession lists (ZooKeeper 3.6+) and whose create
    is not in the logs. They show members that registered before the logs begin."""
    listed = rows.where("type = 'closeSession' and deleted is not null").select(
        F.explode("deleted").alias("path"), "zxid", F.lit(0).alias("idx"), "time", "session",
        "cxid",
        F.lit(None).cast("binary").alias("data"), F.lit(True).alias("ephemeral"),
        F.lit(None).cast("int").alias("version"),
        F.lit("delete").alias("act"), segment_of(F.col("zxid"), log_gaps).alias("sure"),
        F.lit(True).alias("listed"),
    )  # fmt: skip
    creates = events.where("act = 'create'").select("path", "session").distinct()
    listed = listed.join(names.select("path"), "path", "left_semi")
    return events.unionByName(listed.join(creates, ["path", "session"], "left_anti"))


def _offsets_at(snapshots: DataFrame, names: DataFrame, log_gaps: Sequence[LogGap]) -> DataFrame:
    """Offsets that were written before the segment of a snapshot, as rows of ``Stage.writes``. Only
    those of partitions whose offset is written in the logs: ``names``."""
    # In one `select` with the new zxid, Spark would take that for the snapshot's.
    known = snapshots.where(F.col("path").contains("/offsets/")).withColumns(
        {
            "segment": segment_of(F.col("zxid") + 1, log_gaps),
            "written": segment_of(F.col("mzxid"), log_gaps),
        }
    )
    rows = (
        known.where("written < segment")
        .join(names.select("path", "key"), "path")
        .select(
            "key",
            F.col("mzxid").alias("zxid"),
            F.lit(2**31 - 1).alias("idx"),  # after the write itself, if the logs show it
            F.col("mtime").alias("time"),
            F.lit(0).cast("bigint").alias("session"),
            F.lit("known").alias("act"),
            "data",
            "segment",
        )
    )
    return rows.dropDuplicates(["key", "segment"])


def _with_snapshots(
    events: DataFrame, snapshots: DataFrame, log_gaps: Sequence[LogGap]
) -> DataFrame:
    """Add creates known only from snapshots, and until when each znode certainly existed."""
    owner = F.col("ephemeral_owner")
    ephemerals = (
        snapshots.where(F.col("path").rlike("/consumers/[^/]+/(ids|owners|live/members)/"))
        .where((owner != 0) & (owner != F.lit(-(2**63))))  # persistent, container
        .withColumnRenamed("zxid", "taken")
        .groupBy("path", F.col("czxid").alias("zxid"))
        .agg(
            F.max(segment_of(F.col("taken") + 1, log_gaps)).alias("seen_in"),
            F.min("ctime").alias("time"),
            F.min("ephemeral_owner").alias("session"),
            F.min("data").alias("data"),
        )
    )
    creates = events.where("act = 'create'").select("path", "zxid").distinct()
    added = ephemerals.join(creates, ["path", "zxid"], "left_anti").select(
        "path",
        "zxid",
        F.lit(2**31 - 1).alias("idx"),
        "time",
        "session",
        F.lit(1).alias("cxid"),
        "data",
        F.lit(True).alias("ephemeral"),
        F.lit(None).cast("int").alias("version"),
        F.lit("create").alias("act"),
        F.greatest(segment_of(F.col("zxid"), log_gaps), F.col("seen_in")).alias("sure"),
        F.lit(False).alias("listed"),
    )
    shown = ephemerals.select("path", "zxid", "seen_in", F.lit("create").alias("act"))
    known = events.join(shown, ["path", "zxid", "act"], "left")
    known = known.withColumn("sure", F.greatest("sure", F.coalesce("seen_in", "sure")))
    moved = snapshots.where(
        F.col("path").rlike(r"/consumers/[^/]+/(migration|live/mode)\z")
    ).groupBy("path", F.col("mzxid").alias("zxid"))
    moved = moved.agg(
        F.lit(0).alias("idx"),
        F.min("mtime").alias("time"),
        F.lit(0).cast("bigint").alias("session"),
        F.lit(0).alias("cxid"),
        F.min("data").alias("data"),
        F.lit(False).alias("ephemeral"),
        F.min("version").alias("version"),
        F.lit("set").alias("act"),
        segment_of(F.col("zxid"), log_gaps).alias("sure"),
        F.lit(False).alias("listed"),
    ).join(events.select("path", "zxid").distinct(), ["path", "zxid"], "left_anti")
    return known.select(added.columns).unionByName(added).unionByName(moved.select(added.columns))
