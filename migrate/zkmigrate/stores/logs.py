"""Reads which topics exist, when they were created, and the offset ranges of their logs.

Any thread; only one at a time sends requests, and the others wait for the answer.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from zkconsumer.admin.cluster_zk import ClusterZk
from zkconsumer.admin.reads import json_object
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.list_offsets import EARLIEST, LATEST, list_offsets
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.core.zookeeper.znodes import decode_topic, is_legal_topic, topic_path
from zkconsumer.errors import BrokerError, ZnodeFormatError
from zkmigrate.model import Log, LogRange, TopicState, exists
from zkmigrate.stores.connections import Connections
from zkmigrate.stores.pace import Pace

_BATCH: Final = 2000
_REMEMBERED: Final = 200_000
"""Number of partitions whose log ranges are cached for later groups."""
_FRESH: Final = 10.0
"""Seconds for which log ranges are cached."""
_PAUSE: Final = 0.2

Ranges = Mapping[TopicPartition, LogRange]


class Logs:
    """Reads topics and the ranges of their logs, and caches them for many groups.

    Args:
        zk: an open session. If the cluster no longer uses ZooKeeper, its topics are compared with
            ZooKeeper's records of them.
        brokers: returns the registered brokers.
        timeout: seconds for connecting and for each answer.
    """

    def __init__(
        self,
        zk: ClusterZk,
        brokers: Callable[[], Iterable[BrokerEndpoint]],
        timeout: float,
        security: KafkaSecurity | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._zk = zk
        self._connections = Connections(brokers, timeout, security, pace)
        self.close = self._connections.close
        self.unreadable: dict[str, str] = {}
        """Topics whose znode is unusable, and why."""
        self._topics: dict[str, TopicState | None] = {}
        self._ranges: dict[str, dict[TopicPartition, LogRange]] = {}
        self._partitions = 0
        self._since = 0.0
        self._lock = threading.Lock()

    def covering(
        self, partitions: Collection[TopicPartition], timeout: float, again: bool = False
    ) -> tuple[dict[str, TopicState], Ranges]:
        """Return the topics and log ranges of these partitions, like ``of``.

        Leaders that do not answer are asked again until ``timeout`` seconds have passed. ``again``:
        do not use cached topics and ranges.
        """
        deadline = time.monotonic() + timeout
        names = {tp.topic for tp in partitions}
        if again:
            with self._lock:
                before = {name: self._topics.get(name) for name in names}
                self._describe(names)
                changed = {name for name in names if self._topics[name] != before[name]}
                self._learn(sorted(changed))
                self._read_again([tp for tp in partitions if tp.topic not in changed])
        while True:
            topics, ranges = self.of(names)
            silent = {tp.topic for tp in partitions if tp.topic in topics and tp not in ranges}
            if not silent or time.monotonic() >= deadline:
                return topics, ranges
            time.sleep(_PAUSE)
            with self._lock:
                for name in silent:
                    self._topics.pop(name, None)

    def fresh(self, partitions: Collection[TopicPartition]) -> Ranges:
        """Return the log ranges of these partitions, read after the start of this call.

        Partitions that do not exist, or whose leader does not answer, are left out.
        """
        with self._lock:
            names = {tp.topic for tp in partitions}
            self._learn([name for name in names if name not in self._topics])
            return self._read_again(partitions)

    def past_ends(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Read log ranges again if one of these offsets is above the cached end of its log.

        Topics and log ends are cached for some seconds. An offset that was committed since then may
        be above the cached end, or belong to a new topic or partition. So call this before
        comparing offsets with log ends.
        """
        with self._lock:
            missing: set[str] = set()
            behind: set[TopicPartition] = set()
            for tp, offset in offsets:
                if not exists(self._topics, tp):
                    missing.add(tp.topic)
                elif (log := self._ranges[tp.topic].get(tp)) is not None and offset > log.latest:
                    behind.add(tp)
            self._learn(sorted(missing))
            self._read_again([tp for tp in behind if tp.topic not in missing])

    def of(self, topics: Collection[str]) -> tuple[dict[str, TopicState], Ranges]:
        """Return the topics that exist and their log ranges, at most some seconds old.

        Partitions whose leader does not answer have no range.
        """
        with self._lock:
            if self._partitions > _REMEMBERED or time.monotonic() - self._since > _FRESH:
                self._topics.clear()
                self._ranges.clear()
                self._partitions = 0
                self._since = time.monotonic()
            self._learn([topic for topic in topics if topic not in self._topics])
            states = {name: state for name in topics if (state := self._topics[name]) is not None}
            ranges: dict[TopicPartition, LogRange] = {}
            for name in states:
                ranges.update(self._ranges[name])
            return states, ranges

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """Return the topics among ``names`` that exist, without reading their logs."""
        with self._lock:
            self._describe(names)
            found = {name: state for name in names if (state := self._topics[name]) is not None}
            for name in names:
                if name not in self._ranges:  # ``of`` reads them
                    del self._topics[name]
            return found

    def _learn(self, topics: Sequence[str]) -> None:
        """Describe topics, and read the ranges of all of their partitions."""
        if not topics:
            return
        wanted = self._describe(topics)
        self._ranges.update((topic, {}) for topic in topics)
        self._partitions += len(wanted)
        self._ask(wanted)

    def _read_again(self, partitions: Collection[TopicPartition]) -> Ranges:
        """Read the ranges of these partitions, and discard older ranges."""
        wanted = [tp for tp in sorted(partitions) if exists(self._topics, tp)]
        for tp in wanted:
            self._ranges[tp.topic].pop(tp, None)
        return self._ask(wanted)

    def _describe(self, topics: Collection[str]) -> list[TopicPartition]:
        """Read which of these topics exist. Return their partitions."""
        self._topics.update(dict.fromkeys(topics))
        legal = sorted(filter(is_legal_topic, topics))
        paths = list(map(topic_path, legal))
        wanted: list[TopicPartition] = []
        nodes = self._zk.run(read_many(paths))
        stored: Sequence[Node | None] = nodes
        if self._zk.foreign:
            stored = [None] * len(nodes)  # records of other topics
        elif not self._zk.live:
            stored = self._zk.run_in_zookeeper(read_many(paths))
        for topic, path, node, old in zip(legal, paths, nodes, stored, strict=True):
            self.unreadable.pop(topic, None)
            if node is None:
                continue
            try:
                numbers = decode_topic(path, node.data)
            except ZnodeFormatError as fault:
                self.unreadable[topic] = str(fault)
                continue  # as in the JVM: a topic that cannot be read has no partitions
            self._topics[topic] = (
                TopicState(node.stat.czxid, numbers)
                if self._zk.live
                else _compared(path, node, old, numbers)
            )
            wanted += [TopicPartition(topic, number) for number in numbers]
        return wanted

    def at(
        self, partitions: Collection[TopicPartition], at_ms: int
    ) -> Mapping[TopicPartition, int | BrokerError]:
        """Return the offset of the first message at or after a time in each partition; ``NONE`` if
        there is none. Raises BrokerError: brokers before 0.10.1 cannot look up a time."""
        offsets: dict[TopicPartition, int | BrokerError] = {}
        with self._lock:
            for connection, batch in self._by_leader(sorted(partitions)):
                offsets |= list_offsets(connection, batch, at_ms)
        missing = BrokerError("the partition has no leader")
        return {tp: offsets.get(tp, missing) for tp in partitions}

    def _ask(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Ask the leaders, and cache and return the answers. Unknown ranges are left out."""
        ranges: dict[TopicPartition, LogRange] = {}
        if not partitions:
            return ranges
        silent: set[BrokerConnection] = set()
        for connection, batch in self._by_leader(partitions):
            if connection in silent:
                continue
            try:
                first = list_offsets(connection, batch, EARLIEST)
                last = list_offsets(connection, batch, LATEST)
            except BrokerError:
                silent.add(connection)
                continue
            for tp in batch:
                low, high = first[tp], last[tp]
                if isinstance(low, int) and isinstance(high, int):
                    ranges[tp] = self._ranges[tp.topic][tp] = LogRange(low, high)
        return ranges

    def _by_leader(
        self, partitions: Sequence[TopicPartition]
    ) -> Iterator[tuple[BrokerConnection, list[TopicPartition]]]:
        """Yield batches of partitions with the connection to their leader, if any."""
        leaders: Mapping[TopicPartition, BrokerConnection] = {}
        with suppress(BrokerError):
            leaders = self._connections.leaders({tp.topic for tp in partitions})
        led: defaultdict[BrokerConnection, list[TopicPartition]] = defaultdict(list)
        for tp in partitions:
            if tp in leaders:
                led[leaders[tp]].append(tp)
        for connection, some in led.items():
            for start in range(0, len(some), _BATCH):
                yield connection, some[start : start + _BATCH]


def _compared(path: str, now: Node, stored: Node | None, numbers: tuple[int, ...]) -> TopicState:
    """Return the state of a brokers' topic, compared with ZooKeeper's record of it."""
    is_now = _topic_id(path, now)
    was = "" if stored is None else _topic_id(path, stored)
    if stored is not None and was and was == is_now:
        return TopicState(stored.stat.czxid, numbers)  # the same topic in both, so plans stay valid
    made = int(hashlib.sha256(is_now.encode()).hexdigest()[:14], 16)
    return TopicState(made, numbers, Log.OTHER if was and is_now else Log.UNPROVEN)


def _topic_id(path: str, node: Node) -> str:
    """Return the id in a topic's znode; empty if there is none (Kafka before 2.8)."""
    try:
        topic_id = json_object(path, node.data).get("topic_id", "")
    except ZnodeFormatError:
        return ""
    return topic_id if isinstance(topic_id, str) else ""
