"""The owners of a group under both coordinations, as one history.

A group may have run on ZooKeeper, may run on the coordinator, and may have moved between the two,
while it ran or while it was stopped. Brokers, and journals of members on the coordinator, do not
record a chroot; ``chroots`` finds it. Runs in the driver's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from zkaudit.group.records.coordinator import OWN_PROTOCOL
from zkaudit.history.modes import Group
from zkaudit.history.staging import Stage
from zkaudit.tables.migrations import Moving, as_frame

GROUP = ("chroot", "group")
_LAST: Final = 2**63 - 1
_PHASES: Final = (
    "chroot string, `group` string, session bigint, coordination string, from_zxid bigint, "
    "from_us bigint, to_zxid bigint, to_us bigint"
)


def chroots(stage: Stage) -> DataFrame:
    """Return the name of each group in ZooKeeper and its ``chroot``; null if several chroots have a
    group of this name. A group that has a mode takes precedence over groups without one."""
    moves = F.col("tree") == "mode"
    each = stage.names.where("tree != 'lock'").groupBy(*GROUP).agg(F.max(moves).alias("moves"))
    of_name = each.groupBy("group").agg(
        F.collect_list("chroot").alias("every"),
        F.collect_list(F.when(F.col("moves"), F.col("chroot"))).alias("moving"),
    )
    chosen = F.when(F.size("moving") > 0, F.col("moving")).otherwise(F.col("every"))
    return of_name.select("group", F.when(F.size(chosen) == 1, chosen[0]).alias("chroot"))


def placed(rows: DataFrame, chroots_: DataFrame) -> DataFrame:
    """Add ``chroot`` to rows of groups on the brokers: empty if ZooKeeper has no such group, null
    if ``chroots`` has null."""
    known = chroots_.select("group", F.struct("chroot").alias("place"))
    chroot = F.when(F.col("place").isNull(), "").otherwise(F.col("place.chroot"))
    return rows.join(known, "group", "left").withColumn("chroot", chroot).drop("place")


def with_mode(spark: SparkSession, moving: Moving) -> DataFrame:
    """Return the groups that have a mode, with ``moves`` true."""
    ddl = "chroot string, `group` string, moves boolean"
    places = [{"chroot": g.chroot, "group": g.name, "moves": True} for g in moving.groups]
    return as_frame(spark, StructType.fromDDL(ddl), places)


def groups(moving: Moving, on_brokers: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the groups of table ``group_ownership``: those with a mode (``moves``), and those with
    an owner on the coordinator. ``on_brokers``: table ``broker_ownership``, placed."""
    by_journal = deliveries.where("coordination = 'coordinator'").select(*GROUP)
    others = on_brokers.where("chroot is not null").select(*GROUP).unionByName(by_journal)
    with_modes = with_mode(on_brokers.sparkSession, moving)
    every = with_modes.unionByName(others.withColumn("moves", F.lit(False)))
    return every.groupBy(*GROUP).agg(F.max("moves").alias("moves"))


def ownership(
    moving: Moving,
    groups_: DataFrame,
    owned: DataFrame,
    on_brokers: DataFrame,
    generations: DataFrame,
    deliveries: DataFrame,
) -> DataFrame:
    """Table ``group_ownership``: the intervals of tables ``ownership``, ``broker_ownership`` and
    ``deliveries``, split where a member began to follow the other coordination.

    ``groups_``: ``groups``, stored. Migratable members have owner znodes in every mode. Plain
    consumers are only on the coordinator. In a group without a mode, owner znodes belong to members
    that follow ZooKeeper.
    """
    spark = owned.sparkSession
    phases = as_frame(spark, StructType.fromDDL(_PHASES), _phases(moving.groups))
    first, end = F.coalesce("start_zxid", F.lit(0)), F.coalesce("end_zxid", F.lit(_LAST))
    begins = F.coalesce("from_zxid", F.lit(-1))
    ends = F.coalesce("to_zxid", F.lit(_LAST))
    cut = begins > first
    ceased = ends < end
    pieces = (
        owned.join(F.broadcast(groups_), list(GROUP))
        .join(F.broadcast(phases), [*GROUP, "session"], "left")
        .where((begins < end) & (ends > first))
    )
    in_zookeeper = F.when(F.col("session").isNotNull() | ~F.col("moves"), "zookeeper")
    by_znode = pieces.select(
        *GROUP, "topic", "partition", "member", "session",
        F.lit(None).cast("string").alias("host"),
        F.coalesce("coordination", in_zookeeper).alias("coordination"),
        F.lit("owner znode").alias("source"),
        *[F.lit(None).cast("int").alias(f"{name}_generation") for name in ("first", "last")],
        F.when(cut, F.col("from_zxid")).otherwise(F.col("start_zxid")).alias("start_zxid"),
        F.when(cut, F.timestamp_micros("from_us")).otherwise(F.col("start_time"))
        .alias("start_time"),
        F.when(ceased, F.col("to_zxid")).otherwise(F.col("end_zxid")).alias("end_zxid"),
        F.when(ceased, F.timestamp_micros("to_us")).otherwise(F.col("end_time"))
        .alias("end_time"),
        F.when(ceased, "next coordination").otherwise(F.col("ended")).alias("ended"),
    )  # fmt: skip
    return by_znode.unionByName(
        _plain(moving, on_brokers, generations), allowMissingColumns=True
    ).unionByName(_journals(moving, deliveries), allowMissingColumns=True)


def _plain(moving: Moving, on_brokers: DataFrame, generations: DataFrame) -> DataFrame:
    """Partitions that the coordinator assigned to consumers that are not migratable."""
    migratable = [
        {"chroot": group.chroot, "group": group.name, "member": name}
        for group in moving.groups
        for name in sorted(group.member_ids)
    ]
    ddl = "chroot string, `group` string, member string"
    known = as_frame(on_brokers.sparkSession, StructType.fromDDL(ddl), migratable)
    alone = generations.where(F.col("protocol").startswith(OWN_PROTOCOL)).select(
        "group", F.col("generation").alias("first_generation")
    )
    return (
        on_brokers.where("chroot is not null")
        .join(F.broadcast(known), [*GROUP, "member"], "left_anti")
        .join(alone, ["group", "first_generation"], "left_anti")
        .select(
            *GROUP, "topic", "partition", "member", "host",
            F.lit("coordinator").alias("coordination"), F.lit("generation").alias("source"),
            "first_generation", "last_generation", "start_time", "end_time",
            F.when(F.col("end_time").isNull(), "still held").otherwise("reassigned").alias("ended"),
        )
    )  # fmt: skip


def _journals(moving: Moving, deliveries: DataFrame) -> DataFrame:
    """Deliveries by consumers on the coordinator that were never registered in ZooKeeper."""
    registered = [
        {"chroot": group.chroot, "group": group.name, "member": one.member}
        for group in moving.groups
        for one in group.registrations
    ]
    ddl = "chroot string, `group` string, member string"
    known = as_frame(deliveries.sparkSession, StructType.fromDDL(ddl), registered)
    return (
        deliveries.where("coordination = 'coordinator'")
        .join(F.broadcast(known), [*GROUP, "member"], "left_anti")
        .select(
            *GROUP, "topic", "partition", "member", "coordination",
            F.lit("journal").alias("source"), "start_time", "end_time", "ended",
        )
    )  # fmt: skip


def _phases(moving: Sequence[Group]) -> Iterable[dict[str, Any]]:
    for group in moving:
        for phase in group.phases():
            yield {
                "chroot": group.chroot,
                "group": group.name,
                "session": phase.session,
                "coordination": phase.coordination,
                "from_zxid": phase.begin and phase.begin.zxid,
                "from_us": phase.begin and phase.begin.us,
                "to_zxid": phase.end and phase.end.zxid,
                "to_us": phase.end and phase.end.us,
            }
