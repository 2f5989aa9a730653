"""The coordinator's side of a migratable member: its strategy, and a machine that changes offers.

Pure; run by the member's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from zkconsumer.core.common import commands
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.data import Goal
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import (
    decode_subscription,
    encode_subscription,
)
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.groups.states import State
from zkconsumer.core.groups.strategies import LegacyStrategy, MemberState, Strategy
from zkconsumer.core.migration.commands import OfferChanged
from zkconsumer.core.migration.modes import Offer

_KEPT_OUT: Final = (
    "the coordinator does not let this member join: a plain Kafka consumer is in the group (stop "
    "it), or another member has not seen the group's mode yet (this ends by itself)"
)
OWN_PREFIX: Final = "zkconsumer-live-"
"""Prefix of the names of strategies that only migratable members know."""


@dataclass(frozen=True, slots=True)
class OwnStrategy:
    """Assigns exactly as the members do in ZooKeeper, so that a move changes no owner.

    Partitions are kept while joining: the owner znodes, not the coordinator, make sure that none is
    delivered twice. A coordinator that has KIP-848 members in the group takes them for free unless
    the subscription names them, and those members do not look at owner znodes.

    Args:
        assignor: ``range`` or ``roundrobin``, as in ZooKeeper.
        hash_form: for ``roundrobin``.
    """

    assignor: str = "range"
    hash_form: RoundRobinHash = RoundRobinHash.DASH
    cooperative: bool = True

    @property
    def name(self) -> str:
        """See ``Strategy``."""
        return f"{OWN_PREFIX}{self.assignor}"

    def subscribe(self, state: MemberState) -> bytes:
        """See ``Strategy``."""
        subscription = decode_subscription(self._legacy.subscribe(state))
        return encode_subscription(
            replace(subscription, owned=state.owned, generation=state.generation, version=2)
        )

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """See ``Strategy``."""
        return self._legacy.assign(members, partitions)

    @property
    def _legacy(self) -> LegacyStrategy:
        return LegacyStrategy(f"legacy-{self.assignor}", self.hash_form)


class LiveMembership(ClassicMachine):
    """A member of the coordinator's group whose offer changes with the mode.

    ``offer``: the one in the current generation; ``None``: not a member. While it joins, it keeps
    its partitions only if all strategies that it offers are cooperative. With any other, the leader
    may assign them to a plain consumer, which delivers at once and ignores owner znodes.
    """

    def __init__(self, spec: ClassicSpec) -> None:
        super().__init__(spec)
        self._offered = self._wanted = Offer.OWN
        self._joined_with: Offer | None = None
        self._own = spec.strategies
        self._sent = spec
        """With the strategies of the last JoinGroup."""
        self._changing = False
        self._kept_out = False

    @property
    def offer(self) -> Offer | None:
        """The member's offer in the current generation."""
        return self._joined_with if self.generation >= 0 else None

    @property
    def given(self) -> frozenset[TopicPartition]:
        """The partitions that the coordinator assigns to the member and may not take back yet."""
        return frozenset(self.held) - self._releasing.partitions

    def _offer_changed(self, event: OfferChanged) -> None:
        if event.strategies == self.spec.strategies:
            return
        self._wanted = event.offer
        self.spec = replace(self.spec, strategies=event.strategies)
        self._rejoin_wanted = True
        if self.state is State.STABLE:
            self._rejoin()

    def _join(self) -> None:
        if self.held and not self.spec.cooperative:
            self._rejoin()  # the offer has changed since this join began: release first
            return
        self._offered = self._wanted
        self._sent = self.spec
        super()._join()

    def _joined(self, event: events.Joined) -> None:
        self._joined_with = self._offered
        self._kept_out = False
        super()._joined(event)

    def _strategy(self, name: str) -> Strategy | None:
        # The offer may have changed since. The member completes the round and then joins again.
        return self._sent.strategy(name)

    def _join_failed(self, event: events.RequestFailed) -> None:
        if event.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            # Plain consumers are members, or members that have not seen the mode yet.
            if not self._kept_out:
                self._kept_out = True
                self._emit(commands.Report("refused", _KEPT_OUT))
            self._back_off(Goal.LOAD)
        else:
            super()._join_failed(event)

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        **ClassicMachine.ANYWHERE,
        OfferChanged: _offer_changed,
    }
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        **ClassicMachine.ANSWERS,
        State.JOINING: {events.Joined: _joined, events.RequestFailed: _join_failed},
    }
