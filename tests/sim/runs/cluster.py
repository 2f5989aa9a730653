"""The brokers of a simulated group: topics, records, and their faults.

All kinds of groups use it. Records are appended until ``stop``. Runs inside kernel events.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.sim.runs.broker_log import SimBrokers
from tests.sim.runs.fetching import SimConfig
from tests.sim.runs.records import Records
from tests.sim.runs.whole import WholePlane
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.sim.kernel import Kernel

if TYPE_CHECKING:
    from tests.sim.runs.judged import Judged

_PRODUCE: Final = 0.25
"""Seconds between two batches of records, on average."""
_TIMEOUT: Final = 2.0
"""``socket.timeout.ms`` in seconds."""


class SimCluster:
    """Brokers with topics. ``changed`` is called when a broker registers or its registration ends.

    Args:
        kernel: time and chance.
        rng: draws how this cluster is made up.
        brokers: how many.
        old: whether brokers before 0.10.1 are drawn too.
    """

    def __init__(self, kernel: Kernel, rng: random.Random, brokers: int, old: bool) -> None:
        self.kernel = kernel
        self.topics: dict[str, int] = {}
        """Number of partitions of each topic that exists. Written by ``add_partitions`` and
        ``delete_topic``."""
        self.partitions: tuple[TopicPartition, ...] = ()
        """The partitions that exist."""
        self.old = old and rng.random() < 0.2
        self.brokers = SimBrokers(kernel, range(brokers), (), self.old, _TIMEOUT)
        self.records = Records(self.brokers.logs)
        self.reset = rng.choice(["smallest", "smallest", "smallest", "largest"])
        """``auto.offset.reset``."""
        self.capacity = rng.choice([1, 2, 4])
        """``queued.max.message.chunks``."""
        self.changed: Callable[[int, BrokerEndpoint | None], object] = lambda number, at: None
        self._max_bytes = 1500 if self.old else rng.choice([300, 600, 20_000])
        self._fetchers = rng.choice([1, 1, 2])
        self._backoff_ms = rng.choice([50, 200])
        self._rng = rng
        self._writing = True
        kernel.schedule(_PRODUCE, self._produce)

    def plane(self, member: Judged[Any]) -> WholePlane:
        """The data plane that a member delivers with."""
        return WholePlane(member, self, member.subscription)

    def config(self, profile: str) -> SimConfig:
        """The keys of a member's configuration that fetching uses."""
        return SimConfig(
            fetch_message_max_bytes=self._max_bytes,
            fetch_max_bytes=50_000_000 if self._max_bytes > 300 else 600,
            num_consumer_fetchers=self._fetchers,
            refresh_leader_backoff_ms=self._backoff_ms,
            auto_offset_reset=self.reset,
            profile=profile,
            fetch_wait_max_ms=1500,
            socket_timeout_ms=round(_TIMEOUT * 1000),
        )

    def add_partitions(self, topic: str, count: int) -> None:
        """Create a topic, or give it more partitions. A topic that was deleted before keeps its
        records: the effect of a deletion on members' offsets is not simulated."""
        self.topics[topic] = count
        for number in range(count):
            self.brokers.add(TopicPartition(topic, number))
        self._list_partitions()

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic; false if it does not exist."""
        count = self.topics.pop(topic, 0)
        self._list_partitions()
        for number in range(count):
            self.brokers.lead(TopicPartition(topic, number), None)
        return count > 0

    def _list_partitions(self) -> None:
        self.partitions = tuple(
            TopicPartition(t, n) for t, count in self.topics.items() for n in range(count)
        )

    @property
    def endpoints(self) -> tuple[BrokerEndpoint, ...]:
        """The brokers that run."""
        return tuple(self.brokers.endpoints[number] for number in sorted(self.brokers.up))

    def _produce(self) -> None:
        if not self._writing:
            return
        rng = self.kernel.rng
        self.kernel.schedule(2 * _PRODUCE * rng.random(), self._produce)
        if self.topics:
            log = self.brokers.logs[rng.choice(self.partitions)]
            log.append(rng.choice((1, 1, 2, 5)), rng.choice((12, 12, 60)))

    # -- troubles

    def troubles(self) -> list[tuple[int, str, Callable[[], object]]]:
        """Weight, name and action of each fault. An action that is not possible now does
        nothing."""
        return [
            (6, "leader moves", self._move_leader),
            (3, "broker stops", self._stop_broker),
            (2, "unclean election", self._truncate),
            (2, "retention", self._delete),
            (2, "compaction", self._compact),
            (3, "slow brokers", self._slow_down),
        ]

    def _some(self) -> TopicPartition | None:
        return self._rng.choice(self.partitions) if self.topics else None

    def _move_leader(self) -> None:
        tp = self._some()
        if tp is not None:
            up = sorted(self.brokers.up)
            self.brokers.lead(tp, self._rng.choice([None, *up, *up]))
            self.kernel.schedule(self._rng.random(), self._elect)

    def _elect(self) -> None:
        """Give a leader to each partition that has none, if a broker runs."""
        for tp in self.partitions:
            if self.brokers.leaders[tp] is None and self.brokers.up:
                self.brokers.lead(tp, self._rng.choice(sorted(self.brokers.up)))

    def _stop_broker(self) -> None:
        self.stop_broker(self._rng.choice(list(self.brokers.endpoints)), 2 * self._rng.random())

    def stop_broker(self, number: int, seconds: float) -> None:
        """A broker stops; it is back after ``seconds``, perhaps on another port."""
        if number not in self.brokers.up:
            return
        self.brokers.stop(number)
        self.kernel.schedule(0.3 * self._rng.random(), lambda: self._register(number))
        self.kernel.schedule(0.5 * self._rng.random(), self._elect)
        self.kernel.schedule(seconds, lambda: self._start_broker(number))

    def _start_broker(self, number: int) -> None:
        if number not in self.brokers.up:
            self.brokers.start(number, elsewhere=self._rng.random() < 0.3)
            self._register(number)
            self._elect()

    def _register(self, number: int) -> None:
        """The broker's registration follows whether it runs."""
        up = number in self.brokers.up
        self.changed(number, self.brokers.endpoints[number] if up else None)

    def _truncate(self) -> None:
        """A replica that lacks the latest records becomes leader: they are lost."""
        tp = self._some()
        if tp is not None and self.brokers.up:
            log = self.brokers.logs[tp]
            self.records.excuse(tp, log.end)
            log.truncate(max(log.start, log.end - self._rng.randrange(1, 15)))
            self.brokers.lead(tp, self._rng.choice(sorted(self.brokers.up)))

    def _delete(self) -> None:
        tp = self._some()
        if tp is not None:
            log = self.brokers.logs[tp]
            log.delete_before(self._rng.randint(log.start, log.end))

    def _compact(self) -> None:
        tp = self._some()
        if tp is not None:
            self.brokers.logs[tp].compact(self.kernel.rng)

    def _slow_down(self) -> None:
        """Answers are lost or late for a while."""
        self.brokers.troubled = True
        self.kernel.schedule(2 * self._rng.random(), self._hurry)

    def _hurry(self) -> None:
        self.brokers.troubled = False

    def calm_down(self) -> None:
        """All brokers run. Leaders move once more, without any broker starting or stopping; then a
        last record is written to each partition."""
        self._hurry()
        for number in self.brokers.endpoints:
            self._start_broker(number)
        self._elect()
        self.kernel.schedule(2.0, self._move_all)
        self.kernel.schedule(3.0, self._write_last)

    def _move_all(self) -> None:
        for tp in self.partitions:
            self.brokers.lead(tp, self._rng.choice(sorted(self.brokers.up)))

    def _write_last(self) -> None:
        self._writing = False
        for tp in self.partitions:
            self.brokers.logs[tp].append(1, 12)


__all__ = ["SimCluster"]
