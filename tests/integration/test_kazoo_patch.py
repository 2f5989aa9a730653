"""``docs/upstream/kazoo_get_many.patch`` applies to the installed kazoo and works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kazoo

PATCH = Path(__file__).parents[2] / "docs" / "upstream" / "kazoo_get_many.patch"
PROGRAM = """
import json, sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1])
client.start(timeout=15)
client.create("/many/a", b"1", makepath=True)
client.create("/many/b", b"")
before = client.last_zxid
data = client.get_many(["/many/a", "/many/none", "/many/b"])
names = client.get_many(["/many", "/none"], children=True)
client.delete("/many", recursive=True)
print(json.dumps([
    data[0][0].decode(), data[0][1].version, type(data[1]).__name__, data[2][0].decode(),
    sorted(names[0]), type(names[1]).__name__, client.get_many([]),
]))
client.stop()
"""


def test_many_znodes_in_one_packet(zookeeper: str, unique: str, tmp_path: Path) -> None:
    """Values, names and missing znodes arrive in the order of the paths."""
    shutil.copytree(
        Path(kazoo.__file__).parent, tmp_path / "kazoo", ignore=shutil.ignore_patterns("tests")
    )
    applied = subprocess.run(
        ["git", "apply", "-p1", str(PATCH)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )
    assert applied.returncode == 0, applied.stderr
    program = PROGRAM.replace("/many", f"/{unique}")
    done = subprocess.run(
        [sys.executable, "-c", program, zookeeper],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == ["1", 0, "NoNodeError", "", ["a", "b"], "NoNodeError", []]
