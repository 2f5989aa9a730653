"""Reader: one stream inside. It tracks which messages are delivered and consumed (Scala:
ConsumerIterator). The application's side is ``KafkaStream``.

All items are taken through ``_items``: messages, lists of messages and columns, with or without
waiting. The consuming thread searches, decodes and takes. Fetcher threads fill the queue; the
connector's threads revoke, wait and shut down. One lock for each stream guards its queue and all
other state, except that items are taken without it (``Run``). It is held only briefly, never while
decoding. Lock order: a stream's lock before the gate's. The fetch table's locks are never taken
inside.

``wait_released``, which blocks, is built on ``release``, which does not. A single thread on virtual
time uses the latter.

A batch is a list of messages of one partition, taken in one step after one check of the gate. It
is unacknowledged as a whole, as a single message is.

A signal handler may raise at any point of the consuming thread, or call this library. So

- a search only makes items available in ``_unlocked``. They are taken from it in one step,
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
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, repeat
from operator import itemgetter
from threading import get_ident
from time import monotonic
from typing import Any, Final, TypeVar

from zkconsumer.broker.fetching.records import Decode, Decoder, MessageAndMetadata
from zkconsumer.errors import (
    CodecUnavailableError,
    ConsumerTimeoutError,
    InvalidMessageError,
    MessageSizeTooLargeError,
    UsageError,
)
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue, PartitionTopicInfo, Run
from zkconsumer.runtime.delivery.handout import HandOut, InUseError, is_refusal, refuse
from zkconsumer.runtime.delivery.messages import bytes_decoder, message_decoder
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.undisturbed import Lock, lend

RecordBatch = Any
"""A ``pyarrow.RecordBatch``; pyarrow is not needed without ``arrow_batches``."""
Decoded = tuple[list[MessageAndMetadata], RecordBatch]
"""Messages; with a batch, one that stands for them."""

_ONE_AT_A_TIME: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the interpreter runs one thread at a time, as taking without the lock requires."""
_NOTHING: Final[Iterator[Any]] = iter(())
_LIVENESS_CHECK_S: Final = 0.5
_DATA_FAULTS: Final = (InvalidMessageError, MessageSizeTooLargeError, CodecUnavailableError)
_T = TypeVar("_T")


class Found(Enum):
    """The result of a search."""

    READY = "ready"
    """Items are available."""
    NOTHING = "nothing"
    """No items are available now."""
    END = "end"
    """No more items will follow."""


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of an iterator for one way of reading.

    Args:
        most: largest number of messages in one item.
        lists: items are lists of messages, not single ones.
        schema: items are ``RecordBatch`` objects with these columns.
        timeout: seconds to wait for an item. Without it, ``consumer.timeout.ms`` applies.
        wait: whether the call waits at all.
        nothing: makes the item for a call that found no message in time.
    """

    nothing: Callable[[], Any]
    most: int = 1
    lists: bool = False
    schema: Any = None
    timeout: float | None = None
    wait: bool = True

    def waited(self, limit: float | None) -> Any:
        """Return the item for a call that found no message in time, or raise
        ConsumerTimeoutError."""
        if self.wait and self.timeout is None:
            raise ConsumerTimeoutError(
                f"no message within consumer.timeout.ms = {round((limit or 0) * 1000)}"
            )
        return self.nothing()


class Reader:
    """One stream: its queue, its unacknowledged messages, and calls from other threads.

    The docstrings of ``KafkaStream`` list the errors.

    Args:
        gate: checked before every message.
        queue_capacity: ``queued.max.message.chunks``.
        timeout_ms: ``consumer.timeout.ms``; a negative value waits indefinitely.
        key_decoder, value_decoder: called with bytes when a key or value is read.
        decoder: turns chunks into records.
    """

    def __init__(
        self,
        gate: DeliveryGate,
        *,
        queue_capacity: int = 2,
        timeout_ms: int = -1,
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
        decoder: Decoder | None = None,
    ) -> None:
        self._lock: Lock = threading.RLock()
        self.queue = ChunkQueue(queue_capacity, self._lock)
        """The queue. The fetcher manager fills it."""
        self._gate = gate
        self._decoder = message_decoder(decoder, key_decoder, value_decoder)
        self._timeout = None if timeout_ms < 0 else timeout_ms / 1000
        # All below is guarded by the lock. Messages are taken from the queue's current chunk; _info
        # is its partition and outlives it while a message of it is in hand.
        self._info = PartitionTopicInfo("", 0, None)
        self._begun: Chunk | None = None  # the chunk that _lists decodes
        self._lists: Iterator[Decoded] = _NOTHING
        self._schema: Any = None  # the columns of _lists; None: messages
        self._decoding = False  # _lists may have yielded more than _run has
        self._run = Run([])
        self._unlocked: Iterator[Any] = _NOTHING  # items of the run's rest, or nothing
        self._asked: Request | None = None  # who may take them
        self._interrupted = False  # the last item taken has its caller only if it is _given
        self._given: object = None
        self.bytes_begun = 0
        """Total record bytes of the chunks that the stream has begun to read."""
        self._held: MessageAndMetadata | None = None
        self._given_up: MessageAndMetadata | None = None  # still worked on, not held any more
        self._holder = 0
        self._searcher = 0
        """The thread that is currently in ``_fill``."""
        self.failure: Exception | None = None
        """The error at which the stream stopped; ``None`` if it can be read."""
        self._fault: Exception | None = None
        self._forked: Exception | None = None
        self._ended = False
        self.messages: HandOut[MessageAndMetadata] = self._iterator(Request(lambda: None))
        """The iterator over single messages."""
        self.polled: HandOut[MessageAndMetadata | None] = self._iterator(
            Request(lambda: None, wait=False)
        )
        """The iterator that does not wait: see ``take``."""

    # -- the consuming thread takes --------------------------------------------------------------

    def _iterator(self, request: Request) -> HandOut[Any]:
        return HandOut(lambda owner: self._items(request, owner), lambda: self._awaited(request))

    def _awaited(self, request: Request) -> AsyncIterator[Any]:
        from zkconsumer.runtime.delivery.awaiting import Awaited

        limit = self._timeout if request.timeout is None else request.timeout
        polled = self._iterator(replace(request, nothing=lambda: Found.NOTHING, wait=False))
        return Awaited(polled, Found.NOTHING, self.queue.alarm, limit, request.waited)

    def _items(self, request: Request, owner: HandOut[Any]) -> Generator[Any, None, None]:
        """Take the requested items, one at a time. Items are taken only in this method."""
        # Without the lock: taking is one step of an iterator, which no thread can divide, and how
        # far the run is shows which message is in hand and which ones are consumed (``_note``).
        # A revoke takes the rest out of the same run, so nothing is left here.
        given: object = None
        gate, fill = self._gate, self._fill
        now, clock = gate.clock
        thread = get_ident
        try:
            yield None
            owner.renew()
            while True:
                if self._asked is request and now(clock) < gate.valid_until:
                    self._holder = thread()
                    for item in self._unlocked:
                        yield item
                        given = item
                        break
                    else:
                        if (result := fill(request, owner)) is not Found.READY:
                            if result is Found.END:
                                break
                            yield request.nothing()
                elif (result := fill(request, owner)) is not Found.READY:
                    if result is Found.END:
                        break
                    yield request.nothing()
            owner.__next__ = owner.spare or owner.ready()  # type: ignore[method-assign]
            owner.spare = None
        except GeneratorExit:  # it is no longer used
            raise
        except BaseException as error:
            if error.__class__ is not InUseError or not is_refusal(error):
                self._given, self._interrupted, self._unlocked = given, True, _NOTHING
            owner.__next__ = owner.spare or owner.ready()  # type: ignore[method-assign]
            owner.spare = None
            raise

    def lists(self, most: int, timeout: float | None) -> HandOut[list[MessageAndMetadata]]:
        """Yield the items of ``KafkaStream.batches``."""
        return self._iterator(Request(list, most=most, lists=True, timeout=timeout))

    def columns(self, empty: RecordBatch, timeout: float | None) -> HandOut[RecordBatch]:
        """Yield the items of ``KafkaStream.arrow_batches``, with the columns of ``empty``, which
        has no rows."""
        return self._iterator(Request(lambda: empty, schema=empty.schema, timeout=timeout))

    def mark_consumed(self) -> None:
        """Count the current message or list as consumed (``KafkaStream.mark_consumed``)."""
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

    @property
    def delivered(self) -> int:
        """Total number of messages delivered to the application. Computed on each read."""
        with self._lock:
            return self._run.delivered

    def revoke(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Stop delivering messages of ``infos``. Never blocks. After this returns, none of their
        messages is handed out."""
        revoked = set(infos)
        with self._lock:
            for info in revoked:
                info.revoked = True
            freed = self.queue.discard(revoked)
            if self.queue.current is not None and self.queue.current.info in revoked:
                self._drop_chunk()
            self.queue.changed.notify_all()
        self._wake(freed)

    def wait_released(
        self, infos: Iterable[PartitionTopicInfo], deadline: float, thread: int | None = None
    ) -> bool:
        """Wait until the application has acknowledged its messages of ``infos``.

        A message is unacknowledged from its delivery until the application asks for the next one.
        After the call, ``consumed_offset`` of ``infos`` is final, whether it returns true or
        false. A message that is still unacknowledged counts as not consumed.

        Args:
            infos: partitions that were revoked.
            deadline: ``time.monotonic()`` seconds. The call does not wait if ``thread`` itself
                holds the message, or if the thread that had it has ended.
            thread: identifier of the thread that the call is made for; without it, the calling
                one.

        Returns:
            false when the deadline passed.
        """
        released, thread = set(infos), get_ident() if thread is None else thread
        with self._lock:
            # A message of this thread, or of one that has ended, will not be acknowledged.
            while not self.release(
                released, force=self._holder == thread or not _is_alive(self._holder)
            ):
                remaining = deadline - monotonic()
                if remaining <= 0:
                    self.release(released, force=True)
                    return False
                self.queue.changed.wait(min(remaining, _LIVENESS_CHECK_S))
            return True

    def release(self, infos: Iterable[PartitionTopicInfo], *, force: bool = False) -> bool:
        """Return whether the application has acknowledged its messages of ``infos``, without
        waiting.

        If so, ``consumed_offset`` of ``infos`` is final. ``force`` makes it final without
        acknowledgement: an unacknowledged message counts as not consumed.
        """
        with self._lock:
            self._note()
            if self._held is None or self._info not in infos:
                return True
            if force:
                self._given_up, self._held = self._held, None
            return force

    def held_by(self, thread: int) -> bool:
        """Whether the thread with this identifier has an unacknowledged message of this stream."""
        with self._lock:
            self._note()
            return self._held is not None and self._holder == thread

    @property
    def in_hand(self) -> MessageAndMetadata | None:
        """The unacknowledged message; ``None`` while the application waits for the next one."""
        with self._lock:
            self._note()
            return self._held or self._given_up

    def fail(self, error: Exception) -> None:
        """Raise ``error`` when the application requests the next message. Never blocks."""
        with self._lock:
            self._fault = error
        self.queue.alarm.set()

    def after_fork(self, error: Exception) -> None:
        """Raise ``error`` in a child process, where a thread that no longer exists may hold the
        lock."""
        self._lock = threading.RLock()
        self.queue.after_fork(self._lock)
        self._forked, self._unlocked, self._searcher = error, _NOTHING, 0
        for owner in (self.messages, self.polled):  # a thread of the parent may run the generator
            owner.__next__ = owner.ready()  # type: ignore[method-assign]

    def lend(self) -> list[Callable[[], object]]:
        """Release the stream's lock if this thread holds it. Return the actions that reacquire
        it."""
        return lend(self._lock)

    def shutdown(self) -> None:
        """End the iteration permanently and drop queued chunks. Never blocks; may be repeated."""
        with self._lock:
            freed = self.queue.close()
            self._end_now()
            self.queue.changed.notify_all()
        self._wake(freed)

    def _wake(self, freed: bool) -> None:
        self.queue.alarm.set()
        if freed and self.queue.on_space is not None:
            self.queue.on_space()

    def _drop_chunk(self) -> None:
        """Stop delivering the current chunk."""
        self._info.run = None  # it would report that all is taken
        self._run.drain()
        self._note()
        self._lists = self._unlocked = _NOTHING
        self.queue.end_current()

    def _end_now(self) -> None:
        """Stop delivering messages."""
        self._drop_chunk()
        self._ended = True

    # -- searches: on the consuming thread, under the lock ---------------------------------------

    def _fill(self, request: Request, owner: HandOut[Any]) -> Found:
        """Make items available, waiting for them if ``request`` allows. ``owner``: the iterator
        whose generator calls this. Its other calls of ``__next__`` are refused during this call."""
        lock, thread, begun = self._lock, get_ident(), False
        if lock._is_owned():
            refuse()
        limit = self._timeout if request.timeout is None else request.timeout
        deadline = None if limit is None else monotonic() + limit
        problem: Exception | None = None
        try:
            lock.acquire()
            if self._searcher and (self._searcher == thread or _is_alive(self._searcher)):
                refuse()
            begun = True
            self._searcher = thread
            ready = owner.__next__
            owner.__next__ = refuse  # type: ignore[method-assign]
            self._begin_search(request.schema)
            result, problem = self._result_of(request, deadline)
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
        if result is Found.NOTHING:
            request.waited(limit)
        return result

    def _result_of(
        self, request: Request, deadline: float | None
    ) -> tuple[Found, Exception | None]:
        """Return the result of a search, or the error that makes the stream fail.

        Errors are returned, not raised under the lock, because a signal handler may raise while
        they propagate.
        """
        cause = self.failure
        if cause is not None:
            text = f"this stream has failed and cannot be read any further: {cause}"
            problem = UsageError(text)
            problem.__cause__ = cause
            return Found.END, problem
        try:
            while True:
                result = self._search(request.most)
                if result is not Found.NOTHING or not request.wait:
                    break
                remaining = None if deadline is None else deadline - monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._lock.release()
                self.queue.tell_space()
                self.queue.alarm.wait(remaining)
                self._lock.acquire()
            if result is Found.READY:
                self._unlock(request)
        except _DATA_FAULTS as error:
            self.failure = error
            return Found.END, error
        if result is not Found.END:
            return result, None
        self.queue.alarm.set()  # for any other thread that waits
        # Also after the end: it did not end as it should.
        self.failure = self._fault
        return result, self._fault

    def _begin_search(self, schema: Any) -> None:
        self._let_go()
        self._unlocked = _NOTHING
        self._info.run = None
        if self._decoding or self._schema != schema:
            self._schema = schema
            self._again()

    def _search(self, wanted: int = 1) -> Found:
        """Put at least one message into the run. Releases the lock while decoding.

        Decodes ``wanted`` messages if the chunk has that many. Raises an error of the data, with
        the lock held.
        """
        while not self._ended and self._fault is None:
            if self._run.left > 0:
                ready = self._gate.is_open or self._gate.wait_turn(self.queue.alarm.set)
                return Found.READY if ready else Found.NOTHING
            chunk = self.queue.current or self.queue.take()
            if chunk is None:
                if not self.queue.closed:
                    return Found.NOTHING
                self._ended = True
            elif chunk is not self._begun:
                self._begin(chunk)
            else:
                self._decode_more(chunk, wanted)
        return Found.END

    def _begin(self, chunk: Chunk) -> None:
        """Make ``chunk`` the one from which messages are taken."""
        info = chunk.info
        self.queue.settle()
        self._info = info
        # Normally they are equal. After an offset out of range the log begins again elsewhere.
        info.consumed_offset = chunk.fetch_offset
        if info.pending_reset is chunk:
            info.pending_reset = None
        if chunk.data and chunk.next_offset == chunk.fetch_offset and not chunk.damaged:
            raise MessageSizeTooLargeError(
                f"the message at offset {chunk.fetch_offset} of {info.topic_partition} is larger "
                f"than {len(chunk.data)} bytes: raise fetch.message.max.bytes"
            )
        self._lists = self._decoded(chunk, chunk.fetch_offset)
        self.bytes_begun += len(chunk.data)
        self._begun = chunk

    def _decoded(self, chunk: Chunk, start: int) -> Iterator[Decoded]:
        """Decode the chunk's messages from this offset on, in lists or at once as columns."""
        where = chunk.data, chunk.info.topic, chunk.info.partition, start
        if self._schema is None:
            return zip(self._decoder.decode(*where), repeat(None))
        return _as_columns(*where, self._schema)

    def _decode_more(self, chunk: Chunk, wanted: int) -> None:
        """Decode the chunk's next messages, without holding the lock.

        Takes lists from the decoder until there are ``wanted`` messages.
        """
        lists = self._lists
        messages: list[MessageAndMetadata] | None = None
        columns: RecordBatch = None
        failure: Exception | None = None
        self._decoding = True
        self._lock.release()
        self.queue.tell_space()
        try:
            for more, batch in lists:
                columns = batch
                if messages is None:
                    messages = more
                else:
                    messages += more
                if len(messages) >= wanted:
                    break
        except _DATA_FAULTS as exc:
            failure = exc
        self._lock.acquire()
        if self.queue.current is not chunk or self._lists is not lists:
            self._decoding = False
            return  # revoked or shut down meanwhile
        if messages is None and failure is None:
            self._finish(chunk)
        elif messages:
            if failure is not None:
                self._lists = _raising(failure)
            self._run = Run(messages, self._run.delivered, columns)
        elif failure is not None:
            raise failure
        self._decoding = False

    def _again(self) -> None:
        """Decode the current chunk again, starting at the consumed offset."""
        chunk = self.queue.current
        if chunk is not None and chunk is self._begun:
            start = chunk.info.consumed_offset
            assert start is not None
            self._run = Run([], self._run.delivered)
            self._lists = self._decoded(chunk, start)
        self._decoding = False

    def _finish(self, chunk: Chunk) -> None:
        """Count all of the chunk's messages as consumed, with the gaps between and after them."""
        if chunk.next_offset > (chunk.info.consumed_offset or 0):
            chunk.info.consumed_offset = chunk.next_offset
        self._end_chunk(chunk)

    def _end_chunk(self, chunk: Chunk) -> None:
        if chunk.damaged:
            raise InvalidMessageError(
                f"{chunk.info.topic_partition} has a damaged entry after offset "
                f"{chunk.next_offset - 1}"
            )
        chunk.info.finished_offset = chunk.next_offset
        self.queue.end_current()

    # -- what is in hand -------------------------------------------------------------------------

    def _unlock(self, request: Request) -> None:
        """Make the run's messages available without the lock, one at a time or all in one item.
        Taking an item takes its messages from the run in one step."""
        run, self._asked = self._run, request
        run.begin(not (request.lists or request.schema is not None))
        items: Iterator[Any] = run.rest
        if request.schema is not None:
            items = map(itemgetter(1), zip(run.rest, repeat(run.columns)))
        elif request.lists:
            items = filter(None, map(list, repeat(islice(run.rest, request.most), 1)))
        elif _ONE_AT_A_TIME:
            self._info.run = run
        self._unlocked = items if _ONE_AT_A_TIME else iter([*islice(items, 1)])

    def _note(self) -> None:
        """Record the messages that were taken without the lock."""
        run = self._run
        taken = run.taken
        if taken > run.noted:
            self._held = run.messages[taken - 1]
            if run.singly and (consumed := run.consumed) is not None:
                self._info.consumed_offset = consumed
            run.noted = taken

    def _take_back(self) -> None:
        """Put back the messages of an interrupted call, which its caller has not received."""
        self._note()
        run, held, given = self._run, self._held, self._given
        if isinstance(given, list):
            given = given[-1] if given else None
        elif given is not None and given is run.columns and run.messages:
            given = run.messages[-1]  # which stands for them
        if held is not None and held is not given:
            if run.taken and run.messages[run.taken - 1] is held and not run.dropped:
                self._info.run = None
                self._run = run.from_index(run.taken - 1 if run.singly else run.base)
            self._held = None
        self._interrupted = False

    def _let_go(self) -> None:
        """Acknowledge the last delivered message, if there is one."""
        if self._forked is not None:
            raise self._forked.with_traceback(None)
        if self._interrupted:
            self._take_back()
        self._note()
        self._given_up = None
        if (held := self._held) is not None:
            # DEVIATION-07: the JVM counts a message as consumed when it is returned.
            self._info.consumed_offset = held.offset + 1
            self._held = None
            self.queue.changed.notify_all()


def take(items: HandOut[_T]) -> _T:
    """Return the next item. Raises ``StopIteration`` after the end.

    The item is taken with a ``for`` statement, because a signal handler may raise after ``next``
    returns and before the caller has the item.
    """
    try:
        for item in items:
            return item
    except ValueError as error:
        if is_refusal(error):
            refuse()  # the generator is running in another thread
        raise
    raise StopIteration


def _as_columns(
    data: bytes, topic: str, partition: int, start: int, schema: Any
) -> Iterator[Decoded]:
    """The remaining messages of a chunk as columns. One message, the last, stands for them."""
    from zkconsumer.broker.fetching import columns

    decoded = columns.decode(data, topic, partition, start, schema)
    if decoded.batch.num_rows:
        last = MessageAndMetadata(topic, partition, decoded.last, None, None)
        yield [last], decoded.batch
    if decoded.failure is not None:
        raise decoded.failure


def _raising(error: Exception) -> Iterator[Decoded]:
    """Messages that end with ``error`` at once: those before it are delivered already."""
    raise error
    yield


def _is_alive(ident: int) -> bool:
    return any(thread.ident == ident for thread in threading.enumerate())
