"""``zkmigrate status``: the current store of each group, its next step, and how to watch a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer
from kazoo.security import make_acl
from zkmigrate.apply.outcome import Outcome
from zkmigrate.model import Direction

from zkconsumer.servers import LocalCluster, wait_until

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


@contextmanager
def live_at_the_broker(bench: Bench, group: str, topic: str) -> Iterator[None]:
    """A consumer that is a member of the group on the brokers."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bench.cluster.bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        wait_until(
            lambda: consumer.poll(1000) is None or consumer.assignment(), 90, "it has joined"
        )
        yield
    finally:
        consumer.close()


def test_the_truth_of_each_group(
    bench: Bench, shell: Shell, unique: str, topic: str, tmp_path: Path
) -> None:
    """status distinguishes groups that are in ZooKeeper only, in Kafka only, in both with different
    offsets, moved, moved back, in progress and unreadable. Each has its members, its lag and a next
    step."""
    bench.topic(topic, 2, messages=20)
    name = unique[-8:]
    groups = {one: f"{name}-{one}" for one in ("zk", "kafka", "both", "moved", "back", "moving")}
    for one in ("zk", "both", "moved", "back", "moving"):
        bench.set_zk(groups[one], topic, {0: 3, 1: 4})
    bench.set_kafka(groups["kafka"], topic, {0: 5, 1: 5})
    bench.set_kafka(groups["both"], topic, {0: 5, 1: 5})
    plan, journal = bench.plan([groups["moved"], groups["back"]])
    assert all(one.outcome is Outcome.DONE for one in bench.apply(plan, journal, lock=True))
    plan, journal = bench.plan([groups["back"]], Direction.KAFKA_TO_ZK)
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    migrator = f"/consumers/{groups['moving']}/ids/{groups['moving']}_zkmigrate-12345678"
    bench.client.create(migrator, b"{}", makepath=True)
    bad = f"{name}-unreadable"
    bench.set_zk(bad, topic, {0: 3})
    znode = f"/consumers/{bad}/offsets/{topic}/0"
    bench.client.set_acls(znode, [make_acl("digest", "a:b", all=True)])

    chosen = ("--groups-regex", f"{name}-.*")
    with live_at_the_broker(bench, groups["moved"], topic):
        status, rows = shell.rows("status", *chosen)
    by_name = {row["group"].removeprefix(f"{name}-"): row for row in rows}
    assert {one: row["truth"] for one, row in by_name.items()} == {
        "zk": "zookeeper",
        "kafka": "kafka",
        "both": "both",
        "moved": "kafka",
        "back": "zookeeper",
        "moving": "moving",
        "unreadable": "unknown",
    }
    assert status == 1
    assert znode in by_name["unreadable"]["attention"]
    assert by_name["zk"]["zookeeper_lag"] == 33
    assert by_name["kafka"]["kafka_lag"] == 30
    assert by_name["zk"]["kafka_lag"] is None
    assert "differ" in by_name["both"]["attention"]
    assert [by_name[one]["locked"] for one in ("zk", "moved", "back")] == ["no", "locked", "no"]
    assert by_name["moved"]["kafka_members"] == 1
    assert by_name["moved"]["days_left"] is None
    assert by_name["moved"]["moved"].startswith("kafka 20")
    assert not by_name["moved"]["attention"]

    status, rows = shell.rows("status", *chosen, "--only-problems")
    assert {row["group"] for row in rows} == {groups["both"], bad}
    _, out, err = shell("status", *chosen)
    assert groups["both"] in out
    assert "2 need attention" in err
    bench.set_kafka(f"{name}/slash", topic, {0: 1})  # ZooKeeper cannot store it
    status, (row,) = shell.rows("status", "--groups-regex", f"{name}/slash")
    assert (status, row["truth"]) == (0, "kafka")


def test_a_store_that_is_used_after_the_move(
    filled: Bench, shell: Shell, group: str, topic: str
) -> None:
    """For a moved group, old members and changed offsets in ZooKeeper are named, with status 3. For
    a group that was moved back, consumers at the broker are."""
    plan, journal = filled.plan([group])
    filled.apply(plan, journal)
    status, (row,) = shell.rows("status", "--group", group)
    assert (status, row["changed"]) == (3, 0)
    assert row["attention"].startswith("is not locked")
    filled.set_zk(group, topic, {1: 9})
    status, (row,) = shell.rows("status", "--group", group)
    assert (status, row["changed"]) == (3, 1)
    assert f"{topic}-1" in row["attention"]
    filled.set_zk(group, topic, {1: 4})
    path = f"/consumers/{group}/ids/{group}_old"
    filled.client.create(path, b"{}", makepath=True)
    status, (row,) = shell.rows("status", "--group", group)
    assert (status, row["zookeeper_members"]) == (3, 1)
    assert f"stop {group}_old" in row["attention"]
    filled.client.delete(path)
    plan, journal = filled.plan([group], Direction.KAFKA_TO_ZK)
    assert filled.apply(plan, journal)[0].outcome is Outcome.DONE
    with live_at_the_broker(filled, group, topic):
        status, (row,) = shell.rows("status", "--group", group)
    assert status == 3
    assert "consumers run at the broker" in row["attention"]


class Watcher:
    """A command with ``--watch`` in its own process. It reads the lines as they appear."""

    def __init__(self, zookeeper: str, *words: str) -> None:
        code = "from zkmigrate.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *words, "--watch", "0.2", "--json", "--timeout", "5",
             "--zookeeper", zookeeper],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
        )  # fmt: skip
        self.rows: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_rows), threading.Thread(target=self._read_errors)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _read_rows(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.rows.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def end(self) -> int:
        """Press Ctrl-C and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for thread in self._threads:
                thread.join()


def test_a_night_is_watched(
    bench_on: Callable[[LocalCluster], Bench], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """status --watch prints each group that changes, and verify --watch each difference that
    appears or disappears. Neither ends while ZooKeeper is away. Ctrl-C ends both with the status of
    the last check."""
    from zkmigrate.formats.plan_file import render

    with LocalCluster("3.9") as cluster:
        bench = bench_on(cluster)
        bench.topic("t", 1)
        bench.set_zk("g", "t", {0: 3})
        plan, journal = bench.plan(["g"])
        file = tmp_path / "plan"
        file.write_text("".join(render(plan.direction, plan.made_ms, plan.groups)))
        status = Watcher(cluster.zookeeper, "status", "--all")
        verify = Watcher(cluster.zookeeper, "status", str(file))
        try:
            wait_until(lambda: status.rows, 30, "the first check")
            wait_until(lambda: verify.rows, 30, "the first check")
            assert status.rows[0]["truth"] == "zookeeper"
            assert verify.rows[0]["kind"] == "not-moved"
            assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
            wait_until(lambda: status.rows[-1]["truth"] == "kafka", 30, "the move is seen")
            wait_until(lambda: verify.rows[-1].get("gone"), 30, "the move is seen")
            cluster.zookeeper_server.stop()
            wait_until(
                lambda: all(any("error" in one for one in who.errors) for who in (status, verify)),
                60, "the outage is seen",
            )  # fmt: skip
            cluster.zookeeper_server.start()
            cluster.zookeeper_server.wait_ready()
            bench.set_kafka("g", "t", {0: 2})
            wait_until(lambda: verify.rows[-1].get("kind") == "behind", 60, "the rewind is seen")
            wait_until(lambda: "error" not in status.errors[-1], 60, "the servers are back")
            assert len(status.rows) < 10
        finally:
            statuses = status.end(), verify.end()
        assert statuses == (3, 3), (status.errors, verify.errors)
        assert not any("Traceback" in line for line in [*status.errors, *verify.errors])
        bench.close()
