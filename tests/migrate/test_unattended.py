"""What a run without an operator needs: hooks before and after each group, and metrics.

The cluster is simulated; hooks are real processes, and the metrics a real file.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.cli import run
from zkmigrate.commands.output import metrics
from zkmigrate.exits import ATTENTION, FAILED, USAGE

from tests.migrate import matrix
from tests.migrate.rows import rows_of
from tests.migrate.simulated import Simulated, simulated
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.servers import wait_until

__all__ = ["simulated"]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs/examples"
PAGE = (ROOT / "docs/how-to/run-unattended.md").read_text(encoding="utf-8")
SHOW = "env | grep ^ZKMIGRATE_ | sort | tr '\\n' '\\001' >> {file}; echo >> {file}"


@pytest.fixture
def plan(simulated: Simulated) -> str:
    """A plan of the groups a and b, of which b has changed since, and of c, which is refused."""
    simulated.topic("t", (0, 100))
    for group in ("a", "b"):
        simulated.in_zookeeper(group, "t", 5)
    simulated.in_zookeeper("c", "t", 500)
    path = simulated.file("plan")
    assert simulated.run("plan", "--all", "--out", path).status == 3
    simulated.in_kafka("b", "t", 7)
    return path


def calls(file: str) -> list[dict[str, str]]:
    """Return the variables of each hook that was run."""
    lines = Path(file).read_text().splitlines()
    return [dict(part.split("=", 1) for part in line.split("\x01") if part) for line in lines]


def test_hooks_learn_the_group_and_its_outcome(simulated: Simulated, plan: str) -> None:
    """Both run for each group that is ready, and for no other. A group that is done has none. The
    page lists all variables."""
    before, after = simulated.file("before"), simulated.file("after")
    hooks = ("--before-group", SHOW.format(file=before), "--after-group", SHOW.format(file=after))
    assert simulated.run("apply", plan, *hooks).status == 3
    assert not Path(before).exists(), "a dry run runs none"
    assert simulated.run("apply", plan, *hooks, "--parallel", "1", "--execute").status == 3
    first, second = calls(before)
    assert (
        first.items()
        >= {
            "ZKMIGRATE_GROUP": "a",
            "ZKMIGRATE_KAFKA_GROUP": "a",
            "ZKMIGRATE_CASE": "untouched",
            "ZKMIGRATE_COMMAND": "apply",
            "ZKMIGRATE_PLAN": plan,
            "ZKMIGRATE_DIRECTION": "zk-to-kafka",
        }.items()
    )
    assert second["ZKMIGRATE_GROUP"] == "b"
    done, refused = calls(after)
    assert (done["ZKMIGRATE_OUTCOME"], done["ZKMIGRATE_OFFSETS"]) == ("done", "1")
    assert refused["ZKMIGRATE_OUTCOME"] == "refused"
    assert "kafka holds 7" in refused["ZKMIGRATE_WHY"]
    assert set(re.findall(r"`(ZKMIGRATE_\w+)`", PAGE)) == done.keys()
    simulated.run("apply", plan, *hooks, "--group", "a", "--execute")
    assert len(calls(before)) == 2, "it was done before"
    assert simulated.run("undo", plan, *hooks, "--group", "a", "--execute").status == 0
    assert calls(after)[-1]["ZKMIGRATE_COMMAND"] == "undo"
    assert calls(after)[-1]["ZKMIGRATE_CASE"] == "moved"
    assert "env | grep" in Path(f"{plan}.journal").read_text()


def test_a_first_hook_that_fails_refuses_its_group(simulated: Simulated, plan: str) -> None:
    """Nothing is changed, and the other groups are moved."""
    hook = "echo no such deployment; test $ZKMIGRATE_GROUP != a"
    found = simulated.run("apply", plan, "--before-group", hook, "--after-group", "exit 9",
                          "--group", "a", "--execute")  # fmt: skip
    assert found.status == 3
    assert found.rows[0]["outcome"] == "refused"
    assert "--before-group exited with 1: no such deployment" in found.rows[0]["why"]
    assert "--after-group" not in found.rows[0]["why"]
    assert simulated.held("a", "t")[1] == {}
    assert simulated.run("apply", plan, "--group", "a", "--execute").status == 0


def test_a_last_hook_that_fails_needs_attention(simulated: Simulated, plan: str) -> None:
    """The group is moved all the same. The next run finds it done."""
    words = ("apply", plan, "--group", "a", "--execute", "--after-group", "echo away; kill -9 $$")
    found = simulated.run(*words)
    assert (found.status, found.rows[0]["outcome"]) == (3, "refused")
    assert found.rows[0]["why"] == "was done, but --after-group was ended by signal 9: away"
    assert simulated.held("a", "t")[1] == {0: 5}
    assert simulated.run(*words).rows[0]["outcome"] == "was done before"


def test_a_group_that_is_waited_for_has_its_hooks_once(simulated: Simulated, plan: str) -> None:
    """The first one may be what stops the members."""
    simulated.kafka.joined["a"] = ("c-1",)
    file = simulated.file("hooks")
    hooks = ("--before-group", SHOW.format(file=file), "--after-group", SHOW.format(file=file))
    found = simulated.run("apply", plan, "--group", "a", "--wait", "0.5s", *hooks, "--execute")
    assert found.rows[0]["outcome"] == "refused"
    assert [one.get("ZKMIGRATE_OUTCOME") for one in calls(file)] == [None, "refused"]


def test_locks_live_steps_and_resets_have_hooks_and_a_journal(
    simulated: Simulated, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group that needs nothing has no hooks. The journal says who did what, and the report shows
    it."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    file = simulated.file("hooks")
    show = SHOW.format(file=file)
    more = ("--group", "g", "--execute", "--note", "CHG-7", "--before-group", show,
            "--after-group", show)  # fmt: skip
    live = ("--wait", "0")
    lines = {
        "live": [("live", "prepare", *live), ("live", "to-kafka", *live)],
        "lock": [("lock", *live), ("lock", *live)],
        "reset": [("reset", "--all-topics", "--to-offset", "7", "--store", "both")],
        "unlock": [("unlock", *live)],
    }
    order = [lines["live"][0], *lines["lock"], *lines["reset"], *lines["unlock"]]
    for line in order:
        assert simulated.run(*line, *more).status == 0, line
    assert simulated.run(*lines["live"][1], *more).status == 3
    first, last = calls(file)[::2], calls(file)[1::2]
    commands = ["live", "lock", "reset", "unlock"]
    assert [one["ZKMIGRATE_COMMAND"] for one in first] == commands, "the second lock found it done"
    directions = ["zk-to-kafka", "zk-to-kafka", "", "kafka-to-zk"]
    assert [one["ZKMIGRATE_DIRECTION"] for one in first] == directions
    cases = ["untouched", "prepared", "live: locked", "live: locked"]
    assert [one["ZKMIGRATE_CASE"] for one in first] == cases
    assert [one["ZKMIGRATE_OUTCOME"] for one in last] == ["done"] * 4
    for name in lines:
        file = f"zkmigrate-{name}.journal"
        capsys.readouterr()
        run(["report", "--json", "--journal", file])
        (row,) = rows_of(capsys.readouterr().out)
        states = {"live": "refused", "lock": "was done before", "reset": "reset"}
        assert row["state"] == states.get(name, "done")
        assert len(row["runs"]) == len(lines[name])
        assert {one["note"] for one in row["runs"]} == {"CHG-7"}
        assert row["runs"][0]["command"] == name
        modes = {"live": "zookeeper", "lock": "locked", "unlock": "zookeeper"}
        assert row["runs"][0]["mode"] == modes.get(name)


@pytest.mark.parametrize("step", [("live", "prepare"), ("live", "to-kafka")])
def test_a_live_step_looks_again_after_its_first_hook(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, step: tuple[str, ...]
) -> None:
    """Another operator's move was killed while the hook ran."""
    (matrix.untouched if step[1] == "prepare" else matrix.live_locked)(simulated)
    mode = simulated.zk.text(LivePaths.of("g").mode)
    monkeypatch.setattr(Hooks, "begin", lambda *_: matrix.interrupted(simulated))
    words = (*step, "--group", "g", "--wait", "0", "--before-group", "true", "--execute")
    found = simulated.run(*words)
    assert (found.status, found.rows[0]["reasons"]) == (3, ["unfinished"]), found
    assert simulated.zk.text(LivePaths.of("g").mode) == mode
    records = read_records(Path("zkmigrate-live.journal"), "live")
    assert records[-1]["outcome"] == "refused"


def test_a_group_with_nothing_left_to_do_after_its_hook_has_ended(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another operator has unlocked it. The report does not take the run for a killed one."""
    matrix.moved(simulated)
    words = ("unlock", "--group", "g", "--execute")
    monkeypatch.setattr(
        Hooks, "begin", lambda *_: simulated.run(*words, "--journal", simulated.file("other"))
    )
    found = simulated.run(*words, "--before-group", "true")
    assert (found.status, found.rows[0]["outcome"]) == (0, "nothing to do")
    capsys.readouterr()
    run(["report", "--json", "--journal", "zkmigrate-unlock.journal"])
    (row,) = rows_of(capsys.readouterr().out)
    assert row["state"] == "nothing to do"


def test_a_stopped_group_is_locked_by_the_hook_and_the_journal(simulated: Simulated) -> None:
    """Its old members are what the first hook stops. A hook that fails leaves it as it is."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    assert simulated.run("plan", "--group", "g", "--out", "plan").status == 0
    assert simulated.run("apply", "plan", "--no-lock", "--execute").status == 0
    simulated.zk.set("/consumers/g/ids/x", b"{}")
    words = ("lock", "--group", "g", "--execute", "--before-group")
    refused = simulated.run(*words, "exit 4")
    assert (refused.status, refused.rows[0]["reasons"]) == (3, ["hook-failed"])
    stopped = []
    taken = Hooks.begin

    def begin(hooks: Hooks, group: str, facts: Mapping[str, str]) -> None:
        taken(hooks, group, facts)
        stopped.append(group)
        simulated.zk.delete("/consumers/g/ids/x")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hooks, "begin", begin)
        assert simulated.run(*words, "true").status == 0
    assert stopped == ["g"]
    records = read_records(Path("zkmigrate-lock.journal"), "lock")
    assert [one.get("step") or one.get("outcome") for one in records if "run" not in one] == [
        "refused", "lock", "done",
    ]  # fmt: skip
    assert simulated.run("undo", "plan", "--execute").status == 0


@pytest.mark.parametrize(("module", "name"), [(tempfile, "TemporaryFile"), (subprocess, "Popen")])
def test_a_hook_that_cannot_be_run_has_failed(
    simulated: Simulated, plan: str, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Neither hook ends the run, and the journal has the outcome of the group."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, name, full)
    words = ("apply", plan, "--group", "a", "--execute")
    why = "could not be run: No space left on device"
    found = simulated.run(*words, "--before-group", "true")
    assert (found.status, found.rows[0]["reasons"]) == (3, ["hook-failed"])
    assert f"--before-group {why}; nothing was changed" in found.rows[0]["why"]
    found = simulated.run(*words, "--after-group", "true")
    assert (found.status, found.rows[0]["why"]) == (3, f"was done, but --after-group {why}")
    assert simulated.held("a", "t")[1] == {0: 5}
    assert '"outcome":"refused"' in Path(f"{plan}.journal").read_text().splitlines()[-1]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_is_full_at_any_record(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Half of a record is written, or none of it is surely on disk. The run names the journal and
    ends; the same command continues when there is room."""
    right, calls = getattr(os, call), [0]
    simulated.topic("t", (0, 100))
    fails = 0

    def full(file: int, *data: bytes) -> object:
        if not os.readlink(f"/proc/self/fd/{file}").endswith(".journal"):
            return right(file, *data)
        calls[0] += 1
        if calls[0] < fails:
            return right(file, *data)
        if data and calls[0] == fails:
            return right(file, data[0][: len(data[0]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    while calls[0] >= fails:
        calls[0], fails = 0, fails + 1
        group = f"g{fails}"
        simulated.in_zookeeper(group, "t", 5)
        words = ("apply", simulated.file(f"plan-{fails}"), "--execute")
        assert simulated.run("plan", "--group", group, "--out", words[1]).status == 0
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            found = simulated.run(*words)
        if calls[0] >= fails:
            assert found.status != 0, fails
            assert f"{words[1]}.journal: No space left on device" in str(found), fails
        assert simulated.run(*words).status == 0
        assert simulated.held(group, "t")[1] == {0: 5}
    assert fails > 4


def test_a_clock_that_steps_changes_no_decision(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is a day off, in either direction, each time it is asked. A move, a second
    run and the way back do what they always do."""
    seed = int(os.environ.get("CLOCK_SEED", str(random.randrange(10**6))))
    print(f"CLOCK_SEED={seed}")  # noqa: T201
    rng, right = random.Random(seed), time.time
    monkeypatch.setattr(time, "time", lambda: right() + rng.choice([-86_400, 0, 86_400]))
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    plan = simulated.file("plan")
    for words, status in (
        (("plan", "--all", "--out", plan), 0),
        (("apply", plan, "--execute"), 0),
        (("apply", plan, "--execute"), 0),
        (("status", "--group", "g"), 0),
        (("undo", plan, "--execute"), 0),
    ):
        found = simulated.run(*words)
        assert found.status == status, (words, found)
        moved = words[0] in ("apply", "status")
        assert simulated.held("g", "t") == ({0: 5}, {0: 5} if moved else {}), words


def test_a_hook_has_a_time_limit(tmp_path: Path) -> None:
    """It is killed with the processes that it has started."""
    child = tmp_path / "child"
    hooks = Hooks(after=f"sleep 600 & echo $! > {child}; wait", timeout=0.5)
    result = hooks.end(Result("g", Outcome.DONE, 3), {})
    assert result == Result(
        "g", Outcome.REFUSED, 3, "was done, but --after-group did not end within 0.5 s"
    )
    pid = int(child.read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}/stat").exists()


def values(file: Path) -> dict[str, float]:
    """Return the samples of a metrics file."""
    samples: dict[str, float] = {}
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name.removeprefix("zkmigrate_")] = float(value)
    return samples


def test_a_metrics_file_counts_groups_by_outcome(simulated: Simulated, plan: str) -> None:
    """Another user can read it, and it says that the command has ended. The page explains each."""
    file = Path(simulated.file("zkmigrate.prom"))
    words = ("apply", plan, "--execute", "--metrics-file", str(file))
    assert simulated.run(*words).status == 3
    found = values(file)
    began, at = found.pop('begin_time_seconds{command="apply"}'), found.pop(
        'update_time_seconds{command="apply"}'
    )  # fmt: skip
    assert time.time() - 60 < began <= at <= time.time()
    assert found == {
        'groups{command="apply"}': 3,
        'groups_ended{command="apply",outcome="done"}': 1,
        'groups_ended{command="apply",outcome="refused"}': 1,
        'groups_ended{command="apply",outcome="skipped"}': 1,
        'offsets_written{command="apply"}': 1,
        'running{command="apply"}': 0,
    }
    assert file.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in file.parent.iterdir() if ".prom" in one.name] == [file.name]
    for name in metrics.METRICS:
        assert f"`zkmigrate_{name}`" in PAGE


@pytest.mark.parametrize("command", ["apply", "reset"])
def test_a_dry_run_has_written_no_offset(simulated: Simulated, plan: str, command: str) -> None:
    """Its metrics do not say what it would do."""
    words = ("--all-topics", "--to-latest") if command == "reset" else (plan,)
    file = simulated.folder / "metrics"
    ran = simulated.run(command, *words, "--group", "a", "--metrics-file", str(file))
    assert ran.status == 0, ran
    found = values(file)
    assert found[f'offsets_written{{command="{command}"}}'] == 0
    assert {name for name in found if "groups_ended" in name} == {
        f'groups_ended{{command="{command}",outcome="would be done"}}'
    }


def test_a_metrics_file_is_written_while_the_command_runs(
    simulated: Simulated, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it waits: the hook of a group waits until the file has the group before it."""
    monkeypatch.setattr(metrics, "INTERVAL", 0.02)
    file = simulated.file("zkmigrate.prom")
    hook = (
        "test $ZKMIGRATE_GROUP = a || for i in $(seq 600); do "
        f"grep -q 'outcome=\"done\"}} 1' {file} && grep -q '^zkmigrate_running.* 1$' {file} "
        "&& exit 0; sleep 0.05; done; test $ZKMIGRATE_GROUP = a"
    )
    found = simulated.run("apply", plan, "--parallel", "1", "--before-group", hook, "--execute",
                          "--metrics-file", file)  # fmt: skip
    assert "--before-group" not in json.dumps(found.rows), found
    assert values(Path(file))['running{command="apply"}'] == 0


def test_a_metrics_file_that_cannot_be_written(simulated: Simulated, plan: str) -> None:
    """At first it is a wrong option. Later the command goes on without it."""
    words = ("apply", plan, "--group", "a", "--execute", "--metrics-file")
    found = simulated.run(*words, simulated.file("none/there.prom"))
    assert (found.status, simulated.held("a", "t")[1]) == (2, {})
    assert "--metrics-file: " in found.err
    os.mkdir(simulated.file("folder"))
    hook = f"rm -r {simulated.file('folder')}"
    found = simulated.run(*words, simulated.file("folder/a.prom"), "--before-group", hook)
    assert (found.status, simulated.held("a", "t")[1]) == (0, {0: 5})
    assert "a.prom: No such file" in found.err


def test_a_metrics_file_is_written_again_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise an alert would say that the migration is stuck. Each fault is printed once."""
    monkeypatch.setattr(metrics, "INTERVAL", 0.01)
    folder = tmp_path / "folder"
    folder.mkdir()
    file = metrics.MetricsFile(str(folder / "a.prom"), "apply")
    said: list[str] = []

    def faults() -> int:
        said.append(capsys.readouterr().err)
        return "".join(said).count("a.prom: No such file")

    for number in (1, 2):
        folder.rename(tmp_path / f"away{number}")
        wait_until(lambda number=number: faults() == number, 30, "the fault")  # type: ignore[misc]
        folder.mkdir()
        wait_until((folder / "a.prom").exists, 30, "the file is back")
    file.close()
    assert faults() == 2


def unit(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the sections of a unit file, with all values of each key."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            section.setdefault(key, []).append(value)
    return sections


def job(text: str) -> dict[str, Any]:
    """Return the only document of a manifest."""
    (document,) = yaml.safe_load_all(text)
    return document  # type: ignore[no-any-return]


def of_unit() -> tuple[list[str], list[str], set[int]]:
    """Return the unit's command, its environment, and what is no failure."""
    service = unit((EXAMPLES / "zkmigrate.service").read_text())["Service"]
    (line,) = service["ExecStart"]
    assert service["KillSignal"] == ["SIGTERM"]
    assert int(service["TimeoutStopSec"][0]) >= 60
    assert "ProtectSystem" not in service or "ReadWritePaths" in service
    return shlex.split(line), service["Environment"], {int(service["SuccessExitStatus"][0])}


def of_job() -> tuple[list[str], list[str], set[int]]:
    """Return the Job's command, its environment, and what does not need another pod."""
    found = job((EXAMPLES / "zkmigrate-job.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    spec, pod = found["spec"], found["spec"]["template"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (1, 1), "one process for a journal"
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= 60
    (container,) = pod["containers"]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    assert mounts.keys() == {one["name"] for one in pod["volumes"]}
    assert not mounts["plans"].get("readOnly"), "the journal is next to the plan"
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    variables = [f"{one['name']}={one['value']}" for one in container["env"]]
    hopeless = set(rule["onExitCodes"]["values"])
    assert USAGE in hopeless
    return container["command"] + container["args"], variables, hopeless - {USAGE}


@pytest.mark.parametrize("example", [of_unit, of_job])
def test_an_example_runs(
    simulated: Simulated,
    plan: str,
    monkeypatch: pytest.MonkeyPatch,
    example: Callable[[], tuple[list[str], list[str], set[int]]],
) -> None:
    """Its command line, with its environment, moves the groups of the list, and with ``--help`` it
    is accepted as it is. Groups that need attention are no failure that another try would mend."""
    (program, *words), environment, attention = example()
    assert Path(program).name == "zkmigrate"
    assert attention == {ATTENTION}
    assert run([*words, "--help"]) == 0
    names = dict(one.split("=", 1) for one in environment)
    assert names.keys() == {"ZKCONSUMER_ZOOKEEPER", "ZKCONSUMER_COMMAND_CONFIG"}
    config = Path(simulated.file("client.properties"))
    config.write_text("security.protocol=PLAINTEXT\n")
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", names["ZKCONSUMER_ZOOKEEPER"])
    monkeypatch.setenv("ZKCONSUMER_COMMAND_CONFIG", str(config))
    wave = Path(simulated.file("wave-1.txt"))
    wave.write_text("a\nb\n")
    there = {"/plans/estate.plan": plan, "estate.plan": plan, "wave-1.txt": str(wave),
             "/plans/wave-1.txt": str(wave), "1800": "0s",
             "/var/lib/node_exporter/zkmigrate.prom": simulated.file("a.prom")}  # fmt: skip
    here = [there.get(word, word) for word in words]
    simulated.zk.set("/cluster/id", b'{"version":"1","id":"another"}')
    assert run(here) == FAILED, "it names its cluster"
    expected = words[words.index("--expect-cluster") + 1]
    simulated.zk.set("/cluster/id", json.dumps({"version": "1", "id": expected}).encode())
    assert run(here) == ATTENTION
    assert (simulated.held("a", "t")[1], simulated.held("b", "t")[1]) == ({0: 5}, {0: 7})
