"""Every public call that can wait ends within its documented time, even if servers are down.

``make test-calls`` runs all kinds of trouble. Otherwise servers are only silent, so the test takes
seconds.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.support.groups import Producer
from zkconsumer.admin.tools import GroupTools
from zkconsumer.cli.main import run
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ConsumerTimeoutError, ZkConsumerError, ZkUnavailableError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.topics.in_zookeeper import zookeeper_session
from zkconsumer.servers.waiting import free_port

ALL = os.environ.get("CALLS") == "all"
SESSION = 2.0
SLACK = 2.0
"""Seconds that a busy machine may add to a measured time."""
START = 4.0
"""For ``START_PATIENCE``: the time that a start may take in addition to the configured timeouts."""
ANSWER = 2.0
"""For the 10 s that a commit may take in addition to twice the session timeout."""
TOOL = 1.0
"""``--timeout`` of the tools."""
HASTY = 1.0
"""Seconds that a tool may take to close its session after an error."""

Member = ZookeeperConsumerConnector | CoordinatorConsumerConnector

TROUBLES = {
    "zookeeper silent": {"zookeeper": "silent"},
    "zookeeper down": {"zookeeper": "down"},
    "broker silent": {"broker": "silent"},
    "broker down": {"broker": "down"},
    "everything silent": {"zookeeper": "silent", "broker": "silent"},
    "everything down": {"zookeeper": "down", "broker": "down"},
}
SAMPLE = ("everything silent",)


class Call(NamedTuple):
    """A public call of a member, and the seconds that it may take."""

    name: str
    make: Callable[[Running], object]
    limit: float
    alone: bool = False
    """Whether the call ends the member. Such a call gets its own member."""


class Running:
    """A member with two streams that deliver messages."""

    def __init__(self, connector: Member, topic: str) -> None:
        self.connector = connector
        self.streams: list[Any] = connector.create_message_streams({topic: 2})[topic]


def read_on(member: Running) -> None:
    """Request messages until none arrives within the timeout."""
    with suppress(ConsumerTimeoutError, StopIteration):
        while True:
            next(iter(member.streams[0]))


def read_lists(member: Running) -> None:
    """Request lists of messages until none arrives within the timeout."""
    with suppress(ConsumerTimeoutError, StopIteration):
        lists = member.streams[1].batches()
        while True:
            next(lists)


def commit_async(member: Running) -> None:
    """Commit and wait for the callback."""
    called = threading.Event()
    member.connector.commit_offsets_async(callback=lambda _: called.set())
    called.wait(60)


def leave(member: Running) -> None:
    """Leave a ``with`` block."""
    with member.connector:
        pass


def calls(leave_limit: float, commit_limit: float) -> list[Call]:
    """Calls that are possible once there are streams. Each call gets its own member."""
    p0 = {TopicPartition("t", 0): 1}
    return [
        Call("shutdown()", lambda m: m.connector.shutdown(), leave_limit, True),
        Call("shutdown(1)", lambda m: m.connector.shutdown(timeout=1.0), 1.0, True),
        Call("with", leave, leave_limit, True),
        Call("commit_offsets()", lambda m: m.connector.commit_offsets(), commit_limit),
        Call("commit_offsets(..)", lambda m: m.connector.commit_offsets(p0), commit_limit),
        Call("commit_offsets_async()", commit_async, commit_limit),
        Call("next", read_on, 1.0),
        Call("batches", read_lists, 1.0),
        Call("try_next", lambda m: m.streams[1].try_next(), 0.0),
        Call("metrics", lambda m: m.connector.metrics(), 0.0),
        Call("health", lambda m: m.connector.health(), 0.0),
    ]


def take(call: Callable[[], object]) -> float:
    """Seconds that a call takes. A documented error also counts as an end."""
    began = time.monotonic()
    with suppress(ZkConsumerError):
        call()
    return time.monotonic() - began


class Timed:
    """Calls that run at the same time, each on its own thread."""

    def __init__(self) -> None:
        self.threads: list[tuple[str, float, threading.Thread]] = []
        self.seconds: dict[str, float] = {}
        self.began = time.monotonic()

    def start(self, name: str, limit: float, call: Callable[[], object]) -> None:
        def work() -> None:
            self.seconds[name] = take(call)

        thread = threading.Thread(target=work, name=f"call {name}", daemon=True)
        self.threads.append((name, limit, thread))
        thread.start()

    def overrun(self) -> dict[str, tuple[float, float | None]]:
        """The calls that took too long: the limit, and the duration if the call has ended."""
        for _, limit, thread in self.threads:
            thread.join(max(0.0, self.began + limit + SLACK - time.monotonic()))
        return {
            name: (limit, self.seconds.get(name))
            for name, limit, _ in self.threads
            if self.seconds.get(name, 1e9) > limit + SLACK
        }


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    """Servers that may be paused and stopped."""
    with LocalCluster("3.9", properties={"zookeeper.session.timeout.ms": "6000"}) as running:
        yield running


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce constant limits to a few seconds."""
    for module in ("connector", "coordinator"):
        monkeypatch.setattr(f"zkconsumer.{module}.START_PATIENCE", START)
        monkeypatch.setattr(f"zkconsumer.{module}.ANSWER_PATIENCE", ANSWER)


def common(group: str) -> dict[str, object]:
    """Settings of all members."""
    return {
        "group.id": group,
        "consumer.timeout.ms": 1000,
        "auto.offset.reset": "smallest",
        "socket.timeout.ms": 1000,
    }


def members(cluster: LocalCluster, group: str) -> dict[str, tuple[type[Any], Any, float, float]]:
    """The kinds of members: class, settings, and the time that leaving and committing may take."""
    in_zookeeper = common(group) | {
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": int(SESSION * 1000),
        "zookeeper.connection.timeout.ms": 2000,
    }
    channel = {
        "offsets.storage": "kafka",
        "offsets.channel.socket.timeout.ms": 1000,
        "offsets.channel.backoff.ms": 100,
    }
    on_brokers = common(group) | {
        "bootstrap.servers": cluster.bootstrap,
        "session.timeout.ms": 6000,
        "max.poll.interval.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    leaving, commit = SESSION + 5, 2 * SESSION + ANSWER
    offsets = 1.0 + 5 * 0.1
    return {
        "zookeeper": (ZookeeperConsumerConnector, in_zookeeper, leaving, commit),
        "kafka storage": (
            ZookeeperConsumerConnector,
            in_zookeeper | channel,
            leaving + offsets,
            commit + offsets,
        ),
        "coordinator": (CoordinatorConsumerConnector, on_brokers, 6.0 + 5, 2 * 6.0 + ANSWER),
    }


@contextmanager
def disturbed(cluster: LocalCluster, trouble: Mapping[str, str]) -> Iterator[None]:
    """Servers that are silent or down for a while."""
    servers = {"zookeeper": cluster.zookeeper_server, "broker": cluster.broker_servers[0]}
    for name, how in trouble.items():
        (servers[name].pause if how == "silent" else servers[name].kill)()
    try:
        yield
    finally:
        for name, how in trouble.items():
            if how == "silent":
                servers[name].resume()
            else:
                servers[name].start()
                servers[name].wait_ready()
        with zookeeper_session(cluster.zookeeper) as client:
            wait_until(lambda: client.exists("/brokers/ids/0"), 60, "the broker is registered")


TOOLS: dict[str, tuple[int, Callable[[GroupTools, str], object]]] = {
    "group_names": (0, lambda tools, _: tools.group_names()),
    "counts": (0, lambda tools, group: list(tools.counts([group]))),
    "describe": (1, lambda tools, group: list(tools.describe([group]))),
    "describe, Kafka": (2, lambda tools, group: list(tools.describe([group], kafka_offsets=True))),
    "verify": (1, lambda tools, group: list(tools.verify([group], idle=True))),
    "plan_delete": (0, lambda tools, group: tools.plan_delete(group)),
    "delete": (0, lambda tools, group: tools.delete(group)),
    "list_topics": (0, lambda tools, _: tools.list_topics()),
    "describe_topics": (0, lambda tools, _: tools.describe_topics()),
}
"""The calls of the admin module. The number is how often a call waits for all brokers."""


@pytest.mark.usefixtures("short")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("trouble", TROUBLES if ALL else SAMPLE)
def test_calls_end_after_a_healthy_start(
    own: LocalCluster, group: str, topic: str, trouble: str
) -> None:
    """Members of all kinds deliver and tools are connected. Then servers become silent or stop. No
    call takes longer than its documented time."""
    own.create_topic(topic, 2)
    with Producer(own.bootstrap, topic, (0, 1)) as producer:
        producer.send(5)
    timed = Timed()
    with ExitStack() as stack:
        ready: list[tuple[str, float, Callable[[], object]]] = []
        for kind, (make, settings, leaving, commit) in members(own, group).items():
            shared: Running | None = None
            for number, call in enumerate(calls(leaving, commit)):
                running = shared
                if running is None:
                    name = f"{group}-{kind.replace(' ', '-')}-{number}"
                    connector = make(settings | {"group.id": name})
                    stack.callback(take, lambda c=connector: c.shutdown(timeout=1.0))
                    running = Running(connector, topic)
                    shared = None if call.alone else running
                ready.append((f"{kind} {call.name}", call.limit, partial(call.make, running)))
        used = f"{group}-zookeeper-0"
        for name, (brokers, use) in TOOLS.items():
            tools = GroupTools(own.zookeeper, TOOL)
            tools.__enter__()
            stack.callback(tools.__exit__, ValueError, ValueError(), None)
            ready.append((f"tools {name}", TOOL * (1 + brokers), partial(use, tools, used)))
        stack.enter_context(disturbed(own, TROUBLES[trouble]))
        timed.began = time.monotonic()
        for one in ready:
            timed.start(*one)
        overrun = timed.overrun()
    print({name: round(seconds, 2) for name, seconds in timed.seconds.items()})  # noqa: T201
    assert not overrun


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("how", ["silent", "down"] if ALL else ["silent"])
def test_calls_end_when_servers_were_never_there(group: str, how: str) -> None:
    """No server answers from the start. Constructors, stream creation and all commands still
    end."""
    timed = Timed()
    with ExitStack() as stack:
        if how == "silent":
            nobody = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            port = nobody.getsockname()[1]
        else:
            port = free_port()
        address = f"127.0.0.1:{port}"
        in_zookeeper = common(group) | {
            "zookeeper.connect": address,
            "zookeeper.connection.timeout.ms": 1500,
        }
        timed.start("connector", 1.5, lambda: ZookeeperConsumerConnector(in_zookeeper))
        on_brokers = common(group) | {"bootstrap.servers": address, "max.poll.interval.ms": 3000}
        for name, limit, use in (
            ("create", START + 3.0, lambda c: c.create_message_streams({"t": 1})),
            (
                "by filter",
                START + 3.0,
                lambda c: c.create_message_streams_by_filter(Whitelist("t")),
            ),
            ("shutdown", 0.0, lambda c: c.shutdown()),
            ("metrics", 0.0, lambda c: c.metrics()),
            ("health", 0.0, lambda c: c.health()),
        ):
            connector = CoordinatorConsumerConnector(on_brokers)
            stack.callback(take, lambda c=connector: c.shutdown(timeout=1.0))
            timed.start(f"coordinator {name}", limit, partial(use, connector))  # type: ignore[arg-type]
        fixed = ("--zookeeper", address, "--timeout", str(TOOL))
        for command in (
            "groups list",
            "groups describe g",
            "groups verify g",
            "groups delete g",
            "offsets export --all",
            "topics list",
            "topics describe",
        ):
            line = [*command.split(), *fixed]
            timed.start(command, TOOL + HASTY, partial(status_of, line))
        overrun = timed.overrun()
    print({name: round(seconds, 2) for name, seconds in timed.seconds.items()})  # noqa: T201
    assert not overrun


def status_of(arguments: list[str]) -> None:
    """Run a command, which must fail with the error that names ZooKeeper."""
    status = run(arguments)
    if status != ZkUnavailableError.exit_code:
        raise AssertionError(f"{arguments}: status {status}")
