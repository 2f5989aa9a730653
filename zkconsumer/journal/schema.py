"""The fields of a journal's lines. Only data, which writer, reader and docs/reference/journal.md
use.

A line is one JSON object. Empty fields (no path, no partitions) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = 1
"""Version of the schema. It increases when a field changes its meaning or is removed, not for new
fields."""


class Kind(Enum):
    """The kinds of lines. The value is the content of the field ``kind``."""

    RUN = "run"
    MEMBER = "member"
    EVENT = "event"
    COMMAND = "command"
    OP = "op"
    ACTION = "action"


KINDS: Final = {
    Kind.RUN: "first line of a file: what was run, and the kind of clock",
    Kind.MEMBER: "specification of a member, from which its events can be replayed",
    Kind.EVENT: "an event that the member's decision core received",
    Kind.COMMAND: "a command that the core issued",
    Kind.OP: "an operation on ZooKeeper, or a request to a broker, with its answer",
    Kind.ACTION: "something that an operator, a test or a server did to the group",
}


class Type(Enum):
    """The JSON form of a field."""

    INTEGER = "integer"
    TEXT = "text"
    NAMES = "list of texts"
    NUMBERS = "map of text to integer"
    TEXTS = "map of text to text"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``kinds`` are the lines that may have it, ``required`` those that must."""

    name: str
    type: Type
    kinds: frozenset[Kind]
    meaning: str
    required: bool = False


_ALL = frozenset(Kind)
_MEMBER = frozenset({Kind.EVENT, Kind.COMMAND, Kind.OP})
_CORE = frozenset({Kind.EVENT, Kind.COMMAND})
_OP = frozenset({Kind.OP})
_RUN = frozenset({Kind.RUN})
_MADE = frozenset({Kind.MEMBER})
_ACTION = frozenset({Kind.ACTION})


def _f(
    name: str, kind: Type, kinds: frozenset[Kind], meaning: str, required: bool = False
) -> Field:
    return Field(name, kind, kinds, meaning, required)


FIELDS: Final = (
    _f(
        "at",
        Type.INTEGER,
        _ALL,
        "time in microseconds on the run's clock; for an operation, the time of its answer",
        True,
    ),
    _f("kind", Type.TEXT, _ALL, "one of the kinds above", True),
    _f("schema", Type.INTEGER, _RUN, f"version of this table, now {SCHEMA_VERSION}", True),
    _f(
        "clock",
        Type.TEXT,
        _RUN,
        "`virtual` (from the start of a simulation) or `epoch` (since 1970, UTC)",
        True,
    ),
    _f("settings", Type.TEXTS, _RUN, "options of the run and their values"),
    _f(
        "name",
        Type.TEXT,
        _MEMBER | _ACTION,
        "class of the event, command or operation",
        True,
    ),
    _f("member", Type.TEXT, _MEMBER | _MADE, "consumer id", True),
    _f("member", Type.TEXT, _ACTION, "consumer id, if the action concerns one member"),
    _f("session", Type.TEXT, _MEMBER, "ZooKeeper session, hexadecimal; `0x0`: none", True),
    _f("session", Type.TEXT, _ACTION, "ZooKeeper session, hexadecimal"),
    _f(
        "generation",
        Type.INTEGER,
        _MEMBER,
        "generation of the member, in a group in Kafka; -1: none. Missing in other groups",
    ),
    _f(
        "attempt",
        Type.INTEGER,
        _MEMBER,
        "number of rebalance attempts that this member has begun so far",
        True,
    ),
    _f("token", Type.INTEGER, _CORE, "number that links a command to the event that answers it"),
    _f(
        "sent",
        Type.INTEGER,
        _OP,
        "time in microseconds on the run's clock at which it was sent",
        True,
    ),
    _f(
        "path",
        Type.TEXT,
        _MEMBER,
        "path of the znode, without the chroot; for a transaction, the first one",
    ),
    _f(
        "since",
        Type.INTEGER,
        _ACTION,
        "time in microseconds on the run's clock at which the condition began",
    ),
    _f(
        "count",
        Type.INTEGER,
        _ACTION,
        "for `EntriesDropped`: number of entries that could not be written",
    ),
    _f(
        "zxid",
        Type.INTEGER,
        _CORE,
        "for `Changed`: transaction that made the change; for `LoadView`: the one whose watch "
        "event triggered the rebalance. Missing if ZooKeeper did not send it (before 3.9), or if "
        "no watch event was the trigger",
    ),
    _f("result", Type.TEXT, _CORE | _OP, "`ok`, or why it failed"),
    _f("requests", Type.INTEGER, _OP, "number of requests sent", True),
    _f("reads", Type.INTEGER, _OP, "number of znodes read", True),
    _f(
        "writes",
        Type.INTEGER,
        _OP,
        "number of write operations (a transaction counts as one)",
        True,
    ),
    _f(
        "changes",
        Type.INTEGER,
        _OP,
        "number of znodes that were created, set or deleted, if it succeeded",
        True,
    ),
    _f(
        "bytes_out",
        Type.INTEGER,
        _OP,
        "bytes of the requests, including framing; only in studies of the herd effect",
    ),
    _f("bytes_in", Type.INTEGER, _OP, "bytes of the answers, in the same way"),
    _f("created", Type.NAMES, _OP, "registrations and owner znodes that the operation created"),
    _f("deleted", Type.NAMES, _OP, "registrations and owner znodes that the operation deleted"),
    _f(
        "partitions",
        Type.NAMES,
        _CORE | _ACTION,
        "partitions that the line concerns, as `topic-partition`",
    ),
    _f(
        "blocked",
        Type.TEXTS,
        _CORE,
        "partitions that other members own, and the text of each owner znode",
    ),
    _f("offsets", Type.NUMBERS, _CORE, "the next offset to read of each partition"),
    _f(
        "replaced",
        Type.NUMBERS,
        frozenset({Kind.EVENT}),
        "for `OffsetReset`: the offset of each partition that was not in the log",
    ),
    _f("members", Type.NAMES, _CORE, "consumer ids of the members that were read from the group"),
    _f("detail", Type.TEXT, _CORE | _ACTION, "details, as text"),
    _f("release", Type.TEXT, _MADE, "release of zkconsumer that ran the member", True),
    _f(
        "coordination",
        Type.TEXT,
        _MADE,
        "which service coordinates the group: `zookeeper` or `coordinator`",
        True,
    ),
    _f(
        "state",
        Type.TEXT,
        _CORE,
        "state of the state machine: for an event, before it; for a command, after its event",
    ),
    _f("fields", Type.OBJECT, _MADE, "the member's specification", True),
    _f("fields", Type.OBJECT, _CORE, "all fields of the event or command, for `zkconsumer replay`"),
    _f(
        "unchanged",
        Type.OBJECT,
        _CORE,
        "large fields that are left out of `fields`, because they are as in the member's last line "
        "with this `name`; for each, the digest of its JSON",
    ),
)


def fields_of(kind: Kind) -> dict[str, Field]:
    """Return the fields that a line of ``kind`` may have, by name."""
    return {field.name: field for field in FIELDS if kind in field.kinds}
