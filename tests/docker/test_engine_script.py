"""docker/engine.sh on a machine where no engine can start, and where an engine already runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker" / "engine.sh"


def engine(
    folder: Path, programs: Mapping[str, str], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the script with these programs instead of the machine's."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "ENGINE_DIR": str(folder / "engine"), **more}
    env = {key: value for key, value in env.items() if key != "DOCKER_HOST" or key in more}
    return subprocess.run(
        [SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({"docker": "exit 1", "id": "echo 1000"}, "only root may start one"),
        (
            {"docker": "exit 1", "id": "echo 0", "mmdebstrap": "", "docker-compose": "",
             "dockerd": "echo 'failed to start daemon: no cgroups' >&2; exit 1"},
            "did not start: failed to start daemon: no cgroups",
        ),
        (
            {"docker": "exit 1", "id": "echo 0", "mmdebstrap": "", "docker-compose": "",
             "dockerd": "exec sleep 60"},
            "the Docker engine did not answer within 1 s",
        ),
    ],
)  # fmt: skip
def test_without_an_engine_the_command_runs_all_the_same(
    programs: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """``start`` fails with one line that gives the reason. ``run`` prints that line and runs the
    command, so that the tests themselves report that they are skipped."""
    started = engine(tmp_path, programs, "start", ENGINE_SECONDS="1")
    assert (started.returncode, started.stdout) == (1, "")
    assert started.stderr.startswith("error: ")
    assert started.stderr.count("\n") == 1
    assert reason in started.stderr
    ran = engine(tmp_path, programs, "run", "sh", "-c", "echo ran; exit 3", ENGINE_SECONDS="1")
    assert (ran.returncode, ran.stdout) == (3, "ran\n")
    assert reason in ran.stderr


def test_an_engine_that_answers_is_used(tmp_path: Path) -> None:
    """The script starts and stops nothing. It prints the engine's address and passes it to the
    command."""
    programs = {"docker": "exit 0", "dockerd": "echo started >>$ENGINE_DIR.started"}
    host = "unix:///somewhere/docker.sock"
    assert engine(tmp_path, programs, "start", DOCKER_HOST=host).stdout == f"{host}\n"
    ran = engine(tmp_path, programs, "run", "sh", "-c", "echo $DOCKER_HOST", DOCKER_HOST=host)
    assert (ran.returncode, ran.stdout) == (0, f"{host}\n")
    assert engine(tmp_path, programs, "stop").returncode == 0
    assert not (tmp_path / "engine.started").exists()
