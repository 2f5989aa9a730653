"""Listeners of members on the coordinator: the legacy calls, the newer consumer's, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from zkconsumer.core.types import ConsumerThreadId, TopicPartition

GroupListener: TypeAlias = Any
"""Any object with some of the methods that ``Calls`` names."""


class Calls:
    """Calls what a listener has; on a thread of its own.

    ``before_releasing_partitions`` and ``before_starting_fetchers`` are those of
    ``ConsumerRebalanceListener``; ``on_partitions_revoked``, ``on_partitions_assigned`` and
    ``on_partitions_lost`` get a set of ``TopicPartition``. Lost partitions belong to others
    already, so nothing of them can be committed; a listener without ``on_partitions_lost`` is told
    with the calls for revoked ones.
    """

    def __init__(self, listener: GroupListener, consumer_id: str) -> None:
        self._listener = listener
        self._consumer_id = consumer_id

    def revoked(self, partitions: frozenset[TopicPartition], leaving: bool = False) -> None:
        """Nothing more of these is delivered; they are about to be released.

        At shutdown the legacy call is left out, as in ZooKeeper's groups.
        """
        if leaving:
            self._call("on_partitions_revoked", partitions)
            return
        by_topic: dict[str, set[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, set()).add(tp.partition)
        self._call(
            "before_releasing_partitions",
            {topic: frozenset(found) for topic, found in by_topic.items()},
        )
        self._call("on_partitions_revoked", partitions)

    def lost(self, partitions: frozenset[TopicPartition]) -> None:
        """The group gave these away without asking."""
        if not self._call("on_partitions_lost", partitions):
            self.revoked(partitions)

    def assigned(self, assignment: Mapping[TopicPartition, ConsumerThreadId]) -> None:
        """These are about to be fetched."""
        by_topic: dict[str, dict[int, ConsumerThreadId]] = {}
        for tp, thread in assignment.items():
            by_topic.setdefault(tp.topic, {})[tp.partition] = thread
        self._call("before_starting_fetchers", self._consumer_id, by_topic)
        self._call("on_partitions_assigned", frozenset(assignment))

    def _call(self, name: str, *arguments: object) -> bool:
        method = getattr(self._listener, name, None)
        if method is None:
            return False
        method(*arguments)
        return True
