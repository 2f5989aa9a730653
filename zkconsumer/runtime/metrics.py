"""The metrics: each declared once, as a field of ``Metrics``; and the instruments behind them.

The snapshot, the Prometheus exporter and the reference page are made from the fields. It has no
thread. Each instrument's docstring names the thread that writes it; any thread may read all of
them.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import expm1
from typing import Any

from zkconsumer.broker.records import COMPILED
from zkconsumer.core.common import commands
from zkconsumer.core.common.types import TopicPartition

_MINUTE = 60.0
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Kind(Enum):
    """How a metric's value changes."""

    COUNTER = "counter"
    """Starts at 0 with the connector and never goes down."""
    GAUGE = "gauge"
    """The current value."""
    HISTOGRAM = "histogram"
    """A ``HistogramValue``: how often values were at or below each bound."""
    STATE = "state"
    """The name of a state of the member's machine."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The counts of a histogram so far."""

    count: int
    sum: float
    buckets: Mapping[float, int]
    """Upper bound to the number of values at or below it, ascending; ``count`` has all."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The description of a metric."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    jvm: str | None
    """``domain:type=T,name=N`` of the matching MBean of the JVM consumer; otherwise the metric is
    ours."""
    in_zookeeper: bool
    """Only members of groups in ZooKeeper have it; on the brokers it stays 0."""

    @property
    def help(self) -> str:
        """The meaning in one line of plain text, with the unit."""
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", self.meaning).replace("`", "")
        return f"{text} Unit: {self.unit}."


def _metric(
    kind: Kind,
    unit: str,
    meaning: str,
    jvm: str | None = None,
    start: Callable[[], Any] = int,
    in_zookeeper: bool = False,
) -> Any:
    declared = (kind, unit, meaning, jvm, in_zookeeper)
    return field(default_factory=start, metadata={"declared": declared})


_CONNECTOR = "kafka.consumer:type=ZookeeperConsumerConnector,name="
_TOPICS = "kafka.consumer:type=ConsumerTopicMetrics,name="
_FETCHER = "kafka.server:type=FetcherStats,name="


@dataclass(frozen=True, slots=True)
class Metrics:
    """A connector's metrics at one moment. ``declared()`` returns the kind, unit and meaning of
    each.

    Source of those with a JVM name: Scala 1.1.1 ``KafkaMetricsGroup.consumerMetricNameList``.
    """

    messages: int = _metric(
        Kind.COUNTER,
        "messages",
        "Messages delivered to the application.",
        _TOPICS + "MessagesPerSec",
    )
    bytes: int = _metric(
        Kind.COUNTER,
        "bytes",
        "Record bytes, as the broker sent them, that streams began to read. "
        "(The JVM counts them when they are queued.)",
        _TOPICS + "BytesPerSec",
    )
    messages_per_second: float = _metric(
        Kind.GAUGE,
        "messages/s",
        "Moving average of `messages`, with the same weights as the JVM's one-minute rate.",
        _TOPICS + "MessagesPerSec",
    )
    bytes_per_second: float = _metric(
        Kind.GAUGE,
        "bytes/s",
        "Moving average of `bytes`, in the same way.",
        _TOPICS + "BytesPerSec",
    )
    max_lag: int = _metric(
        Kind.GAUGE,
        "messages",
        "The largest `lag`; 0 if no lag is known. (The JVM counts from the fetched offset.)",
        "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag",
    )
    lag: Mapping[TopicPartition, int] = _metric(
        Kind.GAUGE,
        "messages",
        "Distance of each owned partition from the consumed offset to the end of the log, as "
        "of the broker's last answer. A partition is missing until both are known. While a "
        "stream's queue is full, the broker is not asked, so the lag does not grow: see "
        "`lag_age_seconds`.",
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
        dict,
    )
    lag_age_seconds: float = _metric(
        Kind.GAUGE,
        "seconds",
        "Age of the oldest answer that a `lag` comes from. It grows while delivery pauses, while "
        "the application does not read, and while a broker does not answer; the lag may then be "
        "larger than it says.",
    )
    owned_partitions: int = _metric(
        Kind.GAUGE,
        "partitions",
        "Partitions that this member owns.",
        _CONNECTOR + "OwnedPartitionsCount",
    )
    blocked_partitions: int = _metric(
        Kind.GAUGE,
        "partitions",
        "Partitions that are assigned to this member but still owned by another one.",
        in_zookeeper=True,
    )
    rebalances: int = _metric(
        Kind.COUNTER,
        "rebalances",
        "Completed rebalances in which this member stopped or started partitions. (The JVM "
        "counts every rebalance, and each one stops all partitions.)",
        _CONNECTOR + "RebalanceRateAndTime",
    )
    rebalance_seconds: float = _metric(
        Kind.COUNTER,
        "seconds",
        "Total time of all `rebalances`, including pauses between attempts.",
        _CONNECTOR + "RebalanceRateAndTime",
    )
    last_rebalance_seconds: float = _metric(
        Kind.GAUGE, "seconds", "Time of the last rebalance; 0 before the first."
    )
    failed_attempts: int = _metric(
        Kind.COUNTER,
        "attempts",
        "Rebalance attempts that failed and were repeated.",
        in_zookeeper=True,
    )
    quarantined_registrations: int = _metric(
        Kind.GAUGE,
        "members",
        "Registrations in the group that are ignored: malformed ones, and with "
        "`zkconsumer.brokers=bootstrap` those of JVM members.",
        in_zookeeper=True,
    )
    lost_owners: int = _metric(
        Kind.COUNTER,
        "partitions",
        "Partitions whose owner znode was deleted, or taken by another member, while this "
        "member owned them.",
    )
    fenced_commits: int = _metric(
        Kind.COUNTER,
        "partitions",
        "Refused commits of partitions that another member owns now.",
        in_zookeeper=True,
    )
    foreign_commits: int = _metric(
        Kind.COUNTER,
        "partitions",
        "Offsets that another client wrote while this member owned the partition.",
        in_zookeeper=True,
    )
    zookeeper_commits: int = _metric(
        Kind.COUNTER,
        "offsets",
        "Offsets stored in ZooKeeper, one for each partition whose offset a commit changes.",
        _CONNECTOR + "ZooKeeperCommitsPerSec",
        in_zookeeper=True,
    )
    kafka_commits: int = _metric(
        Kind.COUNTER,
        "offsets",
        "Offsets stored in Kafka, one for each partition of each commit, changed or not.",
        _CONNECTOR + "KafkaCommitsPerSec",
    )
    zookeeper_operations: int = _metric(
        Kind.COUNTER,
        "operations",
        "Operations sent to ZooKeeper. A transaction, or a read of many znodes, counts as one. "
        "Pings are not counted.",
        in_zookeeper=True,
    )
    fetch_requests: int = _metric(
        Kind.COUNTER,
        "requests",
        "Fetch requests sent to brokers, including failed ones.",
        _FETCHER + "RequestsPerSec",
    )
    fetch_bytes: int = _metric(
        Kind.COUNTER,
        "bytes",
        "Record bytes in the answers to fetch requests.",
        _FETCHER + "BytesPerSec",
    )
    fetch_seconds: HistogramValue = _metric(  # noqa: RUF009 - not a value but a field
        Kind.HISTOGRAM,
        "seconds",
        "Time from a fetch request to its answer, including the broker's wait of up to "
        "`fetch.wait.max.ms`. Requests without an answer are not counted.",
        "kafka.consumer:type=FetchRequestAndResponseMetrics,name=FetchRequestRateAndTimeMs",
        lambda: Histogram(_SECONDS).value,
    )
    fetch_queue_chunks: int = _metric(
        Kind.GAUGE,
        "chunks",
        "Chunks that were fetched but not yet read, in all streams.",
        _CONNECTOR + "FetchQueueSize",
    )
    compiled_decoder: int = _metric(
        Kind.GAUGE,
        "0 or 1",
        "Whether records are decoded by the compiled module of a wheel. 0 means pure Python, "
        "which is slower.",
        start=lambda: int(COMPILED),
    )
    suspended_seconds: float = _metric(
        Kind.COUNTER,
        "seconds",
        "Time since the first session, until shutdown, in which nothing was delivered because "
        "the member could not be sure that its session was alive.",
    )
    sessions: int = _metric(
        Kind.COUNTER,
        "sessions",
        "ZooKeeper sessions that the member has had. Each one after the first means that a session "
        "was lost, and the member's partitions with it.",
        in_zookeeper=True,
    )
    disconnections: int = _metric(
        Kind.COUNTER,
        "disconnections",
        "Times that the connection to ZooKeeper dropped, with or without the loss of the session.",
        in_zookeeper=True,
    )
    zookeeper_connected: int = _metric(
        Kind.GAUGE, "0 or 1", "Whether there is a connection to ZooKeeper.", in_zookeeper=True
    )
    state: str = _metric(
        Kind.STATE,
        "name",
        "State of the member: see [states in ZooKeeper](states.md) and [on "
        "the coordinator](coordinator-states.md).",
        start=str,
    )

    mode: str = _metric(
        Kind.STATE,
        "name",
        "Mode of a migratable member's group, as the member applies it: see [a live "
        "move](../explanation/live-move.md). Empty before it is known, and for other members.",
        start=str,
    )
    mode_version: int = _metric(
        Kind.GAUGE,
        "version",
        "Version of the mode that a migratable member applies. It grows by 1 with each change.",
        in_zookeeper=True,
    )
    mode_acknowledged: int = _metric(
        Kind.GAUGE,
        "0 or 1",
        "Whether a migratable member has acknowledged the mode. The next step of the move "
        "waits for that.",
        in_zookeeper=True,
    )
    moving_partitions: int = _metric(
        Kind.GAUGE,
        "partitions",
        "Partitions that a migratable member is releasing because the coordinator has revoked "
        "them. They pause until their next owner starts.",
        in_zookeeper=True,
    )
    pause_seconds: Mapping[TopicPartition, float] = _metric(
        Kind.GAUGE,
        "seconds",
        "Time from the previous owner's last commit of a partition to this member's claim, by "
        "ZooKeeper's clock, for each partition that a migratable member owns. A member commits "
        "before it releases a partition, so this is how long a move paused it. After a crash it "
        "includes the time since the last commit. In mode `zookeeper` a commit without progress is "
        "not stored. A partition is missing if ZooKeeper has no earlier commit of it, or if a "
        "plain consumer has committed a higher offset to Kafka.",
        start=dict,
        in_zookeeper=True,
    )

    def as_dict(self) -> dict[str, int | float | str]:
        """Return a flat mapping for JSON and logs: ``lag.TOPIC-PARTITION``; for a histogram
        ``.count`` and ``.sum``."""
        flat: dict[str, int | float | str] = {}
        for metric in declared():
            value = getattr(self, metric.name)
            if isinstance(value, HistogramValue):
                flat[f"{metric.name}.count"] = value.count
                flat[f"{metric.name}.sum"] = value.sum
            elif isinstance(value, Mapping):
                flat.update({f"{metric.name}.{tp}": lag for tp, lag in value.items()})
            else:
                flat[metric.name] = value
        return flat


def declared() -> Sequence[Declared]:
    """All metrics, in the order of the fields of ``Metrics``."""
    return [
        Declared(found.name, *found.metadata["declared"]) for found in dataclasses.fields(Metrics)
    ]


class Meter:
    """A total and its one-minute rate. Any thread may call it.

    ``rate`` takes a sample. More samples make it more exact: counts between two samples are assumed
    to be evenly spread.

    Args:
        count: returns the total, which never goes down; may take a stream's lock.
        clock: seconds.
    """

    def __init__(
        self, count: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._lock = threading.RLock()
        self._total = count()
        self._at = clock()
        self._mean = 0.0
        self._weight = 0.0

    @property
    def total(self) -> int:
        """The current total."""
        return self._count()

    def rate(self) -> float:
        """Counts per second; in the first minute, the mean since the beginning."""
        with self._lock:
            now, total = self._clock(), self._count()
            passed = now - self._at
            if passed > 0:
                fresh = -expm1(-passed / _MINUTE)
                self._mean += ((total - self._total) / passed - self._mean) * fresh
                self._weight += (1 - self._weight) * fresh
                self._total, self._at = total, now
            return self._mean / self._weight if self._weight else 0.0


class Histogram:
    """Counts values by size. Any thread may call it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._lock = threading.RLock()
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count ``value``."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    @property
    def value(self) -> HistogramValue:
        """The count so far."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        buckets: dict[float, int] = {}
        so_far = 0
        for bound, count in zip(self._bounds, counts, strict=False):
            so_far += count
            buckets[bound] = so_far
        return HistogramValue(sum(counts), total, buckets)


class FetchCounts:
    """Counts of fetcher threads' requests and answers; they call ``sent`` and ``answered``."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.seconds = Histogram(_SECONDS)
        self._lock = threading.RLock()

    def sent(self) -> None:
        """A request will be sent next."""
        with self._lock:
            self.requests += 1

    def answered(self, seconds: float, size: int) -> None:
        """Its answer arrived after ``seconds``, with ``size`` record bytes."""
        self.seconds.add(seconds)
        with self._lock:
            self.bytes += size


class RebalanceCounts:
    """How many rebalances there were and how long they took; written by the loop's thread.

    A rebalance counts if partitions were stopped or started in it.

    Args:
        settled: states in which no rebalance is in progress.
        outside: states outside of the group, in which none is measured.
        before: states that do not begin one, but may occur within one.
        clock: seconds.
    """

    def __init__(
        self,
        settled: Collection[Enum],
        outside: Collection[Enum],
        before: Collection[Enum],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self.seconds = 0.0
        self.last_seconds = 0.0
        self._settled, self._outside, self._before = settled, outside, before
        self._clock = clock
        self._begun: float | None = None
        self._moved = False

    def stepped(self, state: Enum, following: Sequence[object]) -> None:
        """The machine is in ``state`` now; its last step gave these commands."""
        if any(isinstance(command, _MOVES) for command in following):
            self._moved = True
        if state in self._outside:
            self._begun = None
        elif state in self._settled:
            if self._begun is not None and self._moved:
                self.last_seconds = self._clock() - self._begun
                self.count += 1
                self.seconds += self.last_seconds
            self._begun = None
        elif self._begun is None and state not in self._before:
            self._begun = self._clock()
            self._moved = any(isinstance(command, _MOVES) for command in following)


_MOVES = commands.StopFetching | commands.StartFetching
