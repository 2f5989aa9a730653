"""The bytes of one transaction become its operations, or a reason why they cannot be read."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from zkaudit.decode import batches as module
from zkaudit.decode.batches import LogReader, read_snapshot
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.decode.txnlog import (
    FILE_HEADER,
    TXN_HEADER,
    BodyError,
    Stop,
    decode_payload,
    judge,
)
from zkaudit.storage import opened

from tests.audit.snapshots import snapshot_of

DELETE, SET_DATA, CHECK, MULTI, ERROR, CREATE_SESSION, CLOSE_SESSION = 2, 5, 13, 14, -1, -10, -11


def text(value: bytes) -> bytes:
    """A string with its length in front."""
    return struct.pack(">i", len(value)) + value


def transaction(code: int, body: bytes) -> bytes:
    """A transaction of session 7, cxid 1, zxid 9, 1.5 s after 1970."""
    return TXN_HEADER.pack(7, 1, 9, 1500, code) + body


def test_a_transaction_is_read_with_its_digest() -> None:
    """The digest that ZooKeeper 3.6 and later append is read. A transaction without one is read
    too."""
    plain = transaction(DELETE, text(b"/a"))
    for payload, digest in ((plain, None), (plain + struct.pack(">iq", 1, 77), 77)):
        (found,) = decode_payload(payload)
        assert (found.type, found.path, found.zxid, found.session) == ("delete", "/a", 9, 7)
        assert found.digest == digest


def test_a_check_outside_of_a_multi() -> None:
    """Old servers log it, although it changes nothing (ZOOKEEPER-2623)."""
    (found,) = decode_payload(transaction(CHECK, text(b"/a") + struct.pack(">i", 3)))
    assert (found.type, found.path, found.version) == ("check", "/a", 3)


def test_an_access_list_that_the_snapshot_lacks(tmp_path: Path) -> None:
    """A server took the snapshot while it changed the list (ZOOKEEPER-4846). The znode is read."""
    snapshot = tmp_path / "snapshot.1"
    snapshot.write_bytes(snapshot_of([(b"", b"", (0,) * 9), (b"/a", b"x", (0,) * 9)]))
    rows = [row for batch in read_snapshot(snapshot) for row in batch.to_pylist()]
    assert {row["path"]: row["data"] for row in rows}["/a"] == b"x"


@pytest.mark.parametrize("extra", [1, 4, 8, 11, 13, 40])
def test_bytes_behind_a_transaction_are_refused(extra: int) -> None:
    """Extra bytes that are not a digest mean that the transaction was not read correctly."""
    with pytest.raises(BodyError, match="extra bytes after delete"):
        decode_payload(transaction(DELETE, text(b"/a")) + bytes(extra))


@pytest.mark.parametrize("size", [3, 2**31 - 1, -2])
def test_a_string_that_does_not_fit_is_refused(size: int) -> None:
    """The length belongs to damaged bytes. The bytes after it are not read as a part of the
    string."""
    with pytest.raises(BodyError, match=r"do not fit into the remaining 2"):
        decode_payload(transaction(DELETE, struct.pack(">i", size) + b"/a"))


def test_the_operations_of_a_failed_multi_are_not_done() -> None:
    """The log entry has an error for each operation, and the attempted operations are kept."""
    write = text(b"/a") + text(b"1") + struct.pack(">i", 3)
    parts = ((SET_DATA, write), (ERROR, struct.pack(">i", -101)))
    body = struct.pack(">i", len(parts))
    body += b"".join(struct.pack(">i", code) + text(part) for code, part in parts)
    first, second = decode_payload(transaction(MULTI, body))
    assert (first.type, first.tried, first.path, first.error) == ("error", "setData", "/a", 0)
    assert (second.type, second.error) == ("error", -101)


def log(path: Path, *payloads: bytes) -> Path:
    """A file with whole records."""
    records = [struct.pack(">qi", zlib.adler32(one), len(one)) + one + b"B" for one in payloads]
    path.write_bytes(FILE_HEADER + b"".join(records))
    return path


def test_a_damaged_record_at_the_end_is_corruption(tmp_path: Path) -> None:
    """The record is complete, so it is not one that is still being written."""
    file = log(tmp_path / "log.1", transaction(DELETE, text(b"/a")))
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with opened(file) as there:
        end = judge(there, file.name, len(FILE_HEADER))
    assert end is not None
    assert (end.position, end.stop) == (len(FILE_HEADER), Stop.CORRUPT)
    assert end.reason.startswith("checksum ")


def test_a_path_prefix_keeps_what_has_no_path(tmp_path: Path) -> None:
    """A prefix keeps them because ephemerals end with their sessions."""
    write = text(b"/b") + text(b"1") + struct.pack(">i", 3)
    file = log(
        tmp_path / "log.1",
        transaction(CREATE_SESSION, struct.pack(">i", 6000)),
        transaction(SET_DATA, write),
        transaction(DELETE, text(b"/a/x")),
        transaction(CLOSE_SESSION, b""),
    )
    batches = LogReader(file, filters=Filters("/a")).batches()
    types = [row["type"] for batch in batches for row in batch.to_pylist()]
    assert types == ["createSession", "delete", "closeSession"]


def test_a_failed_multi_that_a_server_took_over_from_another() -> None:
    """A leader marks the operations of a failed multi as errors once it has applied it, and keeps
    their bytes. A follower that is brought up to date logs them in that form. The bytes are from a
    real log. Kafka's controller had checked ``/controller_epoch`` and written a znode that did not
    exist."""
    checked = text(b"/controller_epoch") + struct.pack(">i", 2)
    parts = (checked, struct.pack(">i", -101))
    body = struct.pack(">i", len(parts))
    body += b"".join(struct.pack(">i", ERROR) + text(part) for part in parts)
    first, second = decode_payload(transaction(MULTI, body))
    assert (first.type, first.tried, first.path, first.error) == ("error", None, None, 0)
    assert (second.type, second.error) == ("error", -101)


def test_a_record_that_is_completed_while_it_is_looked_at_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server completes the record between two reads."""
    file = log(tmp_path / "log.1", transaction(DELETE, text(b"/a")))
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])

    def complete(*_: object) -> None:
        file.write_bytes(whole)
        monkeypatch.setattr(module, "judge", judge)

    monkeypatch.setattr(module, "judge", complete)
    reader = LogReader(file, start=len(FILE_HEADER))
    assert [batch.num_rows for batch in reader.batches()] == [1]
    assert reader.end is not None
    assert reader.end.stop is Stop.EOF


@pytest.mark.parametrize(
    ("digest", "last", "complete"), [(None, None, None), (10, None, 10), (10, 12, 12)]
)
def test_up_to_where_a_snapshot_is_complete(
    tmp_path: Path, digest: int | None, last: int | None, complete: int | None
) -> None:
    """A snapshot is complete up to the later of the two zxids that it names."""
    content = snapshot_of([(b"", b"", (0,) * 9)])
    for more in (
        b"" if digest is None else struct.pack(">qiq", digest, 2, 7),
        b"" if last is None else struct.pack(">q", last),
    ):
        content += more
        content += struct.pack(">qi", zlib.adler32(content), 1) + b"/" if more else b""
    file = tmp_path / "snapshot.1"
    file.write_bytes(content)
    assert open_snapshot(file).complete_zxid == complete
