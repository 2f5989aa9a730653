"""Metrics of members on real servers equal the real events, also as Prometheus reads them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.groups import GroupWatch, Producer, Reader
from zkconsumer import Metrics, UsageError, ZookeeperConsumerConnector
from zkconsumer.core.common.faults import Trouble
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.states import State
from zkconsumer.errors import CommitFailedError
from zkconsumer.prometheus import ConnectorCollector, start_http_server
from zkconsumer.runtime.counters import HistogramValue
from zkconsumer.runtime.observation.metrics import Kind, declared
from zkconsumer.servers import LocalCluster, expire_session, wait_until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def config(config: dict[str, object]) -> dict[str, object]:
    """A member that commits only on demand."""
    return config | {
        "zookeeper.session.timeout.ms": 20_000,
        "auto.commit.enable": False,
        "rebalance.backoff.ms": 300,
        "fetch.wait.max.ms": 50,
        "consumer.timeout.ms": 10_000,
    }


def counters(metrics: Metrics) -> dict[str, float]:
    """Only the counters."""
    return {m.name: getattr(metrics, m.name) for m in declared() if m.kind is Kind.COUNTER}


def test_before_streams_and_after_shutdown(
    cluster: LocalCluster, config: dict[str, object], topic: str
) -> None:
    """A snapshot can be taken at any time. Before streams exist nearly all values are 0. After
    shutdown counters keep their values, and nothing is owned or connected."""
    cluster.create_topic(topic, 2)
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        producer.send(10)
    unused = ZookeeperConsumerConnector(config)
    before = unused.metrics()
    assert before == Metrics(state="NEW", zookeeper_connected=1)
    unused.shutdown()
    assert unused.metrics().state == "CLOSED"
    assert unused.metrics().zookeeper_connected == 0
    with ZookeeperConsumerConnector(config) as member:
        Reader(member.create_message_streams({topic: 1})[topic]).wait(10)
        running = member.metrics()
        assert (running.state, running.zookeeper_connected) == ("RESTING", 1)
        assert running.owned_partitions == 2
    after = member.metrics()
    assert (after.state, after.zookeeper_connected, after.owned_partitions) == ("CLOSED", 0, 0)
    assert (after.lag, after.max_lag, after.fetch_queue_chunks) == ({}, 0, 0)
    assert all(value >= counters(running)[name] for name, value in counters(after).items())
    assert counters(member.metrics()) == counters(after)


def test_values_equal_what_was_consumed(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """Messages, bytes, lag, owned partitions and commits equal the application's messages, the
    log's contents and the offsets in ZooKeeper."""
    cluster.create_topic(topic, 2)
    with (
        Producer(cluster.bootstrap, topic, (0, 1)) as producer,
        ZookeeperConsumerConnector(config | {"queued.max.message.chunks": 100}) as member,
    ):
        producer.send(40)
        stream = member.create_message_streams({topic: 1})[topic][0]
        iterator = iter(stream)
        read = {0: 0, 1: 0}
        for count in range(1, 31):
            message = next(iterator)
            read[message.partition] += 1
            assert member.metrics().messages == count
        stream.mark_consumed()

        def lag_is_right() -> bool:
            found = member.metrics()
            expected = {TopicPartition(topic, p): 20 - done for p, done in read.items()}
            return found.lag == expected and found.max_lag == max(expected.values())

        wait_until(lag_is_right, 5, "lag is log end minus consumed")
        producer.send(4)
        read = {p: done - 2 for p, done in read.items()}  # each log has two more messages
        wait_until(lag_is_right, 5, "lag grows with the log")
        for _ in range(14):
            next(iterator)
        stream.mark_consumed()
        wait_until(lambda: member.metrics().max_lag == 0, 5, "everything is consumed")
        found = member.metrics()
        assert (found.messages, found.owned_partitions, found.fetch_queue_chunks) == (44, 2, 0)
        assert found.bytes == found.fetch_bytes == log_bytes(cluster, topic)
        assert found.messages_per_second > 0
        assert found.bytes_per_second / found.messages_per_second == pytest.approx(
            found.bytes / found.messages, rel=0.5
        )
        assert found.fetch_requests >= found.fetch_seconds.count > 0
        assert found.fetch_seconds.sum >= found.fetch_seconds.count * 0.0001

        assert found.zookeeper_commits == 0
        member.commit_offsets()
        member.commit_offsets({TopicPartition(topic, 0): 22})  # unchanged: not written
        producer.send(1)
        next(iterator)
        stream.mark_consumed()
        member.commit_offsets()
        found = member.metrics()
        assert (found.zookeeper_commits, found.kafka_commits) == (3, 0)
        paths = [watch.paths.offset(TopicPartition(topic, p)) for p in (0, 1)]
        written = [watch.client.exists(path).version + 1 for path in paths]
        assert sum(written) == 3
        quiet = found.zookeeper_operations
        assert quiet > 10
        assert member.metrics().zookeeper_operations == quiet
    assert member.metrics().messages == 45
    with ZookeeperConsumerConnector(config) as member:
        member.create_message_streams({topic: 1})
        rewritten = [watch.client.exists(path).version + 1 for path in paths]
        assert rewritten == [version + 1 for version in written], "claims rewrite offsets"
        assert member.metrics().zookeeper_commits == 0, "a claim is not a commit"
    assert member.metrics().fenced_commits == member.metrics().failed_attempts == 0


def log_bytes(cluster: LocalCluster, topic: str) -> int:
    """Bytes in the topic's segments on the broker's disk."""
    directory = cluster.broker_servers[0].log.parents[1]
    logs = [path for path in directory.rglob("*.log") if path.parent.name.startswith(f"{topic}-")]
    assert len(logs) == 2
    return sum(path.stat().st_size for path in logs)


def test_rebalances(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """Each rebalance that moves partitions counts once, with its duration. A refresh without
    changes does not count. A partition that another client owns is blocked until it is released."""
    cluster.create_topic(topic, 4)
    watch.client.create(
        watch.paths.owner(TopicPartition(topic, 3)), b"else_x-0", ephemeral=True, makepath=True
    )
    settings = config | {"zkconsumer.reread.interval.ms": 150}
    with ZookeeperConsumerConnector(settings | {"consumer.id": "a"}) as one:
        one.create_message_streams({topic: 1})
        first = one.metrics()
        assert (first.owned_partitions, first.rebalances) == (3, 1)
        assert 0 < first.last_rebalance_seconds == first.rebalance_seconds < 10
        wait_until(lambda: one.metrics().blocked_partitions == 1, 5, "one is blocked")
        assert one._loop is not None
        looks = one._loop.machine.attempts
        wait_until(
            lambda: one._loop.machine.attempts > looks + 3, 10, "the member reads the group again"
        )
        assert one.metrics().rebalances == 1
        watch.client.delete(watch.paths.owner(TopicPartition(topic, 3)))
        wait_until(lambda: one.metrics().owned_partitions == 4, 5, "the partition is claimed")
        wait_until(lambda: one.metrics().rebalances == 2, 5, "the claim counts as a rebalance")
        assert one.metrics().blocked_partitions == 0
        with ZookeeperConsumerConnector(settings | {"consumer.id": "b"}) as two:
            two.create_message_streams({topic: 1})
            wait_until(
                lambda: one.metrics().rebalances == 3, 5, "the member releases two partitions"
            )
            wait_until(
                lambda: two.metrics().owned_partitions == 2, 5, "the other member claims them"
            )
            assert one.metrics().owned_partitions == 2
        wait_until(lambda: one.metrics().rebalances == 4, 5, "it takes them back")
        last = one.metrics()
        assert last.owned_partitions == 4
        assert last.rebalance_seconds > last.last_rebalance_seconds > 0


def test_faults_are_counted(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """Quarantined registrations, foreign and fenced commits, lost owners and lost sessions each
    change their own metric and no other fault metric."""
    cluster.create_topic(topic, 2)
    tps = [TopicPartition(topic, p) for p in (0, 1)]
    paths, client = watch.paths, watch.client
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        producer.send(20)
    settings = config | {"zkconsumer.reread.interval.ms": 200}
    with ZookeeperConsumerConnector(settings) as member:
        Reader(member.create_message_streams({topic: 1})[topic]).wait(20)
        member.commit_offsets(dict.fromkeys(tps, 3))

        def faults() -> tuple[int, ...]:
            found = member.metrics()
            return (
                found.quarantined_registrations,
                found.foreign_commits,
                found.fenced_commits,
                found.lost_owners,
            )

        assert faults() == (0, 0, 0, 0)
        client.create(f"{paths.ids}/hostile", b"[]")
        wait_until(lambda: faults() == (1, 0, 0, 0), 5, "it is quarantined")
        client.delete(f"{paths.ids}/hostile")
        wait_until(lambda: faults() == (0, 0, 0, 0), 5, "it is gone")

        client.set(paths.offset(tps[0]), b"4")
        member.commit_offsets(dict.fromkeys(tps, 5))
        assert faults() == (0, 1, 0, 0)

        client.delete(paths.owner(tps[1]))
        wait_until(lambda: faults() == (0, 1, 0, 1), 5, "the lost owner znode is noticed")
        wait_until(
            lambda: member.metrics().owned_partitions == 2, 5, "the owner znode is recreated"
        )

        assert member.metrics().suspended_seconds < 1
        before = member.metrics()
        expire_session(cluster.zookeeper, *member._zk._client.client_id)
        wait_until(lambda: member._zk.session_id != 0, 10, "a new session")
        wait_until(
            lambda: (
                member.metrics().owned_partitions == 2
                and member.metrics().rebalances > before.rebalances
            ),
            10,
            "it owns all again",
        )
        assert member.metrics().suspended_seconds > before.suspended_seconds
        assert faults() == (0, 1, 0, 1)


def test_fenced_commits(
    cluster: LocalCluster, watch: GroupWatch, config: dict[str, object], topic: str
) -> None:
    """A commit of a partition that another session has claimed counts once as fenced."""
    cluster.create_topic(topic, 2)
    lost, kept = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Producer(cluster.bootstrap, topic, (0, 1)) as producer:
        producer.send(20)
    with ZookeeperConsumerConnector(config) as member:
        Reader(member.create_message_streams({topic: 1})[topic]).wait(20)
        member.commit_offsets({lost: 3, kept: 3})
        claim = watch.client.transaction()
        claim.delete(watch.paths.owner(lost))
        claim.create(watch.paths.owner(lost), b"somebody-0", ephemeral=True)
        claim.set_data(watch.paths.offset(lost), b"3")
        assert not [found for found in claim.commit() if isinstance(found, Exception)]
        stored = member.metrics().zookeeper_commits
        with pytest.raises(CommitFailedError, match="owned by another member now"):
            member.commit_offsets({lost: 5, kept: 5})
        found = member.metrics()
        assert found.fenced_commits == 1
        assert found.zookeeper_commits == stored + 1
        wait_until(lambda: member.metrics().blocked_partitions == 1, 5, "it is blocked")


# -- Prometheus ---------------------------------------------------------------------------------


def scrape(url: str) -> Samples:
    """All samples of an endpoint, by name and labels."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


def parsed(text: str) -> Samples:
    """The samples of the text format. Each must appear once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def expected(member: ZookeeperConsumerConnector, metrics: Metrics) -> Samples:
    """The expected samples of one member, computed from the table."""
    base = {
        "client_id": member.config.client_id,
        "group": member.config.group_id,
        "member": member.consumer_id,
    }
    found: Samples = {}

    def tell(name: str, value: float, **more: str) -> None:
        found[f"zkconsumer_{name}", frozenset((base | more).items())] = value

    for metric in declared():
        value = getattr(metrics, metric.name)
        if metric.kind is Kind.COUNTER:
            tell(f"{metric.name}_total", value)
        elif isinstance(value, HistogramValue):
            tell(f"{metric.name}_count", value.count)
            tell(f"{metric.name}_sum", value.sum)
            for bound, count in value.buckets.items():
                tell(f"{metric.name}_bucket", count, le=str(bound))
            tell(f"{metric.name}_bucket", value.count, le="+Inf")
        elif metric.name == "lag":
            for tp, lag in value.items():
                tell("lag", lag, topic=tp.topic, partition=str(tp.partition))
        elif metric.name == "mode":
            assert value == "", "only of a migratable member"
        elif metric.name == "pause_seconds":
            assert value == {}, "only of a migratable member"
        elif metric.kind is Kind.STATE:
            for state in State:
                tell("state", float(state.name == value), state=state.name)
        else:
            tell(metric.name, value)
    health = member.health()
    for name in ("registered", "entitled", "delivering", "alive"):
        tell(name, getattr(health, name))
    tell("healthy", health.ok)
    tell("seconds_since_progress", health.seconds_since_progress or 0.0)
    wrong = {reason.trouble.label for reason in health.reasons}
    for trouble in Trouble:
        tell("unhealthy", trouble.label in wrong, reason=trouble.label)
    return found


MOVING = re.compile(
    r"zkconsumer_(lag_age|fetch_(seconds|requests)|\w+_per_second|suspended|seconds_since)"
)


def still(samples: Samples) -> Samples:
    """Without values that change from moment to moment in an idle member."""
    return {key: value for key, value in samples.items() if not MOVING.match(key[0])}


def test_scrape_of_several_connectors(
    cluster: LocalCluster, config: dict[str, object], topic: str
) -> None:
    """One endpoint exports every value of each member's snapshot, and omits members that were shut
    down. The endpoint itself uses one thread and ends on demand."""
    cluster.create_topic(topic, 4)
    with Producer(cluster.bootstrap, topic, range(4)) as producer:
        producer.send(12)
    threads = set(threading.enumerate())
    with ZookeeperConsumerConnector(config | {"consumer.id": "a"}) as one:
        mine = config | {"consumer.id": "b", "client.id": "second"}
        with ZookeeperConsumerConnector(mine) as two:
            with start_http_server([one], 0) as server:
                server.collector.add(two)
                server.collector.add(two)
                assert server.url == f"http://127.0.0.1:{server.port}/metrics"
                Reader(one.create_message_streams({topic: 1})[topic]).wait(12)
                two.create_message_streams({topic: 1})
                wait_until(
                    lambda: (
                        [m.metrics().owned_partitions for m in (one, two)] == [2, 2]
                        and [m.metrics().state for m in (one, two)] == ["RESTING"] * 2
                        and [len(m.metrics().lag) for m in (one, two)] == [2, 2]
                        and two.metrics().fetch_queue_chunks <= 2
                    ),
                    10,
                    "both have their half",
                )
                told: Samples = {}

                def agreed() -> bool:
                    nonlocal told
                    told = scrape(server.url)
                    wanted = expected(one, one.metrics()) | expected(two, two.metrics())
                    return told.keys() == wanted.keys() and still(told) == still(wanted)

                wait_until(agreed, 10, "the endpoint shows the members' values")
                assert {v for (name, _), v in told.items() if name == "zkconsumer_healthy"} == {1}
                assert sum(v for (name, _), v in told.items() if name.endswith("messages_total"))
                with pytest.raises(UsageError, match=f"port {server.port}: .*choose another"):
                    start_http_server(one, server.port)
                two.shutdown()
                assert scrape(server.url).keys() == expected(one, one.metrics()).keys()
            with pytest.raises(OSError, match="refused"):
                urllib.request.urlopen(server.url, timeout=5)
    wait_until(lambda: set(threading.enumerate()) <= threads, 10, "no thread is left")


def test_metrics_leak(cluster: LocalCluster, config: dict[str, object], topic: str) -> None:
    """MetricsTest.testMetricsLeak: cycles of create and shutdown leave the number of metrics in an
    application's own registry unchanged."""
    cluster.create_topic(topic, 1)
    registry = CollectorRegistry()
    collector = ConnectorCollector()
    registry.register(collector)

    def count() -> int:
        return len(parsed(generate_latest(registry).decode()))

    before = count()
    assert before == 0
    while_running = set()
    for _ in range(5):
        with ZookeeperConsumerConnector(config) as member:
            collector.add(member)
            member.create_message_streams({topic: 1})
            wait_until(lambda m=member: m.metrics().lag, 10, "the lag is known")
            while_running.add(count())
        assert count() == before
    assert len(while_running) == 1
    assert min(while_running) > len(declared())
    assert not collector._connectors


def test_consume_offers_metrics(
    cluster: LocalCluster, config: dict[str, object], group: str, topic: str
) -> None:
    """``zkconsumer consume --metrics-port 0`` prints the address of its metrics, and they are
    available there."""
    cluster.create_topic(topic, 1)
    with Producer(cluster.bootstrap, topic, (0,)) as producer:
        producer.send(7)
    script = "from zkconsumer.cli import main; main()"
    arguments = ["--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic]
    arguments += ["--from-beginning", "--metrics-port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, "consume", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stderr.readline().removeprefix("metrics: ").strip()
        assert url.startswith("http://127.0.0.1:")
        for _ in range(7):
            process.stdout.readline()

        def messages() -> list[float]:
            return [v for (n, _), v in scrape(url).items() if n == "zkconsumer_messages_total"]

        assert messages() == [7]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.communicate()
