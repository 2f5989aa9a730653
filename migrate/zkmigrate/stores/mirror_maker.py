"""Reads from MirrorMaker 2's internal topics to which offsets it copied records. One thread.

Formats as in Kafka 2.4 to 4.x, classes OffsetSync and Checkpoint, big-endian, strings with an int16
length. ``mm2-offset-syncs.<alias>.internal``, in either cluster: key topic, int32 partition; value
int64 offset, int64 offset of its copy. ``<alias>.checkpoints.internal``, in the cluster of the
copies: key group, the copy's topic, int32 partition; value int16 version, int64 offset, int64
offset of its copy, metadata.

Both are only hints for a search, because an offset is exact only near a recorded one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct, error as StructError
from typing import Final, NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError
from zkmigrate.stores.contents import Contents

_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
_OFFSETS: Final = Struct(">qq")
_KEPT: Final = 64
"""Number of newest pairs kept for a partition, as in MirrorMaker 2."""


class Pair(NamedTuple):
    """An offset in this cluster, and the offset of the same record in the other."""

    here: int
    there: int


def decode_sync(key: bytes, value: bytes) -> tuple[TopicPartition, Pair]:
    """Decode a record of an ``mm2-offset-syncs`` topic. Return the copied partition and the
    offsets. Raises ValueError."""
    try:
        topic, at = _string(key, 0)
        return TopicPartition(topic, *_INT.unpack_from(key, at)), Pair(*_OFFSETS.unpack(value))
    except StructError as error:
        raise ValueError(str(error)) from None


def decode_checkpoint(key: bytes, value: bytes) -> tuple[TopicPartition, Pair]:
    """Decode a record of a ``checkpoints.internal`` topic. Return the copy's partition and the
    offsets. Raises ValueError."""
    try:
        topic, at = _string(key, _string(key, 0)[1])
        (version,) = _SHORT.unpack_from(value)
        if version:
            raise ValueError(f"unknown version {version}")
        pair = Pair(*_OFFSETS.unpack_from(value, _SHORT.size))
        return TopicPartition(topic, *_INT.unpack_from(key, at)), pair
    except StructError as error:
        raise ValueError(str(error)) from None


class Hints:
    """The pairs of offsets that MirrorMaker 2 recorded when it copied records between two clusters.

    They are read on first use. ``back``: MirrorMaker copied from ``there`` to ``here``.
    """

    def __init__(self, here: Contents, there: Contents, back: bool = False) -> None:
        self._here, self._there, self._back = here, there, back
        self._read = False
        self._pairs: defaultdict[TopicPartition, list[Pair]] = defaultdict(list)

    def of(self, tp: TopicPartition, other: TopicPartition) -> Sequence[Pair]:
        """Return the recorded pairs of a partition and its copy, in order. Topics that cannot be
        read are skipped."""
        if not self._read:
            self._read = True
            for contents in (self._here, self._there):
                try:
                    for topic in contents.topics():
                        self._read_topic(contents, topic)
                except BrokerError:
                    continue
        return sorted({*self._pairs.get(tp, ()), *self._pairs.get(other, ())})

    def _read_topic(self, contents: Contents, topic: str) -> None:
        if not topic.endswith(".internal"):
            return
        copies = self._here if self._back else self._there
        if topic.startswith("mm2-offset-syncs."):
            decode = decode_sync
        elif topic.endswith(".checkpoints.internal") and contents is copies:
            decode = decode_checkpoint
        else:
            return

        def take(key: bytes, value: bytes) -> None:
            with suppress(ValueError):
                tp, pair = decode(key, value)
                if min(pair) >= 0:
                    pairs = self._pairs[tp]
                    pairs.append(Pair(*reversed(pair)) if self._back else pair)
                    del pairs[:-_KEPT]

        contents.each(TopicPartition(topic, 0), take)


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    at += _SHORT.size
    if not 0 <= length <= len(data) - at:
        raise ValueError("a string is incomplete")
    return data[at : at + length].decode(), at + length
