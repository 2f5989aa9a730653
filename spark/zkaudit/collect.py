"""Keeps closed logs and snapshots before ZooKeeper's autopurge deletes them. Any thread.

Files are hard-linked. A hard link needs no space, because it shares the file's blocks. A server
does not append to a finished snapshot, nor to a log after it has begun the next one. But it may
cut off the end of a log, because a new leader makes it truncate proposals that were never
committed (ZooKeeper's TRUNC). These proposals are evidence, so the newest closed log is copied.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkaudit.decode.snapshot import open_snapshot
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.sources.selection import find

_SERVER: Final = "server"
_BEGIN: Final = 16 + 12 + 32
"""Number of bytes of a log up to the zxid, session and time of its first transaction."""
_END: Final = 64
"""Number of bytes at a snapshot's end that contain its checksum."""


@dataclass(slots=True)
class Kept:
    """How many files ``collect`` linked, copied, or found already in the target."""

    linked: int = 0
    copied: int = 0
    known: int = 0


def collect(sources: Sequence[Path], target: Path) -> Kept:
    """Link or copy one server's logs, except the newest, and its complete snapshots to ``target``.

    A file that is already in ``target`` is kept; only its beginning and end are compared. The
    newest closed log is always copied. Files that the server deletes in the meantime are skipped.
    Raises InputMissingError if ``sources`` have no logs, and AuditError if ``target`` cannot be
    written or has a different file of the same name.
    """
    logs, snapshots = find([f"{_SERVER}={source.absolute()}" for source in sources])
    done = Kept()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for piece in (*logs[:-1], *snapshots):
            path = Path(piece.path)
            kept = target / path.name
            if kept.exists():
                if not _same(path, kept, piece in logs):
                    raise AuditError(
                        f"{kept} differs from {path}: the ensemble was set up again, or "
                        "its data were restored: choose another TARGET"
                    )
                done.known += 1
            elif piece in logs or _whole(path):
                _keep(path, kept, done, piece in logs[-2:])
    except OSError as error:
        raise AuditError(f"cannot copy to {target}: {error}") from error
    return done


def _same(path: Path, kept: Path, is_log: bool) -> bool:
    """Whether a file equals the kept one. Compares the start, and for a snapshot also the end. A
    log's end may have been cut off."""
    try:
        with path.open("rb") as one, kept.open("rb") as other:
            sizes = [os.fstat(file.fileno()).st_size for file in (one, other)]
            if one.read(_BEGIN) != other.read(_BEGIN):
                return is_log and 0 in sizes  # nothing is in it yet
            if is_log:
                return True
            one.seek(max(0, sizes[0] - _END))
            other.seek(max(0, sizes[1] - _END))
            return sizes[0] == sizes[1] and one.read() == other.read()
    except FileNotFoundError:
        return True  # purged in the meantime


def _whole(path: Path) -> bool:
    try:
        open_snapshot(path)
    except (LogFormatError, OSError):
        return False  # still being written, or purged
    return True


def _keep(path: Path, to: Path, done: Kept, copy: bool) -> None:
    try:
        if not copy:
            os.link(path, to)
            done.linked += 1
            return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
    part = to.with_name(f".{to.name}.part")
    try:
        shutil.copyfile(path, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(to)
    except FileNotFoundError:
        return
    finally:
        part.unlink(missing_ok=True)
    done.copied += 1
