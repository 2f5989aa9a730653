"""The leader finder as steps (Scala: LeaderFinderThread): choose, ask, take.

It asks one broker about all partitions without a leader (a request that never creates a topic),
another broker if that fails or the answer turns out to be wrong, and assigns each partition to its
leader's worker. For a partition without a leader, it asks again after
``refresh.leader.backoff.ms``. If the table requires a check of the leaders, it compares them with
the answer of any broker, because a broker that is cut off from its cluster answers fetches without
an error. No step blocks. One thread at a time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.config.keys import ConsumerKeys
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import (
    FetchEvent,
    FetchEventKind,
    LeadersRequest,
    OnEvent,
    Wait,
)
from zkconsumer.runtime.fetch.table import FetchTable
from zkconsumer.runtime.fetch.worker import follows_epochs

_log = logging.getLogger(__name__)


class LeaderFinder:
    """Finds a broker for every partition in the table that has none.

    Args:
        table: the partitions and brokers.
        config: the member's configuration.
        report: called with every ``FetchEvent``, without locks.
        clock: the current time in seconds, as for ``FetchTable``.
        rng: chooses the broker to ask.
    """

    def __init__(
        self,
        table: FetchTable,
        config: ConsumerKeys,
        report: OnEvent,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._table = table
        self._backoff = config.refresh_leader_backoff_ms / 1000
        self._follows_epochs = follows_epochs(config)
        self._report = report
        self._clock = clock
        self._rng = rng
        self._answered_last: BrokerEndpoint | None = None
        self._failed: set[BrokerEndpoint] = set()
        """Brokers that have failed to answer since the last answer."""
        self._all_failed = False
        """Whether no broker answered. Then no short timeout is used, as the network may be slow."""

    def choose(self) -> LeadersRequest | Wait:
        """Return the next action."""
        now = self._clock()
        infos, again = self._table.due(now)
        brokers = list(self._table.brokers.values())
        if not (infos and brokers):
            self._failed.clear()
            checked = self._table.take_check() if brokers else ()
            if checked:
                return LeadersRequest(self._rng.choice(brokers), checked, check=True)
            return Wait(None if again is None else again - now)
        untried = [broker for broker in brokers if broker not in self._failed] or brokers
        # An error has contradicted the last answer about these partitions.
        doubted = {info.leader_from for info in infos}
        doubted.update(*(info.epochs.older_from for info in infos if info.epochs))
        fresh = [broker for broker in untried if broker not in doubted] or untried
        last = self._answered_last
        broker = last if last in fresh else self._rng.choice(fresh)
        return LeadersRequest(broker, infos, quick=len(brokers) > 1 and not self._all_failed)

    def take(self, request: LeadersRequest, answer: ClusterMetadata) -> None:
        """Assign the partitions that have a leader; postpone the others."""
        if request.check:
            self._compare(request, answer)
            return
        self._failed.clear()
        self._all_failed = False
        self._answered_last = request.endpoint
        brokers = self._table.brokers
        leaders: dict[PartitionTopicInfo, BrokerEndpoint] = {}
        lacking: dict[PartitionTopicInfo, str] = {}
        for info in request.infos:
            info.leader_from = request.endpoint
            leader = answer.leaders.get(info.topic_partition, -1)
            # What ZooKeeper says about where a broker listens goes before the broker's own answer.
            endpoint = brokers.get(leader) or answer.brokers.get(leader)
            tp = info.topic_partition
            why = str(answer.errors.get(info.topic, f"{tp} has no leader"))
            if self._follows_epochs and endpoint is not None and answer.epochs.get(tp, -1) >= 0:
                from zkconsumer.broker.fetching.epochs import PartitionEpochs

                known = info.epochs = info.epochs or PartitionEpochs()
                doubt = known.why_not_believed(tp, answer, request.endpoint, brokers.values())
                endpoint, why = (endpoint, why) if doubt is None else (None, doubt)
            if endpoint is None:
                lacking[info] = why
            else:
                leaders[info] = endpoint
        self._postpone(lacking)
        for info, why in lacking.items():
            tp = info.topic_partition
            info.failed(why)
            broker = request.endpoint.broker_id
            self._report(FetchEvent(FetchEventKind.METADATA_FAILED, tp, broker, why))
        for info in self._table.assign(leaders):
            tp, broker = info.topic_partition, leaders[info].broker_id
            detail = f"{tp} is fetched from broker {broker}"
            self._report(FetchEvent(FetchEventKind.LEADER_FOUND, tp, broker, detail))

    def _compare(self, request: LeadersRequest, answer: ClusterMetadata) -> None:
        """Invalidate partitions that are fetched from another broker than this answer names.
        This answer may be wrong, so its broker is not asked first next time."""
        named = {
            info: leader
            for info in request.infos
            if (leader := answer.leaders.get(info.topic_partition, -1)) >= 0
        }
        other = {i for i in named if i.epochs and i.epochs.is_another_topic(i.topic, answer)}
        named |= dict.fromkeys(other, -1)
        for info, before in self._table.contradict(named):
            info.leader_from = request.endpoint
            tp, broker = info.topic_partition, request.endpoint.broker_id
            detail = f"{tp} is fetched from broker {before}; broker {broker} names {named[info]}"
            if info in other:
                detail = f"broker {broker}: {info.topic} has another topic id"
            self._report(FetchEvent(FetchEventKind.LEADER_LOST, tp, before, detail))

    def fail(self, request: LeadersRequest, error: BrokerError) -> None:
        """Ask another broker next time, and wait when all have failed."""
        _log.debug("metadata: %s", error)
        if request.check:
            return
        self._failed.add(request.endpoint)
        if self._failed.issuperset(self._table.brokers.values()):
            self._failed.clear()
            self._all_failed = True
            self._postpone(request.infos)
            for info in request.infos:
                info.failed(str(error))
            self._report(FetchEvent(FetchEventKind.METADATA_FAILED, None, None, str(error)))

    def _postpone(self, infos: Collection[PartitionTopicInfo]) -> None:
        self._table.postpone(infos, self._clock() + self._backoff)
