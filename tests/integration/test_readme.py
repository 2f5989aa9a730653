"""The blocks of the README and the tutorial are run on real servers, and do what the text says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.groups import exported
from zkconsumer.admin.snapshot import read_group
from zkconsumer.errors import ConsumerTimeoutError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send
from zkconsumer.zk.blocking import BlockingZk

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-group.md"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (mark, text) of each block after a ``<!-- test: mark -->`` comment."""
    found = re.findall(
        r"<!-- test: (.+?) -->\n```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(found) == page.read_text(encoding="utf-8").count("<!-- test: ")
    return found


class Shell:
    """Runs scripts. The installed commands are on the path, and clusters have their own place."""

    def __init__(self, place: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "XDG_STATE_HOME": str(place), "PATH": path}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str, out: Path) -> subprocess.Popen[str]:
        """Start a script as a terminal does, in its own process group."""
        with out.open("w") as file, out.with_suffix(".err").open("w") as errors:
            process = subprocess.Popen(
                ["bash", "-ec", script],
                cwd=ROOT,
                env=self.env,
                stdout=file,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def run(self, script: str) -> str:
        """Run a script until it succeeds. Return its stdout."""
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell. Its processes and its cluster are gone after the test."""
    made = Shell(tmp_path / "state")
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    subprocess.run(
        [sys.executable, "-c", "from zkconsumer.cli import main; main()", "cluster", "down"],
        env=made.env,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_the_readmes_first_screen() -> None:
    """The first 40 lines say what it is, for whom, how mature, when another client is better, how
    to install it, and show Python. The picture comes before the first heading."""
    text = README.read_text(encoding="utf-8")
    screen = "\n".join(text.splitlines()[:40])
    assert screen.startswith("# zkconsumer\n")
    for part in ("*Alpha", "`make demo`", "`make test`", "do not need this library", "pip install"):
        assert part in screen
    assert "for message in stream:" in screen
    (picture,) = re.findall(r"!\[.+\]\((.+?)\)", text.split("\n## ")[0])
    assert "<svg" in (ROOT / picture).read_text()


def test_ci_runs_the_readmes_test_command() -> None:
    """``.ci/run`` does what the README recommends to a newcomer, possibly next to other targets."""
    commands = (ROOT / ".ci" / "run").read_text()
    assert re.search(
        r"^run test make (--(jobs|output-sync)=\w+ )*test( #.*)?$", commands, re.MULTILINE
    )


def test_two_terminals(shell: Shell, tmp_path: Path) -> None:
    """The walk-through as written: two members share a topic, and one takes over after Ctrl-C."""
    marked = dict(blocks(README))
    first, second = tmp_path / "first.out", tmp_path / "second.out"
    one = shell.start(marked["terminal 1"], first)
    wait_until(lambda: "zookeeper: " in first.read_text(), 60, "the cluster is up")
    address = first.read_text().split()[1]
    wait_until(lambda: _members(address) == 1, 30, "the first has joined")
    two = shell.start(marked["terminal 2"], second)
    wait_until(lambda: _members(address) == 2, 30, "the second has joined")
    sent = README.read_text(encoding="utf-8").splitlines()

    def lines() -> list[str]:
        texts = (first.read_text(encoding="utf-8"), second.read_text(encoding="utf-8"))
        return [line for text in texts for line in text.splitlines()[2 * (text is texts[0]) :]]

    wait_until(lambda: len(lines()) >= len(sent), 30, "every line is printed")
    assert sorted(lines()) == sorted(sent)
    os.killpg(one.pid, signal.SIGINT)
    assert one.wait(timeout=20) == 130
    shell.run("zkconsumer cluster send pages README.md")
    before = len(sent)
    wait_until(lambda: len(lines()) >= 2 * before, 30, "the second prints all by itself")
    assert sorted(lines()) == sorted(sent * 2)
    os.killpg(two.pid, signal.SIGINT)
    assert two.wait(timeout=20) == 130
    shell.run(marked["end"])
    assert not _says(shell, "cluster status")


def _says(shell: Shell, command: str) -> bool:
    done = subprocess.run(
        ["bash", "-c", f"zkconsumer {command}"], env=shell.env, capture_output=True, check=False
    )
    return done.returncode == 0


def _members(address: str) -> int:
    """Return how many members of the group ``readers`` share its partitions, or 0 before it is
    stable."""
    with BlockingZk(address, 10.0) as zk:
        group = zk.run(read_group("readers"))
    if group is None:
        return 0
    nodes = [node for found in group.owners.values() for node in found.values()]
    owners = {node.data.decode().rpartition("-")[0] for node in nodes}
    return len(owners) if len(owners) == len(group.members) else 0


def test_the_python_example(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the run's address and topic, the example prints messages, and commits what it printed
    when it ends."""
    code = dict(blocks(README))["python"]
    topic = f"pages-{tmp_path.name}"
    group = f"readers-{tmp_path.name}"
    cluster.create_topic(topic)
    send(cluster.bootstrap, topic, [(b"k", b"line %d" % i) for i in range(5)])
    limits = '"auto.offset.reset": "smallest", "consumer.timeout.ms": 3000, "group.id"'
    for old, new in [
        ('"group.id"', limits),
        ("localhost:2181", cluster.zookeeper),
        ('"pages"', f'"{topic}"'),
        ('"readers"', f'"{group}"'),
    ]:
        assert old in code
        code = code.replace(old, new)
    with pytest.raises(ConsumerTimeoutError):
        exec(compile(code, str(README), "exec"), {})
    printed = capfd.readouterr().out.splitlines()
    assert printed == [f"0 {i} b'k' b'line {i}'" for i in range(5)]
    assert list(exported(cluster.zookeeper, group).values()) == [5]


def test_the_tutorial(shell: Shell, tmp_path: Path) -> None:
    """Its commands run in order. Its two members share partitions and take over as the text
    says, and the group is cut over when the last one leaves."""
    steps = blocks(TUTORIAL)
    (member,) = [text for mark, text in steps if mark == "file member.py"]
    runs = [text for mark, text in steps if mark == "run"]
    shell.run(runs[0])
    assert len(shell.run(runs[1]).splitlines()) == 20
    assert len(shell.run(runs[2]).splitlines()) == 5
    script = tmp_path / "member.py"
    script.write_text(member)
    address = shell.run("zkconsumer cluster address").strip()
    outs = []
    pipes = []
    for name in ("a", "b"):
        out = tmp_path / f"{name}.out"
        with out.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(script), address],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        shell.processes.append(process)
        pipes.append(process)
        outs.append(out)
        wait_until(lambda out=out: "reading: pages" in out.read_text(), 30, "it reads")
    assert "reading: pages [0, 1, 2, 3]" in outs[0].read_text()
    wait_until(
        lambda: "releasing: {'pages': [1, 2, 3]}" in outs[0].read_text(), 30, "the first releases"
    )
    pipes[1].communicate("\n", timeout=30)
    assert pipes[1].returncode == 0
    assert "reading: pages [2, 3]" in outs[1].read_text()
    everything = "reading: pages [0, 1, 2, 3]"
    wait_until(lambda: outs[0].read_text().count(everything) == 2, 30, "the first takes over")
    marked = dict(steps)
    mirror, cut = tmp_path / "mirror.out", tmp_path / "cut.out"
    mirroring = shell.start(marked["mirror"], mirror)
    wait_until(lambda: "in step" in mirror.read_text(), 60, "the mirror has begun")
    cutting = shell.start(marked["cut over"], cut)
    wait_until(lambda: "tutorial-2" in cut.with_suffix(".err").read_text(), 60, "it waits")
    pipes[0].communicate("\n", timeout=30)
    assert pipes[0].returncode == 0
    assert cutting.wait(timeout=60) == 0
    assert "done" in cut.read_text()
    lines = [line for out in outs for line in out.read_text().splitlines() if line[0].isdigit()]
    assert len(lines) == len(set(lines)) == len(README.read_text(encoding="utf-8").splitlines())
    assert len(shell.run(marked["read mirrored"]).splitlines()) == 5
    shell.run(marked["complete"])
    os.killpg(mirroring.pid, signal.SIGINT)
    mirroring.wait(timeout=60)
    shell.run(runs[3])
