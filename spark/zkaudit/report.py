"""The report: one HTML page with everything in it, small however long the history is.

Spark cuts time into buckets; the page draws cells, not intervals. Findings are drawn exactly, and
so are intervals while there are few enough to send. Names come from ZooKeeper, so anybody may have
chosen them: they travel as JSON that cannot end its element and reach the page as text only. The
page may run its own script and nothing else (Content-Security-Policy). Runs in the driver's thread.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from zkaudit.findings import SEVERITIES
from zkaudit.job import load

BUCKETS: Final = 480
MAX_ROWS: Final = 500
"""Partitions in the timeline; those with findings come first."""
MAX_FINDINGS: Final = 2_000
MAX_EXACT: Final = 1_000_000
"""Intervals that are in the page exactly, packed; with more, the timeline shows cells only."""
MAX_GROUPS: Final = 200
MAX_HERDS: Final = 10

KEY: Final = ("chroot", "group", "topic", "partition")

LIMITS_OF_LOGS: Final = (
    "An owner znode is one path and ZooKeeper orders all writes to it, so it can never show two "
    "owners at once: two members that both believe to own a partition leave one owner in the logs. "
    "What shows an overlap is a commit by a session that did not own the partition, or members' "
    "journals.",
    "Reads are not logged: who looked at the group when, which view a member had, and which "
    "messages it delivered cannot be seen in them. Neither can watches; so the logs alone give an "
    "upper bound of a herd's size, no measure. Members' journals tell all three, of those members "
    "that kept one; the JVM's consumers keep none.",
    "Times are the leader's clock and only for reading; the order is that of the transactions. "
    "What journals tell is ordered by the members' own clocks, which may differ by a second.",
    "An offset stored in Kafka tells no session: a commit there can be seen to go back, not whose "
    "it was. Compaction keeps the last ones only.",
    "A refused write leaves its error but no path: refused claims are counted as refused creates "
    "of members' sessions.",
)


def write(spark: SparkSession, out: str | Path) -> Path:
    """Write ``OUT/report.html`` from the tables of an audit; return its path."""
    summary, tables = load(spark, out)
    page = Path(out) / "report.html"
    page.write_text(render(data_of(summary, tables)), encoding="utf-8")
    return page


def render(data: dict[str, Any]) -> str:
    """Return the page. ``data`` may hold any text."""
    files = resources.files("zkaudit")
    script = files.joinpath("report_page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = json.dumps(_visible(data), ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":  # no name can end the element
        text = text.replace(character, f"\\u{ord(character):04x}")
    page = files.joinpath("report_page.html").read_text(encoding="utf-8")
    return (
        page.replace("{{digest}}", digest).replace("{{script}}", script).replace("{{data}}", text)
    )


def _visible(value: Any) -> Any:
    """Escape what is invisible or turns text around, in every string of ``value``."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(item) for item in value]
    return value


def data_of(summary: dict[str, Any], tables: dict[str, DataFrame]) -> dict[str, Any]:
    """Return what the page shows, of a size that does not depend on the history's."""
    found = tables["findings"]
    rank = f.create_map(*[x for i, s in enumerate(SEVERITIES) for x in (f.lit(s), f.lit(i))])
    listed = [
        {
            "severity": row["severity"], "kind": row["kind"], "chroot": row["chroot"],
            "group": row["group"], "topic": row["topic"], "partition": row["partition"],
            "zxid": row["zxid"], "t": row["t"], "u": row["u"], "basis": row["basis"],
            "sentence": row["sentence"],
            "evidence": [[e["table"], e["zxid"], e["idx"], e["what"]] for e in row["evidence"]],
        }
        for row in found.withColumns(
            {"t": f.unix_millis("time"), "u": f.unix_millis("end_time")}
        ).orderBy(rank[f.col("severity")], "kind", "zxid").take(MAX_FINDINGS)
    ]  # fmt: skip
    owned = tables["ownership"].where("start_time is not null")
    spans = owned.select(
        *KEY,
        "member",
        "ended",
        f.unix_millis("start_time").alias("a"),
        f.unix_millis(f.coalesce("end_time", f.lit(summary["last_time"]).cast("timestamp"))).alias(
            "b"
        ),
    )
    times = spans.agg(f.min("a"), f.max("b")).first()
    begin, end = (int(times[0]), int(times[1])) if times and times[0] is not None else (0, 1)
    width = max(1, -(-(end - begin + 1) // BUCKETS))
    rows = _rows(found, owned)
    members: dict[str, int] = {}
    return {
        "summary": summary,
        "limits": list(LIMITS_OF_LOGS),
        "findings": listed,
        "begin": begin,
        "end": end,
        "width": width,
        "rows": [list(row) for row in rows],
        "partitions": owned.select(*KEY).distinct().count(),
        "cells": _cells(spans, rows, members, begin, width),
        "exact": _exact(spans, rows, members, begin, end),
        "groups": _series(tables, begin, width),
        "members": list(members),
        "herds": _herds(tables["herds"]),
    }


def _herds(herds: DataFrame) -> list[dict[str, Any]]:
    """The changes that woke most members."""
    names = ("chroot", "group", "member", "change", "basis", "notified", "rebalances", "reads")
    largest = herds.where("notified > 0").orderBy(f.col("notified").desc(), "group", "zxid")
    taken = largest.select(*names, f.unix_millis("time").alias("t")).take(MAX_HERDS)
    return [row.asDict() for row in taken]


def _rows(found: DataFrame, owned: DataFrame) -> list[tuple[str, str, str, int]]:
    """The partitions of the timeline, in order; with findings first when there are too many."""
    bad = found.where("partition is not null").select(*KEY).distinct().withColumn("bad", f.lit(1))
    every = owned.select(*KEY).distinct().join(bad, list(KEY), "left")
    taken = every.orderBy(f.col("bad").desc_nulls_last(), *KEY).limit(MAX_ROWS)
    return sorted((r["chroot"], r["group"], r["topic"], r["partition"]) for r in taken.collect())


def _numbered(spans: DataFrame, rows: list[tuple[str, str, str, int]]) -> DataFrame:
    spark = spans.sparkSession
    listed = [(*row, number) for number, row in enumerate(rows)]
    ddl = "chroot string, `group` string, topic string, `partition` bigint, row int"
    return spans.join(f.broadcast(spark.createDataFrame(listed, ddl)), list(KEY))


def _cells(
    spans: DataFrame,
    rows: list[tuple[str, str, str, int]],
    members: dict[str, int],
    begin: int,
    width: int,
) -> list[list[int]]:
    """[row, first bucket, last bucket, member] where one member held a partition the longest."""
    bucket = f.floor((f.col("a") - begin) / width), f.floor((f.col("b") - begin) / width)
    pieces = (
        _numbered(spans, rows)
        .where("b >= a")
        .select("row", "member", "a", "b", f.explode(f.sequence(*bucket)).alias("bucket"))
    )
    low = f.col("bucket") * width + begin
    held = f.least("b", low + width) - f.greatest("a", low)
    best = (
        pieces.groupBy("row", "bucket", "member")
        .agg(f.sum(held).alias("held"))
        .groupBy("row", "bucket")
        .agg(f.max_by("member", "held").alias("member"))
    )
    order = Window.partitionBy("row").orderBy("bucket")
    same = f.lag("member").over(order).eqNullSafe(f.col("member")) & (
        f.lag("bucket").over(order) == f.col("bucket") - 1
    )
    best = best.withColumn("opens", f.when(same, 0).otherwise(1))
    runs = (
        best.withColumn("run", f.sum("opens").over(order))
        .groupBy("row", "run")
        .agg(f.min("bucket"), f.max("bucket"), f.first("member"))
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


def _series(tables: dict[str, DataFrame], begin: int, width: int) -> list[dict[str, Any]]:
    """For each group: members, commits and refused writes over the buckets."""

    def points(name: str, value: Any, kind: str) -> DataFrame:
        bucket = f.floor((f.unix_millis("time") - begin) / width)
        if kind == "members":  # who came before the first claim is there at the begin
            bucket = f.greatest(bucket, f.lit(0))
        return (
            tables[name]
            .where("time is not null")
            .withColumn("bucket", bucket)
            .where(f.col("bucket").between(0, BUCKETS))
            .groupBy("chroot", "group", "bucket")
            .agg(value.cast("bigint").alias("n"))
            .withColumn("kind", f.lit(kind))
        )

    groups = tables["registrations"].select("chroot", "group").unionByName(
        tables["ownership"].select("chroot", "group")
    ).distinct().orderBy("chroot", "group").limit(MAX_GROUPS)  # fmt: skip
    every = (
        points("membership", f.max_by("members", f.struct("zxid", "idx")), "members")
        .unionByName(points("commits", f.count_if(f.col("kind") == "commit"), "commits"))
        .unionByName(points("failed_claims", f.count(f.lit(1)), "refused"))
        .join(f.broadcast(groups), ["chroot", "group"])
    )
    made: dict[tuple[str, str], dict[str, Any]] = {
        (row["chroot"], row["group"]): {
            "chroot": row["chroot"], "group": row["group"],
            "members": [], "commits": [], "refused": [],
        }
        for row in groups.collect()
    }  # fmt: skip
    for row in every.orderBy("bucket").collect():  # at most MAX_GROUPS * BUCKETS * 3
        made[row["chroot"], row["group"]][row["kind"]].append([row["bucket"], row["n"]])
    return list(made.values())
