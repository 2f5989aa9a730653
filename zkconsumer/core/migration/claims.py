"""LiveClaims: the ``ClaimRule`` of a migratable member: what the mode allows. Pure.

Only the ZooKeeper side of the member holds partitions, in every mode. It follows the assignment
that the mode names, and claims only what the mode allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.modes import RULES, Follows, Mode
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec, decide


@dataclass(frozen=True, slots=True)
class LiveClaims:
    """See ``ClaimRule``. ``live`` knows the mode, ``group`` has the coordinator's assignment."""

    spec: MemberSpec
    live: LiveMachine
    group: ClassicMachine

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """See ``ClaimRule``."""
        mode = self.live.mode
        if mode is None:
            return Decision({}, {})
        if RULES[mode].follows is Follows.ZOOKEEPER:
            decision = decide(view, self.spec.consumer_id, self.spec.assignor)
            allowed = {tp: of for tp, of in decision.mine.items() if self.may_claim(tp)}
            return Decision(allowed, decision.assignment)
        assigned = {
            tp: held[tp].thread if tp in held else thread
            for tp, thread in self.group.held.items()
            if self.may_claim(tp)
        }
        return Decision(assigned, assigned)

    def may_claim(self, partition: TopicPartition) -> bool:
        """See ``ClaimRule``."""
        return self.live.may_claim(partition)

    @property
    def stores_in_kafka(self) -> bool:
        """See ``ClaimRule``. An idle partition whose offset Kafka lacks would prevent ``open``."""
        return self.spec.kafka_storage or self.live.mode not in (None, Mode.ZOOKEEPER)
