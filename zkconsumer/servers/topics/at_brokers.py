"""Topics through the brokers, as clusters without ZooKeeper require. Any thread.

Each function opens a short connection of kafka-python's admin client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from zkconsumer.errors import ClusterError
from zkconsumer.servers.topics.in_zookeeper import wait_for_leaders, wait_until_unknown


def create_topic(
    ports: Sequence[int],
    name: str,
    partitions: int,
    replication: int,
    config: Mapping[str, str],
) -> None:
    """Create a topic. Return when every broker knows its leaders."""
    asked: dict[str, Any] = {"num_partitions": partitions, "replication_factor": replication}
    with _admin(ports, name) as admin:
        admin.create_topics({name: {**asked, "configs": dict(config)}})
    wait_for_leaders(ports, name, partitions)


def add_partitions(ports: Sequence[int], name: str, total: int) -> None:
    """Increase a topic's partitions to ``total``, and return when all have leaders."""
    with _admin(ports, name) as admin:
        admin.create_partitions({name: total})
    wait_for_leaders(ports, name, total)


def delete_topic(ports: Sequence[int], name: str) -> None:
    """Delete a topic. Return when no broker has it any more."""
    with _admin(ports, name) as admin:
        admin.delete_topics([name])
    wait_until_unknown(ports, name)


@contextmanager
def _admin(ports: Sequence[int], topic: str) -> Iterator[KafkaAdminClient]:
    """Yield an admin client. Errors of kafka-python are raised as ``ClusterError``."""
    client = None
    try:
        client = KafkaAdminClient(bootstrap_servers=[f"127.0.0.1:{port}" for port in ports])
        yield client
    except TopicAlreadyExistsError:
        raise ClusterError(f"topic {topic} already exists") from None
    except UnknownTopicOrPartitionError:
        raise ClusterError(f"topic {topic} does not exist") from None
    except KafkaError as error:
        raise ClusterError(f"topic {topic}: {error}") from error
    finally:
        if client is not None:
            client.close()
