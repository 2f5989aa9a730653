"""A group whose members are rolled from one protocol to the other and back, under random faults.

The members are restarted one at a time, from classic to KIP-848 (``group.protocol=consumer``), and
back again when all are done. The broker converts the group. Meanwhile the faults of
``group_scenario`` are injected. The result is a pure function of the seed. Single-threaded, in
virtual time.
"""

from __future__ import annotations

from tests.sim.runs.either_group import EitherGroup
from tests.sim.runs.group_scenario import World, play
from tests.sim.runs.result import EVENTS, Result
from zkconsumer.core.common.types import Subscription
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.groups.sticky import StickyStrategy
from zkconsumer.core.groups.strategies import RangeStrategy, RoundRobinStrategy, Strategy
from zkconsumer.sim.members.group_member import Brokers, SimGroupMember

STRATEGIES: tuple[Strategy, ...] = (
    RangeStrategy(),
    RoundRobinStrategy(),
    StickyStrategy(False),
    StickyStrategy(True),
    StickyStrategy(True),
)
"""Kafka's own: a broker does not convert a group that uses another."""


class MixedWorld(World):
    """``aim`` is the protocol that members are rolled to: KIP-848 or not."""

    group: EitherGroup

    def __init__(self, seed: int, record: bool) -> None:
        super().__init__(seed, STRATEGIES, record)
        self.group = EitherGroup(
            self.kernel,
            lambda: self.topics,
            self.rng.choice([0.0, 1.0]),
            self.judge,
            brokers=lambda: self.cluster.endpoints,
        )
        before = self.brokers
        self.brokers = Brokers(self.kernel, self.group, before.service)
        self.brokers.loss, self.brokers.delay = before.loss, before.delay
        self.aim = False
        self.rolled = 0
        self.kinds.append((20, "roll", self.roll))

    def roll(self) -> None:
        """The next member of the other protocol is restarted, in order or not."""
        others = [member for member in self.live if self._modern(member) is not self.aim]
        others = [member for member in others if not member.closing]
        if not others:
            self.aim = not self.aim
            self.rolled += 1
            return
        member = self.rng.choice(others)
        if self.rng.random() < 0.8:
            member.close()
        else:
            member.crash()
        name, seconds = f"m{len(self.members)}", self.rng.choice([0.01, 0.5])
        subscription = member.spec.subscription
        self.kernel.schedule(seconds, lambda: self._start(name, None, subscription))
        self.lasts(seconds)

    def _start(self, name: str, instance: str | None, subscription: Subscription) -> None:
        """A new member; no static ones. Mostly of the protocol that the group is rolled to."""
        self.consumer = self.aim if self.rng.random() < 0.9 else not self.aim
        super()._start(f"{name}-{len(self.members)}", None, subscription)

    @staticmethod
    def _modern(member: SimGroupMember) -> bool:
        return isinstance(member.spec, Kip848Spec)


def run(seed: int, *, events: int = EVENTS, record: bool = False) -> Result[MixedWorld]:
    """One group with ``events`` faults and lost and late answers, then rest.

    A pure function of its arguments.
    """
    return play(MixedWorld(seed, record), "mixed", seed, events)


__all__ = ["STRATEGIES", "MixedWorld", "run"]
