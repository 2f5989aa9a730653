"""A short ``zkconsumer demo``: its verdict, and its cleanup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import processes_naming
from zkconsumer.servers import wait_until

COMMAND = [sys.executable, "-c", "from zkconsumer.cli import main; main()", "demo"]


def test_the_demo_loses_nothing(tmp_path: Path) -> None:
    """Members join, are killed and leave under load. Nothing is lost, and every repetition is
    explained."""
    keep, svg = tmp_path / "kept", tmp_path / "demo.svg"
    done = subprocess.run(
        [*COMMAND, "--lines", "30000", "--json", "--keep", keep, "--save-svg", svg],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["good"] is True
    assert (found["sent"], found["lost"], found["unexplained"]) == (30_000, 0, 0)
    assert found["delivered"] == 30_000 + found["delivered_twice"]
    assert found["delivered"] == sum(found["by_member"].values())
    events = {event["event"]: event for event in found["events"]}
    assert list(events) == [
        "member-1 joins",
        "member-2 joins",
        "member-3 joins",
        "member-2 is killed (SIGKILL)",
        "member-1 leaves",
        "all is committed",
    ]
    assert events["member-3 joins"]["owned"] == {
        "member-1": "0-1 | 2-3",
        "member-2": "4-5 | 6-7",
        "member-3": "8-9 | 10-11",
    }
    # The changes happened under load: messages arrived between any two, and some were left.
    delivered = [event["delivered"] for event in found["events"]]
    assert delivered == sorted(set(delivered))
    assert delivered[-2] < 30_000
    assert "/consumers/demo/owners/lines/11 = demo_member-3-1" in done.stderr
    assert "<svg" in svg.read_text()
    assert processes_naming(str(keep)) == set()
    assert {path.name for path in keep.iterdir()} >= {"records", "logs"}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_demo_leaves_no_process(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """Ctrl-C ends with status 130 and no traceback. Members and servers always end with the
    demo."""
    keep = tmp_path / "kept"
    demo = subprocess.Popen(
        [*COMMAND, "--lines", "5000", "--keep", keep],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if "member-2 joins" in line:
            break
    demo.send_signal(number)
    said += demo.stdout.read()
    assert demo.wait(timeout=60) == status, said
    assert "Traceback" not in said
    wait_until(lambda: not processes_naming(str(keep)), 30, "members and servers are gone")
