"""Tables derived from the rows of the fold: sessions, registrations, moves.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, functions as F

from zkaudit.group import Facts
from zkaudit.history.staging import Stage, text_of

GROUP = ("chroot", "group")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REGISTRATION = "version int, subscription map<string,int>, pattern string"


def registrations(stage: Stage) -> DataFrame:
    """Return table ``registrations``."""
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
    """Return table ``sessions``. ``addresses``: sessions with the address of their client, where
    known. ``used``: the sessions used in a group, by default those of ``stage``."""
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
    pairs = list(stage.brokers.items())
    brokers = every.sparkSession.createDataFrame(pairs, "session long, broker string")
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


def moves(stage: Stage) -> DataFrame:
    """Return table ``moves``."""
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
    """Return a time in microseconds since 1970 as a column contains it."""
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def partitions(facts: Facts) -> list[dict[str, Any]]:
    """Return the rows of table ``partitions``."""
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
