"""Every message format and codec from brokers of every version."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest
from kafka import KafkaProducer

from zkconsumer.broker.api_versions import FETCH, METADATA, supported_versions
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching.fetch import BrokerFetcher, FetchSession
from zkconsumer.broker.fetching.records import TimestampType
from zkconsumer.broker.types import Want
from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import (
    BrokerUnavailableError,
    ConsumerTimeoutError,
    MessageSizeTooLargeError,
)
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
# line, version that kafka-python uses for the broker, message formats, codecs, highest fetch
LINES = {
    "3.9": (None, {2: {}}, CODECS),
    "1.1": (
        (1, 1),
        {
            0: {"message.format.version": "0.9.0"},
            1: {"message.format.version": "0.10.2"},
            2: {"message.format.version": "1.1"},
        },
        CODECS[:4],
    ),
    "0.9": ((0, 9), {0: {}}, CODECS[:3]),
    "0.8.2": ((0, 8, 2), {0: {}}, CODECS[:3]),
}
OLD = ("0.9", "0.8.2")
"""Brokers without ApiVersions, which fetch with version 0."""
COUNT = 120


@pytest.fixture(scope="module", params=list(LINES))
def line(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalCluster]]:
    """One cluster of each line of Kafka."""
    if request.param == "3.9":
        yield "3.9", request.getfixturevalue("cluster")
        return
    with LocalCluster(request.param, properties={"auto.create.topics.enable": "true"}) as running:
        yield request.param, running


def endpoint(cluster: LocalCluster) -> BrokerEndpoint:
    """The only broker."""
    return BrokerEndpoint(0, "127.0.0.1", cluster.broker_servers[0].port)


def consume(
    cluster: LocalCluster, topics: list[str], timeout_ms: int = 10_000, **keys: object
) -> tuple[ConsumerFetcherManager, KafkaStream]:
    """Fetch partition 0 of the topics from their start into one stream."""
    mapping = {"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "auto.offset.reset": "smallest"}
    config = ConsumerConfig.parse(
        mapping | {name.replace("_", "."): value for name, value in keys.items()}
    )
    target = KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=timeout_ms))
    manager = ConsumerFetcherManager(config, "c")
    manager.set_brokers([endpoint(cluster)])
    manager.start({PartitionTopicInfo(topic, 0, None): target._reader.queue for topic in topics})
    return manager, target


def test_all_codecs_and_formats(line: tuple[str, LocalCluster], unique: str) -> None:
    """Messages from kafka-python are delivered unchanged: offsets, keys, values, nulls, times."""
    name, cluster = line
    version, formats, codecs = LINES[name]
    cases = {
        f"{unique}-{fmt}-{codec}": (fmt, codec) for fmt, codec in itertools.product(formats, codecs)
    }
    items = [
        (
            None if i % 7 == 1 else b"k%d" % i,
            None if i % 11 == 0 and i % 7 != 1 else b"v%d" % i * (i % 40),
        )
        for i in range(COUNT)
    ]
    for topic, (fmt, codec) in cases.items():
        cluster.create_topic(topic, config=formats[fmt])
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            api_version=version,
            compression_type=codec,
            linger_ms=50,
            acks=1,
        )
        sent = [
            producer.send(
                topic, value, key, partition=0, timestamp_ms=1_700_000_000_000 + i if fmt else None
            )
            for i, (key, value) in enumerate(items)
        ]
        producer.flush(30)
        assert [future.get(30).offset for future in sent] == list(range(COUNT))
        producer.close(10)
    manager, target = consume(cluster, list(cases))
    try:
        got: dict[str, list[tuple[bytes | None, bytes | None]]] = {topic: [] for topic in cases}
        for _ in range(COUNT * len(cases)):
            message = next(iter(target))
            assert message.offset == len(got[message.topic])
            got[message.topic].append((message.key, message.value))
            if cases[message.topic][0]:
                assert message.timestamp == 1_700_000_000_000 + message.offset
                assert message.timestamp_type is TimestampType.CREATE_TIME
            else:
                assert message.timestamp == -1
                assert message.timestamp_type is TimestampType.NONE
        assert got == dict.fromkeys(cases, items)
    finally:
        manager.shutdown()


def test_brokers_without_transactions_refuse_read_committed(
    line: tuple[str, LocalCluster], unique: str
) -> None:
    """The partition's fault names the key, the version of Kafka that it needs, and the broker.
    Other brokers deliver messages outside of transactions."""
    name, cluster = line
    cluster.create_topic(unique)
    manager, target = consume(cluster, [], isolation_level="read_committed")
    info = PartitionTopicInfo(unique, 0, None)
    try:
        manager.start({info: target._reader.queue})
        if name in OLD:
            wait_until(lambda: info.fault, 20, "it is refused")
            assert str(info.fault).startswith(
                "isolation.level=read_committed needs Kafka 0.11 or later: broker 0 at 127.0.0.1:"
            )
        else:
            send(cluster.bootstrap, unique, [(None, b"v")])
            assert next(iter(target)).value == b"v"
    finally:
        manager.shutdown()


def test_generation_is_detected(line: tuple[str, LocalCluster]) -> None:
    """A broker without ApiVersions is recognised: 0.8.2 closes the connection, 0.9 does not answer.
    Other brokers get the newest version that both sides know."""
    name, cluster = line
    connection = BrokerConnection(endpoint(cluster), "c", 10, 65536)
    try:
        assert connection.version(FETCH, 10, 4, 3, 2, 0) == {"3.9": 10, "1.1": 4}.get(name, 0)
        assert connection.version(METADATA, 4, 0) == {"3.9": 4, "1.1": 4}.get(name, 0)
    finally:
        connection.close()


def test_a_broken_connection_says_nothing_of_a_broker_s_age(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a connection ends while the member asks for versions, the member connects and asks
    again."""
    asked: list[BrokerConnection] = []

    def breaking(connection: BrokerConnection) -> Mapping[int, range] | None:
        asked.append(connection)
        if len(asked) == 1:
            raise BrokerUnavailableError("broken") from ConnectionResetError()
        return supported_versions(connection)

    monkeypatch.setattr("zkconsumer.broker.connection.supported_versions", breaking)
    connection = BrokerConnection(endpoint(cluster), "c", 10, 65536)
    try:
        assert connection.version(FETCH, 10, 0) == 10
        assert len(asked) == 2
    finally:
        connection.close()


def test_message_larger_than_the_fetch_size(line: tuple[str, LocalCluster], unique: str) -> None:
    """Newer brokers send the message whole. Old ones send its head, and the iterator reports this
    once."""
    name, cluster = line
    cluster.create_topic(unique)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, api_version=LINES[name][0])
    producer.send(unique, b"small", partition=0).get(30)
    producer.send(unique, b"x" * 200_000, partition=0).get(30)
    producer.send(unique, b"after", partition=0).get(30)
    producer.close(10)
    manager, target = consume(cluster, [unique], fetch_message_max_bytes=1000)
    try:
        assert next(iter(target)).value == b"small"
        if name in OLD:
            with pytest.raises(MessageSizeTooLargeError, match="offset 1 "):
                next(iter(target))
            assert not manager.requests_to(endpoint(cluster))
        else:
            assert len(next(iter(target)).value) == 200_000
            assert next(iter(target)).value == b"after"
    finally:
        manager.shutdown()


def test_unknown_topic_is_not_created(line: tuple[str, LocalCluster], unique: str) -> None:
    """Fetching a topic that does not exist does not create it on any broker version."""
    _, cluster = line
    manager, target = consume(cluster, [unique], timeout_ms=700, refresh_leader_backoff_ms=20)
    with pytest.raises(ConsumerTimeoutError):
        next(iter(target))
    manager.shutdown()
    cluster.create_topic(unique)  # raises if it exists


def test_a_session_names_only_what_has_changed(
    line: tuple[str, LocalCluster], unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On brokers of 1.1 and later, the second request lists no partitions and a response lists only
    new data. A session that the broker does not know is replaced at once. Older brokers get full
    requests."""
    name, cluster = line
    cluster.create_topic(unique, partitions=3)
    connection = BrokerConnection(endpoint(cluster), "test", 10.0, -1)
    sizes: list[int] = []
    exchange = connection.exchange

    def counted(api_key: int, version: int, body: bytes) -> memoryview:
        if api_key == FETCH:
            sizes.append(len(body))
        return exchange(api_key, version, body)

    monkeypatch.setattr(connection, "exchange", counted)
    session = FetchSession()
    fetcher = BrokerFetcher(connection, session)
    wanted = [Want(unique, number, 0, 1000) for number in range(3)]
    assert len(fetcher.fetch(wanted, 100, 1, 10_000)) == 3
    again = fetcher.fetch(wanted, 100, 1, 10_000)
    if name in OLD:
        assert len(again) == 3
        assert sizes[0] == sizes[1]
        return
    assert again == []
    assert sizes[1] < sizes[0] - 3 * 20
    send(cluster.bootstrap, unique, [(None, b"x")])
    (got,) = fetcher.fetch(wanted, 5000, 1, 10_000)
    assert got.data
    moved = [want._replace(offset=want.partition == got.partition) for want in wanted]
    assert fetcher.fetch(moved, 100, 1, 10_000) == []
    session._epoch += 5  # as after lost responses
    assert len(fetcher.fetch(moved, 100, 1, 10_000)) == 3
    assert fetcher.fetch(moved[:2], 100, 1, 10_000) == []
    connection.close()
