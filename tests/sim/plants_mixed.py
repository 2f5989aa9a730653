"""Bugs to plant in runs in which the broker converts a group between the two protocols.

The first two are bugs of a member. The others make the simulated broker behave as Kafka's broker
does; by default it is more lenient (``tests.sim.runs.either_group.LENIENCIES``).
"""

from __future__ import annotations

import pytest

from tests.sim.runs.either_group import EitherGroup
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.reactions import Reaction, Request


def takes_a_classic_group_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """Bug of a KIP-848 member: it fails if it was expelled and the group then became classic. It
    should join again."""
    right = Kip848Machine._reaction

    def react(self: Kip848Machine, request: Request, code: int) -> Reaction:
        found = right(self, request, code)
        return Reaction.FATAL if code == ErrorCode.GROUP_ID_NOT_FOUND else found

    patch.setattr(Kip848Machine, "_reaction", react)


def takes_a_conversion_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """Bug of a classic member: it fails if the broker converted the group while its JoinGroup
    waited for an answer. It should join again."""
    right = ClassicMachine._reaction

    def react(self: ClassicMachine, request: Request, code: int) -> Reaction:
        converted = request is Request.JOIN and code == ErrorCode.REBALANCE_IN_PROGRESS
        return Reaction.FATAL if converted else right(self, request, code)

    patch.setattr(ClassicMachine, "_reaction", react)


def gives_away_what_members_still_have(patch: pytest.MonkeyPatch) -> None:
    """As Kafka's broker: a conversion keeps what members were assigned last, and forgets what they
    said that they own. So a new member gets a partition before another member has released it."""

    def given(self: EitherGroup) -> dict[str, frozenset[TopicPartition]]:
        group = self._classic
        parts = group._parts or group._before
        return {name: decode_assignment(parts.get(name, b"")).partitions for name in group.seats}

    patch.setattr(EitherGroup, "_given", given)


def forgets_that_members_must_join(patch: pytest.MonkeyPatch) -> None:
    """As Kafka's broker: a new coordinator of a group that has just become classic does not make
    the members join again. Partitions of the member that left last stay without an owner."""

    def restart(self: EitherGroup) -> None:
        self._life += 1
        self._now.restart()

    patch.setattr(EitherGroup, "restart", restart)
