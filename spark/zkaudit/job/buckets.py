"""A stream's records and tables, divided by group so that a round reads and writes little.

A group has a key, which is a hash of its chroot and name, and keys are divided into ``BUCKETS``.
Rows that do not belong to one group have separate buckets. Driver's thread; executors write, by
Spark's own writer.

``recorded/batches=FIRST-LAST`` has the rows of some of Spark's batches, partitioned by bucket. The
numbers protect against a repeated batch, which replaces its earlier rows. The last batch in
Spark's checkpoint determines which directories are valid (``recorded``).

A round audits some groups, and takes the rows of the others from the previous round. Each table is
written completely, except ``commits``, which is as long as the history: it is partitioned by
bucket, and buckets without an audited group are hard links to those of the previous round.
``_groups`` and ``_round.json`` next to the tables are only for the next round. They have the
groups with the sessions that used them, and the round's state.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import dataset
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import LongType, StructField, StructType

from zkaudit import schema
from zkaudit.errors import AuditError
from zkaudit.history.committed import Range, config_of, merged
from zkaudit.history.staging import (
    BUCKETS,
    GROUP_KEY,
    Stage,
    bucket,
    group_key,
    group_key_of,
    is_shared,
)
from zkaudit.job.coverage import LoggedRun, logged_twice
from zkaudit.job.inputs import once_each
from zkaudit.job.output import Store, empty, kept, rows_in, save, stored
from zkaudit.job.place import write_atomically, write_text
from zkaudit.job.spark import settings_of
from zkaudit.tables import catalog

SHARED: Final = BUCKETS
"""Bucket of the rows that groups share: sessions, refused creates, topics, the ensemble's
configuration."""
RUNS: Final = BUCKETS + 1
"""Bucket of the runs of zxids."""
REST: Final = BUCKETS + 2
"""Bucket of rows that no table uses."""
MERGED: Final = 16
"""Number of directories of one length that are merged into one."""
LONGEST: Final = MERGED**3
"""Largest number of batches whose rows a directory has."""
_BATCHES: Final = re.compile(r"batches=([0-9]+)-([0-9]+)")
_ID: Final = "checkpoint-id"
BEGIN: Final = "begin.json"
"""File of ``recorded`` in which ``retention`` stores where the history begins."""
_STATE: Final = "_round.json"
_GROUPS: Final = "_groups"
"""The groups, one row each with ``counts``, and one for each session that used one."""
_LISTED: Final = "listed"
"""Column of recorded rows: the keys of the groups whose znodes a session's end deletes."""


@dataclass(frozen=True, slots=True)
class Batches:
    """A directory in ``folder`` with the rows of the stream's batches ``first`` to ``last``. Each
    row occurs once."""

    folder: Path
    first: int
    last: int

    @property
    def place(self) -> Path:
        """The path of the directory."""
        return self.folder / f"batches={self.first}-{self.last}"

    def files(self, *numbers: int) -> list[Path]:
        """Return the files in the buckets with these numbers."""
        return [
            file
            for number in numbers
            for file in sorted((self.place / f"bucket={number}").glob("*.parquet"))
        ]

    def keys(self) -> set[int]:
        """Return the keys of the groups that have rows."""
        found = _table(self.files(*range(BUCKETS)), None, "key")
        return set() if found is None else set(pc.unique(found["key"]).to_pylist())


def first_of(last: int) -> int:
    """Return the first batch in the directory whose last batch is ``last``.

    The number of batches in a directory is a power of ``MERGED``, so there are always few
    directories. Batch 0 has the history from before the stream began, and is never merged.
    """
    length = 1
    while last and length < LONGEST and last % (length * MERGED) == 0:
        length *= MERGED
    return max(last - length + 1, min(last, 1))


def recorded(folder: Path, last: int) -> list[Batches]:
    """Return the directories that contain the batches up to ``last``, in order, each batch once.

    Directories that ``retention`` deleted are left out. Batch ``last`` has a directory of its own,
    so that a round sees which rows are new.
    """
    return [one for one in _written(folder, last) if one.place.is_dir()]


def _written(folder: Path, last: int) -> list[Batches]:
    """Return the directories of ``recorded``, and those that ``retention`` deleted."""
    found, first = [], last
    while last >= 0:
        found.append(Batches(folder, first, last))
        last = first - 1
        first = first_of(last) if last >= 0 else 0
    return found[::-1]


class Recorder:
    """Writes the batches of a stream of log rows.

    Args:
        out: the directory of the stream.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / "recorded"
        self.checkpoint = out / "checkpoint"
        self.tables = out / "tables"
        self.new = False

    def last(self) -> int:
        """Return the last batch that Spark finished; -1 if there is none."""
        commits = self.checkpoint / "commits"
        names = [place.name for place in commits.iterdir()] if commits.is_dir() else []
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def batches(self) -> list[Batches]:
        """Return the directories of the batches that Spark finished."""
        return recorded(self.folder, self.last())

    def check(self) -> None:
        """Raise AuditError if Spark's checkpoint does not belong to the recorded batches or is
        older, or if batches are missing."""
        file, last = self.folder / _ID, self.last()
        state = State.of(self.tables.resolve())
        audited = max(-1 if state is None else state.last, self._newest() - 1)
        if not file.exists():  # it is written before the first batch
            if max(audited, self._newest(), last) < 0:
                return
            raise AuditError(
                f"{file} is missing: restore {self.folder} with all its contents, or choose "
                "another --out"
            )
        if file.read_text() != self._id() or audited > last:
            raise AuditError(
                f"{self.checkpoint} is missing, or does not belong to {self.folder}: restore "
                "it, or choose another --out"
            )
        expected = _written(self.folder, last)
        if (self.folder / BEGIN).exists():  # retention may have deleted any but the last one
            expected = expected[-1:]
        for one in expected:
            if not one.place.is_dir():
                raise AuditError(
                    f"{one.place} is missing, and ZooKeeper may have deleted the logs that it was "
                    "made from: restore it, or choose another --out"
                )

    def _id(self) -> str:
        """Return the id that Spark gave the checkpoint; empty if there is none."""
        file = self.checkpoint / "metadata"
        return str(json.loads(file.read_text())["id"]) if file.exists() else ""

    def _newest(self) -> int:
        places = self.folder.iterdir() if self.folder.is_dir() else ()
        found = [_BATCHES.fullmatch(place.name) for place in places]
        return max((int(name[2]) for name in found if name), default=-1)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write a batch, or write it again after a crash. The rows are then the same, unless
        ZooKeeper has deleted a log in the meantime, which leaves a log gap.

        Before writing, deletes directories that were merged into another one, and merges earlier
        batches if there are enough. If the process was killed before the round of a merged batch
        ended, the next round audits all groups in the merged directory.
        """
        self.new = True
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / _ID
        if not file.exists():
            write_atomically(file, self._id())
        before = recorded(self.folder, number - 1)
        stay = {one.place for one in before}
        for place in list(self.folder.iterdir()):
            if _BATCHES.fullmatch(place.name) and place not in stay:
                shutil.rmtree(place)
        first = first_of(number - 1) if number else 0
        inside = [one for one in before if one.first >= first]
        together = Batches(self.folder, first, number - 1)
        if inside and inside != [together]:  # retention may have left only one
            self._save(_merged(rows.sparkSession, inside), together)
        self._save(rows, Batches(self.folder, number, number))

    def _save(self, rows: DataFrame, batches: Batches) -> None:
        rows = rows.withColumn("key", group_key_of(F.col("path")))
        rows = rows.withColumn(_LISTED, F.transform("deleted", group_key_of))
        part = F.pmod(F.shiftright("position", 16), F.lit(4))  # so that no bucket is one task
        rows = rows.withColumn("bucket", _bucket_of_row()).repartition("bucket", part)
        # Spark turns this off in a stream, and would use 200 tasks.
        with settings_of(rows.sparkSession, {"spark.sql.adaptive.enabled": "true"}):
            save(rows.sortWithinPartitions("bucket", "key"), batches.place, "bucket")


def _merged(spark: SparkSession, found: Sequence[Batches]) -> DataFrame:
    """Return the rows of some directories, with few runs."""
    rows = read(spark, found).drop("key")
    runs = _runs_as_rows(spark, runs_of(found))
    return rows.where("kind is null").unionByName(runs)


def read(
    spark: SparkSession, found: Sequence[Batches], numbers: Iterable[int] | None = None
) -> DataFrame:
    """Return recorded rows (``schema.TXNLOG_GROUPS``), with the ``key`` of their group. Operations
    that a server has logged twice are returned once. ``numbers``: the buckets to read."""
    columns = schema.spark_type(schema.TXNLOG_GROUPS)
    columns = StructType([*columns, StructField("key", LongType())])
    places = [one.place for one in found]
    if numbers is not None:
        each = [place / f"bucket={number}" for place in places for number in sorted(numbers)]
        places = [place for place in each if place.is_dir()]
    if not places:
        return empty(spark, columns)
    rows = stored(spark, columns, places, found[0].folder)
    return once_each(rows) if logged_twice(logged_runs(runs_of(found))) else rows


def _among(value: str, numbers: Iterable[int]) -> Column:
    """Return an SQL condition that a value is one of these numbers."""
    listed = ", ".join(f"{number}L" for number in sorted(numbers))
    return F.expr(f"{value} in ({listed})" if listed else "false")


def take(
    spark: SparkSession, found: Sequence[Batches], touched: Touched, before: Path
) -> tuple[DataFrame, pa.Array]:
    """Return the rows that a round needs, and the sessions in them.

    The rows are those of the touched groups, of topics and of runs, and those of all sessions that
    are new or ever used one of the groups. ``before``: the tables of the previous round.
    """
    numbers = {key % BUCKETS for key in touched.keys}
    mine = pc.field("key").isin(pa.array(touched.keys, pa.int64()))
    files = (file for one in found for file in one.files(*numbers))
    places = ((before / _GROUPS).glob("*.parquet"), files)
    used = (_table(names, mine, "session") for names in places)
    chunks = [chunk for rows in used if rows is not None for chunk in rows["session"].chunks]
    sessions = pc.unique(pa.chunked_array([touched.sessions, *chunks], pa.int64())).drop_null()
    groups = read(spark, found, numbers).where(_among("key", touched.keys))
    shared = read(spark, found, (SHARED, RUNS))
    of_sessions = F.col("type").isin("createSession", "closeSession", "error")
    of_sessions = F.coalesce(of_sessions, F.lit(False))
    chosen = spark.createDataFrame(pa.table({"session": sessions}))
    theirs = shared.where(of_sessions).join(chosen, "session", "left_semi")
    others = shared.where(~of_sessions).unionByName(theirs)
    return groups.unionByName(others).drop("key"), sessions


def _table(files: Iterable[Path], where: pc.Expression | None, *columns: str) -> pa.Table | None:
    """Return some columns of some files; ``None`` if there are no files."""
    names = [str(file) for file in files]
    return dataset.dataset(names).to_table(list(columns), where) if names else None


def runs_of(batches: Iterable[Batches]) -> list[dict[str, Any]]:
    """Return the rows about runs of zxids in some batches, with the columns of ``_OF_RUN``."""
    return [row for one in batches for row in _runs_in(one)]


def config_in(batches: Iterable[Batches]) -> tuple[int, bytes] | None:
    """Return the newest ensemble configuration in some batches, as ``committed.config_of`` does."""
    rows = _table((file for one in batches for file in one.files(SHARED)), None, "zxid", "path",
                  "data")  # fmt: skip
    return None if rows is None else config_of(rows)


def logged_runs(rows: Iterable[dict[str, Any]]) -> list[LoggedRun]:
    """Return rows about runs in the form that ``coverage`` needs."""
    return list(map(LoggedRun.of, rows))


def covered(rows: Iterable[dict[str, Any]]) -> list[Range]:
    """Return the ranges of zxids that the runs cover, merged, in ascending order."""
    return merged((row["first_zxid"], row["last_zxid"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Touched:
    """The groups (by key) and sessions that have new rows, and must be audited in a round."""

    keys: frozenset[int]
    sessions: pa.Array


def touched_by(batches: Iterable[Batches], before: Path) -> Touched | None:
    """Return the groups and sessions that new rows affect; ``None`` if topics have changed, which
    may affect all groups.

    A row about a session affects all groups in which the session was active. The end of a session
    also affects the groups whose znodes it deletes, because these may have been created in a log
    gap. ``before``: the tables of the previous round.
    """
    found: set[int] = set()
    chunks: list[pa.Array] = []
    for one in batches:
        found |= one.keys()
        rows = _table(one.files(SHARED), None, "path", "session", _LISTED)
        if rows is None:
            continue
        found.update(pc.unique(pc.list_flatten(rows[_LISTED])).drop_null().to_pylist())
        if pc.any(pc.match_substring(rows["path"], "/brokers/topics/")).as_py():
            return None
        chunks.extend(rows["session"].chunks)
    sessions = pc.unique(pa.chunked_array(chunks, pa.int64())).drop_null()
    if len(sessions):
        files = (before / _GROUPS).glob("*.parquet")
        used = _table(files, pc.field("session").isin(sessions), "key")
        found.update(used["key"].to_pylist() if used is not None else ())
    return Touched(frozenset(found), sessions)


@dataclass(frozen=True, slots=True)
class State:
    """What a round of a stream stores for the next one.

    Args:
        last: the last batch that the tables include.
        same: data on which all groups depend; if it changes, all groups are audited.
        unconfirmed: the ranges of zxids that may not have been committed, see
            ``committed.History``.
        end_us: time of the last transaction, in microseconds since 1970.
        always: keys of the groups that are audited in every round.
        audited: keys of the groups that were audited; ``None``: all.
        known_us: see ``group.Facts``.
    """

    last: int
    same: dict[str, Any]
    unconfirmed: list[list[int]]
    end_us: int | None
    always: tuple[int, ...] = ()
    audited: tuple[int, ...] | None = None
    known_us: int | None = None

    def write(self, tables: Path) -> None:
        """Write the state next to the tables."""
        text = {name: getattr(self, name) for name in self.__slots__}
        write_text(tables / _STATE, json.dumps(text))

    @classmethod
    def of(cls, tables: Path) -> State | None:
        """Read the state from the tables of a finished round."""
        file = tables / _STATE
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        return cls(**found | {"always": tuple(found["always"])})


class BucketStore(Store):
    """Writes the tables of a round of a stream, which audits some of the groups. The rows of the
    other groups are taken from the previous round.

    Args:
        keys: keys of the audited groups; ``None``: all groups.
        sessions: the sessions of these groups, all of whose rows were read. Not used if all groups
            are audited.
        before: the tables of the previous round, if any.
        state: the state of this round, which ``close`` completes and writes.
    """

    def __init__(
        self,
        spark: SparkSession,
        out: Path,
        keys: frozenset[int] | None,
        sessions: pa.Array | None,
        before: Path | None,
        state: State,
    ) -> None:
        super().__init__(spark, out)
        self.out = out
        self.keys = keys
        self.audited_sessions = sessions
        self.before = before if keys is not None else None
        self.state = state
        self.always: set[int] = set()
        self._audited: DataFrame | None = None
        """The rows of ``_groups`` about audited groups."""
        self._known_us: int | None = None
        self.buckets = sorted({key % BUCKETS for key in keys or ()})

    def table(self, spec: catalog.Table, frame: DataFrame | None) -> None:
        """Write a table, with the rows of the other groups from the previous round."""
        long, place = spec is catalog.COMMITS, self.place / spec.name
        unchanged = frame is None and not long
        if unchanged and (self.before is None or not rows_in(self.before / spec.name)):
            super().table(spec, None)
            return
        frame = empty(self.spark, spec.spark_type()) if frame is None else spec.shape(frame)
        if long:
            self._by_bucket(place, frame)
        else:
            save(self._with_others(frame, [self.before_of(place)]), place)

    def frame(self, spec: catalog.Table) -> DataFrame:
        """Return a written table's rows of audited groups."""
        if self.before is None:
            return super().frame(spec)
        if spec is not catalog.COMMITS:
            return super().frame(spec).where(self._is_audited())
        places, columns = self._audited_in(self.place / spec.name), spec.spark_type()
        if not places:
            return empty(self.spark, columns)
        return stored(self.spark, columns, places).where(self._is_audited())

    def _audited_in(self, folder: Path) -> list[Path]:
        """Return the directories of a partitioned table that have audited groups."""
        return [one for n in self.buckets if (one := folder / f"bucket={n}").is_dir()]

    def before_of(self, place: Path) -> Path:
        """Return the directory of the same table in the previous round."""
        return place if self.before is None else self.before / place.name

    def _is_audited(self) -> Column:
        """Whether a row belongs to an audited group, or to no group. Rows of no group are new in
        each round."""
        return F.col("group_id").isNull() | _among(GROUP_KEY, self.keys or ())

    def _with_others(self, frame: DataFrame, before: Sequence[Path]) -> DataFrame:
        """Return the rows, with those of the other groups in some directories of the previous
        round."""
        if self.before is None or not before:
            return frame
        others = stored(self.spark, frame.schema, before).where(~self._is_audited())
        return frame.unionByName(others)

    def _by_bucket(self, place: Path, frame: DataFrame) -> None:
        """Write a table that is partitioned by bucket. Only audited buckets are written."""
        before = self.before_of(place)
        rows = self._with_others(frame, self._audited_in(before))
        rows = rows.withColumn("bucket", bucket(group_key()))
        rows = rows.repartition("bucket").sortWithinPartitions("bucket", group_key())
        if not save(rows, place, "bucket"):
            save(empty(self.spark, frame.schema), place)
        if self.before is not None:
            for folder in before.glob("bucket=*"):
                if int(folder.name.partition("=")[2]) not in self.buckets:
                    shutil.copytree(folder, place / folder.name, copy_function=_link)

    def of_audited(self, rows: DataFrame) -> DataFrame:
        """Leave out rows of groups that are not audited. There are such rows if a session used both
        an audited group and another one."""
        return rows if self.before is None else rows.where(self._is_audited())

    def of_groups(self, snapshots: DataFrame) -> DataFrame:
        """Return the rows of audited groups, and the rows that belong to no group."""
        if self.keys is None:
            return snapshots
        keyed = snapshots.withColumn("key", group_key_of(F.col("path")))
        return keyed.where(F.col("key").isNull() | _among("key", self.keys)).drop("key")

    def sessions(self, audited: pa.Table) -> None:
        """Write the table ``sessions``. Sessions that are not audited are taken from the previous
        round."""
        if self.before is not None and self.audited_sessions is not None:
            others = pq.read_table(self.before / catalog.SESSIONS.name)
            others = others.filter(pc.invert(pc.is_in(others["session"], self.audited_sessions)))
            audited = pa.concat_tables([audited, others.cast(audited.schema)])
        super().sessions(audited)

    def used(self, stage: Stage) -> pa.Array:
        """Return the sessions that used an audited group."""
        assert self._audited is not None
        used = self._audited.where("session is not null").select("session")
        return used.toArrow()["session"].combine_chunks()

    def known_us(self, rows: DataFrame, known: int | None) -> int | None:
        """Return ``Facts.known_us``, as ``Store.known_us`` does. If not all groups are audited,
        ``rows`` may be incomplete, so the time of the last round that audited all groups is
        returned."""
        if self.before is None:
            self._known_us = super().known_us(rows, known)
        else:
            before = State.of(self.before)
            self._known_us = None if before is None else before.known_us
        return self._known_us

    def groups(self, stage: Stage) -> int:
        """Write the groups and the sessions that used them. Return the number of all groups."""
        key, counts = group_key().alias("key"), F.bool_or(F.col("tree") != "lock")
        names = stage.rows("names").groupBy(key)
        named = names.agg(F.coalesce(counts, F.lit(False)).alias("counts"))
        used = stage.rows("used").select(key, "session").distinct()
        self._keep_groups(named.unionByName(used, allowMissingColumns=True))
        every = _table((self.place / _GROUPS).glob("*.parquet"), None, "counts")
        return 0 if every is None else pc.sum(every["counts"]).as_py() or 0

    def waiting(self, groups: DataFrame) -> None:
        """Note groups whose findings depend on the end of the history, so that every round audits
        them."""
        rows = groups.select(group_key().alias("key")).distinct().collect()
        self.always.update(row["key"] for row in rows)

    def close(self) -> None:
        """Write the state of this round for the next one."""
        always = tuple(sorted(self.always))
        audited = None if self.keys is None else tuple(sorted(self.keys))
        known = self._known_us
        replace(self.state, always=always, audited=audited, known_us=known).write(self.place)

    def _keep_groups(self, found: DataFrame) -> None:
        """Write the groups, and take the others from the previous round."""
        if self.before is None or self.keys is None:
            self._audited = kept(self.place, _GROUPS, found)
            return
        mine = _among("key", self.keys)
        others = stored(self.spark, found.schema, [self.before / _GROUPS]).where(~mine)
        self._audited = kept(self.place, _GROUPS, found.unionByName(others)).where(mine)


def _link(file: str, name: str) -> None:
    try:
        os.link(file, name)
    except OSError:  # not every file system has hard links
        shutil.copy(file, name)


def _bucket_of_row() -> Column:
    """Return a row's bucket from the columns kind, type, path, error and key."""
    of = F.col("type")
    shared = of.isin("createSession", "closeSession") | is_shared(F.col("path"))
    shared |= F.col("path") == schema.CONFIG
    shared |= (of == "error") & (F.col("error") == schema.NODE_EXISTS)
    return (
        F.when(F.col("kind") == schema.RUN, RUNS)
        .when(F.coalesce(shared, F.lit(False)), SHARED)
        .otherwise(F.coalesce(bucket(F.col("key")), F.lit(REST)))
    )


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
    """Merge consecutive runs of each server. A merged run has the first and the last time, but no
    times between them."""
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
