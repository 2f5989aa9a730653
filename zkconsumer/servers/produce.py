"""Sends messages to real brokers, and counts those that they acknowledged. Runs in the caller's
thread.

The acknowledgements arrive on kafka-python's own thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from zkconsumer.errors import ClusterError

_FLUSH_SECONDS = 60.0
_REPORT_EVERY = 1000


class _Acknowledged:
    """The acknowledged messages. Written by kafka-python's thread, read after ``flush``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_partition: Counter[int] = Counter()
        self.failure: BaseException | None = None

    def stored(self, metadata: Any) -> None:
        with self.lock:
            self.by_partition[metadata.partition] += 1

    def failed(self, error: BaseException) -> None:
        with self.lock:
            self.failure = self.failure or error


def send(
    bootstrap: str,
    topic: str,
    messages: Iterable[tuple[bytes | None, bytes | None]],
    on_progress: Callable[[int], object] = lambda _: None,
    partition: int | None = None,
) -> Mapping[int, int]:
    """Send messages, given as key and value. Return the number of acknowledged messages by
    partition.

    Without ``partition``, the key's hash chooses one, as in the JVM's producer. ``on_progress`` is
    called repeatedly with the number of acknowledged messages. The topic must exist. Raises
    ClusterError if a message was not stored.
    """
    acknowledged = _Acknowledged()
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            linger_ms=20,
            batch_size=256 * 1024,
            max_block_ms=15_000,
        )
    except KafkaError as error:
        raise ClusterError(f"no broker answers at {bootstrap}: {error!r}") from error
    try:
        for number, (key, value) in enumerate(messages, 1):
            future = producer.send(topic, key=key, value=value, partition=partition)
            future.add_callback(acknowledged.stored)
            future.add_errback(acknowledged.failed)
            if number % _REPORT_EVERY == 0:
                if acknowledged.failure is not None:
                    break
                with acknowledged.lock:
                    on_progress(acknowledged.by_partition.total())
        producer.flush(_FLUSH_SECONDS)
    except KafkaError as error:
        raise ClusterError(
            f"topic {topic}: cannot send ({error}); check that the topic exists"
        ) from error
    finally:
        producer.close(timeout=5)
    with acknowledged.lock:
        if acknowledged.failure is not None:
            raise ClusterError(f"topic {topic}: a message was not stored: {acknowledged.failure!r}")
        on_progress(acknowledged.by_partition.total())
        return dict(acknowledged.by_partition)
