"""Groups that migrated while they ran: their modes.

Covers only groups with a mode znode. Everything that their members and operators wrote about modes
is collected and ordered in plain Python (``history.modes``). Runs in the driver's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import StructType

from zkaudit.history.modes import (
    COORDINATIONS,
    FROM_SNAPSHOT,
    Act,
    Group,
    Moment,
    Registration,
    Span,
    group_of,
)
from zkaudit.history.staging import Stage
from zkaudit.schema import arrow_of
from zkaudit.tables.build import time_at

GROUP = ("chroot", "group")
_NEVER: Final = Moment(0)


@dataclass(frozen=True, slots=True)
class Moving:
    """All groups that have, or had, a mode.

    Args:
        groups: the groups, ordered by chroot and name.
        last: the history's last transaction.
        closed: zxid at which each session that wrote a mode was closed; ``None`` if it was not.
        addresses: client addresses of these sessions, where known.
    """

    groups: tuple[Group, ...] = ()
    last: Moment = _NEVER
    closed: Mapping[int, int | None] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.groups)


def count(stage: Stage) -> tuple[int, int]:
    """Return the number of groups in the history, and how many of them have a mode znode."""
    group = F.struct(*GROUP)
    found = stage.names.agg(
        F.count_distinct(F.when(F.col("tree") != "lock", group)).alias("groups"),
        F.count_distinct(F.when(F.col("tree") == "mode", group)).alias("moving"),
    ).first()
    assert found is not None
    return int(found["groups"]), int(found["moving"])


def collect(stage: Stage, registered: DataFrame, sessions: DataFrame, last: DataFrame) -> Moving:
    """Collect all writes that concern modes, for the groups that have one.

    ``registered`` and ``sessions`` are tables. ``last`` has one row: zxid and time of the last
    transaction.
    """
    moved = F.broadcast(stage.names.where("tree = 'mode'").select(*GROUP).distinct())
    acts: dict[tuple[str, str], list[Act]] = {}
    chosen = stage.changes.where(F.col("tree").isin("mode", "members", "lock"))
    for row in (
        chosen.join(moved, list(GROUP), "left_semi")
        .select(
            *GROUP, "tree", "name", "act", "zxid", "idx", F.unix_micros("time"), "session",
            "data", "version",
        )
        .collect()
    ):  # fmt: skip
        data = None if row["data"] is None else bytes(row["data"])
        act = Act(*row[2:])._replace(data=data)
        acts.setdefault((row["chroot"], row["group"]), []).append(act)
    members: dict[tuple[str, str], list[Registration]] = {}
    for row in (
        registered.join(moved, list(GROUP), "left_semi")
        .where("member is not null")
        .select(
            *GROUP, "member", "session", "start_zxid", "start_idx", "end_zxid", "end_after_zxid",
            "ended", F.unix_micros("start_time").alias("start_us"),
            F.unix_micros("end_time").alias("end_us"), F.size("subscription").alias("topics"),
        )
        .collect()
    ):  # fmt: skip
        members.setdefault((row["chroot"], row["group"]), []).append(
            Registration(
                row["member"],
                row["session"],
                _moment(row["start_zxid"], row["start_us"]),
                row["start_idx"] not in (None, FROM_SNAPSHOT),
                _moment(row["end_zxid"], row["end_us"]),
                row["end_after_zxid"],
                row["ended"],
                (row["topics"] or 0) > 0,
            )
        )
    end = last.select("zxid", F.unix_micros("time")).first()
    now = Moment(end[0] or 0, end[1]) if end else Moment(0)
    writers = {act.session for each in acts.values() for act in each if act.tree == "mode"}
    known = sessions.where(F.col("session").isin(*writers)).select(
        "session", "closed_zxid", "address"
    )
    about = known.collect()
    return Moving(
        tuple(
            group_of(*key, acts[key], members.get(key, ()), now.zxid, stage.log_gaps)
            for key in sorted(acts)
        ),
        now,
        {row["session"]: row["closed_zxid"] for row in about},
        {row["session"]: row["address"] for row in about if row["address"]},
    )


def _moment(zxid: int | None, us: int | None) -> Moment | None:
    return None if zxid is None else Moment(zxid, us)


def time_of(moment: Moment | None) -> datetime | None:
    """A transaction's time; ``None`` if unknown."""
    return None if moment is None else time_at(moment.us)


def _zxid(moment: Moment | None) -> int | None:
    return None if moment is None else moment.zxid


def rows(moving: Moving) -> list[dict[str, Any]]:
    """Rows of table ``migrations``."""
    return [
        {"chroot": group.chroot, "group": group.name, **_row(span, moving)}
        for group in moving.groups
        for span in group.spans
    ]


def _row(span: Span, moving: Moving) -> dict[str, Any]:
    return {
        "mode": span.mode and span.mode.value,
        "coordination": span.mode and COORDINATIONS[span.mode],
        "version": span.version,
        "start_zxid": span.start.zxid,
        "start_time": time_of(span.start),
        "end_zxid": _zxid(span.end),
        "end_time": time_of(span.end),
        "ended": span.ended,
        "session": span.session or None,
        "address": moving.addresses.get(span.session),
        "members": span.members,
        "acknowledged": [
            {
                "member": ack.member,
                "session": ack.session,
                "zxid": ack.at.zxid,
                "time": time_of(ack.at),
            }
            for ack in span.acknowledged
        ],
        "settled_zxid": _zxid(span.settled),
        "settled_time": time_of(span.settled),
        "late": list(span.late),
    }


def summary(moving: Moving) -> list[dict[str, Any]]:
    """The summary's entry for each group: its last mode, since when, and the members that have not
    acknowledged it."""
    found = []
    for group in moving.groups:
        if group.spans:
            span = group.spans[-1]
            time = time_of(span.start)
            found.append(
                {
                    "chroot": group.chroot,
                    "group": group.name,
                    "mode": span.mode and span.mode.value,
                    "since": time and time.isoformat(" ", "seconds"),
                    "ended": span.ended,
                    "changes": len(group.spans) - 1,
                    "late": list(span.late),
                }
            )
    return found


def as_frame(
    spark: SparkSession, columns: StructType, rows_: Iterable[Mapping[str, Any]]
) -> DataFrame:
    """Rows in the driver's memory, as a frame."""
    schema = arrow_of(columns)
    names = columns.fieldNames()
    values = [{name: row.get(name) for name in names} for row in rows_]
    return spark.createDataFrame(pa.Table.from_pylist(values, schema=schema), columns)
