"""The leader finder as steps (Scala: LeaderFinderThread): choose, ask, take.

It asks one broker about all partitions without a leader (a request that never creates a topic),
another one if that fails, and assigns each partition to its leader's worker. A partition that has
no leader is asked for again after ``refresh.leader.backoff.ms``. No step blocks. One thread at a
time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.fetch.events import FetchEvent, FetchEventKind, OnEvent
from zkconsumer.runtime.fetch.requests import LeadersRequest, Wait
from zkconsumer.runtime.fetch.table import FetchTable
from zkconsumer.runtime.partition_info import PartitionTopicInfo

_log = logging.getLogger(__name__)


class LeaderFinder:
    """Finds a broker for every partition in the table that has none.

    Args:
        table: the partitions and brokers.
        backoff: seconds.
        report: called with every ``FetchEvent``, without locks.
        clock: the present time in seconds, as for ``FetchTable``.
        rng: chooses the broker to ask.
    """

    def __init__(
        self,
        table: FetchTable,
        backoff: float,
        report: OnEvent,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._table = table
        self._backoff = backoff
        self._report = report
        self._clock = clock
        self._rng = rng
        self._answered_last: BrokerEndpoint | None = None
        self._failed: set[BrokerEndpoint] = set()
        """Brokers that have been asked since the last answer, in vain."""

    def choose(self) -> LeadersRequest | Wait:
        """Return the next action."""
        now = self._clock()
        infos, again = self._table.due(now)
        brokers = list(self._table.brokers.values())
        if not (infos and brokers):
            self._failed.clear()
            return Wait(None if again is None else again - now)
        untried = [broker for broker in brokers if broker not in self._failed] or brokers
        last = self._answered_last
        return LeadersRequest(last if last in untried else self._rng.choice(untried), infos)

    def take(self, request: LeadersRequest, answer: ClusterMetadata) -> None:
        """Assign the partitions that have a leader; postpone the others."""
        self._failed.clear()
        self._answered_last = request.endpoint
        brokers = self._table.brokers
        found: dict[PartitionTopicInfo, BrokerEndpoint] = {}
        lacking: list[PartitionTopicInfo] = []
        for info in request.infos:
            leader = answer.leaders.get(info.topic_partition, -1)
            # What ZooKeeper says about where a broker listens goes before the broker's own answer.
            endpoint = brokers.get(leader) or answer.brokers.get(leader)
            if endpoint is None:
                lacking.append(info)
            else:
                found[info] = endpoint
        for topic, error in answer.errors.items():
            _log.debug("no leaders for %s: %s", topic, error)
        self._postpone(lacking)
        for info in self._table.assign(found):
            tp, broker = info.topic_partition, found[info].broker_id
            detail = f"{tp} is fetched from broker {broker}"
            self._report(FetchEvent(FetchEventKind.LEADER_FOUND, tp, broker, detail))

    def fail(self, request: LeadersRequest, error: BrokerError) -> None:
        """Ask another broker next time; wait when all have failed."""
        _log.debug("metadata: %s", error)
        self._failed.add(request.endpoint)
        if self._failed.issuperset(self._table.brokers.values()):
            self._failed.clear()
            self._postpone(request.infos)
            self._report(FetchEvent(FetchEventKind.METADATA_FAILED, None, None, str(error)))

    def _postpone(self, infos: Collection[PartitionTopicInfo]) -> None:
        self._table.postpone(infos, self._clock() + self._backoff)
