"""Servers, members, producer and proxies of one run.

Any thread may call the methods. A method that changes a member may be called only by the thread
that has its lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from tests.soak.history import FaultRecord, Life
from tests.soak.kinds import KINDS
from tests.support.groups import WatchClient
from tests.support.legacy_jvm import JvmMember, JvmMembers
from tests.support.specs import kip848_spec
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.kip848_client import ConsumerGroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription
from zkconsumer.core.groups import commands, events
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, expire_session, wait_until
from zkconsumer.servers.servers import Server, four_letters
from zkconsumer.servers.waiting import stands_still

QUIET = logging.getLogger("tests.soak.kazoo")
"""Unavailable servers are normal in a run."""
QUIET.disabled = True
ROOT = Path(__file__).parents[2]
SERVERS = 3
"""ZooKeeper servers of the ensemble."""
GROUP, TOPIC = "soak", "soaked"
SESSION = 4.0
"""Session timeout of all members, seconds."""
BROKER_SESSION = 6.0
"""Session timeout of the brokers in ZooKeeper or with the controller. When it ends, others take
over."""
COMMIT_INTERVAL = 0.5
_WITH_ZOOKEEPER = {
    "zookeeper.session.timeout.ms": str(int(BROKER_SESSION * 1000)),
    "group.min.session.timeout.ms": "1000",
}
_WITHOUT = {
    "broker.session.timeout.ms": str(int(BROKER_SESSION * 1000)),
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
"""On brokers of Kafka 4 the broker sets the session timeout."""
_OUTSIDE = kip848_spec(
    group=GROUP,
    member_id="",
    consumer_id="soak",
    subscription=Subscription(Pattern.STATIC, {TOPIC: 1}),
    auto_commit=False,
    session_timeout=SESSION,
    rebalance_timeout=SESSION,
    heartbeat_interval=1.0,
    reread=1.0,
)
"""The client that removes members of a KIP-848 group. It is not a member itself."""
LEAVE_SECONDS = SESSION + 5 + 3
"""Limit for a member's leave: session timeout + 5 s for ``shutdown``, and some time for the end of
its process."""
START_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run."""

    kind: str
    seconds: float
    seed: int
    rate: int
    members: int
    partitions: int
    brokers: int
    out: Path
    broken: str = ""
    audit: bool = False
    """Whether the whole zkaudit runs, with its findings."""


class Member:
    """A process that runs one zkconsumer member."""

    ours = True

    def __init__(self, arena: Arena, slot: int, name: str, proxies: Proxies) -> None:
        self.name = name
        self.ledger = arena.ledgers / name
        self.ledger.touch()
        self.errors = arena.folder / "logs" / f"{name}.err"
        kind = arena.kind
        config = kind.config(arena, name) | {
            "zkconsumer.journal.dir": str(arena.folder / "journals")
        }
        if kind.member == "zookeeper":
            config["zookeeper.connect"] = proxies.zookeeper
        task = {
            "kind": kind.member,
            "config": config,
            "topic": TOPIC,
            "ledger": str(self.ledger),
            "ports": proxies.ports,
        }
        environment = os.environ | {"PYTHONPATH": str(ROOT), "SOAK_BROKEN": arena.settings.broken}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.member"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C is for the parent process
            )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._send(json.dumps(task))
        self.life = Life(name, slot, time.time())

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line.decode())

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, order: str) -> Any:
        """Send a command to it. Raises ClusterError if it does not answer."""
        try:
            self._send(order)
            return json.loads(self._answers.get(timeout=5.0))
        except (OSError, queue.Empty) as error:
            raise ClusterError(f"{self.name} does not answer") from error

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def delivered(self) -> int:
        """Size of its ledger in bytes, which grows with each message."""
        return self.ledger.stat().st_size

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(10)
        self._end("killed")

    def leave(self) -> float:
        """Send SIGTERM, and return the seconds it took. A member that does not exit is killed and
        recorded."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        try:
            status = self.process.wait(LEAVE_SECONDS)
            # The signal itself ended it, because it was not a member yet.
            before = -signal.SIGTERM
            self._end({0: "left", 4: "left", before: "killed"}.get(status, "failed"))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            self._end("hung")
        return time.monotonic() - began

    def ended(self) -> None:
        """Whether its process has exited without a command."""
        self._end("failed")

    def _end(self, how: str) -> None:
        self.life.ended, self.life.how = time.time(), how


class JvmProcess:
    """A JVM that runs one member of the original consumer."""

    ours = False

    def __init__(self, arena: Arena, slot: int, name: str) -> None:
        self.name = name
        self.ledger = arena.ledgers / name
        self.ledger.touch()
        self.life = Life(name, slot, time.time(), ours=False)
        self._jvm = JvmMembers("1.1")
        config = arena.kind.config(arena, name) | {"zookeeper.connect": arena.cluster.zookeeper}
        self._member = JvmMember(self._jvm, config, topics={TOPIC: 1})
        self._offset = time.time() - time.monotonic()
        self._taken = 0

    @property
    def running(self) -> bool:
        return self._jvm.running

    @property
    def delivered(self) -> int:
        self.note()
        return self.ledger.stat().st_size

    def note(self) -> None:
        """Write the messages that it delivered to its ledger."""
        found = self._member.deliveries[self._taken :]
        self._taken += len(found)
        with self.ledger.open("a") as ledger:
            for one in found:
                number = (one.value or b"-1").decode()
                ledger.write(f"{one.at + self._offset:.6f} {one.partition} {one.offset} {number}\n")

    def leave(self) -> float:
        """Let it leave, and return the seconds it took."""
        began = time.monotonic()
        how = "left"
        try:
            self._member.shutdown()
        except ClusterError:
            how = "failed"
        self._jvm.kill()
        self.note()
        self.life.ended, self.life.how = time.time(), how
        return time.monotonic() - began


class Proxies:
    """A process's connections to the servers."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.to_zookeeper = [TcpProxy(server.port) for server in cluster.zookeeper_servers]
        self.to_brokers = [TcpProxy(server.port) for server in cluster.broker_servers]

    @property
    def zookeeper(self) -> str:
        """The value of ``zookeeper.connect``."""
        return ",".join(proxy.address for proxy in self.to_zookeeper)

    @property
    def ports(self) -> dict[int, int]:
        """Maps a broker's port to its proxy's port."""
        return {proxy.target_port: proxy.port for proxy in self.to_brokers}

    def close(self) -> None:
        for proxy in (*self.to_zookeeper, *self.to_brokers):
            proxy.close()


class Slot:
    """A place in the group, filled by one member after another."""

    def __init__(self, arena: Arena, number: int, ours: bool) -> None:
        self.arena = arena
        self.number = number
        self.ours = ours
        self.lock = threading.Lock()
        self.proxies = Proxies(arena.cluster)
        self._born = 0
        self.member: Member | Any = None

    def start(self) -> None:
        """Start a member. It may take a while until it delivers."""
        self._born += 1
        name = f"m{self.number:02}-{self._born:03}"
        if self.ours:
            self.member = Member(self.arena, self.number, name, self.proxies)
        else:
            self.member = JvmProcess(self.arena, self.number, name)
        self.arena.lives.append(self.member.life)

    def revive(self) -> None:
        """Start another member if the current one has exited by itself."""
        if not self.member.running and not self.member.life.how:
            self.member.ended()
            self.start()

    def wait_progress(self, timeout: float = START_SECONDS) -> None:
        """Wait until its member delivers messages."""
        member = self.member
        begin = member.delivered
        wait_until(
            lambda: member.delivered > begin or not member.running,
            timeout,
            f"{member.name} delivers",
        )


class Arena:
    """A group at work. Open from ``start`` to ``close``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = settings.out
        self.ledgers = self.folder / "ledgers"
        for part in (self.ledgers, self.folder / "logs", self.folder / "journals"):
            part.mkdir(parents=True)
        self.lives: list[Life] = []
        self.slots: list[Slot] = []
        self.faults: list[FaultRecord] = []
        self.zookeeper_lock = threading.Lock()
        self.broker_lock = threading.Lock()
        self.away = threading.Semaphore(max(1, settings.members - 2))
        """Number of members that faults may affect at the same time."""
        self.paths = GroupPaths(GROUP)
        self._producer: subprocess.Popen[bytes] | None = None
        self._client: KazooClient | None = None
        self.kind = KINDS[settings.kind]
        self.cluster = LocalCluster(
            self.kind.kafka,
            brokers=max(settings.brokers, self.kind.brokers),
            zookeepers=SERVERS if self.kind.zookeeper else None,
            dir=self.folder / "servers",
            properties={
                "offsets.topic.num.partitions": "4",
                "replica.lag.time.max.ms": "5000",
                **(_WITH_ZOOKEEPER if self.kind.zookeeper else _WITHOUT),
            },
        )

    def start(self) -> None:
        """Start everything, and wait until every member delivers messages."""
        settings = self.settings
        self.cluster.start()
        self.cluster.create_topic(
            TOPIC, settings.partitions, min(2, len(self.cluster.broker_servers))
        )
        if self.kind.zookeeper:
            self._client = WatchClient(self.cluster.zookeeper, QUIET)
            self._client.start(timeout=15.0)
        task = {
            "bootstrap": self.cluster.bootstrap,
            "topic": TOPIC,
            "partitions": settings.partitions,
            "rate": settings.rate,
            "ledger": str(self.ledgers / "acked"),
        }
        with (self.folder / "logs" / "producer.err").open("wb") as errors:
            self._producer = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.producer", json.dumps(task)],
                stdin=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                start_new_session=True,
            )
        jvms = self.kind.jvm_members(settings.members)
        for number in range(settings.members):
            self.slots.append(Slot(self, number, number < settings.members - jvms))
            self.slots[-1].start()
        for slot in self.slots:
            slot.wait_progress()

    # -- looking -------------------------------------------------------------------------------

    def look(self, read: Callable[[KazooClient], Any], timeout: float = 5.0) -> Any:
        """The result of ``read``, an asynchronous kazoo call, or ``None`` without a response or a
        znode."""
        assert self._client is not None
        try:
            return read(self._client).get(timeout=timeout)
        except (KazooException, KazooTimeoutError):
            return None

    def session_of(self, member: Member) -> int | None:
        """The session of a member's registration, or ``None`` if it is not registered or
        unknown."""
        path = self.paths.member(f"{GROUP}_{member.name}")
        found = self.look(lambda client: client.exists_async(path))
        return None if found is None else int(found.ephemeralOwner)

    def leader(self) -> Server:
        """The ZooKeeper server that is the leader. Raises ClusterError."""
        return zookeeper_leader(self.cluster)

    def watches(self) -> int:
        """Number of watches that the servers have for all clients."""
        total = 0
        for server in self.cluster.zookeeper_servers:
            for line in four_letters(server.port, "wchs").splitlines():
                if line.startswith("Total watches:"):
                    total += int(line.partition(":")[2])
        return total

    # -- the coordinator -----------------------------------------------------------------------

    @contextlib.contextmanager
    def group_client(self) -> Iterator[GroupClient]:
        """A client of the group's coordinator that is not a member."""
        brokers = [
            BrokerEndpoint(number, "127.0.0.1", server.port)
            for number, server in enumerate(self.cluster.broker_servers)
        ]
        known = KnownBrokers(lambda: brokers, lambda _: 0)
        if self.settings.kind == "consumer":
            client: GroupClient = ConsumerGroupClient(_OUTSIDE, "soak", known, timeout=5.0)
        else:
            client = GroupClient(
                GROUP,
                "soak",
                None,
                known,
                session_timeout=SESSION,
                rebalance_timeout=SESSION,
                timeout=5.0,
            )
        try:
            yield client
        finally:
            client.close()

    def coordinator(self, client: GroupClient) -> BrokerEndpoint:
        """The group's coordinator. Raises ClusterError."""
        found = client.execute(commands.FindCoordinator(1))
        if not isinstance(found, events.CoordinatorFound) or client.coordinator is None:
            raise ClusterError(f"no coordinator: {found}")
        return client.coordinator

    def expel(self, member: Member) -> str:
        """Let another client end a member's session, in ZooKeeper or on the coordinator."""
        if self.kind.member == "coordinator":
            with self.group_client() as client:
                self.coordinator(client)
                member_id = member.ask("member")
                if not member_id:
                    raise ClusterError(f"{member.name} is not a member at the moment")
                left = client.execute(commands.LeaveGroup(1, member_id))
                if not isinstance(left, events.Left):
                    raise ClusterError(f"the coordinator: {left}")
                return f"the coordinator removed {member_id}"
        found = member.ask("session")
        if not isinstance(found, list):
            raise ClusterError(f"{member.name} has no session")
        expire_session(self.leader().address, found[0], bytes.fromhex(found[1]))
        return f"the leader no longer knows session 0x{found[0] & (1 << 64) - 1:x}"

    # -- the end -------------------------------------------------------------------------------

    def stop_producer(self) -> None:
        """Stop sending, and wait until every message is acknowledged or given up."""
        if self._producer is not None and self._producer.poll() is None:
            self._producer.terminate()
            self._producer.wait(80)

    def close(self) -> None:
        """Kill all processes at once."""
        for slot in self.slots:
            slot.proxies.close()
            member = slot.member
            if isinstance(member, Member) and member.running:
                member.process.kill()
                member.process.wait(10)
            elif isinstance(member, JvmProcess) and member.running:
                member._jvm.kill()
        if self._producer is not None and self._producer.poll() is None:
            self._producer.kill()
            self._producer.wait(10)
        if self._client is not None:
            self._client.stop()
            self._client.close()
        self.cluster.kill()


def zookeeper_leader(cluster: LocalCluster) -> Server:
    """Return the ZooKeeper server that is the leader. Raises ClusterError."""

    def leading() -> Server | None:
        for server in cluster.zookeeper_servers:
            if "Mode: leader" in four_letters(server.port, "srvr"):
                return server
        return None

    return wait_until(leading, 20, "a ZooKeeper leader")


def freeze(pid: int, what: str) -> None:
    """Send SIGSTOP, and wait until every thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stands_still(pid), 30, f"{what} stands still")
