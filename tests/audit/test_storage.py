"""Logs, snapshots and journals on an S3 server: the same rows as from disk, in few requests."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from zkaudit import storage
from zkaudit.cli import run
from zkaudit.decode.batches import LogReader, cuts, end_of_log
from zkaudit.decode.txnlog import Stop, read_transactions
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.sources.files import Piece, parse_servers
from zkaudit.sources.journal import read_journal_rows
from zkaudit.sources.selection import find
from zkaudit.storage import Remote, matching, name_of, opened, place_of, read_all, shown

from tests.audit.corpus.judge import directories
from tests.audit.s3 import S3
from zkconsumer.errors import ConfigError

SPACE = 3 << 20
NAME = "kept 100%/é"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories of two servers. Preallocated space follows the last record."""
    home = tmp_path_factory.mktemp("disk")
    for name, place in directories(home).items():
        for log in place.glob("log.*"):
            with log.open("ab") as file:
                file.truncate(log.stat().st_size + SPACE)
            folder = home / name / "version-2"
            folder.mkdir(parents=True)
            log.rename(folder / log.name)
        place.rmdir()
    return home


@pytest.fixture(scope="module")
def remote(s3: S3, disk: Path) -> S3:
    """The same in a bucket, with names that a URL would encode."""
    s3.upload(disk, NAME)
    return s3


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every read of a remote file: bytes and position."""
    asked: list[tuple[int, int]] = []
    opening = Remote.open

    class Counted:
        def __init__(self, place: Remote) -> None:
            self._file = opening(place)

        def read_at(self, size: int, position: int) -> bytes:
            asked.append((size, position))
            return bytes(self._file.read_at(size, position))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    monkeypatch.setattr(Remote, "open", lambda place: Counted(place))
    return asked


def rows(pieces: list[Piece]) -> list[dict[str, Any]]:
    """All rows of these logs."""
    readers = [LogReader(piece.path, start=piece.start, stop_at=piece.stop) for piece in pieces]
    return [row for reader in readers for batch in reader.batches() for row in batch.to_pylist()]


def test_a_bucket_gives_the_rows_of_the_disk(remote: S3, disk: Path) -> None:
    """The same logs are found under ``s3`` and ``s3a``, in the directory of each server. Batches,
    single transactions and ends are those of the disk."""
    local, _ = find([disk / "late", disk / "whole"])
    for scheme in ("s3", "s3a"):
        urls = [remote.url(f"{NAME}/{name}", scheme) for name in ("late", "whole")]
        found, _ = find(urls)
        assert [piece.name for piece in found] == [piece.name for piece in local]
        servers = {f"{scheme}://logs/{NAME}/{name}" for name in ("late", "whole")}
        assert {piece.server for piece in found} == servers  # not the options of the URL
        assert [piece.size for piece in found] == [Path(p.path).stat().st_size for p in local]
        assert rows(found) == rows(local)
    for ours, theirs in zip(found, local, strict=True):
        assert end_of_log(ours.path, 0) == end_of_log(theirs.path, 0)
        assert end_of_log(ours.path, 0).stop is Stop.PADDING
        assert list(read_transactions(ours.path)) == list(read_transactions(theirs.path))


def test_a_long_remote_log_is_split(remote: S3, disk: Path) -> None:
    """The pieces begin where those of the local file do, and have the same rows."""
    (local,), _ = find([disk / "whole"])
    (found,), _ = find([remote.url(f"{NAME}/whole")])
    starts = cuts(found.path, 20_000)
    assert len(starts) > 3
    assert starts == cuts(local.path, 20_000)
    middle = [LogReader(p.path, start=starts[1], stop_at=starts[3]) for p in (found, local)]
    ours, theirs = ([r for b in reader.batches() for r in b.to_pylist()] for reader in middle)
    assert ours == theirs != []


def test_a_log_is_read_in_few_requests(
    remote: S3, disk: Path, requests: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request reads ahead, forwards to the last record and backwards through preallocated
    space. No byte before the last record is read twice. The first transaction alone is one small
    request."""
    monkeypatch.setattr(storage, "FIRST", 4_000)
    monkeypatch.setattr(storage, "AHEAD", 1 << 20)
    monkeypatch.setattr("zkaudit.decode.batches.CHUNK", 30_000)
    (found,), _ = find([remote.url(f"{NAME}/whole")])
    reader = LogReader(found.path, chunk=30_000)
    assert sum(batch.num_rows for batch in reader.batches()) > 1_000
    assert reader.end is not None
    written = reader.end.position
    assert written > 100_000
    assert len(requests) <= 2 + (written + SPACE) // (1 << 20) + 3
    assert sum(size for size, _ in requests) <= written + SPACE + (2 << 20)
    requests.clear()
    next(read_transactions(found.path))
    assert requests == [(4_000, 0)]


def test_reading_ahead_is_reading(remote: S3, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any sequence of reads, forwards, backwards and beyond the end, gives the file's bytes."""
    seed = int(os.environ.get("STORAGE_SEED") or random.randrange(1 << 32))
    sys.stdout.write(f"STORAGE_SEED={seed}\n")
    (local,), _ = find([disk / "whole"])
    (found,), _ = find([remote.url(f"{NAME}/whole")])
    content = Path(local.path).read_bytes()
    monkeypatch.setattr(storage, "FIRST", 500)
    monkeypatch.setattr(storage, "AHEAD", 5_000)
    chance = random.Random(seed)
    at = 0
    with opened(found.path) as file:
        assert file.size() == len(content)
        for _ in range(150):
            size = chance.choice((1, 12, 400, 6_000))
            assert file.read_at(size, at) == content[at : at + size], (seed, at, size)
            step = chance.choice((size, size, -size, -3_000, chance.randrange(20_000)))
            at = max(0, at + step)
        assert file.read_at(10, len(content)) == b""
        assert file.read_at(10, len(content) - 3) == content[-3:]


def test_places_in_a_bucket(remote: S3) -> None:
    """A file, a glob and a name for the server work as on disk."""
    (log,) = find([remote.url(f"{NAME}/whole")])[0]
    late = remote.url(f"{NAME}/late")
    (only,) = parse_servers("", f'["{log.path}"]').items()
    assert only == (f"s3://logs/{NAME}/whole/version-2", [place_of(log.path)])
    named = parse_servers(f"zk1={late},zk2={remote.url(f'{NAME}/wh?le/version-2/log.*')}")
    assert {name: [p.name for p in places] for name, places in named.items()} == {
        "zk1": ["late"],
        "zk2": [log.name],
    }
    assert [p.name for p in matching(remote.url("kept*/*/[lw]*"))] == ["late", "whole"]
    assert [p.name for p in matching(remote.url("*/é/late"))] == ["late"]
    assert matching(remote.url("kept*/none")) == []


def test_show_prints_what_it_prints_from_disk(
    remote: S3, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``zkaudit show`` reads a bucket. It names the server without the URL's options."""
    (log,), _ = find([disk / "late"])
    wanted = list(read_transactions(log.path))[20].zxid
    assert run(["show", hex(wanted), "--zookeeper-logs", str(disk / "late")]) == 0
    local = capsys.readouterr().out
    assert run(["show", hex(wanted), "--zookeeper-logs", remote.url(f"{NAME}/late")]) == 0
    assert capsys.readouterr().out == local.replace(str(disk), f"s3://logs/{NAME}")
    assert run(["show", "0x7777777777", "--zookeeper-logs", remote.url(f"{NAME}/late")]) == 2
    assert f"no log below s3://logs/{NAME}/late has" in capsys.readouterr().err


def test_damage_in_a_bucket_is_named(s3: S3, disk: Path, tmp_path: Path) -> None:
    """The error has the URL and the byte."""
    (log,), _ = find([disk / "late"])
    at = list(read_transactions(log.path))[20].position
    content = bytearray(Path(log.path).read_bytes())
    content[at + 30] ^= 1
    (tmp_path / log.name).write_bytes(content)
    s3.upload(tmp_path, "damaged")
    (found,), _ = find([s3.url("damaged")])
    with pytest.raises(LogFormatError, match=f"^s3://logs/damaged/{log.name}: byte {at}: checksum"):
        rows([found])


def test_journals_in_a_bucket(s3: S3, tmp_path: Path) -> None:
    """Lines are read as from disk, also lines that are longer than a buffer."""
    lines = ['{"at": 1, "kind": "run", "schema": 1, "clock": "epoch"}', "x" * 200_000, "no newline"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    s3.upload(tmp_path, "journals")
    url = s3.url("journals/a.jsonl")
    local = [row | {"file": ""} for row in read_journal_rows(tmp_path / "a.jsonl")]
    found = list(read_journal_rows(url))
    assert [row | {"file": ""} for row in found] == local
    assert {row["file"] for row in found} == {"s3://logs/journals/a.jsonl"}
    place = place_of(s3.url("journals"))
    assert isinstance(place, Remote)
    assert [str(file) for file in place.rglob("*.jsonl")] == [url]
    assert read_all(url) == (tmp_path / "a.jsonl").read_bytes()


def test_what_is_not_in_a_bucket_is_named(
    s3: S3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing bucket, directory or file, a directory without logs, and a server that does not
    answer are errors of one line, with status 2 if an input is missing. No URL's options are
    shown."""
    (tmp_path / "notes").write_text("")
    s3.upload(tmp_path, "empty")
    told = {
        f"s3://absent/zk1{s3.options}": "s3://absent/zk1: no such bucket: s3://absent",
        s3.url("zk1"): "s3://logs/zk1: no such directory: name a server's dataLogDir",
        s3.url("empty"): "s3://logs/empty: no file log.<zxid>",
    }
    for url, said in told.items():
        arguments = ["run", "--out", str(tmp_path / "o"), "--zookeeper-logs", url]
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {said}")
        assert (error.count("\n"), "endpoint" in error) == (1, False)
    with pytest.raises(FileNotFoundError) as missing, opened(s3.url("zk1/log.1")):
        pass
    assert missing.value.filename == "s3://logs/zk1/log.1"
    silent = s3.url("zk1").replace(s3.address, "127.0.0.1:1")
    with pytest.raises(AuditError, match=r"^s3://logs/zk1: .*NETWORK_CONNECTION.*check the netw"):
        parse_servers(silent)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dbfs:/logs", "dbfs:/logs: cannot read dbfs: mount it, or copy"),
        ("s3:/bucket/zk1", "write s3://BUCKET/DIR, with two slashes"),
        ("s3:///zk1", "names no bucket"),
        ("file://tmp", "write file:///DIR, with three slashes"),
        ("s3://key:secret@bucket/zk1", "s3://bucket/zk1: the URL has a secret"),
        ("abfss://c@a.dfs.core.windows.net/zk1?client_secret=secret", "the URL has a secret"),
    ],
)
def test_urls_that_cannot_be_used(text: str, told: str) -> None:
    """The error names the URL and the fix, and repeats no secret."""
    with pytest.raises(ConfigError) as caught:
        place_of(text)
    assert told in str(caught.value)
    assert "secret@" not in str(caught.value)
    assert "=secret" not in str(caught.value)


def test_urls_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other file systems are recognised by their scheme. Everything else is a local path, which
    keeps its type."""
    monkeypatch.chdir(tmp_path)
    assert place_of("logs/zk1") == place_of(Path("logs/zk1")) == tmp_path / "logs/zk1"
    assert place_of("file:///zk%201") == Path("/zk 1")
    azure = place_of("abfss://c@a.dfs.core.windows.net/zk1/")
    assert str(azure) == "abfss://c@a.dfs.core.windows.net/zk1"
    hadoop = place_of("hdfs:///zk1/version-2/log.1")
    assert (str(hadoop), hadoop.name) == ("hdfs:///zk1/version-2/log.1", "log.1")
    google = place_of("gs://bucket?anonymous=true")
    assert isinstance(google, Remote)
    assert (google.path, google.query, str(google)) == (
        "",
        "anonymous=true",
        "gs://bucket?anonymous=true",
    )
    assert str(place_of("s3://b/zk?/log.1")) == "s3://b/zk?/log.1"  # a glob
    assert name_of("s3://b/d/log.1?region=x") == "log.1"
    assert (shown("s3://b/d?region=x"), shown("d?a=b")) == ("s3://b/d", "d?a=b")


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("AWS Error ACCESS_DENIED during GetObject operation: no (Request ID: 7F)\nmore", "AWS_"),
        ("Unable to load libjvm\ndlopen: no", "CLASSPATH="),
        ("something new", "fix the cause, then run again"),
    ],
)
def test_errors_of_file_systems_are_one_line(
    reason: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line of the reason, without the number of the request, and what to do."""

    def fail(_: str, __: str) -> Any:
        raise OSError(reason)

    monkeypatch.setattr(storage, "_system", fail)
    with pytest.raises(AuditError) as caught:
        place_of("s3://b/zk1?region=x").exists()
    first = reason.splitlines()[0].partition(" (Req")[0]
    assert str(caught.value).startswith(f"s3://b/zk1: {first}: ")
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
