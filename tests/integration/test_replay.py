"""Journals of members on real servers: their contents, and their replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.groups import Producer, Reader
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.cli.main import cli
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.groups import commands, events
from zkconsumer.journal import read_journal
from zkconsumer.journal.recorder import Entry
from zkconsumer.servers import LocalCluster, expire_session, wait_until

Made = Callable[[], ZookeeperConsumerConnector | CoordinatorConsumerConnector]
SOON = 30.0


def _config(cluster: LocalCluster, group: str, directory: Path) -> dict[str, object]:
    return {
        "group.id": group,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 100,
        "zkconsumer.journal.dir": str(directory),
    }


def _zookeeper(cluster: LocalCluster, group: str, directory: Path) -> Made:
    told = {"zookeeper.connect": cluster.zookeeper, "zookeeper.session.timeout.ms": 4000}
    return lambda: ZookeeperConsumerConnector(_config(cluster, group, directory) | told)


def _coordinator(cluster: LocalCluster, group: str, directory: Path) -> Made:
    told = {
        "bootstrap.servers": cluster.bootstrap,
        "heartbeat.interval.ms": 100,
        "partition.assignment.strategy": "range",
    }
    return lambda: CoordinatorConsumerConnector(_config(cluster, group, directory) | told)


def _end_session(cluster: LocalCluster, group: str, member: Any) -> None:
    """The servers end the member's ownership of its partitions."""
    if isinstance(member, ZookeeperConsumerConnector):
        expire_session(cluster.zookeeper, *member._zk._client.client_id)
        return
    host, _, port = cluster.bootstrap.partition(":")
    brokers = KnownBrokers(lambda: [BrokerEndpoint(-1, host, int(port))], lambda _: 0)
    client = GroupClient(
        group, "", None, brokers, session_timeout=10, rebalance_timeout=30, timeout=10
    )
    try:
        assert isinstance(client.execute(commands.FindCoordinator(1)), events.CoordinatorFound)
        left = client.execute(commands.LeaveGroup(2, member._loop.machine.member_id))
        assert isinstance(left, events.Left)
    finally:
        client.close()


def _replay(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["replay", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("made", [_zookeeper, _coordinator])
def test_members_are_replayed(
    cluster: LocalCluster,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., Made],
) -> None:
    """Two members share partitions. One loses its session and returns, and both leave. Their
    journals are replayed to the last event. If the state machine has changed since the recording,
    the replay reports it."""
    cluster.create_topic(topic, 4)
    make = made(cluster, group, tmp_path)
    with make() as first, Producer(cluster.bootstrap, topic, range(4)) as producer:
        reader = Reader(first.create_message_streams({topic: 1})[topic])
        producer.send(40)
        reader.wait(40)
        with make() as second:
            streams = second.create_message_streams({topic: 1})[topic]
            Reader(streams)

            def owned() -> list[int]:
                return [one.metrics().owned_partitions for one in (first, second)]

            wait_until(lambda: owned() == [2, 2], SOON, "equal shares")
            before = first.metrics().rebalances
            _end_session(cluster, group, first)
            wait_until(
                lambda: first.metrics().rebalances > before and owned() == [2, 2],
                SOON,
                "the member is back",
            )
        wait_until(lambda: first.metrics().owned_partitions == 4, SOON, "the rest")
    journals = sorted(tmp_path.glob("*.jsonl"))
    assert len(journals) == 2
    for path in journals:
        found = _replay(str(path))
        assert found.exit_code == 0, found.output
        assert "as recorded\n  state CLOSED" in found.output
    mine = next(path for path in journals if path.name.startswith(first.consumer_id))
    names = [entry.get("name") for entry in read_journal(mine)]
    assert {"StopFetching", "Drop", "CloseRequested", "Close"} <= set(names)

    right = type(first._loop.machine)._await  # type: ignore[union-attr]
    monkeypatch.setattr(
        type(first._loop.machine),  # type: ignore[union-attr]
        "_await",
        lambda self, state: right(self, state) + (state.name == "NOTIFYING_RELEASE"),
    )
    found = _replay(str(mine), "--json")
    assert found.exit_code == 1
    difference = json.loads(found.output)["members"][0]["difference"]
    assert difference["line"] == names.index("NotifyReleasing") + 1


def test_that_delivery_was_shut_is_written(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """A member that loses its session writes since when it has delivered nothing. That is after the
    session was last confirmed, and before the member noticed the loss."""
    cluster.create_topic(topic, 1)
    with _zookeeper(cluster, group, tmp_path)() as member:
        member.create_message_streams({topic: 1})
        expire_session(cluster.zookeeper, *member._zk._client.client_id)  # type: ignore[union-attr]
        before = member.metrics().rebalances
        wait_until(lambda: member.metrics().rebalances > before, SOON, "it is back")
    entries = list(read_journal(next(tmp_path.glob("*.jsonl"))))
    shut = [n for n, entry in enumerate(entries) if entry.get("name") == "DeliveryShut"]
    lost = [n for n, entry in enumerate(entries) if entry.get("name") == "SessionLost"]
    assert len(shut) == len(lost) == 1
    entry = entries[shut[0]]
    assert shut[0] < lost[0]
    assert entry["member"] == member.consumer_id
    started = next(e["at"] for e in entries if e.get("name") == "StartFetching")
    assert started < entry["since"] <= entry["at"] <= entries[lost[0]]["at"]


def test_the_journal_of_a_killed_member(
    cluster: LocalCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """The journal of a killed `zkconsumer consume` is replayed to its end."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, range(2)) as producer:
        producer.send(20)
    done = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys; from zkconsumer.cli.main import run; sys.exit(run(sys.argv[1:]))",
            *("consume", "--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic),
            *("--consumer-property", "auto.offset.reset=smallest"),
            *("--consumer-property", "auto.commit.interval.ms=100"),
            *("--consumer-property", f"zkconsumer.journal.dir={tmp_path}"),
        ],
        stdout=subprocess.DEVNULL,
    )

    def committed() -> list[Entry]:
        found = [entry for path in tmp_path.glob("*.jsonl") for entry in read_journal(path)]
        return [entry for entry in found if entry.get("name") == "Committed"]

    try:
        wait_until(committed, SOON, "a commit is in the journal")
    finally:
        os.kill(done.pid, signal.SIGKILL)
        done.wait(SOON)
    (path,) = tmp_path.glob("*.jsonl")
    found = _replay(str(path))
    assert found.exit_code == 0, found.output
    assert "as recorded\n  state RESTING" in found.output
