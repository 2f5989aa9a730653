"""The fields of a journal's lines. Data only: writer, reader and docs/reference/journal.md use it.

A line is one JSON object. Fields that say nothing (no path, no partitions) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""


class Kind(Enum):
    """What a line tells. The value is what stands in the field ``kind``."""

    RUN = "run"
    MEMBER = "member"
    FACT = "fact"
    ORDER = "order"
    OP = "op"
    EVENT = "event"


KINDS: Final = {
    Kind.RUN: "first line of a file: what was run and by which clock",
    Kind.MEMBER: "what a member's machine was made from: its events can be replayed",
    Kind.FACT: "something the member's decision core was told",
    Kind.ORDER: "something the core wants done",
    Kind.OP: "an answered operation on ZooKeeper, or a request to a broker",
    Kind.EVENT: "something done to the group from outside, or by a server on its own",
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
_MEMBER = frozenset({Kind.FACT, Kind.ORDER, Kind.OP})
_CORE = frozenset({Kind.FACT, Kind.ORDER})
_OP = frozenset({Kind.OP})
_RUN = frozenset({Kind.RUN})
_MADE = frozenset({Kind.MEMBER})
_EVENT = frozenset({Kind.EVENT})


def _f(
    name: str, kind: Type, kinds: frozenset[Kind], meaning: str, required: bool = False
) -> Field:
    return Field(name, kind, kinds, meaning, required)


FIELDS: Final = (
    _f(
        "at",
        Type.INTEGER,
        _ALL,
        "microseconds on the run's clock; of an operation: when its answer came",
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
    _f("settings", Type.TEXTS, _RUN, "what was run: option to value"),
    _f("name", Type.TEXT, _MEMBER | _EVENT, "class of the fact, order or operation", True),
    _f("member", Type.TEXT, _MEMBER | _MADE, "consumer id", True),
    _f("member", Type.TEXT, _EVENT, "consumer id, where the event is about one member"),
    _f("session", Type.TEXT, _MEMBER, "ZooKeeper session, hexadecimal; `0x0`: none", True),
    _f("session", Type.TEXT, _EVENT, "ZooKeeper session, hexadecimal"),
    _f(
        "generation",
        Type.INTEGER,
        _MEMBER,
        "of the member, in a group on the brokers; -1: none. Others have no such field",
    ),
    _f("attempt", Type.INTEGER, _MEMBER, "rebalance attempts begun so far by this member", True),
    _f("token", Type.INTEGER, _CORE, "joins an order and the fact that answers it"),
    _f("sent", Type.INTEGER, _OP, "microseconds on the run's clock when it was sent", True),
    _f("path", Type.TEXT, _MEMBER, "znode, without the chroot; of a multi: the first one"),
    _f("since", Type.INTEGER, _EVENT, "microseconds on the run's clock: since when it is so"),
    _f("count", Type.INTEGER, _EVENT, "of `EntriesDropped`: entries that the disk did not take"),
    _f("result", Type.TEXT, _CORE | _OP, "`ok`, or why it failed"),
    _f("requests", Type.INTEGER, _OP, "requests sent for it", True),
    _f("reads", Type.INTEGER, _OP, "znodes read", True),
    _f("writes", Type.INTEGER, _OP, "write transactions asked for (a multi is one)", True),
    _f("changes", Type.INTEGER, _OP, "znodes created, set or deleted if it succeeded", True),
    _f("bytes_out", Type.INTEGER, _OP, "bytes of the requests, framing included", True),
    _f("bytes_in", Type.INTEGER, _OP, "bytes of the answers, framing included", True),
    _f("created", Type.NAMES, _OP, "registrations and owner znodes that it created"),
    _f("deleted", Type.NAMES, _OP, "registrations and owner znodes that it deleted"),
    _f(
        "partitions",
        Type.NAMES,
        _CORE | _EVENT,
        "partitions the line is about, as `topic-partition`",
    ),
    _f("blocked", Type.TEXTS, _CORE, "partitions others own: to the text of the owner znode"),
    _f("offsets", Type.NUMBERS, _CORE, "partition to the next offset to read"),
    _f("members", Type.NAMES, _CORE, "consumer ids that a view of the group showed"),
    _f("detail", Type.TEXT, _CORE | _EVENT, "more, for people"),
    _f("release", Type.TEXT, _MADE, "release of zkconsumer that ran the member", True),
    _f(
        "coordination",
        Type.TEXT,
        _MADE,
        "who decides about ownership: `zookeeper` or `coordinator`",
        True,
    ),
    _f(
        "state",
        Type.TEXT,
        _CORE,
        "state of the member's machine: before the event, or after it at its commands",
    ),
    _f("fields", Type.OBJECT, _MADE, "the member's specification", True),
    _f("fields", Type.OBJECT, _CORE, "all fields of the event or command, for `zkconsumer replay`"),
)


def fields_of(kind: Kind) -> dict[str, Field]:
    """The fields that a line of ``kind`` may have, by name."""
    return {field.name: field for field in FIELDS if kind in field.kinds}
