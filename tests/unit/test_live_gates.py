"""Conditions under which an operator's tool may not write the next mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from zkmigrate.plan.gates import Facts, may_pass, obstacles, start_obstacles

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
READY = Facts(
    Mode.ZOOKEEPER,
    3,
    frozenset({"g_a", "g_b"}),
    {"g_a": 3, "g_b": 3},
    True,
    frozenset(),
    {P0: 5, P1: 0},
    {P0: 5, P1: 0},
)
WAYS = [
    (Mode.ZOOKEEPER, Mode.LOCKED),
    (Mode.LOCKED, Mode.KAFKA),
    (Mode.KAFKA, Mode.OPEN),
    (Mode.OPEN, Mode.KAFKA),
    (Mode.KAFKA, Mode.LOCKED),
    (Mode.LOCKED, Mode.ZOOKEEPER),
]


@pytest.mark.parametrize(("mode", "target"), WAYS)
def test_a_group_that_is_ready_may_go_on(mode: Mode, target: Mode) -> None:
    """Nothing is in the way, even for a group without members."""
    assert obstacles(replace(READY, mode=mode), target) == ()
    assert obstacles(replace(READY, mode=mode, registered=frozenset(), members={}), target) == ()


@pytest.mark.parametrize(("mode", "target"), WAYS)
@pytest.mark.parametrize("number", [None, 2])
def test_every_member_has_to_acknowledge_the_present_mode(
    mode: Mode, target: Mode, number: int | None
) -> None:
    """An acknowledgement of an earlier mode does not count."""
    facts = replace(READY, mode=mode, members={"g_a": 3, "g_b": number})
    (found,) = obstacles(facts, target)
    assert f"mode {mode.value} is not acknowledged by g_b:" in found


@pytest.mark.parametrize(
    ("mode", "target"),
    [
        (Mode.ZOOKEEPER, Mode.LOCKED),
        (Mode.LOCKED, Mode.KAFKA),
        (Mode.KAFKA, Mode.LOCKED),
        (Mode.KAFKA, Mode.OPEN),
    ],
)
def test_plain_members_that_keep_a_member_from_acknowledging_are_named(
    mode: Mode, target: Mode
) -> None:
    """A plain consumer may have joined before the first migratable member, or just before the mode
    went back to kafka. Then a member that offers only its own strategies cannot join. Waiting helps
    if the member is gone already."""
    facts = replace(READY, mode=mode, members={"g_a": 3, "g_b": 2}, plain=frozenset({"rdkafka-1"}))
    (found,) = obstacles(facts, target)
    assert "stop the plain members on the coordinator (rdkafka-1)" in found
    assert may_pass([found])


@pytest.mark.parametrize(("mode", "target"), [WAYS[3], WAYS[5]])
def test_last_incarnations_of_members_are_waited_for(mode: Mode, target: Mode) -> None:
    """They leave the coordinator's group when their session ends, and nobody can stop them."""
    facts = replace(READY, mode=mode, former=frozenset({"lg-1 at /10.0.0.1"}))
    (found,) = obstacles(facts, target)
    assert "lg-1 at /10.0.0.1" in found
    assert may_pass([found])
    assert not may_pass(obstacles(replace(facts, plain=frozenset({"rdkafka-1"})), target))


def test_a_group_without_a_mode_has_nothing_to_acknowledge() -> None:
    """The first mode is written before there is a znode."""
    facts = replace(READY, version=-1, members={"g_a": None, "g_b": None})
    assert obstacles(facts, Mode.LOCKED) == ()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("target", Mode)
def test_no_mode_is_left_out(mode: Mode, target: Mode) -> None:
    """Only neighbouring modes may be written. The answer names them."""
    allowed = (mode, target) in WAYS
    found = obstacles(replace(READY, mode=mode), target)
    assert (found == ()) == allowed
    if not allowed:
        assert f"in mode {mode.value}" in found[0]


@pytest.mark.parametrize(
    ("ways", "changes", "said"),
    [
        ((0, 1, 2, 3, 4), {"ids_locked": False}, "lock the group's ids first"),
        (
            (0, 1, 2, 3, 4),
            {"registered": frozenset({"g_a", "g_b", "g_old"})},
            "not migratable: g_old:",
        ),
        ((2,), {"in_kafka": {P0: 4, P1: 0}}, "lower in Kafka than in ZooKeeper: t-0:"),
        ((2,), {"in_kafka": {P0: 5}}, "lower in Kafka than in ZooKeeper: t-1:"),
        ((0, 5), {"in_zookeeper": {P0: 4, P1: 0}}, "ZooKeeper"),
        ((3, 5), {"plain": frozenset({"java-1 at /10.0.0.1"})}, "java-1 at /10.0.0.1:"),
    ],
)
def test_each_gate_names_what_is_in_the_way(
    ways: tuple[int, ...], changes: dict[str, Any], said: str
) -> None:
    """The obstacle matters for these gates, and the others ignore it."""
    for number, (mode, target) in enumerate(WAYS):
        found = obstacles(replace(READY, mode=mode, **changes), target)
        if number in ways:
            assert len(found) == 1
            assert said in found[0]
        else:
            assert found == ()


@pytest.mark.parametrize(
    ("mode", "target", "changes"),
    [
        (Mode.KAFKA, Mode.OPEN, {"in_kafka": {P0: 5}}),
        (Mode.LOCKED, Mode.ZOOKEEPER, {"in_zookeeper": {P0: 5}}),
    ],
)
def test_without_members_nobody_carries_offsets_over(
    mode: Mode, target: Mode, changes: dict[str, Any]
) -> None:
    """The tool does not ask the operator to wait, because no member would carry offsets over."""
    facts = replace(READY, mode=mode, **changes)
    (found,) = obstacles(facts, target)
    assert found.endswith("t-1: wait")
    (found,) = obstacles(replace(facts, registered=frozenset(), members={}), target)
    assert found.endswith("t-1: no migratable member is running to copy them: start one")


def test_offsets_of_an_earlier_use_keep_a_group_from_being_locked() -> None:
    """Between the modes the higher offset counts. If the one in Kafka were ahead, records would be
    skipped. But it may be the only right one, so nobody is told to delete it."""
    (found,) = obstacles(replace(READY, in_kafka={P0: 9, P1: 0}), Mode.LOCKED)
    assert "higher in Kafka than in ZooKeeper" in found
    assert "offsets.storage=kafka" in found
    assert "delete" not in found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"misplaced": {P0: 6, P1: 0}}, "below offsets, where members read: t-0: if they"),
        ({"foreign": frozenset({"/consumers/g/partition_0"})}, "layout: /consumers/g/partition_0:"),
        ({"hidden": frozenset({"t"}), "in_kafka": {}}, "hide offsets in Kafka: t: allow"),
    ],
    ids=["misplaced", "foreign", "hidden"],
)
def test_a_live_move_starts_only_if_all_offsets_are_known(
    changes: dict[str, Any], expected: str
) -> None:
    """Offsets that members do not read, or the tool cannot see, would stay behind or be passed
    over. Waiting does not help."""
    why = obstacles(replace(READY, **changes), Mode.LOCKED)
    (found,) = why
    assert expected in found
    assert not may_pass(why)
    assert start_obstacles(replace(READY, **changes)) == [found]


def test_misplaced_offsets_that_members_have_passed_are_no_obstacle() -> None:
    """They are of the past. Nothing would be read again, and nothing skipped."""
    assert obstacles(replace(READY, misplaced={P0: 5}), Mode.LOCKED) == ()


@pytest.mark.parametrize(
    ("mode", "target"), [(Mode.KAFKA, Mode.OPEN), (Mode.LOCKED, Mode.ZOOKEEPER)]
)
def test_stores_are_compared_only_if_all_offsets_are_shown(mode: Mode, target: Mode) -> None:
    """The offsets in Kafka of a topic that may not be described look as if there were none: no
    progress of the members would be seen on the way back."""
    why = obstacles(replace(READY, mode=mode, hidden=frozenset({"t"}), in_kafka={}), target)
    (found,) = why
    assert "the broker's access lists hide offsets in Kafka: t: allow" in found
    assert not may_pass(why)


def test_many_members_are_counted() -> None:
    """Only the first five are named."""
    legacy = frozenset(f"g_old{n}" for n in range(9))
    (found,) = obstacles(replace(READY, registered=legacy), Mode.LOCKED)
    assert "g_old0, g_old1, g_old2, g_old3, g_old4 and 4 more: restart these" in found
