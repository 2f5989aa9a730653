"""Diagrams of journals: the five steps, in both styles of coordination."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from zkconsumer.cli.main import cli
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Code, Failed, FetchOffsets, Ok, StoreOffsets
from zkconsumer.errors import ConfigError
from zkconsumer.herd.parameters import member_name
from zkconsumer.journal import JournalWriter
from zkconsumer.journal.recorder import MemberRecorder, event_entry, run_entry
from zkconsumer.sim.runs.herd import Herd
from zkconsumer.sim.runs.herd_coordinator import simulate_any

TP = TopicPartition("t", 0)


def _journal(path: Path, profile: str) -> Path:
    with JournalWriter(path) as sink:
        sink.write(run_entry(0, "virtual", {}))
        simulate_any(Herd(2, 4, profile=profile), sink)
    return path


def _draw(*arguments: str) -> str:
    found = CliRunner().invoke(cli, ["diagram", *arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize(
    ("profile", "server", "steps"),
    [("scala", "ZooKeeper", "12345"), ("coordinator", "Coordinator", "12345")],
)
def test_the_five_steps_of_one_change(
    tmp_path: Path, profile: str, server: str, steps: str
) -> None:
    """When another member joins, a member stops, releases, assigns, claims and starts, in this
    order. Every line belongs to a sequence diagram."""
    drawn = _draw(str(_journal(tmp_path / "j", profile)), "--member", member_name(0))
    lines = drawn.splitlines()
    assert lines[:3] == [
        "sequenceDiagram",
        "    participant M as Member",
        f"    participant S as {server}",
    ]
    assert all(re.match(r"    (M->>S|S-->>M|Note over M): \S", line) for line in lines[3:])
    numbers = "".join(re.findall(r"Note over M: (\d)", drawn))
    assert steps in numbers[3:], numbers


def test_heartbeats_in_a_row_are_one_arrow(tmp_path: Path) -> None:
    """Repeated requests with the same answer are counted, not drawn again."""
    drawn = _draw(str(_journal(tmp_path / "j", "coordinator")))
    assert re.search(r"M->>S: heartbeat, generation \d+ \(x \d+\)", drawn)


def test_offsets_in_kafka_of_a_member_in_zookeeper(tmp_path: Path) -> None:
    """With ``offsets.storage=kafka``, some operations are requests to brokers. They have the names
    that they have in a group on the brokers, but no generation."""
    with JournalWriter(tmp_path / "j") as sink:
        sink.write(run_entry(0, "virtual", {}))
        recorder = MemberRecorder(sink, "m", lambda: 1)
        recorder.op(FetchOffsets((TP,)), Ok((None,)), 1, 5, 1)
        recorder.op(StoreOffsets(((TP, 3),)), Failed(Code.OTHER, detail="away"), 2, 5, 1)
    _, _, _, *drawn = _draw(str(tmp_path / "j")).splitlines()
    asked = ["    M->>S: fetch offsets", "    M->>S: commit offsets"]
    assert drawn == [*asked, f"    S-->>M: {Code.OTHER.value}"]


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    """A missing file, a member that is not in it, or a journal without members gives one line that
    says so."""
    path = _journal(tmp_path / "j", "default")
    empty = tmp_path / "empty"
    with JournalWriter(empty) as sink:
        sink.write(run_entry(0, "virtual", {}))
        sink.write(event_entry(1, "join"))
    for arguments, text in (
        ([str(tmp_path / "none")], "No such file"),
        ([str(path), "--member", "x"], "the journal has"),
        ([str(empty)], "has no member"),
    ):
        result = CliRunner().invoke(cli, ["diagram", *arguments])
        assert isinstance(result.exception, ConfigError)
        assert text in str(result.exception)
