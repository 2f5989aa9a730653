"""Brokers of 0.9, which do not answer the request for their versions."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.migrate.rows import run
from zkconsumer import CoordinatorConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.errors import UnsupportedBrokerError
from zkconsumer.servers import LocalCluster

TOPIC, MESSAGES = "old", 40


def test_a_group_is_read_and_moved(tmp_path: Path) -> None:
    """With both stores of offsets. The coordinator's members are refused with a reason."""
    with LocalCluster("0.9") as cluster:
        cluster.create_topic(TOPIC, 2)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, api_version=(0, 9))
        for number in range(MESSAGES):
            producer.send(TOPIC, b"%d" % number, partition=number % 2)
        producer.flush(30)
        producer.close(10)
        config = {"zookeeper.connect": cluster.zookeeper, "consumer.timeout.ms": "20000"}
        config["auto.offset.reset"] = "smallest"
        for store in ("zookeeper", "kafka"):
            group = {"group.id": store, "offsets.storage": store}
            with ZookeeperConsumerConnector(config | group) as member:
                (stream,) = member.create_message_streams({TOPIC: 1})[TOPIC]
                read = sorted(int(message.value) for message in islice(stream, MESSAGES))
            assert read == list(range(MESSAGES))
        plan, servers = str(tmp_path / "plan"), ["--zookeeper", cluster.zookeeper]
        assert run(["plan", "--group", "zookeeper", "--out", plan, *servers]) == 0
        assert run(["apply", plan, "--execute", *servers]) == 0
        assert run(["status", plan, *servers]) == 0
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "new"}
        with (
            pytest.raises(UnsupportedBrokerError, match=r"is older than 0\.10\.1"),
            CoordinatorConsumerConnector(config) as member,
        ):
            member.create_message_streams({TOPIC: 1})
