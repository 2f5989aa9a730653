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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from zkaudit.errors import InputMissingError
from zkaudit.job.output import load
from zkaudit.job.place import write_atomically
from zkaudit.job.spark import check_group, settings_of
from zkaudit.limits import SEVERITIES
from zkaudit.report.verdict import Count, verdict
from zkaudit.show import command
from zkaudit.sources.selection import BEFORE_START, milliseconds
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

KEY: Final = ("chroot", "group_id", "topic", "partition")

_PRUNED: Final = {
    "spark.sql.parquet.pushdown.inFilterThreshold": str(MAX_GROUPS + MAX_ROWS),
}
"""Lets Parquet skip parts of files by lists of up to this many groups."""

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
    with settings_of(spark, _PRUNED):
        if group is not None:
            summary, tables = _of_groups(summary, tables, group)
            if not _group_names(tables).take(1):
                raise InputMissingError(no_group(group, f"the audit in {out} has"))
        text = render(data_of(summary, tables))
    if page is None:
        file = Path(out) / "report.html"
        write_atomically(file, text)  # part of a page would count as current
    else:  # maybe a pipe
        file = Path(page)
        file.write_text(text, encoding="utf-8")
    return file


def _among(groups: Iterable[str]) -> Column:
    """Whether the row's group has one of these names. Parquet can skip rows by it.

    Names are written as bytes, because they may contain anything.
    """
    names = ", ".join(f"cast(X'{name.encode().hex()}' as string)" for name in sorted(set(groups)))
    return F.expr(f"group_id in ({names})" if names else "false")


def _of_groups(
    summary: dict[str, Any], tables: dict[str, DataFrame], group: str
) -> tuple[dict[str, Any], dict[str, DataFrame]]:
    """The summary and the tables of the groups that match."""
    names = names_of(group)
    matches = F.col("group_id").rlike(rf"\A(?:{group})\z") if names is None else _among(names)
    chosen = {
        name: frame.where(_of_all(name) | matches) if "group_id" in frame.columns else frame
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


def _of_all(table: str) -> Column:
    """Whether a row concerns all groups: a finding about time that no log covers."""
    return F.col("group_id").isNull() if table == "findings" else F.lit(False)


def _moves_of(summary: dict[str, Any], chosen: DataFrame) -> list[dict[str, Any]]:
    """What the summary says of those groups that have a mode."""
    found: list[dict[str, Any]] = summary.get("migrations", [])
    names = chosen.select("chroot", "group_id").distinct().collect() if found else ()
    kept = {(row["chroot"], row["group_id"]) for row in names}
    return [row for row in found if (row["chroot"], row["group_id"]) in kept]


def render(data: dict[str, Any]) -> str:
    """Return the HTML page. ``data`` may contain any text."""
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
    """Return the data of the page, whose size does not depend on the length of the history."""
    found = tables["findings"]
    spark = found.sparkSession
    owned = tables["ownership"].where("start_time is not null")
    last = F.lit(summary["last_time"]).cast("timestamp")
    spans = owned.select(
        *KEY,
        "member",
        "ended",
        F.unix_millis("start_time").alias("a"),
        F.unix_millis(F.coalesce("end_time", last)).alias("b"),
    )
    earliest = _earliest(summary)
    if earliest is not None:
        spans = spans.where(F.col("b") >= earliest).withColumn(
            "a", F.greatest("a", F.lit(earliest))
        )
    listed = _listed(found, summary)
    every = _all_groups(tables)
    # The hash of a partition's name is enough to count partitions, and much faster.
    times = spans.agg(F.min("a"), F.max("b"), F.count_distinct(F.xxhash64(*KEY))).first()
    assert times is not None
    carried, others = every[:MAX_GROUPS], every[MAX_GROUPS:]
    begin, end = (int(times[0]), int(times[1])) if times[0] is not None else (0, 1)
    width = max(1, -(-(end - begin + 1) // BUCKETS))
    groups = _groups(tables, owned, carried, _modes(summary))
    chosen = _as_frame(spark, groups)
    members: dict[str, int] = {}
    rows = _rows(found, owned, chosen, _worst_groups(listed, carried))
    exact = _intervals(spans, rows)
    return {
        "summary": summary,
        "verdict": verdict(_counts(found), summary),
        "only": _only(summary.get("group")),
        "limits": list(LIMITS_OF_LOGS),
        "findings": listed,
        "begin": begin,
        "end": end,
        "clamped": earliest is not None,
        "width": width,
        "rows": [list(row) for row in rows],
        "partitions": times[2],
        "cells": _cells(spans, rows, members, begin, width)
        if exact is None
        else _cells_of(exact, len(rows), members, begin, width),
        "exact": None if exact is None else _packed(exact, members, begin, end),
        "groups": _series(tables, groups, begin, width),
        "all_groups": len(every),
        "others": _others(others),
        "members": list(members),
        "herds": _herds(tables["herds"], chosen),
        "changes": tables["herds"].count(),
    }


def _listed(found: DataFrame, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The worst findings."""
    times = {"t": F.unix_millis("time"), "u": F.unix_millis("end_time")}
    return [
        {
            "id": row["id"],
            "severity": row["severity"], "kind": row["kind"], "chroot": row["chroot"],
            "group_id": row["group_id"], "topic": row["topic"], "partition": row["partition"],
            "zxid": row["zxid"], "t": row["t"], "u": row["u"], "basis": row["basis"],
            "sentence": row["sentence"], "member": row["member"],
            "effect": row["effect"], "messages": row["messages"],
            "place": row["file"] and f"{row['server']}: {row['file']}, byte {row['position']}",
            "command": command(row["zxid"], summary.get("directories", ())),
            "evidence": [[e["table"], e["zxid"], e["idx"], e["what"]] for e in row["evidence"]],
        }
        for row in found.withColumns(times).orderBy(_rank(), "kind", "zxid").take(MAX_FINDINGS)
    ]  # fmt: skip


def _earliest(summary: dict[str, Any]) -> int | None:
    """When the timeline begins, in milliseconds since 1970; ``None``: with the first owner.

    For a time range this is where the audit begins to read the logs. Most owners have been there
    for weeks then.
    """
    start = summary.get("from")
    return None if start is None else milliseconds(start, -BEFORE_START)


def _modes(summary: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The mode of each group that still has one, by chroot and name."""
    return {
        (row["chroot"], row["group_id"]): row["mode"]
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
        F.count_distinct("chroot", "group_id").alias("groups"),
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
        tables[name].select("chroot", "group_id")
        for name in ("findings", "registrations", "ownership", "commits")
    ]
    return reduce(DataFrame.unionByName, named).where(F.col("group_id").isNotNull()).distinct()


@dataclass(frozen=True, slots=True)
class _Group:
    """A group, and how many findings it has of each severity (its number) and kind, worst first."""

    chroot: str
    name: str
    kinds: Sequence[tuple[int, str, int]] = ()

    @property
    def worst(self) -> str | None:
        """The severity of its worst finding."""
        return SEVERITIES[self.kinds[0][0]] if self.kinds else None

    @property
    def findings(self) -> int:
        """How many findings it has."""
        return sum(count for _, _, count in self.kinds)


def _all_groups(tables: dict[str, DataFrame]) -> list[_Group]:
    """Every group of the audit: those with the worst findings first, then those with most."""
    counts = tables["findings"].groupBy("chroot", "group_id", "severity", "kind").count().toArrow()
    kinds: dict[tuple[str, str], list[tuple[int, str, int]]] = {}
    for chroot, group, severity, kind, count in _rows_of(counts):
        kinds.setdefault((chroot, group), []).append((SEVERITIES.index(severity), kind, count))
    every = [
        _Group(chroot, name, sorted(kinds.get((chroot, name), ())))
        for chroot, name in _rows_of(_group_names(tables).toArrow())
    ]
    return sorted(
        every,
        key=lambda g: (
            g.kinds[0][0] if g.kinds else len(SEVERITIES), -g.findings, g.chroot, g.name,
        ),
    )  # fmt: skip


def _rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*[column.to_pylist() for column in table.columns], strict=True)


def _groups(
    tables: dict[str, DataFrame],
    owned: DataFrame,
    carried: Sequence[_Group],
    modes: dict[tuple[str, str], str],
) -> list[dict[str, Any]]:
    """The groups that the page carries, and how much of each there is."""
    among = _among(group.name for group in carried)

    def counted(frame: DataFrame, value: Column) -> dict[tuple[str, str], int]:
        rows = frame.where(among).groupBy("chroot", "group_id").agg(value.alias("n")).collect()
        return {(row["chroot"], row["group_id"]): row["n"] for row in rows}

    partitions = counted(owned, F.count_distinct("topic", "partition"))
    changes = counted(tables["herds"], F.count(F.lit(1)))
    return [
        {
            "chroot": group.chroot, "group_id": group.name, "worst": group.worst,
            "findings": group.findings, "partitions": partitions.get((group.chroot, group.name), 0),
            "changes": changes.get((group.chroot, group.name), 0),
            "mode": modes.get((group.chroot, group.name)),
        }
        for group in carried
    ]  # fmt: skip


def _worst_groups(listed: Sequence[dict[str, Any]], carried: Sequence[_Group]) -> set[str]:
    """Names of the groups whose partitions may be in the timeline."""
    bad = [f["group_id"] for f in listed if f["partition"] is not None][:MAX_ROWS]
    return {*bad, *(group.name for group in carried)}


def _others(groups: Sequence[_Group]) -> dict[str, Any] | None:
    """The groups that are not in the page, packed: the page unpacks them for a search.

    JSON, then zlib, then base64. ``group``: pairs of chroot and name. ``found``: for each group
    that has findings, numbers in ``kinds`` and how many findings there are.
    """
    if not groups:
        return None
    chroots: dict[str, int] = {}
    kinds: dict[tuple[str, str], int] = {}
    found = [
        [x for rank, kind, count in group.kinds
         for x in (kinds.setdefault((SEVERITIES[rank], kind), len(kinds)), count)]
        for group in groups
        if group.kinds
    ]  # fmt: skip
    content = {
        "names": [printable(group.name) for group in groups],
        "chroot": [chroots.setdefault(printable(group.chroot), len(chroots)) for group in groups],
        "chroots": list(chroots),
        "kinds": list(kinds),
        "found": found,
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return {"count": len(groups), "packed": _base64(text.encode())}


def _base64(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


def _as_frame(spark: SparkSession, groups: list[dict[str, Any]]) -> DataFrame:
    listed = [(group["chroot"], group["group_id"], place) for place, group in enumerate(groups)]
    return spark.createDataFrame(listed, "chroot string, group_id string, place int")


def _herds(herds: DataFrame, groups: DataFrame) -> list[dict[str, Any]]:
    """The changes that woke most members: of all groups, and of each group in the page."""
    figures = ("notified", "rebalances", "reads")
    names = ("chroot", "group_id", "member", "change", "basis", "cause", *figures)
    order = (F.col("notified").desc(), "chroot", "group_id", "zxid", "idx", "member")
    woke = herds.where("notified > 0")
    largest = woke.orderBy(*order).limit(MAX_HERDS)
    ranked = woke.join(F.broadcast(groups), ["chroot", "group_id"]).withColumn(
        "rank", F.row_number().over(Window.partitionBy("chroot", "group_id").orderBy(*order))
    )
    of_groups = ranked.where(F.col("rank") <= MAX_HERDS_OF_GROUP).select(herds.columns)
    taken = largest.unionByName(of_groups).distinct().orderBy(*order)
    return [
        row.asDict() for row in taken.select(*names, F.unix_millis("time").alias("t")).collect()
    ]


def _rows(
    found: DataFrame, owned: DataFrame, groups: DataFrame, names: set[str]
) -> list[tuple[str, str, str, int]]:
    """The partitions of the timeline, those of the worst groups first.

    When there are too many, those with findings are taken first, then those of the groups in the
    page. Only groups with these names are read.
    """
    among = _among(names)
    found, owned = found.where(among), owned.where(among)
    bad = found.where("partition is not null").select(*KEY).distinct().withColumn("bad", F.lit(1))
    every = owned.select(*KEY).distinct().join(bad, list(KEY), "left")
    every = every.join(F.broadcast(groups), ["chroot", "group_id"], "left")
    order = F.col("bad").desc_nulls_last(), F.col("place").asc_nulls_last(), *KEY
    taken = every.orderBy(*order).limit(MAX_ROWS)
    listed = [(r["place"], (r["chroot"], r["group_id"], r["topic"], r["partition"]))
              for r in taken.collect()]  # fmt: skip
    return [key for _, key in sorted(listed, key=lambda r: (r[0] is None, r[0] or 0, r[1]))]


def _numbered(spans: DataFrame, rows: list[tuple[str, str, str, int]]) -> DataFrame:
    spark = spans.sparkSession
    listed = [(*row, number) for number, row in enumerate(rows)]
    ddl = "chroot string, group_id string, topic string, `partition` bigint, row int"
    numbered = F.broadcast(spark.createDataFrame(listed, ddl))
    return spans.where(_among(row[1] for row in rows)).join(numbered, list(KEY)).where("b >= a")


def _cells(
    spans: DataFrame,
    rows: list[tuple[str, str, str, int]],
    members: dict[str, int],
    begin: int,
    width: int,
) -> list[list[int]]:
    """For each row: first bucket, last bucket and member of each run of buckets in which one member
    owned the partition the longest; then those of the next run."""
    bucket = F.floor((F.col("a") - begin) / width), F.floor((F.col("b") - begin) / width)
    pieces = _numbered(spans, rows).select(
        "row", "member", "a", "b", F.explode(F.sequence(*bucket)).alias("bucket")
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
    cells: list[list[int]] = [[] for _ in rows]
    for row, _, first, last, member in runs.collect():  # at most MAX_ROWS * BUCKETS
        cells[row] += [first, last, members.setdefault(member or "?", len(members))]
    return cells


@dataclass(frozen=True, slots=True)
class _Intervals:
    """The intervals of the rows as columns, sorted by row and begin."""

    row: np.ndarray
    a: np.ndarray
    b: np.ndarray
    member: np.ndarray
    """Positions in ``names``."""
    names: list[str]
    ended: np.ndarray
    """Positions in ``ends``."""
    ends: list[str]

    def numbers(self, members: dict[str, int]) -> np.ndarray:
        """Return the number of each of ``names`` on the page."""
        return np.array([members.setdefault(n or "?", len(members)) for n in self.names], "i8")


def _intervals(spans: DataFrame, rows: list[tuple[str, str, str, int]]) -> _Intervals | None:
    """All intervals of the rows; ``None`` if there are too many."""
    chosen = _numbered(spans, rows).select("row", "a", "b", "member", "ended")
    taken = chosen.limit(MAX_EXACT + 1).toArrow()
    if taken.num_rows > MAX_EXACT:
        return None
    row, a, b = (taken[name].to_numpy() for name in ("row", "a", "b"))
    order = np.lexsort((a, row))
    texts = []
    for name in ("member", "ended"):
        coded = taken[name].combine_chunks().fill_null("?").dictionary_encode()
        texts += [coded.indices.to_numpy()[order], coded.dictionary.to_pylist()]
    return _Intervals(row[order], a[order], b[order], *texts)


def _cells_of(
    spans: _Intervals, rows: int, members: dict[str, int], begin: int, width: int
) -> list[list[int]]:
    """The same as ``_cells``, computed from intervals in memory."""
    cells: list[list[int]] = [[] for _ in range(rows)]
    if not len(spans.row):
        return cells
    first, last = (spans.a - begin) // width, (spans.b - begin) // width
    many = last - first + 1
    of = np.repeat(np.arange(len(many)), many)
    bucket = np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many) + first[of]
    low = bucket * width + begin
    owned_ms = np.minimum(spans.b[of], low + width) - np.maximum(spans.a[of], low)
    place = spans.row[of].astype("i8") * (BUCKETS + 1) + bucket
    key = place * len(spans.names) + spans.member[of]
    keys, number = np.unique(key, return_inverse=True)
    total = np.bincount(number, owned_ms)
    places = keys // len(spans.names)
    order = np.lexsort((total, places))  # the last of each place has the most
    best = order[np.append(places[1:] != places[:-1], True)]
    place, member = places[best], keys[best] % len(spans.names)
    row, bucket = place // (BUCKETS + 1), place % (BUCKETS + 1)
    same = (place[1:] == place[:-1] + 1) & (row[1:] == row[:-1]) & (member[1:] == member[:-1])
    opens = np.flatnonzero(np.append(True, ~same))
    closes = np.append(opens[1:], len(place)) - 1
    runs = (row[opens], bucket[opens], bucket[closes], spans.numbers(members)[member[opens]])
    for at, *run in zip(*[column.tolist() for column in runs], strict=True):
        cells[at] += run
    return cells


def _packed(spans: _Intervals, members: dict[str, int], begin: int, end: int) -> dict[str, Any]:
    """Intervals as packed columns, which the page unpacks when it zooms in.

    One column after the other, in order of row and begin: row, time since the end of the interval
    before it in the same row, length, member, how it ended. Times are in ``unit`` milliseconds, the
    first of a row since ``begin``. A column has ``bytes`` bytes for each interval: first the lowest
    byte of all, then the next. That packs best. Then zlib, then base64.
    """
    unit = (end - begin >> 32) + 1
    a, b = ((times - begin) // unit for times in (spans.a, spans.b))
    first = np.diff(spans.row, prepend=-1) != 0
    before = np.where(first, 0, np.append(0, b[:-1])[: len(b)])
    columns = (spans.row, a - before, b - a, spans.numbers(members)[spans.member], spans.ended)
    sizes, planes = [], []
    for column in columns:
        raw = column.astype("<u4").view("u1").reshape(-1, 4)
        size = next((n for n in (4, 3, 2) if raw[:, n - 1].any()), 1)
        sizes.append(size)
        planes += [raw[:, n].tobytes() for n in range(size)]
    return {
        "count": len(a), "unit": unit, "ends": spans.ends, "bytes": sizes,
        "packed": _base64(b"".join(planes)),
    }  # fmt: skip


def _series(
    tables: dict[str, DataFrame], groups: list[dict[str, Any]], begin: int, width: int
) -> list[dict[str, Any]]:
    """For each group: members, commits and refused writes over the buckets."""

    def points(name: str, value: Any, kind: str) -> DataFrame:
        bucket = F.floor((F.unix_millis("time") - begin) / width)
        if kind == "members":  # members from before the first claim are there at the beginning
            bucket = F.greatest(bucket, F.lit(0))
        return (
            tables[name]
            .where(among)
            .join(chosen, ["chroot", "group_id"])
            .where("time is not null")
            .withColumn("bucket", bucket)
            .where(F.col("bucket").between(0, BUCKETS))
            .groupBy("place", "bucket")
            .agg(value.cast("bigint").alias("n"))
            .withColumn("kind", F.lit(kind))
        )

    among = _among(group["group_id"] for group in groups)
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
