"""OwnStrategy: the assignment strategy that only migratable members know. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.groups.assignors.strategies import LegacyStrategy, MemberState
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import (
    decode_subscription,
    encode_subscription,
)

OWN_PREFIX: Final = "zkconsumer-live-"
"""Prefix of the names of strategies that only migratable members know."""


@dataclass(frozen=True, slots=True)
class OwnStrategy:
    """Assigns exactly as the members do in ZooKeeper, so that a move changes no owner.

    Partitions are kept while joining, because the owner znodes, not the coordinator, make sure that
    none is delivered twice. The subscription names the kept partitions, because a coordinator with
    KIP-848 members in the group treats all other partitions as free, and KIP-848 members ignore
    owner znodes.

    Args:
        assignor: ``range`` or ``roundrobin``, as in ZooKeeper.
        hash_form: the text of a partition that ``roundrobin`` hashes.
    """

    assignor: str = "range"
    hash_form: RoundRobinHash = RoundRobinHash.DASH
    cooperative: bool = True

    @property
    def name(self) -> str:
        """Implement ``Strategy.name``."""
        return f"{OWN_PREFIX}{self.assignor}"

    def subscribe(self, state: MemberState) -> bytes:
        """Implement ``Strategy.subscribe``."""
        subscription = decode_subscription(self._legacy.subscribe(state))
        return encode_subscription(
            replace(subscription, owned=state.owned, generation=state.generation, version=2)
        )

    def assign(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Implement ``Strategy.assign``."""
        return self._legacy.assign(members, partitions)

    @property
    def _legacy(self) -> LegacyStrategy:
        return LegacyStrategy(f"legacy-{self.assignor}", self.hash_form)
