"""Faults of everything that takes part while a group is mirrored: the process that mirrors and its
network, members, ZooKeeper's leader and the group's coordinator.

``Faults`` draws them from a seed. A thread of it watches the offsets in both stores.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from zkmigrate.model import KafkaOffset, Store
from zkmigrate.plan.mirror import is_marked

from tests.migrate.mirrored import Mirrored, New, Old
from tests.soak.arena import Proxies, zookeeper_leader
from tests.support.legacy_jvm import JvmMembers
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.servers import Server

LIMIT_S: Final = 5.0
"""Seconds after the end of a fault by which the stores are in step, or the group is named."""
_PARTITIONS: Final = 8
_PATIENCE: Final = 60.0
_BROKERS: Final = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
    "replica.lag.time.max.ms": "5000",
}


class Recovery(NamedTuple):
    """What followed a fault. Seconds after its end: until the stores were in step, and until the
    mirror had named the group, if it has. ``state``: what it printed then."""

    fault: str
    in_step: float
    named: float | None
    state: str

    def good(self, limit: float = LIMIT_S) -> bool:
        """Whether that was within ``limit`` seconds."""
        return min(self.in_step, self.in_step if self.named is None else self.named) <= limit

    def __str__(self) -> str:
        named = "" if self.named is None else f", named after {self.named:.1f} s: {self.state}"
        return f"{self.fault}: in step after {self.in_step:.1f} s{named}"


class Faults:
    """One run. Use ``play``.

    Args:
        seed: draws the faults.
        folder: for data and journals.
        say: called with what happens.
    """

    def __init__(self, seed: int, folder: Path, say: Callable[[str], object]) -> None:
        self._chance = random.Random(seed)
        self._folder, self._say = folder, say
        self.recoveries: list[Recovery] = []
        self.lowered: list[str] = []
        """Offsets that the mirror has lowered, although the leading store had not."""
        self._members: Old | New = []
        self._over = threading.Event()

    def play(self, faults: int) -> Mirrored:
        """Let faults happen, and the program change after every third; return the group at the
        end, when all messages are delivered."""
        cluster = LocalCluster("3.9", brokers=2, zookeepers=3, properties=_BROKERS)
        with cluster, contextlib.closing(Proxies(cluster)) as self._proxies:
            one = Mirrored(
                cluster, JvmMembers(), ("mirrored", "mirrored"), _PARTITIONS, self._folder,
                self._say, 300, 2, self._proxies,
            )  # fmt: skip
            endpoints = [
                BrokerEndpoint(number, "127.0.0.1", server.port)
                for number, server in enumerate(cluster.broker_servers)
            ]
            self.one, self._kafka = one, GroupCoordinators("tests", lambda: endpoints, 2.0, 2.0)
            self._other = self._kafka.another()
            watch = threading.Thread(target=self._watch)
            try:
                with one, self._kafka:
                    self._members = one.old(2)
                    one.start_mirror()
                    watch.start()
                    for number in range(1, faults + 1):
                        one.wait_delivered(self._members, 100)
                        self._fault(number)
                        if number % 3 == 0:
                            self._change()
                    one.wait_delivered(self._members, 100)
                    one.finish(self._members)
            finally:
                self._over.set()
                if watch.ident is not None:
                    watch.join()
                one.jvm.kill()
        return one

    def _fault(self, number: int) -> None:
        kinds = (
            self._mirror_killed, self._mirror_suspended, self._cut_off, self._cut_off,
            self._zookeeper, self._coordinator, self._member,
        )  # fmt: skip
        size = self.one.mirror_log.stat().st_size
        recovery = self._recover(f"{number} {self._chance.choice(kinds)()}")
        self._say(f"== {recovery}")
        if not recovery.good():
            self._say(self.one.mirror_log.read_bytes()[size:].decode())
        self.recoveries.append(recovery)

    def _change(self) -> None:
        """Cut over, or go back. The command may be killed at its first attempt."""
        old = not any(one in self.one.new_members for one in self._members)
        command = "cut-over" if old else "undo"
        if self._chance.random() < 0.5:
            self.one.kill_during(command, "--execute", after=self._chance.uniform(0.8, 3.0))

        def start() -> Old | New:
            return self.one.new("java", "librdkafka") if old else self.one.old(2)

        self._members = self.one.change(self._members, command, start)

    # -- faults: each returns its name when it is over -------------------------------------------

    def _seconds(self, most: float) -> float:
        return self._chance.uniform(0.5, most)

    def _mirror_killed(self) -> str:
        self.one.kill_mirror()
        began, size = time.monotonic(), self.one.mirror_log.stat().st_size
        self.one.start_mirror(wait=False)
        wait_until(
            lambda: self.one.mirror_log.stat().st_size > size, _PATIENCE, "the mirror has sessions"
        )
        return f"mirror killed and started again in {time.monotonic() - began:.1f} s"

    def _mirror_suspended(self) -> str:
        seconds = self._seconds(9.0)
        self.one.suspend_mirror(seconds)
        return f"mirror suspended for {seconds:.1f} s"

    def _cut_off(self) -> str:
        what = self._chance.choice(("ZooKeeper", "brokers", "ZooKeeper and brokers"))
        silent, seconds = self._chance.random() < 0.5, self._seconds(8.0)
        cut = [*(self._proxies.to_zookeeper if "ZooKeeper" in what else ()),
               *(self._proxies.to_brokers if "brokers" in what else ())]  # fmt: skip
        for one in cut:
            if silent:
                one.stall()
            else:
                one.refuse()
                one.cut()
        time.sleep(seconds)
        for one in cut:
            one.cut()
            one.resume()
            one.allow()
        how = "silent" if silent else "refused"
        return f"mirror cut off from {what} for {seconds:.1f} s, {how}"

    def _zookeeper(self) -> str:
        return "ZooKeeper's leader " + self._server(zookeeper_leader(self.one.cluster))

    def _coordinator(self) -> str:
        at = self._kafka.coordinator(self.one.group).broker_id
        return "coordinator " + self._server(self.one.cluster.broker_servers[at])

    def _server(self, server: Server) -> str:
        killed, seconds = self._chance.random() < 0.5, self._seconds(8.0)
        if killed:
            server.kill()
            time.sleep(seconds)
            server.start()
            server.wait_ready()
            return f"killed and started again after {seconds:.1f} s"
        server.pause()
        time.sleep(seconds)
        server.resume()
        return f"suspended for {seconds:.1f} s"

    def _member(self) -> str:
        left = self.one.kill(self._members)
        again: Any = self.one.new("java") if left else self.one.old(2)
        self._members = [*left, *again]  # type: ignore[list-item]
        self.one.wait_delivered(again, 1)
        return f"{'new' if left else 'old'} members killed and started again"

    # -- looking ---------------------------------------------------------------------------------

    def _leader(self) -> Store | None:
        with contextlib.suppress(KazooException, KazooTimeoutError):
            path = f"/consumers/{self.one.group}/record/mirror"
            return Store(json.loads(self.one.zookeeper.get(path)[0])["leader"])
        return None

    def _offsets(self, store: Store | None, kafka: GroupCoordinators) -> dict[int, KafkaOffset]:
        """The offsets in a store; empty if it does not answer."""
        topic, group = self.one.topic, self.one.group
        if store is Store.KAFKA:
            with contextlib.suppress(ZkConsumerError):
                asked = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
                found = kafka.fetch(group, asked)
                return {tp.partition: KafkaOffset(*one) for tp, one in found.items()}
        elif store is Store.ZOOKEEPER:
            with contextlib.suppress(KazooException, KazooTimeoutError):
                paths = [f"/consumers/{group}/offsets/{topic}/{at}" for at in range(_PARTITIONS)]
                asked = [self.one.zookeeper.get_async(path) for path in paths]
                nodes = [one.get(timeout=5.0)[0] for one in asked]
                return {at: KafkaOffset(int(node)) for at, node in enumerate(nodes)}
        return {}

    def _recover(self, fault: str) -> Recovery:
        """Wait until the store that follows has what the other one had at the end of the fault."""
        began, named, state = time.monotonic(), None, ""
        target: dict[int, KafkaOffset] = {}
        leader: Store | None = None
        while True:
            seconds = time.monotonic() - began
            if not target:
                leader = self._leader()
                target = self._offsets(leader, self._kafka)
            elif leader is not None:
                now = self._offsets(leader.other, self._kafka)
                if all(at in now and now[at].offset >= one.offset for at, one in target.items()):
                    return Recovery(fault, seconds, named, state)
            shown = self.one.shown()
            if named is None and shown.partition(":")[0] not in ("in step", "standby", ""):
                named, state = seconds, shown
            if shown.startswith("stopped") or seconds > _PATIENCE:
                raise AssertionError(f"{fault}: {shown}")
            time.sleep(0.05)

    def _watch(self) -> None:
        """Note each offset that the mirror has lowered."""
        last: dict[Store, dict[int, KafkaOffset]] = {store: {} for store in Store}
        resets: set[tuple[int, int]] = set()
        while not self._over.wait(0.1):
            leader = self._leader()
            for store in Store:
                now = self._offsets(store, self._other)
                for at, one in now.items():
                    before = last[store].get(at, one).offset
                    if one.offset >= before:
                        continue
                    text = f"{store.value} {at}: {before} to {one.offset}, {leader} leads"
                    mirrors = is_marked(one) if store is Store.KAFKA else leader is Store.KAFKA
                    if not mirrors:
                        resets.add((at, one.offset))
                        self._say(f"  lowered by a member: {text}")
                    elif (at, one.offset) not in resets:
                        self.lowered.append(text)
                last[store].update(now)
