"""ZookeeperConsumerConnector: the public face of a legacy group's member. Wiring only.

Called from the application's threads. The work is done by the connector's loop
(``zkconsumer.runtime.loop``), fetcher threads and the application's own threads in the streams.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from os import PathLike
from types import TracebackType
from typing import Any

from zkconsumer.broker.offset_coordinator import OffsetCoordinator
from zkconsumer.config import ConsumerConfig
from zkconsumer.core import facts
from zkconsumer.core.assign import RoundRobinHash
from zkconsumer.core.orders import AnswerStart, Outcome
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.core.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.view import Assignor, MemberSpec
from zkconsumer.core.znodes import GroupPaths, make_consumer_id
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    DuplicateConsumerIdError,
    RebalanceFailedError,
    StreamsAlreadyCreatedError,
    UsageError,
    ZkConsumerError,
    ZooKeeperError,
)
from zkconsumer.journal.files import MemberJournal
from zkconsumer.journal.recorder import MemberRecorder, Sink
from zkconsumer.runtime import snapshot
from zkconsumer.runtime.arguments import check_topic_counts, checked_offsets
from zkconsumer.runtime.data_plane import DataPlane
from zkconsumer.runtime.fetch_events import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetchers import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.loop import ConnectorLoop, ConsumerRebalanceListener
from zkconsumer.runtime.messages import Decode, bytes_decoder
from zkconsumer.runtime.metrics import Metrics
from zkconsumer.runtime.offset_worker import OffsetWorker
from zkconsumer.runtime.streams import KafkaStream
from zkconsumer.zk.driver import SessionEvent, ZkDriver

logger = logging.getLogger("zkconsumer.member")

#: Seconds that a first rebalance may take beyond the configured timeouts.
_START_PATIENCE = 60.0


class ZookeeperConsumerConnector:
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
        self.consumer_id = make_consumer_id(
            self.config.group_id,
            self.config.consumer_id,
            socket.gethostname(),
            int(time.time() * 1000),
            uuid.uuid4().int,
        )
        self._own_journal: MemberJournal | None = None
        if journal is None and self.config.journal_dir is not None:
            journal = self._own_journal = self._open_journal(self.config.journal_dir)
        self._journal = journal
        self._scala = self.config.profile == "scala"
        self._gate = DeliveryGate(always_open=self._scala)
        self._listener: ConsumerRebalanceListener | None = None
        self._lock = threading.Lock()
        self._loop: ConnectorLoop | None = None
        self._plane: DataPlane | None = None
        self._closed = False
        self._mailbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._session_timeout = self.config.zookeeper_session_timeout_ms / 1000
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
        failed = event.kind is FetchEventKind.PARTITION_FAILED
        logger.log(logging.WARNING if failed else logging.INFO, "%s", event.detail)
        if event.kind is FetchEventKind.OFFSET_RESET and event.partition is not None:
            self._mailbox.put(facts.OffsetReset(event.partition))

    # -- streams -------------------------------------------------------------------------------

    def create_message_streams(
        self,
        topic_count_map: Mapping[str, int],
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
    ) -> dict[str, list[KafkaStream]]:
        """Join the group with named topics.

        Args:
            topic_count_map: topic to number of streams, each at least 1. May be empty: a member
                without partitions.
            key_decoder, value_decoder: turn bytes into objects when a message's key or value is
                read.

        Returns topic to list of streams, when the first rebalance is over. Partitions that other
        members still hold follow as soon as they let go.

        Raises StreamsAlreadyCreatedError, ConfigError (bad topic or count), RebalanceFailedError,
        DuplicateConsumerIdError, ZooKeeperError.
        """
        check_topic_counts(topic_count_map)
        streams = {
            topic: [self._make_stream(key_decoder, value_decoder) for _ in range(count)]
            for topic, count in topic_count_map.items()
        }
        by_topic: dict[str | None, Sequence[KafkaStream]] = {}
        by_topic.update(streams.items())
        self._join(Subscription(Pattern.STATIC, dict(topic_count_map)), by_topic)
        return streams

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        num_streams: int = 1,
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
    ) -> list[KafkaStream]:
        """Join the group with all topics that ``Whitelist(..)`` or ``Blacklist(..)`` allows.

        Each of the ``num_streams`` streams carries its share of every topic, also of topics that
        are created later. Raises as ``create_message_streams`` does.
        """
        if not isinstance(num_streams, int) or not 1 <= num_streams <= 1000:
            raise ConfigError([f"number of streams must be 1 to 1000, is {num_streams!r}"])
        streams = [self._make_stream(key_decoder, value_decoder) for _ in range(num_streams)]
        self._join(
            Subscription(topic_filter.pattern, {topic_filter.regex: num_streams}), {None: streams}
        )
        return streams

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener) -> None:
        """Have ``listener`` told of rebalances. Only before streams are created.

        Raises StreamsAlreadyCreatedError, ConnectorClosedError.
        """
        with self._lock:
            self._check_unused()
            self._listener = listener

    def _check_unused(self) -> None:
        if self._closed:
            raise ConnectorClosedError("the connector is shut down; make a new one")
        if self._loop is not None:
            raise StreamsAlreadyCreatedError("this connector has its streams already")

    def _make_stream(self, key_decoder: Decode, value_decoder: Decode) -> KafkaStream:
        return KafkaStream(
            self.config.client_id,
            self._gate,
            queue_capacity=self.config.queued_max_message_chunks,
            timeout_ms=self.config.consumer_timeout_ms,
            key_decoder=key_decoder,
            value_decoder=value_decoder,
            scala=self._scala,
        )

    def _join(
        self, subscription: Subscription, streams: Mapping[str | None, Sequence[KafkaStream]]
    ) -> None:
        config = self.config
        with self._lock:
            self._check_unused()
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
                session_timeout=self._session_timeout,
                max_attempts=config.rebalance_max_retries,
            )
            manager = ConsumerFetcherManager(config, config.client_id, self._on_fetch_event)
            self._plane = DataPlane(manager, streams, config.release_wait_ms / 1000)
            interval = config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None
            offsets = self._offset_worker(self._plane) if spec.kafka_storage else None
            self._loop = ConnectorLoop(
                spec,
                self._zk,
                self._plane,
                self._gate,
                lambda: self._listener,
                auto_commit_interval=interval,
                session_timeout=self._session_timeout,
                mailbox=self._mailbox,
                offsets=offsets,
                observer=self._observer(),
            )
            self._loop.start()
        self._await_start(self._loop)

    def _open_journal(self, directory: str) -> MemberJournal:
        config = self.config
        settings = {
            "group.id": config.group_id,
            "zookeeper.connect": config.zookeeper_connect,
            "zkconsumer.profile": config.profile,
        }
        try:
            return MemberJournal(directory, self.consumer_id, settings)
        except OSError as error:
            raise ConfigError([f"zkconsumer.journal.dir: {error}"]) from None

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

    def _await_start(self, loop: ConnectorLoop) -> None:
        patience = _START_PATIENCE + 2 * self._session_timeout
        try:
            answer = loop.started.result(patience)
        except FutureTimeoutError:
            self.shutdown(timeout=5.0)
            raise RebalanceFailedError(
                f"the first rebalance did not end within {patience:g} s; is ZooKeeper at "
                f"{self.config.zookeeper_hosts} still there?"
            ) from None
        error = _start_error(answer)
        if error is not None:
            if not self._scala:
                self.shutdown(timeout=5.0)
            raise error

    # -- offsets -------------------------------------------------------------------------------

    def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store consumed offsets, or the given ones, in ZooKeeper.

        Args:
            offsets: partition to the offset to read next. Only partitions that this member owns;
                never below what is stored.

        Raises CommitFailedError naming each partition that is not stored and why, ConfigError,
        UsageError, ConnectorClosedError.
        """
        loop, plane = self._loop, self._plane
        if self._closed:
            raise ConnectorClosedError("the connector is shut down")
        if loop is None or plane is None:
            raise UsageError("there is nothing to commit before streams are created")
        if offsets is None:
            future = loop.commit(plane.positions(), strict=False)
        else:
            future = loop.commit(checked_offsets(offsets), strict=True)
        patience = 2 * self._session_timeout + 10 + self._offset_patience
        try:
            faults = future.result(patience)
        except FutureTimeoutError:
            raise CommitFailedError(f"no answer from ZooKeeper within {patience:g} s") from None
        # DEVIATION-18: the JVM's commitOffsets never raises.
        if faults:
            raise CommitFailedError("; ".join(faults))

    # -- metrics -------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """What there is to count and measure, at this moment.

        Cheap; may be called from any thread at any time. Before streams are created almost all is
        0; after ``shutdown`` counters keep their last value.
        """
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            return snapshot.before_streams(self._zk, self._closed)
        return snapshot.of_member(self._zk, self._gate, loop, plane)

    @property
    def closed(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._closed

    # -- the end -------------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> None:
        """Leave the group: stop, commit (with auto-commit), release, deregister. Idempotent.

        Args:
            timeout: seconds after which the session is ended whatever is left to do. By default
                the session timeout and 5 s, with Kafka storage also the offset coordinator's.

        Raises CommitFailedError when the last commit did not succeed; the member has left anyway.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._leave(timeout)
        finally:
            if self._own_journal is not None:
                self._own_journal.close()

    def _leave(self, timeout: float | None) -> None:
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            self._zk.close()
            return
        if timeout is None:
            timeout = self._session_timeout + 5  # beyond its session's end nothing can be stored
            if self.config.offsets_storage == "kafka":
                timeout += self._offset_patience
        plane.let_go_in_this_thread()
        loop.post(facts.CloseRequested())
        try:
            faults = loop.closed.result(timeout)
        except FutureTimeoutError:
            self._gate.end()
            plane.close()
            self._zk.close()
            raise CommitFailedError(
                f"shutdown did not end within {timeout:g} s: ZooKeeper did not answer; offsets "
                "since the last commit are not stored"
            ) from None
        loop.join(timeout)
        if faults:
            raise CommitFailedError("; ".join(faults))

    def __enter__(self) -> ZookeeperConsumerConnector:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            self.shutdown()
            return
        try:
            self.shutdown()
        except CommitFailedError as error:
            exc.add_note(f"and the last commit failed: {error}")


def _start_error(answer: AnswerStart) -> ZkConsumerError | None:
    match answer.outcome:
        case Outcome.SETTLED:
            return None
        case Outcome.REBALANCE_FAILED:
            return RebalanceFailedError(answer.detail)
        case Outcome.DUPLICATE_ID:
            return DuplicateConsumerIdError(f"consumer.id: {answer.detail}")
        case Outcome.REFUSED:
            return ZooKeeperError(answer.detail)
