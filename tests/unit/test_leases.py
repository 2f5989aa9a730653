"""The lease: how long a member may deliver after its servers' last answer, and what ends it."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.groups import commands
from zkconsumer.core.groups.assignors.strategies import RangeStrategy
from zkconsumer.core.groups.events import HeartbeatAnswered, RequestFailed, Synced
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.zookeeper import commands as zookeeper, events
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Failed,
    GetMany,
    Multi,
    Ok,
    Pipelined,
    SessionEvent,
)
from zkconsumer.core.zookeeper.scripts.common import MemberScript
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.runtime.gate import CLOCK, LEASE, DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.line import ServerLine
from zkconsumer.runtime.membership.live_move import DualGate, Lease
from zkconsumer.runtime.membership.zookeeper import SessionSignals, ZooKeeperCoordination

SESSION = 6.0


class HandHost:
    """A host whose clock the test sets. Posted actions run at once."""

    def __init__(self) -> None:
        self.random = Random(0)
        self.time = 100.0
        self.lines: list[str] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def post(self, action: Callable[[], object]) -> None:
        action()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self.timers.append((self.time + seconds, action))

    def lease_now(self) -> float:
        return self.time

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        self.lines.append(text)

    def wall_us(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0


class LateZk:
    """ZooKeeper. The test answers its pings."""

    session_timeout = SESSION

    def __init__(self) -> None:
        self.pings: list[Callable[[], object]] = []
        self.known: list[int] = []
        self.sent: list[Callable[[Any], object]] = []

    def ping(self, on_answer: Callable[[], object]) -> None:
        self.pings.append(on_answer)

    def submit(
        self, op: Any, session_id: int, on_reply: Callable[[Any], object], resumed: int
    ) -> None:
        self.sent.append(on_reply)
        self.known.append(resumed)


class Bench:
    """The coordination of one member in ZooKeeper, without its machine."""

    def __init__(self) -> None:
        self.host, self.zk = HandHost(), LateZk()
        self.gate = DeliveryGate(now=self.host.lease_now)
        self.taken: list[Any] = []
        host: Any = self.host
        zk: Any = self.zk
        self.signals = SessionSignals(host, self.gate)
        self.coordination = ZooKeeperCoordination(host, self.gate, zk, self.signals, SESSION)
        spec = MemberSpec(GroupPaths("g"), "c", Subscription(Pattern.STATIC, {"t": 1}))
        self.every: list[tuple[float, Callable[[], object]]] = []
        member: Any = SimpleNamespace(
            machine=SimpleNamespace(spec=spec, attempts=0),
            observer=None,
            take=self.taken.append,
            every=lambda seconds, action: self.every.append((seconds, action)),
        )
        self.coordination.begin(member)


def test_the_lease_counts_from_when_the_ping_was_sent() -> None:
    """A late answer proves only that the session was alive when the ping was sent."""
    bench = Bench()
    bench.signals.on_session(SessionEvent.OPENED, 1)
    sent = bench.host.time
    bench.host.time += 3.0
    (answer,) = bench.zk.pings
    answer()
    assert bench.gate.valid_until == sent + SESSION * LEASE
    ((seconds, ping),) = bench.every
    assert seconds == SESSION / 6
    ping()
    bench.host.time += 5.0
    bench.zk.pings[1]()
    assert bench.gate.valid_until == sent + SESSION * LEASE, "it had run out before the answer"
    assert not bench.gate.is_open


def test_an_old_sessions_ping_proves_nothing_about_the_next() -> None:
    """The answer arrives after the session is lost, and after another one is opened."""
    bench = Bench()
    bench.signals.on_session(SessionEvent.OPENED, 1)
    (old,) = bench.zk.pings
    bench.signals.on_session(SessionEvent.LOST, 1)
    old()
    assert bench.gate.valid_until == -math.inf
    bench.signals.on_session(SessionEvent.OPENED, 2)
    old()
    assert bench.gate.valid_until == -math.inf
    bench.zk.pings[-1]()
    assert bench.gate.is_open


def test_a_lost_session_shuts_the_gate_on_the_thread_that_hears_of_it() -> None:
    """This happens before the loop handles the event, which may be much later."""
    bench = Bench()
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.zk.pings[0]()
    assert bench.gate.is_open
    waiting: list[Callable[[], object]] = []
    bench.host.post = waiting.append  # type: ignore[method-assign]
    bench.signals.on_session(SessionEvent.LOST, 1)
    assert not bench.gate.is_open
    assert len(waiting) == 1


def test_a_dropped_connection_holds_delivery_for_a_moment() -> None:
    """Another client may have closed the session. Nothing is delivered until a server answers, or
    for a sixth of the session timeout, at most a second. Then the lease counts again."""
    bench = Bench()
    host, gate = bench.host, bench.gate
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.zk.pings[0]()
    until = gate.valid_until
    post, waiting = host.post, []
    host.post = waiting.append  # type: ignore[method-assign]
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    assert not gate.is_open, "on the thread that receives the event"
    host.post = post  # type: ignore[method-assign]
    waiting.pop()()
    ((at, release),) = host.timers
    assert at == host.time + min(1.0, SESSION / 6)
    host.time = at
    assert not gate.is_open
    release()
    assert gate.valid_until == until
    assert gate.suspended_seconds == 1.0


def test_an_answer_ends_the_hold_and_an_old_timer_does_not() -> None:
    """The connection drops, returns, and drops again. Each drop holds delivery for its own time. An
    answer from before a drop does not end it."""
    bench = Bench()
    host, gate = bench.host, bench.gate
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.zk.pings[0]()
    bench.every[0][1]()
    before = bench.zk.pings[1]
    host.time += 0.1
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    before()
    assert not gate.is_open
    bench.signals.on_session(SessionEvent.RESUMED, 1)
    assert not gate.is_open, "the server has not confirmed the session yet"
    bench.zk.pings[-1]()
    assert gate.is_open
    (_, first), again = host.timers[0], gate.valid_until
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    first()
    assert not gate.is_open
    host.timers[1][1]()
    assert gate.valid_until == again
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    bench.signals.on_session(SessionEvent.LOST, 1)
    host.timers[2][1]()
    assert not gate.is_open, "the session is lost"


def test_the_hold_lengthens_no_lease() -> None:
    """A lease that ends during the hold stays ended."""
    bench = Bench()
    host, gate = bench.host, bench.gate
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.zk.pings[0]()
    host.time = gate.valid_until - 0.5
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    host.time += 1.0
    host.timers[0][1]()
    assert not gate.is_open
    assert gate.shut_seconds == 1.0


def test_the_machine_hears_that_a_session_is_resumed() -> None:
    """It has to read again, because watches may be lost. The session is confirmed at once."""
    bench = Bench()
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.signals.on_session(SessionEvent.SUSPENDED, 1)
    bench.signals.on_session(SessionEvent.RESUMED, 1)
    bench.signals.on_session(SessionEvent.LOST, 1)
    expected = [events.SessionOpened(1), events.SessionResumed(), events.SessionLost()]
    assert bench.taken == expected
    assert len(bench.zk.pings) == 2


def test_a_write_depends_on_the_oldest_read_of_its_script() -> None:
    """Of two reads that are sent together, one is answered before the session is resumed and one
    after it, perhaps by a server that was restored from a backup. The write that follows is not
    sent, and is lost. Only a write after later reads knows of the resumption."""
    read, write = GetMany(("/a",)), Multi((Check("/a", 1),))

    def script() -> MemberScript[None]:
        yield Pipelined((read, read))
        yield write
        yield read
        yield write
        yield read
        yield write

    bench = Bench()
    bench.coordination._scripts_of = lambda *_: script()  # type: ignore[method-assign]
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.coordination.carry_out(None)
    sent, known = bench.zk.sent, bench.zk.known
    sent[0](Ok(()))
    bench.signals.on_session(SessionEvent.RESUMED, 1)
    sent[1](Ok(()))
    sent[2](Failed(Code.CONNECTION_LOSS))
    sent[3](Ok(()))
    assert known == [0, 0, 0, 1, 1]
    bench.signals.on_session(SessionEvent.RESUMED, 1)
    sent[4](Failed(Code.BAD_VERSION, 0))
    sent[5](Ok(()))
    assert known[-1] == 1, "a script may read a part of what it needs again"


class GroupBench:
    """The coordination of one member on the brokers, without its machine."""

    def __init__(self, session_timeout: float = SESSION, rebalance_timeout: float = 60) -> None:
        self.host = host = HandHost()
        self.gate = gate = DeliveryGate(now=host.lease_now)
        subscription, strategies = Subscription(Pattern.STATIC, {"t": 1}), (RangeStrategy(),)
        spec = classic_spec(
            subscription=subscription,
            strategies=strategies,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            heartbeat_interval=1,
        )
        self.asked: list[Any] = []
        line: Any = SimpleNamespace(submit=lambda command, _: self.asked.append(command))
        self.coordination = BrokerCoordination(spec, host, gate, line, line, [], None)  # type: ignore[arg-type]
        self.taken: list[Any] = []
        self.coordination._member = SimpleNamespace(  # type: ignore[assignment]
            take=self.taken.append, machine=SimpleNamespace(generation=1, rejoins=1)
        )

    def synced(self, generation: int = 1) -> None:
        """Deliver the assignment of a generation at once."""
        command = commands.SyncGroup(1, "m", generation, {})
        self.coordination._answered(command, Synced(1, b""), self.host.time, 0)
        self.taken.clear()

    def beat(self, code: int, takes: float = 0.0, generation: int = 1) -> float:
        """Answer a heartbeat after some seconds. Return when it was sent."""
        sent = self.host.time
        self.host.time += takes
        command = commands.Heartbeat(1, "m", generation)
        self.coordination._answered(command, HeartbeatAnswered(1, code), sent, 0)
        assert self.taken.pop() == HeartbeatAnswered(1, code)
        return sent


@pytest.mark.parametrize(("code", "confirms"), [(0, True), (27, True), (25, False), (16, False)])
def test_a_heartbeat_confirms_from_when_it_was_sent(code: int, confirms: bool) -> None:
    """Only an answer with which the coordinator accepts the member counts."""
    bench = GroupBench()
    bench.synced()
    before = bench.gate.valid_until
    bench.host.time += 0.5
    sent = bench.beat(code, 3.0)
    assert bench.gate.valid_until == (sent + SESSION * LEASE if confirms else before)
    assert not bench.asked


def test_answers_that_ask_to_rejoin_keep_the_gate_open_for_the_rebalance_timeout() -> None:
    """The coordinator waits that long for members to rejoin, and then assigns their partitions to
    others. Heartbeats answered with REBALANCE_IN_PROGRESS confirm nothing beyond that time."""
    bench = GroupBench(session_timeout=30, rebalance_timeout=12)
    gate, confirm, now = bench.gate, bench.coordination.confirm, bench.host.time
    confirm(now, 27)
    assert not gate.is_open, "never in a settled generation"
    confirm(now, 0)
    assert gate.valid_until == now + 12.0
    confirm(now + 3, 27)
    assert gate.valid_until == now + 12.0
    confirm(now + 3, 0)
    assert gate.valid_until == now + 15.0


def test_a_lease_that_has_run_out_needs_more_than_a_heartbeat() -> None:
    """A coordinator that loads the group answers all heartbeats with NONE. So the member asks for
    its assignment. Only the answer opens the gate, from the time of the question."""
    bench = GroupBench()
    gate, host = bench.gate, bench.host
    bench.synced()
    host.time += SESSION
    assert not gate.is_open
    bench.beat(0)
    bench.beat(0)
    assert not gate.is_open
    (asked,) = bench.asked
    assert asked == commands.SyncGroup(0, "m", 1, {})
    loading = RequestFailed(0, ErrorCode.REBALANCE_IN_PROGRESS, "loading")
    bench.coordination._answered(asked, loading, host.time, 0)
    assert not gate.is_open
    bench.beat(0)
    _, again = bench.asked
    sent = host.time
    host.time += 1.0
    bench.coordination._answered(again, Synced(0, b""), sent, 0)
    assert gate.valid_until == sent + SESSION * LEASE
    assert not bench.taken, "the machine has asked for nothing"
    bench.beat(0)
    assert len(bench.asked) == 2


def test_nothing_is_proved_in_a_generation_without_an_assignment() -> None:
    """In that case, SyncGroup of the leader would give the whole group an empty assignment."""
    bench = GroupBench()
    bench.synced()
    bench.host.time += SESSION
    bench.beat(0, generation=2)
    assert not bench.asked
    assert not bench.gate.is_open
    bench.synced(generation=2)
    assert bench.gate.is_open
    bench.host.time += SESSION
    bench.beat(27)
    assert bench.gate.is_open, "a loading coordinator does not answer like this"


def test_a_heartbeat_without_an_answer_confirms_nothing() -> None:
    """The coordinator may be gone."""
    bench = GroupBench()
    bench.synced()
    until = bench.gate.valid_until
    bench.host.time += 1
    command = commands.Heartbeat(1, "m", 1)
    bench.coordination._answered(command, RequestFailed(1, UNREACHABLE), bench.host.time, 0)
    assert bench.taken == [HeartbeatAnswered(1, UNREACHABLE)]
    assert bench.gate.valid_until == until


class SlowClient:
    """A client with slow requests."""

    def __init__(self) -> None:
        self.executing_since = 0.0

    def execute(self, command: str, _permission: object) -> str:
        self.executing_since = time.clock_gettime(CLOCK)
        while time.clock_gettime(CLOCK) - self.executing_since < 0.02:
            pass
        return command.upper()

    def close(self) -> None:
        """There is no connection."""


def test_a_request_was_sent_before_its_answer_was_waited_for() -> None:
    """The time that counts for the lease is taken before the request is carried out."""
    client: Any = SlowClient()
    answers: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    line = ServerLine(client, "requests", lambda error: answers.put((error,)))
    line.submit("beat", lambda *answer: answers.put(answer))
    answer, sent, _ = answers.get(timeout=10)
    line.close()
    assert answer == "BEAT"
    assert sent <= client.executing_since


def test_the_lease_is_that_of_the_session_that_was_granted() -> None:
    """A server may grant a shorter timeout than requested, and ends the session by that."""
    bench = Bench()
    bench.zk.session_timeout = 3.0
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.zk.pings[0]()
    assert bench.gate.valid_until == bench.host.time + 3.0 * LEASE


def test_a_script_of_a_lost_session_sends_nothing_more() -> None:
    """The answer that it waits for arrives when the next session is open."""
    bench = Bench()
    bench.signals.on_session(SessionEvent.OPENED, 1)
    bench.coordination.carry_out(zookeeper.Register(1, 0))
    before = list(bench.zk.sent)
    bench.signals.on_session(SessionEvent.LOST, 1)
    bench.signals.on_session(SessionEvent.OPENED, 2)
    for answer in before:
        answer(Ok(None))
    assert before
    assert bench.zk.sent == before


def dual(needs_group: bool) -> tuple[DualGate, Lease, Lease, HandHost]:
    """A gate with two leases that hold for 50 and for 60 seconds."""
    host = HandHost()
    gate = DualGate(now=host.lease_now)
    gate.need_group(needs_group)
    gate.zookeeper.extend(host.time + 50)
    gate.group.extend(host.time + 60)
    assert gate.valid_until == host.time + 50
    return gate, gate.zookeeper, gate.group, host


@pytest.mark.parametrize("needs_group", [False, True])
def test_a_migratable_member_pauses_while_its_session_may_have_ended(needs_group: bool) -> None:
    """Its connection to ZooKeeper has dropped. If no server answers, the lease counts again."""
    gate, zookeeper, _, host = dual(needs_group)
    until = gate.valid_until
    zookeeper.hold()
    assert not gate.is_open
    host.time += 1
    zookeeper.release()
    assert gate.valid_until == until
    assert gate.suspended_seconds == 1.0


@pytest.mark.parametrize("needs_group", [False, True])
def test_a_lost_membership_counts_where_it_is_needed(needs_group: bool) -> None:
    """The mode decides whether delivery needs the membership in the coordinator's group."""
    gate, _, group, host = dual(needs_group)
    for shut, opened in (
        (group.hold, group.release),
        (group.close, lambda: group.extend(host.time + 60)),
    ):
        shut()
        assert gate.is_open is not needs_group
        opened()
        assert gate.is_open
    group.close()
    gate.need_group(not needs_group)
    assert gate.is_open is needs_group
    gate.need_group(needs_group)
    assert gate.is_open is not needs_group


@pytest.mark.parametrize("needs_group", [False, True])
def test_a_lost_session_shuts_the_gate_of_a_migratable_member(needs_group: bool) -> None:
    """In every mode. A release of an earlier hold does not open it again."""
    gate, zookeeper, group, host = dual(needs_group)
    zookeeper.close()
    assert not gate.is_open
    zookeeper.extend(host.time + 50)
    zookeeper.hold()
    zookeeper.close()
    zookeeper.release()
    group.extend(host.time + 90)
    assert not gate.is_open
    zookeeper.extend(host.time + 70)
    assert gate.valid_until == host.time + 70


def test_the_shorter_lease_counts() -> None:
    """Whichever was extended last."""
    gate, zookeeper, group, host = dual(needs_group=True)
    zookeeper.extend(host.time + 90)
    assert gate.valid_until == host.time + 60
    group.extend(host.time + 100)
    assert gate.valid_until == host.time + 90
