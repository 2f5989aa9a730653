"""Streams of messages and their iterator (Scala: KafkaStream, ConsumerIterator).

One application thread iterates a stream; fetcher threads fill its queue; the connector's thread
revokes, waits and shuts down. One lock for each stream guards queue and iterator; it is held for
moments only, never while decoding. Decoded messages are taken without it: see ``ConsumerIterator``
and ``Run``. Lock order: a stream's lock before the gate's, and none of the fetch table's inside.

Calls that block are built on calls that do not: iteration on ``try_next``'s search,
``wait_released`` on ``release``. A single thread on virtual time uses the latter two.

A batch is a list of messages of one partition, taken in one step after one look at the gate. It is
unacknowledged as a whole, as a single message is.

When a message counts as consumed: in the default profile when the next one is asked for (with
``next``, ``has_next`` or ``peek``) or with ``mark_consumed``, so that a commit never covers a
message the application still works on; in the scala profile when it is returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from zkconsumer.broker.records import Decode, Decoder, MessageAndMetadata
from zkconsumer.runtime.delivery.batches import ArrowIterator, BatchIterator, check_most
from zkconsumer.runtime.delivery.chunk_queue import ChunkQueue
from zkconsumer.runtime.delivery.consumer_iterator import (
    ConsumerIterator,
    RecordBatch,
)
from zkconsumer.runtime.delivery.messages import bytes_decoder, message_decoder
from zkconsumer.runtime.delivery.partition_info import PartitionTopicInfo
from zkconsumer.runtime.delivery.scala_iterator import ScalaConsumerIterator
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.undisturbed import Lock, lend


class KafkaStream:
    """Messages of the partitions that one consumer thread id owns, in order for each partition.

    Iterate it with ``for``; ``iter()`` gives the same ``ConsumerIterator`` each time. Not for use
    by several threads at once: a call while another thread searches for a message raises
    ``UsageError``.

    Args:
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
        gate: DeliveryGate,
        *,
        queue_capacity: int = 2,
        timeout_ms: int = -1,
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
        decoder: Decoder | None = None,
        scala: bool = False,
    ) -> None:
        self._lock: Lock = threading.RLock()
        self.queue = ChunkQueue(queue_capacity, self._lock)
        """Filled by the fetcher manager."""
        kind = ScalaConsumerIterator if scala else ConsumerIterator
        self._iterator = kind(
            self._lock,
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
        check_most(max_messages)
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

    def wait_released(
        self, infos: Iterable[PartitionTopicInfo], deadline: float, thread: int | None = None
    ) -> bool:
        """Wait until the application has acknowledged its messages of ``infos``.

        A message is unacknowledged from its delivery until the application asks for the next one.
        After the call ``consumed_offset`` of ``infos`` is final, whatever the call returns. A
        message that is still unacknowledged counts as not consumed.

        Args:
            infos: partitions that were revoked.
            deadline: ``time.monotonic()`` seconds. The call does not wait if ``thread`` itself has
                the message, or if the thread that had it has ended.
            thread: identifier of the thread that the call is made for; without it, the calling one.

        Returns:
            false when the deadline passed.
        """
        return self._iterator.wait_released(set(infos), deadline, thread)

    def release(self, infos: Iterable[PartitionTopicInfo], *, force: bool = False) -> bool:
        """Return whether the application has acknowledged its messages of ``infos``. Never waits.

        If so, ``consumed_offset`` of ``infos`` is final. ``force`` makes it final in any case: an
        unacknowledged message counts as not consumed.
        """
        return self._iterator.release(set(infos), force=force)

    def held_by(self, thread: int) -> bool:
        """Whether the thread with this identifier has an unacknowledged message of this stream."""
        return self._iterator.held_by(thread)

    def after_fork(self, error: Exception) -> None:
        """Raise ``error``, in a child process. A thread of the parent may have had the lock."""
        self._lock = threading.RLock()
        self._iterator.after_fork(error, self._lock)

    def lend(self) -> list[Callable[[], object]]:
        """Give up the stream's lock if the calling thread has it; the result takes it again."""
        return lend(self._lock)

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
