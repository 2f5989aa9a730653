"""What went wrong, from the tables: each finding with severity, evidence and a sentence.

Only what the log proves, or what is labelled ``inferred``; nothing is said of times beyond a hole.
An owner znode is one path, so it never has two owners: overlaps need evidence of other kinds, such
as a commit. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Window, functions as f

from zkaudit.findings_base import (
    GROUP,
    PARTITION,
    SEVERITIES,
    Limits,
    Tables,
    alive,
    made,
    row,
    session,
    text,
    tp,
    writers,
)
from zkaudit.findings_journals import double_deliveries, views_apart
from zkaudit.findings_load import contention, large_herds, storms
from zkaudit.findings_share import gaps, shares, unclaimed
from zkaudit.tables import FINDINGS

__all__ = ["LASTING", "SEVERITIES", "Limits", "Tables", "findings"]

LASTING = ("orphan partition", "member without its share", "one consumer id on two sessions")
"""Kinds of findings that go on at the end of the logs, where they have no end."""


def findings(tables: Tables, limits: Limits) -> DataFrame:
    """Table ``findings``."""
    parts = [
        bad_commits(tables),
        regressions(tables),
        commits_past_moves(tables),
        foreign_releases(tables),
        two_sessions(tables),
        *gaps(tables, limits),
        unclaimed(tables, limits),
        *shares(tables, limits),
        storms(tables, limits),
        contention(tables, limits),
        large_herds(tables, limits),
        *double_deliveries(tables, limits),
        views_apart(tables, limits),
    ]
    return reduce(DataFrame.unionByName, map(_fit, parts))


def _fit(part: DataFrame) -> DataFrame:
    """The columns of the table; null where a finding has no such thing."""
    there = set(part.columns)
    missing = [c.name for c in FINDINGS.columns if c.name not in there]
    return FINDINGS.shape(part.withColumns({name: f.lit(None) for name in missing}))


def bad_commits(tables: Tables) -> DataFrame:
    """Zombie and orphan commits: one finding for each writer and owner (or time without owner)."""
    wrong = tables.commits.where(
        "store = 'zookeeper' and kind != 'claim' and (owner_state = 'none' or "
        "(owner_state = 'owner' and not owner_session <=> session))"
    )
    zombie = f.col("owner_state") == "owner"
    place = f.struct("zxid", "idx")
    wrong = (
        wrong.groupBy(*PARTITION, "session", "owner_state", "owner_start_zxid", "free_since_zxid")
        .agg(
            f.min(place).alias("first"),
            f.max(place).alias("last"),
            f.min_by("time", place).alias("time"),
            f.max_by("time", place).alias("last_time"),
            f.min_by("offset", place).alias("first_offset"),
            f.max_by("offset", place).alias("last_offset"),
            f.max(f.when(f.col("kind") == "commit", 1).otherwise(0)).alias("changed"),
            f.count(f.lit(1)).alias("times"),
            f.first("owner_session").alias("owner_session"),
            f.first("owner_member").alias("owner_member"),
        )
        .withColumns(
            {
                "zxid": f.col("first.zxid"),
                "idx": f.col("first.idx"),
                "last_zxid": f.col("last.zxid"),
                "last_idx": f.col("last.idx"),
            }
        )
    )
    wrong = wrong.join(writers(tables), [*GROUP, "session"], "left")
    wrong = alive(tables, wrong, "zxid")
    many = f.col("times") > 1
    evidence = f.array_compact(
        f.array(
            row("commits", "zxid", "idx", "session",
                 f.concat(f.lit("wrote "), text("first_offset"))),
            f.when(many, row("commits", "last_zxid", "last_idx", "session",
                              f.concat(f.lit("last wrote "), text("last_offset")))),
            f.when(zombie, row("ownership", "owner_start_zxid", None, "owner_session",
                                "owner at that time")),
        )
    )  # fmt: skip
    severity = (
        f.when(zombie & (f.col("changed") == 0), "medium")
        .when(zombie, "critical")
        .when(f.col("alive") > 0, "high")
        .otherwise("info")
    )
    writer = f.coalesce(
        f.concat(f.lit("Member "), f.col("member")),
        f.concat(f.lit("Session "), session("session"), f.lit(", which is no member's,")),
    )
    what = f.when(
        many,
        f.concat(text("times"), f.lit(" times, "), text("first_offset"), f.lit(" to "),
                 text("last_offset"), f.lit(",")),
    ).otherwise(text("first_offset"))  # fmt: skip
    tail = f.when(
        zombie, f.concat(f.lit(" although "), text("owner_member"), f.lit(" owned it."))
    ).otherwise(
        f.concat(
            f.lit(" while nobody owned it; members registered then: "), text("alive"), f.lit(".")
        )
    )
    built = made(
        wrong.withColumn("evidence", evidence),
        severity,
        f.when(zombie, "zombie commit").otherwise("orphan commit"),
        "proven",
        writer, " committed ", what, " for ", tp(), " of group ", f.col("group"), tail,
    )  # fmt: skip
    return built.withColumns(
        {
            "end_zxid": f.when(many, f.col("last_zxid")),
            "end_time": f.when(many, f.col("last_time")),
        }
    )


def regressions(tables: Tables) -> DataFrame:
    """Offsets that went back, in either store."""
    back = tables.commits.where("offset < previous")
    back = back.join(writers(tables), [*GROUP, "session"], "left")
    back = alive(tables, back, "zxid")
    kafka = f.col("store") == "kafka"
    steps = f.concat(text("previous"), f.lit(" -> "), text("offset"))
    place = f.concat(
        f.lit(" at __consumer_offsets-"), text("log_partition"), f.lit(" offset "),
        text("log_offset"),
    )  # fmt: skip
    what = f.concat(steps, f.when(kafka, place).otherwise(""))
    back = back.withColumn("evidence", f.array(row("commits", "zxid", "idx", "session", what)))
    who = f.coalesce(f.col("member"), f.concat(f.lit("session "), session("session")))
    return made(
        back,
        f.when(kafka, "medium").when(f.col("alive") > 0, "high").otherwise("info"),
        "offset regression",
        "proven",
        "The committed offset of ", tp(), " of group ", f.col("group"),
        f.when(kafka, " in Kafka").otherwise(""), " went back from ", text("previous"), " to ",
        text("offset"), f.when(kafka, "").otherwise(f.concat(f.lit(", written by "), who)),
        f.when(kafka, ": Kafka does not tell by whom.")
        .when(f.col("alive") > 0, ": messages in between are delivered again.")
        .otherwise(" while no member was registered, as a tool would."),
    )  # fmt: skip


def commits_past_moves(tables: Tables) -> DataFrame:
    """Offsets written to ZooKeeper after the group was moved to Kafka, save by whoever moves it.

    The mover registers with no topic at all.
    """
    movers = tables.registrations.where("size(subscription) = 0").select(*GROUP, "session")
    movers = movers.unionByName(tables.moves.select(*GROUP, "session")).where("session is not null")
    moved = tables.moves.groupBy(*GROUP).agg(f.min("zxid").alias("first_zxid"))
    writes = tables.commits.where("store = 'zookeeper' and kind = 'commit'").join(
        f.broadcast(moved), list(GROUP)
    )
    writes = writes.where("zxid > first_zxid").join(
        movers.distinct(), [*GROUP, "session"], "left_anti"
    )
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx")
    stone = f.struct(f.col("zxid").alias("moved_zxid"), "moved_to").alias("stone")
    rows = writes.unionByName(
        tables.moves.select(*GROUP, "zxid", "idx", stone), allowMissingColumns=True
    )
    rows = rows.withColumn("last", f.last("stone", ignorenulls=True).over(order))
    late = rows.where("kind is not null and last.moved_to = 'kafka'")
    late = late.groupBy(*PARTITION, "session", f.col("last.moved_zxid").alias("moved_zxid")).agg(
        f.min("zxid").alias("zxid"),
        f.min_by("idx", "zxid").alias("idx"),
        f.min("time").alias("time"),
        f.max("zxid").alias("last_zxid"),
        f.max("time").alias("end_time"),
        f.min_by("offset", "zxid").alias("first"),
        f.max_by("offset", "zxid").alias("newest"),
        f.count(f.lit(1)).alias("times"),
    )
    late = late.join(writers(tables), [*GROUP, "session"], "left").withColumns(
        {
            "end_zxid": f.when(f.col("times") > 1, f.col("last_zxid")),
            "end_time": f.when(f.col("times") > 1, f.col("end_time")),
            "evidence": f.array(
                row("moves", "moved_zxid", None, None, "moved to kafka"),
                row("commits", "zxid", "idx", "session", f.concat(f.lit("wrote "), text("first"))),
            ),
        }
    )
    return made(
        late, "critical", "commit past the end of a move", "proven",
        f.coalesce(f.col("member"), f.concat(f.lit("Session "), session("session"))),
        " wrote ", text("times"), " times to the offset of ", tp(), " of group ", f.col("group"),
        " in ZooKeeper, the last time ", text("newest"),
        ", after the group had been moved to Kafka: nobody will read it.",
    )  # fmt: skip


def foreign_releases(tables: Tables) -> DataFrame:
    """Owner znodes deleted by another session than their own."""
    foreign = tables.ownership.where("ended = 'foreign delete'").withColumn(
        "member_", f.col("member")
    )
    names = writers(tables).withColumnsRenamed({"session": "ended_by", "member": "deleter"})
    foreign = foreign.join(names, [*GROUP, "ended_by"], "left").withColumns(
        {
            "zxid": f.col("end_zxid"),
            "time": f.col("end_time"),
            "evidence": f.array(
                row("ownership", "start_zxid", "start_idx", "session", "claimed"),
                row("ownership", "end_zxid", "end_idx", "ended_by", "deleted"),
            ),
        }
    )
    foreign = made(
        foreign,
        "critical",
        "foreign release",
        "proven",
        f.coalesce(f.col("deleter"), f.concat(f.lit("Session "), session("ended_by"))),
        " deleted the owner znode of ", tp(), " of group ", f.col("group"), " that belonged to ",
        text("member"), ": from then on that member may have had a rival.",
    )  # fmt: skip
    return foreign.withColumns(
        {"end_zxid": f.lit(None).cast("bigint"), "end_time": f.lit(None).cast("timestamp")}
    )


def two_sessions(tables: Tables) -> DataFrame:
    """An owner znode with a member's name in one session, that member's registration in another."""
    owned = tables.ownership.where("member is not null and session is not null").alias("o")
    registered = tables.registrations.where("session is not null").alias("r")
    last = f.lit(2**63 - 1)
    begin = f.greatest("o.start_zxid", "r.start_zxid")
    together = begin < f.least(
        f.coalesce("o.end_zxid", "o.end_after_zxid", last),
        f.coalesce("r.end_zxid", "r.end_after_zxid", last),
    )
    sure = ~(
        (f.col("o.ended") == "unknown") & f.col("o.end_after_zxid").isNull()
        | (f.col("r.ended") == "unknown") & f.col("r.end_after_zxid").isNull()
    )
    same = [f.col(f"o.{name}") == f.col(f"r.{name}") for name in (*GROUP, "member")]
    ends = [
        f.when(f.col(f"{one}.end_zxid").isNotNull(), f.struct(f"{one}.end_zxid", f"{one}.end_time"))
        for one in "or"
    ]
    both = (
        owned.join(
            registered,
            reduce(lambda a, b: a & b, same)
            & (f.col("o.session") != f.col("r.session"))
            & together
            & sure,
        )
        .select(
            *[f.col(f"o.{name}").alias(name) for name in (*PARTITION, "member", "session")],
            begin.alias("zxid"),
            f.when(f.col("o.start_zxid") > f.col("r.start_zxid"), f.col("o.start_time"))
            .otherwise(f.col("r.start_time"))
            .alias("time"),
            f.col("o.start_zxid").alias("owner_zxid"),
            f.col("r.start_zxid").alias("registered_zxid"),
            f.col("r.session").alias("other"),
            f.least(*ends).alias("end"),
        )
        .select("*", "end.*")
    )
    both = both.withColumn(
        "evidence",
        f.array(
            row("ownership", "owner_zxid", None, "session", "owner znode"),
            row("registrations", "registered_zxid", None, "other", "registration"),
        ),
    )
    return made(
        both,
        "high",
        "one consumer id on two sessions",
        "proven",
        "Member ", f.col("member"), " of group ", f.col("group"), " was registered in session ",
        session("other"), " while ", tp(), " was owned under its name by session ",
        session("session"), ": the owner znode goes when that session ends.",
    )  # fmt: skip
