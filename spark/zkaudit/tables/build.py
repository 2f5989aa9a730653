"""Tables from the rows of the fold and from data that groups share: sessions, registrations,
moves, partitions. Driver's thread."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F

from zkaudit.group import Facts
from zkaudit.history.staging import Stage, text_of
from zkaudit.tables.catalog import GROUP, SESSIONS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_REGISTRATION = "version int, subscription map<string,int>, pattern string"


def registrations(stage: Stage) -> DataFrame:
    """Return the table ``registrations``."""
    content = F.from_json(text_of(F.col("data")), _REGISTRATION)
    return (
        stage.rows("ids")
        .withColumn("content", content)
        .withColumns(
            {
                "member": F.col("name"),
                "pattern": F.col("content.pattern"),
                "subscription": F.col("content.subscription"),
            }
        )
    )


def sessions(
    shared: pa.Table, used: pa.Array, brokers: Mapping[int, str], addresses: Mapping[int, str]
) -> pa.Table:
    """Return the table ``sessions``.

    Args:
        shared: the result of ``staging.shared_rows``.
        used: the sessions that used a group.
        brokers: the broker's id for each session of a broker.
        addresses: the client's address of each session, if known.
    """
    created = _first(shared, "createSession", zxid="created_zxid", time="created_time",
                     timeout="timeout_ms")  # fmt: skip
    closed = _first(shared, "closeSession", zxid="closed_zxid", time="closed_time", cxid="cxid")
    every = pa.chunked_array([used, *created["session"].chunks, *closed["session"].chunks])
    found = pa.table({"session": pc.unique(every).sort()})
    for name, of in (("broker", brokers), ("address", addresses)):
        pairs = pa.array(of.keys(), pa.int64()), pa.array(of.values(), pa.string())
        found = found.join(pa.table(dict(zip(("session", name), pairs, strict=True))), "session")
    found = found.join(created, "session").join(closed, "session")
    closer = pc.if_else(pc.equal(found["cxid"], 0), "server", "client")
    closer = pc.if_else(pc.is_valid(found["closed_zxid"]), closer, None)
    wanted = SESSIONS.arrow_schema()
    return found.append_column("closed_by", closer).select(wanted.names).cast(wanted)


def _first(shared: pa.Table, kind: str, **names: str) -> pa.Table:
    """Return the first transaction of a type in each session: the session, and these columns under
    new names."""
    rows = shared.filter(pc.equal(shared["type"], kind))
    rows = rows.sort_by([("session", "ascending"), ("zxid", "ascending")])
    _, places = np.unique(rows["session"].to_numpy(), return_index=True)
    found = rows.take(places).select(["session", *names])
    return found.rename_columns(["session", *names.values()])


def moves(stage: Stage) -> DataFrame:
    """Return the table ``moves``."""
    moved_to = F.get_json_object(text_of(F.col("data")), "$.moved_to")
    return (
        stage.rows("changes")
        .where("tree = 'migration'")
        .select(
            *GROUP,
            "zxid",
            "idx",
            "time",
            "session",
            F.when(
                (F.col("act") != "delete") & moved_to.isin("kafka", "zookeeper"), moved_to
            ).alias("moved_to"),
        )
    )


def time_at(us: int | None) -> datetime | None:
    """Return microseconds since 1970 as a time."""
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def partitions(facts: Facts) -> list[dict[str, Any]]:
    """Return the rows of the table ``partitions``."""
    return [
        {
            "chroot": chroot,
            "topic": topic,
            "partition": number,
            "zxid": partition.zxid,
            "time": time_at(partition.time),
            "created": partition.is_created,
            "gone_zxid": partition.gone_zxid,
            "deleted_zxid": partition.deleted_zxid,
        }
        for (chroot, topic), numbers in facts.topics.items()
        for number, partition in numbers.items()
    ]
