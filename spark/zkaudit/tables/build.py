"""Tables derived from the intervals: sessions, membership, refused claims, rebalances.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.group import LogGap
from zkaudit.history.staging import Stage, first_of, known_at, segment_of, text_of

GROUP = ("chroot", "group")
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


def failed_claims(stage: Stage, registered: DataFrame) -> DataFrame:
    """Table ``failed_claims``."""
    who = registered.select(*GROUP, "member", "session", "start_zxid", "end_zxid")
    during = (F.col("zxid") > F.col("start_zxid")) & (
        F.col("end_zxid").isNull() | (F.col("zxid") < F.col("end_zxid"))
    )
    return stage.refused.join(who, "session").where(during).drop("start_zxid", "end_zxid")


def rebalances(
    owned: DataFrame, changes: DataFrame, refused: DataFrame, quiet_ms: int
) -> DataFrame:
    """Table ``rebalances``: bursts of claims and releases, separated by ``quiet_ms`` without any.

    A join or leave counts if it is in a burst or at most ``quiet_ms`` before its start.
    """

    def part(frame: DataFrame, act: str, zxid: str = "zxid", time: str = "time") -> DataFrame:
        has = set(frame.columns)
        tp = F.concat_ws("\0", "topic", "partition") if "topic" in has else F.lit(None)
        return frame.where(F.col(zxid).isNotNull() & F.col(time).isNotNull()).select(
            *GROUP,
            F.col(zxid).alias("zxid"),
            F.unix_millis(F.col(time)).alias("ms"),
            F.lit(act).alias("act"),
            tp.cast("string").alias("tp"),
            "member",
        )

    rows = (
        part(owned, "claim", "start_zxid", "start_time")
        .unionByName(part(owned, "end", "end_zxid", "end_time"))
        .unionByName(part(changes.where("change = 'join'"), "join"))
        .unionByName(part(changes.where("change = 'leave'"), "leave"))
        .unionByName(part(refused, "refused"))
    )
    order = Window.partitionBy(*GROUP).orderBy("zxid")
    # The clock may step back when the leader changes; such a step never starts a new burst.
    rows = rows.withColumn("pause", F.col("ms") - F.lag("ms").over(order))
    opens = F.when(F.col("pause").isNull() | (F.col("pause") > quiet_ms), 1).otherwise(0)
    rows = rows.withColumn("burst", F.sum(opens).over(order))

    moves = F.col("act").isin("claim", "end")
    claim = F.col("act") == "claim"
    each = Window.partitionBy(*GROUP, "burst", "tp", "act").orderBy("zxid")
    rows = rows.withColumn("round", F.when(claim, F.row_number().over(each)))
    return (
        rows.groupBy(*GROUP, "burst")
        .agg(
            F.min("zxid").alias("first_zxid"),
            F.max("zxid").alias("last_zxid"),
            F.timestamp_millis(F.min("ms")).alias("start_time"),
            F.timestamp_millis(F.max("ms")).alias("end_time"),
            F.count_if(claim).alias("claims"),
            F.count_if(F.col("act") == "end").alias("ends"),
            F.count_distinct(F.when(moves, F.col("tp"))).alias("partitions"),
            F.count_distinct(F.when(claim, F.col("member"))).alias("members"),
            F.coalesce(F.max("round"), F.lit(0)).alias("rounds"),
            F.count_if(F.col("act") == "refused").alias("refused"),
            F.count_if(F.col("act") == "join").alias("joins"),
            F.count_if(F.col("act") == "leave").alias("leaves"),
        )
        .where("claims + ends > 0")
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


def partitions(stage: Stage) -> DataFrame:
    """Table ``partitions``: the partitions in the topics' znodes, up to the topic's deletion."""
    order = Window.partitionBy("chroot", "topic").orderBy("zxid", "idx", "segment")
    # If the data before it is known too, the transaction added the partitions that are new in it.
    follows = F.lag("segment").over(order).eqNullSafe(F.col("segment"))
    events = stage.topics.withColumn("created", (F.col("act") == "create") | follows)
    gone = stage.topics.groupBy("chroot", "topic").agg(
        F.max(F.when(F.col("act") == "delete", F.col("zxid"))).alias("gone_zxid"),
        F.max(F.when(F.col("act") != "delete", F.col("zxid"))).alias("content_zxid"),
    )
    listed = F.from_json(text_of(F.col("data")), "partitions map<string,array<int>>")
    numbers = F.explode(F.map_keys(listed["partitions"])).alias("number")
    listed_in = events.where("act != 'delete'").select(
        "chroot", "topic", "zxid", "time", "created", numbers
    )
    listed_in = listed_in.where(F.col("number").rlike(r"\A(0|[1-9][0-9]{0,9})\z"))
    # A topic that was deleted and recreated has the partitions of its latest lifetime.
    latest = listed_in.join(gone, ["chroot", "topic"]).where(
        "gone_zxid is null or zxid > gone_zxid or content_zxid < gone_zxid"
    )
    return latest.groupBy("chroot", "topic", F.col("number").cast("bigint").alias("partition")).agg(
        F.min("zxid").alias("zxid"),
        F.min_by("time", "zxid").alias("time"),
        F.min_by("created", "zxid").alias("created"),
        F.max(F.when(F.col("gone_zxid") > F.col("content_zxid"), F.col("gone_zxid"))).alias(
            "gone_zxid"
        ),
        F.max("gone_zxid").alias("deleted_zxid"),
    )
