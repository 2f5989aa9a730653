"""Bugs to plant in the loop, in both coordinations, and in the code below it."""

from __future__ import annotations

import pytest

from tests.support.rewriting import rewrite
from zkconsumer.core.common.machine import CommitQueue
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.zookeeper.committing import Committing
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.scripts import kafka_storage
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership import classic
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.loop import CommitRequests, MemberLoop
from zkconsumer.runtime.membership.zookeeper import SessionSignals, ZooKeeperCoordination
from zkconsumer.sim.members.group_member import Line

Patch = pytest.MonkeyPatch


# The connection to the data plane.


def stops_without_waiting(patch: Patch) -> None:
    """A partition is released while one of its messages is unacknowledged."""
    new = "done(self.stopping(partitions).poll(force=True) or {})"
    rewrite(patch, DataPlane.stop, "self._when_stopped(self.stopping(partitions), done)", new)


def forgets_stopped_partitions(patch: Patch) -> None:
    """The position of a stopped partition is forgotten at once, so a commit in the listener stores
    nothing."""
    rewrite(patch, DataPlane._revoke, "if keep:", "if False:")


def starts_at_the_next_record(patch: Patch) -> None:
    """Delivery begins one record after the committed offset."""
    rewrite(patch, DataPlane.start, "tp.partition, offset)", "tp.partition, offset and offset + 1)")


def drops_late(patch: Patch) -> None:
    """The member delivers lost partitions for a while."""
    old = "positions = _positions(info for info, _ in self._revoke(dropped, keep=False))"
    new = """self._manager._host.after(1.0, lambda: self._revoke(dropped, keep=False))
        positions = {tp: at for tp, at in self.positions().items() if tp in dropped}"""
    rewrite(patch, DataPlane.drop, old, new)


def closes_no_stream(patch: Patch) -> None:
    """Streams do not end with the member, so the application waits."""
    rewrite(patch, DataPlane.close, "stream.shutdown()", "pass")


# The loop.


def crashes_silently(patch: Patch) -> None:
    """A crash closes neither the gate nor the streams."""
    rewrite(patch, MemberLoop._crash, "for step in steps:", "for step in steps[1::2]:")


def crashes_without_answers(patch: Patch) -> None:
    """A crash leaves commits unanswered."""
    rewrite(patch, MemberLoop._crash, "self._commits.end(str(failure))", "None")


def crashes_as_a_member(patch: Patch) -> None:
    """A crash does not end the session, so the member stays registered."""
    rewrite(patch, MemberLoop._crash, "for step in steps:", "for step in steps[:5]:")


def never_answers(patch: Patch) -> None:
    """A commit that was carried out is not answered."""
    patch.setattr(CommitRequests, "answer", lambda self, number, faults: None)


def ends_without_answers(patch: Patch) -> None:
    """Commits that wait when the member ends are not answered."""
    patch.setattr(CommitRequests, "end", lambda self, reason: None)


def keeps_old_timers(patch: Patch) -> None:
    """A replaced timer fires as well, and counts."""
    rewrite(patch, MemberLoop._carry_out, "self._timers.pop(name)()", "pass")
    for machine in (RebalanceMachine, GroupMachine):
        old = "self._timers.get(event.name) != event.token"
        rewrite(patch, machine._timer_fired, old, "self._timers.setdefault(event.name, 0) < 0")


def loses_timers(patch: Patch) -> None:
    """A timer that is set again never fires."""
    new = "self._timers.pop(name)(); seconds = 1e9"
    rewrite(patch, MemberLoop._carry_out, "self._timers.pop(name)()", new)


def swallows_listener_errors(patch: Patch) -> None:
    """If the listener raises, the machine is not told, and waits for its answer."""
    old = "self.post(events.ListenerDone("
    rewrite(patch, MemberLoop._notify, old, f"error or {old}")


def commits_no_more(patch: Patch) -> None:
    """The loop passes no commit request to the machine."""
    old = "self.post(events.CommitRequested(number, positions, strict))"
    rewrite(patch, MemberLoop.commit, old, "pass")


def forgets_what_was_dropped(patch: Patch) -> None:
    """The machine does not learn the positions of dropped partitions."""
    new = "{tp: at + 1 for tp, at in self.data.drop(partitions).items()}"
    rewrite(patch, MemberLoop._carry_out, "self.data.drop(partitions)", new)


def keeps_old_brokers(patch: Patch) -> None:
    """The first list of brokers is used indefinitely."""
    new = "self.brokers = brokers = self.brokers or brokers"
    rewrite(patch, DataPlane.set_brokers, "self.brokers = brokers", new)


# The ZooKeeper side.


def counts_the_lease_from_the_answer(patch: Patch) -> None:
    """The lease begins when the ping is answered."""
    new = "extend(self._host.lease_now() + self._lease * LEASE)"
    rewrite(patch, ZooKeeperCoordination._ping, "extend(until)", new)


def does_not_say_that_it_is_back(patch: Patch) -> None:
    """The machine never gets SessionResumed."""
    old = "member.take(events.SessionResumed())"
    rewrite(patch, ZooKeeperCoordination.session_changed, old, "pass")


def does_not_say_that_it_is_lost(patch: Patch) -> None:
    """The machine never gets SessionLost."""
    old = "elif event is SessionEvent.LOST:"
    rewrite(patch, ZooKeeperCoordination.session_changed, old, "elif False:")


def hears_no_watch(patch: Patch) -> None:
    """Watches of owner znodes are not reported."""
    new = '"/owners/" in path or "/ids" in path or self._host.post('
    rewrite(patch, SessionSignals.on_watch, "self._host.post(", new)


def begins_where_zookeeper_says(patch: Patch) -> None:
    """With offsets in Kafka, a claim begins where ZooKeeper's offset is."""
    old = "(yield from with_offsets(claimed, ctx))"
    rewrite(patch, kafka_storage.claim, old, "claimed")


def ignores_resets(patch: Patch) -> None:
    """A reset to a lower position is never stored."""
    rewrite(patch, Committing._offset_reset, "event.old is not None", "False")


def forgets_commits_of_a_lost_session(patch: Patch) -> None:
    """Commits that wait when the session is lost are not answered."""
    rewrite(patch, CommitQueue.refuse, "self._answer(commit, faults)", "self._answers.clear()")


# The coordinator's side.


def counts_the_coordinators_lease_from_the_answer(patch: Patch) -> None:
    """The lease begins when the heartbeat is answered."""
    old = "if code == ErrorCode.NONE:"
    rewrite(patch, BrokerCoordination.confirm, old, f"sent = self._host.lease_now()\n        {old}")


def believes_errors(patch: Patch) -> None:
    """Any answer to a heartbeat opens the gate."""
    patch.setattr(classic, "_MEMBER", (0, 27, 22, 25, 14, 15, 16, -1))


def leaves_without_a_word(patch: Patch) -> None:
    """No LeaveGroup is sent."""
    rewrite(patch, GroupMachine._finish_closing, "elif self._lookup.known and", "elif False and")


def commits_without_a_generation(patch: Patch) -> None:
    """Commits are sent whether or not the member is in a generation."""
    old = "ready and self._commits.next(self._obstacle)"
    rewrite(patch, GroupMachine._stepped, old, "self._commits.next(lambda tp, position: None)")
    patch.setattr(CommitQueue, "refuse", lambda self, why: None)


def hears_no_coordinator(patch: Patch) -> None:
    """The heartbeat client is not told which broker is the coordinator."""
    old = "self._heartbeats.coordinator = self._requests.coordinator"
    rewrite(patch, BrokerCoordination._answered, old, "pass")


def waits_for_the_answer_under_way(patch: Patch) -> None:
    """A member that leaves, or has lost its coordinator, waits for the current request."""
    patch.setattr(Line, "interrupt", lambda self: None)


def watches_no_progress(patch: Patch) -> None:
    """max.poll.interval.ms is not watched."""
    patch.setattr(BrokerCoordination, "_watch_progress", lambda self: None)


def asks_for_commits_twice(patch: Patch) -> None:
    """An answered commit is sent once more, after later ones."""
    old = "self.token, self.sent = None, {}"
    new = """self.token, self.sent = None, {}
        if self._current is not None and self._current.automatic and self._waiting:
            self._waiting.append(self._current)"""
    rewrite(patch, CommitQueue.settle, old, new)


# The gate.


def stays_open(patch: Patch) -> None:
    """Closing the gate does nothing."""
    patch.setattr(DeliveryGate, "close", lambda self: None)


def wakes_nobody(patch: Patch) -> None:
    """The gate never opens again."""
    rewrite(patch, DeliveryGate.extend, "if self.always_open:", "if self._shut_since is not None:")
