"""ClusterReader: reads the description of a cluster from its brokers. One thread at a time.

It begins with the servers in ``bootstrap.servers``, and later also asks discovered brokers.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from zkconsumer.broker.connection import BrokerConnection, mapped_errors
from zkconsumer.broker.known_brokers import KnownBrokers, in_time
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.values import split_servers
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.cluster_view import ClusterView, PartitionView, TopicView
from zkconsumer.core.zookeeper.ops import Permission
from zkconsumer.errors import BrokerError, BrokerUnavailableError, ConfigError

_TAGGED = 10
"""Version with topic ids and tagged fields. Version 4 has neither, version 0 is the oldest."""


class ClusterReader:
    """Reads the whole cluster from any of its brokers.

    Args:
        servers: as ``bootstrap.servers``.
        client_id: sent with every request.
        timeout: seconds for connecting and for each answer.
        security: how to encrypt and to log in; None is PLAINTEXT.

    Raises ConfigError for a malformed ``servers``.
    """

    def __init__(
        self,
        servers: str,
        client_id: str,
        timeout: float,
        security: KafkaSecurity | None = None,
        before_request: Callable[[], object] | None = None,
    ) -> None:
        self._before_request = before_request
        try:
            addresses = split_servers(servers)
        except ValueError as error:
            raise ConfigError([f"bootstrap.servers: {error}"]) from None
        self._servers = servers
        self._client_id = client_id
        self._timeout = timeout
        self._security = KafkaSecurity() if security is None else security
        bootstrap = [BrokerEndpoint(-1 - n, *address) for n, address in enumerate(addresses)]
        self._known = KnownBrokers(lambda: bootstrap, lambda _broker: 0)
        self._connection: BrokerConnection | None = None
        self._closed = False

    def read(self, topics: Collection[str] | None = None) -> ClusterView:
        """Return a broker's current view of the cluster, with only the ``topics`` if these are
        given.

        Raises BrokerUnavailableError, which names ``bootstrap.servers``, if no broker answers.
        """
        reasons: list[str] = []
        for endpoint, seconds in in_time(self._order(), self._timeout):
            if self._closed:
                break
            connection = self._connect(endpoint)
            connection.limit_opening(seconds)
            try:
                view = read_cluster(connection, topics)
            except BrokerError as error:
                self._known.failed(endpoint)
                self.disconnect()
                reasons.append(str(error))
                continue
            self._known.answered(endpoint)
            self._known.learn(view.brokers)
            return replace(view, protocol=self._security.protocol)
        why = reasons[0] if reasons else "closed"
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        raise BrokerUnavailableError(
            f"bootstrap.servers={self._servers}: no broker is usable: {why}{more}; check that "
            f"these addresses are {self._security.protocol} listeners"
        )

    def execute(self, _request: None, _permission: Permission) -> ClusterView | str:
        """Return the cluster like ``read``, or the text of the error."""
        try:
            return self.read()
        except BrokerError as error:
            return str(error)

    def disconnect(self) -> None:
        """Close the connection. The next ``read`` opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Wake the thread that is reading, so that its read fails. Later reads fail, too. Any
        thread."""
        self._closed = True
        self.interrupt()

    def interrupt(self) -> None:
        """Wake the thread that is reading, so that it asks another broker. Any thread."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def _order(self) -> Sequence[BrokerEndpoint]:
        order = self._known.least_loaded()
        if self._connection is not None:  # the one that answered last
            order.sort(key=lambda broker: broker != self._connection.endpoint)  # type: ignore[union-attr]
        return order

    def _connect(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        if self._connection is None or self._connection.endpoint != endpoint:
            self.disconnect()
            self._connection = BrokerConnection(
                endpoint, self._client_id, self._timeout, 0, self._security, self._before_request
            )
        return self._connection


def read_cluster(
    connection: BrokerConnection, wanted: Collection[str] | None = None
) -> ClusterView:
    """Read the cluster from one broker: all brokers, and all or some topics. Does not create
    topics.

    Raises the errors of ``BrokerConnection.exchange``.
    """
    metadata = ask_metadata(connection, wanted, versions=(_TAGGED, 4, 0))
    tagged = metadata.version >= _TAGGED
    with mapped_errors(connection.endpoint):
        topics = {
            topic.name: TopicView(
                _id_text(topic.topic_id) if tagged else "",
                {
                    part.partition_index: PartitionView(
                        part.leader_id,
                        part.leader_epoch if tagged else -1,
                        tuple(part.replica_nodes),
                        tuple(part.isr_nodes),
                    )
                    for part in sorted(topic.partitions, key=lambda part: part.partition_index)
                },
            )
            for topic in sorted(metadata.topics, key=lambda topic: topic.name)
            if (topic.error_code == 0 or topic.partitions)
            and (wanted is None or topic.name in wanted)
        }
        return ClusterView(metadata.cluster_id, metadata.brokers, topics)


def _id_text(topic_id: object) -> str:
    """Return a topic id as ZooKeeper's znodes and Kafka's tools write it; empty for none."""
    if topic_id is None:
        return ""
    return base64.urlsafe_b64encode(uuid.UUID(str(topic_id)).bytes).decode().rstrip("=")
