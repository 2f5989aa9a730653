"""StreamControl: the runtime's side of one stream. The application's side is ``KafkaStream``.

Fetcher threads fill its queue; the connector's threads revoke, wait and shut down. One lock for
each stream guards queue and reader. It is held only briefly, never while decoding. Decoded
messages are taken without it: see ``Reader`` and ``Run``. Lock order: a stream's lock before the
gate's. The fetch table's locks are never taken inside.

``wait_released``, which blocks, is built on ``release``, which does not. A single thread on virtual
time uses the latter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Set
from threading import get_ident
from time import monotonic
from typing import Final

from zkconsumer.broker.fetching.records import Decode, Decoder, MessageAndMetadata
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.messages import bytes_decoder, message_decoder
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.undisturbed import Lock, lend

_LIVENESS_CHECK_S: Final = 0.5


class StreamControl:
    """One stream: its queue, its reader, and the actions of other threads on it.

    Args:
        gate: checked before every message.
        queue_capacity: ``queued.max.message.chunks``.
        timeout_ms: ``consumer.timeout.ms``; a negative value waits indefinitely.
        key_decoder, value_decoder: called with bytes when a key or value is read.
        decoder: turns chunks into records.
        reader: how messages are taken.
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
        reader: type[Reader] = Reader,
    ) -> None:
        self._lock: Lock = threading.RLock()
        self.queue = ChunkQueue(queue_capacity, self._lock)
        """The queue. The fetcher manager fills it."""
        self.reader = reader(
            self._lock,
            self.queue,
            gate,
            message_decoder(decoder, key_decoder, value_decoder),
            None if timeout_ms < 0 else timeout_ms / 1000,
        )
        """The reader. Used by the thread that consumes the stream."""

    @property
    def delivered(self) -> int:
        """Total number of messages delivered to the application."""
        with self._lock:
            return self.reader.delivered

    @property
    def bytes_begun(self) -> int:
        """Total record bytes of the chunks that the stream has begun to read."""
        return self.reader.bytes_begun

    def revoke(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """Stop delivering messages of ``infos``. Never blocks. After this returns, none of their
        messages is handed out."""
        revoked = set(infos)
        with self._lock:
            for info in revoked:
                info.revoke()
            freed = self.queue.discard(revoked)
            if self.queue.current is not None and self.queue.current.info in revoked:
                self.reader.drop_chunk()
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
            while not self._release(released, force=self.reader.is_past_waiting_for(thread)):
                remaining = deadline - monotonic()
                if remaining <= 0:
                    self._release(released, force=True)
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
            return self._release(set(infos), force=force)

    def _release(self, infos: Set[PartitionTopicInfo], *, force: bool) -> bool:
        return self.reader.release(infos, force=force)

    def held_by(self, thread: int) -> bool:
        """Whether the thread with this identifier has an unacknowledged message of this stream."""
        with self._lock:
            return self.reader.held_by(thread)

    @property
    def in_hand(self) -> MessageAndMetadata | None:
        """The unacknowledged message; ``None`` while the application waits for the next one."""
        with self._lock:
            return self.reader.in_hand

    @property
    def failure(self) -> Exception | None:
        """The error at which the stream stopped; ``None`` if it can be read."""
        return self.reader.failure

    def fail(self, error: Exception) -> None:
        """Raise ``error`` when the application requests the next message. Never blocks."""
        with self._lock:
            self.reader.fail(error)
        self.queue.alarm.set()

    def after_fork(self, error: Exception) -> None:
        """Raise ``error`` in a child process, where a thread that no longer exists may hold the
        lock."""
        self._lock = threading.RLock()
        self.queue.after_fork(self._lock)
        self.reader.after_fork(error, self._lock)

    def lend(self) -> list[Callable[[], object]]:
        """Release the stream's lock if the calling thread holds it; the result acquires it
        again."""
        return lend(self._lock)

    def shutdown(self) -> None:
        """End the iteration permanently and drop queued chunks. Never blocks; may be repeated."""
        with self._lock:
            freed = self.queue.close()
            self.reader.end_now()
            self.queue.changed.notify_all()
        self._wake(freed)

    def _wake(self, freed: bool) -> None:
        self.queue.alarm.set()
        if freed and self.queue.on_space is not None:
            self.queue.on_space()
