"""CoordinatorConsumerConnector: the streams of the old consumer in a group in Kafka.

It only connects the parts. Called from the application's threads. It has the methods of
``ZookeeperConsumerConnector``. Only ownership is decided differently.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from zkconsumer.broker.groups.classic_client import GroupClient, OnExchange
from zkconsumer.broker.groups.kip848_client import ConsumerGroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
    Strategy,
)
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.spec import ClassicSpec, GroupSpec, Kip848Spec
from zkconsumer.core.groups.states import ENDED, State
from zkconsumer.errors import ConfigError
from zkconsumer.journal.group import GroupRecorder
from zkconsumer.journal.recorder import Sink
from zkconsumer.runtime.connector import ANSWER_PATIENCE, START_PATIENCE, StreamConnector
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.kip848 import ConsumerGroupCoordination
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.observation import metrics_snapshot
from zkconsumer.runtime.observation.health import Membership
from zkconsumer.runtime.observation.metrics import Metrics


class CoordinatorConsumerConnector(StreamConnector[GroupMachine]):
    """One member of a consumer group on the broker's group coordinator.

    Args:
        config: a ``CoordinatorConfig``, a mapping of keys to values, or the path of a Java
            ``.properties`` file. Needs ``bootstrap.servers`` and ``group.id``; takes the legacy
            consumer's keys and the newer consumer's.
        journal: gets an entry for each event, command and request of this member; see
            ``ZookeeperConsumerConnector``.
        on_exchange: called with broker, request and answer for each request to the coordinator, on
            the member's threads.

    The group may have members of other libraries, if all members have a strategy in common. With
    ``group.protocol=consumer`` the coordinator assigns (KIP-848, brokers since 4.0) and evaluates a
    ``Whitelist`` as RE2. It does not support a ``Blacklist``. Raises ConfigError. Use it in a
    ``with`` statement, or call ``shutdown``.

    If a thread of this member ends, the member notices it within a second. The thread is
    restarted, or the member leaves its group and its streams raise ConnectorFailedError.
    ``health`` shows the member's condition.
    """

    config: CoordinatorConfig
    states = State
    in_zookeeper = False

    def __init__(
        self,
        config: CoordinatorConfig | Mapping[str, object] | str | PathLike[str],
        journal: Sink | None = None,
        *,
        on_exchange: OnExchange | None = None,
    ) -> None:
        parsed = CoordinatorConfig.parse(config)
        for warning in parsed.warnings:
            warnings.warn(warning, stacklevel=2)
        super().__init__(parsed, DeliveryGate(on_change=self._log_later), journal)
        self._on_exchange = on_exchange
        self._session_timeout = self.config.session_timeout_ms / 1000
        self._servers = f"the coordinator, found through {self.config.bootstrap_servers}"
        self._start_patience = START_PATIENCE + self.config.max_poll_interval_ms / 1000
        self._answer_patience = 2 * self._session_timeout + ANSWER_PATIENCE
        self._leave_patience = self._session_timeout + 5

    def _member(
        self,
        subscription: Subscription,
        streams: Sequence[Reader],
        plane: DataPlane,
        fetchers: ConsumerFetcherManager,
    ) -> MemberLoop[GroupMachine]:
        config = self.config
        calls = self._listener_calls(newer=True)
        machine: GroupMachine
        kind: type[BrokerCoordination]
        if config.group_protocol == "consumer":
            machine = Kip848Machine(self._consumer_spec(subscription))
            kind = ConsumerGroupCoordination
        else:
            hash_form = RoundRobinHash(config.roundrobin_hash)
            strategies = [make_strategy(name, hash_form) for name in config.strategies]
            machine = ClassicMachine(
                classic_spec(config, self.consumer_id, subscription, *strategies)
            )
            kind = BrokerCoordination
        observer = self._observer(machine)
        clients = group_clients(
            config, machine.spec, fetchers, self._security, 2, self._on_exchange
        )
        requests, heartbeats = map(self._line, clients, ("requests", "heartbeat"))
        self._coordination = kind(
            machine.spec,
            self._host,
            self._gate,
            requests,
            heartbeats,
            streams,
            calls,
            observer,
        )
        rebalances = RebalanceCounts(
            {State.STABLE},
            ENDED | {State.NEW, State.OUTSIDE},
            {State.FINDING, State.BACKING_OFF, State.LOADING},
        )
        return self._make_loop(plane, machine, self._coordination, rebalances, observer)

    def _consumer_spec(self, subscription: Subscription) -> Kip848Spec:
        config = self.config
        if subscription.pattern is Pattern.BLACK_LIST:
            raise ConfigError(
                [
                    "group.protocol=consumer: the broker evaluates patterns as RE2, which cannot "
                    "express a Blacklist: use a Whitelist, or group.protocol=classic"
                ]
            )
        return Kip848Spec(
            **_shared(config, self.consumer_id, subscription),
            member_id=str(uuid.uuid4()),
            assignor=config.group_remote_assignor,
            rack=config.client_rack,
        )

    def _last_fault(self) -> str:
        return "" if self._loop is None else self._coordination.last_fault

    def _observer(self, machine: GroupMachine) -> GroupRecorder | None:
        if self._journal is None:
            return None
        recorder = GroupRecorder(self._journal, self.consumer_id, self._host.wall_us)
        consumer = isinstance(machine, Kip848Machine)
        recorder.made(machine, "consumer" if consumer else "coordinator")
        return recorder

    def _journal_settings(self) -> dict[str, object]:
        config = self.config
        return {"group.id": config.group_id, "bootstrap.servers": config.bootstrap_servers}

    def _membership(self, loop: MemberLoop[GroupMachine]) -> Membership:
        machine = loop.machine
        state = machine.state
        registered = machine.generation >= 0 and state not in ENDED
        doing, fault = state.value, self._coordination.last_fault
        return Membership(
            state.name,
            f"{doing}; the last request failed: {fault}" if fault else doing,
            registered,
            state is State.STABLE,
            machine.assigned if registered else 0,
            len(machine.held),
            (*loop.faults(), *machine.faults()),
        )

    def _metrics(self) -> Metrics:
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            return Metrics(state="CLOSED" if self._closed else "NEW")
        return metrics_snapshot.of_group_member(
            self._gate, loop, self._coordination.committed, plane, self._lasting_faults
        )


def classic_spec(
    config: CoordinatorConfig, consumer_id: str, subscription: Subscription, *strategies: Strategy
) -> ClassicSpec:
    """Return the specification of a member of the classic protocol."""
    return ClassicSpec(**_shared(config, consumer_id, subscription), strategies=strategies)


def _shared(
    config: CoordinatorConfig, consumer_id: str, subscription: Subscription
) -> dict[str, Any]:
    """The part of a specification that both protocols have."""
    return {
        "group": config.group_id,
        "consumer_id": consumer_id,
        "instance_id": config.group_instance_id,
        "subscription": subscription,
        "exclude_internal": config.exclude_internal_topics,
        "auto_commit": config.auto_commit_enable,
        "session_timeout": config.session_timeout_ms / 1000,
        "rebalance_timeout": config.max_poll_interval_ms / 1000,
        "heartbeat_interval": config.heartbeat_interval_ms / 1000,
        "backoff": max(config.rebalance_backoff_ms, 1) / 1000,
        "reread": config.reread_interval_ms / 1000,
        "commit_attempts": config.offsets_commit_max_retries + 1,
    }


def group_clients(
    config: CoordinatorConfig,
    spec: GroupSpec,
    fetchers: ConsumerFetcherManager,
    security: KafkaSecurity,
    count: int,
    on_exchange: OnExchange | None = None,
) -> list[GroupClient]:
    """Return clients for the connections of one member. The first one waits ``socket.timeout.ms``
    for an answer. The others do not wait longer than the session timeout."""
    servers = [BrokerEndpoint(-1 - n, *server) for n, server in enumerate(config.servers)]
    brokers = KnownBrokers(lambda: servers, fetchers.requests_to)
    timeout = config.socket_timeout_ms / 1000
    quick = min(timeout, spec.session_timeout)

    def client(timeout: float) -> GroupClient:
        settings: dict[str, Any] = {
            "timeout": timeout,
            "on_exchange": on_exchange,
            "security": security,
        }
        if isinstance(spec, Kip848Spec):
            return ConsumerGroupClient(spec, config.client_id, brokers, **settings)
        return GroupClient(
            spec.group,
            config.client_id,
            spec.instance_id,
            brokers,
            session_timeout=spec.session_timeout,
            rebalance_timeout=spec.rebalance_timeout,
            **settings,
        )

    return [client(timeout), *(client(quick) for _ in range(count - 1))]


def make_strategy(name: str, hash_form: RoundRobinHash) -> Strategy:
    """Return the assignment strategy that ``partition.assignment.strategy`` calls ``name``."""
    match name:
        case "range":
            return RangeStrategy()
        case "roundrobin":
            return RoundRobinStrategy()
        case "sticky" | "cooperative-sticky":
            return StickyStrategy(name == "cooperative-sticky")
        case _:
            return LegacyStrategy(name, hash_form)
