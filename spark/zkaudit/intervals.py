"""Lives of registrations and owner znodes, and commits with the owner of that transaction.

Equal to ``zkaudit.intervals_replay`` on every history. No order dependence beyond one window for
each path, no self-join, no Python on the executors. Runs in the driver's thread, builds DataFrames.

A life ends at the next create or delete on its path or at its own session's close, whichever comes
first. Session closes are joined by session: as rows on the path, an old session's close could end
the life of a new owner.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.staging import Stage, after_hole, stretch_of, text_of

_THREAD = r"(?s)\A(.+)-([0-9]+)\z"
_REGISTRATION = "version int, subscription map<string,int>, pattern string"


def _position(zxid: str, idx: str) -> Column:
    return f.struct(f.col(zxid).alias("zxid"), f.col(idx).alias("idx"))


def closes(stage: Stage) -> DataFrame:
    """One row for each session that ended: the first closeSession counts."""
    first = f.min_by(f.struct("time", "cxid"), "zxid")
    return (
        stage.sessions.where("type = 'closeSession'")
        .groupBy("session")
        .agg(f.min("zxid").alias("close_zxid"), first.alias("found"))
        .select(
            "session",
            "close_zxid",
            f.col("found.time").alias("close_time"),
            f.when(f.col("found.cxid") == 0, "expired").otherwise("closed").alias("close_how"),
        )
    )


def lives(stage: Stage, tree: str) -> DataFrame:
    """Lives of the znodes of one ``tree`` (``ids`` or ``owners``).

    Columns: key, chroot, group, name, topic, partition, path, session, data, the columns of a life
    (``tables``), and sure, end_stretch for ``commits``.
    """
    events = stage.events.where((f.col("tree") == tree) & f.col("act").isin("create", "delete"))
    ended = closes(stage)
    holder = f.when((f.col("act") == "create") & f.col("ephemeral"), f.col("session"))
    events = events.withColumn("holder", holder).join(
        ended.withColumnRenamed("session", "holder"), "holder", "left"
    )
    in_life = f.col("close_zxid") > f.col("zxid")
    names = ("close_zxid", "close_time", "close_how")
    events = events.withColumns({f"{n}_": f.when(in_life, f.col(n)) for n in names})
    order = Window.partitionBy("key").orderBy("zxid", "idx")
    here = f.struct("act", "zxid", "idx", "time", "session", "close_zxid_")
    events = events.withColumns({"next": f.lead(here).over(order), "prev": f.lag(here).over(order)})

    by_close = f.col("close_zxid_").isNotNull() & (
        f.col("next").isNull() | (f.col("close_zxid_") < f.col("next.zxid"))
    )
    known = events.where("act = 'create'").select(
        "key", "chroot", "group", "name", "topic", "partition", "path", "data", "sure",
        f.col("holder").alias("session"),
        f.col("zxid").alias("start_zxid"),
        f.col("idx").alias("start_idx"),
        f.col("time").alias("start_time"),
        f.when(by_close, f.col("close_zxid_")).otherwise(f.col("next.zxid")).alias("end_zxid"),
        f.when(by_close, f.lit(0)).otherwise(f.col("next.idx")).alias("end_idx"),
        f.when(by_close, f.col("close_time_")).otherwise(f.col("next.time")).alias("end_time"),
        f.when(by_close, f.col("close_how_"))
        .when(f.col("next").isNull(), "still held")
        .when(f.col("next.act") == "create", "unknown")
        .when(f.col("next.session").eqNullSafe(f.col("holder")), "released")
        .otherwise("foreign delete")
        .alias("how"),
        f.when(by_close, f.col("holder")).otherwise(f.col("next.session")).alias("ended_by"),
        by_close.alias("by_close"),
    )  # fmt: skip
    last = stretch_of(f.col("end_zxid"), stage.holes)
    known = known.withColumn(
        "end_stretch", f.when(f.col("end_zxid").isNull(), stage.last_stretch).otherwise(last)
    )
    beyond = f.col("sure") < f.col("end_stretch")
    known = known.withColumns(
        {
            "end_after_zxid": f.when(
                beyond, f.greatest(after_hole(f.col("sure"), stage.holes), "start_zxid")
            ),
            "ended": f.when(beyond, "unknown").otherwise(f.col("how")),
            # A close that is known says nothing of the path beyond a hole: another may hold it.
            "end_stretch": f.when(~(beyond & f.col("by_close")), f.col("end_stretch")),
        }
    ).drop("how", "by_close")

    gone = f.col("prev").isNull() | (f.col("prev.act") == "delete")
    gone = gone | (f.col("prev.close_zxid_") < f.col("zxid"))
    unknown = events.where((f.col("act") == "delete") & f.coalesce(gone, f.lit(False))).select(
        "key", "chroot", "group", "name", "topic", "partition", "path",
        f.lit(None).cast("binary").alias("data"),
        f.lit(0).alias("sure"),
        f.lit(None).cast("bigint").alias("session"),
        f.lit(None).cast("bigint").alias("start_zxid"),
        f.lit(None).cast("int").alias("start_idx"),
        f.lit(None).cast("timestamp").alias("start_time"),
        f.col("zxid").alias("end_zxid"),
        f.col("idx").alias("end_idx"),
        f.col("time").alias("end_time"),
        f.col("session").alias("ended_by"),
        f.col("stretch").alias("end_stretch"),
        f.lit(None).cast("bigint").alias("end_after_zxid"),
        f.lit("unknown").alias("ended"),
    )  # fmt: skip
    return known.unionByName(unknown)


def owners(lives_: DataFrame) -> DataFrame:
    """Add member and stream from the text of the owner znode."""
    text = text_of(f.col("data"))
    return lives_.withColumns(
        {
            "member": f.nullif(f.regexp_extract(text, _THREAD, 1), f.lit("")),
            "stream": f.nullif(f.regexp_extract(text, _THREAD, 2), f.lit("")),
        }
    )


def registrations(lives_: DataFrame) -> DataFrame:
    """Add what the registration says."""
    found = f.from_json(text_of(f.col("data")), _REGISTRATION)
    return lives_.withColumn("found", found).withColumns(
        {
            "member": f.col("name"),
            "pattern": f.col("found.pattern"),
            "subscription": f.col("found.subscription"),
        }
    )


def commits(stage: Stage, owned: DataFrame) -> DataFrame:
    """Writes of offsets, each with what is known of the owner at that transaction.

    ``owned``: ``owners(lives(stage, "owners"))``. Both are put in one order for each partition, and
    each write looks back at the last life that began (or, with an unknown begin, ended).
    """
    life = f.struct("session", "member", "start_zxid", "end_zxid", "end_idx", "sure", "end_stretch")
    known = f.col("start_zxid").isNotNull()
    begins = owned.select(
        "key",
        f.when(known, f.col("start_zxid")).otherwise(f.col("end_zxid")).alias("zxid"),
        f.when(known, f.col("start_idx")).otherwise(f.col("end_idx")).alias("idx"),
        life.alias("life"),
    )
    writes = stage.writes.withColumn("offset", _offset("data"))
    rows = begins.unionByName(writes, allowMissingColumns=True)
    so_far = (
        Window.partitionBy("key")
        .orderBy("zxid", "idx")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    before = f.when(f.col("act").isNotNull(), f.struct("act", "data", "offset", "stretch"))
    earlier = so_far.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumns(
        {
            "owner": f.last("life", ignorenulls=True).over(so_far),
            "before": f.last(before, ignorenulls=True).over(earlier),
        }
    ).where(f.col("act").isin("create", "set"))

    at, end = (
        _position("zxid", "idx"),
        f.struct(f.col("owner.end_zxid").alias("zxid"), f.col("owner.end_idx").alias("idx")),
    )
    alive = f.col("owner.start_zxid").isNotNull() & (f.col("owner.end_zxid").isNull() | (end > at))
    never = f.col("stretch") == 0
    state = (
        f.when(f.col("owner").isNull(), f.when(never, "none").otherwise("unknown"))
        .when(alive, f.when(f.col("owner.sure") >= f.col("stretch"), "owner").otherwise("unknown"))
        .when(f.col("owner.end_stretch") == f.col("stretch"), "none")
        .otherwise("unknown")
    )
    lasted = (f.col("before.act") != "delete") & (f.col("before.stretch") == f.col("stretch"))
    rows = rows.withColumns(
        {
            "alive": f.coalesce(alive, f.lit(False)),
            "previous_": f.when(lasted, f.col("before.data")),
            "previous": f.when(lasted, f.col("before.offset")),
        }
    )
    same = f.coalesce(f.col("previous_") == f.col("data"), f.lit(False))
    claimed = f.col("alive") & (f.col("owner.start_zxid") == f.col("zxid"))
    kind = f.when(
        claimed & (f.col("act") == "set") & (same | f.col("previous_").isNull()), "claim"
    ).otherwise(f.when(same, "same").otherwise("commit"))
    rows = rows.withColumns({"owner_state": state, "kind": kind})
    mine = f.col("owner_state") == "owner"
    whose = stage.names.where("tree = 'offsets'")
    rows = rows.join(whose.select("key", "chroot", "group", "topic", "partition"), "key")
    return rows.withColumns(
        {
            "store": f.lit("zookeeper"),
            **{name: f.lit(None) for name in ("log_partition", "log_offset", "metadata")},
            "owner_session": f.when(mine, f.col("owner.session")),
            "owner_member": f.when(mine, f.col("owner.member")),
            "owner_start_zxid": f.when(mine, f.col("owner.start_zxid")),
            "free_since_zxid": f.when(f.col("owner_state") == "none", f.col("owner.end_zxid")),
        }
    )


def _offset(name: str) -> Column:
    text = f"cast({name} as string)"
    number = (
        f"case when {text} rlike '\\\\A-?[0-9]{{1,19}}\\\\z' then try_cast({text} as bigint) end"
    )
    return f.expr(number)
