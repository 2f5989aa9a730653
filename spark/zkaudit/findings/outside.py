"""Findings from journals of members and from records of coordinators.

The rules in ``zkaudit.group.records`` are plain Python that runs in Spark's Python workers. All
rows of a group are in one task, its commits last. Without journals and records no job is planned.
The driver only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame, functions as F

from zkaudit.findings.base import Tables
from zkaudit.group import Coverage, Finding
from zkaudit.group.records import (
    Committed,
    Delivery,
    Herd,
    Lowered,
    Owned,
    Records,
    State,
    View,
)
from zkaudit.history.batches import OUTPUT
from zkaudit.limits import Limits
from zkaudit.schema import arrow_schema, spark_type
from zkaudit.tables.catalog import GROUP

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES: Final = (*GROUP, *(field.name for field in fields(Finding)))
COLUMNS: Final = tuple(column for column in OUTPUT if column.name in _NAMES)
"""The columns of the findings."""
_MAPS: Final = ("clients", "hosts")
_ORDER: Final = ("part", "first", "second")


class Outside(NamedTuple):
    """What the rules for journals and coordinators' records need in Spark's workers, apart from a
    group's own data."""

    coverage: Coverage
    limits: Limits


def from_records(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Return the findings from members' journals and coordinators' records."""
    parts = [*_journals(tables, limits), *_coordinators(tables)]
    if not parts:
        return []
    if tables.moving is not None:
        parts.append(tables.moving)
    rows = reduce(
        partial(DataFrame.unionByName, allowMissingColumns=True),
        (frame.withColumn("part", F.lit(number)) for number, frame in enumerate(parts)),
    )
    rules = Outside(Coverage(tables.log_gaps, tables.known), limits)
    return [
        rows.repartition(*GROUP)
        .sortWithinPartitions(*GROUP, *_ORDER)
        .mapInArrow(partial(judged, arrow_schema(COLUMNS), rules), spark_type(COLUMNS))
    ]


def _part(frame: DataFrame, name: str, row: type[Any], *order: str) -> DataFrame:
    """Return rows as one column with the fields of ``row``."""
    places = {"first": F.lit(0), "second": F.lit(0)} | dict(
        zip(_ORDER[1:], map(F.col, order), strict=False)
    )
    return frame.select(
        *GROUP,
        *(column.cast("bigint").alias(place) for place, column in places.items()),
        F.struct(*row._fields).alias(name),
    )


def _timed(frame: DataFrame) -> DataFrame:
    """Return the rows with ``start`` and ``end`` in microseconds."""
    return frame.withColumns({name: F.unix_micros(f"{name}_time") for name in ("start", "end")})


def _journals(tables: Tables, limits: Limits) -> list[DataFrame]:
    if not tables.has_journals:
        return []
    registered = tables.registrations.where("member is not null").select(*GROUP, "member")
    kept = tables.deliveries.select(*GROUP).distinct()
    mine = tables.commits.where(
        "kind = 'commit' and owner_session = session and committed_offset is not null "
        "and owner_member is not null"
    ).join(F.broadcast(kept), list(GROUP), "left_semi")
    herds = tables.herds.where(F.col("notified") >= limits.herd_members)
    values = {"member": F.col("owner_member"), "time": F.unix_micros("time")}
    mine = mine.withColumns(values | {"offset": F.col("committed_offset")})
    return [
        registered.distinct().select(*GROUP, F.struct("member").alias("registered")),
        _part(_timed(tables.deliveries), "delivery", Delivery),
        _part(_timed(tables.views), "view", View),
        _part(herds.withColumn("time", F.unix_micros("time")), "herd", Herd),
        _part(mine, "committed", Committed, "zxid", "idx"),
    ]


def _coordinators(tables: Tables) -> list[DataFrame]:
    parts = []
    if tables.group_ownership is not None:
        owned = (
            tables.group_ownership.where("source in ('owner znode', 'generation')")
            .where("member is not null and ended != 'expired' and ended != 'unknown'")
            .withColumns(
                {
                    "by_znode": F.col("source") == "owner znode",
                    "end_time": F.coalesce("end_time", F.timestamp_micros(F.lit(tables.end_us))),
                }
            )
        )
        owned = _timed(owned).where("start is not null and end is not null")
        parts.append(_part(owned, "owned", Owned))
    if tables.generations is not None:
        states = tables.generations.withColumns(
            {
                "is_classic": F.col("group_protocol") == "classic",
                "time": F.unix_micros("time"),
                "members": F.coalesce("members", F.array().cast("array<string>")),
            }
        )
        parts.append(_part(states, "state", State, "log_partition", "log_offset"))
        lowered = tables.commits.where("store = 'kafka' and committed_offset < previous")
        values = {"time": F.unix_micros("time"), "offset": F.col("committed_offset")}
        lowered = lowered.withColumns(values)
        parts.append(_part(lowered, "lowered", Lowered))
    return parts


def judged(
    schema: pa.Schema, rules: Outside, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Apply the rules to the rows of groups, and yield the findings in batches of ``COLUMNS``.

    ``batches``: the rows of all inputs, ordered by group. Runs in Spark's Python workers.
    """
    import pyarrow as pa

    rows = (row for batch in batches for row in batch.to_pylist())
    for (chroot, group), mine in groupby(rows, itemgetter(*GROUP)):
        records = Records(group)
        for row in mine:
            _add(records, row)
        found = [
            {"chroot": chroot, "group_id": group, **_row(finding)}
            for finding in records.findings(rules.coverage, rules.limits)
        ]
        if found:
            yield pa.RecordBatch.from_pylist(found, schema=schema)


def _add(records: Records, row: dict[str, Any]) -> None:
    get = row.get
    if part := get("registered"):
        records.registered.append(part["member"])
    elif part := get("delivery"):
        records.deliveries.append(Delivery(**part))
    elif part := get("view"):
        records.views.append(View(**part | {"members": tuple(part["members"])}))
    elif part := get("herd"):
        records.herds.append(Herd(**part))
    elif part := get("committed"):
        records.committed(Committed(**part))
    elif part := get("owned"):
        records.owned.append(Owned(**part))
    elif part := get("state"):
        maps = {name: dict(part[name] or ()) for name in _MAPS}
        records.states.append(State(**part | maps))
    elif part := get("lowered"):
        records.kafka.append(Lowered(**part))
    elif get("moves"):
        records.moves = True


def _row(finding: Finding) -> dict[str, Any]:
    row = {name: getattr(finding, name) for name in _NAMES[len(GROUP) :]}
    return row | {"evidence": [part._asdict() for part in finding.evidence]}
