"""Real servers for tests and experiments: ZooKeeper and Kafka on loopback, and ways to disturb
them."""

from zkconsumer.servers.jars import KAFKA_LINES, fetch_jars, java
from zkconsumer.servers.local_cluster import LocalCluster, LocalZooKeeper, expire_session
from zkconsumer.servers.servers import Server
from zkconsumer.servers.waiting import free_port, wait_until

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
