"""Takes snapshots of a connector's metrics. Any thread may call it; it never waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import State
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.membership.zookeeper import ZooKeeperCoordination
from zkconsumer.runtime.observation.metrics import Metrics
from zkconsumer.zk.driver import ZkDriver

if TYPE_CHECKING:
    from zkconsumer.core.groups.base import GroupMachine


def before_streams(zk: ZkDriver, closed: bool) -> Metrics:
    """Return the metrics of a connector without streams. ``closed``: it was shut down."""
    return Metrics(
        zookeeper_operations=zk.operations,
        zookeeper_connected=int(zk.connected),
        state=(State.CLOSED if closed else State.NEW).name,
    )


def of_member(
    zk: ZkDriver,
    gate: DeliveryGate,
    loop: MemberLoop[Any],
    machine: RebalanceMachine,
    coordination: ZooKeeperCoordination,
    plane: DataPlane,
    faults: int,
) -> Metrics:
    """Return the metrics of a connector with streams and a ZooKeeper group, even after shutdown."""
    reports, stored = loop.reports, coordination.stored
    registrations = f"{machine.spec.paths.ids}/"  # topics and brokers may be quarantined too
    return replace(
        _of_streams(gate, plane, loop.rebalances, faults),
        owned_partitions=len(machine.held),
        blocked_partitions=len(machine.blocked),
        failed_attempts=machine.failed_attempts,
        quarantined_registrations=sum(
            path.startswith(registrations) for path in machine.quarantined
        ),
        lost_owners=reports["lost-owner"],
        fenced_commits=reports["fenced"],
        foreign_commits=reports["foreign-commit"],
        zookeeper_commits=stored.zookeeper,
        kafka_commits=stored.kafka,
        zookeeper_operations=zk.operations,
        sessions=coordination.sessions,
        disconnections=coordination.disconnections,
        zookeeper_connected=int(zk.connected),
        state=(State.CLOSED if loop.closed.done() else machine.state).name,
    )


def of_group_member(
    gate: DeliveryGate,
    loop: MemberLoop[GroupMachine],
    committed: int,
    plane: DataPlane,
    faults: int,
) -> Metrics:
    """Return the metrics of a connector with streams and a group in Kafka, even after shutdown."""
    return replace(
        _of_streams(gate, plane, loop.rebalances, faults),
        owned_partitions=len(loop.machine.held),
        lost_owners=loop.machine.lost,
        kafka_commits=committed,
        state="CLOSED" if loop.closed.done() else loop.machine.state.name,
    )


def _of_streams(
    gate: DeliveryGate, plane: DataPlane, rebalances: RebalanceCounts, faults: int
) -> Metrics:
    """Return the metrics of fetching and delivery, for any kind of group."""
    lag, fetches = plane.lags(), plane.fetch_counts
    return Metrics(
        messages=plane.messages.total,
        bytes=plane.bytes.total,
        messages_per_second=plane.messages.rate(),
        bytes_per_second=plane.bytes.rate(),
        max_lag=max(lag.values(), default=0),
        lag=lag,
        lag_age_seconds=plane.lag_age(),
        fetch_requests=fetches.requests,
        fetch_bytes=fetches.bytes,
        fetch_seconds=fetches.seconds.value,
        fetch_queue_chunks=plane.queued_chunks,
        suspended_seconds=gate.suspended_seconds,
        faults=faults,
        rebalances=rebalances.count,
        rebalance_seconds=rebalances.seconds,
        last_rebalance_seconds=rebalances.last_seconds,
    )
