"""Reads both stores: the groups' znodes, their offsets in Kafka, their topics' logs.

``Stores`` holds the sessions with both and is used from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

from zkconsumer.admin.reads import children, children_of
from zkconsumer.admin.snapshot import (
    GroupSnapshot,
    interpret,
    list_groups,
    partition_number,
    read_group,
)
from zkconsumer.admin.text import printable
from zkconsumer.admin.topics import read_brokers, read_topic
from zkconsumer.admin.verify import Kind as Finding, verify
from zkconsumer.broker import offset_times
from zkconsumer.broker.coordinator_calls import StoredOffset
from zkconsumer.broker.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    decode_offset,
    decode_topic,
    is_legal_topic,
    topic_path,
)
from zkconsumer.errors import (
    BrokerError,
    UnsupportedBrokerError,
    ZkConsumerError,
    ZnodeFormatError,
    ZooKeeperError,
)
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate import tombstone
from zkmigrate.errors import MigrationError
from zkmigrate.logs import CLIENT_ID, Logs
from zkmigrate.model import (
    GroupPlan,
    GroupState,
    HeldNow,
    KafkaOffset,
    Kind,
    Problem,
    Retention,
    Store,
    Tombstone,
    ZkOffset,
)

_CHUNK: Final = 100


class Stores:
    """Sessions with ZooKeeper and the brokers registered there. Use as a context manager.

    Args:
        zookeeper: ``host:port/chroot``.
        timeout: seconds to wait for ZooKeeper, and for each answer of a broker.
        patience: seconds to wait for a coordinator that moves, loads or is away.
        on_wait: called with what is waited for, once for each wait.

    Raises the errors of ``BlockingZk`` and MigrationError when no broker can be used.
    """

    def __init__(
        self,
        zookeeper: str,
        timeout: float = 30.0,
        patience: float = 60.0,
        on_wait: Callable[[str], object] = lambda _what: None,
    ) -> None:
        self.zk = BlockingZk(zookeeper, timeout)
        self.timeout = timeout
        self.patience = patience
        self.faults: tuple[str, ...] = ()
        """Registered brokers that cannot be used, and why. Known once the session is open."""
        self.unlisted: tuple[str, ...] = ()
        """Partitions without a leader, whose groups ``group_names`` could not list."""
        self._where = zookeeper
        self.on_wait = on_wait
        self._offsets_partitions = 0
        self.kafka = GroupCoordinators(
            CLIENT_ID,
            self._brokers,
            min(timeout, 10.0),
            patience,
            place=self._offsets_partition,
            on_wait=on_wait,
        )
        self.logs = Logs(self.zk, self._brokers, min(timeout, 10.0))

    def __enter__(self) -> Self:
        self.zk.__enter__()
        try:
            brokers = self.zk.run(read_brokers())
            if not brokers.endpoints and not brokers.faults:
                raise MigrationError(
                    f"no broker is registered at {BROKER_IDS} of {self._where}: start the brokers, "
                    "or correct the chroot"
                )
            if not brokers.endpoints:
                more = len(brokers.faults) - 1
                raise MigrationError(
                    f"no broker can be used: {brokers.faults[0]}"
                    + (f" (and {more} more)" if more else "")
                )
            self.faults = brokers.faults
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
        self.logs.close()
        self.zk.__exit__(exc_type, exc, traceback)

    def _brokers(self) -> Sequence[BrokerEndpoint]:
        return list(self.zk.run(read_brokers()).endpoints.values())

    def _offsets_partition(self, group: str) -> Hashable:
        """The partition of ``__consumer_offsets`` whose leader is the group's coordinator."""
        if not self._offsets_partitions:
            path = topic_path(offset_times.OFFSETS_TOPIC)
            (node,) = self.zk.run(read_many([path]))
            try:
                self._offsets_partitions = 0 if node is None else len(decode_topic(path, node.data))
            except ZnodeFormatError:
                pass
        count = self._offsets_partitions
        return offset_times.place(group, count) if count else group

    # -- groups --------------------------------------------------------------------------------

    def group_names(self, store: Store) -> list[str]:
        """Return the names of all groups that a store knows, whatever they are."""
        if store is Store.KAFKA:
            try:
                names = self.kafka.list_groups()
            except UnsupportedBrokerError:
                raise MigrationError(
                    "brokers before 0.9 cannot list groups: name them with --group"
                ) from None
            topic = self.zk.run(read_topic(offset_times.OFFSETS_TOPIC))
            if topic is not None:
                self.unlisted = tuple(
                    f"{topic.topic}-{number}"
                    for number in topic.replicas
                    if number not in topic.states or topic.states[number].leader is None
                )
            return names
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
        """Yield the state of each group; for one that cannot be read or be a group, the problem.

        ``given``: offsets from a file, by group. ``commit_times``: also look up when each offset
        was committed to Kafka, which reads the coordinators' logs.
        """
        every = list(groups)
        times: Mapping[tuple[str, TopicPartition], int] = {}
        if commit_times:
            self.on_wait(f"the times of commits, read from the log of {offset_times.OFFSETS_TOPIC}")
            brokers = {endpoint.broker_id: endpoint for endpoint in self._brokers()}
            topics, _ = self.logs.of([offset_times.OFFSETS_TOPIC])
            count = sum(len(topic.partitions) for topic in topics.values())
            patience = min(self.timeout, 10.0)
            times = offset_times.commit_times(every, count, brokers, CLIENT_ID, patience)
        topics_there = self.zk.run(children(BROKER_TOPICS)) or []
        hidden = self.kafka.hidden(filter(is_legal_topic, topics_there))
        names = iter(every)
        while chunk := list(islice(names, _CHUNK)):
            legal = [name for name in chunk if is_legal_topic(name)]
            problems = {name: bad_name(name) for name in chunk if not is_legal_topic(name)}
            parts: dict[str, GroupSnapshot] = {}
            scripts = map(or_refusal, map(read_group, legal))
            for name, found in zip(legal, self.zk.run_all(scripts), strict=True):
                if isinstance(found, ZooKeeperError):
                    problems[name] = unreadable(name, found)
                else:
                    parts[name] = found or GroupSnapshot(name)
            self._learn((*part.offsets, *part.owners, *part.slipped) for part in parts.values())
            kafka: dict[str, dict[TopicPartition, KafkaOffset]] = {}
            for name, snapshot in parts.items():
                asked = self._partitions(snapshot)
                try:
                    kafka[name] = {
                        tp: KafkaOffset(*stored, times.get((name, tp)))
                        for tp, stored in self.kafka.fetch(name, asked).items()
                    }
                except BrokerError as error:
                    problems[name] = unreadable(name, error)
            self._learn((tp[0] for tp in (*kafka[name], *given.get(name, ()))) for name in kafka)
            for name in chunk:
                offsets = given.get(name)
                if offsets is not None:
                    offsets = {TopicPartition(*tp): offset for tp, offset in offsets.items()}
                if name not in problems:
                    try:
                        state = self._state(parts[name], kafka[name], offsets, hidden)
                    except BrokerError as error:
                        problems[name] = unreadable(name, error)
                yield (name, problems[name]) if name in problems else state

    def offsets(self, plans: Iterable[GroupPlan]) -> Iterator[tuple[GroupPlan, HeldNow | Problem]]:
        """Yield each planned group with all that both stores hold of it now.

        For one that cannot be read, the problem.
        """
        for plan, nodes in self.zk.run_all(map(_read_offsets, plans)):
            if isinstance(nodes, ZooKeeperError):
                yield plan, unreadable(plan.group, nodes)
                continue
            try:
                found = self.fetch(plan.group, [entry.tp for entry in plan.entries])
            except BrokerError as error:
                yield plan, unreadable(plan.group, error)
                continue
            yield (
                plan,
                {
                    Store.ZOOKEEPER: {tp: _zk_offset("", node).offset for tp, node in nodes},
                    Store.KAFKA: {tp: stored.offset for tp, stored in found.items()},
                },
            )

    def fetch(
        self, group: str, known: Collection[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return all offsets of a group that Kafka holds.

        Brokers before 0.10.2 cannot tell all: they are asked for the partitions that are ``known``,
        and for those that the same topics have now.
        """
        asked = set(known)
        if not self.kafka.tells_all(group):
            for topic, state in self.logs.of({tp.topic for tp in known})[0].items():
                asked |= {TopicPartition(topic, number) for number in state.partitions}
        return self.kafka.fetch(group, sorted(asked))

    def _learn(self, topics: Iterable[Iterable[str]]) -> None:
        """Find out about the topics of many groups at once."""
        self.logs.of({topic for some in topics for topic in some})

    def _partitions(self, snapshot: GroupSnapshot) -> list[TopicPartition]:
        """Partitions that brokers are asked about which cannot tell a group's offsets by itself."""
        topics = {*snapshot.offsets, *snapshot.owners}
        found = {tp for tp, _ in _numbered(snapshot.offsets)}
        for topic, state in self.logs.of(topics)[0].items():
            found |= {TopicPartition(topic, number) for number in state.partitions}
        return sorted(found)

    def _state(
        self,
        snapshot: GroupSnapshot,
        kafka: Mapping[TopicPartition, KafkaOffset],
        given: Mapping[TopicPartition, int] | None,
        hidden: frozenset[str],
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
                stone = tombstone.decode(where, node.data, node.stat.version, node.stat.mtime_ms)
            except ZnodeFormatError as fault:
                faults.append(str(fault))
        names = {tp.topic for tp in (*kafka, *(given or ()))}
        names |= {*snapshot.offsets, *snapshot.slipped}
        topics, ranges = self.logs.of(names)
        return GroupState(
            snapshot.group,
            members=tuple(sorted(snapshot.members)),
            owners={
                tp: node.data.decode(errors="replace") for tp, node in _numbered(snapshot.owners)
            },
            coordinator_members=self.kafka.members(snapshot.group),
            zk=zk,
            kafka=kafka,
            ranges=ranges,
            topics=topics,
            slipped=slipped,
            foreign=tuple(foreign),
            tombstone=stone,
            faults=tuple(faults),
            hidden=hidden,
            given=given,
        )


def bad_name(name: str) -> Problem:
    """Return the refusal of a name that no group in ZooKeeper can have."""
    shown = ascii(name[:60]) + ("..." if len(name) > 60 else "")
    return Problem(
        Kind.BAD_NAME,
        f"{shown} cannot be part of a ZooKeeper path",
        "use a group of 1 to 255 letters, digits, '.', '_' or '-'",
    )


def unreadable(group: str, error: ZkConsumerError) -> Problem:
    """Return the problem of a group that ZooKeeper or its coordinator does not show."""
    leave = f"leave the group out with --exclude {group}"
    if isinstance(error, BrokerError) and error.retriable:
        fix = f"bring its broker back and run this again, or {leave}"
        return Problem(Kind.COORDINATOR_AWAY, printable(str(error)), fix)
    return Problem(Kind.UNREADABLE, printable(str(error)), f"allow it to be read, or {leave}")


def offset_partitions(group: str) -> Script[list[TopicPartition]]:
    """Return the partitions that a group has offset znodes of."""
    paths = GroupPaths(group)
    topics = list(filter(is_legal_topic, (yield from children(paths.offsets)) or []))
    lists = yield from children_of(map(paths.offsets_topic, topics))
    return [
        TopicPartition(topic, number)
        for topic, names in zip(topics, lists, strict=True)
        for number in map(partition_number, names)
        if number is not None
    ]


_Nodes = list[tuple[TopicPartition, Node]]


def _read_offsets(plan: GroupPlan) -> Script[tuple[GroupPlan, _Nodes | ZooKeeperError]]:
    """Read all offset znodes of a group, also those that the plan does not name."""
    return plan, (yield from or_refusal(_offset_nodes(plan)))


def _offset_nodes(plan: GroupPlan) -> Script[_Nodes]:
    wanted = yield from offset_partitions(plan.group)
    nodes = yield from read_many(map(GroupPaths(plan.group).offset, wanted))
    pairs = zip(wanted, nodes, strict=True)
    return [(tp, node) for tp, node in pairs if node is not None]


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
