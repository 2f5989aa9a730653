"""zkaudit reads the history of one group from Kafka 4: classic, KIP-848, and classic again."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from kazoo.client import KazooClient

from zkconsumer.servers import LocalCluster, LocalZooKeeper, wait_until

PARTITIONS: Final = 6
SETTLED: Final = 60
ZKAUDIT: Final = [sys.executable, "-m", "zkaudit"]
MEMBER: Final = """
import json, signal, sys
from confluent_kafka import Consumer
config, topic = json.loads(sys.argv[1]), sys.argv[2]
ends = []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
consumer, last = Consumer(config), None
consumer.subscribe([topic])
while not ends:
    consumer.poll(0.1)
    held = sorted(tp.partition for tp in consumer.assignment())
    if held != last:
        last = held
        print(json.dumps(held), flush=True)
consumer.close()
"""


class Member:
    """A librdkafka consumer in a process of its own, which can be killed."""

    def __init__(self, kraft: LocalCluster, group: str, topic: str, name: str, kind: str) -> None:
        self.name = name
        self.partitions: set[int] = set()
        config: dict[str, object] = {
            "bootstrap.servers": kraft.bootstrap,
            "group.id": group,
            "client.id": name,
            "group.protocol": kind,
        }
        if kind == "classic":
            config |= {
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "range",
            }
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, json.dumps(config), topic],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.partitions = set(json.loads(line))

    def close(self, kill: bool = False) -> None:
        """Leave the group, or be killed."""
        if self._process.poll() is None:
            (self._process.kill if kill else self._process.terminate)()
        self._process.wait(30)
        self._thread.join(10)
        self.partitions = set()


class Group:
    """A group's members, and who owned what whenever the group had settled."""

    def __init__(self, kraft: LocalCluster, group: str, topic: str) -> None:
        self._where = kraft, group, topic
        self._members: dict[str, Member] = {}
        self.moments: list[tuple[datetime, dict[str, set[int]]]] = []

    def join(self, name: str, kind: str) -> None:
        """Start a member."""
        self._members[name] = Member(*self._where, name, kind)
        self.settle()

    def leave(self, name: str, kill: bool = False) -> None:
        """End a member."""
        self._members.pop(name).close(kill)
        self.settle()

    def settle(self) -> None:
        """Wait until each member has a share and each partition has one owner."""

        def owners() -> dict[str, set[int]]:
            return {one.name: one.partitions for one in self._members.values()}

        def settled() -> bool:
            shares = list(owners().values())
            return all(shares) and len(set().union(*shares)) == sum(map(len, shares)) == PARTITIONS

        if self._members:
            wait_until(settled, SETTLED, "each partition has one owner")
            now = datetime.now(UTC)
            self.moments.append((now, owners()))

    def close(self) -> None:
        """End all members."""
        for member in self._members.values():
            member.close(kill=True)


@contextmanager
def played(kraft: LocalCluster, group: str, topic: str) -> Iterator[Group]:
    """Members join, leave and are killed, while the group changes its protocol twice."""
    kraft.create_topic(topic, PARTITIONS)
    members = Group(kraft, group, topic)
    try:
        members.join("one", "classic")
        members.join("two", "classic")
        members.leave("two", kill=True)
        members.join("three", "consumer")
        members.leave("one")
        members.join("four", "consumer")
        members.leave("four", kill=True)
        members.join("five", "classic")
        members.leave("three")
        members.leave("five")
        yield members
    finally:
        members.close()


def audit(kraft: LocalCluster, group: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Tables ``generations`` and ``broker_ownership`` of the group, as zkaudit writes them."""
    with LocalZooKeeper("3.9", dir=folder / "cluster") as zookeeper:
        client = KazooClient(zookeeper.zookeeper, timeout=30.0)
        client.start(timeout=15)
        client.ensure_path("/consumers")
        client.stop()
        client.close()
    done = subprocess.run(
        [*ZKAUDIT, "run", "--zookeeper-logs", str(folder / "cluster" / "data" / "zookeeper"),
         "--bootstrap-server", kraft.bootstrap, "--group", group, "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found = {}
    for name in ("generations", "broker_ownership"):
        (table,) = (folder / "out").rglob(name)
        found[name] = [row for row in pq.read_table(table).to_pylist() if row["group_id"] == group]
    return found


def test_a_group_that_changes_its_protocol_is_one_history(
    kraft: LocalCluster, group: str, topic: str, tmp_path: Path
) -> None:
    """At each moment, the owners are those that the members knew. Epochs continue generations, the
    change of the protocol ends nothing, and no partition ever has two owners."""
    with played(kraft, group, topic) as members:
        tables = audit(kraft, group, tmp_path)
    states = sorted(tables["generations"], key=lambda row: row["log_offset"])
    clients = {m: c for row in states for m, c in row["clients"] or ()}
    hosts = {host for row in states for _, host in row["hosts"] or ()}
    assert hosts == {"/127.0.0.1"}
    told = {row["group_protocol"] for row in states}
    assert told == {"classic", "consumer"}, "the group was never deleted"
    runs = [states[0]["group_protocol"]]
    for row in states[1:]:
        if row["group_protocol"] != runs[-1]:
            runs.append(row["group_protocol"])
    assert runs == ["classic", "consumer", "classic"]
    generations = [row["generation"] for row in states]
    assert generations == sorted(generations)
    assert states[-1]["members"] == []

    owned = tables["broker_ownership"]
    assert {row["topic"] for row in owned} == {topic}
    for moment, expected in members.moments:
        owners: dict[str, set[int]] = {}
        for row in owned:
            assert row["end_time"], "the last member has left"
            if row["start_time"] <= moment < row["end_time"]:
                owners.setdefault(clients[row["member"]], set()).add(row["partition"])
        assert owners == expected
    for partition in range(PARTITIONS):
        rows = [row for row in owned if row["partition"] == partition]
        rows.sort(key=lambda row: row["start_time"])
        assert all(a["end_time"] <= b["start_time"] for a, b in itertools.pairwise(rows))
    # from before the first change of the protocol to after it
    assert any(
        row["start_time"] < members.moments[2][0] < members.moments[3][0] < row["end_time"]
        for row in owned
        if clients[row["member"]] == "one"
    )
