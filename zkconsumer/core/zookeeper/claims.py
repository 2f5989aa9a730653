"""ClaimRule: which partitions a member of a ZooKeeper group should own, and may own. Also the texts
of owner znodes for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import session_text
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec, decide


class ClaimRule(Protocol):
    """What a ``RebalanceMachine`` asks about partitions, on its thread.

    The machine gets ``RulesChanged`` when the rule would answer differently.
    """

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """Return the partitions that the member should own, and the assignment they are from.

        ``held``: what it owns now.
        """

    def may_claim(self, partition: TopicPartition) -> bool:
        """Return whether the member may own a partition now."""

    @property
    def stores_in_kafka(self) -> bool:
        """Whether a commit also stores offsets in Kafka, which may lack one that ZooKeeper has."""


@dataclass(frozen=True, slots=True)
class GroupRule:
    """The rule of a group that is in ZooKeeper only: its own assignment counts."""

    spec: MemberSpec

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """See ``ClaimRule``."""
        return decide(view, self.spec.consumer_id, self.spec.assignor)

    def may_claim(self, partition: TopicPartition) -> bool:
        """See ``ClaimRule``."""
        return True

    @property
    def stores_in_kafka(self) -> bool:
        """See ``ClaimRule``."""
        return self.spec.kafka_storage


def owner_of(text: str, session: int | None) -> str:
    """Return an owner znode's text and session for people."""
    shown = ascii(text[:60])[1:-1]
    if session is None:
        return shown
    return f"{shown} (session {session_text(session)})" if session else f"{shown} (no session)"


def consumer_of(text: str) -> str:
    """Return the member that an owner znode's text names, or the text itself."""
    try:
        return ConsumerThreadId.parse(text).consumer
    except ValueError:
        return text
