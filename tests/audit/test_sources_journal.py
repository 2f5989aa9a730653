"""Journals as rows: every line becomes a row, even if it cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from zkaudit.schema import journal_columns, spark_type
from zkaudit.sources import journal as module
from zkaudit.sources.journal import (
    JournalReader,
    read_journal_batches,
    read_journal_rows,
    register,
)

RUN = {"at": 1, "kind": "run", "schema": 1, "clock": "epoch", "settings": {"group": "g"}}
EVENT = {"at": 2, "kind": "event", "name": "Claimed", "member": "m", "session": "0x1", "attempt": 1}
GOOD = [RUN, EVENT | {"offsets": {"t-0": 5}, "partitions": ["t-0"]}, EVENT | {"path": "/a\u20ac"}]
BAD = {
    b"no json\n": "cannot be read",
    b"[1]\n": "not a JSON object",
    b'{"at": 3, "kind": "other"}\n': "kind 'other'",
    b'{"at": "3", "kind": "action", "name": "n"}\n': "at must be integer",
    b'{"at": 9223372036854775808, "kind": "action", "name": "n"}\n': "64 bits",
    b'{"at": 3, "kind": "action", "name": "\\ud800"}\n': "surrogate",
    b"\xff\xfe\n": "cannot be read",
    b"[" * 100_000 + b"\n": "cannot be read",
    b'{"at": 3, "kind": "ev': "no newline",
}


def write(path: Path) -> None:
    """A journal with good lines first, then each bad line followed by a good one."""
    lines = [json.dumps(entry).encode() + b"\n" for entry in GOOD]
    for bad in BAD:
        lines += [lines[1], bad]
    path.write_bytes(b"".join(lines))


def test_lines_that_cannot_be_read_are_kept_with_the_reason(tmp_path: Path) -> None:
    """Only the bad line itself is lost. Its number, text and reason remain, and later lines are
    read."""
    write(tmp_path / "a.jsonl")
    rows = list(read_journal_rows(tmp_path / "a.jsonl"))
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    faults = [row for row in rows if "fault" in row]
    assert len(rows) == len(GOOD) + 2 * len(BAD)
    assert len(faults) == len(BAD)
    for row, (line, reason) in zip(faults, BAD.items(), strict=True):
        assert reason in row["fault"], row
        assert row["text"] == line.decode("utf-8", "replace").rstrip("\n")[:4096]
    table = pa.Table.from_batches(read_journal_batches(tmp_path / "a.jsonl"))
    second = table.slice(1, 1).to_pylist()[0]
    assert second["offsets"] == [("t-0", 5)]
    assert second["partitions"] == ["t-0"]


def test_small_journals_share_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task costs more than reading a small file. Each line is read once."""
    for number in range(9):
        write(tmp_path / f"{number}.jsonl")
    reader = JournalReader(str(tmp_path))
    for most, tasks in ((module._TASK_BYTES, 1), (1, 9)):
        monkeypatch.setattr(module, "_TASK_BYTES", most)
        parts = reader.partitions()
        assert len(parts) == tasks
        rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
        assert rows == 9 * (len(GOOD) + 2 * len(BAD))


def test_spark_reads_journals_of_a_directory(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads all journals below a directory with the declared columns. Malformed lines can be
    counted."""
    register(spark)
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name)
    (tmp_path / "other.txt").write_text("no journal")
    frame = spark.read.format("zkaudit_journal").load(str(tmp_path))
    assert frame.schema == spark_type(journal_columns())
    rows = frame.collect()
    assert len(rows) == 2 * (len(GOOD) + 2 * len(BAD))
    assert sum(row.fault is not None for row in rows) == 2 * len(BAD)
    (settings,) = {tuple(row.settings.items()) for row in rows if row.kind == "run"}
    assert settings == (("group", "g"),)
