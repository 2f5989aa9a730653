"""Servers of all broker lines, and a bench that creates, moves and reads groups."""

from __future__ import annotations

import contextlib
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from zkmigrate.apply.journal import Effect, Journal, no_effect
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Result
from zkmigrate.apply.parallel import Run
from zkmigrate.formats.plan_file import PlanFile, parse, render
from zkmigrate.model import Direction, GroupState, MigrationMarker
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import GroupPlan
from zkmigrate.stores import migration_marker
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores

from tests.migrate.rows import rows_of, run
from tests.support.legacy_jvm import JvmMembers
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.servers import LocalCluster

NOW = 1_700_000_000_000
Zk = dict[str, bytes]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test works in a folder of its own, where some commands leave a journal."""
    monkeypatch.chdir(tmp_path)


class Bench:
    """One cluster, with the bench's own sessions."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.client = KazooClient(cluster.zookeeper, timeout=30.0)
        self.client.start(timeout=15)
        endpoints = [
            BrokerEndpoint(number, *_address(server.address))
            for number, server in enumerate(cluster.broker_servers)
        ]
        self.kafka = GroupCoordinators("tests", lambda: endpoints, 10.0, 30.0)
        self._numbers = itertools.count()

    def close(self) -> None:
        """End the sessions."""
        self.kafka.close()
        self.client.stop()
        self.client.close()

    def topic(self, name: str, partitions: int = 4, messages: int = 20) -> None:
        """Create a topic with this number of messages in each partition."""
        self.cluster.create_topic(name, partitions)
        for partition in range(partitions):
            if messages:
                self.produce(name, partition, messages)

    def produce(self, topic: str, partition: int, count: int) -> None:
        """Append messages in the format of 0.8, which every line accepts (produce version 0)."""
        body = b"\0\0" + struct.pack(">ii", -1, 1) + b"x"  # magic, attributes, no key, value
        message = struct.pack(">I", zlib.crc32(body)) + body
        entries = b"".join(struct.pack(">qi", 0, len(message)) + message for _ in range(count))
        name = struct.pack(">h", len(topic)) + topic.encode()
        head = struct.pack(">hii", -1, 10_000, 1) + name
        request = head + struct.pack(">iii", 1, partition, len(entries)) + entries
        endpoint = BrokerEndpoint(0, *_address(self.cluster.broker_servers[0].address))
        connection = BrokerConnection(endpoint, "tests", 15.0, 0)
        answer = connection.exchange(0, 0, request)
        connection.close()
        (code,) = struct.unpack_from(">h", answer, 4 + len(name) + 8)
        assert code == 0

    def set_zk(self, group: str, topic: str, offsets: Mapping[int, bytes | int]) -> None:
        """Write offset znodes."""
        for partition, offset in offsets.items():
            data = offset if isinstance(offset, bytes) else b"%d" % offset
            path = f"/consumers/{group}/offsets/{topic}/{partition}"
            self.client.ensure_path(path)
            self.client.set(path, data)

    def set_kafka(self, group: str, topic: str, offsets: Mapping[int, StoredOffset | int]) -> None:
        """Commit offsets without membership."""
        wanted = {
            TopicPartition(topic, partition): (
                offset if isinstance(offset, StoredOffset) else StoredOffset(offset)
            )
            for partition, offset in offsets.items()
        }
        assert self.kafka.commit(group, wanted) == {}

    def znodes(self, group: str) -> Zk:
        """All znodes of a group that its consumers use, without empty parents."""
        found: Zk = {}
        record = f"/consumers/{group}/record"
        level = [f"/consumers/{group}"]
        while level:  # a whole level at a time, because tests read often
            asked = [
                (path, self.client.get_async(path), self.client.get_children_async(path))
                for path in level
                if path != record
            ]
            level = []
            for path, data, names in asked:
                try:
                    if content := data.get()[0]:
                        found[path] = content
                    level += [f"{path}/{name}" for name in names.get()]
                except NoNodeError:
                    pass
        return found

    def committed(self, group: str, topics: Mapping[str, int]) -> Mapping[TopicPartition, object]:
        """The offsets that the coordinator stores. ``topics`` maps names to numbers of
        partitions."""
        asked = [TopicPartition(name, p) for name, count in topics.items() for p in range(count)]
        return self.kafka.fetch(group, asked)

    # -- the migrator -----------------------------------------------------------------------------

    def stores(self, timeout: float = 10.0) -> Stores:
        """Sessions of the migrator."""
        return Stores(Servers(self.cluster.zookeeper, timeout, 30.0))

    def state(self, stores: Stores, group: str) -> GroupState:
        """One group's state."""
        (found,) = read_states(stores, [group], {}, False)
        assert isinstance(found, GroupState)
        return found

    def marker(self, group: str) -> MigrationMarker | None:
        """A group's migration marker."""
        with self.stores() as stores:
            return stores.zk.run(migration_marker.state_of(group)).marker

    def plan(
        self,
        groups: Sequence[str],
        direction: Direction = Direction.ZK_TO_KAFKA,
        options: Options | None = None,
        now: int = NOW,
    ) -> tuple[PlanFile, Path]:
        """Make a plan and write it to a file. Return the plan and the path for its journal."""
        chosen = options or Options(max_idle_days=10**6)
        with self.stores() as stores:
            plans: list[GroupPlan] = []
            retention = stores.retention()
            for found in read_states(stores, groups, {}, chosen.on_conflict == "newest"):
                if isinstance(found, GroupState):
                    plans.append(plan_group(found, direction, chosen, now, retention))
                else:
                    plans.append(GroupPlan(found[0], (found[1],)))
        data = "".join(render(direction, now, plans)).encode()
        return parse("plan", data), self.folder / f"journal-{next(self._numbers)}"

    def apply(
        self,
        plan: PlanFile,
        journal: Path,
        effect: Effect = no_effect,
        lock: bool = False,
        parallel: int = 1,
    ) -> list[Result]:
        """Apply a plan."""
        with self.stores() as stores, Journal(journal, plan.digest, effect) as opened:
            migrator = Migrator(stores, effect, lock=lock, parallel=parallel)
            return migrator.apply(plan, Run(opened, idle=True), lambda _result: None)

    def rollback(
        self,
        plan: PlanFile,
        journal: Path,
        effect: Effect = no_effect,
        force: bool = False,
        parallel: int = 1,
    ) -> list[Result]:
        """Roll back a plan."""
        with self.stores() as stores, Journal(journal, plan.digest, effect) as opened:
            migrator = Migrator(stores, effect, force, parallel=parallel)
            return migrator.rollback(plan, Run(opened), lambda _result: None)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="session")
def bench_of(cluster: LocalCluster) -> Iterator[Callable[[str, Path], Bench]]:
    """Benches on the run's cluster of each line. A cluster starts when a test first asks for it."""
    started = contextlib.ExitStack()
    clusters = {"3.9": cluster}

    def make(line: str, folder: Path) -> Bench:
        if line not in clusters:
            clusters[line] = started.enter_context(LocalCluster(line))
        return Bench(clusters[line], folder)

    with started:
        yield make


@pytest.fixture(scope="session")
def jvm() -> Iterator[JvmMembers]:
    """The run's JVM for members of the original consumer."""
    with JvmMembers("1.1") as running:
        yield running


@pytest.fixture
def bench(cluster: LocalCluster, tmp_path: Path) -> Iterator[Bench]:
    """A bench on the run's 3.9 cluster."""
    made = Bench(cluster, tmp_path)
    yield made
    made.close()


class Shell:
    """Runs zkmigrate's commands against the servers of a cluster."""

    def __init__(self, zookeeper: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.zookeeper = zookeeper
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Run a command. Return its status and its output on both streams."""
        self._capsys.readouterr()
        status = run([*words, "--zookeeper", self.zookeeper])
        printed = self._capsys.readouterr()
        assert "Traceback" not in printed.err
        return status, printed.out, printed.err

    def rows(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a command with ``--json``. Return its status and its rows."""
        status, out, err = self(*words, "--json")
        assert out, err
        return status, rows_of(out)


@pytest.fixture
def shell(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Shell:
    """zkmigrate's commands, on the run's 3.9 cluster."""
    return Shell(bench.cluster.zookeeper, capsys)


@pytest.fixture
def shell_on(capsys: pytest.CaptureFixture[str]) -> Callable[[LocalCluster], Shell]:
    """zkmigrate's commands, on a test's own cluster."""
    return lambda cluster: Shell(cluster.zookeeper, capsys)


@pytest.fixture
def filled(bench: Bench, group: str, topic: str) -> Bench:
    """A group with offsets 3 and 4 in ZooKeeper."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    return bench


@pytest.fixture
def bench_on(tmp_path: Path) -> Callable[[LocalCluster], Bench]:
    """Creates benches on a test's own cluster. They are closed after the test."""
    return lambda cluster: Bench(cluster, tmp_path)


@pytest.fixture(params=["0.8.2", "1.1", "3.9"])
def any_bench(
    request: pytest.FixtureRequest, bench_of: Callable[[str, Path], Bench], tmp_path: Path
) -> Iterator[Bench]:
    """A bench on each line of brokers."""
    made = bench_of(request.param, tmp_path)
    yield made
    made.close()
