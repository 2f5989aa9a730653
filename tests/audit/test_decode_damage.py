"""From damaged logs and snapshots nothing is guessed, and every error names file and byte."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from zkaudit.decode.batches import LogReader, end_of_log, read_snapshot
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.decode.txnlog import FILE_HEADER, Stop, read_transactions
from zkaudit.errors import LogFormatError

SEED = 20261121


def read(log: Path, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """Return the rows before the damage, and where reading stopped."""
    reader = LogReader(log, tolerant=True, **options)
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    return rows, reader.end


@pytest.fixture
def content(recordings: Any) -> bytes:
    """A real log with every type of transaction (3.9), without the space it reserves."""
    log = recordings("3.9.3").logs[-2]
    return bytes(log.read_bytes()[: end_of_log(log, 0).position])


def record(payload: bytes, length: int | None = None) -> bytes:
    """One record as a server frames it. ``length`` can be wrong on purpose."""
    size = len(payload) if length is None else length
    return struct.pack(">qi", zlib.adler32(payload), size) + payload + b"B"


def delete_of(zxid: int, path: bytes = b"/a") -> bytes:
    """Payload of a delete."""
    return struct.pack(">qiqqii", 1, 2, zxid, 1_700_000_000_000, 2, len(path)) + path


@pytest.mark.parametrize("reserved", [False, True])
def test_truncated_at_every_byte(content: bytes, reserved: bool, tmp_path: Path) -> None:
    """A log that is cut anywhere gives the records before the cut, and the reader reports where it
    stopped."""
    log = tmp_path / "log.1"
    log.write_bytes(content)
    rows, end = read(log)
    starts = sorted({row["position"] for row in rows})
    assert end.stop is Stop.EOF
    first = starts[-8]  # all cuts before these are alike
    for cut in [*range(40), *range(first, len(content))]:
        log.write_bytes(content[:cut].ljust(len(content) if reserved else cut, b"\0"))
        got, end = read(log)
        whole = [at for at in [*starts, len(content)] if at <= cut]
        boundary = whole[-1] if whole else len(FILE_HEADER) if cut >= len(FILE_HEADER) else 0
        # The header's last bytes are zeros, so reserved space completes it.
        if reserved and len(FILE_HEADER) > cut >= 8:
            boundary = len(FILE_HEADER)
        assert end.position == boundary
        assert [row["position"] for row in got] == [
            row["position"] for row in rows if row["position"] < boundary
        ]
        # Zeros alone are not a sign of a record, because every checksum begins with four of them.
        torn = boundary == 0 or any(content[boundary:cut])
        assert (end.stop is Stop.TORN) == torn
        assert end.stop is not Stop.CORRUPT


def test_flipped_at_every_byte(content: bytes, tmp_path: Path) -> None:
    """A flipped bit anywhere ends reading at its own record. The rows before it are unchanged."""
    log = tmp_path / "log.1"
    log.write_bytes(content)
    rows, _ = read(log)
    starts = sorted({row["position"] for row in rows})
    rng = random.Random(SEED)
    first = starts[-8]
    torn = 0
    for at in [*range(len(FILE_HEADER) - 8), *range(first, len(content))]:
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        log.write_bytes(damaged)
        got, end = read(log)
        own = max((start for start in starts if start <= at), default=0)
        assert end.position == own, f"seed {SEED}, byte {at}"
        assert got == [row for row in rows if row["position"] < own], f"seed {SEED}, byte {at}"
        torn += end.stop is Stop.TORN
        assert end.stop in (Stop.CORRUPT, Stop.TORN)
        if end.stop is Stop.CORRUPT:
            with pytest.raises(LogFormatError, match=f"log.1: byte {own}: "):
                list(LogReader(log).batches())
    # A wrong length that reaches beyond the end of the file looks like an unfinished record. The
    # rest of the file may be its fields. Any other wrong length is recognised.
    assert torn < 16


@pytest.mark.parametrize("length", [2**31 - 1, -1, -(2**31), 31, 0, 2**28 + 1])
@pytest.mark.parametrize("behind", [True, False])
def test_lengths_that_cannot_be(length: int, behind: bool, tmp_path: Path) -> None:
    """An impossible length is corruption at its record, and no memory is allocated for it."""
    log = tmp_path / "log.1"
    good, bad = record(delete_of(1)), record(delete_of(2), length)
    log.write_bytes(FILE_HEADER + good + bad + (record(delete_of(3)) if behind else b""))
    rows, end = read(log)
    assert [row["zxid"] for row in rows] == [1]
    assert (end.position, end.stop) == (len(FILE_HEADER) + len(good), Stop.CORRUPT)
    with pytest.raises(LogFormatError):
        list(read_transactions(log))


def test_lengths_inside_of_a_body(tmp_path: Path) -> None:
    """A field length that reaches out of its record is corruption, even with a right checksum."""
    head = struct.pack(">qiqqi", 1, 2, 7, 0, 5)
    bodies = [
        struct.pack(">i", size) + b"/a" + struct.pack(">ii", 0, 1) for size in (2**31 - 1, -5, 99)
    ]
    bodies += [struct.pack(">i2si", 2, b"/a", size) + bytes(4) for size in (2**31 - 1, -2)]
    multi = struct.pack(">qiqqi", 1, 2, 7, 0, 14)
    payloads = [head + body for body in bodies]
    payloads += [multi + struct.pack(">i", count) for count in (2**31 - 1, 3)]
    payloads += [multi + struct.pack(">iii", 1, 2, size) + b"/a" for size in (2**31 - 1, -9)]
    payloads += [struct.pack(">qiqqi", 1, 2, 7, 0, kind) for kind in (99, -(2**31), 2**31 - 1)]
    create = struct.pack(">qiqqii2si", 1, 2, 7, 0, 1, 2, b"/a", 0)
    payloads += [create + struct.pack(">i", entries) for entries in (2**31 - 1, 40)]
    log = tmp_path / "log.1"
    good = record(delete_of(1))
    for payload in payloads:
        log.write_bytes(FILE_HEADER + good + record(payload) + record(delete_of(3)))
        rows, end = read(log)
        assert [row["zxid"] for row in rows] == [1], payload
        assert (end.position, end.stop) == (len(FILE_HEADER) + len(good), Stop.CORRUPT), payload
        with pytest.raises(LogFormatError, match="transaction is invalid"):
            list(read_transactions(log))


def test_data_behind_reserved_space_is_corruption(tmp_path: Path) -> None:
    """Zeros followed by records are reported. They are neither skipped nor mistaken for the end."""
    log = tmp_path / "log.1"
    good = record(delete_of(1))
    log.write_bytes(FILE_HEADER + good + bytes(3 << 20) + record(delete_of(3)))
    rows, end = read(log)
    assert len(rows) == 1
    assert (end.position, end.stop) == (len(FILE_HEADER) + len(good), Stop.CORRUPT)
    assert "continues at byte" in end.reason


def test_strange_names_and_times_are_kept(tmp_path: Path) -> None:
    """Control characters are kept, bytes that are not UTF-8 become U+FFFD, and impossible times
    become null."""
    log = tmp_path / "log.1"
    names = [b"/<script>", b"/\x00\x1b[31m", b"/\xff\xfe", b"", "/日本".encode()]
    payloads = [delete_of(n, name) for n, name in enumerate(names)]
    odd = struct.pack(">qiqqii", 1, 2, 9, 2**63 - 1, 2, 2) + b"/t"
    log.write_bytes(FILE_HEADER + b"".join(map(record, [*payloads, odd])))
    rows, _ = read(log)
    shown = ["/<script>", "/\x00\x1b[31m", "/\ufffd\ufffd", "", "/日本", "/t"]
    assert [row["path"] for row in rows] == shown
    assert [row["time"] is None for row in rows] == [False] * 5 + [True]
    assert [op.path for op in read_transactions(log)] == shown


def test_a_record_longer_than_a_chunk(tmp_path: Path) -> None:
    """A record may be longer than the chunk that is read at once."""
    log = tmp_path / "log.1"
    path = b"/" + b"x" * 10_000
    log.write_bytes(FILE_HEADER + b"".join(record(delete_of(n, path)) for n in range(3)))
    rows, end = read(log, chunk=128)
    assert [len(row["path"]) for row in rows] == [10_001] * 3
    assert end.stop is Stop.EOF


def test_damaged_snapshots(recordings: Any, tmp_path: Path) -> None:
    """A snapshot that is cut or changed at any byte is refused, with every compression."""
    newest = recordings("3.9.3").snapshots[-1]
    other = recordings("3.6.4").snapshots[-1]
    plain = recordings("3.5.10").snapshots[-1]
    rng = random.Random(SEED)
    for snapshot in (newest, other, plain):
        content = snapshot.read_bytes()
        copy = tmp_path / snapshot.name
        for at in sorted(rng.sample(range(len(content)), 150)):
            copy.write_bytes(content[:at])
            with pytest.raises(LogFormatError, match=copy.name):
                list(read_snapshot(copy))
            changed = bytearray(content)
            changed[at] ^= 1 << rng.randrange(8)
            copy.write_bytes(changed)
            if snapshot is plain:
                with pytest.raises(LogFormatError, match=copy.name):
                    list(read_snapshot(copy))
            else:
                # Some bits of a compressed file have no meaning. A file that can be read has the
                # same content.
                try:
                    found = open_snapshot(copy)
                except LogFormatError:
                    continue
                assert found.content == open_snapshot(snapshot).content, (SEED, at)


def test_snapshots_that_lie(tmp_path: Path) -> None:
    """Counts and lengths of 2^31-1, plain or in gzip, end in an error and allocate no memory."""
    head = struct.pack(">4siq", b"ZKSN", 2, 0)
    most = 2**31 - 1
    for body in (
        struct.pack(">i", most),
        struct.pack(">ii", 0, most),
        struct.pack(">iii", 0, 0, most),
        struct.pack(">iii", 0, 0, -7),
        struct.pack(">iiii", 0, 0, 0, most) + bytes(80),
        b"",
    ):
        for name, content in (
            ("snapshot.1", head + body),
            ("snapshot.1.gz", gzip.compress(head + body)),
        ):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(LogFormatError, match=name):
                list(read_snapshot(tmp_path / name))


def test_records_inside_of_records_are_data(tmp_path: Path) -> None:
    """In random logs whose contents have records, parts of records and end bytes, only the chain
    counts."""
    rng = random.Random(SEED)
    log = tmp_path / "log.1"
    trap = record(delete_of(99))
    for attempt in range(300):
        parts = []
        for zxid in range(rng.randrange(8)):
            choice = [b"", b"B" * rng.randrange(9), trap * 2, b"B" + trap, record(trap), trap[:-1]]
            inner = rng.choice(choice) + rng.randbytes(rng.randrange(9))
            body = struct.pack(f">i2si{len(inner)}si", 2, b"/a", len(inner), inner, zxid)
            parts.append(record(struct.pack(">qiqqi", 1, 2, zxid, 3, 5) + body))
        content = b"".join(parts)
        cut = rng.choice([len(content), rng.randrange(len(content) + 1)])
        log.write_bytes(FILE_HEADER + content[:cut] + rng.choice([b"", bytes(50)]))
        rows, end = read(log, chunk=rng.choice([100, 1000, 1 << 20]))
        whole = [sum(map(len, parts[: n + 1])) <= cut for n in range(len(parts))].count(True)
        assert [row["zxid"] for row in rows] == list(range(whole)), (SEED, attempt)
        assert {row["path"] for row in rows} <= {"/a"}
        assert end.stop is not Stop.CORRUPT, (SEED, attempt)
