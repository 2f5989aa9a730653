"""The id of a finding: the same in every audit that finds it, also of more or longer logs.

It is made of what the finding is about and the transaction at which it begins, not of severity,
end, or sentence, which change while a finding lasts. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

FIELDS: Final = ("kind", "chroot", "group_id", "topic", "partition", "session", "member", "zxid")
"""The columns of a finding that its id is made of. Without ``zxid``, the time counts."""
LENGTH: Final = 10
"""Hexadecimal digits of an id."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BETWEEN: Final = "\0"
"""Is in no name of a znode."""


def id_of(finding: Mapping[str, Any]) -> str:
    """Return the id of a finding, given as its columns."""
    values = [finding[name] for name in FIELDS]
    if values[-1] is None:
        values[-1] = _milliseconds(finding["time"])
    text = _BETWEEN.join("" if value is None else str(value) for value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _milliseconds(time: datetime | None) -> int | None:
    if time is None:
        return None
    moment = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
