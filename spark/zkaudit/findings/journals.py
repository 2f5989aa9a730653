"""Findings from members' journals: overlapping deliveries, and members with different views.

Overlaps are found without joining a table with itself. The intervals of one owner are merged, then
each is compared with the latest end before it. Runs in the driver's thread and only builds
DataFrames.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, PARTITION, Tables, finding, row, text, tp
from zkaudit.limits import Limits

SHOWN = 5
"""At most this many members are named in a sentence."""


def overlaps(
    frame: DataFrame, key: tuple[str, ...], owner: str, keep: tuple[str, ...]
) -> DataFrame:
    """Intervals [a, b) of one owner that overlap an interval of another owner of the same key.

    There is one row for each interval that begins during another. It has the interval's columns,
    ``low`` and ``high`` (the first part that the two share), and ``other``, a struct of the other
    interval's columns. Intervals of one owner that touch or overlap are merged; ``keep`` is then
    from the first.
    """
    own = Window.partitionBy(*key, owner).orderBy("a", "b")
    before = F.max("b").over(own.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.when(before >= F.col("a"), 0).otherwise(1)
    merged = (
        frame.where("a < b")
        .withColumn("opens", opens)
        .withColumn("island", F.sum("opens").over(own))
        .groupBy(*key, owner, "island")
        .agg(
            F.min("a").alias("a"),
            F.max("b").alias("b"),
            *[F.min_by(name, F.struct("a", "b")).alias(name) for name in keep],
        )
    )
    every = Window.partitionBy(*key).orderBy("a", "b", owner)
    last = F.max(F.struct("b", "a", owner, *keep)).over(
        every.rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        merged.withColumn("other", last)
        .where(F.col("other.b") > F.col("a"))
        .withColumns({"low": F.col("a"), "high": F.least("b", "other.b")})
    )


def _line(file: str, line: str) -> Column:
    """Name of the file and line. The table has the file's path."""
    return F.concat(F.substring_index(F.col(file), "/", -1), F.lit(":"), text(line))


def _journal(session: str | None, what: Column) -> Column:
    return row("deliveries", None, None, session, what)


def double_deliveries(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Two members that delivered from one partition at the same time, or the same messages."""
    keep = ("a_time", "b_time", "start_offset", "end_offset", "session", "file", "line")
    deliveries = tables.deliveries.withColumns(
        {"a_time": F.unix_micros("start_time"), "b_time": F.unix_micros("end_time")}
    )
    # A reset begins another range of offsets: one microsecond later, the two are not merged.
    begin = F.col("a_time") + F.when(F.col("reset"), 1).otherwise(0)
    times = deliveries.withColumns({"a": begin, "b": F.col("b_time")})
    skew = int(limits.skew_seconds * 1e6)
    both = overlaps(times, PARTITION, "member", keep).where(
        (F.col("high") - F.col("low")) >= F.greatest(F.lit(skew), F.lit(1))
    )
    low = F.greatest("start_offset", "other.start_offset")
    high = F.least("end_offset", "other.end_offset")
    shared = F.coalesce(high > low, F.lit(False))
    both = both.withColumns(
        {
            "time": F.timestamp_micros("low"),
            "end_time": F.timestamp_micros("high"),
            "shared": shared,
            "from": low,
            "to": high,
            "range": F.concat(F.lit("offsets "), text(low), F.lit(" to "), text(high - 1)),
            "seconds": F.format_number((F.col("high") - F.col("low")) / 1e6, 1),
            "evidence": _two(),
        }
    )
    offsets = deliveries.where("start_offset is not null and end_offset is not null").withColumns(
        {"a": F.col("start_offset"), "b": F.col("end_offset")}
    )
    # Messages that are reported as delivered at the same time are not reported again.
    here = both.where("shared").select(*PARTITION, _pair().alias("pair"), "from", "to")
    again = overlaps(offsets, PARTITION, "member", keep).withColumn("pair", _pair())
    same = [F.col(f"x.{name}").eqNullSafe(F.col(f"t.{name}")) for name in (*PARTITION, "pair")]
    reported_there = (F.col("x.low") < F.col("t.to")) & (F.col("x.high") > F.col("t.from"))
    again = again.alias("x").join(
        here.alias("t"), reduce(lambda a, b: a & b, same) & reported_there, "left_anti"
    )
    again = again.withColumns(
        {
            "time": F.timestamp_micros(F.greatest("a_time", "other.a_time")),
            "count": F.col("high") - F.col("low"),
            "evidence": _two(),
        }
    )
    whose = (tp(), " of group ", F.col("group"))
    return [
        finding(
            both, F.when(F.col("shared"), "critical").otherwise("high"), "overlapping delivery",
            "measured", "Members ", F.col("member"), " and ", F.col("other.member"),
            " were both delivering messages of ", *whose, " for ", F.col("seconds"), " s; ",
            F.when(F.col("shared"), F.concat("range", F.lit(" were delivered by both.")))
            .otherwise("their journals show no message that both delivered."),
        ),
        finding(
            again, "low", "delivered twice", "measured",
            "In ", *whose, ", ", text("count"), " messages (offsets ", text("low"), " to ",
            text(F.col("high") - 1), ") were delivered by ", F.col("other.member"), " and by ",
            F.col("member"), ", at different times.",
        ),
    ]  # fmt: skip


def _all_kept_journals(tables: Tables) -> DataFrame:
    """Groups all of whose members kept journals, each read to its end."""
    journaled = tables.deliveries.groupBy(*GROUP, "member").agg(
        F.max((F.col("ended") == "open").cast("int")).alias("open")
    )
    registered = tables.registrations.where("member is not null").select(*GROUP, "member")
    every = journaled.join(registered.distinct(), [*GROUP, "member"], "full")
    whole = every.groupBy(*GROUP).agg(F.max(F.coalesce("open", F.lit(1))).alias("open"))
    return whole.where("open = 0").select(*GROUP)


def delivery_gaps(tables: Tables) -> DataFrame:
    """Messages that no member delivered, although a member delivered later messages of the
    partition. Those that a reset skipped are another finding (``offset_resets``)."""
    known = tables.deliveries.join(_all_kept_journals(tables), list(GROUP), "left_semi")
    earlier = (
        Window.partitionBy(*PARTITION)
        .orderBy("start_time", "end_time", "member")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    here = F.struct("end_offset", "member", "session", "file", "line")
    # Where a reset led to is unknown if nothing was committed after it.
    astray = F.col("reset") & F.col("end_offset").isNull()
    gaps = known.withColumns(
        {
            "other": F.max(F.when(F.col("end_offset").isNotNull(), here)).over(earlier),
            "astray": F.coalesce(F.max(astray).over(earlier), F.lit(False)),
        }
    ).where("not reset and not astray")
    gaps = gaps.where(F.col("start_offset") > F.col("other.end_offset")).withColumns(
        {
            "messages": F.col("start_offset") - F.col("other.end_offset"),
            "effect": F.lit("lost"),
            "time": F.col("start_time"),
            "end_time": F.lit(None).cast("timestamp"),
            "evidence": _two(),
        }
    )
    return finding(
        gaps, "high", "delivery gap", "measured",
        "In ", tp(), " of group ", F.col("group"), " no member delivered ", text("messages"),
        " messages (offsets ", text("other.end_offset"), " to ", text(F.col("start_offset") - 1),
        "): ", F.col("other.member"), " stopped before them, and ", F.col("member"),
        " began after them.",
    )  # fmt: skip


def offset_resets(tables: Tables) -> DataFrame:
    """Members that lost their position: the offset was not in the log, and ``auto.offset.reset``
    chose another one. Not where no offset was stored, since there a member begins.

    An offset below the log's start was deleted before it was read. One above its end shows that the
    log was truncated, that the topic was recreated, or that a wrong offset was stored.
    """
    own = Window.partitionBy(*PARTITION, "member", "file").orderBy("start_time", "line")
    cut = F.lag("ended").over(own) == "reset"
    count = F.col("reset_to") - F.col("reset_from")
    resets = (
        tables.deliveries.withColumn("reached", F.when(cut, F.lag("end_offset").over(own)))
        .where("reset and coalesce(reset_from, reached) is not null")
        .withColumns(
            {
                "messages": F.abs(count),
                "effect": F.when(count > 0, "lost").when(count < 0, "repeated")
                .when(count == 0, "none").otherwise("unknown"),
                "time": F.col("start_time"),
                "end_time": F.lit(None).cast("timestamp"),
                "evidence": F.array(_journal("session", _line("file", "line"))),
            }
        )
    )  # fmt: skip
    number = text("messages")
    moved = F.concat(F.lit(" from "), text("reset_from"), F.lit(" to "), text("reset_to"))
    return finding(
        resets,
        F.when(count > 0, "high").when(count == 0, "info").otherwise("medium"),
        "offset reset",
        F.when(count < 0, "inferred").otherwise("measured"),
        "Member ", F.col("member"), " reset its offset of ", tp(), " of group ", F.col("group"),
        F.when(count > 0, F.concat(moved, F.lit(", because the log began after it: up to "), number,
                                   F.lit(" messages were not delivered.")))
        .when(count < 0, F.concat(moved, F.lit(", because the log ended before it: up to "), number,
                                  F.lit(" messages are delivered again, unless the log was "
                                        "truncated or the topic was recreated.")))
        .when(count == 0, F.concat(moved, F.lit(", which has no effect.")))
        .otherwise(F.concat(
            F.lit(" because it was not in the log. Its journal does not show from which offset to "
                  "which; it had reached "), text(F.coalesce("reset_from", "reached")),
            F.coalesce(F.concat(F.lit(", and was at "), F.col("start_offset").cast("string"),
                                F.lit(" when it next committed.")), F.lit(".")),
        )),
    )  # fmt: skip


def commits_past_delivery(tables: Tables) -> DataFrame:
    """Members that committed an offset past every delivered message: one finding for each."""
    reached = (
        tables.deliveries.join(_all_kept_journals(tables), list(GROUP), "left_semi")
        .groupBy(*PARTITION)
        .agg(
            F.max("end_offset").alias("reached"),
            F.count_if(F.col("end_offset").isNull() | F.col("reset")).alias("unknown"),
            F.collect_set("member").alias("members"),
        )
        .where("reached is not null and unknown = 0")
    )
    past = (
        tables.commits.where("kind = 'commit' and owner_session = session")
        .join(reached, list(PARTITION))
        .where(F.col("offset") > F.col("reached"))
        .where(F.array_contains("members", F.col("owner_member")))
        .groupBy(*PARTITION, F.col("owner_member").alias("member"), "reached")
        .agg(
            F.min("zxid").alias("zxid"),
            F.min_by("idx", "zxid").alias("idx"),
            F.min_by("time", "zxid").alias("time"),
            F.min_by("session", "zxid").alias("session"),
            F.max("offset").alias("offset"),
        )
    )
    past = past.withColumns(
        {
            "messages": F.col("offset") - F.col("reached"),
            "effect": F.lit("lost"),
            "evidence": F.array(
                row("commits", "zxid", "idx", "session", F.concat(F.lit("up to "), text("offset")))
            ),
        }
    )
    return finding(
        past, "high", "commit past delivery", "measured",
        "Member ", F.col("member"), " committed ", text("offset"), " for ", tp(), " of group ",
        F.col("group"), ", although the members' journals show deliveries up to ", text("reached"),
        " only: ", text("messages"), " messages were committed and not delivered.",
    )  # fmt: skip


def _pair() -> Column:
    return F.array_sort(F.array("member", "other.member"))


def _two() -> Column:
    return F.array(
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
    shown = F.array_join(F.slice(members, 1, SHOWN), ", ")
    more = F.when(F.size(members) > SHOWN, F.lit(", ...")).otherwise("")
    return F.concat(F.size(members).cast("string"), F.lit(" ("), shown, more, F.lit(")"))


def views_apart(tables: Tables, limits: Limits) -> DataFrame:
    """Members that acted on different views of the group for longer than a change takes to spread.

    A view counts only from ``view_seconds`` after it was read, because a member that has not yet
    reacted to a change is about to read it again.
    """
    wait = int(limits.view_seconds * 1e6)
    views = tables.views.withColumns(
        {
            "a": F.unix_micros("start_time") + wait,
            "b": F.unix_micros("end_time"),
            "members_hash": F.xxhash64("members"),
        }
    )
    keep = ("member", "members", "file", "line")
    apart = overlaps(views, GROUP, "members_hash", keep).withColumns(
        {
            "time": F.timestamp_micros("low"),
            "end_time": F.timestamp_micros("high"),
            "seconds": F.format_number((F.col("high") - F.col("low")) / 1e6, 1),
            "evidence": F.array(
                row("views", None, None, None, _line("file", "line")),
                row("views", None, None, None, _line("other.file", "other.line")),
            ),
        }
    )
    return finding(
        apart, "high", "members whose views disagree", "measured",
        "For ", F.col("seconds"), " s two members of group ", F.col("group"),
        " had different views of it: ", F.col("other.member"), " saw ",
        _names(F.col("other.members")), ", ", F.col("member"), " saw ",
        _names(F.col("members")), ".",
    )  # fmt: skip
