"""What triggered rebalances, from the journals of real members on servers of several versions.

The members' broker does not exist: they join, claim partitions and leave, but deliver nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from zkaudit.job import audit as job
from zkaudit.job.output import load

from tests.audit import queries
from tests.audit.conftest import serving
from tests.support.groups import GroupWatch
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.servers import free_port

pytestmark = pytest.mark.timeout(600)
MEMBERS = ("anna", "bert", "carl")
PARTITIONS = 6


@dataclass
class Audited:
    """The audit of one group on one server. ``names``: whether the server names causes."""

    names: bool
    out: Path
    tables: dict[str, DataFrame]

    def rows(self, table: str, where: str) -> list[dict[str, Any]]:
        found = self.tables[table].where(where).orderBy("time").collect()
        return [row.asDict() for row in found]


def play(address: str, journals: Path) -> None:
    """Members join one after the other; then the first one leaves, and the topic grows."""
    zk = KazooClient(address)
    zk.start(20)
    broker = {"version": 1, "host": "127.0.0.1", "port": free_port(), "timestamp": "1"}
    zk.create("/brokers/ids/0", json.dumps(broker).encode(), makepath=True)

    def topic(partitions: int) -> bytes:
        numbers = {str(number): [0] for number in range(partitions)}
        return json.dumps({"version": 1, "partitions": numbers}).encode()

    zk.create("/brokers/topics/t", topic(PARTITIONS), makepath=True)
    zk.ensure_path("/consumers")
    watch = GroupWatch(address, "g")

    def settled(members: int, partitions: int = PARTITIONS) -> None:
        def right(owners: dict[int, str]) -> bool:
            names = {text.rpartition("-")[0] for text in owners.values()}
            return len(owners) == partitions and len(names) == members

        watch.wait_owners("t", right, 120, f"{members} members own {partitions} partitions")

    running = []
    for count, name in enumerate(MEMBERS, 1):
        config = {
            "zookeeper.connect": address,
            "group.id": "g",
            "consumer.id": name,
            "zkconsumer.journal.dir": str(journals / name),
        }
        running.append(ZookeeperConsumerConnector(config))
        running[-1].create_message_streams({"t": 1})
        settled(count)
    running[0].shutdown()
    settled(2)
    zk.set("/brokers/topics/t", topic(PARTITIONS + 2))
    settled(2, PARTITIONS + 2)
    for member in running[1:]:
        member.shutdown()
    watch.close()
    zk.stop()
    zk.close()


@pytest.fixture(scope="module", params=["3.4.14", "3.9.3"])
def audited(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Audited:
    """The audit of the group's whole life, on each version."""
    root = tmp_path_factory.mktemp("causes")
    with serving(request.param, root / "zookeeper") as address:
        play(address, root / "journals")
    logs = str(root / "zookeeper" / "data" / "version-2")
    job.run(spark, job.Options([logs], str(root / "out"), journals=[str(root / "journals")]))
    return Audited(request.param >= "3.9", root / "out", load(spark, root / "out")[1])


def test_a_leave_names_the_rebalances_that_it_triggered(audited: Audited) -> None:
    """Each of the other two members rebalanced because of it. ZooKeeper 3.9 says so. With an older
    server, their rebalances for the new partitions soon after count to it, too."""
    (left,) = audited.rows("herds", "change = 'leave' and members = 2")
    assert (left["basis"], left["cause"]) == (
        "measured",
        "proven" if audited.names else "inferred",
    )
    assert left["notified"] == 2
    assert left["rebalances"] == 2 if audited.names else left["rebalances"] >= 2
    assert left["reads"] > 0
    attempts = audited.rows("attempts", f"trigger_zxid = {left['zxid']}")
    assert {row["member"] for row in attempts} == {"g_bert", "g_carl"}
    paths = {row["trigger_path"] for row in attempts}
    assert paths == ({"/consumers/g/ids"} if audited.names else {None})


def test_a_trigger_that_is_no_change_of_membership(audited: Audited) -> None:
    """New partitions trigger rebalances, too. Only the server can name that transaction. By time,
    they count to the last leave before."""
    grown = audited.tables["partitions"].where("partition = 7").collect()[0]["zxid"]
    attempts = audited.rows("attempts", f"trigger_zxid = {grown}")
    expected = {"g_bert", "g_carl"} if audited.names else set()
    assert {row["member"] for row in attempts} == expected
    assert {row["trigger_path"] for row in attempts} <= {"/brokers/topics/t"}


def test_the_first_attempt_of_a_member_has_no_trigger(audited: Audited) -> None:
    """It rebalances because it has joined: no watch of its own fired."""
    first = audited.rows("attempts", "attempt = 1")
    assert len(first) == len(MEMBERS)
    if audited.names:
        assert {row["trigger_zxid"] for row in first} == {None}


def test_the_question_about_triggers(audited: Audited, spark: SparkSession) -> None:
    """DuckDB and Spark list each rebalance with its trigger, and the join or leave if it is one."""
    assert queries.broken(audited.out) == {}, "keys, and columns that are never null"
    by_spark, by_duckdb = queries.both(spark, audited.out, "triggers")["triggers"]
    assert by_spark == by_duckdb
    changes = {(row[2], row[7], row[8]) for row in by_spark}
    assert ("g_carl", "leave", "g_anna") in changes
    assert (("g_carl", None, None) in changes) is audited.names
