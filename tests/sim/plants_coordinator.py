"""Bugs to plant in the machine of a group on the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.handlers import replace_handler
from zkconsumer.core.common.commands import Drop
from zkconsumer.core.common.machine import CommitQueue
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import events
from zkconsumer.core.groups.assignors.strategies import JoinOffer
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.reactions import Reaction, Request, reaction
from zkconsumer.runtime.membership import classic as coordinator

Patch = Callable[[pytest.MonkeyPatch], None]


def without(kind: type, name: str) -> Patch:
    """The handler's commands of this ``kind`` are lost."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(ClassicMachine, name)

        def handler(self: ClassicMachine, *args: Any) -> Any:
            found = right(self, *args)
            self._commands[:] = [one for one in self._commands if not isinstance(one, kind)]
            return found

        patch.setattr(ClassicMachine, name, handler)

    plant.__name__ = f"no_{kind.__name__}_after{name}"
    return plant


def joins_without_stopping(patch: pytest.MonkeyPatch) -> None:
    """An eager member continues reading while it joins."""
    patch.setattr(JoinOffer, "cooperative", True)


def has_no_fence(patch: pytest.MonkeyPatch) -> None:
    """Delivery continues however long the coordinator is silent."""
    patch.setattr(coordinator, "LEASE", 100.0)


def forgets_topics_that_are_not_there(patch: pytest.MonkeyPatch) -> None:
    """The leader looks again at the existing topics, not at those that members want."""

    def to_reread(self: ClassicMachine) -> tuple[str, ...] | None:
        own = self.spec.topics_named
        return None if own is None else tuple(sorted({*own, *self._round.topics}))

    patch.setattr(ClassicMachine, "_topics_to_reread", to_reread)


def starts_at_zero(patch: pytest.MonkeyPatch) -> None:
    """The committed offset is not used."""
    right = ClassicMachine._offsets_fetched

    def fetched(self: ClassicMachine, fact: events.OffsetsFetched) -> None:
        nothing: Mapping[TopicPartition, int | None] = dict.fromkeys(fact.offsets)
        right(self, events.OffsetsFetched(fact.token, nothing))

    replace_handler(patch, ClassicMachine, "_offsets_fetched", fetched)


def lets_go_and_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    """A cooperative member that released partitions does not rejoin, so they get no new owner."""
    right = ClassicMachine._synced

    def synced(self: ClassicMachine, fact: events.Synced) -> None:
        right(self, fact)
        self._rejoin_wanted = False

    replace_handler(patch, ClassicMachine, "_synced", synced)


def keeps_what_was_taken(patch: pytest.MonkeyPatch) -> None:
    """A cooperative member reports that it owns nothing, and continues."""
    right = ClassicMachine._join

    def join(self: ClassicMachine) -> None:
        held, self.held = self.held, {}
        right(self)
        self.held = held

    patch.setattr(ClassicMachine, "_join", join)


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
    right = ClassicMachine._lose
    patch.setattr(ClassicMachine, "_lose", lambda self, expelled: right(self, False))


def never_comes_back(patch: pytest.MonkeyPatch) -> None:
    """A member that left because of a slow application does not return."""
    replace_handler(patch, ClassicMachine, "_poll_resumed", lambda self, fact: None)


def believes_a_refused_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that is answered with UNKNOWN_MEMBER_ID has no effect."""

    def react(request: Request, code: int, *rows: Any) -> Reaction:
        refused = request is Request.HEARTBEAT and code in (22, 25)
        return Reaction.PROCEED if refused else reaction(request, code, *rows)

    from zkconsumer.core.groups import base

    patch.setattr(base, "reaction", react)


def takes_any_answer(patch: pytest.MonkeyPatch) -> None:
    """An answer to an earlier request counts as the answer to the current one."""
    right = ClassicMachine.on

    def on(self: ClassicMachine, fact: Any) -> Any:
        if isinstance(fact, events.TopicsLoaded | events.Synced | events.Joined):
            self._awaited = fact.token
        return right(self, fact)

    patch.setattr(ClassicMachine, "on", on)


def leads_with_its_own_topics(patch: pytest.MonkeyPatch) -> None:
    """The leader assigns only the topics that it subscribes to."""
    right = ClassicMachine._group_loaded

    def loaded(self: ClassicMachine, fact: events.TopicsLoaded) -> None:
        own = {t: n for t, n in fact.partitions.items() if t in self._topics}
        right(self, events.TopicsLoaded(fact.token, own))

    replace_handler(patch, ClassicMachine, "_group_loaded", loaded)


forgets_to_drop = without(Drop, "_drop_all")
"""The member still delivers what the group has assigned to others."""
