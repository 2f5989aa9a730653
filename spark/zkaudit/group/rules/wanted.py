"""Which topics the registered members of a group subscribe to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Lifetime
from zkaudit.group.facts import Topics
from zkaudit.group.subscriptions import FILTERS, Registered, registered, topics_of_filter
from zkaudit.group.znodes import IDS


class Wanted:
    """The topics to which registered members subscribe.

    Args:
        chroot: the group's chroot. Filters apply to the topics there.
        topics: all topics.
    """

    def __init__(self, chroot: str, topics: Topics) -> None:
        self._chroot = chroot
        self._topics = topics
        self._registered: dict[str, tuple[Lifetime, Registered]] = {}
        """By path, in the order in which they began."""
        self._of_topic: dict[str, dict[str, Lifetime]] = {}
        """Registrations by subscribed topic, then by path."""
        self._matches: dict[tuple[str, str, str], bool] = {}

    def began(self, lifetime: Lifetime) -> Registered | None:
        """Record the start of a lifetime. If it is a registration, return its content."""
        if lifetime.znode.tree != IDS or lifetime.start is UNKNOWN:
            return None
        content = registered(lifetime.data)
        if content.subscription is not None:
            self._registered[lifetime.znode.path] = lifetime, content
            for topic, wanting in self._of_topic.items():
                if self._wants(content, topic):
                    wanting[lifetime.znode.path] = lifetime
        return content

    def ended(self, lifetime: Lifetime) -> None:
        """Record the end of a lifetime."""
        if self._registered.pop(lifetime.znode.path, None) is not None:
            for wanting in self._of_topic.values():
                wanting.pop(lifetime.znode.path, None)

    def by(self, topic: str) -> Iterable[Lifetime]:
        """Return the live registrations that subscribe to a topic, in the order in which they
        began."""
        wanting = self._of_topic.get(topic)
        if wanting is None:
            wanting = self._of_topic[topic] = {
                path: lifetime
                for path, (lifetime, content) in self._registered.items()
                if self._wants(content, topic)
            }
        return wanting.values()

    def streams(self, lifetime: Lifetime, others: Iterable[str] = ()) -> Mapping[str, int]:
        """Return the topics that a registration subscribes to, with its number of streams for each.
        ``others``: more topics, whose znodes are unknown but which a filter may match."""
        known = self._registered.get(lifetime.znode.path)
        content = registered(lifetime.data) if known is None else known[1]
        if content.subscription is None:
            return {}
        if content.pattern == "static":
            return content.subscription
        counts: dict[str, int] = {}
        if content.pattern in FILTERS:
            for regex, count in content.subscription.items():
                topics = self._topics.matching(self._chroot, content.pattern, regex)
                counts |= dict.fromkeys(topics, count)
                counts |= {topic: count for topic in others if self._wants(content, topic)}
        return counts

    def _wants(self, content: Registered, topic: str) -> bool:
        pattern, subscription = content.pattern, content.subscription or {}
        if pattern == "static":
            return topic in subscription
        if pattern not in FILTERS:
            return False
        return any(self._match(pattern, regex, topic) for regex in subscription)

    def _match(self, pattern: str, regex: str, topic: str) -> bool:
        key = pattern, regex, topic
        if key not in self._matches:
            self._matches[key] = bool(topics_of_filter(pattern, regex, [topic]))
        return self._matches[key]
