"""Members of one group from four clients: zkconsumer, kafka-python, librdkafka and Java.

Each polls on its own thread, or is a thread of one JVM. A test uses it from one thread.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Consumer as LibrdkafkaConsumer
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.support.endpoints import endpoints
from tests.support.groups import Reader
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, java, wait_until
from zkconsumer.servers.legacy_jvm import compiled
from zkconsumer.servers.servers import sharing

PYTHON_ASSIGNORS: Final[dict[str, Any]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def group_state(cluster: LocalCluster, group: str) -> str:
    """Return the state of a group in Kafka's words, such as ``Stable``."""
    with GroupCoordinators("tests", lambda: endpoints(cluster)) as coordinators:
        return coordinators.describe(group).state


class Member(Protocol):
    """A member of any client, as the tests see it. It reads until ``close``."""

    partitions: set[int]

    def got(self) -> list[tuple[int, int]]:
        """Partition and offset of each message."""

    def close(self) -> None:
        """Leave the group. A static member only stops."""


class Join:
    """The settings of one member."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        strategy: str,
        instance: str | None = None,
        protocol: str = "classic",
    ) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.strategy, self.instance, self.protocol = strategy, instance, protocol


class Ours:
    """A zkconsumer connector."""

    def __init__(self, join: Join) -> None:
        self.leader = ""
        """Member id of the group's leader in the last JoinGroup response."""
        self.subscriptions: dict[str, bytes] = {}
        """Subscriptions of all members by id, from the last time this member was the leader."""
        self.own_subscription = b""
        self.assignments: list[bytes] = []
        config: dict[str, object] = {
            "bootstrap.servers": join.bootstrap,
            "group.id": join.group,
            "client.id": "ours",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "zkconsumer.reread.interval.ms": 1000,
            "partition.assignment.strategy": join.strategy,
            "group.instance.id": join.instance,
        }
        if join.protocol == "consumer":
            config["group.protocol"] = "consumer"
            for key in ("partition.assignment.strategy", "heartbeat.interval.ms"):
                del config[key]
        self.connector = CoordinatorConsumerConnector(config, on_exchange=self._note)
        self._reader = Reader(self.connector.create_message_streams({join.topic: 1})[join.topic])

    def _note(self, _broker: object, request: Any, answer: Any) -> None:
        name = type(answer).__name__
        if name == "JoinGroupResponse" and not answer.error_code:
            self.leader = answer.leader
            self.own_subscription = bytes(request.protocols[0].metadata)
            if answer.members:
                self.subscriptions = {m.member_id: bytes(m.metadata) for m in answer.members}
        elif name == "SyncGroupResponse" and not answer.error_code:
            self.assignments.append(bytes(answer.assignment))

    @property
    def partitions(self) -> set[int]:
        loop = self.connector._loop
        assert loop is not None
        return {tp.partition for tp in loop.machine.held}

    @property
    def generation(self) -> int:
        """Generation or member epoch."""
        assert self.connector._loop is not None
        return self.connector._loop.machine.generation

    @property
    def state(self) -> object:
        """State of the member's machine."""
        assert self.connector._loop is not None
        return self.connector._loop.machine.state

    def got(self) -> list[tuple[int, int]]:
        assert not self._reader.errors
        return [(found.partition, found.offset) for found in self._reader.deliveries]

    def close(self) -> None:
        self.connector.shutdown()


class Polled:
    """A consumer of a library with ``poll``, on its own thread."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self._got: list[tuple[int, int]] = []
        self._end = threading.Event()
        self._faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self.poll()
            self.end()
        except BaseException as error:  # noqa: BLE001
            self._faults.append(error)
        self.partitions = set()

    def poll(self) -> None:
        """Poll for a moment, add the messages to ``_got``, and update ``partitions``."""
        raise NotImplementedError

    def end(self) -> None:
        """Close the consumer."""
        raise NotImplementedError

    def got(self) -> list[tuple[int, int]]:
        assert not self._faults, self._faults
        return list(self._got)

    def close(self) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


class KafkaPython(Polled):
    """kafka-python's consumer."""

    def __init__(self, join: Join) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=join.bootstrap,
            group_id=join.group,
            client_id="kafka-python",
            group_instance_id=join.instance,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=200,
            partition_assignment_strategy=[PYTHON_ASSIGNORS[join.strategy]],
        )
        # If a static leader assigns before it knows the topic, it stays without partitions.
        assert self._consumer.partitions_for_topic(join.topic)
        self._consumer.subscribe([join.topic])
        super().__init__()

    def poll(self) -> None:
        for found in self._consumer.poll(timeout_ms=100).values():
            self._got += [(one.partition, one.offset) for one in found]
        self.partitions = {tp.partition for tp in self._consumer.assignment()}

    def end(self) -> None:
        self._consumer.close()


class Librdkafka(Polled):
    """librdkafka's consumer."""

    def __init__(self, join: Join) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": join.bootstrap,
            "group.id": join.group,
            "client.id": "librdkafka",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
            "group.protocol": join.protocol,
        }
        if join.protocol == "classic":
            config |= {
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": join.strategy,
            }
        if join.instance is not None:
            config["group.instance.id"] = join.instance
        self._consumer = LibrdkafkaConsumer(config)
        self._consumer.subscribe([join.topic])
        super().__init__()

    def poll(self) -> None:
        for found in self._consumer.consume(100, 0.1):
            error = found.error()
            if error is not None:  # it retries after an error, such as reading a new topic
                assert not error.fatal(), error
                continue
            self._got.append((found.partition(), found.offset()))
        self.partitions = {tp.partition for tp in self._consumer.assignment()}

    def end(self) -> None:
        self._consumer.close()


class Jvm:
    """One JVM with members of Kafka's Java consumer, its assignors and codecs, of one Kafka
    version."""

    def __init__(self, folder: Path, line: str = "3.9") -> None:
        source = Path(__file__).with_name("GroupMembers.java")
        words = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        words += [*sharing(line, source.stem), "-cp", compiled(line, source), source.stem]
        self.members: dict[str, Java] = {}
        self._answers: dict[str, list[str]] = {}
        self._tags = 0
        self._ready = threading.Event()
        with (folder / "jvm.log").open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._ready.wait(60), "the JVM starts"

    def order(self, *words: object) -> None:
        """Send a command to the JVM."""
        assert self._process.stdin is not None
        print(*(str(word) or "-" for word in words), file=self._process.stdin, flush=True)

    def ask(self, what: str, *words: object) -> list[str]:
        """Send a question to the JVM and return its answer."""
        self._tags += 1
        tag = f"#{self._tags}"
        self.order(what, tag, *words)
        wait_until(lambda: tag in self._answers, 30, f"the JVM answers {what}")
        return self._answers.pop(tag)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *words = line.split()
            if kind == "ready":
                self._ready.set()
            elif words[0] in self.members:
                self.members[words[0]].told(kind, words[1:])
            else:
                self._answers[words[0]] = words[1:] if kind == "answer" else [line]

    def kill(self) -> None:
        """End the JVM at once."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._thread.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Java:
    """The Java consumer."""

    def __init__(self, join: Join, jvm: Jvm) -> None:
        self.partitions: set[int] = set()
        self._got: list[tuple[int, int]] = []
        self._faults: list[str] = []
        self._left = False
        self._jvm = jvm
        self.generation = -1
        """Generation or member epoch."""
        self._name = f"java-{join.group}-{len(jvm.members)}"
        jvm.members[self._name] = self
        words = (join.bootstrap, join.group, join.topic, join.strategy, join.instance or "")
        words += (join.protocol,)
        jvm.order("join", self._name, *words)

    def told(self, kind: str, words: Sequence[str]) -> None:
        """Process one report of the JVM."""
        if kind == "message":
            self._got.append((int(words[0]), int(words[1])))
        elif kind == "holds":
            self.partitions = {int(word) for word in words[0].split(",") if word != "-"}
            self.generation = int(words[1])
        elif kind == "left":
            self.partitions, self._left = set(), True
        else:
            self._faults.append(" ".join(words))

    def got(self) -> list[tuple[int, int]]:
        assert not self._faults, self._faults
        return list(self._got)

    def close(self) -> None:
        if not self._left:
            self._jvm.order("leave", self._name)
            wait_until(lambda: self._left, 30, "the Java consumer has left")
