"""What a stream records and its tables, in files by group: so a round reads and writes little.

A group has a key, a hash of its chroot and name, and keys are divided into ``BUCKETS``. Rows that
are not of one group have buckets of their own. Driver's thread; executors write the files.

``recorded/batches-FIRST-LAST`` holds the rows of some of Spark's batches, in files
``bucket-N-*.parquet``, in which the rows of a group are together. So are the rows of a table of
groups. A round audits some groups. It writes their rows to new files, and the other rows of their
buckets to one file. Files of other buckets, and long files without these groups, are hard links to
those of the round before.
``.state`` in the directory of the tables is for the next round only: which groups there are, which
sessions each used, and which topics it owned.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.history.committed import Range, Run, merged
from zkaudit.history.staging import (
    BUCKETS,
    Stage,
    bucket,
    group_key,
    group_key_of,
    is_shared,
)
from zkaudit.job import output
from zkaudit.job.coverage import LoggedRun
from zkaudit.job.output import Store, empty, for_arrow, stored
from zkaudit.tables import catalog

SHARED: Final = BUCKETS
"""Bucket of the rows that groups share: sessions, refused creates, topics."""
RUNS: Final = BUCKETS + 1
"""Bucket of the runs of zxids."""
REST: Final = BUCKETS + 2
"""Bucket of rows that no table is made from."""
MERGED: Final = 16
"""How many directories of one size are put together into one."""
_SMALL_BYTES: Final = 1 << 20
_PLACE: Final = re.compile(r"batches-([0-9]{10})-([0-9]{10})")
_FILE: Final = re.compile(r"bucket-([0-9]+)-.*\.parquet")
_END: Final = "_END"
_UNFINISHED: Final = ".unfinished"
_STATE: Final = ".state"
_GROUPS: Final = f"{_STATE}/groups"
FILE_ROWS: Final = 50_000
"""A file of a bucket has about so many rows. So a round rewrites little of a long table."""


@dataclass(frozen=True, slots=True, order=True)
class Batches:
    """A directory with the rows of batches ``first`` to ``last``, each transaction once."""

    first: int
    last: int
    place: Path = field(compare=False)

    def files(self, number: int) -> list[Path]:
        """The files of one bucket."""
        return sorted(self.place.glob(f"bucket-{number}-*.parquet"))

    def bytes(self) -> int:
        """How many bytes its files have."""
        return sum(file.stat().st_size for file in self.every_file())

    def every_file(self) -> list[Path]:
        """The files of all buckets."""
        return sorted(self.place.glob("*.parquet"))

    def keys(self) -> set[int]:
        """The keys of the groups that have rows."""
        files = [file for number, file in _files(self.place) if number < BUCKETS]
        return _values(files, "key")


def recorded(folder: Path) -> list[Batches]:
    """The directories that hold each batch once, in order."""
    found = []
    for place in folder.iterdir() if folder.is_dir() else ():
        name = _PLACE.fullmatch(place.name)
        if name and (place / "_SUCCESS").exists():
            found.append(Batches(int(name[1]), int(name[2]), place))
    # One that was put into a larger one just before a crash may still be there.
    return sorted(
        one
        for one in found
        if not any(o != one and o.first <= one.first and one.last <= o.last for o in found)
    )


def together(found: Sequence[Batches]) -> Sequence[Batches]:
    """The last directories that are to be put into one; none while there are few of their size.

    Sizes are in classes, each ``MERGED`` times as large as the one before.
    """
    classes = [max(0, math.ceil(math.log(max(one.bytes(), 1) / _SMALL_BYTES, MERGED)))
               for one in found]  # fmt: skip
    for most in sorted(set(classes)):
        begin = max((i + 1 for i, number in enumerate(classes) if number > most), default=0)
        if classes[begin:].count(most) >= MERGED:
            return found[begin:]
    return ()


class Recorder:
    """Writes each batch of Spark's stream to a directory of its own, and puts these together."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        """``checkpoint``: the directory in which Spark stores how far the source was read."""
        self.folder = folder
        self.checkpoint = checkpoint
        self.new = False

    def check(self) -> None:
        """Raise AuditError if Spark's checkpoint is not that of the recorded batches."""
        found = recorded(self.folder)
        if found and not self._belongs(found[-1]):
            raise AuditError(
                f"{self.checkpoint}: is missing, or not the one that belongs to {self.folder}: put "
                "it back, or choose another --out"
            )

    def _belongs(self, last: Batches) -> bool:
        end, file = self._end_of(last.last), last.place / _END
        return bool(end) and (not file.exists() or file.read_text() == end)

    def _end_of(self, number: int) -> str:
        """How far the source was read after a batch, in the words of Spark's checkpoint."""
        file = self.checkpoint / "offsets" / str(number)
        return file.read_text().rpartition("\n")[2] if file.exists() else ""

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one batch, unless it was written before a crash: it had the same transactions.

        Earlier batches are put together first. Their rounds are over, so this does not change which
        groups are audited. Raises AuditError for a batch that is not the next one.
        """
        self.new = True
        found = recorded(self.folder)
        last = found[-1] if found else None
        if last is not None and number == last.last and self._belongs(last):
            return
        if number != (0 if last is None else last.last + 1):
            raise AuditError(
                f"{self.checkpoint}: is at batch {number}, and {self.folder} has recorded "
                f"{0 if last is None else last.last + 1} batches: these are not of one stream: "
                "choose another --out"
            )
        if small := together(found):
            self.merge(rows.sparkSession, small[0].first, small[-1].last)
        self._save(rows, number, number, self._end_of(number))

    def merge(self, spark: SparkSession, first: int, last: int) -> None:
        """Put the directories of batches ``first`` to ``last`` into one, then delete them."""
        inside = [b for b in recorded(self.folder) if first <= b.first and b.last <= last]
        files = [file for b in inside for file in b.every_file()]
        rows = read(spark, files)
        runs = _runs_as_rows(spark, [row for b in inside for row in _runs_in(b)])
        paths = rows.where(F.col("kind") == schema.PATH).dropDuplicates(["path"])
        others = rows.where("kind is null")
        self._save(others.unionByName(paths).unionByName(runs), first, last)
        stay = {one.place for one in recorded(self.folder)}
        for place in list(self.folder.iterdir()):  # also those that an earlier crash left
            if _PLACE.fullmatch(place.name) and place not in stay:
                shutil.rmtree(place)

    def _save(self, rows: DataFrame, first: int, last: int, end: str | None = None) -> None:
        place = self.folder / f"batches-{first:010}-{last:010}"
        shutil.rmtree(place, ignore_errors=True)  # a crash left it
        place.mkdir(parents=True)
        rows = rows.withColumn("key", group_key_of(F.col("path")))
        part = F.pmod(F.shiftright("position", 16), F.lit(4))  # so that no bucket is one task
        rows = rows.withColumn("bucket", _bucket_of_row()).repartition("bucket", part)
        save(rows.sortWithinPartitions("bucket", "key"), place)
        if end is not None:
            (place / _END).write_text(end)
        (place / "_SUCCESS").touch()


def save(frame: DataFrame, place: Path, tag: int = 0) -> list[Path]:
    """Write the rows of each bucket to files of their own; return these. ``tag``: in their names.

    ``frame`` has a column ``bucket``, by which each of its partitions is sorted. Python workers
    write the files: Spark's own writer starts three processes for each, to set permissions. There
    may be several attempts at a task, also at the same time and after this has returned. So each
    writes files of its own below ``place``, and only those that Spark names are moved there.
    """
    below = place / _UNFINISHED
    below.mkdir(exist_ok=True)
    found = for_arrow(frame).mapInArrow(partial(_save, str(below), tag), "file string").collect()
    files = []
    for row in found:
        name, _, attempt = row["file"].rpartition(".")
        files.append(place / f"{name}.parquet")
        (below / f"{name}.{attempt}").replace(files[-1])
    shutil.rmtree(below, ignore_errors=True)  # another attempt may still write
    return sorted(files)


def _save(place: str, tag: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    part = 0 if context is None else context.partitionId()
    attempt = uuid.uuid4().hex
    number, waiting, rows = -1, list[pa.RecordBatch](), 0
    written: list[str] = []

    def flush() -> None:
        nonlocal rows
        if waiting:
            table = pa.Table.from_batches(waiting).drop_columns("bucket")
            written.append(f"bucket-{number}-{tag}-{part}-{len(written)}.{attempt}")
            pq.write_table(table, f"{place}/{written[-1]}")
        waiting.clear()
        rows = 0

    for batch in batches:
        numbers = batch["bucket"].to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()] if len(numbers) else []
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=False):
            if numbers[start] != number:
                flush()
                number = int(numbers[start])
            waiting.append(batch.slice(start, stop - start))
            rows += stop - start
            if rows >= FILE_ROWS:
                flush()
    flush()
    yield pa.RecordBatch.from_pydict({"file": pa.array(written, pa.string())})


def read(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Rows of ``schema.TXNLOG_GROUPS`` that were recorded."""
    columns = schema.spark_type(schema.TXNLOG_GROUPS)
    if not files:
        return empty(spark, columns)
    return stored(spark, columns, files)


def take(
    batches: Sequence[Batches], touched: Touched, before: Path, place: Path
) -> tuple[list[Path], Touched]:
    """Write the rows that a round needs to files in ``place``: those of some groups, of sessions,
    and all of topics and runs. ``before``: the tables of the round before.

    Return the files, and ``touched`` with the sessions that ever used its groups too.
    """
    shutil.rmtree(place, ignore_errors=True)  # a crash left it
    place.mkdir(parents=True)
    keys = pa.array(sorted(touched.keys), pa.int64())
    numbers = {key % BUCKETS for key in touched.keys}
    groups = [file for one in batches for n in sorted(numbers) for file in one.files(n)]
    made = _copy(groups, pc.field("key").isin(keys), place / "groups.parquet")
    used = [file for n, file in _files(before / _STATE / "used") if n in numbers]
    parts = [_table(used, pc.field("key").isin(keys), "session"), _table(made, None, "session")]
    found = [chunk for part in parts if part is not None for chunk in part["session"].chunks]
    sessions = pc.unique(pa.chunked_array([touched.sessions, *found], pa.int64())).drop_null()
    shared = [file for one in batches for n in (SHARED, RUNS) for file in one.files(n)]
    of_sessions = pc.field("type").isin(["createSession", "closeSession", "error"])
    others = ~of_sessions | pc.field("session").isin(sessions)
    made += _copy(shared, others, place / "shared.parquet")
    return made, replace(touched, sessions=sessions)


def _copy(files: Sequence[Path], where: pc.Expression, place: Path) -> list[Path]:
    """Write rows of some files to one, without holding all of them in memory; return it, or nothing
    if there are no files."""
    if not files:
        return []
    rows = dataset.dataset([str(file) for file in files]).scanner(filter=where)
    with pq.ParquetWriter(place, rows.projected_schema) as writer:
        for batch in rows.to_batches():
            if batch.num_rows:
                writer.write_batch(batch)
    return [place]


def _table(files: Iterable[Path], where: pc.Expression | None, *columns: str) -> pa.Table | None:
    """Some columns of some files; ``None`` if there are no files."""
    names = [str(file) for file in files]
    return dataset.dataset(names).to_table(list(columns), where) if names else None


def runs_of(batches: Iterable[Batches]) -> list[dict[str, Any]]:
    """Rows of all runs: the columns of ``_OF_RUN``."""
    return [row for one in batches for row in _runs_in(one)]


def as_runs(rows: Iterable[dict[str, Any]]) -> list[Run]:
    """The same as ``committed.plan`` wants them."""
    return [Run(row["server"], row["first_zxid"], row["last_zxid"]) for row in rows]


def logged_runs(rows: Iterable[dict[str, Any]]) -> list[LoggedRun]:
    """The same as ``coverage`` wants them."""

    def ms(time: datetime | None) -> int | None:
        return None if time is None else round(time.timestamp() * 1000)

    return [
        LoggedRun(
            row["server"],
            row["file"],
            row["first_zxid"],
            row["last_zxid"],
            ms(row["first_time"]),
            ms(row["last_time"]),
            row["times"] or (),
        )
        for row in rows
    ]


def covered(rows: Iterable[dict[str, Any]]) -> list[Range]:
    """Zxids of runs, in order."""
    return merged((row["first_zxid"], row["last_zxid"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Touched:
    """What a round has to audit: the groups with these keys, and these sessions."""

    keys: frozenset[int]
    sessions: pa.Array


def touched_by(batches: Iterable[Batches], before: Path) -> Touched | None:
    """What new rows are about; ``None``: maybe all groups, because topics changed.

    A row about a session is about all groups that the session did something in: ``before`` holds
    the tables of the round before.
    """
    found: set[int] = set()
    chunks: list[pa.Array] = []
    for one in batches:
        found |= one.keys()
        for file in one.files(SHARED):
            rows = pq.read_table(file, columns=["path", "session"])
            if pc.any(pc.match_substring(rows["path"], "/brokers/topics/")).as_py():
                return None
            chunks.extend(rows["session"].chunks)
    sessions = pc.unique(pa.chunked_array(chunks, pa.int64()))
    if len(sessions):
        files = (file for _, file in _files(before / _STATE / "used"))
        used = _table(files, pc.field("session").isin(sessions), "key")
        found.update(used["key"].to_pylist() if used is not None else ())
    return Touched(frozenset(found), sessions)


@dataclass(frozen=True, slots=True)
class State:
    """What the next round has to know of this one.

    Args:
        last: the last batch that is in the tables.
        same: what all groups depend on; when it differs, all groups are audited.
        unconfirmed: as in ``committed.History``.
        end_us: time of the last transaction, in microseconds since 1970.
        always: keys of the groups that are audited in every round.
        audited: keys of the groups that were audited; ``None``: all.
        known_us: as in ``Facts``.
    """

    last: int
    same: dict[str, Any]
    unconfirmed: list[list[int]]
    end_us: int | None
    always: tuple[int, ...] = ()
    audited: tuple[int, ...] | None = None
    known_us: int | None = None

    def write(self, tables: Path) -> None:
        """Store it with the tables."""
        text = {name: getattr(self, name) for name in self.__slots__}
        (tables / _STATE).mkdir(exist_ok=True)
        (tables / _STATE / "state.json").write_text(json.dumps(text))

    @classmethod
    def of(cls, tables: Path) -> State | None:
        """Read that of the tables of a finished round."""
        file = tables / _STATE / "state.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        return cls(**found | {"always": tuple(found["always"])})


class BucketStore(Store):
    """Writes the rows of some groups, and takes those of the others from the round before.

    Args:
        touched: the groups and sessions that are audited, of which all rows were read; ``None``:
            all.
        before: the tables of the round before, if there are any.
        state: what this round knows of itself; ``close`` completes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        out: Path,
        touched: Touched | None,
        before: Path | None,
        state: State,
    ) -> None:
        super().__init__(spark, out)
        self.out = out
        self.touched = touched
        self.before = before if touched is not None else None
        self.state = state
        self.always: set[int] = set()
        self._known_us: int | None = None
        self.keys = pa.array([] if touched is None else sorted(touched.keys), pa.int64())
        self.buckets = {key % BUCKETS for key in self.keys.to_pylist()}
        self.names = pa.array([], pa.string())
        """Chroot and name of the groups that are audited and had rows before."""
        if self.before is not None:
            known = [
                pq.read_table(file, columns=["chroot", "group", "key"])
                for number, file in _files(self.before / _GROUPS)
                if number in self.buckets
            ]
            if known:
                groups = pa.concat_tables(known, promote_options="default")
                mine = groups.filter(pc.is_in(groups["key"], self.keys))
                self.names = pa.array(_named(mine).to_pylist(), pa.string())

    def table(self, spec: catalog.Table, frame: DataFrame) -> DataFrame:
        """Write the rows of the groups that are audited, and take those of the others."""
        return self._write(spec.name, spec.shape(frame), group_key())

    def every(self, spec: catalog.Table, audited: DataFrame) -> DataFrame:
        """Return the whole table."""
        return self._all(spec.name, audited)

    def of_groups(self, snapshots: DataFrame) -> DataFrame:
        """Return the rows of groups that are audited, and those of no group."""
        if self.touched is None:
            return snapshots
        key = group_key_of(F.col("path"))
        return snapshots.where(key.isNull() | key.isin(*self.touched.keys))

    def sessions(self, frame: DataFrame) -> DataFrame:
        """Write table ``sessions``, and take the sessions that are not audited from the round
        before."""
        spec = catalog.SESSIONS
        audited = self.shared(spec, frame)
        if self.before is None or self.touched is None:
            return audited
        place = self.place / spec.name
        mine = sorted(place.glob("*.parquet"))
        others = ~pc.field("session").isin(self.touched.sessions)
        _copy(sorted((self.before / spec.name).glob("*.parquet")), others, place / "rest.parquet")
        return stored(self.spark, spec.spark_type(), mine)

    def used(self, stage: Stage) -> DataFrame:
        """Return the sessions that did something in a group that is audited."""
        used = stage.used.select(group_key().alias("key"), "session").distinct()
        return self._write(f"{_STATE}/used", used, F.col("key"))

    def known_us(self, rows: DataFrame, known: int | None) -> int | None:
        """Return the time that the last round of all groups found: ``rows`` may not have all."""
        if self.before is None:
            self._known_us = super().known_us(rows, known)
        else:
            before = State.of(self.before)
            self._known_us = None if before is None else before.known_us
        return self._known_us

    def groups(self, stage: Stage) -> int:
        """Return how many groups there are."""
        found = stage.names.groupBy("chroot", "group").agg(
            F.coalesce(F.bool_or(F.col("tree") != "lock"), F.lit(False)).alias("counts")
        )
        self._write(_GROUPS, found.withColumn("key", group_key()), F.col("key"))
        every = _table((file for _, file in _files(self.place / _GROUPS)), None, "counts")
        return 0 if every is None else pc.sum(every["counts"]).as_py() or 0

    def waiting(self, groups: DataFrame) -> None:
        """Note the groups whose findings depend on when the history ends."""
        rows = groups.select(group_key().alias("key")).distinct().collect()
        self.always.update(row["key"] for row in rows)

    def close(self) -> None:
        """Store what the next round has to know."""
        always = tuple(sorted(self.always))
        audited = None if self.touched is None else tuple(sorted(self.touched.keys))
        known = self._known_us
        replace(self.state, always=always, audited=audited, known_us=known).write(self.place)

    def _write(self, name: str, frame: DataFrame, key: Column) -> DataFrame:
        kind = frame.schema
        frame = frame.withColumn("bucket", F.coalesce(bucket(key), F.lit(REST)))
        place = self.place / name
        place.mkdir(parents=True)
        rows = frame.repartition("bucket").sortWithinPartitions("bucket", key)
        mine = save(rows, place, self.state.last)
        if self.before is not None:
            self._take(self.before / name, place)
        if not any(place.glob("*.parquet")):
            return output.kept(self.place, name, empty(self.spark, kind))
        if not mine:
            return empty(self.spark, kind)
        return stored(self.spark, kind, mine)

    def _take(self, before: Path, place: Path) -> None:
        """Take the rows of groups that are not audited from the round before."""
        parts: dict[int, list[pa.Table]] = defaultdict(list)
        for number, file in _files(before):
            if number == REST:  # rows of no group are new in each round
                continue
            if number not in self.buckets:
                _link(file, place / file.name)
                continue
            there = pq.ParquetFile(file)
            keyed = "key" in there.schema_arrow.names
            names = there.read(["key"] if keyed else ["chroot", "group"])
            stays = pc.invert(
                pc.is_in(names["key"], self.keys) if keyed else pc.is_in(_named(names), self.names)
            )
            if names.num_rows >= FILE_ROWS and pc.all(stays).as_py():
                _link(file, place / file.name)
            elif pc.any(stays).as_py():
                parts[number].append(there.read().filter(stays))
        for number, tables in parts.items():
            rest = pa.concat_tables(tables, promote_options="default")
            pq.write_table(rest, place / f"bucket-{number}-{self.state.last}-rest.parquet")

    def _all(self, name: str, audited: DataFrame) -> DataFrame:
        if self.touched is None:
            return audited
        return stored(self.spark, audited.schema, [self.place / name])


def _bucket_of_row() -> Column:
    """From columns kind, type, path, error and key."""
    of = F.col("type")
    shared = of.isin("createSession", "closeSession") | is_shared(F.col("path"))
    shared |= (of == "error") & (F.col("error") == schema.NODE_EXISTS)
    return (
        F.when(F.col("kind") == schema.RUN, RUNS)
        .when(F.coalesce(shared, F.lit(False)), SHARED)
        .otherwise(F.coalesce(bucket(F.col("key")), F.lit(REST)))
    )


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """The files of a table of groups, each with its bucket."""
    for file in sorted(folder.glob("bucket-*.parquet")):
        name = _FILE.fullmatch(file.name)
        if name:
            yield int(name[1]), file


def _link(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:  # not every file system has hard links
        shutil.copy(file, name)


def _named(rows: pa.Table) -> pa.ChunkedArray:
    """Chroot and name of each row's group as one text."""
    return pc.binary_join_element_wise(rows["chroot"], rows["group"], "\0")


def _values(files: Iterable[Path], column: str) -> set[int]:
    """The distinct values of a column, without null."""
    found: set[int] = set()
    for file in files:
        found.update(pc.unique(pq.read_table(file, columns=[column])[column]).to_pylist())
    found.discard(None)
    return found


_TIMES: Final = ("first_time", "last_time")
_OF_RUN: Final = ["server", "file", "first_zxid", "last_zxid", *_TIMES, "times"]


def _runs_in(one: Batches) -> list[dict[str, Any]]:
    found = []
    for file in one.files(RUNS):
        rows = pq.read_table(file, columns=_OF_RUN)
        # Spark may have written times without a time zone; they are UTC.
        for name in _TIMES:
            times = rows[name].cast(pa.timestamp("us", tz="UTC"))
            rows = rows.set_column(rows.column_names.index(name), name, times)
        found += rows.to_pylist()
    return found


def folded(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of one server that continue one another as one, with the times of its ends, and without
    the sample of times."""
    found: list[dict[str, Any]] = []
    for row in sorted(runs, key=lambda row: (row["server"], row["first_zxid"], row["last_zxid"])):
        last = found[-1] if found else None
        if (
            last is not None
            and last["server"] == row["server"]
            and row["first_zxid"] <= last["last_zxid"] + 1
            and row["first_zxid"] >> 32 == last["first_zxid"] >> 32
        ):
            if row["last_zxid"] >= last["last_zxid"]:
                last.update(last_zxid=row["last_zxid"], last_time=row["last_time"])
        else:
            found.append(row | {"times": None})
    return found


def _runs_as_rows(spark: SparkSession, runs: list[dict[str, Any]]) -> DataFrame:
    columns = schema.arrow_schema(schema.TXNLOG_GROUPS)
    rows = [dict.fromkeys(columns.names) | row | {"kind": schema.RUN} for row in folded(runs)]
    return spark.createDataFrame(
        pa.Table.from_pylist(rows, schema=columns), schema.spark_type(schema.TXNLOG_GROUPS)
    )
