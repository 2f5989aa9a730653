"""``/consumers/GROUP/record``: who works on a group's move, and the state before it. Scripts.

The record is small JSON: operator, command, plan digest, mode, lock, the valid store, the leading
store of a mirrored group, and the state of the last change (``begun``, ``undoing`` or ``done``).
Its version is the group's *serial*. Every command reads it first, and writes it in one request with
each change of the migration marker or of the mode, or right before a change that ZooKeeper cannot
combine with others in a request. The write fails if another command has written the record in the
meantime.

``/consumers/GROUP/record/before`` has the offsets in both stores before the last change, and those
that the change writes. So another operator can continue or undo it on another machine, without a
plan or a journal. Members of a live move watch the mode znode, and other programs read the marker:
the record repeats both and replaces neither.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from functools import cache
from itertools import accumulate
from typing import Any, Final

from zkconsumer.admin.snapshot import RECORD
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Check, Code, Create, Multi, MultiOp, Node, Ok, SetData
from zkconsumer.core.zookeeper.scripts.common import Script, attempt, read as ask, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.errors import refused
from zkmigrate.model import STOPPED, Before, KafkaOffset, Record, Stage, Store
from zkmigrate.reasons import Reason

FORMAT: Final = 1
_KEYS: Final = frozenset(one.name for one in fields(Record))
_TYPES: Final = {
    "id": str, "by": str, "command": str, "plan": str, "at_ms": int, "mode": str, "locked": bool,
    "claim": str, "by_undo": bool, "undoes": str, "kafka_group": str, "to_cluster": str,
    "handed_over": bool,
}  # fmt: skip
_BEFORE_KEYS: Final = frozenset(
    {"version", "target", "kafka_group", "marker", "locked", "skipped", "rows", "earlier"}
)
_EARLIER_BYTES: Final = 400 * 1024
"""The state before an earlier change is kept only if both together are not longer than this."""
_LATE_BYTES: Final = 48 * 1024
"""Bytes for the partitions that were written late, so that a record fits into one request with a
marker."""
MEANWHILE: Final = "another operator has changed the group meanwhile: run it again"
LOST: Final = "the connection to ZooKeeper was lost during a write: run it again"
MAX_REQUEST_BYTES: Final = 1000 * 1024
MAX_BYTES: Final = 900 * 1024
"""Largest size. ZooKeeper accepts 1 MiB in one request; longer data is left out, and the change
cannot be undone."""


def path(group: str) -> str:
    """Return the path of a group's record."""
    return f"{GroupPaths(group).root}/{RECORD}"


def before_path(group: str) -> str:
    """Return the path of the znode with the state before the last change."""
    return f"{path(group)}/before"


def encode(record: Record) -> bytes:
    """Return the content of a record's znode."""
    return as_json({**asdict(record), "version": FORMAT, "stage": record.stage.value})


def decode(where: str, node: Node) -> Record:
    """Decode a record. Raises ZnodeFormatError."""
    document = _document(where, node.data, _KEYS)
    try:
        if {name: type(document[name]) for name in _TYPES} != _TYPES:
            raise ValueError
        moved_to = document["moved_to"]
        read = {
            "version": node.stat.version,
            "moved_to": None if moved_to is None else Store(moved_to).value,
            "stage": Stage(document["stage"]),
            "late": tuple(TopicPartition(str(topic), whole(at)) for topic, at in document["late"]),
            "late_more": whole(document["late_more"], 0),
            "commits": whole(document["commits"], -1),
            "mirror": _mirror(document["mirror"]),
        }
        return Record(**{**document, **read})
    except (KeyError, TypeError, ValueError):
        raise ZnodeFormatError(where, "is not a record of zkmigrate") from None


def encode_before(before: Before) -> bytes:
    """Return the state before a change as data for a znode; empty if it is too long."""
    rows: dict[str, dict[str, list[Any]]] = {}
    for tp in sorted(before.zk):
        kafka = before.kafka.get(tp)
        row: list[Any] = [_offset(before.zk[tp]), _offset(kafka)]
        rich = before.target is Store.KAFKA and kafka is not None
        if tp in before.to:
            row.append(_offset(before.to[tp]))
            if rich and kafka is not None and (kafka.leader_epoch != -1 or kafka.metadata):
                row += [kafka.leader_epoch, kafka.metadata]
        rows.setdefault(tp.topic, {})[str(tp.partition)] = row
    marker = None if before.marker is None else before.marker.decode()
    document: dict[str, Any] = {
        "version": FORMAT,
        "target": before.target.value,
        "kafka_group": before.kafka_group,
        "marker": marker,
        "locked": before.locked,
        "skipped": sorted(before.skipped),
        "rows": rows,
        "earlier": None,
    }
    data = as_json(document)
    if len(data) > MAX_BYTES:
        return b""
    if before.earlier and len(data) + len(before.earlier) < _EARLIER_BYTES:
        earlier = {**json.loads(before.earlier), "earlier": None}
        document["earlier"] = {"plan": before.earlier_plan, "before": earlier}
        return as_json(document)
    return data


def decode_before(where: str, data: bytes) -> Before:
    """Return the state in data from ``encode_before``. Raises ZnodeFormatError."""
    document = _document(where, data, _BEFORE_KEYS)
    zk: dict[TopicPartition, KafkaOffset | None] = {}
    kafka: dict[TopicPartition, KafkaOffset | None] = {}
    to: dict[TopicPartition, KafkaOffset | None] = {}
    try:
        for topic, partitions in document["rows"].items():
            for number, row in partitions.items():
                tp = TopicPartition(topic, int(number))
                zk[tp], kafka[tp] = _stored(row[0]), _stored(row[1])
                if len(row) > 2:
                    to[tp] = _stored(row[2])
                if len(row) > 3:
                    kafka[tp] = KafkaOffset(whole(row[1]), whole(row[3]), str(row[4]))
        marker, earlier = document["marker"], document["earlier"]
        return Before(
            Store(document["target"]),
            str(document["kafka_group"]),
            None if marker is None else str(marker).encode(),
            bool(document["locked"]),
            frozenset(map(str, document["skipped"])),
            zk,
            kafka,
            to,
            b"" if earlier is None else as_json(earlier["before"]),
            "" if earlier is None else str(earlier["plan"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise ZnodeFormatError(where, "was not written by zkmigrate") from None


def as_json(document: object) -> bytes:
    """Return a document as JSON for a znode."""
    return json.dumps(document, separators=(",", ":")).encode()


def _document(where: str, data: bytes, keys: frozenset[str]) -> dict[str, Any]:
    try:
        document = json.loads(data.decode())
        version, names = document["version"], document.keys()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ZnodeFormatError(where, "is not a record of zkmigrate") from None
    if version != FORMAT or names != keys:
        raise ZnodeFormatError(
            where, "was written by another version of zkmigrate: use that version"
        )
    return document  # type: ignore[no-any-return]


def _mirror(value: str) -> str:
    return value if value in ("", STOPPED) else Store(value).value


def _offset(stored: KafkaOffset | None) -> int | None:
    return None if stored is None else stored.offset


def whole(value: object, low: int = -(2**63)) -> int:
    """Return a whole number read from JSON. ``low``: the lowest allowed number. Raises
    ValueError."""
    if type(value) is not int or value < low:
        raise ValueError
    return value


def _stored(value: object) -> KafkaOffset | None:
    return None if value is None else KafkaOffset(whole(value))


# -- scripts ---------------------------------------------------------------------------------------


def read(group: str) -> Script[Record]:
    """Return a group's record, which is empty if there is no znode. Raises ZnodeFormatError."""
    where = path(group)
    (node,) = yield from read_many([where])
    return Record() if node is None else decode(where, node)


def read_before(group: str) -> Script[Before | None]:
    """Return the state before the last change, if known. Raises ZnodeFormatError."""
    data = yield from before_data(group)
    return decode_before(before_path(group), data) if data else None


def before_data(group: str) -> Script[bytes]:
    """Return the encoded state before the last change; empty if there is none."""
    (node,) = yield from read_many([before_path(group)])
    return b"" if node is None else node.data


def written(record: Record, **fields: Any) -> Record:
    """Return the record with the new ``fields``, to be written by this process. ``version`` is not
    changed."""
    now_ms = int(time.time() * 1000)
    return replace(record, id=uuid.uuid4().hex[:8], by=operator(), at_ms=now_ms, **fields)


def moved(found: Record, command: str, **fields: Any) -> Record:
    """Return the new record of a group that was moved to Kafka without a plan."""
    last = {"stage": Stage.NONE, "plan": "", "undoes": "", "by_undo": False}
    to = {"locked": True, "moved_to": Store.KAFKA.value}
    return written(found, command=command, **last, **to, **fields)


def with_late(found: Record, late: Iterable[TopicPartition]) -> Record:
    """Return the record with these partitions added to ``late``.

    ``late`` lists as many as fit, and ``late_more`` counts the others. An operator on another
    machine sees them.
    """
    every = sorted({*found.late, *late})
    sizes = accumulate(len(as_json(tp)) + 1 for tp in every)
    kept = tuple(tp for tp, size in zip(every, sizes, strict=True) if size <= _LATE_BYTES)
    more = found.late_more + len(every) - len(kept)
    return written(found, late=kept, late_more=more)


def note_late(group: str, late: Iterable[TopicPartition]) -> Script[Record]:
    """Record that newer offsets of these partitions may have been overwritten.

    Raises GroupRefusedError if another command has written the record in the meantime.
    """
    found = yield from read(group)
    return (yield from write(group, with_late(found, late)))


def op(group: str, record: Record) -> MultiOp:
    """Return the operation that writes a record. It fails if another command has written it."""
    return put(path(group), encode(record), record.version)


def put(where: str, data: bytes, version: int) -> MultiOp:
    """Return the operation that writes a znode. It fails if the znode has another version.
    ``version``: -1 if the znode must not exist."""
    return Create(where, data) if version < 0 else SetData(where, data, version)


def write(
    group: str,
    record: Record,
    first: Iterable[MultiOp] = (),
    then: Iterable[MultiOp] = (),
    checks: Iterable[MultiOp] = (),
    again: Callable[[], Script[object]] | None = None,
) -> Script[Record]:
    """Write a record together with other operations. Return it with its new version.

    ``checks``: as many of these as fit into one request (some thousands) are sent. Raises
    GroupRefusedError if another command has written the record since, or another operation fails.
    Then nothing is written.

    ZooKeeper may be restored from a backup while there is no connection. So nothing is written
    after the connection was lost, unless ``again`` confirms that the content is still what the
    caller has read.
    """
    ops = [*first, op(group, record), *then]
    room = MAX_REQUEST_BYTES - sum(map(_wire_bytes, ops))
    for check in checks:
        room -= _wire_bytes(check)
        if room < 0:
            break
        ops.append(check)
    while True:
        reply = yield from attempt(Multi(tuple(ops)))
        if isinstance(reply, Ok):
            return replace(record, version=record.version + 1)
        if reply.code is Code.CONNECTION_LOSS:
            found = yield from read(group)
            if found.id == record.id:
                return found
            if found.version == record.version:
                if again is None:
                    raise refused(group, Reason.OTHER_OPERATOR, LOST)
                yield from again()
                continue
        raise refused(group, Reason.OTHER_OPERATOR, MEANWHILE)


def overtaken(found: Record) -> tuple[str, str]:
    """Return the message that another command has changed the group in the meantime, and what to
    do."""
    text = f"{found.by} has run zkmigrate {found.command} meanwhile"
    return text, "look at the group with zkmigrate status, then run it again"


def is_still(group: str, serial: int, more: Iterable[MultiOp] = ()) -> Script[bool]:
    """Whether a group's record has this version and the checks ``more`` succeed.

    ZooKeeper's leader checks this in one request, which changes nothing. Other servers may return
    old data to reads.
    """
    reply = yield from ask(Multi((Check(path(group), serial), *more)))
    return isinstance(reply, Ok)


def _wire_bytes(op: MultiOp) -> int:
    """Return a slightly high estimate of an operation's size in a request."""
    return 60 + len(op.path.encode()) + len(op.data if isinstance(op, Create | SetData) else b"")


@cache
def operator() -> str:
    """Return the user of this process, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
