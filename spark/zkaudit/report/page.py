"""The report: one HTML page with everything in it, small however long the history is.

Spark cuts time into buckets; the page draws cells, not intervals. Findings are drawn exactly, and
so are intervals while there are few enough to send. Names come from ZooKeeper: any client may have
chosen them: they travel as JSON that cannot end its element and reach the page as text only. The
page may run its own script and nothing else (Content-Security-Policy). Runs in the driver's thread.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from zkaudit.errors import InputMissingError
from zkaudit.findings.limits import SEVERITIES
from zkaudit.job.output import load
from zkaudit.job.place import finished
from zkaudit.job.spark import PACKED, bytes_of, check_group, planned_for
from zkaudit.report.verdict import Count, verdict
from zkaudit.show import command
from zkaudit.text import names_of, no_group, printable

BUCKETS: Final = 480
MAX_ROWS: Final = 500
"""Partitions in the timeline: those with findings first, then those of the groups in the page."""
MAX_FINDINGS: Final = 2_000
MAX_EXACT: Final = 1_000_000
"""Intervals that are in the page exactly, packed; with more, the timeline shows cells only."""
MAX_GROUPS: Final = 200
"""Groups in the selector: those with the worst findings first."""
MAX_HERDS: Final = 10
"""Changes of membership shown for all groups together."""
MAX_HERDS_OF_GROUP: Final = 5
"""Changes of membership shown for each group in the selector, at least."""

KEY: Final = ("chroot", "group", "topic", "partition")

LIMITS_OF_LOGS: Final = (
    "An owner znode is one path and ZooKeeper orders all writes to it, so it can never show two "
    "owners at once: two members that both believe to own a partition leave one owner in the logs. "
    "What shows an overlap is a commit by a session that did not own the partition, or members' "
    "journals.",
    "Reads are not logged: who looked at the group when, which view a member had, and which "
    "messages it delivered cannot be seen in them. Neither can watches; so the logs alone give an "
    "upper bound of a herd's size, not a measurement. Journals show all three, of those members "
    "that kept one; the JVM's consumers keep none.",
    "Times are the leader's clock and only for reading; the order is that of the transactions. "
    "What journals show is ordered by the members' own clocks, which may differ by a second.",
    "An offset stored in Kafka has no session: a commit there can be seen to go back, but not "
    "whose it was. Compaction keeps only the last ones.",
    "A refused write leaves its error but no path: refused claims are counted as refused creates "
    "of members' sessions.",
)


def write(
    spark: SparkSession, out: str | Path, group: str | None = None, page: str | Path | None = None
) -> Path:
    """Write the report from the tables of an audit; return its path.

    ``group``: a Java regex; the page shows only the groups whose whole name matches. ``page``:
    the file, by default ``OUT/report.html``. Raises InputMissingError if there is no finished audit
    in ``out`` or no group matches, AuditError if ``group`` is not a regex.
    """
    summary, tables = load(spark, out)
    if group is not None:
        check_group(spark, group)
        summary, tables = _of_groups(summary, tables, group)
        if not _group_names(tables).take(1):
            raise InputMissingError(no_group(group, f"the audit in {out} has"))
    file = Path(page) if page is not None else Path(out) / "report.html"
    _, place = finished(out)
    with planned_for(spark, PACKED * bytes_of(place.glob("*/*.parquet"))):
        text = render(data_of(summary, tables))
    file.write_text(text, encoding="utf-8")
    return file


def _of_groups(
    summary: dict[str, Any], tables: dict[str, DataFrame], group: str
) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """The summary and the tables of the groups that match."""
    matches = F.col("group").rlike(rf"\A(?:{group})\z")
    chosen = {
        name: frame.where(matches) if "group" in frame.columns else frame
        for name, frame in tables.items()
    }
    counts = chosen["findings"].groupBy("severity", "kind").count().collect()
    of_kind = {(row["severity"], row["kind"]): row["count"] for row in counts}
    return summary | {
        "group": group,
        "intervals": chosen["ownership"].count(),
        "commits": chosen["commits"].count(),
        "migrations": _moves_of(summary, chosen["migrations"]),
        "findings": [
            found | {"count": of_kind[found["severity"], found["kind"]]}
            for found in summary["findings"]
            if (found["severity"], found["kind"]) in of_kind
        ],
    }, chosen


def _moves_of(summary: dict[str, Any], chosen: DataFrame) -> list[dict[str, Any]]:
    """What the summary says of those groups that have a mode."""
    found: list[dict[str, Any]] = summary.get("migrations", [])
    names = chosen.select("chroot", "group").distinct().collect() if found else ()
    kept = {(row["chroot"], row["group"]) for row in names}
    return [row for row in found if (row["chroot"], row["group"]) in kept]


def render(data: dict[str, Any]) -> str:
    """Return the page. ``data`` may hold any text."""
    files = resources.files("zkaudit.report")
    script = files.joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = json.dumps(_visible(data), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":  # no name can end the element
        text = text.replace(character, f"\\u{ord(character):04x}")
    page = files.joinpath("page.html").read_text(encoding="utf-8")
    return (
        page.replace("{{digest}}", digest).replace("{{script}}", script).replace("{{data}}", text)
    )


def _visible(value: Any) -> Any:
    """Escape what is invisible or turns text around, in every string of ``value``."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(item) for item in value]
    return value


def data_of(summary: dict[str, Any], tables: dict[str, DataFrame]) -> dict[str, Any]:
    """Return what the page shows, of a size that does not depend on the history's."""
    found = tables["findings"]
    listed = [
        {
            "severity": row["severity"], "kind": row["kind"], "chroot": row["chroot"],
            "group": row["group"], "topic": row["topic"], "partition": row["partition"],
            "zxid": row["zxid"], "t": row["t"], "u": row["u"], "basis": row["basis"],
            "sentence": row["sentence"], "member": row["member"],
            "effect": row["effect"], "messages": row["messages"],
            "place": row["file"] and f"{row['server']}: {row['file']}, byte {row['position']}",
            "command": command(row["zxid"], summary.get("directories", ())),
            "evidence": [[e["table"], e["zxid"], e["idx"], e["what"]] for e in row["evidence"]],
        }
        for row in found.withColumns(
            {"t": F.unix_millis("time"), "u": F.unix_millis("end_time")}
        ).orderBy(_rank(), "kind", "zxid").take(MAX_FINDINGS)
    ]  # fmt: skip
    owned = tables["ownership"].where("start_time is not null")
    spans = owned.select(
        *KEY,
        "member",
        "ended",
        F.unix_millis("start_time").alias("a"),
        F.unix_millis(F.coalesce("end_time", F.lit(summary["last_time"]).cast("timestamp"))).alias(
            "b"
        ),
    )
    times = spans.agg(F.min("a"), F.max("b")).first()
    begin, end = (int(times[0]), int(times[1])) if times and times[0] is not None else (0, 1)
    width = max(1, -(-(end - begin + 1) // BUCKETS))
    modes = _modes(summary)
    groups = [
        group | {"mode": modes.get((group["chroot"], group["group"]))}
        for group in _groups(tables, owned)
    ]
    chosen = _as_frame(found.sparkSession, groups)
    rows = _rows(found, owned, chosen)
    members: dict[str, int] = {}
    return {
        "summary": summary,
        "verdict": verdict(_counts(found), summary),
        "only": _only(summary.get("group")),
        "limits": list(LIMITS_OF_LOGS),
        "findings": listed,
        "begin": begin,
        "end": end,
        "width": width,
        "rows": [list(row) for row in rows],
        "partitions": owned.select(*KEY).distinct().count(),
        "cells": _cells(spans, rows, members, begin, width),
        "exact": _exact(spans, rows, members, begin, end),
        "groups": _series(tables, groups, begin, width),
        "all_groups": _group_names(tables).count(),
        "members": list(members),
        "herds": _herds(tables["herds"], chosen),
        "changes": tables["herds"].count(),
    }


def _modes(summary: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The mode of each group that still has one, by chroot and name (see ``docs/adr/0006``)."""
    return {
        (row["chroot"], row["group"]): row["mode"]
        for row in summary.get("migrations", ())
        if row["mode"] and row["ended"] == "still"
    }


def _only(group: str | None) -> str | None:
    """Which groups the page is about, in words; ``None``: all."""
    names = None if group is None else names_of(group)
    if names is None:
        return None if group is None else f"groups whose name matches {group}"
    return f"group{'s' * (len(names) > 1)} {', '.join(names)}"


def _counts(found: DataFrame) -> list[Count]:
    """The findings, counted: a few dozen rows."""
    counted = found.groupBy("severity", "kind", "effect").agg(
        F.count(F.lit(1)).alias("findings"),
        F.count_distinct("chroot", "group").alias("groups"),
        F.coalesce(F.sum("messages"), F.lit(0)).alias("messages"),
        F.count_if(F.col("messages").isNull()).alias("unknown"),
        F.min(F.col("basis") == "proven").alias("proven"),
    )
    rows = counted.orderBy(_rank(), "kind", "effect").collect()
    return [Count(**row.asDict()) for row in rows]


def _rank() -> Column:
    """The number of a finding's severity: 0 is the worst."""
    pairs = [x for i, s in enumerate(SEVERITIES) for x in (F.lit(s), F.lit(i))]
    return F.create_map(*pairs)[F.col("severity")]


def _group_names(tables: dict[str, DataFrame]) -> DataFrame:
    """Chroot and name of every group of the audit, once."""
    named = [
        tables[name].select("chroot", "group")
        for name in ("findings", "registrations", "ownership", "commits")
    ]
    return reduce(DataFrame.unionByName, named).where(F.col("group").isNotNull()).distinct()


def _groups(tables: dict[str, DataFrame], owned: DataFrame) -> list[dict[str, Any]]:
    """The groups that the page carries, worst finding first, and how much of each there is."""
    key = ["chroot", "group"]
    found = (
        tables["findings"]
        .groupBy(key)
        .agg(F.min(_rank()).alias("worst"), F.count(F.lit(1)).alias("findings"))
    )
    partitions = (
        owned.select(*KEY).distinct().groupBy(key).agg(F.count(F.lit(1)).alias("partitions"))
    )
    changes = tables["herds"].groupBy(key).agg(F.count(F.lit(1)).alias("changes"))
    every = _group_names(tables).join(found, key, "left")
    every = every.join(partitions, key, "left").join(changes, key, "left")
    order = F.col("worst").asc_nulls_last(), F.col("findings").desc(), *key
    return [
        {
            "chroot": row["chroot"], "group": row["group"],
            "worst": None if row["worst"] is None else SEVERITIES[row["worst"]],
            "findings": row["findings"], "partitions": row["partitions"],
            "changes": row["changes"],
        }
        for row in every.orderBy(*order).limit(MAX_GROUPS).fillna(
            0, ["findings", "partitions", "changes"]
        ).collect()
    ]  # fmt: skip


def _as_frame(spark: SparkSession, groups: list[dict[str, Any]]) -> DataFrame:
    listed = [(group["chroot"], group["group"], place) for place, group in enumerate(groups)]
    return spark.createDataFrame(listed, "chroot string, `group` string, place int")


def _herds(herds: DataFrame, groups: DataFrame) -> list[dict[str, Any]]:
    """The changes that woke most members: of all groups, and of each group in the page."""
    names = ("chroot", "group", "member", "change", "basis", "notified", "rebalances", "reads")
    order = (F.col("notified").desc(), "chroot", "group", "zxid", "idx", "member")
    woke = herds.where("notified > 0")
    largest = woke.orderBy(*order).limit(MAX_HERDS)
    ranked = woke.join(F.broadcast(groups), ["chroot", "group"]).withColumn(
        "rank", F.row_number().over(Window.partitionBy("chroot", "group").orderBy(*order))
    )
    of_groups = ranked.where(F.col("rank") <= MAX_HERDS_OF_GROUP).select(herds.columns)
    taken = largest.unionByName(of_groups).distinct().orderBy(*order)
    return [
        row.asDict() for row in taken.select(*names, F.unix_millis("time").alias("t")).collect()
    ]


def _rows(found: DataFrame, owned: DataFrame, groups: DataFrame) -> list[tuple[str, str, str, int]]:
    """The partitions of the timeline, in order. When there are too many, those with findings are
    taken first, then those of the groups in the page."""
    bad = found.where("partition is not null").select(*KEY).distinct().withColumn("bad", F.lit(1))
    every = owned.select(*KEY).distinct().join(bad, list(KEY), "left")
    every = every.join(F.broadcast(groups), ["chroot", "group"], "left")
    order = F.col("bad").desc_nulls_last(), F.col("place").asc_nulls_last(), *KEY
    taken = every.orderBy(*order).limit(MAX_ROWS)
    return sorted((r["chroot"], r["group"], r["topic"], r["partition"]) for r in taken.collect())


def _numbered(spans: DataFrame, rows: list[tuple[str, str, str, int]]) -> DataFrame:
    spark = spans.sparkSession
    listed = [(*row, number) for number, row in enumerate(rows)]
    ddl = "chroot string, `group` string, topic string, `partition` bigint, row int"
    return spans.join(F.broadcast(spark.createDataFrame(listed, ddl)), list(KEY))


def _cells(
    spans: DataFrame,
    rows: list[tuple[str, str, str, int]],
    members: dict[str, int],
    begin: int,
    width: int,
) -> list[list[int]]:
    """[row, first bucket, last bucket, member] where one member owned a partition the longest."""
    bucket = F.floor((F.col("a") - begin) / width), F.floor((F.col("b") - begin) / width)
    pieces = (
        _numbered(spans, rows)
        .where("b >= a")
        .select("row", "member", "a", "b", F.explode(F.sequence(*bucket)).alias("bucket"))
    )
    low = F.col("bucket") * width + begin
    owned_ms = F.least("b", low + width) - F.greatest("a", low)
    best = (
        pieces.groupBy("row", "bucket", "member")
        .agg(F.sum(owned_ms).alias("owned_ms"))
        .groupBy("row", "bucket")
        .agg(F.max_by("member", "owned_ms").alias("member"))
    )
    order = Window.partitionBy("row").orderBy("bucket")
    same = F.lag("member").over(order).eqNullSafe(F.col("member")) & (
        F.lag("bucket").over(order) == F.col("bucket") - 1
    )
    best = best.withColumn("opens", F.when(same, 0).otherwise(1))
    runs = (
        best.withColumn("run", F.sum("opens").over(order))
        .groupBy("row", "run")
        .agg(F.min("bucket"), F.max("bucket"), F.first("member"))
        .orderBy("row", "run")
    )
    return [
        [row[0], row[2], row[3], members.setdefault(row[4] or "?", len(members))]
        for row in runs.collect()  # at most MAX_ROWS * BUCKETS
    ]


def _exact(
    spans: DataFrame,
    rows: list[tuple[str, str, str, int]],
    members: dict[str, int],
    begin: int,
    end: int,
) -> dict[str, Any] | None:
    """All intervals of the rows as packed columns, which the page unpacks when it zooms in.

    One after the other: begin and end (uint32, in ``unit`` milliseconds since ``begin``), member
    (uint32), row (uint16), how it ended (uint8), in order of row and begin; zlib, then base64.
    """
    chosen = _numbered(spans, rows).where("b >= a").select("row", "a", "b", "member", "ended")
    taken = chosen.limit(MAX_EXACT + 1).toArrow()
    if taken.num_rows > MAX_EXACT:
        return None
    row, a, b = (taken[name].to_numpy() for name in ("row", "a", "b"))
    order = np.lexsort((a, row))
    unit = (end - begin >> 32) + 1
    texts = {}
    for name in ("member", "ended"):
        coded = taken[name].combine_chunks().dictionary_encode()
        texts[name] = coded.indices.fill_null(-1).to_numpy(), coded.dictionary.to_pylist()
    numbers, names = texts["member"]
    known = [members.setdefault(name or "?", len(members)) for name in [*names, None]]
    codes, ends = texts["ended"]
    columns = (
        ((a - begin) // unit).astype("<u4"),
        ((b - begin) // unit).astype("<u4"),
        np.array(known, "<u4")[numbers],
        row.astype("<u2"),
        codes.astype("u1"),
    )
    packed = zlib.compress(b"".join(column[order].tobytes() for column in columns))
    return {
        "count": taken.num_rows,
        "unit": unit,
        "ends": ends,
        "packed": base64.b64encode(packed).decode(),
    }


def _series(
    tables: dict[str, DataFrame], groups: list[dict[str, Any]], begin: int, width: int
) -> list[dict[str, Any]]:
    """For each group: members, commits and refused writes over the buckets."""

    def points(name: str, value: Any, kind: str) -> DataFrame:
        bucket = F.floor((F.unix_millis("time") - begin) / width)
        if kind == "members":  # members from before the first claim are there at the begin
            bucket = F.greatest(bucket, F.lit(0))
        return (
            tables[name]
            .join(chosen, ["chroot", "group"])
            .where("time is not null")
            .withColumn("bucket", bucket)
            .where(F.col("bucket").between(0, BUCKETS))
            .groupBy("place", "bucket")
            .agg(value.cast("bigint").alias("n"))
            .withColumn("kind", F.lit(kind))
        )

    chosen = F.broadcast(_as_frame(tables["commits"].sparkSession, groups))
    every = (
        points("membership", F.max_by("members", F.struct("zxid", "idx")), "members")
        .unionByName(points("commits", F.count_if(F.col("kind") == "commit"), "commits"))
        .unionByName(points("failed_claims", F.count(F.lit(1)), "refused"))
    )
    made: list[dict[str, Any]] = [
        group | {"members": [], "commits": [], "refused": []} for group in groups
    ]
    for row in every.orderBy("bucket").collect():  # at most MAX_GROUPS * BUCKETS * 3
        made[row["place"]][row["kind"]].append([row["bucket"], row["n"]])
    return made
