"""Bugs to plant in the machine and the scripts of a group in ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.handlers import replace_handler
from zkconsumer.core.common import commands
from zkconsumer.core.common.events import TimerFired
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.known import Knowledge, Known
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Listing, Node, Permit, SetData
from zkconsumer.core.zookeeper.scripts import legacy, ownership, view
from zkconsumer.core.zookeeper.states import IDLE
from zkconsumer.runtime.membership import zookeeper


def releases_while_fetching(patch: pytest.MonkeyPatch) -> None:
    """Owner znodes are deleted before fetchers are stopped."""

    def stop(self: RebalanceMachine, partitions: frozenset[TopicPartition]) -> None:
        self._releasing.partitions = partitions
        self._announce_release()

    patch.setattr(RebalanceMachine, "_stop", stop)


def drops_triggers_while_busy(patch: pytest.MonkeyPatch) -> None:
    """A watch that fires during a rebalance is forgotten."""
    right = RebalanceMachine._pull_trigger

    def pull(self: RebalanceMachine, zxid: int | None = None) -> None:
        if self.state in IDLE:
            right(self, zxid)

    patch.setattr(RebalanceMachine, "_pull_trigger", pull)


def claims_without_touching_the_offset(patch: pytest.MonkeyPatch) -> None:
    """A claim does not change the offset's version, so an earlier owner's commit succeeds."""
    right = ownership._Claiming.operations

    def operations(self: Any, tp: TopicPartition, owner: Node | None, offset: Node | None) -> Any:
        ops = right(self, tp, owner, offset)
        return ops and tuple(op for op in ops if not isinstance(op, SetData))

    def won(self: Any, tp: TopicPartition, offset: Node | None, _last: object) -> None:
        version = offset and offset.stat.version
        stored = ownership.stored_offset("", offset) if offset else None
        self.claims[tp] = Claim(self.wanted[tp], version, stored)

    patch.setattr(ownership._Claiming, "operations", operations)
    patch.setattr(ownership._Claiming, "won", won)


def releases_by_path(patch: pytest.MonkeyPatch) -> None:
    """A release deletes owner znodes of any owner."""
    patch.setattr(ownership, "release", legacy.release)


def commits_without_condition(patch: pytest.MonkeyPatch) -> None:
    """The last writer of an offset wins."""
    patch.setattr(ownership, "commit", legacy.commit)


def trusts_remembered_positions(patch: pytest.MonkeyPatch) -> None:
    """A position from a lost session counts although the stored offset has moved."""

    def start_offset(self: RebalanceMachine, tp: TopicPartition) -> int | None:
        remembered = self._remembered.pop(tp, None)
        return remembered.position if remembered else self.held[tp].committed

    patch.setattr(RebalanceMachine, "_start_offset", start_offset)


def never_reads_again(patch: pytest.MonkeyPatch) -> None:
    """A lost watch is never compensated."""
    right = RebalanceMachine._timer_fired

    def timer_fired(self: RebalanceMachine, fact: TimerFired) -> None:
        if fact.name != "reread":
            right(self, fact)

    replace_handler(patch, RebalanceMachine, "_timer_fired", timer_fired)


def has_no_lease(patch: pytest.MonkeyPatch) -> None:
    """Delivery continues however long ZooKeeper is silent."""
    patch.setattr(zookeeper, "LEASE", 100.0)


def stores_in_kafka_without_asking(patch: pytest.MonkeyPatch) -> None:
    """An offset is sent to Kafka although the session may have ended."""
    patch.setattr(zookeeper.ZooKeeperCoordination, "_permit", lambda *_: Permit.GRANTED)


def keeps_partitions_of_a_lost_session(patch: pytest.MonkeyPatch) -> None:
    """Streams continue with what the lost session owned."""
    right = RebalanceMachine._session_lost

    def session_lost(self: RebalanceMachine, fact: events.SessionLost) -> None:
        right(self, fact)
        self._commands[:] = [o for o in self._commands if not isinstance(o, commands.Drop)]

    replace_handler(patch, RebalanceMachine, "_session_lost", session_lost)


def forgets_blocked_partitions(patch: pytest.MonkeyPatch) -> None:
    """Partitions that others still owned are not claimed later."""
    patch.setattr(RebalanceMachine, "_finish", RebalanceMachine._settle)


def believes_any_registration(patch: pytest.MonkeyPatch) -> None:
    """The member does not check its registration."""
    patch.setattr(view, "_is_own", lambda found, ctx, epoch: True)


def takes_equal_names_for_equal_members(patch: pytest.MonkeyPatch) -> None:
    """A registration that was replaced by one with the same id is not read again."""

    def registrations_still(self: Known, now: Listing) -> dict[str, Node]:
        return {name: node for name, node in self.registrations.items() if name in now.names}

    patch.setattr(Known, "registrations_still", registrations_still)


def reads_no_topic_twice(patch: pytest.MonkeyPatch) -> None:
    """A topic is not read again, although its watch has fired."""
    patch.setattr(Knowledge, "invalidate", lambda self, path: None)


def trusts_watches_of_an_old_connection(patch: pytest.MonkeyPatch) -> None:
    """The member relies on watches that the client library has forgotten."""
    patch.setattr(Knowledge, "reconnected", lambda self: None)


def keeps_what_an_old_session_read(patch: pytest.MonkeyPatch) -> None:
    """A new session starts with the knowledge of the lost one."""
    patch.setattr(Knowledge, "forget", lambda self: None)


def refreshes_nothing(patch: pytest.MonkeyPatch) -> None:
    """The periodic reading reads no more than any other."""
    patch.setattr(Knowledge, "force_refresh", lambda self: None)
