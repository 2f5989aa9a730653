"""Records of ``__consumer_offsets`` as rows. Pure; any thread.

``zkconsumer.core.coordinator.offset_records`` decodes their bytes. The row of a record that cannot
be decoded has its position and the reason.
"""

from __future__ import annotations

from typing import Any

from zkconsumer.core.coordinator import offset_records
from zkconsumer.core.coordinator.offset_records import GroupKey, OtherKey


def decode(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return one record's values for the columns of ``schema.OFFSETS``, except its position.

    ``kind`` is offset, group, other (an unknown key) or damaged, with the reason in ``fault``.
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
