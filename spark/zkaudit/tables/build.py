"""Tables derived from the intervals: sessions, membership, moves.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.group import Facts, LogGap
from zkaudit.history.staging import Stage, first_of, known_at, segment_of, text_of

GROUP = ("chroot", "group")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REGISTRATION = "version int, subscription map<string,int>, pattern string"


def registrations(stage: Stage) -> DataFrame:
    """Table ``registrations``."""
    content = F.from_json(text_of(F.col("data")), _REGISTRATION)
    return (
        stage.lifetimes("ids")
        .withColumn("content", content)
        .withColumns(
            {
                "member": F.col("name"),
                "pattern": F.col("content.pattern"),
                "subscription": F.col("content.subscription"),
            }
        )
    )


def sessions(
    stage: Stage, addresses: DataFrame | None = None, used: DataFrame | None = None
) -> DataFrame:
    """Table ``sessions``. ``addresses``: sessions and, where known, the address of their client.
    ``used``: all sessions that did something in a group; by default those of ``stage``."""
    begun = F.col("type") == "createSession"
    first = F.min_by(F.struct("time", "timeout"), F.when(begun, F.col("zxid")))
    last = F.min_by(F.struct("time", "cxid"), F.when(~begun, F.col("zxid")))
    used = (stage.used if used is None else used).select("session").distinct()
    logged = stage.sessions.groupBy("session").agg(
        F.min(F.when(begun, F.col("zxid"))).alias("created_zxid"),
        F.min(F.when(~begun, F.col("zxid"))).alias("closed_zxid"),
        first.alias("first"),
        last.alias("last"),
    )
    closer = F.when(F.col("last.cxid") == 0, "server").otherwise("client")
    closed = F.col("closed_zxid").isNotNull()
    every = logged.join(used, "session", "full")
    if addresses is None:
        every = every.withColumn("address", F.lit(None).cast("string"))
    else:
        every = every.join(addresses, "session", "left")
    brokers = stage.brokers.groupBy("session").agg(F.min("broker").alias("broker"))
    every = every.join(F.broadcast(brokers), "session", "left")
    return every.select(
        "session",
        "address",
        "created_zxid",
        F.when(F.col("created_zxid").isNotNull(), F.col("first.time")).alias("created_time"),
        F.when(F.col("created_zxid").isNotNull(), F.col("first.timeout")).alias("timeout_ms"),
        "closed_zxid",
        F.when(closed, F.col("last.time")).alias("closed_time"),
        F.when(closed, closer).alias("closed_by"),
        "broker",
    )


def steps(
    registered: DataFrame, log_gaps: Sequence[LogGap], known: Sequence[int | None]
) -> DataFrame:
    """Changes of the number of registrations, by ``step``: the rows of table ``membership``, and
    rows with a null ``change`` where a registration is no longer certain, or only its end is known.
    ``known``: as ``selection.known`` returns it."""
    begun = F.col("start_zxid").isNotNull()
    beyond = F.col("end_after_zxid").isNotNull()
    late, leave = F.lit(2**31 - 1), F.lit("leave")

    def part(which: Column, change: Column, zxid: Column, idx: Column, step: Column) -> DataFrame:
        left = change == "leave"
        return registered.where(which).select(
            *GROUP,
            zxid.alias("zxid"),
            idx.alias("idx"),
            F.when(change == "join", F.col("start_time"))
            .when(left, F.col("end_time"))
            .alias("time"),
            "member",
            "session",
            change.alias("change"),
            F.when(left, F.col("ended")).alias("cause"),
            step.alias("step"),
        )

    nothing, end = F.lit(None).cast("string"), F.col("end_zxid")
    first = first_of(segment_of(end, log_gaps), log_gaps)
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx", "member")
    return (
        part(begun, F.lit("join"), F.col("start_zxid"), F.col("start_idx"), F.lit(1))
        .unionByName(
            part(end.isNotNull(), leave, end, F.col("end_idx"), F.when(beyond, 0).otherwise(-1))
        )
        .unionByName(part(beyond, nothing, F.col("end_after_zxid"), late, F.lit(-1)))
        .unionByName(part(~begun & end.isNotNull(), nothing, first, F.lit(-1), F.lit(1)))
        .withColumn(
            "members",
            F.when(known_at(F.col("zxid"), log_gaps, known), F.sum("step").over(order)),
        )
    )


def moves(stage: Stage) -> DataFrame:
    """Table ``moves``."""
    moved_to = F.get_json_object(text_of(F.col("data")), "$.moved_to")
    return stage.changes.where("tree = 'migration'").select(
        *GROUP,
        "zxid",
        "idx",
        "time",
        "session",
        F.when((F.col("act") != "delete") & moved_to.isin("kafka", "zookeeper"), moved_to).alias(
            "moved_to"
        ),
    )


def time_at(us: int | None) -> datetime | None:
    """Return a time in microseconds since 1970 as a column has it."""
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def partitions(facts: Facts) -> list[dict[str, Any]]:
    """Rows of table ``partitions``."""
    return [
        {
            "chroot": chroot,
            "topic": topic,
            "partition": number,
            "zxid": partition.zxid,
            "time": time_at(partition.time),
            "created": partition.is_created,
            "gone_zxid": partition.gone_zxid,
            "deleted_zxid": partition.deleted_zxid,
        }
        for (chroot, topic), numbers in facts.topics.items()
        for number, partition in numbers.items()
    ]
