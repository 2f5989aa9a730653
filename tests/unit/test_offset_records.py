"""Records of ``__consumer_offsets``: the migrator and the audit share one decoder."""

from __future__ import annotations

import struct

import pytest
from zkaudit.decode.offsets_topic import decode

from zkconsumer.broker.groups import offset_times
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups.formats.offset_records import (
    CurrentValue,
    EpochValue,
    MemberValue,
    Part,
    TargetValue,
    decode_consumer_group,
)


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
    assert (found["group_id"], found["topic"], found["partition"]) == ("g", "t", 2)
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
    assert (found["kind"], found["group_id"], found["deleted"]) == ("group", "g", False)
    assert (found["generation"], found["commit_ms"], found["members"]) == (9, 1500, ["m"])
    assert offset_times._commit(about, value) is None


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        (None, "damaged"),
        (key()[:-1], "damaged"),
        (struct.pack(">hh", 1, -1) + text("t") + struct.pack(">i", 2), "damaged"),
        (struct.pack(">h", 4) + text("g"), "other"),
        (struct.pack(">h", 16) + text("g") + text("t.*"), "other"),
        (struct.pack(">h", 99), "other"),
        (struct.pack(">h", 8) + text("g"), "damaged"),
    ],
)
def test_a_key_that_names_no_offset(about: bytes | None, kind: str) -> None:
    """The audit keeps its row, and the migrator skips it."""
    assert decode(about, offset_value(3))["kind"] == kind
    assert offset_times._commit(about, offset_value(3)) is None


TOPIC_ID = "tBQDs9sSTjSPsgUuXfERSw"
_THREE = [(TOPIC_ID, 3), (TOPIC_ID, 4), (TOPIC_ID, 5)]
_ID = "b41403b3db124e348fb2052e5df1114b"
OF_KAFKA_4 = [
    # written by a broker of Kafka 4.4
    (Part.EPOCH, "0000000000030100084dcae0a16e35abda", EpochValue(3)),
    (Part.TARGET_EPOCH, "00000000000300", EpochValue(3)),
    (
        Part.MEMBER,
        "000000000674687265650b2f3132372e302e302e310206746f70696301000493e00001000100",
        MemberValue(None, None, "three", "/127.0.0.1", ["topic"], "", 300_000, None, False),
    ),
    (
        Part.MEMBER,
        "00000000046f6e650b2f3132372e302e302e310206746f70696301000493e00001002a0100001770"
        "020672616e67651c0003000000010005746f7069630000000000000000ffffffff00000000",
        MemberValue(None, None, "one", "/127.0.0.1", ["topic"], "", 300_000, None, True),
    ),
    (
        Part.TARGET,
        "000002b41403b3db124e348fb2052e5df1114b040000000000000001000000020000",
        TargetValue([(TOPIC_ID, 0), (TOPIC_ID, 1), (TOPIC_ID, 2)]),
    ),
    (
        Part.CURRENT,
        "000000000005000000050102b41403b3db124e348fb2052e5df1114b040000000000000001000000"
        "0201000d0400000005000000050000000502b41403b3db124e348fb2052e5df1114b040000000300"
        "0000040000000501000d0400000004000000040000000400",
        CurrentValue(5, 5, 1, [(TOPIC_ID, 0), (TOPIC_ID, 1), (TOPIC_ID, 2)], _THREE),
    ),
    # in the format of Kafka 4.0, which has no epoch for each partition
    (
        Part.CURRENT,
        f"0000 00000007 00000006 02 02 {_ID} 04 000000030000000400000005 00 01 00",
        CurrentValue(7, 6, 2, _THREE, []),
    ),
    # with all fields, and one of a later release
    (
        Part.MEMBER,
        "0000 0269 0272 0263 0268 03 0261 0262 0474 2e2a 00000001 0575 6e69 66 01 07 02 abcd",
        MemberValue("i", "r", "c", "h", ["a", "b"], "t.*", 1, "unif", False),
    ),
]


@pytest.mark.parametrize(("part", "value", "expected"), OF_KAFKA_4)
def test_a_part_of_a_kip_848_group(part: Part, value: str, expected: object) -> None:
    """Each field, also those after a tagged field inside a list."""
    assert decode_consumer_group(part, bytes.fromhex(value)) == expected


@pytest.mark.parametrize(("part", "value", "expected"), OF_KAFKA_4)
def test_a_damaged_part_is_a_row(part: Part, value: str, expected: object) -> None:
    """A record that is cut anywhere, or that a later release wrote, gives the reason."""
    about = struct.pack(">h", part) + text("g")
    if part not in (Part.EPOCH, Part.TARGET_EPOCH):
        about += text("m")
    whole = bytes.fromhex(value)
    assert decode(about, whole)["kind"] != "damaged"
    for end in range(len(whole)):
        found = decode(about, whole[:end])
        assert (found["kind"], bool(found["fault"])) == ("damaged", True), (end, expected)
    later = decode(about, b"\0\1" + whole[2:])
    fault = f"unknown version 1 of the value of a record with key {part:d}"
    assert later == {"kind": "damaged", "fault": fault}


def test_rows_of_a_kip_848_group() -> None:
    """A member keeps a partition until it has released it. Topics have names where known."""
    about = struct.pack(">h", 8) + text("g") + text("m")
    current = bytes.fromhex(next(value for _, value, found in OF_KAFKA_4 if found[-1] == _THREE))
    found = decode(about, current, {TOPIC_ID: "t"}.get)  # type: ignore[arg-type]
    assert found == {
        "kind": "current", "group_id": "g", "member": "m", "deleted": False, "generation": 5,
        "assignment": {f"t-{number}": "m" for number in range(6)},
    }  # fmt: skip
    assert f"{TOPIC_ID}-0" in decode(about, current)["assignment"]
    gone = decode(about, None)
    assert gone == {"kind": "current", "group_id": "g", "member": "m", "deleted": True}
    assert offset_times._commit(about, current) is None
