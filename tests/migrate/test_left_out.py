"""Offsets that the operator skips: only those stay behind, and every step reports each of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from zkconsumer.core.common.types import TopicPartition

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


def test_the_advised_skip_leaves_out_one_offset_of_one_group(
    bench: Bench, shell: Shell, tmp_path: Path, unique: str, topic: str
) -> None:
    """One group has an offset for a partition that does not exist. The option in the fix skips only
    that offset. The group's other offsets move, and so do those of another group on the same topic.
    Plan, apply and verify each report the skipped offset, as JSON and below the table."""
    bench.topic(topic, 2)
    bad, good = f"{unique[-8:]}-a", f"{unique[-8:]}-b"
    bench.set_zk(bad, topic, {0: 3, 1: 4, 9: 5})
    bench.set_zk(good, topic, {0: 6, 1: 7})
    both = ("--groups-regex", f"{unique[-8:]}-.")
    plan = str(tmp_path / "plan")
    status, rows = shell.rows("plan", *both)
    assert (status, [row["verdict"] for row in rows]) == (3, ["needs a decision", "ready"])
    advised = re.findall(r"--skip (\S+)", rows[0]["fix"])
    assert advised == [f"{bad}:{topic}:9"]
    left = [{"topic": topic, "partition": 9, "offset": 5, "why": "skipped"}]
    name = f"{topic}-9 (5, skipped)"

    status, rows = shell.rows("plan", *both, "--skip", advised[0], "--out", plan)
    assert (status, [row["stays_behind"] for row in rows]) == (0, [left, []])
    status, _, err = shell("plan", *both, "--skip", advised[0])
    assert (status, f"stays behind in zookeeper: {name} (group {bad})" in err) == (0, True)
    assert json.loads(Path(plan).read_text().splitlines()[1])["stays_behind"] == left

    status, _, err = shell("apply", plan)
    assert (status, f"note: group {bad}: stays behind: {name}" in err) == (0, True)
    status, rows = shell.rows("apply", plan, "--execute")
    assert (status, [row["stays_behind"] for row in rows]) == (0, [left, []])
    status, rows = shell.rows("status", plan)
    assert status == 0
    assert [(row["group"], row["partition"], row["found"]) for row in rows] == [(bad, 9, 5)]
    assert rows[0]["what"] == "stays behind in zookeeper: skipped"
    status, _, err = shell("status", plan)
    assert "compared: 1 stays-behind" in err
    for group, offsets in ((bad, [3, 4]), (good, [6, 7])):
        held = bench.committed(group, {topic: 2})
        assert [held[TopicPartition(topic, p)].offset for p in range(2)] == offsets  # type: ignore[attr-defined]


def test_a_skip_that_does_nothing_is_reported(
    filled: Bench, shell: Shell, group: str, topic: str
) -> None:
    """A misspelt group or topic is reported, and a malformed skip is a usage error."""
    status, _, err = shell("plan", "--group", group, "--skip", f"{group}x:{topic}")
    assert (status, f"--skip {group}x:{topic} keeps no offset" in err) == (0, True), err
    for bad in (topic, f"{group}:", f":{topic}", f"{group}:{topic}:1:"):
        status, _, err = shell("plan", "--group", group, "--skip", bad)
        assert status == 2
        assert "write GROUP:TOPIC or GROUP:TOPIC:PARTITION" in err


def test_many_deleted_topics_need_one_more_run(
    filled: Bench, shell: Shell, tmp_path: Path, group: str, topic: str
) -> None:
    """The JSON names all deleted topics, and the table the first few. One option skips them all,
    and the move is complete."""
    gone = [f"{topic}-gone-{number}" for number in range(6)]
    for name in gone:
        filled.set_zk(group, name, {0: 3})
    status, (row,) = shell.rows("plan", "--group", group)
    assert (status, row["kind"]) == (3, "topic-missing")
    assert all(f"{name}-0" in row["what"] and f":{name}" in row["fix"] for name in gone)
    _, out, _ = shell("plan", "--group", group)
    assert f"{gone[2]}-0 and 3 more" in out
    assert gone[3] not in out
    plan = str(tmp_path / "plan")
    status, (row,) = shell.rows("plan", "--group", group, "--missing-topics", "skip", "--out", plan)
    assert (status, [one["topic"] for one in row["stays_behind"]]) == (0, gone)
    status, _, err = shell("apply", plan, "--execute")
    assert (status, "6 offsets stay behind" in err) == (0, True), err
    assert shell("status", plan)[0] == 0
    assert len(filled.committed(group, {topic: 2})) == 2


def test_a_decision_leaves_out_no_more_than_what_was_asked(
    bench: Bench, shell: Shell, group: str, topic: str, tmp_path: Path
) -> None:
    """One offset cannot be read. The rule that ``--decisions-out`` writes names only that
    partition, so ``skip = true`` moves all others. status does not treat the skipped offset as a
    change in ZooKeeper until it changes."""
    bench.topic(topic, 3)
    gone = f"{topic}-gone"
    bench.set_zk(group, gone, {0: 5})
    bench.set_zk(group, topic, {0: b"rubbish", 1: 3, 2: 4})
    file, plan = tmp_path / "decisions.toml", str(tmp_path / "plan")
    assert shell("plan", "--group", group, "--decisions-out", str(file))[0] == 3
    text = file.read_text().replace("skip = false", "skip = true")
    file.write_text(text.replace('missing_topics = "refuse"', 'missing_topics = "skip"'))
    words = ("plan", "--group", group, "--decisions", str(file), "--at-apply", "--out", plan)
    assert shell(*words)[0] == 0, file.read_text()
    assert shell("apply", plan, "--execute")[0] == 0
    held = {tp.partition: one.offset for tp, one in bench.committed(group, {topic: 3}).items()}
    assert held == {1: 3, 2: 4}
    status, rows = shell.rows("status", plan)
    assert (status, {row["kind"] for row in rows}) == (0, {"stays-behind"})
    assert [row["what"].endswith("cannot be read") for row in rows] == [
        row["topic"] == topic for row in rows
    ]
    status, (row,) = shell.rows("status", "--group", group)
    assert (status, row["changed"], row["attention"]) == (0, 0, "")
    bench.set_zk(group, gone, {0: 6})
    assert shell("status", "--group", group)[0] == 3
