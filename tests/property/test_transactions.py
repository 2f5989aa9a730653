"""The rule of ``read_committed`` on random logs with transactions."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.sim.runs.broker_log import make_batch
from tests.sim.runs.transactional_log import TransactionalLog
from zkconsumer.broker.fetching import columns
from zkconsumer.broker.fetching.records import PythonDecoder, scan
from zkconsumer.broker.fetching.transactions import without_aborted
from zkconsumer.errors import InvalidMessageError

LOGS = 300
ABORT, COMMIT = (make_batch(9, 9, [9], 6, 0, 5, 0x30, bytes((0, 0, 0, k))).data for k in (0, 1))


def offsets(data: bytes, first: int) -> list[int]:
    """The offsets that are decoded, one by one and in columns."""
    one = [record[2] for part in PythonDecoder().decode(data, "t", 0, first) for record in part]
    assert columns.decode(data, "t", 0, first).batch["offset"].to_pylist() == one
    return one


def fetched(log: TransactionalLog, first: int, limit: int) -> Iterator[list[int]]:
    """The offsets of each answer, from ``first`` to the last stable offset."""
    while True:
        data = log.read(first, limit, whole=True, torn=False)
        following = scan(data).next_offset
        if following is None:
            return
        end = log.readable_end if limit % 2 else following  # a broker may list more
        yield offsets(without_aborted(data, log.aborted(first, end)), first)
        first = max(first, following)


def test_what_is_read_is_what_was_committed() -> None:
    """Several producers with and without transactions, which commit, abort and hang; logs that are
    compacted, truncated and cut at their start; answers that begin and end anywhere. A reader gets
    each record that was not aborted once, in order, up to the last stable offset."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    found = left_out = several = 0
    for _ in range(LOGS):
        log = TransactionalLog(rng.randrange(1 << 32))
        for _ in range(rng.randrange(40)):
            log.append(rng.choice((1, 1, 3, 8)), rng.choice((12, 60)))
            if rng.random() < 0.1:
                log.truncate(max(log.start, log.end - rng.randrange(1, 30)))
            if rng.random() < 0.05:
                log.delete_before(rng.randint(log.start, log.end))
            while rng.random() < 0.3:
                log.compact(rng)
        first = rng.randint(log.start, log.start + (log.end - log.start) // 3)
        answers = list(fetched(log, first, rng.choice((1, 150, 151, 600, 601, 1 << 20))))
        expected = [offset for offset, _ in log.committed(first, log.end)]
        assert [offset for answer in answers for offset in answer] == expected
        found += len(expected)
        left_out += log.readable_end < log.end
        several += len(answers) > 3
    assert found > 10 * LOGS
    assert min(left_out, several) > LOGS // 20


def data_of(producer: int, base: int, attributes: int = 0x10) -> bytes:
    """A batch of two records."""
    return make_batch(base, base + 1, [base, base + 1], 12, 0, producer, attributes).data


@pytest.mark.parametrize(
    ("data", "aborted", "left"),
    [
        (data_of(5, 0) + ABORT + data_of(5, 10), [(5, 0)], [10, 11]),
        (data_of(5, 0) + ABORT + data_of(5, 10), [(5, 10)], [0, 1]),
        (data_of(5, 0) + COMMIT + data_of(5, 10), [(5, 10)], [0, 1]),
        (data_of(5, 0) + data_of(6, 2) + data_of(-1, 4, 0), [(5, 0)], [2, 3, 4, 5]),
        (data_of(5, 0, 0) + data_of(5, 2), [(5, 0)], [0, 1]),
        (data_of(5, 6) + ABORT + data_of(5, 10), [(5, 20), (5, -3)], [10, 11]),
        (data_of(5, 0) + COMMIT + data_of(5, 10), [(5, 0)], []),
        (data_of(5, 0) + ABORT, [], [0, 1]),
    ],
    ids=[
        *("one", "the next", "after a commit", "others", "idempotent", "began before"),
        *("a marker of another kind", "none"),
    ],
)
def test_cases(data: bytes, aborted: list[tuple[int, int]], left: list[int]) -> None:
    """What stays of some batches, by hand."""
    listed = aborted
    assert offsets(without_aborted(data, listed), 0) == left


def test_a_damaged_batch_is_decoded_to_an_error() -> None:
    """It is not left out, and neither is anything after it: whose records they are is unknown."""
    bad = bytearray(data_of(5, 2))
    bad[-1] ^= 1
    listed = [(5, 0)]
    data = data_of(5, 0) + bytes(bad) + data_of(6, 4)
    assert without_aborted(data, listed) == bytes(bad) + data_of(6, 4)
    marker = make_batch(9, 9, [9], 6, 0, 5, 0x30, b"")
    with pytest.raises(InvalidMessageError, match="control record at offset 9"):
        without_aborted(marker.data, listed)
    assert without_aborted(data_of(5, 0)[:-1], listed) == data_of(5, 0)[:-1]
