"""``--max-requests-per-second``: one bound for all requests of a command."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from zkmigrate.commands.options import servers as commands
from zkmigrate.stores.pace import Pace

from tests.migrate.rows import run
from tests.unit.test_broker_connection import Server
from zkconsumer.broker.api_versions import OFFSET_COMMIT
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import OFFSET_DELETE, GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


class Clock:
    """A clock that sleeping moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        self.now += seconds


def test_requests_are_spread_over_time() -> None:
    """The requests of a tenth of a second may be sent at once, also after a long pause."""
    clock = Clock()
    pace = Pace(20, lambda: clock.now, clock.sleep)
    for _ in range(2):
        began = clock.now
        for _ in range(3):
            pace()
        assert clock.now == pytest.approx(began)
        for _ in range(100):
            pace()
        assert clock.now - began == pytest.approx(5.0)
        clock.now += 1000


def test_many_reads_that_are_sent_together_count_each() -> None:
    """The next request waits for all of them."""
    clock = Clock()
    pace = Pace(10, lambda: clock.now, clock.sleep)
    pace(51)
    pace()
    assert clock.now == pytest.approx(105.0)


def test_threads_share_the_bound() -> None:
    """None sends more because others wait."""
    waited: list[float] = []
    pace = Pace(1000, lambda: 0.0, waited.append)

    def send() -> None:
        for _ in range(100):
            pace()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waited) == pytest.approx((400 - 1) / 1000 - 0.1)


def test_a_request_to_a_broker_waits_before_it_is_sent() -> None:
    """The time of waiting is not part of the time that the broker has to answer."""
    server = Server([1, 2])
    asked: list[int] = []
    connection = BrokerConnection(
        server.endpoint, "c", 1.0, 0, before_request=lambda: asked.append(1)
    )
    connection._connect()
    for count in (1, 2):
        connection.exchange(3, 0, b"")
        assert len(asked) == count
    connection.close()
    server.listening.close()


@pytest.mark.parametrize("change", ["commit", "delete"])
def test_the_permission_to_change_offsets_is_asked_for_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Otherwise it may have ended when the request is sent."""
    done: list[str] = []
    connection = BrokerConnection(
        BrokerEndpoint(0, "sim", 1), "c", 1.0, 0, before_request=lambda: done.append("wait")
    )

    class Socket:
        def sendall(self, _frame: bytes) -> None:
            done.append("send")
            raise ConnectionResetError

        def close(self) -> None:
            pass

    socket: Any = Socket()
    connection._socket = socket
    connection._versions = {OFFSET_COMMIT: range(7), OFFSET_DELETE: range(1)}
    coordinators = GroupCoordinators("c", lambda: [], 0.1, 0.1)
    monkeypatch.setattr(coordinators, "_at_coordinator", lambda _group, act: act(connection))
    offsets = {TopicPartition("t", 0): StoredOffset(1)}
    with pytest.raises(BrokerError):
        getattr(coordinators, change)("g", offsets, lambda: done.append("ask"))
    assert done == ["wait", "ask", "send"]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--all"),
        ("offsets", "export", "--all"),
        ("offsets", "export", "--all", "--store", "kafka"),
        ("lock",),
        ("live", "prepare"),
        ("gate", "--all"),
    ],
)
def test_commands_keep_to_it(
    bench: Bench, group: str, topic: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Each command has one bound, and asks it before its requests. Commands that change groups get
    one group, because the other tests' groups are there too."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    bench.set_kafka(group, topic, {0: 3, 1: 4})
    made: list[Counting] = []

    class Counting(Pace):
        def __init__(self, per_second: float | None = None) -> None:
            super().__init__(per_second)
            self.per_second = per_second
            self.counted: list[int] = []
            made.append(self)

        def __call__(self, requests: int = 1) -> None:
            self.counted.append(requests)

    monkeypatch.setattr(commands, "Pace", Counting)
    chosen = () if "--all" in words else ("--group", group)
    servers = ("--zookeeper", bench.cluster.zookeeper)
    assert run([*words, *chosen, *servers, "--max-requests-per-second", "700"]) in (0, 3)
    (pace,) = made
    assert pace.per_second == 700
    assert len(pace.counted) >= 4
