"""``--at-apply``: decisions count only for what the preview showed. On a simulated cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.simulated import Ran, Simulated, simulated
from zkconsumer.errors import BrokerError

__all__ = ["simulated"]
Change = Callable[[Simulated], None]


def planned(simulated: Simulated, *options: str) -> str:
    """Plan a group with offsets 5 and 6 in topic ``t``, and 7 in ``u``."""
    simulated.topic("t", (0, 100), (0, 100))
    simulated.topic("u", (0, 100))
    simulated.in_zookeeper("g", "t", 5, 6)
    simulated.in_zookeeper("g", "u", 7)
    plan = simulated.file("plan")
    assert simulated.run("plan", "--all", "--at-apply", *options, "--out", plan).status == 0
    return plan


def applied(simulated: Simulated, plan: str) -> Ran:
    """Apply a plan of one group."""
    return simulated.run("apply", plan, "--execute")


def conflict(simulated: Simulated) -> None:
    """A consumer commits to Kafka."""
    simulated.in_kafka("g", "u", 3)


def topic_gone(simulated: Simulated) -> None:
    """A topic is deleted."""
    simulated.zk.delete("/brokers/topics/u")


def recreated(simulated: Simulated) -> None:
    """A topic is deleted and created again."""
    topic_gone(simulated)
    simulated.topic("u", (0, 100))


def new_partition(simulated: Simulated) -> None:
    """A topic gets a partition, in which the group has no offset."""
    simulated.topic("u", (0, 100), (0, 50))


def below_offset(simulated: Simulated) -> None:
    """A 1.1.0 broker stores an offset below ``offset``."""
    simulated.in_zookeeper("g", "u", 9, where="offset")


def log_cut(simulated: Simulated) -> None:
    """Messages are deleted."""
    simulated.topic("u", (50, 100))


def new_topic(simulated: Simulated) -> None:
    """The group stores an offset of another topic."""
    simulated.topic("v", (0, 100))
    simulated.in_zookeeper("g", "v", 3)


CASES: tuple[tuple[Change, tuple[str, ...], str], ...] = (
    (conflict, ("--on-conflict", "kafka"), "u-0 (conflict: kafka"),
    (conflict, ("--on-conflict", "max"), "u-0 (conflict: zookeeper"),
    (topic_gone, ("--missing-topics", "skip"), "u-0 (7 stays behind: topic-missing)"),
    (recreated, ("--recreated-topics", "earliest"), "u-0 (only zookeeper has an offset; 7 is of"),
    (recreated, ("--recreated-topics", "skip"), "u-0 (7 stays behind: topic-recreated)"),
    (new_partition, ("--without-offset", "latest"), "u-1 (no offset: the log's latest"),
    (below_offset, ("--misplaced", "use"), "u-0 (only zookeeper has an offset; stored below"),
    (log_cut, ("--out-of-range", "clamp"), "u-0 (only zookeeper has an offset; 7 clamped"),
    (new_topic, ("--skip", "*:v*"), "v-0 (3 stays behind: skipped)"),
)


@pytest.mark.parametrize(("change", "options", "why"), CASES)
def test_a_decision_about_what_nobody_reviewed_is_not_carried_out(
    simulated: Simulated, change: Change, options: tuple[str, ...], why: str
) -> None:
    """The problem appeared after the preview. The group is refused, nothing is written, and a new
    plan shows the problem. Its preview makes the decision count."""
    plan = planned(simulated, *options)
    change(simulated)
    found = applied(simulated, plan)
    assert (found.status, found.rows[0]["outcome"]) == (3, "refused"), found
    assert f"changed since review: {why}" in found.rows[0]["why"]
    before = simulated.kafka.committed.get("g", {})
    assert set(before) <= {tp for tp in before if tp.topic == "u"}, "nothing of t was written"
    again = simulated.file("again")
    made = simulated.run("plan", "--all", "--at-apply", *options, "--out", again)
    assert made.rows[0]["verdict"] == "ready", made
    found = applied(simulated, again)
    assert (found.status, found.rows[0]["outcome"]) == (0, "done"), found


def test_the_same_problem_in_a_reviewed_topic_is_decided(simulated: Simulated) -> None:
    """A group runs until apply, so its offsets are not those of the preview. The kind of problem
    in the topic is."""
    simulated.in_kafka("g", "t", 3)
    plan = planned(simulated, "--on-conflict", "zookeeper")
    simulated.in_kafka("g", "t", 4, 2)
    found = applied(simulated, plan)
    assert found.rows[0]["outcome"] == "done", found
    assert simulated.held("g", "t")[1] == {0: 5, 1: 6}


def test_another_kind_of_problem_in_a_reviewed_topic_is_not_decided(simulated: Simulated) -> None:
    """The preview had a conflict in the topic, and now its log was cut too."""
    simulated.in_kafka("g", "t", 3)
    plan = planned(simulated, "--on-conflict", "zookeeper", "--out-of-range", "clamp")
    simulated.topic("t", (10, 100), (0, 100))
    found = applied(simulated, plan)
    assert "changed since review: t-0 (conflict: zookeeper" in found.rows[0]["why"], found


def test_only_the_plan_that_was_approved_is_applied(simulated: Simulated) -> None:
    """``plan`` prints the file's SHA-256, and ``apply --sha256`` refuses any other file, even if it
    is a valid plan. The journal records the digest."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    approved, other = simulated.file("approved"), simulated.file("other")
    said = simulated.run("plan", "--all", "--out", approved).err
    digest = sha256(Path(approved).read_bytes()).hexdigest()
    assert f"SHA-256 {digest}" in said
    assert simulated.run("plan", "--all", "--out", other).status == 0
    found = simulated.run("apply", other, "--sha256", digest, "--execute")
    assert (found.status, simulated.held("g", "t")[1]) == (2, {}), found
    assert "not the approved plan" in found.err
    found = simulated.run("apply", approved, "--sha256", digest.upper(), "--execute")
    assert (found.status, simulated.held("g", "t")[1]) == (0, {0: 5}), found
    assert f'"sha256":"{digest.upper()}"' in Path(f"{approved}.journal").read_text()


@pytest.mark.parametrize("how", ["option", "file"])
def test_a_group_with_other_znodes_can_be_moved(simulated: Simulated, how: str) -> None:
    """A wrapper keeps its state next to the offsets. The operator has looked at it, and the znodes
    stay."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    simulated.zk.set("/consumers/g/lastCommit", b"2024-05-31")
    plan = simulated.file("plan")
    (row,) = simulated.run("plan", "--all", "--out", plan).rows
    assert (row["verdict"], row["kind"]) == ("needs a decision", "other-znodes")
    assert row["what"].endswith("/consumers/g/lastCommit")
    rules = simulated.file("rules")
    asked = simulated.run("plan", "--all", "--decisions-out", rules)
    assert asked.status == 3
    with open(rules) as file:
        text = file.read()
    assert 'other_znodes = "refuse"  # or ignore' in text
    with open(rules, "w") as file:
        file.write(text.replace('"refuse"  # or', '"ignore"  # or'))
    decision = ("--other-znodes", "ignore") if how == "option" else ("--decisions", rules)
    (row,) = simulated.run("plan", "--all", *decision, "--out", plan + "2").rows
    assert row["verdict"] == "ready"
    assert "these znodes stay as they are: /consumers/g/lastCommit" in row["notes"]
    assert applied(simulated, plan + "2").rows[0]["outcome"] == "done"
    assert simulated.held("g", "t")[1] == {0: 5}
    assert simulated.zk.text("/consumers/g/lastCommit") == b"2024-05-31"


@pytest.mark.parametrize("path", ["partition_0", "owners/t/1-3"])
def test_offsets_of_another_client_are_never_left_aside(simulated: Simulated, path: str) -> None:
    """Storm's offsets, and owners of pykafka: those of the JVM's layout are not all there is."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    simulated.zk.set(f"/consumers/g/{path}", b"4711")
    found = simulated.run("plan", "--all", "--other-znodes", "ignore")
    assert ("refused", "foreign-layout") in {(row["verdict"], row["kind"]) for row in found.rows}


def test_a_group_without_offsets_in_the_layout_is_another_clients(simulated: Simulated) -> None:
    """Its offsets are somewhere in the other znodes."""
    simulated.zk.set("/consumers/g/state/t", b"4711")
    found = simulated.run("plan", "--all", "--other-znodes", "ignore")
    assert "foreign-layout" in {row["kind"] for row in found.rows}


def test_an_unreadable_group_can_be_skipped(simulated: Simulated) -> None:
    """Its owner will not allow it to be read. The question of ``--decisions-out`` has an answer
    that works, and the reason is in the plan."""
    simulated.topic("t", (0, 100))
    for group in ("g", "secret"):
        simulated.in_zookeeper(group, "t", 5)

    def fetch(group: str, tps: object) -> Any:
        if group == "secret":
            raise BrokerError("offsets of group secret: GROUP_AUTHORIZATION_FAILED (30)")
        return right(group, tps)

    right, simulated.kafka.fetch = simulated.kafka.fetch, fetch
    rules = simulated.file("rules")
    assert simulated.run("plan", "--all", "--decisions-out", rules).status == 3
    with open(rules) as file:
        text = file.read()
    assert "skip = false" in text
    with open(rules, "w") as file:
        file.write(text.replace("skip = false", "skip = true"))
    plan = simulated.file("plan")
    made = simulated.run("plan", "--all", "--decisions", rules, "--out", plan)
    assert made.status == 0, made
    found = {row["group"]: row["verdict"] for row in made.rows}
    assert found == {"g": "ready", "secret": "ignored"}
    done = applied(simulated, plan)
    whys = {row["group"]: row["why"] for row in done.rows}
    assert done.status == 0
    assert "cannot be read: offsets of group secret: GROUP_AUTHORIZATION_FAILED" in whys["secret"]


def test_each_rule_shows_only_what_it_is_about(simulated: Simulated) -> None:
    """A file with a rule for each of many partitions repeats none of them elsewhere."""
    simulated.topic("t", (0, 100))
    simulated.topic("t-1", (0, 100))
    simulated.in_zookeeper("g", "t", *range(20))
    simulated.in_zookeeper("g", "t-1", 5)
    for number in (0, 1, 11):
        simulated.zk.set(f"/consumers/g/offsets/t/{number}", b"0x%d" % number)
    simulated.zk.set("/consumers/g/offsets/t-1/0", b"0x77")
    rules = simulated.file("rules")
    simulated.run("plan", "--all", "--decisions-out", rules)
    with open(rules) as file:
        tables = file.read().split("[[rule]]")
    shown = {
        (match[1], int(match[2])): table.count("0x")
        for table in tables
        if (match := re.search(r'topic = "(.*)"\npartition = (.*)\n', table))
    }
    assert shown == {("t", 0): 1, ("t", 1): 1, ("t", 11): 1, ("t-1", 0): 1}, tables


def test_a_plan_says_that_a_rollback_would_fail(simulated: Simulated) -> None:
    """The way forward needs fewer rights than the way back, so the night would find it out."""
    simulated.topic("t", (0, 100))
    for group in "ab":
        simulated.in_zookeeper(group, "t", 5)
    simulated.kafka.kept = {"new-b"}
    rows = simulated.run("plan", "--all", "--rename", "b=new-b").rows
    assert {row["group"]: "a rollback would fail" in row["notes"] for row in rows} == {
        "a": False,
        "b": True,
    }


@pytest.mark.parametrize("words", [(), ("--at-apply",)])
@pytest.mark.parametrize("reviewed", [(), ("backup",)])
@pytest.mark.parametrize("late", ["notes", "partition_0"])
def test_a_znode_that_nobody_reviewed_is_not_ignored(
    simulated: Simulated, words: tuple[str, ...], reviewed: tuple[str, ...], late: str
) -> None:
    """It appeared after the plan. A new plan shows it, and then it may be ignored."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    for name in reviewed:
        simulated.znode(f"/consumers/g/{name}", b"2020")
    ignore = ("plan", "--all", *words, "--other-znodes", "ignore", "--out")
    assert simulated.run(*ignore, "plan").rows[0]["verdict"] == "ready"
    simulated.znode(f"/consumers/g/{late}", b"7")
    for more in ((), ("--execute",)):
        ran = simulated.run("apply", "plan", *more)
        assert ran.status == 3, ran
        assert late == "partition_0" or ran.rows[0]["reasons"] == ["not-reviewed"], ran
    assert not simulated.kafka.committed.get("g")
    if late == "notes":
        assert simulated.run(*ignore, "again").rows[0]["verdict"] == "ready"
        assert simulated.run("apply", "again", "--execute").status == 0


def test_a_member_of_another_client_is_a_member(simulated: Simulated) -> None:
    """It started after the plan. ``apply --wait`` waits for it, as for every other one."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    assert simulated.run("plan", "--all", "--out", "plan").status == 0
    registration = {"version": 1, "pattern": "white_list", "subscription": {"t": 1, "u": 1}}
    simulated.znode("/consumers/g/ids/kafka-node", json.dumps(registration).encode())
    ran = simulated.run("apply", "plan", "--execute")
    assert (ran.status, ran.rows[0]["reasons"]) == (3, ["live-member"]), ran
