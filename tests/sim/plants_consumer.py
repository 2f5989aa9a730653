"""Bugs to plant in the machine and the driver of a KIP-848 member."""

from __future__ import annotations

import pytest

from tests.support.rewriting import rewrite
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.kip848 import Kip848Machine


def gives_up_before_it_has_stopped(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat names the assigned partitions, not those that are still being read."""
    rewrite(patch, Kip848Machine._owned, "{*self.held, *self._starting}", "()")


def names_only_what_it_reads(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat leaves out assigned partitions that the member has not begun to read."""
    new = "topic: set() for topic in self._target"
    rewrite(
        patch,
        Kip848Machine._owned,
        "topic: set(numbers) for topic, numbers in self._target.items()",
        new,
        "{*self.held, *self._starting}",
        "self.held",
    )


def believes_that_it_is_a_member(patch: pytest.MonkeyPatch) -> None:
    """A fenced member keeps its partitions."""
    patch.setattr(Kip848Machine, "_lose", lambda self, expelled: None)


def never_tells_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is not told which partitions were released."""
    old = "owned if full or owned != self._said else None"
    rewrite(patch, Kip848Machine._send_heartbeat, old, "owned if full else None")


def looks_only_when_idle(patch: pytest.MonkeyPatch) -> None:
    """An assignment that arrives during another step is ignored."""
    new = "if event.assignment is not None and self.state in (State.STABLE, State.JOINING):"
    rewrite(patch, Kip848Machine._accepted, "if event.assignment is not None:", new)


def sends_a_stale_commit_never_again(patch: pytest.MonkeyPatch) -> None:
    """After STALE_MEMBER_EPOCH, the queue of commits stays paused."""
    for function in (Kip848Machine._accepted, GroupMachine._timer_fired):
        rewrite(patch, function, "self._commits.paused = False", "pass")


def never_leaves(patch: pytest.MonkeyPatch) -> None:
    """The coordinator is not told that the member leaves."""
    patch.setattr(Kip848Machine, "_may_leave", lambda self: False)
