"""Records of ``__consumer_offsets``, decoded without Spark."""

from __future__ import annotations

import struct

import pytest
from zkaudit.decode.offsets_topic import decode


def text(value: str) -> bytes:
    """A string with its length in front."""
    return struct.pack(">h", len(value)) + value.encode()


KEY = struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 2)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_offset_of_each_version(version: int) -> None:
    """The epoch is before the text, and the expiry is after the time."""
    value = struct.pack(">hq", version, 42)
    value += struct.pack(">i", 7) if version == 3 else b""
    value += text("why") + struct.pack(">q", 1500)
    value += struct.pack(">q", 9000) if version == 1 else b""
    found = decode(KEY, value)
    assert (found["group_id"], found["topic"], found["partition"]) == ("g", "t", 2)
    assert (found["committed"], found["metadata"], found["commit_ms"]) == (42, "why", 1500)
    assert found.get("leader_epoch") == (7 if version == 3 else None)
    assert found.get("expire_ms") == (9000 if version == 1 else None)


def test_a_deleted_offset() -> None:
    """A record without a value means that the offset was deleted."""
    found = decode(KEY, None)
    assert (found["kind"], found["deleted"]) == ("offset", True)


def group_record(version: int, *members: tuple[str, dict[str, list[int]]]) -> bytes:
    """A generation, as Kafka's GroupMetadataValue of a version."""
    value = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 7)
    value += text("range") + text(members[0][0])
    value += struct.pack(">q", 1500) if version >= 2 else b""
    value += struct.pack(">i", len(members))
    for member, topics in members:
        value += text(member) + (text("static") if version >= 3 else b"")
        value += text("client") + text(f"/10.0.0.{len(member)}")
        value += struct.pack(">i", 30_000) if version >= 1 else b""
        value += struct.pack(">i", 10_000) + struct.pack(">i", 3) + b"abc"
        assigned = struct.pack(">hi", 0, len(topics))
        for topic, numbers in topics.items():
            assigned += text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        assigned += struct.pack(">i", -1)
        value += struct.pack(">i", len(assigned)) + assigned
    return value


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_generation_of_each_version(version: int) -> None:
    """A generation lists its members, their hosts, the leader and the assignment."""
    key = struct.pack(">h", 2) + text("g")
    found = decode(key, group_record(version, ("a", {"t": [0, 2]}), ("bb", {"t": [1]})))
    assert (found["kind"], found["group_id"], found["generation"]) == ("group", "g", 7)
    assert (found["leader"], found["protocol"], found["members"]) == ("a", "range", ["a", "bb"])
    assert found["hosts"] == {"a": "/10.0.0.1", "bb": "/10.0.0.2"}
    assert found["assignment"] == {"t-0": "a", "t-2": "a", "t-1": "bb"}
    assert found.get("commit_ms") == (1500 if version >= 2 else None)


def test_a_broken_assignment_is_damage() -> None:
    """A broken assignment is reported, and no part of it is guessed."""
    value = group_record(3, ("a", {"t": [0]}))
    broken = value[:-9] + struct.pack(">i", 1 << 30) + value[-5:]
    assert decode(struct.pack(">h", 2) + text("g"), broken)["kind"] == "damaged"
