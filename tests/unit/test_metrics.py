"""Metrics without servers: the table, the instruments, and the counts of streams and gate."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from prometheus_client import CollectorRegistry

from tests.support.batches import chunk
from zkconsumer import Metrics, TopicPartition
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.commands import StartFetching, StopFetching
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.groups import states as coordinator_states
from zkconsumer.core.zookeeper import commands, states as zookeeper_states
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import CLOSING, IDLE, OUTSIDE, State
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.prometheus import ConnectorCollector
from zkconsumer.runtime.counters import FetchCounts, Histogram, Meter, RebalanceCounts
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import CLOCK, DeliveryGate
from zkconsumer.runtime.observation.metrics import Kind, declared
from zkconsumer.runtime.observation.metrics_snapshot import of_member
from zkconsumer.servers import wait_until

JVM_NAMES = {
    "kafka.consumer:type=ZookeeperConsumerConnector,name=FetchQueueSize",
    "kafka.consumer:type=ZookeeperConsumerConnector,name=KafkaCommitsPerSec",
    "kafka.consumer:type=ZookeeperConsumerConnector,name=ZooKeeperCommitsPerSec",
    "kafka.consumer:type=ZookeeperConsumerConnector,name=RebalanceRateAndTime",
    "kafka.consumer:type=ZookeeperConsumerConnector,name=OwnedPartitionsCount",
    "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag",
    "kafka.server:type=FetcherLagMetrics,name=ConsumerLag",
    "kafka.consumer:type=ConsumerTopicMetrics,name=MessagesPerSec",
    "kafka.consumer:type=ConsumerTopicMetrics,name=BytesPerSec",
    "kafka.server:type=FetcherStats,name=BytesPerSec",
    "kafka.server:type=FetcherStats,name=RequestsPerSec",
    "kafka.consumer:type=FetchRequestAndResponseMetrics,name=FetchRequestRateAndTimeMs",
}
"""``consumerMetricNameList`` of Scala 1.1.1, without three that have no counterpart."""


class Clock:
    """A clock in seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_metric_is_declared_once_and_in_full() -> None:
    """Every field of the snapshot has kind, unit and meaning. Counters start at 0. Together the
    fields cover all of the JVM's consumer metrics that have a counterpart."""
    table = declared()
    assert [metric.name for metric in table] == [f.name for f in dataclasses.fields(Metrics)]
    assert {metric.jvm for metric in table if metric.jvm} == JVM_NAMES
    start = Metrics()
    for metric in table:
        assert metric.unit
        assert metric.meaning.endswith((".", ".)"))
        assert "`" not in metric.help
        assert "](" not in metric.help
        if metric.kind is Kind.COUNTER:
            assert getattr(start, metric.name) == 0


def test_as_dict_is_flat() -> None:
    """The flat form is JSON and has every number."""
    seconds = Histogram((1.0, 2.0))
    seconds.add(1.5)
    metrics = Metrics(
        messages=3, lag={TopicPartition("a-b", 7): 5}, fetch_seconds=seconds.value, state="NEW"
    )
    flat = json.loads(json.dumps(metrics.as_dict()))
    assert flat["messages"] == 3
    assert flat["lag.a-b-7"] == 5
    assert flat["fetch_seconds.count"] == 1
    assert flat["fetch_seconds.sum"] == 1.5
    assert flat["state"] == "NEW"


@pytest.mark.parametrize("seed", range(5))
def test_one_minute_rate(seed: int) -> None:
    """A steady flow gives its rate from the start, whatever the times of the samples. After its end
    the rate falls by e each minute. After a change it covers 1 - 1/e of the way in a minute."""
    rng = random.Random(seed)
    clock = Clock()
    total = 0.0
    meter = Meter(lambda: total, clock)  # type: ignore[arg-type, return-value]
    assert meter.rate() == 0.0

    def flow(rate: float, seconds: float) -> None:
        nonlocal total
        end = clock.now + seconds
        while clock.now < end:
            step = min(rng.uniform(0.1, 7.0), end - clock.now)
            clock.now += step
            total += rate * step
            meter.rate()

    flow(50.0, 10.0)
    assert meter.rate() == pytest.approx(50.0)
    flow(50.0, 1200.0)
    assert meter.rate() == pytest.approx(50.0)
    flow(100.0, 60.0)
    assert meter.rate() == pytest.approx(100 - 50 / math.e, rel=1e-3)
    flow(100.0, 1200.0)
    flow(0.0, 120.0)
    assert meter.rate() == pytest.approx(100 / math.e**2, rel=1e-3)
    assert meter.rate() == meter.rate()
    assert meter.total == total


def test_histogram() -> None:
    """Buckets count values up to their bound. Values above the last bound are only in count."""
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    assert histogram.value.buckets == {0.1: 2, 1.0: 3}
    assert histogram.value.count == 4
    assert histogram.value.sum == pytest.approx(7.65)


def test_rebalances_are_those_that_move_partitions() -> None:
    """A run from the first look until the member is stable counts, with all its pauses, if
    partitions were stopped or started in it. A look that changes nothing does not count, nor one
    that a lost session or the end interrupts."""
    clock = Clock()
    counts = RebalanceCounts(IDLE, OUTSIDE | CLOSING, {State.REGISTERING}, clock)

    def step(state: State, *following: commands.Command, seconds: float = 1.0) -> None:
        counts.stepped(state, following)
        clock.now += seconds

    start = StartFetching(1, {})
    step(State.REGISTERING)
    step(State.VIEWING)
    step(State.CLAIMING)
    step(State.BACKING_OFF, seconds=5.0)
    step(State.VIEWING)
    step(State.STARTING, start)
    step(State.RESTING, seconds=100.0)
    assert (counts.count, counts.seconds) == (1, 9.0)
    step(State.VIEWING)
    step(State.RESTING)
    assert counts.count == 1
    step(State.STOPPING, StopFetching(2, frozenset()))
    step(State.FAILED)
    assert (counts.count, counts.seconds) == (2, 10.0)
    assert counts.last_seconds == 1.0
    for cut in (State.SESSIONLESS, State.CLOSING_STOP):
        step(State.STARTING, start)
        step(cut, StopFetching(3, frozenset()))
        step(State.VIEWING)
        step(State.RESTING)
    assert counts.count == 2


@pytest.mark.parametrize("several", [False, True])
def test_every_state_of_either_machine_is_a_prometheus_sample(
    member: ZookeeperConsumerConnector | CoordinatorConsumerConnector, several: bool
) -> None:
    """A member of either coordination is exported. Each state of its machine is a sample, and one
    of them is 1. A member on the brokers has no sample for a connection to ZooKeeper."""
    registry = CollectorRegistry()
    collector = ConnectorCollector([] if several else [member])
    registry.register(collector)
    if several:
        collector.add(member)
    labels = {"client_id": member.config.client_id, "group": "g", "member": member.consumer_id}
    zookeeper = isinstance(member, ZookeeperConsumerConnector)
    states = {state.name for state in (zookeeper_states if zookeeper else coordinator_states).State}
    settled = "RESTING" if zookeeper else "STABLE"

    def told() -> dict[str, float | None]:
        name = "zkconsumer_state"
        return {s: registry.get_sample_value(name, {**labels, "state": s}) for s in states}

    assert told() == dict.fromkeys(states, 0.0) | {"NEW": 1.0}
    member.create_message_streams({"t": 1})
    wait_until(lambda: told()[settled], 10, "the member has settled")
    assert told() == dict.fromkeys(states, 0.0) | {settled: 1.0}
    assert registry.get_sample_value("zkconsumer_owned_partitions", labels) == 1
    connected = registry.get_sample_value("zkconsumer_zookeeper_connected", labels)
    assert connected == (1 if zookeeper else None)
    fenced = registry.get_sample_value("zkconsumer_fenced_commits_total", labels)
    assert fenced == (0 if zookeeper else None)
    member.shutdown()
    assert set(told().values()) == {None}


@pytest.mark.parametrize("scala", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_streams_count_what_they_hand_out(seed: int, scala: bool) -> None:
    """The calls, revokes and the end happen in random order. ``delivered`` is the number of
    returned messages, and ``bytes_begun`` counts each started chunk once."""
    rng = random.Random(seed)
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    stream = KafkaStream((ScalaReader if scala else Reader)(gate, queue_capacity=3, timeout_ms=0))
    iterator = iter(stream)
    infos = [PartitionTopicInfo("t", p, 0) for p in range(3)]
    ends = [0, 0, 0]
    got = most = 0
    for _ in range(300):
        action = rng.choices(("put", "next", "try_next", "mark", "revoke"), (3, 12, 4, 1, 1))[0]
        try:
            if action == "put" and not stream._reader.queue.full:
                p, count = rng.randrange(3), rng.randint(1, 9)
                added = chunk(infos[p], ends[p], ends[p] + count - 1)
                ends[p] += count
                most += len(added.data)
                stream._reader.queue.put(added)
            elif action == "next":
                next(iterator)
                got += 1
            elif action == "try_next":
                got += stream.try_next() is not None
            elif action == "mark":
                stream.mark_consumed()
            elif action == "revoke":
                p = rng.randrange(3)
                stream._reader.revoke([infos[p]])
                infos[p], ends[p] = PartitionTopicInfo("t", p, 0), 0
        except ConsumerTimeoutError:
            pass
        assert stream._reader.delivered == got
    stream._reader.shutdown()
    assert stream._reader.delivered == got
    got += sum(1 for _ in iterator)  # the scala profile finishes the started chunk
    assert stream._reader.delivered == got > 100
    assert 0 < stream._reader.bytes_begun <= most


def test_bytes_begun_is_the_sum_of_the_chunks_read() -> None:
    """A chunk counts in full when its first message is requested, and not before."""
    gate = DeliveryGate(always_open=True)
    stream = KafkaStream(Reader(gate, timeout_ms=0))
    info = PartitionTopicInfo("t", 0, 0)
    first, second = chunk(info, 0, 4), chunk(info, 5, 11)
    stream._reader.queue.put(first)
    stream._reader.queue.put(second)
    assert stream._reader.bytes_begun == 0
    iterator = iter(stream)
    for _ in range(5):
        next(iterator)
    assert stream._reader.bytes_begun == len(first.data)
    next(iterator)
    assert stream._reader.bytes_begun == len(first.data) + len(second.data)


def test_quarantined_topics_and_brokers_are_no_registrations() -> None:
    """A member leaves out any znode that it cannot read."""
    spec = MemberSpec(GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    machine = RebalanceMachine(spec)
    machine.quarantined = {
        "/consumers/g/ids/g_x": "is not JSON",
        "/brokers/topics/t": "is not JSON",
        "/brokers/ids/1": "is not JSON",
    }
    loop: Any = SimpleNamespace(
        reports=Counter(), closed=Future(), rebalances=RebalanceCounts((), (), ())
    )
    plane = DataPlane(MagicMock(counts=FetchCounts()), {}, 0.0, MagicMock())
    found = of_member(MagicMock(), DeliveryGate(), loop, machine, MagicMock(), plane, 0)
    assert found.quarantined_registrations == 1


def test_suspended_time_ends_with_the_gate() -> None:
    """Time after the end is not a suspension. An ended gate cannot be opened."""
    gate = DeliveryGate()
    gate.extend(time.clock_gettime(CLOCK) + 3600)
    gate.end()
    first = gate.suspended_seconds
    gate.extend(time.clock_gettime(CLOCK) + 7200)
    gate.end()
    assert not gate.is_open
    assert gate.suspended_seconds == first < 1.0
    closed = DeliveryGate()
    closed.extend(time.clock_gettime(CLOCK) + 3600)
    closed.close()
    at = closed.suspended_seconds
    closed.end()
    assert closed.suspended_seconds == closed.suspended_seconds >= at


def test_a_missing_library_is_named() -> None:
    """Without prometheus_client the module can be imported. Using it says what to install."""
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from zkconsumer.errors import UsageError\n"
        "from zkconsumer.prometheus import ConnectorCollector, start_http_server\n"
        "for use in (ConnectorCollector, lambda: start_http_server([], 0)):\n"
        "    try: use()\n"
        "    except UsageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    line = "Prometheus metrics need prometheus_client: in a clone run pip install '.[prometheus]'\n"
    assert done.stdout == 2 * line
