"""Many groups in waves: chosen from a file, decided one by one, moved as soon as they stop."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome
from zkmigrate.apply.parallel import Run
from zkmigrate.errors import PlanFileError
from zkmigrate.formats import decisions_file
from zkmigrate.formats.plan_file import PlanFile, load, parse, render
from zkmigrate.plan.options import Options, Rule

from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


@pytest.fixture
def five(bench: Bench, unique: str, topic: str) -> list[str]:
    """Five stopped groups with offsets 3 and 4."""
    bench.topic(topic, 2)
    groups = [f"{unique[-8:]}-{number}" for number in range(5)]
    for group in groups:
        bench.set_zk(group, topic, {0: 3, 1: 4})
    return groups


def moved(bench: Bench, groups: list[str], topic: str) -> list[str]:
    """The last characters of those groups that have offsets in Kafka."""
    return [group[-1] for group in groups if bench.committed(group, {topic: 2})]


# -- which groups ----------------------------------------------------------------------------------


def test_a_plan_is_applied_and_taken_back_in_waves(
    bench: Bench, shell: Shell, five: list[str], topic: str, tmp_path: Path
) -> None:
    """One group is moved first, then a file of groups, then the rest. verify and rollback work on
    single groups. The status is about the chosen groups, and the others are not changed."""
    plan = str(tmp_path / "plan")
    names = tmp_path / "names"
    names.write_text("# the estate\n\n" + "".join(f"{one}  # soon\n" for one in five))
    assert shell("plan", "--groups-from", str(names), "--out", plan)[0] == 0
    status, rows = shell.rows("apply", plan, "--limit", "1", "--execute")
    assert (status, [row["group"] for row in rows]) == (0, five[:1])
    assert moved(bench, five, topic) == ["0"]
    status, _, err = shell("apply", plan, "--limit", "1", "--execute", "--exclude", five[1])
    assert (status, "--limit 1: 2 groups are left" in err) == (0, True), err
    assert moved(bench, five, topic) == ["0", "2"]
    assert shell("status", plan, "--group", five[0], "--group", five[2])[0] == 0
    status, rows = shell.rows("status", plan)
    assert (status, [row["group"] for row in rows]) == (3, [five[1], five[3], five[4]])
    assert {row["kind"] for row in rows} == {"not-moved"}
    names.write_text(f"{five[1]}\n{five[3]}\n")
    assert shell("apply", plan, "--groups-from", str(names), "--execute")[0] == 0
    assert moved(bench, five, topic) == ["0", "1", "2", "3"]
    status, rows = shell.rows("undo", plan, "--group", five[1], "--execute")
    assert (status, [row["outcome"] for row in rows]) == (0, ["done"])
    assert moved(bench, five, topic) == ["0", "2", "3"]
    assert shell("status", plan, "--groups-regex", ".*-[023]")[0] == 0


def test_names_that_are_not_known_are_all_listed(
    shell: Shell, five: list[str], tmp_path: Path
) -> None:
    """The error lists every misspelt name in a file of groups, and nothing is planned."""
    names = tmp_path / "names"
    names.write_text(f"{five[0]}\nnot-here\nnor-this\n")
    for words in (("plan",), ("plan", "--out", str(tmp_path / "plan"))):
        status, _, err = shell(*words, "--groups-from", str(names))
        assert (status, "2 of the 3 named groups" in err, "not-here, nor-this" in err) == (
            1,
            True,
            True,
        )
    assert not (tmp_path / "plan").exists()
    names.write_text("# none\n")
    status, _, err = shell("plan", "--groups-from", str(names))
    assert (status, "lists no groups" in err) == (2, True)
    assert shell("plan", "--group", five[0], "--out", str(tmp_path / "one"))[0] == 0
    status, _, err = shell("apply", str(tmp_path / "one"), "--group", five[1])
    assert (status, f"there is no group {five[1]}" in err) == (1, True)


def test_a_plan_of_another_cluster_is_refused(
    shell: Shell, five: list[str], topic: str, bench: Bench, tmp_path: Path
) -> None:
    """A plan that names another cluster is neither applied nor compared. A plan that was edited is
    refused as a whole."""
    plan = tmp_path / "plan"
    assert shell("plan", "--group", five[0], "--out", str(plan))[0] == 0
    head, rest = plan.read_text().split("\n", 1)
    assert json.loads(head)["cluster"]
    (tmp_path / "other").write_text(plan.read_text())
    plan.write_text(f"{head} \n{rest}")
    status, _, err = shell("apply", str(plan), "--execute")
    assert (status, "the file was edited" in err) == (2, True)
    made = load(str(tmp_path / "other"))
    lines = render(made.direction, made.made_ms, made.groups, None, "elsewhere")
    plan.write_text("".join(lines))
    for words in (("apply", str(plan), "--execute"), ("status", str(plan))):
        status, _, err = shell(*words)
        assert (status, "made for the cluster elsewhere" in err) == (1, True)
    assert moved(bench, five, topic) == []


# -- decisions -------------------------------------------------------------------------------------


def test_decisions_of_single_groups_and_topics(
    bench: Bench, shell: Shell, unique: str, topic: str, tmp_path: Path
) -> None:
    """``--decisions-out`` writes a file with a question for each group that needs a decision. Once
    it is filled in, each group is resolved in its own way, and some topics in another. The plan
    follows all decisions."""
    name = unique[-8:]
    other = f"{topic}-b"
    bench.topic(topic, 1)
    bench.topic(other, 1)
    for group in ("a", "b", "c", "d"):
        bench.set_zk(f"{name}-{group}", topic, {0: 3})
    for group in ("a", "b"):
        bench.set_zk(f"{name}-{group}", other, {0: 4})
        bench.set_kafka(f"{name}-{group}", topic, {0: 8})
        bench.set_kafka(f"{name}-{group}", other, {0: 9})
    bench.set_zk(f"{name}-c", f"{topic}-gone", {0: 5})
    bench.set_zk(f"{name}-d", other, {0: 99})
    chosen = ("--groups-regex", f"{name}-.*")
    file = tmp_path / "decisions.toml"
    assert shell("plan", *chosen, "--decisions-out", str(file))[0] == 3
    text = file.read_text()
    for group, question in (
        ("a", 'on_conflict = "refuse"  # or zookeeper, kafka, newest, min, max'),
        ("c", 'missing_topics = "refuse"  # or skip'),
        ("d", 'out_of_range = "refuse"  # or clamp'),
    ):
        part = text.split(f'group = "{name}-{group}"')[1].split("[[rule]]")[0]
        assert question in part
        assert f"{topic}" in part
    plan = str(tmp_path / "plan")
    assert shell("plan", *chosen, "--decisions", str(file), "--out", plan)[0] == 3

    first = f'[[rule]]\ngroup = "{name}-a"\ntopic = "{other}"\non_conflict = "zookeeper"\n\n'
    for question, answer in (
        ('on_conflict = "refuse"', 'on_conflict = "kafka"'),
        ('missing_topics = "refuse"', 'missing_topics = "skip"'),
        ('out_of_range = "refuse"', 'out_of_range = "clamp"'),
    ):
        text = text.replace(question, answer)
    file.write_text(first + text)
    plan = str(tmp_path / "plan2")
    status, rows = shell.rows("plan", *chosen, "--decisions", str(file), "--out", plan)
    assert (status, {row["verdict"] for row in rows}) == (0, {"ready"}), rows
    assert shell("apply", plan, "--execute")[0] == 0
    held = {
        group: {
            tp.topic.removeprefix(topic): stored.offset
            for tp, stored in bench.committed(f"{name}-{group}", {topic: 1, other: 1}).items()
        }
        for group in "abcd"
    }
    assert held == {
        "a": {"": 8, "-b": 4},
        "b": {"": 8, "-b": 9},
        "c": {"": 3},
        "d": {"": 3, "-b": 20},
    }


def test_where_to_start_without_an_offset_and_in_topics_made_again(
    bench: Bench, shell: Shell, group: str, topic: str, tmp_path: Path
) -> None:
    """A partition without an offset starts where the operator says, and so does a recreated topic.
    Without a decision neither store gets an offset that no client stored."""
    bench.set_zk(group, topic, {0: 3})
    bench.topic(topic, 2, messages=20)
    words = ("plan", "--group", group, "--out")

    def planned(*more: str) -> dict[int, Any]:
        out = tmp_path / f"plan-{random.randrange(10**9)}"
        shell(*words, str(out), *more)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        return {one["partition"]: one["to"] for one in lines if "partition" in one}

    assert planned() == {1: None}
    assert planned("--recreated-topics", "earliest") == {0: 0, 1: None}
    assert planned("--recreated-topics", "skip", "--without-offset", "latest") == {1: 20}
    assert planned("--recreated-topics", "skip", "--without-offset", "earliest") == {1: 0}
    status, rows = shell.rows(
        "plan", "--group", group, "--recreated-topics", "skip", "--without-offset", "refuse"
    )
    assert (status, rows[0]["kind"]) == (3, "no-offset")
    assert f"{topic}-1" in rows[0]["what"]
    assert rows[0]["stays_behind"] == [
        {"topic": topic, "partition": 0, "offset": 3, "why": "topic-recreated"}
    ]


def test_rules_decide_in_their_order() -> None:
    """The first rule that matches group and topic and makes a decision wins. If no rule does, the
    options decide."""
    options = Options(
        "min",
        rules=(
            Rule("a*", "t1", decided={"on_conflict": "kafka"}),
            Rule("a1", decided={"max_idle_days": 3, "on_conflict": "max"}),
            Rule("*", decided={"recreated_topics": "skip", "on_conflict": "zookeeper"}),
            Rule("b", "t*", skip=True),
            Rule("c", "t", 0, skip=True),
            Rule("d", decided={"max_idle_days": 0}),
        ),
    )

    def decided(group: str, topic: str) -> str:
        return options.of_group(group).of_topic(topic).on_conflict

    assert decided("a1", "t1") == "kafka"
    assert decided("a1", "t2") == "max"
    assert decided("a2", "t2") == "zookeeper"
    assert options.of_group("a1").max_idle_days == 3
    assert options.of_group("a2").max_idle_days == Options().max_idle_days
    assert options.of_group("a1").of_topic("x").recreated_topics == "skip"
    assert [skip.topic for skip in options.of_group("b").skips] == ["t*"]
    assert [skip.pattern for skip in options.of_group("c").skips] == ["t:0"]
    assert Options("min").of_group("a").of_topic("t").on_conflict == "min"
    restored = decisions_file.from_json(
        "x", json.loads(json.dumps(decisions_file.to_json(options)))
    )
    assert restored == options


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[[rule]]\ngroup = 'a'\non_conflict = 'both'", ["rule 1", "on_conflict", "zookeeper"]),
        ("[[rule]]\ngroup = 'a'", ["rule 1", "decides nothing"]),
        ("[[rule]]\ngruop = 'a'\nskip = true", ["rule 1", "gruop", "group"]),
        ("[[rule]]\nmax_idle_days = '3'", ["max_idle_days", "an integer of 0 or more"]),
        ("[[rule]]\ngroup = ''\nskip = true", ["group", "a string that is not empty"]),
        ("[[rule]]\ngroup = 'a'\nskip = 1", ["skip", "true or false"]),
        ("[[rule]]\ntopic = 't'\nmax_idle_days = 3", ["max_idle_days", "remove topic"]),
        ("[[rule]]\npartition = 1\non_conflict = 'max'", ["rule 1", "partition requires skip"]),
        ("[[rule]]\npartition = -1\nskip = true", ["rule 1", "partition"]),
        ("[rules]\na = 1", ["rules", "[[rule]]"]),
        ("[[rule]\n", ["TOML"]),
        ("rule = 3", ["rule", "[[rule]]"]),
    ],
)
def test_a_malformed_decision_is_named(text: str, names: list[str]) -> None:
    """A mistake in a file of decisions is refused, and the error names file, rule and key."""
    with pytest.raises(PlanFileError) as caught:
        decisions_file.parse("d.toml", text.encode())
    assert all(name in str(caught.value) for name in ["d.toml", *names]), caught.value


# -- offsets are read when a group is applied ------------------------------------------------------


@pytest.fixture
def member(bench: Bench, topic: str) -> Iterator[Any]:
    """Starts live members. Each commits its consumed messages at shutdown."""
    started: list[ZookeeperConsumerConnector] = []

    def start(group: str) -> ZookeeperConsumerConnector:
        config = {
            "zookeeper.connect": bench.cluster.zookeeper,
            "group.id": group,
            "auto.commit.enable": "false",
            "consumer.timeout.ms": "20000",
        }
        connector = ZookeeperConsumerConnector(config)
        started.append(connector)
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for _ in range(5):
            next(iter(stream))
            stream.mark_consumed()
        return connector

    yield start
    for connector in started:
        connector.shutdown()


def test_groups_are_reviewed_while_they_run_and_moved_when_they_stop(
    bench: Bench, shell: Shell, five: list[str], topic: str, member: Any, tmp_path: Path
) -> None:
    """A plan of running groups shows what will be decided. apply --wait moves stopped groups at
    once, and the others within seconds after their members stop. It uses the offsets that they
    committed last. verify and rollback know what was moved."""
    live = {group: member(group) for group in five[:2]}
    chosen = [word for group in five for word in ("--group", group)]
    plan = str(tmp_path / "plan")
    assert shell("plan", *chosen, "--out", str(tmp_path / "now"))[0] == 3
    assert shell("plan", *chosen, "--at-apply")[0] == 0
    status, rows = shell.rows("plan", *chosen, "--at-apply", "--out", plan)
    assert status == 0
    assert [row["group"] for row in rows if "members run" in row["notes"]] == five[:2]
    bench.set_zk(five[4], topic, {0: 7})  # one more commit does not make a plan stale
    status, rows = shell.rows("apply", plan, "--execute")
    assert status == 3
    assert {row["group"] for row in rows if row["outcome"] == "refused"} == set(five[:2])
    assert moved(bench, five, topic) == ["2", "3", "4"]
    stopped: dict[str, float] = {}
    seen: dict[str, float] = {}

    def stop() -> None:
        for group, connector in live.items():
            connector.commit_offsets()
            connector.shutdown()
            stopped[group] = time.monotonic()
            wait_until(lambda group=group: bench.committed(group, {topic: 2}), 60, "it is moved")
            seen[group] = time.monotonic()

    thread = threading.Thread(target=stop)
    thread.start()
    results = applied(bench, plan, 60)
    thread.join()
    assert all(one.outcome.good for one in results), results
    assert all(seen[group] - stopped[group] < 10 for group in live)
    for group in five:
        held = bench.committed(group, {topic: 2})
        offsets = {
            tp: int(bench.client.get(f"/consumers/{group}/offsets/{topic}/{tp.partition}")[0])
            for tp in (TopicPartition(topic, 0), TopicPartition(topic, 1))
        }
        assert {tp: stored.offset for tp, stored in held.items()} == offsets  # type: ignore[attr-defined]
    assert sum(offset for offset in offsets.values()) == 11
    assert shell("status", plan)[0] == 0
    assert shell("apply", plan, "--execute")[0] == 0
    again = str(tmp_path / "again")
    assert shell("plan", *chosen, "--at-apply", "--out", again)[0] == 0
    assert shell("status", again)[0] == 0  # they are moved, although not by this plan
    assert shell("undo", plan, "--group", five[4], "--execute")[0] == 0
    assert moved(bench, five, topic) == ["0", "1", "2", "3"]


def applied(bench: Bench, plan: str, wait: float) -> list[Any]:
    """Apply a plan in a file, and wait for groups to stop."""
    loaded = load(plan)
    with (
        bench.stores() as stores,
        Journal(Path(f"{plan}.journal"), loaded.digest) as journal,
    ):
        return Migrator(stores).apply(
            loaded, Run(journal, idle=True), lambda _result: None, wait=wait
        )


def late_plan(bench: Bench, groups: list[str], options: Options | None = None) -> PlanFile:
    """A plan that reads the offsets of its groups when they are applied."""
    chosen = options or Options(max_idle_days=10**6)
    made, _ = bench.plan(groups, options=chosen)
    lines = render(made.direction, made.made_ms, made.groups, chosen)
    return parse("plan", "".join(lines).encode())


def test_new_problems_of_a_group_are_its_own(bench: Bench, five: list[str], topic: str) -> None:
    """If a group has a conflict, an offset beyond the log or no readable offset when it is applied,
    it is refused by name. The others are moved."""
    plan = late_plan(bench, five, Options(missing_topics="skip", max_idle_days=10**6))
    bench.set_kafka(five[0], topic, {0: 9})
    bench.set_zk(five[1], topic, {0: 99})
    bench.set_zk(five[2], topic, {0: b"x"})
    results = bench.apply(plan, bench.folder / "journal")
    assert [one.outcome for one in results] == [Outcome.SKIPPED] * 3 + [Outcome.DONE] * 2
    assert "zookeeper 3, kafka 9" in results[0].why
    assert "the log is 0-20" in results[1].why
    assert f"/consumers/{five[2]}/offsets/{topic}/0" in results[2].why
    bench.set_zk(five[1], topic, {0: 6})
    results = bench.apply(plan, bench.folder / "journal")
    assert [one.outcome.value for one in results] == [
        "skipped", "done", "skipped", "was done before", "was done before",
    ]  # fmt: skip


def test_waiting_for_members_ends_at_ctrl_c(
    bench: Bench, five: list[str], topic: str, tmp_path: Path, shell: Shell
) -> None:
    """apply --wait names the groups for which it waits. Ctrl-C ends it with status 130, and the
    groups moved so far are done. Without --wait a group with members fails and is named."""
    member = f"/consumers/{five[0]}/ids/{five[0]}_x"
    plan = str(tmp_path / "plan")
    chosen = ("--group", five[0], "--group", five[1])
    assert shell("plan", *chosen, "--at-apply", "--out", plan)[0] == 0
    bench.client.create(member, b"{}", makepath=True)
    code = "from zkmigrate.cli import main; main()"
    words = ("apply", plan, "--execute", "--wait", "600", "--zookeeper", shell.zookeeper)
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    ) as process:
        assert process.stderr is not None
        waits = f"the members of 1 groups to stop: {five[0]}"
        assert any(waits in line for line in process.stderr), "it ended before it waited"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read()
        assert "moving: 1 of 2 groups are done" in said
        assert "run the same command again" in said
    assert moved(bench, five, topic) == ["1"]
    status, rows = shell.rows("apply", plan, "--execute")
    assert (status, [row["outcome"] for row in rows]) == (3, ["refused", "was done before"])
    assert f"{five[0]}_x" in rows[0]["why"]
    bench.client.delete(member)
    assert shell("apply", plan, "--execute", "--wait", "5")[0] == 0
    assert moved(bench, five, topic) == ["0", "1"]
