"""Compaction of a topic on real brokers."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from zkconsumer.servers import LocalCluster, wait_until

SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "segment.bytes": "10000",
}
"""The configuration of a topic that is compacted soon. Kafka 4 has no such small segments."""


def compact(
    cluster: LocalCluster, topic: str, count: Callable[[], int], written: int, patience: float
) -> None:
    """Wait until compaction has removed some of the records, then end it, so that the log stays the
    same. ``count``: returns how many there are."""
    wait_until(lambda: count() < written, patience, "records are compacted")
    resource = ConfigResource("topic", topic, set_config={"cleanup.policy": "delete"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        changes = admin.alter_configs([resource])  # Kafka 1.1 has no other way
    for done in changes.values():
        done.result(30)
    counts = [written]

    def settled() -> bool:
        counts.append(count())
        return counts[-3:].count(counts[-1]) == 3

    wait_until(settled, patience, "compaction has ended")
