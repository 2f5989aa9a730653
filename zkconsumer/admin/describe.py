"""Turns a snapshot into the rows of ``groups describe``. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import itemgetter
from typing import NamedTuple

from zkconsumer.admin.snapshot import (
    GroupSnapshot,
    Registrations,
    partition_number,
    topics_of,
)
from zkconsumer.admin.topics import TopicSnapshot
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node, session_text
from zkconsumer.core.zookeeper.znodes import decode_offset
from zkconsumer.errors import ZnodeFormatError

_JVM_TAIL = re.compile(r"(.+)-[0-9]{13}-[0-9a-f]{1,8}")


class GroupRow(NamedTuple):
    """One row: a partition, or a member without partitions (then ``consumer_id`` is its id).

    ``current_offset`` is the next offset to read, ``log_end_offset`` the next offset that will be
    written, and ``lag`` the difference. ``consumer_id`` is the owner: in ZooKeeper the thread,
    ``<consumer id>-<number>``. ``None``: there is no value, or it is unknown.
    """

    group: str
    topic: str | None
    partition: int | None
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str
    client_id: str = ""


class GroupMemberRow(NamedTuple):
    """One member of a group in ZooKeeper.

    ``streams``: its largest number of streams for one topic. ``session``: the ZooKeeper session
    that holds its registration, in hexadecimal as ZooKeeper's own tools print it. ``assignment``:
    the partitions that it owns, which the command shows with ``--verbose``.
    """

    group: str
    consumer_id: str
    host: str
    streams: int
    partitions: int
    session: str
    subscription: str
    assignment: str


class GroupStateRow(NamedTuple):
    """The state of a group in ZooKeeper.

    ``state``: ``Empty`` without members, ``Stable`` when every subscribed partition has an owner,
    ``Rebalancing`` otherwise. Kafka's coordinator uses the same names.
    """

    group: str
    state: str
    members: int
    partitions: int
    unowned: int


def member_rows(snapshot: GroupSnapshot, registrations: Registrations) -> list[GroupMemberRow]:
    """Return a row for each registered member, by name."""
    owned: dict[str, list[tuple[str, int]]] = {}
    for topic, nodes in snapshot.owners.items():
        for name, node in nodes.items():
            consumer = snapshot.consumer_of(node)
            number = partition_number(name)
            owned.setdefault(consumer, []).append((topic, -1 if number is None else number))
    rows = []
    for member in sorted(snapshot.members):
        topics = registrations.topics.get(member, {})
        shown = ", ".join(sorted(topics))
        if member in registrations.quarantined:
            shown = f"unusable: {registrations.quarantined[member]}"
        rows.append(
            GroupMemberRow(
                snapshot.group,
                member,
                host_of(snapshot.group, member),
                max(topics.values(), default=0),
                len(owned.get(member, ())),
                session_text(registrations.sessions[member]),
                shown,
                ", ".join(f"{topic}-{number}" for topic, number in sorted(owned.get(member, ()))),
            )
        )
    return rows


def state_row(
    snapshot: GroupSnapshot, registrations: Registrations, topics: Mapping[str, TopicSnapshot]
) -> GroupStateRow:
    """Return the group's state."""
    subscribed = [topics[name] for name in sorted(registrations.subscribed) if name in topics]
    wanted = {(topic.topic, str(number)) for topic in subscribed for number in topic.replicas}
    owned = {(topic, name) for topic, nodes in snapshot.owners.items() for name in nodes}
    unowned = len(wanted - owned)
    state = "Rebalancing" if unowned else "Stable"
    if not snapshot.members:
        state = "Empty"
    return GroupStateRow(snapshot.group, state, len(snapshot.members), len(wanted), unowned)


def host_of(group: str, consumer_id: str) -> str:
    """Return the host in a consumer id of the JVM's form ``<group>_<host>-<ms>-<hex>``, otherwise
    ``""``.

    This library's members use that form too, unless ``consumer.id`` is set.
    """
    if not consumer_id.startswith(f"{group}_"):
        return ""
    parts = _JVM_TAIL.fullmatch(consumer_id, len(group) + 1)
    return parts[1] if parts else ""


def group_rows(
    snapshot: GroupSnapshot,
    registrations: Registrations,
    topics: Mapping[str, TopicSnapshot],
    log_ends: Mapping[TopicPartition, int],
) -> tuple[list[GroupRow], list[str]]:
    """Return the rows and the notes on znodes that could not be read.

    The rows are all partitions of topics that are owned, have offsets or are subscribed to, by
    topic and number. Registered members without partitions follow.
    """
    group = snapshot.group
    rows: list[GroupRow] = []
    notes: list[str] = []
    hosts: dict[str, str] = {}
    for topic in topics_of(snapshot, registrations):
        offset_nodes = snapshot.offsets.get(topic, {})
        owner_nodes = snapshot.owners.get(topic, {})
        numbers = {str(n): n for n in topics[topic].replicas} if topic in topics else {}
        for name in (offset_nodes.keys() | owner_nodes.keys()) - numbers.keys():
            if (number := partition_number(name)) is not None:
                numbers[name] = number
        for name, number in sorted(numbers.items(), key=itemgetter(1)):
            offset = None
            if (node := offset_nodes.get(name)) is not None:
                offset = _offset(snapshot, topic, name, node, notes)
            log_end = log_ends.get((topic, number))  # type: ignore[call-overload]
            owner, host = None, ""
            if (node := owner_nodes.get(name)) is not None:
                owner = node.data.decode(errors="replace")
                consumer = snapshot.consumer_of(node)
                if consumer not in hosts:
                    hosts[consumer] = host_of(group, consumer)
                host = hosts[consumer]
            lag = log_end - offset if log_end is not None and offset is not None else None
            rows.append(GroupRow(group, topic, number, offset, log_end, lag, owner, host))
    for member in sorted(snapshot.members):
        if member not in hosts:
            host = host_of(group, member)
            rows.append(GroupRow(group, None, None, None, None, None, member, host))
    return rows, notes


def with_stored_offsets(
    rows: list[GroupRow], stored: Mapping[str, Mapping[TopicPartition, int]]
) -> list[GroupRow]:
    """Return the rows with the offsets in ZooKeeper replaced by the groups' offsets in Kafka, if
    any.

    The JVM's tool does the same (Scala 1.1.1 ConsumerGroupCommand, ZkConsumerGroupService).
    """
    result: list[GroupRow] = []
    for row in rows:
        offset = None
        if row.topic is not None and row.partition is not None:
            offset = stored.get(row.group, {}).get(TopicPartition(row.topic, row.partition))
        if offset is not None:
            lag = None if row.log_end_offset is None else row.log_end_offset - offset
            row = row._replace(current_offset=offset, lag=lag)
        result.append(row)
    return result


def _offset(
    snapshot: GroupSnapshot, topic: str, name: str, node: Node, notes: list[str]
) -> int | None:
    """Return the offset; ``None`` if it is negative, which means that there is none."""
    path = f"{snapshot.paths.offsets}/{topic}/{name}"
    try:
        offset = decode_offset(path, node.data)
    except ZnodeFormatError as fault:
        notes.append(str(fault))
        return None
    return offset if offset >= 0 else None
