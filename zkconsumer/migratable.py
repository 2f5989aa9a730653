"""MigratableConsumerConnector: a member whose group can move between ZooKeeper and the coordinator.

It only connects the parts. Called from the application's threads. Streams, offsets and listeners
work as in the other two connectors. The group's mode decides whose assignment the member follows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, cast

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.migratable import MigratableConfig
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import classic_spec, group_clients, make_strategy
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import Subscription
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.core.migration.member_scripts import scripts_of
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.strategy import OwnStrategy
from zkconsumer.core.migration.znodes import LIVE_USER, LivePaths
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.journal.live_move import LiveRecorder
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.kafka_offsets import KafkaOffsets
from zkconsumer.runtime.membership.live_move import DualGate, LiveCoordination, committer
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.membership.zookeeper import rebalance_counts
from zkconsumer.runtime.observation.metrics import Metrics
from zkconsumer.zk.security import ZkSecurity


class MigratableConsumerConnector(ZookeeperConsumerConnector):
    """One member of a group that can move between ZooKeeper and the coordinator while it runs.

    It is a member of the group in both places, and follows the mode, which ``zkmigrate live``
    writes. In mode ``zookeeper`` it shares the group with JVM members, in mode ``open`` with any
    Kafka consumer. In the modes between, it delivers a partition only while it has both the owner
    znode and its membership on the coordinator. The idea is from KIP-125.

    Args:
        config: a ``MigratableConfig``, a mapping of keys to values, or the path of a Java
            ``.properties`` file. It has the keys of ``ZookeeperConsumerConnector`` and
            ``CoordinatorConsumerConnector``. ``zkconsumer.live.strategies`` (default ``range``) is
            the ``partition.assignment.strategy`` of the group in Kafka.

    The constructor connects to ZooKeeper. Raises ConfigError, ZkUnavailableError,
    ChrootMissingError. Use it in a ``with`` statement, or call ``shutdown``.
    """

    def __init__(
        self,
        config: MigratableConfig | Mapping[str, object] | str | PathLike[str],
    ) -> None:
        self._both = MigratableConfig.parse(config)
        for warning in self._both.warnings:
            warnings.warn(warning, stacklevel=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(self._both.zookeeper)
        keys = self._both.coordinator
        self._servers += f" and the coordinator, found through {keys.bootstrap_servers}"
        self._group_timeout = keys.session_timeout_ms / 1000
        self._answer_patience += self._group_timeout
        self._leave_patience += self._group_timeout

    @property
    def mode(self) -> Mode | None:
        """The group's mode as this member applies it; ``None`` while it is unknown. Any thread may
        read it."""
        machine = self._live_machine
        return None if machine is None else machine.live.mode

    @property
    def _rebalance(self) -> RebalanceMachine | None:
        machine = self._live_machine
        return None if machine is None else machine.rebalance

    @property
    def _live_machine(self) -> LiveMember | None:
        return None if self._loop is None else cast(LiveMember, self._loop.machine)

    def _make_gate(self, config: ConsumerConfig) -> DeliveryGate:
        return DualGate(on_change=self._log_later)

    @property
    def _session_lease(self) -> DeliveryGate:
        return cast(DualGate, self._gate).zookeeper

    @property
    def _zk_security(self) -> ZkSecurity:
        return ZkSecurity(self.config, also=LIVE_USER)

    def _member(
        self,
        subscription: Subscription,
        streams: Sequence[Reader],
        plane: DataPlane,
        fetchers: ConsumerFetcherManager,
    ) -> MemberLoop[Any]:
        config, keys, name = self.config, self._both.coordinator, self.consumer_id
        hash_form = RoundRobinHash(config.roundrobin_hash)
        spec = classic_spec(
            keys, name, subscription, OwnStrategy(config.partition_assignment_strategy, hash_form)
        )
        gate = cast(DualGate, self._gate)
        paths = LivePaths.of(config.group_id)
        usual = tuple(make_strategy(strategy, hash_form) for strategy in keys.strategies)
        machine = LiveMember(self._member_spec(subscription), spec, paths.mode, usual)
        clients = group_clients(keys, spec, fetchers, self._security, 3)
        requests, heartbeats, offsets = map(
            self._line, clients, ("requests", "heartbeat", "offsets")
        )
        calls = self._listener_calls(newer=False)
        commits = KafkaOffsets(
            self._host,
            offsets,
            spec.group,
            spec.session_timeout,
            spec.backoff,
            partial(committer, machine),
        )
        coordination = LiveCoordination(
            self._in_zookeeper(offsets=commits, scripts=scripts_of(paths, machine.live)),
            BrokerCoordination(
                spec, self._host, gate.group, requests, heartbeats, streams, calls, None
            ),
            commits,
            gate,
        )
        make_loop: Any = self._make_loop  # the base class has another machine
        recorder = self._live_recorder()
        loop: MemberLoop[Any] = make_loop(
            plane, machine, coordination, rebalance_counts(), recorder
        )
        return loop

    def _live_recorder(self) -> LiveRecorder | None:
        if self._journal is None:
            return None
        return LiveRecorder(self._journal, self.consumer_id, self._host.wall_us)

    def _metrics(self) -> Metrics:
        metrics, machine, coordination = super()._metrics(), self._live_machine, self._coordination
        if machine is None or coordination is None:
            return metrics
        live, pauses = machine.live, coordination.pauses
        return replace(
            metrics,
            mode="" if live.mode is None else live.mode.value,
            mode_version=live.version,
            mode_acknowledged=int(live.mode is not None and live.acknowledged == live.version),
            moving_partitions=len(live.giving_up),
            pause_seconds={tp: pauses[tp] for tp in list(machine.rebalance.held) if tp in pauses},
        )
