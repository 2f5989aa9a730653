"""Findings about offsets that were written by the wrong session or moved the wrong way.

Each is rated by its consequence: an offset matters only if a member starts from it. So each write
by a session other than the owner's, and each that moved the owner's own offset back, is followed to
the next claim of its partition. There is one finding for each such write, or for several in a row
by the same session. Windows cover only partitions with such a write, and end at log gaps. Runs in
the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import (
    GROUP,
    PARTITION,
    Keep,
    Tables,
    alive,
    finding,
    row,
    session,
    span,
    text,
    tp,
    who,
    writers,
)
from zkaudit.findings.moves import late_writes, movers
from zkaudit.history.staging import known_at, segment_of
from zkconsumer.admin.takeover import TOOL_NAME_END

KEY = (*PARTITION, "segment")
_SHOWN = 40
"""How many characters of data that is not an offset are shown."""
AFTER_ALL = 2**31 - 1
"""``idx`` of a claim that is known only from a snapshot."""


def offsets(tables: Tables, keep: Keep) -> list[DataFrame]:
    """Findings about single offsets in ZooKeeper or Kafka."""
    rows = keep("offset_histories", _history(tables, keep))
    history, claims = rows.where("not claimed and kind != 'claim'"), _claims(rows)
    return [
        _others(tables, history, claims),
        _owners(tables, history, claims),
        _unknown(tables, history, claims),
        _in_kafka(tables),
    ]


def _suspicious(tables: Tables, strangers: DataFrame) -> DataFrame:
    """Partitions with a write that may be wrong. The histories of the others need no window."""
    stored = tables.commits.where("store = 'zookeeper' and kind != 'claim'")
    lowered = (F.col("offset") < F.col("previous")) & (F.col("kind") == "commit")
    foreign = (F.col("owner_state") != "unknown") & ~F.col("owner_session").eqNullSafe(
        F.col("session")
    )
    # Nothing is wrong with a healthy member whose offsets a broker writes.
    brokers = F.broadcast(tables.sessions.where("broker is not null").select("session"))
    surely = stored.where(lowered | F.col("owner_member").rlike(TOOL_NAME_END)).select(*PARTITION)
    surely = surely.unionByName(
        stored.where(foreign).join(brokers, "session", "left_anti").select(*PARTITION)
    )
    streams = tables.ownership.where("stream is not null").select(*PARTITION).distinct()
    through = stored.where(foreign).join(brokers, "session", "left_semi").select(*PARTITION)
    surely = surely.unionByName(through.join(streams, list(PARTITION), "left_semi"))
    unsure = stored.where("owner_state = 'unknown'").select(*PARTITION, "session").distinct()
    unsure = unsure.join(strangers, [*GROUP, "session"], "left_semi").select(*PARTITION)
    return surely.unionByName(unsure).distinct()


def _with_role(tables: Tables, writes: DataFrame) -> DataFrame:
    """Add ``member`` and ``role`` of the writer.

    ``owner``; ``zombie``: another member, or a session that may be one, while there was an owner;
    ``orphan``: the same while there was no owner; ``mover``: a migration; ``broker``: a broker that
    writes for a client, or a session that may be one, because the owner's client lets brokers
    write; ``tool``: certainly not a member, because all registrations are known or the session
    began in the logs; ``unknown``: it may be the owner. Add also ``broker`` (its id) and
    ``threaded``: whether the owner znode names a stream, as those of clients do that write their
    offsets themselves; null: unknown.
    """
    began = tables.sessions.where("created_zxid is not null or broker is not null").select(
        "session", "created_zxid", "broker"
    )
    owners = tables.ownership.where("start_zxid is not null").select(
        *PARTITION,
        F.col("start_zxid").alias("owner_start_zxid"),
        F.col("stream").isNotNull().alias("threaded"),
    )
    writes = (
        writes.join(writers(tables), [*GROUP, "session"], "left")
        .join(movers(tables).withColumn("moves", F.lit(True)), [*GROUP, "session"], "left")
        .join(began, "session", "left")
        .join(owners, [*PARTITION, "owner_start_zxid"], "left")
    )
    here = segment_of(F.col("zxid"), tables.log_gaps)
    fresh = segment_of(F.col("created_zxid"), tables.log_gaps) == here
    all_known = known_at(F.col("zxid"), tables.log_gaps, tables.known)
    stranger = F.col("member").isNull() & (F.coalesce(fresh, F.lit(False)) | all_known)
    state = F.col("owner_state")
    through = (state == "owner") & ~F.col("threaded") & ~F.coalesce(fresh, F.lit(False))
    through = F.coalesce(through, F.lit(False))
    imports = F.coalesce(F.col("owner_member").rlike(TOOL_NAME_END), F.lit(False))
    imports = imports & F.col("owner_session").eqNullSafe(F.col("session"))
    none = F.lit(None).cast("string")
    writes = writes.withColumns(
        {
            "imports": imports,
            "member": F.when(imports, none).otherwise(F.col("member")),
            "owner_state": F.when(imports, "none").otherwise(F.col("owner_state")),
        }
    )
    role = (
        F.when(F.col("imports"), "tool")
        .when((state == "owner") & F.col("owner_session").eqNullSafe(F.col("session")), "owner")
        .when(F.col("moves"), "mover")
        .when(F.col("member").isNull() & (F.col("broker").isNotNull() | through), "broker")
        .when(stranger, "tool")
        .when(state == "owner", "zombie")
        .when(state == "none", "orphan")
        .otherwise("unknown")
    )
    return writes.withColumn("role", role).drop("moves", "created_zxid", "imports")


def _history(tables: Tables, keep: Keep) -> DataFrame:
    """Writes and claims, each with the state before it and the next write.

    Claims have ``claimed``. Writes have ``epoch``, the number of earlier claims; ``position``, the
    position of the partition's owner (``offset``; ``start``: it had just claimed the partition;
    ``setter``: the role of the session that had stored the offset; ``unsure``: who had written it
    is unknown, because a snapshot shows it or a broker wrote it); ``own``, the last write of the
    same session in the epoch; ``delivered``, the highest offset that any member had written;
    ``over``, the next write of the epoch.
    """
    strangers = tables.sessions.where("created_zxid is not null").select("session")
    groups = tables.commits.where("owner_state = 'unknown'").select(*GROUP, "session").distinct()
    strangers = groups.join(strangers, "session", "left_semi").join(
        writers(tables), [*GROUP, "session"], "left_anti"
    )
    chosen = keep("suspicious", _suspicious(tables, strangers))
    writes = tables.commits.where("store = 'zookeeper'").select(
        *PARTITION, "zxid", "idx", "time", "session", "offset", "content", "previous",
        "previous_zxid", "kind", "created", "owner_state", "owner_session", "owner_member",
        "owner_start_zxid", "free_since_zxid",
    )  # fmt: skip
    writes = _with_role(tables, writes.join(chosen, list(PARTITION), "left_semi"))
    claims = tables.ownership.where("start_zxid is not null")
    claims = claims.where(~F.coalesce(F.col("member").rlike(TOOL_NAME_END), F.lit(False)))
    claims = claims.select(
        *PARTITION, "session", "member",
        F.col("start_zxid").alias("zxid"),
        F.coalesce("start_idx", F.lit(AFTER_ALL)).alias("idx"),
        F.col("start_time").alias("time"),
        F.lit(True).alias("claimed"),
    )  # fmt: skip
    claims = claims.join(chosen, list(PARTITION), "left_semi")
    rows = writes.unionByName(claims, allowMissingColumns=True)
    rows = rows.withColumns(
        {
            "segment": segment_of(F.col("zxid"), tables.log_gaps),
            "claimed": F.coalesce("claimed", F.lit(False)),
        }
    )
    order = ("zxid", "idx", F.col("claimed").desc())
    every = Window.partitionBy(*KEY).orderBy(*order)
    earlier = every.rowsBetween(Window.unboundedPreceding, -1)
    wrote = ~F.col("claimed") & (F.col("kind") != "claim")
    # An owner with streams writes its own offsets. A broker's write does not move it.
    theirs = (F.col("role") == "broker") & F.col("threaded")
    others = F.coalesce(theirs | (F.col("role") == "tool"), F.lit(False))
    changed = wrote & (F.col("kind") == "commit")
    # A snapshot shows the offset with which the segment began, before the first write.
    begun = F.struct(F.col("previous").alias("offset"), F.col("previous_zxid").alias("at"))
    rows = rows.withColumn(
        "begun",
        F.first(F.when(~F.col("claimed"), begun), ignorenulls=True).over(
            every.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        ),
    )
    rows = rows.withColumns(
        {
            "epoch": F.sum(F.col("claimed").cast("int")).over(
                every.rowsBetween(Window.unboundedPreceding, Window.currentRow)
            ),
            "stored": F.coalesce(F.last("offset", ignorenulls=True).over(earlier), "begun.offset"),
            "stored_at": F.coalesce(
                F.last(F.when(F.col("offset").isNotNull(), F.col("zxid")), ignorenulls=True).over(
                    earlier
                ),
                "begun.at",
            ),
            "setter": F.last(F.when(changed, F.col("role")), ignorenulls=True).over(earlier),
            "delivered": F.greatest(
                F.max(F.when(wrote & ~others, F.col("offset"))).over(earlier),
                "begun.offset",
            ),
        }
    )

    def position(offset: str, start: bool, at: str = "zxid") -> Column:
        setter = F.when(F.lit(start), F.col("setter"))
        by = F.col("setter") if start else F.col("role")
        unsure = (F.col(at) <= F.col("begun.at")) | (by == "broker")
        return F.struct(F.col(offset).alias("offset"), F.lit(start).alias("start"),
                        setter.alias("setter"), F.col(at).alias("at"),
                        F.coalesce(unsure, F.lit(False)).alias("unsure"))  # fmt: skip

    place = (
        F.when(F.col("claimed") & F.col("stored").isNotNull(),
               position("stored", True, "stored_at"))
        .when((F.col("kind") == "claim") & F.col("stored").isNull(),
              position("offset", True, "stored_at"))
        .when(wrote & F.col("role").isin("owner", "orphan", "mover", "broker", "unknown")
              & ~others & F.col("offset").isNotNull(), position("offset", False))
    )  # fmt: skip
    epoch = Window.partitionBy(*KEY, "epoch")
    same = Window.partitionBy(*KEY, "epoch", "session").orderBy(*order)
    this = F.struct("zxid", "idx", "time", "session", "member", "role", "offset")
    return rows.withColumn("place", place).withColumns(
        {
            "position": F.coalesce(
                F.last("place", ignorenulls=True).over(earlier),
                F.when(
                    F.col("begun.offset").isNotNull(), position("begun.offset", False, "begun.at")
                ),
            ),
            "over": F.first(F.when(wrote, this), ignorenulls=True).over(
                epoch.orderBy(*order).rowsBetween(1, Window.unboundedFollowing)
            ),
            "own": F.last(F.when(wrote, F.col("offset")), ignorenulls=True).over(
                same.rowsBetween(Window.unboundedPreceding, -1)
            ),
        }
    )


def _claims(rows: DataFrame) -> DataFrame:
    """For each epoch that ended with a claim, that claim (``claim``) and the new owner's first
    commit (``began``)."""
    first = F.struct("zxid", "idx", "offset")
    wrote = ~F.col("claimed") & (F.col("kind") != "claim")
    return (
        rows.groupBy(*KEY, (F.col("epoch") - 1).alias("epoch"))
        .agg(
            F.max(F.when(F.col("claimed"), F.struct("zxid", "time", "session", "member"))).alias(
                "claim"
            ),
            F.min(F.when(wrote & (F.col("role") == "owner"), first)).alias("first"),
        )
        .where("claim is not null")
        .select(*KEY, "epoch", "claim", F.col("first.offset").alias("began"))
    )


def _written(which: str) -> Column:
    """The offset of the ``first`` or ``last`` write, or the data if it is not one."""
    content = F.col(f"{which}_content")
    shown = F.when(
        F.length(content) > _SHOWN, F.concat(F.left(content, F.lit(_SHOWN)), F.lit("..."))
    )
    shown = F.concat(F.lit("'"), F.coalesce(shown, content, F.lit("")), F.lit("', not an offset,"))
    return F.coalesce(F.col(f"{which}_offset").cast("string"), shown)


def _claimer() -> Column:
    owner = F.concat(F.lit("member "), F.col("claim.member"))
    return F.coalesce(owner, F.concat(F.lit("session "), session("claim.session")))


def _overwritten() -> Column:
    seconds = (F.unix_millis("over.time") - F.unix_millis("last_time")) / 1000
    return F.concat(
        F.lit("; overwritten with "), text("over.offset"), F.lit(" "),
        F.coalesce(F.format_number(seconds, 1), F.lit("?")),
        F.lit(" s later, before any member started from it."),
    )  # fmt: skip


_RESET = [*GROUP, "topic", "session"]


def _whole_topics(tables: Tables, bad: DataFrame) -> DataFrame:
    """Sessions of ``_RESET`` that wrote every partition of a topic with two or more partitions, and
    their number (``every``)."""
    stored = tables.commits.where("store = 'zookeeper'").groupBy(*GROUP, "topic")
    every = stored.agg(F.count_distinct("partition").alias("every"))
    wrote = bad.where("role = 'tool'").groupBy(*_RESET)
    wrote = wrote.agg(F.count_distinct("partition").alias("wrote"))
    both = wrote.join(every, [*GROUP, "topic"]).where("wrote = every and every > 1")
    return both.select(*_RESET, "every")


def _others(tables: Tables, history: DataFrame, claims: DataFrame) -> DataFrame:
    """Writes by sessions that did not own the partition: one finding for each writer and owner, or
    for each writer and unowned interval."""
    late = late_writes(tables).select(*PARTITION, "zxid", "idx")
    # What a broker writes for an owner without streams is that owner's commit.
    bad = history.where("role in ('zombie', 'orphan', 'tool', 'broker')")
    bad = bad.where("not (role = 'broker' and coalesce(not threaded, false))")
    bad = bad.join(late, [*PARTITION, "zxid", "idx"], "left_anti")
    place = F.struct("zxid", "idx")
    keys = ("session", "role", "epoch", "owner_state", "owner_start_zxid", "free_since_zxid")
    bad = (
        bad.groupBy(*KEY, *keys)
        .agg(
            F.min(place).alias("first"),
            F.max(place).alias("last"),
            F.min_by("time", place).alias("time"),
            F.max_by("time", place).alias("last_time"),
            F.min_by("offset", place).alias("first_offset"),
            F.min_by("content", place).alias("first_content"),
            F.max_by("content", place).alias("last_content"),
            F.first("broker").alias("broker"),
            F.max("threaded").alias("threaded"),
            F.min_by("previous", place).alias("before"),
            F.min_by("created", place).alias("created"),
            F.max_by("offset", place).alias("last_offset"),
            F.max("offset").alias("highest"),
            F.min_by("position.offset", place).alias("position_before"),
            F.max_by("position.offset", place).alias("position"),
            F.max_by("position.at", place).alias("position_at"),
            F.min_by("position.unsure", place).alias("unsure"),
            F.max_by("delivered", place).alias("delivered"),
            F.max_by("over", place).alias("over"),
            F.max((F.col("kind") == "commit").cast("int")).alias("changed"),
            F.count(F.lit(1)).alias("times"),
            F.first("member").alias("member"),
            F.first("owner_session").alias("owner_session"),
            F.first("owner_member").alias("owner_member"),
        )
        .withColumns(
            {
                "zxid": F.col("first.zxid"),
                "idx": F.col("first.idx"),
                "last_zxid": F.col("last.zxid"),
                "last_idx": F.col("last.idx"),
            }
        )
    )
    bad = bad.join(claims, [*KEY, "epoch"], "left")
    bad = alive(tables, bad, "zxid").join(_whole_topics(tables, bad), _RESET, "left")
    bad = bad.withColumn(
        "whole", (F.col("role") == "tool") & (F.col("alive") == 0) & F.col("every").isNotNull()
    )
    bad = bad.withColumn("whole", F.coalesce("whole", F.lit(False)))
    role, written = F.col("role"), F.col("last_offset")
    # The position that the partition's owners had reached, and where the next owner began.
    bad = bad.withColumns(
        {
            "reached": F.when(role == "orphan", F.greatest("position_before", "highest")).otherwise(
                F.col("position")
            ),
            "started": F.when(
                F.col("over").isNull() & F.col("claim").isNotNull(),
                # Without an offset, or with one that is out of range, the owner chose another.
                F.when(written.isNull() | (F.col("began") < written), F.col("began")).otherwise(
                    written
                ),
            ),
        }
    )
    # A tool's write that the next owner started from, although no owner's position is known. If it
    # is the first offset of a partition that had no owner before, it only set the beginning. A
    # write that created the znode is the first offset even if the logs begin late.
    began_there = (role == "tool") & F.col("started").isNotNull() & F.col("reached").isNull()
    new = F.col("before").isNull() & (F.col("epoch") == 0)
    complete = known_at(F.col("zxid"), tables.log_gaps, tables.known)
    bad = bad.where(~(began_there & new & (complete | F.col("created"))))
    delivered_to = F.greatest("reached", "delivered")
    again = F.coalesce(F.col("started") < F.col("reached"), F.lit(False))
    tool = role == "tool"
    lost = tool & F.coalesce(
        F.col("reached").isNotNull() & (F.col("started") > delivered_to), F.lit(False)
    )
    resumed = tool & F.coalesce(
        (written > F.col("reached")) & (F.col("over.offset") >= written)
        & F.col("over.role").isin("owner", "unknown"), F.lit(False)
    )  # fmt: skip
    bad = bad.withColumns(
        {"delivered_to": delivered_to, "again": again, "lost": lost, "resumed": resumed}
    )
    again, lost, resumed = F.col("again"), F.col("lost"), F.col("resumed")
    zombie, orphan, brokered = role == "zombie", role == "orphan", role == "broker"
    itself = zombie & F.coalesce(F.col("member") == F.col("owner_member"), F.lit(False))
    unsure = F.col("member").isNull()
    severity = (
        F.when(lost | (zombie & (F.col("changed") == 1) & ~itself), "critical")
        .when(again, F.when(brokered, "medium").otherwise("high"))
        .when(zombie | resumed | (brokered & F.col("threaded")), "medium")
        .when(orphan & F.coalesce(F.col("alive") > 0, F.lit(True)), "high")
        .otherwise("info")
    )
    kind = (
        F.when(zombie, "zombie commit")
        .when(orphan, "orphan commit")
        .when(lost, "lost messages")
        .when(brokered, "offset written through a broker")
        .when(again, "offset regression")
        .otherwise("tool write")
    )
    basis = F.when(
        lost | resumed | (~tool & unsure) | (orphan & F.col("alive").isNull())
        | (F.col("owner_state") == "unknown") | brokered | (again & written.isNull())
        | (again & F.coalesce("unsure", F.lit(False)))
        | (tool & again & ~F.coalesce(F.col("began") < F.col("reached"), F.lit(False))),
        "inferred",
    ).otherwise("proven")  # fmt: skip
    many = F.col("times") > 1
    evidence = F.array_compact(
        F.array(
            row("commits", "zxid", "idx", "session",
                 F.concat(F.lit("wrote "), _written("first"))),
            F.when(many, row("commits", "last_zxid", "last_idx", "session",
                              F.concat(F.lit("last wrote "), _written("last")))),
            F.when(F.col("owner_start_zxid").isNotNull(),
                   row("ownership", "owner_start_zxid", None, "owner_session",
                       "owner at that time")),
            F.when(F.col("free_since_zxid").isNotNull(),
                   row("ownership", "free_since_zxid", None, None, "owner gone")),
            F.when((lost | again) & F.col("position_at").isNotNull(),
                   row("commits", "position_at", None, None, "position before")),
            F.when(lost | again, row("ownership", "claim.zxid", None, "claim.session",
                                     "next claim")),
        )
    )  # fmt: skip
    writer = F.coalesce(
        who(),
        F.when(brokered, F.concat(
            F.lit("Broker "), text("broker"),
            F.lit(" (OffsetCommit v0, for a client that the log does not name)"),
        )),
        F.concat(
            F.lit("Session "), session("session"),
            F.when(tool, ", which is not a member's,")
            .otherwise(", which may be a member's that registered before the logs begin,"),
        ),
    )  # fmt: skip
    what = F.when(
        many,
        F.concat(text("times"), F.lit(" times, "), _written("first"), F.lit(" to "),
                 _written("last"), F.lit(",")),
    ).otherwise(_written("first"))  # fmt: skip
    owner = F.coalesce(F.concat(F.lit("member "), F.col("owner_member")), F.lit("another session"))
    owned = F.when(
        itself, F.concat(F.lit(" although its other session "), session("owner_session"))
    ).otherwise(
        F.concat(F.lit(" although "), owner, F.lit(" (session "),
                 F.coalesce(session("owner_session"), F.lit("?")), F.lit(")"))
    )  # fmt: skip
    members = F.coalesce(
        F.concat(F.lit(", members registered then: "), F.col("alive").cast("string")),
        F.lit(", members unknown: the logs do not show who was registered before they begin"),
    )
    situation = (
        F.when(F.col("owner_state") == "owner", F.concat(owned, F.lit(" owned it")))
        .when(orphan, F.concat(F.lit(" while no member owned it"), members))
        .when(F.col("owner_state") == "none", F.lit(" while no member owned it"))
        .otherwise(", whose owner is unknown")
    )
    reset = written.isNull() | (F.col("began") < written)
    extent = F.when(
        F.col("whole"),
        F.concat(F.lit(" The session wrote all "), text("every"),
                 F.lit(" partitions of the topic while the group was stopped.")),
    ).otherwise("")  # fmt: skip
    undone = tool & written.eqNullSafe(F.col("reached")) & (F.col("first_offset") != written)
    did = (
        F.when(lost, "lost")
        .when(again, "repeated")
        .when(resumed | began_there, "unknown")
        .when(F.col("over").isNotNull() | F.coalesce(undone, F.lit(False)), "repaired")
        .when(written.eqNullSafe(F.col("reached")), "none")
        .when(F.col("claim").isNull() & (F.col("owner_state") != "owner"), "none")
        .when(F.col("claim").isNotNull(), "none")
        .otherwise("unknown")
    )
    count = F.when(lost, F.col("started") - F.col("delivered_to")).when(
        again, F.col("reached") - F.col("started")
    )
    bad = bad.withColumns({"effect": did, "messages": count})
    effect = (
        F.when(lost & reset, F.concat(
            F.lit("; "), _claimer(), F.lit(" claimed the partition next and its first commit is "),
            text("began"), F.lit(": up to "), span(F.col("delivered_to"), F.col("started")),
            F.lit(" were not delivered."), extent,
        ))
        .when(lost, F.concat(
            F.lit("; "), _claimer(), F.lit(" started from it: "),
            span(F.col("delivered_to"), F.col("started")), F.lit(" were not delivered."),
            extent,
        ))
        .when(again, F.concat(
            F.lit("; "), _claimer(), F.lit(" started from "),
            F.when(reset, text("began")).otherwise("it"), F.lit(": "),
            span(F.col("started"), F.col("reached")), F.lit(" were delivered again."), extent,
        ))
        .when(resumed, F.concat(
            F.lit("; the next commit is "), text("over.offset"), F.lit(": the owner may have "
            "continued from there."),
        ))
        .when(undone, F.lit("; its last write restored the offset."))
        .when(orphan | written.eqNullSafe(F.col("reached")), F.lit("."))
        .when(F.col("over").isNotNull(), _overwritten())
        .when(F.col("claim").isNull() & tool, F.lit("; no member has started from it."))
        .otherwise(".")
    )  # fmt: skip
    built = finding(
        bad.withColumn("evidence", evidence), severity, kind, basis,
        writer, F.when(tool | brokered, " wrote ").otherwise(" committed "), what, F.lit(" for "),
        tp(), " of group ", F.col("group"), situation, effect,
    )  # fmt: skip
    return built.withColumns(
        {
            "end_zxid": F.when(many, F.col("last_zxid")),
            "end_time": F.when(many, F.col("last_time")),
        }
    )


def _not_recreated(tables: Tables, back: DataFrame) -> DataFrame:
    """Leave out offsets that went back because the topic was recreated: its messages begin at 0
    again. An offset that is older than its partition is one of an earlier topic."""
    topics = tables.partitions.select(
        "chroot", "topic", "partition", "deleted_zxid",
        F.when(F.col("created"), F.col("zxid")).alias("made_zxid"),
    )  # fmt: skip
    back = back.join(topics, ["chroot", "topic", "partition"], "left")
    between = reduce(
        or_,
        (
            (F.col("position.at") < F.col(name)) & (F.col(name) < F.col("zxid"))
            for name in ("deleted_zxid", "made_zxid")
        ),
    )
    between = F.coalesce(between, F.lit(False))
    return back.where(~between).drop("deleted_zxid", "made_zxid")


def _step(before: str, at: str) -> Column:
    """Evidence that an offset changed: the write before, and the row's own."""
    steps = F.concat(text(before), F.lit(" -> "), text("offset"))
    return F.array(
        row("commits", at, None, None, F.concat(F.lit("wrote "), text(before))),
        row("commits", "zxid", "idx", "session", steps),
    )


def _owners(tables: Tables, history: DataFrame, claims: DataFrame) -> DataFrame:
    """Owners that committed an offset below their position. They deliver messages again if they, or
    the next owner, started there, which later writes between the two show.

    An owner that only overwrites another session's offset has not moved. An owner that did not
    start from the offset of a tool is part of the finding about the tool's write.
    """
    replaced = F.col("position.start") & F.coalesce(
        F.col("position.setter") == "tool", F.lit(False)
    )
    back = history.where((F.col("role") == "owner") & (F.col("offset") < F.col("position.offset")))
    back = back.where(~replaced)
    climbs = (F.col("over.offset") > F.col("offset")) & (
        F.col("over.offset") < F.col("position.offset")
    )
    begun = F.col("over").isNull() & F.col("claim").isNotNull()
    begun &= F.coalesce(F.col("began") < F.col("position.offset"), F.lit(True))
    back = _not_recreated(tables, back).join(claims, [*KEY, "epoch"], "left")
    back = back.withColumns(
        {
            "effect": F.lit("repeated"),
            "messages": F.col("position.offset") - F.col("offset"),
            "read": F.coalesce(climbs | begun, F.lit(False)),
        }
    )
    writer = F.coalesce(who(), F.concat(F.lit("session "), session("session")))
    return finding(
        back.withColumn("evidence", _step("position.offset", "position.at")),
        "high", "offset regression",
        F.when(F.col("read") & ~F.col("position.unsure"), "proven").otherwise("inferred"),
        "The committed offset of ", tp(), " of group ", F.col("group"), " went back from ",
        text("position.offset"), " to ", text("offset"), ", written by its owner, ", writer, ": ",
        span(F.col("offset"), F.col("position.offset")),
        F.when(F.col("read"), " were delivered again.").otherwise(
            " are delivered again if the member continued there. No later write shows it."
        ),
    )  # fmt: skip


def _unknown(tables: Tables, history: DataFrame, claims: DataFrame) -> DataFrame:
    """Offsets that went back while the owner is unknown, rated as if there was an owner."""
    undone = F.coalesce(F.col("offset") >= F.col("own"), F.lit(False))
    back = history.where((F.col("role") == "unknown") & (F.col("offset") < F.col("previous")))
    tool = F.coalesce(F.col("setter") == "tool", F.lit(False))  # that write is a finding itself
    back = _not_recreated(tables, back.where(~undone & ~tool)).join(claims, [*KEY, "epoch"], "left")
    back = back.withColumn("last_time", F.col("time"))
    harmless = (
        F.col("own").isNull()
        & F.col("over").isNotNull()
        & (F.col("over.session") != F.col("session"))
    )
    harmless = F.coalesce(harmless, F.lit(False))
    again = F.coalesce(
        F.col("over").isNull() & F.col("claim").isNotNull()
        & (F.col("offset") < F.col("position.offset")), F.lit(False)
    )  # fmt: skip
    back = back.withColumns(
        {
            "effect": F.when(harmless, "repaired").when(again, "repeated").otherwise("unknown"),
            "messages": F.when(again, F.col("position.offset") - F.col("offset")),
        }
    )
    writer = F.coalesce(who(), F.concat(F.lit("session "), session("session")))
    effect = (
        F.when(harmless, _overwritten())
        .when(again, F.concat(
            F.lit("; "), _claimer(), F.lit(" started from it: "),
            span(F.col("offset"), F.col("position.offset")), F.lit(" were delivered again."),
        ))
        .otherwise(": messages in between may be delivered again.")
    )  # fmt: skip
    return finding(
        back.withColumn("evidence", _step("previous", "previous_zxid")),
        F.when(harmless, "info").otherwise("high"),
        "offset regression",
        "inferred",
        "The committed offset of ", tp(), " of group ", F.col("group"), " went back from ",
        text("previous"), " to ", text("offset"), ", written by ", writer,
        " while the owner is unknown", effect,
    )  # fmt: skip


def _in_kafka(tables: Tables) -> DataFrame:
    """Offsets stored in Kafka that went back."""
    back = tables.commits.where("store = 'kafka' and offset < previous")
    back = back.withColumn("effect", F.lit("unknown"))
    what = F.concat(
        text("previous"), F.lit(" -> "), text("offset"), F.lit(" at __consumer_offsets-"),
        text("log_partition"), F.lit(" offset "), text("log_offset"),
    )  # fmt: skip
    return finding(
        back.withColumn("evidence", F.array(row("commits", "zxid", "idx", "session", what))),
        "medium", "offset regression", "proven",
        "The committed offset of ", tp(), " of group ", F.col("group"), " in Kafka went back from ",
        text("previous"), " to ", text("offset"), ". Kafka does not record which client wrote it.",
    )  # fmt: skip
