"""The settings of a KIP-848 member, fixed for its life."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from zkconsumer.core.common.topic_filter import INTERNAL_TOPICS
from zkconsumer.core.common.types import Pattern, Subscription

_INTERNAL: Final = INTERNAL_TOPICS | {"__share_group_state"}


@dataclass(frozen=True, slots=True)
class ConsumerGroupSpec:
    """Times are in seconds. ``member_id``: chosen by the member, and kept for its life.

    ``assignor``: the coordinator's (``uniform``, ``range``); ``None``: the coordinator chooses.
    ``heartbeat_interval``: used until the coordinator sends another one. ``session_timeout``: the
    coordinator's, which it does not send. ``commit_attempts``: see ``GroupSpec``.
    """

    group: str
    member_id: str
    consumer_id: str
    instance_id: str | None
    subscription: Subscription
    exclude_internal: bool
    assignor: str | None
    rack: str | None
    auto_commit: bool
    session_timeout: float
    rebalance_timeout: float
    heartbeat_interval: float
    backoff: float
    reread: float
    commit_attempts: int = 6

    def release_timeout(self, leaving: bool) -> float:
        """See ``GroupSpec``."""
        half = self.rebalance_timeout / 2
        return min(half, self.session_timeout) if leaving else half

    @property
    def topics_named(self) -> tuple[str, ...] | None:
        """The topics subscribed to; ``None`` where the coordinator evaluates ``regex``."""
        if self.subscription.pattern is Pattern.STATIC:
            return tuple(sorted(self.subscription.topics))
        return None

    @property
    def regex(self) -> str | None:
        """The pattern of topics, for the coordinator."""
        if self.subscription.pattern is Pattern.STATIC:
            return None
        return next(iter(self.subscription.topics))

    def topics(self, assigned: Collection[str]) -> dict[str, int]:
        """Topic to number of streams, of those that are assigned and are to be read.

        The coordinator has evaluated the pattern, and it assigns internal topics too.
        """
        if self.subscription.pattern is Pattern.STATIC:
            return {
                topic: streams
                for topic, streams in self.subscription.topics.items()
                if topic in assigned
            }
        (streams,) = self.subscription.topics.values()
        hidden = _INTERNAL if self.exclude_internal else frozenset()
        return {topic: streams for topic in sorted(assigned) if topic not in hidden}
