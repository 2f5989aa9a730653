"""The runbook for many groups: its commands in its order, on real servers."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.migrate.rows import run
from zkconsumer.servers import LocalCluster

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate-an-estate.md"


def commands() -> list[tuple[str, int]]:
    """Every command of the page, with the exit status that its comment states."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = []
    for line in re.sub(r" \\\n\s*", " ", "".join(blocks)).splitlines():
        match = re.search(r"  # status (\d+)( if .*)?$", line)
        found.append((line[: match.start()] if match else line, int(match[1]) if match else 0))
    return found


def test_the_commands_of_the_runbook_do_what_it_says(
    bench_on: Callable[[LocalCluster], Bench],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command ends with the status on the page. After the night every offset is in Kafka. At
    the end the groups that were moved back are open and in ZooKeeper."""
    monkeypatch.chdir(tmp_path)
    with LocalCluster("3.9") as cluster:
        bench = bench_on(cluster)
        bench.topic("orders", 2)
        for group in ("billing", "billing-archive", "mail", "search", "test-1"):
            bench.set_zk(group, "orders", {0: 3, 1: 4})
        bench.set_kafka("mail", "orders", {0: 5, 1: 4})
        ran = []
        for command, status in commands():
            command = command.replace("$ZK", cluster.zookeeper)
            words = shlex.split(command, comments=True)
            if "--at-apply --decisions" in command:
                assert 'on_conflict = "kafka"' in (tmp_path / "decisions.toml").read_text()
            if "plan --group search --zookeeper" in command:
                bench.set_zk("search", "orders", {1: 6})
            if "--only-problems --zookeeper" in command:
                bench.set_zk("test-1", "orders", {0: 3})
            if "--watch" in words:
                assert _watched(words) == status
            elif words[0] in ("zkmigrate", "zkconsumer"):
                code = run(words[1:])
                printed = capsys.readouterr()
                assert code == status, (command, printed)
            else:
                subprocess.run(["bash", "-c", command], check=True)
            ran.append(words[1] if words[0] == "zkmigrate" else words[0])
            if "status estate.plan --zookeeper" in command:
                _check_moved(bench)
        assert ran.count("apply") == 5
        assert {"status", "plan", "lock", "unlock", "undo"} <= set(ran)
        assert _offsets(bench, "billing") == {0: 3, 1: 4}
        assert _offsets(bench, "billing-archive") == {}
        assert _offsets(bench, "search") == {0: 3, 1: 6}
        assert bench.znodes("mail")["/consumers/mail/offsets/orders/0"] == b"5"
        locked = {
            group: len(bench.client.get(f"/consumers/{group}/ids")[0]) > 0
            for group in ("billing", "billing-archive", "mail", "search")
        }
        assert locked == {"billing": True, "billing-archive": False, "mail": False, "search": True}
        bench.close()


def _watched(words: list[str]) -> int:
    """Run a command that watches, press Ctrl-C once it works, and return its exit status."""
    code = "from zkmigrate.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *words[1:]],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        return process.wait(60)


def _offsets(bench: Bench, group: str) -> dict[int, int]:
    held = bench.committed(group, {"orders": 2})
    return {tp.partition: stored.offset for tp, stored in held.items()}  # type: ignore[attr-defined]


def _check_moved(bench: Bench) -> None:
    for group, first in (("billing", 3), ("billing-archive", 3), ("mail", 5), ("search", 3)):
        assert _offsets(bench, group) == {0: first, 1: 4}, group
    assert _offsets(bench, "test-1") == {}
