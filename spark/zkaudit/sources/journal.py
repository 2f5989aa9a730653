"""Members' journals (JSON Lines) as rows, and the Spark data source ``zkaudit_journal``.

Every line gives one row with the columns of ``schema.journal_columns``. The row of an unreadable
line has its number, its text and the reason. Later lines are still read, because a line never
contains a newline. Runs in Spark's Python workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from zkaudit import schema
from zkaudit.errors import InputMissingError
from zkaudit.sources.files import Piece, pack
from zkaudit.storage import Place, missing, place_of, shown, stream, written
from zkconsumer.journal.json_lines import check_entry, parse_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

ROWS: Final = 10_000
MOST_TEXT: Final = 4_096
_LONGEST: Final = 16 << 20
_TASK_BYTES: Final = 16 << 20
"""Number of bytes per task. Lines are parsed one at a time, so a task takes about two seconds."""
_INT64: Final = range(-(1 << 63), 1 << 63)


def register(spark: SparkSession) -> None:
    """Register the format ``zkaudit_journal`` with a session."""
    spark.dataSource.register(ZkauditJournal)


def read_journal_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield one row for each line of a journal. Raises ``OSError``.

    A last line without a newline also counts as a fault: it is still being written, or its writer
    was killed.
    """
    name = shown(path)
    with stream(path) as file:
        number = 0
        while line := file.readline(_LONGEST):
            number += 1
            entry, fault = _parse(line)
            row: dict[str, Any] = {"file": name, "line": number}
            if fault:
                text = line[: MOST_TEXT * 4].decode("utf-8", "replace").rstrip("\r\n")[:MOST_TEXT]
                yield row | {"fault": fault, "text": text}
            else:
                yield row | entry


def _parse(line: bytes) -> tuple[dict[str, Any], str]:
    if not line.endswith(b"\n"):
        return {}, "the line has no newline: it is cut off, or longer than 16 MiB"
    try:
        entry = parse_line(line)
    except (ValueError, RecursionError) as error:
        return {}, f"the line cannot be read: {error}"
    fault = check_entry(entry)
    if not fault:
        values = [v for value in entry.values() for v in _numbers(value)]
        if any(value not in _INT64 for value in values):
            fault = "a number does not fit into 64 bits"
        elif "\\ud" in line.decode("ascii", "ignore").lower() and not _is_text(entry):
            fault = "invalid text: a lone surrogate"
    return entry, fault


def _numbers(value: Any) -> list[int]:
    inner = list(value.values()) if isinstance(value, dict) else [value]
    return [item for item in inner if isinstance(item, int)]


def _is_text(entry: Any) -> bool:
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_journal_batches(path: str | Path) -> Iterator[pa.RecordBatch]:
    """Yield a journal's lines in the columns of ``schema.journal_columns``. Raises ``OSError``."""
    import pyarrow as pa

    columns = schema.arrow_schema(schema.journal_columns())
    rows = read_journal_rows(path)
    while part := list(islice(rows, ROWS)):
        arrays = []
        for field in columns:
            values = [row.get(field.name) for row in part]
            if pa.types.is_map(field.type):
                values = [None if value is None else list(value.items()) for value in values]
            arrays.append(pa.array(values, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


@dataclass
class _Journals(InputPartition):
    paths: tuple[str, ...]


class ZkauditJournal(DataSource):
    """The source ``zkaudit_journal``, for members' journals. ``load`` takes paths or URLs,
    separated by commas: files, or directories (all ``*.jsonl`` below)."""

    @classmethod
    def name(cls) -> str:
        """Name of the source for ``spark.read.format``."""
        return "zkaudit_journal"

    def schema(self) -> StructType:
        """The columns of ``schema.journal_columns``."""
        return schema.spark_type(schema.journal_columns())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all journals that exist now."""
        return JournalReader(self.options.get("path", ""))


class JournalReader(DataSourceReader):
    """Reads journals. Several small ones are read in one task. ``paths``: as for
    ``ZkauditJournal``."""

    def __init__(self, paths: str) -> None:
        self.paths = paths

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises InputMissingError for a path that does not exist."""
        found: list[Piece] = []
        for name in filter(None, (part.strip() for part in self.paths.split(","))):
            place = place_of(name)
            if not place.exists():
                raise InputMissingError(missing(name, "journal or directory of journals"))
            below: Iterable[Place] = place.rglob("*.jsonl") if place.is_dir() else [place]
            found += [Piece("", str(file), 0, written(file)) for file in sorted(below, key=str)]
        return [_Journals(tuple(piece.path for piece in task)) for task in pack(found, _TASK_BYTES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Parse the journals of one task."""
        if not isinstance(partition, _Journals):  # Spark's own: there is nothing to read
            return
        for path in partition.paths:
            yield from read_journal_batches(path)
