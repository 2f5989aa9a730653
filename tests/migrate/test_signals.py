"""Ctrl-C, SIGTERM and a closed terminal: groups in progress are finished, no other is begun."""

from __future__ import annotations

import _thread
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import click
import pytest
from zkmigrate.apply import parallel
from zkmigrate.apply.parallel import Parallel
from zkmigrate.commands.output.watch import Look, look_once_or_often
from zkmigrate.errors import JournalError

from zkconsumer.console import repeating
from zkconsumer.errors import BrokerError, ZkConsumerError


@pytest.mark.parametrize("workers", [1, 4])
def test_ctrl_c_ends_the_waits_of_groups_in_progress(workers: int) -> None:
    """A worker that waits for a coordinator which does not answer is told to stop waiting, so the
    run ends at once. Its group ends in order and is reported, and no other group is begun."""
    stopped, told = Event(), Event()
    reported: list[int] = []
    begun: list[int] = []
    ended: list[int] = []

    def work(_worker: object, item: int) -> int:
        begun.append(item)
        if len(begun) == workers:
            _thread.interrupt_main()
        assert told.wait(20), "nobody ended the wait"
        ended.append(item)
        return item

    pool = Parallel(range(workers), stopped, told.set)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), closing(pool.each(range(50), work)) as found:
        reported += (item for item, _ in found)
    assert time.monotonic() - started < 10
    assert stopped.is_set()
    assert len(begun) == workers
    assert sorted(reported) == sorted(ended) == sorted(begun)


def test_an_error_of_all_groups_begins_no_other() -> None:
    """Although the next group waits for its turn, and the calling thread, which reads a large
    plan, has not noticed the error yet."""
    begun: list[int] = []
    stopped, both = Event(), Event()

    def until_it_ends() -> None:
        deadline = time.monotonic() + 10
        while not stopped.is_set() and 2 not in begun and time.monotonic() < deadline:
            time.sleep(0.01)

    def work(_worker: object, item: int) -> int:
        begun.append(item)
        if item == 1:
            both.set()
            until_it_ends()
        if item != 0:
            return item
        assert both.wait(20)
        raise JournalError("the disk is full")

    def items() -> Iterator[int]:
        yield from range(3)
        until_it_ends()

    pool = Parallel(range(2), stopped, lambda: None)
    with pytest.raises(JournalError), closing(pool.each(items(), work)) as found:
        list(found)
    assert sorted(begun) == [0, 1]


def test_results_of_one_worker_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if several have ended before any was looked at. ``reset`` prints them as they are."""

    def backwards(tasks: list[Future[int]], return_when: str) -> SimpleNamespace:
        wait(tasks)
        return SimpleNamespace(done=list(tasks)[::-1])

    monkeypatch.setattr(parallel, "wait", backwards)
    pool = Parallel([None], Event(), lambda: None)
    with closing(pool.each(range(5), lambda _worker, item: item)) as found:
        assert [item for item, _ in found] == [0, 1, 2, 3, 4]


SCRIPT = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    + """
import os
from pathlib import Path
from threading import Event
import pytest
from tests.migrate.simulated import Simulated
from zkmigrate.cli import main
from zkmigrate.commands.output import progress

progress.INTERVAL = 0.0
simulated = Simulated(pytest.MonkeyPatch(), Path(sys.argv[1]))
simulated.topic("t", (0, 100))
for number in range(9):
    simulated.in_zookeeper(f"g{number}", "t", 5)
assert simulated.run("plan", "--all", "--out", "plan").status == 0
told = Event()
simulated.kafka.stop_waiting = told.set
commit = simulated.kafka.commit

calls = []

def committing(group, new, *more, **others):
    calls.append(group)
    if len(calls) == 4:
        os.write(1, b"here\\n")
        assert told.wait(30)
    return commit(group, new, *more, **others)

simulated.kafka.commit = committing
sys.argv[1:] = ["apply", "plan", "--execute", "--parallel", sys.argv[2], "--zookeeper", "sim:1"]
main()
"""
)
RESET = SCRIPT.replace(
    '["apply", "plan", "--execute", "--parallel", sys.argv[2],',
    '["reset", "--all", "--all-topics", "--shift-by", "1", "--store", "kafka", "--execute",'
    '"--parallel", "1",',
).replace("calls = []", "calls = []\nfor one in range(9): simulated.in_kafka(f'g{one}', 't', 5)")
"""The same for ``reset``, where a group that was changed and is not recorded would be shifted
twice.
"""


def recorded(folder: Path, journal: str = "plan.journal") -> dict[str, str]:
    """Return the outcome of each group that was begun."""
    lines = (folder / journal).read_text().splitlines()
    records = [json.loads(line.partition("\t")[0]) for line in lines]
    found = {one["group"]: "begun" for one in records if "step" in one}
    return found | {one["group"]: one["outcome"] for one in records if "outcome" in one}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("script", "journal"), [(SCRIPT, "plan.journal"), (RESET, "zkmigrate-reset.journal")]
)
def test_a_signal_finishes_the_group_in_progress(
    tmp_path: Path, number: signal.Signals, script: str, journal: str
) -> None:
    """A drained pod, ``systemctl stop`` and a closed terminal are not worse than Ctrl-C: the group
    under way is moved, released and recorded."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (2, 1, 15)],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "interrupted: run the same command again to resume" in err
    assert "Traceback" not in err
    assert recorded(tmp_path, journal) == dict.fromkeys(["g0", "g1", "g2", "g3"], "done")


def test_a_closed_terminal_does_not_end_the_work(tmp_path: Path) -> None:
    """Nobody reads standard error any more. All groups are moved all the same."""
    script = SCRIPT.replace("assert told.wait(30)", "sys.stdin.readline()")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "here\n"
    process.stderr.close()
    process.stdin.write("\n")
    process.stdin.close()
    process.stdout.read()
    process.wait(60)
    assert recorded(tmp_path) == {f"g{number}": "done" for number in range(9)}


def test_watch_that_is_ended_while_a_server_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is that of the last look, which failed, and not that of the last good one."""
    looks: list[Look | ZkConsumerError] = [
        Look("hold", 1, [("g", "held")], "all well", 0),
        BrokerError("the broker does not answer"),
    ]

    def look() -> Look:
        found = looks.pop(0)
        if isinstance(found, ZkConsumerError):
            raise found
        return found

    def sleep(_seconds: float) -> None:
        if not looks:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(repeating.time, "sleep", sleep)
    with click.Context(click.Command("status")):
        assert look_once_or_often(look, 1.0, "table") == BrokerError.exit_code != 0
        assert "the broker does not answer; trying again" in capsys.readouterr().err
        looks += [BrokerError("away"), Look("hold", 1, [], "behind", 4)]
        assert look_once_or_often(look, 1.0, "table") == 4
