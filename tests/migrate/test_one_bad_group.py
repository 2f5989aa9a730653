"""A group that cannot be read, or has no coordinator, does not affect other groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_acl

from tests.migrate.rows import rows_of, run
from zkconsumer.servers import LocalCluster, wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


EXPORT = ("offsets", "export", "--format", "csv")


def printed_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command and return its status and its output."""
    capsys.readouterr()
    status = run(words)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def kinds(out: str) -> dict[str, str]:
    """Group to kind of problem."""
    rows: list[dict[str, Any]] = rows_of(out)
    return {row["group"]: row["kind"] for row in rows}


def test_14_one_znode_without_permission(
    bench: Bench,
    unique: str,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An offset that may not be read is a problem of its group. The problem names this znode,
    although all are read together. plan, verify and export process the other groups, and
    the status shows that one is missing."""
    bench.topic(topic, 4)
    bad, *good = (f"{unique[-8:]}-{tail}" for tail in ("a", "b", "c"))
    for group in (bad, *good):
        bench.set_zk(group, topic, {0: 3})
    bench.set_zk(bad, topic, {1: 3, 2: 3, 3: 3})
    path = f"/consumers/{bad}/offsets/{topic}/2"
    server = ("--zookeeper", bench.cluster.zookeeper)
    chosen = ("--groups-regex", f"{unique[-8:]}-.", *server)
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    assert printed_by(capsys, "plan", *chosen, "--out", before)[0] == 0
    bench.client.set_acls(path, [make_acl("world", "anyone", write=True, admin=True)])

    expected = {bad: "unreadable", good[0]: "", good[1]: ""}
    for words in (("plan",), ("plan", "--out", after)):
        status, out, err = printed_by(capsys, *words, *chosen, "--json")
        assert (status, kinds(out)) == (3, expected), err
        (row,) = [row for row in rows_of(out) if row["kind"]]
        assert path in row["what"]
        assert f"--exclude {bad}" in row["fix"]
    status, out, err = printed_by(capsys, *EXPORT, *chosen)
    assert (status, out.splitlines()) == (3, [f"{group},{topic},0,3" for group in good])
    assert path in err
    assert printed_by(capsys, "apply", after, "--execute", *server)[0] == 3
    status, out, err = printed_by(capsys, "status", before, "--json", *server)
    (row,) = rows_of(out)
    assert (status, row["group"]) == (1, bad)
    assert path in row["what"]
    assert "8 partitions of 2 groups compared: 1 unreadable" in err
    without = (*chosen, "--exclude", bad)
    assert printed_by(capsys, "plan", *without)[0] == 0
    assert printed_by(capsys, *EXPORT, *without)[0] == 0


def test_09_a_coordinator_that_stays_away(
    bench_on: Callable[[LocalCluster], Bench],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a broker is gone, the groups that it coordinated are named. The others are planned,
    planned, compared, exported and moved. Each coordinator is waited for once, not once for each of
    its groups."""
    properties = {
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
    }
    groups = [f"g{number:02}" for number in range(16)]
    with LocalCluster("3.9", brokers=2, properties=properties) as cluster:
        bench = bench_on(cluster)
        cluster.create_topic("t", 1, replication=2)
        for group in groups:
            bench.set_zk(group, "t", {0: 0})
            bench.set_kafka(group, "t", {0: 0})
        server = ("--zookeeper", cluster.zookeeper, "--coordinator-timeout", "1", "--timeout", "5")
        whole, part = str(tmp_path / "whole"), str(tmp_path / "part")
        assert printed_by(capsys, "plan", "--all", "--out", whole, *server)[0] == 0
        alive = cluster.broker_servers[0].port
        away = {name for name in groups if bench.kafka.coordinator(name).port != alive}
        assert away
        assert away != set(groups)
        cluster.broker_servers[1].kill()
        ids = "/brokers/ids"
        wait_until(lambda: bench.client.get_children(ids) == ["0"], 60, "the broker is gone")
        states = "/brokers/topics/t/partitions/0/state"

        def led() -> bool:
            return json.loads(bench.client.get(states)[0])["leader"] == 0

        wait_until(led, 60, "the topic has a leader")

        expected = {name: "coordinator-away" if name in away else "" for name in groups}
        for words in (
            ("plan", "--all"),
            ("plan", "--all", "--on-conflict", "newest", "--out", part),
        ):
            status, out, err = printed_by(capsys, *words, "--json", *server)
            assert (status, kinds(out)) == (1, expected), err
            assert err.count('"waiting_for": "the offset coordinator') == 1, err
        status, out, err = printed_by(capsys, "status", whole, "--json", *server)
        unread = {row["group"] for row in rows_of(out) if row["kind"] == "unreadable"}
        assert (status, unread) == (1, away), err
        assert err.count('"waiting_for": "the offset coordinator') == 1, err
        every = [word for name in groups for word in ("--group", name)]
        status, out, err = printed_by(capsys, *EXPORT, *every, "--store", "kafka", *server)
        exported = {line.partition(",")[0] for line in out.splitlines()}
        assert (status, exported) == (1, set(groups) - away)
        assert all(f"coordinator of group {name}" in err for name in away)
        status, out, err = printed_by(capsys, *EXPORT, "--all", "--store", "kafka", *server)
        assert (status, out.count("\n")) == (1, len(exported))
        assert (
            "groups may be missing, because these partitions have no leader: __consumer_offsets-"
            in err
        )
        bench.close()
