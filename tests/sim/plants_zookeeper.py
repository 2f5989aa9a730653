"""Bugs to plant in the machine and the scripts of a group in ZooKeeper."""

from __future__ import annotations

import pytest

from tests.support.rewriting import rewrite
from zkconsumer.core.zookeeper.known import Knowledge, Known
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Permit
from zkconsumer.core.zookeeper.scripts import legacy, ownership, view
from zkconsumer.runtime.membership import zookeeper


def releases_while_fetching(patch: pytest.MonkeyPatch) -> None:
    """Owner znodes are deleted before fetchers are stopped."""
    new = "return self._announce_release()"
    rewrite(patch, RebalanceMachine._stop, "token = self._await(State.STOPPING)", new)


def drops_triggers_while_busy(patch: pytest.MonkeyPatch) -> None:
    """A watch that fires during a rebalance is forgotten."""
    old = "if not self._due.group:"
    rewrite(
        patch,
        RebalanceMachine._pull_trigger,
        old,
        f"if self.state not in IDLE: return\n        {old}",
    )


def claims_without_touching_the_offset(patch: pytest.MonkeyPatch) -> None:
    """A claim does not change the offset's version, so an earlier owner's commit succeeds."""
    old = "ops.append(SetData(self.paths.offset(tp), offset.data, offset.stat.version))"
    rewrite(patch, ownership._Claiming.operations, old, "pass")
    rewrite(patch, ownership._Claiming.won, "assert isinstance(last, Stat)", "last = offset.stat")


def releases_by_path(patch: pytest.MonkeyPatch) -> None:
    """A release deletes owner znodes of any owner."""
    patch.setattr(ownership, "release", legacy.release)


def commits_without_condition(patch: pytest.MonkeyPatch) -> None:
    """The last writer of an offset wins."""
    patch.setattr(ownership, "commit", legacy.commit)


def trusts_remembered_positions(patch: pytest.MonkeyPatch) -> None:
    """A position from a lost session counts although the stored offset has moved."""
    new = "self._remembered[tp].position if tp in self._remembered else None"
    rewrite(patch, RebalanceMachine._start_offset, "self._resumed_at(tp)", new)


def never_reads_again(patch: pytest.MonkeyPatch) -> None:
    """A lost watch is never compensated."""
    rewrite(patch, RebalanceMachine._timer_fired, 'elif event.name == "reread":', "elif False:")


def has_no_lease(patch: pytest.MonkeyPatch) -> None:
    """Delivery continues however long ZooKeeper is silent."""
    patch.setattr(zookeeper, "LEASE", 100.0)


def stores_in_kafka_without_asking(patch: pytest.MonkeyPatch) -> None:
    """An offset is sent to Kafka although the session may have ended."""
    patch.setattr(zookeeper.ZooKeeperCoordination, "_permit", lambda *_: Permit.GRANTED)


def keeps_partitions_of_a_lost_session(patch: pytest.MonkeyPatch) -> None:
    """Streams continue with what the lost session owned."""
    rewrite(patch, RebalanceMachine._session_lost, "self._emit(Drop(frozenset(self.held)))", "pass")


def forgets_blocked_partitions(patch: pytest.MonkeyPatch) -> None:
    """Partitions that others still owned are not claimed later."""
    patch.setattr(RebalanceMachine, "_finish", RebalanceMachine._settle)


def believes_any_registration(patch: pytest.MonkeyPatch) -> None:
    """The member does not check its registration."""
    patch.setattr(view, "_is_own", lambda found, ctx, epoch: True)


def takes_equal_names_for_equal_members(patch: pytest.MonkeyPatch) -> None:
    """A registration that was replaced by one with the same id is not read again."""
    old = "if (now.changes - before.changes) % _COUNTER != moved:"
    rewrite(patch, Known.registrations_still, old, "if False:")


def reads_no_topic_twice(patch: pytest.MonkeyPatch) -> None:
    """A topic is not read again, although its watch has fired."""
    patch.setattr(Knowledge, "invalidate", lambda self, path: None)


def trusts_watches_of_an_old_connection(patch: pytest.MonkeyPatch) -> None:
    """The member relies on watches that the client library has forgotten."""
    patch.setattr(Knowledge, "reconnected", lambda self: None)


def forgets_what_it_has_released(patch: pytest.MonkeyPatch) -> None:
    """The member does not look for owner znodes that a restored server may have again."""
    real = RebalanceMachine._doubt_claims

    def doubt(self: RebalanceMachine) -> None:
        self._claimed_here.clear()
        real(self)

    patch.setattr(RebalanceMachine, "_doubt_claims", doubt)


def keeps_what_an_old_session_read(patch: pytest.MonkeyPatch) -> None:
    """A new session starts with the knowledge of the lost one."""
    patch.setattr(Knowledge, "forget", lambda self: None)


def refreshes_nothing(patch: pytest.MonkeyPatch) -> None:
    """The periodic reading reads no more than any other."""
    patch.setattr(Knowledge, "force_refresh", lambda self: None)
