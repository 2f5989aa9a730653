"""JoinOffer: the strategies that a classic member offers when it joins its group. Data."""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.core.groups.assignors.strategies import Strategy


@dataclass(frozen=True, slots=True)
class JoinOffer:
    """The offered ``strategies``, in order of preference.

    ``kept_out``: what a member reports whose offer the coordinator refuses, because other members
    support none of these strategies. It then tries to join until it may. Without that text, the
    refusal is final.
    """

    strategies: tuple[Strategy, ...]
    kept_out: str = ""

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept while joining: only if all strategies support it."""
        return all(strategy.cooperative for strategy in self.strategies)

    def strategy(self, name: str) -> Strategy | None:
        """Return the strategy with a name; ``None``: it is not offered."""
        return next((strategy for strategy in self.strategies if strategy.name == name), None)


@dataclass(frozen=True, slots=True)
class OfferChanged:
    """Event of a classic member: join the group again, with this offer."""

    offer: JoinOffer
