"""Lifetimes of registrations and owner znodes, and commits with the owner at that transaction.

The results equal those of the plain replay in tests/audit/tables/test_intervals.py, which is easier
to read first. Order matters only within one window for each path; there is no self-join, and no
Python on the executors. Runs in the driver's thread and only builds DataFrames.

A lifetime ends at the next create or delete on its path or at the close of its own session,
whichever is first. Session closes are joined by session. If they were rows on the path, an old
session's close could end the lifetime of a new owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.history.staging import Stage, first_of, known_at, last_of, segment_of, text_of

_THREAD = r"(?s)\A(.+)-([0-9]+)\z"
_REGISTRATION = "version int, subscription map<string,int>, pattern string"


def _position(zxid: str, idx: str) -> Column:
    return F.struct(F.col(zxid).alias("zxid"), F.col(idx).alias("idx"))


def closes(stage: Stage) -> DataFrame:
    """One row for each session that ended. Only its first closeSession counts."""
    first = F.min_by(F.struct("time", "cxid"), "zxid")
    return (
        stage.sessions.where("type = 'closeSession'")
        .groupBy("session")
        .agg(F.min("zxid").alias("close_zxid"), first.alias("first"))
        .select(
            "session",
            "close_zxid",
            F.col("first.time").alias("close_time"),
            F.when(F.col("first.cxid") == 0, "expired").otherwise("closed").alias("close_how"),
        )
    )


def lifetimes(stage: Stage, tree: str) -> DataFrame:
    """Lifetimes of the znodes of one ``tree`` (``ids`` or ``owners``).

    Columns: key, chroot, group, name, topic, partition, path, session, data, the columns of a
    lifetime (``tables.catalog``), and ``sure``, ``end_segment`` and ``older`` for ``commits``.
    ``older``: the znode of a known session existed when the segment of its end began.
    """
    events = stage.events.where((F.col("tree") == tree) & F.col("act").isin("create", "delete"))
    ended = closes(stage)
    holder = F.when((F.col("act") == "create") & F.col("ephemeral"), F.col("session"))
    events = events.withColumn("holder", holder)
    # Deletes have no holder. In the join all of them would go to one task.
    alone = events.where("holder is null")
    events = (
        events.where("holder is not null")
        .join(ended.withColumnRenamed("session", "holder"), "holder", "left")
        .unionByName(alone, allowMissingColumns=True)
    )
    in_lifetime = F.col("close_zxid") > F.col("zxid")
    names = ("close_zxid", "close_time", "close_how")
    events = events.withColumns({f"{n}_": F.when(in_lifetime, F.col(n)) for n in names})
    order = Window.partitionBy("key").orderBy("zxid", "idx")
    events = events.withColumn("listed", F.coalesce("listed", F.lit(False)))
    here = F.struct("act", "zxid", "idx", "time", "session", "segment", "close_zxid_")
    events = events.withColumns({"next": F.lead(here).over(order), "prev": F.lag(here).over(order)})

    by_close = F.col("close_zxid_").isNotNull() & (
        F.col("next").isNull() | (F.col("close_zxid_") <= F.col("next.zxid"))
    )
    known = events.where("act = 'create'").select(
        "key", "chroot", "group", "name", "topic", "partition", "path", "data", "sure",
        F.col("holder").alias("session"),
        F.col("zxid").alias("start_zxid"),
        F.col("idx").alias("start_idx"),
        F.col("time").alias("start_time"),
        F.when(by_close, F.col("close_zxid_")).otherwise(F.col("next.zxid")).alias("end_zxid"),
        F.when(by_close, F.lit(0)).otherwise(F.col("next.idx")).alias("end_idx"),
        F.when(by_close, F.col("close_time_")).otherwise(F.col("next.time")).alias("end_time"),
        F.when(by_close, F.col("close_how_"))
        .when(F.col("next").isNull(), "still held")
        .when(F.col("next.act") == "create", "unknown")
        .when(F.col("next.session").eqNullSafe(F.col("holder")), "released")
        .otherwise("foreign delete")
        .alias("how"),
        F.when(by_close, F.col("holder")).otherwise(F.col("next.session")).alias("ended_by"),
        by_close.alias("by_close"),
    )  # fmt: skip
    last = segment_of(F.col("end_zxid"), stage.log_gaps)
    known = known.withColumn(
        "end_segment", F.when(F.col("end_zxid").isNull(), stage.last_segment).otherwise(last)
    )
    beyond = F.col("sure") < F.col("end_segment")
    known = known.withColumns(
        {
            "end_after_zxid": F.when(
                beyond, F.greatest(last_of(F.col("sure"), stage.log_gaps), "start_zxid")
            ),
            "ended": F.when(beyond, "unknown").otherwise(F.col("how")),
            # A known close proves nothing about the path after a log gap: it may have a new owner.
            "end_segment": F.when(~(beyond & F.col("by_close")), F.col("end_segment")),
            "older": F.lit(False),
        }
    ).drop("how", "by_close")

    gone = F.col("prev").isNull() | (F.col("prev.act") == "delete")
    gone = gone | (F.col("prev.close_zxid_") < F.col("zxid"))
    first = F.coalesce(F.col("prev.segment") < F.col("segment"), F.lit(True))
    unknown = events.where((F.col("act") == "delete") & F.coalesce(gone, F.lit(False))).select(
        "key", "chroot", "group", "name", "topic", "partition", "path",
        F.lit(None).cast("binary").alias("data"),
        F.lit(0).alias("sure"),
        F.when(F.col("listed"), F.col("session")).alias("session"),
        F.lit(None).cast("bigint").alias("start_zxid"),
        F.lit(None).cast("int").alias("start_idx"),
        F.lit(None).cast("timestamp").alias("start_time"),
        F.col("zxid").alias("end_zxid"),
        F.col("idx").alias("end_idx"),
        F.col("time").alias("end_time"),
        F.col("session").alias("ended_by"),
        F.col("segment").alias("end_segment"),
        F.lit(None).cast("bigint").alias("end_after_zxid"),
        F.when(F.col("listed"), F.when(F.col("cxid") == 0, "expired").otherwise("closed"))
        .otherwise("unknown")
        .alias("ended"),
        (F.col("listed") & first).alias("older"),
    )  # fmt: skip
    return known.unionByName(unknown)


def owners(lifetimes_: DataFrame) -> DataFrame:
    """Add member and stream from the content of the owner znode. Some clients write the consumer id
    without a stream."""
    text = text_of(F.col("data"))
    threaded = F.nullif(F.regexp_extract(text, _THREAD, 1), F.lit(""))
    return lifetimes_.withColumns(
        {
            "member": F.coalesce(threaded, F.nullif(text, F.lit(""))),
            "stream": F.nullif(F.regexp_extract(text, _THREAD, 2), F.lit("")),
        }
    )


def registrations(lifetimes_: DataFrame) -> DataFrame:
    """Add the columns read from the registration's content."""
    content = F.from_json(text_of(F.col("data")), _REGISTRATION)
    return lifetimes_.withColumn("content", content).withColumns(
        {
            "member": F.col("name"),
            "pattern": F.col("content.pattern"),
            "subscription": F.col("content.subscription"),
        }
    )


def commits(stage: Stage, owned: DataFrame, known: Sequence[int | None] = (0,)) -> DataFrame:
    """Writes of offsets, each with the owner at that transaction as far as it is known.

    ``owned``: ``owners(lifetimes(stage, "owners"))``. For each partition, writes and lifetimes are
    ordered together. Each write then gets the last lifetime that began before it, or that ended
    before it if its start is unknown. A lifetime that is ``older`` than its segment counts from
    where the segment begins. ``known``: as ``selection.known`` returns it. From there on, a
    partition without such a lifetime has no owner.

    A multi is atomic. If a member deletes its owner znode and writes the offset in one multi, the
    member is the owner in both operations.
    """
    begin = first_of(F.col("end_segment"), stage.log_gaps)
    begun = F.col("start_zxid").isNotNull()
    if stage.log_gaps:
        owned = _named(stage, owned)
    begins = owned.select(
        "key",
        F.when(begun, F.col("start_zxid")).when(F.col("older"), begin)
        .otherwise(F.col("end_zxid")).alias("zxid"),
        F.when(begun, F.col("start_idx")).when(F.col("older"), -1)
        .otherwise(F.col("end_idx")).alias("idx"),
        F.struct(
            "session", "member", "start_zxid", "end_zxid", "end_idx", "end_segment",
            F.when(F.col("older"), F.col("end_segment")).otherwise(F.col("sure")).alias("sure"),
            (begun | F.col("older")).alias("begun"),
        ).alias("lifetime"),
    )  # fmt: skip
    if stage.log_gaps:  # a znode of which only the end is known existed when its segment began
        ends = owned.where("start_zxid is null and not older and end_segment is not null")
        begins = begins.unionByName(
            ends.select(
                "key", begin.alias("zxid"), F.lit(-2).alias("idx"),
                F.struct(
                    "session", "member", "start_zxid", "end_zxid", "end_idx", "end_segment",
                    F.lit(-1).alias("sure"), F.lit(True).alias("begun"),
                ).alias("lifetime"),
            )
        )  # fmt: skip
    writes = stage.writes.withColumn("offset", _offset("data"))
    rows = begins.unionByName(writes, allowMissingColumns=True)
    so_far = (
        Window.partitionBy("key")
        .orderBy("zxid", "idx")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    before = F.when(
        F.col("act").isNotNull(), F.struct("act", "data", "offset", "segment", "zxid", "time")
    )
    earlier = so_far.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumns(
        {
            "owner": F.last("lifetime", ignorenulls=True).over(so_far),
            "before": F.last(before, ignorenulls=True).over(earlier),
        }
    ).where(F.col("act").isin("create", "set"))

    at, end = (
        _position("zxid", "idx"),
        F.struct(F.col("owner.end_zxid").alias("zxid"), F.col("owner.end_idx").alias("idx")),
    )
    in_multi = F.col("owner.end_zxid") == F.col("zxid")
    alive = F.col("owner.begun") & (
        F.col("owner.end_zxid").isNull()
        | (end > at)
        | (in_multi & (F.col("owner.session") == F.col("session")))
    )
    complete = known_at(F.col("zxid"), stage.log_gaps, known)
    sure = F.col("owner.sure") >= F.col("segment")
    # The snapshot of this segment does not have it, and it did not end while that was written.
    gone = (F.col("owner.sure") >= 0) & (
        F.col("owner.end_zxid").isNull() | (F.col("owner.end_segment") > F.col("segment"))
    )
    state = (
        F.when(F.col("owner").isNull(), F.when(complete, "none").otherwise("unknown"))
        .when(alive & sure, "owner")
        .when(alive, F.when(complete & gone, "none").otherwise("unknown"))
        .when(in_multi & ~(F.col("owner.begun") & sure), "unknown")
        .when(complete, "none")
        .when(F.col("owner.end_segment") == F.col("segment"), "none")
        .otherwise("unknown")
    )
    lasted = (F.col("before.act") != "delete") & (F.col("before.segment") == F.col("segment"))
    rows = rows.withColumns(
        {
            "alive": F.coalesce(alive, F.lit(False)),
            "content": F.when(F.col("offset").isNull(), text_of(F.col("data"))),
            "previous_": F.when(lasted, F.col("before.data")),
            "previous": F.when(lasted, F.col("before.offset")),
            "previous_zxid": F.when(lasted, F.col("before.zxid")),
            "previous_time": F.when(lasted, F.col("before.time")),
        }
    )
    same = F.coalesce(F.col("previous_") == F.col("data"), F.lit(False))
    claimed = F.col("alive") & (F.col("owner.start_zxid") == F.col("zxid"))
    kind = F.when(
        claimed & (F.col("act") == "set") & (same | F.col("previous_").isNull()), "claim"
    ).otherwise(F.when(same, "same").otherwise("commit"))
    rows = rows.withColumns({"owner_state": state, "kind": kind})
    mine = F.col("owner_state") == "owner"
    whose = stage.names.where("tree = 'offsets'")
    rows = rows.join(whose.select("key", "chroot", "group", "topic", "partition"), "key")
    return rows.withColumns(
        {
            "store": F.lit("zookeeper"),
            "created": F.col("act") == "create",
            **{name: F.lit(None) for name in ("log_partition", "log_offset", "metadata")},
            "owner_session": F.when(mine, F.col("owner.session")),
            "owner_member": F.when(mine, F.col("owner.member")),
            "owner_start_zxid": F.when(mine, F.col("owner.start_zxid")),
            "free_since_zxid": F.when(F.col("owner_state") == "none", F.col("owner.end_zxid")),
        }
    )


def _named(stage: Stage, owned: DataFrame) -> DataFrame:
    """Add the member to owner znodes of which only the end of their session is known, if that
    session is known with exactly one registration in the group."""
    who = ("chroot", "group", "session")
    ids = stage.events.where("tree = 'ids' and (act = 'create' or listed)").groupBy(*who)
    ids = ids.agg(F.count_distinct("name").alias("names"), F.min("name").alias("only"))
    named = owned.join(ids.where("names = 1").drop("names"), [*who], "left")
    member = F.coalesce("member", F.when(F.col("older"), F.col("only")))
    return named.withColumn("member", member).drop("only")


def _offset(name: str) -> Column:
    text = f"cast({name} as string)"
    number = f"case when {text} rlike '\\\\A[0-9]{{1,19}}\\\\z' then try_cast({text} as bigint) end"
    return F.expr(number)
