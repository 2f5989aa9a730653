"""Histories written by hand, their tables and their findings, without files.

Frames are kept in the driver's memory, so Spark knows how many rows they have.
What is computed from an empty frame is left out of later plans, and planning takes longer than all
else here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from zkaudit import schema
from zkaudit.findings.base import Tables
from zkaudit.findings.outside import from_records
from zkaudit.findings.rules import findings
from zkaudit.group import Moment
from zkaudit.history import staging
from zkaudit.history.facts import read_facts
from zkaudit.limits import Limits
from zkaudit.sources import selection
from zkaudit.tables import build, catalog, causes, journals

EPOCH = datetime(2026, 11, 21, tzinfo=UTC)
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


def frame_of(spark: SparkSession, columns: StructType, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Rows written by hand. Columns that a row does not name are null."""
    values = list(rows)
    assert all(row.keys() <= set(columns.names) for row in values), columns.names
    maps = [field.name for field in columns if isinstance(field.dataType, MapType)]
    for name in maps:  # Arrow takes maps as pairs
        values = [
            row | {name: list(row[name].items())} if row.get(name) is not None else row
            for row in values
        ]
    return spark.createDataFrame(
        pa.Table.from_pylist(values, schema=schema.arrow_of(columns)), columns
    )


def logged(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """A transaction log, which may have more columns than the audit reads."""
    names = [column.name for column in schema.TXNLOG]
    values = [{name: row.get(name) for name in names} for row in rows]
    return frame_of(spark, schema.spark_type(schema.TXNLOG), values)


def in_snapshots(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """What snapshots show."""
    return frame_of(spark, schema.spark_type(schema.SNAPSHOT), rows)


def kept(frame: DataFrame) -> DataFrame:
    """Compute the rows of a frame once."""
    return frame.sparkSession.createDataFrame(_for_arrow(frame).toArrow())


def _for_arrow(frame: DataFrame) -> DataFrame:
    """The same rows, as Arrow takes them.

    Spark writes nulls into fields of structs that it calls non-nullable, if the struct is null.
    Arrow does not take them, so all fields are nullable here.
    """
    nested = {
        field.name: F.col(field.name).cast(_nullable(field.dataType))
        for field in frame.schema
        if isinstance(field.dataType, ArrayType | MapType | StructType)
    }
    return frame.withColumns(nested) if nested else frame


def _nullable(kind: DataType) -> DataType:
    match kind:
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
        case StructType():
            return StructType([StructField(f.name, _nullable(f.dataType)) for f in kind])
    return kind


def keep(_: str, frame: DataFrame) -> DataFrame:
    """``kept`` for functions that name what they store."""
    return kept(frame)


class History:
    """A log written by hand. Each step takes a second unless it says otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.zxid = 0
        self.now = EPOCH

    def add(self, kind: str, session: int, path: str | None = None, **more: Any) -> None:
        self.zxid += 1
        self.now += timedelta(seconds=more.pop("seconds", 1))
        self.rows.append(
            {"server": "a", "file": "log.1", "position": self.zxid, "zxid": self.zxid, "idx": 0,
             "size": 0, "time": self.now, "session": session, "cxid": 1, "type": kind,
             "path": path, **more}
        )  # fmt: skip

    def join(
        self, group: str, member: str, session: int, data: bytes = REGISTRATION, **more: Any
    ) -> None:
        path = f"/consumers/{group}/ids/{member}"
        self.add("create", session, path, data=data, ephemeral=True, **more)

    def topic(self, name: str, partitions: int) -> None:
        numbers = {str(n): [0] for n in range(partitions)}
        data = json.dumps({"version": 1, "partitions": numbers}).encode()
        self.add("create", 7, f"/brokers/topics/{name}", data=data, ephemeral=False)

    def move(self, group: str, store: str, session: int) -> None:
        data = json.dumps({"version": 1, "moved_to": store, "at_ms": 1, "offsets": {}}).encode()
        self.add("create", session, f"/consumers/{group}/migration", data=data, ephemeral=False)

    def mirror(self, group: str, offsets: Sequence[int], session: int) -> None:
        """One transaction of the group's mirror. Without offsets, ZooKeeper leads."""
        path = f"/consumers/{group}/record/mirror"
        self.add("setData", session, path, data=b"{}", version=1, size=1)
        for number, offset in enumerate(offsets):
            self.zxid -= 1
            more = {"idx": 1 + number, "position": self.zxid + 1, "version": 1, "size": 1}
            self.commit(group, number, offset, session, seconds=0, **more)

    def claim(
        self, group: str, partition: int, member: str, session: int, topic: str = "t", **more: Any
    ) -> None:
        path = f"/consumers/{group}/owners/{topic}/{partition}"
        self.add("create", session, path, data=f"{member}-0".encode(), ephemeral=True, **more)

    def leave(self, group: str, member: str, session: int, **more: Any) -> None:
        self.add("delete", session, f"/consumers/{group}/ids/{member}", **more)

    def release(self, group: str, partition: int, session: int, **more: Any) -> None:
        self.add("delete", session, f"/consumers/{group}/owners/t/{partition}", **more)

    def commit(self, group: str, partition: int, offset: int, session: int, **more: Any) -> None:
        path = f"/consumers/{group}/offsets/t/{partition}"
        self.add("setData", session, path, data=str(offset).encode(), **more)


def registration(pattern: str, name: str, streams: int = 1) -> bytes:
    """A registration that subscribes to something other than topic t."""
    return json.dumps(
        {"version": 1, "subscription": {name: streams}, "pattern": pattern, "timestamp": "1"}
    ).encode()


def tables_of(
    spark: SparkSession,
    history: History,
    log_gaps: tuple[tuple[int, int], ...] = (),
    journal: tuple[Path, ...] = (),
    snapshots: Sequence[dict[str, Any]] = (),
    limits: Limits | None = None,
) -> tuple[Tables, staging.Stage]:
    """All tables of a history. ``snapshots``: rows of ``schema.SNAPSHOT``."""
    shown = in_snapshots(spark, snapshots) if snapshots else None
    known = selection.known(log_gaps, {row["zxid"] for row in snapshots})
    rows = logged(spark, history.rows)
    first = next((row for row in history.rows if row["zxid"] > (known[-1] or 0)), None)
    known_us = round(first["time"].timestamp() * 1e6) if known[-1] and first else None
    nodes = None if shown is None else staging.shared_nodes(shown)
    end_us = round(history.now.timestamp() * 1e6)
    reader = read_facts(staging.shared_rows(rows), nodes, log_gaps)
    facts = reader.facts(Moment(history.zxid, 0, end_us), known_us)
    stage = staging.stage(
        rows, log_gaps, shown, keep=keep, known=known, facts=facts, limits=limits or Limits()
    )

    def table(spec: catalog.Table, frame: DataFrame) -> DataFrame:
        return kept(spec.shape(frame))

    members = table(catalog.REGISTRATIONS, build.registrations(stage))
    lines = kept(journals.lines(kept(journals.read(spark, journal)), members))
    made = Tables(
        registrations=members,
        commits=table(catalog.COMMITS, stage.commits),
        herds=table(catalog.HERDS, causes.herds(stage.rows("membership"), lines)),
        deliveries=table(catalog.DELIVERIES, journals.deliveries(lines)),
        views=table(catalog.VIEWS, journals.views(lines)),
        has_journals=bool(journal),
        end_us=end_us,
        known=known,
        log_gaps=log_gaps,
    )
    return made, stage


def findings_of(tables: Tables, stage: staging.Stage, limits: Limits | None = None) -> DataFrame:
    """What all rules find."""
    records = from_records(tables, limits or Limits())
    return kept(findings(stage.rows("findings"), records, tables.has_journals))
