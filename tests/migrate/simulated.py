"""zkmigrate's own commands on a simulated cluster: ZooKeeper, logs, topics and coordinator.

Only the servers are replaced. ``Simulated.run`` takes a command line as the shell does, so options,
reads, plans, journals and exit statuses are the product's own.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import pytest
from zkmigrate.commands.options import servers
from zkmigrate.stores import connections, logs, sessions, surroundings
from zkmigrate.stores.cluster import Servers

from tests.migrate.rows import rows_of, run
from tests.unit.tool_zk import ToolZk
from zkconsumer.admin import tools
from zkconsumer.broker.fetching.list_offsets import EARLIEST, LATEST, NONE
from zkconsumer.broker.groups.coordinator_calls import Answered, StoredOffset
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.cluster_view import (
    ClusterView,
    PartitionView,
    TopicView,
    answer,
    is_of_cluster,
)
from zkconsumer.core.zookeeper.ops import (
    Check,
    Create,
    Delete,
    GetAcl,
    GetMany,
    Multi,
    Node,
    Ok,
    Reply,
    SetData,
    Stat,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import path_of
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerError, GroupActiveError, LeaderUnavailableError

SENT = "the request is on its way"


class Ran(NamedTuple):
    """The result of a command: exit status, rows of ``--json``, and the text on stderr."""

    status: int
    rows: list[dict[str, Any]]
    err: str


class SimulatedZk(ToolZk):
    """The tool's session. Every change has a time; ``view`` is what brokers say in KRaft."""

    has_bootstrap = False
    synced = 0
    """How many sessions let their server catch up with the others."""
    foreign = False
    live = True

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self.view = ClusterView()
        self._one_at_a_time = threading.RLock()
        """A command works on several groups at a time, and the simulation on one operation."""
        self._here = threading.local()
        self._now_ms = now_ms
        self._times: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the session, if that changes anything."""
        if any(self.zk._leader.tree.ephemerals.get(self._client.session_id, ())):
            self._client.close()
            self._pass(1.0)
            self.connect()

    def run_in_zookeeper(self, script: Any) -> Any:
        """Carry out a script; read everything in ZooKeeper."""
        before, self._here.raw = getattr(self._here, "raw", False), True
        try:
            return self.run(script)
        finally:
            self._here.raw = before

    def look_again(self) -> None:
        """``live`` is always right."""

    def sync(self) -> None:
        """Count, and let a server that is behind catch up: an answer of the leader passes it."""
        self.synced += 1
        self._send(Multi((Check("/consumers"),)))

    def cluster_ids(self) -> tuple[None, None]:
        """The ids are not known."""
        return None, None

    def set(self, path: str, data: bytes = b"", at_ms: int | None = None) -> None:
        """Write a znode, and create its parents."""
        parent = path.rpartition("/")[0]
        if parent and self.zk.get(parent) is None:
            self.set(parent)
        self.zk.do(Create(path, data) if self.zk.get(path) is None else SetData(path, data))
        self._times[path] = self._now_ms() if at_ms is None else at_ms

    def delete(self, path: str) -> None:
        """Delete a znode and everything below it."""
        for name in self.zk.children(path):
            self.delete(f"{path}/{name}")
        self.zk.do(Delete(path))

    def _send(self, op: ZkOp) -> Reply:
        with self._one_at_a_time:
            return self._answer(op)

    def _answer(self, op: ZkOp) -> Reply:
        raw = getattr(self._here, "raw", False)
        if not raw and not self.live and is_of_cluster(op, ids_only=False):
            return answer(self.view, op)
        reply = super()._send(op)
        if isinstance(reply, Ok):
            parts = op.ops if isinstance(op, Multi) else (op,)
            paths = op.paths if isinstance(op, GetMany) else list(map(path_of, parts))
            for part in parts:
                if isinstance(part, Create | SetData):
                    self._times[part.path] = self._now_ms()
            several = isinstance(op, GetMany | Multi)
            values = reply.value if several else (reply.value,)
            assert isinstance(values, tuple)
            timed = tuple(map(self._timed, paths, values))
            return Ok(timed if several else timed[0])  # type: ignore[arg-type]
        return reply

    def _timed(self, path: str, value: object) -> object:
        if isinstance(value, Node):
            return Node(value.data, self._timed(path, value.stat))  # type: ignore[arg-type]
        if isinstance(value, Stat):
            times = self._times.get(path, 0)
            return Stat(value.czxid, value.mzxid, value.version, value.ephemeral_owner, times)
        return value


class SimulatedConnection:
    """A connection to the broker."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        """Nothing is open."""


class SimulatedCoordinators:
    """All coordinators: offsets and members by group. ``refuses``: errors of commits."""

    def __init__(self, zk: SimulatedZk) -> None:
        self._zk = zk
        self.committed: dict[str, dict[TopicPartition, StoredOffset]] = {}
        self.joined: dict[str, tuple[str, ...]] = {}
        self.denied: set[str] = set()
        """Topics that may not be described: their offsets are left out."""
        self.kept: set[str] = set()
        """Groups whose offsets may not be deleted."""
        self.away: set[str] = set()
        """Groups whose coordinator does not answer."""
        self.retention = (7 * 24 * 60, True)
        self.log: list[tuple[str, TopicPartition, int | None]] = []
        """All commits, and deletions without an offset, in order."""
        self.around: Callable[[str], object] = lambda what: None
        """Called before a change, once it is on its way, and after it."""

    def undeletable(self, groups: Iterable[str]) -> frozenset[str]:
        """Return which of the groups may not be deleted."""
        return frozenset(groups) & self.kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def another(self) -> SimulatedCoordinators:
        """Return the same coordinators."""
        return self

    def close(self) -> None:
        """Nothing is open."""

    def stop_waiting(self) -> None:
        """Nothing waits."""

    def list_groups(self) -> list[str]:
        """Return the groups with offsets or members."""
        return sorted({*(name for name, held in self.committed.items() if held), *self.joined})

    def _check(self, group: str) -> None:
        if group in self.away:
            raise LeaderUnavailableError(f"the coordinator of group {group} does not answer")

    def members(self, group: str) -> tuple[str, ...]:
        """Return a group's members."""
        self._check(group)
        return self.joined.get(group, ())

    def members_of(self, groups: Iterable[str]) -> dict[str, tuple[str, ...] | BrokerError]:
        """Return the members of several groups."""
        found: dict[str, tuple[str, ...] | BrokerError] = {}
        for group in groups:
            try:
                found[group] = self.members(group)
            except BrokerError as error:
                found[group] = error
        return found

    def fetch(self, group: str, _tps: object) -> dict[TopicPartition, StoredOffset]:
        """Return a group's offsets."""
        self._check(group)
        held = self.committed.get(group, {})
        return {tp: one for tp, one in held.items() if tp.topic not in self.denied}

    def fetch_several(
        self,
        groups: Iterable[str],
        _before: object = None,
        only: Mapping[str, Iterable[TopicPartition]] | None = None,
    ) -> dict[tuple[str, ...], Answered]:
        """Return offsets of those groups that can be read."""
        offsets: dict[str, dict[TopicPartition, StoredOffset]] = {}
        some = tuple(group for group in groups if group not in self.away)
        for group in some:
            with suppress(BrokerError):
                found = self.fetch(group, ())
                asked = found if only is None else set(only[group])
                offsets[group] = {tp: one for tp, one in found.items() if tp in asked}
        return {some: Answered(b"", offsets)}

    def hidden(self, topics: Iterable[str]) -> frozenset[str]:
        """Return which of these topics may not be described, existing or not."""
        return frozenset(topics) & self.denied

    def absent(self, topics: Iterable[str]) -> frozenset[str]:
        """Return which of these topics do not exist; it is not said of those that are denied."""
        there = self._zk.zk.children("/brokers/topics") if self._zk.live else self._zk.view.topics
        return frozenset(topics) - self.denied - frozenset(there)

    def tells_all(self, _group: str) -> bool:
        """Return whether ``fetch`` returns all offsets."""
        return True

    def commit(
        self,
        group: str,
        new: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, BrokerError]:
        """Commit without membership."""
        self._check(group)
        self.around("before commit")
        permit()
        self.around(SENT)
        refused = {
            tp: BrokerError(f"offsets of {tp}: TOPIC_AUTHORIZATION_FAILED")
            for tp in new
            if tp.topic in self.denied
        }
        if self.joined.get(group):
            raise GroupActiveError(f"consumers have joined group {group}")
        self.store(group, {tp: one for tp, one in new.items() if tp not in refused})
        self.around("after commit")
        return refused

    def commit_several(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, StoredOffset]],
        permit: Callable[[], bool],
    ) -> set[str]:
        """Commit offsets of several groups without membership; return those with all stored."""
        stored: set[str] = set()

        def check() -> None:
            if not permit():
                raise BrokerError("not permitted")

        for group, new in offsets.items():
            with suppress(BrokerError, GroupActiveError):
                if not self.commit(group, new, check):
                    stored.add(group)
        return stored

    def store(self, group: str, new: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets, whoever commits them."""
        self.committed.setdefault(group, {}).update(new)
        self.log += ((group, tp, one.offset) for tp, one in new.items())

    def delete(
        self,
        group: str,
        gone: Iterable[TopicPartition],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, Any]:
        """Delete offsets."""
        self._check(group)
        self.around("before delete")
        permit()
        self.around(SENT)
        if self.joined.get(group):
            return {tp: BrokerError(f"offsets of {tp}: GROUP_SUBSCRIBED_TO_TOPIC") for tp in gone}
        for tp in gone:
            self.committed.get(group, {}).pop(tp, None)
            self.log.append((group, tp, None))
        self.around("after delete")
        return {}

    def log_end(self, _group: str, _partition: int) -> int:
        """Return a position in the commits' log."""
        return len(self.log)

    def commits_since(
        self, group: str, _partition: int, position: int
    ) -> list[tuple[TopicPartition, int | None]]:
        """Return a group's commits since a position."""
        return [(tp, offset) for name, tp, offset in self.log[position:] if name == group]

    def retention_minutes(self) -> tuple[int, bool]:
        """Return how long offsets are kept, and whether brokers reported it."""
        return self.retention


class Simulated:
    """One cluster with a broker, and the commands that are run on it.

    ``ends``: first and next offset of each partition; a test may set them while a command runs.
    ``asked``: the partitions whose ranges were read, in order. ``group``, ``renamed`` and
    ``topic_name``: the names that ``matrix`` uses.
    """

    group = "g"
    renamed = "new"
    topic_name = "t"
    current: Simulated
    """The one to which commands connect: the newest, unless a test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.now_ms = int(time.time() * 1000)
        """ZooKeeper's clock."""
        self.zk = SimulatedZk(lambda: self.now_ms)
        self.whole = SimulatedZk(lambda: self.now_ms)
        """The same ensemble above the chroot, for commands that are given ``CHROOT``."""
        self.kafka = SimulatedCoordinators(self.zk)
        self.ends: dict[TopicPartition, tuple[int, int]] = {}
        self.asked: list[TopicPartition] = []
        self.at_time: dict[TopicPartition, int] = {}
        """Where the first message of any time is."""
        self.without_leader: set[TopicPartition] = set()
        self.connect = "sim:1"
        monkeypatch.chdir(folder)  # where some commands leave a journal
        for path in ("/consumers", "/brokers/topics"):
            self.zk.set(path)
        broker = {"version": 1, "host": "sim", "port": 1, "jmx_port": -1, "timestamp": "1"}
        self.zk.set("/brokers/ids/0", json.dumps(broker).encode())

        Simulated.current = self

        def open_zk(*_: object, **__: object) -> SimulatedZk:
            return Simulated.current.zk

        monkeypatch.setattr(sessions, "ClusterZk", open_zk)
        monkeypatch.setattr(tools, "ClusterZk", open_zk)
        monkeypatch.setattr(surroundings, "BlockingZk", lambda *_: Simulated.current.whole)
        monkeypatch.setattr(servers, "BlockingZk", open_zk)
        monkeypatch.setattr(sessions, "GroupCoordinators", lambda *_, **__: Simulated.current.kafka)
        monkeypatch.setattr(connections, "BrokerConnection", SimulatedConnection)
        metadata = lambda *a: Simulated.current._metadata(*a)  # noqa: E731
        monkeypatch.setattr(connections, "fetch_metadata", metadata)
        monkeypatch.setattr(logs, "list_offsets", lambda *a: Simulated.current._list_offsets(*a))

    # -- the cluster ---------------------------------------------------------------------------

    def topic(self, name: str, *ends: tuple[int, int]) -> None:
        """Create a topic; each pair is a partition's first and next offset."""
        partitions = {str(number): [0] for number in range(len(ends))}
        document = {"version": 3, "topic_id": f"id-{name}", "partitions": partitions}
        self.zk.set(f"/brokers/topics/{name}", json.dumps(document).encode())
        self.ends |= {TopicPartition(name, number): one for number, one in enumerate(ends)}

    def leave_zookeeper(self) -> None:
        """Change to KRaft: brokers leave ZooKeeper, and list the topics that are not denied."""
        views: dict[str, TopicView] = {}
        for name in self.zk.zk.children("/brokers/topics"):
            numbers = [tp.partition for tp in self.ends if tp.topic == name]
            if name not in self.kafka.denied:
                partitions = {n: PartitionView(0, 0, (0,), (0,)) for n in numbers}
                views[name] = TopicView(f"id-{name}", partitions)
        self.zk.view = ClusterView("sim", (BrokerEndpoint(0, "sim", 1),), views)
        self.zk.delete("/brokers/ids/0")
        self.zk.live = False

    def in_zookeeper(
        self, group: str, topic: str, *offsets: int | None, where: str = "offsets"
    ) -> None:
        """Store offsets of partitions 0, 1, ... in ZooKeeper."""
        for number, offset in enumerate(offsets):
            if offset is not None:
                path = f"{GroupPaths(group).root}/{where}/{topic}/{number}"
                self.zk.set(path, b"%d" % offset)

    def in_kafka(self, group: str, topic: str, *offsets: int | None) -> None:
        """Commit offsets of partitions 0, 1, ... to Kafka."""
        for number, offset in enumerate(offsets):
            if offset is not None:
                self.kafka.store(group, {TopicPartition(topic, number): StoredOffset(offset)})

    def forget(self, group: str, *gone: TopicPartition) -> None:
        """Delete committed offsets, as Kafka does when they expire."""
        for tp in gone:
            del self.kafka.committed[group][tp]

    def znode(self, path: str, data: bytes = b"") -> None:
        """Write a znode, and create its parents."""
        self.zk.set(path, data)

    def znodes(self, group: str) -> dict[str, object]:
        """Return data, version and access list of all znodes of a group."""
        found: dict[str, object] = {}
        paths = [GroupPaths(group).root]
        for path in paths:
            node = self.zk.zk.get(path)
            if node is not None:
                found[path] = (node.data, node.stat.version, self.zk.do(GetAcl(path)))
                paths += [f"{path}/{name}" for name in self.zk.zk.children(path)]
        return found

    def hide(self, topic: str) -> None:
        """Do not allow zkmigrate to describe a topic."""
        self.kafka.denied.add(topic)

    def held(self, group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]:
        """Return the offsets of a topic in ZooKeeper and in Kafka, by partition."""
        where = f"{GroupPaths(group).root}/offsets/{topic}"
        zk = {int(n): int(self.zk.text(f"{where}/{n}") or -1) for n in self.zk.zk.children(where)}
        kafka = self.kafka.committed.get(group, {})
        return zk, {tp.partition: one.offset for tp, one in kafka.items() if tp.topic == topic}

    def _metadata(self, _connection: object, topics: Collection[str]) -> Any:
        shown = set(topics) - self.kafka.denied
        led = {tp: 0 for tp in self.ends if tp not in self.without_leader and tp.topic in shown}
        return SimpleNamespace(leaders=led)

    def _list_offsets(
        self, _connection: object, partitions: Collection[TopicPartition], which: int
    ) -> dict[TopicPartition, int | BrokerError]:
        if which >= 0:  # a time
            return {tp: self.at_time.get(tp, NONE) for tp in partitions}
        if which == LATEST:
            self.asked += partitions
        return {tp: self.ends[tp][0 if which == EARLIEST else 1] for tp in partitions}

    # -- commands ------------------------------------------------------------------------------

    def stores(self) -> sessions.Stores:
        """The product's own sessions. They need not be opened."""
        return sessions.Stores(Servers("sim", 0.2, 0.2))

    def run(self, *words: str, rows: bool = True, servers: bool = True) -> Ran:
        """Run a command. ``rows``: it takes ``--json``. ``servers``: it connects to some."""
        out, err = io.StringIO(), io.StringIO()
        more: tuple[str, ...] = (
            "--zookeeper",
            self.connect,
            "--timeout",
            "0.5",
            "--coordinator-timeout",
            "0.5",
        )
        if not servers:
            more, rows = (), False
        with redirect_stdout(out), redirect_stderr(err):
            status = run([*words, *more, *(("--json",) if rows else ())])
        found = rows_of(out.getvalue()) if rows else []
        return Ran(status, found, err.getvalue() + ("" if rows else out.getvalue()))

    def file(self, name: str) -> str:
        """Return the path of a new file."""
        return str(self.folder / name)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulated:
    """A cluster without topics and groups."""
    return Simulated(monkeypatch, tmp_path)
