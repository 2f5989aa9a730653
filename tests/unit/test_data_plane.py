"""A data plane's knowledge of partitions that are stopped and not yet released."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.runtime.counters import FetchCounts
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.data_plane import DataPlane, Stopping
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.gate import DeliveryGate

T0, T1 = (TopicPartition("t", n) for n in range(2))
FIRST = ConsumerThreadId("c", 0)


def plane() -> DataPlane:
    """One stream, and a manager that fetches nothing."""
    nothing: Any = SimpleNamespace(
        counts=FetchCounts(), start=lambda _: None, stop=lambda _: None, shutdown=lambda _: None
    )
    gate = DeliveryGate()
    stream = Reader(gate, queue_capacity=2, timeout_ms=0)
    return DataPlane(nothing, {"t": [stream]}, 5.0, lambda stopping, done: done(stopping()))


def test_stopped_partitions_count_until_they_are_released() -> None:
    """A listener that commits before the release finds the positions."""
    found = plane()
    found.start({T0: (FIRST, 5), T1: (FIRST, 7)})
    final: list[object] = []
    found.stop([T0], final.append)
    assert final == [{T0: 5}]
    assert found.positions() == {T0: 5, T1: 7}
    found.forget([T0])
    assert found.positions() == {T1: 7}


def test_a_partition_that_starts_again_has_its_new_position() -> None:
    """It is not the position at which it was stopped before."""
    found = plane()
    found.start({T0: (FIRST, 5)})
    found.stop([T0], lambda _: None)
    found.start({T0: (FIRST, 9)})
    assert found.positions() == {T0: 9}
    found.stop([T0], lambda _: None)
    found.start({T0: (FIRST, None)})
    assert found.positions() == {}


def test_dropped_partitions_count_no_longer() -> None:
    """They belong to other members."""
    found = plane()
    found.start({T0: (FIRST, 5), T1: (FIRST, 7)})
    assert found.drop([T0]) == {T0: 5}
    assert found.positions() == {T1: 7}


def test_the_age_of_the_lag_is_that_of_the_oldest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lag that is not asked for any more stays small while messages arrive.
    See Burrow #384, #747."""
    monkeypatch.setattr("zkconsumer.runtime.delivery.data_plane.monotonic", lambda: 500.0)
    found = plane()
    assert found.lag_age() == 0.0
    found.start({T0: (FIRST, 5), T1: (FIRST, 7)})
    assert found.lag_age() == 0.0
    first, second = (info for info, _ in found.partitions())
    first.answered_at = 499.0
    assert found.lag_age() == 1.0
    second.answered_at = 440.0
    assert found.lag_age() == 60.0


class Working:
    """A stream whose application finishes its message only while the stop waits for it."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait_released(self, infos: set[PartitionTopicInfo], deadline: float) -> bool:
        self.waited.append(deadline)
        for info in infos:
            info.consumed_offset = 8
        return True


def test_a_stop_waits_for_the_message_in_hand() -> None:
    """The final position includes the message that was unacknowledged when the stop began
    (DEVIATION-08)."""
    stream: Any = Working()
    stopping = Stopping([(PartitionTopicInfo("t", 0, 7), stream)], 5.0)
    assert stopping() == {T0: 8}
    assert len(stream.waited) == 1


def test_nothing_is_delivered_any_more_before_fetching_is_stopped() -> None:
    """Queued messages are not delivered while the stop waits for the fetching threads."""
    found = plane()
    revoked: list[bool] = []
    manager: Any = found._manager
    manager.stop = lambda infos: revoked.extend(info.revoked for info in infos)
    found.start({T0: (FIRST, 5), T1: (FIRST, 7)})
    found.stop([T0], lambda _: None)
    found.drop([T1])
    assert revoked == [True, True]
