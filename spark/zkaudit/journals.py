"""Tables from members' journals: deliveries, views, herds, lines that cannot be read.

A journal belongs to the group of its first line's settings, else of the znodes that the member
used. Times are the members' own clocks. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as f

from zkaudit import schema
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.sources_journal import ZkauditJournal, register

GROUP = ("chroot", "group")
LAST_US = 32_503_680_000_000_000
"""The year 3000, microseconds since 1970."""
HERD_US = 30_000_000
"""What a member does later than this after a change is not counted as caused by it."""

_ACTS = {
    "StartFetching": "start",
    "StopFetching": "stop",
    "Drop": "drop",
    "FetchingStopped": "final",
    "Dropped": "final",
    "CommitRequested": "progress",
    "OffsetReset": "reset",
}


def read(spark: SparkSession, places: Sequence[str | Path]) -> DataFrame:
    """Rows of ``schema.journal_columns`` of all journals at or below ``places``, each file once."""
    if not places:
        return spark.createDataFrame([], schema.spark_type(schema.journal_columns()))
    register(spark)
    listed = ",".join(sorted({str(Path(place).absolute()) for place in places}))
    return spark.read.format(ZkauditJournal.name()).load(listed)


def check(places: Sequence[str | Path]) -> None:
    """Raise InputMissingError for a place that is not there, or has a comma in its name."""
    for place in places:
        if not Path(place).exists():
            raise InputMissingError(f"{place}: no such journal, nor a directory of journals")
        if "," in str(place):
            raise InputMissingError(f"{place}: a path with a comma cannot be read: rename it")


def refuse_virtual(rows: DataFrame) -> None:
    """Raise AuditError for the journal of a simulation: its clock is no clock of the logs."""
    found = rows.where("kind = 'run' and clock != 'epoch'").select("file").first()
    if found is not None:
        raise AuditError(f"{found['file']}: is the journal of a simulation: leave it out")


def unreadable(rows: DataFrame) -> DataFrame:
    """Table ``unreadable``."""
    return rows.where("fault is not null").select("file", "line", "fault", "text")


def lines(rows: DataFrame, registered: DataFrame, group: str | None = None) -> DataFrame:
    """Lines of members, with chroot and group. ``group``: a Java regex over whole names."""
    connect = f.col("settings")["zookeeper.connect"]
    runs = rows.where("kind = 'run'").select(
        "file",
        f.col("settings")["group.id"].alias("named"),
        f.regexp_extract(connect, r"(?s)\A[^/]*(/.*?)?/?\z", 1).alias("at_chroot"),
    )
    runs = runs.groupBy("file").agg(f.min("named").alias("named"), f.min("at_chroot").alias("at"))
    # Anybody can write any number: what is no time of a clock is left out.
    said = rows.where(f"fault is null and member is not null and at between 0 and {LAST_US}")
    used = f.regexp_extract("path", r"(?s)\A/consumers/([^/]+)/", 1)
    whose = said.groupBy("file", "member").agg(f.min(f.nullif(used, f.lit(""))).alias("used"))
    places = registered.groupBy("group", "member").agg(f.min("chroot").alias("in_chroot"))
    whose = (
        whose.join(runs, "file", "left")
        .withColumn("group", f.coalesce("named", "used"))
        .where("group is not null")
        .join(places, ["group", "member"], "left")
        .select(
            "file",
            "member",
            "group",
            f.coalesce("in_chroot", "at", f.lit("")).alias("chroot"),
        )
    )
    found = said.join(whose, ["file", "member"])
    if group is not None:
        found = found.where(f.col("group").rlike(rf"\A(?:{group})\z"))
    return found.drop("fault", "text", "clock", "settings", "schema")


def _session() -> Column:
    number = f.expr("try_cast(conv(substr(session, 3), 16, -10) as bigint)")
    return f.when(f.col("session").rlike(r"\A0x[0-9a-f]{1,16}\z"), number)


def _time(name: str) -> Column:
    return f.timestamp_micros(f.col(name))


def deliveries(lines_: DataFrame) -> DataFrame:
    """Table ``deliveries``: from each start of fetching to the next end of the same partition."""
    acts = f.create_map(*[f.lit(x) for pair in _ACTS.items() for x in pair])
    by_line = Window.partitionBy("file", "member").orderBy("line")
    last = f.max("at").over(Window.partitionBy("file", "member")).alias("last")
    told = (
        lines_.select("*", acts[f.col("name")].alias("act"), last)
        .where("act is not null or name = 'DeliveryShut'")
        .withColumn("shut", f.last("since", ignorenulls=True).over(by_line))
        .where("act is not null")
    )
    # Where a line names offsets only, these are its partitions.
    named = f.coalesce("partitions", f.map_keys("offsets"), f.array().cast("array<string>"))
    each = told.select(
        *GROUP, "member", "file", "line", "at", "act", "shut", "last",
        _session().alias("session"),
        f.explode(named).alias("tp"),
        f.coalesce("offsets", f.create_map().cast("map<string,bigint>")).alias("offsets"),
    )  # fmt: skip
    parts = r"(?s)\A(.+)-(0|[1-9][0-9]{0,9})\z"
    each = each.withColumns(
        {
            "topic": f.regexp_extract("tp", parts, 1),
            "partition": f.expr(f"try_cast(regexp_extract(tp, r'{parts}', 2) as bigint)"),
            "offset": f.try_element_at("offsets", f.col("tp")),
        }
    ).where("partition is not null")
    each = each.withColumn("offset", f.when(f.col("offset") >= 0, f.col("offset")))
    order = Window.partitionBy(*GROUP, "member", "file", "topic", "partition").orderBy("line")
    begins = f.when(f.col("act") == "start", 1).otherwise(0)
    each = each.withColumn("number", f.sum(begins).over(order)).where("number > 0")

    def at(act: str) -> Column:
        return f.min(f.when(f.col("act") == act, f.col("at")))

    start = f.when(f.col("act") == "start", f.col("at"))
    # After a reset it went on elsewhere: only what comes behind it is one range.
    moved = f.max(f.when(f.col("act") == "reset", f.col("line")))
    samples = f.collect_list(
        f.when(
            f.col("act").isin("start", "progress", "final") & f.col("offset").isNotNull(),
            f.struct("line", "offset"),
        )
    )
    made = each.groupBy(*GROUP, "topic", "partition", "member", "file", "number").agg(
        f.min(start).alias("start"),
        at("stop").alias("stop"),
        at("drop").alias("drop"),
        at("final").alias("final"),
        f.max(f.when(f.col("act") == "drop", f.col("shut"))).alias("shut"),
        f.max("last").alias("last"),
        f.min("line").alias("line"),
        f.min_by("session", "line").alias("session"),
        moved.alias("moved"),
        samples.alias("samples"),
    )
    fits = f.filter("samples", lambda s: s["line"] > f.coalesce("moved", f.lit(-1)))
    ended = f.when(f.col("stop").isNotNull(), "stopped").when(f.col("drop").isNotNull(), "dropped")
    # A gate that was shut before the session was known to be lost let nothing through since.
    gone = f.when(f.col("shut") >= f.col("start"), f.least("shut", "drop")).otherwise(f.col("drop"))
    end = f.coalesce(
        f.when(f.col("stop").isNotNull(), f.least(f.coalesce("final", "stop"), gone)), gone, "last"
    )
    return made.select(
        *GROUP, "topic", "partition", "member", "session",
        _time("start").alias("start_time"),
        f.timestamp_micros(f.greatest(end, "start")).alias("end_time"),
        f.coalesce(ended, f.lit("open")).alias("ended"),
        f.array_min(f.transform(fits, lambda s: s["offset"])).alias("start_offset"),
        f.array_max(f.transform(fits, lambda s: s["offset"])).alias("end_offset"),
        "file", "line",
    )  # fmt: skip


def views(lines_: DataFrame) -> DataFrame:
    """Table ``views``: from each reading of the group to the next one, or to the end."""
    ends = ("SessionLost", "Close", "CloseRequested")
    every = Window.partitionBy(*GROUP, "member", "file")
    told = lines_.withColumn("last", f.max("at").over(every)).where(
        (f.col("name") == "ViewLoaded") & f.col("members").isNotNull() | f.col("name").isin(*ends)
    )
    following = f.lead("at").over(every.orderBy("line"))
    return (
        told.withColumn("end", f.coalesce(following, "last"))
        .where("name = 'ViewLoaded'")
        .select(
            *GROUP,
            "member",
            _time("at").alias("start_time"),
            _time("end").alias("end_time"),
            f.array_sort("members").alias("members"),
            "file",
            "line",
        )
    )


def herds(membership: DataFrame, lines_: DataFrame) -> DataFrame:
    """Table ``herds``: measured where members kept journals, else modelled.

    A line belongs to the last change before it, by time, for at most 30 s.
    """
    kept = lines_.select(*GROUP, "member").distinct().withColumn("kept", f.lit(1))
    order = Window.partitionBy(*GROUP).orderBy("zxid", "idx", "member")
    step = f.when(f.col("change") == "join", 1).otherwise(-1)
    changes = membership.join(kept, [*GROUP, "member"], "left").withColumns(
        {
            "own": f.coalesce("kept", f.lit(0)),
            "kept": f.sum(step * f.coalesce("kept", f.lit(0))).over(order),
        }
    )
    changes = changes.withColumn("us", f.unix_micros("time"))
    key = f.struct("zxid", "idx", f.col("member").alias("who"), "us")
    commit = (f.col("kind") == "op") & f.coalesce(f.col("path").contains("/offsets/"), f.lit(False))
    did = lines_.where(
        "kind = 'op' or name = 'Changed' or name = 'LoadView'"
    ).select(
        *GROUP, "member", f.col("at").alias("us"),
        f.when((f.col("name") == "Changed") & f.col("path").endswith("/ids"), f.col("member"))
        .alias("told"),
        f.when((f.col("name") == "LoadView") & (f.col("detail") != "members and topics"),
               f.struct("member", "attempt")).alias("attempt"),
        f.when(f.col("kind") == "op", f.col("reads")).alias("read"),
        f.when((f.col("kind") == "op") & ~commit, f.col("writes")).alias("wrote"),
    )  # fmt: skip
    points = changes.select(*GROUP, "us", key.alias("change_"))
    so_far = Window.partitionBy(*GROUP).orderBy("us", f.col("change_").asc_nulls_last())
    both = did.unionByName(points, allowMissingColumns=True).withColumn(
        "cause", f.last("change_", ignorenulls=True).over(so_far)
    )
    caused = (
        both.where(f"change_ is null and us - cause.us <= {HERD_US}")
        .groupBy(*GROUP, "cause.zxid", "cause.idx", f.col("cause.who").alias("member"))
        .agg(
            f.count_distinct(f.when(f.col("told") != f.col("cause.who"), f.col("told"))).alias(
                "told"
            ),
            f.count_distinct("attempt").alias("attempts"),
            f.coalesce(f.try_sum("read"), f.lit(0)).alias("read"),
            f.coalesce(f.try_sum("wrote"), f.lit(0)).alias("wrote"),
        )
    )
    joined = changes.join(caused, [*GROUP, "zxid", "idx", "member"], "left")
    some = (f.col("kept") > 0) | ((f.col("members") == 0) & (f.col("own") > 0))
    others = f.col("members") - f.when(f.col("change") == "join", 1).otherwise(0)

    def figure(name: str, model: Column) -> Column:
        return f.when(some, f.coalesce(name, f.lit(0))).otherwise(model)

    return joined.select(
        *GROUP, "zxid", "idx", "time", "member", "change", "members",
        f.when(some & (f.col("kept") >= f.col("members")), "measured")
        .when(some, "measured in part").otherwise("modelled").alias("basis"),
        figure("told", others).alias("notified"),
        figure("attempts", f.col("members")).alias("rebalances"),
        figure("read", f.col("members") * f.col("members")).alias("reads"),
        f.when(some, f.coalesce("wrote", f.lit(0))).alias("writes"),
    )  # fmt: skip
