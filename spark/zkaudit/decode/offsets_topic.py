"""Records of ``__consumer_offsets`` as rows. Pure; any thread.

``zkconsumer.core.groups.formats.offset_records`` decodes their bytes. For a record that cannot be
decoded, the row has its position and the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from zkconsumer.core.groups.formats import offset_records
from zkconsumer.core.groups.formats.offset_records import (
    ConsumerGroupKey,
    CurrentValue,
    EpochValue,
    GroupKey,
    MemberValue,
    OtherKey,
    Part,
)

KINDS: Final = {
    Part.EPOCH: "group epoch",
    Part.MEMBER: "member",
    Part.TARGET_EPOCH: "target epoch",
    Part.TARGET: "target",
    Part.CURRENT: "current",
}
"""Values of ``kind`` for records of KIP-848 groups."""


def _same(topic_id: str) -> str:
    return topic_id


def decode(
    key: bytes | None, value: bytes | None, topic_name: Callable[[str], str] = _same
) -> dict[str, Any]:
    """Return the values of a record of ``__consumer_offsets`` for the columns of
    ``schema.OFFSETS``, except the record's position. ``kind`` is ``offset``, ``group``, one of
    ``KINDS``, ``other`` (another key) or ``damaged``, with the reason in ``fault``. ``topic_name``
    returns the name for a topic id, or the id itself.
    """
    try:
        return _decode(key, value, topic_name)
    except ValueError as error:
        return {"kind": "damaged", "fault": f"{error}"[:200]}


def _decode(
    key: bytes | None, value: bytes | None, topic_name: Callable[[str], str]
) -> dict[str, Any]:
    about = offset_records.decode_key(key)
    if isinstance(about, OtherKey):
        return {"kind": "other", "fault": f"key version {about.version}"}
    if isinstance(about, ConsumerGroupKey):
        return _part(about, value, topic_name)
    row: dict[str, Any] = {**about._asdict(), "deleted": value is None}
    row["group_id"] = row.pop("group")
    if isinstance(about, GroupKey):
        row["kind"] = "group"
        return row if value is None else row | offset_records.decode_group(value)._asdict()
    row["kind"] = "offset"
    if value is None:
        return row
    found = offset_records.decode_offset(value)._asdict()
    return row | found | {"committed": found.pop("offset")}


def _part(
    key: ConsumerGroupKey, value: bytes | None, topic_name: Callable[[str], str]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": KINDS[key.part],
        "group_id": key.group,
        "member": key.member,
        "deleted": value is None,
    }
    if value is None:
        return row
    found = offset_records.decode_consumer_group(key.part, value)
    if isinstance(found, EpochValue):
        return row | {"generation": found.epoch}
    assert key.member is not None
    if isinstance(found, MemberValue):
        return row | {
            "hosts": {key.member: found.host},
            "clients": {key.member: found.client},
            "protocol": found.assignor,
        }
    if isinstance(found, CurrentValue):
        row["generation"] = found.epoch
        places = found.assigned + found.revoking
    else:
        places = found.partitions
    return row | {"assignment": {f"{topic_name(t)}-{p}": key.member for t, p in places}}
