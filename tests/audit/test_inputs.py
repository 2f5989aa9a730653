"""An audit skips logs after the wanted time, and snapshots that no log gap needs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import cramjam
import pytest
import zkaudit
from zkaudit.decode.snapshot import SNAPPY
from zkaudit.decode.txnlog import read_transactions
from zkaudit.history.committed import participants
from zkaudit.schema import CONFIG
from zkaudit.sources.files import Piece
from zkaudit.sources.selection import (
    AFTER_END,
    BEFORE_START,
    begin_snapshot,
    behind,
    config_in,
    end_zxid,
    find,
    known,
    milliseconds,
    read_behind,
    within,
)

from tests.audit.corpus.judge import directories
from tests.audit.cost import seconds
from tests.audit.snapshots import snapshot_after, snapshot_of
from tests.audit.test_compressed import packed


def test_logs_that_begin_an_hour_later_are_not_read(tmp_path: Path) -> None:
    """``log`` and ``who`` read up to an hour after the time. If all logs begin later, they skip
    none, so that they can report this."""
    logs, _ = find(list(directories(tmp_path).values()))
    late = max(logs, key=lambda log: log.zxid)
    first = next(read_transactions(late.path))
    begun = datetime.fromtimestamp(first.time_ms / 1000, UTC) - timedelta(hours=1)
    before, after = begun - timedelta(milliseconds=1), begun + timedelta(milliseconds=1)
    assert end_zxid(logs, before.replace(tzinfo=None).isoformat(" ")) == first.zxid - 1
    assert end_zxid(logs, after.isoformat()) is None
    assert end_zxid(logs, None) is None
    assert end_zxid([late], before.isoformat()) is None


ZONES = [timezone(timedelta(hours=hours)) for hours in (-12, 0, 2, 14)]


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_a_time_means_the_same_in_each_zone(zone: timezone, tmp_path: Path) -> None:
    """``--from`` and ``--to`` with a time zone choose the same files and the same findings as in
    UTC. Without one, they are UTC."""
    logs, _ = find(list(directories(tmp_path).values()))
    late = max(logs, key=lambda log: log.zxid)
    first = next(read_transactions(late.path))
    begun = datetime.fromtimestamp(first.time_ms / 1000, UTC)
    snapshot = Piece(late.server, str(tmp_path / "snapshot"), first.zxid - 1, 1)
    (tmp_path / "snapshot").write_bytes(snapshot_after([]))
    for step, early, newest in ((-1, first.zxid - 1, None), (1, None, snapshot)):
        before = (begun - AFTER_END + timedelta(milliseconds=step)).astimezone(zone)
        after = (begun + BEFORE_START + timedelta(milliseconds=step)).astimezone(zone)
        assert end_zxid(logs, before.isoformat()) == early
        assert begin_snapshot(logs, [snapshot], after.isoformat(" ")) == newest
        assert milliseconds(after.isoformat()) == first.time_ms + 3_600_000 + step
        assert milliseconds(zkaudit._utc(after)) == first.time_ms + 3_600_000 + step
        assert milliseconds(zkaudit._utc(after.isoformat())) == first.time_ms + 3_600_000 + step
    plain = begun.replace(tzinfo=None)
    assert milliseconds(plain.isoformat()) == milliseconds(zkaudit._utc(plain)) == first.time_ms


def test_snapshots_that_are_read() -> None:
    """The audit reads the first snapshot after each log gap and the last one inside it. Of those
    with the same zxid it reads one server's."""
    found = [
        Piece(server, f"/{server}/snapshot.{zxid:x}", zxid, 1)
        for server in "ab"
        for zxid in (3, 5, 9, 12, 15, 20, 40, 49, 52, 60, 70)
    ]
    chosen = behind(found, [(0, 10), (30, 50)])
    assert [(piece.server, piece.zxid) for piece in chosen] == [
        ("a", 5), ("a", 9), ("a", 40), ("a", 49),
    ]  # fmt: skip
    assert behind(found, []) == []


def test_the_next_snapshot_is_read_instead_of_one_that_is_not_whole() -> None:
    """Each is read once, and none that is already known."""
    found = [Piece("a", f"/a/snapshot.{zxid:x}", zxid, 1) for zxid in (5, 9, 12, 15, 40, 49, 52)]
    reads: list[list[int]] = []

    def read_of(*torn: int) -> list[int]:
        def read(chosen: Sequence[Piece]) -> list[int]:
            reads.append([piece.zxid for piece in chosen])
            return [zxid for zxid in reads[-1] if zxid not in torn]

        reads.clear()
        return [piece.zxid for piece in read_behind(found, [(0, 10), (30, 50)], read, known)]

    known: tuple[int, ...] = ()
    assert read_of() == [5, 9, 40, 49]
    assert len(reads) == 1
    assert read_of(9, 5, 12) == [5, 9, 40, 49, 12, 15]
    assert reads == [[5, 9, 40, 49], [12], [15]]
    assert read_of(40, 49, 52) == [5, 9, 40, 49, 52]
    known = (5, 9, 41)
    assert read_of() == [49]


def gaps_and_snapshots(count: int) -> tuple[list[tuple[int, int]], list[Piece]]:
    """So many log gaps, with one snapshot after each."""
    gaps = [(n * 10, n * 10 + 5) for n in range(count)]
    return gaps, [Piece("a", f"/a/snapshot.{n}", n * 10 + 7, 1) for n in reversed(range(count))]


def chosen_behind(count: int) -> None:
    """Choose the snapshots to read."""
    gaps, found = gaps_and_snapshots(count)
    assert len(behind(found, gaps)) == count


def known_after(count: int) -> None:
    """Find from where all ephemeral znodes are known, in each segment."""
    gaps, found = gaps_and_snapshots(count)
    assert len(known(gaps, [piece.zxid for piece in found])) == count + 1


def left_within(count: int) -> None:
    """Leave out the logs before and after a range."""
    logs = [Piece(server, "log", n * 10 + 1, 1) for n in range(count) for server in "ab"]
    assert len(within(logs, count * 3, count * 7)) == 2 * (count * 4 // 10 + 1)


@pytest.mark.parametrize("work", [chosen_behind, known_after, left_within])
def test_the_choice_of_files_costs_what_their_number_costs(work: Callable[[int], None]) -> None:
    """The work grows with the number of log gaps and files, not with its square."""
    few = seconds(lambda: work(2_000))
    assert seconds(lambda: work(8_000)) < 9 * few  # the square would be 16 times


def test_observers_do_not_vote() -> None:
    """The content of `/zookeeper/config` names each server's role, or none for a voter."""
    config = (
        b"server.1=zk1:2888:3888:participant;0.0.0.0:2181\n"
        b"server.2=zk2:2888:3888;2181\n"
        b"server.3=zk3:2888:3888:observer;0.0.0.0:2181\nversion=100000003"
    )
    assert participants((5, config)) == 2
    assert participants((5, b"version=0")) is None
    assert participants(None) is None
    assert participants((5, config), None, (4, b"server.1=zk1:2888:3888")) == 2
    assert participants((5, config), (6, b"server.1=zk1:2888:3888")) == 1


@pytest.mark.parametrize("end", ["", ".gz", ".zst", ".snappy"])
def test_the_configuration_in_a_snapshot(tmp_path: Path, end: str) -> None:
    """The newest snapshot counts. Its znodes are in no order, and a long znode may be before it."""
    stat = (0,) * 9
    nodes: list[tuple[bytes, bytes | None, tuple[int, ...]]] = [(b"", b"", stat)]
    nodes += [(b"/a", bytes(3_000_000), stat), (CONFIG.encode(), b"server.1=a:1:2", stat)]

    def snapshot(zxid: int, content: bytes) -> Piece:
        file = tmp_path / f"snapshot.{zxid:x}{end}"
        if end == ".snappy":
            block = bytes(cramjam.snappy.compress_raw(content))
            content = SNAPPY + bytes(8) + struct.pack(">i", len(block)) + block
        file.write_bytes(packed(content, end) if end in (".gz", ".zst") else content)
        return Piece("a", str(file), zxid, 1)

    old = snapshot(9, snapshot_of(nodes[:2]))
    assert config_in([old]) is None
    new = snapshot(10, snapshot_of(nodes))
    assert config_in([new, old]) == (10, b"server.1=a:1:2")
    assert config_in([old, new, Piece("a", str(tmp_path / "snapshot.b"), 11, 1)]) is not None
    assert config_in([]) is None
    empty = snapshot(12, snapshot_of([*nodes[:2], (CONFIG.encode(), b"", stat)]))
    assert config_in([empty]) is None
