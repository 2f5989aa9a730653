"""With an engine and Compose, docker/compose.yaml starts, becomes healthy, works, and stops."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.groups import GroupWatch
from zkconsumer.servers import wait_until

FILE = Path(__file__).parents[2] / "docker" / "compose.yaml"
ZOOKEEPER = "127.0.0.1:12181,127.0.0.1:12182,127.0.0.1:12183"
MEMBERS = ("python-member", "jvm-member")
UP_SECONDS = 240


class Compose(Protocol):
    """Runs Compose with our file and its own project name."""

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Return its output. The exit status is ignored."""


@pytest.fixture
def compose(docker: Callable[..., str]) -> Iterator[Compose]:
    """``docker compose``, or the older ``docker-compose``. The project is stopped after the
    test."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and not subprocess.run(
                [*command, "version"], capture_output=True, check=False
            ).returncode
        ):
            break
    else:
        pytest.skip("neither docker compose nor docker-compose is installed")
    project = f"zkconsumer-{uuid.uuid4().hex[:8]}"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "-p", project, "-f", str(FILE), *arguments],
            capture_output=True,
            text=True,
            timeout=UP_SECONDS,
            check=False,
        )

    yield run
    run("down")


def test_the_compose_file_runs_a_mixed_group(
    docker: Callable[..., str], image: str, compose: Compose
) -> None:
    """After ``up -d`` both members become healthy, share the topic and print every line.

    They also do so after a broker was killed and ``up -d`` restarted it, and without one of the
    ZooKeeper servers. Members that are stopped leave cleanly. ``down`` leaves nothing.
    """
    up = compose("up", "-d")
    assert up.returncode == 0, up.stderr
    ids = {name: compose("ps", "-q", name).stdout.strip() for name in MEMBERS}

    def health() -> dict[str, str]:
        return {
            name: docker("inspect", "--format", "{{.State.Health.Status}}", ids[name])
            for name in MEMBERS
        }

    wait_until(lambda: set(health().values()) == {"healthy"}, 60.0, "both members are healthy")

    def shared(owners: dict[int, str]) -> bool:
        threads = {thread.rpartition("-")[0] for thread in owners.values()}
        return set(owners) == set(range(8)) and threads == {"readers_python", "readers_jvm"}

    def seen(name: str) -> set[str]:
        return {line for line in docker("logs", ids[name]).splitlines() if line[:5] == "line "}

    def printed(count: int) -> bool:
        found = seen(MEMBERS[0]) | seen(MEMBERS[1])
        return {f"line {n}" for n in range(1, count + 1)} <= found and all(map(seen, MEMBERS))

    with GroupWatch(ZOOKEEPER, "readers") as watch:
        watch.wait_owners("lines", shared, 60.0, "the members share the topic")
        wait_until(lambda: printed(50), 60.0, "the first 50 lines are printed")
        for server, restarted in (("broker-0", True), ("zookeeper-2", False)):
            assert compose("kill", server).returncode == 0
            if restarted:
                again = compose("up", "-d")
                assert again.returncode == 0, again.stderr
            more = len(seen(MEMBERS[0]) | seen(MEMBERS[1])) + 50
            wait_until(lambda more=more: printed(more), 60.0, f"{server}: 50 lines more")  # type: ignore[misc]
            watch.wait_owners("lines", shared, 60.0, f"{server}: the members still share the topic")
        assert compose("stop", *MEMBERS).returncode == 0
        ends = docker("inspect", "--format", "{{.State.ExitCode}}", *ids.values())
        assert (ends.split(), watch.members(), watch.owners("lines")) == (["143", "143"], [], {})
    every = compose("ps", "-a", "-q").stdout.split() or compose("ps", "-q").stdout.split()
    assert len(every) == 9
    down = compose("down")
    assert down.returncode == 0, down.stderr
    assert set(docker("ps", "-a", "-q", "--no-trunc").split()).isdisjoint(every)
