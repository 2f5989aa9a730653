"""A simulated log whose records belong to transactions. Single thread: the kernel's.

Each transaction's fate is drawn when it begins. So the judges' question, which records a reader
with ``read_committed`` must get, needs neither producer ids nor markers: see ``records``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from struct import Struct

from tests.sim.runs.broker_log import Batch, PartitionLog, make_batch
from zkconsumer.broker.types import AbortedTransaction

_KEY = Struct(">hh")
_TRANSACTIONAL, _MARKER = 0x10, 0x30
_PRODUCERS = 4


class _Transaction:
    """Some batches of a producer, and the marker that ends them."""

    def __init__(self, producer: int, first: int, aborts: bool) -> None:
        self.producer = producer
        self.first = first
        self.aborts = aborts
        """Whether it is aborted, or will be."""
        self.marker: int | None = None
        """The marker's offset; ``None`` while it is open."""


class TransactionalLog(PartitionLog):
    """A log that is read with ``read_committed``.

    Producers take turns at random: with transactions, only idempotent, or neither.

    Args:
        seed: decides which producer appends, and how transactions end.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = Random(seed)
        self._transactions: list[_Transaction] = []
        """Those of which the log has records, in the order in which they began."""
        self._never: set[tuple[int, int]] = set()
        """Offset and generation of each marker, and of each record of an aborted transaction."""
        self._owners: dict[int, _Transaction] = {}
        """By the first offset of a batch or marker."""

    @property
    def _open(self) -> dict[int, _Transaction]:
        return {each.producer: each for each in self._transactions if each.marker is None}

    @property
    def readable_end(self) -> int:
        """See ``PartitionLog``."""
        return max(self.start, min((each.first for each in self._open.values()), default=self.end))

    def append(self, count: int, size: int) -> None:
        """See ``PartitionLog``. Transactions may end before and after it."""
        rng = self._rng
        producer = rng.randrange(-1, _PRODUCERS)
        attributes = 0
        transaction = self._open.get(producer)
        if transaction is None and producer >= 0 and rng.random() < 0.7:
            transaction = _Transaction(producer, self.end, rng.random() < 0.4)
            self._transactions.append(transaction)
        if transaction is not None:
            attributes = _TRANSACTIONAL
            self._owners[self.end] = transaction
        base, self.end = self.end, self.end + count
        offsets = range(base, self.end)
        if transaction is not None and transaction.aborts:
            self._never.update((offset, self.generation) for offset in offsets)
        self._add(
            make_batch(base, self.end - 1, offsets, size, self.generation, producer, attributes)
        )
        while self._open and rng.random() < 0.5:
            self._end(rng.choice(list(self._open.values())))

    def _end(self, transaction: _Transaction) -> None:
        """Append its marker."""
        at = transaction.marker = self.end
        self._owners[at] = transaction
        self._never.add((at, self.generation))
        self.end += 1
        key = _KEY.pack(0, 0 if transaction.aborts else 1)
        self._add(make_batch(at, at, [at], 6, self.generation, transaction.producer, _MARKER, key))

    def is_aborted(self, offset: int, generation: int) -> bool:
        """See ``PartitionLog``."""
        return (offset, generation) in self._never

    def aborted(self, first: int, end: int) -> Sequence[AbortedTransaction]:
        """See ``PartitionLog``: in the order of their markers, as brokers list them."""
        found = [
            each
            for each in self._transactions
            if each.aborts and each.marker is not None and each.first < end and each.marker >= first
        ]
        found.sort(key=lambda each: each.marker or 0)
        return [(each.producer, each.first) for each in found]

    def _of(self, batch: Batch) -> _Transaction | None:
        """The transaction of a batch or marker."""
        return self._owners[batch.base] if batch.attributes else None

    def records(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """See ``PartitionLog``: those that must be delivered.

        A reader that has passed over a marker or an aborted record does not notice that the log was
        truncated there, so it may miss a record that was written in its place.
        """
        for offset, generation in self.committed(first, end):
            if not any((offset, before) in self._never for before in range(generation)):
                yield offset, generation

    def committed(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield offset and generation of the records in ``[first, end)`` that a reader gets."""
        first, end = max(first, self.start), min(end, self.readable_end)
        for batch in self._batches[self._at(first) :]:
            if batch.base >= end:
                break
            transaction = self._of(batch)
            if batch.attributes != _MARKER and not (transaction and transaction.aborts):
                for offset in batch.offsets:
                    if first <= offset < end:
                        yield offset, batch.generation

    def truncate(self, offset: int) -> None:
        """See ``PartitionLog``. A transaction whose marker is lost is open again."""
        super().truncate(offset)
        self._transactions = [each for each in self._transactions if each.first < self.end]
        for each in self._transactions:
            if each.marker is not None and each.marker >= self.end:
                each.marker = None

    def compact(self, rng: Random) -> None:
        """See ``PartitionLog``. An aborted transaction loses all records of a batch. A marker is
        the last of its transaction that goes, and the transaction is not listed any more."""
        stable = self.readable_end
        known = [at for at, batch in enumerate(self._batches[:-1]) if batch.last < stable]
        if not known:
            return
        at = rng.choice(known)
        old = self._batches[at]
        transaction = self._of(old)
        kept = [offset for offset in old.offsets if rng.random() < 0.5]
        if old.attributes == _MARKER:
            if any(self._of(each) is transaction for each in self._batches if each is not old):
                return
            self._transactions = [each for each in self._transactions if each is not transaction]
        if transaction is not None and (transaction.aborts or old.attributes == _MARKER):
            kept = []
        self._keep(at, kept, rng)
