"""Decisions of a plan after the cluster has left ZooKeeper, and the offsets that would be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from zkmigrate.model import (
    Direction,
    GroupState,
    KafkaOffset,
    Log,
    LogRange,
    MigrationMarker,
    Retention,
    Store,
    TopicState,
    ZkOffset,
)
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.left import what_is_left
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import GroupPlan, StaysBehind, Verdict
from zkmigrate.reasons import Reason

from zkconsumer.core.common.types import TopicPartition

NOW = 1_700_000_000_000
TP = TopicPartition("orders", 0)


def state(
    zk: int | None = 5, kafka: int | None = None, log: Log = Log.UNPROVEN, czxid: int = 2**50
) -> GroupState:
    """A group with one partition of a topic that is known to be the same, or not."""
    return GroupState(
        "g",
        zk={} if zk is None else {TP: ZkOffset(zk, 3, 20, NOW)},
        kafka={} if kafka is None else {TP: KafkaOffset(kafka)},
        ranges={TP: LogRange(2, 10)},
        topics={"orders": TopicState(czxid, (0,), log)},
    )


def made(found: GroupState, rule: Any = "refuse", means: Any = "default") -> GroupPlan:
    """The plan for ``found``."""
    options = Options(unproven_topics=rule, source_means=means)
    return plan_group(found, Direction.ZK_TO_KAFKA, options, NOW, Retention(10080, True))


def kinds(plan: GroupPlan) -> list[Reason]:
    """The kinds of problems in a plan."""
    return [problem.kind for problem in plan.problems]


def test_a_topic_of_unknown_identity_needs_a_decision() -> None:
    """The plan refuses it unless an operator trusts it, starts at the log's beginning, or skips
    it."""
    plan = made(state())
    assert (kinds(plan), plan.verdict) == ([Reason.UNPROVEN], Verdict.DECIDE)
    assert "--unproven-topics trust" in plan.problems[0].fix
    assert "--skip g:orders" in plan.problems[0].fix
    assert made(state(), "trust").entries[0].to == 5
    earliest = made(state(), "earliest").entries[0]
    assert (earliest.to, earliest.write) == (2, True)
    skipped = made(state(), "skip")
    assert (skipped.verdict, skipped.entries) == (Verdict.READY, ())
    assert skipped.stays == (StaysBehind(TP, 5, "topic-unproven"),)


@pytest.mark.parametrize("means", ["next", "last"])
@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (Log.SAME, Reason.RECREATED),
        (Log.OTHER, Reason.RECREATED),
        (Log.UNPROVEN, Reason.UNPROVEN),
    ],
)
@pytest.mark.parametrize("layout", [False, True])
def test_what_a_number_means_does_not_hide_another_topic(
    means: str, log: Log, kind: Reason, layout: bool
) -> None:
    """Neither the last record read, nor a number in another client's layout."""
    found = state(log=log, czxid=21)
    if layout:
        found = replace(found, zk={}, layout="storm", layout_zk=found.zk, from_file={TP: 5})
    plan = made(found, means=means)
    assert (kinds(plan), plan.verdict) == ([kind], Verdict.DECIDE)


def test_what_kafka_holds_needs_no_proof() -> None:
    """An offset in Kafka belongs to Kafka's log."""
    assert made(state(5, 6), means="last").verdict is Verdict.READY
    assert kinds(made(state(None, 5))) == [Reason.NOTHING]
    assert made(state(5, 5)).verdict is Verdict.READY


@pytest.mark.parametrize(
    ("log", "czxid", "kind"),
    [
        (Log.SAME, 10, None),
        (Log.SAME, 21, Reason.RECREATED),
        (Log.OTHER, 10, Reason.RECREATED),
        (Log.OTHER, 2**50, Reason.RECREATED),
    ],
)
def test_a_topic_with_another_id_was_created_again(
    log: Log, czxid: int, kind: Reason | None
) -> None:
    """With the same id the creation time decides, as before. With another id, the id decides."""
    assert kinds(made(state(log=log, czxid=czxid))) == ([] if kind is None else [kind])


@pytest.mark.parametrize(
    ("zk", "kafka", "lost", "word"),
    [(5, None, 1, "none"), (5, 4, 1, "older"), (5, 5, 0, "same"), (5, 9, 0, "newer")],
)
def test_what_only_zookeeper_has_would_be_lost(
    zk: int, kafka: int | None, lost: int, word: str
) -> None:
    """An offset counts as lost if Kafka has none or a lower one. A newer offset in Kafka is not a
    loss."""
    found = what_is_left(state(zk, kafka, Log.SAME))
    assert (found.lost, found.left, found.kafka) == (lost, bool(lost), word)
    assert found.last_activity == "2023-11-14T22:13:20Z"


def test_members_and_moves_count() -> None:
    """A live member is left behind too. An offset that was moved lower on purpose is not."""
    alive = what_is_left(replace(state(5, 5), members=("g_old",)))
    assert (alive.left, alive.lost, alive.members) == (True, 0, 1)
    marker = MigrationMarker(Store.KAFKA, NOW, {TP: 5}, b"")
    assert not what_is_left(replace(state(5, 4), marker=marker)).left
    since = replace(marker, values={TP: 3})
    assert what_is_left(replace(state(5, 4), marker=since)).lost == 1
    assert what_is_left(replace(state(5, None), marker=marker)).lost == 1
    assert not what_is_left(replace(state(), topics={})).left
