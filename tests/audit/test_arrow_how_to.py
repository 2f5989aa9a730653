"""The Spark block of ``docs/how-to/read-with-arrow.md`` works on files that the command wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zkconsumer.broker.fetching.columns import of_records
from zkconsumer.broker.fetching.records import Record, TimestampType
from zkconsumer.cli.consume.file_sink import FileSink

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-with-arrow.md"


def test_spark_reads_the_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark counts the messages of each country. One file exists twice, as after a crash, and
    counts once."""
    records: list[Record] = [
        (
            *("t", 0, n, None, b'{"country": "%s"}' % (b"fr" if n % 3 else b"de"), 1000 + n),
            *(TimestampType.CREATE_TIME, (("h", b"x"),) if n % 10 == 0 else ()),
        )
        for n in range(300)
    ]
    sink = FileSink(tmp_path / "events-files", "parquet", 200, 60.0, None)
    for part in (records[:200], records[200:], records[200:]):
        assert sink.add(of_records("t", 0, part))
        sink.flush()
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text().split("\n## Spark\n")[1].split("```python\n")[1].split("```")[0]
    # The tests' session replaces the session that the block creates.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("spark = "))
    names: dict[str, Any] = {"spark": spark}
    path = str(tmp_path / "events-files")
    exec(compile(text.replace('"events-files"', repr(path)), PAGE.name, "exec"), names)
    assert {row["country"]: row["count"] for row in names["result"].collect()} == {
        "de": 100,
        "fr": 200,
    }
