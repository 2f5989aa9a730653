"""The metrics, declared as fields of ``Metrics``. The snapshot, the Prometheus exporter and the
reference page are generated from the fields. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from zkconsumer.broker.fetching.records import COMPILED
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.runtime.counters import FETCH_SECONDS, Histogram, HistogramValue


class Kind(Enum):
    """How a metric's value changes."""

    COUNTER = "counter"
    """Starts at 0 with the connector and never decreases."""
    GAUGE = "gauge"
    """The current value."""
    HISTOGRAM = "histogram"
    """A ``HistogramValue``: the number of values at or below each bound."""
    STATE = "state"
    """The name of a state of the member's machine."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The description of a metric."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    jvm: str | None
    """``domain:type=T,name=N`` of the matching MBean of the JVM consumer; ``None`` if there is
    none."""
    in_zookeeper: bool
    """Whether it exists only for groups in ZooKeeper. For other groups it stays 0."""

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

    Source of metrics with a JVM name: Scala 1.1.1 ``KafkaMetricsGroup.consumerMetricNameList``.
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
        "Bytes of the records that streams have begun to read, as sent by the broker (before "
        "decompression). (The JVM's consumer counts them when they are queued.)",
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
        "Moving average of `bytes`, with the same weights.",
        _TOPICS + "BytesPerSec",
    )
    max_lag: int = _metric(
        Kind.GAUGE,
        "messages",
        "The largest `lag`; 0 if no lag is known. (Kafka's MaxLag counts from the fetched offset.)",
        "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag",
    )
    lag: Mapping[TopicPartition, int] = _metric(
        Kind.GAUGE,
        "messages",
        "Messages from the consumed offset to the end of the log, for each owned partition, as "
        "of the broker's last answer. With `isolation.level=read_committed`: to the last stable "
        "offset. A partition is missing until both are known. While a stream's queue is full, the "
        "broker is not asked, so the lag does not grow: see `lag_age_seconds`.",
        "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
        dict,
    )
    lag_age_seconds: float = _metric(
        Kind.GAUGE,
        "seconds",
        "Age of the oldest answer from which a `lag` was computed. It grows while delivery pauses, "
        "while the application does not read, and while a broker does not answer. The lag may then "
        "be larger than shown.",
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
    faults: int = _metric(
        Kind.GAUGE,
        "faults",
        "Number of faults that have lasted for 30 s. `health` names them.",
    )
    rebalances: int = _metric(
        Kind.COUNTER,
        "rebalances",
        "Completed rebalances in which this member stopped or started partitions. (The JVM's "
        "consumer counts every rebalance, and each one stops all partitions.)",
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
        lambda: Histogram(FETCH_SECONDS).value,
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
        "Total time for which delivery was paused because the member could not be sure that its "
        "session was alive. Counted from the first session until shutdown.",
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
        "How often the connection to ZooKeeper dropped, whether or not the session was lost.",
        in_zookeeper=True,
    )
    zookeeper_connected: int = _metric(
        Kind.GAUGE, "0 or 1", "Whether there is a connection to ZooKeeper.", in_zookeeper=True
    )
    state: str = _metric(
        Kind.STATE,
        "name",
        "State of the member: see [states](states.md).",
        start=str,
    )

    mode: str = _metric(
        Kind.STATE,
        "name",
        "Mode of a migratable member's group, as the member applies it: see [how a live move "
        "works](../how-to/move-live.md#how-it-works). Empty before it is known, and for other "
        "members.",
        start=str,
    )
    mode_version: int = _metric(
        Kind.GAUGE,
        "version",
        "Version of that mode. It grows by 1 with each change.",
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
        "How long a move paused each partition that a migratable member owns: the time from the "
        "previous owner's last commit to this member's claim, by ZooKeeper's clock. After a crash "
        "it includes the time since the last commit. A partition is missing if ZooKeeper has no "
        "earlier commit of it, or if a plain consumer has committed a higher offset to Kafka.",
        start=dict,
        in_zookeeper=True,
    )

    def as_dict(self) -> dict[str, int | float | str]:
        """Return a flat mapping for JSON and logs, with keys such as ``lag.TOPIC-PARTITION``. A
        histogram has ``.count`` and ``.sum``."""
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
    """Return all metrics, in the order of the fields of ``Metrics``."""
    return [
        Declared(field.name, *field.metadata["declared"]) for field in dataclasses.fields(Metrics)
    ]
