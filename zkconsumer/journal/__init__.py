"""The journal of a run: JSON Lines with all events, commands and ZooKeeper operations of its
members.

``schema`` is the table of fields. ``recorder`` turns a member's actions into entries, with
complete events and commands by ``codec``. ``files`` writes and reads them, and ``replay`` runs a
member's machine on them again. The package does not depend on a driver: the live loop and the
simulator write the same entries.
"""

from __future__ import annotations

from zkconsumer.journal.json_lines import JournalWriter, read_journal
from zkconsumer.journal.recorder import MemberObserver, MemberRecorder, Sink
from zkconsumer.journal.schema import FIELDS, SCHEMA_VERSION, Field, Kind

__all__ = [
    "FIELDS",
    "SCHEMA_VERSION",
    "Field",
    "JournalWriter",
    "Kind",
    "MemberObserver",
    "MemberRecorder",
    "Sink",
    "read_journal",
]
