"""Records of ``__consumer_offsets``, decoded. No other module knows their form. Pure; any thread.

Keys (Kafka 0.8.2 to 4.x, OffsetCommitKey and GroupMetadataKey): int16 version; 0 and 1: group,
topic, int32 partition; 2: group. Values of offsets: version 0 offset, metadata, int64 time; 1 the
same and int64 expiry; 2 as 0; 3 with an int32 leader epoch behind the offset; 4 as 3 with compact
text and tagged fields. Values of groups (0 to 3): protocol type, generation, protocol, leader, from
2 on a time, members. A record without a value deletes what its key names.
"""

from __future__ import annotations

from struct import Struct, error as StructError
from typing import Final, NamedTuple

from zkconsumer.core.coordinator.wire import decode_assignment

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")


class OffsetKey(NamedTuple):
    """The key of one partition's committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's members."""

    group: str


class OtherKey(NamedTuple):
    """A key of a later release."""

    version: int


class OffsetValue(NamedTuple):
    """A committed offset. Times are milliseconds since 1970; ``None``: this version has none."""

    offset: int
    leader_epoch: int | None
    metadata: str | None
    commit_ms: int
    expire_ms: int | None


class GroupValue(NamedTuple):
    """A group as its coordinator stores it.

    ``commit_ms`` is ``None`` before version 2. ``hosts`` is by member. ``assignment`` has the
    member of each partition, as ``topic-partition``; it is empty for groups that are not consumers.
    """

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    commit_ms: int | None
    members: list[str]
    hosts: dict[str, str | None]
    assignment: dict[str, str]


class _Reader:
    """Takes fields from a record's bytes. Raises ValueError where they are cut off."""

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

    def bytes(self, size: int, what: str) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise ValueError(f"{what} of {size} bytes does not fit")
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self, what: str) -> str | None:
        size = self.number(_SHORT)
        return None if size == -1 else self.bytes(size, what).decode()

    def name(self, what: str) -> str:
        found = self.text(what)
        if found is None:
            raise ValueError(f"the key does not have {what}")
        return found

    def compact(self, what: str) -> str | None:
        size = shift = 0
        while True:
            byte = self.bytes(1, what)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise ValueError(f"the length of {what} is cut off")
        return None if size == 0 else self.bytes(size - 1, what).decode()


def decode_key(key: bytes | None) -> OffsetKey | GroupKey | OtherKey:
    """Decode a record's key. Raises ValueError when the key is damaged or missing."""
    if key is None:
        raise ValueError("the record has no key")
    keys = _Reader(key)
    version = keys.number(_SHORT)
    if version in (0, 1):
        return OffsetKey(keys.name("the group"), keys.name("the topic"), keys.number(_INT))
    if version == 2:
        return GroupKey(keys.name("the group"))
    return OtherKey(version)


def decode_offset(value: bytes) -> OffsetValue:
    """Return a committed offset. Raises ValueError: damaged, or a version of a later release."""
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 4:
        raise ValueError(f"value version {version} of an offset is not known")
    offset = values.number(_LONG)
    leader_epoch = values.number(_INT) if version >= 3 else None
    text = values.compact if version >= 4 else values.text
    metadata, commit_ms = text("the metadata"), values.number(_LONG)
    expire_ms = values.number(_LONG) if version == 1 else None
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms)


def decode_group(value: bytes) -> GroupValue:
    """Return a stored group. Raises ValueError: damaged, or a version of a later release."""
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 3:
        raise ValueError(f"value version {version} of a group is not known")
    protocol_type = values.text("the protocol type")
    generation = values.number(_INT)
    protocol = values.text("the protocol")
    leader = values.text("the leader")
    commit_ms = values.number(_LONG) if version >= 2 else None
    hosts: dict[str, str | None] = {}
    assignment: dict[str, str] = {}
    for _ in range(values.number(_INT)):
        member = values.text("a member id")
        if member is None:
            raise ValueError("a member has no id")
        if version >= 3:
            values.text("a static member id")
        values.text("a client id")
        hosts[member] = values.text("a client host")
        if version >= 1:
            values.number(_INT)
        values.number(_INT)
        values.bytes(values.number(_INT), "a subscription")
        assigned = values.bytes(values.number(_INT), "an assignment")
        if protocol_type == "consumer":  # others have bytes of their own
            for place in decode_assignment(assigned).partitions:
                assignment[f"{place.topic}-{place.partition}"] = member
    return GroupValue(
        protocol_type, generation, protocol, leader, commit_ms, list(hosts), hosts, assignment
    )
