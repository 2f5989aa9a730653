"""The migrator is killed on real servers, or its journal is cut, and then it continues.

``test_operators`` kills commands at every point, on simulated servers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply.outcome import Outcome
from zkmigrate.errors import JournalError
from zkmigrate.formats.plan_file import render

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


class KilledError(BaseException):
    """Simulates a kill: our code does not catch it, and the session ends as after a kill."""


SCRIPT = """
import os, sys
from pathlib import Path
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.parallel import Run
from zkmigrate.formats.plan_file import parse
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.sessions import Stores

zookeeper, plan, journal, word = sys.argv[1:]

def effect(what):
    if word in what:
        os._exit(9)

loaded = parse(plan, Path(plan).read_bytes())
servers = Servers(zookeeper, 4.0)
with Stores(servers) as stores, Journal(Path(journal), loaded.digest, effect) as opened:
    Migrator(stores, effect).apply(loaded, Run(opened, idle=True), lambda result: None)
"""


@pytest.mark.parametrize(
    "word",
    ["after zookeeper create /consumers", "after zookeeper multi", "after kafka", "journal mark"],
)
def test_a_killed_process_is_outlived(
    bench: Bench, tmp_path: Path, group: str, topic: str, word: str
) -> None:
    """A killed process leaves its session behind, and the next run waits for it."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    plan, journal = bench.plan([group])
    file = tmp_path / "plan"
    file.write_text("".join(render(plan.direction, plan.made_ms, plan.groups)))
    arguments = [sys.executable, "-c", SCRIPT, bench.cluster.zookeeper, str(file), str(journal)]
    done = subprocess.run([*arguments, word], check=False, timeout=60, capture_output=True)
    assert done.returncode == 9, done.stderr.decode()
    (result,) = bench.apply(plan, journal)
    assert result.outcome is Outcome.DONE, result.why
    assert bench.committed(group, {topic: 2}) == {
        TopicPartition(topic, 0): StoredOffset(3),
        TopicPartition(topic, 1): StoredOffset(4),
    }
    assert not bench.client.get_children(f"/consumers/{group}/ids")


def test_a_cut_journal_never_makes_it_guess(bench: Bench, group: str, topic: str) -> None:
    """The journal of a finished or killed run is cut at any place. The move ends as planned, or is
    refused and changes nothing."""
    bench.topic(topic, 2)
    outcomes = set()
    for kill in (None, "after kafka", "before journal mark", "after zookeeper multi"):
        name = f"{group}-{kill}".replace(" ", "-")
        bench.set_zk(name, topic, {0: 3, 1: 4})
        plan, journal = bench.plan([name])

        def effect(what: str, kill: str | None = kill) -> None:
            if kill is not None and kill in what:
                raise KilledError(what)

        try:
            bench.apply(plan, journal, effect)
        except KilledError:
            assert kill is not None
        data = journal.read_bytes()
        ends = {index + 1 for index, byte in enumerate(data) if byte == 10}
        ends |= {end + more for end in ends for more in (-1, 1, 9) if end + more < len(data)}
        for end in sorted(ends):  # shortest first: the stores only advance
            journal.write_bytes(data[:end])
            before = (bench.znodes(name), bench.committed(name, {topic: 2}))
            try:
                (result,) = bench.apply(plan, journal)
            except JournalError:
                outcomes.add("refused journal")
                assert (bench.znodes(name), bench.committed(name, {topic: 2})) == before
                continue
            outcomes.add(result.outcome)
            if result.outcome.good:
                assert bench.committed(name, {topic: 2}) == {
                    TopicPartition(topic, 0): StoredOffset(3),
                    TopicPartition(topic, 1): StoredOffset(4),
                }, end
            else:
                assert "plan again" in result.why or "plan:" in result.why, result.why
                assert (bench.znodes(name), bench.committed(name, {topic: 2})) == before, end
    assert outcomes >= {"refused journal", Outcome.REFUSED, Outcome.DONE, Outcome.WAS_DONE}
