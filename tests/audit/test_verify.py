"""``zkaudit run --verify`` on logs of real servers."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
from pyspark.sql import SparkSession
from zkaudit.commands.root import cli
from zkaudit.decode.digest import Verified, verify_digests
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.errors import AuditError
from zkaudit.job import audit as job, inputs
from zkaudit.job.verify import sections, verify
from zkaudit.sources import selection

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
HEADER = 16


def home(recordings: Any, version: str, to: Path) -> Path:
    """A copy of the files of a server of that version."""
    shutil.copytree(recordings(version).logs[0].parent, to / "version-2")
    return to


def forge(log: Path, victim: Operation) -> None:
    """Flip a bit in a transaction's data, and correct its checksum."""
    content = bytearray(log.read_bytes())
    assert victim.data
    head = victim.position + 12
    length = int.from_bytes(content[head - 4 : head], "big")
    content[content.index(victim.data, head + 40)] ^= 1
    content[head - 8 : head - 4] = zlib.adler32(content[head : head + length]).to_bytes(4, "big")
    log.write_bytes(content)


def drop_front(place: Path) -> None:
    """Keep only the part of a server's logs after its second snapshot (the first has zxid 0).

    A server begins a new log at an arbitrary moment, usually some transactions after the snapshot.
    So this function cuts the log.
    """
    files = place / "version-2"
    last = sorted(filter(None, map(snapshot_zxid, files.iterdir())))[0]
    for log in sorted(files.glob("log.*")):
        later = [op.position for op in read_transactions(log) if op.zxid > last]
        if later and min(later) > HEADER:
            content = log.read_bytes()
            content = content[:HEADER] + content[min(later) :]
            (files / f"log.{last + 1:x}").write_bytes(content)
        if not later or min(later) > HEADER:
            log.unlink()


def test_every_digest_of_every_server_is_compared(
    spark: SparkSession, recordings: Any, tmp_path: Path
) -> None:
    """All digests in the logs of two servers are compared. The front of the second server's logs is
    missing. So its comparison begins after a snapshot, some transactions later."""
    one, other = (home(recordings, v, tmp_path / v) for v in ("3.6.4", "3.9.3"))
    drop_front(other)
    for place in (one, other):
        carried = {
            op.zxid
            for log in (place / "version-2").glob("log.*")
            for op in read_transactions(log)
            if op.digest is not None
        }
        logs, snapshots = selection.find([place])
        found = verify(spark, logs, snapshots)
        assert found.equal + found.unknown == len(carried)
        if place is one:
            assert not found.unknown
        assert found.equal > 0
        parts = list(sections(logs, snapshots, size=1))
        assert len(parts) > 1
        assert verify(spark, logs, snapshots, size=1) == found
        # Each section compares something, so two workers share the work.
        shares = [
            verify_digests(part.logs, part.snapshots, (), part.begin, part.later) for part in parts
        ]
        assert sum(share.equal > 0 for share in shares) > 1
    options = job.Options([str(other)], str(tmp_path / "out"), verify=True)
    assert job.run(spark, options)["digests"] == asdict(found)


def test_a_forged_record_is_found(spark: SparkSession, recordings: Any, tmp_path: Path) -> None:
    """The checksum shows a flipped bit. If the checksum was corrected, the audit passes without
    ``--verify``. With it, the audit names the file and the transaction."""
    place = home(recordings, "3.9.3", tmp_path / "server")
    log = place / "version-2" / recordings("3.9.3").logs[1].name
    victim = next(op for op in read_transactions(log) if op.type == "setData" and op.data)
    forge(log, victim)
    assert inputs.transactions(spark, [place]).count() > 0
    options = job.Options([str(place)], str(tmp_path / "out"), verify=True)
    with pytest.raises(AuditError, match=rf"{log.name}: zxid {victim.zxid:#x}: the log has digest"):
        job.run(spark, options)
    with pytest.raises(AuditError, match=rf"{log.name}: zxid {victim.zxid:#x}: the log has digest"):
        verify(spark, *selection.find([place]), size=1)
    content = bytearray(log.read_bytes())
    content[victim.position + 50] ^= 1
    log.write_bytes(content)
    with pytest.raises(AuditError, match=rf"{log.name}: byte {victim.position}: checksum"):
        job.run(spark, options)


def test_a_snapshot_that_is_not_whole_begins_no_section(recordings: Any, tmp_path: Path) -> None:
    """The section before the damaged snapshot continues after it, and every digest is still
    compared once."""
    place = home(recordings, "3.9.3", tmp_path / "server")
    logs, snapshots = selection.find([place])
    whole = verify_digests([log.path for log in logs], [s.path for s in snapshots])
    cuts = {part.begin for part in sections(logs, snapshots, size=1)} - {None}
    for torn in (piece for piece in snapshots if piece.zxid in cuts):
        content = Path(torn.path).read_bytes()
        Path(torn.path).write_bytes(content[:100])
        total, compared = Verified(), []
        for part in sections(logs, snapshots, size=1):
            share = verify_digests(part.logs, part.snapshots, (), part.begin, part.later)
            total += share
            compared.append((part.begin, share.equal))
        assert total == whole
        assert (torn.zxid, 0) in compared
        Path(torn.path).write_bytes(content)
    assert cuts


def test_the_command_has_the_option() -> None:
    """``zkaudit run`` accepts ``--verify``, ``zkaudit stream`` does not."""
    context, names = click.Context(cli), {}
    for name in ("run", "stream"):
        command = cli.get_command(context, name)
        assert command is not None
        names[name] = {option.name for option in command.params}
    assert "verify" in names["run"] - names["stream"]
