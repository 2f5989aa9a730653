"""The sessions with both stores, and the groups that brokers know.

A ``Stores`` is used from one thread; ``another`` returns one for a further thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from math import inf
from typing import Final, Self

from zkconsumer.admin.cluster_zk import ClusterZk
from zkconsumer.admin.reads import children, cluster_id
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.admin.topics import read_brokers, read_topic
from zkconsumer.broker.groups import offset_times
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.cluster_view import CLUSTER_ID
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    decode_topic,
    is_legal_group,
    is_legal_topic,
    topic_path,
)
from zkconsumer.errors import BrokerError, UnsupportedBrokerError, ZnodeFormatError
from zkmigrate.errors import MigrationError
from zkmigrate.model import Retention, Store
from zkmigrate.stores import migration_marker
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.connections import CLIENT_ID
from zkmigrate.stores.contents import Contents
from zkmigrate.stores.logs import Logs

_FRESH: Final = 10.0
"""Seconds for which the list of hidden topics is cached."""


class Stores:
    """Connections to ZooKeeper and to the brokers registered in it. Use it as a context manager.

    Args:
        servers: the addresses of the servers.
        on_wait: called once with the reason for each wait.

    Raises the errors of ``ClusterZk``, and MigrationError if no broker is usable.
    """

    def __init__(
        self, servers: Servers, on_wait: Callable[[str], object] = lambda _what: None
    ) -> None:
        where, timeout, self.coordinator_timeout, security, bootstrap, _, pace = servers
        self._servers = servers
        self._security = KafkaSecurity(security)
        self.zk = ClusterZk(where, timeout, bootstrap, CLIENT_ID, security, pace)
        self.timeout = timeout
        self.faults: tuple[str, ...] = ()
        """Registered brokers that are unusable, and why. Known once the session is open."""
        self.unlisted: tuple[str, ...] = ()
        """Partitions without a leader, whose groups ``group_names`` could not list."""
        self.brokers: tuple[BrokerEndpoint, ...] = ()
        """Registered brokers that are usable. Known once the session is open."""
        self._others: list[Stores] = []
        self._beside: Stores | None = None
        self._hidden: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._hidden_at = -inf
        self.on_wait = on_wait
        self._offsets_partitions = 0
        self.kafka = GroupCoordinators(
            CLIENT_ID,
            self._brokers,
            min(timeout, self.coordinator_timeout),
            self.coordinator_timeout,
            place=self._offsets_partition,
            on_wait=on_wait,
            security=self._security,
            before_request=pace,
        )
        self.logs = Logs(self.zk, self._brokers, timeout, self._security, pace)

    def __enter__(self) -> Self:
        self.zk.__enter__()
        try:
            self.zk.sync()
            brokers = self.zk.run(read_brokers(self._security.listener))
            if not brokers.endpoints and not brokers.faults:
                raise MigrationError(
                    f"no broker is registered at {BROKER_IDS} of {self._servers.zookeeper}: "
                    "start the brokers, correct the chroot, or use --bootstrap-server HOST:PORT "
                    "if the "
                    "cluster runs without ZooKeeper (KRaft)"
                )
            self._check_cluster()
            if not brokers.endpoints:
                more = len(brokers.faults) - 1
                raise MigrationError(
                    f"no broker is usable: {brokers.faults[0]}"
                    + (f" (and {more} more)" if more else "")
                )
            self.faults = brokers.faults
            self.brokers = tuple(brokers.endpoints[one] for one in sorted(brokers.endpoints))
        except BaseException:
            self.zk.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for stores in (self, *self._others):
            stores.kafka.close()
        self.logs.close()
        self.zk.__exit__(kind, error, trace)

    def another(self) -> Self:
        """Return an object for another thread, with its own connections to coordinators. They are
        closed when this object is closed."""
        other = copy(self)
        other._beside = None
        other.kafka = self.kafka.another()
        self._others.append(other)
        return other

    def beside(self) -> Stores:
        """Return an object for the same thread, with its own connections to coordinators. Its
        requests do not wait for this object's requests."""
        if self._beside is None:
            self._beside = self.another()
        return self._beside

    def each_thread(self, count: int) -> list[Self]:
        """Return one object for each of ``count`` threads. The first is this one."""
        return [self, *(self.another() for _ in range(count - 1))]

    def _check_cluster(self) -> None:
        """Check that ZooKeeper and the brokers belong to one cluster, if that is known."""
        if self.zk.foreign:
            stored, brokers_id = self.zk.cluster_ids()
            if self._servers.expect != brokers_id:
                raise MigrationError(
                    f"--bootstrap-server is in the cluster {brokers_id}, but the offsets in "
                    f"{self._servers.zookeeper} belong to the cluster {stored}: correct one of "
                    "them; if the groups consumed from these brokers, confirm it with "
                    f"--expect-cluster {brokers_id}"
                )

    def _brokers(self) -> Sequence[BrokerEndpoint]:
        return list(self.zk.run(read_brokers(self._security.listener)).endpoints.values())

    def _offsets_partition(self, group: str) -> Hashable:
        """The partition of ``__consumer_offsets`` whose leader is the group's coordinator."""
        if not self._offsets_partitions:
            path = topic_path(offset_times.OFFSETS_TOPIC)
            (node,) = self.zk.run(read_many([path]))
            try:
                self._offsets_partitions = 0 if node is None else len(decode_topic(path, node.data))
            except ZnodeFormatError:
                pass
        count = self._offsets_partitions
        return offset_times.place(group, count) if count else group

    def commits_end(self, group: str) -> int:
        """Return the position of a group's next commit in its coordinator's log, for
        ``commits_since``.

        -1 if zkmigrate may not read the log. Raises BrokerError if the log is unavailable.
        """
        partition = self._offsets_partition(group)
        if not isinstance(partition, int):
            return -1
        try:
            return self.kafka.log_end(group, partition)
        except BrokerError as error:
            if error.retriable:
                raise
            return -1

    def commits_since(self, group: str, position: int) -> list[tuple[TopicPartition, int | None]]:
        """Return all commits of a group since a position, in order.

        The result is empty if zkmigrate may not read the coordinator's log. Raises BrokerError if
        the log is unavailable.
        """
        partition = self._offsets_partition(group)
        assert isinstance(partition, int)
        try:
            return self.kafka.commits_since(group, partition, position)
        except BrokerError as error:
            if error.retriable:
                raise
            return []

    def contents(self) -> Contents:
        """Return a reader of records for this thread. The caller must close it."""
        return Contents(self._brokers, self.timeout, self._security, self._servers.pace)

    def cluster_id(self) -> str | None:
        """Return the cluster's id; brokers before 0.10.1 have none."""
        return self.zk.run(cluster_id())

    def hidden_topics(self, also: Iterable[str] = ()) -> frozenset[str]:
        """Return the topics whose offsets the brokers do not show to this user. Cached for some
        seconds.

        Also checks whether the cluster still uses ZooKeeper. ``also``: topics to ask about by name,
        because brokers without ZooKeeper do not list hidden topics.
        """
        hidden, asked, since = self._hidden, self._asked, self._hidden_at
        if time.monotonic() - since > _FRESH:
            self.zk.look_again()
            hidden = asked = frozenset()
            since = time.monotonic()
            also = [*also, *self.topic_names()]
        new = frozenset(filter(is_legal_topic, also)) - asked
        if new:
            hidden |= self.kafka.hidden(new)
        # Only now: if a question fails, it is asked again.
        self._hidden, self._asked, self._hidden_at = hidden, asked | new, since
        return hidden

    # -- groups --------------------------------------------------------------------------------

    def group_names(self, store: Store) -> list[str]:
        """Return the names of all groups in a store."""
        if store is Store.KAFKA:
            try:
                names = self.kafka.list_groups()
            except UnsupportedBrokerError:
                raise MigrationError(
                    "brokers before 0.9 cannot list groups: name them with --group"
                ) from None
            topic = self.zk.run(read_topic(offset_times.OFFSETS_TOPIC))
            if topic is not None:
                self.unlisted = tuple(
                    f"{topic.topic}-{number}"
                    for number in topic.replicas
                    if number not in topic.states or topic.states[number].leader is None
                )
            return names
        return self.zk.run(list_groups())

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return self.zk.run(children(BROKER_TOPICS)) or []

    def is_a_cluster(self) -> bool:
        """Return whether the chroot has a znode that brokers create."""
        paths = ("/consumers", BROKER_TOPICS, CLUSTER_ID)
        return any(self.zk.run_in_zookeeper(read_many(paths)))

    def moved_groups(self) -> dict[str, str]:
        """Return the groups in ZooKeeper that were moved to Kafka, and their names in Kafka."""
        names = list(filter(is_legal_group, self.zk.run(list_groups())))
        markers = self.zk.run_all(map(migration_marker.name_of_moved, names))
        pairs = zip(names, markers, strict=True)
        return {name: in_kafka for name, in_kafka in pairs if in_kafka is not None}

    def retention(self) -> Retention:
        """Return how long brokers keep the offsets of a group without members."""
        return Retention(*self.kafka.retention_minutes())

    def commit_times(self, groups: Sequence[str]) -> Mapping[tuple[str, TopicPartition], int]:
        """Return when the offsets of these groups were committed, read from the coordinators'
        logs."""
        self.on_wait(f"the times of commits, read from the log of {offset_times.OFFSETS_TOPIC}")
        brokers = {endpoint.broker_id: endpoint for endpoint in self._brokers()}
        topics, _ = self.logs.of([offset_times.OFFSETS_TOPIC])
        count = sum(len(topic.partitions) for topic in topics.values())
        return offset_times.commit_times(
            groups, count, brokers, CLIENT_ID, self.timeout, self._security, self._servers.pace
        )

    def fetch_each(
        self, known: Mapping[str, Collection[TopicPartition]]
    ) -> dict[str, dict[TopicPartition, StoredOffset] | BrokerError]:
        """Return the result of ``fetch``, or its error, for each of many groups."""
        found: dict[str, dict[TopicPartition, StoredOffset] | BrokerError] = {}
        for some in self.kafka.fetch_several(known).values():
            found |= some.offsets
        for group in [name for name in known if name not in found]:
            try:
                found[group] = self.fetch(group, known[group])
            except BrokerError as error:
                found[group] = error
        return found

    def fetch(
        self, group: str, known: Collection[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return all offsets of a group in Kafka.

        Brokers before 0.10.2 cannot list all offsets. They are asked for the ``known`` partitions
        and all other partitions of the same topics.
        """
        asked = set(known)
        if not self.kafka.tells_all(group):
            for topic, state in self.logs.of({tp.topic for tp in known})[0].items():
                asked |= {TopicPartition(topic, number) for number in state.partitions}
        return self.kafka.fetch(group, sorted(asked))
