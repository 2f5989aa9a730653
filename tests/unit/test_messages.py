"""Messages as the application gets them. These tests also run on the compiled wheel."""

from __future__ import annotations

import copy
import gc
import pickle
import struct

import pytest

from zkconsumer import TimestampType
from zkconsumer.broker.fetching.records import (
    COMPILED,
    DecodedMessage,
    MessageAndMetadata,
    MessageDecoder,
)
from zkconsumer.runtime.delivery.messages import integer_decoder, long_decoder, message_decoder

RECORD = ("t", 3, 1 << 40, b"k", b"v", 77, TimestampType.CREATE_TIME, (("h", b"x"), ("n", None)))


def shout(data: bytes) -> str:
    """A decoder that can be pickled."""
    return data.decode().upper()


def test_a_message_made_by_hand() -> None:
    """The order of the arguments, and the defaults of the last three."""
    message = MessageAndMetadata("t", 3, 5, b"k", None)
    assert (message.topic, message.partition, message.offset) == ("t", 3, 5)
    assert (message.key, message.raw_key, message.value, message.raw_value) == (
        b"k",
        b"k",
        None,
        None,
    )
    assert (message.timestamp, message.timestamp_type) == (-1, TimestampType.NONE)
    assert message.headers == ()
    assert repr(message) == "<message t-3 at 5, key b'k', value None>"
    assert MessageAndMetadata(*RECORD).as_record() == RECORD


def test_decoders_are_called_when_a_key_or_value_is_read() -> None:
    """They are called each time, but not for null. An error appears only there."""
    seen: list[bytes] = []

    def value(data: bytes) -> int:
        seen.append(data)
        return long_decoder(data)

    maker = message_decoder(None, integer_decoder, value)
    message = maker.message(("t", 0, 1, bytes(4), b"short", -1, TimestampType.NONE, ()))
    assert (message.key, message.raw_value, seen) == (0, b"short", [])
    for _ in range(2):
        with pytest.raises(struct.error):
            message.value  # noqa: B018
    assert seen == [b"short", b"short"]
    null = maker.message(("t", 0, 1, None, None, -1, TimestampType.NONE, ()))
    assert (null.key, null.value, len(seen)) == (None, None, 2)


def test_messages_are_compared_copied_and_pickled_by_value() -> None:
    """Messages with decoders, too."""
    plain = MessageAndMetadata(*RECORD)
    decoded = MessageDecoder(None, (shout, shout)).message(RECORD)
    assert isinstance(decoded, DecodedMessage)
    for message in (plain, decoded):
        again = pickle.loads(pickle.dumps(message))
        assert type(again) is type(message)
        assert (again, hash(again), again.key) == (message, hash(message), message.key)
        assert copy.copy(message) == message
    assert decoded.key == "K"
    for place, other in enumerate(("u", 4, 6, b"", None, 78, TimestampType.NONE, ())):
        assert plain != MessageAndMetadata(*RECORD[:place], other, *RECORD[place + 1 :])
    assert plain != RECORD


def test_the_garbage_collector_looks_at_no_message_of_the_compiled_build() -> None:
    """It would look at each message of a list, which costs as much as decoding it."""
    assert gc.is_tracked(MessageAndMetadata(*RECORD)) is not COMPILED
