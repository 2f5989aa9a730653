"""ClusterZk: a session with ZooKeeper that also asks the brokers of ``bootstrap`` about their
cluster.

Same threads as ``BlockingZk``. Only one of them at a time asks the brokers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from zkconsumer.admin.reads import children, cluster_id
from zkconsumer.config.security_keys import SecurityKeys
from zkconsumer.core.zookeeper.cluster_view import ClusterView, answer, is_of_cluster
from zkconsumer.core.zookeeper.ops import Reply, ZkOp
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import BROKER_IDS
from zkconsumer.zk.blocking import BlockingZk

if TYPE_CHECKING:
    from zkconsumer.broker.cluster_reader import ClusterReader

_FRESH: Final = 1.0
"""Seconds for which an answer from the brokers is reused."""

T = TypeVar("T")


class _Here(threading.local):
    """Settings of one thread."""

    in_zookeeper = False
    """Whether the thread reads everything from ZooKeeper."""


class ClusterZk(BlockingZk):
    """A session with ZooKeeper, opened by ``with``, and the brokers of ``bootstrap``, if given.

    ``bootstrap`` (``host:port,host:port``) takes precedence over the brokers that ZooKeeper lists.
    If ZooKeeper lists brokers of the same cluster, topics are read from ZooKeeper. If it lists
    none, the cluster runs without it (KRaft), and topics are read from the brokers. They are also
    read from the brokers if ZooKeeper belongs to another cluster.

    Args:
        connect: as ``BlockingZk``.
        timeout: seconds to wait for ZooKeeper, and for each broker.
        bootstrap: where to find brokers; ``None``: only in ZooKeeper.
        client_id: sent to brokers.
        security: how to encrypt and log in; None for neither.
        before_requests: called with the number of requests that are about to be sent; may wait.

    Entering raises the errors of ``BlockingZk``, and BrokerUnavailableError, ConfigError.
    """

    def __init__(
        self,
        connect: str,
        timeout: float = 30.0,
        bootstrap: str | None = None,
        client_id: str = "zkconsumer-admin",
        security: SecurityKeys | None = None,
        before_requests: Callable[[int], object] | None = None,
    ) -> None:
        super().__init__(connect, timeout, security, before_requests)
        self._reader: ClusterReader | None = None
        if bootstrap is not None:
            # Not above: loading kafka-python takes longer than most commands.
            from zkconsumer.broker.cluster_reader import ClusterReader
            from zkconsumer.broker.security import KafkaSecurity

            one = None if before_requests is None else partial(before_requests, 1)
            self._reader = ClusterReader(
                bootstrap, client_id, timeout, KafkaSecurity(security), one
            )
        self.live = True
        """Whether ZooKeeper lists brokers, or is the only place to find them."""
        self.foreign = False
        """Whether ZooKeeper belongs to another cluster than the brokers of ``bootstrap``."""
        self._view = ClusterView()
        self._read_at: float | None = None
        self._one_reads = threading.Lock()
        self._here = _Here()

    def __enter__(self) -> Self:
        """Connect to ZooKeeper, and to a broker of ``bootstrap``."""
        super().__enter__()
        if self._reader is not None:
            try:
                stored, answered = self.cluster_ids()
                self.foreign = stored is not None and answered is not None and stored != answered
                self.look_again()
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self._reader is not None:
            self._reader.disconnect()
        super().__exit__(*_error)

    def look_again(self) -> None:
        """Check again whether ZooKeeper lists brokers, because a cluster may migrate to KRaft."""
        if self._reader is not None:
            listed = self.run_in_zookeeper(children(BROKER_IDS))
            self.live = bool(listed) and not self.foreign

    @property
    def has_bootstrap(self) -> bool:
        """Whether brokers are found through ``bootstrap``."""
        return self._reader is not None

    def view(self) -> ClusterView:
        """Return the cluster as its brokers describe it, at most one second old; empty without
        ``bootstrap``.

        Raises BrokerUnavailableError.
        """
        with self._one_reads:
            now = time.monotonic()
            if self._reader is not None and (self._read_at is None or now - self._read_at > _FRESH):
                self._view = self._reader.read()
                self._read_at = time.monotonic()
            return self._view

    def run_in_zookeeper(self, script: Script[T]) -> T:
        """Run a script like ``run``, but read everything from ZooKeeper."""
        here = self._here
        before, here.in_zookeeper = here.in_zookeeper, True
        try:
            return self.run(script)
        finally:
            here.in_zookeeper = before

    def cluster_ids(self) -> tuple[str | None, str | None]:
        """Return the cluster's id from ZooKeeper and from the brokers; ``None`` if unknown."""
        return self.run_in_zookeeper(cluster_id()), self.view().cluster_id

    def _known(self, op: ZkOp) -> Reply | None:
        if self._reader is None or self._here.in_zookeeper:
            return None
        if not is_of_cluster(op, ids_only=self.live):
            return None
        return answer(self.view(), op)
