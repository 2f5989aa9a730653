"""Watches a legacy group's znodes, reads its streams, and sends messages that can be accounted for.

``GroupWatch`` and ``Producer`` each have their own thread, ``Reader`` one for each stream. Any
thread may call their methods. ``GroupWatch`` uses a ZooKeeper session that no member shares.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError

from zkconsumer.admin.offset_files import OffsetKey, parse
from zkconsumer.cli.main import run
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.servers.waiting import wait_until
from zkconsumer.zk.connection import Connection, Handler

_LOOK_SECONDS = 0.05
_SESSION_SECONDS = 10.0
_SEND_SECONDS = 0.05
"""How often a producer sends what is due, unless messages are rarer, or more than ten are due
earlier. Brokers and members need most of their CPU time for requests, not for messages."""


def exported(zookeeper: str, group: str) -> dict[OffsetKey, int]:
    """Return a group's offsets as ``zkconsumer offsets export`` writes them."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert run(["offsets", "export", "--group", group, "--zookeeper", zookeeper]) == 0
    return parse("the export", text.getvalue().encode())


class WatchClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A kazoo client that connects as a member does: through restarts of the server as well.

    Args:
        zookeeper: ``HOST:PORT[/CHROOT]``.
        logger: takes kazoo's messages; kazoo's own by default.
    """

    def __init__(self, zookeeper: str, logger: logging.Logger | None = None) -> None:
        super().__init__(
            zookeeper,
            timeout=_SESSION_SECONDS,
            connection_retry={"max_tries": -1, "max_delay": 0.3},
            handler=Handler(_logged),
            logger=logger,
        )
        self._limited = Connection(self, _SESSION_SECONDS)

    def stop(self) -> None:
        """End the session; takes 10 s at most."""
        self._limited.limit_stop(time.monotonic() + _SESSION_SECONDS)
        super().stop()


def _logged(_error: BaseException) -> None:
    """``Handler`` has logged it."""


class GroupWatch:
    """Reads a group's znodes on demand, and records every stored offset that becomes lower.

    Args:
        zookeeper: ``HOST:PORT[/CHROOT]``.
        group: the group id.
        topics: whose offsets are watched, about 20 times a second.
    """

    def __init__(self, zookeeper: str, group: str, topics: Sequence[str] = ()) -> None:
        self.paths = GroupPaths(group)
        self.lowered: list[str] = []
        """Each stored offset that became lower or disappeared, as text."""
        self._topics = tuple(topics)
        self._highest: dict[TopicPartition, int] = {}
        self._ended = threading.Event()
        self.client = WatchClient(zookeeper)
        """The watch's own client, for anything else that a test wants to read or change."""
        self.client.start(timeout=15.0)
        self._thread = threading.Thread(target=self._run, name="group-watch", daemon=True)
        if self._topics:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch and its session."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self.client.stop()
        self.client.close()

    def members(self) -> list[str]:
        """Consumer ids under ``ids``, sorted."""
        return sorted(self._children(self.paths.ids))

    def owners(self, topic: str) -> dict[int, str]:
        """Partition to the content of its owner znode."""
        return {
            tp: data.decode() for tp, data in self._texts(self.paths.owners_topic(topic)).items()
        }

    def offsets(self, topic: str) -> dict[int, int]:
        """Partition to its stored offset."""
        return {tp: int(data) for tp, data in self._texts(self.paths.offsets_topic(topic)).items()}

    def sessions(self) -> set[int]:
        """The sessions of all registrations and owner znodes."""
        paths = [f"{self.paths.ids}/{member}" for member in self.members()]
        for topic in self._children(self.paths.owners):
            path = self.paths.owners_topic(topic)
            paths += [f"{path}/{partition}" for partition in self._children(path)]
        stats = [self.client.exists(path) for path in paths]
        return {stat.ephemeralOwner for stat in stats if stat is not None}

    def wait_owners(
        self, topic: str, accept: Callable[[dict[int, str]], bool], timeout: float, what: str
    ) -> dict[int, str]:
        """Wait until ``accept`` accepts the owners of ``topic``; return them.

        Raises ClusterError with the last owners seen.
        """
        last: dict[int, str] = {}

        def right() -> bool:
            nonlocal last
            try:
                last = self.owners(topic)
            except KazooException:
                return False
            return accept(last)

        try:
            wait_until(right, timeout, what)
        except Exception as error:
            error.add_note(f"owners of {topic}: {last}")
            raise
        return last

    def _children(self, path: str) -> list[str]:
        try:
            return list(self.client.get_children(path))
        except NoNodeError:
            return []

    def _texts(self, path: str) -> dict[int, bytes]:
        names = self._children(path)
        asked = [(int(name), self.client.get_async(f"{path}/{name}")) for name in names]
        texts: dict[int, bytes] = {}
        for partition, answer in asked:
            try:
                texts[partition] = answer.get(timeout=10.0)[0]
            except NoNodeError:
                pass
        return dict(sorted(texts.items()))

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for topic in self._topics:
                try:
                    offsets = self.offsets(topic)
                except (KazooException, self.client.handler.timeout_exception):
                    continue
                except ValueError as error:
                    self.lowered.append(f"{topic}: {error}")
                    continue
                self._compare(topic, offsets)

    def _compare(self, topic: str, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            tp = TopicPartition(topic, partition)
            before = self._highest.get(tp, 0)
            if offset < before:
                self.lowered.append(f"{tp}: {before} -> {offset}")
            self._highest[tp] = offset


class Delivery(NamedTuple):
    """One message as a stream handed it out, at ``at`` (``time.monotonic`` seconds)."""

    at: float
    partition: int
    offset: int
    value: bytes | None
    topic: str


class Reader:
    """Iterates streams, one thread each, and records every message, until the streams end.

    Args:
        streams: to iterate; ``consumer.timeout.ms`` is ignored.
        handle: called with each message, before it is acknowledged.
    """

    def __init__(
        self, streams: Iterable[KafkaStream], handle: Callable[[Delivery], object] | None = None
    ) -> None:
        self.deliveries: list[Delivery] = []
        self.errors: list[BaseException] = []
        """The error that ended a stream, if it was not shut down."""
        self._handle = handle
        self._threads = [
            threading.Thread(target=self._read, args=(stream,), name="reader", daemon=True)
            for stream in streams
        ]
        for thread in self._threads:
            thread.start()

    def values(self) -> list[bytes | None]:
        """Values of all messages so far, in the order of delivery."""
        return [delivery.value for delivery in self.deliveries]

    def offsets(self, partition: int) -> list[int]:
        """Offsets of one partition's messages so far."""
        return [delivery.offset for delivery in self.deliveries if delivery.partition == partition]

    def wait(self, count: int, timeout: float = 20.0) -> list[Delivery]:
        """Wait until ``count`` messages were delivered; return all. Raises ClusterError."""
        wait_until(
            lambda: len(self.deliveries) >= count or self.errors,
            timeout,
            f"{count} messages are delivered",
        )
        if self.errors:
            raise self.errors[0]
        return list(self.deliveries)

    def join(self, timeout: float = 20.0) -> None:
        """Wait until all streams have ended. Raises a failed stream's error, or ClusterError."""
        wait_until(
            lambda: not any(thread.is_alive() for thread in self._threads),
            timeout,
            "the streams have ended",
        )
        if self.errors:
            raise self.errors[0]

    def _read(self, stream: KafkaStream) -> None:
        while True:
            try:
                for message in stream:
                    delivery = Delivery(
                        time.monotonic(),
                        message.partition,
                        message.offset,
                        message.value,
                        message.topic,
                    )
                    self.deliveries.append(delivery)
                    if self._handle is not None:
                        self._handle(delivery)
                return
            except ConsumerTimeoutError:
                continue
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)
                return


class Producer:
    """Sends numbered messages to a topic's partitions in rotation, and records the acknowledged
    ones.

    Args:
        bootstrap: ``HOST:PORT,...`` of the brokers.
        topic: must exist.
        partitions: numbers to send to.
        interval: seconds between messages; with 0, only ``send`` sends messages.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: Sequence[int],
        interval: float = 0.0,
    ) -> None:
        self.topic = topic
        self.acked: dict[tuple[int, int], bytes] = {}
        """Value by (partition, offset) of all that the broker acknowledged."""
        self._partitions = tuple(partitions)
        self._sent = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._interval = interval
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            linger_ms=0,
            retry_backoff_ms=50,
            metadata_max_age_ms=500,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
            delivery_timeout_ms=60_000,
            request_timeout_ms=5_000,
        )
        self._pending: list[Any] = []
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        if interval:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def send(self, count: int) -> list[bytes]:
        """Send ``count`` messages more and wait for the acknowledgements; return the values."""
        values = [self._send_one() for _ in range(count)]
        self.settle()
        return values

    def set_partitions(self, partitions: Sequence[int]) -> None:
        """Send to these partitions from now on. Raises ClusterError when they do not exist."""
        wait_until(
            lambda: set(partitions) <= (self._producer.partitions_for(self.topic) or set()),
            10.0,
            f"the producer knows all partitions of {self.topic}",
        )
        self._partitions = tuple(partitions)

    @property
    def sent(self) -> int:
        """How many messages were sent."""
        return self._sent

    def acknowledged(self, since: int) -> set[int]:
        """Return the partitions with an acknowledged message after the first ``since`` sent."""
        with self._lock:
            pending = [(json.loads(value), future) for value, future in self._pending]
        return {
            record["p"] for record, future in pending if record["n"] >= since and future.succeeded()
        }

    def settle(self) -> None:
        """Wait until every message that was sent has been acknowledged or abandoned."""
        with self._lock:
            pending, self._pending = self._pending, []
        for value, future in pending:
            try:
                stored = future.get(timeout=70.0)
            except KafkaError:
                continue
            self.acked[stored.partition, stored.offset] = value

    def stop(self) -> dict[tuple[int, int], bytes]:
        """Send no more messages; return everything acknowledged."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(30.0)
        self.settle()
        return self.acked

    def close(self) -> None:
        """Stop, and close the connections."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(30.0)
        self._producer.close(timeout=5.0)

    def _send_one(self) -> bytes:
        partitions = self._partitions
        partition = partitions[self._sent % len(partitions)]
        value = json.dumps({"n": self._sent, "p": partition}).encode()
        self._sent += 1
        future = self._producer.send(self.topic, value, partition=partition)
        with self._lock:
            self._pending.append((value, future))
        return value

    def _run(self) -> None:
        begun, count = time.monotonic(), 0
        pause = max(self._interval, min(10 * self._interval, _SEND_SECONDS))
        while not self._ended.wait(pause):
            due = int((time.monotonic() - begun) / self._interval)
            while count < due and not self._ended.is_set():
                count += 1
                with contextlib.suppress(KafkaError):
                    self._send_one()


def places(readers: Iterable[Reader]) -> list[tuple[int, int]]:
    """Return partition and offset of all delivered messages."""
    return [(one.partition, one.offset) for reader in readers for one in list(reader.deliveries)]


def delivered_since(readers: Iterable[Reader], at: float) -> set[int]:
    """Return the partitions from which a message was delivered after this monotonic time."""
    return {one.partition for reader in readers for one in list(reader.deliveries) if one.at > at}


def all_delivered(producer: Producer, readers: Sequence[Reader], timeout: float = 30.0) -> None:
    """Stop a producer, and wait until its messages are delivered."""
    sent = set(producer.stop())
    wait_until(lambda: sent <= set(places(readers)), timeout, "everything is delivered")


def delivered_once(producer: Producer, readers: Sequence[Reader], timeout: float = 20.0) -> None:
    """Stop a producer, and wait until its messages are delivered. None was delivered twice."""
    all_delivered(producer, readers, timeout)
    assert len(places(readers)) == len(set(places(readers))), "delivered twice"
