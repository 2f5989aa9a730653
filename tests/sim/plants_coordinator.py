"""Bugs to plant in the machine of a group on the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.rewriting import rewrite
from zkconsumer.core.common.machine import CommitQueue, Machine
from zkconsumer.core.groups.assignors.strategies import JoinOffer
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.runtime.membership import classic as coordinator

Patch = Callable[[pytest.MonkeyPatch], None]


def joins_without_stopping(patch: pytest.MonkeyPatch) -> None:
    """An eager member continues reading while it joins."""
    patch.setattr(JoinOffer, "cooperative", True)


def has_no_fence(patch: pytest.MonkeyPatch) -> None:
    """Delivery continues however long the coordinator is silent."""
    patch.setattr(coordinator, "LEASE", 100.0)


def starts_at_zero(patch: pytest.MonkeyPatch) -> None:
    """The committed offset is not used."""
    rewrite(patch, GroupMachine._offsets_fetched, "event.offsets", "dict.fromkeys(event.offsets)")


def lets_go_and_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    """A cooperative member that released partitions does not rejoin, so they get no new owner."""
    rewrite(patch, ClassicMachine._synced, "self._rejoin_wanted = True", "pass")


def keeps_what_was_taken(patch: pytest.MonkeyPatch) -> None:
    """A cooperative member reports that it owns nothing, and continues."""
    new = "owned = frozenset() if"
    rewrite(patch, ClassicMachine._join, "owned = frozenset(self.held) if", new)


def asks_no_second_time(patch: pytest.MonkeyPatch) -> None:
    """The member looks for its coordinator only once."""
    patch.setattr(ClassicMachine, "_coordinator_lost", lambda self: None)


def forgets_the_coordinator_in_a_listener(patch: pytest.MonkeyPatch) -> None:
    """The member does not look for its coordinator while the listener runs, and the listener may
    wait for it."""
    patch.setattr(ClassicMachine, "_find_while_waiting", lambda self: None)


def commits_out_of_date(patch: pytest.MonkeyPatch) -> None:
    """A waiting commit is sent although a later one of the same partitions was sent already."""
    patch.setattr(CommitQueue, "stopped", lambda self, positions: None)


def answers_for_released_partitions(patch: pytest.MonkeyPatch) -> None:
    """A commit that waits while its partitions are released is answered as stored."""
    patch.setattr(CommitQueue, "_is_stored", lambda self, commit, tp, at: not commit.strict)


def keeps_an_unknown_id(patch: pytest.MonkeyPatch) -> None:
    """An expelled member joins with its former id."""
    rewrite(patch, GroupMachine._lose, "if expelled:", "if False:")


def never_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A member that left because of a slow application does not return."""
    rewrite(patch, GroupMachine._poll_resumed, "self._outside = False", "return")


def believes_a_refused_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that is answered with UNKNOWN_MEMBER_ID has no effect."""
    refused = "request is Request.HEARTBEAT and code in (22, 25)"
    new = f"return Reaction.PROCEED if {refused} else reaction("
    rewrite(patch, GroupMachine._reaction, "return reaction(", new)


def takes_any_answer(patch: pytest.MonkeyPatch) -> None:
    """An answer to an earlier request counts as the answer to the current one."""
    old = "handler = self.ANYWHERE.get(type(event))"
    new = f"""if type(event).__name__ in ("TopicsLoaded", "Synced", "Joined"):
            self._awaited = token
        {old}"""
    rewrite(patch, Machine.on, old, new)


def leads_with_its_own_topics(patch: pytest.MonkeyPatch) -> None:
    """The leader assigns only the topics that it subscribes to."""
    new = "{t: n for t, n in event.partitions.items() if t in self._topics}"
    rewrite(patch, ClassicMachine._group_loaded, "dict(event.partitions)", new)


def forgets_to_drop(patch: pytest.MonkeyPatch) -> None:
    """The member still delivers what the group has assigned to others."""
    rewrite(patch, GroupMachine._drop_all, "self._emit(Drop(held))", "pass")
