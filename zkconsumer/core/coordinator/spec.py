"""The settings of a member on the coordinator, fixed for its life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.common.topic_filter import expand
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.coordinator.strategies import Strategy


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Times are in seconds. ``strategies``: in order of preference.

    ``commit_attempts``: how often a commit is sent when the coordinator moves or still loads; the
    one before a release is sent again for ``release_timeout``.
    """

    group: str
    consumer_id: str
    instance_id: str | None
    subscription: Subscription
    exclude_internal: bool
    strategies: tuple[Strategy, ...]
    auto_commit: bool
    session_timeout: float
    rebalance_timeout: float
    heartbeat_interval: float
    backoff: float
    reread: float
    commit_attempts: int = 6

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept while joining: only if all strategies support it."""
        return all(strategy.cooperative for strategy in self.strategies)

    def release_timeout(self, leaving: bool) -> float:
        """Seconds for which the commit before a release is retried after its first failure.

        Half the rebalance timeout, so that the other half is left for the listener and for joining
        in time. A member that leaves has its session timeout, which ``shutdown`` waits for.
        """
        half = self.rebalance_timeout / 2
        return min(half, self.session_timeout) if leaving else half

    @property
    def topics_to_load(self) -> tuple[str, ...] | None:
        """The topics that the subscription needs to know; ``None`` means all."""
        if self.subscription.pattern is Pattern.STATIC:
            return tuple(sorted(self.subscription.topics))
        return None

    def topics(self, known: Mapping[str, int]) -> dict[str, int]:
        """Topic to number of streams, for the existing topics."""
        return expand("", self.subscription, tuple(known), self.exclude_internal)

    def strategy(self, name: str) -> Strategy | None:
        """The strategy that the coordinator chose."""
        return next((one for one in self.strategies if one.name == name), None)
