"""``zkmigrate`` moves groups whose offsets stayed in ZooKeeper when their cluster became KRaft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.cli import run

from tests.migrate.java_reader import read_java
from tests.migrate.rows import rows_of
from zkconsumer.cli.main import run as zkconsumer

OTHER = "AAAAAAAAAAAAAAAAAAAAAQ"


class Tool:
    """``zkmigrate`` on an old ZooKeeper and new brokers."""

    def __init__(self, left: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.servers = ["--zookeeper", left.address, "--bootstrap-server", left.kraft.bootstrap]
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command, and return its status, output and errors."""
        status = run([*arguments, *self.servers])
        out, err = self._capsys.readouterr()
        return status, out, err

    def rows(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Run a command with ``--json``."""
        status, out, err = self(*arguments, "--json")
        assert out, err
        return status, rows_of(out)


@pytest.fixture
def tool(left: Any, capsys: pytest.CaptureFixture[str]) -> Tool:
    """The command line."""
    return Tool(left, capsys)


def test_groups_left_behind_are_moved_checked_and_rolled_back(
    left: Any, tool: Tool, topic: str, tmp_path: Path
) -> None:
    """If the topic ids are the same, nothing needs a decision. Every offset is moved, and rolled
    back."""
    left.topic(topic)
    left.remember(topic)
    left.set_zk("g", topic, {0: 3, 1: 5, 2: 7})
    plan = str(tmp_path / "plan")
    assert tool.rows("plan", "--all")[1][0]["verdict"] == "ready"
    assert tool("plan", "--all", "--out", plan)[0] == 0
    assert tool("apply", plan, "--execute")[0] == 0
    assert left.committed("g", topic) == {0: 3, 1: 5, 2: 7}
    assert tool("status", plan)[0] == 0
    assert tool.rows("plan", "--all")[1][0]["verdict"] == "moved"
    assert tool("undo", plan, "--execute")[0] == 0
    assert left.committed("g", topic) == {}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_consumer_of_kafka_4_continues(
    left: Any, tool: Tool, topic: str, tmp_path: Path, protocol: str
) -> None:
    """With either group protocol it reads exactly the messages that the old consumers had not read.
    The offsets that it commits are the group's progress for ``verify``."""
    left.topic(topic)
    ends = left.ends(topic)
    left.remember(topic)
    read = {0: 3, 1: 0, 2: ends[2]}
    left.set_zk("g", topic, read)
    plan = str(tmp_path / "plan")
    assert tool("plan", "--all", "--out", plan)[0] == 0
    assert tool("apply", plan, "--execute")[0] == 0
    rest = {(p, offset): 1 for p in read for offset in range(read[p], ends[p])}
    servers = left.kraft.bootstrap
    seen = read_java("4", servers, "g", topic, len(rest), tmp_path, group_protocol=protocol)
    assert seen == rest
    assert left.committed("g", topic) == ends
    status, rows = tool.rows("status", plan)
    assert (status, {row["kind"] for row in rows}) == (0, {"ahead"})


@pytest.mark.parametrize(
    ("decision", "expected"), [("trust", {0: 3, 1: 5}), ("earliest", {0: 0, 1: 0}), ("skip", {})]
)
def test_a_topic_without_an_id_needs_a_decision(
    left: Any, tool: Tool, topic: str, tmp_path: Path, decision: str, expected: dict[int, int]
) -> None:
    """Nothing proves that it is the same topic, so an operator has to decide, also in a file."""
    left.topic(topic)
    if decision != "trust":
        left.remember(topic, topic_id="")  # as Kafka before 2.8 wrote it
    left.set_zk("g", topic, {0: 3, 1: 5})
    asked = tmp_path / "asked.toml"
    status, rows = tool.rows("plan", "--all", "--decisions-out", str(asked))
    assert (status, rows[0]["kind"]) == (3, "topic-unproven")
    assert "--unproven-topics trust" in rows[0]["fix"]
    text = asked.read_text()
    assert 'unproven_topics = "refuse"' in text
    decided = tmp_path / "decided.toml"
    decided.write_text(text.replace('"refuse"', f'"{decision}"'))
    plan = str(tmp_path / "plan")
    assert tool("plan", "--all", "--decisions", str(decided), "--out", plan)[0] == 0
    assert tool("apply", plan, "--execute")[0] == 0
    assert left.committed("g", topic) == expected


def test_a_topic_with_another_id_is_recreated(left: Any, tool: Tool, topic: str) -> None:
    """A topic of the same name that was created later counts as recreated."""
    left.topic(topic)
    left.remember(topic, OTHER)
    left.set_zk("g", topic, {0: 3})
    status, rows = tool.rows("plan", "--all")
    assert (status, rows[0]["kind"]) == (3, "topic-recreated")
    assert tool("plan", "--all", "--recreated-topics", "earliest")[0] == 0


def test_an_offset_beyond_the_log_is_a_decision(left: Any, tool: Tool, topic: str) -> None:
    """The new brokers give the log ranges."""
    left.topic(topic)
    left.remember(topic)
    left.set_zk("g", topic, {0: 3000})
    status, rows = tool.rows("plan", "--all")
    assert (status, rows[0]["kind"]) == (3, "out-of-range")


def test_brokers_of_another_cluster_are_refused(left: Any, tool: Tool) -> None:
    """Offsets of one cluster have no meaning in the logs of another."""
    content = json.dumps({"version": "1", "id": OTHER}).encode()
    left.client.create("/cluster/id", content, makepath=True)
    status, _, error = tool("plan", "--all")
    assert status == 1
    assert f"belong to the cluster {OTHER}" in error


def test_without_brokers_in_zookeeper_the_error_says_what_to_give(
    left: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names `--bootstrap-server` if ZooKeeper lists no broker, or none that can be
    used."""
    assert run(["plan", "--all", "--zookeeper", left.address]) == 1
    assert "use --bootstrap-server HOST:PORT if the cluster" in capsys.readouterr().err
    content = {
        "version": 5,
        "endpoints": ["SASL_SSL://b1:9094", "INSIDE://b1:9095"],
        "listener_security_protocol_map": {"INSIDE": "SSL"},
    }
    left.client.create("/brokers/ids/7", json.dumps(content).encode(), makepath=True)
    assert run(["plan", "--all", "--zookeeper", left.address]) == 1
    error = capsys.readouterr().err
    assert "broker 7 offers SASL_SSL at b1:9094, SSL as 'INSIDE' at b1:9095 only" in error
    assert "--bootstrap-server HOST:PORT" in error


def test_the_group_commands_ask_the_brokers(
    left: Any, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`groups describe` shows the lag, and `topics list` shows the topics. Without brokers there is
    a note."""
    left.topic(topic, partitions=1, messages=10)
    left.set_zk("g", topic, {0: 4})
    where = ["--zookeeper", left.address]
    there = [*where, "--bootstrap-server", left.kraft.bootstrap]
    assert zkconsumer(["groups", "describe", "g", "--json", *there]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["log_end_offset"], row["lag"]) == (10, 6)
    assert zkconsumer(["topics", "list", "--json", *there]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert topic in {one["topic"] for one in rows}
    assert zkconsumer(["topics", "describe", topic, "--json", *there]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["leader"], row["state"]) == (0, "ok")


def test_the_gate_tells_what_would_be_lost(
    left: Any, tool: Tool, topic: str, tmp_path: Path
) -> None:
    """`gate` returns 3 until no offset is only in ZooKeeper, and names the
    remaining ones."""
    left.topic(topic)
    left.remember(topic)
    left.set_zk("behind", topic, {0: 3, 1: 5})
    left.set_zk("moved", topic, {0: 3})
    left.set_zk("stays", topic, {0: 1})
    left.client.create("/consumers/stays/offsets/gone-topic/0", b"4", makepath=True)
    plan = str(tmp_path / "plan")
    assert tool("plan", "--group", "moved", "--group", "stays", "--out", plan)[0] == 3
    assert tool("plan", "--group", "moved", "--out", plan + "2")[0] == 0
    assert tool("apply", plan + "2", "--execute")[0] == 0
    member = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
    left.set_zk("busy", topic, {2: 2})
    left.client.create("/consumers/busy/ids/busy_old", member, ephemeral=True, makepath=True)
    status, rows = tool.rows("gate", "--all")
    assert status == 3
    by_group = {row["group"]: row for row in rows}
    assert (by_group["behind"]["lost"], by_group["behind"]["kafka"]) == (2, "none")
    assert by_group["behind"]["last_activity"].endswith("Z")
    assert (by_group["moved"]["lost"], by_group["moved"]["kafka"]) == (0, "same")
    assert (by_group["busy"]["members"], by_group["busy"]["lost"]) == (1, 1)
    assert by_group["stays"]["lost"] == 1  # an offset of a deleted topic is not a loss
    assert tool.rows("gate", "--all")[0] == 3
    left.client.delete("/consumers/busy/ids/busy_old")
    everything = ["--all", "--missing-topics", "skip", "--exclude", "moved"]
    assert tool("plan", *everything, "--out", plan + "3")[0] == 0
    assert tool("apply", plan + "3", "--execute")[0] == 0
    status, _, error = tool("gate", "--all")
    assert status == 0
    assert "0 of 4 groups would lose something" in error
