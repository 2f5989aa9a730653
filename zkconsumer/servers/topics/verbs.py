"""Operations on the topics of a cluster, with or without ZooKeeper. Used from one thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from zkconsumer.servers.topics import at_brokers, in_zookeeper


class _Broker(Protocol):
    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""

    @property
    def running(self) -> bool:
        """Whether the server's process is running."""


class TopicVerbs(ABC):
    """Methods for the topics of a cluster. All raise ``ClusterError``."""

    @property
    @abstractmethod
    def zookeeper(self) -> str:
        """``127.0.0.1:PORT,...``, a value for ``zookeeper.connect``."""

    @property
    @abstractmethod
    def broker_servers(self) -> Sequence[_Broker]:
        """The brokers; the index is the broker id."""

    @property
    def kraft(self) -> bool:
        """Whether the brokers run without ZooKeeper, so that they create topics themselves."""
        return False

    @property
    def bootstrap(self) -> str:
        """All brokers as ``127.0.0.1:PORT,...``, a value for ``bootstrap.servers``."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.broker_servers)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and return when every partition has a leader that all brokers know.

        ``config`` has topic settings such as ``cleanup.policy``. Raises ``ClusterError`` if the
        topic exists.
        """
        if self.kraft:
            ports = self._live_ports()
            at_brokers.create_topic(ports, name, partitions, replication, config or {})
            return
        in_zookeeper.create_topic(
            self.zookeeper, self._live_ports(), name, partitions, replication, config or {}
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Increase a topic's partitions to ``total``, and return when each has a leader."""
        if self.kraft:
            at_brokers.add_partitions(self._live_ports(), name, total)
            return
        in_zookeeper.add_partitions(self.zookeeper, self._live_ports(), name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when no broker has it any more."""
        if self.kraft:
            at_brokers.delete_topic(self._live_ports(), name)
            return
        in_zookeeper.delete_topic(self.zookeeper, self._live_ports(), name)

    def _live_ports(self) -> list[int]:
        return [server.port for server in self.broker_servers if server.running]
