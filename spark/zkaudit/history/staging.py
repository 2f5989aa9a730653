"""Turns rows of the transaction log into the rows of groups.

Sends all events of a group to one task, in the order of (zxid, idx), and lets ``zkaudit.group``
fold them there. Keeps what else an audit of groups needs: sessions, refused writes, topics and
brokers. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.errors import AuditError
from zkaudit.group import ACTS, Coverage, Event, Facts, FactsReader, LogGap, Moment, Shown
from zkaudit.group.znodes import ALONE
from zkaudit.history.batches import EVENTS, INPUT, LATER, OUTPUT, SHOWN, fold_batches
from zkaudit.limits import Limits
from zkaudit.schema import CREATES, DELETES, NODE_EXISTS, arrow_schema, spark_type

BUCKETS: Final = 256
"""How many buckets the groups of a stream are divided into, by a hash."""

MAX_LOG_GAPS: Final = 10_000
"""With more log gaps than this, the logs of some server are missing."""

_ALONE: Final = f"{'|'.join(ALONE)}|live/members/[^/]+"
_PATH: Final = rf"(?s)\A(.*?)/consumers/([^/]+)/(?:(ids|owners|offsets)/(.+)|({_ALONE}))\z"
_GROUP: Final = rf"(?s)\A(.*?/consumers/[^/]+)/(?:(?:ids|owners|offsets)/.+|(?:{_ALONE})\z)"
_PARTITION: Final = r"[^/]+/(?:0|[1-9][0-9]{0,9})"
_BROKER: Final = r"(?s)\A(.*?)/brokers/ids/([0-9]+)\z"
_TOPIC: Final = r"(?s)\A(.*?)/brokers/topics/([^/]+)\z"
_OFFSET: Final = r"/consumers/[^/]+/offsets/[^/]+/[0-9]+\z"
"""The end of the path of an offset. No other znode of a group has such a path."""


@dataclass(frozen=True)
class Stage:
    """The frames from which the tables are built."""

    names: DataFrame
    """Which znodes each group has: chroot, group, tree (``zkaudit.group.znodes``)."""
    folded: DataFrame
    """What the fold returns, as ``history.batches.OUTPUT``: lifetimes, commits, and changes of a
    migration's znodes."""
    sessions: DataFrame
    """Rows of type createSession and closeSession, unchanged."""
    topics: DataFrame
    """Events of topics (``/brokers/topics/T``): chroot, topic, zxid, idx, time, act, data. What
    only a snapshot shows has the zxid of its write."""
    brokers: DataFrame
    """Sessions of brokers: chroot, broker (its id), session. One row for each registration."""

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
        """The changes of a migration's znodes."""
        return self.folded.where("table = 'changes'")

    def rows(self, spec: str) -> DataFrame:
        """Return the rows of table ``failed_claims`` or ``rebalances``."""
        return self.folded.where(F.col("table") == spec)

    @property
    def findings(self) -> DataFrame:
        """What the rules of the groups find, without the places in the logs."""
        return self.folded.where("table = 'findings'")

    @property
    def waiting(self) -> DataFrame:
        """Groups in which rules would find more if the history ended later: chroot and group."""
        return self.folded.where("table = 'waiting'").select("chroot", "group")

    @property
    def used(self) -> DataFrame:
        """Sessions that changed a znode of a group: chroot, group, session."""
        return self.folded.where("table = 'used'").select("chroot", "group", "session")


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
    known: Sequence[int | None] = (0,),
    facts: Facts | None = None,
    limits: Limits | None = None,
) -> Stage:
    """Reduce a history (``schema.TXNLOG``, each transaction once) to what happened in groups.

    ``log_gaps``: pairs (after, before); all zxids strictly between the two are missing. A history
    that does not reach back to the first transaction begins with (0, its first zxid).
    ``snapshots`` (``schema.SNAPSHOT``) add znodes whose create is not in the logs. ``group``: a
    Java regex that must match a group's whole name. ``paths``: at least all paths below
    ``/consumers``, if they are known without reading ``rows``. ``keep`` stores a frame that is used
    several times under a name, and returns the stored frame. ``known``: as
    ``selection.known`` returns it. Without ``facts``, there are no findings; ``limits``: the
    thresholds of rules.
    """
    if len(log_gaps) > MAX_LOG_GAPS:
        raise AuditError(
            f"the logs have {len(log_gaps)} log gaps, more than {MAX_LOG_GAPS}: add the logs of "
            "the other servers"
        )
    paths = (rows if paths is None else paths).select("path")
    if snapshots is not None:
        shown = snapshots.where(F.col("path").isNotNull() & ~F.col("path").rlike(_OFFSET))
        paths = paths.unionByName(shown.select("path"))
    return Stage(
        keep("names", _names(paths.distinct(), group)),
        keep("folded", _folded(rows, snapshots, group, Coverage(log_gaps, known), facts, limits)),
        rows.where(F.col("type").isin("createSession", "closeSession")).select(
            "type", "zxid", "time", "session", "cxid", "timeout"
        ),
        _topics(rows, snapshots),
        _brokers(rows, snapshots),
    )


def facts_of(
    rows: DataFrame,
    snapshots: DataFrame | None,
    log_gaps: Sequence[LogGap],
    end: DataFrame,
    known_us: int | None,
) -> Facts:
    """Collect what rules need from outside the groups. ``end``: one row with zxid and time of the
    last transaction. ``known_us``: as in ``Facts``."""
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
    ((zxid, time),) = _collected(end.select("zxid", F.unix_micros("time")))
    return reader.facts(Moment(zxid or 0, 0, time), known_us)


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
    offset = F.col("path").rlike(_OFFSET)
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
    rows = rows.where(F.col("path").contains("/consumers/"))
    if group is not None:
        place = F.regexp_extract("path", _GROUP, 1)
        rows = rows.where(F.substring_index(place, "/", -1).rlike(rf"\A(?:{group})\z"))
    return rows.withColumn("key", _key(F.col("path")))


def _key(path: Column) -> Column:
    """The key of a path's group. The fold ignores znodes of no group: each has a key of its own,
    because there may be too many for one task."""
    return F.xxhash64(F.coalesce(F.nullif(F.regexp_extract(path, _GROUP, 1), F.lit("")), path))


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


def _topics(rows: DataFrame, snapshots: DataFrame | None) -> DataFrame:
    named = F.regexp_extract("path", _TOPIC, 2)
    columns = ("path", "zxid", "idx", "time", "act", "data")
    act = (
        F.when(F.col("type").isin(*CREATES), "create")
        .when(F.col("type").isin(*DELETES), "delete")
        .when(F.col("type") == "setData", "set")
    )
    found = rows.where(F.col("path").contains("/brokers/topics/")).withColumn("act", act)
    found = found.where(F.col("act").isNotNull()).select(*columns)
    if snapshots is not None:
        shown = snapshots.where(F.col("path").contains("/brokers/topics/"))
        in_snapshots = shown.select(
            "path",
            F.col("mzxid").alias("zxid"),
            F.lit(0).alias("idx"),
            F.col("mtime").alias("time"),
            F.when(F.col("czxid") == F.col("mzxid"), "create").otherwise("set").alias("act"),
            "data",
        )
        known = found.select("path", "zxid").distinct()
        found = found.unionByName(
            in_snapshots.distinct().join(known, ["path", "zxid"], "left_anti")
        )
    return found.where(named != "").select(
        F.regexp_extract("path", _TOPIC, 1).alias("chroot"), named.alias("topic"), *columns[1:]
    )


def _names(paths: DataFrame, group: str | None) -> DataFrame:
    """``Stage.names`` from the paths of groups."""
    part = [F.regexp_extract("path", _PATH, number) for number in range(1, 6)]
    named = paths.where(F.col("path").contains("/consumers/")).select(
        part[0].alias("chroot"), part[1].alias("group"), part[2].alias("tree"),
        part[3].alias("name"), part[4].alias("alone"),
    )  # fmt: skip
    if group is not None:
        named = named.where(F.col("group").rlike(rf"\A(?:{group})\z"))
    tree, name, alone = (F.col(column) for column in ("tree", "name", "alone"))
    one = F.when(alone.startswith("live/members/"), "members")
    for path, of in ALONE.items():
        one = one.when(alone == path, of)
    partition = name.rlike(rf"\A{_PARTITION}\z")
    tree = (
        F.when((tree == "ids") & ~name.contains("/"), tree)
        .when((tree == "offsets") & partition, tree)
        .when((tree == "owners") & name.contains("/"), F.when(partition, tree).otherwise("foreign"))
    )
    named = named.select("chroot", "group", F.coalesce(tree, one).alias("tree"))
    return named.where("tree is not null").distinct()
