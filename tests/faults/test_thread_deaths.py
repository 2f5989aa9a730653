"""Each thread of a member is killed at a random place. The member delivers again, or fails
visibly."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.groups import Producer
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import ConnectorFailedError, ZkConsumerError
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.membership.threads import PERIOD
from zkconsumer.servers import LocalCluster, wait_until

BOUND = 2 * PERIOD + 3.0
"""Seconds until a member must deliver again or have failed. 3 of them are for a busy machine."""
SESSION = 6.0
COMMON = ("loop", "watchdog", "journal", "blocking", "finder", "fetcher")
"""The thread names of any member."""

OURS = ("/zkconsumer/", "/kazoo/")
"""A thread is killed while it runs code of these packages, or code that they called."""
SHARED = ("/_pytest/", logging.__file__)
"""But not in this code. Its locks and lists belong to the whole test process: a thread that dies in
``logging`` keeps the lock of a handler, and then all threads hang that log."""

Member = ZookeeperConsumerConnector | CoordinatorConsumerConnector


def _contains(names: list[str], parts: tuple[str, ...]) -> bool:
    return any(part in name for name in names for part in parts)


class Listener:
    """A rebalance listener that waits until it may return."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.inside = threading.Event()

    def before_releasing_partitions(self, _partitions: object) -> None:
        """Not called before the shutdown."""

    def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
        self.inside.set()
        while not self.go.wait(0.05):
            pass


class Victim:
    """A member in its own group. One of its threads will be killed."""

    def __init__(self, cluster: LocalCluster, topic: str, role: str, journals: Path) -> None:
        self.role = role
        common: dict[str, object] = {
            "group.id": f"{topic}-{role}",
            "client.id": role,
            "consumer.id": role,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 200,
            "zkconsumer.journal.dir": str(journals),
            "fetch.wait.max.ms": 100,
        }
        self.member = self._make(cluster, common)
        self.listener = Listener()
        if role == "blocking":
            self.member.set_consumer_rebalance_listener(self.listener)
        self.seen: set[bytes | None] = set()
        self.error: BaseException | None = None
        self.kills = 0
        self._create = threading.Thread(target=self._read, args=(topic,), daemon=True)
        self._create.start()

    def _make(self, cluster: LocalCluster, common: dict[str, object]) -> Member:
        raise NotImplementedError

    def _read(self, topic: str) -> None:
        try:
            stream: KafkaStream = self.member.create_message_streams({topic: 1})[topic][0]
            for message in stream:
                self.seen.add(message.value)
        except ZkConsumerError as error:
            self.error = error

    def thread(self) -> threading.Thread | None:
        """The thread to kill."""
        member: Any = self.member
        if self.role == "connection":
            return member._zk._connection._connection_routine  # type: ignore[no-any-return]
        if self.role in ("answers", "watches"):
            workers = member._zk._client.handler._workers
            return workers[self.role == "watches"] if workers else None
        own = self.member.consumer_id
        names = {
            "finder": f"{self.role}-leader-finder-thread",
            "fetcher": f"ConsumerFetcherThread-{self.role}-0-",
        }
        wanted = names.get(self.role, f"{own}_{self.role}")
        found = [one for one in threading.enumerate() if one.name.startswith(wanted)]
        return found[0] if found else None

    def kill(self) -> None:
        """Raise SystemExit in the thread, wherever it is in the member's own code."""
        thread = self.thread()
        if thread is None or thread.ident is None:
            return
        names = []
        frame = sys._current_frames().get(thread.ident)
        while frame is not None:
            names.append(frame.f_code.co_filename)
            frame = frame.f_back
        if _contains(names, OURS) and not _contains(names, SHARED):
            self.kills += 1
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )

    def close(self) -> None:
        """Close the member, in any state."""
        self.listener.go.set()
        try:
            self.member.shutdown(timeout=3.0)
        except ZkConsumerError:
            pass


class InZooKeeper(Victim):
    """A member of a group in ZooKeeper that also stores offsets in Kafka."""

    ROLES = (*COMMON, "offsets", "connection", "answers", "watches")

    def _make(self, cluster: LocalCluster, common: dict[str, object]) -> Member:
        return ZookeeperConsumerConnector(
            common
            | {
                "zookeeper.connect": cluster.zookeeper,
                "zookeeper.session.timeout.ms": int(SESSION * 1000),
                "offsets.storage": "kafka",
            }
        )


class OnBrokers(Victim):
    """A member of a group on the brokers."""

    ROLES = (*COMMON, "requests", "heartbeat")

    def _make(self, cluster: LocalCluster, common: dict[str, object]) -> Member:
        return CoordinatorConsumerConnector(
            common
            | {
                "bootstrap.servers": cluster.bootstrap,
                "session.timeout.ms": int(SESSION * 1000),
                "heartbeat.interval.ms": 200,
            }
        )


@pytest.fixture
def victims(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> Iterator[Callable[[type[Victim]], list[Victim]]]:
    """Members of one kind, one for each thread name."""
    with ExitStack() as stack:

        def make(kind: Any) -> list[Victim]:
            made = []
            for role in kind.ROLES:
                made.append(kind(cluster, topic, role, tmp_path))
                stack.callback(made[-1].close)
            return made

        yield make


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [InZooKeeper, OnBrokers])
def test_no_thread_dies_unseen(
    cluster: LocalCluster, topic: str, kind: type[Victim], victims: Any
) -> None:
    """After one of its threads was killed, a member has a new thread of that name and delivers new
    messages. Otherwise its stream raises ConnectorFailedError. Both happen within ``BOUND``
    seconds."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        made = victims(kind)
        sent = set(producer.send(3))
        for victim in made:
            ready = (
                victim.listener.inside.is_set
                if victim.role == "blocking"
                else (lambda v=victim: sent <= v.seen)
            )
            wait_until(ready, 30, f"{victim.role}: the member delivers")
            wait_until(lambda v=victim: v.thread() is not None, 30, f"{victim.role}: it runs")
        old = {victim: victim.thread() for victim in made}
        until = time.monotonic() + 0.6
        while time.monotonic() < until:  # several times, so also while an error is being handled
            for victim in made:
                if victim.thread() is old[victim]:
                    victim.kill()
            producer.send(1)
            time.sleep(0.05)
        assert not [victim.role for victim in made if not victim.kills]
        for victim in made:
            victim.listener.go.set()
        began = time.monotonic()
        late = set(producer.send(3))

        def settled(victim: Victim) -> bool:
            return isinstance(victim.error, ConnectorFailedError) or (
                late <= victim.seen and (victim.role == "blocking" or victim.thread() is not None)
            )

        unsettled = set(made)
        while unsettled and time.monotonic() < began + BOUND:
            unsettled = {victim for victim in unsettled if not settled(victim)}
            time.sleep(0.05)
        assert not [(victim.role, victim.error) for victim in unsettled]
