"""What a stream records and its tables, divided by group: so a round reads and writes few files.

Groups are divided into ``BUCKETS`` by a hash of chroot and name. Rows that are not of one group
have buckets of their own. Driver's thread; executors write the files.

``recorded/batches-FIRST-LAST`` holds the rows of some of Spark's batches, ``bucket=N`` in it those
of one bucket. A table of groups has files ``bucket-N-*.parquet``. Those of buckets that a round
does not audit are hard links to the files of the round before. ``.state`` in the directory of the
tables is for the next round only: which sessions each bucket used, which topics it owned.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from zkaudit import schema
from zkaudit.findings.base import Tables
from zkaudit.findings.limits import Limits
from zkaudit.findings.rules import waiting
from zkaudit.history.committed import Range, Run, merged
from zkaudit.history.staging import (
    BUCKETS,
    NODE_EXISTS,
    Stage,
    bucket,
    bucket_of,
    is_topic,
)
from zkaudit.job.output import Store, collected, empty, put
from zkaudit.job.spark import is_little
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
_STATE: Final = ".state"


class NewTopicError(Exception):
    """A bucket's groups own a topic that was not known to any group: filters may mean it."""


@dataclass(frozen=True, slots=True, order=True)
class Batches:
    """A directory with the rows of batches ``first`` to ``last``, each transaction once."""

    first: int
    last: int
    place: Path = field(compare=False)

    def files(self, number: int) -> list[Path]:
        """The files of one bucket."""
        return sorted((self.place / f"bucket={number}").glob("*.parquet"))

    def bytes(self) -> int:
        """How many bytes its files have."""
        return sum(file.stat().st_size for file in self.place.rglob("*.parquet"))

    def buckets(self) -> set[int]:
        """The buckets that have rows."""
        return {int(place.name[7:]) for place in self.place.glob("bucket=*")}


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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new = False

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one batch, unless it was written before a crash: it had the same transactions.

        Earlier batches are put together first. Their rounds are over, so this does not change which
        groups are audited.
        """
        self.new = True
        found = recorded(self.folder)
        if any(one.first <= number <= one.last for one in found):
            return
        if small := together(found):
            self.merge(rows.sparkSession, small[0].first, small[-1].last)
        self._save(rows, number, number)

    def merge(self, spark: SparkSession, first: int, last: int) -> None:
        """Put the directories of batches ``first`` to ``last`` into one, then delete them."""
        inside = [b for b in recorded(self.folder) if first <= b.first and b.last <= last]
        rows = read(spark, [file for b in inside for file in b.place.rglob("*.parquet")])
        of = F.col("type")
        runs = _runs_as_rows(spark, [row for b in inside for row in _runs_in(b)])
        paths = rows.where(of == schema.PATH).dropDuplicates(["path"])
        others = rows.where(~of.isin(schema.PATH, schema.RUN))
        self._save(others.unionByName(paths).unionByName(runs), first, last)
        stay = {one.place for one in recorded(self.folder)}
        for place in list(self.folder.iterdir()):  # also those that an earlier crash left
            if _PLACE.fullmatch(place.name) and place not in stay:
                shutil.rmtree(place)

    def _save(self, rows: DataFrame, first: int, last: int) -> None:
        place = self.folder / f"batches-{first:010}-{last:010}"
        part = F.pmod(F.shiftright("position", 16), F.lit(4))  # so that no bucket is one task
        rows = rows.withColumn("bucket", _bucket_of_row()).repartition("bucket", part)
        rows.write.mode("overwrite").partitionBy("bucket").parquet(str(place))


def read(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Rows of ``schema.TXNLOG_GROUPS`` that were recorded."""
    columns = schema.spark_type(schema.TXNLOG_GROUPS)
    if not files:
        return empty(spark, columns)
    reader = spark.read.schema(columns).option("recursiveFileLookup", "true")
    return reader.parquet(*[str(file) for file in files])


def runs_of(batches: Iterable[Batches]) -> list[dict[str, Any]]:
    """Rows of all runs: columns server, file, zxid, last_zxid, time."""
    return [row for one in batches for row in _runs_in(one)]


def as_runs(rows: Iterable[dict[str, Any]]) -> list[Run]:
    """The same as ``committed.plan`` wants them."""
    return [Run(row["server"], row["zxid"], row["last_zxid"]) for row in rows]


def covered(rows: Iterable[dict[str, Any]]) -> list[Range]:
    """Zxids of runs, in order."""
    return merged((row["zxid"], row["last_zxid"]) for row in rows)


def touched_by(batches: Iterable[Batches], before: Path) -> set[int] | None:
    """Buckets with groups that new rows are about; ``None``: maybe all, because topics changed.

    A row about a session is about all groups that the session did something in: ``before`` holds
    the tables of the round before.
    """
    found: set[int] = set()
    sessions: list[pa.Array] = []
    for one in batches:
        found |= {number for number in one.buckets() if number < BUCKETS}
        for file in one.files(SHARED):
            rows = pq.read_table(file, columns=["path", "session"])
            if pc.any(pc.match_substring(rows["path"], "/brokers/topics/")).as_py():
                return None
            sessions.extend(rows["session"].chunks)
    if not sessions:
        return found
    wanted = pc.unique(pa.chunked_array(sessions))
    for number, file in _files(before / _STATE / "used"):
        if number not in found:
            used = pq.read_table(file, columns=["session"])["session"]
            if pc.any(pc.is_in(used, value_set=wanted)).as_py():
                found.add(number)
    return found


@dataclass(frozen=True, slots=True)
class State:
    """What the next round has to know of this one.

    Args:
        last: the last batch that is in the tables.
        same: what all groups depend on; when it differs, all groups are audited.
        unconfirmed: as in ``committed.History``.
        end_us: time of the last transaction, in microseconds since 1970.
        groups: how many groups each bucket has.
        always: buckets that are audited in every round.
        audited: the buckets that were audited; ``None``: all.
    """

    last: int
    same: dict[str, Any]
    unconfirmed: list[list[int]]
    end_us: int | None
    groups: dict[int, int] = field(default_factory=dict)
    always: tuple[int, ...] = ()
    audited: tuple[int, ...] | None = None

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
        found["groups"] = {int(number): count for number, count in found["groups"].items()}
        return cls(**found | {"always": tuple(found["always"])})


class BucketStore(Store):
    """Writes the tables of some buckets, and takes those of the others from the round before.

    Args:
        touched: the buckets that are audited; ``None``: all.
        before: the tables of the round before, if there are any.
        state: what this round knows of itself; ``close`` completes it.
    """

    def __init__(
        self,
        spark: SparkSession,
        out: Path,
        touched: frozenset[int] | None,
        before: Path | None,
        state: State,
    ) -> None:
        super().__init__(spark, out)
        self.touched = touched
        self.before = before if touched is not None else None
        self.state = state
        self.scratch = out / "staging" / "bucket"
        old = State.of(before) if self.before is not None and before is not None else None
        kept_groups = {} if old is None else old.groups
        self.counts = {n: count for n, count in kept_groups.items() if not self._audited(n)}
        self.always: set[int] = set()

    def _audited(self, number: int) -> bool:
        return self.touched is None or number in self.touched

    def table(self, spec: catalog.Table, frame: DataFrame) -> DataFrame:
        """Write the rows of the buckets that are audited, and link those of the others."""
        return self._write(spec.name, spec.shape(frame), bucket())

    def every(self, spec: catalog.Table, audited: DataFrame) -> DataFrame:
        """Return the whole table."""
        return self._all(spec.name, audited)

    def of_groups(self, snapshots: DataFrame) -> DataFrame:
        """Return the rows of groups that are audited, and those of no group."""
        if self.touched is None:
            return snapshots
        number = bucket_of(F.col("path"))
        return snapshots.where(number.isNull() | number.isin(*self.touched))

    def used(self, stage: Stage) -> DataFrame:
        """Return the sessions that did something in any group."""
        used = stage.used.select(bucket().alias("bucket"), "session").distinct()
        name = f"{_STATE}/used"
        return self._all(name, self._write(name, used.select("session", "bucket")))

    def owned_topics(self, ownership: DataFrame) -> DataFrame:
        """Return chroot and topic of what any group ever owned; raise NewTopicError for a new
        one, which groups that are not audited may mean too."""
        name = f"{_STATE}/owned_topics"
        owned = ownership.select("chroot", "topic", bucket().alias("bucket")).distinct()
        audited = self._write(name, owned)
        if self.before is not None:
            known = set(_pairs(file for _, file in _files(self.before / name)))
            known |= set(_pairs((self.place / catalog.PARTITIONS.name).glob("*.parquet")))
            mine = _files(self.place / name)
            if not known.issuperset(_pairs(file for n, file in mine if self._audited(n))):
                raise NewTopicError
        return self._all(name, audited)

    def groups(self, stage: Stage) -> tuple[int, int]:
        """Return how many groups there are, and how many with a mode. These are always audited."""
        group = F.struct("chroot", "group")
        rows = stage.names.groupBy(bucket().alias("bucket")).agg(
            F.count_distinct(F.when(F.col("tree") != "lock", group)).alias("groups"),
            F.count_distinct(F.when(F.col("tree") == "mode", group)).alias("moving"),
        )
        moving = 0
        for row in rows.collect():
            self.counts[row["bucket"]] = row["groups"]
            moving += row["moving"]
            if row["moving"]:
                self.always.add(row["bucket"])
        return sum(self.counts.values()), moving

    def judged(self, tables: Tables, limits: Limits, found: DataFrame) -> None:
        """Note the buckets with groups whose findings depend on when the history ends."""
        groups = waiting(tables, limits, found)
        rows = groups.select(bucket().alias("bucket")).distinct().collect()
        self.always.update(row["bucket"] for row in rows)

    def close(self) -> None:
        """Store what the next round has to know."""
        always = tuple(sorted(self.always))
        audited = None if self.touched is None else tuple(sorted(self.touched))
        replace(self.state, groups=self.counts, always=always, audited=audited).write(self.place)

    def _write(self, name: str, frame: DataFrame, number: Column | None = None) -> DataFrame:
        columns = [c for c in frame.columns if c != "bucket"]
        frame = frame if number is None else frame.withColumn("bucket", number)
        place = self.place / name
        place.mkdir(parents=True)
        mine = self._little(frame, place) if is_little(self.spark) else self._large(frame, place)
        rows = sum(pq.read_metadata(file).num_rows for file in mine)
        if self.before is not None:
            for old, file in _files(self.before / name):
                if not self._audited(old):
                    _link(file, place / file.name)
        kind = frame.select(*columns).schema
        if not any(place.iterdir()):
            return put(self.place, name, self.spark, kind, [])
        if not rows:
            return empty(self.spark, kind)
        reader = self.spark.read.schema(kind)
        if self.touched is None:
            return reader.parquet(str(place))
        return reader.parquet(*[str(file) for file in mine])

    def _little(self, frame: DataFrame, place: Path) -> list[Path]:
        """Write the files of all buckets from the driver's memory."""
        table = collected(frame)
        numbers = table["bucket"]
        mine = []
        for number in sorted(pc.unique(numbers).to_pylist()):
            mine.append(place / f"bucket-{number}-0.parquet")
            rows = table.filter(pc.equal(numbers, number))
            pq.write_table(rows.drop_columns("bucket"), mine[-1])
        return mine

    def _large(self, frame: DataFrame, place: Path) -> list[Path]:
        frame = frame.repartition("bucket")
        frame.write.mode("overwrite").partitionBy("bucket").parquet(str(self.scratch))
        mine = []
        for part in sorted(self.scratch.glob("bucket=*")):
            for count, file in enumerate(sorted(part.glob("*.parquet"))):
                mine.append(place / f"bucket-{part.name[7:]}-{count}.parquet")
                file.replace(mine[-1])
        shutil.rmtree(self.scratch)
        return mine

    def _all(self, name: str, audited: DataFrame) -> DataFrame:
        if self.touched is None:
            return audited
        return self.spark.read.schema(audited.schema).parquet(str(self.place / name))


def _bucket_of_row() -> Column:
    of = F.col("type")
    shared = of.isin("createSession", "closeSession") | is_topic(F.col("path"))
    shared |= (of == "error") & (F.col("error") == NODE_EXISTS)
    return (
        F.when(of == schema.RUN, RUNS)
        .when(F.coalesce(shared, F.lit(False)), SHARED)
        .otherwise(F.coalesce(bucket_of(F.col("path")), F.lit(REST)))
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


def _pairs(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        found = pq.read_table(file, columns=["chroot", "topic"])
        yield from zip(found["chroot"].to_pylist(), found["topic"].to_pylist(), strict=True)


def _runs_in(one: Batches) -> list[dict[str, Any]]:
    found = []
    for file in one.files(RUNS):
        rows = pq.read_table(file, columns=["server", "file", "zxid", "last_zxid", "time"])
        # Spark may have written times without a time zone; they are UTC.
        rows = rows.set_column(4, "time", rows["time"].cast(pa.timestamp("us", tz="UTC")))
        found += rows.to_pylist()
    return found


def folded(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs of one server that continue one another as one, with the time of its last zxid."""
    found: list[dict[str, Any]] = []
    for row in sorted(runs, key=lambda row: (row["server"], row["zxid"], row["last_zxid"])):
        last = found[-1] if found else None
        if (
            last is not None
            and last["server"] == row["server"]
            and row["zxid"] <= last["last_zxid"] + 1
            and row["zxid"] >> 32 == last["zxid"] >> 32
        ):
            if row["last_zxid"] >= last["last_zxid"]:
                last.update(last_zxid=row["last_zxid"], time=row["time"])
        else:
            found.append(dict(row))
    return found


def _runs_as_rows(spark: SparkSession, runs: list[dict[str, Any]]) -> DataFrame:
    fixed = {"position": 0, "idx": 0, "session": 0, "cxid": 0, "type": schema.RUN}
    columns = schema.arrow_schema(schema.TXNLOG_GROUPS)
    rows = [dict.fromkeys(columns.names) | fixed | row for row in folded(runs)]
    return spark.createDataFrame(
        pa.Table.from_pylist(rows, schema=columns), schema.spark_type(schema.TXNLOG_GROUPS)
    )
