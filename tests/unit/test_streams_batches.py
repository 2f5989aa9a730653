"""Batches of a stream: their content, when they count as consumed, and how they end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.batches import chunk, counted
from tests.unit.test_streams import open_gate, stream
from zkconsumer.broker.fetching import columns
from zkconsumer.broker.fetching.records import MessageAndMetadata, PythonDecoder, Record
from zkconsumer.errors import ConsumerTimeoutError, InvalidMessageError, UsageError
from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo
from zkconsumer.runtime.delivery.messages import string_decoder
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import CLOCK, DeliveryGate


@pytest.fixture
def info() -> PartitionTopicInfo:
    """A partition that starts at offset 0."""
    return PartitionTopicInfo("topic", 0, 0)


def offsets(messages: list[MessageAndMetadata]) -> list[int]:
    """The offsets of a batch."""
    return [message.offset for message in messages]


def test_a_batch_has_messages_of_one_partition_in_order(info: PartitionTopicInfo) -> None:
    """It has messages of one chunk, over the producer's batches, and not of two partitions."""
    other = PartitionTopicInfo("topic", 1, 0)
    tested = stream()
    data = b"".join(counted(offset) for offset in range(5))
    tested._reader.queue.put(Chunk(info, data, 0, 5))
    tested._reader.queue.put(chunk(other, 0, 2))
    found = tested.batches(max_messages=3)
    assert [offsets(next(found)) for _ in range(3)] == [[0, 1, 2], [3, 4], [0, 1, 2]]
    assert (info.consumed_offset, other.consumed_offset, tested._reader.delivered) == (5, 0, 8)


def test_messages_are_those_of_the_iterator() -> None:
    """The stream's decoders are used, and the chunk's bytes are counted."""
    tested = stream(value_decoder=string_decoder())
    info = PartitionTopicInfo("topic", 0, 0)
    tested._reader.queue.put(chunk(info, 0, 2))
    first, second = next(tested.batches(max_messages=2))
    assert (first.key, first.value, second.value) == (b"k0", "0", "1")
    assert isinstance(first, MessageAndMetadata)
    assert tested._reader.bytes_begun
    assert next(iter(tested)).offset == 2, "both ways of reading share one position"


def test_a_batch_is_consumed_when_the_next_is_asked_for(info: PartitionTopicInfo) -> None:
    """Until then a commit covers none of its messages. ``mark_consumed`` covers all of them at
    once."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 9))
    found = tested.batches(max_messages=4)
    next(found)
    assert info.consumed_offset == 0
    next(found)
    assert info.consumed_offset == 4
    tested.mark_consumed()
    assert info.consumed_offset == 8
    assert offsets(next(found)) == [8, 9]
    with pytest.raises(ConsumerTimeoutError):
        next(found)
    assert info.consumed_offset == 10


def test_the_scala_profile_consumes_a_batch_when_it_returns_it(info: PartitionTopicInfo) -> None:
    """As it does with a single message."""
    tested = stream(scala=True)
    tested._reader.queue.put(chunk(info, 0, 9))
    next(tested.batches(max_messages=4))
    assert info.consumed_offset == 4


def test_a_revoked_partition_ends_its_batches(info: PartitionTopicInfo) -> None:
    """No further message of it is delivered. The revoke waits for the current batch, which then
    counts as consumed."""
    other = PartitionTopicInfo("topic", 1, 0)
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 9))
    found = tested.batches(max_messages=4)
    next(found)
    tested._reader.revoke([info])
    tested._reader.queue.put(chunk(other, 0, 1))
    assert not tested._reader.release([info])
    assert offsets(next(found)) == [0, 1]
    assert tested._reader.release([info])
    assert (info.consumed_offset, tested._reader.delivered) == (4, 6)


def test_a_batch_that_is_given_up_is_not_consumed(info: PartitionTopicInfo) -> None:
    """Its partition was released while the application still used it."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 9))
    found = tested.batches(max_messages=4)
    next(found)
    tested._reader.revoke([info])
    assert tested._reader.release([info], force=True)
    with pytest.raises(ConsumerTimeoutError):
        next(found)
    assert info.consumed_offset == 0


def test_a_partition_is_revoked_while_its_batch_is_decoded(info: PartitionTopicInfo) -> None:
    """Nothing of the partly decoded batch is delivered."""

    class Revoking:
        def decode(
            self, data: bytes, topic: str, partition: int, start: int
        ) -> Iterator[list[Record]]:
            for number, records in enumerate(PythonDecoder().decode(data, topic, partition, start)):
                if number == 1:
                    tested._reader.revoke([info])
                yield records

    tested = stream(timeout_ms=0, decoder=Revoking())
    tested._reader.queue.put(Chunk(info, counted(0, 2) + counted(2, 2), 0, 4))
    with pytest.raises(ConsumerTimeoutError):
        next(tested.batches())
    assert (info.consumed_offset, tested._reader.delivered) == (0, 0)


def test_a_closed_gate_holds_a_batch_back(info: PartitionTopicInfo) -> None:
    """The lease is checked once for each batch. Nothing is delivered after its end, and everything
    when it is renewed."""
    gate = DeliveryGate()
    tested = KafkaStream(Reader(gate, timeout_ms=0))
    tested._reader.queue.put(chunk(info, 0, 9))
    assert next(tested.batches(5, timeout=0)) == []
    with pytest.raises(ConsumerTimeoutError):
        next(tested.batches())
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert offsets(next(tested.batches(5, timeout=0))) == [0, 1, 2, 3, 4]


def test_time_limits(info: PartitionTopicInfo) -> None:
    """``timeout`` gives an empty batch. Without it ``consumer.timeout.ms`` raises an error. Either
    way, the iterator can be used again."""
    tested = stream(timeout_ms=50)
    patient, found = tested.batches(timeout=0.01), tested.batches()
    assert next(patient) == []
    with pytest.raises(ConsumerTimeoutError):
        next(found)
    tested._reader.queue.put(chunk(info, 0, 1))
    assert offsets(next(found)) == [0, 1]
    assert next(patient) == []
    assert info.consumed_offset == 2


def test_a_waiting_batch_is_woken(info: PartitionTopicInfo) -> None:
    """A message wakes it, and so does the end."""
    tested = KafkaStream(Reader(open_gate()))
    got: list[list[int]] = []

    def consume() -> None:
        got.extend(offsets(messages) for messages in tested.batches())

    thread = threading.Thread(daemon=True, target=consume)
    thread.start()
    tested._reader.queue.put(chunk(info, 0, 1))
    deadline = time.monotonic() + 10
    while info.consumed_offset != 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    tested._reader.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert got == [[0, 1]]


def test_damage_is_raised_after_the_messages_before_it(info: PartitionTopicInfo) -> None:
    """As with single messages, valid messages come first, then the error, then ``UsageError``."""
    bad = bytearray(counted(2, 2))
    bad[-1] ^= 1
    tested = stream()
    tested._reader.queue.put(Chunk(info, counted(0, 2) + bytes(bad), 0, 4))
    found = tested.batches()
    assert offsets(next(found)) == [0, 1]
    with pytest.raises(InvalidMessageError, match="checksum"):
        next(found)
    assert info.consumed_offset == 2
    with pytest.raises(UsageError):
        next(found)


def test_columns_are_the_rest_of_a_chunk(info: PartitionTopicInfo) -> None:
    """Each chunk gives one record batch, after the messages that were read one by one."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(Chunk(info, counted(0, 2) + counted(2, 2), 0, 4))
    tested._reader.queue.put(chunk(info, 4, 6))
    assert next(iter(tested)).offset == 0
    found = tested.arrow_batches()
    first = next(found)
    assert first["offset"].to_pylist() == [1, 2, 3]
    assert first["value"].to_pylist() == [b"1", b"2", b"3"]
    assert first.schema == columns.SCHEMA
    assert (info.consumed_offset, tested._reader.delivered) == (1, 4)
    assert next(found)["offset"].to_pylist() == [4, 5, 6]
    assert info.consumed_offset == 4
    with pytest.raises(ConsumerTimeoutError):
        next(found)
    assert (info.consumed_offset, tested._reader.delivered) == (7, 7)


def test_columns_wait_as_lists_do(info: PartitionTopicInfo) -> None:
    """There is an empty batch after ``timeout``, nothing without a lease, and the end stops it."""
    gate = DeliveryGate()
    tested = KafkaStream(Reader(gate, timeout_ms=50))
    tested._reader.queue.put(chunk(info, 0, 1))
    found = tested.arrow_batches(timeout=0.01)
    assert next(found).num_rows == 0
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert next(found).num_rows == 2
    assert (next(found).num_rows, next(found).schema == columns.SCHEMA) == (0, True)
    tested._reader.shutdown()
    with pytest.raises(StopIteration):
        next(found)


@pytest.mark.parametrize("revoked", ["while they are decoded", "while the lease is out"])
def test_columns_of_a_partition_that_is_revoked_meanwhile(
    info: PartitionTopicInfo, monkeypatch: pytest.MonkeyPatch, revoked: str
) -> None:
    """Nothing that was decoded is delivered, also if the lease ends meanwhile."""
    gate = open_gate()
    tested = KafkaStream(Reader(gate, timeout_ms=0))
    right = columns.decode
    decoded: list[columns.Decoded] = []

    def decode(*arguments: Any) -> columns.Decoded:
        gate.close()
        if revoked == "while they are decoded":
            tested._reader.revoke([info])
        decoded.append(right(*arguments))
        return decoded[-1]

    monkeypatch.setattr(columns, "decode", decode)
    tested._reader.queue.put(chunk(info, 0, 1))
    assert next(tested.arrow_batches(timeout=0)).num_rows == 0
    assert [each.batch.num_rows for each in decoded] == [2]
    tested._reader.revoke([info])
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert next(tested.arrow_batches(timeout=0)).num_rows == 0
    assert (info.consumed_offset, tested._reader.delivered) == (0, 0)


def test_columns_that_the_lease_holds_back_are_decoded_once(
    info: PartitionTopicInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are delivered when the lease is renewed, or as messages to whoever asks for those."""
    right, decoded = columns.decode, 0
    for ask_for_columns in (True, False):
        gate = open_gate()
        tested = KafkaStream(Reader(gate, timeout_ms=0))
        claim, decoded = PartitionTopicInfo("topic", 0, 0), 0

        def decode(*arguments: Any, gate: DeliveryGate = gate) -> columns.Decoded:
            nonlocal decoded
            gate.close()
            decoded += 1
            return right(*arguments)

        monkeypatch.setattr(columns, "decode", decode)
        tested._reader.queue.put(chunk(claim, 0, 1))
        assert next(tested.arrow_batches(timeout=0)).num_rows == 0
        gate.extend(time.clock_gettime(CLOCK) + 3600)
        if ask_for_columns:
            assert next(tested.arrow_batches(timeout=0))["offset"].to_pylist() == [0, 1]
        else:
            assert offsets(next(tested.batches(timeout=0))) == [0, 1]
        assert (tested._reader.delivered, decoded) == (2, 1)


def test_columns_end_before_damage(info: PartitionTopicInfo) -> None:
    """Single messages do the same."""
    bad = bytearray(counted(2, 2))
    bad[-1] ^= 1
    tested = stream()
    tested._reader.queue.put(Chunk(info, counted(0, 2) + bytes(bad), 0, 4))
    found = tested.arrow_batches()
    assert next(found)["offset"].to_pylist() == [0, 1]
    with pytest.raises(InvalidMessageError, match="checksum"):
        next(found)
    with pytest.raises(UsageError):
        next(found)


def test_some_columns_of_a_stream(info: PartitionTopicInfo) -> None:
    """Whoever asks for other columns gets what another iterator did not take."""
    gate = open_gate()
    tested = KafkaStream(Reader(gate, timeout_ms=0))
    tested._reader.queue.put(chunk(info, 0, 2))
    values = tested.arrow_batches(timeout=0, columns=("value", "offset"))
    keys = tested.arrow_batches(timeout=0, columns=("key",))
    assert next(values).to_pydict() == {"value": [b"0", b"1", b"2"], "offset": [0, 1, 2]}
    assert info.consumed_offset == 0
    tested.mark_consumed()
    assert (info.consumed_offset, tested._reader.delivered) == (3, 3)
    tested._reader.queue.put(chunk(info, 3, 4))
    gate.close()
    assert (next(values).schema.names, next(values).num_rows) == (["value", "offset"], 0)
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert next(keys).to_pydict() == {"key": [b"k3", b"k4"]}
    assert next(keys).num_rows == 0
    assert (info.consumed_offset, tested._reader.delivered) == (5, 5)
    with pytest.raises(ValueError, match="name at least one of topic"):
        tested.arrow_batches(columns=("values",))


def test_columns_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "zkconsumer.broker.fetching.columns")
    with pytest.raises(UsageError, match="the extra 'arrow'"):
        stream().arrow_batches()


def test_the_ways_to_read_may_be_mixed(info: PartitionTopicInfo) -> None:
    """Whatever was asked for last, each call returns items of its own kind, and nothing is left
    out."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 19))
    lists, polled, columns_ = tested.batches(2), tested.batches(3, 0), tested.arrow_batches()
    read: list[list[int]] = []
    ways = "next list next try list try_list next try_list try list"
    for ask in ways.split():
        match ask:
            case "list":
                read.append(offsets(next(lists)))
            case "try_list":
                read.append(offsets(next(polled)))
            case "try":
                message = tested.try_next()
                assert message is not None
                read.append([message.offset])
            case _:
                read.append([next(iter(tested)).offset])
    read.append(next(columns_)["offset"].to_pylist())
    assert [len(some) for some in read] == [1, 2, 1, 1, 2, 3, 1, 3, 1, 2, 3]
    assert [offset for some in read for offset in some] == list(range(20))
    assert info.position == 17


@pytest.mark.parametrize("then", ["next list", "try_next"])
def test_a_list_belongs_to_the_application(info: PartitionTopicInfo, then: str) -> None:
    """It may empty its list before it asks for the next one."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 9))
    lists = tested.batches(4)
    next(lists).clear()
    if then == "next list":
        assert offsets(next(lists)) == [4, 5, 6, 7]
    else:
        assert (message := tested.try_next()) is not None
        assert message.offset == 4
    assert info.position == 4


def test_arguments_are_checked() -> None:
    """The error names the argument."""
    tested = stream()
    with pytest.raises(ValueError, match="max_messages is 0"):
        tested.batches(max_messages=0)
    with pytest.raises(ValueError, match="timeout is -1"):
        tested.batches(timeout=-1)
    with pytest.raises(ValueError, match="timeout is -1"):
        tested.arrow_batches(timeout=-1)
