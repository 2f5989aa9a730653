"""What CI runs: each test file once. A failed test fails CI, and an interruption leaves no
process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.wheels.test_wheels import on_the_wheel
from zkconsumer.servers import wait_until

PROGRAMS = {"setup", "kerberos", "browser", "spark-classes", "soak-sample"}
"""Targets of CI that run a program, or nothing, instead of test files."""
ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci" / "run"


def environment(folder: Path, make: str) -> dict[str, str]:
    """Return an environment in which ``make`` is this script."""
    program = folder / "make"
    program.write_text(f"#!/bin/bash\n{make}\n")
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "ZKC_TIMES": str(folder / "times.jsonl")}


def made(folder: Path) -> list[str]:
    """Return the targets that CI makes, in order."""
    script = f'echo "$@" >>{folder}/calls'
    subprocess.run([CI], env=environment(folder, script), check=True, timeout=30)
    words = (folder / "calls").read_text().split()
    return [word for word in words if not word.startswith("-")]


def test_every_test_file_is_run_by_one_target(tmp_path: Path) -> None:
    """Each test file is in one target of CI. No file is run twice on one build and one Spark.

    Members of other clients are left to `make test-peers`, which needs Node.js.
    """
    runs: Counter[Path] = Counter()
    targets = made(tmp_path)
    assert set(targets) >= PROGRAMS
    for target in [target for target in targets if target not in PROGRAMS]:
        shown = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        calls = re.findall(r"(?m)(?:^|\s)\S+/pytest ((?:.*\\\n)*.*)", shown)
        assert calls, f"{target} runs no tests"
        for words in map(shlex.split, calls):
            taken = [ROOT / word for word in words if word.startswith("tests")]
            left = [ROOT / word.partition("=")[2] for word in words if word.startswith("--ignore=")]
            files = {file for place in taken for file in [place, *place.rglob("test_*.py")]}
            for file in files:
                if file.is_file() and not any(file.is_relative_to(place) for place in left):
                    runs[file] += 1
    if "test-wheels" in targets:
        runs.update(on_the_wheel(ROOT))
    compiled = [file for file in on_the_wheel(ROOT) if file.parent == ROOT / "tests/unit"]
    old_spark = [ROOT / "tests/audit/test_sources.py", ROOT / "tests/audit/tables/test_job.py"]
    every = {*(ROOT / "tests").rglob("test_*.py")} - {*(ROOT / "tests/peers").rglob("*.py")}
    assert runs == Counter([*every, *compiled, *old_spark])


@pytest.mark.parametrize("failing", ["test", "test-sim", "test-interop"])
def test_a_target_that_fails_fails_ci(failing: str, tmp_path: Path) -> None:
    """CI fails if any call of make fails."""
    script = f'case " $* " in *" {failing} "*) exit 2 ;; esac'
    ran = subprocess.run([CI], env=environment(tmp_path, script), check=False, timeout=30)
    assert ran.returncode == 2


def test_the_background_log_is_next_to_the_times(tmp_path: Path) -> None:
    """A run that has its own file of times leaves the log of another run unchanged."""
    subprocess.run([CI], env=environment(tmp_path, f"echo {tmp_path}"), check=True, timeout=30)
    assert str(tmp_path) in read(tmp_path / "background.log")
    assert str(tmp_path) not in read(ROOT / "build" / "background.log")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_what_it_started(number: signal.Signals, tmp_path: Path) -> None:
    """When CI is interrupted, the programs that make started end too, also those of the targets in
    the background."""
    script = f"""case " $* " in *" setup "*) exit ;; esac
sleep 300 & sleep 300 & echo $(jobs -p) >>{tmp_path}/pids; wait"""
    ci = subprocess.Popen(
        [CI], env=environment(tmp_path, script), start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        pids = wait_until(
            lambda: len(found := read(tmp_path / "pids").split()) == 4 and found,
            20,
            "make runs twice",
        )
        ci.send_signal(number)
        assert ci.wait(20) == 128 + number
        wait_until(lambda: not any(map(alive, pids)), 20, "what make started has ended")
    finally:
        ci.kill()
        ci.wait()


@pytest.mark.parametrize(("tests", "status"), [(2, 0), (3, 1)])
def test_a_second_try(tests: int, status: int, tmp_path: Path) -> None:
    """A second try has its own names, so it does not use the topics of the first. If a third test
    needs a second try, the run fails. The reason of the first failure is printed."""
    (tmp_path / "test_tries.py").write_text(
        "import pytest\n"
        f"@pytest.mark.parametrize('number', range({tests}))\n"
        "def test_it(number, topic):\n"
        "    with open('names', 'a') as names:\n"
        "        print(topic, file=names)\n"
        "    assert topic.endswith('-2'), 'the first try'\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--reruns=1", "test_tries.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=False,
        timeout=300,
    )
    names = (tmp_path / "names").read_text().split()
    assert (ran.returncode, len(names), len(set(names))) == (status, 2 * tests, 2 * tests)
    assert ran.stdout.count(b"AssertionError: the first try") >= tests


def read(file: Path) -> str:
    """Return the file's text, or nothing while the file does not exist."""
    return file.read_text() if file.exists() else ""


def alive(pid: str) -> bool:
    """Return whether a process runs. One that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
