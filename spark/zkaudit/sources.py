"""Spark data sources ``zookeeper_txnlog`` and ``zookeeper_snapshot``.

``register(spark)`` makes them known to a session; importing this module starts nothing. Planning
runs in a Python worker of the driver, ``read`` in the executors' Python workers; zkaudit has to be
installed in both. ``OPTIONS`` describes the options; ``page`` is docs/reference/data-sources.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from zkaudit import schema
from zkaudit.decode import end_of_log, read_snapshot, read_snapshot_sessions
from zkaudit.decode_columns import Filters
from zkaudit.errors import LogFormatError
from zkaudit.snapshot import snapshot_zxid
from zkaudit.sources_files import (
    BYTES_PER_TASK,
    Piece,
    find,
    log_zxid,
    pack,
    parse_servers,
    parse_zxid,
    split,
    within,
)
from zkaudit.sources_rows import rows_of
from zkaudit.txnlog import Stop
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_TABLES: Final = {
    "zookeeper_txnlog": {
        "transactions": schema.TXNLOG,
        "files": schema.TXNLOG_FILES,
        "runs": schema.TXNLOG_RUNS,
        "groups": schema.TXNLOG_GROUPS,
    },
    "zookeeper_snapshot": {"nodes": schema.SNAPSHOT, "sessions": schema.SNAPSHOT_SESSIONS},
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the sources. ``logs_only``: ``zookeeper_snapshot`` has no use for it."""

    name: str
    default: str
    meaning: str
    logs_only: bool = False


OPTIONS: Final = (
    Option(
        "path",
        "",
        "What `load` is given: each server's directory, separated by commas, each as `DIR` or "
        "`NAME=DIR`. A single file, a glob and a `file:` URI work too. Other file systems do not.",
    ),
    Option("paths", "", "What Spark makes of `load([DIR, ...])`: a list in JSON."),
    Option("table", "the first one below", "Which table to read."),
    Option(
        "columns",
        "all",
        "Names of columns, separated by commas. Only these are decoded: Spark does not tell a "
        "Python source which columns a query needs.",
    ),
    Option(
        "pathPrefix",
        "",
        "Leave out operations on paths (in snapshots: znodes) that do not begin with this text. "
        "Sessions and errors, which have no path, stay.",
    ),
    Option(
        "corruption",
        "fail",
        "`fail`, or `stop`: return the rows before the damage; of a damaged snapshot none.",
    ),
    Option("bytesPerTask", str(BYTES_PER_TASK), "Bytes that one task reads. Longer logs are cut."),
    Option("startZxid", "", "Lowest zxid, decimal or `0x` hexadecimal; inclusive.", True),
    Option("endZxid", "", "Highest zxid; inclusive.", True),
    Option(
        "groupBegins",
        "",
        "Table `groups`: leave out the paths of other groups than those whose names begin with one "
        "of these texts, separated by commas.",
        True,
    ),
    Option(
        "pushFilters",
        "false",
        "`true`: conditions on `zxid` and `path` in a query narrow what is decoded. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`; Spark refuses it elsewhere.",
        True,
    ),
)
_OPTIONS: Final = tuple(option.name for option in OPTIONS)


def register(spark: SparkSession) -> None:
    """Make both sources known to a session."""
    spark.dataSource.register(ZookeeperTxnlog)
    spark.dataSource.register(ZookeeperSnapshot)


@dataclass(frozen=True)
class Settings:
    """A source's options, read and checked; pickled to the workers."""

    servers: dict[str, list[Path]]
    table: str
    columns: tuple[schema.Column, ...]
    filters: Filters
    tolerant: bool
    bytes_per_task: int
    push_filters: bool
    group_begins: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]


def parse_options(source: str, options: dict[str, str]) -> Settings:
    """Read the options of a source; names count without case. Raises ``ConfigError``."""
    given = {name.lower(): value for name, value in options.items()}
    faults = [
        f"{name}: no such option; there are {', '.join(_OPTIONS)}"
        for name in given.keys() - {option.lower() for option in _OPTIONS}
    ]
    tables = _TABLES[source]
    table = given.get("table", next(iter(tables)))
    if table not in tables:
        raise ConfigError([f"table: {table!r} is not one of {', '.join(tables)}"])
    columns = {column.name: column for column in tables[table]}
    wanted = [name.strip() for name in given.get("columns", ",".join(columns)).split(",")]
    faults += [f"columns: {name!r} is not one of {', '.join(columns)}" for name in wanted
               if name not in columns]  # fmt: skip
    corruption = given.get("corruption", "fail")
    if corruption not in ("fail", "stop"):
        faults.append(f"corruption: {corruption!r} is neither fail nor stop")
    size = given.get("bytespertask", str(BYTES_PER_TASK))
    if not size.isdecimal() or not int(size):
        faults.append(f"bytesPerTask: {size!r} is not a number of bytes")
    if faults:
        raise ConfigError(faults)
    servers = parse_servers(given.get("path", ""), given.get("paths"))
    kind, number = (
        ("log", log_zxid) if source == "zookeeper_txnlog" else ("snapshot", snapshot_zxid)
    )
    for file in (place for places in servers.values() for place in places if place.is_file()):
        if number(file) is None:
            raise ConfigError([f"path: {file}: {source} reads files named {kind}.<zxid>"])
    return Settings(
        servers,
        table,
        tuple(columns[name] for name in wanted),
        Filters(
            given.get("pathprefix", ""),
            parse_zxid("startZxid", given.get("startzxid")),
            parse_zxid("endZxid", given.get("endzxid")),
        ),
        corruption == "stop",
        int(size),
        given.get("pushfilters", "false").lower() == "true",
        tuple(filter(None, given.get("groupbegins", "").split(","))),
    )


class ZookeeperTxnlog(DataSource):
    """Transaction logs, batch and streaming: columns of ``schema.TXNLOG``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.read.format``."""
        return "zookeeper_txnlog"

    def schema(self) -> StructType:
        """Columns of the table asked for."""
        return schema.spark_type(parse_options(self.name(), self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read all logs that are there now."""
        settings = parse_options(self.name(), self.options)
        return PushingLogReader(settings) if settings.push_filters else BatchLogReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read the logs as they grow."""
        settings = parse_options(self.name(), self.options)
        if settings.table not in ("transactions", "groups"):
            raise ConfigError([f"table: {settings.table} cannot be streamed"])
        for file in (place for places in settings.servers.values() for place in places):
            if file.is_file():
                raise ConfigError([f"path: {file}: is a file: a stream follows a directory"])
        return StreamLogReader(settings)


class ZookeeperSnapshot(DataSource):
    """Snapshots, plain, gzip or snappy: columns of ``schema.SNAPSHOT``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.read.format``."""
        return "zookeeper_snapshot"

    def schema(self) -> StructType:
        """Columns of the table asked for."""
        return schema.spark_type(parse_options(self.name(), self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read all snapshots that are there now."""
        return SnapshotReader(parse_options(self.name(), self.options))


@dataclass
class Task(InputPartition):
    """What one Spark task reads."""

    pieces: tuple[Piece, ...]


class BatchLogReader(DataSourceReader):
    """Plans once, one task for some files; reads them without any state."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> list[InputPartition]:
        """Choose the files by zxid, cut the long ones, pack the small ones.

        A table of files has whole ones; where damage ends a file, its parts cannot be told apart.
        """
        most = self.settings.bytes_per_task
        found = find(self.settings.servers).values()
        chosen = [piece for pieces in found for piece in within(pieces, self.settings.filters)]
        if self.settings.table != "files" and not self.settings.tolerant:
            chosen = list(split(chosen, most))
        return [Task(pieces) for pieces in pack(chosen, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's files."""
        assert isinstance(partition, Task)
        yield from rows_of(self.settings, partition.pieces)


class PushingLogReader(BatchLogReader):
    """Takes zxid ranges and path prefixes out of a query's own filters; Spark checks them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the options; every filter stays with Spark too."""
        mine = self.settings.filters
        for found in filters:
            column = getattr(found, "attribute", None)
            value: Any = getattr(found, "value", None)
            if column == ("zxid",) and isinstance(value, int):
                low = high = None
                if isinstance(found, EqualTo):
                    low = high = value
                elif isinstance(found, GreaterThan | GreaterThanOrEqual):
                    low = value + isinstance(found, GreaterThan)
                elif isinstance(found, LessThan | LessThanOrEqual):
                    high = value - isinstance(found, LessThan)
                lows = [z for z in (mine.start_zxid, low) if z is not None]
                highs = [z for z in (mine.end_zxid, high) if z is not None]
                mine = replace(
                    mine, start_zxid=max(lows, default=None), end_zxid=min(highs, default=None)
                )
            elif (
                column == ("path",)
                and isinstance(found, StringStartsWith | EqualTo)
                and str(value).startswith(mine.path_prefix)
            ):
                mine = replace(mine, path_prefix=str(value))
            yield found
        self.settings = replace(self.settings, filters=mine)


class StreamLogReader(DataSourceStreamReader):
    """Follows each server's logs: an offset is the file it is in, and the byte it has come to.

    A file's size says nothing, since servers reserve space ahead: the tail is walked, and a record
    that is not whole yet waits for the next batch. A file is left once the next one exists.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def initialOffset(self) -> dict[str, dict[str, Any]]:
        """Before the first file of every server."""
        return {server: {"file": "", "position": 0} for server in self.settings.servers}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, dict[str, Any]]:
        """Walk on from ``start`` to the end of what is whole."""
        latest = {}
        for server, pieces in find(self.settings.servers).items():
            at = start.get(server, {"file": "", "position": 0})
            pieces = [piece for piece in pieces if piece.zxid >= _zxid(at["file"])]
            if pieces:
                # The list was made before: the last one's predecessors are finished.
                last = pieces[-1]
                name = Path(last.path).name
                begin = at["position"] if name == at["file"] else 0
                end = end_of_log(last.path, begin)
                if end.stop is Stop.CORRUPT and not self.settings.tolerant:
                    raise LogFormatError(last.path, end.position, end.reason)
                at = {"file": name, "position": end.position}
            latest[server] = at
        return latest

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        """The pieces between two offsets."""
        found = find(self.settings.servers)
        pieces = []
        for server, to in end.items():
            at = start.get(server, {"file": "", "position": 0})
            for piece in found.get(server, ()):
                if not _zxid(at["file"]) <= piece.zxid <= _zxid(to["file"]) or not to["file"]:
                    continue
                name = Path(piece.path).name
                begin = at["position"] if name == at["file"] else 0
                stop = to["position"] if name == to["file"] else None
                if begin != stop:
                    size = max(0, (stop or piece.size) - begin)
                    pieces.append(replace(piece, start=begin, stop=stop, size=size))
        return [Task(task) for task in pack(pieces, self.settings.bytes_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's pieces."""
        assert isinstance(partition, Task)
        yield from rows_of(self.settings, partition.pieces)


class SnapshotReader(DataSourceReader):
    """One task for some snapshots."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> list[InputPartition]:
        """Pack all snapshots."""
        found = find(self.settings.servers, snapshots=True).values()
        pieces = [piece for pieces in found for piece in pieces]
        return [Task(task) for task in pack(pieces, self.settings.bytes_per_task)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one task's snapshots; a damaged one gives no row at all when tolerated."""
        assert isinstance(partition, Task)
        settings = self.settings
        for piece in partition.pieces:
            try:
                if settings.table == "sessions":
                    batches = read_snapshot_sessions(piece.path, piece.server)
                else:
                    batches = read_snapshot(piece.path, piece.server, settings.filters)
                for batch in batches:
                    yield batch.select(settings.names)
            except (LogFormatError, FileNotFoundError):  # damaged, or purged meanwhile
                if not settings.tolerant:
                    raise


def _zxid(file: str) -> int:
    return int(file.partition(".")[2], 16) if file else -1


_MEANINGS: Final = {
    "transactions": "One row for each operation. A multi of n operations gives n rows; if one of "
    "them failed, none was applied, and all rows are of type `error`. (`server`, `zxid`, `idx`) is "
    "unique in one server's logs; two servers' logs hold the same transactions.",
    "files": "One row for each log: how far it can be read, and why no further.",
    "runs": "One row for each unbroken run of zxids in each log.",
    "groups": "What an audit of groups reads: operations on znodes below `/consumers` and "
    f"`/brokers/topics`, sessions and errors. Rows of type `{schema.RUN}` (one for each unbroken "
    f"run of zxids) and `{schema.PATH}` (one for each path below `/consumers`) are no operations.",
    "nodes": "One row for each znode of each snapshot. Snapshots are fuzzy: a znode may be newer "
    "than `zxid`.",
    "sessions": "One row for each live session of each snapshot.",
}


def page() -> str:
    """Return docs/reference/data-sources.md."""
    parts = [
        "# Spark data sources",
        "",
        "<!-- Generated by docs/generate.py: change the code, then run it again. -->",
        "",
        "`zookeeper_txnlog` reads ZooKeeper's transaction logs, as a batch or as a stream;",
        "`zookeeper_snapshot` reads its snapshots. Both need Spark 4.2 or later, and zkaudit",
        "installed where the driver and the executors run. Register them once for each session:",
        "",
        "```python",
        "import zkaudit",
        "from pyspark.sql import SparkSession",
        "",
        "spark = SparkSession.builder.getOrCreate()",
        "zkaudit.register(spark)",
        'logs = spark.read.format("zookeeper_txnlog").option("pathPrefix", "/consumers/")',
        'logs.load("/var/lib/zookeeper").where("type = \'delete\'").show()',
        "```",
        "",
        "A directory is `dataDir` or `dataLogDir` of one server, or the `version-2` in it.",
        "",
        "## Options",
        "",
        "| Option | Source | Default | Meaning |",
        "|---|---|---|---|",
    ]
    for option in OPTIONS:
        source = "logs" if option.logs_only else "both"
        parts.append(f"| `{option.name}` | {source} | {option.default} | {option.meaning} |")
    parts += ["", "Names of options count without case. An unknown option is an error."]
    for source, tables in _TABLES.items():
        for name, columns in tables.items():
            parts += ["", f"## `{source}`, table `{name}`", "", _MEANINGS[name], ""]
            parts += ["| Column | Type | Null | Meaning |", "|---|---|---|---|"]
            for column in columns:
                null = "yes" if column.nullable else "no"
                meaning = column.meaning.replace("one of the names in TYPES", _TYPES_TEXT)
                parts.append(f"| `{column.name}` | {column.kind.value} | {null} | {meaning} |")
    return "\n".join(parts) + "\n"


_TYPES_TEXT: Final = "one of " + ", ".join(f"`{name}`" for name in schema.TYPES.values())
