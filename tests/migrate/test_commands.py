"""The command line: input and output files, exit statuses, wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.security import make_acl
from zkmigrate.apply.journal import Journal
from zkmigrate.formats import plan_file

from tests.migrate.rows import rows_of, run
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.core.common.types import TopicPartition

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


@pytest.mark.parametrize("form", ["csv", "jvm", "json"])
def test_offsets_go_through_files(
    bench: Bench, tmp_path: Path, group: str, topic: str, form: str
) -> None:
    """An export of either store can be planned and applied, which restores the file's offsets."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    zookeeper = ("--zookeeper", bench.cluster.zookeeper)
    file, plan = str(tmp_path / "offsets"), str(tmp_path / "plan")
    chosen = ("--group", group)
    assert run(["offsets", "export", *chosen, "--format", form, "--out", file, *zookeeper]) == 0
    bench.set_kafka(group, topic, {0: 9})
    assert run(["plan", "--from-file", file, *chosen, "--out", plan, *zookeeper]) == 0
    assert run(["apply", plan, "--execute", *zookeeper]) == 0
    held = {tp: stored.offset for tp, stored in bench.committed(group, {topic: 2}).items()}  # type: ignore[attr-defined]
    assert held == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 4}


def test_a_file_of_many_groups_is_planned_in_part(
    bench: Bench, tmp_path: Path, unique: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the chosen groups of a file are planned: by name, by pattern, or all except some. A
    chosen group that is not in the file is an error, and no other group is planned."""
    bench.topic(topic, 1)
    names = [f"{unique[-8:]}-{tail}" for tail in ("a", "b", "c")]
    file = tmp_path / "offsets"
    file.write_text("".join(f"{name},{topic},0,{number}\n" for number, name in enumerate(names)))
    server = ("--from-file", str(file), "--zookeeper", bench.cluster.zookeeper)

    def planned(name: str, *choice: str) -> list[str]:
        plan = tmp_path / name
        assert run(["plan", *choice, "--out", str(plan), *server]) == 0
        return [group.group for group in plan_file.load(str(plan)).groups]

    assert planned("one", "--group", names[1]) == [names[1]]
    assert planned("two", "--groups-regex", ".*-[ac]") == [names[0], names[2]]
    assert planned("but", "--all", "--exclude", "*-b") == [names[0], names[2]]
    assert planned("all", "--all") == names
    capsys.readouterr()
    missing = str(tmp_path / "missing")
    assert run(["plan", "--group", f"{names[0]}x", "--out", missing, *server]) == 1
    assert f"no group {names[0]}x among the 3 in {file}" in capsys.readouterr().err
    assert run(["plan", "--out", missing, *server]) == 2
    assert run(["plan", "--all", "--exclude", "*", "--out", missing, *server]) == 1
    assert not (tmp_path / "missing").exists()


def test_a_dry_run_knows_what_was_done(
    bench: Bench, tmp_path: Path, group: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a killed apply, a dry run prints what would be done. After a finished apply it prints
    that everything is done. It neither waits for the journal nor changes it, and refuses another
    plan's journal."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    zookeeper = ("--zookeeper", bench.cluster.zookeeper)
    plan, journal = tmp_path / "plan", tmp_path / "plan.journal"
    assert run(["plan", "--group", group, "--out", str(plan), *zookeeper]) == 0
    loaded = plan_file.load(str(plan))

    class KilledError(BaseException):
        pass

    def effect(what: str) -> None:
        if what.startswith("after kafka commit"):
            raise KilledError

    def dry() -> tuple[int, str]:
        capsys.readouterr()
        before = bench.znodes(group), journal.read_bytes()
        status = run(["apply", str(plan), "--json", *zookeeper])
        assert (bench.znodes(group), journal.read_bytes()) == before
        (row,) = rows_of(capsys.readouterr().out)
        return status, row["outcome"]

    with pytest.raises(KilledError):
        bench.apply(loaded, journal, effect)
    with Journal(journal, loaded.digest):
        assert dry() == (0, "would be done")
    assert run(["apply", str(plan), "--execute", *zookeeper]) == 0
    with journal.open("ab") as file:
        file.write(b"torn")
    assert dry() == (0, "was done before")
    other = tmp_path / "other"
    assert run(["plan", "--group", group, "--out", str(other), *zookeeper]) == 0
    assert run(["apply", str(other), "--journal", str(journal), *zookeeper]) == 2
    assert "belongs to another plan" in capsys.readouterr().err


def test_ctrl_c_and_on(bench: Bench, tmp_path: Path, group: str, topic: str) -> None:
    """A run after a kill reports that it waits for the killed run's session. Ctrl-C then gives
    status 130, the progress and the group's row. The same command continues later."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    zookeeper = ("--zookeeper", bench.cluster.zookeeper)
    plan = tmp_path / "plan"
    assert run(["plan", "--group", group, "--out", str(plan), *zookeeper]) == 0
    loaded = plan_file.load(str(plan))
    journal = tmp_path / "plan.journal"
    with Journal(journal, loaded.digest) as opened:
        opened.write(group=group, step="claim", name="killed")
    bench.client.create(f"/consumers/{group}/ids/killed", b"{}", ephemeral=True, makepath=True)

    code = "from zkmigrate.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "apply", str(plan), "--execute", *zookeeper],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )

    assert process.stderr is not None
    assert process.stderr.readline().startswith("cluster ")
    said = process.stderr.readline()  # while it holds the journal
    waits_for = f"the session of an earlier run to end, in group {group}"
    assert json.loads(said)["waiting_for"] == waits_for
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.splitlines()[1].split()[:2] == [group, "refused"]
    assert "was stopped while it waited: apply again" in out
    assert [line for line in err.splitlines() if line] == [
        "moving: 1 of 1 groups are done, 1 failed",
        "groups: 1 refused",
        "interrupted: run the same command again to resume",
    ]
    bench.client.delete(f"/consumers/{group}/ids/killed")
    assert run(["apply", str(plan), "--execute", *zookeeper]) == 0
    assert run(["status", str(plan), *zookeeper]) == 0


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, cut or wrong files and unknown options give status 2."""
    bad = tmp_path / "bad"
    bad.write_bytes(b'{"zkmigrate": 1}\n')
    server = ("--zookeeper", "127.0.0.1:9")
    for words in (
        ["apply", str(bad), *server],
        ["apply", str(tmp_path / "missing"), *server],
        ["status", str(bad), *server],
        ["plan", "--all", "--from-file", str(bad), "--out", str(tmp_path / "p"), *server],
    ):
        capsys.readouterr()
        assert run(words) == 2, words
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    assert run(["plan", "--all", *server, "--timeout", "1"]) == 1
    assert run(["fly"]) == 2


def test_no_file_is_overwritten(
    bench: Bench, tmp_path: Path, group: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan is written only to a new file, not through a link, and only its owner can read it."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    plan = tmp_path / "plan"
    words = ["plan", "--group", group, "--out", str(plan), "--zookeeper", bench.cluster.zookeeper]
    assert run(words) == 0
    assert plan.stat().st_mode & 0o777 == 0o600
    assert run(words) == 2
    plan.unlink()
    victim = tmp_path / "victim"
    plan.symlink_to(victim)
    assert run(words) == 2
    assert not victim.exists()
    assert os.listdir(tmp_path) == ["plan"]


def test_no_command_loads_what_it_does_not_need() -> None:
    """kafka-python and Jinja2 take longer to load than an export from ZooKeeper takes."""
    code = "import sys; import zkmigrate.commands.root; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"kafka", "jinja2", "zkconsumer.servers"} & set(done.stdout.split())


def test_a_refusal_and_a_failure_have_different_statuses(
    bench: Bench, shell: Shell, unique: str, topic: str, tmp_path: Path
) -> None:
    """Status 3 means that nothing failed, but a group needs a decision, has members, or was used
    after the plan. Status 1 means that a server refused a request. A failure takes precedence over
    a refusal."""
    bench.topic(topic, 1)
    clash, live, ready = (f"{unique[-8:]}-{tail}" for tail in ("clash", "live", "ready"))
    for group in (clash, live, ready):
        bench.set_zk(group, topic, {0: 3})
    bench.set_kafka(clash, topic, {0: 9})
    chosen = ("--groups-regex", f"{unique[-8:]}-.*")
    assert shell("plan", *chosen)[0] == 3
    plan = str(tmp_path / "plan")
    assert shell("plan", *chosen, "--out", plan)[0] == 3
    registration = f"/consumers/{live}/ids/x"
    bench.client.create(registration, b"{}", ephemeral=True, makepath=True)
    status, rows = shell.rows("apply", plan, "--execute", "--no-lock")
    outcomes = {row["group"]: row["outcome"] for row in rows}
    assert (status, outcomes) == (3, {clash: "skipped", live: "refused", ready: "done"})
    assert run(["report", plan, "--out", str(tmp_path / "page")]) == 3
    bench.client.delete(registration)
    bench.set_zk(ready, topic, {0: 5})
    status, rows = shell.rows("undo", plan, "--execute", "--group", ready)
    assert (status, rows[0]["outcome"]) == (3, "refused")
    owners = f"/consumers/{live}/owners"
    bench.client.ensure_path(owners)
    bench.client.set_acls(owners, [make_acl("world", "anyone", read=True, admin=True)])
    status, rows = shell.rows("apply", plan, "--execute", "--no-lock")
    outcomes = {row["group"]: row["outcome"] for row in rows}
    assert (status, outcomes[live], outcomes[clash]) == (1, "failed", "skipped")


def test_the_time_limit_is_that_of_every_broker(
    bench: Bench, shell: Shell, group: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--timeout`` applies to each connection to a broker. For a coordinator,
    ``--coordinator-timeout`` is the upper limit."""
    bench.topic(topic, 1)
    bench.set_zk(group, topic, {0: 3})
    bench.set_kafka(group, topic, {0: 5})
    asked: set[float] = set()
    original = BrokerConnection.__init__

    def connect(self: Any, endpoint: Any, client: str, timeout: float, *others: Any) -> None:
        asked.add(timeout)
        original(self, endpoint, client, timeout, *others)

    monkeypatch.setattr(BrokerConnection, "__init__", connect)
    where = ("--bootstrap-server", bench.cluster.bootstrap, "--on-conflict", "newest")
    words = ("plan", "--group", group, *where, "--timeout", "45")
    assert shell(*words)[0] == 0
    assert asked == {45.0}
    asked.clear()
    assert shell(*words, "--coordinator-timeout", "7")[0] == 0
    assert asked == {45.0, 7.0}
