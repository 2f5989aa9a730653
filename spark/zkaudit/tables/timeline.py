"""The owners of a group under both coordinations, as one history.

A group may have used ZooKeeper, may use the coordinator, and may have moved between the two, live
or stopped. Brokers, and journals of members on the coordinator, do not record a chroot; ``chroots``
finds it. Runs in the driver's thread.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, functions as F

from zkaudit.group.records.coordinator import OWN_PROTOCOL
from zkaudit.history.staging import Stage
from zkaudit.tables.catalog import GROUP

_LAST: Final = 2**63 - 1


def chroots(stage: Stage) -> DataFrame:
    """Return the ``chroot`` of each group name in ZooKeeper; null if several chroots have a group
    of that name. If only one of these groups has a mode, its chroot is returned."""
    moves = F.col("tree") == "mode"
    each = (
        stage.rows("names").where("tree != 'lock'").groupBy(*GROUP).agg(F.max(moves).alias("moves"))
    )
    of_name = each.groupBy("group_id").agg(
        F.collect_list("chroot").alias("every"),
        F.collect_list(F.when(F.col("moves"), F.col("chroot"))).alias("moving"),
    )
    chosen = F.when(F.size("moving") > 0, F.col("moving")).otherwise(F.col("every"))
    return of_name.select("group_id", F.when(F.size(chosen) == 1, chosen[0]).alias("chroot"))


def placed(rows: DataFrame, chroots_: DataFrame) -> DataFrame:
    """Add the column ``chroot`` to rows of groups in Kafka. ``chroots_``: the result of
    ``chroots``. The value is empty if ZooKeeper has no group of that name, and null if ``chroots_``
    has null."""
    known = chroots_.select("group_id", F.struct("chroot").alias("place"))
    chroot = F.when(F.col("place").isNull(), "").otherwise(F.col("place.chroot"))
    return rows.join(known, "group_id", "left").withColumn("chroot", chroot).drop("place")


def with_mode(stage: Stage) -> DataFrame:
    """Return the groups that have a mode, with a column ``moves`` that is true."""
    return (
        stage.rows("names")
        .where("tree = 'mode'")
        .select(*GROUP, F.lit(True).alias("moves"))
        .distinct()
    )


def groups(stage: Stage, on_brokers: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return the groups for the table ``group_ownership``: groups with a mode (``moves`` is true),
    and groups in which the coordinator has assigned partitions. ``on_brokers``: the table
    ``broker_ownership`` after ``placed``."""
    by_journal = deliveries.where("coordination = 'coordinator'").select(*GROUP)
    others = on_brokers.where("chroot is not null").select(*GROUP).unionByName(by_journal)
    every = with_mode(stage).unionByName(others.withColumn("moves", F.lit(False)))
    return every.groupBy(*GROUP).agg(F.max("moves").alias("moves"))


def ownership(
    stage: Stage,
    groups_: DataFrame,
    registered: DataFrame,
    owned: DataFrame,
    on_brokers: DataFrame,
    generations: DataFrame,
    deliveries: DataFrame,
) -> DataFrame:
    """Return the table ``group_ownership``.

    Its rows are those of ``ownership`` (``owned``), ``broker_ownership`` (``on_brokers``) and
    ``deliveries``, split where a member changed from ZooKeeper to the coordinator or back.
    ``groups_``: the stored result of ``groups``. ``registered``: the table ``registrations``.
    Migratable members have owner znodes in every mode. Plain consumers are only on the coordinator.
    In a group without a mode, owner znodes belong to members that follow ZooKeeper.
    """
    names = {"start_zxid": "from_zxid", "start_time": "from_time",
             "end_zxid": "to_zxid", "end_time": "to_time"}  # fmt: skip
    phases = stage.rows("phases").select(*GROUP, "session", "coordination", *names)
    phases = phases.withColumnsRenamed(names)
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
        F.when(cut, F.col("from_time")).otherwise(F.col("start_time"))
        .alias("start_time"),
        F.when(ceased, F.col("to_zxid")).otherwise(F.col("end_zxid")).alias("end_zxid"),
        F.when(ceased, F.col("to_time")).otherwise(F.col("end_time"))
        .alias("end_time"),
        F.when(ceased, "next coordination").otherwise(F.col("ended")).alias("ended"),
    )  # fmt: skip
    return by_znode.unionByName(
        _plain(stage, on_brokers, generations), allowMissingColumns=True
    ).unionByName(_journals(groups_, registered, deliveries), allowMissingColumns=True)


def _plain(stage: Stage, on_brokers: DataFrame, generations: DataFrame) -> DataFrame:
    """Return partitions that the coordinator assigned to consumers that are not migratable."""
    known = stage.rows("member_ids").select(*GROUP, "member")
    alone = generations.where(F.col("protocol").startswith(OWN_PROTOCOL)).select(
        "group_id", F.col("generation").alias("first_generation")
    )
    return (
        on_brokers.where("chroot is not null")
        .join(F.broadcast(known), [*GROUP, "member"], "left_anti")
        .join(alone, ["group_id", "first_generation"], "left_anti")
        .select(
            *GROUP, "topic", "partition", "member", "host",
            F.lit("coordinator").alias("coordination"), F.lit("generation").alias("source"),
            "first_generation", "last_generation", "start_time", "end_time",
            F.when(F.col("end_time").isNull(), "still held").otherwise("reassigned").alias("ended"),
        )
    )  # fmt: skip


def _journals(groups_: DataFrame, registered: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Return deliveries by consumers on the coordinator. In a group with a mode, those of
    members that were ever registered in ZooKeeper are left out."""
    known = registered.join(F.broadcast(groups_.where("moves")), list(GROUP), "left_semi")
    known = known.select(*GROUP, "member").distinct()
    return (
        deliveries.where("coordination = 'coordinator'")
        .join(F.broadcast(known), [*GROUP, "member"], "left_anti")
        .select(
            *GROUP, "topic", "partition", "member", "coordination",
            F.lit("journal").alias("source"), "start_time", "end_time", "ended",
        )
    )  # fmt: skip
