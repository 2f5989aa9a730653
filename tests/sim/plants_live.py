"""Bugs to plant in members and tools that move a running group."""

from __future__ import annotations

import pytest
from zkmigrate.apply import guard
from zkmigrate.apply.live import LiveMove
from zkmigrate.plan.gates import obstacles

from tests.support.rewriting import rewrite
from zkconsumer.core.migration import machine, member_scripts
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.member import LiveClaims, LiveMember
from zkconsumer.core.zookeeper.scripts import ownership
from zkconsumer.runtime.membership.live_move import DualGate


def leaves_the_ids_open(patch: pytest.MonkeyPatch) -> None:
    """The tool looks for legacy members, but does not keep new ones out."""
    rewrite(patch, obstacles, "if not facts.ids_locked:", "if False:")
    rewrite(patch, LiveMove._keep_out, "guard.lock(self.group, (ids_lock.LIVE,))", "()")


def unlocks_a_finished_move(patch: pytest.MonkeyPatch) -> None:
    """The steps of a live move let legacy consumers in after a move is recorded as finished."""
    right = guard.unlock_recorded
    patch.setattr(guard, "unlock_recorded", lambda group, live=False: right(group))


def delivers_with_one_lock(patch: pytest.MonkeyPatch) -> None:
    """The owner znode is enough, whatever the coordinator assigns."""
    patch.setattr(machine, "may_claim", lambda mode, joined, assigned: True)
    patch.setattr(machine, "may_deliver", lambda mode, joined, assigned, owner: owner)
    patch.setattr(LiveMachine, "_give_up", lambda self, partitions: None)


def begins_at_zookeepers_offset(patch: pytest.MonkeyPatch) -> None:
    """A claim between the modes ignores the offset in Kafka."""
    patch.setattr(member_scripts, "_claim", ownership.claim)


def commits_in_zookeeper_alone(patch: pytest.MonkeyPatch) -> None:
    """Positions are not stored in Kafka."""
    patch.setattr(
        member_scripts, "_commit", lambda command, ctx, live: ownership.commit(command, ctx)
    )


def commits_changes_alone(patch: pytest.MonkeyPatch) -> None:
    """Offsets that ZooKeeper already has are not stored in Kafka."""
    patch.setattr(LiveClaims, "stores_in_kafka", False)


def needs_no_membership(patch: pytest.MonkeyPatch) -> None:
    """The session's lease is sufficient in every mode."""
    patch.setattr(DualGate, "need_group", lambda self, needed: None)


def keeps_what_an_expelled_member_has(patch: pytest.MonkeyPatch) -> None:
    """A member that the coordinator has expelled delivers until its lease ends."""
    new = "self._asked = None; return"
    rewrite(patch, LiveMachine._left, "self.departures += 1", new)


def lets_plain_consumers_in_early(patch: pytest.MonkeyPatch) -> None:
    """In every mode, members offer the strategies that plain consumers support."""
    new = "Offer.OWN: JoinOffer(own + usual, KEPT_OUT)"
    rewrite(patch, LiveMember.__init__, "Offer.OWN: JoinOffer(own, KEPT_OUT)", new)


def hears_of_no_mode(patch: pytest.MonkeyPatch) -> None:
    """A member keeps the mode that it read when it registered."""
    patch.setattr(LiveMember, "_read_mode", lambda self: None)
