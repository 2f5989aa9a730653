"""Exceptions of signal handlers at any point of a call: nothing is lost, nothing hangs.

A trace function raises at one line or one bytecode of a call, each in its turn, in all Python code
that runs there, also of the standard library. Afterwards the application continues, or commits, or
shuts down. A run takes a sample. ``ZKC_INTERRUPTS=all`` tries every point; ``ZKC_SEED=N`` repeats a
sample. The same is done with real signals, for ``ZKC_INTERRUPT_SECONDS`` for each way to read.
"""

from __future__ import annotations

import faulthandler
import gc
import gzip
import linecache
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from types import FrameType
from typing import Any

import pytest

from tests.support.batches import counted
from tests.unit.conftest import Switch, new_member
from tests.unit.test_streams import GZIP, open_gate
from zkconsumer.broker.fetching.codecs import decompress
from zkconsumer.broker.fetching.records import MessageAndMetadata, MessageDecoder
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.runtime.delivery.chunks import Chunk, PartitionTopicInfo
from zkconsumer.runtime.delivery.handout import InUseError
from zkconsumer.runtime.delivery.reader import Reader as StreamReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.undisturbed import Alarm
from zkconsumer.servers import wait_until

SEED = int(os.environ.get("ZKC_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
ALL = os.environ.get("ZKC_INTERRUPTS") == "all"
SAMPLE = 16
"""Points that are tried of each combination, unless all are."""
SECONDS = float(os.environ.get("ZKC_INTERRUPT_SECONDS", "1"))
"""How long real signals interrupt each way to read."""


HANG_S = 100 + SECONDS
"""A test that makes no progress for so long ends the process, and shows where."""


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No garbage of other tests is collected at a point: it would run their code there."""
    gc.collect()
    gc.disable()
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    gc.enable()


class StopNow(BaseException):
    """As of Ctrl-C."""


class TimeLimitError(Exception):
    """As of a time limit."""


class Interrupter:
    """Raises at one point of what it traces."""

    def __init__(self, error: type[BaseException] | None = None, at: int = 0) -> None:
        self.points = 0
        """How many points there were so far."""
        self.raised: BaseException | None = None
        self._error = error
        self._at = at
        self._closing: set[FrameType] = set()
        """Generators that nobody needs any more: of what is raised there, Python tells nobody."""

    def begin(self) -> None:
        """Trace all functions that are called from now on, unless the error was raised already.
        ``sys.settrace(None)`` ends it."""
        if self.raised is None:
            sys.settrace(self._called)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename == __file__:
            return None  # the test itself
        frame.f_trace_opcodes = True
        return self._point

    def _point(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "exception" and argument[0] is GeneratorExit:
            self._closing.add(frame)
        elif event in ("line", "opcode") and frame not in self._closing:
            self.points += 1
            if self.points == self._at and self._error is not None:
                self.raised = self._error(f"{frame.f_code.co_qualname} {event} {frame.f_lasti}")
                raise self.raised
        return self._point


class Ready(MessageDecoder):
    """Yields messages that are there already, in lists of three. So there are few points."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def decode(
        self, data: bytes, topic: str, partition: int, start: int
    ) -> Iterator[list[MessageAndMetadata]]:
        """Of the offsets that ``data`` holds."""
        first, end = struct.unpack(">qq", data)
        for begin in range(first, end, 3):
            some = [
                MessageAndMetadata(topic, partition, offset, None, None)
                for offset in range(max(begin, start), min(begin + 3, end))
            ]
            yield some


@dataclass
class Reading:
    """An application that reads a stream with two partitions and records what it gets."""

    way: str
    real: bool
    """With bytes that are decoded."""
    got: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})
    infos: list[PartitionTopicInfo] = field(default_factory=list)
    space: int = 0

    def __post_init__(self) -> None:
        self.stream = KafkaStream(StreamReader(open_gate(), queue_capacity=1, timeout_ms=0))
        self.stream._reader.queue.on_space = self._on_space
        self.infos = [PartitionTopicInfo("t", number, 0) for number in (0, 1)]
        if not self.real:
            self.stream._reader._decoder = Ready()
        for number, first, end in ((0, 0, 4), (1, 0, 3), (0, 4, 6)):
            data = counted(first, end - first, 1) if self.real else struct.pack(">qq", first, end)
            self.stream._reader.queue.put(Chunk(self.infos[number], data, first, end))
        self.items: Iterator[Any] = iter(self.stream)
        if self.way == "batches":
            self.items = self.stream.batches(2)
        elif self.way == "arrow_batches":
            self.items = self.stream.arrow_batches()

    def _on_space(self) -> None:
        self.space += 1

    def read(self, interrupter: Interrupter) -> None:
        """Read until nothing is left. Raises what the interrupter raises."""
        iterator = self.items
        while True:
            interrupter.begin()
            try:
                for item in iterator:  # noqa: B007
                    break
                else:
                    return
            except ConsumerTimeoutError:
                return
            finally:
                sys.settrace(None)
            self._record(item)

    def _record(self, item: Any) -> None:
        if self.way == "arrow_batches":
            partition = item["partition"][0].as_py()
            self.got[partition] += item["offset"].to_pylist()
        else:
            for message in item if self.way == "batches" else [item]:
                self.got[message.partition].append(message.offset)

    def check_positions(self) -> None:
        """A commit now covers only what the application got."""
        for number, info in enumerate(self.infos):
            committed = set(range(info.position or 0))
            assert committed <= set(self.got[number]), f"{info} is committed, got {self.got}"

    def check_complete(self) -> None:
        """The application got everything, at most one item twice, and all of it can be
        committed."""
        self.stream.mark_consumed()
        assert [info.position for info in self.infos] == [6, 3]
        twice = 0
        for number, wanted in ((0, 6), (1, 3)):
            got = self.got[number]
            assert sorted(set(got)) == list(range(wanted)), got
            twice += len(got) > wanted
            for before, after in pairwise(got):
                assert after <= before + 1, got
        assert twice <= 1, self.got
        assert self.stream._reader.failure is None
        assert self.space, "the fetchers were not told that there is room"

    def check_free(self) -> None:
        """No lock is left locked."""
        assert is_free(self.stream._reader._lock)
        assert is_free(self.stream._reader._gate._lock)


def is_free(lock: Any) -> bool:
    """Whether another thread gets a lock."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(timeout=10))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


def points(count: int, *what: object, every: int = 1) -> Iterator[int]:
    """The points to raise at, of ``count``. ``every``: of a sample, only each of so many.

    Garbage is collected between them, because all points of a large call leave gigabytes.
    """
    tried: Sequence[int] = range(1, count + 1)
    if not (ALL or count <= SAMPLE):
        sys.stdout.write(f"a sample of {count} points; repeat it with ZKC_SEED={SEED}\n")
        tried = sorted(random.Random(f"{SEED} {what}").sample(tried, SAMPLE))
    for number, at in enumerate(tried if ALL else tried[::every], 1):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        if number % 500 == 0:
            gc.collect()
        yield at


@pytest.mark.parametrize("then", ["continue", "commit", "shut down"])
@pytest.mark.parametrize(
    ("way", "real"),
    [
        ("next", False),
        ("next", True),
        ("batches", False),
        ("batches", True),
        ("arrow_batches", True),
    ],
)
@pytest.mark.parametrize("kind", [StopNow, TimeLimitError])
def test_an_exception_inside_next_loses_nothing(
    way: str, real: bool, then: str, kind: type[BaseException]
) -> None:
    """It reaches the caller as it is. Every message is delivered, or delivered again. No commit
    covers a message that was not handed out. Nothing hangs."""
    counting = Interrupter()
    reading = Reading(way, real)
    reading.read(counting)
    reading.check_complete()
    assert counting.points > 500
    for at in points(counting.points, way, real, then, kind):
        interrupter = Interrupter(kind, at)
        reading = Reading(way, real)
        try:
            with pytest.raises(kind) as caught:
                reading.read(interrupter)
            assert caught.value is interrupter.raised
            reading.check_positions()
            reading.check_free()
            if then == "continue":
                reading.read(interrupter)
                reading.check_positions()
                reading.check_complete()
            elif then == "commit":
                reading.stream.mark_consumed()
                reading.check_positions()
            else:
                reading.stream._reader.revoke(reading.infos)
                reading.stream._reader.wait_released(reading.infos, time.monotonic())
                reading.stream._reader.shutdown()
                reading.check_positions()
                before = sum(map(len, reading.got.values()))
                reading.read(interrupter)
                assert sum(map(len, reading.got.values())) == before
            reading.check_free()
        except BaseException as error:
            error.add_note(f"at point {at}: {interrupter.raised}")
            raise


# -- a whole member -----------------------------------------------------------------------------


class Application:
    """A member on simulated servers, and what it has delivered."""

    def __init__(self, kind: str, messages: int = 6) -> None:
        self.member = new_member(kind)
        (self.stream,) = self.member.create_message_streams({"t": 1})["t"]
        plane = self.member._plane
        assert plane is not None
        wait_until(lambda: bool(plane.partitions()), 10, "it owns the partition")
        ((self.info, _),) = plane.partitions()
        self.stream._reader.queue.put(Chunk(self.info, counted(0, messages, 1), 0, messages))
        self.got: list[int] = []

    def read(self, count: int, interrupter: Interrupter | None = None) -> None:
        """Read this number of messages, or until the end of the stream."""
        for _ in range(count):
            if interrupter is not None:
                interrupter.begin()
            try:
                for message in self.stream:  # noqa: B007
                    break
                else:
                    return
            finally:
                sys.settrace(None)
            self.got.append(message.offset)

    def call(self, work: Callable[[], object], interrupter: Interrupter) -> None:
        """Call the library, interrupted."""
        interrupter.begin()
        try:
            work()
        finally:
            sys.settrace(None)


KINDS = ("zookeeper", "coordinator")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [StopNow, TimeLimitError])
def test_an_exception_inside_commit_offsets(
    switch: Switch, kind: str, error: type[BaseException]
) -> None:
    """It reaches the caller as it is. The next commit works, and covers what was consumed."""
    application = Application(kind)
    commit = application.member.commit_offsets
    try:
        application.read(3)
        counting = Interrupter()
        application.call(commit, counting)
        assert counting.points > 50
        for at in points(counting.points, kind, error):
            interrupter = Interrupter(error, at)
            with pytest.raises(error) as caught:
                application.call(commit, interrupter)
            assert caught.value is interrupter.raised
            assert application.info.position == 2
            commit()
        application.stream.mark_consumed()
        commit()
        assert application.info.position == 3
    finally:
        application.member.shutdown(timeout=10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [StopNow, TimeLimitError])
def test_an_exception_inside_shutdown(
    switch: Switch, kind: str, error: type[BaseException]
) -> None:
    """It reaches the caller as it is. Another ``shutdown`` returns when the member has left. Its
    position is that of the message in hand."""
    counting = Interrupter()
    application = Application(kind)
    application.read(3)
    application.call(application.member.shutdown, counting)
    assert counting.points > 50
    for at in points(counting.points, kind, error, every=3):
        interrupter = Interrupter(error, at)
        application = Application(kind)
        application.read(3)
        with pytest.raises(error) as caught:
            application.call(application.member.shutdown, interrupter)
        assert caught.value is interrupter.raised
        left = len(switch.left)
        application.member.shutdown(timeout=10)
        loop = application.member._loop
        assert loop is not None
        assert loop.left, interrupter.raised
        assert left <= len(switch.left)
        assert application.info.position == 2
        application.read(9)
        assert application.got == [0, 1, 2]


class Caller(Interrupter):
    """Calls something at one point, as a signal handler does, and raises nothing."""

    def __init__(self, work: Callable[[], object], at: int) -> None:
        super().__init__(None, at)
        self.work = work

    def _point(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event in ("line", "opcode"):
            self.points += 1
            if self.points == self._at:
                self.work()
        return self._point


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_handler_may_shut_down(switch: Switch, kind: str) -> None:
    """Wherever it interrupts the reading thread, the member leaves in time. At most the message
    that was being handed out is delivered afterwards, and it does not count as consumed."""
    counting = Interrupter()
    application = Application(kind)
    application.read(6, counting)
    application.member.shutdown()
    for at in points(counting.points, kind, every=3):
        application = Application(kind)
        delivered: list[int] = []

        def handle(
            application: Application = application, delivered: list[int] = delivered
        ) -> None:
            begun = time.monotonic()
            application.member.shutdown(timeout=20)
            assert time.monotonic() - begun < 10
            delivered.append(len(application.got))

        application.read(9, Caller(handle, at))
        loop = application.member._loop
        assert loop is not None
        assert loop.left
        assert delivered
        assert len(application.got) <= delivered[0] + 1
        assert (application.info.position or 0) <= delivered[0]
        assert is_free(application.stream._reader._lock)


@pytest.mark.parametrize(
    "call", ["mark_consumed", "health", "commit_offsets", "commit_offsets_async"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_handler_may_call(switch: Switch, kind: str, call: str) -> None:
    """Wherever it interrupts the reading thread, the call returns and nothing is lost."""
    application = Application(kind)
    try:
        counting = Interrupter()
        application.read(6, counting)
        tried = points(counting.points, kind, call)
        owner = application.stream if call == "mark_consumed" else application.member
        work: Callable[[], object] = getattr(owner, call)
        for round_, at in enumerate(tried, 1):
            first = 6 * round_
            data = counted(first, 6)
            application.stream._reader.queue.put(Chunk(application.info, data, first, first + 6))
            application.read(6, Caller(work, at))
            assert application.got == list(range(first + 6))
        application.stream.mark_consumed()
        assert application.info.position == len(application.got)
    finally:
        application.member.shutdown(timeout=10)


# -- real signals -------------------------------------------------------------------------------


def in_batches(sizes: tuple[int, ...]) -> Callable[[int, int], tuple[bytes, int]]:
    """Record batches of these sizes in turn, at any offset: the bytes, and the offset behind."""
    made = {size: counted(0, size, GZIP)[8:] for size in set(sizes)}

    def at(number: int, first: int) -> tuple[bytes, int]:
        data = b""
        for index in range(4):
            size = sizes[(number + index) % len(sizes)]
            data += struct.pack(">q", first) + made[size]
            first += size
        return data, first

    return at


@contextmanager
def fed(stream: KafkaStream, info: PartitionTopicInfo, sizes: tuple[int, ...]) -> Iterator[None]:
    """Another thread keeps the stream's queue filled, as fetchers do: it waits for room."""
    ended, room = threading.Event(), Alarm()
    stream._reader.queue.on_space = room.set
    make = in_batches(sizes)

    def feed() -> None:
        number, first = 0, 0
        while not ended.is_set():
            if stream._reader.queue.full and not room.wait(20):
                return  # nobody has told that there is room
            data, end = make(number, first)
            stream._reader.queue.put(Chunk(info, data, first, end))
            number, first = number + 1, end

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ended.set()
        room.set()
        feeder.join()


class Reader:
    """Reads one partition in one way, and judges the offsets that it gets."""

    def __init__(self, stream: KafkaStream, way: str) -> None:
        self.expected = self.lost = self.twice = 0
        """The next offset; how many messages were left out, and delivered more than once."""
        self.item: Any = None
        """What the application works on."""
        self._judged: Any = None
        self._stream = stream
        self._items: Iterator[Any] = iter(stream)
        if way == "batches":
            self._items = stream.batches(7, timeout=0.5)
        elif way == "arrow_batches":
            self._items = stream.arrow_batches(timeout=0.5)
        elif way == "try_next":
            self._items = iter(())
        self._polls = way == "try_next"

    def read(self, until: float) -> None:
        """Read until then (``time.monotonic()``)."""
        while time.monotonic() < until:
            if self._polls:
                self.item = self._stream.try_next()
                self.judge()
            else:
                for item in self._items:
                    self.item = item
                    self.judge()
                    if time.monotonic() >= until:
                        break

    def judge(self) -> None:
        """Count what the last item leaves out. May be repeated."""
        item = self.item
        if item is None or item is self._judged or (isinstance(item, list) and not item):
            return
        if isinstance(item, list):
            first, last = item[0].offset, item[-1].offset
        elif isinstance(item, MessageAndMetadata):
            first = last = item.offset
        elif item.num_rows:
            offsets = item["offset"]
            first, last = offsets[0].as_py(), offsets[-1].as_py()
        else:
            return
        self.lost += max(0, first - self.expected)
        self.twice += first < self.expected and last < self.expected
        self.expected = max(self.expected, last + 1)
        self._judged = item


@pytest.mark.parametrize("way", ["next", "batches", "arrow_batches", "try_next"])
def test_real_signals_lose_nothing(way: str) -> None:
    """A timer interrupts the reading thread again and again, and its handler raises. The loop is
    resumed. Nothing is lost, and no commit covers what was not handed out."""
    assert threading.current_thread() is threading.main_thread()
    rng = random.Random(SEED)
    stream = KafkaStream(StreamReader(open_gate(), timeout_ms=-1))
    info = PartitionTopicInfo("t", 0, 0)
    reader = Reader(stream, way)
    armed, interrupts, other = False, 0, []

    def handle(_number: int, _frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise (StopNow, TimeLimitError)[interrupts % 2]

    before = signal.signal(signal.SIGALRM, handle)
    end = time.monotonic() + SECONDS
    try:
        with fed(stream, info, (1, 5, 1, 40)):
            while time.monotonic() < end:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
                    reader.read(end)
                except (StopNow, TimeLimitError):
                    interrupts += 1
                except Exception as error:  # noqa: BLE001
                    other.append(error)
                finally:
                    armed = False
                reader.judge()
                if rng.random() < 0.2:
                    stream.mark_consumed()
                assert (info.position or 0) <= reader.expected
            assert is_free(stream._reader._lock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sys.stdout.write(
        f"{way}: {interrupts} interrupts, {reader.expected} messages, {reader.twice} items twice; "
        f"repeat it with ZKC_SEED={SEED}\\n"
    )
    assert (reader.lost, other) == (0, [])
    assert interrupts > 20 * SECONDS
    assert reader.expected > 100 * SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_in_the_handler_of_a_real_signal(switch: Switch, kind: str) -> None:
    """What everybody writes for SIGTERM. It returns in time, and the loop that it interrupts
    ends."""
    rng = random.Random(SEED)
    for _ in range(12):
        application = Application(kind, 1)
        took: list[float] = []

        def handle(_number: int, _frame: object, application: Application = application) -> None:
            begun = time.monotonic()
            application.member.shutdown(timeout=20)
            took.append(time.monotonic() - begun)  # noqa: B023

        before = signal.signal(signal.SIGALRM, handle)
        try:
            with fed(application.stream, application.info, (1,)):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-3, 2e-2))
                for _message in application.stream:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(took) == 1
        assert took[0] < 10
        loop = application.member._loop
        assert loop is not None
        assert loop.left


# -- single points, without chance --------------------------------------------------------------


@pytest.mark.parametrize("error", [StopNow, InUseError])
def test_a_message_that_was_not_handed_out_is_taken_back(error: type[BaseException]) -> None:
    """The exception comes after the message was taken from its list. It may be what a handler got
    that read the stream itself."""
    reading = Reading("next", real=False)
    places = Places("Reader._items")
    reading.read(places)
    taken = [at for at, line in places.found if line.strip() == "yield item"]
    assert len(taken) > 9
    for at in taken:
        reading = Reading("next", real=False)
        interrupter = Interrupter(error, at)
        with pytest.raises(error):
            reading.read(interrupter)
        reading.stream.mark_consumed()
        reading.check_positions()
        reading.read(interrupter)
        reading.check_complete()


class Places(Interrupter):
    """Records the points of one function, with their lines."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._function = function

    def _point(self, frame: FrameType, event: str, argument: object) -> Any:
        super()._point(frame, event, argument)
        if event in ("line", "opcode") and frame.f_code.co_qualname == self._function:
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
            self.found.append((self.points, line))
        return self._point


@pytest.mark.parametrize("error", [StopNow, TimeLimitError])
def test_a_list_whose_decoding_was_interrupted_is_decoded_again(error: type[BaseException]) -> None:
    """Also if the application asks for single messages after it asked for lists."""
    stream = KafkaStream(StreamReader(open_gate(), timeout_ms=0))
    decoder = Ready()
    failing = [True]

    def interrupted(*arguments: Any) -> Iterator[list[MessageAndMetadata]]:
        for index, some in enumerate(Ready.decode(decoder, *arguments)):
            yield some
            if index == 1 and failing.pop():
                raise error

    decoder.decode = interrupted  # type: ignore[method-assign]
    stream._reader._decoder = decoder
    info = PartitionTopicInfo("t", 0, 0)
    stream._reader.queue.put(Chunk(info, struct.pack(">qq", 0, 12), 0, 12))
    batches = stream.batches(20)
    with pytest.raises(error):
        next(batches)
    failing.append(False)
    assert (info.position, stream._reader.failure) == (0, None)
    assert [message.offset for message in islice(stream, 12)] == list(range(12))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_an_error_of_a_handler_is_not_damaged_data(codec: int) -> None:
    """Whatever a signal handler raises while data is decompressed passes to the caller."""
    data = {
        1: gzip.compress,
        2: pytest.importorskip("snappy").compress,
        3: pytest.importorskip("lz4.frame").compress,
        4: pytest.importorskip("zstandard").ZstdCompressor().compress,
    }[codec](b"message" * 50)
    assert decompress(codec, data) == b"message" * 50

    def call(interrupter: Interrupter) -> None:
        interrupter.begin()
        try:
            decompress(codec, data)
        finally:
            sys.settrace(None)

    counting = Interrupter()
    call(counting)
    for error in (TimeLimitError, RuntimeError):
        for at in points(counting.points, codec):
            interrupter = Interrupter(error, at)
            with pytest.raises(error) as caught:
                call(interrupter)
            assert caught.value is interrupter.raised


ARROW = """
import sys
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream

class StopNow(BaseException):
    pass

def interrupt(frame, event, argument):
    if frame.f_code.co_filename.replace("\\\\", "/").endswith("numpy/exceptions.py"):
        sys.settrace(None)
        raise StopNow

stream = KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=0))
sys.settrace(interrupt)
try:
    stream.arrow_batches()
except StopNow:
    pass
sys.settrace(None)
print(len(next(stream.arrow_batches(timeout=0)).schema))
"""


def test_a_signal_does_not_spoil_the_import_of_pyarrow() -> None:
    """An import of numpy that is ended halfway cannot be repeated in the same process."""
    ran = subprocess.run(
        [sys.executable, "-c", ARROW], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "7\n", ran.stderr
