"""A secured cluster of each version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.secure.stage import MESSAGES, PARTITIONS, TOPIC, Stage, make_trees
from tests.support.secured import Authority, SecuredCluster


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster in ZooKeeper mode, for all tests."""
    with _stage("3.9", tmp_path_factory.mktemp("stranger")) as found:
        yield found


@pytest.fixture(scope="session")
def old_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster of Kafka 1.1, with its ZooKeeper."""
    with _stage("1.1", tmp_path_factory.mktemp("stranger")) as found:
        yield found


@pytest.fixture(scope="session")
def kraft_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster of Kafka 4, with a ZooKeeper for groups."""
    with _stage("4", tmp_path_factory.mktemp("stranger")) as found:
        yield found


@contextmanager
def _stage(kafka: str, folder: Path) -> Iterator[Stage]:
    stranger = Authority(folder, "stranger")
    with SecuredCluster(kafka) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        producer = KafkaProducer(bootstrap_servers=cluster.at("PLAINTEXT"))
        for number in range(MESSAGES):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        producer.close()
        make_trees(cluster)
        yield Stage(cluster, stranger, iter(range(1, 10_000)))
