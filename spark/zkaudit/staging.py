"""From rows of the transaction log to events of groups; no state yet.

Keeps only what an audit of groups needs (znodes below ``/consumers``, sessions, refused writes) and
numbers the stretches between holes. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.errors import AuditError
from zkaudit.schema import CREATES, DELETES

Hole = tuple[int, int]

MAX_HOLES: Final = 10_000
"""More holes than this are no history: the logs of some server are missing."""

NODE_EXISTS: Final = -110
_PATH: Final = r"(?s)\A(.*?)/consumers/([^/]+)/(?:(ids|owners|offsets)/(.+)|(migration))\z"
_TOPIC: Final = r"(?s)\A(.*?)/brokers/topics/([^/]+)\z"
_PARTITION: Final = r"\A([^/]+)/(0|[1-9][0-9]{0,9})\z"


@dataclass(frozen=True)
class Stage:
    """What the tables are made from."""

    names: DataFrame
    """One row for each znode of a group: path, chroot, group, tree, name, topic, partition, key.
    ``tree`` is ids, owners, offsets, or migration (the tombstone of a move); ``key`` is a number
    for each partition, member and tombstone of each group, quicker to sort by than their names."""
    events: DataFrame
    """One row for each create, delete and write of a znode that is no offset: the columns of
    ``names``, zxid, idx, time, session, cxid, act, data, ephemeral, stretch, sure."""
    writes: DataFrame
    """The same of offsets, which are most: key, zxid, idx, time, session, act, data, stretch."""
    sessions: DataFrame
    """createSession and closeSession rows, as they are in the log."""
    refused: DataFrame
    """Error rows with the code of an existing znode."""
    topics: DataFrame
    """The same of topics (``/brokers/topics/T``): chroot, topic, zxid, idx, time, act, data."""
    holes: tuple[Hole, ...]

    @property
    def last_stretch(self) -> int:
        """Number of the stretch in which the history ends."""
        return len(self.holes)


def stretch_of(zxid: Column, holes: Sequence[Hole]) -> Column:
    """Number of holes before a zxid."""
    if not holes:
        return f.lit(0)
    borders = f.array(*[f.lit(before).cast("bigint") for _, before in sorted(holes)])
    return f.size(f.filter(borders, lambda border: border <= zxid))


def after_hole(stretch: Column, holes: Sequence[Hole]) -> Column:
    """Last zxid of a stretch, known only where a hole follows."""
    if not holes:
        return f.lit(None).cast("bigint")
    ends = f.array(*[f.lit(after).cast("bigint") for after, _ in sorted(holes)])
    return f.get(ends, stretch)


def hole_between(first: Column, last: Column, holes: Sequence[Hole]) -> Column:
    """Whether transactions are missing between a zxid that is known and a later one."""
    ends = f.array(*[f.lit(after).cast("bigint") for after, _ in sorted(holes)])
    return f.exists(ends, lambda after: (after >= first) & (after < last))


def first_of(stretch: Column, holes: Sequence[Hole]) -> Column:
    """First zxid of a stretch; 0 for the first stretch."""
    firsts = f.array(f.lit(0), *[f.lit(before).cast("bigint") for _, before in sorted(holes)])
    return f.get(firsts, stretch).cast("bigint")


def known_at(zxid: Column, holes: Sequence[Hole], known: Sequence[int | None]) -> Column:
    """Whether every ephemeral of that time is known; ``known`` as ``job_input.known`` returns."""
    firsts = f.array(*[f.lit(first).cast("bigint") for first in known])
    return f.coalesce(zxid >= f.get(firsts, stretch_of(zxid, holes)), f.lit(False))


def text_of(data: Column) -> Column:
    """Bytes as text; what is not UTF-8 becomes U+FFFD."""
    return f.make_valid_utf8(data.cast("string"))


def stage(
    rows: DataFrame,
    holes: Sequence[Hole] = (),
    snapshots: DataFrame | None = None,
    group: str | None = None,
    paths: DataFrame | None = None,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
) -> Stage:
    """Cut a history (``schema.TXNLOG``, each transaction once) down to groups.

    ``holes``: (after, before) where all zxids strictly between are missing; a history that does not
    reach back to the first transaction begins with (0, its first zxid).
    ``snapshots`` (``schema.SNAPSHOT``) add znodes whose create is not in the logs. ``group``: a
    Java regex; only groups that match it as a whole. ``paths``: all paths below ``/consumers``, or
    more, where they are known without reading ``rows``. ``keep`` stores what is used several times,
    under a name, and returns what was stored.
    """
    if len(holes) > MAX_HOLES:
        raise AuditError(
            f"the logs have {len(holes)} holes, more than {MAX_HOLES}: add the logs of the other "
            "servers"
        )
    act = (
        f.when(f.col("type").isin(*CREATES), "create")
        .when(f.col("type").isin(*DELETES), "delete")
        .when(f.col("type") == "setData", "set")
    )
    logged = rows.where(f.col("path").contains("/consumers/")).withColumn("act", act)
    logged = logged.where(f.col("act").isNotNull()).select(
        "path", "zxid", "idx", "time", "session", "cxid", "data", "ephemeral", "act"
    )
    topics = _topics(rows.withColumn("act", act), snapshots)
    paths = logged.select("path") if paths is None else paths.select("path")
    if snapshots is not None:
        paths = paths.unionByName(snapshots.select("path").where(f.col("path").isNotNull()))
    names = keep("names", _names(paths.distinct(), group))
    offset = f.col("tree") == "offsets"
    writes = logged.join(names.where(offset).select("path", "key"), "path")
    events = logged.join(names.where(~offset).select("path"), "path").withColumn(
        "sure", stretch_of(f.col("zxid"), holes)
    )
    if snapshots is not None:
        events = _with_snapshots(events, snapshots, holes)
    events = events.join(names.where(~offset), "path")
    stretch = stretch_of(f.col("zxid"), holes)
    return Stage(
        names,
        keep("events", events.withColumn("stretch", stretch)),
        writes.select(
            "key", "zxid", "idx", "time", "session", "act", "data", stretch.alias("stretch")
        ),
        rows.where(f.col("type").isin("createSession", "closeSession")).select(
            "type", "zxid", "time", "session", "cxid", "timeout"
        ),
        rows.where((f.col("type") == "error") & (f.col("error") == NODE_EXISTS)).select(
            "zxid", "idx", "time", "session"
        ),
        topics,
        tuple(sorted(holes)),
    )


def _topics(rows: DataFrame, snapshots: DataFrame | None) -> DataFrame:
    named = f.regexp_extract("path", _TOPIC, 2)
    columns = ("path", "zxid", "idx", "time", "act", "data")
    found = rows.where(f.col("path").contains("/brokers/topics/") & f.col("act").isNotNull())
    found = found.select(*columns)
    if snapshots is not None:
        seen = snapshots.where(f.col("path").contains("/brokers/topics/")).select(
            "path",
            f.col("mzxid").alias("zxid"),
            f.lit(0).alias("idx"),
            f.col("mtime").alias("time"),
            f.lit("set").alias("act"),
            "data",
        )
        known = found.select("path", "zxid").distinct()
        found = found.unionByName(seen.distinct().join(known, ["path", "zxid"], "left_anti"))
    return found.where(named != "").select(
        f.regexp_extract("path", _TOPIC, 1).alias("chroot"), named.alias("topic"), *columns[1:]
    )


def _names(paths: DataFrame, group: str | None) -> DataFrame:
    """``Stage.names`` of the paths of groups: regexes see each path once, not each write."""
    part = [f.regexp_extract("path", _PATH, number) for number in range(1, 6)]
    named = paths.withColumns(
        {
            "chroot": part[0],
            "group": part[1],
            "tree": f.concat(part[2], part[4]),
            "name": part[3],
        }
    ).where(f.col("tree") != "")
    named = named.withColumns(
        {
            "topic": f.regexp_extract("name", _PARTITION, 1),
            "partition": f.expr(f"try_cast(regexp_extract(name, r'{_PARTITION}', 2) as bigint)"),
        }
    )
    if group is not None:
        named = named.where(f.col("group").rlike(rf"\A(?:{group})\z"))
    of_partition = f.col("tree").isin("owners", "offsets")
    member = (f.col("tree") == "ids") & ~f.col("name").contains("/")
    named = named.where(
        f.when(of_partition, f.col("partition").isNotNull()).otherwise(
            member | (f.col("tree") == "migration")
        )
    )
    alone = f.when(~of_partition, f.struct("tree", "name"))
    order = Window.orderBy(
        "chroot", "group", f.when(of_partition, f.struct("topic", "partition")), alone
    )
    return named.withColumn("key", f.dense_rank().over(order))


def _with_snapshots(events: DataFrame, snapshots: DataFrame, holes: Sequence[Hole]) -> DataFrame:
    """Add creates that only snapshots know, and how far each znode is sure to have lived."""
    owner = f.col("ephemeral_owner")
    seen = (
        snapshots.where(f.col("path").rlike("/consumers/[^/]+/(ids|owners)/"))
        .where((owner != 0) & (owner != f.lit(-(2**63))))  # persistent, container
        .withColumnRenamed("zxid", "taken")
        .groupBy("path", f.col("czxid").alias("zxid"))
        .agg(
            f.max(stretch_of(f.col("taken") + 1, holes)).alias("seen"),
            f.min("ctime").alias("time"),
            f.min("ephemeral_owner").alias("session"),
            f.min("data").alias("data"),
        )
    )
    creates = events.where("act = 'create'").select("path", "zxid").distinct()
    added = seen.join(creates, ["path", "zxid"], "left_anti").select(
        "path",
        "zxid",
        f.lit(2**31 - 1).alias("idx"),
        "time",
        "session",
        f.lit(1).alias("cxid"),
        "data",
        f.lit(True).alias("ephemeral"),
        f.lit("create").alias("act"),
        f.greatest(stretch_of(f.col("zxid"), holes), f.col("seen")).alias("sure"),
    )
    shown = seen.select("path", "zxid", "seen", f.lit("create").alias("act"))
    known = events.join(shown, ["path", "zxid", "act"], "left")
    known = known.withColumn("sure", f.greatest("sure", f.coalesce("seen", "sure")))
    moved = snapshots.where(f.col("path").rlike(r"/consumers/[^/]+/migration\z")).groupBy(
        "path", f.col("mzxid").alias("zxid")
    )
    moved = moved.agg(
        f.lit(0).alias("idx"),
        f.min("mtime").alias("time"),
        f.lit(0).cast("bigint").alias("session"),
        f.lit(0).alias("cxid"),
        f.min("data").alias("data"),
        f.lit(False).alias("ephemeral"),
        f.lit("set").alias("act"),
        stretch_of(f.col("zxid"), holes).alias("sure"),
    ).join(events.select("path", "zxid").distinct(), ["path", "zxid"], "left_anti")
    return known.select(added.columns).unionByName(added).unionByName(moved.select(added.columns))
