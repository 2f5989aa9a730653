"""Keeps closed logs and snapshots before ZooKeeper's autopurge deletes them. Any thread.

Files are hard-linked. A hard link costs nothing, because it shares the file's blocks, and a server
does not append to a finished snapshot, nor to a log once it has begun the next one. It may still
cut off the end of a log: a new leader makes a server truncate proposals that were never committed
(ZooKeeper's TRUNC). These proposals are evidence, so the newest closed log is copied.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from zkaudit.decode.snapshot import open_snapshot
from zkaudit.errors import AuditError, LogFormatError
from zkaudit.job.inputs import find


@dataclass(slots=True)
class Kept:
    """How many files were linked, copied, or already kept."""

    linked: int = 0
    copied: int = 0
    known: int = 0


def collect(source: Path, target: Path) -> Kept:
    """Link or copy all logs but the newest, and all complete snapshots, from a server's directory.

    Files that are already kept are not read again. The newest closed log is always copied. A file
    that the server purges in the meantime is skipped. Raises InputMissingError if ``source`` has
    no logs, and AuditError if ``target`` cannot be written.
    """
    logs, snapshots = find([source])
    done = Kept()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for piece in (*logs[:-1], *snapshots):
            path = Path(piece.path)
            if (target / path.name).exists():
                done.known += 1
            elif piece in logs or _whole(path):
                _keep(path, target / path.name, done, piece in logs[-2:])
    except OSError as error:
        raise AuditError(f"{target}: cannot be written: {error}") from error
    return done


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
    except FileNotFoundError:
        return
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(to)
    done.copied += 1
