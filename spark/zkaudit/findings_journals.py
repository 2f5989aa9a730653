"""What members' journals show: two that deliver one partition, two that see different groups.

Overlaps are found without joining a table with itself: intervals of one owner are merged, then each
is compared with the latest end before it. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as f

from zkaudit.findings_base import GROUP, PARTITION, Limits, Tables, made, row, text, tp

SHOWN = 5
"""Names of members in a sentence."""


def overlaps(
    frame: DataFrame, key: tuple[str, ...], owner: str, keep: tuple[str, ...]
) -> DataFrame:
    """Intervals [a, b) of one owner that overlap one of another owner of the same key.

    One row for each that begins while another lasts: its columns, ``low`` and ``high`` (the first
    part that both have), and ``other``, a struct of the same columns. Intervals of one owner that
    touch or overlap are one, with ``keep`` from the first of them.
    """
    own = Window.partitionBy(*key, owner).orderBy("a", "b")
    before = f.max("b").over(own.rowsBetween(Window.unboundedPreceding, -1))
    opens = f.when(before >= f.col("a"), 0).otherwise(1)
    merged = (
        frame.where("a < b")
        .withColumn("opens", opens)
        .withColumn("island", f.sum("opens").over(own))
        .groupBy(*key, owner, "island")
        .agg(
            f.min("a").alias("a"),
            f.max("b").alias("b"),
            *[f.min_by(name, f.struct("a", "b")).alias(name) for name in keep],
        )
    )
    every = Window.partitionBy(*key).orderBy("a", "b", owner)
    last = f.max(f.struct("b", "a", owner, *keep)).over(
        every.rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        merged.withColumn("other", last)
        .where(f.col("other.b") > f.col("a"))
        .withColumns({"low": f.col("a"), "high": f.least("b", "other.b")})
    )


def _line(file: str, line: str) -> Column:
    """Name of the file (its path is in the table) and line."""
    return f.concat(f.substring_index(f.col(file), "/", -1), f.lit(":"), text(line))


def _journal(session: str | None, what: Column) -> Column:
    return row("deliveries", None, None, session, what)


def double_deliveries(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Two members that delivered one partition at the same time, or the same messages."""
    keep = ("a_time", "b_time", "start_offset", "end_offset", "session", "file", "line")
    told = tables.deliveries.withColumns(
        {"a_time": f.unix_micros("start_time"), "b_time": f.unix_micros("end_time")}
    )
    times = told.withColumns({"a": f.col("a_time"), "b": f.col("b_time")})
    skew = int(limits.skew_seconds * 1e6)
    both = overlaps(times, PARTITION, "member", keep).where(
        (f.col("high") - f.col("low")) >= f.greatest(f.lit(skew), f.lit(1))
    )
    low = f.greatest("start_offset", "other.start_offset")
    high = f.least("end_offset", "other.end_offset")
    shared = f.coalesce(high > low, f.lit(False))
    both = both.withColumns(
        {
            "time": f.timestamp_micros("low"),
            "end_time": f.timestamp_micros("high"),
            "shared": shared,
            "from": low,
            "to": high,
            "range": f.concat(f.lit("offsets "), text(low), f.lit(" to "), text(high - 1)),
            "seconds": f.format_number((f.col("high") - f.col("low")) / 1e6, 1),
            "evidence": _two(),
        }
    )
    offsets = told.where("start_offset is not null and end_offset is not null").withColumns(
        {"a": f.col("start_offset"), "b": f.col("end_offset")}
    )
    # What is told already as delivered at the same time is not told again.
    here = both.where("shared").select(*PARTITION, _pair().alias("pair"), "from", "to")
    again = overlaps(offsets, PARTITION, "member", keep).withColumn("pair", _pair())
    same = [f.col(f"x.{name}").eqNullSafe(f.col(f"t.{name}")) for name in (*PARTITION, "pair")]
    told_there = (f.col("x.low") < f.col("t.to")) & (f.col("x.high") > f.col("t.from"))
    again = again.alias("x").join(
        here.alias("t"), reduce(lambda a, b: a & b, same) & told_there, "left_anti"
    )
    again = again.withColumns(
        {
            "time": f.timestamp_micros(f.greatest("a_time", "other.a_time")),
            "count": f.col("high") - f.col("low"),
            "evidence": _two(),
        }
    )
    whose = (tp(), " of group ", f.col("group"))
    return [
        made(
            both, f.when(f.col("shared"), "critical").otherwise("high"), "overlapping delivery",
            "measured", "Members ", f.col("member"), " and ", f.col("other.member"),
            " were both delivering messages of ", *whose, " for ", f.col("seconds"), " s; ",
            f.when(f.col("shared"), f.concat("range", f.lit(" went to both.")))
            .otherwise("their journals show no message that went to both."),
        ),
        made(
            again, "low", "delivered twice", "measured",
            "Of ", *whose, ", ", text("count"), " messages (offsets ", text("low"), " to ",
            text(f.col("high") - 1), ") were delivered by ", f.col("other.member"), " and by ",
            f.col("member"), ", one after the other.",
        ),
    ]  # fmt: skip


def _pair() -> Column:
    return f.array_sort(f.array("member", "other.member"))


def _two() -> Column:
    return f.array(
        _journal("session", _line("file", "line")),
        row(
            "deliveries",
            None,
            None,
            "other.session",
            _line("other.file", "other.line"),
        ),
    )


def _names(members: Column) -> Column:
    shown = f.array_join(f.slice(members, 1, SHOWN), ", ")
    more = f.when(f.size(members) > SHOWN, f.lit(", ...")).otherwise("")
    return f.concat(f.size(members).cast("string"), f.lit(" ("), shown, more, f.lit(")"))


def views_apart(tables: Tables, limits: Limits) -> DataFrame:
    """Members that acted on different views of the group for longer than a change takes to spread.

    A view counts from ``view_seconds`` after it was read, so one that is about to be read again is
    passed over.
    """
    wait = int(limits.view_seconds * 1e6)
    held = tables.views.withColumns(
        {
            "a": f.unix_micros("start_time") + wait,
            "b": f.unix_micros("end_time"),
            "seen": f.xxhash64("members"),
        }
    )
    keep = ("member", "members", "file", "line")
    apart = overlaps(held, GROUP, "seen", keep).withColumns(
        {
            "time": f.timestamp_micros("low"),
            "end_time": f.timestamp_micros("high"),
            "seconds": f.format_number((f.col("high") - f.col("low")) / 1e6, 1),
            "evidence": f.array(
                row("views", None, None, None, _line("file", "line")),
                row("views", None, None, None, _line("other.file", "other.line")),
            ),
        }
    )
    return made(
        apart, "high", "members whose views disagree", "measured",
        "For ", f.col("seconds"), " s two members of group ", f.col("group"),
        " had different views of it: ", f.col("other.member"), " saw ",
        _names(f.col("other.members")), ", ", f.col("member"), " saw ",
        _names(f.col("members")), ".",
    )  # fmt: skip
