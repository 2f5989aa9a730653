"""CoordinatorConsumerConnector: the streams of the old consumer in a group on the brokers.

Wiring only; called from the application's threads. It offers what ``ZookeeperConsumerConnector``
offers, under the same names; only who decides about ownership differs.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from os import PathLike
from types import TracebackType

from zkconsumer.broker.group import GroupClient, OnExchange
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.sticky import StickyStrategy
from zkconsumer.config.coordinator import CoordinatorConfig
from zkconsumer.core import facts as common
from zkconsumer.core.assign import RoundRobinHash
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.membership.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
    Strategy,
)
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.core.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.znodes import make_consumer_id
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    RebalanceFailedError,
    StreamsAlreadyCreatedError,
    UsageError,
    ZkConsumerError,
)
from zkconsumer.runtime.arguments import check_topic_counts, checked_offsets
from zkconsumer.runtime.data_plane import DataPlane
from zkconsumer.runtime.fetch_events import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetchers import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.group_listener import GroupListener
from zkconsumer.runtime.group_loop import GroupLoop
from zkconsumer.runtime.messages import Decode, bytes_decoder
from zkconsumer.runtime.metrics import Metrics
from zkconsumer.runtime.streams import KafkaStream

logger = logging.getLogger("zkconsumer.member")

_START_PATIENCE = 60.0


class CoordinatorConsumerConnector:
    """One member of a consumer group on the broker's group coordinator.

    Args:
        config: a ``CoordinatorConfig``, a mapping of keys to values, or the path of a Java
            ``.properties`` file. Needs ``bootstrap.servers`` and ``group.id``; takes the legacy
            consumer's keys and the newer consumer's.
        on_exchange: called with broker, request and answer of each request to the coordinator, on
            the member's threads; for traces.

    The group may have members of other libraries, if they offer a strategy in common. Raises
    ConfigError. Use it in a ``with`` statement, or call ``shutdown``.
    """

    def __init__(
        self,
        config: CoordinatorConfig | Mapping[str, object] | str | PathLike[str],
        *,
        on_exchange: OnExchange | None = None,
    ) -> None:
        self.config = CoordinatorConfig.parse(config)
        for warning in self.config.warnings:
            warnings.warn(warning, stacklevel=2)
        self.consumer_id = make_consumer_id(
            self.config.group_id,
            self.config.consumer_id,
            socket.gethostname(),
            int(time.time() * 1000),
            uuid.uuid4().int,
        )
        self._on_exchange = on_exchange
        self._gate = DeliveryGate()
        self._listener: GroupListener | None = None
        self._lock = threading.Lock()
        self._loop: GroupLoop | None = None
        self._plane: DataPlane | None = None
        self._closed = False
        self._session_timeout = self.config.session_timeout_ms / 1000

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

        Returns topic to list of streams, when the first rebalance is over.

        Raises StreamsAlreadyCreatedError, ConfigError (bad topic or count), RebalanceFailedError
        (no coordinator in time), UnsupportedBrokerError, BrokerError (the group refuses).
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
        are created later: they are noticed every ``metadata.max.age.ms`` (30 s), which is another
        name of ``zkconsumer.reread.interval.ms``. Raises as
        ``create_message_streams`` does.
        """
        if not isinstance(num_streams, int) or not 1 <= num_streams <= 1000:
            raise ConfigError([f"number of streams must be 1 to 1000, is {num_streams!r}"])
        streams = [self._make_stream(key_decoder, value_decoder) for _ in range(num_streams)]
        self._join(
            Subscription(topic_filter.pattern, {topic_filter.regex: num_streams}), {None: streams}
        )
        return streams

    def set_consumer_rebalance_listener(self, listener: GroupListener) -> None:
        """Have ``listener`` told of rebalances. Only before streams are created.

        It has the methods of ``ConsumerRebalanceListener``, or any of ``on_partitions_revoked``,
        ``on_partitions_assigned`` and ``on_partitions_lost``, or both kinds.
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
        )

    def _join(
        self, subscription: Subscription, streams: Mapping[str | None, Sequence[KafkaStream]]
    ) -> None:
        config = self.config
        with self._lock:
            self._check_unused()
            spec = GroupSpec(
                group=config.group_id,
                consumer_id=self.consumer_id,
                instance_id=config.group_instance_id,
                subscription=subscription,
                exclude_internal=config.exclude_internal_topics,
                strategies=tuple(map(self._strategy, config.strategies)),
                auto_commit=config.auto_commit_enable,
                session_timeout=self._session_timeout,
                rebalance_timeout=config.max_poll_interval_ms / 1000,
                heartbeat_interval=config.heartbeat_interval_ms / 1000,
                backoff=max(config.rebalance_backoff_ms, 1) / 1000,
                reread=config.reread_interval_ms / 1000,
                commit_attempts=config.offsets_commit_max_retries + 1,
            )
            manager = ConsumerFetcherManager(config, config.client_id, _on_fetch_event)
            self._plane = DataPlane(manager, streams, config.release_wait_ms / 1000)
            interval = config.auto_commit_interval_ms / 1000 if config.auto_commit_enable else None
            timeout = config.socket_timeout_ms / 1000
            servers = [BrokerEndpoint(-1 - n, *one) for n, one in enumerate(config.servers)]
            brokers = KnownBrokers(servers, manager.requests_to)
            self._loop = GroupLoop(
                spec,
                self._client(brokers, timeout),
                self._client(brokers, min(timeout, self._session_timeout)),
                self._plane,
                self._gate,
                [stream for group in streams.values() for stream in group],
                lambda: self._listener,
                auto_commit_interval=interval,
            )
            self._loop.start()
        self._await_start(self._loop)

    def _strategy(self, name: str) -> Strategy:
        match name:
            case "range":
                return RangeStrategy()
            case "roundrobin":
                return RoundRobinStrategy()
            case "sticky" | "cooperative-sticky":
                return StickyStrategy(name == "cooperative-sticky")
            case _:
                return LegacyStrategy(name, RoundRobinHash(self.config.roundrobin_hash))

    def _client(self, brokers: KnownBrokers, timeout: float) -> GroupClient:
        config = self.config
        return GroupClient(
            config.group_id,
            config.client_id,
            config.group_instance_id,
            brokers,
            session_timeout=self._session_timeout,
            rebalance_timeout=config.max_poll_interval_ms / 1000,
            timeout=timeout,
            on_exchange=self._on_exchange,
        )

    def _await_start(self, loop: GroupLoop) -> None:
        patience = _START_PATIENCE + self.config.max_poll_interval_ms / 1000
        try:
            loop.started.result(patience)
        except FutureTimeoutError:
            self.shutdown(timeout=5.0)
            raise RebalanceFailedError(
                f"the first rebalance did not end within {patience:g} s; are the brokers at "
                f"{self.config.bootstrap_servers} still there?"
            ) from None
        except ZkConsumerError:
            self.shutdown(timeout=5.0)
            raise

    # -- offsets -------------------------------------------------------------------------------

    def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store consumed offsets, or the given ones, as a member of the present generation.

        Args:
            offsets: partition to the offset to read next. Only partitions that this member owns.

        Raises CommitFailedError naming each partition that is not stored and why, ConfigError,
        UsageError, ConnectorClosedError.
        """
        future = self._ask_commit(offsets)
        patience = 2 * self._session_timeout + 10
        try:
            faults = future.result(patience)
        except FutureTimeoutError:
            raise CommitFailedError(f"no answer of the coordinator in {patience:g} s") from None
        if faults:
            raise CommitFailedError("; ".join(faults))

    def commit_offsets_async(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        callback: Callable[[CommitFailedError | None], object] | None = None,
    ) -> None:
        """Do as ``commit_offsets`` without waiting; ``callback`` gets the error, or ``None``.

        It is called on the member's own thread and must not wait for this connector.
        """
        future = self._ask_commit(offsets)
        if callback is not None:
            future.add_done_callback(lambda done: callback(_commit_error(done.result())))

    def _ask_commit(self, offsets: Mapping[TopicPartition, int] | None) -> Future[tuple[str, ...]]:
        loop, plane = self._loop, self._plane
        if self._closed:
            raise ConnectorClosedError("the connector is shut down")
        if loop is None or plane is None:
            raise UsageError("there is nothing to commit before streams are created")
        if offsets is None:
            return loop.commit(plane.positions(), strict=False)
        return loop.commit(checked_offsets(offsets), strict=True)

    # -- metrics -------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        """What there is to count and measure, at this moment; those of ZooKeeper stay 0.

        Cheap; may be called from any thread at any time.
        """
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            return Metrics(state="CLOSED" if self._closed else "NEW")
        lag = plane.lags()
        fetches = plane.fetch_counts
        return Metrics(
            messages=plane.messages.total,
            bytes=plane.bytes.total,
            messages_per_second=plane.messages.rate(),
            bytes_per_second=plane.bytes.rate(),
            max_lag=max(lag.values(), default=0),
            lag=lag,
            owned_partitions=len(loop.machine.held),
            rebalances=loop.rebalances,
            rebalance_seconds=loop.rebalance_seconds,
            last_rebalance_seconds=loop.last_rebalance_seconds,
            lost_owners=loop.reports["lost"],
            kafka_commits=loop.committed,
            fetch_requests=fetches.requests,
            fetch_bytes=fetches.bytes,
            fetch_seconds=fetches.seconds.value,
            fetch_queue_chunks=plane.queued_chunks,
            suspended_seconds=self._gate.suspended_seconds,
            state="CLOSED" if loop.closed.done() else loop.machine.state.name,
        )

    @property
    def closed(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._closed

    # -- the end -------------------------------------------------------------------------------

    def shutdown(self, timeout: float | None = None) -> None:
        """Leave the group: stop, commit (with auto-commit), release, leave. Idempotent.

        A static member does not leave: it may be back within ``session.timeout.ms``.

        Args:
            timeout: seconds after which the member ends whatever is left to do. By default the
                session timeout and 5 s.

        Raises CommitFailedError when the last commit did not succeed; the member has left anyway.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            return
        timeout = self._session_timeout + 5 if timeout is None else timeout
        plane.let_go_in_this_thread()
        loop.post(common.CloseRequested())
        try:
            faults = loop.closed.result(timeout)
        except FutureTimeoutError:
            loop.give_up()
            raise CommitFailedError(
                f"shutdown did not end within {timeout:g} s: the coordinator did not answer; "
                "offsets since the last commit are not stored"
            ) from None
        loop.join(timeout)
        error = _commit_error(faults)
        if error is not None:
            raise error

    def __enter__(self) -> CoordinatorConsumerConnector:
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


def _commit_error(faults: tuple[str, ...]) -> CommitFailedError | None:
    return CommitFailedError("; ".join(faults)) if faults else None


def _on_fetch_event(event: FetchEvent) -> None:
    failed = event.kind is FetchEventKind.PARTITION_FAILED
    logger.log(logging.WARNING if failed else logging.INFO, "%s", event.detail)
