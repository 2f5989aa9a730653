"""The id of a finding, which is the same in every audit that finds it, even with more or longer
logs.

It is derived from the finding's objects and the transaction at which it begins, not from severity,
end, or sentence, which change while a finding lasts. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

FIELDS: Final = ("kind", "chroot", "group_id", "topic", "partition", "session", "member", "zxid")
"""The columns of a finding from which its id is derived. Without ``zxid``, the time is used."""
LENGTH: Final = 10
"""Number of hexadecimal digits in an id."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BETWEEN: Final = "\0"
"""A separator that occurs in no znode name."""


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
