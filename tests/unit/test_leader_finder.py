"""The leader finder, step by step: which broker it asks, and how long it waits."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.runtime.delivery.chunks import ChunkQueue, PartitionTopicInfo
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind, LeadersRequest, Wait
from zkconsumer.runtime.fetch.leaders import LeaderFinder
from zkconsumer.runtime.fetch.table import FetchTable, WorkerKey

BROKERS = [BrokerEndpoint(n, "127.0.0.1", 9092 + n) for n in range(3)]
BACKOFF = 0.2


class Bench:
    """Three brokers, and a partition without a leader."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[FetchEvent] = []
        self.table = FetchTable(1)
        self.table.set_brokers(BROKERS)
        self.info = PartitionTopicInfo("t", 0, 0)
        self.table.add({self.info: ChunkQueue(1, threading.Lock())})
        config: Any = SimpleNamespace(profile="default", refresh_leader_backoff_ms=1000 * BACKOFF)
        self.finder = LeaderFinder(
            self.table, config, self.events.append, lambda: self.now, random.Random(0)
        )

    def choose(self) -> LeadersRequest:
        """Return the next step, which asks a broker."""
        chosen = self.finder.choose()
        assert isinstance(chosen, LeadersRequest)
        return chosen

    def waits(self) -> None:
        """The finder waits for the backoff, and then asks again. New brokers end the wait."""
        assert self.finder.choose() == Wait(pytest.approx(BACKOFF))
        self.table.set_brokers(BROKERS)
        self.choose()


def test_all_brokers_are_asked_before_it_waits() -> None:
    """A broker that does not answer causes no backoff while there are others."""
    bench = Bench()
    asked = set()
    for _ in BROKERS:
        assert not bench.events
        request = bench.choose()
        asked.add(request.endpoint)
        bench.finder.fail(request, BrokerUnavailableError("silent"))
    assert asked == set(BROKERS)
    assert [event.kind for event in bench.events] == [FetchEventKind.METADATA_FAILED]
    bench.waits()


def test_a_partition_without_a_leader_is_asked_for_after_the_backoff() -> None:
    """It is not asked for as fast as the broker answers."""
    bench = Bench()
    bench.finder.take(bench.choose(), ClusterMetadata({}, {}, {}))
    bench.waits()


def test_a_partition_is_assigned_to_the_worker_of_its_leader() -> None:
    """If two addresses differ, the one in ZooKeeper is used."""
    bench = Bench()
    elsewhere = BrokerEndpoint(1, "old", 1)
    answer = ClusterMetadata({1: elsewhere}, {bench.info.topic_partition: 1}, {})
    bench.finder.take(bench.choose(), answer)
    work = bench.table.work(WorkerKey(1, 0), also_full=False)
    assert work is not None
    assert (work.endpoint, [state.info for state in work.states]) == (BROKERS[1], [bench.info])
    assert bench.finder.choose() == Wait(None)


def test_a_broker_whose_answer_was_wrong_is_not_asked_first_again() -> None:
    """One of three brokers names a leader that refuses, again and again. The others know better."""
    bench = Bench()
    asked: list[BrokerEndpoint] = []
    stale = bench.choose().endpoint
    for _ in range(10):
        request = bench.choose()
        asked.append(request.endpoint)
        leader = 0 if request.endpoint == stale else 1
        answer = ClusterMetadata({}, {bench.info.topic_partition: leader}, {})
        bench.finder.take(request, answer)
        work = bench.table.work(WorkerKey(leader, 0), also_full=False)
        assert work is not None
        if leader == 1:
            break
        bench.table.mark_failed(WorkerKey(0, 0), list(work.states), bench.now)
    assert asked.count(stale) == 1
    assert len(asked) == 2


def test_one_of_several_brokers_has_a_moment_to_take_a_connection() -> None:
    """Until all have failed: the network may be slow. A single broker has all the time."""
    bench = Bench()
    quick = []
    for _ in range(4):
        request = bench.choose()
        quick.append(request.quick)
        bench.finder.fail(request, BrokerError("no connection"))
        bench.now += BACKOFF
    assert quick == [True] * len(BROKERS) + [False] * (4 - len(BROKERS))
    bench.finder.take(bench.choose(), ClusterMetadata({}, {}, {}))
    bench.now += BACKOFF
    assert bench.choose().quick
    bench.table.set_brokers([BROKERS[0]])
    assert not bench.choose().quick


def test_a_topic_that_a_broker_does_not_know_is_asked_for_at_another() -> None:
    """And the partition keeps the error, for the health."""
    bench = Bench()
    first = bench.choose()
    error = BrokerError("topic t: UNKNOWN_TOPIC_OR_PARTITION (3)")
    bench.finder.take(first, ClusterMetadata({}, {}, {"t": error}))
    assert str(bench.info.fault) == str(error)
    assert [(one.kind, one.detail) for one in bench.events] == [
        (FetchEventKind.METADATA_FAILED, str(error))
    ]
    bench.now += BACKOFF
    assert bench.choose().endpoint != first.endpoint


def test_leaders_are_compared_when_the_table_wants_it() -> None:
    """A broker that is cut off from its cluster answers fetches without an error. If another one
    names another leader, a third is asked, and that answer counts."""
    bench = Bench()
    tp = bench.info.topic_partition
    bench.finder.take(bench.choose(), ClusterMetadata({}, {tp: 1}, {}))
    assert bench.finder.choose() == Wait(None)
    for leader in (1, -1):  # the same leader, and a broker that knows none
        bench.table.check_leaders()
        check = bench.choose()
        assert check.check
        bench.finder.take(check, ClusterMetadata({}, {tp: leader}, {}))
        assert bench.finder.choose() == Wait(None)
    bench.table.check_leaders()
    bench.finder.fail(bench.choose(), BrokerUnavailableError("silent"))
    assert bench.finder.choose() == Wait(None)
    bench.table.check_leaders()
    check = bench.choose()
    bench.finder.take(check, ClusterMetadata({}, {tp: 2}, {}))
    assert bench.events[-1].kind is FetchEventKind.LEADER_LOST
    assert "names 2" in bench.events[-1].detail
    again = bench.choose()
    assert not again.check
    assert again.endpoint != check.endpoint
