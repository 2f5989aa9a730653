"""Bugs to plant in members whose group the broker converts, and in the broker that converts it."""

from __future__ import annotations

import pytest

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.consumer_group.machine import ConsumerGroupMachine
from zkconsumer.core.coordinator.machine import MembershipMachine
from zkconsumer.core.coordinator.reactions import Reaction, Request
from zkconsumer.core.coordinator.wire import decode_assignment
from zkconsumer.sim.either_group import EitherGroup


def takes_a_classic_group_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """A KIP-848 member fails if it was expelled and the group then became classic."""
    right = ConsumerGroupMachine._reaction

    def react(self: ConsumerGroupMachine, request: Request, code: int) -> Reaction:
        found = right(self, request, code)
        return Reaction.FATAL if code == ErrorCode.GROUP_ID_NOT_FOUND else found

    patch.setattr(ConsumerGroupMachine, "_reaction", react)


def takes_a_conversion_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """A classic member fails if its JoinGroup waited when the broker converted the group."""
    right = MembershipMachine._reaction

    def react(self: MembershipMachine, request: Request, code: int) -> Reaction:
        converted = request is Request.JOIN and code == ErrorCode.REBALANCE_IN_PROGRESS
        return Reaction.FATAL if converted else right(self, request, code)

    patch.setattr(MembershipMachine, "_reaction", react)


def gives_away_what_members_still_have(patch: pytest.MonkeyPatch) -> None:
    """The broker knows only what members were assigned, as Kafka's does."""

    def given(self: EitherGroup) -> dict[str, frozenset[TopicPartition]]:
        group = self._classic
        parts = group._parts or group._before
        return {name: decode_assignment(parts.get(name, b"")).partitions for name in group.seats}

    patch.setattr(EitherGroup, "_given", given)


def forgets_that_members_must_join(patch: pytest.MonkeyPatch) -> None:
    """A broker that takes over a group that has just become classic asks for no rebalance, as
    Kafka's does."""

    def restart(self: EitherGroup) -> None:
        self._life += 1
        self._now.restart()

    patch.setattr(EitherGroup, "restart", restart)
