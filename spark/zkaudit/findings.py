"""What went wrong, from the tables: each finding with severity, evidence and a sentence.

Only what the log proves, or what is labelled ``inferred``; nothing is said of times beyond a hole.
An owner znode is one path, so it never has two owners: overlaps need evidence of other kinds, such
as a commit. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import DataFrame, functions as f

from zkaudit.findings_base import (
    GROUP,
    PARTITION,
    SEVERITIES,
    Limits,
    Tables,
    made,
    row,
    session,
    tp,
    who,
    writers,
)
from zkaudit.findings_journals import double_deliveries, views_apart
from zkaudit.findings_load import contention, large_herds, storms
from zkaudit.findings_moves import commits_past_moves
from zkaudit.findings_offsets import offsets
from zkaudit.findings_share import gaps, shares, unclaimed
from zkaudit.staging import stretch_of
from zkaudit.tables import FINDINGS

__all__ = ["LASTING", "SEVERITIES", "Limits", "Tables", "findings"]

LASTING = ("orphan partition", "member without its share", "one consumer id on two sessions")
"""Kinds of findings that go on at the end of the logs, where they have no end."""


def findings(
    tables: Tables,
    limits: Limits,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
) -> DataFrame:
    """Table ``findings``. ``keep`` stores what is used several times, under a name, and returns
    what was stored."""
    parts = [
        *offsets(tables, keep),
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


def foreign_releases(tables: Tables) -> DataFrame:
    """Owner znodes deleted by another session than their own.

    Less than critical where both sessions are of one member: it has no rival then. A znode older
    than the logs belonged to another session than one that began in them.
    """
    owned = tables.ownership.where(
        "ended = 'foreign delete' or start_zxid is null and ended_by is not null"
    ).withColumnsRenamed({"member": "owner", "session": "owner_session"})
    names = writers(tables).withColumnRenamed("session", "ended_by")
    began = tables.sessions.where("created_zxid is not null").select(
        f.col("session").alias("ended_by"), "created_zxid"
    )
    foreign = owned.join(names, [*GROUP, "ended_by"], "left").join(began, "ended_by", "left")
    known = f.col("start_zxid").isNotNull()
    later = stretch_of(f.col("created_zxid"), tables.holes) == stretch_of(
        f.col("end_zxid"), tables.holes
    )
    foreign = foreign.where(known | later).withColumns(
        {
            "same": f.coalesce(f.col("member") == f.col("owner"), f.lit(False)),
            "zxid": f.col("end_zxid"),
            "time": f.col("end_time"),
            "evidence": f.array(
                row("ownership", "end_zxid", "end_idx", "ended_by", "deleted"),
            ),
        }
    )
    claimed = row("ownership", "start_zxid", "start_idx", "owner_session", "claimed")
    foreign = foreign.withColumn(
        "evidence",
        f.when(known, f.array_insert("evidence", 1, claimed)).otherwise(f.col("evidence")),
    )
    foreign = made(
        foreign,
        f.when(f.col("same"), "medium").otherwise("critical"),
        "foreign release",
        f.when(known | f.col("member").isNull(), "proven").otherwise("inferred"),
        f.coalesce(who("ended_by"), f.concat(f.lit("Session "), session("ended_by"))),
        " deleted the owner znode of ", tp(), " of group ", f.col("group"), " that belonged to ",
        f.when(f.col("same"), f.concat(f.lit("its other session "), session("owner_session"),
                                       f.lit(".")))
        .otherwise(f.concat(
            f.coalesce(who("owner_session", "owner"),
                       f.concat(f.lit("session "), session("owner_session")),
                       f.lit("a session that had claimed it before the logs begin")),
            f.lit(": from then on that member may have had a rival."),
        )),
    )  # fmt: skip
    return foreign.withColumns(
        {
            "member": f.col("owner"),
            "session": f.col("owner_session"),
            "end_zxid": f.lit(None).cast("bigint"),
            "end_time": f.lit(None).cast("timestamp"),
        }
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
