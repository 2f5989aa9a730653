"""The command that replays a simulated run: its output and its exit status."""

from __future__ import annotations

import shlex

import pytest

from tests.sim.__main__ import main
from tests.sim.runs.run import run
from zkconsumer.runtime.delivery.data_plane import DataPlane


def test_a_run_without_a_violation_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is one line. With ``--history``, there is a line for every event."""
    for coordination in ("zookeeper", "coordinator"):
        arguments = ["--coordination", coordination, "--seed", "3", "--events", "4"]
        assert main(arguments) == 0
        verdict = capsys.readouterr().out
        assert verdict.startswith("no rule was broken; ")
        assert verdict.count("\n") == 1
        assert main([*arguments, "--history"]) == 0
        lines = capsys.readouterr().out.splitlines(keepends=True)
        assert len(lines) > 100
        assert lines[-1] == verdict


def test_a_failing_run_is_played_again_by_the_command_that_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rules are broken in the same way, and the exit status is 1."""
    right = DataPlane.start

    def start(self: DataPlane, partitions: dict[object, tuple[object, int]]) -> None:
        right(self, {tp: (of, at and at + 1) for tp, (of, at) in partitions.items()})  # type: ignore[arg-type,misc]

    monkeypatch.setattr(DataPlane, "start", start)
    result = run(0, coordination="zookeeper", events=60)
    assert result.violations
    command = shlex.split(result.replay)
    assert command[:3] == [".venv/bin/python", "-m", "tests.sim"]
    assert main(command[3:]) == 1
    assert capsys.readouterr().out == f"{result}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--seed", "-1"],
        ["--seed", "one"],
        ["--seed", "1", "--events", "1.5"],
        ["--seed", "1", "--coordination", "etcd"],
        ["--seed", "1", "--coordination", "coordinator", "--legacy"],
    ],
)
def test_wrong_arguments_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what is wrong with the arguments."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err
