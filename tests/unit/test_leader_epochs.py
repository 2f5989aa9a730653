"""Leader epochs: old answers about leaders, truncated logs, and topics that are created again."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from tests.unit.test_fetch_worker import HERE, KEY, Bench
from tests.unit.test_leader_finder import BACKOFF, BROKERS, Bench as Finding
from zkconsumer.broker.fetching.epochs import PartitionEpochs
from zkconsumer.broker.types import ClusterMetadata, EpochEnd, Got
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError, OffsetOutOfRangeError
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import EpochsRequest, FetchEventKind, OffsetsRequest
from zkconsumer.runtime.fetch.table import LEADER_FINDER, WorkerKey
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager


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


def test_the_scala_profile_knows_no_epochs() -> None:
    """As Kafka 1.1.1: it believes an older leader, and its requests name no epoch."""
    keys = {"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "zkconsumer.profile": "scala"}
    manager = ConsumerFetcherManager(ConsumerConfig.parse(keys), "c")
    finding = Finding()
    tp = finding.info.topic_partition
    manager._table = finding.table
    made = manager._make(LEADER_FINDER).worker
    for leader, epoch in ((1, 5), (0, 4)):
        made.take(finding.choose(), answer(tp, leader, epoch))
        assert finding.table.work(WorkerKey(leader, 0), also_full=True) is not None
        assert finding.info.epochs is None
        lose(finding)


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
    assert bench.events[-1].detail.endswith("t has another topic id")
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

    def see_another_topic(self) -> None:
        """The leader finder gets an answer with another topic id, and epoch 0."""
        found = answer(self.tp, HERE.broker_id, 0, "another")
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
    bench.epochs.leader = 1
    bench.see_another_topic()
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    assert chosen.earliest
    bench.worker.take(chosen, {bench.tp: 0})
    (event,) = bench.events
    assert (event.kind, event.replaced, event.chosen) == (FetchEventKind.LOG_CHANGED, 1, 0)
    assert event.detail.endswith("the topic was deleted and created again")
    assert bench.choose().wanted[0].offset == 0


def test_another_topic_id_alone_moves_no_position() -> None:
    """Old tools that write to ZooKeeper change the id of a topic. It was recreated if the position
    is not in its log."""
    bench = Led(reset="largest")
    bench.see_another_topic()
    bench.answer(bench.choose(), [0])
    assert bench.info.fetched_offset == 2
    bench.worker.take(bench.choose(), [Got("t", 0, OffsetOutOfRangeError("gone"), -1, b"")])
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    assert not chosen.earliest, "the log of this topic had it"
    bench = Led(reset="largest")
    bench.see_another_topic()
    bench.worker.take(bench.choose(), [Got("t", 0, OffsetOutOfRangeError("gone"), -1, b"")])
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    assert chosen.earliest
    bench.worker.take(chosen, {bench.tp: 0})
    assert bench.events[-1].kind is FetchEventKind.LOG_CHANGED


def test_brokers_that_begin_to_know_ids_have_the_same_topic() -> None:
    """While the protocol between brokers is older than 2.8, their answers have no ids. An upgrade
    does not move a position, and an answer without id does not forget it."""
    bench = Led()
    for topic_id in ("", "id", "", "id"):
        found = answer(bench.tp, HERE.broker_id, 0, topic_id)
        assert not bench.epochs.is_another_topic("t", found)
        assert bench.epochs.why_not_believed(bench.tp, found, HERE, [HERE]) is None
    assert not bench.epochs.recreated
    assert bench.epochs.topic_id == "id"


def test_an_older_leader_of_the_same_topic_moves_no_position() -> None:
    """ZooKeeper was restored from a backup: the id shows that it is the same topic."""
    bench = Led(reset="largest")
    bench.see({"epoch": 3})
    bench.worker.take(bench.asked(), {bench.tp: EpochEnd(0, 9)})
    found = answer(bench.tp, HERE.broker_id, 1, "id")
    doubts = [bench.epochs.why_not_believed(bench.tp, found, HERE, [HERE]) for _ in range(3)]
    assert [one is None for one in doubts] == [False, False, True]
    (want,) = bench.choose().wanted
    assert (want.offset, want.leader_epoch) == (1, 1)


def test_a_broker_that_cannot_be_asked_does_not_keep_a_partition_from_being_read() -> None:
    """It never agrees that the leader is older."""
    epochs = PartitionEpochs()
    tp = TopicPartition("t", 0)
    asked, silent = BROKERS[:2]
    assert epochs.why_not_believed(tp, answer(tp, 1, 5), asked, [asked, silent]) is None
    for _ in range(100):
        if epochs.why_not_believed(tp, answer(tp, 1, 4), asked, [asked, silent]) is None:
            break
    assert epochs.leader == 4


def test_a_reset_position_has_no_epoch() -> None:
    """What was read before it was not there, so the next leader is not asked about it."""
    bench = Led()
    bench.worker.take(bench.choose(), [Got("t", 0, OffsetOutOfRangeError("gone"), -1, b"")])
    chosen = bench.worker.choose()
    assert isinstance(chosen, OffsetsRequest)
    bench.worker.take(chosen, {bench.tp: 40})
    bench.see({"epoch": 3})
    assert bench.choose().wanted[0].offset == 40


def test_a_truncated_log_skips_no_message_that_waits() -> None:
    """A commit, and a release, keep the position before messages that were not consumed."""
    queue = ChunkQueue(9, threading.Lock())
    info = PartitionTopicInfo("t", 0, 0)
    for number in range(4):
        queue.put(Chunk(info, b"", number, number + 1))
    info.fetched_offset = 4
    queue.reset(info, 3, at_once=False)
    assert info.position == 0
    info.consumed_offset = 4
    assert info.position == 3
    queue.reset(info, 100, at_once=False)
    assert info.position == 100, "what is before it is no longer in the log"


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
