"""Decisions and refusals of a plan with every policy, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from zkmigrate.model import (
    Direction,
    GroupState,
    KafkaOffset,
    LogRange,
    MigrationMarker,
    Retention,
    Store,
    TopicState,
    ZkOffset,
)
from zkmigrate.plan.group import DAY_MS, plan_group
from zkmigrate.plan.options import (
    CHOICES,
    Options,
    Skip,
    covers,
)
from zkmigrate.plan.values import GroupPlan, StaysBehind, Verdict
from zkmigrate.reasons import Reason

from zkconsumer.core.common.types import TopicPartition

NOW = 1_700_000_000_000
TP = TopicPartition("orders", 0)
FORTH, BACK = Direction.ZK_TO_KAFKA, Direction.KAFKA_TO_ZK


def state(
    zk: int | None = 5, kafka: int | None = None, log: tuple[int, int] = (0, 10)
) -> GroupState:
    """A group with one partition whose topic was created before its offset."""
    return GroupState(
        "g",
        zk={} if zk is None else {TP: ZkOffset(zk, 3, 20, NOW)},
        kafka={} if kafka is None else {TP: KafkaOffset(kafka)},
        ranges={TP: LogRange(*log)},
        topics={"orders": TopicState(10, (0,))},
    )


def made(found: GroupState, direction: Direction = FORTH, **options: object) -> GroupPlan:
    """The plan for ``found``."""
    chosen = replace(Options(), **options)  # type: ignore[arg-type]
    return plan_group(found, direction, chosen, NOW, Retention(10080, True))


def kinds(plan: GroupPlan) -> list[Reason]:
    """The kinds of problems in a plan."""
    return [problem.kind for problem in plan.problems]


def test_an_offset_of_one_store_is_moved_and_says_why() -> None:
    """An offset that only the source has is written to the target, in either direction. Zero is an
    offset."""
    for found, direction in ((state(0), FORTH), (state(None, 0), BACK)):
        plan = made(found, direction)
        assert plan.verdict is Verdict.READY
        (entry,) = plan.entries
        assert (entry.to, entry.write) == (0, True)
        assert entry.reason == f"only {direction.source.value} has an offset"


def test_no_offset_stays_no_offset() -> None:
    """A partition without an offset is planned as missing, never as 0, and a note names it."""
    found = replace(state(), topics={"orders": TopicState(10, (0, 1))})
    plan = made(found)
    entry = plan.entries[1]
    assert (entry.tp, entry.to, entry.write) == (TopicPartition("orders", 1), None, False)
    assert "orders-1" in plan.notes[0]


def test_the_target_keeps_what_only_it_has() -> None:
    """An offset that only the target has is not deleted, even beyond the log."""
    found = replace(state(None, 99), misplaced={TopicPartition("orders", 0): 4})
    plan = made(found, misplaced="ignore")
    assert [(entry.to, entry.write) for entry in plan.entries] == [(99, False)]
    assert plan.verdict is Verdict.READY


@pytest.mark.parametrize("direction", [FORTH, BACK])
@pytest.mark.parametrize(
    ("policy", "zk", "kafka", "to"),
    [
        ("zookeeper", 3, 7, 3),
        ("kafka", 3, 7, 7),
        ("min", 3, 7, 3),
        ("min", 7, 3, 3),
        ("max", 3, 7, 7),
        ("max", 7, 3, 7),
    ],
)
def test_a_conflict_is_settled_as_told(
    direction: Direction, policy: Any, zk: int, kafka: int, to: int
) -> None:
    """Each policy chooses the offset that it names. The target is written only if it differs."""
    plan = made(state(zk, kafka), direction, on_conflict=policy)
    (entry,) = plan.entries
    assert plan.verdict is Verdict.READY
    assert entry.to == to
    held = kafka if direction is FORTH else zk
    assert entry.write == (to != held)
    assert policy in entry.reason


def test_a_conflict_without_a_policy_needs_a_decision() -> None:
    """Different offsets in both stores are never resolved without a policy. The problem shows
    both."""
    plan = made(state(3, 7))
    assert plan.verdict is Verdict.DECIDE
    assert kinds(plan) == [Reason.CONFLICT]
    assert "zookeeper 3, kafka 7" in plan.problems[0].what
    assert "--on-conflict" in plan.problems[0].fix


def test_equal_offsets_are_no_conflict() -> None:
    """If both stores agree there is nothing to write or decide."""
    plan = made(state(7, 7))
    assert (plan.verdict, plan.entries[0].write) == (Verdict.READY, False)


@pytest.mark.parametrize(
    ("committed", "to"), [(NOW - 1, 3), (NOW + 1, 7), (NOW, None), (None, None)]
)
def test_newest_compares_times_and_never_guesses(committed: int | None, to: int | None) -> None:
    """The newer offset wins. With an unknown or equal time the operator must decide."""
    found = replace(state(3, 7), kafka={TP: KafkaOffset(7, commit_ms=committed)})
    plan = made(found, on_conflict="newest")
    if to is None:
        assert kinds(plan) == [Reason.CONFLICT]
    else:
        assert (plan.verdict, plan.entries[0].to) == (Verdict.READY, to)


def test_newest_counts_again_after_a_rollback_once_a_consumer_commits() -> None:
    """Times that a rollback set do not count. Times of later commits do."""
    rolled_back = MigrationMarker(None, NOW, {}, b"")
    for after_ms, verdict in ((-1, Verdict.DECIDE), (999, Verdict.DECIDE), (DAY_MS, Verdict.READY)):
        found = replace(
            state(3, 7),
            kafka={TP: KafkaOffset(7, commit_ms=NOW + after_ms)},
            marker=rolled_back,
        )
        plan = made(found, on_conflict="newest")
        assert plan.verdict is verdict
        assert any("was rolled back on" in note for note in plan.notes)


@pytest.mark.parametrize(("value", "bound"), [(1, 2), (11, 10), (2**63 - 1, 10)])
def test_offsets_outside_the_log(value: int, bound: int) -> None:
    """Offsets outside the log are refused, or clamped to the nearest end if the operator asks for
    it. A note reports the clamp."""
    found = state(value, log=(2, 10))
    plan = made(found)
    assert kinds(plan) == [Reason.OUT_OF_RANGE]
    assert f"{value}, the log is 2-10" in plan.problems[0].what
    (entry,) = made(found, out_of_range="clamp").entries
    assert (entry.to, entry.write) == (bound, True)
    assert f"{value} clamped" in entry.reason


@pytest.mark.parametrize("value", [2, 10])
def test_both_ends_of_the_log_are_inside(value: int) -> None:
    """A consumer can be at the first offset and at the next offset to be written."""
    assert made(state(value, log=(2, 10))).verdict is Verdict.READY


def test_an_unknown_log_range_refuses() -> None:
    """Without the leader's answer, an offset is not treated as valid."""
    plan = made(replace(state(), ranges={}))
    assert (plan.verdict, kinds(plan)) == (Verdict.REFUSED, [Reason.UNKNOWN])


def test_topics_that_are_gone_or_came_back() -> None:
    """Missing topics and partitions, and offsets older than the topic, need a decision."""
    for found, kind in (
        (replace(state(), topics={}), Reason.TOPIC_MISSING),
        (replace(state(), topics={"orders": TopicState(10, (1,))}), Reason.PARTITION_MISSING),
        (replace(state(), topics={"orders": TopicState(21, (0,))}), Reason.RECREATED),
    ):
        plan = made(found)
        assert kind in kinds(plan)
        assert "--skip g:orders" in plan.problems[0].fix
        skipped = made(found, skips=(Skip("g", "orders"),))
        assert (skipped.verdict, skipped.entries) == (Verdict.READY, ())
        assert skipped.stays == (StaysBehind(TP, 5, "skipped"),)


def test_misplaced_offsets_are_used_ignored_or_refused() -> None:
    """Offsets of a 1.1.0 broker that are stored below ``offset`` are never ignored silently."""
    found = replace(state(3), misplaced={TP: 6})
    assert kinds(made(found)) == [Reason.MISPLACED]
    assert made(found, misplaced="use").entries[0].to == 6
    assert made(found, misplaced="ignore").entries[0].to == 3


def test_who_is_there_is_named() -> None:
    """Live members in either place, and owners without a member, refuse the group and are named."""
    for found, kind, name in (
        (replace(state(), members=("g_host-1",)), Reason.LIVE_MEMBER, "g_host-1"),
        (replace(state(), owners={TP: "g_dead-0"}), Reason.OWNED, "g_dead-0"),
        (replace(state(), coordinator_members=("app at h (m)",)), Reason.COORDINATOR_MEMBER, "app"),
        (replace(state(), foreign=("/consumers/g/owners/t/1-3",)), Reason.FOREIGN_LAYOUT, "t/1-3"),
        (replace(state(), faults=("broken",)), Reason.UNKNOWN, "broken"),
    ):
        plan = made(found)
        assert (plan.verdict, kinds(plan)) == (Verdict.REFUSED, [kind])
        assert name in plan.problems[0].what


def test_old_groups_are_not_brought_back_unasked() -> None:
    """A group without writes for a long time needs a decision, which the fix describes."""
    found = replace(state(), zk={TP: ZkOffset(5, 3, 20, NOW - 400 * DAY_MS)})
    plan = made(found)
    assert kinds(plan) == [Reason.IDLE]
    assert "--max-idle-days 400" in plan.problems[0].fix
    assert made(found, max_idle_days=400).verdict is Verdict.READY


def test_an_empty_group_is_refused() -> None:
    """Nothing to move is a reason to check group and chroot, not a success."""
    assert kinds(made(state(None))) == [Reason.NOTHING]


def test_the_day_of_expiry_is_told() -> None:
    """The plan shows when the broker would delete the offsets, and warns if that is soon."""
    (note,) = made(state()).notes
    assert "2023-11-21" in note
    soon = plan_group(state(), FORTH, Options(), NOW, Retention(1440, False)).notes[0]
    assert "2023-11-15 (1 days)" in soon
    assert "default" in soon


def test_a_marker_shows_which_store_is_stale() -> None:
    """After a move the source store may be overwritten, even with a lower offset, if no client has
    written to it."""
    for target_now, verdict, to in ((3, Verdict.READY, 2), (4, Verdict.DECIDE, None)):
        found = replace(
            state(target_now, 2), marker=MigrationMarker(Store.KAFKA, NOW, {TP: 3}, b"")
        )
        plan = made(found, BACK)
        assert plan.verdict is verdict
        if to is not None:
            assert (plan.entries[0].to, plan.entries[0].write) == (to, True)


@pytest.mark.parametrize("policy", CHOICES["on_conflict"])
@pytest.mark.parametrize("direction", [FORTH, BACK])
@pytest.mark.parametrize("left", [3, 9, 2**63 - 1], ids=["behind", "ahead", "clamped"])
def test_a_moved_group_is_no_conflict(direction: Direction, policy: Any, left: int) -> None:
    """While the source store has not changed since the move, the group is ``moved``. This holds
    whatever its own consumers have done since and whether they run. No policy writes anything."""
    zk, kafka = (left, 7) if direction is FORTH else (7, left)
    found = replace(
        state(zk, kafka),
        zk={TP: ZkOffset(zk, 3, 20, NOW - 400 * DAY_MS)},
        kafka={TP: KafkaOffset(kafka, commit_ms=NOW - 500 * DAY_MS)},
        marker=MigrationMarker(direction.target, NOW, {TP: left}, b"{}"),
        coordinator_members=("app at h (m)",) if direction is FORTH else (),
        members=("g_host-1",) if direction is BACK else (),
    )
    plan = made(found, direction, on_conflict=policy)
    assert (plan.verdict, kinds(plan)) == (Verdict.MOVED, [])
    assert [(entry.to, entry.write) for entry in plan.entries] == [(7, False)]


@pytest.mark.parametrize("policy", CHOICES["on_conflict"])
@pytest.mark.parametrize("direction", [FORTH, BACK])
def test_no_policy_lowers_what_a_group_was_moved_to(direction: Direction, policy: Any) -> None:
    """If the source store has changed since the move, that is a conflict. But no policy resolves it
    with an offset below that of the current store."""
    old, live = 5, 7
    zk, kafka = (old, live) if direction is FORTH else (live, old)
    at = {direction.source: NOW, direction.target: NOW - 1}
    found = replace(
        state(zk, kafka),
        zk={TP: ZkOffset(zk, 3, 20, at[Store.ZOOKEEPER])},
        kafka={TP: KafkaOffset(kafka, commit_ms=at[Store.KAFKA])},
        marker=MigrationMarker(direction.target, NOW, {TP: 3}, b"{}"),
    )
    plan = made(found, direction, on_conflict=policy)
    assert [(entry.to, entry.write) for entry in plan.entries] == [(live, False)]
    keeps = policy == "max" or policy == direction.target.value
    assert plan.verdict is (Verdict.READY if keeps else Verdict.DECIDE)
    kind = Reason.CONFLICT if policy == "refuse" else Reason.WOULD_LOWER
    assert kinds(plan) == ([] if keeps else [kind])
    if not keeps:
        assert f"{direction.source.value} at the move: 3" in plan.problems[0].what


def test_a_moved_group_with_something_new_is_not_done() -> None:
    """An offset for another partition that only the source has must still be moved."""
    other = TopicPartition("orders", 1)
    found = replace(
        state(3, 7),
        zk={TP: ZkOffset(3, 3, 20, NOW), other: ZkOffset(2, 0, 21, NOW)},
        ranges={TP: LogRange(0, 10), other: LogRange(0, 10)},
        topics={"orders": TopicState(10, (0, 1))},
        marker=MigrationMarker(Store.KAFKA, NOW, {TP: 3}, b"{}"),
    )
    plan = made(found)
    assert plan.verdict is Verdict.READY
    assert [(entry.to, entry.write) for entry in plan.entries] == [(7, False), (2, True)]


def test_metadata_that_zookeeper_cannot_hold_is_told() -> None:
    """The plan names partitions whose metadata will be only in the journal."""
    found = replace(state(None, 4), kafka={TP: KafkaOffset(4, 7, "note")})
    plan = made(found, BACK)
    assert any("metadata" in note and "orders-0" in note for note in plan.notes)
    assert plan.entries[0].kafka == KafkaOffset(4, 7, "note")


def test_offsets_that_the_broker_hides() -> None:
    """Offsets that ACLs hide are not treated as missing. If ZooKeeper or a marker shows that a
    topic belongs to the group, it needs a decision, in either direction. Other topics are named
    where they could be lost."""
    hidden = frozenset({"orders", "secret", "__consumer_offsets"})
    moved = MigrationMarker(Store.KAFKA, NOW, {TP: 3}, b"")
    for direction in (FORTH, BACK):
        for found in (state(5), replace(state(None), marker=moved)):
            plan = made(replace(found, hidden=hidden), direction)
            (problem,) = [one for one in plan.problems if one.kind is Reason.HIDDEN]
            assert problem.verdict is Verdict.DECIDE
            assert "orders-0" in problem.what
            assert "--skip g:orders" in problem.fix
            named = [note for note in plan.notes if "secret" in note]
            assert len(named) == (direction is BACK)
            assert not any("orders" in note or "__consumer" in note for note in named)
    skips = tuple(Skip("g", topic) for topic in hidden)
    skipped = made(replace(state(5), hidden=hidden), BACK, skips=skips)
    assert not any("hide" in note for note in skipped.notes)
    assert skipped.stays == (StaysBehind(TP, None, "skipped"),), "hidden offsets are unknown"
    planned = made(replace(state(5, 7), from_file={TP: 6}, hidden=frozenset({"secret"})), BACK)
    assert (planned.verdict, planned.notes) == (Verdict.READY, ())


def test_a_file_takes_the_place_of_the_source() -> None:
    """Offsets from a file are checked like others, and written even if the stores have different
    ones."""
    found = replace(state(3, 7), from_file={TP: 6})
    assert made(found).entries[0].to == 6
    assert kinds(made(replace(found, from_file={TP: 60}))) == [Reason.OUT_OF_RANGE]


def test_a_skip_means_one_group_and_its_pattern_only() -> None:
    """A topic that is skipped in one group is moved in every other group. Globs choose several
    groups, topics or partitions. A skipped offset is listed with its value, and no other offset is
    skipped."""
    two = TopicPartition("orders", 1)
    found = replace(
        state(5),
        zk={TP: ZkOffset(5, 3, 20, NOW), two: ZkOffset(6, 3, 20, NOW)},
        ranges={TP: LogRange(0, 10), two: LogRange(0, 10)},
        topics={"orders": TopicState(10, (0, 1))},
    )
    for skip, left in (
        (Skip("other", "orders"), []),
        (Skip("g", "order"), []),
        (Skip("g", "orders"), [(TP, 5), (two, 6)]),
        (Skip("*", "ord*"), [(TP, 5), (two, 6)]),
        (Skip("g", "orders", "1"), [(two, 6)]),
        (Skip("?", "*", "[1-9]"), [(two, 6)]),
    ):
        plan = made(found, skips=(skip,))
        assert [(stay.tp, stay.offset) for stay in plan.stays] == left, skip
        assert {entry.tp for entry in plan.entries} == {TP, two} - {tp for tp, _ in left}
        named = [note for note in plan.notes if "stays behind in zookeeper" in note]
        assert len(named) == bool(left)
        assert all(str(tp) in named[0] for tp, _ in left)


def test_a_skipped_offset_that_both_stores_hold_does_not_stay_behind() -> None:
    """Only an offset that the target lacks is reported."""
    assert made(state(5, 5), skips=(Skip("g", "*"),)).stays == ()


def test_offsets_of_many_deleted_topics_are_left_out_at_once() -> None:
    """One option skips and lists every offset whose topic or partition does not exist. Other
    partitions of the group move. A conflict about such an offset needs no decision. An offset that
    only the target has is kept."""
    gone = [TopicPartition(f"gone-{number:02}", 0) for number in range(12)]
    past = TopicPartition("orders", 7)
    kept = TopicPartition("gone-00", 1)
    found = replace(
        state(5),
        zk={tp: ZkOffset(5, 3, 20, NOW) for tp in (TP, past, *gone)},
        kafka={gone[3]: KafkaOffset(2), kept: KafkaOffset(4), gone[4]: KafkaOffset(5)},
    )
    plan = made(found, missing_topics="skip")
    assert plan.verdict is Verdict.READY
    assert [(entry.tp, entry.write) for entry in plan.entries] == [(kept, False), (TP, True)]
    stays = {stay.tp: stay.why for stay in plan.stays}
    assert stays == {
        **dict.fromkeys([tp for tp in gone if tp != gone[4]], "topic-missing"),
        past: "partition-missing",
    }
    assert all(covers(plan.skipped, tp) for tp in (past, *gone))
    assert not any(covers(plan.skipped, tp) for tp in (TP, kept))


def test_lists_are_complete() -> None:
    """Each partition with a problem is named, and the fix names all that can be skipped. So one run
    shows every decision."""
    gone = [TopicPartition(f"gone-{number:02}", 0) for number in range(12)]
    members = tuple(f"g_host-{number}" for number in range(9))
    strange = tuple(f"/consumers/g/offsets/t/x{number}" for number in range(9))
    found = replace(
        state(5),
        zk={tp: ZkOffset(5, 3, 20, NOW) for tp in gone},
        members=members,
        foreign=strange,
        topics={"orders": TopicState(10, (0, 1, 2, 3, 4, 5))},
        kafka={TP: KafkaOffset(1)},
    )
    plan = made(found)
    by_kind = {problem.kind: problem for problem in plan.problems}
    missing = by_kind[Reason.TOPIC_MISSING]
    assert all(str(tp) in missing.what and f"--skip g:{tp.topic}" in missing.fix for tp in gone)
    assert all(name in by_kind[Reason.LIVE_MEMBER].what for name in members)
    assert all(path in by_kind[Reason.FOREIGN_LAYOUT].what for path in strange)
    (unset,) = [note for note in plan.notes if "no offset" in note]
    assert all(f"orders-{number}" in unset for number in range(1, 6))
    assert not any("more" in problem.what for problem in plan.problems)
