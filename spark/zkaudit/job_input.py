"""Reads the logs and snapshots of all servers into one history, with its holes.

``find`` and ``holes_of`` run in the driver, the rest in Spark's Python workers. A worker passes on
only what an audit of groups needs, and for every unbroken run of zxids one row of type ``#run``
(``zxid``: its first, ``ttl``: its last, ``time``: of the file's last), for ``zkaudit.history``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zkaudit.errors import AuditError, InputMissingError
from zkaudit.history import History, Run
from zkaudit.schema import SNAPSHOT, TXNLOG, spark_type

if TYPE_CHECKING:
    import pyarrow as pa

RUN: Final = "#run"
MAX_RUNS: Final = 200_000
"""More runs of zxids than this are no history."""
PACK_BYTES: Final = 128 << 20
_SESSIONS_AND_ERRORS: Final = ("createSession", "closeSession", "error")
_LOG = re.compile(r"log\.([0-9a-f]{1,16})")
_SNAPSHOT = re.compile(r"snapshot\.([0-9a-f]{1,16})(\.gz|\.snappy)?")

File = tuple[str, str, int]
"""Path, name of the server, bytes."""


def find(directories: Sequence[str | Path]) -> tuple[list[File], list[File]]:
    """Return the logs and the snapshots below the servers' data directories, in order of zxids.

    Each directory is one server: ``dataDir`` or ``dataLogDir``, or their ``version-2``. Raises
    InputMissingError when one does not exist or nothing is found.
    """
    logs: list[tuple[int, File]] = []
    snapshots: list[tuple[int, File]] = []
    for directory in directories:
        base = Path(directory)
        if not base.is_dir():
            raise InputMissingError(f"{directory}: no such directory: name a server's dataLogDir")
        for place in (base, base / "version-2"):
            for path in sorted(place.iterdir()) if place.is_dir() else []:
                for pattern, into in ((_LOG, logs), (_SNAPSHOT, snapshots)):
                    if (parts := pattern.fullmatch(path.name)) and path.is_file():
                        size = path.stat().st_blocks * 512
                        into.append((int(parts[1], 16), (str(path.absolute()), str(base), size)))
    if not logs:
        raise InputMissingError(
            f"{', '.join(map(str, directories))}: no file log.<zxid>: name the directory with the "
            "transaction logs, dataLogDir in zoo.cfg"
        )
    return [file for _, file in sorted(logs)], [file for _, file in sorted(snapshots)]


def transactions(spark: SparkSession, logs: Sequence[File]) -> DataFrame:
    """Rows of ``schema.TXNLOG`` that groups need, and ``#run`` rows; duplicates are still in it."""
    return _load(spark, "logs", logs)


def snapshots(spark: SparkSession, files: Sequence[File]) -> DataFrame:
    """Ephemerals of groups in the snapshots, as rows of ``schema.SNAPSHOT``."""
    return _load(spark, "snapshots", files)


def _load(spark: SparkSession, kind: str, files: Sequence[File]) -> DataFrame:
    spark.dataSource.register(AuditInput)
    listed = json.dumps([list(file) for file in files])
    return spark.read.format(AuditInput.name()).option("kind", kind).option("files", listed).load()


class AuditInput(DataSource):
    """What the audit reads of logs or snapshots: option ``kind``, option ``files`` (JSON)."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "zkaudit_input"

    def schema(self) -> StructType:
        """Columns of ``zkaudit.schema``."""
        return spark_type(TXNLOG if self.options["kind"] == "logs" else SNAPSHOT)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all files."""
        return _Reader(self.options["kind"], json.loads(self.options["files"]))


class _Files(InputPartition):
    """Files that one task reads."""


class _Reader(DataSourceReader):
    def __init__(self, kind: str, files: list[list[Any]]) -> None:
        self.kind = kind
        self.files = files

    def partitions(self) -> Sequence[InputPartition]:
        """Pack small files: a Python task costs about 0.1 s before its first row."""
        packs: list[list[tuple[str, str]]] = []
        room = 0
        for path, server, size in self.files:
            if not packs or size > room:
                packs.append([])
                room = PACK_BYTES
            packs[-1].append((path, server))
            room -= size
        return [_Files(pack) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pack."""
        for path, server in partition.value:
            yield from (_log if self.kind == "logs" else _snapshot)(path, server)


def _log(path: str, server: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from zkaudit.decode import LogReader

    runs = _Runs()
    for found in LogReader(path, server).batches():
        runs.add(found)
        wanted = pc.or_kleene(
            pc.match_substring(found.column("path"), "/consumers/"),
            pc.is_in(found.column("type"), value_set=pa.array(_SESSIONS_AND_ERRORS)),
        )
        yield found.filter(wanted)
    yield from runs.batch(server, Path(path).name)


def _snapshot(path: str, server: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    from zkaudit.decode import read_snapshot

    for found in read_snapshot(path, server):
        wanted = pc.and_(
            pc.match_substring(found.column("path"), "/consumers/"),
            pc.not_equal(found.column("ephemeral_owner"), 0),
        )
        yield found.filter(wanted)


class _Runs:
    """Unbroken runs of zxids of one file."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.time: object = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Go on with the next rows of the file."""
        import numpy as np

        zxids = batch.column("zxid").to_numpy(zero_copy_only=False)
        if not len(zxids):
            return
        self.time = batch.column("time")[len(zxids) - 1].as_py()
        breaks = np.flatnonzero((np.diff(zxids) != 0) & (np.diff(zxids) != 1)) + 1
        for part in np.split(zxids, breaks):
            first, last = int(part[0]), int(part[-1])
            if self.runs and first - self.runs[-1][1] in (0, 1):
                self.runs[-1][1] = last
            else:
                self.runs.append([first, last])

    def batch(self, server: str, file: str) -> Iterator[pa.RecordBatch]:
        """The runs as rows."""
        import pyarrow as pa

        from zkaudit.schema import arrow_schema

        fixed = {"server": server, "file": file, "position": 0, "idx": 0, "size": 0,
                 "session": 0, "cxid": 0, "type": RUN, "time": self.time}  # fmt: skip
        rows = [{**fixed, "zxid": first, "ttl": last} for first, last in self.runs]
        if rows:
            schema = arrow_schema(TXNLOG)
            columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def holes_of(history: History) -> list[tuple[int, int]]:
    """Return the holes as (last zxid before, first zxid behind), as ``staging`` wants them.

    A history that does not begin with the first transaction of an ensemble begins with a hole.
    """
    begun = min((first for ranges in history.take.values() for first, _ in ranges), default=1)
    front = [] if begun in (1, (1 << 32) | 1) else [(0, begun)]
    return front + [(first - 1, last + 1) for first, last in history.holes if first > begun]


def runs_of(rows: DataFrame) -> list[Run]:
    """Collect the runs; there are as many as files and holes. Raises AuditError for too many."""
    found = rows.where(f"type = '{RUN}'").select("server", "zxid", "ttl").take(MAX_RUNS + 1)
    if len(found) > MAX_RUNS:
        raise AuditError(f"the logs have more than {MAX_RUNS} holes: add the other servers' logs")
    return [Run(row[0], int(row[1]), int(row[2])) for row in found]
