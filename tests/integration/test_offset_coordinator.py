"""Offsets in Kafka without membership. ``test_cluster`` reads them on every line of Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from tests.integration.kafka_offsets import KafkaOffsets, kafka_offsets
from zkconsumer.broker.api_versions import OFFSET_FETCH
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import FetchedOffsets, StoredOffset, fetch_offsets
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import LeaderUnavailableError
from zkconsumer.servers import LocalCluster

TPS = [TopicPartition("orders", partition) for partition in range(3)]


def test_refusals_name_the_partition(cluster: LocalCluster, group: str) -> None:
    """If the broker refuses one partition, the error names it, and the others are reported as
    stored."""
    offsets = kafka_offsets(cluster, group)
    cluster.create_topic(group, 1)
    good, bad = TopicPartition(group, 0), TopicPartition(f"{group}-missing", 0)
    refused = offsets.commit({good: 3, bad: 4})
    assert list(refused) == [bad]
    assert isinstance(refused[bad], LeaderUnavailableError)
    assert str(bad) in str(refused[bad])
    assert offsets.fetch([good, bad]) == {good: 3, bad: None}
    offsets.close()


def fetched_from(broker: BrokerEndpoint, group: str, versions: Mapping[int, int]) -> FetchedOffsets:
    """The response of ``broker`` to a request for offsets of ``group``, with these highest
    versions."""
    connection = BrokerConnection(broker, "tests", 5.0, 0)
    connection.open()
    highest = {key: range(version + 1) for key, version in versions.items()}
    connection._versions = {**connection._versions, **highest}
    try:
        return fetch_offsets(connection, group, TPS[:1])
    finally:
        connection.close()


def test_a_coordinator_that_moves_is_found_again() -> None:
    """When the coordinator's broker is killed, offsets are read from and written to the next
    coordinator.

    A broker that is not the coordinator returns no offsets, in any version of the request.
    """
    properties = {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"}
    with LocalCluster("3.9", brokers=2, properties=properties) as cluster:
        cluster.create_topic("orders", 3, replication=2)
        endpoints = [
            BrokerEndpoint(index, *_address(server.address))
            for index, server in enumerate(cluster.broker_servers)
        ]
        offsets = KafkaOffsets("moving", endpoints, patience=60.0)
        assert offsets.commit({TPS[0]: 5}) == {}
        home = offsets.client.coordinator("moving")
        (other,) = [one for one in endpoints if one.port != home.port]
        for versions in ({}, {OFFSET_FETCH: 2}, {OFFSET_FETCH: 1}):
            assert fetched_from(other, "moving", versions).code in (15, 16), versions
            assert fetched_from(home, "moving", versions) == FetchedOffsets(
                0, "stored offsets of group moving", {TPS[0]: StoredOffset(5)}
            )
        (first,) = [
            index for index, server in enumerate(cluster.broker_servers) if home.port == server.port
        ]
        cluster.broker_servers[first].kill()
        assert offsets.fetch(TPS[:1]) == {TPS[0]: 5}
        assert offsets.commit({TPS[0]: 6}) == {}
        assert offsets.fetch(TPS[:1]) == {TPS[0]: 6}
        home = offsets.client.coordinator("moving")
        assert home.port == cluster.broker_servers[1 - first].port
        offsets.close()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host, int(port)
