"""The commands of ``docs/how-to/kraft.md`` do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kraft.md"


def blocks() -> dict[str, str]:
    """The scripts of the page by their marks."""
    found = re.findall(r"<!-- test: (.+?) -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(found)


@pytest.fixture
def with_lines(left: Any) -> Iterator[Any]:
    """The page's topic, on brokers that other tests also use."""
    left.topic("lines", partitions=1, messages=20)
    yield left
    left.kraft.delete_topic("lines")


def test_the_pages_commands(with_lines: Any, tmp_path: Path) -> None:
    """The blocks for inspecting, staying, moving, rolling back and the gate each end as expected,
    in the order of the page."""
    left = with_lines
    left.remember("lines")
    left.set_zk("billing", "lines", {0: 7})
    scripts = blocks()
    assert list(scripts) == ["look", "stay", "move", "back", "gate"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "OLD": left.address, "NEW": left.kraft.bootstrap, "PATH": path}

    def shell(name: str, status: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-ec", scripts[name]],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    assert re.search(r"billing +True +1 +0 +0 +0 +\S+Z +none", shell("look", status=3))
    stayed = shell("stay")
    assert stayed.count("v\n") >= 3
    assert re.search(r"tryout +lines +0 +3 +20 +17", stayed)
    shell("move")
    assert left.committed("billing", "lines") == {0: 7}
    shell("gate", status=3)  # group tryout is still in ZooKeeper
    shell("back")
    assert left.committed("billing", "lines") == {}
    left.client.delete("/consumers/tryout", recursive=True)
    (tmp_path / "moves.plan").unlink()
    (tmp_path / "moves.plan.journal").unlink()
    shell("move")
    shell("gate")
