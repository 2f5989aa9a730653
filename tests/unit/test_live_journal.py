"""The journal of a migratable member, and its diagram: each mode, and its acknowledgement."""

from __future__ import annotations

from typing import Any

from zkconsumer.core.common import commands
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.migration.commands import (
    AckStored,
    FromGroup,
    LiveRegistered,
    ModeLoaded,
    NeedGroup,
    StoreAck,
    ToGroup,
)
from zkconsumer.core.migration.modes import Mode
from zkconsumer.journal.live_move import LiveRecorder
from zkconsumer.journal.schema import Kind, fields_of
from zkconsumer.journal.sequence import sequence


class _Sink:
    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)


def test_modes_and_stages_are_in_the_journal_and_in_its_diagram() -> None:
    """Heartbeats are left out, and each entry has the fields of the schema."""
    sink = _Sink()
    recorder = LiveRecorder(sink, "g_m1", lambda: 7)
    for event in (
        LiveRegistered(1, Mode.ZOOKEEPER, 2),
        FromGroup(group_events.HeartbeatAnswered(3, 0)),
        FromGroup(group_events.Joined(4, "m-1", 5, "m-1", "zkconsumer-live-range")),
        ModeLoaded(Mode.LOCKED, 3),
        AckStored(3),
        AckStored(4, "/consumers/g/live/members/g_m1: no node"),
    ):
        recorder.event(event, 9, 1)
    for command in (
        commands.Report("mode", "mode locked, version 3"),
        commands.Report("refused", "not drawn"),
        NeedGroup(True),
        StoreAck(3, 1, "m-1"),
        ToGroup(group_commands.Heartbeat(5, "m-1", 5)),
    ):
        recorder.command(command, 9, 1)
    names = [(entry["kind"], entry["name"], entry.get("detail")) for entry in sink.entries]
    assert names == [
        ("event", "LiveRegistered", "mode zookeeper, version 2"),
        ("event", "Joined", "generation 5, zkconsumer-live-range"),
        ("event", "ModeLoaded", "mode locked, version 3"),
        ("event", "AckStored", "version 3"),
        ("event", "AckStored", "/consumers/g/live/members/g_m1: no node"),
        ("command", "Report", "mode locked, version 3"),
        ("command", "Report", "not drawn"),
        ("command", "NeedGroup", "delivery needs: session and membership"),
        ("command", "StoreAck", "version 3"),
    ]
    for entry in sink.entries:
        assert entry.keys() <= fields_of(Kind(entry["kind"])).keys()
    drawn = sequence(sink.entries, "g_m1").splitlines()
    assert "    Note over M: mode acknowledged, version 3" in drawn
    assert "    Note over M,S: mode locked, version 3" in drawn
    assert not any("not drawn" in line for line in drawn)
