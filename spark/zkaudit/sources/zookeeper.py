"""Spark data sources ``zookeeper_txnlog`` and ``zookeeper_snapshot``.

``register(spark)`` registers them with a session; importing this module starts nothing. Planning
runs in a Python worker of the driver, ``read`` in the executors' Python workers. zkaudit must be
installed on both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from zkaudit import schema
from zkaudit.compressed import codec_of
from zkaudit.decode.batches import end_of_log
from zkaudit.decode.txnlog import Stop
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.sources.files import Piece, distinct, find, log_zxid, pack, split, within
from zkaudit.sources.options import Settings, parse_options
from zkaudit.sources.rows import rows_of, snapshot_rows
from zkaudit.storage import shown
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Register the formats ``zookeeper_txnlog`` and ``zookeeper_snapshot`` with a session."""
    spark.dataSource.register(ZookeeperTxnlog)
    spark.dataSource.register(ZookeeperSnapshot)


class ZookeeperTxnlog(DataSource):
    """The source ``zookeeper_txnlog``, for transaction logs, batch and streaming. Its columns are
    those of ``schema.TXNLOG``."""

    @classmethod
    def name(cls) -> str:
        """Name of the source for ``spark.read.format``."""
        return "zookeeper_txnlog"

    def schema(self) -> StructType:
        """The columns of the requested table."""
        return schema.spark_type(parse_options(self.name(), self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all logs that exist now."""
        settings = parse_options(self.name(), self.options)
        return PushingLogReader(settings) if settings.push_filters else BatchLogReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader that follows the logs as they grow."""
        settings = parse_options(self.name(), self.options)
        if settings.table not in ("transactions", "groups"):
            raise ConfigError([f"table: {settings.table} cannot be streamed"])
        for file in (place for places in settings.servers.values() for place in places):
            if file.is_file():
                raise ConfigError(
                    [f"path: {shown(str(file))} is a file: give a stream a directory"]
                )
        return StreamLogReader(settings)


class ZookeeperSnapshot(DataSource):
    """The source ``zookeeper_snapshot``, for snapshots, plain or compressed with gzip, snappy or
    zstd. Its columns are those of ``schema.SNAPSHOT``."""

    @classmethod
    def name(cls) -> str:
        """Name of the source for ``spark.read.format``."""
        return "zookeeper_snapshot"

    def schema(self) -> StructType:
        """The columns of the requested table."""
        return schema.spark_type(parse_options(self.name(), self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of all snapshots that exist now."""
        return SnapshotReader(parse_options(self.name(), self.options))


@dataclass
class Task(InputPartition):
    """The pieces of files that one Spark task reads."""

    pieces: tuple[Piece, ...]


class BatchLogReader(DataSourceReader):
    """Reads all logs that exist now. Several small files are read in one task."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: choose the files by zxid, split long ones, and combine small ones.

        For the table ``files``, which has one row for each file, files are not split.
        """
        most = self.settings.bytes_per_task
        found = find(self.settings.servers).values()
        chosen: list[Piece] = []
        for pieces in found:
            mine = [piece for piece in pieces if _named(self.settings, piece)]
            chosen += within(distinct(mine)[0], self.settings.filters)
        if self.settings.table != "files":
            chosen = list(split(chosen, most))
        return [Task(pieces) for pieces in pack(chosen, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's files."""
        if not isinstance(partition, Task):  # Spark's own: there is nothing to read
            return
        yield from rows_of(self.settings, partition.pieces)


class PushingLogReader(BatchLogReader):
    """Uses zxid ranges and path prefixes in a query's filters to read less. Spark still applies the
    filters.

    Spark has filters for Python sources since 4.1. This class recognizes them by their classes'
    names, because 4.0 cannot import the classes.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the options, and return every filter so that Spark applies it too."""
        mine = self.settings.filters
        for found in filters:
            kind = type(found).__name__
            column = getattr(found, "attribute", None)
            value: Any = getattr(found, "value", None)
            if column == ("zxid",) and isinstance(value, int):
                low = high = None
                if kind == "EqualTo":
                    low = high = value
                elif kind in ("GreaterThan", "GreaterThanOrEqual"):
                    low = value + (kind == "GreaterThan")
                elif kind in ("LessThan", "LessThanOrEqual"):
                    high = value - (kind == "LessThan")
                lows = [z for z in (mine.start_zxid, low) if z is not None]
                highs = [z for z in (mine.end_zxid, high) if z is not None]
                mine = replace(
                    mine, start_zxid=max(lows, default=None), end_zxid=min(highs, default=None)
                )
            elif (
                column == ("path",)
                and kind in ("StringStartsWith", "EqualTo")
                and str(value).startswith(mine.path_prefix)
            ):
                mine = replace(mine, path_prefix=str(value))
            yield found
        self.settings = replace(self.settings, filters=mine)


class StreamLogReader(DataSourceStreamReader):
    """Follows the logs of each server. Spark's offsets consist of each server's current file and
    the position in it.

    Servers preallocate space, so a file's size does not show where its records end. So the file is
    scanned, and an incomplete record is left for the next batch. A file is finished when the next
    one exists.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._latest: dict[str, dict[str, Any]] = {}

    def _find(self) -> Mapping[str, list[Piece]]:
        found = find(self.settings.servers)
        for server, pieces in found.items():  # while a log is compressed, both files exist
            plain = {piece.zxid for piece in pieces if codec_of(piece.name) is None}
            found[server] = [
                piece for piece in pieces if codec_of(piece.name) is None or piece.zxid not in plain
            ]
        for one, other in (pair for pieces in found.values() for pair in pairwise(pieces)):
            if one.zxid == other.zxid:
                raise AuditError(
                    f"{shown(one.path)} and {shown(other.path)} are two copies of a log: for a "
                    "stream, name the server's own directory, not copies that zkaudit collect made"
                )
        return found

    def initialOffset(self) -> dict[str, dict[str, Any]]:
        """Return the offset before the first file of every server."""
        return {server: {"file": "", "position": 0} for server in self.settings.servers}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, dict[str, Any]]:
        """Scan from ``start`` to the end of the last complete record. ``limit`` has no effect.

        Before Spark 4.2, Spark passes no arguments, and the scan starts at the end of the previous
        one.
        """
        start = self._latest if start is None else start
        latest = {}
        for server, pieces in self._find().items():
            at = start.get(server, {"file": "", "position": 0})
            pieces = [piece for piece in pieces if piece.zxid >= _zxid(at["file"])]
            if pieces:
                # The list is older than this scan: all files before its last one are finished.
                last = pieces[-1]
                name = last.name
                begin = at["position"] if last.zxid == _zxid(at["file"]) else 0
                end = end_of_log(last.path, begin)
                if end.stop is Stop.CORRUPT and not self.settings.tolerant:
                    raise LogFormatError(shown(last.path), end.position, end.reason)
                at = {"file": name, "position": end.position}
            latest[server] = at
        self._latest = latest
        return latest

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        """Return the tasks that read the logs between two offsets."""
        found = self._find()
        pieces = []
        for server, to in end.items():
            at = start.get(server, {"file": "", "position": 0})
            for piece in found.get(server, ()):
                if not _zxid(at["file"]) <= piece.zxid <= _zxid(to["file"]) or not to["file"]:
                    continue
                begin = at["position"] if piece.zxid == _zxid(at["file"]) else 0
                stop = to["position"] if piece.zxid == _zxid(to["file"]) else None
                if begin != stop:
                    size = max(0, (stop or piece.size) - begin)
                    pieces.append(replace(piece, start=begin, stop=stop, size=size))
        return [Task(task) for task in pack(pieces, self.settings.bytes_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's pieces."""
        if not isinstance(partition, Task):  # Spark's own: there is nothing to read
            return
        yield from rows_of(self.settings, partition.pieces)


class SnapshotReader(DataSourceReader):
    """Reads snapshots. Several are read in one task."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return the tasks, with several snapshots in each."""
        found = find(self.settings.servers, snapshots=True).values()
        pieces = [piece for pieces in found for piece in pieces if _named(self.settings, piece)]
        return [Task(task) for task in pack(pieces, self.settings.bytes_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's snapshots. A damaged snapshot is an error, or has no rows if the
        options tolerate damage."""
        if not isinstance(partition, Task):  # Spark's own: there is nothing to read
            return
        for piece in partition.pieces:
            try:
                yield from snapshot_rows(self.settings, piece)
            except (LogFormatError, FileNotFoundError):  # damaged, or purged in the meantime
                if not self.settings.tolerant:
                    raise


def _named(settings: Settings, piece: Piece) -> bool:
    return not settings.files or not settings.files.isdisjoint((piece.path, piece.name))


def _zxid(file: str) -> int:
    found = log_zxid(file)
    return -1 if found is None else found
