"""The addresses of a cluster's brokers."""

from __future__ import annotations

from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.servers import LocalCluster


def endpoints(cluster: LocalCluster) -> list[BrokerEndpoint]:
    """Return them in the order of their ids."""
    ports = [server.port for server in cluster.broker_servers]
    return [BrokerEndpoint(number, "127.0.0.1", port) for number, port in enumerate(ports)]


__all__ = ["endpoints"]
