"""The guard: once a group is moved, no old consumer can start in it until it is released."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kazoo.security import ACL, Id, make_acl
from zkmigrate.apply.outcome import Outcome
from zkmigrate.model import Direction
from zkmigrate.plan.options import Options

from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, wait_until

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]

OPEN = [ACL(31, Id("world", "anyone"))]
LOCKED = [ACL(27, Id("world", "anyone"))]


class KilledError(BaseException):
    """Simulates a kill."""


def access(bench: Bench, group: str) -> tuple[list[ACL], bytes]:
    """The ACL of a group's ``ids`` znode, and its data."""
    path = f"/consumers/{group}/ids"
    return bench.client.get_acls(path)[0], bench.client.get(path)[0]  # type: ignore[no-any-return]


def joined(jvm: JvmMembers, zookeeper: str, group: str, topic: str, name: str) -> JvmMember:
    """Start a JVM member and return it once it has joined."""
    config = {
        "zookeeper.connect": zookeeper,
        "group.id": group,
        "consumer.id": name,
        "auto.commit.enable": "false",
        "rebalance.backoff.ms": "200",
        "zookeeper.session.timeout.ms": "6000",
    }
    member = JvmMember(jvm, config, {topic: 1})
    member.wait_joined(30)
    return member


def test_the_original_consumer_cannot_start_until_the_group_is_released(
    filled: Bench, shell: Shell, jvm: JvmMembers, group: str, topic: str, tmp_path: Path
) -> None:
    """After apply the JVM's consumer fails with NoAuth when it starts. After release it starts, and
    the ACL is as before and the znode is empty."""
    plan = str(tmp_path / "plan")
    chosen = ("--group", group)
    assert shell("plan", *chosen, "--out", plan)[0] == 0
    assert shell("apply", plan, "--execute")[0] == 0
    acl, data = access(filled, group)
    assert acl == LOCKED
    assert b"zkmigrate unlock" in data
    began = time.monotonic()
    with pytest.raises(ClusterError, match="NoAuth"):
        joined(jvm, shell.zookeeper, group, topic, "old")
    assert time.monotonic() - began < 15
    assert filled.client.get_children(f"/consumers/{group}/ids") == []
    assert shell("status", plan)[0] == 0

    status, rows = shell.rows("lock", *chosen)
    assert (status, rows[0]["outcome"]) == (0, "was done before")
    status, rows = shell.rows("unlock", *chosen)
    assert (status, rows[0]["outcome"]) == (0, "would be done")
    assert access(filled, group) == (acl, data)
    status, rows = shell.rows("unlock", *chosen, "--execute")
    assert (status, rows[0]["outcome"]) == (0, "done")
    assert access(filled, group) == (OPEN, b"")
    member = joined(jvm, shell.zookeeper, group, topic, "older")
    status, (row,) = shell.rows("lock", *chosen, "--execute")
    assert (status, row["outcome"]) == (3, "refused")
    assert f"{group}_older registered" in row["why"]
    member.leave()


def test_a_guard_can_be_left_out_and_set_later(
    filled: Bench, shell: Shell, group: str, topic: str, tmp_path: Path
) -> None:
    """With ``--no-lock`` nothing is locked. ``lock --all`` locks groups that were moved to Kafka
    and skips the others. A named group that was not moved is an error."""
    other = f"{group}-other"
    filled.set_zk(other, topic, {0: 1})
    plan = str(tmp_path / "plan")
    assert shell("plan", "--group", group, "--out", plan)[0] == 0
    assert shell("apply", plan, "--execute", "--no-lock")[0] == 0
    assert access(filled, group) == (OPEN, b"")
    both = ("--groups-regex", f"{group}(-other)?")
    status, rows = shell.rows("lock", *both)
    assert status == 0
    assert [row["outcome"] for row in rows] == ["would be done", "skipped"]
    assert access(filled, group) == (OPEN, b"")
    assert shell("lock", *both, "--execute")[0] == 0
    assert access(filled, group)[0] == LOCKED
    status, rows = shell.rows("lock", "--group", other, "--execute")
    assert (status, rows[0]["reasons"]) == (3, ["not-moved"])
    assert f"/consumers/{other}/ids" not in filled.znodes(other)


def test_every_entry_of_an_access_list_is_kept(filled: Bench, shell: Shell, group: str) -> None:
    """Only the create permission is removed from each entry. Release restores ACL and data exactly.
    An ACL that may not be changed is named and stays unchanged."""
    path = f"/consumers/{group}/ids"
    before = [ACL(31, Id("world", "anyone")), make_acl("digest", "a:b", read=True, create=True)]
    filled.client.ensure_path(path)
    filled.client.set(path, b"hello \xff")
    filled.client.set_acls(path, before)
    plan, journal = filled.plan([group])
    (result,) = filled.apply(plan, journal, lock=True)
    assert (result.outcome, result.why) == (Outcome.DONE, "")
    assert [entry.perms for entry in access(filled, group)[0]] == [27, 1]
    assert shell("unlock", "--group", group, "--execute")[0] == 0
    assert access(filled, group) == (before, b"hello \xff")

    fixed = [ACL(15, Id("world", "anyone"))]  # everything except the right to change the ACL
    filled.client.set_acls(path, fixed)
    status, (row,) = shell.rows("lock", "--group", group, "--execute")
    assert (status, row["outcome"]) == (1, "failed")
    assert path in row["why"]
    assert "--hold" in row["why"]
    assert access(filled, group) == (fixed, b"hello \xff")


def test_a_group_that_may_not_be_registered_in_is_found_by_the_dry_run(
    filled: Bench, shell: Shell, group: str, tmp_path: Path
) -> None:
    """If the ACL lets only other identities register, plan refuses the group and names the
    znode. If the plan is older than the ACL, apply and its dry run refuse the group before any
    change."""
    path = f"/consumers/{group}/ids"
    filled.client.ensure_path(path)
    only_read = [ACL(1, Id("world", "anyone")), make_acl("digest", "a:b", all=True)]
    plan = str(tmp_path / "plan")
    assert shell("plan", "--group", group, "--out", plan)[0] == 0
    filled.client.set_acls(path, only_read)
    status, (row,) = shell.rows("plan", "--group", group)
    assert (status, row["verdict"], row["kind"]) == (3, "refused", "closed")
    assert path in row["what"]
    for words in ((), ("--execute",)):
        status, (row,) = shell.rows("apply", plan, *words)
        assert (status, row["outcome"]) == (3, "refused")
        assert f"{path}: the access list does not let zkmigrate register" in row["why"]
    found, data = access(filled, group)  # without permission the digest is hidden
    assert ([entry.perms for entry in found], data) == ([1, 31], b"")


def test_the_guard_follows_the_group(filled: Bench, group: str, topic: str) -> None:
    """A group that is moved back is open. Undoing the move back locks it again, and a rollback
    opens it. A failed move leaves a locked group locked."""
    plan, journal = filled.plan([group])
    assert filled.apply(plan, journal, lock=True)[0].outcome is Outcome.DONE
    assert access(filled, group)[0] == LOCKED
    filled.set_kafka(group, topic, {0: 7})
    back, its_journal = filled.plan([group], Direction.KAFKA_TO_ZK)

    def disturb(what: str) -> None:
        if what == "before journal write":
            filled.set_kafka(group, topic, {0: 8})

    (failed,) = filled.apply(back, its_journal, disturb)
    assert failed.outcome is Outcome.REFUSED
    assert access(filled, group)[0] == LOCKED
    filled.set_kafka(group, topic, {0: 7})
    assert filled.apply(back, its_journal)[0].outcome is Outcome.DONE
    assert access(filled, group) == (OPEN, b"")
    assert filled.rollback(back, its_journal)[0].outcome is Outcome.DONE
    assert access(filled, group)[0] == LOCKED
    filled.set_kafka(group, topic, {0: 3})
    assert filled.rollback(plan, journal)[0].outcome is Outcome.DONE
    assert access(filled, group) == (OPEN, b"")


def test_a_repeated_move_never_opens_a_locked_group(filled: Bench, group: str, topic: str) -> None:
    """A locked group stays locked at every step of the next move to Kafka, even if that move is
    killed. status shows that the group is being moved."""
    plan, journal = filled.plan([group])
    assert filled.apply(plan, journal, lock=True)[0].outcome is Outcome.DONE
    filled.set_zk(group, topic, {0: 9})
    again, its_journal = filled.plan([group], options=Options("max", max_idle_days=10**6))
    seen: list[str] = []

    def look(what: str) -> None:
        seen.append(what)
        assert access(filled, group)[0] == LOCKED, what
        if what == "after journal write":
            with filled.stores() as stores:
                (name,) = filled.state(stores, group).members
                assert name.startswith(f"{group}_zkmigrate-")
        if what == "after journal mark":
            raise KilledError(what)

    with pytest.raises(KilledError):
        filled.apply(again, its_journal, look)
    assert access(filled, group)[0] == LOCKED
    assert len(seen) >= 10
    assert filled.apply(again, its_journal)[0].outcome is Outcome.DONE
    assert access(filled, group)[0] == LOCKED
    assert filled.committed(group, {topic: 1})[TopicPartition(topic, 0)].offset == 9
    assert filled.client.get_children(f"/consumers/{group}/owners") == [topic]


@pytest.fixture
def without_access_lists() -> Iterator[LocalCluster]:
    """Servers that do not enforce ACLs."""
    before = os.environ.get("_JAVA_OPTIONS")
    os.environ["_JAVA_OPTIONS"] = "-Dzookeeper.skipACL=yes"
    try:
        with LocalCluster("3.9") as cluster:
            yield cluster
    finally:
        os.environ.pop("_JAVA_OPTIONS")
        if before is not None:
            os.environ["_JAVA_OPTIONS"] = before


def test_groups_are_held_where_access_lists_are_not_enforced(
    without_access_lists: LocalCluster,
    bench_on: Callable[[LocalCluster], Bench],
    jvm: JvmMembers,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """apply notices that a lock would have no effect and says so. lock --hold owns all partitions,
    so an old consumer owns none and fails, even after the session of lock --hold has ended once.
    Ctrl-C releases the partitions with status 0."""
    cluster = without_access_lists
    bench = bench_on(cluster)
    bench.topic("t", 2)
    bench.set_zk("g", "t", {0: 3})
    plan, journal = bench.plan(["g"])
    (result,) = bench.apply(plan, journal, lock=True)
    assert result.outcome is Outcome.DONE
    assert result.why.startswith("not locked: ZooKeeper does not enforce access lists, or ")
    assert access(bench, "g") == (OPEN, b"")

    code = "from zkmigrate.cli import main; main()"
    words = (
        "lock",
        "--hold",
        "--all",
        "--json",
        "--timeout",
        "4",
        "--zookeeper",
        cluster.zookeeper,
    )
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=out,
            stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
        )
        try:
            wait_until(
                lambda: b"Ctrl-C releases" in log.read_bytes(), 30, "guard owns all partitions"
            )
            owners = "/consumers/g/owners/t"
            assert sorted(bench.client.get_children(owners)) == ["0", "1"]
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: not bench.client.get_children(owners), 60, "its session has ended")
            process.send_signal(signal.SIGCONT)
            wait_until(
                lambda: len(bench.client.get_children(owners)) == 2,
                60,
                "guard owns all partitions again",
            )
            with pytest.raises(ClusterError):
                joined(jvm, cluster.zookeeper, "g", "t", "old")
            assert all(
                b"zkmigrate" in bench.client.get(f"{owners}/{number}")[0] for number in (0, 1)
            )
            wait_until(lambda: b"can own nothing" in log.read_bytes(), 30, "it was noticed")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    ids = bench.client.get_children("/consumers/g/ids")
    assert not [name for name in ids if "zkmigrate" in name]
    for number in bench.client.get_children(owners):  # the old consumer may own them now
        assert b"zkmigrate" not in bench.client.get(f"{owners}/{number}")[0]
    bench.close()
