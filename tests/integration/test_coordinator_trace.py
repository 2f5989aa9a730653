"""``zkconsumer trace``, and brokers of other versions."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.groups import Producer, Reader, delivered_once
from tests.support.members import quick
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import ConfigError, UnsupportedBrokerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.waiting import free_port

COMMAND = [sys.executable, "-c", "from zkconsumer.cli import main; main()", "trace"]
FAST = [
    "--consumer-property",
    "heartbeat.interval.ms=200",
    "--consumer-property",
    "session.timeout.ms=6000",
]


def test_trace_shows_a_members_life(cluster: LocalCluster, group: str, topic: str) -> None:
    """Two traces of one group run. The first shows find, join (without and then with an id), sync
    and heartbeats. After a heartbeat with REBALANCE_IN_PROGRESS it shows join and sync again, and
    leave at SIGTERM. Each step has fields."""
    cluster.create_topic(topic, 2)
    arguments = ["--bootstrap-server", cluster.bootstrap, "--group", group, "--topic", topic]
    first = subprocess.Popen(
        [*COMMAND, *arguments, *FAST, "--read"], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    seen: list[str] = []
    for line in first.stdout:
        seen.append(line)
        if " Heartbeat " in line:
            break
    second = [*COMMAND, *arguments, *FAST, "--seconds", "1"]
    subprocess.run(second, stdout=subprocess.DEVNULL, timeout=60, check=True)
    first.send_signal(signal.SIGTERM)
    seen += first.communicate(timeout=30)[0].splitlines(keepends=True)
    assert first.returncode == 0
    text = "".join(seen)
    steps = [line.split()[1] for line in seen if not line.startswith("     " * 2)]
    assert steps[0] == "FindCoordinator"
    assert "MEMBER_ID_REQUIRED (79)" in text
    assert "REBALANCE_IN_PROGRESS (27)" in text
    assert steps.count("SyncGroup") >= 2
    assert steps[-1] == "LeaveGroup"
    assert f"assignment={{'{topic}': [0, 1]}}" in text
    assert f"'topics': ['{topic}']" in text
    assert "generation_id=1" in text


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that accepts connections and does not answer, like a broker that waits
    for TLS or SASL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def unheard(folder: Path, address: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A trace that cannot join its group, and its stderr. It is killed if it has not ended."""
    arguments = ["--bootstrap-server", address, "--group", "g", "--topic", "t", *more]
    said = folder / "stderr"
    with said.open("w") as stderr:
        process = subprocess.Popen([*COMMAND, *arguments, *FAST], stderr=stderr, text=True)
    try:
        yield process, said
    finally:
        process.kill()
        process.wait(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_trace_that_waits_for_a_broker_ends_at_a_signal(
    silent: str, number: int, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM end the trace while the brokers do not answer. Before that it prints the
    reason for waiting."""
    with unheard(tmp_path, silent) as (process, said):
        waits = f"it waits for the coordinator, found through {silent}"
        wait_until(lambda: waits in said.read_text(), 20, "it prints what it waits for")
        assert "no partitions assigned to this member of group g after 5 s" in said.read_text()
        process.send_signal(number)
        status = process.wait(timeout=15)
    error = said.read_text()
    assert "Traceback" not in error
    if number == signal.SIGINT:
        assert status == 130
    else:
        assert status == 1
        assert (
            f"error: --bootstrap-server {silent}: this member was stopped before it joined group g"
            in error
        )


def test_a_trace_of_an_unreachable_broker_ends_after_its_seconds(tmp_path: Path) -> None:
    """``--seconds`` counts from the start, even if the member has not joined."""
    address = f"127.0.0.1:{free_port()}"
    with unheard(tmp_path, address, "--seconds", "6") as (process, said):
        assert process.wait(timeout=25) == 1
    error = said.read_text()
    assert f"--bootstrap-server {address}: this member was stopped before it joined" in error
    assert "the last request failed: " in error
    assert "Traceback" not in error


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "legacy-range"])
def test_brokers_of_1_1(middle: LocalCluster, group: str, topic: str, strategy: str) -> None:
    """Two members share a topic on a broker of 1.1. One leaves, and nothing is delivered twice."""
    middle.create_topic(topic, 4)
    config = quick(middle, group) | {"partition.assignment.strategy": strategy}
    with (
        Producer(middle.bootstrap, topic, range(4), interval=0.005) as producer,
        CoordinatorConsumerConnector(config) as one,
    ):
        readers = [Reader(one.create_message_streams({topic: 1})[topic])]
        two = CoordinatorConsumerConnector(config)
        readers.append(Reader(two.create_message_streams({topic: 1})[topic]))
        for member in (one, two):
            wait_until(lambda m=member: m.metrics().owned_partitions == 2, 15, "shared")
        readers[1].wait(20)
        two.shutdown()
        wait_until(lambda: one.metrics().owned_partitions == 4, 15, "all")
        delivered_once(producer, readers)


def test_static_members_need_2_3(middle: LocalCluster, group: str) -> None:
    """The error names a static member if the broker does not support them."""
    config = quick(middle, group) | {"group.instance.id": "one"}
    member = CoordinatorConsumerConnector(config)
    with pytest.raises(
        UnsupportedBrokerError, match=r"older than 2\.3.*leave group\.instance\.id out"
    ):
        member.create_message_streams({"t": 1})
    assert member.closed


@pytest.mark.parametrize("broker", ["cluster", "middle"])
def test_the_consumer_protocol_needs_4_0(
    request: pytest.FixtureRequest, broker: str, group: str
) -> None:
    """The error names a broker of 3.9 or 1.1, and the setting to use."""
    config = quick(request.getfixturevalue(broker), group) | {"group.protocol": "consumer"}
    member = CoordinatorConsumerConnector(config)
    expected = r"127\.0\.0\.1:\d+ is older than 4\.0.*set group\.protocol=classic"
    with pytest.raises(UnsupportedBrokerError, match=expected):
        member.create_message_streams({"t": 1})
    assert member.closed


def test_brokers_of_0_8_2_are_refused(group: str) -> None:
    """Without a group protocol there is no group. The error says what to use instead."""
    with LocalCluster("0.8.2") as old:
        member = CoordinatorConsumerConnector(quick(old, group))
        with pytest.raises(UnsupportedBrokerError, match="use ZookeeperConsumerConnector"):
            member.create_message_streams({"t": 1})


def test_faults_of_the_configuration_are_told_together() -> None:
    """All errors are reported at once, each with its key."""
    with pytest.raises(ConfigError) as caught:
        CoordinatorConsumerConnector(
            {
                "group.id": "g",
                "partition.assignment.strategy": "range,wrong",
                "heartbeat.interval.ms": 7000,
                "zookeeper.session.timeout.ms": 6000,
            }
        )
    told = "; ".join(caught.value.faults)
    assert "bootstrap.servers is missing" in told
    assert "'wrong' is not one of" in told
    assert "must be smaller than session.timeout.ms=6000" in told
