"""Tables that follow from the intervals: sessions, membership, refused claims, rebalances.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.staging import Hole, Stage, first_of, known_at, stretch_of, text_of

GROUP = ("chroot", "group")


def sessions(stage: Stage) -> DataFrame:
    """Table ``sessions``."""
    begun = f.col("type") == "createSession"
    first = f.min_by(f.struct("time", "timeout"), f.when(begun, f.col("zxid")))
    last = f.min_by(f.struct("time", "cxid"), f.when(~begun, f.col("zxid")))
    used = stage.events.select("session").unionByName(stage.writes.select("session"))
    used = used.where("session != 0").distinct()
    logged = stage.sessions.groupBy("session").agg(
        f.min(f.when(begun, f.col("zxid"))).alias("created_zxid"),
        f.min(f.when(~begun, f.col("zxid"))).alias("closed_zxid"),
        first.alias("first"),
        last.alias("last"),
    )
    closer = f.when(f.col("last.cxid") == 0, "server").otherwise("client")
    closed = f.col("closed_zxid").isNotNull()
    return logged.join(used, "session", "full").select(
        "session",
        "created_zxid",
        f.when(f.col("created_zxid").isNotNull(), f.col("first.time")).alias("created_time"),
        f.when(f.col("created_zxid").isNotNull(), f.col("first.timeout")).alias("timeout_ms"),
        "closed_zxid",
        f.when(closed, f.col("last.time")).alias("closed_time"),
        f.when(closed, closer).alias("closed_by"),
    )


def steps(registered: DataFrame, holes: Sequence[Hole]) -> DataFrame:
    """What changes the number of registrations: the rows of ``membership`` with ``step``, and with
    a null ``change`` where a registration is no longer sure, or is known of only by its end."""
    begun = f.col("start_zxid").isNotNull()
    beyond = f.col("end_after_zxid").isNotNull()
    late, leave = f.lit(2**31 - 1), f.lit("leave")

    def part(which: Column, change: Column, zxid: Column, idx: Column, step: Column) -> DataFrame:
        left = change == "leave"
        return registered.where(which).select(
            *GROUP,
            zxid.alias("zxid"),
            idx.alias("idx"),
            f.when(change == "join", f.col("start_time"))
            .when(left, f.col("end_time"))
            .alias("time"),
            "member",
            "session",
            change.alias("change"),
            f.when(left, f.col("ended")).alias("cause"),
            step.alias("step"),
        )

    nothing, end = f.lit(None).cast("string"), f.col("end_zxid")
    first = first_of(stretch_of(end, holes), holes)
    return (
        part(begun, f.lit("join"), f.col("start_zxid"), f.col("start_idx"), f.lit(1))
        .unionByName(
            part(end.isNotNull(), leave, end, f.col("end_idx"), f.when(beyond, 0).otherwise(-1))
        )
        .unionByName(part(beyond, nothing, f.col("end_after_zxid"), late, f.lit(-1)))
        .unionByName(part(~begun & end.isNotNull(), nothing, first, f.lit(-1), f.lit(1)))
    )


def membership(
    registered: DataFrame, holes: Sequence[Hole], known: Sequence[int | None]
) -> DataFrame:
    """Table ``membership``. ``known``: as ``job_input.known`` returns it."""
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx", "member")
    count = f.when(known_at(f.col("zxid"), holes, known), f.sum("step").over(order))
    changes = steps(registered, holes).withColumn("members", count)
    return changes.where("change is not null").drop("step")


def failed_claims(stage: Stage, registered: DataFrame) -> DataFrame:
    """Table ``failed_claims``."""
    who = registered.select(*GROUP, "member", "session", "start_zxid", "end_zxid")
    during = (f.col("zxid") > f.col("start_zxid")) & (
        f.col("end_zxid").isNull() | (f.col("zxid") < f.col("end_zxid"))
    )
    return stage.refused.join(who, "session").where(during).drop("start_zxid", "end_zxid")


def rebalances(
    owned: DataFrame, changes: DataFrame, refused: DataFrame, quiet_ms: int
) -> DataFrame:
    """Table ``rebalances``: bursts of claims and ends, cut where ``quiet_ms`` passed without one.

    Joins and leaves count when they come in a burst or at most ``quiet_ms`` before its begin.
    """

    def part(frame: DataFrame, act: str, zxid: str = "zxid", time: str = "time") -> DataFrame:
        has = set(frame.columns)
        tp = f.concat_ws("\0", "topic", "partition") if "topic" in has else f.lit(None)
        return frame.where(f.col(zxid).isNotNull() & f.col(time).isNotNull()).select(
            *GROUP,
            f.col(zxid).alias("zxid"),
            f.unix_millis(f.col(time)).alias("ms"),
            f.lit(act).alias("act"),
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
    # The clock may step back at a change of leader; such a step never opens a new burst.
    rows = rows.withColumn("pause", f.col("ms") - f.lag("ms").over(order))
    opens = f.when(f.col("pause").isNull() | (f.col("pause") > quiet_ms), 1).otherwise(0)
    rows = rows.withColumn("burst", f.sum(opens).over(order))

    moves = f.col("act").isin("claim", "end")
    claim = f.col("act") == "claim"
    each = Window.partitionBy(*GROUP, "burst", "tp", "act").orderBy("zxid")
    rows = rows.withColumn("round", f.when(claim, f.row_number().over(each)))
    return (
        rows.groupBy(*GROUP, "burst")
        .agg(
            f.min("zxid").alias("first_zxid"),
            f.max("zxid").alias("last_zxid"),
            f.timestamp_millis(f.min("ms")).alias("start_time"),
            f.timestamp_millis(f.max("ms")).alias("end_time"),
            f.count_if(claim).alias("claims"),
            f.count_if(f.col("act") == "end").alias("ends"),
            f.count_distinct(f.when(moves, f.col("tp"))).alias("partitions"),
            f.count_distinct(f.when(claim, f.col("member"))).alias("members"),
            f.coalesce(f.max("round"), f.lit(0)).alias("rounds"),
            f.count_if(f.col("act") == "refused").alias("refused"),
            f.count_if(f.col("act") == "join").alias("joins"),
            f.count_if(f.col("act") == "leave").alias("leaves"),
        )
        .where("claims + ends > 0")
    )


def moves(stage: Stage) -> DataFrame:
    """Table ``moves``."""
    said = f.get_json_object(text_of(f.col("data")), "$.moved_to")
    return stage.events.where("tree = 'migration'").select(
        *GROUP,
        "zxid",
        "idx",
        "time",
        "session",
        f.when((f.col("act") != "delete") & said.isin("kafka", "zookeeper"), said).alias(
            "moved_to"
        ),
    )


def partitions(stage: Stage) -> DataFrame:
    """Table ``partitions``: what the topics' znodes told, up to each topic's last deletion."""
    gone = stage.topics.groupBy("chroot", "topic").agg(
        f.max(f.when(f.col("act") == "delete", f.col("zxid"))).alias("gone_zxid"),
        f.max(f.when(f.col("act") != "delete", f.col("zxid"))).alias("told_zxid"),
    )
    listed = f.from_json(text_of(f.col("data")), "partitions map<string,array<int>>")
    numbers = f.explode(f.map_keys(listed["partitions"])).alias("number")
    told = stage.topics.where("act != 'delete'").select("chroot", "topic", "zxid", "time", numbers)
    told = told.where(f.col("number").rlike(r"\A(0|[1-9][0-9]{0,9})\z"))
    # A topic that was deleted and made again has the partitions of its latest life.
    lives = told.join(gone, ["chroot", "topic"]).where(
        "gone_zxid is null or zxid > gone_zxid or told_zxid < gone_zxid"
    )
    return lives.groupBy("chroot", "topic", f.col("number").cast("bigint").alias("partition")).agg(
        f.min("zxid").alias("zxid"),
        f.min_by("time", "zxid").alias("time"),
        f.max(f.when(f.col("gone_zxid") > f.col("told_zxid"), f.col("gone_zxid"))).alias(
            "gone_zxid"
        ),
    )
