"""Records of ``__consumer_offsets`` as rows. Pure; any thread.

Their bytes are decoded by ``zkconsumer.core.coordinator.offset_records``. A record that cannot be
decoded keeps its place and says what it is.
"""

from __future__ import annotations

from typing import Any

from zkconsumer.core.coordinator import offset_records
from zkconsumer.core.coordinator.offset_records import GroupKey, OtherKey


def decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return what one record says, in the columns of ``schema.OFFSETS`` but its place.

    ``kind`` is offset, group, other (a key this does not know) or damaged, with ``fault``.
    """
    try:
        return _decode(key, value)
    except ValueError as error:
        return {"kind": "damaged", "fault": f"{error}"[:200]}


def _decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    about = offset_records.decode_key(key)
    if isinstance(about, OtherKey):
        return {"kind": "other", "fault": f"key version {about.version}"}
    row: dict[str, Any] = {**about._asdict(), "deleted": value is None}
    if isinstance(about, GroupKey):
        row["kind"] = "group"
        return row if value is None else row | offset_records.decode_group(value)._asdict()
    row["kind"] = "offset"
    if value is None:
        return row
    found = offset_records.decode_offset(value)._asdict()
    return row | found | {"committed": found.pop("offset")}
