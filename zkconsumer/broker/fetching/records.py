"""Converts record bytes to messages: message sets of formats 0 and 1, record batches of format 2.

Owns the layout of messages, and the class that an application gets. No IO and no state. ``scan``
runs on fetcher threads and reads only entry headers; the decoders run on the consuming thread.
Both accept the bytes as the broker sent them, in which the last entry may be incomplete.

The class of messages is in this module because it is compiled together with the loop that creates
them.

Only outer checksums are checked, because a wrapper's checksum covers the inner messages of a
compressed set.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct, error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from crc32c import crc32c

from zkconsumer.broker.fetching.compiling import mypyc_attr
from zkconsumer.errors import InvalidMessageError

if TYPE_CHECKING:
    from mypy_extensions import i64

COMPILED: Final = not __file__.endswith(".py")
"""Whether mypyc's extension module is running, not this file itself."""


class TimestampType(IntEnum):
    """The meaning of a message's timestamp."""

    NONE = -1
    """Message format 0 has no timestamps."""
    CREATE_TIME = 0
    """Set by the producer."""
    LOG_APPEND_TIME = 1
    """Set by the broker."""


Headers = tuple[tuple[str, bytes | None], ...]
Record = tuple[str, int, int, bytes | None, bytes | None, int, TimestampType, Headers]
"""topic, partition, offset, key, value, timestamp (ms, -1 for none), its type, headers."""


Decode = Callable[[bytes], Any]
"""Converts the bytes of a key or value to an object. Not called for a null key or value."""


@mypyc_attr(acyclic=True)  # compiled, Python's garbage collector does not look at it
class MessageAndMetadata:
    """One message and its place in the log.

    Keys and values are decoded on each read, and only then may a decoder raise an error (Scala
    1.1.1 MessageAndMetadata). Messages are equal if all of their attributes are.
    """

    __slots__ = (
        "headers",
        "offset",
        "partition",
        "raw_key",
        "raw_value",
        "timestamp",
        "timestamp_type",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int = -1,
        timestamp_type: TimestampType = TimestampType.NONE,
        headers: Headers = (),
    ) -> None:
        self.topic = topic
        """Name of the topic."""
        self.partition = partition
        """Number of the partition."""
        self.offset = offset
        """Offset of the message."""
        self.raw_key = key
        """The key's bytes."""
        self.raw_value = value
        """The value's bytes."""
        self.timestamp = timestamp
        """Milliseconds since 1970; -1 in format 0."""
        self.timestamp_type = timestamp_type
        """Who set the timestamp."""
        self.headers = headers
        """Pairs of name and value. Only in format 2."""

    @property
    def key(self) -> Any:
        """The decoded key; None for a null key."""
        return self.raw_key

    @property
    def value(self) -> Any:
        """The decoded value; None for a tombstone."""
        return self.raw_value

    def as_record(self) -> Record:
        """Return the record as the decoder returned it."""
        return (
            self.topic,
            self.partition,
            self.offset,
            self.raw_key,
            self.raw_value,
            self.timestamp,
            self.timestamp_type,
            self.headers,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageAndMetadata):
            return NotImplemented
        return self.as_record() == other.as_record()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __reduce__(self) -> tuple[Any, ...]:
        return MessageAndMetadata, self.as_record()

    def __repr__(self) -> str:
        return (
            f"<message {self.topic}-{self.partition} at {self.offset}, "
            f"key {self.raw_key!r}, value {self.raw_value!r}>"
        )


class DecodedMessage(MessageAndMetadata):
    """A message whose stream has decoders for keys and values."""

    __slots__ = ("_decoders",)

    def __init__(self, record: Record, decoders: tuple[Decode, Decode]) -> None:
        topic, partition, offset, key, value, time, kind, headers = record
        super().__init__(topic, partition, offset, key, value, time, kind, headers)
        self._decoders = decoders

    @property
    def key(self) -> Any:
        """The decoded key, as in ``MessageAndMetadata.key``."""
        data = self.raw_key
        return None if data is None else self._decoders[0](data)

    @property
    def value(self) -> Any:
        """The decoded value, as in ``MessageAndMetadata.value``."""
        data = self.raw_value
        return None if data is None else self._decoders[1](data)

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedMessage, (self.as_record(), self._decoders)


class Decoder(Protocol):
    """Decodes the record bytes of one partition. It has no state and is called on consuming
    threads."""

    def decode(self, data: bytes, topic: str, partition: int, start: int) -> Iterator[list[Record]]:
        """Yield the records with offset >= ``start`` in order, in lists of any length (including
        0).

        An incomplete last entry is ignored; control batches are skipped.

        Raises:
            InvalidMessageError: damaged bytes, after all records before them were yielded.
            CodecUnavailableError: the library of a compression codec is not installed.
        """
        ...


class Scan(NamedTuple):
    """What ``scan`` found in the entry headers of fetched bytes."""

    next_offset: int | None
    """The offset after the last complete entry; ``None`` without a complete entry."""
    valid_bytes: int
    """Length of all complete entries together."""
    damaged: bool
    """Whether an entry header is invalid. ``valid_bytes`` ends before it."""
    epoch: int = -1
    """Leader epoch with which the last complete entry was stored; -1 in formats 0 and 1."""


_ENTRY: Final = Struct(">qiib")  # offset, size, leader epoch (or crc), magic
_LAST_DELTA: Final = Struct(">i")
_V2: Final = Struct(">qiibIhiqqqhii")
_V0: Final = Struct(">qiIbbi")
_V1: Final = Struct(">qiIbbqi")
_INT: Final = Struct(">i")
_MIN_SIZE: Final = (14, 22, 49)


def scan(data: bytes) -> Scan:
    """Read the entry headers of ``data`` without decoding the entries."""
    pos, end = 0, len(data)
    next_offset: int | None = None
    last_epoch = -1
    unpack = _ENTRY.unpack_from
    while pos + 17 <= end:
        offset, size, epoch, magic = unpack(data, pos)
        if not 0 <= magic <= 2 or size < _MIN_SIZE[magic]:
            return Scan(next_offset, pos, True)
        stop = pos + 12 + size
        if stop > end:
            break
        if magic == 2:
            offset += _LAST_DELTA.unpack_from(data, pos + 23)[0]
        if next_offset is not None and offset < next_offset:
            return Scan(next_offset, pos, True)
        next_offset = offset + 1
        last_epoch = epoch if magic == 2 else -1
        pos = stop
    return Scan(next_offset, pos, False, last_epoch)


@mypyc_attr(allow_interpreted_subclasses=True)
class PythonDecoder:
    """The library's own decoder."""

    def decode(self, data: bytes, topic: str, partition: int, start: int) -> Iterator[list[Record]]:
        """Implement ``Decoder.decode``."""
        return _decode(data, topic, partition, start, None)


class MessageDecoder:
    """A decoder that yields messages instead of records.

    Args:
        decoder: decodes to records, which are then converted to messages. ``None``: the library's
            own, which creates messages directly.
        decoders: for keys and for values; ``None`` leaves them as bytes.
    """

    def __init__(self, decoder: Decoder | None, decoders: tuple[Decode, Decode] | None) -> None:
        self._decoder = decoder
        self.decoders = decoders

    def decode(
        self, data: bytes, topic: str, partition: int, start: int
    ) -> Iterator[list[MessageAndMetadata]]:
        """Yield messages in the way that ``Decoder.decode`` yields records."""
        if self._decoder is None:
            return _decode(data, topic, partition, start, self)
        return self._messages(self._decoder.decode(data, topic, partition, start))

    def _messages(self, lists: Iterator[list[Record]]) -> Iterator[list[MessageAndMetadata]]:
        for records in lists:
            yield [self.message(record) for record in records]

    def message(self, record: Record) -> MessageAndMetadata:
        """Return the message of a record."""
        if self.decoders is not None:
            return DecodedMessage(record, self.decoders)
        topic, partition, offset, key, value, time, kind, headers = record
        return MessageAndMetadata(topic, partition, offset, key, value, time, kind, headers)


def _decode(
    data: bytes, topic: str, partition: int, start: int, maker: MessageDecoder | None
) -> Iterator[list[Any]]:
    """Implement ``Decoder.decode``. Yields messages of ``maker``, or records without it."""
    pos, end = 0, len(data)
    plain: list[Any] = []  # uncompressed messages of formats 0 and 1 since the last yield
    failure: InvalidMessageError | None = None
    while pos + 17 <= end:
        _, size, _, magic = _ENTRY.unpack_from(data, pos)
        stop = pos + 12 + size
        try:
            if not 0 <= magic <= 2:
                raise InvalidMessageError(f"unknown message format (magic) {magic}")
            if size < _MIN_SIZE[magic]:
                raise InvalidMessageError(f"a {size}-byte entry is too short for format {magic}")
            if stop > end:
                break
            if magic == 2:
                if plain:
                    yield plain
                    plain = []
                yield _batch(data, pos, stop, topic, partition, start, maker)
            else:
                record, inner = _message(data, pos, stop, topic, partition)
                if record is not None:
                    if record[2] >= start:
                        plain.append(record if maker is None else maker.message(record))
                else:
                    if plain:
                        yield plain
                        plain = []
                    if not inner or inner[0][2] < start:
                        inner = [item for item in inner if item[2] >= start]
                    yield inner if maker is None else [maker.message(item) for item in inner]
        except InvalidMessageError as exc:
            failure = InvalidMessageError(f"{topic}-{partition} from offset {start}: {exc}")
            failure.__cause__ = exc
            break
        pos = stop
    if plain:
        yield plain
    if failure is not None:
        raise failure


class OpenBatch(NamedTuple):
    """A record batch of format 2 whose checksum is correct. Its records are not decoded yet."""

    base: int
    """Offset to which the records' deltas are added."""
    first_time: int
    fixed_time: int | None
    """Time of all records, if the broker set it."""
    size: int
    """Number of records according to the batch's header."""
    data: bytes
    """Holds the records in ``data[pos:stop]``, decompressed."""
    pos: int
    stop: int


def open_batch(data: bytes, pos: int, stop: int, *, control: bool = False) -> OpenBatch | None:
    """Check and decompress the record batch in ``data[pos:stop]``; ``None`` for a control batch,
    unless ``control``.

    Raises:
        InvalidMessageError: the checksum is wrong, or the compressed data is damaged.
        CodecUnavailableError: the library of a compression codec is not installed.
    """
    base, _, _, _, crc, attributes, _, first_time, max_time, _, _, _, count = _V2.unpack_from(
        data, pos
    )
    if crc32c(memoryview(data)[pos + 21 : stop]) != crc:
        raise InvalidMessageError(f"wrong checksum in the batch at offset {base}")
    if attributes & 0x20 and not control:
        return None
    pos += 61
    if codec := attributes & 7:
        from zkconsumer.broker.fetching.codecs import decompress

        data = decompress(codec, data[pos:stop])
        pos, stop = 0, len(data)
    fixed_time = max_time if attributes & 8 else None
    return OpenBatch(base, first_time, fixed_time, count, data, pos, stop)


def record_bounds(batch: OpenBatch, shift: int, out: list[int]) -> None:
    """Append to ``out`` where each record begins (after its length) and ends, both plus ``shift``.

    Raises ``InvalidMessageError`` if the lengths do not add up.
    """
    data = batch.data
    pos: i64 = batch.pos
    stop: i64 = batch.stop
    count: i64 = batch.size
    size: i64
    high: i64
    try:
        for _ in range(count):
            size = data[pos]
            pos += 1
            if size > 127:
                high = data[pos]
                pos += 1
                if high > 127:
                    size, pos = _varint(data, pos - 2)
                else:
                    size = size & 127 | high << 7
            out.append(pos + shift)
            pos += size >> 1
            out.append(pos + shift)
    except IndexError:
        pos = stop + 1
    if pos != stop or count < 0:
        raise InvalidMessageError(
            f"the batch at offset {batch.base} does not contain {count} records"
        )


def _batch(
    data: bytes,
    pos: int,
    stop: int,
    topic: str,
    partition: int,
    start: int,
    maker: MessageDecoder | None,
) -> list[Any]:
    """Decode the record batch of format 2 in ``data[pos:stop]``."""
    batch = open_batch(data, pos, stop)
    if batch is None:
        return []
    base, first_time, fixed_time, count, data, pos, stop = batch
    kind = TimestampType.CREATE_TIME if fixed_time is None else TimestampType.LOG_APPEND_TIME
    try:
        records = _records(
            data, pos, stop, count, base, first_time, fixed_time, kind, topic, partition, maker
        )
    except (IndexError, UnicodeDecodeError) as exc:
        raise InvalidMessageError(f"damaged record in the batch at offset {base}") from exc
    if base < start:
        if maker is None:
            return [record for record in records if record[2] >= start]
        return [message for message in records if message.offset >= start]
    return records


def _records(
    data: bytes,
    pos: i64,
    stop: i64,
    count: i64,
    base: int,
    first_time: int,
    fixed_time: int | None,
    kind: TimestampType,
    topic: str,
    partition: int,
    maker: MessageDecoder | None,
) -> list[Any]:
    """Decode ``count`` records that fill ``data[pos:stop]`` exactly.

    This is the library's most time-critical loop. Variable-length numbers of one and two bytes are
    read inline. They keep their zigzag form as long as possible, in which odd numbers are
    negative. Compiled, annotated numbers are machine words, except times and offsets, whose sums
    may need more than 64 bits.
    """
    size: i64
    high: i64
    bare = maker is not None and maker.decoders is None
    out: list[Any] = []
    append = out.append
    for _ in range(count):
        size = data[pos]
        pos += 1
        if size > 127:
            high = data[pos]
            pos += 1
            if high > 127:
                size, pos = _varint(data, pos - 2)
            else:
                size = size & 127 | high << 7
        record_end: i64 = pos + (size >> 1)

        time = data[pos + 1]  # data[pos] holds attributes, none of which are in use
        pos += 2
        if time > 127:
            high = data[pos]
            pos += 1
            if high > 127:
                time, pos = _varint(data, pos - 2, 10)
            else:
                time = time & 127 | high << 7

        delta = data[pos]
        pos += 1
        if delta > 127:
            high = data[pos]
            pos += 1
            if high > 127:
                delta, pos = _varint(data, pos - 2)
            else:
                delta = delta & 127 | high << 7

        size = data[pos]
        pos += 1
        if size > 127:
            high = data[pos]
            pos += 1
            if high > 127:
                size, pos = _varint(data, pos - 2)
            else:
                size = size & 127 | high << 7
        key: bytes | None = None
        if not size & 1:
            key_end: i64 = pos + (size >> 1)
            key = data[pos:key_end]
            pos = key_end

        size = data[pos]
        pos += 1
        if size > 127:
            high = data[pos]
            pos += 1
            if high > 127:
                size, pos = _varint(data, pos - 2)
            else:
                size = size & 127 | high << 7
        value: bytes | None = None
        if not size & 1:
            value_end: i64 = pos + (size >> 1)
            value = data[pos:value_end]
            pos = value_end

        headers: Headers = ()
        if data[pos]:
            headers, pos = read_headers(data, pos)
        else:
            pos += 1
        if pos != record_end or delta & 1:
            raise InvalidMessageError(f"a record near offset {base + len(out)} has a wrong length")
        offset = base + (delta >> 1)
        time = first_time + ((time >> 1) ^ -(time & 1)) if fixed_time is None else fixed_time
        if bare:
            append(MessageAndMetadata(topic, partition, offset, key, value, time, kind, headers))
        else:
            record = (topic, partition, offset, key, value, time, kind, headers)
            append(record if maker is None else maker.message(record))
    if pos != stop or count < 0:
        raise InvalidMessageError(f"the batch at offset {base} does not contain {count} records")
    return out


def _varint(data: bytes, pos: int, most: int = 5) -> tuple[int, int]:
    """Read an unsigned variable-length number of up to ``most`` bytes, without decoding zigzag.

    Lengths and offset deltas have at most five bytes, times ten (Kafka 3.9 ByteUtils.readVarint,
    readVarlong).
    """
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7
        if shift == 7 * most:
            raise InvalidMessageError(f"a variable-length number has more than {most} bytes")


def read_headers(data: bytes, pos: int) -> tuple[Headers, int]:
    """Read the headers at ``pos``. Return them and the position after them.

    Raises ``InvalidMessageError``, ``IndexError`` or ``UnicodeDecodeError`` for damaged headers.
    """
    number, pos = _varint(data, pos)
    if number & 1:
        raise InvalidMessageError("negative number of headers")
    out: list[tuple[str, bytes | None]] = []
    for _ in range(number >> 1):
        size, pos = _varint(data, pos)
        if size & 1:
            raise InvalidMessageError("negative length of a header's name")
        name = data[pos : pos + (size >> 1)].decode()
        pos += size >> 1
        size, pos = _varint(data, pos)
        value: bytes | None = None
        if not size & 1:
            value = data[pos : pos + (size >> 1)]
            pos += size >> 1
        out.append((name, value))
    return tuple(out), pos


def _message(
    data: bytes, pos: int, stop: int, topic: str, partition: int
) -> tuple[Record | None, list[Record]]:
    """Decode the message of format 0 or 1 in ``data[pos:stop]``: one record or, for a wrapper,
    many.

    Raises ``InvalidMessageError``.
    """
    offset, crc, magic, attributes, time, key, value = _fields(data, pos, stop)
    if zlib.crc32(memoryview(data)[pos + 16 : stop]) != crc:
        raise InvalidMessageError(f"wrong checksum in the message at offset {offset}")
    kind = _kind(magic, attributes)
    codec = attributes & 7
    if not codec:
        return (topic, partition, offset, key, value, time, kind, ()), []
    if value is None:
        raise InvalidMessageError(f"the compressed message at offset {offset} is empty")
    from zkconsumer.broker.fetching.codecs import decompress

    return None, _inner(
        decompress(codec, value, old_lz4=magic == 0),
        magic,
        offset,
        time if kind is TimestampType.LOG_APPEND_TIME else None,
        topic,
        partition,
    )


def _kind(magic: int, attributes: int) -> TimestampType:
    if magic == 0:
        return TimestampType.NONE
    return TimestampType.LOG_APPEND_TIME if attributes & 8 else TimestampType.CREATE_TIME


def _fields(
    data: bytes, pos: int, stop: int
) -> tuple[int, int, int, int, int, bytes | None, bytes | None]:
    """Return offset, crc, magic, attributes, timestamp, key, value of one message."""
    try:
        if data[pos + 16]:
            offset, _, crc, magic, attributes, time, size = _V1.unpack_from(data, pos)
            pos += 30
        else:
            offset, _, crc, magic, attributes, size = _V0.unpack_from(data, pos)
            time = -1
            pos += 22
        key: bytes | None = None
        if size >= 0:
            key = data[pos : pos + size]
            pos += size
        size = _INT.unpack_from(data, pos)[0]
        pos += 4
        value: bytes | None = None
        if size >= 0:
            value = data[pos : pos + size]
            pos += size
    except (StructError, IndexError) as exc:
        raise InvalidMessageError("a message is incomplete") from exc
    if pos != stop:
        raise InvalidMessageError(f"the message at offset {offset} has a wrong length")
    return offset, crc, magic, attributes, time, key, value


def _inner(
    data: bytes, magic: int, last: int, fixed_time: int | None, topic: str, partition: int
) -> list[Record]:
    """Decode the set inside a wrapper whose own offset, that of its last message, is ``last``.

    The inner offsets are absolute in format 0, relative in format 1.
    """
    stops: list[int] = []
    pos, end, relative = 0, len(data), last
    while pos < end:
        if pos + 17 > end:
            raise InvalidMessageError(f"the compressed set at offset {last} is incomplete")
        relative, size, _, inner_magic = _ENTRY.unpack_from(data, pos)
        pos += 12 + size
        if inner_magic != magic or size < _MIN_SIZE[magic] or pos > end:
            raise InvalidMessageError(f"the compressed set at offset {last} cannot be decompressed")
        stops.append(pos)
    shift = last - relative if magic else 0
    out: list[Record] = []
    pos = 0
    for stop in stops:
        offset, _, _, attributes, time, key, value = _fields(data, pos, stop)
        if attributes & 7:
            raise InvalidMessageError(
                f"the compressed set at offset {last} contains another compressed set"
            )
        kind = _kind(magic, attributes)
        if fixed_time is not None:
            time, kind = fixed_time, TimestampType.LOG_APPEND_TIME
        out.append((topic, partition, offset + shift, key, value, time, kind, ()))
        pos = stop
    return out
