"""Bugs to plant in the machine and the driver of a KIP-848 member."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.handlers import replace_handler
from zkconsumer.core.common.events import TimerFired
from zkconsumer.core.groups import kip848_events as events
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.states import State
from zkconsumer.runtime.membership.kip848 import ConsumerGroupCoordination


def gives_up_before_it_has_stopped(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat names the assigned partitions, not those that are still being read."""

    def owned(self: Kip848Machine) -> Any:
        return {one: numbers for one, numbers in sorted(self._target.items()) if numbers}

    patch.setattr(Kip848Machine, "_owned", owned)


def names_only_what_it_reads(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat leaves out assigned partitions that the member has not begun to read."""

    def owned(self: Kip848Machine) -> Any:
        found: dict[str, set[int]] = {}
        for tp in self.held:
            found.setdefault(self._ids[tp], set()).add(tp.partition)
        return {one: tuple(sorted(numbers)) for one, numbers in sorted(found.items())}

    patch.setattr(Kip848Machine, "_owned", owned)


def believes_that_it_is_a_member(patch: pytest.MonkeyPatch) -> None:
    """A fenced member keeps its partitions."""
    patch.setattr(Kip848Machine, "_lose", lambda self, expelled: None)


def never_tells_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is not told which partitions were released."""
    right = Kip848Machine._send_heartbeat

    def send(self: Kip848Machine) -> None:
        if self._said is not None:
            self._said = self._owned()
        right(self)

    patch.setattr(Kip848Machine, "_send_heartbeat", send)


def commits_what_others_have(patch: pytest.MonkeyPatch) -> None:
    """The member commits partitions that it does not own. The coordinator accepts any partition."""
    patch.setattr(Kip848Machine, "_obstacle", lambda self, tp, at: None)


def looks_only_when_idle(patch: pytest.MonkeyPatch) -> None:
    """An assignment that arrives during another step is ignored."""
    right = Kip848Machine._accepted

    def accepted(self: Kip848Machine, event: events.MemberHeartbeatAnswered) -> None:
        before = self._target
        idle = self.state in (State.STABLE, State.JOINING)
        right(self, event)
        if not idle:
            self._target = before

    patch.setattr(Kip848Machine, "_accepted", accepted)


def trusts_the_coordinator_while_it_waits(patch: pytest.MonkeyPatch) -> None:
    """The lease is extended although partitions are to be released."""
    patch.setattr(Kip848Machine, "releasing", property(lambda self: False))


def counts_a_members_lease_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The lease begins when an answer arrives, not when its heartbeat was sent."""
    right = ConsumerGroupCoordination.confirm

    def confirm(self: ConsumerGroupCoordination, sent: float, code: int) -> None:
        right(self, self._host.lease_now(), code)

    patch.setattr(ConsumerGroupCoordination, "confirm", confirm)


def never_asks_for_a_name_again(patch: pytest.MonkeyPatch) -> None:
    """A topic that the broker did not know yet stays unread."""
    right = Kip848Machine._timer_fired

    def fired(self: Kip848Machine, event: TimerFired) -> None:
        if event.name != "names":
            right(self, event)

    replace_handler(patch, Kip848Machine, "_timer_fired", fired)


def sends_a_stale_commit_never_again(patch: pytest.MonkeyPatch) -> None:
    """After STALE_MEMBER_EPOCH, the queue of commits stays paused."""
    right = Kip848Machine._accepted

    def accepted(self: Kip848Machine, event: events.MemberHeartbeatAnswered) -> None:
        paused = self._commits.paused
        right(self, event)
        self._commits.paused = paused

    def fired(self: Kip848Machine, event: TimerFired) -> None:
        if event.name != "commit":
            before(self, event)

    before = Kip848Machine._timer_fired
    patch.setattr(Kip848Machine, "_accepted", accepted)
    replace_handler(patch, Kip848Machine, "_timer_fired", fired)


def never_leaves(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is not told that the member leaves."""
    patch.setattr(Kip848Machine, "_may_leave", lambda self: False)
