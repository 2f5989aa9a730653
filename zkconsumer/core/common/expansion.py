"""Expands registrations to topics, from the view of the member that reads them.

A registration names topics, or has a filter: a regex over whole topic names, which every member
evaluates against its own list of topics. Filters need ``topic_filter``, which is loaded with the
first filter. Pure functions; any thread may call them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkconsumer.core.common.types import Pattern, Subscription, UnusableFilterError
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import ZnodeFormatError

if TYPE_CHECKING:
    from zkconsumer.core.common.name_sets import Names

_Key = tuple[Pattern, tuple[tuple[str, int], ...]]
"""Key of a subscription. Subscriptions with equal keys select the same topics."""


def expand(
    path: str, subscription: Subscription, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, int]:
    """Return the topics of the registration at ``path``, each with its number of streams.

    For a static registration these are its topics, whether they exist or not. For a filter they
    are the topics that its regex selects, in the order of ``all_topics``. The regex is cleaned
    again, as in the JVM. Illegal topic names are left out, because they have no partitions.
    ``exclude_internal`` is the setting of the calling member.

    Raises ZnodeFormatError if the regex is invalid, or takes more steps than are allowed for all
    names together. This depends only on the regex and the names, so it is the same for all members.
    """
    # DEVIATION-24: the JVM's hash maps hold them, and order partitions with equal hashes.
    if subscription.pattern is Pattern.STATIC:
        return _static(subscription)
    try:
        return _by_filter(subscription, _names_of(all_topics), exclude_internal)
    except UnusableFilterError as fault:
        raise ZnodeFormatError(path, str(fault)) from None


class _Expansion(NamedTuple):
    """The topics that a subscription selects; ``None`` if it is unusable. ``fault``: why it is
    unusable, or why these are the topics of an earlier list."""

    selected: Mapping[str, int] | None
    fault: str


class Expansions:
    """The subscriptions of one group's registrations, cached between two reads of the group.

    A filter is evaluated once for each list of topics, even if many members have it. Members with
    the same subscription, with topics in the same order, share one mapping. Only one thread at a
    time may use it.

    A filter that can no longer be evaluated, because topics were added, keeps its earlier topics.
    """

    def __init__(self) -> None:
        self._all_topics: tuple[str, ...] = ()
        self._exclude_internal = True
        self._names: Names | None = None
        """The topics' names; ``None`` until a filter needs them."""
        self._found: dict[_Key, _Expansion] = {}

    def of(
        self,
        subscriptions: Mapping[str, Subscription],
        all_topics: Collection[str],
        exclude_internal: bool,
    ) -> tuple[dict[str, Mapping[str, int]], dict[str, str]]:
        """Expand all registrations; see ``expand``.

        Returns the expanded registrations by name, and the reason for each unusable one by name. A
        registration in both keeps its earlier topics. A filter that took too many steps is not
        evaluated again with the same topics.
        """
        before, self._found = self._found, {}
        topics = tuple(all_topics)
        same = (topics, exclude_internal) == (self._all_topics, self._exclude_internal)
        if not same:
            self._names = None
            self._all_topics, self._exclude_internal = topics, exclude_internal
        expanded: dict[str, Mapping[str, int]] = {}
        unusable: dict[str, str] = {}
        for name, subscription in subscriptions.items():
            key = (subscription.pattern, tuple(subscription.topics.items()))
            if key not in self._found:
                last = before.get(key)
                self._found[key] = last if same and last else self._expand(subscription, last)
            selected, fault = self._found[key]
            if selected is not None:
                expanded[name] = selected
            if fault:
                unusable[name] = fault
        return expanded, unusable

    def _expand(self, subscription: Subscription, last: _Expansion | None) -> _Expansion:
        """Expand a registration. ``last``: the result for an earlier list of topics."""
        if subscription.pattern is Pattern.STATIC:
            return _Expansion(_static(subscription), "")
        if self._names is None:
            self._names = _names_of(self._all_topics)
        try:
            return _Expansion(_by_filter(subscription, self._names, self._exclude_internal), "")
        except UnusableFilterError as fault:
            if last is None or last.selected is None:
                return _Expansion(None, str(fault))
            exist = set(self._names.names)
            kept = {topic: n for topic, n in last.selected.items() if topic in exist}
            return _Expansion(kept, f"{fault}; until it can be used, it keeps the topics it had")


def _names_of(topics: Collection[str]) -> Names:
    from zkconsumer.core.common.name_sets import Names

    return Names(filter(is_legal_topic, topics))


def _static(subscription: Subscription) -> dict[str, int]:
    return {name: n for name, n in subscription.topics.items() if is_legal_topic(name)}


def _by_filter(subscription: Subscription, names: Names, exclude_internal: bool) -> dict[str, int]:
    from zkconsumer.core.common.topic_filter import selected

    return selected(subscription, names, exclude_internal)
