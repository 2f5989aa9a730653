"""Leader epochs: old answers about leaders, truncated logs, and topics that are created again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.test_fetch_worker import HERE, KEY, Bench
from tests.unit.test_leader_finder import BACKOFF, BROKERS, Bench as Finding
from zkconsumer.broker.fetching.epochs import PartitionEpochs
from zkconsumer.broker.types import ClusterMetadata, EpochEnd, Got
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import EpochsRequest, FetchEventKind, OffsetsRequest
from zkconsumer.runtime.fetch.table import WorkerKey


def answer(tp: TopicPartition, leader: int, epoch: int, topic_id: str = "") -> ClusterMetadata:
    """What a broker answers about one partition; without ``topic_id``, one before 2.8."""
    ids = {tp.topic: topic_id} if topic_id else {}
    return ClusterMetadata({}, {tp: leader}, {}, epochs={tp: epoch}, topic_ids=ids)


def lose(bench: Finding) -> None:
    """The partition has no leader any more."""
    for number in range(len(BROKERS)):
        work = bench.table.work(WorkerKey(number, 0), also_full=True)
        if work is not None:
            bench.table.mark_failed(WorkerKey(number, 0), list(work.states), bench.now)


def test_an_older_leader_is_not_believed() -> None:
    """Another broker is asked. If all of them name one, the topic was created again."""
    bench = Finding()
    tp, info = bench.info.topic_partition, bench.info
    bench.finder.take(bench.choose(), answer(tp, 1, 5))
    lose(bench)
    for refused in range(len(BROKERS)):
        request = bench.choose()
        bench.finder.take(request, answer(tp, 0, 4))
        assert info.epochs is not None
        if refused < len(BROKERS) - 1:
            assert bench.table.work(WorkerKey(0, 0), also_full=True) is None
            broker = request.endpoint.broker_id
            assert str(info.fault) == (
                f"broker {broker} names an older leader of {tp}, of leader epoch 4 after 5"
            )
            bench.now += BACKOFF
    assert info.epochs.recreated
    assert info.epochs.leader == 4
    assert bench.table.work(WorkerKey(0, 0), also_full=True) is not None


def test_another_topic_id_is_noticed_when_leaders_are_compared() -> None:
    """Also if the leader is the same broker: the partition is looked up again."""
    bench = Finding()
    tp = bench.info.topic_partition
    bench.finder.take(bench.choose(), answer(tp, 1, 5, "a"))
    for topic_id in ("a", "b"):
        bench.table.check_leaders()
        request = bench.choose()
        assert request.check
        bench.finder.take(request, answer(tp, 1, 0 if topic_id == "b" else 5, topic_id))
    assert bench.events[-1].detail.endswith("t was deleted and created again")
    bench.finder.take(bench.choose(), answer(tp, 1, 0, "b"))
    assert bench.info.epochs is not None
    assert bench.info.epochs.recreated


class Led(Bench):
    """A worker with a partition that was read up to offset 1 in leader epoch 0 (the epoch in the
    records of this bench); the leader has a later one."""

    def __init__(self, *, reset: str = "smallest") -> None:
        super().__init__(capacity=5)
        self.config.auto_offset_reset = reset
        (self.info,) = self.infos
        self.tp = self.info.topic_partition
        self.epochs = self.info.epochs = PartitionEpochs()
        self.see({"epoch": 0})
        self.answer(self.choose(), [0])
        assert (self.info.fetched_offset, self.epochs.read) == (1, 0)

    def see(self, known: Mapping[str, int]) -> None:
        """The leader finder gets an answer."""
        found = answer(self.tp, HERE.broker_id, known["epoch"], "id")
        assert self.epochs.why_not_believed(self.tp, found, HERE, [HERE]) is None

    def asked(self) -> EpochsRequest:
        """The next step, which asks the new leader."""
        chosen = self.worker.choose()
        assert isinstance(chosen, EpochsRequest)
        assert list(chosen.states) == [self.tp]
        return chosen


def test_the_leaders_epoch_is_in_the_request() -> None:
    """So a broker that is not the leader of this epoch refuses."""
    bench = Led()
    assert [want.leader_epoch for want in bench.choose().wanted] == [0]


@pytest.mark.parametrize("end", [EpochEnd(0, 1), EpochEnd(0, 7), None])
def test_a_position_that_is_in_the_new_leaders_log(end: EpochEnd | None) -> None:
    """Fetching continues; also if the leader cannot say. It is asked once."""
    bench = Led()
    bench.see({"epoch": 3})
    bench.worker.take(bench.asked(), {bench.tp: end})
    (want,) = bench.choose().wanted
    assert (want.offset, want.leader_epoch) == (1, 3)
    assert bench.events == []


def test_a_truncated_log() -> None:
    """Fetching continues at the first offset that may differ; this is an event."""
    bench = Led()
    bench.see({"epoch": 3})
    bench.worker.take(bench.asked(), {bench.tp: EpochEnd(0, 0)})
    (event,) = bench.events
    assert (event.kind, event.replaced, event.chosen) == (FetchEventKind.LOG_CHANGED, 1, 0)
    assert bench.choose().wanted[0].offset == 0


def test_an_epoch_that_the_new_leader_does_not_know() -> None:
    """Then ``auto.offset.reset`` chooses, as for a position that is out of range."""
    bench = Led(reset="largest")
    bench.see({"epoch": 3})
    bench.worker.take(bench.asked(), {bench.tp: EpochEnd(-1, -1)})
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    assert not chosen.earliest
    bench.worker.take(chosen, {bench.tp: 40})
    (event,) = bench.events
    assert (event.kind, event.replaced, event.chosen) == (FetchEventKind.LOG_CHANGED, 1, 40)
    assert "the log was truncated" in event.detail


def test_a_leader_that_does_not_answer_is_asked_again() -> None:
    """Nothing is fetched before."""
    bench = Led()
    bench.see({"epoch": 3})
    bench.worker.take(bench.asked(), {bench.tp: BrokerError("not now")})
    assert bench.table.work(KEY, also_full=True) is None
    bench.table.assign({bench.info: HERE})
    bench.asked()


def test_a_topic_that_was_created_again_is_read_from_its_start() -> None:
    """Whatever ``auto.offset.reset`` is: none of its records was read."""
    bench = Led(reset="largest")
    found = answer(bench.tp, HERE.broker_id, 0, "another")
    assert bench.epochs.why_not_believed(bench.tp, found, HERE, [HERE]) is None
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    assert chosen.earliest
    bench.worker.take(chosen, {bench.tp: 0})
    (event,) = bench.events
    assert (event.kind, event.replaced, event.chosen) == (FetchEventKind.LOG_CHANGED, 1, 0)
    assert event.detail.endswith("the topic was deleted and created again")
    assert bench.choose().wanted[0].offset == 0


def test_a_partition_that_was_not_read_yet_has_nothing_to_compare() -> None:
    """The epoch of a committed offset is not known: the leader is not asked."""
    epochs = PartitionEpochs()
    info = PartitionTopicInfo("t", 0, 5)
    for epoch in (1, 4):
        found = answer(info.topic_partition, 7, epoch)
        assert epochs.why_not_believed(info.topic_partition, found, HERE, [HERE]) is None
    assert not epochs.unchecked


def test_an_error_answer_about_a_fetch_keeps_the_epoch_that_was_read() -> None:
    """It has no records."""
    bench = Led()
    request = bench.choose()
    bench.worker.take(request, [Got("t", 0, BrokerError("FENCED_LEADER_EPOCH"), -1, b"")])
    assert bench.epochs.read == 0
