"""Bytes inside JoinGroup and SyncGroup, which members of consumer groups exchange.

Source: ConsumerProtocolSubscription (versions 0 to 3) and ConsumerProtocolAssignment of Kafka 3.9,
StickyAssignorUserData. The coordinator does not decode them. Readers accept any version: they read
known fields and ignore the others. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct, error as StructError
from typing import Final

from zkconsumer.core.common.types import TopicPartition

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A member's subscription. ``owned`` and ``generation`` are for cooperative strategies."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    version: int = 0


@dataclass(frozen=True, slots=True)
class AssignmentData:
    """One member's assignment."""

    partitions: frozenset[TopicPartition]
    user_data: bytes = b""


def encode_subscription(data: SubscriptionData) -> bytes:
    """Return the bytes of ``data`` in its version, 0 to 2."""
    parts = [_SHORT.pack(data.version), _INT.pack(len(data.topics)), *map(_string, data.topics)]
    parts.append(_bytes(data.user_data))
    if data.version >= 1:
        parts.append(_partitions(data.owned))
    if data.version >= 2:
        parts.append(_INT.pack(data.generation))
    return b"".join(parts)


def decode_subscription(raw: bytes) -> SubscriptionData:
    """Read a subscription. Raises ValueError if the bytes do not contain one."""
    reader = _Reader(raw)
    version = reader.take_short()
    topics = tuple(reader.take_string() for _ in range(reader.take_count()))
    user_data = reader.take_bytes()
    owned = reader.take_partitions() if version >= 1 else frozenset()
    generation = reader.take_int() if version >= 2 else -1
    return SubscriptionData(topics, user_data, owned, generation, version)


def encode_assignment(data: AssignmentData) -> bytes:
    """Return the bytes of ``data`` in version 0."""
    return _SHORT.pack(0) + _partitions(data.partitions) + _bytes(data.user_data)


def decode_assignment(raw: bytes) -> AssignmentData:
    """Read an assignment. Empty bytes are an empty assignment. Raises ValueError."""
    if not raw:
        return AssignmentData(frozenset())
    reader = _Reader(raw)
    reader.take_short()
    return AssignmentData(reader.take_partitions(), reader.take_bytes())


def encode_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return the user data of the sticky strategy: the member's partitions and their generation."""
    return _partitions(owned) + _INT.pack(generation)


def decode_sticky(raw: bytes) -> tuple[frozenset[TopicPartition], int]:
    """Read the output of ``encode_sticky``. The generation is -1 if it is missing. Raises
    ValueError.

    Data that begins with a version of two bytes, as kafka-python 3.0 writes it, is also accepted.
    """
    try:
        reader = _Reader(raw)
        partitions = reader.take_partitions()
    except ValueError:
        if raw[:2] != b"\0\1":
            raise
        reader = _Reader(raw[2:])
        partitions = reader.take_partitions()
    return partitions, reader.take_int() if reader.left else -1


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Return the partition numbers by topic, both sorted."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return numbers


def _string(text: str) -> bytes:
    raw = text.encode()
    return _SHORT.pack(len(raw)) + raw


def _bytes(raw: bytes) -> bytes:
    """Encode an empty value as null, as the Java consumer does."""
    return _INT.pack(len(raw) or -1) + raw


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(partitions)
    parts = [_INT.pack(len(topics))]
    for topic, numbers in topics.items():
        parts += [_string(topic), _INT.pack(len(numbers)), *map(_INT.pack, numbers)]
    return b"".join(parts)


class _Reader:
    """Reads bytes forwards. Missing data raises ValueError."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return len(self._raw) - self._at

    def take_short(self) -> int:
        return self._number(_SHORT)

    def take_int(self) -> int:
        return self._number(_INT)

    def take_count(self) -> int:
        number = self.take_int()
        if not -1 <= number <= len(self._raw):
            raise ValueError(
                f"an array of {number} elements does not fit into {len(self._raw)} bytes"
            )
        return max(number, 0)

    def take_string(self) -> str:
        return self._take(self.take_short()).decode()

    def take_bytes(self) -> bytes:
        return self._take(max(self.take_int(), 0))

    def take_partitions(self) -> frozenset[TopicPartition]:
        partitions: set[TopicPartition] = set()
        for _ in range(self.take_count()):
            topic = self.take_string()
            partitions.update(
                TopicPartition(topic, self.take_int()) for _ in range(self.take_count())
            )
        return frozenset(partitions)

    def _number(self, form: Struct) -> int:
        try:
            number: int = form.unpack_from(self._raw, self._at)[0]
        except StructError:
            raise ValueError("the bytes end too early") from None
        self._at += form.size
        return number

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._raw):
            raise ValueError("the bytes end too early")
        part = self._raw[self._at : end]
        self._at = end
        return part
