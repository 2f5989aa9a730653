"""Bugs to plant in the loop, in both coordinations, and in the code below it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import pytest

from tests.support.handlers import replace_handler
from zkconsumer.core.common import commands as common, events as common_events
from zkconsumer.core.common.machine import CommitQueue
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.zookeeper.committing import Committing
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import SessionEvent
from zkconsumer.core.zookeeper.scripts import kafka_storage
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.gate import LEASE, DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.loop import CommitRequests, MemberLoop
from zkconsumer.runtime.membership.zookeeper import SessionSignals, ZooKeeperCoordination
from zkconsumer.sim.members.group_member import Line

Patch = pytest.MonkeyPatch


# The connection to the data plane.


def stops_without_waiting(patch: Patch) -> None:
    """A partition is released while one of its messages is unacknowledged."""

    def stop(
        self: DataPlane,
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, int]], object],
    ) -> None:
        stopping = self.stopping(partitions)
        self._when_stopped(stopping, lambda _: done(stopping.poll(force=True) or {}))

    def at_once(self: Any, stopping: Any, done: Any) -> None:
        done(stopping.poll(force=True))

    from tests.sim.runs.whole import WholePlane

    patch.setattr(DataPlane, "stop", stop)
    patch.setattr(WholePlane, "_when_stopped", at_once)


def forgets_stopped_partitions(patch: Patch) -> None:
    """The position of a stopped partition is forgotten at once, so a commit in the listener stores
    nothing."""
    right = DataPlane._revoke
    patch.setattr(
        DataPlane, "_revoke", lambda self, partitions, keep: right(self, partitions, False)
    )


def starts_at_the_next_record(patch: Patch) -> None:
    """Delivery begins one record after the committed offset."""
    right = DataPlane.start

    def start(self: DataPlane, partitions: Any) -> None:
        right(self, {tp: (of, at and at + 1) for tp, (of, at) in partitions.items()})

    patch.setattr(DataPlane, "start", start)


def drops_late(patch: Patch) -> None:
    """The member delivers lost partitions for a while."""
    right = DataPlane.drop

    def drop(self: DataPlane, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        positions = self.positions()
        dropped = frozenset(partitions)
        manager: Any = self._manager
        manager._host.after(1.0, partial(right, self, dropped))
        return {tp: at for tp, at in positions.items() if tp in dropped}

    patch.setattr(DataPlane, "drop", drop)


def closes_no_stream(patch: Patch) -> None:
    """Streams do not end with the member, so the application waits."""

    def close(self: DataPlane, timeout: float = 2.0) -> None:
        self._manager.shutdown(timeout)

    patch.setattr(DataPlane, "close", close)


# The loop.


def _crash_without(patch: Patch, *names: str) -> None:
    """A crash skips steps."""
    right = MemberLoop.crashed

    def crashed(self: MemberLoop[Any], error: BaseException) -> None:
        gate, data, commits = self.gate, self.data, self._commits
        left_out: dict[str, tuple[Any, str]] = {
            "gate": (gate, "end"),
            "fail": (data, "fail"),
            "close": (data, "close"),
            "commits": (commits, "end"),
            "servers": (self.coordination, "close"),
        }
        kept = []
        for name in names:
            owner, method = left_out[name]
            kept.append((owner, method))
            setattr(owner, method, lambda *args: None)
        right(self, error)
        for owner, method in kept:
            delattr(owner, method)

    patch.setattr(MemberLoop, "crashed", crashed)


def crashes_silently(patch: Patch) -> None:
    """A crash closes neither the gate nor the streams."""
    _crash_without(patch, "gate", "fail", "close")


def crashes_without_answers(patch: Patch) -> None:
    """A crash leaves commits unanswered."""
    _crash_without(patch, "commits")


def crashes_as_a_member(patch: Patch) -> None:
    """A crash does not end the session, so the member stays registered."""
    _crash_without(patch, "servers")


def never_answers(patch: Patch) -> None:
    """A commit that was carried out is not answered."""
    patch.setattr(CommitRequests, "answer", lambda self, number, faults: None)


def ends_without_answers(patch: Patch) -> None:
    """Commits that wait when the member ends are not answered."""
    patch.setattr(CommitRequests, "end", lambda self, reason: None)


def keeps_old_timers(patch: Patch) -> None:
    """A replaced timer fires as well, and counts."""
    right = MemberLoop._carry_out

    def carry_out(self: MemberLoop[Any], command: Any) -> None:
        if isinstance(command, common.SetTimer):
            self._timers.pop(command.name, None)
        right(self, command)

    def fired(self: Any, event: common_events.TimerFired) -> Any:
        self._timers[event.name] = event.token
        return None

    patch.setattr(MemberLoop, "_carry_out", carry_out)
    for machine in (RebalanceMachine, ClassicMachine):
        handler = machine._timer_fired

        def accepts(self: Any, event: Any, handler: Any = handler) -> None:
            fired(self, event)
            handler(self, event)

        replace_handler(patch, machine, "_timer_fired", accepts)


def loses_timers(patch: Patch) -> None:
    """A timer that is set again never fires."""
    right = MemberLoop._carry_out

    def carry_out(self: MemberLoop[Any], command: Any) -> None:
        again = isinstance(command, common.SetTimer) and command.name in self._timers
        right(self, command)
        if again:
            self._timers[command.name]()

    patch.setattr(MemberLoop, "_carry_out", carry_out)


def swallows_listener_errors(patch: Patch) -> None:
    """If the listener raises, the machine is not told, and waits for its answer."""
    right = MemberLoop.post

    def post(self: MemberLoop[Any], event: Any) -> None:
        if not (isinstance(event, common_events.ListenerDone) and event.error is not None):
            right(self, event)

    patch.setattr(MemberLoop, "post", post)


def commits_no_more(patch: Patch) -> None:
    """The loop passes no commit request to the machine."""
    right = MemberLoop.post

    def post(self: MemberLoop[Any], event: Any) -> None:
        if not isinstance(event, common_events.CommitRequested):
            right(self, event)

    patch.setattr(MemberLoop, "post", post)


def forgets_what_was_dropped(patch: Patch) -> None:
    """The machine does not learn the positions of dropped partitions."""
    right = MemberLoop.post

    def post(self: MemberLoop[Any], event: Any) -> None:
        if isinstance(event, common_events.Dropped):
            event = common_events.Dropped({tp: at + 1 for tp, at in event.positions.items()})
        right(self, event)

    patch.setattr(MemberLoop, "post", post)


def keeps_old_brokers(patch: Patch) -> None:
    """The first list of brokers is used indefinitely."""
    right = DataPlane.set_brokers

    def set_brokers(self: DataPlane, brokers: Any) -> None:
        right(self, self.brokers or brokers)

    patch.setattr(DataPlane, "set_brokers", set_brokers)


# The ZooKeeper side.


def counts_the_lease_from_the_answer(patch: Patch) -> None:
    """The lease begins when the ping is answered."""

    def ping(self: ZooKeeperCoordination) -> None:
        context = self._context
        if context is None or self._gate.always_open:
            return

        def answered() -> None:
            if self._context is context:
                self._gate.extend(self._host.lease_now() + self._lease * LEASE)

        self.zk.ping(answered)

    patch.setattr(ZooKeeperCoordination, "_ping", ping)


def opens_for_an_old_session(patch: Patch) -> None:
    """The answer to a ping of a lost session opens the gate."""

    def ping(self: ZooKeeperCoordination) -> None:
        if self._context is None or self._gate.always_open:
            return
        until = self._host.lease_now() + self._lease * LEASE
        self.zk.ping(lambda: self._gate.extend(until))

    patch.setattr(ZooKeeperCoordination, "_ping", ping)


def _session_event(patch: Patch, lost: SessionEvent) -> None:
    right = ZooKeeperCoordination.session_changed

    def changed(self: ZooKeeperCoordination, event: SessionEvent, session_id: int) -> None:
        if event is not lost:
            right(self, event, session_id)
        elif event is SessionEvent.RESUMED:
            self._ping()

    patch.setattr(ZooKeeperCoordination, "session_changed", changed)


def does_not_say_that_it_is_back(patch: Patch) -> None:
    """The machine never gets SessionResumed."""
    _session_event(patch, SessionEvent.RESUMED)


def does_not_say_that_it_is_lost(patch: Patch) -> None:
    """The machine never gets SessionLost."""
    _session_event(patch, SessionEvent.LOST)


def hears_no_watch(patch: Patch) -> None:
    """Watches of owner znodes are not reported."""
    right = SessionSignals.on_watch

    def on_watch(self: SessionSignals, path: str, zxid: int | None = None) -> None:
        if "/owners/" not in path and "/ids" not in path:
            right(self, path, zxid)

    patch.setattr(SessionSignals, "on_watch", on_watch)


def trusts_the_offset_store(patch: Patch) -> None:
    """An offset that Kafka refused counts as committed."""
    right = kafka_storage.store

    def store(command: Any, ctx: Any, settled: Any) -> Any:
        script = right(command, ctx, settled)
        reply: Any = None
        while True:
            try:
                op = script.send(reply)
            except StopIteration as end:
                return end.value
            reply = yield op
            if hasattr(reply, "value") and isinstance(reply.value, tuple):
                from zkconsumer.core.zookeeper.ops import Ok

                reply = Ok(tuple(None for _ in reply.value))

    patch.setattr(kafka_storage, "store", store)


def begins_where_zookeeper_says(patch: Patch) -> None:
    """With offsets in Kafka, a claim begins where ZooKeeper's offset is."""
    from zkconsumer.core.zookeeper.scripts import ownership

    patch.setattr(kafka_storage, "claim", ownership.claim)


def ignores_resets(patch: Patch) -> None:
    """A reset to a lower position is never stored."""
    replace_handler(patch, Committing, "_offset_reset", lambda self, event: None)


def forgets_commits_of_a_lost_session(patch: Patch) -> None:
    """Commits that wait when the session is lost are not answered."""
    right = CommitQueue.refuse

    def refuse(self: CommitQueue, why: str) -> None:
        right(self, why)
        self._answers.clear()

    patch.setattr(CommitQueue, "refuse", refuse)


# The coordinator's side.


def counts_the_coordinators_lease_from_the_answer(patch: Patch) -> None:
    """The lease begins when the heartbeat is answered."""
    right = BrokerCoordination.confirm

    def confirm(self: BrokerCoordination, sent: float, code: int) -> None:
        right(self, self._host.lease_now(), code)

    patch.setattr(BrokerCoordination, "confirm", confirm)


def believes_errors(patch: Patch) -> None:
    """Any answer to a heartbeat opens the gate."""
    from zkconsumer.runtime.membership import classic as coordinator

    patch.setattr(coordinator, "_MEMBER", (0, 27, 22, 25, 14, 15, 16, -1))


def leaves_without_a_word(patch: Patch) -> None:
    """No LeaveGroup is sent."""

    def finish(self: ClassicMachine) -> None:
        if self.held:
            from zkconsumer.core.groups.data import Purpose

            self._release(frozenset(self.held), Purpose.CLOSE)
        else:
            self._close()

    patch.setattr(ClassicMachine, "_finish_closing", finish)


def commits_without_a_generation(patch: Patch) -> None:
    """Commits are sent whether or not the member is in a generation."""

    def stepped(self: ClassicMachine) -> None:
        self._find_while_waiting()
        if self._commits.next(lambda tp, position: None):
            self._commits.token = token = self._next_token()
            positions = self._commits.sent
            self._emit(commands.CommitOffsets(token, self.member_id, self.generation, positions))
        self._answer_commits()

    patch.setattr(ClassicMachine, "_stepped", stepped)
    patch.setattr(CommitQueue, "refuse", lambda self, why: None)


def hears_no_coordinator(patch: Patch) -> None:
    """The heartbeat client is not told which broker is the coordinator."""
    right = BrokerCoordination._answered

    def answered(
        self: BrokerCoordination, command: Any, event: Any, sent: float, sent_us: int
    ) -> None:
        known = self._heartbeats.coordinator
        right(self, command, event, sent, sent_us)
        if isinstance(event, events.CoordinatorFound):
            self._heartbeats.coordinator = known

    patch.setattr(BrokerCoordination, "_answered", answered)


def waits_for_the_answer_under_way(patch: Patch) -> None:
    """A member that leaves, or has lost its coordinator, waits for the current request."""
    patch.setattr(Line, "interrupt", lambda self: None)


def watches_no_progress(patch: Patch) -> None:
    """max.poll.interval.ms is not watched."""
    patch.setattr(BrokerCoordination, "_watch_progress", lambda self: None)


def beats_on_the_line_of_requests(patch: Patch) -> None:
    """Heartbeats wait behind JoinGroup."""
    right = BrokerCoordination.carry_out

    def carry_out(self: BrokerCoordination, command: Any) -> None:
        if isinstance(command, commands.Heartbeat):
            self._send(self._requests, command)
        else:
            right(self, command)

    patch.setattr(BrokerCoordination, "carry_out", carry_out)


def asks_for_commits_twice(patch: Patch) -> None:
    """An answered commit is sent once more, after later ones."""
    right = CommitQueue.settle

    def settle(
        self: CommitQueue, faults: Iterable[str] = (), again: Collection[TopicPartition] = ()
    ) -> None:
        current = self._current
        right(self, faults, again)
        if current is not None and current.automatic and self._waiting:
            self._waiting.append(current)

    patch.setattr(CommitQueue, "settle", settle)


# The gate.


def stays_open(patch: Patch) -> None:
    """Closing the gate does nothing."""
    patch.setattr(DeliveryGate, "close", lambda self: None)


def wakes_nobody(patch: Patch) -> None:
    """The gate never opens again."""
    right = DeliveryGate.extend

    def extend(self: DeliveryGate, until: float) -> None:
        if self._shut_since is None:
            right(self, until)

    patch.setattr(DeliveryGate, "extend", extend)
