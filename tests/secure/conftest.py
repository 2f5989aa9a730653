"""A secured cluster of each version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from tests.secure.stage import MESSAGES, PARTITIONS, TOPIC, VERSIONS, Stage, make_trees
from zkconsumer.testing.secured import Authority, SecuredCluster


@pytest.fixture(scope="session", params=VERSIONS)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """One cluster for all tests of a version."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    with SecuredCluster(request.param) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        producer = KafkaProducer(bootstrap_servers=cluster.at("PLAINTEXT"))
        for number in range(MESSAGES):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        producer.close()
        make_trees(cluster)
        yield Stage(cluster, stranger, iter(range(1, 10_000)))
