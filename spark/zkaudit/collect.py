"""Keeps closed logs and snapshots before ZooKeeper's autopurge takes them. Any thread.

A hard link costs nothing and shares the file's blocks; the server never writes to a log again once
it has begun the next one, nor to a finished snapshot.
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
    """How many files were linked, copied, and were there already."""

    linked: int = 0
    copied: int = 0
    known: int = 0


def collect(source: Path, target: Path) -> Kept:
    """Link or copy every log but the newest, and every whole snapshot, from a server's directory.

    A file that is gone by the time it is linked is passed over: the server purged it. Raises
    InputMissingError when ``source`` has no logs, AuditError when ``target`` cannot be written.
    """
    logs, snapshots = find([source])
    wanted = [Path(log.path) for log in logs[:-1]]
    wanted += [Path(found.path) for found in snapshots if _whole(found.path)]
    done = Kept()
    try:
        target.mkdir(parents=True, exist_ok=True)
        for path in wanted:
            _keep(path, target / path.name, done)
    except OSError as error:
        raise AuditError(f"{target}: cannot be written: {error}") from error
    return done


def _whole(path: str) -> bool:
    try:
        open_snapshot(path)
    except (LogFormatError, OSError):
        return False  # still being written, or purged
    return True


def _keep(path: Path, to: Path, done: Kept) -> None:
    if to.exists():
        done.known += 1
        return
    try:
        os.link(path, to)
        done.linked += 1
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
    part = to.with_name(f".{to.name}.part")
    shutil.copyfile(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(to)
    done.copied += 1
