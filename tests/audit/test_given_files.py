"""The files below the given directories: which are read, which are named, and which are refused."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zkaudit.cli import run
from zkaudit.collect import Kept, collect
from zkaudit.decode.txnlog import TXN_HEADER, read_transactions
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.sources.files import absolute, log_zxid, parse_servers
from zkaudit.sources.options import parse_options
from zkaudit.sources.selection import find, left_out
from zkaudit.sources.zookeeper import BatchLogReader, PushingLogReader, StreamLogReader
from zkaudit.tables.catalog import FINDINGS, SCHEMA_VERSION

from tests.audit.test_txnlog import log

RECORD = 13 + TXN_HEADER.size + 4
"""Bytes of one record of ``written``."""


def written(file: Path, first: int, count: int, session: int = 7, later: int = 0) -> Path:
    """A log of transactions that only open sessions, one a second, ``later`` milliseconds later."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log(
        file,
        *(
            TXN_HEADER.pack(session, 1, zxid, 1_000 * zxid + later, -10) + struct.pack(">i", 6000)
            for zxid in range(first, first + count)
        ),
    )
    return file


def damaged(file: Path, record: int) -> int:
    """Change one byte of a record; return where the record begins."""
    position = 16 + RECORD * record
    content = bytearray(file.read_bytes())
    content[position + 30] ^= 1
    file.write_bytes(content)
    return position


def zxids(logs: list[str]) -> list[int]:
    """What the source reads of these directories."""
    options = {"paths": str(logs).replace("'", '"'), "table": "transactions", "columns": "zxid"}
    return read_by(BatchLogReader(parse_options("zookeeper_txnlog", options)))


def read_by(reader: BatchLogReader) -> list[int]:
    """The zxids that a source reads."""
    return sorted(
        row["zxid"]
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    )


def test_the_longer_copy_of_a_log_is_read(tmp_path: Path) -> None:
    """A kept copy lies beside the server's own log. It was copied early, or its end was cut off
    afterwards. Each transaction is read once, and the other copy is named."""
    kept, live = tmp_path / "zk1" / "log.1", tmp_path / "zk1" / "version-2" / "log.1"
    for shorter, longer in ((kept, live), (live, kept)):
        written(shorter, 1, 4)
        written(longer, 1, 6)
        logs, _ = find([tmp_path / "zk1"])
        assert [piece.path for piece in logs] == [str(longer)]
        assert left_out([tmp_path / "zk1"]) == [f"{shorter} (a copy)"]
        assert zxids([str(tmp_path / "zk1")]) == [1, 2, 3, 4, 5, 6]
        stream = StreamLogReader(parse_options("zookeeper_txnlog", {"path": str(tmp_path / "zk1")}))
        with pytest.raises(AuditError, match="are two copies of a log: for a stream"):
            stream.latestOffset(stream.initialOffset())


def test_two_different_logs_of_one_name_are_refused(tmp_path: Path) -> None:
    """They are of two servers, or the server was set up again."""
    written(tmp_path / "zk1" / "log.1", 1, 4)
    written(tmp_path / "zk1" / "version-2" / "log.1", 1, 6, session=8)
    with pytest.raises(AuditError, match="are different logs with the same name"):
        find([tmp_path / "zk1"])


@pytest.mark.parametrize(
    ("name", "zxid"),
    [
        ("log.1", 1), ("log.100000001", 0x100000001), ("log.bad", 0xBAD), ("log.-5", None),
        ("log.+5", None), ("log. 5", None), ("log.1_0", None), ("log.0x5", None), ("log", None),
        ("log.1.gz", 1), ("log.1f.zst", 0x1F), ("log.1.gz.zst", None), ("log.1.xz", None),
        ("log.12345678123456781", None), ("log.٣", None),
    ],
)  # fmt: skip
def test_the_name_of_a_log(name: str, zxid: int | None) -> None:
    """ZooKeeper names a log after its first transaction, in hexadecimal digits and nothing else."""
    assert log_zxid(name) == zxid


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of the disk is not one of standard output."""
    written(tmp_path / "log.1", 1, 4)
    (tmp_path / "log.9").symlink_to("/proc/self/mem")  # even root cannot read its first page
    for words in (
        ["findings"],
        ["log", "g", "--zookeeper-logs"],
        ["show", "9", "--zookeeper-logs"],
    ):
        assert run([*words, str(tmp_path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: {tmp_path / 'log.9'}: Input/output error: fix")


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    """Logs in a format that is not read, and files that were renamed. ``log.bad`` is a log only
    if it begins with transaction 0xbad."""
    place = tmp_path / "zk1"
    first = written(place / "log.1", 1, 4)
    for name in ("log.bad", "log.5.xz", "log.9.snappy", "log.-5"):
        shutil.copy(first, place / name)
    (place / "snapshot.old").write_bytes(b"")
    (place / "myid").write_text("1")
    assert [piece.name for piece in find([place])[0]] == ["log.1"]
    assert left_out([place]) == [
        f"{place}/log.-5 (not a log's name)",
        f"{place}/log.5.xz (compressed, but neither .gz nor .zst)",
        f"{place}/log.9.snappy (compressed, but neither .gz nor .zst)",
        f"{place}/log.bad (not a log's name)",
        f"{place}/snapshot.old (not a snapshot's name)",
    ]
    (place / "log.bad").write_bytes(b"")  # a server has just begun it
    assert [piece.name for piece in find([place])[0]] == ["log.1", "log.bad"]
    written(place / "log.bad", 0xBAD, 1)
    assert [piece.name for piece in find([place])[0]] == ["log.1", "log.bad"]
    only = tmp_path / "zk2"
    only.mkdir()
    shutil.copy(first, only / "log.1.xz")
    with pytest.raises(InputMissingError, match=r"zk2: no file log.*log\.1\.xz \(compressed, but"):
        find([place, only])


def test_a_server_without_logs_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An rsync that failed, or a ``dataDir`` beside its ``dataLogDir``."""
    written(tmp_path / "zk1" / "log.1", 1, 4)
    for name, fix in (
        ("zk2", "dataLogDir in zoo.cfg"),
        ("zk3", "SERVER=DATALOGDIR SERVER=DATADIR"),
    ):
        place = tmp_path / name
        place.mkdir()
        if name == "zk3":
            (place / "snapshot.4").write_bytes(b"ZKSN")
        given = ["--zookeeper-logs", str(tmp_path / "zk1"), str(place)]
        assert run(["run", *given, "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {place}: no file log.<zxid>: ")
        assert fix in error
        assert error.count("\n") == 1
    assert zxids([str(tmp_path / "zk1"), str(tmp_path / "zk2")]) == [1, 2, 3, 4]


def test_one_server_may_have_several_directories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dataLogDir`` apart from ``dataDir``, as ZooKeeper recommends, is one server."""
    logs, data = tmp_path / "logs", tmp_path / "data"
    written(logs / "version-2" / "log.1", 1, 4)
    data.mkdir()
    (data / "snapshot.4").write_bytes(b"ZKSN")
    found, snapshots = find([f"zk1={logs}", f"zk1={data}"])
    assert [(piece.server, piece.name) for piece in (*found, *snapshots)] == [
        ("zk1", "log.1"), ("zk1", "snapshot.4"),
    ]  # fmt: skip
    assert list(parse_servers(f"zk1={logs},zk1={data}")) == ["zk1"]
    monkeypatch.chdir(tmp_path)
    assert absolute("zk1=logs") == f"zk1={logs}"
    assert absolute("logs") == str(logs)
    assert absolute("zk1=s3://bucket/zk1") == "zk1=s3://bucket/zk1"
    odd = tmp_path / "a=b"
    written(odd / "log.1", 1, 4)
    assert [piece.server for piece in find(["a=b"])[0]] == ["a=b"]
    given = ["--zookeeper-logs", f"zk1={logs}", f"zk1={data}"]
    assert run(["show", "0x2", *given]) == 0
    assert capsys.readouterr().out.startswith("zk1:\n")
    with pytest.raises(InputMissingError, match="SERVER=DATALOGDIR"):
        collect([data], tmp_path / "kept")
    assert run(["collect", str(logs), str(data), str(tmp_path / "kept")]) == 0
    written(logs / "version-2" / "log.5", 5, 4)
    assert run(["collect", str(logs), str(data), str(tmp_path / "kept")]) == 0
    assert [place.name for place in (tmp_path / "kept").iterdir()] == ["log.1"]


def test_show_reads_on_behind_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two other servers may have the transaction: the damage is named, and they are shown."""
    for number in (1, 2, 3):
        written(tmp_path / f"zk{number}" / "log.1", 1, 9)
    position = damaged(tmp_path / "zk2" / "log.1", 3)
    given = ["--zookeeper-logs", *(str(tmp_path / f"zk{number}") for number in (1, 2, 3))]
    assert run(["show", "0x5", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(">") for line in lines) == 2
    (told,) = [line for line in lines if "damaged" in line]
    assert f"zk2/log.1: byte {position}: checksum" in told
    assert run(["show", "0x5", "--zookeeper-logs", str(tmp_path / "zk2")]) == 1
    assert f"log.1: byte {position}: checksum" in capsys.readouterr().err


def test_collect_leaves_no_part_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that does not fit is named. It takes no space, and the next run copies it."""
    source, kept = tmp_path / "zk", tmp_path / "kept"
    written(source / "log.1", 1, 4)
    written(source / "log.5", 5, 4)

    def copy(path: Path, to: Path) -> None:
        to.write_bytes(path.read_bytes()[:50])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path), None, str(to))

    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", copy)
        with pytest.raises(AuditError, match=r"No space left on device: .*zk/log\.1"):
            collect([source], kept)
    assert not list(kept.iterdir())
    assert collect([source], kept) == Kept(copied=1)


def test_collect_keeps_no_other_log_for_the_one_it_has(tmp_path: Path) -> None:
    """After the ensemble was set up again, its new ``log.1`` is not the one that is kept."""
    source, kept = tmp_path / "zk", tmp_path / "kept"
    written(source / "log.1", 1, 4)
    written(source / "log.5", 5, 4)
    assert collect([source], kept) == Kept(copied=1)
    assert collect([source], kept) == Kept(known=1)
    written(source / "log.1", 1, 4, session=8)
    with pytest.raises(AuditError, match=r"kept/log\.1 differs from .*zk/log\.1"):
        collect([source], kept)
    assert [found.session for found in read_transactions(kept / "log.1")] == [7] * 4
    (source / "log.1").unlink()
    for place, content in ((source, b"ZKSN one"), (kept, b"ZKSN two")):
        (place / "snapshot.4").write_bytes(content)
    with pytest.raises(AuditError, match=r"kept/snapshot\.4 differs from"):
        collect([source], kept)


@dataclass(frozen=True)
class EqualTo:
    """A condition of a query, as Spark hands it to a source; it is known by its class's name."""

    value: int
    attribute: tuple[str, ...] = ("zxid",)


class LessThan(EqualTo):
    """See above."""


class LessThanOrEqual(EqualTo):
    """See above."""


class GreaterThan(EqualTo):
    """See above."""


class GreaterThanOrEqual(EqualTo):
    """See above."""


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo, lambda zxid: zxid == 5),
        (LessThan, lambda zxid: zxid < 5),
        (LessThanOrEqual, lambda zxid: zxid <= 5),
        (GreaterThan, lambda zxid: zxid > 5),
        (GreaterThanOrEqual, lambda zxid: zxid >= 5),
    ],
)
def test_a_condition_that_the_source_takes_leaves_out_no_row_that_fits(
    tmp_path: Path, condition: Any, expected: Callable[[int], bool]
) -> None:
    """Also at its very zxid: Spark cannot put back what the source left out."""
    written(tmp_path / "log.1", 1, 9)
    options = {"path": str(tmp_path), "columns": "zxid", "pushFilters": "true"}
    reader = PushingLogReader(parse_options("zookeeper_txnlog", options))
    asked = [condition(5), condition(value=5, attribute=("cxid",))]
    assert list(reader.pushFilters(asked)) == asked
    assert read_by(reader) == list(filter(expected, range(1, 10)))


def test_a_table_for_a_spreadsheet_computes_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any client may have chosen the names of groups, topics and members. The chroot is printed
    where a sentence does not show it."""
    out = tmp_path / "out"
    row = dict.fromkeys(column.name for column in FINDINGS.columns) | {
        "severity": "high", "kind": "storm", "basis": "proven", "group_id": "=cmd()",
        "topic": "a-1", "partition": 1, "member": "@m", "sentence": "-1 of a-1-1", "chroot": "/k",
    }  # fmt: skip
    (out / "tables" / "findings").mkdir(parents=True)
    (out / "summary.json").write_text(
        json.dumps({"findings": [], "schema_version": SCHEMA_VERSION})
    )
    pq.write_table(pa.Table.from_pylist([row]), out / "tables" / "findings" / "part.parquet")
    assert run(["findings", str(out), "--format", "csv"]) == 0
    (cells,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (cells["group_id"], cells["member"]) == ("'=cmd()", "'@m")
    assert (cells["sentence"], cells["partition"]) == ("'-1 of a-1-1", "1")
    assert run(["findings", str(out)]) == 0
    assert "chroot /k, group =cmd(), topic a-1, partition 1" in capsys.readouterr().out
