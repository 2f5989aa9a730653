"""Records of ``__consumer_offsets`` taken apart, without Spark."""

from __future__ import annotations

import struct

import pytest
from zkaudit.decode.offsets_topic import decode


def text(value: str) -> bytes:
    """A text behind its length."""
    return struct.pack(">h", len(value)) + value.encode()


KEY = struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 2)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_offset_of_each_version(version: int) -> None:
    """The epoch lies before the text, the expiry behind the time."""
    value = struct.pack(">hq", version, 42)
    value += struct.pack(">i", 7) if version == 3 else b""
    value += text("why") + struct.pack(">q", 1500)
    value += struct.pack(">q", 9000) if version == 1 else b""
    found = decode(KEY, value)
    assert (found["group"], found["topic"], found["partition"]) == ("g", "t", 2)
    assert (found["committed"], found["metadata"], found["commit_ms"]) == (42, "why", 1500)
    assert found.get("leader_epoch") == (7 if version == 3 else None)
    assert found.get("expire_ms") == (9000 if version == 1 else None)


def test_a_deleted_offset() -> None:
    """A record without a value."""
    found = decode(KEY, None)
    assert (found["kind"], found["deleted"]) == ("offset", True)
