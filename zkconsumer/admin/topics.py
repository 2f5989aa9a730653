"""Topics and brokers as ZooKeeper shows them: partitions, replicas, leaders. Scripts and pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zkconsumer.admin.reads import children, json_object, listing
from zkconsumer.config.security_keys import NO_SECURITY, ListenerChoice
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    broker_path,
    child_number,
    decode_broker,
    decode_topic,
    topic_path,
)
from zkconsumer.errors import ZnodeFormatError


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's state, as the controller last wrote it. ``leader`` is ``None`` if there is
    none."""

    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic: its partitions in ascending order with their replicas, and their states.

    If a state znode is unreadable, its partition is missing from ``states``, and ``faults`` has the
    reason.
    """

    topic: str
    replicas: Mapping[int, tuple[int, ...]]
    states: Mapping[int, PartitionState]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokersSnapshot:
    """Registered brokers: the usable addresses, and the reasons why other brokers have none."""

    endpoints: Mapping[int, BrokerEndpoint]
    registered: frozenset[int]
    faults: tuple[str, ...] = field(default=())


class PartitionRow(NamedTuple):
    """One row of ``topics describe``. ``state``: ``ok``, ``leaderless``, ``under-replicated``."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int | None
    isr: str
    replicas: str
    state: str


class TopicRow(NamedTuple):
    """One row of ``topics list``; ``replication`` is the smallest number of replicas of its
    partitions."""

    topic: str
    partitions: int
    replication: int | None
    leaderless: int
    under_replicated: int


def list_topics() -> Script[list[str]]:
    """Return the names of all topics, in ZooKeeper's order."""
    return (yield from listing(BROKER_TOPICS)) or []


def read_topic(topic: str) -> Script[TopicSnapshot | None]:
    """Read a topic and the states of its partitions; ``None`` if the topic does not exist."""
    path = topic_path(topic)
    (node,) = yield from read_many([path])
    if node is None:
        return None
    try:
        replicas = _decode_replicas(path, node)
    except ZnodeFormatError as fault:
        return TopicSnapshot(topic, {}, {}, (str(fault),))
    paths = [f"{path}/partitions/{number}/state" for number in replicas]
    nodes = yield from read_many(paths)
    states: dict[int, PartitionState] = {}
    faults: list[str] = []
    for number, where, assigned in zip(replicas, paths, nodes, strict=True):
        if assigned is None:
            faults.append(f"{where}: does not exist (yet)")
            continue
        try:
            states[number] = _decode_state(where, assigned)
        except ZnodeFormatError as fault:
            faults.append(str(fault))
    return TopicSnapshot(topic, replicas, states, tuple(faults))


def read_brokers(wanted: ListenerChoice = NO_SECURITY.listener) -> Script[BrokersSnapshot]:
    """Read the addresses of all registered brokers. ``wanted`` selects a listener of each
    broker."""
    listed = (yield from children(BROKER_IDS)) or []
    names = [name for name in listed if child_number(name) is not None]
    paths = [broker_path(int(name)) for name in names]
    nodes = yield from read_many(paths)
    endpoints: dict[int, BrokerEndpoint] = {}
    faults: list[str] = []
    for name, path, node in zip(names, paths, nodes, strict=True):
        if node is None:
            continue
        try:
            endpoints[int(name)] = decode_broker(path, int(name), node.data, wanted)
        except ZnodeFormatError as fault:
            faults.append(str(fault))
    return BrokersSnapshot(endpoints, frozenset(map(int, names)), tuple(faults))


def unusable(brokers: BrokersSnapshot, bootstrap: bool) -> list[str]:
    """Return a note for each unusable broker. If none is usable, a last note names the option to
    set.

    ``bootstrap``: the brokers were found with this option, so the last note is left out.
    """
    notes = list(brokers.faults)
    if not brokers.endpoints and not bootstrap:
        notes.append(no_brokers("ZooKeeper"))
    return notes


def no_brokers(where: str) -> str:
    """Return the message that ``where`` (such as "ZooKeeper") lists no usable broker."""
    return (
        f"{where} lists no broker that can be used: give one with --bootstrap-server HOST:PORT "
        "(bootstrap.servers), as a cluster without ZooKeeper (KRaft) needs it"
    )


def leaders(topics: Iterable[TopicSnapshot]) -> dict[TopicPartition, int]:
    """Return the leader of every partition that has one."""
    return {
        TopicPartition(topic.topic, number): state.leader
        for topic in topics
        for number, state in topic.states.items()
        if state.leader is not None
    }


def partition_rows(topic: TopicSnapshot, registered: frozenset[int]) -> list[PartitionRow]:
    """Return a row for each partition. A leader that is not registered counts as no leader."""
    rows = []
    for number, replicas in topic.replicas.items():
        state = topic.states.get(number)
        listed = _join(replicas)
        if state is None:
            rows.append(PartitionRow(topic.topic, number, None, None, "", listed, "leaderless"))
            continue
        word = "ok"
        if state.leader is None or state.leader not in registered:
            word = "leaderless"
        elif not set(replicas) <= set(state.isr):
            word = "under-replicated"
        rows.append(
            PartitionRow(
                topic.topic,
                number,
                state.leader,
                state.leader_epoch,
                _join(state.isr),
                listed,
                word,
            )
        )
    return rows


def topic_row(topic: TopicSnapshot, registered: frozenset[int]) -> TopicRow:
    """Return a topic's row for ``topics list``."""
    words = [row.state for row in partition_rows(topic, registered)]
    return TopicRow(
        topic.topic,
        len(words),
        min(map(len, topic.replicas.values()), default=None),
        words.count("leaderless"),
        words.count("under-replicated"),
    )


def _decode_replicas(path: str, node: Node) -> dict[int, tuple[int, ...]]:
    numbers = decode_topic(path, node.data)
    listed = json_object(path, node.data).get("partitions", {})
    return {
        number: _numbers(path, listed.get(str(number)), f"replicas of {number}")
        for number in numbers
    }


def _decode_state(path: str, node: Node) -> PartitionState:
    state = json_object(path, node.data)
    leader, epoch = state.get("leader"), state.get("leader_epoch")
    if type(leader) is not int or type(epoch) is not int:
        raise ZnodeFormatError(path, "must have integers as 'leader' and 'leader_epoch'")
    isr = _numbers(path, state.get("isr"), "isr")
    return PartitionState(leader if leader >= 0 else None, epoch, isr)


def _numbers(path: str, value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise ZnodeFormatError(path, f"{what} is not a list of broker ids")
    return tuple(value)


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
