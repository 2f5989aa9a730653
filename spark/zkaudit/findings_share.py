"""Partitions without an owner, and members without their share of the partitions.

Filters are matched by Python in Spark's workers, once for each text; the rest builds DataFrames in
the driver's thread.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Window, functions as f

from zkaudit.findings_base import GROUP, PARTITION, Limits, Tables, made, row, text, tp
from zkaudit.staging import hole_between
from zkconsumer.core.common.topic_filter import expand
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.errors import ZkConsumerError


def topics_of_filter(pattern: str, regex: str, topics: list[str]) -> list[str]:
    """Return the topics that a filter means, as a member sees it; none for a broken filter.

    Internal topics are left out, as members do unless they are told otherwise.
    """
    try:
        return list(expand("", Subscription(Pattern(pattern), {regex: 1}), topics, True))
    except (ZkConsumerError, ValueError):
        return []


def wanted(tables: Tables) -> DataFrame:
    """Lives of registrations, one row for each topic that they mean, with ``streams``."""
    lives = tables.registrations.where("subscription is not null and start_zxid is not null")
    named = lives.select(
        *GROUP,
        "member",
        "pattern",
        f.col("start_zxid").alias("from_zxid"),
        f.col("start_time").alias("from_time"),
        f.col("ended").alias("left"),
        f.when(f.col("ended") == "unknown", f.col("end_after_zxid"))
        .otherwise(f.col("end_zxid"))
        .alias("to_zxid"),
        f.col("end_time").alias("to_time"),
        f.explode("subscription").alias("name", "streams"),
    )
    static = named.where("pattern = 'static'").withColumn("topic", f.col("name"))
    known = tables.partitions.select("chroot", "topic").unionByName(
        tables.ownership.select("chroot", "topic")
    )
    topics = known.groupBy("chroot").agg(f.collect_set("topic").alias("topics"))
    filters = named.where("pattern in ('white_list', 'black_list')")
    means = f.udf(topics_of_filter, "array<string>", useArrow=False)
    matched = (
        filters.select("chroot", "pattern", "name")
        .distinct()
        .join(topics, "chroot")
        .select(
            "chroot",
            "pattern",
            "name",
            f.explode(means("pattern", "name", "topics")).alias("topic"),
        )
    )
    by_filter = filters.join(matched, ["chroot", "pattern", "name"])
    return static.unionByName(by_filter).drop("name", "pattern")


def gaps(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Partitions without owner while a member that names the topic stayed registered.

    A member that was there for the whole time without owner is the witness. A deleted topic has no
    partitions; those of a recreated one are without an owner from its creation on.
    """
    order = Window.partitionBy(*PARTITION).orderBy(f.coalesce("start_zxid", "end_zxid"))
    now = tables.end.select(f.col("zxid").alias("last_zxid"), f.col("time").alias("last_time"))
    free = (
        tables.ownership.withColumns(
            {"next_zxid": f.lead("start_zxid").over(order),
             "next_time": f.lead("start_time").over(order),
             "later": f.lead(f.lit(1)).over(order)}
        )
        .where("end_zxid is not null and ended != 'unknown'")
        .where("later is null or next_zxid is not null")
        .crossJoin(f.broadcast(now))
    )  # fmt: skip
    topics = tables.partitions.select(
        "chroot", "topic", "partition", "gone_zxid", f.col("zxid").alias("made_zxid"),
        f.col("time").alias("made_time"),
    )  # fmt: skip
    free = free.join(topics, ["chroot", "topic", "partition"], "left").where("gone_zxid is null")
    recreated = f.col("made_zxid") > f.col("end_zxid")
    since = f.when(recreated, f.col("made_time")).otherwise(f.col("end_time"))
    free = free.withColumns(
        {
            "seconds": (
                f.unix_millis(f.coalesce("next_time", "last_time")) - f.unix_millis(since)
            ) / 1000,
            "until": f.coalesce("next_zxid", "last_zxid"),
        }
    ).where(f.col("seconds") >= limits.gap_seconds)  # fmt: skip
    if tables.holes:  # who claimed and left in one, nobody knows
        free = free.where(~hole_between(f.col("end_zxid"), f.col("until"), tables.holes))
    wants = wanted(tables).alias("w")
    same = [f.col(f"f.{n}") == f.col(f"w.{n}") for n in (*GROUP, "topic")]
    witness = (
        reduce(lambda a, b: a & b, same)
        & (f.col("w.from_zxid") <= f.col("f.end_zxid"))
        & (f.coalesce("w.to_zxid", f.lit(2**63 - 1)) >= f.col("f.until"))
    )
    held = free.alias("f").join(wants, witness, "left_semi").select("f.*")
    held = held.withColumns(
        {
            "open": f.col("later").isNull(),
            "zxid": f.col("end_zxid"),
            "time": f.col("end_time"),
            "evidence": f.array_compact(
                f.array(
                    row("ownership", "end_zxid", "end_idx", "ended_by",
                         f.concat(f.lit("owner gone: "), f.col("ended"))),
                    f.when(f.col("next_zxid").isNotNull(),
                           row("ownership", "next_zxid", None, None, "next claim")),
                )
            ),
        }
    )  # fmt: skip
    held = held.withColumns({"end_zxid": f.col("next_zxid"), "end_time": f.col("next_time")}).drop(
        "member", "session"
    )
    seconds = f.format_number("seconds", 1)
    return [
        made(
            held.where("not open"), "medium", "gap", "proven",
            tp(), " of group ", f.col("group"), " had no owner for ", seconds,
            " s although members lived.",
        ),
        made(
            held.where("open"), "high", "orphan partition", "proven",
            tp(), " of group ", f.col("group"), " has had no owner for the last ", seconds,
            " s of the logs although members live.",
        ),
    ]  # fmt: skip


def unclaimed(tables: Tables, limits: Limits) -> DataFrame:
    """Partitions that nobody ever owned although a member that means the topic was there."""
    now = tables.end.select(f.col("time").alias("last_time"))
    sure = 2**63 - 1 if tables.known[-1] is None else tables.known[-1]
    wants = wanted(tables).where(f.col("from_zxid") >= sure)
    there = tables.partitions.where("gone_zxid is null").select(
        "chroot", "topic", "partition", f.col("zxid").alias("made_zxid"),
        f.col("time").alias("made_time"),
    )  # fmt: skip
    never = (
        there.join(wants, ["chroot", "topic"])
        .join(tables.ownership.select(*PARTITION), list(PARTITION), "left_anti")
        .crossJoin(f.broadcast(now))
        .withColumns(
            {
                "since_zxid": f.greatest("from_zxid", "made_zxid"),
                "since": f.greatest("from_time", "made_time"),
                "live": f.col("left") == "still held",
            }
        )
        .withColumn(
            "seconds",
            (f.unix_millis(f.coalesce("to_time", "last_time")) - f.unix_millis("since")) / 1000,
        )
        .where(f.col("seconds") >= limits.gap_seconds)
        .groupBy(*PARTITION)
        .agg(
            f.min("since_zxid").alias("zxid"),
            f.min("since").alias("time"),
            f.min("from_zxid").alias("registered"),
            f.max("seconds").alias("seconds"),
            f.max("live").alias("live"),
            f.max("to_time").alias("left_time"),
        )
        .withColumn("end_time", f.when(~f.col("live"), f.col("left_time")))
    )
    never = never.withColumn(
        "evidence",
        f.array(
            row("registrations", "registered", None, None, "a member that wants the topic"),
            row("partitions", "zxid", None, None, "both there"),
        ),
    )
    return made(
        never,
        f.when(f.col("live"), "high").otherwise("medium"),
        f.when(f.col("live"), "orphan partition").otherwise("gap"),
        "proven",
        tp(), " of group ", f.col("group"), " never had an owner, although members that want it "
        "were registered for ", f.format_number("seconds", 1), " s.",
    )  # fmt: skip


def shares(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Members at the end of the history that own fewer partitions than any assignment gives them.

    With n partitions and t streams, both of the old strategies give each stream n / t, rounded down
    (roundrobin over all topics together, and then all members name the same ones). Only where every
    partition has an owner: others are findings of their own. A group that has rebalanced within
    ``gap_seconds`` of the end may not be done.
    """
    now = tables.end.select(f.col("time").alias("last_time"))
    held = tables.ownership.where("ended = 'still held'")
    wants = wanted(tables).where("left = 'still held'")
    count = tables.partitions.where("gone_zxid is null").groupBy("chroot", "topic")
    count = count.agg(f.count(f.lit(1)).alias("n"), f.max("time").alias("grown"))
    changes = tables.membership.select(*GROUP, "time")
    changes = changes.unionByName(tables.rebalances.select(*GROUP, f.col("end_time").alias("time")))
    settled = changes.groupBy(*GROUP).agg(f.max("time").alias("changed"))
    streams = wants.groupBy(*GROUP, "topic").agg(f.sum("streams").alias("t"))
    mine = held.groupBy(*GROUP, "topic", "member").agg(f.count(f.lit(1)).alias("own"))
    each = (
        wants.join(streams, [*GROUP, "topic"])
        .join(count, ["chroot", "topic"], "left")
        .join(mine, [*GROUP, "topic", "member"], "left")
        .join(settled, list(GROUP))
        .crossJoin(f.broadcast(now))
        .withColumn("since", f.greatest("changed", "grown"))
    )
    whole = held.groupBy(*GROUP, "topic").agg(f.count_distinct("partition").alias("owned"))
    each = each.join(whole, [*GROUP, "topic"], "left")
    fair = each.where("n is not null").groupBy(*GROUP, "member").agg(
        f.min("from_zxid").alias("zxid"),
        f.min("from_time").alias("time"),
        f.sum(f.col("streams") * f.floor(f.col("n") / f.col("t"))).alias("share"),
        f.sum(f.coalesce("own", f.lit(0))).alias("own"),
        f.min(f.coalesce(f.col("owned") >= f.col("n"), f.lit(False))).alias("whole"),
        f.min((f.unix_millis("last_time") - f.unix_millis("since")) / 1000).alias("seconds"),
    )  # fmt: skip
    short = fair.where("whole and own < share").where(f.col("seconds") >= limits.gap_seconds)
    # Without the topic's znode, what others hold tells that there is something to own.
    rich = held.groupBy(*GROUP, "topic", "member", "stream").count().where("count >= 2")
    idle = (
        each.where("n is null and own is null")
        .withColumn(
            "seconds",
            (f.unix_millis("last_time") - f.unix_millis(f.greatest("from_time", "changed"))) / 1000,
        )
        .where(f.col("seconds") >= limits.gap_seconds)
        .join(rich.select(*GROUP, "topic").distinct(), [*GROUP, "topic"], "left_semi")
        .join(held.select(*GROUP, "member").distinct(), [*GROUP, "member"], "left_anti")
        .groupBy(*GROUP, "member")
        .agg(
            f.min("from_zxid").alias("zxid"),
            f.min("from_time").alias("time"),
            f.min("topic").alias("topic"),
            f.max("seconds").alias("seconds"),
        )
    )
    since = f.array(row("registrations", "zxid", None, None, "registered since"))
    kind = "member without its share"
    return [
        made(
            short.withColumn("evidence", since), "medium", kind, "proven",
            "Member ", f.col("member"), " of group ", f.col("group"), " owns ", text("own"),
            " partitions ", f.format_number("seconds", 1), " s after the last change; every "
            "assignment gives it ", text("share"), " or more.",
        ),
        made(
            idle.withColumn("evidence", since), "medium", kind, "inferred",
            "Member ", f.col("member"), " of group ", f.col("group"), " owns nothing ",
            f.format_number("seconds", 1), " s after the last change, while another stream holds "
            "two or more partitions of ", f.col("topic"), ".",
        ),
    ]  # fmt: skip
