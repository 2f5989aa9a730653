"""The settings of a member on the coordinator, which never change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import INTERNAL_TOPICS, Pattern, Subscription
from zkconsumer.core.groups.assignors.strategies import Strategy

_INTERNAL: Final = INTERNAL_TOPICS | {"__share_group_state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Settings for both protocols. Times are in seconds.

    ``commit_attempts``: how often a commit is sent while the coordinator is moving or loading. The
    commit before a release is retried for ``release_timeout``.
    """

    group: str
    consumer_id: str
    instance_id: str | None
    subscription: Subscription
    exclude_internal: bool
    auto_commit: bool
    session_timeout: float
    rebalance_timeout: float
    heartbeat_interval: float
    backoff: float
    reread: float
    commit_attempts: int = 6

    @property
    def topics_named(self) -> tuple[str, ...] | None:
        """The topics subscribed to by name; ``None`` for a topic filter."""
        if self.subscription.pattern is Pattern.STATIC:
            return tuple(sorted(self.subscription.topics))
        return None

    def release_timeout(self, leaving: bool) -> float:
        """Seconds for which the commit before a release is retried after its first failure.

        Half the rebalance timeout, so that the other half is left for the listener and for joining
        in time. For a leaving member it is at most the session timeout, because ``shutdown`` does
        not wait much longer.
        """
        half = self.rebalance_timeout / 2
        return min(half, self.session_timeout) if leaving else half


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSpec(GroupSpec):
    """Settings of a classic member. ``strategies``: the strategies that it offers by default."""

    strategies: tuple[Strategy, ...]

    def topics(self, known: Mapping[str, int]) -> dict[str, int]:
        """Number of streams of each existing topic."""
        return expand("", self.subscription, tuple(known), self.exclude_internal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kip848Spec(GroupSpec):
    """Settings of a KIP-848 member. ``member_id``: chosen by the member, and never changed.

    ``assignor``: an assignor of the coordinator (``uniform``, ``range``); ``None``: the coordinator
    chooses. ``heartbeat_interval``: used until the coordinator sends another one.
    ``session_timeout``: the coordinator's value, which must be configured because it is not sent.
    """

    member_id: str
    assignor: str | None
    rack: str | None

    @property
    def regex(self) -> str | None:
        """The regex that selects topics, which the coordinator evaluates; ``None`` without a
        filter."""
        if self.subscription.pattern is Pattern.STATIC:
            return None
        return next(iter(self.subscription.topics))

    def topics(self, assigned: Collection[str]) -> dict[str, int]:
        """Return the number of streams of each assigned topic that is to be read.

        The coordinator evaluates the pattern, but does not know ``exclude_internal``.
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
