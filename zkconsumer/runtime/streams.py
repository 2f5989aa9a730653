"""Streams of messages and their iterator (Scala: KafkaStream, ConsumerIterator).

One application thread iterates a stream; fetcher threads fill its queue; the connector's thread
revokes, waits and shuts down. One lock for each stream guards queue and iterator; it is held for
moments only, never while decoding. The rest of a decoded list is taken without it, message by
message: see ``ConsumerIterator.__next__`` and ``Run``. Lock order: a stream's lock before the
gate's, and none of the fetch table's inside.

Calls that block are built on calls that do not: iteration on ``try_next``'s search,
``wait_released`` on ``release``. A single thread on virtual time uses the latter two.

A batch is a list of messages of one partition, taken under one lock after one look at the gate. It
is unacknowledged as a whole, as a single message is.

When a message counts as consumed: in the default profile when the next one is asked for (with
``next``, ``has_next`` or ``peek``) or with ``mark_consumed``, so that a commit never covers a
message the application still works on; in the scala profile when it is returned.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from itertools import islice
from threading import get_ident
from time import clock_gettime, monotonic
from typing import Final, TypeVar

from zkconsumer.broker.records import Decoder, MessageDecoder
from zkconsumer.errors import (
    ConsumerTimeoutError,
    InvalidMessageError,
    MessageSizeTooLargeError,
    UsageError,
)
from zkconsumer.runtime.batches import ArrowIterator, BatchIterator, RecordBatch, check_most
from zkconsumer.runtime.chunk_queue import Chunk, ChunkQueue
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.messages import (
    Decode,
    MessageAndMetadata,
    bytes_decoder,
    message_decoder,
)
from zkconsumer.runtime.partition_info import PartitionTopicInfo, Run

_LIVENESS_CHECK_S = 0.5
_ONE_AT_A_TIME: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the interpreter runs one thread at a time, which reading without the lock requires."""
_T = TypeVar("_T")


class KafkaStream:
    """Messages of the partitions that one consumer thread id owns, in order for each partition.

    Iterate it with ``for``; ``iter()`` gives the same ``ConsumerIterator`` each time. Not for use
    by several threads at once.

    Args:
        client_id: ``client.id`` of the connector.
        gate: checked before every message.
        queue_capacity: ``queued.max.message.chunks``.
        timeout_ms: ``consumer.timeout.ms``; a negative value waits indefinitely.
        key_decoder, value_decoder: called with bytes when a key or value is read.
        decoder: turns chunks into records.
        scala: count messages as consumed when they are returned, deliver a prefetched message even
            after its partition was revoked, finish the current chunk after ``shutdown``.
    """

    def __init__(
        self,
        client_id: str,
        gate: DeliveryGate,
        *,
        queue_capacity: int = 2,
        timeout_ms: int = -1,
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
        decoder: Decoder | None = None,
        scala: bool = False,
    ) -> None:
        self.client_id = client_id
        lock = threading.Lock()
        self.queue = ChunkQueue(queue_capacity, lock)
        """Filled by the fetcher manager."""
        kind = _ScalaConsumerIterator if scala else ConsumerIterator
        self._iterator = kind(
            lock,
            self.queue,
            gate,
            message_decoder(decoder, key_decoder, value_decoder),
            None if timeout_ms < 0 else timeout_ms / 1000,
        )

    def __iter__(self) -> ConsumerIterator:
        return self._iterator

    def try_next(self) -> MessageAndMetadata | None:
        """Return the next message, or ``None`` if there is none now. Never waits.

        Otherwise like ``next`` on the iterator: it counts the current message as consumed, raises
        the same errors, and raises ``StopIteration`` after ``shutdown``.
        """
        return self._iterator.try_next()

    def batches(self, max_messages: int = 500, timeout: float | None = None) -> BatchIterator:
        """Iterate over lists of messages instead of single ones. Several times faster.

        A list has at least one message, all of one partition and in order. It counts as consumed as
        a whole, when the application asks for the next list or calls ``mark_consumed``. So a crash
        repeats up to one list, not just one message. A partition is released when the application
        has finished its list, so a list should take less time than ``zkconsumer.release.wait.ms``.
        In all other respects a list behaves like a message: the end and failures of the stream,
        ``consumer.timeout.ms``, and revoked partitions.

        Args:
            max_messages: largest number of messages in a list. A list also ends at the end of the
                data of one fetch.
            timeout: seconds to wait for a message. Then an empty list is returned, so that the
                application can do other work. By default ``consumer.timeout.ms`` decides.

        Raises:
            ValueError: ``max_messages`` is below 1, or ``timeout`` is negative.
        """
        return BatchIterator(self._iterator, max_messages, timeout)

    def arrow_batches(self, timeout: float | None = None) -> ArrowIterator:
        """Iterate over ``pyarrow.RecordBatch`` objects: columns instead of messages.

        Each batch has the remaining messages of one partition from one fetch, with the columns
        topic, partition, offset, timestamp (milliseconds, UTC; null in format 0), key, value and
        headers. Keys and values are bytes; the stream's decoders are not called. A batch counts as
        consumed as a whole, and behaves like a list of ``batches`` in all other respects.

        Args:
            timeout: seconds to wait for a message. Then a batch without rows is returned. By
                default ``consumer.timeout.ms`` decides.

        Raises:
            UsageError: pyarrow or numpy is not installed (extra ``arrow``).
            ValueError: ``timeout`` is negative.
        """
        return ArrowIterator(self._iterator, timeout)

    def try_next_batch(self, max_messages: int = 500) -> list[MessageAndMetadata]:
        """Return the next messages, or an empty list if there is none now. Never waits.

        Otherwise like ``next`` on ``batches``. Raises ``ValueError`` for ``max_messages`` below 1.
        """
        return self._iterator.try_next_batch(max_messages)

    def try_next_columns(self) -> RecordBatch | None:
        """Return the next columns, or ``None`` if there are none now. Never waits.

        Otherwise like ``next`` on ``arrow_batches``. Needs the extra ``arrow``.
        """
        return self._iterator.try_next_columns()

    def mark_consumed(self) -> None:
        """Count the current message or list as consumed now, without asking for the next one."""
        self._iterator.mark_consumed()

    @property
    def delivered(self) -> int:
        """Number of messages delivered to the application so far."""
        return self._iterator.delivered

    @property
    def bytes_begun(self) -> int:
        """Record bytes of the chunks that the stream has begun to read so far."""
        return self._iterator.bytes_begun

    def revoke(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Deliver nothing more of ``infos``: once this returns, none of their messages is handed
        out (scala profile: save one that ``has_next`` has prefetched). Never blocks."""
        self._iterator.revoke(set(infos))

    def wait_released(self, infos: Iterable[PartitionTopicInfo], deadline: float) -> bool:
        """Wait until the application has acknowledged its messages of ``infos``.

        A message is unacknowledged from its delivery until the application asks for the next one.
        After the call ``consumed_offset`` of ``infos`` is final, whatever the call returns. A
        message that is still unacknowledged counts as not consumed.

        Args:
            infos: partitions that were revoked.
            deadline: ``time.monotonic()`` seconds. The call does not wait if the calling thread
                itself has the message, or if the thread that had it has ended.

        Returns:
            false when the deadline passed.
        """
        return self._iterator.wait_released(set(infos), deadline)

    def release(self, infos: Iterable[PartitionTopicInfo], *, force: bool = False) -> bool:
        """Return whether the application has acknowledged its messages of ``infos``. Never waits.

        If so, ``consumed_offset`` of ``infos`` is final. ``force`` makes it final in any case: an
        unacknowledged message counts as not consumed.
        """
        return self._iterator.release(set(infos), force=force)

    @property
    def held_by_caller(self) -> bool:
        """Whether the calling thread has an unacknowledged message of this stream."""
        return self._iterator.held_by_caller

    @property
    def in_hand(self) -> MessageAndMetadata | None:
        """The message that the application works on; ``None`` while it waits for one."""
        return self._iterator.in_hand

    @property
    def failure(self) -> Exception | None:
        """The error at which the stream stopped; ``None`` if it can be read."""
        return self._iterator.failure

    def fail(self, error: Exception) -> None:
        """Raise ``error`` when the application requests the next message. Never blocks."""
        self._iterator.fail(error)

    def shutdown(self) -> None:
        """End the iteration permanently and drop queued chunks. Never blocks; may be repeated."""
        self._iterator.shutdown()


class ConsumerIterator(Iterator[MessageAndMetadata]):
    """Iterator over the messages of one stream.

    Every call that looks for a message may raise:

    - ConsumerTimeoutError: none arrived within ``consumer.timeout.ms``. Iteration may continue.
    - InvalidMessageError, MessageSizeTooLargeError, CodecUnavailableError, ConnectorFailedError:
      the iterator, or the whole connector, has failed. Every later call raises ``UsageError``.
    """

    def __init__(
        self,
        lock: threading.Lock,
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
        self._lists: Iterator[list[MessageAndMetadata]] = iter(())
        self._messages: Iterator[MessageAndMetadata] = iter(())
        self._run = Run([])  # what _messages takes from
        self._noted = 0  # how many of the run are in _held, in _peeked or were there before
        self._unlocked: Iterator[MessageAndMetadata] = iter(())  # _messages, or nothing
        self._taken_up = 0  # messages of all lists so far, less those that were dropped
        self.bytes_begun = 0
        """See ``KafkaStream.bytes_begun``."""
        self._peeked: MessageAndMetadata | None = None
        self._held: MessageAndMetadata | None = None
        self._given_up: MessageAndMetadata | None = None  # still worked on, not held any more
        self._holder = 0
        self._failure: Exception | None = None
        self._fault: Exception | None = None
        self._ended = False

    def __iter__(self) -> ConsumerIterator:
        return self

    def __next__(self) -> MessageAndMetadata:
        # Without the lock: taking is one step of a list's iterator, which no thread can divide, and
        # how far that is tells which message is in hand and which ones are consumed (``_note``).
        # A revoke takes the rest out of the same iterator, so nothing is left here.
        if clock_gettime(CLOCK) < self._gate.valid_until:
            self._holder = get_ident()
            for message in self._unlocked:
                return message
        return self._await(take=True)

    def next(self) -> MessageAndMetadata:
        """Return the next message, waiting for it. Raises ``StopIteration`` after shutdown."""
        return self.__next__()

    def try_next(self) -> MessageAndMetadata | None:
        """See ``KafkaStream.try_next``."""
        with self._lock:
            self._begin_search()
            return self._search(take=True)

    def next_batch(self, most: int, timeout: float | None) -> list[MessageAndMetadata]:
        """Return the next messages; see ``KafkaStream.batches``. ``StopIteration`` at the end."""
        return self._wait_for(partial(self._search_batch, most), timeout) or []

    def next_columns(self, timeout: float | None) -> RecordBatch | None:
        """Return the next columns; see ``KafkaStream.arrow_batches``. ``None`` if none arrived in
        time. Raises ``StopIteration`` at the end.
        """
        return self._wait_for(self._search_columns, timeout)

    def try_next_columns(self) -> RecordBatch | None:
        """Return the next columns, or ``None`` if there are none now. Never waits."""
        with self._lock:
            self._begin_search()
            return self._search_columns()

    def try_next_batch(self, most: int) -> list[MessageAndMetadata]:
        """See ``KafkaStream.try_next_batch``."""
        check_most(most)
        with self._lock:
            self._begin_search()
            return self._search_batch(most) or []

    def has_next(self) -> bool:
        """Wait for a message and keep it for ``next``; false after shutdown.

        A call counts the application's current message as consumed.
        """
        try:
            self._await(take=False)
        except StopIteration:
            return False
        return True

    def peek(self) -> MessageAndMetadata:
        """Return the message that ``next`` will return. Raises ``StopIteration`` after shutdown."""
        return self._await(take=False)

    def mark_consumed(self) -> None:
        """See ``KafkaStream.mark_consumed``."""
        with self._lock:
            self._let_go()

    def revoke(self, infos: Set[PartitionTopicInfo]) -> None:
        """See ``KafkaStream.revoke``."""
        with self._lock:
            for info in infos:
                info.revoked = True
            self._queue.discard(infos)
            if self._queue.current is not None and self._queue.current.info in infos:
                self._drop_chunk()
            self._changed.notify_all()
        self._queue.tell_space()

    def wait_released(self, infos: Set[PartitionTopicInfo], deadline: float) -> bool:
        """See ``KafkaStream.wait_released``."""
        with self._lock:
            while not self._release(infos, force=self._holder_is_past_waiting_for):
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

    @property
    def _holder_is_past_waiting_for(self) -> bool:
        return self._holder == get_ident() or not _is_alive(self._holder)

    @property
    def delivered(self) -> int:
        """See ``KafkaStream.delivered``. It is computed when it is read."""
        with self._lock:
            return self._taken_up - self._run.left - (self._peeked is not None)

    @property
    def held_by_caller(self) -> bool:
        """See ``KafkaStream.held_by_caller``."""
        with self._lock:
            self._note()
            return self._held is not None and self._holder == get_ident()

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
            self._changed.notify_all()

    def shutdown(self) -> None:
        """See ``KafkaStream.shutdown``."""
        with self._lock:
            self._queue.closed = True
            self._queue.clear()
            self._end_now()
            self._changed.notify_all()
        self._queue.tell_space()

    def _await(self, take: bool) -> MessageAndMetadata:
        """Wait for the next message. ``take`` hands it over, else it is kept for the next call.

        Raises ``StopIteration`` at the end.
        """
        message = self._wait_for(partial(self._search, take), None)
        assert message is not None
        return message

    def _wait_for(self, search: Callable[[], _T | None], timeout: float | None) -> _T | None:
        """Wait until ``search`` finds something; ``None`` after ``timeout`` seconds.

        Without ``timeout``, ``consumer.timeout.ms`` raises.
        """
        wait = self._timeout if timeout is None else timeout
        deadline = None if wait is None else monotonic() + wait
        with self._lock:
            self._begin_search()
            while (found := search()) is None:
                if timeout is not None and deadline is not None and monotonic() >= deadline:
                    return None
                self._wait(deadline)
            return found

    def _begin_search(self) -> None:
        self._let_go()
        self._unlocked = iter(())
        self._info.run = None
        if self._failure is not None:
            raise UsageError(
                f"this stream has failed and cannot be read any further: {self._failure}"
            ) from self._failure

    def _search_batch(self, most: int) -> list[MessageAndMetadata] | None:
        """Take the next messages; ``None`` if there are none now."""
        first = self._search(take=False, wanted=most)
        if first is None:
            return None
        batch = [first, *islice(self._messages, most - 1)]
        self._noted = self._run.taken
        self._hand_over(batch[-1])
        return batch

    def _search_columns(self) -> RecordBatch | None:
        """Take the rest of a chunk; ``None`` if there is none now. Releases the lock to decode."""
        from zkconsumer.broker import columns

        while (first := self._search(take=False)) is not None:
            chunk = self._queue.current
            if chunk is None or chunk.info is not self._info:  # prefetched before a revoke (scala)
                self._hand_over(first)
                return columns.of_records(first.topic, first.partition, [first.as_record()])
            self._lock.release()
            try:
                found, failure = columns.decode(
                    chunk.data, first.topic, first.partition, first.offset
                )
            except Exception as exc:
                self._failure = exc
                raise
            finally:
                self._lock.acquire()
            if self._queue.current is not chunk or not self._gate.is_open:
                continue  # revoked, shut down, or the lease has run out meanwhile
            self._drop_decoded()
            self._taken_up += found.num_rows
            self._lists = iter(()) if failure is None else _raising(failure)
            last = found["offset"][-1].as_py()
            self._hand_over(MessageAndMetadata(first.topic, first.partition, last, None, None))
            return found
        return None

    def _search(self, take: bool, wanted: int = 1) -> MessageAndMetadata | None:
        """Find the next message; ``None`` if there is none now. Releases the lock to decode.

        Where it decodes, it decodes ``wanted`` messages if the chunk has so many.

        Raises ``StopIteration`` at the end, and the error that makes the stream fail.
        """
        try:
            while not self._ended and self._fault is None:
                if self._peeked is None:
                    self._peeked = next(self._messages, None)
                    self._noted = self._run.taken
                if (message := self._peeked) is not None:
                    if not (self._gate.is_open or self._gate.wait_turn(self._wake)):
                        return None
                    if take:
                        self._hand_over(message)
                        self._unlock()
                    return message
                if self._queue.current is not None:
                    self._decode_more(self._queue.current, wanted)
                elif (chunk := self._queue.take()) is not None:
                    self._begin(chunk)
                elif self._queue.closed:
                    self._ended = True
                else:
                    return None
            if self._fault is not None:  # also after the end: it did not end as it should
                raise self._fault
        except Exception as exc:
            self._failure = exc
            raise
        raise StopIteration

    def _begin(self, chunk: Chunk) -> None:
        """Make ``chunk`` the one that messages are taken from."""
        info = chunk.info
        self._info = info
        self.bytes_begun += len(chunk.data)
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

    def _decode_more(self, chunk: Chunk, wanted: int) -> None:
        """Decode the chunk's next messages, without the lock meanwhile.

        That is one list of the decoder's, and further ones until there are ``wanted`` messages.
        """
        lists = self._lists
        messages: list[MessageAndMetadata] | None = None
        failure: BaseException | None = None
        self._lock.release()
        try:
            self._queue.tell_space()
            messages = next(lists, None)
            if messages is not None and len(messages) < wanted:
                try:
                    for more in lists:
                        messages += more
                        if len(messages) >= wanted:
                            break
                except Exception as exc:
                    if not messages:
                        raise
                    self._lists = _raising(exc)
        except BaseException as exc:  # noqa: BLE001
            failure = exc
        finally:
            self._lock.acquire()
        if self._queue.current is not chunk:  # revoked or shut down meanwhile
            if failure is not None and not isinstance(failure, Exception):
                raise failure
            return
        if failure is not None:
            if not isinstance(failure, Exception):  # Ctrl-C: decode the same ones next time
                self._again(chunk)
            raise failure
        if messages is None:
            self._finish(chunk)
            if chunk.damaged:
                raise InvalidMessageError(
                    f"{chunk.info.topic_partition} has a damaged entry after offset "
                    f"{chunk.next_offset - 1}"
                )
        else:
            self._taken_up += len(messages)
            self._run = Run(messages)
            self._noted = 0
            self._messages = self._run.rest

    def _again(self, chunk: Chunk) -> None:
        start = chunk.info.consumed_offset
        assert start is not None
        self._lists = self._decoder.decode(
            chunk.data, chunk.info.topic, chunk.info.partition, start
        )

    def _finish(self, chunk: Chunk) -> None:
        """All of the chunk's messages are consumed, and so are the gaps between and after them."""
        self._drop_chunk()
        if chunk.next_offset > (chunk.info.consumed_offset or 0):
            chunk.info.consumed_offset = chunk.next_offset

    def _drop_chunk(self) -> None:
        self._drop_decoded()
        self._queue.current = None

    def _drop_decoded(self) -> None:
        self._info.run = None  # it would report that all is taken
        dropped = self._run.drain()
        self._note()
        self._taken_up -= dropped + (self._peeked is not None)
        self._lists = iter(())
        self._messages = self._unlocked = iter(())
        self._peeked = None

    def _end_now(self) -> None:
        self._drop_chunk()
        self._ended = True

    def _unlock(self) -> None:
        """Let ``__next__`` take the rest of the list without the lock."""
        if _ONE_AT_A_TIME:
            self._unlocked = self._messages
            self._info.run = self._run

    def _note(self) -> None:
        """Record what ``__next__`` has taken without the lock."""
        taken = self._run.taken
        if taken > self._noted:
            self._noted = taken
            if (consumed := self._run.consumed) is not None:
                self._info.consumed_offset = consumed
            self._held = self._run.messages[taken - 1]

    def _let_go(self) -> None:
        """Acknowledge the last delivered message, if there is one."""
        self._note()
        self._given_up = None
        if self._held is not None:
            # DEVIATION-07: the JVM counts a message as consumed when it is returned.
            self._info.consumed_offset = self._held.offset + 1
            self._held = None
            self._changed.notify_all()

    def _hand_over(self, message: MessageAndMetadata) -> None:
        self._peeked = None
        self._held = message
        self._holder = get_ident()

    def _wait(self, deadline: float | None) -> None:
        if deadline is None:
            self._changed.wait()
            return
        remaining = deadline - monotonic()
        if remaining <= 0:
            assert self._timeout is not None
            raise ConsumerTimeoutError(
                f"no message within consumer.timeout.ms = {round(self._timeout * 1000)}"
            )
        self._changed.wait(remaining)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _ScalaConsumerIterator(ConsumerIterator):
    """The iterator as Scala 1.1.1 has it, for the scala profile."""

    def __next__(self) -> MessageAndMetadata:
        return self._await(take=True)

    def _unlock(self) -> None:
        pass  # a message is consumed when it is returned, so each needs the lock

    def _hand_over(self, message: MessageAndMetadata) -> None:
        self._peeked = None
        self._info.consumed_offset = message.offset + 1

    def _finish(self, chunk: Chunk) -> None:
        self._drop_chunk()

    def _drop_chunk(self) -> None:
        prefetched, self._peeked = self._peeked, None
        super()._drop_chunk()
        self._peeked = prefetched

    def _end_now(self) -> None:
        pass  # the marker is found when the current chunk is used up


def _raising(error: Exception) -> Iterator[list[MessageAndMetadata]]:
    """Messages that end with ``error`` at once: those before it are delivered already."""
    raise error
    yield


def _is_alive(ident: int) -> bool:
    return any(thread.ident == ident for thread in threading.enumerate())
