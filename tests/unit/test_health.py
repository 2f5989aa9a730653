"""``health()`` of both connectors, on simulated servers (``conftest.py``) and made-up members."""

from __future__ import annotations

import logging
import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.runs.broker_log import make_batch
from tests.support.batches import chunk
from tests.unit.conftest import new_member
from zkconsumer import Health, Trouble
from zkconsumer.core.common.faults import Fault, Reason
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import (
    CodecUnavailableError,
    ConnectorFailedError,
    InvalidMessageError,
    MessageSizeTooLargeError,
)
from zkconsumer.prometheus import GAUGES
from zkconsumer.runtime.delivery.chunks import Chunk, ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader, take
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.observation.health import MIN_SECONDS, HealthMonitor, Membership, Sources
from zkconsumer.runtime.observation.stalled import OpenTransactions
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Member, Switch  # type: ignore[import-not-found]

SOON = 10.0
P0 = TopicPartition("t", 0)
BLOCKED = Fault(Trouble.BLOCKED, "g_a-0 owns t-0", str(P0), "g_a-0")
OBSTACLE = Fault(Trouble.UNASSIGNABLE, "no broker")
MISREAD = Fault(Trouble.MISREAD, "/ids/x: ...", "/ids/x")


def troubles(health: Health) -> list[Trouble]:
    """Return the member's troubles."""
    return [reason.trouble for reason in health.reasons]


def test_health_through_the_life_of_a_member(member: Member) -> None:
    """Without streams, as an owner, and after ``shutdown``."""
    before = member.health()
    assert (troubles(before), before.ok, before.alive) == ([Trouble.NOT_STARTED], False, True)
    member.create_message_streams({"t": 1})
    wait_until(lambda: member.health(0.0).delivering, SOON, "it delivers")
    found = member.health()
    assert (found.ok, found.alive, found.reasons) == (True, True, ())
    assert (found.registered, found.entitled, found.owned) == (True, True, 1)
    assert found.state in {"RESTING", "STABLE"}
    assert list(found.progress) == [P0]
    assert found.seconds_since_progress == found.progress[P0]
    with pytest.raises(AttributeError):
        found.owned = 2  # type: ignore[misc]
    member.shutdown()
    assert troubles(member.health()) == [Trouble.CLOSED]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_member_is_not_alive(member: Member, switch: Switch) -> None:
    """The reason is the error that the streams raise."""
    member.create_message_streams({"t": 1})
    switch.broken = RuntimeError("broken")
    wait_until(lambda: not member.health().alive, SOON, "it has failed")
    found = member.health()
    assert troubles(found) == [Trouble.FAILED]
    assert "RuntimeError('broken')" in str(found.reasons[0])
    assert not found.delivering
    with pytest.raises(ConnectorFailedError):
        member.shutdown()


def test_health_is_read_while_the_member_waits_for_its_listener(member: Member) -> None:
    """Any thread gets the answer at once. The listener is named as soon as it has taken too
    long."""
    inside, go = threading.Event(), threading.Event()

    class Slow:
        def before_releasing_partitions(self, _partitions: object) -> None: ...

        def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
            inside.set()
            go.wait(SOON)

    member.set_consumer_rebalance_listener(Slow())
    creating = threading.Thread(target=lambda: member.create_message_streams({"t": 1}))
    creating.start()
    assert inside.wait(SOON)
    assert Trouble.LISTENER not in troubles(member.health())
    wait_until(lambda: Trouble.LISTENER in troubles(member.health(0.2)), SOON, "it is named")
    go.set()
    creating.join(SOON)
    wait_until(lambda: Trouble.LISTENER not in troubles(member.health(0.2)), SOON, "it has ended")


class Made:
    """A member that the test controls. Its clock is ``now``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open = True
        self.member = Membership("RESTING", "resting", True, True, 1, 1)
        self.info = PartitionTopicInfo("t", 0, 5)
        self.infos = [self.info]
        self.lines: list[tuple[int, str]] = []
        """What was logged."""
        self.stream: Any = SimpleNamespace(queue=ChunkQueue(2, threading.RLock()), failure=None)
        self.monitor = HealthMonitor(
            Sources(
                membership=lambda: self.member,
                partitions=lambda: [(one, self.stream) for one in self.infos[: self.member.owned]],
                streams=[self.stream],
                is_open=lambda: self.open,
                listening=lambda: False,
                group="g",
                servers="ZooKeeper at z:1",
                clock=lambda: self.now,
                log=lambda level, text: self.lines.append((level, text)),
            )
        )

    def after(self, seconds: float) -> list[str]:
        """Return the troubles ``seconds`` later, with a look each second."""
        for _ in range(int(seconds)):
            self.monitor.look()
            self.now += 1
        return [reason.trouble.label for reason in self.monitor.read(10.0).reasons]


@pytest.mark.parametrize(
    ("member", "is_open", "expected"),
    [
        (Membership("R", "resting", True, True, 0, 0), True, []),
        (Membership("R", "resting", True, True, 3, 0), True, ["idle-member"]),
        (Membership("N", "no session yet", False, False, 0, 0), False, ["not-registered"]),
        (Membership("R", "resting", True, True, 3, 3), False, ["paused"]),
        (Membership("J", "joining", True, False, 0, 0), True, ["rebalancing"]),
        (Membership("R", "r", True, True, 2, 1, (BLOCKED,)), True, ["blocked"]),
        (Membership("R", "r", True, True, 0, 0, (OBSTACLE,)), True, ["unassignable"]),
        (Membership("R", "r", True, True, 1, 1, (MISREAD,)), True, ["misread"]),
    ],
)
def test_a_trouble_becomes_a_reason_when_it_lasts(
    member: Membership, is_open: bool, expected: list[str]
) -> None:
    """A usual step of a rebalance is not a trouble. When a trouble is over, its reason is gone at
    once."""
    made = Made()
    made.info.answers, made.info.high_watermark = 1, 5
    made.member, made.open = member, is_open

    def answered(seconds: int) -> list[str]:
        for _ in range(seconds):
            made.info.answers += 1
            found = made.after(1)
        return found

    assert answered(9) == []
    assert answered(2) == expected
    reasons = made.monitor.read(10.0).reasons
    assert [reason.seconds for reason in reasons] == [11.0] * len(expected)
    assert all(reason.text for reason in reasons)
    made.member, made.open = Membership("R", "resting", True, True, 1, 1), True
    made.info.answers += 1
    assert made.after(1) == []
    assert made.monitor.read(10.0).ok


def test_each_fault_has_its_own_time() -> None:
    """The reason names the partition that was blocked longest, by its present owner, and counts
    all. The metric counts those that last (kafka-node #981)."""
    made = Made()
    made.info.answers, made.info.high_watermark = 1, 5
    other = Fault(Trouble.BLOCKED, "g_b-0 owns t-1", "t-1", "g_b-0")
    changed = Fault(Trouble.BLOCKED, "g_c-0 owns t-0", "t-0", "g_c-0")
    said: list[tuple[str, float, int]] = []
    for faults in ((BLOCKED,), (BLOCKED, other), (changed, other)):
        made.member = Membership("R", "r", True, True, 3, 1, faults)
        for _ in range(12):
            made.info.answers += 1
            made.after(1)
        (reason,) = made.monitor.read(10.0).reasons
        said.append((reason.text.partition(" s; stop")[0], reason.seconds, reason.count))
    assert said == [
        ("t-0 is assigned to this member: g_a-0 has owned it for 12", 12.0, 1),
        ("t-0 is assigned to this member (and 1 more): g_a-0 has owned it for 24", 24.0, 2),
        ("t-1 is assigned to this member (and 1 more): g_b-0 has owned it for 24", 36.0, 2),
    ]
    assert made.monitor.lasting == 2
    made.member = Membership("R", "r", True, True, 3, 3)
    made.info.answers += 1
    made.after(1)
    assert made.monitor.lasting == 0


def test_a_problem_that_lasts_is_logged_once_and_so_is_its_end() -> None:
    """The line is the reason in the health, with its owner, session and seconds."""
    made = Made()
    owner = "g_alien-0 (session 0x17)"
    blocked = Fault(Trouble.BLOCKED, f"{owner} owns t-3", "t-3", owner)
    made.member = Membership("R", "resting", True, True, 1, 0, (blocked,))
    made.after(MIN_SECONDS)
    assert made.lines == []
    made.after(60)
    assert [level for level, _ in made.lines] == [logging.WARNING, logging.WARNING]
    assert made.lines[0][1].startswith(
        "not healthy for 30 s: t-3 is assigned to this member: g_alien-0 (session 0x17) has "
        "owned it for 30 s"
    )
    assert "has owned it for 90 s" in str(made.monitor.read(MIN_SECONDS).reasons[0])
    del made.lines[:]
    made.member = Membership("R", "resting", True, True, 1, 1)
    made.after(2)
    assert made.lines == [
        (logging.INFO, "healthy again: blocked is over"),
        (logging.INFO, "healthy again: idle-member is over"),
    ]


def test_a_cluster_that_cannot_be_read_is_a_fault(switch: Switch) -> None:
    """A member that asks the brokers what there is cannot notice new topics meanwhile, though it
    delivers."""
    member: Any = new_member("zookeeper")
    try:
        member.create_message_streams({"t": 1})
        wait_until(lambda: member.health(0.0).delivering, SOON, "it delivers")
        assert Trouble.CLUSTER not in troubles(member.health(0.0))
        member._directory = SimpleNamespace(fault="no broker answers", close=lambda: None)
        (reason,) = (r for r in member.health(0.0).reasons if r.trouble is Trouble.CLUSTER)
        assert reason.text == "the cluster cannot be read: no broker answers"
    finally:
        member.shutdown()


def test_progress_is_a_message_or_an_answer_that_there_is_none() -> None:
    """An idle topic is healthy as long as its broker answers. Waiting messages are the
    application's problem, otherwise it is the broker's."""
    made = Made()
    info = made.info
    info.high_watermark = 5
    for _ in range(30):
        info.answers += 1
        assert made.after(1) == []
    assert made.after(8) == []
    assert made.after(3) == ["fetching"]
    assert "t-0" in str(made.monitor.read(10.0).reasons[0])
    info.fetched_offset = info.high_watermark = 9
    info.answers += 1
    assert made.after(12) == ["application"]
    info.consumed_offset = 6
    assert made.after(1) == []
    assert made.monitor.read(10.0).seconds_since_progress == 1.0
    assert made.after(21) == ["application"]
    made.stream.failure = ValueError("damaged")
    assert made.after(1) == ["stream-failed"]
    assert not made.monitor.read(10.0).alive


@pytest.mark.parametrize("marked", [False, True])
def test_the_application_is_named_also_if_it_marks_its_message(marked: bool) -> None:
    """It has one of the messages of a chunk, and asks for no other. The queue is empty. The broker
    answers that there are no more."""
    made = Made()
    gate = DeliveryGate()
    gate.extend(math.inf)
    made.stream = stream = Reader(gate)
    stream.queue.put(chunk(made.info, 5, 6))
    made.info.fetched_offset = made.info.high_watermark = 7
    assert take(stream.messages).offset == 5
    if marked:
        stream.mark_consumed()
    for _ in range(12):
        made.info.answers += 1
        made.after(1)
    assert made.after(0) == ["application"]


def test_a_broker_is_named_also_if_the_stream_has_messages_of_another_one() -> None:
    """A stream's partitions may have different leaders. Those of one are read."""
    made = Made()
    made.member = Membership("RESTING", "resting", True, True, 2, 2)
    gate = DeliveryGate()
    gate.extend(math.inf)
    made.stream = stream = Reader(gate)
    other = PartitionTopicInfo("t", 1, 5)
    made.infos.append(other)
    made.info.failed("broker 1 does not answer")
    stream.queue.put(chunk(other, 5, 5))
    for offset in range(6, 26):
        stream.queue.put(chunk(other, offset, offset))
        other.fetched_offset = offset + 1
        assert take(stream.messages).offset == offset - 1
        made.after(1)
    (reason,) = made.monitor.read(10.0).reasons
    assert reason.trouble is Trouble.FETCHING
    assert "t-0: broker 1 does not answer" in reason.text


def test_an_open_transaction_is_named_when_delivery_waits_for_it() -> None:
    """A partition that waits for one transaction is reported. One that waits for a new transaction
    each time is not, and neither is one whose messages are not all fetched yet. The broker answers,
    so fetching is in order."""
    made = Made()
    info = made.info
    info.high_watermark, info.last_stable_offset = 9, 5

    def after(seconds: int) -> list[str]:
        for _ in range(seconds):
            info.answers += 1
            assert made.after(1) in ([], ["open-transaction"])
        return made.after(0)

    assert after(9) == []
    info.last_stable_offset = info.fetched_offset = info.consumed_offset = 7
    assert info.lag == 0
    assert after(9) == []
    made.now += 3600  # the process was stopped
    assert after(2) == ["open-transaction"]
    (reason,) = made.monitor.read(10.0).reasons
    assert reason.text.startswith("t-0 cannot be read further: t-0 waits at offset 7 for an open")
    assert reason.seconds == 10.0
    info.last_stable_offset = 9
    assert after(5) == []
    assert info.lag == 2
    info.last_stable_offset, info.fetched_offset, info.consumed_offset = 8, 6, 8
    assert after(11) == []


@pytest.mark.parametrize("reader", [Reader, ScalaReader])
def test_a_marker_at_the_end_of_the_log_is_not_waited_for(reader: type[Reader]) -> None:
    """In the ``scala`` profile the position remains before it: the JVM's does."""
    made = Made()
    gate = DeliveryGate()
    gate.extend(math.inf)
    made.stream = reader(gate)
    data = make_batch(5, 5, [5], 6, 0, 5, 0x10).data + make_batch(6, 6, [6], 6, 0, 5, 0x30).data
    made.stream.queue.put(Chunk(made.info, data, 5, 7))
    made.info.fetched_offset = made.info.high_watermark = 7
    polled = made.stream.polled
    assert (take(polled).offset, take(polled)) == (5, None)
    assert made.info.lag == (reader is ScalaReader)
    for _ in range(12):
        made.info.answers += 1
        assert made.after(1) == []
    assert made.after(11) == ["fetching"], "the broker is away"


def test_an_open_transaction_lasts_until_the_last_answer() -> None:
    """While the queue is full, no broker is asked, and the transaction may have ended long ago."""
    made = Made()
    info = made.info
    info.high_watermark, info.last_stable_offset = 9, 5
    for position in range(20):  # the application reads what is in the queue
        info.consumed_offset = position
        assert made.after(1) == []


def test_two_looks_at_the_same_time_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watchdog looks, and so may the application. An error of the watchdog ends the member."""
    made = Made()
    made.info.high_watermark, made.info.last_stable_offset = 9, 5
    locked = []

    def reasons(*_: object) -> list[Reason]:
        other = threading.Thread(
            target=lambda: locked.append(not made.monitor._lock.acquire(blocking=False))
        )
        other.start()
        other.join()
        return []

    monkeypatch.setattr(OpenTransactions, "reasons", reasons)
    made.monitor.look()
    assert locked == [True]


@pytest.mark.parametrize(
    ("failure", "advice", "skips"),
    [
        (MessageSizeTooLargeError("raise fetch.message.max.bytes"), "a new connector", False),
        (CodecUnavailableError("install lz4"), "a new connector", False),
        (InvalidMessageError("wrong checksum"), "if that fails as well", True),
    ],
)
def test_only_a_damaged_message_is_to_be_skipped(
    failure: Exception, advice: str, skips: bool
) -> None:
    """For a stream that has failed, the reason says what helps, and no other cause is named: its
    partition makes no progress, whatever the brokers do."""
    made = Made()
    made.info.high_watermark = 5
    made.stream.failure = failure
    assert made.after(20) == ["stream-failed"]
    (reason,) = made.monitor.read(10.0).reasons
    assert f"{failure}" in reason.text
    assert advice in reason.text
    assert ("commit the offset after the message" in reason.text) == skips


def test_a_stopped_process_has_lasted_nothing_yet() -> None:
    """While the process was stopped, nothing was observed, so the timeout starts again."""
    made = Made()
    made.info.high_watermark = 5
    assert made.after(2) == []
    made.now += 3600
    made.info.answers += 1
    assert made.monitor.read(10.0).ok
    made.open = False
    assert made.after(9) == []
    assert made.after(2) == ["paused"]
    made.open = True
    made.now += 3600
    made.info.answers += 1
    assert made.after(1) == []


@pytest.mark.parametrize(("waiting", "expected"), [(True, "application"), (False, "fetching")])
def test_at_the_first_look_after_a_pause_no_partition_is_stalled(
    waiting: bool, expected: str
) -> None:
    """Nothing has been answered or consumed since the process continued. The seconds before the
    pause count, and those after it."""
    made = Made()
    made.info.high_watermark = 9
    if waiting:
        made.info.fetched_offset = 9
    assert made.after(3) == []
    made.now += 3600
    found = made.monitor.read(10.0)
    assert found.ok
    assert found.seconds_since_progress == 3.0
    assert made.after(6) == []
    assert made.after(2) == [expected]


def test_gauges_are_numbers() -> None:
    """Each gauge has a value, even for a member without partitions."""
    made = Made()
    made.member = Membership("N", "new", False, False, 0, 0)
    assert [float(gauge.value(made.monitor.read(10.0))) for gauge in GAUGES] == [1, 1, 0, 0, 0, 0]
