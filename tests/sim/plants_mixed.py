"""Bugs to plant in runs in which the broker converts a group between the two protocols.

The first two are bugs of a member. The last one makes the simulated broker behave as Kafka's broker
does; by default it is more lenient (``tests.sim.runs.either_group.LENIENCIES``).
"""

from __future__ import annotations

import pytest

from tests.sim.runs.either_group import EitherGroup
from tests.support.rewriting import rewrite
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups.base import GroupMachine


def takes_a_classic_group_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """Bug of a KIP-848 member: it fails if it was expelled and the group then became classic. It
    should join again."""
    new = f"return Reaction.FATAL if code == {ErrorCode.GROUP_ID_NOT_FOUND:d} else reaction("
    rewrite(patch, GroupMachine._reaction, "return reaction(", new)


def takes_a_conversion_for_the_end(patch: pytest.MonkeyPatch) -> None:
    """Bug of a classic member: it fails if the broker converted the group while its JoinGroup
    waited for an answer. It should join again."""
    new = "return Reaction.FATAL if request is Request.JOIN and code == 27 else reaction("
    rewrite(patch, GroupMachine._reaction, "return reaction(", new)


def gives_away_what_members_still_have(patch: pytest.MonkeyPatch) -> None:
    """As Kafka's broker: a conversion keeps what members were assigned last, and forgets what they
    said that they own. So a new member gets a partition before another member has released it."""
    conversion = "group.generation == self._converted"
    said = "_owned(seat.protocols) - others"
    rewrite(patch, EitherGroup._given, conversion, "False", said, "frozenset()")
