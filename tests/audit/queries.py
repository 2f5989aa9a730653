"""The questions of ``docs/examples/audit.sql``, answered by Spark and by DuckDB."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession
from zkaudit.job.place import finished
from zkaudit.tables import catalog

FILE = Path(__file__).parents[2] / "docs" / "examples" / "audit.sql"
Rows = list[tuple[Any, ...]]


def queries() -> dict[str, str]:
    """The queries by name, without the comments."""
    parts = re.findall(r"^-- (\w+): .*\n((?:(?!--).*\n)+)", FILE.read_text(), re.MULTILINE)
    return {name: text.strip().rstrip(";") for name, text in parts}


def opened(out: Path) -> duckdb.DuckDBPyConnection:
    """The tables of a finished audit in DuckDB."""
    duck = duckdb.connect()
    for table in catalog.TABLES:
        files = finished(out)[1] / table.name / "*.parquet"
        duck.execute(f"CREATE VIEW {table.name} AS SELECT * FROM read_parquet('{files}')")
    return duck


def broken(out: Path) -> dict[str, Rows]:
    """What the catalog promises and a table does not keep: keys that several rows have, and rows
    with a null in a column that is never null."""
    duck, found = opened(out), {}
    for table in catalog.TABLES:
        key = ", ".join(f'"{name}"' for name in table.key.split())
        text = f"SELECT {key} FROM {table.name} GROUP BY {key} HAVING count(*) > 1"
        found[table.name] = duck.execute(text).fetchall()
        for column in (column for column in table.columns if not column.nullable):
            text = f'SELECT {key} FROM {table.name} WHERE "{column.name}" IS NULL'
            found[f"{table.name}.{column.name}"] = duck.execute(text).fetchall()
    return {name: rows for name, rows in found.items() if rows}


def both(spark: SparkSession, out: Path, *names: str) -> dict[str, tuple[Rows, Rows]]:
    """For each query, or those with these names, the rows by Spark and by DuckDB, sorted. ``out``:
    a finished audit."""
    place, duck = finished(out)[1], opened(out)
    for table in catalog.TABLES:
        rows = spark.read.schema(table.spark_type()).parquet(str(place / table.name))
        rows.createOrReplaceTempView(table.name)
    try:
        return {
            name: (
                _plain([tuple(row) for row in spark.sql(text).collect()]),
                _plain(duck.execute(text).fetchall()),
            )
            for name, text in queries().items()
            if not names or name in names
        }
    finally:
        for table in catalog.TABLES:
            spark.catalog.dropTempView(table.name)


def _plain(rows: Rows) -> Rows:
    """Sorted, with times that can be compared."""
    plain = [tuple(v.timestamp() if isinstance(v, datetime) else v for v in row) for row in rows]
    return sorted(plain, key=repr)
