"""Code blocks of pages that need servers: the tutorial's later steps, and operating groups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEN = [(None, b"%d" % number) for number in range(10)]
Run = Callable[[str], "subprocess.CompletedProcess[str]"]


def blocks(page: str) -> list[tuple[str, str]]:
    """The (mark, text) pairs of the page's marked blocks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"<!-- test: (.+?) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("<!-- test: ")
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Runs scripts in their own folder, with the commands on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PATH": path}
    shutil.copy(ROOT / "README.md", tmp_path)

    def script(text: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    yield script
    subprocess.run(
        ["zkconsumer", "cluster", "down"], env=env, capture_output=True, timeout=60, check=False
    )


def test_the_tutorial_moves_the_group_and_audits_it(run: Run, tmp_path: Path) -> None:
    """The tutorial inspects the group's znodes, moves the group to the brokers, continues reading,
    and writes the audit's report."""
    steps = blocks("tutorial/first-group.md")
    runs = [text for mark, text in steps if mark == "run"]
    marked = dict(steps)
    for text in runs[:2]:
        run(text)
    command, shown = marked["znodes"].removeprefix("$ ").split("\n", 1)
    drawn = run(command).stdout
    assert re.sub(r"(: )\d+", r"\g<1>N", drawn) == re.sub(r"(: )\d+", r"\g<1>N", shown)
    run(runs[2])
    run(marked["move"])
    lines = run(marked["read on"]).stdout.splitlines()
    assert [line.startswith("Partition:") for line in lines[:5]] == [True] * 5
    offsets = {cells[2]: int(cells[3]) for cells in map(str.split, lines[6:])}
    assert sum(offsets.values()) == 20 + 5 + 5
    run(marked["audit"])
    assert "tutorial" in (tmp_path / "audit" / "report.html").read_text(encoding="utf-8")
    run(runs[3])


def test_the_tutorial_finds_out_who_lost_messages(run: Run, tmp_path: Path) -> None:
    """The audit's output is the page's, apart from times and ids. Lost and billed orders are all
    orders."""
    for mark, text in blocks("tutorial/lost-messages.md"):
        if mark == "run":
            run(text)
            continue
        command, shown = text.removeprefix("$ ").split("\n", 1)
        zxids = re.findall(r"zxid (0x\w+)", run("zkaudit findings audit").stdout)
        assert len(zxids) == 1, run("zkaudit findings audit").stdout
        printed = run(command.replace("0x3e", zxids[0])).stdout
        assert _without_ids(printed).split() == _without_ids(shown).split()  # lines are wrapped
    orders = [line for name in ("billed", "lost") for line in _lines(tmp_path / f"{name}.txt")]
    expected = [f"order {partition}-{number}" for partition in (0, 1) for number in range(500)]
    assert sorted(orders) == sorted(expected)


def _without_ids(text: str) -> str:
    """Times, ids, zxids and places in the log differ in each run."""
    text = re.sub(r"billing_\S+-\d+-\w{8}", "MEMBER", text)
    text = re.sub(r"billing_zkconsumer-\w{8}", "TOOL", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T][\d:.]+", "TIME", text)
    return re.sub(r"0x\w+|byte \d+|log\.1:\d+|\[[0-9a-f]{10}\]", "N", text)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _session(run: Run, environment: str, page: str) -> None:
    """Run a page's console blocks in order. The output of the commands equals the page's."""
    for mark, text in blocks(page):
        assert mark == "run"
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, shown = part.split("\n", 1)
            printed = run(f"{environment}; {{ {command}; }} 2>&1").stdout
            expected = [line.rstrip() for line in shown.strip().splitlines()]
            assert [line.rstrip() for line in printed.strip().splitlines()] == expected, command


@pytest.fixture
def fresh() -> Iterator[LocalCluster]:
    """A cluster with the topic ``pages``. Of its two partitions, the first has ten messages."""
    with LocalCluster() as cluster:
        cluster.create_topic("pages", partitions=2)
        send(cluster.bootstrap, "pages", TEN, partition=0)
        yield cluster


def test_groups_are_looked_after_as_the_pages_say(run: Run, fresh: LocalCluster) -> None:
    """Each command in the how-to prints the output that the page shows."""
    environment = f"export ZKCONSUMER_ZOOKEEPER={fresh.zookeeper}"
    run(
        f"{environment}; zkconsumer consume --group readers --topic pages --from-beginning "
        "--max-messages 5"
    )
    send(fresh.bootstrap, "pages", TEN, partition=1)
    _session(run, environment, "how-to/look-after-groups.md")


def test_the_herd_is_reproduced_as_the_page_says(run: Run, tmp_path: Path) -> None:
    """The command of the page runs, and the report appears."""
    for mark, text in blocks("explanation/herd.md"):
        assert mark == "run"
        run(text)
    assert "<svg" in (tmp_path / "herd-simulated.html").read_text(encoding="utf-8")
