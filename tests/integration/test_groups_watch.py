"""``zkconsumer groups verify --watch`` with a healthy group and a group with an idle member."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.groups import GroupWatch
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.admin.verifier import Finding, Kind
from zkconsumer.cli.watch import Change, Watch
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_registration
from zkconsumer.errors import UnknownGroupError
from zkconsumer.servers import LocalCluster, wait_until

MAIN = "from zkconsumer.cli import main; main()"
COMMAND = (sys.executable, "-c", MAIN, "groups", "verify", "--watch")


class Command:
    """The command in its own process. Its lines are read as they arrive."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self) -> Any:
        """The next line, as an object."""
        return json.loads(self._lines.get(timeout=30))

    def end(self, number: signal.Signals) -> tuple[int, str, list[str]]:
        """Send a signal. Return the status, standard error and the remaining lines."""
        self.process.send_signal(number)
        status = self.process.wait(10)
        self._reader.join(10)
        assert self.process.stderr is not None
        left = []
        while not self._lines.empty():
            left.append(self._lines.get())
        return status, self.process.stderr.read(), left


@pytest.fixture
def member(cluster: LocalCluster, group: str, topic: str) -> Iterator[ZookeeperConsumerConnector]:
    """A member that owns both partitions of the topic."""
    cluster.create_topic(topic, 2)
    config = {"zookeeper.connect": cluster.zookeeper, "group.id": group, "consumer.id": "real"}
    with ZookeeperConsumerConnector(config) as made:
        made.create_message_streams({topic: 1})
        wait_until(lambda: made.metrics().owned_partitions == 2, 20, "it owns both")
        yield made


@pytest.mark.usefixtures("member")
def test_an_idle_member_and_its_partition_are_found_and_cleared(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    """A member registers and claims nothing. After the grace time the partition without an owner
    and the member are printed once, and once more when they are resolved. The other group is
    healthy. A silent ZooKeeper is also printed once. Ctrl-C ends the command without a
    traceback."""
    healthy = f"{group}-healthy"
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(cluster.zookeeper_server.port))
        config = {"zookeeper.connect": cluster.zookeeper, "group.id": healthy}
        other = stack.enter_context(ZookeeperConsumerConnector(config))
        other.create_message_streams({topic: 1})
        fixed = ["--zookeeper", proxy.address, "--every", "0.2", "--timeout", "2", "--json"]
        watching = Command(group, healthy, *fixed, "--grace", "1.5")
        stack.callback(watching.process.kill)
        client = KazooClient(cluster.zookeeper)
        client.start(15)
        stack.callback(client.close)
        stack.callback(client.stop)
        path = GroupPaths(group).member(f"{group}_idle")
        registration = encode_registration(Subscription(Pattern.STATIC, {topic: 1}), 1)
        client.create(path, registration, ephemeral=True)
        found = sorted((watching.line() for _ in range(2)), key=lambda line: line["kind"])
        assert [(one["change"], one["kind"], one["group"], one["level"]) for one in found] == [
            ("found", "idle-member", group, "error"),
            ("found", "unowned", group, "error"),
        ]
        assert found[0]["where"] == path
        client.delete(path)
        cleared = [watching.line() for _ in range(2)]
        assert {(one["change"], one["kind"]) for one in cleared} == {
            ("cleared", "idle-member"),
            ("cleared", "unowned"),
        }
        proxy.stall()
        assert watching.line()["change"] == "away"
        proxy.resume()
        assert watching.line()["change"] == "back"
        status, errors, left = watching.end(signal.SIGINT)
        assert (status, left) == (0, [])
        assert errors.splitlines()[-1] == "errors that last: 0"
        assert "Traceback" not in errors


@pytest.mark.usefixtures("member")
def test_the_status_says_what_lasts(cluster: LocalCluster, group: str, topic: str) -> None:
    """After SIGTERM or ``--seconds``, the status is 1 if something is still wrong, and 0 otherwise.
    If the first check fails, the status is that of the error."""
    with GroupWatch(cluster.zookeeper, group) as watch:
        ended = Command(group, "--zookeeper", cluster.zookeeper, "--seconds", "0")
        assert ended.process.wait(30) == 0
        path = GroupPaths(group).member(f"{group}_idle")
        registration = encode_registration(Subscription(Pattern.STATIC, {topic: 1}), 1)
        watch.client.create(path, registration, ephemeral=True)
        fixed = ("--zookeeper", cluster.zookeeper, "--every", "0.2", "--grace", "0", "--json")
        lasting = Command(group, *fixed)
        seen = set()
        while seen != {"idle-member", "unowned"}:
            line = lasting.line()
            (seen.add if line["change"] == "found" else seen.discard)(line["kind"])
        assert lasting.end(signal.SIGTERM)[0] == 1
        watch.client.delete(path)
    missing = Command("no-such-group", "--zookeeper", cluster.zookeeper)
    assert missing.process.wait(30) == UnknownGroupError.exit_code


def _changes(changes: Iterator[Change]) -> list[str]:
    return [change.change for change in changes]


def test_a_rebalance_within_the_grace_time_is_not_printed() -> None:
    """Only problems that last are printed. A problem that returns starts a new grace time. Changed
    numbers in its text do not make it a new problem."""
    watch = Watch(10.0)
    one = Finding("g", Kind.UNOWNED, "/a", "5 above")
    assert _changes(watch.looked([one], 0.0)) == []
    assert _changes(watch.looked([one], 9.0)) == []
    assert _changes(watch.looked([], 10.0)) == []
    assert _changes(watch.looked([one], 11.0)) == []
    assert _changes(watch.looked([one], 20.0)) == []
    assert _changes(watch.looked([one._replace(what="6 above")], 21.0)) == ["found"]
    assert _changes(watch.looked([one], 30.0)) == []
    assert watch.wrong == 1
    error = UnknownGroupError("gone")
    assert _changes(watch.failed(error)) == ["away"]
    assert _changes(watch.failed(error)) == []
    assert watch.wrong == 1
    assert _changes(watch.looked([], 31.0)) == ["back", "cleared"]
    assert watch.wrong == 0
