"""What went wrong, from the tables: each finding with severity, evidence and a sentence.

Only what the log proves, or what is labelled ``inferred``; nothing is said of times beyond a hole.
An owner znode is one path, so it never has two owners: overlaps need evidence of other kinds, such
as a commit. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from zkaudit.tables import FINDINGS

SEVERITIES = ("critical", "high", "medium", "low", "info")
GROUP = ("chroot", "group")
PARTITION = (*GROUP, "topic", "partition")


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is a finding. Times by the leader's clock."""

    gap_seconds: float = 30.0
    """A partition without owner while members live."""
    storm_rebalances: int = 10
    """Rebalances of one group within ``storm_seconds``."""
    storm_seconds: float = 600.0
    contention: int = 20
    """Refused claims in one rebalance."""


@dataclass(frozen=True)
class Tables:
    """The tables that findings are made from, as ``zkaudit.tables`` describes them."""

    registrations: DataFrame
    ownership: DataFrame
    commits: DataFrame
    membership: DataFrame
    failed_claims: DataFrame
    rebalances: DataFrame
    end: DataFrame
    """One row: zxid and time of the last transaction of the history."""


def findings(tables: Tables, limits: Limits) -> DataFrame:
    """Table ``findings``."""
    parts = [
        bad_commits(tables),
        regressions(tables),
        foreign_releases(tables),
        two_sessions(tables),
        *gaps(tables, limits),
        idle_members(tables, limits),
        storms(tables, limits),
        contention(tables, limits),
    ]
    return reduce(DataFrame.unionByName, map(_fit, parts))


def _fit(part: DataFrame) -> DataFrame:
    """The columns of the table; null where a finding has no such thing."""
    there = set(part.columns)
    missing = [c.name for c in FINDINGS.columns if c.name not in there]
    return FINDINGS.shape(part.withColumns({name: f.lit(None) for name in missing}))


def _text(name: str | Column) -> Column:
    return f.coalesce((f.col(name) if isinstance(name, str) else name).cast("string"), f.lit("?"))


def _session(name: str) -> Column:
    return f.concat(f.lit("0x"), f.lower(f.hex(f.col(name))))


def _tp() -> Column:
    return f.concat(_text("topic"), f.lit("-"), _text("partition"))


def _row(table: str, zxid: str, idx: str | None, session: str | None, what: Column | str) -> Column:
    return f.struct(
        f.lit(table).alias("table"),
        f.col(zxid).cast("bigint").alias("zxid"),
        (f.col(idx) if idx else f.lit(None)).cast("int").alias("idx"),
        (f.col(session) if session else f.lit(None)).cast("bigint").alias("session"),
        (f.lit(what) if isinstance(what, str) else what).cast("string").alias("what"),
    )


def _made(
    frame: DataFrame,
    severity: Column | str,
    kind: Column | str,
    basis: str,
    *sentence: Column | str,
) -> DataFrame:
    """Add the columns that every finding has; ``evidence`` must be there."""
    words = [f.lit(part) if isinstance(part, str) else part for part in sentence]
    return frame.withColumns(
        {
            "severity": f.lit(severity) if isinstance(severity, str) else severity,
            "kind": f.lit(kind) if isinstance(kind, str) else kind,
            "basis": f.lit(basis),
            "sentence": f.concat(*words),
        }
    )


def _writers(tables: Tables) -> DataFrame:
    """Which member a session stood for in a group: from its registration, else from its claims."""
    known = [
        frame.where("session is not null and member is not null").select(
            *GROUP, "session", "member"
        )
        for frame in (tables.registrations, tables.ownership)
    ]
    return (
        known[0]
        .unionByName(known[1])
        .groupBy(*GROUP, "session")
        .agg(f.min("member").alias("member"))
    )


def _alive(tables: Tables, rows: DataFrame, zxid: str) -> DataFrame:
    """Add ``alive``: registrations of the group alive just before ``zxid`` of each row."""
    changes = tables.membership.select(
        *GROUP, f.col("zxid").alias("at"), f.col("members").alias("count")
    )
    points = rows.withColumn("at", f.col(zxid)).withColumn("point", f.lit(True))
    both = points.unionByName(changes, allowMissingColumns=True)
    order = (
        Window.partitionBy(*GROUP)
        .orderBy(f.col("at"), f.col("point").asc_nulls_last())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    alive = f.coalesce(f.last("count", ignorenulls=True).over(order), f.lit(0))
    return both.withColumn("alive", alive).where("point").drop("at", "point", "count")


def bad_commits(tables: Tables) -> DataFrame:
    """Zombie and orphan commits: one finding for each writer and owner (or time without owner)."""
    order = Window.partitionBy(*PARTITION).orderBy("zxid", "idx")
    mine = f.when(f.col("owner_state") != "none", 1).otherwise(0)
    wrong = tables.commits.withColumn("island", f.sum(mine).over(order)).where(
        "kind != 'claim' and (owner_state = 'none' or "
        "(owner_state = 'owner' and not owner_session <=> session))"
    )
    zombie = f.col("owner_state") == "owner"
    place = f.struct("zxid", "idx")
    wrong = (
        wrong.withColumn("island", f.when(~zombie, f.col("island")))
        .groupBy(*PARTITION, "session", "owner_state", "owner_start_zxid", "island")
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
    wrong = wrong.join(_writers(tables), [*GROUP, "session"], "left")
    wrong = _alive(tables, wrong, "zxid")
    many = f.col("times") > 1
    evidence = f.array_compact(
        f.array(
            _row("commits", "zxid", "idx", "session",
                 f.concat(f.lit("wrote "), _text("first_offset"))),
            f.when(many, _row("commits", "last_zxid", "last_idx", "session",
                              f.concat(f.lit("last wrote "), _text("last_offset")))),
            f.when(zombie, _row("ownership", "owner_start_zxid", None, "owner_session",
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
        f.concat(f.lit("Session "), _session("session"), f.lit(", which is no member's,")),
    )
    what = f.when(
        many,
        f.concat(_text("times"), f.lit(" times, "), _text("first_offset"), f.lit(" to "),
                 _text("last_offset"), f.lit(",")),
    ).otherwise(_text("first_offset"))  # fmt: skip
    tail = f.when(
        zombie, f.concat(f.lit(" although "), _text("owner_member"), f.lit(" owned it."))
    ).otherwise(
        f.concat(
            f.lit(" while nobody owned it; members registered then: "), _text("alive"), f.lit(".")
        )
    )
    made = _made(
        wrong.withColumn("evidence", evidence),
        severity,
        f.when(zombie, "zombie commit").otherwise("orphan commit"),
        "proven",
        writer, " committed ", what, " for ", _tp(), " of group ", f.col("group"), tail,
    )  # fmt: skip
    return made.withColumns(
        {
            "end_zxid": f.when(many, f.col("last_zxid")),
            "end_time": f.when(many, f.col("last_time")),
        }
    )


def regressions(tables: Tables) -> DataFrame:
    """Offsets that went back."""
    back = tables.commits.where("offset < previous")
    back = back.join(_writers(tables), [*GROUP, "session"], "left")
    back = _alive(tables, back, "zxid")
    back = back.withColumn(
        "evidence",
        f.array(_row("commits", "zxid", "idx", "session",
                     f.concat(_text("previous"), f.lit(" -> "), _text("offset")))),
    )  # fmt: skip
    return _made(
        back,
        f.when(f.col("alive") > 0, "high").otherwise("info"),
        "offset regression",
        "proven",
        "The committed offset of ", _tp(), " of group ", f.col("group"), " went back from ",
        _text("previous"), " to ", _text("offset"), ", written by ",
        f.coalesce(f.col("member"), f.concat(f.lit("session "), _session("session"))),
        f.when(f.col("alive") > 0, ": messages in between are delivered again.")
        .otherwise(" while no member was registered, as a tool would."),
    )  # fmt: skip


def foreign_releases(tables: Tables) -> DataFrame:
    """Owner znodes deleted by another session than their own."""
    foreign = tables.ownership.where("ended = 'foreign delete'").withColumn(
        "member_", f.col("member")
    )
    names = _writers(tables).withColumnsRenamed({"session": "ended_by", "member": "deleter"})
    foreign = foreign.join(names, [*GROUP, "ended_by"], "left").withColumns(
        {
            "zxid": f.col("end_zxid"),
            "time": f.col("end_time"),
            "evidence": f.array(
                _row("ownership", "start_zxid", "start_idx", "session", "claimed"),
                _row("ownership", "end_zxid", "end_idx", "ended_by", "deleted"),
            ),
        }
    )
    foreign = _made(
        foreign,
        "critical",
        "foreign release",
        "proven",
        f.coalesce(f.col("deleter"), f.concat(f.lit("Session "), _session("ended_by"))),
        " deleted the owner znode of ", _tp(), " of group ", f.col("group"), " that belonged to ",
        _text("member"), ": from then on that member may have had a rival.",
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
    both = owned.join(
        registered,
        reduce(lambda a, b: a & b, same)
        & (f.col("o.session") != f.col("r.session"))
        & together
        & sure,
    ).select(
        *[f.col(f"o.{name}").alias(name) for name in (*PARTITION, "member", "session")],
        begin.alias("zxid"),
        f.when(f.col("o.start_zxid") > f.col("r.start_zxid"), f.col("o.start_time"))
        .otherwise(f.col("r.start_time"))
        .alias("time"),
        f.col("o.start_zxid").alias("owner_zxid"),
        f.col("r.start_zxid").alias("registered_zxid"),
        f.col("r.session").alias("other"),
    )
    both = both.withColumn(
        "evidence",
        f.array(
            _row("ownership", "owner_zxid", None, "session", "owner znode"),
            _row("registrations", "registered_zxid", None, "other", "registration"),
        ),
    )
    return _made(
        both,
        "high",
        "one consumer id on two sessions",
        "proven",
        "Member ", f.col("member"), " of group ", f.col("group"), " was registered in session ",
        _session("other"), " while ", _tp(), " was owned under its name by session ",
        _session("session"), ": the owner znode goes when that session ends.",
    )  # fmt: skip


def _topic_wanted(tables: Tables) -> DataFrame:
    """Lives of registrations, one row for each topic that they name (filters: topic is null)."""
    static = f.coalesce(f.col("pattern") == "static", f.lit(False))
    return tables.registrations.where("subscription is not null and start_zxid is not null").select(
        *GROUP,
        "member",
        f.col("start_zxid").alias("from_zxid"),
        f.col("start_time").alias("from_time"),
        f.col("ended").alias("left"),
        f.when(f.col("ended") == "unknown", f.col("end_after_zxid"))
        .otherwise(f.col("end_zxid"))
        .alias("to_zxid"),
        f.col("end_time").alias("to_time"),
        f.explode(f.map_keys("subscription")).alias("name"),
        static.alias("static"),
    )


def gaps(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Partitions without owner while a member that names the topic stayed registered.

    A member that was there for the whole time without owner is the witness; members by filter count
    for every topic that the group has owned.
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
    free = free.withColumns(
        {
            "seconds": (
                f.unix_millis(f.coalesce("next_time", "last_time")) - f.unix_millis("end_time")
            ) / 1000,
            "until": f.coalesce("next_zxid", "last_zxid"),
        }
    ).where(f.col("seconds") >= limits.gap_seconds)  # fmt: skip
    wants = _topic_wanted(tables).alias("w")
    witness = (
        reduce(lambda a, b: a & b, [f.col(f"f.{n}") == f.col(f"w.{n}") for n in GROUP])
        & (~f.col("w.static") | (f.col("w.name") == f.col("f.topic")))
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
                    _row("ownership", "end_zxid", "end_idx", "ended_by",
                         f.concat(f.lit("owner gone: "), f.col("ended"))),
                    f.when(f.col("next_zxid").isNotNull(),
                           _row("ownership", "next_zxid", None, None, "next claim")),
                )
            ),
        }
    )  # fmt: skip
    held = held.withColumns({"end_zxid": f.col("next_zxid"), "end_time": f.col("next_time")}).drop(
        "member", "session"
    )
    seconds = f.format_number("seconds", 1)
    return [
        _made(
            held.where("not open"), "medium", "gap", "proven",
            _tp(), " of group ", f.col("group"), " had no owner for ", seconds,
            " s although members lived.",
        ),
        _made(
            held.where("open"), "high", "orphan partition", "proven",
            _tp(), " of group ", f.col("group"), " has had no owner for the last ", seconds,
            " s of the logs although members live.",
        ),
    ]  # fmt: skip


def idle_members(tables: Tables, limits: Limits) -> DataFrame:
    """Members at the end of the history that own nothing although there is something to own.

    Inferred: a topic that the member names has an owner with two partitions or more.
    """
    now = tables.end.select(f.col("zxid").alias("last_zxid"), f.col("time").alias("last_time"))
    held = tables.ownership.where("ended = 'still held'")
    rich = (
        held.groupBy(*GROUP, "topic", "member", "stream")
        .count()
        .where("count >= 2")
        .select(*GROUP, f.col("topic").alias("name"))
        .distinct()
    )
    idle = (
        _topic_wanted(tables)
        .where("static and left = 'still held'")
        .join(rich, [*GROUP, "name"], "left_semi")
        .join(held.select(*GROUP, "member").distinct(), [*GROUP, "member"], "left_anti")
        .crossJoin(f.broadcast(now))
        .withColumn(
            "seconds",
            (f.unix_millis("last_time") - f.unix_millis("from_time")) / 1000,
        )
        .where(f.col("seconds") >= limits.gap_seconds)
        .groupBy(*GROUP, "member")
        .agg(
            f.min("from_zxid").alias("zxid"),
            f.min("from_time").alias("time"),
            f.min("name").alias("topic"),
            f.max("seconds").alias("seconds"),
        )
    )
    idle = idle.withColumn(
        "evidence", f.array(_row("registrations", "zxid", None, None, "registered since"))
    )
    return _made(
        idle, "medium", "member without its share", "inferred",
        "Member ", f.col("member"), " of group ", f.col("group"), " owns nothing ",
        f.format_number("seconds", 1), " s after it registered, while another stream holds two or "
        "more partitions of ", f.col("topic"), ".",
    )  # fmt: skip


def storms(tables: Tables, limits: Limits) -> DataFrame:
    """Many rebalances in a short time: one finding for each storm."""
    span = int(limits.storm_seconds * 1000)
    timed = tables.rebalances.withColumn("ms", f.unix_millis("start_time"))
    recent = Window.partitionBy(*GROUP).orderBy("ms").rangeBetween(-span, 0)
    hot = timed.withColumn("recent", f.count(f.lit(1)).over(recent)).where(
        f.col("recent") >= limits.storm_rebalances
    )
    order = Window.partitionBy(*GROUP).orderBy("ms", "first_zxid")
    opens = f.coalesce(f.col("ms") - f.lag("ms").over(order) > span, f.lit(True))
    hot = hot.withColumn("opens", opens.cast("int"))
    hot = hot.withColumn("storm", f.sum("opens").over(order))
    each = hot.groupBy(*GROUP, "storm").agg(
        f.min("first_zxid").alias("zxid"),
        f.max("last_zxid").alias("end_zxid"),
        f.min("start_time").alias("time"),
        f.max("end_time").alias("end_time"),
        f.max("recent").alias("most"),
        f.sum(f.col("joins") + f.col("leaves")).alias("changes"),
    )
    each = each.withColumn(
        "evidence",
        f.array(
            _row("rebalances", "zxid", None, None, "first"),
            _row("rebalances", "end_zxid", None, None, "last"),
        ),
    )
    return _made(
        each, "medium", "rebalance storm", "inferred",
        "Group ", f.col("group"), " rebalanced ", _text("most"),
        f" times within {limits.storm_seconds:g} s; ", _text("changes"),
        " members came or went meanwhile.",
    )  # fmt: skip


def contention(tables: Tables, limits: Limits) -> DataFrame:
    """Rebalances in which members were refused many claims."""
    hot = tables.rebalances.where(f.col("refused") >= limits.contention).withColumns(
        {
            "zxid": f.col("first_zxid"),
            "end_zxid": f.col("last_zxid"),
            "time": f.col("start_time"),
            "evidence": f.array(
                _row("rebalances", "first_zxid", None, None,
                     f.concat(_text("refused"), f.lit(" refused"))),
            ),
        }
    )  # fmt: skip
    return _made(
        hot.drop("members"), "medium", "claim contention", "inferred",
        "In one rebalance of group ", f.col("group"), " ZooKeeper refused ", _text("refused"),
        " writes of members because the znode existed, against ", _text("claims"), " claims.",
    )  # fmt: skip
