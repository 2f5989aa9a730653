"""Records of ``__consumer_offsets``: the migrator and the audit share one decoder."""

from __future__ import annotations

import struct

import pytest
from zkaudit.decode.offsets_topic import decode

from zkconsumer.broker import offset_times
from zkconsumer.core.common.types import TopicPartition


def text(value: str) -> bytes:
    """Return a text after its length."""
    return struct.pack(">h", len(value)) + value.encode()


def key(version: int = 1) -> bytes:
    """Return the key of the offset of t-2 in group g."""
    return struct.pack(">h", version) + text("g") + text("t") + struct.pack(">i", 2)


def offset_value(version: int) -> bytes:
    """Offset 42, committed at 1500 ms with the metadata ``why``."""
    value = struct.pack(">hq", version, 42)
    value += struct.pack(">i", 7) if version >= 3 else b""
    value += b"\x04why" if version == 4 else text("why")
    value += struct.pack(">q", 1500)
    value += struct.pack(">q", 9000) if version == 1 else b""
    return value + (b"\0" if version == 4 else b"")  # no tagged fields


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_an_offset_of_each_version(version: int) -> None:
    """The epoch precedes the text, and the expiry follows the time."""
    found = decode(key(), offset_value(version))
    assert (found["kind"], found["deleted"]) == ("offset", False)
    assert (found["group"], found["topic"], found["partition"]) == ("g", "t", 2)
    assert (found["committed"], found["metadata"], found["commit_ms"]) == (42, "why", 1500)
    assert found["leader_epoch"] == (7 if version >= 3 else None)
    assert found["expire_ms"] == (9000 if version == 1 else None)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_migrator_reads_what_the_audit_reads(version: int) -> None:
    """A commit in the format of Kafka 4 has a time too."""
    found = offset_times._commit(key(0), offset_value(version))
    assert found == ("g", TopicPartition("t", 2), 42, 1500)


def test_a_deleted_offset() -> None:
    """A record without a value."""
    found = decode(key(), None)
    assert (found["kind"], found["deleted"]) == ("offset", True)
    assert offset_times._commit(key(), None) == ("g", TopicPartition("t", 2), None, None)


@pytest.mark.parametrize("value", [offset_value(3)[:-1], b"\0\5" + offset_value(4)[2:], b"\0"])
def test_a_commit_that_cannot_be_decoded_hides_the_one_before(value: bytes) -> None:
    """If it is cut off, or of a later release, the offset's time is unknown."""
    assert decode(key(), value)["kind"] == "damaged"
    assert offset_times._commit(key(), value) == ("g", TopicPartition("t", 2), None, None)


def test_a_stored_group() -> None:
    """It has members, and no offset."""
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 9)
    value += text("range") + text("m") + struct.pack(">qi", 1500, 1)
    value += text("m") + struct.pack(">h", -1) + text("client") + text("host")
    value += struct.pack(">ii", 1, 2) + struct.pack(">i", 0) * 2
    about = struct.pack(">h", 2) + text("g")
    found = decode(about, value)
    assert (found["kind"], found["group"], found["deleted"]) == ("group", "g", False)
    assert (found["generation"], found["commit_ms"], found["members"]) == (9, 1500, ["m"])
    assert offset_times._commit(about, value) is None


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        (None, "damaged"),
        (key()[:-1], "damaged"),
        (struct.pack(">hh", 1, -1) + text("t") + struct.pack(">i", 2), "damaged"),
        (struct.pack(">h", 3) + text("g"), "other"),
    ],
)
def test_a_key_that_names_no_offset(about: bytes | None, kind: str) -> None:
    """The audit keeps its row, and the migrator skips it."""
    assert decode(about, offset_value(3))["kind"] == kind
    assert offset_times._commit(about, offset_value(3)) is None
