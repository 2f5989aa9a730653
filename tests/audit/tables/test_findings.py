"""Every rule finds what it is for, and says nothing of a history without faults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit import intervals, schema, staging, tables, tables_build
from zkaudit.findings import Limits, Tables, findings

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
EPOCH = datetime(2026, 11, 21, tzinfo=UTC)
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


class History:
    """A log written by hand; each step takes a second unless it says otherwise."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.zxid = 0
        self.now = EPOCH

    def add(self, kind: str, session: int, path: str | None = None, **more: Any) -> None:
        self.zxid += 1
        self.now += timedelta(seconds=more.pop("seconds", 1))
        self.rows.append(
            {"server": "a", "file": "log.1", "position": self.zxid, "zxid": self.zxid, "idx": 0,
             "size": 0, "time": self.now, "session": session, "cxid": 1, "type": kind,
             "path": path, **more}
        )  # fmt: skip

    def join(self, group: str, member: str, session: int) -> None:
        path = f"/consumers/{group}/ids/{member}"
        self.add("create", session, path, data=REGISTRATION, ephemeral=True)

    def claim(self, group: str, partition: int, member: str, session: int, **more: Any) -> None:
        path = f"/consumers/{group}/owners/t/{partition}"
        self.add("create", session, path, data=f"{member}-0".encode(), ephemeral=True, **more)

    def release(self, group: str, partition: int, session: int) -> None:
        self.add("delete", session, f"/consumers/{group}/owners/t/{partition}")

    def commit(self, group: str, partition: int, offset: int, session: int) -> None:
        path = f"/consumers/{group}/offsets/t/{partition}"
        self.add("setData", session, path, data=str(offset).encode())


def found(
    spark: SparkSession, history: History, holes: tuple[tuple[int, int], ...] = ()
) -> dict[tuple[str, str], list[Any]]:
    """Findings by group and kind."""
    names = [c.name for c in schema.TXNLOG]
    values = [tuple(row.get(name) for name in names) for row in history.rows]
    frame = spark.createDataFrame(values, schema.spark_type(schema.TXNLOG))
    stage = staging.stage(frame, holes)
    owned = intervals.owners(intervals.lives(stage, "owners"))
    registered = intervals.registrations(intervals.lives(stage, "ids"))
    end = spark.createDataFrame([(history.zxid, history.now)], "zxid bigint, time timestamp")

    def kept(table: tables.Table, made: Any) -> Any:
        return table.shape(made).localCheckpoint()

    ownership = kept(tables.OWNERSHIP, owned)
    members = kept(tables.REGISTRATIONS, registered)
    changes = kept(tables.MEMBERSHIP, tables_build.membership(members))
    refused = kept(tables.FAILED_CLAIMS, tables_build.failed_claims(stage, members))
    made = Tables(
        members,
        ownership,
        kept(tables.COMMITS, intervals.commits(stage, owned)),
        changes,
        refused,
        kept(tables.REBALANCES, tables_build.rebalances(ownership, changes, refused, 5_000)),
        end,
    )
    by: dict[tuple[str, str], list[Any]] = {}
    for row in findings(made, Limits()).collect():
        by.setdefault((row["group"], row["kind"]), []).append(row)
    return by


@pytest.fixture(scope="module")
def planted(spark: SparkSession) -> dict[tuple[str, str], list[Any]]:
    """One history, a group for each fault."""
    h = History()
    for number, group in enumerate(("clean", "zombie", "orphan", "foreign", "twins", "lonely")):
        session = 10 * number + 1
        h.join(group, f"{group}_a", session)
        h.claim(group, 0, f"{group}_a", session)
        h.commit(group, 0, 5, session)
        h.commit(group, 0, 9, session)
    h.commit("zombie", 0, 7, 99)  # zombie, and a regression
    h.commit("zombie", 0, 11, 99)
    h.release("orphan", 0, 21)
    for offset in (20, 21, 22):
        h.commit("orphan", 0, offset, 21)
    h.claim("orphan", 0, "orphan_a", 21)
    h.release("foreign", 0, 98)
    h.claim("foreign", 0, "foreign_a", 31, seconds=60)  # a gap as well
    h.claim("twins", 1, "twins_a", 42)  # not the session of the registration
    h.join("lonely", "lonely_b", 52)
    h.claim("lonely", 1, "lonely_a", 51)
    h.release("clean", 0, 1)
    h.commit("quiet", 0, 3, 97)  # a tool, while nobody is there
    h.commit("quiet", 0, 2, 97)
    h.join("storm", "storm_a", 61)
    for _ in range(12):
        h.claim("storm", 0, "storm_a", 61, seconds=20)
        h.release("storm", 0, 61)
    h.claim("storm", 0, "storm_a", 61, seconds=20)
    h.join("fight", "fight_a", 71)
    h.claim("fight", 0, "fight_a", 71, seconds=20)
    for _ in range(25):
        h.add("error", 71, error=-110, seconds=0.1)
    h.claim("clean", 0, "clean_a", 1)
    return found(spark, h)


PLANTED = {
    ("zombie", "zombie commit"): "critical",
    ("zombie", "offset regression"): "high",
    ("orphan", "orphan commit"): "high",
    ("foreign", "foreign release"): "critical",
    ("foreign", "gap"): "medium",
    ("twins", "one consumer id on two sessions"): "high",
    ("lonely", "member without its share"): "medium",
    ("storm", "rebalance storm"): "medium",
    ("fight", "claim contention"): "medium",
    ("quiet", "orphan commit"): "info",
    ("quiet", "offset regression"): "info",
    ("clean", "gap"): "medium",
}


def test_every_planted_fault_is_found_and_nothing_else(
    planted: dict[tuple[str, str], list[Any]],
) -> None:
    """Kinds and severities are exactly those planted, one finding each."""
    assert {key: [r["severity"] for r in rows] for key, rows in planted.items()} == {
        key: [severity] for key, severity in PLANTED.items()
    }


def test_findings_can_be_read_and_checked(planted: dict[tuple[str, str], list[Any]]) -> None:
    """Each has a sentence, a place in the history, and evidence rows with transactions."""
    for rows in planted.values():
        for row in rows:
            assert row["sentence"].endswith("."), row
            assert row["zxid"], row
            assert row["evidence"], row
            assert all(e["zxid"] for e in row["evidence"]), row
    (zombie,) = planted["zombie", "zombie commit"]
    assert "committed 2 times, 7 to 11, for t-0 of group zombie" in zombie["sentence"]
    assert "zombie_a owned it" in zombie["sentence"]


def test_nothing_is_said_beyond_a_hole(spark: SparkSession) -> None:
    """With the transactions before the commits missing, a commit is neither zombie nor orphan."""
    h = History()
    h.join("g", "g_a", 1)
    h.claim("g", 0, "g_a", 1)
    h.zxid += 10
    h.commit("g", 0, 5, 2)
    h.commit("g", 1, 5, 2)
    assert found(spark, h, ((2, 12),)) == {}
    assert set(found(spark, h)) == {("g", "zombie commit"), ("g", "orphan commit")}
