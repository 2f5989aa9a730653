"""DataPlane: assigns partitions to streams and tracks positions.

Owns the partition infos of all partitions that this member holds or has just stopped. Called by
the connector's loop; any thread may read ``positions``, ``lags`` and the measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.runtime.counters import FetchCounts, Meter
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader


class Fetching(Protocol):
    """The methods of ``ConsumerFetcherManager``, or of simulated fetchers, that a data plane
    needs."""

    @property
    def counts(self) -> FetchCounts:
        """Counts of requests and answers."""
        ...

    def set_brokers(self, brokers: Sequence[BrokerEndpoint]) -> None:
        """See ``ConsumerFetcherManager.set_brokers``."""
        ...

    def start(self, assignments: Mapping[PartitionTopicInfo, ChunkQueue]) -> None:
        """See ``ConsumerFetcherManager.start``."""
        ...

    def stop(self, infos: Iterable[PartitionTopicInfo]) -> None:
        """See ``ConsumerFetcherManager.stop``."""
        ...

    def shutdown(self, timeout: float) -> None:
        """See ``ConsumerFetcherManager.shutdown``."""
        ...


WhenStopped = Callable[["Stopping", Callable[[dict[TopicPartition, int]], object]], object]


class DataPlane:
    """The fetchers and the streams of one member.

    Args:
        manager: the fetcher manager, which this object starts and stops.
        streams: the streams of each topic, in the order of their index. With a filter
            subscription, all topics share the streams under the topic ``None``.
        release_wait: seconds to wait for unacknowledged messages.
        when_stopped: takes a ``Stopping`` and a callback. It does not block, and passes the final
            positions to the callback once everything has stopped.
    """

    def __init__(
        self,
        manager: Fetching,
        streams: Mapping[str | None, Sequence[Reader]],
        release_wait: float,
        when_stopped: WhenStopped,
    ) -> None:
        self._manager = manager
        self._streams = streams
        self._release_wait = release_wait
        self._when_stopped = when_stopped
        self.brokers: tuple[BrokerEndpoint, ...] = ()
        """The registered brokers; written by the loop's thread."""
        self.fetch_counts = manager.counts
        every = [stream for group in streams.values() for stream in group]
        self._every_stream = every
        self.messages = Meter(lambda: sum(stream.delivered for stream in every))
        self.bytes = Meter(lambda: sum(stream.bytes_begun for stream in every))
        self._lock = threading.RLock()
        """Held by threads that write the next two attributes. Threads that only read copy the
        list in one step without the lock, because a signal handler may raise in them."""
        self._held: dict[TopicPartition, tuple[PartitionTopicInfo, Reader]] = {}
        self._stopped: dict[TopicPartition, PartitionTopicInfo] = {}

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """Pass the brokers to the leader finder and to readers of ``brokers``."""
        self.brokers = brokers
        self._manager.set_brokers(brokers)

    def _stream_of(self, topic: str, index: int) -> Reader:
        # DEVIATION-23: in the JVM stream i of the returned list is not thread i.
        return self._streams[topic if topic in self._streams else None][index]

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """Fetch each partition from its offset, and deliver it to the stream of its thread id."""
        started: dict[PartitionTopicInfo, ChunkQueue] = {}
        with self._lock:
            for tp, (thread, offset) in partitions.items():
                info = PartitionTopicInfo(tp.topic, tp.partition, offset)
                stream = self._stream_of(tp.topic, thread.stream)
                self._held[tp] = (info, stream)
                self._stopped.pop(tp, None)
                started[info] = stream.queue
        self._manager.start(started)

    def stop(
        self,
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, int]], object],
    ) -> None:
        """Stop delivering messages of ``partitions``.

        ``done`` is called with their final positions when the application has acknowledged all of
        their messages, or the release wait has passed.
        """
        self._when_stopped(self.stopping(partitions), done)

    def stopping(self, partitions: Iterable[TopicPartition]) -> Stopping:
        """Stop delivering messages of ``partitions``. The result shows when they have stopped."""
        return Stopping(self._revoke(partitions, keep=True), self._release_wait)

    def let_go(self, thread: int) -> None:
        """Stop waiting for the unacknowledged message of the thread with this identifier.

        The message counts as not consumed, and the stream delivers nothing more.
        """
        for stream, infos in _by_stream(self.partitions()).items():
            if stream.held_by(thread):
                stream.revoke(infos)
                stream.wait_released(infos, monotonic(), thread)

    def lend(self) -> list[Callable[[], object]]:
        """Release the calling thread's stream locks. Return functions that reacquire them."""
        return [restore for stream in self._every_stream for restore in stream.lend()]

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop delivering ``partitions``, forget them, and return their positions."""
        dropped = frozenset(partitions)
        positions = _positions(info for info, _ in self._revoke(dropped, keep=False))
        self.forget(dropped)
        return positions

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget released partitions. They no longer appear in ``positions``."""
        with self._lock:
            for tp in partitions:
                self._stopped.pop(tp, None)

    def _revoke(
        self, partitions: Iterable[TopicPartition], keep: bool
    ) -> list[tuple[PartitionTopicInfo, Reader]]:
        with self._lock:
            wanted = [tp for tp in partitions if tp in self._held]
            if keep:
                self._stopped.update((tp, self._held[tp][0]) for tp in wanted)
            revoked = [self._held.pop(tp) for tp in wanted]
        for stream, infos in _by_stream(revoked).items():
            stream.revoke(infos)
        self._manager.stop([info for info, _ in revoked])
        return revoked

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in all streams, even in closed ones."""
        for stream in self._every_stream:
            stream.fail(error)

    def after_fork(self, error: Exception) -> None:
        """Raise ``error`` in all streams of a child process, which has no other threads."""
        for stream in self._every_stream:
            stream.after_fork(error)

    def held(self, partition: TopicPartition) -> PartitionTopicInfo:
        """Return the state of a started partition. Raises ``KeyError``."""
        return self._held[partition][0]

    def partitions(self) -> list[tuple[PartitionTopicInfo, Reader]]:
        """The held partitions, each with its stream."""
        return list(self._held.values())

    def positions(self) -> dict[TopicPartition, int]:
        """Consumed offsets of held partitions, and of stopped partitions not yet released."""
        held = self.partitions()  # first: a partition is in the other before it leaves this one
        stopped = list(self._stopped.values())
        return _positions([*stopped, *(info for info, _ in held)])

    def lags(self) -> dict[TopicPartition, int]:
        """The ``PartitionTopicInfo.lag`` of each partition whose lag is known."""
        infos = [info for info, _ in self.partitions()]
        return {info.topic_partition: lag for info in infos if (lag := info.lag) is not None}

    def lag_age(self) -> float:
        """Age in seconds of the oldest answer from which a lag is computed; 0 if there is none."""
        with self._lock:
            infos = [info for info, _ in self._held.values()]
        times = [at for info in infos if (at := info.answered_at) is not None]
        return max(0.0, monotonic() - min(times)) if times else 0.0

    @property
    def queued_chunks(self) -> int:
        """Number of queued chunks in all streams."""
        return sum(len(stream.queue) for stream in self._every_stream)

    def measure(self) -> None:
        """Take a sample of the message and byte counts, from which the rates are computed."""
        self.messages.rate()
        self.bytes.rate()

    def close(self, timeout: float = 2.0) -> None:
        """Stop the fetchers and all streams. Wait at most ``timeout`` seconds for their threads."""
        self._manager.shutdown(timeout)
        for stream in self._every_stream:
            stream.shutdown()


class Stopping:
    """Stopped partitions that may have unacknowledged messages."""

    # DEVIATION-08: the JVM releases while the application still works on a message.

    def __init__(
        self, taken: Sequence[tuple[PartitionTopicInfo, Reader]], release_wait: float
    ) -> None:
        self._infos = [info for info, _ in taken]
        self._by_stream = _by_stream(taken)
        self._release_wait = release_wait

    def __call__(self) -> dict[TopicPartition, int]:
        """Wait, at most for the release wait, until all messages are acknowledged. Return final
        positions."""
        deadline = monotonic() + self._release_wait
        for stream, infos in self._by_stream.items():
            stream.wait_released(infos, deadline)
        return _positions(self._infos)

    def poll(self, *, force: bool = False) -> dict[TopicPartition, int] | None:
        """Return the final positions, or ``None`` while messages are unacknowledged. Never waits.

        With ``force`` the positions are final: an unacknowledged message counts as not consumed.
        """
        released = [stream.release(infos, force=force) for stream, infos in self._by_stream.items()]
        return _positions(self._infos) if all(released) else None


def _by_stream(
    revoked: Iterable[tuple[PartitionTopicInfo, Reader]],
) -> dict[Reader, set[PartitionTopicInfo]]:
    groups: dict[Reader, set[PartitionTopicInfo]] = {}
    for info, stream in revoked:
        groups.setdefault(stream, set()).add(info)
    return groups


def _positions(infos: Iterable[PartitionTopicInfo]) -> dict[TopicPartition, int]:
    return {
        info.topic_partition: position for info in infos if (position := info.position) is not None
    }
