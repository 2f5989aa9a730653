"""Streams and their iterator: what is delivered, what counts as consumed, how they end."""

from __future__ import annotations

import pickle
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.batches import batch, chunk, counted
from zkconsumer.broker.fetching.records import MessageAndMetadata, PythonDecoder, Record
from zkconsumer.errors import (
    ConsumerTimeoutError,
    InvalidMessageError,
    MessageSizeTooLargeError,
    UsageError,
)
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.messages import integer_decoder, long_decoder, string_decoder
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.undisturbed import Alarm
from zkconsumer.servers import wait_until

GZIP = 1


def waits(thread: threading.Thread) -> bool:
    """Whether a thread is about to wait for a message, or does."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is Alarm.wait.__code__


def open_gate() -> DeliveryGate:
    """A gate that is open for the whole test."""
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    return gate


def stream(timeout_ms: int = 200, scala: bool = False, **options: object) -> KafkaStream:
    """A stream with an open gate."""
    reader: Any = ScalaReader if scala else Reader
    return KafkaStream(reader(open_gate(), timeout_ms=timeout_ms, **options))


@pytest.fixture
def info() -> PartitionTopicInfo:
    """A partition that starts at offset 0."""
    return PartitionTopicInfo("topic", 0, 0)


def test_a_reset_counts_at_once_though_messages_from_before_it_come_first() -> None:
    """A commit meanwhile stores where reading continues, not an offset that the log has lost."""
    info = PartitionTopicInfo("topic", 0, 60)
    tested = stream()
    tested._reader.queue.put(chunk(info, 60, 61))
    info.pending_reset = reset = Chunk(info, b"", 5, 5)
    tested._reader.queue.put(reset)
    tested._reader.queue.put(chunk(info, 5, 6))
    got = []
    for _ in range(3):
        got.append(next(iter(tested)).offset)
        assert info.position == 5
    assert (got, info.pending_reset) == ([60, 61, 5], None)
    assert next(iter(tested)).offset == 6
    assert info.position == 6


def test_a_reset_waits_behind_what_was_fetched_before() -> None:
    """If messages from before are still queued, the new position is known at once. But the consumed
    offset moves only after them."""
    info = PartitionTopicInfo("topic", 0, 60)
    tested = stream()
    tested._reader.queue.put(chunk(info, 60, 61))
    info.fetched_offset = 62
    tested._reader.queue.reset(info, 5, at_once=False)
    assert (info.consumed_offset, info.position, info.fetched_offset) == (60, 5, 5)
    assert [next(iter(tested)).offset for _ in range(2)] == [60, 61]
    assert (info.consumed_offset, info.position) == (61, 5)
    with pytest.raises(ConsumerTimeoutError):
        next(iter(tested))
    assert (info.consumed_offset, info.pending_reset) == (5, None)


def test_a_reset_with_nothing_under_way_needs_no_reader() -> None:
    """The new position is consumed and can be committed, although no thread reads."""
    info = PartitionTopicInfo("topic", 0, None)
    tested = stream()
    tested._reader.queue.reset(info, 5, at_once=False)
    assert (info.consumed_offset, info.position, len(tested._reader.queue)) == (5, 5, 0)


def test_a_reset_during_decoding_is_not_undone_by_the_chunk_s_end() -> None:
    """All messages of a chunk are consumed. A reset arrives while the consuming thread looks for
    more in that chunk without the lock. The position stays where the reset has set it."""
    info = PartitionTopicInfo("topic", 0, 60)

    class Interrupted:
        def decode(
            self, data: bytes, topic: str, partition: int, start: int
        ) -> Iterator[list[Record]]:
            yield from PythonDecoder().decode(data, topic, partition, start)
            if data:
                tested._reader.queue.reset(info, 5, at_once=False)

    tested = stream(timeout_ms=0, decoder=Interrupted())
    tested._reader.queue.put(chunk(info, 60, 61))
    info.fetched_offset = 62
    assert [next(iter(tested)).offset for _ in range(2)] == [60, 61]
    with pytest.raises(ConsumerTimeoutError):
        next(iter(tested))
    assert (info.consumed_offset, info.position) == (5, 5)


@pytest.mark.parametrize("end", ["stopped", "revoked"])
def test_a_reset_of_a_partition_that_was_given_away_changes_nothing(end: str) -> None:
    """Its final position may be committed already."""
    info = PartitionTopicInfo("topic", 0, 60)
    tested = stream()
    setattr(info, end, True)
    tested._reader.queue.reset(info, 5, at_once=False)
    assert (info.consumed_offset, info.position) == (60, 60)


def test_try_next_never_waits(info: PartitionTopicInfo) -> None:
    """It returns a message or None, counts the previous one as consumed, and ends and fails like
    the iterator."""
    tested = stream(timeout_ms=-1)
    assert tested.try_next() is None
    tested._reader.queue.put(chunk(info, 0, 1))
    got = [tested.try_next() for _ in range(3)]
    assert [message and message.offset for message in got] == [0, 1, None]
    assert info.consumed_offset == 2
    tested._reader.fail(InvalidMessageError("broken"))
    with pytest.raises(InvalidMessageError):
        tested.try_next()
    with pytest.raises(UsageError):
        tested.try_next()
    ended = stream(timeout_ms=-1)
    ended._reader.shutdown()
    with pytest.raises(StopIteration):
        ended.try_next()


def test_try_next_respects_the_gate(info: PartitionTopicInfo) -> None:
    """With a closed gate, the stream looks empty."""
    gate = DeliveryGate()
    tested = KafkaStream(Reader(gate))
    tested._reader.queue.put(chunk(info, 0, 1))
    assert tested.try_next() is None
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    message = tested.try_next()
    assert message is not None
    assert message.offset == 0


def test_release_never_waits(info: PartitionTopicInfo) -> None:
    """It reports whether any thread has an unacknowledged message, and can end that by force. The
    message then counts as not consumed."""
    tested = stream()
    tested._reader.queue.put(chunk(info, 0, 4))
    tested.try_next()
    other = PartitionTopicInfo("topic", 1, 0)
    assert tested._reader.release([other])
    assert not tested._reader.release([info])
    tested.mark_consumed()
    assert tested._reader.release([info])
    assert info.consumed_offset == 1
    tested.try_next()
    tested._reader.revoke([info])
    assert tested._reader.release([info], force=True)
    assert tested._reader.release([info])
    assert tested.try_next() is None
    assert info.consumed_offset == 1


@pytest.mark.parametrize("scala", [False, True])
def test_consumer_iterator_deduplication_deep_iterator(scala: bool) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDeduplicationDeepIterator: of a compressed set 0-9
    that is fetched from offset 5, exactly 5-9 are delivered. Then the end is reached and the queue
    is empty."""
    info = PartitionTopicInfo("topic", 0, 5)
    tested = stream(scala=scala)
    tested._reader.queue.put(Chunk(info, counted(0, 10, GZIP), 5, 10))
    iterator = iter(tested)
    assert [next(iterator).offset for _ in range(5)] == [5, 6, 7, 8, 9]
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    assert info.consumed_offset == 10
    tested._reader.shutdown()
    assert list(iterator) == []
    assert len(tested._reader.queue) == 0


@pytest.mark.parametrize("scala", [False, True])
def test_consumer_iterator_decoding_failure(scala: bool) -> None:
    """ConsumerIteratorTest.testConsumerIteratorDecodingFailure: with a decoder that always raises,
    the iteration yields 5-9. The error appears when the value is read."""

    def fail(data: bytes) -> object:
        raise UnsupportedOperationError

    info = PartitionTopicInfo("topic", 0, 5)
    tested = stream(scala=scala, key_decoder=fail, value_decoder=fail)
    tested._reader.queue.put(Chunk(info, counted(0, 10, GZIP), 5, 10))
    offsets = []
    for _ in range(5):
        message = next(iter(tested))
        offsets.append(message.offset)
        with pytest.raises(UnsupportedOperationError):
            _ = message.value
        with pytest.raises(UnsupportedOperationError):
            _ = message.key
    assert offsets == [5, 6, 7, 8, 9]


class UnsupportedOperationError(Exception):
    """The failing decoder raises it."""


@pytest.mark.parametrize("scala", [False, True])
def test_iterator(info: PartitionTopicInfo, scala: bool) -> None:
    """IteratorTemplateTest.testIterator: next continues in order, and at the end next raises. There
    is one iterator, without hasNext and peek."""
    tested = stream(scala=scala)
    tested._reader.queue.put(chunk(info, 0, 9))
    iterator = iter(tested)
    assert iter(tested) is iterator
    for i in range(10):
        assert next(iterator).value == b"%d" % i
    tested._reader.shutdown()
    for call in (iterator.__next__, tested.try_next, tested.batches(timeout=0).__next__):
        with pytest.raises(StopIteration):
            call()
    assert list(tested) == []


def test_consumed_when_the_next_is_asked_for(info: PartitionTopicInfo) -> None:
    """A message does not count as consumed when it is returned. It counts when next or try_next
    asks for another one, even if there is none, or by mark_consumed."""
    tested = stream(timeout_ms=10)
    iterator = iter(tested)
    tested._reader.queue.put(chunk(info, 0, 4))
    consumed = []
    for ask in (iterator.__next__, tested.try_next, iterator.__next__):
        ask()
        consumed.append(info.consumed_offset)
    assert consumed == [0, 1, 2]
    tested.mark_consumed()
    assert info.consumed_offset == 3
    next(iterator)
    assert info.consumed_offset == 3
    next(iterator)
    assert info.consumed_offset == 4
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    assert info.consumed_offset == 5


def test_consumed_when_returned_in_the_scala_profile(info: PartitionTopicInfo) -> None:
    """As in the JVM, next moves the consumed offset at once."""
    tested = stream(scala=True)
    iterator = iter(tested)
    tested._reader.queue.put(chunk(info, 0, 4))
    consumed = []
    for ask in (iterator.__next__, tested.try_next, iterator.__next__):
        ask()
        consumed.append(info.consumed_offset)
    assert consumed == [1, 2, 3]


def test_gaps_count_as_consumed(info: PartitionTopicInfo) -> None:
    """Offsets without a message (control batches, compaction) are consumed with the chunk."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(Chunk(info, counted(0, 2), 0, 7))
    assert [next(iter(tested)).offset for _ in range(2)] == [0, 1]
    with pytest.raises(ConsumerTimeoutError):
        next(iter(tested))
    assert info.consumed_offset == 7


def test_reset_reaches_the_consumer_in_turn(info: PartitionTopicInfo) -> None:
    """An empty chunk moves the consumed offset after everything that was fetched before it, also
    down."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 1))
    tested._reader.queue.put(Chunk(info, b"", 90, 90))
    next(iter(tested))
    assert info.consumed_offset == 0
    next(iter(tested))
    with pytest.raises(ConsumerTimeoutError):
        next(iter(tested))
    assert info.consumed_offset == 90


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(-1, None), (0, 0.0), (250, 0.25)])
def test_the_timeout_is_in_milliseconds(timeout_ms: int, seconds: float | None) -> None:
    """A negative one waits indefinitely. 0 does not wait."""
    made = Reader(DeliveryGate(always_open=True), timeout_ms=timeout_ms)
    assert made._timeout == seconds


def test_timeout_leaves_the_iterator_usable(info: PartitionTopicInfo) -> None:
    """It raises ConsumerTimeoutError twice, then returns messages. The time is about right."""
    tested = stream(timeout_ms=60)
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(ConsumerTimeoutError, match="60"):
            next(iter(tested))
        assert 0.05 < time.monotonic() - begun < 5
    tested._reader.queue.put(chunk(info, 0, 0))
    assert next(iter(tested)).offset == 0


@pytest.mark.parametrize("scala", [False, True])
def test_errors_leave_the_iterator_failed(info: PartitionTopicInfo, scala: bool) -> None:
    """After a wrong checksum, the messages before it are delivered. Then every call raises
    UsageError."""
    tested = stream(scala=scala)
    bad = bytearray(counted(2, 2))
    bad[-1] ^= 1
    tested._reader.queue.put(Chunk(info, counted(0, 2) + bytes(bad), 0, 4))
    iterator = iter(tested)
    assert [next(iterator).offset for _ in range(2)] == [0, 1]
    with pytest.raises(InvalidMessageError, match="topic-0"):
        next(iterator)
    assert info.consumed_offset == 2
    for call in (iterator.__next__, tested.try_next, tested.batches(timeout=0).__next__):
        with pytest.raises(UsageError, match="checksum"):
            call()


def test_damaged_chunk_never_ends_silently(info: PartitionTopicInfo) -> None:
    """A chunk marked as damaged raises after its records, even if the decoder found no damage."""
    tested = stream()
    tested._reader.queue.put(Chunk(info, counted(0, 2), 0, 2, damaged=True))
    assert [next(iter(tested)).offset for _ in range(2)] == [0, 1]
    with pytest.raises(InvalidMessageError):
        next(iter(tested))


def test_message_too_large(info: PartitionTopicInfo) -> None:
    """Brokers before 0.10.1 send only the head of a message. The error names the key to
    increase."""
    tested = stream()
    tested._reader.queue.put(Chunk(info, counted(0, 50)[:100], 0, 0))
    with pytest.raises(MessageSizeTooLargeError, match=r"topic-0.*fetch\.message\.max\.bytes"):
        next(iter(tested))


def test_revoke_takes_everything_of_a_partition(info: PartitionTopicInfo) -> None:
    """Queued chunks and the rest of the current one are gone at once. Other partitions continue.
    Late puts are refused."""
    other = PartitionTopicInfo("topic", 1, 0)
    tested = stream(timeout_ms=0, queue_capacity=9)
    iterator = iter(tested)
    for item in (chunk(info, 0, 4), chunk(other, 0, 1), chunk(info, 5, 9)):
        assert tested._reader.queue.put(item)
    next(iterator)
    tested._reader.revoke([info])
    assert info.revoked
    assert not tested._reader.queue.put(chunk(info, 10, 11))
    assert [next(iterator).partition for _ in range(2)] == [1, 1]
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    assert info.consumed_offset == 1


def test_wait_released_waits_for_the_message_in_hand(info: PartitionTopicInfo) -> None:
    """It returns when the application asks for the next message. The position is then final."""
    tested = stream(timeout_ms=5000)
    tested._reader.queue.put(chunk(info, 0, 4))
    holding, go_on = threading.Event(), threading.Event()

    def consume() -> None:
        next(iter(tested))
        holding.set()
        go_on.wait(10)
        next(iter(tested), None)

    thread = threading.Thread(daemon=True, target=consume)
    thread.start()
    assert holding.wait(10)
    tested._reader.revoke([info])
    assert not tested._reader.wait_released(
        [PartitionTopicInfo("t", 0, 0), info], time.monotonic() + 0.05
    )
    assert info.consumed_offset == 0
    go_on.set()
    tested._reader.shutdown()
    thread.join(10)
    assert info.consumed_offset == 0, "the deadline had passed: final"

    second = PartitionTopicInfo("topic", 0, 0)
    tested = stream(timeout_ms=5000)
    tested._reader.queue.put(chunk(second, 0, 4))
    holding.clear()
    go_on.clear()
    thread = threading.Thread(daemon=True, target=consume)
    thread.start()
    assert holding.wait(10)
    tested._reader.revoke([second])
    threading.Timer(0.05, go_on.set).start()
    assert tested._reader.wait_released([second], time.monotonic() + 10)
    assert second.consumed_offset == 1
    tested._reader.shutdown()
    thread.join(10)


def test_wait_released_by_the_holder_itself(info: PartitionTopicInfo) -> None:
    """The thread that has the unacknowledged message does not wait for itself. The message never
    counts as consumed."""
    tested = stream(timeout_ms=0)
    tested._reader.queue.put(chunk(info, 0, 4))
    next(iter(tested))
    assert tested._reader.held_by(threading.get_ident())
    tested._reader.revoke([info])
    begun = time.monotonic()
    assert tested._reader.wait_released([info], begun + 10)
    assert time.monotonic() - begun < 5
    assert not tested._reader.held_by(threading.get_ident())
    with pytest.raises(ConsumerTimeoutError):
        next(iter(tested))
    assert info.consumed_offset == 0


def test_wait_released_after_the_holder_has_ended(info: PartitionTopicInfo) -> None:
    """A message taken by a thread that has ended delays nothing."""
    tested = stream()
    tested._reader.queue.put(chunk(info, 0, 4))
    thread = threading.Thread(daemon=True, target=lambda: next(iter(tested)))
    thread.start()
    thread.join()
    tested._reader.revoke([info])
    begun = time.monotonic()
    assert tested._reader.wait_released([info], begun + 10)
    assert time.monotonic() - begun < 5
    assert info.consumed_offset == 0


def test_shut_gate_holds_messages_back(info: PartitionTopicInfo) -> None:
    """Nothing is delivered while the session is uncertain, not even a decoded message. Delivery
    continues when the gate is extended, even after close."""
    gate = DeliveryGate()
    tested = KafkaStream(Reader(gate, timeout_ms=30))
    iterator = iter(tested)
    tested._reader.queue.put(chunk(info, 0, 4))
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert next(iterator).offset == 0
    gate.close()
    with pytest.raises(ConsumerTimeoutError):
        next(iterator)
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    assert next(iterator).offset == 1
    assert gate.suspended_seconds >= 0.02


def test_gate_expires_by_itself_and_wakes_the_stream(info: PartitionTopicInfo) -> None:
    """After valid_until nothing is delivered. Extending the gate wakes a waiting thread."""
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 0.05)
    tested = KafkaStream(Reader(gate))
    tested._reader.queue.put(chunk(info, 0, 4))
    wait_until(lambda: not gate.is_open, 5, "the gate shuts")
    got: list[MessageAndMetadata] = []
    thread = threading.Thread(daemon=True, target=lambda: got.append(next(iter(tested))))
    thread.start()
    wait_until(lambda: gate._waiters, 5, "the stream waits")
    assert got == []
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    thread.join(10)
    assert [message.offset for message in got] == [0]


def test_revoke_and_shutdown_reach_a_stream_held_by_the_gate(info: PartitionTopicInfo) -> None:
    """A thread that waits for the gate ends at shutdown, without the revoked message."""
    tested = KafkaStream(Reader(DeliveryGate()))
    tested._reader.queue.put(chunk(info, 0, 4))
    got: list[MessageAndMetadata] = []
    thread = threading.Thread(daemon=True, target=lambda: got.extend(tested))
    thread.start()
    wait_until(lambda: len(tested._reader.queue) == 0, 5, "the chunk is taken")
    tested._reader.revoke([info])
    tested._reader.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert got == []


def test_gate_that_is_always_open() -> None:
    """The scala profile's gate cannot be closed and is never suspended."""
    gate = DeliveryGate(always_open=True)
    gate.close()
    gate.extend(0)
    assert gate.is_open
    assert gate.suspended_seconds == 0


@pytest.mark.parametrize("scala", [False, True])
def test_shutdown_ends_a_waiting_iterator(scala: bool) -> None:
    """A thread that waits in next is woken, and the iteration has ended for good."""
    tested = stream(timeout_ms=-1, scala=scala)
    thread = threading.Thread(daemon=True, target=lambda: list(tested))
    thread.start()
    tested._reader.shutdown()
    thread.join(10)
    assert not thread.is_alive()
    assert list(tested) == []


def test_an_offer_is_refused_until_there_is_room(info: PartitionTopicInfo) -> None:
    """A full queue refuses a chunk until there is room. After a stop, a revoke or a shutdown, the
    chunk is dropped instead."""

    def set_stopped(tested: KafkaStream, blocked: PartitionTopicInfo) -> None:
        blocked.stopped = True

    releases = {
        "space": (lambda tested, _: next(iter(tested)), 1),
        "stop": (set_stopped, 1),
        "revoke": (lambda tested, blocked: tested._reader.revoke([blocked]), 1),
        "shutdown": (lambda tested, _: tested._reader.shutdown(), 0),
    }
    for name, (release, queued) in releases.items():
        tested = stream(queue_capacity=1, scala=True)
        blocked = PartitionTopicInfo("topic", 1, 0)
        tested._reader.queue.put(chunk(info, 0, 0))
        assert not tested._reader.queue.offer(chunk(blocked, 0, 0))
        assert len(tested._reader.queue) == 1
        release(tested, blocked)
        assert tested._reader.queue.offer(chunk(blocked, 0, 0)), name
        assert len(tested._reader.queue) == queued, name


def test_space_is_told_once_the_queue_is_not_full(info: PartitionTopicInfo) -> None:
    """Fetchers are notified when the consuming thread or a revoke makes room, not at every
    message."""
    tested = stream(queue_capacity=2)
    told: list[int] = []
    tested._reader.queue.on_space = lambda: told.append(len(tested._reader.queue))
    for first in range(4):
        tested._reader.queue.put(chunk(info, first, first))
    iterator = iter(tested)
    for expected in ([], [], [1], [1]):
        next(iterator)
        assert told == expected
    with pytest.raises(ValueError, match="0"):
        ChunkQueue(0, threading.Lock())


def test_decoders() -> None:
    """The ready-made decoders are never called with null keys or values."""
    assert string_decoder()("ü".encode()) == "ü"
    assert string_decoder("latin-1")(b"\xfc") == "ü"
    with pytest.raises(LookupError):
        string_decoder("no-such-encoding")
    assert long_decoder(struct.pack(">q", -5)) == -5
    assert integer_decoder(struct.pack(">i", 7)) == 7
    tested = stream(key_decoder=string_decoder(), value_decoder=string_decoder())
    data = batch([(None, b"v"), (b"k", None)])
    tested._reader.queue.put(Chunk(PartitionTopicInfo("t", 0, 0), data, 0, 2))
    iterator = iter(tested)
    assert [(m.key, m.value) for m in (next(iterator), next(iterator))] == [
        (None, "v"),
        ("k", None),
    ]


def test_message_fields_and_pickling(info: PartitionTopicInfo) -> None:
    """A message knows its place, is compared by content and can be pickled."""
    tested = stream()
    tested._reader.queue.put(chunk(info, 3, 3))
    message = next(iter(tested))
    assert (message.topic, message.partition, message.offset) == ("topic", 0, 3)
    assert (message.key, message.value, message.timestamp) == (b"k3", b"3", 1000)
    assert message.headers == ()
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    assert type(copy) is MessageAndMetadata


def test_negative_start_offset_means_none() -> None:
    """-1 in ZooKeeper is not an offset, and is never reported as consumed."""
    assert PartitionTopicInfo("t", 0, -1).consumed_offset is None


@pytest.mark.parametrize("end", ["revoke", "shutdown"])
def test_revoke_while_decoding(info: PartitionTopicInfo, end: str) -> None:
    """A revoke or shutdown during decoding, which holds no lock, takes effect: decoded messages are
    dropped, and nothing counts as consumed."""
    decoding: list[KafkaStream] = []

    class Slow:
        def decode(
            self, data: bytes, topic: str, partition: int, start: int
        ) -> Iterator[list[Record]]:
            records = list(PythonDecoder().decode(data, topic, partition, start))
            if end == "revoke":
                decoding[0]._reader.revoke([info])
            else:
                decoding[0]._reader.shutdown()
            yield from records

    tested = stream(timeout_ms=0, decoder=Slow())
    decoding.append(tested)
    tested._reader.queue.put(chunk(info, 0, 4))
    with pytest.raises(ConsumerTimeoutError if end == "revoke" else StopIteration):
        next(iter(tested))
    assert info.consumed_offset == 0


def test_a_chunk_wakes_the_thread_that_waits_for_it(info: PartitionTopicInfo) -> None:
    """It is woken at once, not when its timeout is over."""
    tested = stream(timeout_ms=20_000)
    got: list[MessageAndMetadata] = []
    waiting = threading.Thread(target=lambda: got.append(next(iter(tested))), daemon=True)
    waiting.start()
    wait_until(lambda: waits(waiting), 10, "it waits")
    tested._reader.queue.put(chunk(info, 0, 0))
    waiting.join(10)
    assert [message.offset for message in got] == [0]


def test_a_stop_waits_for_a_put_that_is_under_way(info: PartitionTopicInfo) -> None:
    """A put that looked at ``stopped`` before it was set may still append."""
    queue = ChunkQueue(1, threading.Lock())
    fenced = threading.Thread(target=queue.fence, daemon=True)
    with queue.changed:
        fenced.start()
        fenced.join(0.05)
        assert fenced.is_alive()
    fenced.join(10)
    assert not fenced.is_alive()


def test_a_fault_wakes_the_thread_that_waits_for_a_message() -> None:
    """It is woken at once, because nothing else will arrive."""
    tested = stream(timeout_ms=20_000)
    raised: list[Exception] = []

    def read() -> None:
        try:
            next(iter(tested))
        except RuntimeError as error:
            raised.append(error)

    waiting = threading.Thread(target=read, daemon=True)
    waiting.start()
    wait_until(lambda: waits(waiting), 10, "it waits")
    tested._reader.fail(RuntimeError("the member has failed"))
    waiting.join(10)
    assert [str(error) for error in raised] == ["the member has failed"]
