"""The application's messages, and the decoders of their keys and values.

No threads and no state. The class of messages is in ``broker.records``, which is compiled.
"""

from __future__ import annotations

import struct

from zkconsumer.broker.fetching.records import Decode, Decoder, MessageDecoder


def bytes_decoder(data: bytes) -> bytes:
    """Return the bytes themselves (Scala: DefaultDecoder)."""
    return data


def string_decoder(encoding: str = "utf-8") -> Decode:
    """Return a decoder of text (Scala: StringDecoder with ``serializer.encoding``).

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


def message_decoder(
    decoder: Decoder | None, key_decoder: Decode, value_decoder: Decode
) -> MessageDecoder:
    """Return a decoder for messages that reads keys and values with these decoders."""
    if key_decoder is bytes_decoder and value_decoder is bytes_decoder:
        return MessageDecoder(decoder, None)
    return MessageDecoder(decoder, (key_decoder, value_decoder))
