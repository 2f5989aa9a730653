"""Run one reader in its own process: ``python reader.py ORDER``, where ORDER is JSON.

``read`` counts messages from the first to the last one wanted. ``latency`` measures the time from
sending to delivery for some seconds, after two seconds. ``idle`` measures the CPU time of a member
that has nothing to read, after three seconds. The process prints one JSON object with nanoseconds
of the monotonic clock, CPU seconds and the kilobytes of memory in use at the end. ``Meter.java``
does the same.

It runs as a file, so the environment decides which build of the library is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

AT_ONCE = 1000
WARM_S = 2.0
REST_S = 3.0


class Meter:
    """Counts messages, on one thread for each stream."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.latency = order["mode"] == "latency"
        self.wanted: int = order["count"]
        self.messages = self.bytes = 0
        self.first = self.last = 0
        self.cpu = 0.0
        self.delays: list[int] = []
        self.over = threading.Event()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Record the time of the first message."""
        with self._lock:
            if not self.first:
                self.first = time.monotonic_ns()
                self.cpu = -time.process_time()

    def end(self) -> None:
        """Record the time of the last message."""
        with self._lock:
            if not self.last:
                self.last = time.monotonic_ns()
                self.cpu += time.process_time()
        self.over.set()

    def add(self, count: int, size: int) -> bool:
        """Count messages. Return true if there are enough."""
        with self._lock:
            self.messages += count
            self.bytes += size
            enough = self.messages >= self.wanted
        if enough:
            self.end()
        return enough

    def delay(self, values: list[bytes]) -> bool:
        """Record the age of values. Return true if enough time has passed."""
        now = time.time_ns()
        running = (time.monotonic_ns() - self.first) / 1e9
        self.messages += len(values)
        if running > WARM_S:
            self.delays += [now - int.from_bytes(value[:8], "big") for value in values]
        if running > WARM_S + self.wanted:
            self.end()
            return True
        return False

    def report(self) -> dict[str, Any]:
        """The object to print."""
        delays = sorted(self.delays) or [0]
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "first": self.first,
            "last": self.last,
            "cpu": self.cpu,
            "rss": resident(),
            "p50": delays[int(0.50 * (len(delays) - 1))],
            "p99": delays[int(0.99 * (len(delays) - 1))],
        }


def resident() -> int:
    """Kilobytes of memory in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def singly(meter: Meter, messages: Any, key: str = "key", value: str = "value") -> None:
    """Read an iterator of messages that have the attributes ``key`` and ``value``."""
    count = size = 0
    latency = meter.latency
    for message in messages:
        if not count and not meter.first:
            meter.begin()
        if latency:
            if meter.delay([message.value]):
                return
            continue
        size += len(message.key or b"") + len(message.value or b"")
        count += 1
        if count == AT_ONCE:
            if meter.add(count, size):
                return
            count = size = 0


def in_lists(meter: Meter, lists: Iterator[Any]) -> None:
    """Read an iterator of lists of messages that have the attributes ``key`` and ``value``."""
    for messages in lists:
        if not messages:
            continue
        if not meter.first:
            meter.begin()
        if meter.latency:
            if meter.delay([message.value for message in messages]):
                return
            continue
        size = 0
        for message in messages:
            size += len(message.key or b"") + len(message.value or b"")
        if meter.add(len(messages), size):
            return


def in_columns(meter: Meter, stream: Any) -> None:
    """Read Arrow columns."""
    from pyarrow import compute

    for columns in stream.arrow_batches():
        if not meter.first:
            meter.begin()
        if meter.latency:
            if meter.delay(columns["value"].to_pylist()):
                return
            continue
        sizes = [compute.sum(compute.binary_length(columns[name])) for name in ("key", "value")]
        if meter.add(columns.num_rows, sum(size.as_py() or 0 for size in sizes)):
            return


def threads(meter: Meter, run: Callable[[Any], None], sources: list[Any]) -> None:
    """Run each function on a thread, and return when there are enough messages."""
    for source in sources:
        threading.Thread(target=run, args=(source,), daemon=True).start()
    meter.over.wait()


def ours(meter: Meter, order: dict[str, Any]) -> None:
    """A zkconsumer member that reads single messages, lists or columns, in ZooKeeper or on the
    coordinator."""
    begin = {"read": "smallest"}.get(order["mode"], "largest")
    config: dict[str, Any] = {"group.id": order["group"]}
    if order["coordinator"]:
        from zkconsumer import CoordinatorConsumerConnector as Connector

        begin = {"smallest": "earliest", "largest": "latest"}[begin]
        config |= {"bootstrap.servers": order["bootstrap"], "enable.auto.commit": "false"}
    else:
        from zkconsumer import ZookeeperConsumerConnector as Connector  # type: ignore[assignment]

        config |= {"zookeeper.connect": order["zookeeper"], "auto.commit.enable": "false"}
    connector = Connector(config | {"auto.offset.reset": begin})
    topic, how = order["topic"], order["how"]
    streams = connector.create_message_streams({topic: order["streams"]})[topic]
    if order["mode"] == "idle":
        rest(meter)
        return

    def run(stream: Any) -> None:
        if how == "arrow":
            in_columns(meter, stream)
        elif how == "batches":
            in_lists(meter, stream.batches(1000))
        else:
            singly(meter, stream)

    threads(meter, run, list(streams))


def rest(meter: Meter) -> None:
    """Measure the cost of an idle member over a fixed time."""
    time.sleep(REST_S)
    meter.begin()
    time.sleep(meter.wanted)
    meter.end()


#: What users of librdkafka change for speed: with its defaults a reader of small messages waits a
#: second whenever 100,000 messages are queued.
LIBRDKAFKA_TUNED = {
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 0,
    "fetch.error.backoff.ms": 0,
}


def confluent(meter: Meter, order: dict[str, Any]) -> None:
    """confluent-kafka's ``consume()``, with its defaults or tuned."""
    from confluent_kafka import Consumer

    def consumer() -> Any:
        begin = "earliest" if order["mode"] == "read" else "latest"
        config = {"bootstrap.servers": order["bootstrap"], "group.id": order["group"]}
        if order["how"] == "tuned":
            config |= LIBRDKAFKA_TUNED
        made = Consumer(config | {"enable.auto.commit": False, "auto.offset.reset": begin})
        made.subscribe([order["topic"]])
        return made

    def run(made: Any) -> None:
        while True:
            found = made.consume(num_messages=1 if meter.latency else 1000, timeout=1.0)
            if not found:
                continue
            if not meter.first:
                meter.begin()
            if meter.latency:
                if meter.delay([message.value() for message in found]):
                    return
                continue
            size = 0
            for message in found:
                size += len(message.key() or b"") + len(message.value() or b"")
            if meter.add(len(found), size):
                return

    threads(meter, run, [consumer() for _ in range(order["streams"])])


def kafka_python(meter: Meter, order: dict[str, Any]) -> None:
    """kafka-python's ``poll()``."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        order["topic"],
        bootstrap_servers=order["bootstrap"],
        group_id=order["group"],
        enable_auto_commit=False,
        auto_offset_reset="earliest" if order["mode"] == "read" else "latest",
    )
    while not meter.over.is_set():
        in_lists(meter, iter(list(consumer.poll(1000).values())))


def aiokafka(meter: Meter, order: dict[str, Any]) -> None:
    """aiokafka's ``getmany()``."""
    import asyncio

    from aiokafka import AIOKafkaConsumer

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            order["topic"],
            bootstrap_servers=order["bootstrap"],
            group_id=order["group"],
            enable_auto_commit=False,
            auto_offset_reset="earliest" if order["mode"] == "read" else "latest",
        )
        await consumer.start()
        while not meter.over.is_set():
            found = await consumer.getmany(timeout_ms=1000)
            in_lists(meter, iter(list(found.values())))

    asyncio.run(run())


def floor(meter: Meter, order: dict[str, Any]) -> None:
    """The fastest possible reader: it fetches, verifies checksums and counts, but decodes
    nothing."""
    from struct import unpack_from

    from crc32c import crc32c

    from zkconsumer.broker.connection import BrokerConnection
    from zkconsumer.broker.fetching.fetch import BrokerFetcher
    from zkconsumer.broker.types import Want
    from zkconsumer.core.common.types import BrokerEndpoint

    host, _, port = order["bootstrap"].partition(":")
    fetcher = BrokerFetcher(BrokerConnection(BrokerEndpoint(0, host, int(port)), "floor", 30, -1))
    offsets = dict.fromkeys(range(order["partitions"]), 0)
    while not meter.over.is_set():
        wanted = [Want(order["topic"], number, at, 1 << 20) for number, at in offsets.items()]
        for got in fetcher.fetch(wanted, 500, 1, 50 << 20):
            if got.error is not None:
                raise got.error
            data, pos, count = got.data, 0, 0
            if data and not meter.first:
                meter.begin()
            while pos + 61 <= len(data) and (
                stop := pos + 12 + unpack_from(">i", data, pos + 8)[0]
            ) <= len(data):
                if (
                    crc32c(memoryview(data)[pos + 21 : stop])
                    != unpack_from(">I", data, pos + 17)[0]
                ):
                    raise ValueError("a wrong checksum")
                offsets[got.partition] = (
                    unpack_from(">q", data, pos)[0] + unpack_from(">i", data, pos + 23)[0] + 1
                )
                count += unpack_from(">i", data, pos + 57)[0]
                pos = stop
            offsets[got.partition] = offsets.pop(got.partition)  # the others are first next time
            if count and meter.add(count, pos):
                return


READERS = {
    "ours": ours,
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "floor": floor,
}


def main() -> None:
    """Read, print, and exit without leaving the group, which is not part of the measurement."""
    order = json.loads(sys.argv[1])
    meter = Meter(order)
    READERS[order["reader"]](meter, order)
    report = meter.report()
    if order["reader"] == "ours":
        from zkconsumer.broker.fetching.records import COMPILED

        report["compiled"] = COMPILED
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
