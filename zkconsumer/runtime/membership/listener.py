"""Calls the user's rebalance listener, one call at a time, on separate threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.runtime.membership.loop import Done
from zkconsumer.runtime.membership.threads import MemberThread

logger = logging.getLogger("zkconsumer.member")

GroupListener: TypeAlias = Any
"""Any object with some of the methods listed in ``ListenerCalls``."""


class ConsumerRebalanceListener(Protocol):
    """A listener that is called before partitions are released and before fetching begins.

    Its methods are called on a separate thread and may commit offsets. On the coordinator, the
    methods ``on_partitions_revoked``, ``on_partitions_assigned`` and ``on_partitions_lost`` are
    called too if the listener has them, each with a set of ``TopicPartition``. Source: Scala 1.1.1
    ConsumerRebalanceListener.
    """

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Called with the partitions, by topic, that this member is about to release. They are not
        fetched any more."""

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Called before fetching begins, with the owner of each partition by topic, as known to
        this member."""


class ListenerCalls:
    """Calls the methods of a listener, one at a time.

    ``before_releasing_partitions`` and ``before_starting_fetchers`` are those of
    ``ConsumerRebalanceListener``. With ``newer``, also ``on_partitions_revoked``,
    ``on_partitions_assigned`` and ``on_partitions_lost``, each with a set of ``TopicPartition``.
    Lost partitions already belong to other members, so their offsets cannot be committed. If the
    listener has no ``on_partitions_lost``, ``on_partitions_revoked`` is called instead.

    Args:
        listener: the user's object.
        consumer_id: this member's id.
        newer: whether to call the newer consumer's methods.
        host: runs the calls, and has the clock.
    """

    def __init__(
        self, listener: GroupListener, consumer_id: str, newer: bool, host: MemberThread
    ) -> None:
        self._listener = listener
        self._consumer_id = consumer_id
        self._newer = newer
        self._host = host
        self._lock = threading.Lock()
        self.since: float | None = None
        """When the current call began; ``None`` between calls. Written by the calling thread."""
        self.thread: int | None = None
        """The thread that runs the current call. Written by that thread."""

    def releasing(self, partitions: frozenset[TopicPartition], leaving: bool, done: Done) -> None:
        """Implement ``ListenerPort.releasing``. The legacy method is not called at shutdown, as in
        the JVM."""

        def call() -> None:
            if not leaving:
                self._call("before_releasing_partitions", _by_topic(partitions))
            if self._newer:
                self._call("on_partitions_revoked", partitions)

        self._aside(call, done)

    def lost(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """Implement ``ListenerPort.lost``."""
        if hasattr(self._listener, "on_partitions_lost"):
            self._aside(lambda: self._call("on_partitions_lost", partitions), done)
        else:
            self.releasing(partitions, False, done)

    def starting(self, assignment: Mapping[TopicPartition, ConsumerThreadId], done: Done) -> None:
        """Implement ``ListenerPort.starting``."""
        by_topic: dict[str, dict[int, ConsumerThreadId]] = {}
        for tp, thread in assignment.items():
            by_topic.setdefault(tp.topic, {})[tp.partition] = thread

        def call() -> None:
            self._call("before_starting_fetchers", self._consumer_id, by_topic)
            if self._newer:
                self._call("on_partitions_assigned", frozenset(assignment))

        self._aside(call, done)

    def _aside(self, call: Callable[[], None], done: Done) -> None:
        def work() -> None:
            with self._lock:
                self.since, self.thread = self._host.now(), threading.get_ident()
                try:
                    call()
                except BaseException as error:
                    # Without an answer the member would wait for one, registered and idle.
                    logger.warning("the rebalance listener raised", exc_info=True)
                    failed: str | None = f"the rebalance listener raised {error!r}"
                else:
                    failed = None
                finally:
                    self.since = self.thread = None
            done(failed)

        self._host.aside(work)

    def _call(self, name: str, *arguments: object) -> None:
        method = getattr(self._listener, name, None)
        if method is not None:
            method(*arguments)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, frozenset[int]]:
    by_topic: dict[str, set[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, set()).add(tp.partition)
    return {topic: frozenset(numbers) for topic, numbers in by_topic.items()}
