"""ZookeeperConsumerConnector: the public class for members of groups in ZooKeeper. It only connects
the parts. Called from the application's threads; see ``zkconsumer.runtime.connector``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.faults import Fault, Trouble
from zkconsumer.core.common.types import Subscription
from zkconsumer.core.zookeeper import events
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import IDLE, State
from zkconsumer.core.zookeeper.view import Assignor, MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_registration
from zkconsumer.runtime.connector import ANSWER_PATIENCE, START_PATIENCE, StreamConnector
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.membership.zookeeper import (
    SessionSignals,
    ZooKeeperCoordination,
    rebalance_counts,
)
from zkconsumer.runtime.observation.health import Membership
from zkconsumer.zk.driver import ZkDriver
from zkconsumer.zk.security import ZkSecurity

if TYPE_CHECKING:
    from zkconsumer.journal.recorder import MemberRecorder, Sink
    from zkconsumer.runtime.membership.cluster_directory import ClusterDirectory
    from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
    from zkconsumer.runtime.observation.metrics import Metrics

_CLUSTER_SECONDS = 10.0
"""Seconds that a broker may take to describe the cluster; then another broker is asked."""


class ZookeeperConsumerConnector(StreamConnector[RebalanceMachine]):
    """One member of a consumer group that lives in ZooKeeper.

    Source of names and behaviour: Scala 1.1.1 ``kafka.consumer.ZookeeperConsumerConnector``.

    Args:
        config: a ``ConsumerConfig``, a mapping of keys to values, or the path of a Java
            ``.properties`` file.
        journal: gets an entry for each event, command and ZooKeeper operation of this member, on
            the member's thread (``zkconsumer.journal.JournalWriter`` writes them to a file). The
            caller must write the first line of a journal, of kind ``run``. Without this argument,
            ``zkconsumer.journal.dir`` decides whether a journal is written.

    The constructor connects to ZooKeeper, within ``zookeeper.connection.timeout.ms``. Raises
    ConfigError, ZkUnavailableError, ChrootMissingError. Use it in a ``with`` statement, or call
    ``shutdown``.

    If a thread of this member ends, the member notices it within a second. The thread is restarted,
    or the member leaves its group and its streams raise ConnectorFailedError. ``health`` shows the
    member's condition.
    """

    config: ConsumerConfig
    states = State
    in_zookeeper = True

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, object] | str | PathLike[str],
        journal: Sink | None = None,
    ) -> None:
        parsed = ConsumerConfig.parse(config)
        for warning in parsed.warnings:
            warnings.warn(warning, stacklevel=2)
        super().__init__(parsed, self._make_gate(parsed), journal, **_as_the_jvm(parsed))
        self._session_timeout = self.config.zookeeper_session_timeout_ms / 1000
        self._servers = f"ZooKeeper at {self.config.zookeeper_hosts}"
        self._start_patience = START_PATIENCE + 2 * self._session_timeout
        self._answer_patience = 2 * self._session_timeout + ANSWER_PATIENCE
        # Beyond its session's end nothing can be stored.
        self._leave_patience = self._session_timeout + 5
        if self.config.offsets_storage == "kafka":
            self._servers += " and the offset coordinator"
            self._answer_patience += self._offset_patience
            self._leave_patience += self._offset_patience
        self._signals = SessionSignals(self._host, self._session_lease)
        self._coordination: ZooKeeperCoordination | None = None
        self._directory = self._learn_from_brokers() if self.config.bootstrap_servers else None
        self._zk = ZkDriver(
            self.config.zookeeper_hosts,
            self.config.zookeeper_chroot,
            self._session_timeout,
            self._signals.on_session,
            self._signals.on_watch,
            self._host.crash,
            security=self._zk_security,
        )
        self._zk.start(self.config.zookeeper_connection_timeout_ms / 1000, quick=True)

    def _make_gate(self, config: ConsumerConfig) -> DeliveryGate:
        return DeliveryGate(always_open=config.profile == "scala", on_change=self._log_later)

    @property
    def _session_lease(self) -> DeliveryGate:
        """Return the clock time until which the session certainly exists."""
        return self._gate

    @property
    def _zk_security(self) -> ZkSecurity:
        return ZkSecurity(self.config)

    def _learn_from_brokers(self) -> ClusterDirectory:
        """Return the directory that asks brokers for ``/brokers``, or for a part of it."""
        from zkconsumer.broker.cluster_reader import ClusterReader
        from zkconsumer.runtime.membership.cluster_directory import ClusterDirectory

        config = self.config
        timeout = min(config.socket_timeout_ms / 1000, _CLUSTER_SECONDS)
        reader = ClusterReader(config.bootstrap_servers, config.client_id, timeout, self._security)
        line = self._line(reader, "cluster")
        ids_only = config.brokers == "zookeeper"
        self._servers += f", and brokers at {config.bootstrap_servers}"
        return ClusterDirectory(self._host, line, ids_only, self._signals.on_watch)

    def _last_fault(self) -> str:
        """See ``StreamConnector``."""
        return "" if self._directory is None else self._directory.fault

    def _faults_of_cluster(self) -> Iterator[Fault]:
        if text := self._last_fault():
            yield Fault(Trouble.CLUSTER, f"the cluster cannot be read: {text}")

    def _on_fetch_event(self, event: FetchEvent) -> None:
        super()._on_fetch_event(event)
        loop, partition = self._loop, event.partition
        reset = event.kind in (FetchEventKind.OFFSET_RESET, FetchEventKind.LOG_CHANGED)
        if reset and partition is not None and loop is not None:
            loop.post(events.OffsetReset(partition, event.replaced, event.chosen))

    def _join(
        self, subscription: Subscription, streams: Mapping[str | None, Sequence[Reader]]
    ) -> None:
        encode_registration(subscription, 0)  # raises ConfigError for one that is too large
        super()._join(subscription, streams)
        self._look_into_kafka()

    @property
    def _rebalance(self) -> RebalanceMachine | None:
        """The machine that holds the partitions; ``None`` before there are streams."""
        return None if self._loop is None else self._loop.machine

    def _look_into_kafka(self) -> None:
        """Warn about partitions that have an offset in Kafka but none in ZooKeeper."""
        machine, plane, coordination = self._rebalance, self._plane, self._coordination
        if machine is None or plane is None or coordination is None:
            return
        if machine.spec.scala or coordination.offsets is not None:
            return
        held = dict(machine.held)
        if fresh := [tp for tp, claim in held.items() if claim.committed is None]:
            from zkconsumer.runtime.membership.other_store import look_into_kafka

            name, session = self.consumer_id, coordination.session_id
            patience = self._offset_patience
            look_into_kafka(
                fresh, self.config, self._security, plane, patience, name, self._zk, session
            )

    def _member(
        self,
        subscription: Subscription,
        streams: Sequence[Reader],
        plane: DataPlane,
        fetchers: ConsumerFetcherManager,
    ) -> MemberLoop[RebalanceMachine]:
        spec = self._member_spec(subscription)
        offsets = self._kafka_offsets(plane, fetchers) if spec.kafka_storage else None
        machine, coordination = RebalanceMachine(spec), self._in_zookeeper(offsets=offsets)
        self._listener_calls(newer=False)
        observer = self._observer(machine)
        return self._make_loop(plane, machine, coordination, rebalance_counts(), observer)

    def _in_zookeeper(self, **parts: Any) -> ZooKeeperCoordination:
        """Return the part of the member that works with ZooKeeper."""
        self._checks.append(self._zk.check)
        self._coordination = coordination = ZooKeeperCoordination(
            self._host,
            self._session_lease,
            self._zk,
            self._signals,
            self._session_timeout,
            directory=self._directory,
            directory_interval=self.config.reread_interval_ms / 3000,
            listener=self.config.listener,
            **parts,
        )
        return coordination

    def _member_spec(self, subscription: Subscription) -> MemberSpec:
        config = self.config
        return MemberSpec(
            paths=GroupPaths(config.group_id),
            consumer_id=self.consumer_id,
            subscription=subscription,
            exclude_internal=config.exclude_internal_topics,
            assignor=Assignor(
                config.partition_assignment_strategy, RoundRobinHash(config.roundrobin_hash)
            ),
            scala=config.profile == "scala",
            auto_commit=config.auto_commit_enable,
            kafka_storage=config.offsets_storage == "kafka",
            dual_commit=config.offsets_storage == "kafka" and config.dual_commit_enabled,
            coalesce=config.coalesce_ms / 1000,
            backoff=config.rebalance_backoff_ms / 1000,
            reread=config.reread_interval_ms / 1000,
            session_timeout=max(self._session_timeout, self._zk.session_timeout),
            max_attempts=config.rebalance_max_retries,
            bootstrap=config.brokers == "bootstrap",
        )

    def _journal_settings(self) -> dict[str, object]:
        config = self.config
        return {
            "group.id": config.group_id,
            "zookeeper.connect": config.zookeeper_connect,
            "zkconsumer.profile": config.profile,
        }

    def _observer(self, machine: RebalanceMachine) -> MemberRecorder | None:
        if self._journal is None:
            return None
        from zkconsumer.journal.recorder import MemberRecorder

        recorder = MemberRecorder(self._journal, self.consumer_id, self._host.wall_us)
        recorder.made(machine, "zookeeper")
        return recorder

    def _kafka_offsets(self, plane: DataPlane, fetchers: ConsumerFetcherManager) -> KafkaOffsets:
        from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
        from zkconsumer.runtime.membership.other_store import offset_client

        config = self.config
        client = offset_client(config, plane, fetchers.requests_to, self._security)
        line, backoff = self._line(client, "offsets"), config.offsets_channel_backoff_ms / 1000
        return KafkaOffsets(self._host, line, config.group_id, self._offset_patience, backoff)

    @property
    def _offset_patience(self) -> float:
        """Seconds that one use of the offset coordinator may take."""
        config = self.config
        retries = config.offsets_commit_max_retries * config.offsets_channel_backoff_ms
        return (config.offsets_channel_socket_timeout_ms + retries) / 1000

    def _leave(self, timeout: float, thread: int, in_listener: bool) -> None:
        if self._coordination is not None and self._coordination.offsets is not None:
            self._host.post(self._coordination.offsets.leave)
        super()._leave(timeout, thread, in_listener)

    def _abandon(self, timeout: float) -> None:
        self._gate.end()
        if self._directory is not None:
            self._directory.close()
        self._zk.close(timeout)

    def _membership(self, loop: MemberLoop[RebalanceMachine]) -> Membership:
        machine = self._rebalance
        assert machine is not None
        state = machine.state
        return Membership(
            state.name,
            state.value,
            machine.registered,
            state in IDLE,
            len(machine.decision.mine),
            len(machine.held),
            (*loop.faults(), *machine.faults(), *self._faults_of_cluster()),
        )

    def _metrics(self) -> Metrics:
        from zkconsumer.runtime.observation import metrics_snapshot

        loop, machine = self._loop, self._rebalance
        plane, coordination = self._plane, self._coordination
        if loop is None or machine is None or plane is None or coordination is None:
            return metrics_snapshot.before_streams(self._zk, self._closed)
        return metrics_snapshot.of_member(
            self._zk, self._gate, loop, machine, coordination, plane, self._lasting_faults
        )


def _as_the_jvm(config: ConsumerConfig) -> dict[str, Any]:
    """The arguments of a ``StreamConnector`` that the profile ``scala`` changes."""
    if config.profile != "scala":
        return {}
    from zkconsumer.runtime.delivery.scala_reader import ScalaReader

    return {"reader": ScalaReader, "leaves_if_refused": False}
