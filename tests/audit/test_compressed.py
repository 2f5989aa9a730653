"""Compressed logs and snapshots: the same rows as from plain files, in bounded memory."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from zkaudit.cli import run
from zkaudit.compressed import Unpacked, codec_of
from zkaudit.decode.batches import LogReader, end_of_log, read_snapshot
from zkaudit.decode.txnlog import Stop
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.sources.options import parse_options
from zkaudit.sources.selection import find, left_out
from zkaudit.sources.zookeeper import BatchLogReader, StreamLogReader

from tests.audit.histories import History
from tests.audit.snapshots import snapshot_after
from tests.audit.test_given_files import damaged, read_by, written, zxids
from tests.audit.written import write_log

ENDS = (".gz", ".zst")


def packed(content: bytes, end: str) -> bytes:
    """The content of a compressed file."""
    if end == ".gz":
        return gzip.compress(content, 1)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def pack(file: Path, end: str) -> Path:
    """Replace a file by a compressed one."""
    to = file.with_name(file.name + end)
    to.write_bytes(packed(file.read_bytes(), end))
    file.unlink()
    return to


def unpacked(content: bytes, end: str) -> Unpacked:
    """An open compressed file."""
    return Unpacked(lambda: io.BytesIO(packed(content, end)), codec_of(end) or "")


@pytest.mark.parametrize("end", ENDS)
def test_any_part_of_a_compressed_file_can_be_read(end: str) -> None:
    """Forwards, backwards, across its end, and after its size was asked for."""
    chance = random.Random(7)
    for size in (0, 1, 65_536, 400_001):
        content = chance.randbytes(size // 4) * 4 + b"\1" * (size % 4) + bytes(150_000)
        file = unpacked(content, end)
        for _ in range(60):
            position, count = chance.randrange(len(content) + 9), chance.choice((1, 99, 200_000))
            if not chance.randrange(8):
                assert file.size() == len(content.rstrip(b"\0"))
            assert file.read_at(count, position) == content[position : position + count]
        assert file.damage is None
        file.close()


def test_memory_does_not_grow_with_the_file() -> None:
    """Only what was read last is kept."""
    file = unpacked(random.Random(1).randbytes(1 << 20) * 48, ".zst")
    tracemalloc.start()
    for position in range(0, 48 << 20, 1 << 20):
        assert len(file.read_at(1 << 20, position)) == 1 << 20
    assert file.size() == 48 << 20
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("end", ENDS)
def test_a_compressed_log_has_the_same_rows(tmp_path: Path, end: str) -> None:
    """With several chunks, and with the space that the server preallocated."""
    log = written(tmp_path / "log.1", 1, 90_000)
    log.write_bytes(log.read_bytes() + bytes(3 << 20))
    plain = list(LogReader(log).batches())
    stopped = end_of_log(log, 0)
    compressed = pack(log, end)
    reader = LogReader(compressed)
    file = plain[0].schema.get_field_index("file")
    found = pa.Table.from_batches(list(reader.batches())).remove_column(file)
    assert found == pa.Table.from_batches(plain).remove_column(file)
    assert reader.end is not None
    assert reader.end.position == stopped.position
    assert end_of_log(compressed, 0).position == stopped.position


@pytest.mark.parametrize("end", ENDS)
def test_a_compressed_file_that_is_cut_off_is_damage(tmp_path: Path, end: str) -> None:
    """The copy is not complete. It must not pass for the end of a log."""
    log = pack(written(tmp_path / "log.1", 1, 9_000), end)
    whole = log.read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        log.write_bytes(whole[:size])
        reader = LogReader(log, tolerant=True)
        list(reader.batches())
        assert reader.end is not None
        if size:
            assert reader.end.stop is Stop.CORRUPT
            assert reader.end.reason.startswith({".gz": "gzip: ", ".zst": "zstd: "}[end])
        else:
            assert reader.end.stop is Stop.TORN
    log.write_bytes(b"plain" * 99)
    with pytest.raises(LogFormatError, match="byte 0: "):
        list(LogReader(log).batches())


def test_damage_within_a_compressed_log_is_at_the_same_byte(tmp_path: Path) -> None:
    """Positions are counted as in the plain log."""
    log = written(tmp_path / "log.1", 1, 5_000)
    position = damaged(log, 3_000)
    with pytest.raises(LogFormatError, match=f"byte {position}: checksum"):
        list(LogReader(pack(log, ".zst")).batches())


def test_a_directory_with_compressed_logs_is_read(tmp_path: Path) -> None:
    """Old logs are compressed, the newest is not. A compressed copy counts as a copy."""
    place = tmp_path / "zk1"
    pack(written(place / "log.1", 1, 4), ".gz")
    pack(written(place / "log.5", 5, 4), ".zst")
    written(place / "log.9", 9, 4)
    assert zxids([str(place)]) == list(range(1, 13))
    assert left_out([place]) == []
    settings = parse_options("zookeeper_txnlog", {"path": str(place / "log.5.zst")})
    assert read_by(BatchLogReader(settings)) == [5, 6, 7, 8]
    again = written(place / "log.1", 1, 4)
    assert left_out([place]) == [f"{place}/log.1.gz (a copy)"]
    assert zxids([str(place)]) == list(range(1, 13))
    written(again, 1, 4, later=1)
    with pytest.raises(AuditError, match="are different logs with the same name"):
        find([place])


def test_a_stream_goes_on_when_its_log_is_compressed(tmp_path: Path) -> None:
    """The log was read up to some byte before it was compressed. Both may exist for a moment."""
    place = tmp_path / "zk1"
    log = written(place / "log.1", 1, 4)
    stream = StreamLogReader(parse_options("zookeeper_txnlog", {"path": str(place)}))
    begin = stream.initialOffset()
    middle = stream.latestOffset(begin)
    written(log, 1, 6)
    (place / "log.1.gz").write_bytes(gzip.compress(log.read_bytes())[:-9])
    written(place / "log.7", 7, 2)
    assert stream.latestOffset(middle)[str(place)]["file"] == "log.7"
    (place / "log.1.gz").unlink()
    pack(log, ".gz")
    end = stream.latestOffset(middle)
    found = [
        row["zxid"]
        for task in stream.partitions(middle, end)
        for batch in stream.read(task)
        for row in batch.to_pylist()
    ]
    assert found == [5, 6, 7, 8]


def history() -> History:
    """A member that commits, then leaves."""
    h = History()
    h.topic("t", 1)
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 5, "/consumers/g/offsets/t/0", data=b"10", ephemeral=False)
    h.commit("g", 0, 20, 5, version=1)
    h.leave("g", "a", 5)
    return h


@pytest.mark.parametrize("end", ENDS)
def test_questions_are_answered_from_compressed_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    """``log``, ``who`` and ``show`` print the same as from plain files, also behind a snapshot."""
    h = history()

    def answers() -> str:
        for words in (("log", "g"), ("who", "g", "t-0", "--at", h.rows[-2]["time"].isoformat())):
            given = ("--zookeeper-logs", str(tmp_path), "--servers", "1")
            assert run([*words, *given]) == 0
        return capsys.readouterr().out

    log = write_log(tmp_path, h.rows)
    plain = answers()
    assert "t-0: offset 10 -> 20" in plain
    log = pack(log, end)
    assert answers() == plain
    log.unlink()
    log = write_log(tmp_path, h.rows[4:])
    snapshot = tmp_path / f"snapshot.{h.rows[3]['zxid']:x}"
    snapshot.write_bytes(snapshot_after(h.rows[:4]))
    plain = answers()
    rows = [batch.to_pylist() for batch in read_snapshot(snapshot)]
    pack(log, end)
    compressed = pack(snapshot, end)
    assert answers() == plain
    again = [batch.to_pylist() for batch in read_snapshot(compressed)]
    assert [row | {"file": ""} for part in again for row in part] == [
        row | {"file": ""} for part in rows for row in part
    ]
    compressed.write_bytes(compressed.read_bytes()[:-5])
    with pytest.raises(LogFormatError, match="byte 0: "):
        list(read_snapshot(compressed))
