"""Writes of offsets that should not have been, each rated by what came of it.

An offset matters only if a member starts from it. So each write by another session than the
owner's, and each that took the owner itself back, is followed to the next claim of its partition.
There is one finding for each such write, or for several by the same session in a row. Windows are
over partitions with such a write only, and end at log gaps. Runs in the driver's thread and only
builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.findings_base import (
    GROUP,
    PARTITION,
    Tables,
    alive,
    made,
    row,
    session,
    text,
    tp,
    who,
    writers,
)
from zkaudit.findings_moves import late_writes, movers
from zkaudit.staging import known_at, stretch_of

KEY = (*PARTITION, "stretch")
AFTER_ALL = 2**31 - 1
"""Index of a claim that only a snapshot shows."""


def offsets(tables: Tables, keep: Callable[[str, DataFrame], DataFrame]) -> list[DataFrame]:
    """Findings about single offsets, in either store."""
    rows = keep("offset_histories", _history(tables))
    history, claims = rows.where("not claimed and kind != 'claim'"), _claims(rows)
    return [_others(tables, history, claims), _owners(history), _unknown(history, claims),
            _in_kafka(tables)]  # fmt: skip


def _suspicious(tables: Tables, strangers: DataFrame) -> DataFrame:
    """Partitions with a write that may be at fault: the others' histories need no window."""
    stored = tables.commits.where("store = 'zookeeper' and kind != 'claim'")
    lowered = (f.col("offset") < f.col("previous")) & (f.col("kind") == "commit")
    foreign = (f.col("owner_state") != "unknown") & ~f.col("owner_session").eqNullSafe(
        f.col("session")
    )
    surely = stored.where(lowered | foreign).select(*PARTITION)
    unsure = stored.where("owner_state = 'unknown'").select(*PARTITION, "session").distinct()
    unsure = unsure.join(strangers, [*GROUP, "session"], "left_semi").select(*PARTITION)
    return surely.unionByName(unsure).distinct()


def _with_role(tables: Tables, writes: DataFrame) -> DataFrame:
    """Add ``member`` and ``role`` of the writer.

    ``owner``; ``zombie``: another member, or a session that may be one, while there was an owner;
    ``orphan``: the same while there was none; ``mover``; ``tool``: no member for sure, because all
    registrations are known, or the session began in the logs; ``unknown``: maybe the owner.
    """
    began = tables.sessions.where("created_zxid is not null").select("session", "created_zxid")
    writes = (
        writes.join(writers(tables), [*GROUP, "session"], "left")
        .join(movers(tables).withColumn("moves", f.lit(True)), [*GROUP, "session"], "left")
        .join(began, "session", "left")
    )
    here = stretch_of(f.col("zxid"), tables.holes)
    fresh = stretch_of(f.col("created_zxid"), tables.holes) == here
    all_known = known_at(f.col("zxid"), tables.holes, tables.known)
    stranger = f.col("member").isNull() & (f.coalesce(fresh, f.lit(False)) | all_known)
    state = f.col("owner_state")
    role = (
        f.when((state == "owner") & f.col("owner_session").eqNullSafe(f.col("session")), "owner")
        .when(f.col("moves"), "mover")
        .when(stranger, "tool")
        .when(state == "owner", "zombie")
        .when(state == "none", "orphan")
        .otherwise("unknown")
    )
    return writes.withColumn("role", role).drop("moves", "created_zxid")


def _history(tables: Tables) -> DataFrame:
    """Writes and claims with what was before and behind them.

    Claims have ``claimed``. Writes have ``epoch``, the number of claims before; ``position``: where
    the partition's member was (offset; ``start``: it had just claimed; ``setter``: the role of the
    session that had stored it); ``own``: the last write of the same session in the epoch;
    ``delivered``: the highest offset that any member wrote before; ``over``: the next write of the
    epoch.
    """
    strangers = tables.sessions.where("created_zxid is not null").select("session")
    groups = tables.commits.where("owner_state = 'unknown'").select(*GROUP, "session").distinct()
    strangers = groups.join(strangers, "session", "left_semi").join(
        writers(tables), [*GROUP, "session"], "left_anti"
    )
    chosen = _suspicious(tables, strangers)
    writes = tables.commits.where("store = 'zookeeper'").select(
        *PARTITION, "zxid", "idx", "time", "session", "offset", "previous", "kind", "owner_state",
        "owner_session", "owner_member", "owner_start_zxid", "free_since_zxid",
    )  # fmt: skip
    writes = _with_role(tables, writes.join(chosen, list(PARTITION), "left_semi"))
    claims = tables.ownership.where("start_zxid is not null").select(
        *PARTITION, "session", "member",
        f.col("start_zxid").alias("zxid"),
        f.coalesce("start_idx", f.lit(AFTER_ALL)).alias("idx"),
        f.col("start_time").alias("time"),
        f.lit(True).alias("claimed"),
    )  # fmt: skip
    claims = claims.join(chosen, list(PARTITION), "left_semi")
    rows = writes.unionByName(claims, allowMissingColumns=True)
    rows = rows.withColumns(
        {
            "stretch": stretch_of(f.col("zxid"), tables.holes),
            "claimed": f.coalesce("claimed", f.lit(False)),
        }
    )
    order = ("zxid", "idx", f.col("claimed").desc())
    every = Window.partitionBy(*KEY).orderBy(*order)
    earlier = every.rowsBetween(Window.unboundedPreceding, -1)
    wrote = ~f.col("claimed") & (f.col("kind") != "claim")
    changed = wrote & (f.col("kind") == "commit")
    rows = rows.withColumns(
        {
            "epoch": f.sum(f.col("claimed").cast("int")).over(
                every.rowsBetween(Window.unboundedPreceding, Window.currentRow)
            ),
            "stored": f.last("offset", ignorenulls=True).over(earlier),
            "setter": f.last(f.when(changed, f.col("role")), ignorenulls=True).over(earlier),
            "delivered": f.max(f.when(wrote & (f.col("role") != "tool"), f.col("offset"))).over(
                earlier
            ),
        }
    )

    def position(offset: str, start: bool) -> Column:
        setter = f.when(f.lit(start), f.col("setter"))
        return f.struct(f.col(offset).alias("offset"), f.lit(start).alias("start"),
                        setter.alias("setter"))  # fmt: skip

    place = (
        f.when(f.col("claimed") & f.col("stored").isNotNull(), position("stored", True))
        .when((f.col("kind") == "claim") & f.col("stored").isNull(), position("offset", True))
        .when(wrote & f.col("role").isin("owner", "orphan", "mover", "unknown")
              & f.col("offset").isNotNull(), position("offset", False))
    )  # fmt: skip
    epoch = Window.partitionBy(*KEY, "epoch")
    same = Window.partitionBy(*KEY, "epoch", "session").orderBy(*order)
    this = f.struct("zxid", "idx", "time", "session", "member", "role", "offset")
    return rows.withColumn("place", place).withColumns(
        {
            "position": f.last("place", ignorenulls=True).over(earlier),
            "over": f.first(f.when(wrote, this), ignorenulls=True).over(
                epoch.orderBy(*order).rowsBetween(1, Window.unboundedFollowing)
            ),
            "own": f.last(f.when(wrote, f.col("offset")), ignorenulls=True).over(
                same.rowsBetween(Window.unboundedPreceding, -1)
            ),
        }
    )


def _claims(rows: DataFrame) -> DataFrame:
    """For each epoch that ended with a claim: ``claim``, and ``began``: that owner's first
    commit."""
    first = f.struct("zxid", "idx", "offset")
    wrote = ~f.col("claimed") & (f.col("kind") != "claim")
    return (
        rows.groupBy(*KEY, (f.col("epoch") - 1).alias("epoch"))
        .agg(
            f.max(f.when(f.col("claimed"), f.struct("zxid", "time", "session", "member"))).alias(
                "claim"
            ),
            f.min(f.when(wrote & (f.col("role") == "owner"), first)).alias("first"),
        )
        .where("claim is not null")
        .select(*KEY, "epoch", "claim", f.col("first.offset").alias("began"))
    )


def _messages(low: Column, high: Column) -> Column:
    """``N messages (LOW to HIGH - 1)``."""
    count = high - low
    return f.concat(
        text(count), f.when(count == 1, " message (").otherwise(" messages ("), text(low),
        f.when(count > 1, f.concat(f.lit(" to "), text(high - 1))).otherwise(""), f.lit(")"),
    )  # fmt: skip


def _claimer() -> Column:
    owner = f.concat(f.lit("member "), f.col("claim.member"))
    return f.coalesce(owner, f.concat(f.lit("session "), session("claim.session")))


def _overwritten() -> Column:
    seconds = (f.unix_millis("over.time") - f.unix_millis("last_time")) / 1000
    return f.concat(
        f.lit("; overwritten with "), text("over.offset"), f.lit(" "),
        f.coalesce(f.format_number(seconds, 1), f.lit("?")),
        f.lit(" s later, before any member started from it."),
    )  # fmt: skip


def _others(tables: Tables, history: DataFrame, claims: DataFrame) -> DataFrame:
    """Writes by sessions that did not own the partition: one finding for each writer and owner (or
    time without owner)."""
    late = late_writes(tables).select(*PARTITION, "zxid", "idx")
    bad = history.where("role in ('zombie', 'orphan', 'tool')")
    bad = bad.join(late, [*PARTITION, "zxid", "idx"], "left_anti")
    place = f.struct("zxid", "idx")
    keys = ("session", "role", "epoch", "owner_state", "owner_start_zxid", "free_since_zxid")
    bad = (
        bad.groupBy(*KEY, *keys)
        .agg(
            f.min(place).alias("first"),
            f.max(place).alias("last"),
            f.min_by("time", place).alias("time"),
            f.max_by("time", place).alias("last_time"),
            f.min_by("offset", place).alias("first_offset"),
            f.max_by("offset", place).alias("last_offset"),
            f.max("offset").alias("highest"),
            f.min_by("position.offset", place).alias("position_before"),
            f.max_by("position.offset", place).alias("position"),
            f.max_by("delivered", place).alias("delivered"),
            f.max_by("over", place).alias("over"),
            f.max((f.col("kind") == "commit").cast("int")).alias("changed"),
            f.count(f.lit(1)).alias("times"),
            f.first("member").alias("member"),
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
    bad = bad.join(claims, [*KEY, "epoch"], "left")
    bad = alive(tables, bad, "zxid")
    role, written = f.col("role"), f.col("last_offset")
    # Where the partition's members had come to, and where the next one began.
    bad = bad.withColumns(
        {
            "reached": f.when(role == "orphan", f.greatest("position_before", "highest")).otherwise(
                f.col("position")
            ),
            "started": f.when(
                f.col("over").isNull() & f.col("claim").isNotNull(),
                f.when(f.col("began") < written, f.col("began")).otherwise(written),
            ),
        }
    )
    seen = f.greatest("reached", "delivered")
    again = f.coalesce(f.col("started") < f.col("reached"), f.lit(False))
    tool = role == "tool"
    lost = tool & f.coalesce(f.col("reached").isNotNull() & (f.col("started") > seen), f.lit(False))
    resumed = tool & f.coalesce(
        (written > f.col("reached")) & (f.col("over.offset") >= written)
        & f.col("over.role").isin("owner", "unknown"), f.lit(False)
    )  # fmt: skip
    bad = bad.withColumns({"seen": seen, "again": again, "lost": lost, "resumed": resumed})
    again, lost, resumed = f.col("again"), f.col("lost"), f.col("resumed")
    zombie, orphan = role == "zombie", role == "orphan"
    itself = zombie & f.coalesce(f.col("member") == f.col("owner_member"), f.lit(False))
    unsure = f.col("member").isNull()
    severity = (
        f.when(lost | (zombie & (f.col("changed") == 1) & ~itself), "critical")
        .when(again, "high")
        .when(zombie | resumed, "medium")
        .when(orphan & f.coalesce(f.col("alive") > 0, f.lit(True)), "high")
        .otherwise("info")
    )
    kind = (
        f.when(zombie, "zombie commit")
        .when(orphan, "orphan commit")
        .when(lost, "lost messages")
        .when(again, "offset regression")
        .otherwise("tool write")
    )
    basis = f.when(
        lost | resumed | (~tool & unsure) | (orphan & f.col("alive").isNull())
        | (tool & again & ~f.coalesce(f.col("began") < f.col("reached"), f.lit(False))),
        "inferred",
    ).otherwise("proven")  # fmt: skip
    many = f.col("times") > 1
    evidence = f.array_compact(
        f.array(
            row("commits", "zxid", "idx", "session",
                 f.concat(f.lit("wrote "), text("first_offset"))),
            f.when(many, row("commits", "last_zxid", "last_idx", "session",
                              f.concat(f.lit("last wrote "), text("last_offset")))),
            f.when(f.col("owner_start_zxid").isNotNull(),
                   row("ownership", "owner_start_zxid", None, "owner_session",
                       "owner at that time")),
            f.when(lost | again, row("ownership", "claim.zxid", None, "claim.session",
                                     "next claim")),
        )
    )  # fmt: skip
    writer = f.coalesce(
        who(),
        f.concat(
            f.lit("Session "), session("session"),
            f.when(tool, ", which is not a member's,")
            .otherwise(", which may be a member's that registered before the logs begin,"),
        ),
    )  # fmt: skip
    what = f.when(
        many,
        f.concat(text("times"), f.lit(" times, "), text("first_offset"), f.lit(" to "),
                 text("last_offset"), f.lit(",")),
    ).otherwise(text("first_offset"))  # fmt: skip
    owner = f.coalesce(f.concat(f.lit("member "), f.col("owner_member")), f.lit("another session"))
    owned = f.when(
        itself, f.concat(f.lit(" although its other session "), session("owner_session"))
    ).otherwise(
        f.concat(f.lit(" although "), owner, f.lit(" (session "),
                 f.coalesce(session("owner_session"), f.lit("?")), f.lit(")"))
    )  # fmt: skip
    members = f.coalesce(
        f.concat(f.lit(", members registered then: "), f.col("alive").cast("string")),
        f.lit(", members unknown: the logs do not show who was registered before they begin"),
    )
    situation = (
        f.when(f.col("owner_state") == "owner", f.concat(owned, f.lit(" owned it")))
        .when(orphan, f.concat(f.lit(" while no member owned it"), members))
        .when(f.col("owner_state") == "none", f.lit(" while no member owned it"))
        .otherwise(", whose owner is unknown")
    )
    reset = f.col("began") < written
    effect = (
        f.when(lost & reset, f.concat(
            f.lit("; "), _claimer(), f.lit(" claimed the partition next and its first commit is "),
            text("began"), f.lit(": up to "), _messages(f.col("seen"), f.col("started")),
            f.lit(" were not delivered."),
        ))
        .when(lost, f.concat(
            f.lit("; "), _claimer(), f.lit(" started from it: "),
            _messages(f.col("seen"), f.col("started")), f.lit(" were not delivered."),
        ))
        .when(again, f.concat(
            f.lit("; "), _claimer(), f.lit(" started from "),
            f.when(reset, text("began")).otherwise("it"), f.lit(": "),
            _messages(f.col("started"), f.col("reached")), f.lit(" were delivered again."),
        ))
        .when(resumed, f.concat(
            f.lit("; the next commit is "), text("over.offset"), f.lit(": the owner may have "
            "continued from there."),
        ))
        .when(orphan | written.eqNullSafe(f.col("reached")), f.lit("."))
        .when(f.col("over").isNotNull(), _overwritten())
        .when(f.col("claim").isNull() & tool, f.lit("; no member has started from it."))
        .otherwise(".")
    )  # fmt: skip
    built = made(
        bad.withColumn("evidence", evidence), severity, kind, basis,
        writer, f.when(tool, " wrote ").otherwise(" committed "), what, f.lit(" for "), tp(),
        " of group ", f.col("group"), situation, effect,
    )  # fmt: skip
    return built.withColumns(
        {
            "end_zxid": f.when(many, f.col("last_zxid")),
            "end_time": f.when(many, f.col("last_time")),
        }
    )


def _owners(history: DataFrame) -> DataFrame:
    """Owners that committed less than where they were: they deliver messages again.

    An owner that only undoes what another session had stored went nowhere. One that did not start
    from what a tool had stored is in the finding about that write.
    """
    replaced = f.col("position.start") & f.coalesce(
        f.col("position.setter") == "tool", f.lit(False)
    )
    back = history.where((f.col("role") == "owner") & (f.col("offset") < f.col("position.offset")))
    back = back.where(~replaced)
    steps = f.concat(text("position.offset"), f.lit(" -> "), text("offset"))
    writer = f.coalesce(who(), f.concat(f.lit("session "), session("session")))
    return made(
        back.withColumn("evidence", f.array(row("commits", "zxid", "idx", "session", steps))),
        "high", "offset regression", "proven",
        "The committed offset of ", tp(), " of group ", f.col("group"), " went back from ",
        text("position.offset"), " to ", text("offset"), ", written by its owner, ", writer, ": ",
        _messages(f.col("offset"), f.col("position.offset")), " are delivered again.",
    )  # fmt: skip


def _unknown(history: DataFrame, claims: DataFrame) -> DataFrame:
    """Offsets that went back while the owner is not known: rated as if there was one."""
    undone = f.coalesce(f.col("offset") >= f.col("own"), f.lit(False))
    back = history.where((f.col("role") == "unknown") & (f.col("offset") < f.col("previous")))
    back = back.where(~undone).join(claims, [*KEY, "epoch"], "left")
    back = back.withColumn("last_time", f.col("time"))
    harmless = (
        f.col("own").isNull()
        & f.col("over").isNotNull()
        & (f.col("over.session") != f.col("session"))
    )
    harmless = f.coalesce(harmless, f.lit(False))
    again = f.coalesce(
        f.col("over").isNull() & f.col("claim").isNotNull()
        & (f.col("offset") < f.col("position.offset")), f.lit(False)
    )  # fmt: skip
    steps = f.concat(text("previous"), f.lit(" -> "), text("offset"))
    writer = f.coalesce(who(), f.concat(f.lit("session "), session("session")))
    effect = (
        f.when(harmless, _overwritten())
        .when(again, f.concat(
            f.lit("; "), _claimer(), f.lit(" started from it: "),
            _messages(f.col("offset"), f.col("position.offset")), f.lit(" were delivered again."),
        ))
        .otherwise(": messages in between may be delivered again.")
    )  # fmt: skip
    return made(
        back.withColumn("evidence", f.array(row("commits", "zxid", "idx", "session", steps))),
        f.when(harmless, "info").otherwise("high"),
        "offset regression",
        "inferred",
        "The committed offset of ", tp(), " of group ", f.col("group"), " went back from ",
        text("previous"), " to ", text("offset"), ", written by ", writer,
        " while the owner is unknown", effect,
    )  # fmt: skip


def _in_kafka(tables: Tables) -> DataFrame:
    """Offsets stored in Kafka that went back."""
    back = tables.commits.where("store = 'kafka' and offset < previous")
    what = f.concat(
        text("previous"), f.lit(" -> "), text("offset"), f.lit(" at __consumer_offsets-"),
        text("log_partition"), f.lit(" offset "), text("log_offset"),
    )  # fmt: skip
    return made(
        back.withColumn("evidence", f.array(row("commits", "zxid", "idx", "session", what))),
        "medium", "offset regression", "proven",
        "The committed offset of ", tp(), " of group ", f.col("group"), " in Kafka went back from ",
        text("previous"), " to ", text("offset"), ": Kafka does not record by whom.",
    )  # fmt: skip
