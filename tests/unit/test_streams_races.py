"""Random interleavings of fetching, consuming, revoking and shutting down on one stream."""

from __future__ import annotations

import random
import signal
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.support.batches import batch, chunk
from tests.unit.test_streams import waits
from zkconsumer.errors import ConsumerTimeoutError, UsageError
from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.servers import wait_until

ROUNDS = 150
MESSAGES = 300


@pytest.mark.parametrize("seed", range(12))
def test_revoke_is_atomic_and_final(seed: int) -> None:
    """In every interleaving, no message of a claim is returned that was requested after its revoke.
    Each claim yields its offsets without gap or repeat. After wait_released, the consumed offset is
    final and equals what the application had finished. The next claim starts there, and neither
    loses nor repeats a finished message."""
    rng = random.Random(seed)
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    stream = KafkaStream(Reader(gate, queue_capacity=2, timeout_ms=20))
    partitions = 3
    claims: dict[int, PartitionTopicInfo] = {
        p: PartitionTopicInfo("t", p, 0) for p in range(partitions)
    }
    faults: list[str] = []
    finished: dict[int, int] = defaultdict(int)  # partition -> offset after the last finished
    end = threading.Event()

    def fetch(fetch_seed: int) -> None:
        own = random.Random(fetch_seed)
        while not end.is_set():
            info = claims[own.randrange(partitions)]
            first, count = info.fetched_offset or 0, own.randrange(1, 6)
            if own.random() < 0.5 and stream._reader.queue.full:
                continue
            info.fetched_offset = first + count
            data = chunk(info, first, first + count - 1)
            while not stream._reader.queue.offer(data) and not end.is_set():
                time.sleep(0)

    def consume() -> None:
        own = random.Random(seed + 1000)
        iterator = iter(stream)
        while not end.is_set():
            try:
                asked = set(claims.values())
                revoked = {info for info in asked if info.revoked}
                message = next(iterator)
            except ConsumerTimeoutError:
                continue
            except StopIteration:
                return
            info = claims[message.partition]
            if info in revoked:
                faults.append(f"{message!r} asked for after the revoke")
            if message.offset != finished[message.partition]:
                faults.append(f"{message!r} instead of {finished[message.partition]}")
            if own.random() < 0.02:
                time.sleep(0.001)
            finished[message.partition] = message.offset + 1
            if own.random() < 0.1:
                stream.mark_consumed()

    threads = [
        threading.Thread(daemon=True, target=fetch, args=(seed * 7,)),
        threading.Thread(daemon=True, target=consume),
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    rounds = 0

    def enough() -> bool:
        return rounds >= ROUNDS and sum(list(finished.values())) >= MESSAGES

    while not enough() and not faults and time.monotonic() < deadline:
        rounds += 1
        partition = rng.randrange(partitions)
        old = claims[partition]
        stream._reader.revoke([old])
        if not stream._reader.wait_released([old], time.monotonic() + 5):
            faults.append("wait_released ran into its deadline")
        offset = old.consumed_offset
        if offset != finished[partition]:
            faults.append(f"final {offset}, but {finished[partition]} were finished")
        time.sleep(rng.choice((0, 0, 0.0005)))
        if old.consumed_offset != offset:
            faults.append("the final offset moved")
        claims[partition] = PartitionTopicInfo("t", partition, offset)
    stream._reader.revoke(claims.values())
    stream._reader.shutdown()
    end.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert faults == []
    assert enough()


@pytest.mark.parametrize("seed", range(2))
def test_gate_is_never_passed_while_shut(seed: int) -> None:
    """While a gate opens and closes, no message is requested and returned while it is closed."""
    rng = random.Random(seed)
    gate = DeliveryGate()
    stream = KafkaStream(Reader(gate, queue_capacity=50, timeout_ms=20))
    info = PartitionTopicInfo("t", 0, 0)
    for first in range(0, 40_000, 1000):
        stream._reader.queue.put(chunk(info, first, first + 999))
    period = [0]  # odd: shut
    shut_deliveries: list[int] = []
    got = [0]
    end = threading.Event()

    def consume() -> None:
        while not end.is_set():
            before = period[0]
            try:
                message = next(iter(stream))
            except ConsumerTimeoutError:
                continue
            except StopIteration:
                return
            got[0] += 1
            if before % 2 and period[0] == before:
                shut_deliveries.append(message.offset)

    period[0] = 1
    thread = threading.Thread(daemon=True, target=consume)
    thread.start()
    deadline = time.monotonic() + 20
    turns = 0
    while turns < 60 or (not got[0] and time.monotonic() < deadline):
        turns += 1
        period[0] += 1
        gate.extend(time.clock_gettime(CLOCK) + 3600)
        time.sleep(rng.random() / 500)
        gate.close()
        period[0] += 1
        time.sleep(rng.random() / 500)
    end.set()
    stream._reader.shutdown()
    thread.join(10)
    assert shut_deliveries == []
    assert got[0] > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_revoke_ends_what_is_taken_without_the_lock(seed: int) -> None:
    """A revoke hits the middle of long lists, read only with ``for``. At most the current message
    is processed after it. The position is always that of the first unfinished message. The next
    claim neither loses nor repeats one."""
    rng = random.Random(seed)
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    stream = KafkaStream(Reader(gate))
    claim = PartitionTopicInfo("t", 0, 0)
    faults: list[str] = []
    finished = 0

    records = batch([(None, b"v")] * 5000)[8:]

    def feed(first: int) -> None:
        data = struct.pack(">q", first) + records
        stream._reader.queue.put(Chunk(claim, data, first, first + 5000))

    def consume() -> None:
        nonlocal finished
        for message in stream:
            if message.offset != finished:
                faults.append(f"{message!r} instead of {finished}")
            finished = message.offset + 1

    reader = threading.Thread(target=consume, daemon=True)
    reader.start()
    for _ in range(60):
        feed(claim.consumed_offset or 0)
        begun = finished
        wanted = begun + rng.randrange(1, 1500)
        deadline = time.monotonic() + 20
        while finished < wanted and time.monotonic() < deadline and not faults:
            low = finished
            seen = claim.consumed_offset or 0
            if not low - 1 <= seen <= finished + 1:
                faults.append(f"position {seen}, but {low} to {finished} were finished")
        stream._reader.revoke([claim])
        asked = finished + 1
        if not stream._reader.wait_released([claim], time.monotonic() + 20):
            faults.append("wait_released ran into its deadline")
        offset = claim.consumed_offset
        if offset != finished or finished > asked + 1:
            faults.append(f"final {offset}, {finished} were finished, {asked} at the revoke")
        if faults:
            break
        claim = PartitionTopicInfo("t", 0, offset)
    stream._reader.revoke([claim])
    stream._reader.shutdown()
    reader.join(20)
    assert not reader.is_alive()
    assert faults == []
    assert finished > 60


def test_a_revoke_empties_what_a_thread_is_about_to_take_from() -> None:
    """A thread that has checked the lease, and stops before it takes a message, gets none
    afterwards."""
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    stream = KafkaStream(Reader(gate))
    claim = PartitionTopicInfo("t", 0, 0)
    stream._reader.queue.put(chunk(claim, 0, 9))
    iterator = iter(stream)
    assert [next(iterator).offset for _ in range(3)] == [0, 1, 2]
    about_to_take_from = stream._reader._unlocked
    assert claim.consumed_offset == 2
    stream._reader.revoke([claim])
    assert next(about_to_take_from, None) is None
    assert stream._reader.in_hand is not None
    assert stream._reader.in_hand.offset == 2
    assert claim.consumed_offset == 2
    stream.mark_consumed()
    assert claim.consumed_offset == 3
    assert stream._reader.delivered == 3


READS: dict[str, Callable[[KafkaStream], object]] = {
    "try_next": lambda stream: stream.try_next(),
    "for": lambda stream: next(iter(stream)),
    "batches": lambda stream: next(stream.batches()),
    "arrow_batches": lambda stream: next(stream.arrow_batches()),
    "polled lists": lambda stream: next(stream.batches(timeout=0)),
}


def open_stream() -> tuple[KafkaStream, PartitionTopicInfo]:
    """A stream that delivers, and its partition."""
    gate = DeliveryGate(always_open=True)
    return KafkaStream(Reader(gate)), PartitionTopicInfo("t", 0, 0)


@pytest.mark.parametrize("first", ["for", "batches", "arrow_batches"])
def test_a_second_reader_is_a_usage_error(first: str) -> None:
    """However the two threads read. The error names the fix. The first thread gets every message
    once."""
    stream, info = open_stream()
    for name, second in READS.items():
        begin = info.position or 0
        reader = threading.Thread(target=READS[first], args=(stream,), daemon=True)
        reader.start()
        wait_until(lambda reader=reader: waits(reader), 10, "the first thread waits")
        with pytest.raises(UsageError, match=r"another thread .* one thread for each stream"):
            second(stream)
        assert waits(reader), name
        stream._reader.queue.put(chunk(info, begin, begin + 1))
        reader.join(10)
        assert not reader.is_alive(), name
        rest = [message.offset for message in next(stream.batches(timeout=0))]
        assert rest == list(range(begin + READ_BY[first], begin + 2)), name
        stream.mark_consumed()
        assert info.position == begin + 2


READ_BY = {"for": 1, "batches": 2, "arrow_batches": 2}
"""How many of two messages the first thread takes."""


@pytest.mark.parametrize("way", ["batches", "arrow_batches"])
def test_a_second_reader_of_the_same_lists_is_a_usage_error(way: str) -> None:
    """Two threads have the same iterator."""
    stream, info = open_stream()
    items = getattr(stream, way)()
    reader = threading.Thread(target=next, args=(items,), daemon=True)
    reader.start()
    wait_until(lambda: waits(reader), 10, "the first thread waits")
    with pytest.raises(UsageError, match="one thread for each stream"):
        next(items)
    stream._reader.queue.put(chunk(info, 0, 1))
    reader.join(10)
    stream._reader.queue.put(chunk(info, 2, 3))
    assert len(next(items)) == 2
    assert info.position == 2


def error_of_two_readers() -> BaseException | None:
    """Let two threads take 20,000 ready messages of a stream. Return the first error, if any."""
    stream, info = open_stream()
    count = 20_000
    stream._reader.queue.put(chunk(info, 0, count - 1))
    raised: list[BaseException] = []
    got: list[int] = []
    both = threading.Barrier(2)

    def read() -> None:
        both.wait(10)
        while len(got) < count - 1 and not raised:
            try:
                message = stream.try_next()
                assert message is not None
                got.append(message.offset)
            except BaseException as error:  # noqa: BLE001
                raised.append(error)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    stream._reader.shutdown()
    return raised[0] if raised else None


def test_a_second_reader_of_ready_messages() -> None:
    """``try_next`` never raises what the interpreter raises for a generator."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        # On a busy machine, one thread may take all messages before the other one runs.
        error = next(filter(None, (error_of_two_readers() for _ in range(100))), None)
    finally:
        sys.setswitchinterval(before)
    assert isinstance(error, UsageError), error


def test_a_thread_may_follow_another() -> None:
    """The first one lives on, and has a message in hand."""
    stream, info = open_stream()
    stream._reader.queue.put(chunk(info, 0, 2))
    got: list[int] = []
    for _ in range(3):
        reader = threading.Thread(target=lambda: got.append(next(iter(stream)).offset))
        reader.start()
        reader.join(10)
    assert got == [0, 1, 2]
    assert info.position == 2


def test_a_handler_cannot_read_what_it_interrupts() -> None:
    """Also while the interrupted call waits without any lock. The call continues."""
    assert threading.current_thread() is threading.main_thread()
    stream, info = open_stream()
    raised: list[UsageError] = []

    def handle(_number: int, _frame: object) -> None:
        for read in READS.values():
            try:
                read(stream)
            except UsageError as error:
                raised.append(error)
        stream._reader.queue.put(chunk(info, 0, 0))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert next(iter(stream)).offset == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(raised) == len(READS)
    assert all("signal handler cannot read" in str(error) for error in raised)
