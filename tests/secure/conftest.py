"""A secured cluster of each version, and the KDC of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.secure.stage import MESSAGES, PARTITIONS, TOPIC, Stage, make_trees
from tests.support.kerberos import HOST, Kdc
from tests.support.secured import USER, Authority, SecuredCluster


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A KDC, which this process uses too."""
    made = Kdc(tmp_path_factory.mktemp("kdc"))
    before = dict(os.environ)
    os.environ.update(made.environment)
    made.start()
    try:
        for principal in (USER, f"kafka/{HOST}", f"zookeeper/{HOST}"):
            made.add(principal)
        yield made
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def stage(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster in ZooKeeper mode, for all tests."""
    with _stage("3.9", kdc, tmp_path_factory.mktemp("stranger")) as found:
        yield found


@pytest.fixture(scope="session")
def old_stage(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster of Kafka 1.1, with its ZooKeeper."""
    with _stage("1.1", kdc, tmp_path_factory.mktemp("stranger")) as found:
        yield found


@pytest.fixture(scope="session")
def oldest_stage(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster of Kafka 0.9, with its ZooKeeper."""
    with _stage("0.9", kdc, tmp_path_factory.mktemp("stranger")) as found:
        yield found


@pytest.fixture(scope="session")
def kraft_stage(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster of Kafka 4, with a ZooKeeper for groups."""
    with _stage("4", kdc, tmp_path_factory.mktemp("stranger")) as found:
        yield found


@contextmanager
def _stage(kafka: str, kdc: Kdc, folder: Path) -> Iterator[Stage]:
    stranger = Authority(folder, "stranger")
    with SecuredCluster(kafka, kdc) as cluster:
        found = Stage(cluster, stranger, iter(range(1, 10_000)))
        cluster.create_topic(TOPIC, PARTITIONS)
        producer = KafkaProducer(**found.kafka_python)
        for number in range(MESSAGES):
            producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()
        producer.close()
        make_trees(cluster)
        yield found
