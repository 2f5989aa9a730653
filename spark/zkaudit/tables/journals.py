"""Tables from members' journals: deliveries, views, unreadable lines.

The group of a journal is in the settings on its first line, otherwise in the paths of the member's
znodes. Times are by the members' own clocks. Runs in the driver's thread and only builds
DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from zkaudit import schema
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.sources import direct
from zkaudit.sources.journal import JournalReader
from zkaudit.storage import missing, place_of
from zkaudit.tables.catalog import GROUP
from zkconsumer.core.migration.modes import RULES, Follows

_PLACE = (*GROUP, "member", "file", "topic", "partition")
LAST_US = 32_503_680_000_000_000
"""The start of the year 3000, in microseconds since 1970."""

_ON_COORDINATOR = [
    mode.value for mode, rule in RULES.items() if rule.follows is Follows.COORDINATOR
]
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
    """Return the lines of all journals in ``places``, with the columns ``schema.journal_columns``.
    Each file is read once."""
    if not places:
        return spark.createDataFrame([], schema.spark_type(schema.journal_columns()))
    listed = ",".join(sorted({str(place_of(place)) for place in places}))
    return direct.rows(spark, JournalReader(listed), schema.journal_columns())


def check(places: Sequence[str | Path]) -> None:
    """Raise InputMissingError for a path that does not exist or contains a comma."""
    for place in places:
        if not place_of(place).exists():
            raise InputMissingError(missing(str(place), "journal or directory of journals"))
        if "," in str(place):
            raise InputMissingError(f"{place}: a path with a comma cannot be read: rename it")


def refuse_virtual(rows: DataFrame) -> None:
    """Raise AuditError for the journal of a simulation, because its times are not those of a
    clock."""
    found = rows.where("kind = 'run' and clock != 'epoch'").select("file").first()
    if found is not None:
        raise AuditError(
            f"{found['file']} is the journal of a simulation: remove it from --journals"
        )


def unreadable(rows: DataFrame) -> DataFrame:
    """Return the table ``unreadable``, with the lines of journals that could not be read."""
    return rows.where("fault is not null").select("file", "line", "fault", "text")


def lines(
    rows: DataFrame,
    registered: DataFrame,
    group: str | None = None,
    chroots: DataFrame | None = None,
) -> DataFrame:
    """Return the lines about members, with their chroot and group. ``group``: a Java regex that
    must match the group's whole name.

    ``chroots``: the result of ``timeline.chroots``, for members on the coordinator, whose journals
    do not have the chroot.
    """
    connect = F.col("settings")["zookeeper.connect"]
    runs = rows.where("kind = 'run'").select(
        "file",
        F.col("settings")["group.id"].alias("named"),
        F.regexp_extract(connect, r"(?s)\A[^/]*(/.*?)?/?\z", 1).alias("at_chroot"),
    )
    runs = runs.groupBy("file").agg(F.min("named").alias("named"), F.min("at_chroot").alias("at"))
    # A file may contain any number: lines without a plausible time are left out.
    entries = rows.where(f"fault is null and member is not null and at between 0 and {LAST_US}")
    used = F.regexp_extract("path", r"(?s)\A/consumers/([^/]+)/", 1)
    whose = entries.groupBy("file", "member").agg(F.min(F.nullif(used, F.lit(""))).alias("used"))
    places = registered.groupBy("group_id", "member").agg(F.min("chroot").alias("in_chroot"))
    whose = (
        whose.join(runs, "file", "left")
        .withColumn("group_id", F.coalesce("named", "used"))
        .where("group_id is not null")
        .join(places, ["group_id", "member"], "left")
    )
    found = ["in_chroot", "at"]
    if chroots is not None:
        whose = whose.join(chroots.withColumnRenamed("chroot", "of_name"), "group_id", "left")
        found.append("of_name")
    chroot = F.coalesce(*found, F.lit("")).alias("chroot")
    whose = whose.select("file", "member", "group_id", chroot)
    members_lines = entries.join(whose, ["file", "member"])
    if group is not None:
        members_lines = members_lines.where(F.col("group_id").rlike(rf"\A(?:{group})\z"))
    return members_lines.drop("fault", "text", "clock", "settings", "schema")


def _session() -> Column:
    number = F.expr("try_cast(conv(substr(session, 3), 16, -10) as bigint)")
    return F.when(F.col("session").rlike(r"\A0x[0-9a-f]{1,16}\z"), number)


def _time(name: str) -> Column:
    return F.timestamp_micros(F.col(name))


def deliveries(lines_: DataFrame) -> DataFrame:
    """Return the table ``deliveries``. A row begins when a member starts to fetch a partition or
    its position is reset, and ends when it stops or at the next reset."""
    times = _times(_numbered(_of_partitions(_actions(lines_))))
    fits = F.filter("samples", lambda s: F.coalesce(s["line"] < F.col("late"), F.lit(True)))
    positions = F.transform(fits, lambda s: s["offset"])
    ended = (
        F.when(F.col("stop").isNotNull(), "stopped")
        .when(F.col("drop").isNotNull(), "dropped")
        .when(F.col("resumed").isNotNull(), "reset")
    )
    # If delivery was shut before the session was known to be lost, nothing was delivered since.
    gone = F.when(F.col("shut") >= F.col("start"), F.least("shut", "drop")).otherwise(F.col("drop"))
    end = F.coalesce(
        F.when(F.col("stop").isNotNull(), F.least(F.coalesce("final", "stop"), gone)),
        gone,
        "resumed",
        "last",
    )
    return times.select(
        *GROUP, "topic", "partition", "member", "session", "coordination",
        _time("start").alias("start_time"),
        F.timestamp_micros(F.greatest(end, "start")).alias("end_time"),
        F.coalesce(ended, F.lit("open")).alias("ended"),
        F.coalesce("reset_to", F.array_min(positions)).alias("start_offset"),
        F.coalesce(F.array_max(positions), "reset_to").alias("end_offset"),
        "reset", "reset_from", "reset_to", "file", "line",
    )  # fmt: skip


def _actions(lines_: DataFrame) -> DataFrame:
    """Return the lines that show the start or end of fetching, or a position, with ``act``,
    ``mode``, ``last`` (time of the journal's last line) and ``shut`` (since when delivery was
    paused)."""
    acts = F.create_map(*[F.lit(x) for pair in _ACTS.items() for x in pair])
    by_line = Window.partitionBy("file", "member").orderBy("line")
    # "mode kafka, version 2": the mode that a migratable member follows from here on.
    mode = F.when(F.col("name") == "Report", F.regexp_extract("detail", r"\Amode ([a-z]+),", 1))
    last = F.max("at").over(Window.partitionBy("file", "member")).alias("last")
    return (
        lines_.select("*", acts[F.col("name")].alias("act"), last)
        .where("act is not null or name = 'DeliveryShut' or name = 'Report' and result = 'mode'")
        .withColumn("shut", F.last("since", ignorenulls=True).over(by_line))
        .withColumn("mode", F.last(mode, ignorenulls=True).over(by_line))
        .where("act is not null")
    )


def _of_partitions(actions: DataFrame) -> DataFrame:
    """Return a row for each partition of a line, with its ``offset`` and the replaced one
    (``replaced``)."""
    follows = F.when(
        F.col("generation").isNotNull() | F.col("mode").isin(*_ON_COORDINATOR), "coordinator"
    ).otherwise("zookeeper")
    # If a line has only offsets, these are its partitions.
    named = F.coalesce("partitions", F.map_keys("offsets"), F.array().cast("array<string>"))
    each = actions.select(
        *GROUP, "member", "file", "line", "at", "act", "shut", "last",
        _session().alias("session"), follows.alias("coordination"),
        F.explode(named).alias("tp"),
        *[F.coalesce(name, F.create_map().cast("map<string,bigint>")).alias(name)
          for name in ("offsets", "replaced")],
    )  # fmt: skip
    parts = r"(?s)\A(.+)-(0|[1-9][0-9]{0,9})\z"
    each = each.withColumns(
        {
            "topic": F.regexp_extract("tp", parts, 1),
            "partition": F.expr(f"try_cast(regexp_extract(tp, r'{parts}', 2) as bigint)"),
            "offset": F.try_element_at("offsets", F.col("tp")),
            "replaced": F.try_element_at("replaced", F.col("tp")),
        }
    ).where("partition is not null")
    offsets = {name: F.when(F.col(name) >= 0, F.col(name)) for name in ("offset", "replaced")}
    return each.withColumns(offsets)


def _numbered(each: DataFrame) -> DataFrame:
    """Add the ``number`` of the delivery, and whether the row ``begins`` it."""
    order = Window.partitionBy(*_PLACE).orderBy("line")
    state = F.when(F.col("act").isin("start", "stop", "drop"), F.col("act"))
    fetching = F.last(state, ignorenulls=True).over(order) == "start"
    starts, resets = F.col("act") == "start", F.col("act") == "reset"
    each = each.withColumns(
        {
            "fetching": F.coalesce(fetching, F.lit(False)),
            "number": F.sum(starts.cast("int")).over(order),
        }
    ).where("number > 0")
    so_far = Window.partitionBy(*_PLACE, "number").orderBy("line")
    earlier = so_far.rowsBetween(Window.unboundedPreceding, -1)
    had = F.coalesce(F.max(F.col("offset").isNotNull()).over(earlier), F.lit(False))
    # After a reset it resumes elsewhere: the messages before and after it are two ranges. If no
    # offset was replaced, the reset chose the first position, even if that was committed before
    # the reset was recorded. Older journals have no offsets of a reset.
    moved = F.col("replaced").isNotNull() | (F.col("offset").isNull() & had)
    again = resets & F.col("fetching") & moved
    each = each.withColumn("begins", starts | again)
    return each.withColumn("number", F.sum(F.col("begins").cast("int")).over(order))


def _times(each: DataFrame) -> DataFrame:
    """Return a row for each delivery: when it began, how it ended, and its positions."""
    resets = F.col("act") == "reset"

    def at(act: str) -> Column:
        return F.min(F.when(F.col("act") == act, F.col("at")))

    chosen = resets & F.col("fetching")
    # A position that was reset after the stop is not one of the messages before.
    late = F.min(F.when(resets & ~F.col("fetching"), F.col("line")))
    samples = F.collect_list(
        F.when(
            F.col("act").isin("start", "progress", "final") & F.col("offset").isNotNull(),
            F.struct("line", "offset"),
        )
    )
    times = each.groupBy(*_PLACE, "number").agg(
        F.min(F.when(F.col("begins"), F.col("at"))).alias("start"),
        at("stop").alias("stop"),
        at("drop").alias("drop"),
        at("final").alias("final"),
        F.max(F.when(F.col("act") == "drop", F.col("shut"))).alias("shut"),
        F.max("last").alias("last"),
        F.min("line").alias("line"),
        F.min_by("session", "line").alias("session"),
        F.min_by("coordination", "line").alias("coordination"),
        F.max(F.col("begins") & resets).alias("again"),
        F.max(chosen).alias("reset"),
        F.max(F.when(chosen, F.col("replaced"))).alias("reset_from"),
        F.max(F.when(chosen, F.col("offset"))).alias("reset_to"),
        late.alias("late"),
        samples.alias("samples"),
    )
    following = F.lead(F.struct("again", "start")).over(
        Window.partitionBy(*_PLACE).orderBy("number")
    )
    return times.withColumn("resumed", F.when(following["again"], following["start"]))


def views(lines_: DataFrame) -> DataFrame:
    """Return the table ``views``. A row lasts from one read of the group by a member to its next
    read, or to the end of its journal."""
    ends = ("SessionLost", "Close", "CloseRequested")
    every = Window.partitionBy(*GROUP, "member", "file")
    readings = lines_.withColumn("last", F.max("at").over(every)).where(
        (F.col("name") == "ViewLoaded") & F.col("members").isNotNull() | F.col("name").isin(*ends)
    )
    following = F.lead("at").over(every.orderBy("line"))
    return (
        readings.withColumn("end", F.coalesce(following, "last"))
        .where("name = 'ViewLoaded'")
        .select(
            *GROUP,
            "member",
            _time("at").alias("start_time"),
            _time("end").alias("end_time"),
            F.array_sort("members").alias("members"),
            "file",
            "line",
        )
    )
