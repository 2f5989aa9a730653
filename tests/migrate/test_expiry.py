"""Offsets that are gone from the store that they were moved to. On a simulated cluster."""

from __future__ import annotations

import shutil

import pytest
from zkmigrate.model import Direction
from zkmigrate.text import day

from tests.migrate.simulated import Ran, Simulated, simulated
from zkconsumer.core.common.types import TopicPartition

__all__ = ["simulated"]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
DO = ("--execute", "--parallel", "1")


@pytest.fixture
def moved(simulated: Simulated) -> Simulated:
    """A group that was moved to Kafka, at 100 and 50."""
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.in_zookeeper("g", "t", 100, 50)
    simulated.run("plan", "--all", "--out", simulated.file("plan"))
    assert simulated.run("apply", simulated.file("plan"), *DO).status == 0
    assert simulated.run("status", "--all").status == 0
    return simulated


def expire(simulated: Simulated, *gone: TopicPartition) -> None:
    """Kafka deletes these offsets."""
    for tp in gone:
        del simulated.kafka.committed["g"][tp]


def planned(simulated: Simulated, name: str, way: Direction, *words: str) -> Ran:
    """Plan all groups."""
    more = ("--direction", way.value, "--out", simulated.file(name))
    return simulated.run("plan", "--group", "g", *more, *words)


@pytest.mark.parametrize("gone", [(T0, T1), (T1,)], ids=["all", "some"])
def test_status_names_what_is_gone(moved: Simulated, gone: tuple[TopicPartition, ...]) -> None:
    """The exit status is that of ``behind``, and the row is a problem."""
    expire(moved, *gone)
    found = moved.run("status", "--all", "--only-problems")
    (row,) = found.rows
    assert (found.status, row["truth"], row["days_left"]) == (3, "kafka", 0)
    assert "offsets that were moved are gone from kafka" in row["attention"]
    assert all(str(tp) in row["attention"] for tp in gone)


def test_a_deleted_topic_is_no_expiry(moved: Simulated) -> None:
    """Kafka deletes the offsets of a deleted topic, and nothing is lost."""
    expire(moved, T0, T1)
    moved.zk.delete("/brokers/topics/t")
    assert moved.run("status", "--all").status == 0
    again = moved.run("apply", moved.file("plan"), *DO)
    assert (again.status, again.rows[0]["outcome"]) == (0, "was done before")


@pytest.mark.parametrize("way", list(Direction))
@pytest.mark.parametrize("gone", [(T0, T1), (T1,)], ids=["all", "some"])
def test_a_plan_needs_a_decision(
    moved: Simulated, way: Direction, gone: tuple[TopicPartition, ...]
) -> None:
    """In both directions: consumers may have been beyond the offset that was moved."""
    moved.in_kafka("g", "t", 500)
    expire(moved, *gone)
    made = planned(moved, "again", way)
    problems = [(row["kind"], row["verdict"]) for row in made.rows]
    assert problems == [("expired", "needs a decision")], made
    assert all(f"{tp}: " in made.rows[0]["what"] for tp in gone)
    assert moved.run("plan", "--all", "--direction", way.value).status == 3
    moved.run("plan", "--all", "--decisions-out", moved.file("decisions.toml"))
    assert 'expired_offsets = "refuse"' in (moved.folder / "decisions.toml").read_text()


@pytest.mark.parametrize(
    ("rule", "to"), [("moved", (100, 50)), ("earliest", (0, 0)), ("latest", (1000, 1000))]
)
@pytest.mark.parametrize("way", list(Direction))
def test_a_decision_is_carried_out(
    moved: Simulated, way: Direction, rule: str, to: tuple[int, int]
) -> None:
    """The target has the chosen offset, and nothing needs attention afterwards. The offset that
    consumers have committed in the other partition is kept."""
    moved.in_kafka("g", "t", 500)
    expire(moved, T1)
    assert planned(moved, "again", way, "--expired-offsets", rule).status == 0
    assert moved.run("apply", moved.file("again"), *DO).status == 0
    back = way is Direction.KAFKA_TO_ZK
    zk, kafka = moved.held("g", "t")
    assert (zk if back else kafka) == {0: 500, 1: to[1]}
    assert moved.run("status", "--all").status == 0
    assert moved.run("status", moved.file("again")).status == 0


def test_an_offset_that_was_lost_in_zookeeper_needs_a_decision_too(moved: Simulated) -> None:
    """Somebody deletes it after the group was moved back."""
    assert planned(moved, "back", Direction.KAFKA_TO_ZK).status == 0
    assert moved.run("apply", moved.file("back"), *DO).status == 0
    moved.zk.delete("/consumers/g/offsets/t/1")
    found = moved.run("status", "--all")
    assert found.status == 3
    assert "gone from zookeeper: " in found.rows[0]["attention"]
    for way in Direction:
        made = planned(moved, f"again-{way.value}", way)
        assert [row["kind"] for row in made.rows] == ["expired"], way


@pytest.mark.parametrize("gone", [(T0, T1), (T1,)], ids=["all", "some"])
def test_a_rollback_takes_what_is_gone_for_unchanged(
    moved: Simulated, gone: tuple[TopicPartition, ...]
) -> None:
    """ZooKeeper still has the offsets that were moved."""
    expire(moved, *gone)
    done = moved.run("undo", moved.file("plan"), *DO)
    assert (done.status, done.rows[0]["outcome"]) == (0, "done"), done
    assert moved.held("g", "t") == ({0: 100, 1: 50}, {})
    found = moved.run("status", "--all")
    assert (found.status, found.rows[0]["truth"], found.rows[0]["locked"]) == (0, "zookeeper", "no")


@pytest.mark.parametrize("where", ["kafka", "zookeeper"])
def test_a_rollback_after_a_commit_is_refused(moved: Simulated, where: str) -> None:
    """One partition is gone, and another was used since: in Kafka, or by an old consumer."""
    expire(moved, T1)
    if where == "kafka":
        moved.in_kafka("g", "t", 101)
    else:
        moved.in_zookeeper("g", "t", 100, 51)
    done = moved.run("undo", moved.file("plan"), *DO)
    assert (done.status, done.rows[0]["outcome"]) == (3, "refused")
    assert "it has changed since" in done.rows[0]["why"]


def test_a_rolled_back_group_was_not_done_before(moved: Simulated) -> None:
    """A colleague rolls the group back, with copies of plan and journal."""
    for name in ("plan", "plan.journal"):
        shutil.copy(moved.file(name), moved.file(f"copy-of-{name}"))
    shutil.copy(moved.file("plan.journal"), moved.file("copy.journal"))
    assert moved.run("undo", moved.file("plan"), "--journal", moved.file("copy.journal"),
                     *DO).status == 0  # fmt: skip
    again = moved.run("apply", moved.file("plan"), *DO)
    assert (again.status, again.rows[0]["outcome"]) == (3, "refused")
    assert "the group was rolled back since it was moved by this plan" in again.rows[0]["why"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: expire(one, T1), "t-1: kafka holds none, less than 50, which was moved"),
        (lambda one: one.in_kafka("g", "t", 99), "t-0: kafka holds 99, less than 100"),
        (lambda one: one.in_kafka("g", "t", 0), "t-0: kafka holds 0, less than 100"),
        (lambda one: one.in_kafka("g", "t", 100), ""),
        (lambda one: one.in_kafka("g", "t", 101), ""),
        (lambda one: one.in_zookeeper("g", "t", 101), "t-0: zookeeper holds 101, not 100"),
        (lambda one: one.zk.delete("/consumers/g/migration"), "the group was rolled back"),
        (lambda one: one.zk.set("/consumers/g/migration", b"x"), "is not a migration marker"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_done_before_is_said_of_the_stores(moved: Simulated, change, why: str, dry: bool) -> None:  # type: ignore[no-untyped-def]
    """Not of the journal: the marker must be that of this move, and the target hold at least what
    was moved."""
    change(moved)
    again = moved.run("apply", moved.file("plan"), *DO[0 if not dry else 1 :])
    if why:
        assert (again.status, again.rows[0]["outcome"]) == (3, "refused"), again
        assert why in again.rows[0]["why"]
    else:
        assert (again.status, again.rows[0]["outcome"]) == (0, "was done before"), again


@pytest.mark.parametrize("at_apply", [False, True])
def test_moved_before_is_said_of_the_stores(moved: Simulated, at_apply: bool) -> None:
    """A plan of a moved group says that there is nothing to do. The offsets expire after it."""
    words = ("--at-apply",) if at_apply else ()
    assert planned(moved, "again", Direction.ZK_TO_KAFKA, *words).rows[0]["verdict"] == "moved"
    assert moved.run("apply", moved.file("again"), *DO).rows[0]["why"] == "was moved before"
    expire(moved, T1)
    done = moved.run("apply", moved.file("again"), *DO)
    assert done.status == 3, done


@pytest.mark.parametrize("clock", [-8, 0, 8], ids=["behind", "right", "ahead"])
def test_days_are_counted_from_zookeepers_time(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    """Not from the plan, which may be old, nor from the clock of whoever made and applied it."""
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper("g", "t", 100)
    now_s = simulated.now_ms / 1000
    with monkeypatch.context() as wrong:
        wrong.setattr("time.time", lambda: now_s + clock * 86_400)
        simulated.run("plan", "--all", "--max-idle-days", "99", "--out", simulated.file("plan"))
        assert simulated.run("apply", simulated.file("plan"), *DO).status == 0
    for days, left, status in ((0, 7, 0), (3.9, 3, 0), (4.1, 2, 3), (8, 0, 3)):
        monkeypatch.setattr("time.time", lambda days=days: now_s + days * 86_400)
        found = simulated.run("status", "--all")
        assert (found.rows[0]["days_left"], found.status) == (left, status), (days, found)
        assert found.rows[0]["moved"] == f"kafka {day(simulated.now_ms)}"


@pytest.fixture
def planned_in_kafka(simulated: Simulated) -> Simulated:
    """A group with ``offsets.storage=kafka``, at 7 and 8, and a plan to Kafka."""
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.zk.set("/consumers/g/ids")
    simulated.in_kafka("g", "t", 7, 8)
    assert simulated.run("plan", "--all", "--out", simulated.file("plan")).status == 0
    return simulated


@pytest.fixture
def was_in_kafka(planned_in_kafka: Simulated) -> Simulated:
    """This group, after the move."""
    simulated = planned_in_kafka
    assert simulated.run("apply", simulated.file("plan"), *DO).status == 0
    assert simulated.run("status", "--all").status == 0
    return simulated


@pytest.mark.parametrize("gone", [(T0, T1), (T1,)], ids=["all", "some"])
def test_a_group_that_had_its_offsets_in_kafka_before(
    was_in_kafka: Simulated, gone: tuple[TopicPartition, ...]
) -> None:
    """The marker records the offsets that only Kafka had. If they are gone, every command that
    looks at the group shows it."""
    expire(was_in_kafka, *gone)
    found = was_in_kafka.run("status", "--all")
    assert found.status == 3
    names = ", ".join(map(str, gone))
    assert (
        f"gone from kafka: make a new plan, which shows what to decide ({names})"
        in (found.rows[0]["attention"])
    )
    assert was_in_kafka.run("status", was_in_kafka.file("plan")).status == 3
    again = was_in_kafka.run("apply", was_in_kafka.file("plan"), *DO)
    assert f"{gone[0]}: kafka holds none, less than " in again.rows[0]["why"]


@pytest.mark.parametrize("rule", ["moved", "earliest", "latest"])
def test_an_expired_offset_that_only_kafka_had_is_decided_like_others(
    was_in_kafka: Simulated, rule: str
) -> None:
    """A plan asks what to do, and a decision is carried out."""
    expire(was_in_kafka, T1)
    way = Direction.ZK_TO_KAFKA
    asked = planned(was_in_kafka, "asked", way)
    assert [(row["kind"], row["verdict"]) for row in asked.rows] == [
        ("expired", "needs a decision")
    ]
    assert "t-1: 8 at the move to kafka, zookeeper holds none" in asked.rows[0]["what"]
    assert planned(was_in_kafka, "again", way, "--expired-offsets", rule).status == 0
    assert was_in_kafka.run("apply", was_in_kafka.file("again"), *DO).status == 0
    to = {"moved": 8, "earliest": 0, "latest": 1000}[rule]
    assert was_in_kafka.held("g", "t") == ({}, {0: 7, 1: to})
    assert was_in_kafka.run("status", "--all").status == 0


@pytest.mark.parametrize("gone", [(), (T0, T1), (T1,)], ids=["nothing", "all", "some"])
def test_a_rollback_does_not_pass_over_an_offset_that_only_kafka_had(
    was_in_kafka: Simulated, gone: tuple[TopicPartition, ...]
) -> None:
    """No store has it any more, so the old consumers would start elsewhere."""
    expire(was_in_kafka, *gone)
    done = was_in_kafka.run("undo", was_in_kafka.file("plan"), *DO)
    if gone:
        assert (done.status, done.rows[0]["outcome"]) == (3, "refused")
        assert f"{gone[0]}: kafka holds none, not " in done.rows[0]["why"]
    else:
        assert (done.status, done.rows[0]["outcome"]) == (0, "done")


def test_a_late_commit_to_zookeeper_of_a_group_that_was_in_kafka(was_in_kafka: Simulated) -> None:
    """An old consumer of the other storage runs: ``status`` names the partition."""
    was_in_kafka.in_zookeeper("g", "t", 9)
    found = was_in_kafka.run("status", "--all")
    assert found.status == 3
    assert "zookeeper has changed since the move" in found.rows[0]["attention"]
