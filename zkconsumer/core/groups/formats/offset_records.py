"""Decodes records of ``__consumer_offsets``. Only this module knows their format. Pure; any
thread.

Keys (Kafka 0.8.2 to 4.x, OffsetCommitKey and GroupMetadataKey): int16 version; 0 and 1: group,
topic, int32 partition; 2: group. Values of offsets: version 0 offset, metadata, int64 time; 1 the
same and int64 expiry; 2 as 0; 3 with an int32 leader epoch after the offset; 4 as 3 with compact
text and tagged fields. Values of groups (0 to 3): protocol type, generation, protocol, leader,
from 2 on a time, members. A record without a value deletes the object of its key.

A group of the KIP-848 protocol has a record for each part of its state (Kafka 4.0 to 4.4, messages
``ConsumerGroup*`` of the module group-coordinator). Keys: 3 and 6: group; 5, 7 and 8: group,
member. Values, all of version 0 and flexible: see ``decode_consumer_group``. The other keys of such
groups (4: metadata of topics, 16: topics of a regular expression) do not concern members.
"""

from __future__ import annotations

import base64
from enum import IntEnum
from struct import Struct, error as StructError
from typing import Final, NamedTuple

from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment

_BYTE: Final = Struct(">b")
_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_CLASSIC_TAG: Final = 0
"""Tagged field of a member: its session timeout and protocols, if it is a classic member."""


class OffsetKey(NamedTuple):
    """The key of a partition's committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of the record with a classic group's members."""

    group: str


class Part(IntEnum):
    """The part of a KIP-848 group's state that a record contains, by the version of its key."""

    EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class ConsumerGroupKey(NamedTuple):
    """The key of a part of a KIP-848 group. ``member`` is ``None`` if the part is about the whole
    group."""

    part: Part
    group: str
    member: str | None


class OtherKey(NamedTuple):
    """The key of a record that the other classes do not describe, such as a key from a later
    release."""

    version: int


class OffsetValue(NamedTuple):
    """A committed offset. Times are milliseconds since 1970; ``None`` if the version has none."""

    offset: int
    leader_epoch: int | None
    metadata: str | None
    commit_ms: int
    expire_ms: int | None


class GroupValue(NamedTuple):
    """A classic group as stored by its coordinator.

    ``commit_ms`` is ``None`` before version 2. ``hosts`` and ``clients`` (client ids) are by
    member. ``assignment`` maps ``topic-partition`` to a member; it is empty unless the members are
    consumers.
    """

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    commit_ms: int | None
    members: list[str]
    hosts: dict[str, str | None]
    clients: dict[str, str | None]
    assignment: dict[str, str]


class EpochValue(NamedTuple):
    """The epoch of a KIP-848 group, or of its target assignment."""

    epoch: int


class MemberValue(NamedTuple):
    """A member of a KIP-848 group.

    ``regex`` selects topics in addition to ``topics``. ``rebalance_ms`` is the member's
    ``max.poll.interval.ms``; ``assignor`` is ``None`` for the broker's default. ``classic``: the
    member uses the classic protocol.
    """

    instance: str | None
    rack: str | None
    client: str
    host: str
    topics: list[str]
    regex: str | None
    rebalance_ms: int
    assignor: str | None
    classic: bool


TopicPartitionId = tuple[str, int]
"""A topic's id, as Kafka's tools write it (22 characters of base64), and a partition."""


class TargetValue(NamedTuple):
    """The partitions assigned to a member of a KIP-848 group."""

    partitions: list[TopicPartitionId]


class CurrentValue(NamedTuple):
    """The partitions that a member of a KIP-848 group owns.

    No other member gets the partitions in ``revoking`` until this member confirms their release.
    ``state``: 0 stable, 1 has partitions to release, 2 waits for partitions that others have not
    released. An ``epoch`` of -2 means a static member that has left and may return.
    """

    epoch: int
    previous_epoch: int
    state: int
    assigned: list[TopicPartitionId]
    revoking: list[TopicPartitionId]


class _Reader:
    """Reads fields from a record's bytes. Raises ValueError if they are truncated."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: Struct) -> int:
        try:
            value: int = form.unpack_from(self.data, self.at)[0]
        except StructError as error:
            raise ValueError(str(error) or "cut off") from None
        self.at += form.size
        return value

    def take(self, size: int, what: str) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ValueError(f"{what} of {size} bytes does not fit into the record")
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self, what: str) -> str | None:
        size = self.number(_SHORT)
        return None if size == -1 else self.take(size, what).decode()

    def name(self, what: str) -> str:
        text = self.text(what)
        if text is None:
            raise ValueError(f"the key has no {what}")
        return text

    def size(self, what: str) -> int:
        """Return an unsigned varint."""
        size = shift = 0
        while True:
            byte = self.take(1, what)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return size
            if shift > 28:
                raise ValueError(f"the length of {what} is truncated")

    def compact(self, what: str) -> str | None:
        size = self.size(what)
        return None if size == 0 else self.take(size - 1, what).decode()

    def compact_name(self, what: str) -> str:
        text = self.compact(what)
        if text is None:
            raise ValueError(f"{what} is null")
        return text

    def count(self, what: str) -> int:
        """Return the number of a compact array's elements."""
        size = self.size(what)
        if size == 0:
            raise ValueError(f"{what} is null")
        return size - 1

    def partitions(self, what: str) -> list[TopicPartitionId]:
        partitions: list[TopicPartitionId] = []
        for _ in range(self.count(what)):
            topic = base64.urlsafe_b64encode(self.take(16, "a topic id")).decode().rstrip("=")
            partitions += [(topic, self.number(_INT)) for _ in range(self.count("partitions"))]
            self.tags()  # since 4.1: the epoch of each partition
        return partitions

    def tags(self) -> dict[int, bytes]:
        """Return tagged fields by their numbers."""
        fields = {}
        for _ in range(self.size("tagged fields")):
            tag = self.size("a tag")
            fields[tag] = self.take(self.size("a tagged field"), "a tagged field")
        return fields


def decode_key(key: bytes | None) -> OffsetKey | GroupKey | ConsumerGroupKey | OtherKey:
    """Decode a record's key. Raises ValueError if the key is damaged or missing."""
    if key is None:
        raise ValueError("the record has no key")
    keys = _Reader(key)
    version = keys.number(_SHORT)
    if version in (0, 1):
        return OffsetKey(keys.name("the group"), keys.name("the topic"), keys.number(_INT))
    if version == 2:
        return GroupKey(keys.name("the group"))
    if version in (Part.EPOCH, Part.TARGET_EPOCH):
        return ConsumerGroupKey(Part(version), keys.name("the group"), None)
    if version in (Part.MEMBER, Part.TARGET, Part.CURRENT):
        return ConsumerGroupKey(Part(version), keys.name("the group"), keys.name("the member"))
    return OtherKey(version)


def decode_offset(value: bytes) -> OffsetValue:
    """Return a committed offset. Raises ValueError if it is damaged, or has the version of a later
    release."""
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 4:
        raise ValueError(f"unknown version {version} of an offset record's value")
    offset = values.number(_LONG)
    leader_epoch = values.number(_INT) if version >= 3 else None
    text = values.compact if version >= 4 else values.text
    metadata, commit_ms = text("the metadata"), values.number(_LONG)
    expire_ms = values.number(_LONG) if version == 1 else None
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms)


def decode_group(value: bytes) -> GroupValue:
    """Return a classic group. Raises ValueError if it is damaged, or has the version of a later
    release."""
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 3:
        raise ValueError(f"unknown version {version} of a group record's value")
    protocol_type = values.text("the protocol type")
    generation = values.number(_INT)
    protocol = values.text("the protocol")
    leader = values.text("the leader")
    commit_ms = values.number(_LONG) if version >= 2 else None
    hosts: dict[str, str | None] = {}
    clients: dict[str, str | None] = {}
    assignment: dict[str, str] = {}
    for _ in range(values.number(_INT)):
        member = values.text("a member id")
        if member is None:
            raise ValueError("a member has no id")
        if version >= 3:
            values.text("a static member id")
        clients[member] = values.text("a client id")
        hosts[member] = values.text("a client host")
        if version >= 1:
            values.number(_INT)
        values.number(_INT)
        values.take(values.number(_INT), "a subscription")
        assigned = values.take(values.number(_INT), "an assignment")
        if protocol_type == "consumer":  # others have bytes of their own
            for place in decode_assignment(assigned).partitions:
                assignment[f"{place.topic}-{place.partition}"] = member
    return GroupValue(
        protocol_type, generation, protocol, leader, commit_ms, list(hosts), hosts, clients,
        assignment,
    )  # fmt: skip


def decode_consumer_group(
    part: Part, value: bytes
) -> EpochValue | MemberValue | TargetValue | CurrentValue:
    """Return a part of a KIP-848 group. Raises ValueError if it is damaged, or has a later
    version.

    Fields that later releases add are tagged, and are skipped.
    """
    values = _Reader(value)
    version = values.number(_SHORT)
    if version != 0:
        raise ValueError(f"unknown version {version} of the value of a record with key {int(part)}")
    content: EpochValue | MemberValue | TargetValue | CurrentValue
    if part is Part.MEMBER:
        member = MemberValue(
            instance=values.compact("the static member id"),
            rack=values.compact("the rack"),
            client=values.compact_name("the client id"),
            host=values.compact_name("the client host"),
            topics=[
                values.compact_name("a topic") for _ in range(values.count("subscribed topics"))
            ],
            regex=values.compact("the regular expression"),
            rebalance_ms=values.number(_INT),
            assignor=values.compact("the assignor"),
            classic=False,
        )
        # a null structure is the byte 0
        return member._replace(classic=values.tags().get(_CLASSIC_TAG, b"\0")[:1] == b"\1")
    if part is Part.TARGET:
        content = TargetValue(values.partitions("the target"))
    elif part is Part.CURRENT:
        content = CurrentValue(
            values.number(_INT),
            values.number(_INT),
            values.number(_BYTE),
            values.partitions("the assigned partitions"),
            values.partitions("the partitions to release"),
        )
    else:
        content = EpochValue(values.number(_INT))
    values.tags()
    return content
