"""Records of ``__consumer_offsets``, decoded. Pure; any thread.

Keys (Kafka 0.8.2 to 4.0, OffsetCommitKey and GroupMetadataKey): int16 version; 0 and 1: group,
topic, int32 partition; 2: group. Values of offsets: version 0 offset, metadata, int64 time; 1 the
same and int64 expiry; 2 as 0; 3 with an int32 leader epoch behind the offset; 4 as 3 with compact
text and tagged fields. Values of groups (0 to 3): protocol type, generation, protocol, leader, from
2 on a time, members. Whatever else there is keeps its place and says what it is.
"""

from __future__ import annotations

from struct import Struct, error as StructError
from typing import Any, Final

from zkconsumer.core.coordinator.wire import decode_assignment

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")


class _Reader:
    """Takes fields from a record's bytes. Raises ValueError where they are cut off."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: Struct) -> int:
        value: int = form.unpack_from(self.data, self.at)[0]
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

    def compact(self, what: str) -> str | None:
        size = shift = 0
        while True:
            byte = self.bytes(1, what)[0]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 28:
                raise ValueError(f"the length of {what} has no end")
        return None if size == 0 else self.bytes(size - 1, what).decode()


def decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return what one record says, in the columns of ``schema.OFFSETS`` but its place.

    ``kind`` is offset, group, other (a key this does not know) or damaged, with ``fault``.
    """
    try:
        return _decode(key, value)
    except (StructError, ValueError) as error:
        return {"kind": "damaged", "fault": f"{error}"[:200] or "cut off"}


def _decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    if key is None:
        raise ValueError("the record has no key")
    keys = _Reader(key)
    version = keys.number(_SHORT)
    if version not in (0, 1, 2):
        return {"kind": "other", "fault": f"key version {version}"}
    row: dict[str, Any] = {"group": keys.text("the group")}
    if row["group"] is None:
        raise ValueError("the key names no group")
    if version == 2:
        return row | {"kind": "group", "deleted": value is None} | _group(value)
    row |= {"topic": keys.text("the topic"), "partition": keys.number(_INT)}
    return row | {"kind": "offset", "deleted": value is None} | _offset(value)


def _offset(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {}
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 4:
        raise ValueError(f"value version {version} of an offset is not known")
    row: dict[str, Any] = {"committed": values.number(_LONG)}
    if version >= 3:
        row["leader_epoch"] = values.number(_INT)
    text = values.compact if version >= 4 else values.text
    row |= {"metadata": text("the metadata"), "commit_ms": values.number(_LONG)}
    if version == 1:
        row["expire_ms"] = values.number(_LONG)
    return row


def _group(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {}
    values = _Reader(value)
    version = values.number(_SHORT)
    if not 0 <= version <= 3:
        raise ValueError(f"value version {version} of a group is not known")
    row: dict[str, Any] = {"protocol_type": values.text("the protocol type")}
    row["generation"] = values.number(_INT)
    row["protocol"] = values.text("the protocol")
    row["leader"] = values.text("the leader")
    if version >= 2:
        row["commit_ms"] = values.number(_LONG)
    hosts: dict[str, str | None] = {}
    owners: dict[str, str] = {}
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
        if row["protocol_type"] == "consumer":  # others have bytes of their own
            for place in decode_assignment(assigned).partitions:
                owners[f"{place.topic}-{place.partition}"] = member
    return row | {"members": list(hosts), "hosts": hosts, "assignment": owners}
