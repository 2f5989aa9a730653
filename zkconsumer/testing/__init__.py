"""Real servers for tests and trials: ZooKeeper and Kafka on loopback, and ways to disturb them."""

from zkconsumer.testing.cluster import LocalCluster, LocalZooKeeper
from zkconsumer.testing.faults import expire_session
from zkconsumer.testing.jars import KAFKA_LINES, fetch_jars, java
from zkconsumer.testing.servers import Server
from zkconsumer.testing.waiting import free_port, wait_until

__all__ = [
    "KAFKA_LINES",
    "LocalCluster",
    "LocalZooKeeper",
    "Server",
    "expire_session",
    "fetch_jars",
    "free_port",
    "java",
    "wait_until",
]
