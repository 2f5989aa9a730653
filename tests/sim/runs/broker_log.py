"""Brokers and their logs on virtual time, behind the port that fetching uses (``BrokerPort``).

Records are encoded as real record batches, so the real decoder reads them. A log is appended to,
truncated, cut at its start and compacted; leaders move; answers are cut, late, or lost. Single
thread: the kernel's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from struct import Struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from zkconsumer.broker.types import AbortedTransaction, ClusterMetadata, Got
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    LeaderUnavailableError,
    OffsetOutOfRangeError,
)
from zkconsumer.runtime.fetch.interface import (
    EpochsRequest,
    FetchRequest,
    LeadersRequest,
    OffsetsRequest,
    WorkerRequest,
)
from zkconsumer.sim.kernel import Kernel

STAMP: Final = Struct(">qi")
"""Start of every record's value: its offset and its generation."""
_HEADER: Final = Struct(">qiibIhiqqqhii")
_TIMEOUT_S: Final = 0.6

Request = WorkerRequest | LeadersRequest
Answer = Sequence[Got] | Mapping[TopicPartition, Any] | ClusterMetadata


class Batch(NamedTuple):
    """Some consecutive offsets of a log, encoded. Compaction may have removed records."""

    base: int
    last: int
    offsets: tuple[int, ...]
    """Offsets that still have a record."""
    size: int
    """Length of each value."""
    generation: int
    """Number of truncations of the log before the batch was appended."""
    data: bytes
    producer: int = -1
    attributes: int = 0


class PartitionLog:
    """The log of one partition. All replicas are the same."""

    def __init__(self) -> None:
        self.start = 0
        """The first offset that may be read."""
        self.end = 0
        """The offset that the next record gets."""
        self.generation = 0
        """How often the log was truncated."""
        self.largest_batch = 0
        """Bytes of the largest batch so far."""
        self._batches: list[Batch] = []

    def append(self, count: int, size: int) -> None:
        """Append a batch of ``count`` records with values of ``size`` bytes."""
        base, self.end = self.end, self.end + count
        self._add(make_batch(base, self.end - 1, range(base, self.end), size, self.generation))

    def _add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.largest_batch = max(self.largest_batch, len(batch.data))

    @property
    def readable_end(self) -> int:
        """Where reading ends: the last stable offset, if the log has transactions."""
        return self.end

    def is_aborted(self, offset: int, generation: int) -> bool:
        """Whether this record belongs to a transaction that is aborted, or will be."""
        return False

    def aborted(self, first: int, end: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that overlap these offsets."""
        return ()

    def truncate(self, offset: int) -> None:
        """Lose the batch that holds ``offset`` and all after it (an unclean leader election)."""
        while self._batches and self._batches[-1].last >= offset:
            self.end = self._batches.pop().base
        self.end = max(self.end, self.start)
        self.generation += 1

    def delete_before(self, offset: int) -> None:
        """Move the start of the log, perhaps into a batch (retention)."""
        self.start = offset
        self._batches = [batch for batch in self._batches if batch.last >= offset]

    def compact(self, rng: Random) -> None:
        """Remove records from a batch, perhaps all; the newest batch is never touched."""
        if len(self._batches) < 2:
            return
        at = rng.randrange(len(self._batches) - 1)
        old = self._batches[at]
        kept = [] if rng.random() < 0.4 else [o for o in old.offsets if rng.random() < 0.5]
        self._keep(at, kept, rng)

    def _keep(self, at: int, kept: Sequence[int], rng: Random) -> None:
        """Remove all records from a batch but these; perhaps also a batch that is then empty."""
        old = self._batches[at]
        if not kept and rng.random() < 0.5:
            del self._batches[at]
        else:
            self._batches[at] = make_batch(
                *(old.base, old.last, kept, old.size, old.generation),
                *(old.producer, old.attributes),
            )

    def records(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield offset and generation of the records in ``[first, end)`` that are in the log."""
        first = max(first, self.start)
        for batch in self._batches[self._at(first) :]:
            for offset in batch.offsets:
                if first <= offset < end:
                    yield offset, batch.generation

    def read(self, offset: int, limit: int, *, whole: bool, torn: bool) -> bytes:
        """Return batches from the one that contains ``offset``, cut after ``limit`` bytes.

        ``whole``: the first batch is complete even if it is larger. Otherwise, if it is larger and
        not ``torn``, the result is empty. Raises OffsetOutOfRangeError.
        """
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeError(f"{offset} is not in {self.start}..{self.end}")
        end = self.readable_end
        if offset >= end:
            return b""
        data: list[bytes] = []
        size = 0
        for batch in self._batches[self._at(offset) :]:
            if batch.base >= end:
                break
            data.append(batch.data)
            size += len(batch.data)
            if size >= limit:
                break
        if data and len(data[0]) > limit and not torn:
            return data[0] if whole else b""
        return b"".join(data)[:limit]

    def _at(self, offset: int) -> int:
        return bisect_left(self._batches, offset, key=lambda batch: batch.last)


class SimBrokers:
    """The brokers of a cluster; they answer as ``BrokerPort``, without delay.

    Args:
        kernel: time and chance.
        ids: broker ids.
        partitions: the partitions that they store; the leaders are chosen at random.
        old: brokers before 0.10.1, which cut the first batch as well.
        timeout: seconds after which a request that is not answered fails.
        log: the class of the logs.
    """

    def __init__(
        self,
        kernel: Kernel,
        ids: Sequence[int],
        partitions: Sequence[TopicPartition],
        old: bool,
        timeout: float = _TIMEOUT_S,
        log: Callable[[], PartitionLog] = PartitionLog,
    ) -> None:
        self._kernel = kernel
        self._old = old
        self._timeout = timeout
        self._new_log = log
        self.logs = {tp: log() for tp in partitions}
        self.leaders: dict[TopicPartition, int | None] = {
            tp: kernel.rng.choice(ids) for tp in partitions
        }
        self.endpoints = {number: BrokerEndpoint(number, "sim", 9092) for number in ids}
        """Where each broker listens at present, whether it is up or not."""
        self.up = set(ids)
        self.troubled = False
        """Whether answers are lost or late."""
        self.refused: set[tuple[TopicPartition, int]] = set()
        """Offsets that were answered to be out of range."""
        self._views = {number: dict(self.leaders) for number in ids}
        """The leaders as each broker knows them."""

    def add(self, partition: TopicPartition) -> None:
        """A new, empty partition. An existing one keeps its records."""
        self.logs.setdefault(partition, self._new_log())
        self.leaders.setdefault(partition, None)
        if self.leaders[partition] is None and self.up:
            self.lead(partition, self._kernel.rng.choice(sorted(self.up)))

    # Troubles.

    def lead(self, tp: TopicPartition, leader: int | None) -> None:
        """Change the leader. Every broker learns it after its own delay."""
        self.leaders[tp] = leader
        for view in self._views.values():
            delay = self._kernel.rng.random() * 0.4
            self._kernel.schedule(delay, partial(self._learn, view, tp))

    def _learn(self, view: dict[TopicPartition, int | None], tp: TopicPartition) -> None:
        view[tp] = self.leaders[tp]

    def stop(self, broker: int) -> None:
        """End a broker; the partitions that it led have no leader."""
        self.up.discard(broker)
        for tp, leader in self.leaders.items():
            if leader == broker:
                self.lead(tp, None)

    def start(self, broker: int, *, elsewhere: bool) -> None:
        """Restart a broker, perhaps on another port."""
        self.up.add(broker)
        if elsewhere:
            old = self.endpoints[broker]
            self.endpoints[broker] = BrokerEndpoint(broker, old.host, old.port + 1)

    # Requests.

    def ask(self, request: Request, done: Callable[[Answer | BrokerError], object]) -> None:
        """Send ``request``; call ``done`` with its answer or error later."""
        rng = self._kernel.rng
        self._kernel.schedule(0.0002 + rng.random() * 0.002, lambda: self._arrive(request, done))

    def _arrive(
        self,
        request: Request,
        done: Callable[[Answer | BrokerError], object],
        waited: bool = False,
    ) -> None:
        rng = self._kernel.rng
        back = 0.0002 + rng.random() * 0.002
        answer: Answer | BrokerError
        try:
            answer = request.ask(self)
        except BrokerError as error:
            answer = error
        else:
            if isinstance(request, FetchRequest) and not waited and request.max_wait_ms:
                assert isinstance(answer, list)
                if not any(got.data or got.error for got in answer):
                    wait = request.max_wait_ms / 1000 * rng.random()
                    self._kernel.schedule(wait, lambda: self._arrive(request, done, True))
                    return
            if self.troubled and rng.random() < 0.06:
                answer, back = BrokerUnavailableError("did not answer in time"), self._timeout
            elif self.troubled and rng.random() < 0.1:
                back = rng.random() * self._timeout
        self._kernel.schedule(back, lambda: done(answer))

    def fetch(self, request: FetchRequest) -> list[Got]:
        """See ``BrokerPort.fetch``."""
        self._check(request.endpoint)
        got: list[Got] = []
        room = request.max_bytes
        for want in request.wanted:
            tp = TopicPartition(want.topic, want.partition)
            log = self.logs[tp]
            error: BrokerError | None = self._refusal(tp, request.endpoint)
            data = b""
            if error is None:
                # Brokers before 0.10.1 know no limit of the whole answer.
                limit = want.max_bytes if self._old else max(0, min(want.max_bytes, room))
                try:
                    # KIP-74: the first partition that has records gets one batch whole.
                    whole = room == request.max_bytes
                    data = log.read(want.offset, limit, whole=whole, torn=self._old)
                except OffsetOutOfRangeError as out_of_range:
                    error = out_of_range
                    self.refused.add((tp, want.offset))
            room -= len(data)
            if error is not None:
                got.append(Got(*tp, error, -1, data))
                continue
            aborted = log.aborted(want.offset, log.readable_end)
            got.append(Got(*tp, None, log.end, data, log.readable_end, aborted))
        return got

    def list_offsets(self, request: OffsetsRequest) -> dict[TopicPartition, int | BrokerError]:
        """See ``BrokerPort.list_offsets``."""
        self._check(request.endpoint)
        found: dict[TopicPartition, int | BrokerError] = {}
        for tp in request.states:
            log = self.logs[tp]
            found[tp] = self._refusal(tp, request.endpoint) or (
                log.start if request.earliest else log.readable_end
            )
        return found

    def epoch_ends(self, request: EpochsRequest) -> dict[TopicPartition, None]:
        """See ``BrokerPort.epoch_ends``. Simulated brokers know no leader epochs."""
        return dict.fromkeys(request.states)

    def metadata(self, request: LeadersRequest) -> ClusterMetadata:
        """See ``BrokerPort.metadata``."""
        self._check(request.endpoint)
        view = self._views[request.endpoint.broker_id]
        leaders = {
            tp: leader
            for tp, leader in view.items()
            if leader is not None and tp.topic in request.topics
        }
        return ClusterMetadata({number: self.endpoints[number] for number in self.up}, leaders, {})

    def _check(self, endpoint: BrokerEndpoint) -> None:
        number = endpoint.broker_id
        known = self.endpoints[number]
        if number not in self.up or (known is not endpoint and known != endpoint):
            raise BrokerUnavailableError(f"broker {number}: Connection refused")

    def _refusal(self, tp: TopicPartition, endpoint: BrokerEndpoint) -> BrokerError | None:
        if self.leaders[tp] == endpoint.broker_id:
            return None
        return LeaderUnavailableError(f"{tp}: NotLeaderForPartition")


def make_batch(
    base: int,
    last: int,
    offsets: Sequence[int],
    size: int,
    generation: int,
    producer: int = -1,
    attributes: int = 0,
    key: bytes | None = None,
) -> Batch:
    """A batch of ``offsets``. ``key``: of each record."""
    body = b"".join(_record(offset - base, offset, generation, size, key) for offset in offsets)
    length = _HEADER.size - 12 + len(body)
    fields = (attributes, last - base, 0, 0, producer, -1, -1, len(offsets))
    crc = crc32c(_HEADER.pack(base, length, generation, 2, 0, *fields)[21:] + body)
    data = _HEADER.pack(base, length, generation, 2, crc, *fields) + body
    return Batch(base, last, tuple(offsets), size, generation, data, producer, attributes)


def _record(delta: int, offset: int, generation: int, size: int, key: bytes | None) -> bytes:
    value = STAMP.pack(offset, generation).ljust(size, b".")
    name = b"\x01" if key is None else _varint(len(key)) + key
    inner = b"\0\0" + _varint(delta) + name + _varint(len(value)) + value + b"\0"
    return _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    number <<= 1  # zigzag of what is not negative
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
