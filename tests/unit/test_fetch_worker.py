"""One fetch worker, step by step: its requests and its waiting times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import pytest

from tests.sim.runs.broker_log import make_batch
from tests.sim.runs.fetching import SimConfig
from tests.support.batches import counted
from zkconsumer.broker.types import Got
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, OffsetOutOfRangeError
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    FetchEventKind,
    FetchRequest,
    OffsetsRequest,
    Retire,
    Wait,
)
from zkconsumer.runtime.fetch.table import FetchTable, WorkerKey
from zkconsumer.runtime.fetch.worker import FetchWorker

HERE = BrokerEndpoint(7, "127.0.0.1", 9092)
KEY = WorkerKey(7, 0)


class Bench:
    """A table with one worker, its partitions, and a clock."""

    def __init__(self, profile: str = "default", partitions: int = 1, capacity: int = 2) -> None:
        self.now = 100.0
        self.events: list[FetchEvent] = []
        self.table = FetchTable(1)
        self.table.set_brokers([HERE])
        self.queues = [ChunkQueue(capacity, threading.Lock()) for _ in range(partitions)]
        self.infos = [PartitionTopicInfo("t", i, 0) for i in range(partitions)]
        self.config = SimConfig(1000, 10_000, 1, 200, "smallest", profile)
        self.worker = FetchWorker(
            self.table, KEY, self.config, self.events.append, lambda: self.now
        )
        self.table.add(dict(zip(self.infos, self.queues, strict=True)))
        self.table.assign(dict.fromkeys(self.infos, HERE))

    def choose(self) -> FetchRequest:
        """Return the next step, which is a fetch."""
        chosen = self.worker.choose()
        assert isinstance(chosen, FetchRequest)
        return chosen

    def answer(self, request: FetchRequest, partitions: Iterable[int]) -> None:
        """Answer with one record for each of ``partitions``, and with nothing for the others."""
        served = set(partitions)
        got: Sequence[Got] = [
            Got(
                "t",
                w.partition,
                None,
                99,
                counted(w.offset) if w.partition in served else b"",
            )
            for w in request.wanted
        ]
        self.worker.take(request, got)


def test_partitions_take_turns() -> None:
    """Partitions that were served are last in the next request, because a broker fills its answer
    from the front."""
    bench = Bench(partitions=3)
    order = []
    for _ in range(4):
        request = bench.choose()
        order.append([want.partition for want in request.wanted])
        bench.answer(request, order[-1][:1])
    assert order == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize(("profile", "limit"), [("default", 1500), ("scala", 0x7FFFFFFF)])
def test_fetch_max_bytes_limits_an_answer(profile: str, limit: int) -> None:
    """The key is sent, except in the scala profile. Queues with less room limit the answer
    further."""
    bench = Bench(profile)
    bench.config.fetch_max_bytes = 1500
    assert bench.choose().max_bytes == limit
    bench.answer(bench.choose(), [0])
    assert bench.choose().max_bytes == min(limit, 1000 if profile == "default" else limit)


def test_an_empty_answer_is_not_asked_for_again_at_once() -> None:
    """An empty answer delays the same request by 25 ms, and a different one not at all."""
    bench = Bench(partitions=2)
    bench.answer(bench.choose(), [])
    bench.now += 0.005
    chosen = bench.worker.choose()
    assert isinstance(chosen, Wait)
    assert chosen.seconds == pytest.approx(0.02)
    bench.table.remove([bench.infos[0]])
    assert [want.partition for want in bench.choose().wanted] == [1]


def test_a_full_queue_is_left_out_and_delays_no_other() -> None:
    """Its partition is left out, and the broker does not delay the others. If every queue is full,
    the worker waits to be woken."""
    bench = Bench(partitions=2, capacity=1)
    request = bench.choose()
    assert request.max_wait_ms == 100
    bench.answer(request, [0])
    request = bench.choose()
    assert [want.partition for want in request.wanted] == [1]
    assert request.max_wait_ms == 0
    bench.answer(request, [1])
    assert bench.worker.choose() == Wait(None)
    bench.queues[0].take()
    assert [want.partition for want in bench.choose().wanted] == [0]


@pytest.mark.parametrize("how", ["room", "stop", "shutdown"])
def test_the_scala_profile_asks_for_nothing_while_a_chunk_finds_no_room(how: str) -> None:
    """Like the JVM's thread, which blocks until there is room or the chunk is no longer wanted."""
    bench = Bench("scala", partitions=2, capacity=1)
    bench.answer(bench.choose(), [0, 1])
    bench.answer(bench.choose(), [0])
    assert bench.worker.choose() == Wait(None)
    bench.table.take_news()
    if how == "room":
        bench.queues[0].take()
    elif how == "stop":
        bench.table.remove([bench.infos[0]])
        assert bench.table.take_news() == {KEY}
    else:
        bench.queues[0].closed = True
    asked = [want.partition for want in bench.choose().wanted]
    assert 1 in asked
    assert len(bench.queues[0]) == 1


def test_out_of_range_asks_for_the_reset_position_and_reports_it() -> None:
    """The next step asks for the start of the log. The one after fetches from there."""
    bench = Bench()
    request = bench.choose()
    bench.worker.take(request, [Got("t", 0, OffsetOutOfRangeError("0"), -1, b"")])
    lookup = bench.worker.choose()
    assert isinstance(lookup, OffsetsRequest)
    assert lookup.earliest
    bench.worker.take(lookup, dict.fromkeys(lookup.states, 40))
    assert bench.choose().wanted[0].offset == 40
    (event,) = bench.events
    assert (event.kind, event.replaced) == (FetchEventKind.OFFSET_RESET, 0)


def refuse_offsets(bench: Bench, request: FetchRequest) -> None:
    """The broker is no longer the leader."""
    bench.worker.take(request, [Got("t", 0, BrokerError("no leader"), -1, b"")])


def fail_as_a_whole(bench: Bench, request: FetchRequest) -> None:
    """The connection breaks."""
    bench.worker.fail(request, BrokerError("broken"))


@pytest.mark.parametrize("fault", [refuse_offsets, fail_as_a_whole])
def test_faults_hand_partitions_to_the_leader_finder(
    fault: Callable[[Bench, FetchRequest], None],
) -> None:
    """After the backoff, the worker is idle, and retires if it stays idle."""
    bench = Bench()
    fault(bench, bench.choose())
    assert FetchEventKind.LEADER_LOST in [event.kind for event in bench.events]
    assert bench.table.due(bench.now) == ([], pytest.approx(100.2))
    assert bench.table.due(bench.now + 0.2)[0] == bench.infos
    assert bench.worker.choose() == Wait(30.0)
    bench.now += 30
    assert bench.worker.choose() == Retire()
    assert bench.table.retire(KEY)


def test_a_worker_that_got_a_partition_does_not_retire() -> None:
    """The table decides."""
    assert not Bench().table.retire(KEY)


def test_answers_for_stopped_partitions_change_nothing() -> None:
    """Neither records nor positions of a claim that has ended count."""
    bench = Bench(partitions=2)
    request = bench.choose()
    bench.table.remove(bench.infos)
    bench.answer(request, [0, 1])
    assert [info.fetched_offset for info in bench.infos] == [0, 0]
    assert [len(queue) for queue in bench.queues] == [0, 0]
    assert bench.events == []


@pytest.mark.parametrize("how", ["answered", "failed"])
def test_an_answer_leaves_a_partition_alone_that_another_worker_has(how: str) -> None:
    """The leader changed while the request was under way."""
    bench = Bench()
    request = bench.choose()
    bench.table.mark_failed(KEY, list(request.states.values()), bench.now)
    bench.table.assign({bench.infos[0]: BrokerEndpoint(8, "127.0.0.1", 9092)})
    if how == "answered":
        bench.answer(request, [0])
    else:
        fail_as_a_whole(bench, request)
    assert (bench.infos[0].fetched_offset, len(bench.queues[0])) == (0, 0)
    work = bench.table.work(WorkerKey(8, 0), also_full=False)
    assert work is not None
    assert [state.info for state in work.states] == bench.infos
    assert FetchEventKind.LEADER_LOST not in [event.kind for event in bench.events]


def test_an_answer_that_brings_nothing_new_is_a_fault() -> None:
    """It ends where it began. An immediate request would return the same."""
    bench = Bench()
    bench.infos[0].fetched_offset = 5
    bench.worker.take(bench.choose(), [Got("t", 0, None, 99, counted(4))])
    assert (bench.infos[0].fetched_offset, len(bench.queues[0])) == (5, 0)
    assert [event.kind for event in bench.events] == [FetchEventKind.LEADER_LOST]


def test_what_was_aborted_is_passed_over() -> None:
    """With ``read_committed``, the position passes the records of an aborted transaction, also
    where nothing else is left. The lag ends at the last stable offset."""
    bench = Bench()
    (info,) = bench.infos
    data = make_batch(0, 4, range(5), 12, 0, 7, 0x10).data
    bench.worker.take(bench.choose(), [Got("t", 0, None, 99, data, 9, [(7, 0)])])
    assert (info.fetched_offset, info.lag) == (5, 9)
    chunk = bench.queues[0].take()
    assert chunk is not None
    assert (chunk.data, chunk.fetch_offset, chunk.next_offset) == (b"", 0, 5)


def test_an_unreadable_marker_ends_no_transaction() -> None:
    """Nothing of the answer is delivered, and the partition is tried again."""
    bench = Bench()
    data = make_batch(0, 0, [0], 6, 0, 7, 0x30, b"").data
    bench.worker.take(bench.choose(), [Got("t", 0, None, 99, data, 9, [(7, 0)])])
    assert (bench.infos[0].fetched_offset, len(bench.queues[0])) == (0, 0)
    assert [event.kind for event in bench.events] == [FetchEventKind.LEADER_LOST]
    assert bench.infos[0].fault is not None
    assert "t-0 from offset 0: damaged control record" in bench.infos[0].fault.text


def test_an_answer_counts_for_each_partition_that_it_has_no_error_for() -> None:
    """The time of the last one is the age of the lag."""
    bench = Bench(partitions=2)
    request = bench.choose()
    bench.now = 123.0
    bench.worker.take(request, [Got("t", 0, BrokerError("refused"), -1, b"")])
    assert [info.answered_at for info in bench.infos] == [None, 123.0]
    assert [info.fault and info.fault.text for info in bench.infos] == ["refused", None]
