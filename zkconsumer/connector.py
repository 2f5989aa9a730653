"""ZookeeperConsumerConnector: the public face of a legacy group's member. Wiring only.

Called from the application's threads; see ``zkconsumer.runtime.connector``.
"""

from __future__ import annotations

import queue
import time
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from zkconsumer.broker.offset_coordinator import OffsetCoordinator
from zkconsumer.config import ConsumerConfig
from zkconsumer.core import facts
from zkconsumer.core.assign import RoundRobinHash
from zkconsumer.core.types import Subscription
from zkconsumer.core.view import Assignor, MemberSpec
from zkconsumer.core.znodes import GroupPaths
from zkconsumer.journal.recorder import MemberRecorder, Sink
from zkconsumer.runtime import snapshot
from zkconsumer.runtime.connector import START_PATIENCE, StreamConnector
from zkconsumer.runtime.data_plane import DataPlane
from zkconsumer.runtime.fetch_events import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetchers import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.loop import ConnectorLoop, ConsumerRebalanceListener
from zkconsumer.runtime.metrics import Metrics
from zkconsumer.runtime.offset_worker import OffsetWorker
from zkconsumer.runtime.streams import KafkaStream
from zkconsumer.zk.driver import SessionEvent, ZkDriver


class ZookeeperConsumerConnector(StreamConnector[ConnectorLoop, ConsumerRebalanceListener]):
    """One member of a consumer group that lives in ZooKeeper.

    Source of names and behaviour: Scala 1.1.1 ``kafka.consumer.ZookeeperConsumerConnector``.

    Args:
        config: a ``ConsumerConfig``, a mapping of keys to values, or the path of a Java
            ``.properties`` file.
        journal: takes an entry for each fact, order and ZooKeeper operation of this member
            (``zkconsumer.journal.JournalWriter`` writes them to a file). The first line of a
            journal, of kind ``run``, is the caller's to write. Without it,
            ``zkconsumer.journal.dir`` says whether there is a journal.

    The constructor connects to ZooKeeper. Raises ConfigError, ZkUnavailableError,
    ChrootMissingError. Use it in a ``with`` statement, or call ``shutdown``.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, object] | str | PathLike[str],
        journal: Sink | None = None,
    ) -> None:
        self.config = ConsumerConfig.parse(config)
        for warning in self.config.warnings:
            warnings.warn(warning, stacklevel=2)
        super().__init__(
            self.config, DeliveryGate(always_open=self.config.profile == "scala"), journal
        )
        self._mailbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session_timeout = self.config.zookeeper_session_timeout_ms / 1000
        self._servers = f"ZooKeeper at {self.config.zookeeper_hosts}"
        self._start_patience = START_PATIENCE + 2 * self._session_timeout
        self._answer_patience = 2 * self._session_timeout + 10 + self._offset_patience
        # Beyond its session's end nothing can be stored.
        self._leave_patience = self._session_timeout + 5
        if self.config.offsets_storage == "kafka":
            self._leave_patience += self._offset_patience
        self._zk = ZkDriver(
            self.config.zookeeper_hosts,
            self.config.zookeeper_chroot,
            self._session_timeout,
            self._on_session,
            self._mailbox.put,
        )
        self._zk.start(self.config.zookeeper_connection_timeout_ms / 1000)

    def _on_session(self, event: SessionEvent, session_id: int) -> None:
        if event is SessionEvent.LOST:
            self._gate.close()  # at once; the loop hears of it when it comes to it
        self._mailbox.put((event, session_id))

    def _on_fetch_event(self, event: FetchEvent) -> None:
        super()._on_fetch_event(event)
        if event.kind is FetchEventKind.OFFSET_RESET and event.partition is not None:
            self._mailbox.put(facts.OffsetReset(event.partition, event.replaced))

    def _make_loop(
        self,
        subscription: Subscription,
        streams: Sequence[KafkaStream],
        plane: DataPlane,
        fetchers: ConsumerFetcherManager,
    ) -> ConnectorLoop:
        config = self.config
        spec = MemberSpec(
            paths=GroupPaths(config.group_id),
            consumer_id=self.consumer_id,
            subscription=subscription,
            exclude_internal=config.exclude_internal_topics,
            assignor=Assignor(
                config.partition_assignment_strategy, RoundRobinHash(config.roundrobin_hash)
            ),
            scala=self._scala,
            auto_commit=config.auto_commit_enable,
            kafka_storage=config.offsets_storage == "kafka",
            dual_commit=config.offsets_storage == "kafka" and config.dual_commit_enabled,
            coalesce=config.coalesce_ms / 1000,
            backoff=config.rebalance_backoff_ms / 1000,
            reread=config.reread_interval_ms / 1000,
            session_timeout=max(self._session_timeout, self._zk.session_timeout),
            max_attempts=config.rebalance_max_retries,
        )
        return ConnectorLoop(
            spec,
            self._zk,
            plane,
            self._gate,
            lambda: self._listener,
            auto_commit_interval=self._auto_commit_interval,
            session_timeout=self._session_timeout,
            mailbox=self._mailbox,
            offsets=self._offset_worker(plane) if spec.kafka_storage else None,
            observer=self._observer(),
        )

    def _journal_settings(self) -> dict[str, object]:
        config = self.config
        return {
            "group.id": config.group_id,
            "zookeeper.connect": config.zookeeper_connect,
            "zkconsumer.profile": config.profile,
        }

    def _observer(self) -> MemberRecorder | None:
        if self._journal is None:
            return None
        chroot = len(self.config.zookeeper_chroot)
        return MemberRecorder(
            self._journal, self.consumer_id, lambda: time.time_ns() // 1000, chroot
        )

    def _offset_worker(self, plane: DataPlane) -> OffsetWorker:
        config = self.config
        coordinator = OffsetCoordinator(
            config.group_id,
            config.client_id,
            lambda: plane.brokers,
            config.offsets_channel_socket_timeout_ms / 1000,
            config.offsets_channel_backoff_ms / 1000,
        )
        return OffsetWorker(coordinator, self._offset_patience, f"{self.consumer_id}_offsets")

    @property
    def _offset_patience(self) -> float:
        """Seconds that one use of the offset coordinator may take."""
        config = self.config
        retries = config.offsets_commit_max_retries * config.offsets_channel_backoff_ms
        return (config.offsets_channel_socket_timeout_ms + retries) / 1000

    def _give_up(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._gate.end()
        if self._plane is not None:
            self._plane.close(timeout / 2)
        self._zk.close(deadline - time.monotonic())

    def metrics(self) -> Metrics:
        """See ``StreamConnector``."""
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            return snapshot.before_streams(self._zk, self._closed)
        return snapshot.of_member(self._zk, self._gate, loop, plane)
