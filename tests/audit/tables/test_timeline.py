"""The owners of a group under both coordinations are one history, without servers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit.history import staging
from zkaudit.history.batches import OUTPUT
from zkaudit.schema import spark_type
from zkaudit.tables import catalog, timeline
from zkaudit.tables.catalog import Table

from tests.audit.histories import frame_of, kept

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
START = datetime(2026, 11, 21, tzinfo=UTC)


def at(seconds: float | None) -> datetime | None:
    """A time of the history."""
    return None if seconds is None else START + timedelta(seconds=seconds)


def frame(spark: SparkSession, table: Table, *rows: dict[str, Any]) -> DataFrame:
    """Rows of a table."""
    return frame_of(spark, table.spark_type(), rows)


def znode(
    chroot: str, group: str, begin: float, end: float | None, session: int | None = 5
) -> dict[str, Any]:
    """An owner znode of t-0."""
    return {"chroot": chroot, "group_id": group, "topic": "t", "partition": 0,
            "member": f"{group}_a", "session": session, "start_zxid": int(begin),
            "start_time": at(begin), "end_zxid": end and int(end), "end_time": at(end),
            "ended": "still held" if end is None else "released"}  # fmt: skip


def assigned(group: str, begin: float, end: float | None, generation: int = 1) -> dict[str, Any]:
    """An assignment of t-0 by the coordinator."""
    return {"group_id": group, "topic": "t", "partition": 0, "member": f"{group}-new", "host": "/h",
            "first_generation": generation, "last_generation": generation + 1,
            "start_time": at(begin), "end_time": at(end)}  # fmt: skip


def stage_of(spark: SparkSession, *names: tuple[str, str, str]) -> staging.Stage:
    """Groups that have znodes (chroot, group and tree), in which nothing happened."""
    columns = spark_type(OUTPUT)
    keys = ("table", "chroot", "group_id", "tree")
    rows = [dict(zip(keys, ("names", *name), strict=True)) for name in names]
    return staging.Stage(frame_of(spark, columns, rows))


def test_one_history_of_a_group_that_was_stopped_and_moved(spark: SparkSession) -> None:
    """Its owners in ZooKeeper are followed by those on the coordinator. A group that only runs on
    the coordinator has a history too, also one that only journals show. Groups that the coordinator
    does not have are left out, and so are the coordinator's owners if several chroots have a group
    of this name."""
    zookeeper = [("/kafka", "moved"), ("", "stays"), ("/a", "twice"), ("/b", "twice")]
    stage = stage_of(spark, *((*name, "owners") for name in zookeeper))
    chroots = kept(timeline.chroots(stage))
    assert {tuple(row) for row in chroots.collect()} == {
        ("moved", "/kafka"), ("stays", ""), ("twice", None)
    }  # fmt: skip
    owned = frame(
        spark, catalog.OWNERSHIP,
        *[znode(*name, 10, 20) for name in zookeeper], znode("/kafka", "moved", 2, 9, None),
    )  # fmt: skip
    every = frame(
        spark, catalog.BROKER_OWNERSHIP,
        assigned("moved", 30, 50), assigned("moved", 60, None, 4), assigned("new", 30, None),
        assigned("twice", 30, None), assigned("own", 30, None, 7),
    )  # fmt: skip
    migratable = {"group_id": "own", "generation": 7, "protocol": f"{timeline.OWN_PROTOCOL}x"}
    generations = frame(spark, catalog.GENERATIONS, migratable)
    journal = {"topic": "t", "partition": 0, "member": "j", "start_time": at(1), "end_time": at(2),
               "ended": "stopped"}  # fmt: skip
    delivered = frame(
        spark, catalog.DELIVERIES,
        {"chroot": "", "group_id": "with-log", "coordination": "coordinator", **journal},
        {"chroot": "", "group_id": "stays", "coordination": "zookeeper", **journal},
    )  # fmt: skip
    on_brokers = timeline.placed(every, chroots)
    groups = kept(timeline.groups(stage, on_brokers, delivered))
    assert {tuple(row) for row in groups.collect()} == {
        ("/kafka", "moved", False), ("", "new", False), ("", "own", False), ("", "with-log", False)
    }  # fmt: skip
    registered = frame(spark, catalog.REGISTRATIONS)
    made = timeline.ownership(stage, groups, registered, owned, on_brokers, generations, delivered)
    rows = catalog.GROUP_OWNERSHIP.shape(made).orderBy("group_id", "start_time").collect()
    found = [
        (row["chroot"], row["group_id"], row["coordination"], row["source"], row["member"],
         row["first_generation"], row["last_generation"], row["ended"])
        for row in rows
    ]  # fmt: skip
    plain = ("coordinator", "generation")
    assert found == [
        ("/kafka", "moved", "zookeeper", "owner znode", "moved_a", None, None, "released"),
        ("/kafka", "moved", "zookeeper", "owner znode", "moved_a", None, None, "released"),
        ("/kafka", "moved", *plain, "moved-new", 1, 2, "reassigned"),
        ("/kafka", "moved", *plain, "moved-new", 4, 5, "still held"),
        ("", "new", *plain, "new-new", 1, 2, "still held"),
        ("", "with-log", "coordinator", "journal", "j", None, None, "stopped"),
    ]
    assert [row["start_time"].timestamp() - START.timestamp() for row in rows[:4]] == [
        2, 10, 30, 60
    ]  # fmt: skip


def test_a_group_with_a_mode_takes_precedence(spark: SparkSession) -> None:
    """Of several groups of one name, the coordinator's is the one that has a mode."""
    rows = [("/a", "g", "owners"), ("/b", "g", "mode"), ("/b", "g", "ids"), ("/c", "g", "lock")]
    stage = stage_of(spark, *rows)
    assert [tuple(row) for row in timeline.chroots(stage).collect()] == [("g", "/b")]
