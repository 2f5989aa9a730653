"""Turns rows of the transaction log into the rows of groups.

Sends all events of a group to one task, in the order of (zxid, idx), where ``zkaudit.group`` folds
them. Also collects the sessions, topics and brokers that an audit of groups needs. Runs in the
driver's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.errors import AuditError
from zkaudit.group import ACTS, Coverage, Facts, LogGap
from zkaudit.group.znodes import BROKER_PATH, GROUP_PATH, OFFSET_PATH, TOPIC_PATH
from zkaudit.history.batches import OUTPUT, fold_batches
from zkaudit.history.facts import EVENT_COLUMNS, NODE_COLUMNS, OF_ALL_GROUPS
from zkaudit.history.fold_input import EVENTS, INPUT, LATER, RENAMED, SHOWN, selected
from zkaudit.limits import Limits
from zkaudit.schema import arrow_schema, spark_type

if TYPE_CHECKING:
    import pyarrow as pa

BUCKETS: Final = 256
"""Number of buckets into which the groups of a stream are divided by a hash."""

MAX_LOG_GAPS: Final = 10_000
"""Largest plausible number of log gaps. With more, the logs of a server are missing."""


@dataclass(frozen=True)
class Stage:
    """The result of ``stage``: the rows from ``Fold`` for all groups
    (``history.batches.OUTPUT``)."""

    folded: DataFrame
    place: Path | None = None
    """Directory in which these rows are stored, partitioned by ``table``, if any."""

    def has(self, table: str) -> bool:
        """Whether there are rows of a table; also true if this is unknown."""
        return self.place is None or (self.place / f"table={table}").is_dir()

    def rows(self, table: str) -> DataFrame:
        """Return the rows of a table. If it is known to have none, Spark plans no joins with it."""
        rows = self.folded.where(F.col("table") == table)
        return rows if self.has(table) else rows.limit(0)

    def read(self, table: str, *columns: str) -> pa.Table:
        """Return columns of a table in memory. If the rows are stored, they are read without
        Spark."""
        from pyarrow import dataset

        if self.place is None or not self.has(table):
            return self.rows(table).select(*columns).toArrow()
        return dataset.dataset(self.place / f"table={table}").to_table(list(columns))

    @property
    def commits(self) -> DataFrame:
        """Return the writes of offsets, with the columns of the table ``commits``."""
        absent = ("log_partition", "log_offset", "metadata")
        columns = {name: F.lit(None) for name in absent} | {"store": F.lit("zookeeper")}
        return self.rows("offsets").withColumns(columns)


def text_of(data: Column) -> Column:
    """Return bytes as text. Invalid UTF-8 becomes U+FFFD."""
    return F.make_valid_utf8(data.cast("string"))


def stage(
    rows: DataFrame,
    log_gaps: Sequence[LogGap] = (),
    snapshots: DataFrame | None = None,
    group: str | None = None,
    keep: Callable[[str, DataFrame], DataFrame] = lambda _, frame: frame,
    known: Sequence[int | None] = (0,),
    facts: Facts | None = None,
    limits: Limits | None = None,
) -> Stage:
    """Run the history of all groups through ``Fold``, and apply the rules. ``rows``: columns of
    ``schema.TXNLOG``, each transaction once.

    ``log_gaps``: pairs (after, before); all zxids strictly between the two are missing. A history
    that does not reach back to the first transaction begins with (0, its first zxid). ``snapshots``
    (``schema.SNAPSHOT``) add znodes whose creation is not in the logs. ``group``: a Java regex that
    must match a group's whole name. ``keep`` stores, under a name, a frame that is used several
    times, and returns the stored frame. ``known``: the result of ``selection.known``. Without
    ``facts``, there are no findings. ``limits``: the thresholds of rules.
    """
    if len(log_gaps) > MAX_LOG_GAPS:
        raise AuditError(
            f"there are {len(log_gaps)} log gaps, more than {MAX_LOG_GAPS}: add the logs of "
            "the other servers"
        )
    return Stage(
        keep("folded", _folded(rows, snapshots, group, Coverage(log_gaps, known), facts, limits)),
    )


def shared_rows(rows: DataFrame) -> pa.Table:
    """Collect the rows that concern all groups: the starts and ends of sessions, and operations on
    the znodes of topics and brokers."""
    of, path = F.col("type"), F.col("path")
    named = reduce(or_, map(path.contains, OF_ALL_GROUPS))
    chosen = of.isin("createSession", "closeSession") | of.isin(*ACTS) & named
    rows = rows.where(F.coalesce(chosen, F.lit(False)))
    return rows.select(
        *EVENT_COLUMNS[:-1], "timeout", F.lit(None).alias(EVENT_COLUMNS[-1])
    ).toArrow()


def shared_nodes(snapshots: DataFrame) -> pa.Table:
    """Collect the znodes of topics and brokers in snapshots."""
    named = reduce(or_, map(F.col("path").contains, OF_ALL_GROUPS))
    return snapshots.where(named).select(*NODE_COLUMNS).toArrow()


def _folded(
    rows: DataFrame,
    snapshots: DataFrame | None,
    group: str | None,
    coverage: Coverage,
    facts: Facts | None,
    limits: Limits | None,
) -> DataFrame:
    """Return ``Stage.folded``. All rows of a group are in one task, in order."""
    parts = _of_groups(rows, snapshots, group, bool(coverage.log_gaps))
    fold = partial(fold_batches, arrow_schema(OUTPUT), coverage, facts=facts, limits=limits)
    every = reduce(DataFrame.unionByName, map(_as_input, parts))
    return (
        every.repartition("key")
        .sortWithinPartitions("key", "part", "zxid", "idx")
        .mapInArrow(fold, spark_type(OUTPUT))
    )


def _of_groups(
    rows: DataFrame, snapshots: DataFrame | None, group: str | None, later: bool
) -> list[DataFrame]:
    """Return the rows of groups, each with the ``key`` of its group and its ``part`` of the
    fold's input. A row of two parts occurs twice."""
    chosen = selected(_Operations(), later)
    sessions = [_keyed(rows.where(chosen.held), group)]
    parts = []
    if snapshots is not None:
        shown = _keyed(snapshots, group).withColumnsRenamed(RENAMED)
        parts.append(shown.withColumn("part", F.lit(SHOWN)))
        sessions.append(shown)
    if later:
        listed = rows.where(chosen.closes).select("session", F.explode("deleted").alias("path"))
        sessions.append(_keyed(listed, group))
    used = reduce(DataFrame.unionByName, (each.select("key", "session") for each in sessions))
    alone = rows.where(chosen.closes | chosen.refused)
    # A session's end may list znodes of several groups.
    mine = F.filter("deleted", lambda path: _key(path) == F.col("key")) if later else F.lit(None)
    alone = alone.join(used.where("session != 0").distinct(), "session")
    alone = alone.withColumn("deleted", mine.cast("array<string>"))
    both, one = F.array(F.lit(LATER), F.lit(EVENTS)), F.array(F.lit(EVENTS))
    part = F.explode(F.when(chosen.later, both).otherwise(one))
    acts = _keyed(rows.where(chosen.acts), group)
    return [*parts, *(each.withColumn("part", part) for each in (acts, alone))]


class _Operations:
    """``fold_input.Operations`` in Spark."""

    def type_in(self, types: Iterable[str]) -> Column:
        return _is(F.col("type").isin(*types))

    def path_has(self, text: str) -> Column:
        return _is(F.col("path").contains(text))

    def path_ends(self, text: str) -> Column:
        return _is(F.col("path").endswith(text))

    def is_offset(self) -> Column:
        return _is(F.col("path").rlike(OFFSET_PATH))

    def is_ephemeral(self) -> Column:
        return _is(F.col("ephemeral"))

    def failed_with(self, error: int) -> Column:
        return _is(F.col("error") == error)


def _is(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _keyed(rows: DataFrame, group: str | None) -> DataFrame:
    """Return the rows of znodes below ``/consumers``, with the ``key`` of their group."""
    path = F.col("path")
    rows = rows.where(path.contains("/consumers/"))
    if group is not None:
        rows = rows.where(F.substring_index(_place(path), "/", -1).rlike(rf"\A(?:{group})\z"))
    return rows.withColumn("key", _key(path))


def _place(path: Column) -> Column:
    """Return the path of a znode's group; empty if it has none."""
    return F.regexp_extract(path, GROUP_PATH, 1)


def _key(path: Column) -> Column:
    """Return the key of a path's group. The fold ignores znodes of no group. Each has its own
    key, because there may be too many for one task."""
    return F.xxhash64(F.coalesce(F.nullif(_place(path), F.lit("")), path))


def _as_input(rows: DataFrame) -> DataFrame:
    """Return rows of transactions or of snapshots with the columns of ``fold_input.INPUT``."""
    present = rows.columns
    return rows.select(
        *(
            (F.col(c.name) if c.name in present else F.lit(None)).cast(c.dataType).alias(c.name)
            for c in spark_type(INPUT)
        )
    )


GROUP_KEY: Final = "xxhash64(concat(chroot, '/consumers/', group_id))"
"""``group_key`` in SQL."""


def group_key() -> Column:
    """Return a column with a hash of each row's chroot and group."""
    return F.expr(GROUP_KEY)


def group_key_of(path: Column) -> Column:
    """Return a column with the ``group_key`` of the group to which a znode's path belongs; null if
    it belongs to none."""
    is_of_group = path.contains("/consumers/") & (_place(path) != "")
    return F.when(is_of_group, F.xxhash64(_place(path)))


def bucket(key: Column) -> Column:
    """Return the bucket of a ``group_key``, from 0 to ``BUCKETS`` - 1."""
    return F.pmod(key, F.lit(BUCKETS)).cast("int")


def is_shared(path: Column) -> Column:
    """Whether a path belongs to a topic or a broker."""
    return path.contains("/brokers/") & (path.rlike(TOPIC_PATH) | path.rlike(BROKER_PATH))
