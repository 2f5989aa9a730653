"""The iterator of a stream: what is delivered, what counts as consumed (Scala: ConsumerIterator).

The consuming thread searches, decodes and takes; other threads revoke, release and shut down. All
state is guarded by the stream's lock, except that messages are taken without it (``Run``).

A signal handler may raise at any point of the consuming thread, or call this library. So

- a search only makes messages available in ``_unlocked``. They are taken from it in one step,
  directly before they are handed out; see ``HandOut`` for those that do not get that far.
- each step of a search can be repeated. While ``_decoding`` is set, the decoder may be further than
  the messages that are available: the next search decodes again, from the consumed offset.
- the lock is released inside of the ``try`` in which it was acquired. It is reentrant, and other
  threads get it while a signal handler waits for them: a search may find itself at the end.
- an error makes the stream fail only if the data is its cause. Any other is the application's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Set
from enum import Enum
from functools import partial
from itertools import islice
from threading import get_ident
from time import monotonic
from typing import Any, Final

from zkconsumer.broker.records import MessageAndMetadata, MessageDecoder
from zkconsumer.errors import (
    CodecUnavailableError,
    ConsumerTimeoutError,
    InvalidMessageError,
    MessageSizeTooLargeError,
    UsageError,
)
from zkconsumer.runtime.delivery.chunk_queue import Chunk, ChunkQueue
from zkconsumer.runtime.delivery.handout import HandOut
from zkconsumer.runtime.delivery.in_use import InUseError, is_refusal, refuse
from zkconsumer.runtime.delivery.partition_info import PartitionTopicInfo, Run
from zkconsumer.runtime.gate import CLOCK, DeliveryGate, clock_gettime
from zkconsumer.runtime.undisturbed import Lock

RecordBatch = Any
"""A ``pyarrow.RecordBatch``; pyarrow is not needed without ``arrow_batches``."""

_LIVENESS_CHECK_S = 0.5
_ONE_AT_A_TIME: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the interpreter runs one thread at a time, which taking without the lock requires."""
_NOTHING: Final[Iterator[Any]] = iter(())
_DATA_FAULTS: Final = (InvalidMessageError, MessageSizeTooLargeError, CodecUnavailableError)


class Found(Enum):
    """The result of a search."""

    READY = "ready"
    """Messages are available."""
    NOTHING = "nothing"
    """There are none now."""
    END = "end"
    """There will be none."""


class ConsumerIterator(HandOut[MessageAndMetadata]):
    """Iterator over the messages of one stream.

    Every call that looks for a message may raise:

    - ConsumerTimeoutError: none arrived within ``consumer.timeout.ms``. Iteration may continue.
    - InvalidMessageError, MessageSizeTooLargeError, CodecUnavailableError, ConnectorFailedError:
      the iterator, or the whole connector, has failed. Every later call raises ``UsageError``.

    An exception that a signal handler raises passes to the caller. Iteration may continue after it:
    no message is skipped, and the last one may be delivered again.
    """

    def __init__(
        self,
        lock: Lock,
        queue: ChunkQueue,
        gate: DeliveryGate,
        decoder: MessageDecoder,
        timeout: float | None,
    ) -> None:
        self._lock = lock
        self._queue = queue
        self._changed = queue.changed
        self._gate = gate
        self._decoder = decoder
        self._timeout = timeout
        # All below is guarded by the lock. Messages are taken from the queue's current chunk; _info
        # is its partition and outlives it while a message of it is in hand.
        self._info = PartitionTopicInfo("", 0, None)
        self._begun: Chunk | None = None  # the chunk that _lists decodes
        self._lists: Iterator[list[MessageAndMetadata]] = _NOTHING
        self._decoding = False  # _lists may have yielded more than _run has
        self._run = Run([])
        self._unlocked: Iterator[MessageAndMetadata] = _NOTHING  # the run's rest, or nothing
        self._interrupted = False  # the last message taken has its caller only if it is _given
        self._given: object = None
        self.bytes_begun = 0
        """See ``KafkaStream.bytes_begun``."""
        self._held: MessageAndMetadata | None = None
        self._given_up: MessageAndMetadata | None = None  # still worked on, not held any more
        self._holder = 0
        self._searcher = 0
        """The thread that is in ``_fill``."""
        self._failure: Exception | None = None
        self._fault: Exception | None = None
        self._ended = False
        super().__init__()

    def __iter__(self) -> ConsumerIterator:
        return self

    # -- the consuming thread takes --------------------------------------------------------------

    def _items(self) -> Generator[Any, None, None]:
        # Without the lock: taking is one step of a list's iterator, which no thread can divide, and
        # how far that is tells which message is in hand and which ones are consumed (``_note``).
        # A revoke takes the rest out of the same iterator, so nothing is left here.
        given: object = None
        gate, search = self._gate, self._search_singly
        now, clock, thread = clock_gettime, CLOCK, get_ident
        try:
            yield None
            self._renew()
            while True:
                if now(clock) < gate.valid_until:
                    self._holder = thread()
                    for message in self._unlocked:
                        yield message
                        given = message
                        break
                    else:
                        if self._fill(search, owner=self) is Found.END:
                            break
                elif self._fill(search, owner=self) is Found.END:
                    break
            self.__next__ = self._spare or self._ready()  # type: ignore[method-assign]
            self._spare = None
        except GeneratorExit:  # nobody uses it any more
            raise
        except BaseException as error:
            if error.__class__ is not InUseError or not is_refusal(error):
                self._given, self._interrupted, self._unlocked = given, True, _NOTHING
            self.__next__ = self._spare or self._ready()  # type: ignore[method-assign]
            self._spare = None
            raise

    def several(
        self, owner: HandOut[Any], most: int, empty: RecordBatch | None, timeout: float | None
    ) -> Generator[Any, None, None]:
        """The items of ``owner``: lists of at most ``most`` messages, or columns.

        ``empty``: columns without rows, and ``most`` is 1; ``None`` for lists.
        """
        given: object = None
        search = partial(self._search_list, most) if empty is None else self._search_columns
        try:
            yield None
            owner._renew()
            while (found := self._fill(search, timeout, owner=owner)) is not Found.END:
                if found is Found.NOTHING:
                    yield [] if empty is None else empty
                elif clock_gettime(CLOCK) < self._gate.valid_until:
                    self._holder = get_ident()
                    columns = self._run.columns
                    some = islice(self._unlocked, most)
                    if batch := [*some]:  # one step
                        yield batch if empty is None else columns
                        given = batch[-1]
            owner.__next__ = owner._spare or owner._ready()  # type: ignore[method-assign]
            owner._spare = None
        except GeneratorExit:
            raise
        except BaseException as error:
            if error.__class__ is not InUseError or not is_refusal(error):
                self._given, self._interrupted, self._unlocked = given, True, _NOTHING
            owner.__next__ = owner._spare or owner._ready()  # type: ignore[method-assign]
            owner._spare = None
            raise

    def next(self) -> MessageAndMetadata:
        """Return the next message, waiting for it. Raises ``StopIteration`` after shutdown."""
        try:
            return self.__next__()
        except BaseException as error:
            if error.__class__ is ValueError and is_refusal(error):
                refuse()  # the generator is running in another thread
            refused = error.__class__ is InUseError and is_refusal(error)
            if not (refused or self._interrupted):  # inside, or on the way out
                self._given, self._interrupted, self._unlocked = None, True, _NOTHING
            raise

    def try_next(self) -> MessageAndMetadata | None:
        """See ``KafkaStream.try_next``."""
        try:
            self._holder = get_ident()
            if self._gate.is_open:
                for message in self._unlocked:
                    return message
            if self._fill(self._search_singly, wait=False) is Found.END:
                raise StopIteration
            for message in self._unlocked:
                return message
            return None
        except BaseException as error:
            if error.__class__ is not InUseError or not is_refusal(error):
                self._given, self._interrupted, self._unlocked = None, True, _NOTHING
            raise

    def try_next_batch(self, most: int) -> list[MessageAndMetadata]:
        """See ``KafkaStream.try_next_batch``."""
        return self._try(partial(self._search_list, most), most)

    def try_next_columns(self) -> RecordBatch | None:
        """Return the next columns, or ``None`` if there are none now. Never waits."""
        return self._run.columns if self._try(self._search_columns, 1) else None

    def _try(self, search: Callable[[], Found], most: int) -> list[MessageAndMetadata]:
        try:
            found = self._fill(search, wait=False)
            if found is Found.END:
                raise StopIteration
            self._holder = get_ident()
            some = islice(self._unlocked, most)
            return [*some]
        except BaseException as error:
            if error.__class__ is not InUseError or not is_refusal(error):
                self._given, self._interrupted, self._unlocked = None, True, _NOTHING
            raise

    def has_next(self) -> bool:
        """Wait for a message and keep it for ``next``; false after shutdown.

        A call counts the application's current message as consumed.
        """
        return self._fill(self._search_ahead) is Found.READY

    def peek(self) -> MessageAndMetadata:
        """Return the message that ``next`` will return. Raises ``StopIteration`` after shutdown."""
        ahead: list[MessageAndMetadata] = []

        def search() -> Found:
            found = self._search_ahead()
            if (first := self._front) is not None and found is Found.READY:
                ahead.append(first)
            return found

        if self._fill(search) is Found.END:
            raise StopIteration
        return ahead[-1]

    def mark_consumed(self) -> None:
        """See ``KafkaStream.mark_consumed``."""
        lock = self._lock
        if lock._is_owned():  # by a signal handler, of the thread that it has interrupted
            self._let_go()
            return
        try:
            lock.acquire()
            self._let_go()
            lock.release()
        except BaseException:
            if lock._is_owned():
                lock.release()
            raise

    # -- other threads ---------------------------------------------------------------------------

    def revoke(self, infos: Set[PartitionTopicInfo]) -> None:
        """See ``KafkaStream.revoke``."""
        with self._lock:
            for info in infos:
                info.revoked = True
            freed = self._queue.discard(infos)
            if self._queue.current is not None and self._queue.current.info in infos:
                self._drop_chunk()
            self._changed.notify_all()
        self._queue.alarm.set()
        if freed and self._queue.on_space is not None:
            self._queue.on_space()

    def wait_released(
        self, infos: Set[PartitionTopicInfo], deadline: float, thread: int | None = None
    ) -> bool:
        """See ``KafkaStream.wait_released``."""
        thread = get_ident() if thread is None else thread
        with self._lock:
            while not self._release(infos, force=self._is_past_waiting_for(thread)):
                remaining = deadline - monotonic()
                if remaining <= 0:
                    self._release(infos, force=True)
                    return False
                self._changed.wait(min(remaining, _LIVENESS_CHECK_S))
            return True

    def release(self, infos: Set[PartitionTopicInfo], *, force: bool) -> bool:
        """See ``KafkaStream.release``."""
        with self._lock:
            return self._release(infos, force=force)

    def _release(self, infos: Set[PartitionTopicInfo], *, force: bool) -> bool:
        self._note()
        if self._held is None or self._info not in infos:
            return True
        if force:
            self._given_up, self._held = self._held, None
        return force

    def _is_past_waiting_for(self, thread: int) -> bool:
        return self._holder == thread or not _is_alive(self._holder)

    @property
    def delivered(self) -> int:
        """See ``KafkaStream.delivered``. It is computed when it is read."""
        with self._lock:
            return self._count

    def held_by(self, thread: int) -> bool:
        """See ``KafkaStream.held_by``."""
        with self._lock:
            self._note()
            return self._held is not None and self._holder == thread

    @property
    def in_hand(self) -> MessageAndMetadata | None:
        """See ``KafkaStream.in_hand``."""
        with self._lock:
            self._note()
            return self._held or self._given_up

    @property
    def failure(self) -> Exception | None:
        """See ``KafkaStream.failure``."""
        return self._failure

    def fail(self, error: Exception) -> None:
        """See ``KafkaStream.fail``."""
        with self._lock:
            self._fault = error
        self._queue.alarm.set()

    def after_fork(self, error: Exception, lock: Lock) -> None:
        """See ``KafkaStream.after_fork``."""
        self._lock, self._fault, self._unlocked, self._searcher = lock, error, _NOTHING, 0
        self.__next__ = self._ready()  # type: ignore[method-assign]
        self._queue.changed = self._changed = threading.Condition(lock)

    def shutdown(self) -> None:
        """See ``KafkaStream.shutdown``."""
        with self._lock:
            self._queue.closed = True
            freed = self._queue.clear()
            self._end_now()
            self._changed.notify_all()
        self._queue.alarm.set()
        if freed and self._queue.on_space is not None:
            self._queue.on_space()

    # -- searches: on the consuming thread, under the lock ---------------------------------------

    def _fill(
        self,
        search: Callable[[], Found],
        timeout: float | None = None,
        *,
        wait: bool = True,
        owner: HandOut[Any] | None = None,
    ) -> Found:
        """Make messages available, waiting for them at most until ``timeout`` has passed.

        Without ``timeout``, ``consumer.timeout.ms`` raises. ``owner``: the iterator whose generator
        calls this. Other calls of its ``__next__`` are refused meanwhile.
        """
        lock, thread, begun = self._lock, get_ident(), False
        if lock._is_owned():
            refuse()
        limit = self._timeout if timeout is None else timeout
        deadline = None if limit is None else monotonic() + limit
        problem: Exception | None = None
        try:
            lock.acquire()
            if self._searcher and (self._searcher == thread or _is_alive(self._searcher)):
                refuse()
            begun = True
            self._searcher = thread
            if owner is not None:
                ready = owner.__next__
                owner.__next__ = refuse  # type: ignore[method-assign]
            self._begin_search(columns=search == self._search_columns)
            found, problem = self._result_of(search, deadline, wait)
            if owner is not None:
                owner.__next__ = ready  # type: ignore[method-assign]
            self._searcher = 0
            lock.release()
        except BaseException:
            if begun:
                self._searcher = 0
            if lock._is_owned():
                lock.release()
            raise
        if problem is not None:
            raise problem
        if found is Found.NOTHING and wait and timeout is None:
            raise ConsumerTimeoutError(
                f"no message within consumer.timeout.ms = {round((limit or 0) * 1000)}"
            )
        return found

    def _result_of(
        self, search: Callable[[], Found], deadline: float | None, wait: bool
    ) -> tuple[Found, Exception | None]:
        """The result of a search, or the error that makes the stream fail.

        Errors are raised without the lock: a signal handler may raise while they pass.
        """
        cause = self._failure
        if cause is not None:
            text = f"this stream has failed and cannot be read any further: {cause}"
            problem = UsageError(text)
            problem.__cause__ = cause
            return Found.END, problem
        try:
            while (found := search()) is Found.NOTHING and wait:
                remaining = None if deadline is None else deadline - monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._lock.release()
                self._queue.tell_space()
                self._queue.alarm.wait(remaining)
                self._lock.acquire()
        except _DATA_FAULTS as error:
            self._failure = error
            return Found.END, error
        if found is not Found.END:
            return found, None
        self._queue.alarm.set()  # for any other thread that waits
        # Also after the end: it did not end as it should.
        self._failure = self._fault
        return found, self._fault

    def _begin_search(self, *, columns: bool) -> None:
        self._let_go()
        self._unlocked = _NOTHING
        self._info.run = None
        left_over = self._run.columns is not None and self._run.left > 0
        if self._decoding or (left_over and not columns):
            self._again()

    def _search_ahead(self) -> Found:
        return self._search()

    def _search_singly(self) -> Found:
        found = self._search()
        if found is Found.READY:
            self._unlock(1, singly=True)
        return found

    def _search_list(self, most: int) -> Found:
        found = self._search(most)
        if found is Found.READY:
            self._unlock(most, singly=False)
        return found

    def _search_columns(self) -> Found:
        """Make the rest of a chunk available as columns. Releases the lock to decode."""
        from zkconsumer.broker import columns

        while (found := self._search()) is Found.READY:
            if self._run.columns is None:
                chunk, first = self._queue.current, self._front
                rest = self._lists
                if first is None:
                    continue
                if chunk is None or chunk.info is not self._info:  # prefetched (scala)
                    decoded = columns.Decoded(
                        columns.of_records(first.topic, first.partition, [first.as_record()]), None
                    )
                else:
                    self._decoding = True
                    self._lock.release()
                    try:
                        decoded = columns.decode(
                            chunk.data, first.topic, first.partition, first.offset
                        )
                    except _DATA_FAULTS:
                        self._lock.acquire()
                        raise
                    self._lock.acquire()
                    if self._queue.current is not chunk or self._lists is not rest:
                        self._decoding = False
                        continue  # revoked or shut down meanwhile
                    failure = decoded.failure
                    self._lists = _NOTHING if failure is None else _raising(failure)
                batch = decoded.batch
                last = batch["offset"][-1].as_py()
                marker = MessageAndMetadata(first.topic, first.partition, last, None, None)
                self._run = Run([marker], self._count, batch)
                self._decoding = False
                continue  # the lease may have run out meanwhile
            self._unlock(1, singly=False)
            return found
        return found

    def _search(self, wanted: int = 1) -> Found:
        """Have at least one message in the run. Releases the lock to decode.

        Where it decodes, it decodes ``wanted`` messages if the chunk has so many. Raises an error
        of the data, with the lock held.
        """
        while not self._ended and self._fault is None:
            if self._has_more:
                ready = self._gate.is_open or self._gate.wait_turn(self._queue.alarm.set)
                return Found.READY if ready else Found.NOTHING
            chunk = self._queue.current or self._queue.take()
            if chunk is None:
                if not self._queue.closed:
                    return Found.NOTHING
                self._ended = True
            elif chunk is not self._begun:
                self._begin(chunk)
            else:
                self._decode_more(chunk, wanted)
        return Found.END

    @property
    def _count(self) -> int:
        return self._run.delivered

    @property
    def _has_more(self) -> bool:
        return self._run.left > 0

    @property
    def _front(self) -> MessageAndMetadata | None:
        """The first message that is not taken."""
        run = self._run
        taken = run.taken
        return next(iter(run.messages[taken : taken + 1]), None)

    def _begin(self, chunk: Chunk) -> None:
        """Make ``chunk`` the one that messages are taken from."""
        info = chunk.info
        self._queue.settle()
        self._info = info
        # Normally they are equal. After an offset out of range the log begins anew elsewhere.
        info.consumed_offset = chunk.fetch_offset
        if info.pending_reset is chunk:
            info.pending_reset = None
        if chunk.data and chunk.next_offset == chunk.fetch_offset and not chunk.damaged:
            raise MessageSizeTooLargeError(
                f"the message at offset {chunk.fetch_offset} of {info.topic_partition} is larger "
                f"than {len(chunk.data)} bytes: raise fetch.message.max.bytes"
            )
        self._lists = self._decoder.decode(
            chunk.data, info.topic, info.partition, chunk.fetch_offset
        )
        self.bytes_begun += len(chunk.data)
        self._begun = chunk

    def _decode_more(self, chunk: Chunk, wanted: int) -> None:
        """Decode the chunk's next messages, without the lock meanwhile.

        That is one list of the decoder's, and further ones until there are ``wanted`` messages.
        """
        lists = self._lists
        messages: list[MessageAndMetadata] | None = None
        failure: Exception | None = None
        self._decoding = True
        self._lock.release()
        self._queue.tell_space()
        try:
            for more in lists:
                if messages is None:
                    messages = more
                else:
                    messages += more
                if len(messages) >= wanted:
                    break
        except _DATA_FAULTS as exc:
            failure = exc
        self._lock.acquire()
        if self._queue.current is not chunk or self._lists is not lists:
            self._decoding = False
            return  # revoked or shut down meanwhile
        if messages is None and failure is None:
            self._finish(chunk)
        elif messages:
            if failure is not None:
                self._lists = _raising(failure)
            self._run = Run(messages, self._run.delivered)
        elif failure is not None:
            raise failure
        self._decoding = False

    def _again(self) -> None:
        """Decode the current chunk again, from the consumed offset on."""
        chunk = self._queue.current
        if chunk is not None and chunk is self._begun:
            info, start = chunk.info, chunk.info.consumed_offset
            assert start is not None
            self._run = Run([], self._run.delivered)
            self._lists = self._decoder.decode(chunk.data, info.topic, info.partition, start)
        self._decoding = False

    def _finish(self, chunk: Chunk) -> None:
        """All of the chunk's messages are consumed, and so are the gaps between and after them."""
        if chunk.next_offset > (chunk.info.consumed_offset or 0):
            chunk.info.consumed_offset = chunk.next_offset
        self._end_chunk(chunk)

    def _end_chunk(self, chunk: Chunk) -> None:
        if chunk.damaged:
            raise InvalidMessageError(
                f"{chunk.info.topic_partition} has a damaged entry after offset "
                f"{chunk.next_offset - 1}"
            )
        self._queue.current = None

    def _drop_chunk(self) -> None:
        """Another thread ends the delivery of the current chunk."""
        self._info.run = None  # it would report that all is taken
        self._run.drain()
        self._note()
        self._lists = self._unlocked = _NOTHING
        self._queue.current = None

    def _end_now(self) -> None:
        self._drop_chunk()
        self._ended = True

    # -- what is in hand -------------------------------------------------------------------------

    def _unlock(self, most: int, *, singly: bool) -> None:
        """Let up to ``most`` messages be taken without the lock; ``singly``: one by one, and all
        that the run has."""
        run = self._run
        run.base, run.singly = run.taken, singly
        if _ONE_AT_A_TIME:
            if singly:
                self._info.run = run
            self._unlocked = run.rest
        else:
            self._unlocked = iter([*islice(run.rest, most)])

    def _note(self) -> None:
        """Record what was taken without the lock."""
        run = self._run
        taken = run.taken
        if taken > run.noted:
            self._held = run.messages[taken - 1]
            if run.singly and (consumed := run.consumed) is not None:
                self._info.consumed_offset = consumed
            run.noted = taken

    def _take_back(self) -> None:
        """The last call was interrupted: what it took has not reached its caller."""
        self._note()
        run, held = self._run, self._held
        if held is not None and held is not self._given:
            if run.taken and run.messages[run.taken - 1] is held and not run.dropped:
                self._info.run = None
                self._run = run.from_index(run.taken - 1 if run.singly else run.base)
            self._held = None
        self._interrupted = False

    def _let_go(self) -> None:
        """Acknowledge the last delivered message, if there is one."""
        if self._interrupted:
            self._take_back()
        self._note()
        self._given_up = None
        if (held := self._held) is not None:
            # DEVIATION-07: the JVM counts a message as consumed when it is returned.
            self._info.consumed_offset = held.offset + 1
            self._held = None
            self._changed.notify_all()


def _raising(error: Exception) -> Iterator[list[MessageAndMetadata]]:
    """Messages that end with ``error`` at once: those before it are delivered already."""
    raise error
    yield


def _is_alive(ident: int) -> bool:
    return any(thread.ident == ident for thread in threading.enumerate())
