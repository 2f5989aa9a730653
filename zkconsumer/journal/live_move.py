"""LiveRecorder: the journal of a migratable member, with its ZooKeeper side and each mode and
stage.

The member's thread writes it. Events and commands of the coordinator's side are left out, except
its generations and assignments, because the ZooKeeper side holds and delivers the partitions. A
change of the mode is written as a command ``Report`` with result ``mode``, and the member's
acknowledgement as an event ``AckStored``.
"""

from __future__ import annotations

from typing import Any

from zkconsumer.core.groups import events
from zkconsumer.core.migration.commands import (
    AckStored,
    FromGroup,
    LiveRegistered,
    ModeLoaded,
    NeedGroup,
    StoreAck,
    ToGroup,
)
from zkconsumer.journal.recorder import Entry, MemberRecorder


class LiveRecorder(MemberRecorder):
    """A ``MemberRecorder`` for a migratable member. Its entries are summaries that cannot be
    replayed."""

    def event(self, event: Any, epoch: int, attempt: int) -> None:
        """Write an event before the state machine handles it."""
        if not isinstance(event, FromGroup):
            super().event(event, epoch, attempt)
        elif isinstance(event.event, events.Joined | events.Left):
            super().event(event.event, epoch, attempt)

    def command(self, command: Any, epoch: int, attempt: int) -> None:
        """Write a command."""
        if not isinstance(command, ToGroup):
            super().command(command, epoch, attempt)

    def _describe(self, what: Any, entry: Entry) -> None:
        match what:
            case ModeLoaded(mode, version, fault):
                entry["detail"] = fault or f"mode {mode.value}, version {version}"
            case LiveRegistered(_, mode, version):
                entry["detail"] = f"mode {mode.value}, version {version}"
            case StoreAck(version) | AckStored(version, ""):
                entry["detail"] = f"version {version}"
            case AckStored(_, fault):
                entry["detail"] = fault
            case NeedGroup(needed):
                needs = "session and membership" if needed else "session"
                entry["detail"] = f"delivery needs: {needs}"
            case events.Joined():
                entry["detail"] = f"generation {what.generation}, {what.protocol}"
            case _:
                super()._describe(what, entry)
