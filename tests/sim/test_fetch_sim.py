"""The data plane under random faults. The invariants hold in every run, and each run can be
replayed.

``ZKC_SEEDS=20000`` runs more than the usual number.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.sim.runs.fetch_scenario import PlaneAlone
from tests.sim.runs.fetching import SimFetching
from tests.sim.runs.result import Result
from tests.sim.runs.run import run
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue
from zkconsumer.runtime.fetch.interface import FetchEventKind
from zkconsumer.runtime.fetch.worker import FetchWorker

SEEDS = int(os.environ.get("ZKC_SEEDS", "250"))
BATCH = 250
STARTS = list(range(0, SEEDS, BATCH))


def play(seed: int, **options: Any) -> Result[PlaneAlone]:
    """One run."""
    return run(seed, coordination="fetch", **options)


@pytest.mark.parametrize("start", STARTS)
def test_no_violation_in_any_run(start: int) -> None:
    """Each claim delivers every record once and in order, and nothing after its revoke. Committed
    records were processed. Queues stay within their bound, and each partition with a leader makes
    progress, whatever leaders, brokers, logs, answers and the application do. Each kind of fault
    and of report happens in the runs, and records flow."""
    troubles: Counter[str] = Counter()
    events: Counter[FetchEventKind] = Counter()
    deliveries = 0
    for seed in range(start, start + min(BATCH, SEEDS - start)):
        result = play(seed)
        assert not result.violations, result
        troubles.update(result.faults)
        events.update(result.scenario.kinds)
        deliveries += result.deliveries
    if start + BATCH <= SEEDS:
        assert set(troubles) == {
            *("leader moves", "broker stops", "truncation", "retention", "compaction"),
            *("large message", "brokers unknown", "gate shut", "slow application"),
            *("partition lost", "restart"),
        }
        # Simulated brokers have no leader epochs.
        assert set(events) == {*FetchEventKind} - {FetchEventKind.LOG_CHANGED}
        assert deliveries > BATCH * 100


@pytest.mark.parametrize("start", [0, SEEDS // 8])
def test_no_violation_in_any_run_by_batches(start: int) -> None:
    """The same if the application reads lists of messages, or Arrow columns."""
    for seed in range(start, start + SEEDS // 8):
        batch = (0, 2, 3, 8)[seed % 4]
        result = play(seed, batch=batch)
        assert not result.violations, f"{result} (batch={batch})"


@pytest.mark.parametrize("start", [0, SEEDS // 8])
def test_no_violation_with_transactions(start: int) -> None:
    """The same with ``isolation.level=read_committed``, in each way to read: no record of an
    aborted transaction is delivered, and all others up to the last stable offset are."""
    for seed in range(start, start + SEEDS // 8):
        batch = (1, 0, 3, 1, 8)[seed % 5]
        result = run(seed, coordination="fetch-committed", batch=batch)
        assert not result.violations, f"{result} (batch={batch})"


def test_no_violation_where_threads_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetching thread ends while it handles an answer: before it, after it, or with a chunk.
    Another thread continues the same worker, which may learn of the failure or not. The rules are
    the same: no record is left out, and none is delivered twice."""
    deaths = 0
    chance = Random(0)
    take, put, answered = FetchWorker.take, ChunkQueue.put, SimFetching._answered

    def may_die() -> None:
        if chance.random() < 0.02:
            raise SystemExit

    def dying_take(self: FetchWorker, *answer: Any) -> None:
        may_die()
        take(self, *answer)
        may_die()

    def dying_put(self: ChunkQueue, chunk: Chunk) -> bool:
        may_die()
        return put(self, chunk)

    def survived(self: SimFetching, key: Any, thread: Any, request: Any, answer: Any) -> None:
        nonlocal deaths
        try:
            answered(self, key, thread, request, answer)
        except SystemExit:
            deaths += 1
            if chance.random() < 0.5:
                thread.worker.fail(request, BrokerError("the thread has ended"))
            thread.busy = False
            self._wake()
            if not self._closed:
                self._step_in(0.05, key, thread)

    monkeypatch.setattr(FetchWorker, "take", dying_take)
    monkeypatch.setattr(ChunkQueue, "put", dying_put)
    monkeypatch.setattr(SimFetching, "_answered", survived)
    for seed in range(SEEDS // 10):
        chance.seed(seed)
        result = play(seed)
        assert not result.violations, result
    assert deaths > SEEDS // 10


@pytest.mark.parametrize("seed", [1, 8, 23])
def test_same_seed_same_history(seed: int) -> None:
    """Every event of a run depends on its seed alone."""
    first, second = (play(seed, record=True).history for _ in range(2))
    assert first is not None
    assert len(first) > 100
    assert first == second


def test_brokers_before_0_10_1_fail_the_stream_of_a_large_message() -> None:
    """They send only its head. The partition is given up, and its stream raises. A program that is
    started again with a larger fetch size continues without a loss."""
    events: Counter[FetchEventKind] = Counter()
    for seed in range(40):
        result = play(seed, old=True)
        assert not result.violations, result
        events.update(result.scenario.kinds)
    assert events[FetchEventKind.PARTITION_FAILED]
