"""Reads both stores: the groups' znodes, their offsets in Kafka, their topics' logs.

``Stores`` holds the sessions with both and is used from one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

from zkconsumer.admin.reads import children
from zkconsumer.admin.snapshot import (
    GroupSnapshot,
    interpret,
    list_groups,
    partition_number,
    read_group,
)
from zkconsumer.admin.topics import read_brokers
from zkconsumer.admin.verify import Kind as Finding
from zkconsumer.admin.verify import verify
from zkconsumer.broker import offset_times
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.group_coordinators import GroupCoordinators
from zkconsumer.broker.list_offsets import EARLIEST, LATEST, list_offsets
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.core.ops import Node
from zkconsumer.core.scripts.common import Script, read_many
from zkconsumer.core.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.znodes import (
    BROKER_IDS,
    GroupPaths,
    decode_offset,
    decode_topic,
    is_legal_topic,
    topic_path,
)
from zkconsumer.errors import BrokerError, UnsupportedBrokerError, ZnodeFormatError
from zkconsumer.zk.blocking import BlockingZk
from zkmigrate import tombstone
from zkmigrate.errors import MigrationError
from zkmigrate.model import (
    GroupPlan,
    GroupState,
    KafkaOffset,
    Kind,
    LogRange,
    Problem,
    Retention,
    Store,
    Tombstone,
    TopicState,
    ZkOffset,
)

CLIENT_ID: Final = "zkmigrate"
_CHUNK: Final = 100
_LIST_BATCH: Final = 2000
_REMEMBERED: Final = 200_000
"""Partitions whose log ranges are kept for the groups to come."""


class Stores:
    """Sessions with ZooKeeper and the brokers registered there. Use as a context manager.

    Args:
        zookeeper: ``host:port/chroot``.
        timeout: seconds to wait for ZooKeeper, and for each answer of a broker.
        patience: seconds to wait for a coordinator that moves, loads or is away.

    Raises the errors of ``BlockingZk`` and MigrationError when no broker is registered.
    """

    def __init__(self, zookeeper: str, timeout: float = 30.0, patience: float = 60.0) -> None:
        self.zk = BlockingZk(zookeeper, timeout)
        self.timeout = timeout
        self._where = zookeeper
        self.kafka = GroupCoordinators(CLIENT_ID, self._brokers, min(timeout, 10.0), patience)
        self._topics: dict[str, TopicState | None] = {}
        self._ranges: dict[TopicPartition, LogRange] = {}

    def __enter__(self) -> Self:
        self.zk.__enter__()
        try:
            if not self._brokers():
                raise MigrationError(
                    f"no broker is registered at {BROKER_IDS} of {self._where}: start the brokers, "
                    "or correct the chroot"
                )
        except BaseException:
            self.zk.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kafka.close()
        self.zk.__exit__(exc_type, exc, traceback)

    def _brokers(self) -> Sequence[BrokerEndpoint]:
        return list(self.zk.run(read_brokers()).endpoints.values())

    # -- groups --------------------------------------------------------------------------------

    def group_names(self, store: Store) -> list[str]:
        """Return the names of all groups that a store knows, whatever they are."""
        if store is Store.KAFKA:
            try:
                return self.kafka.list_groups()
            except UnsupportedBrokerError:
                raise MigrationError(
                    "brokers before 0.9 cannot list groups: name them with --group"
                ) from None
        return self.zk.run(list_groups())

    def retention(self) -> Retention:
        """Return for how long brokers keep the offsets of a group without members."""
        return Retention(*self.kafka.retention_minutes())

    def states(
        self,
        groups: Iterable[str],
        given: Mapping[str, Mapping[TopicPartition, int]],
        commit_times: bool,
    ) -> Iterator[GroupState | tuple[str, Problem]]:
        """Yield the state of each group; for a name that no group can have, the refusal.

        ``given``: offsets from a file, by group. ``commit_times``: also look up when each offset
        was committed to Kafka, which reads the coordinators' logs.
        """
        every = list(groups)
        times: Mapping[tuple[str, TopicPartition], int] = {}
        if commit_times:
            brokers = {endpoint.broker_id: endpoint for endpoint in self._brokers()}
            self._learn([offset_times.OFFSETS_TOPIC])
            log = self._topics[offset_times.OFFSETS_TOPIC]
            count = len(log.partitions) if log else 0
            patience = min(self.timeout, 10.0)
            times = offset_times.commit_times(every, count, brokers, CLIENT_ID, patience)
        names = iter(every)
        while chunk := list(islice(names, _CHUNK)):
            legal = [name for name in chunk if is_legal_topic(name)]
            read = zip(legal, self.zk.run_all(map(read_group, legal)), strict=True)
            parts = {name: found or GroupSnapshot(name) for name, found in read}
            kafka: dict[str, dict[TopicPartition, KafkaOffset]] = {}
            for name in legal:
                snapshot = parts[name]
                asked = self._partitions(snapshot)
                kafka[name] = {
                    tp: KafkaOffset(*stored, times.get((name, tp)))
                    for tp, stored in self.kafka.fetch(name, asked).items()
                }
            topics = {
                topic
                for name in legal
                for topic in (
                    *parts[name].offsets,
                    *parts[name].slipped,
                    *(tp.topic for tp in kafka[name]),
                    *(topic for topic, _ in given.get(name, ())),
                )
            }
            self._learn(topics)
            for name in chunk:
                if name in parts:
                    offsets = given.get(name)
                    if offsets is not None:
                        offsets = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
                    yield self._state(parts[name], kafka[name], offsets)
                else:
                    yield name, bad_name(name)

    def offsets(
        self, store: Store, plans: Iterable[GroupPlan]
    ) -> Iterator[dict[TopicPartition, int | None]]:
        """Yield what a store holds of each planned group's topics now."""
        if store is Store.ZOOKEEPER:
            trees = self.zk.run_all(_read_offsets(plan) for plan in plans)
            for tree in trees:
                yield {tp: _zk_offset("", node).offset for tp, node in tree.items()}
            return
        for plan in plans:
            topics = {entry.tp.topic for entry in plan.entries}
            found = self.kafka.fetch(plan.group, [entry.tp for entry in plan.entries])
            yield {tp: stored.offset for tp, stored in found.items() if tp.topic in topics}

    def _partitions(self, snapshot: GroupSnapshot) -> list[TopicPartition]:
        """Partitions that brokers are asked about which cannot tell a group's offsets by itself."""
        topics = {*snapshot.offsets, *snapshot.owners}
        self._learn(topics)
        found = {tp for tp, _ in _numbered(snapshot.offsets)}
        for topic in topics:
            state = self._topics.get(topic)
            if state is not None:
                found |= {TopicPartition(topic, number) for number in state.partitions}
        return sorted(found)

    def _state(
        self,
        snapshot: GroupSnapshot,
        kafka: Mapping[TopicPartition, KafkaOffset],
        given: Mapping[TopicPartition, int] | None,
    ) -> GroupState:
        registrations = interpret(snapshot, ())
        foreign = [
            finding.where
            for finding in verify(snapshot, registrations, {}, {})
            if finding.kind is Finding.FOREIGN_LAYOUT
        ]
        zk: dict[TopicPartition, ZkOffset] = {}
        for tp, node in _numbered(snapshot.offsets):
            zk[tp] = _zk_offset(snapshot.paths.offset(tp), node)
        slipped: dict[TopicPartition, int] = {}
        faults: list[str] = []
        for tp, node in _numbered(snapshot.slipped):
            where = f"{snapshot.paths.root}/offset/{tp.topic}/{tp.partition}"
            try:
                offset = decode_offset(where, node.data)
            except ZnodeFormatError as fault:
                faults.append(str(fault))
                continue
            if offset >= 0:
                slipped[tp] = offset
        stone: Tombstone | None = None
        if snapshot.moved is not None:
            where, node = tombstone.path(snapshot.group), snapshot.moved
            try:
                stone = tombstone.decode(where, node.data, node.stat.version)
            except ZnodeFormatError as fault:
                faults.append(str(fault))
        names = {tp.topic for tp in (*kafka, *(given or ()))}
        names |= {*snapshot.offsets, *snapshot.slipped}
        topics = {name: state for name in names if (state := self._topics.get(name)) is not None}
        return GroupState(
            snapshot.group,
            members=tuple(snapshot.members),
            owners={
                tp: node.data.decode(errors="replace") for tp, node in _numbered(snapshot.owners)
            },
            coordinator_members=self.kafka.members(snapshot.group),
            zk=zk,
            kafka=kafka,
            ranges={
                tp: found
                for name, state in topics.items()
                for number in state.partitions
                if (found := self._ranges.get(tp := TopicPartition(name, number))) is not None
            },
            topics=topics,
            slipped=slipped,
            foreign=tuple(foreign),
            tombstone=stone,
            faults=tuple(faults),
            given=given,
        )

    # -- topics --------------------------------------------------------------------------------

    def _learn(self, topics: Iterable[str]) -> None:
        """Find out what is not known yet of these topics."""
        new = sorted(topic for topic in topics if topic not in self._topics)
        new = [topic for topic in new if is_legal_topic(topic)]
        if not new:
            return
        if len(self._ranges) > _REMEMBERED:
            self._ranges.clear()
            self._topics.clear()
        paths = [topic_path(topic) for topic in new]
        for topic, path, node in zip(new, paths, self.zk.run(read_many(paths)), strict=True):
            self._topics[topic] = None
            if node is not None:
                try:
                    self._topics[topic] = TopicState(node.stat.czxid, decode_topic(path, node.data))
                except ZnodeFormatError:
                    pass  # as in the JVM: a topic that cannot be read has no partitions
        wanted = [
            TopicPartition(topic, number)
            for topic in new
            if (state := self._topics[topic]) is not None
            for number in state.partitions
        ]
        self._ranges.update(self._log_ranges(wanted))

    def _log_ranges(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Ask the leaders; what cannot be found out is left out."""
        if not partitions:
            return {}
        brokers = {endpoint.broker_id: endpoint for endpoint in self._brokers()}
        by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        leaders: Mapping[TopicPartition, int] = {}
        for endpoint in brokers.values():
            connection = BrokerConnection(endpoint, CLIENT_ID, min(self.timeout, 10.0), 0)
            try:
                leaders = fetch_metadata(connection, {tp.topic for tp in partitions}).leaders
                break
            except BrokerError:
                continue
            finally:
                connection.close()
        for tp in partitions:
            if tp in leaders:
                by_leader[leaders[tp]].append(tp)
        found: dict[TopicPartition, LogRange] = {}
        for broker, led in by_leader.items():
            if broker not in brokers:
                continue
            connection = BrokerConnection(brokers[broker], CLIENT_ID, min(self.timeout, 10.0), 0)
            try:
                for start in range(0, len(led), _LIST_BATCH):
                    batch = led[start : start + _LIST_BATCH]
                    first = list_offsets(connection, batch, EARLIEST)
                    last = list_offsets(connection, batch, LATEST)
                    for tp in batch:
                        low, high = first[tp], last[tp]
                        if isinstance(low, int) and isinstance(high, int):
                            found[tp] = LogRange(low, high)
            except BrokerError:
                continue
            finally:
                connection.close()
        return found


def bad_name(name: str) -> Problem:
    """Return the refusal of a name that no group in ZooKeeper can have."""
    shown = ascii(name[:60]) + ("..." if len(name) > 60 else "")
    return Problem(
        Kind.BAD_NAME,
        f"{shown} cannot be part of a ZooKeeper path",
        "use a group of 1 to 255 letters, digits, '.', '_' or '-'",
    )


def _read_offsets(plan: GroupPlan) -> Script[dict[TopicPartition, Node]]:
    """Read the offset znodes of the plan's topics, also those that the plan does not name."""
    paths = GroupPaths(plan.group)
    wanted: list[TopicPartition] = []
    for topic in sorted({entry.tp.topic for entry in plan.entries}):
        for name in (yield from children(paths.offsets_topic(topic))) or []:
            number = partition_number(name)
            if number is not None:
                wanted.append(TopicPartition(topic, number))
    nodes = yield from read_many([paths.offset(tp) for tp in wanted])
    return {tp: node for tp, node in zip(wanted, nodes, strict=True) if node is not None}


def _numbered(tree: Mapping[str, Mapping[str, Node]]) -> Iterator[tuple[TopicPartition, Node]]:
    """The znodes that are partitions of topics."""
    for topic, nodes in tree.items():
        if is_legal_topic(topic):
            for name, node in nodes.items():
                number = partition_number(name)
                if number is not None:
                    yield TopicPartition(topic, number), node


def _zk_offset(path: str, node: Node) -> ZkOffset:
    stat = node.stat
    try:
        offset = decode_offset(path, node.data)
    except ZnodeFormatError as fault:
        return ZkOffset(None, stat.version, stat.mzxid, stat.mtime_ms, str(fault))
    return ZkOffset(offset if offset >= 0 else None, stat.version, stat.mzxid, stat.mtime_ms)
