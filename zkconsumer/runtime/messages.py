"""What the application gets: messages and the decoders of their keys and values.

No threads and no state. A message is one tuple, made in C from the decoder's record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from zkconsumer.broker.records import Headers, Record, TimestampType

Decode = Callable[[bytes], Any]
"""Turns the bytes of a key or value into an object. Not called for a key or value that is null."""


def bytes_decoder(data: bytes) -> bytes:
    """Return the bytes themselves (Scala: DefaultDecoder)."""
    return data


def string_decoder(encoding: str = "utf-8") -> Decode:
    """Make a decoder of text (Scala: StringDecoder with ``serializer.encoding``).

    The decoder raises ``UnicodeDecodeError``. Raises ``LookupError`` for an unknown encoding.
    """
    "".encode(encoding)
    return lambda data: data.decode(encoding)


def long_decoder(data: bytes) -> int:
    """Read a signed 64-bit big-endian number (Scala: LongDecoder). Raises ``struct.error``."""
    number: int = struct.unpack(">q", data)[0]
    return number


def integer_decoder(data: bytes) -> int:
    """Read a signed 32-bit big-endian number (Scala: IntegerDecoder). Raises ``struct.error``."""
    number: int = struct.unpack(">i", data)[0]
    return number


class MessageAndMetadata(tuple[Any, ...]):
    """One message and where it came from.

    Keys and values are decoded when they are read, each time, and a decoder's error appears only
    there (Scala 1.1.1 MessageAndMetadata).
    """

    __slots__ = ()

    def __new__(
        cls,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int = -1,
        timestamp_type: TimestampType = TimestampType.NONE,
        headers: Headers = (),
    ) -> MessageAndMetadata:
        """Make a message by hand; ``key`` and ``value`` are given as bytes."""
        return tuple.__new__(
            cls, (topic, partition, offset, key, value, timestamp, timestamp_type, headers)
        )

    topic: str = property(itemgetter(0), doc="Name of the topic.")  # type: ignore[assignment]
    partition: int = property(itemgetter(1), doc="Number of the partition.")  # type: ignore[assignment]
    offset: int = property(itemgetter(2), doc="Offset of the message.")  # type: ignore[assignment]
    key: Any = property(itemgetter(3), doc="The decoded key; None for a null key.")
    value: Any = property(itemgetter(4), doc="The decoded value; None for a tombstone.")
    raw_key: bytes | None = property(itemgetter(3), doc="The key's bytes.")  # type: ignore[assignment]
    raw_value: bytes | None = property(itemgetter(4), doc="The value's bytes.")  # type: ignore[assignment]
    timestamp: int = property(itemgetter(5), doc="Milliseconds since 1970; -1 in format 0.")  # type: ignore[assignment]
    timestamp_type: TimestampType = property(itemgetter(6), doc="Who set it.")  # type: ignore[assignment]
    headers: Headers = property(itemgetter(7), doc="Pairs of name and value; format 2.")  # type: ignore[assignment]

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return (
            f"<message {self.topic}-{self.partition} at {self.offset}, "
            f"key {self.raw_key!r}, value {self.raw_value!r}>"
        )


def message_maker(
    key_decoder: Decode, value_decoder: Decode
) -> Callable[[Iterable[Record]], Iterator[MessageAndMetadata]]:
    """Return what turns records into messages with these decoders."""
    cls: type[MessageAndMetadata] = MessageAndMetadata
    if key_decoder is not bytes_decoder or value_decoder is not bytes_decoder:

        def key(message: MessageAndMetadata) -> Any:
            data = message.raw_key
            return None if data is None else key_decoder(data)

        def value(message: MessageAndMetadata) -> Any:
            data = message.raw_value
            return None if data is None else value_decoder(data)

        cls = type(
            "MessageAndMetadata",
            (MessageAndMetadata,),
            {
                "__slots__": (),
                "__doc__": MessageAndMetadata.__doc__,
                "key": property(key, doc=MessageAndMetadata.key.__doc__),
                "value": property(value, doc=MessageAndMetadata.value.__doc__),
            },
        )
    return partial(map, partial(tuple.__new__, cls))
