"""The journal: JSON Lines on disk, written before every side effect, so that a killed run can
resume.

Each line carries a checksum. The file appears together with its first line and only grows. The
next run cuts off an incomplete last line, because no action followed it. Any other damage is
refused. Any thread may write; records of several threads share one fsync. A lock keeps out a
second run on this machine. On other machines, claims in ZooKeeper do. Mode 0600, and never through
a symbolic link.

One file holds everything, so that a copy of it lets another operator resume on another machine.
SQLite is less suitable. After a kill, a copy of the database file alone opens without an error,
but with ``journal_mode=wal`` it lacks the last records, and with ``delete`` it has records that
were never committed. It does not detect a changed byte either.
"""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from zkmigrate.errors import JournalError, JournalWriteError
from zkmigrate.formats import whole_file
from zkmigrate.stores.record import operator

FORMAT: Final = 4
"""Version of the format, increased when records are added or change their meaning."""
Effect = Callable[[str], None]
"""Called with ``before`` or ``after`` and the name of each change outside this process."""


def no_effect(_what: str) -> None:
    """Do nothing: the default for ``effect``, which tests replace to stop a run at any point."""


class Journal:
    """The journal of a plan or command. ``with`` opens the file, or creates it. A journal of a plan
    with another ``digest`` is refused. ``records``: the records of earlier runs. Raises
    JournalError."""

    def __init__(self, path: Path, digest: str, effect: Effect = no_effect) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._digest = digest
        self._effect = effect
        self._file = -1
        self._number = 0
        self._synced = 0
        self._broken = ""
        """Why a record may be incomplete or not on disk. After that, nothing more is written."""
        self._writing = threading.Lock()
        self._syncing = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self._open()
        except OSError as error:
            self._close()
            raise JournalError(f"{self.path}: {error.strerror}") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_ended: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        import fcntl  # not on Windows

        if not os.path.lexists(self.path):
            self._create()
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(
                f"{self.path}: another run of zkmigrate is using this journal: wait until it has "
                "ended"
            ) from None
        with open(self.path, "rb") as file:
            data = file.read()
        records, good = _of_plan(self.path, data, self._digest)
        if good < len(data):
            self._effect("before journal cut")
            os.ftruncate(self._file, good)
            os.fsync(self._file)
            self._effect("after journal cut")
        self.records = records[1:]
        self._number = len(records)

    def _create(self) -> None:
        self._effect("before journal create")
        first = _line({"journal": FORMAT, "plan": self._digest, "n": 0})
        with suppress(FileExistsError):  # another run was faster; the lock decides
            whole_file.create(self.path, [first])
        self._effect("after journal create")

    def begin(self, **facts: Any) -> None:
        """Record the start of a run: user, time and options. Raises JournalError."""
        self.write(run={**facts, "by": operator(), "pid": os.getpid()})

    def write(self, **record: Any) -> None:
        """Append a record with the time, and return when it is on disk. Any thread may call it.
        Raises JournalError."""
        what = record.get("step", "run" if "run" in record else "outcome")
        self._effect(f"before journal {what}")
        try:
            with self._writing:
                if self._broken:
                    raise OSError(0, self._broken)
                number = self._number
                data = _line({**record, "at_ms": int(time.time() * 1000), "n": number})
                try:
                    while data:
                        data = data[os.write(self._file, data) :]
                except OSError as error:
                    self._broken = str(error.strerror)
                    raise
                self._number += 1
            self._sync(number)
        except OSError as error:
            raise JournalWriteError(
                f"{self.path}: {error.strerror}; nothing was done after the last record: free "
                "disk space, then run the same command again"
            ) from None
        self._effect(f"after journal {what}")

    def _sync(self, number: int) -> None:
        """Wait until the record ``number`` is on disk; another thread may write it. After a failed
        fsync, a later one that succeeds does not store the lost data either."""
        with self._syncing:
            if self._synced <= number:
                if self._broken:
                    raise OSError(0, self._broken)
                written = self._number
                try:
                    os.fsync(self._file)
                except OSError as error:
                    self._broken = str(error.strerror)
                    raise
                self._synced = written


def read_records(
    path: Path, digest: str, keep: Callable[[dict[str, Any]], object] = bool
) -> list[dict[str, Any]]:
    """Return the records of earlier runs; an empty list if there is no journal. ``keep``: returns
    whether a record is needed, and may remove parts of it. Locks and writes nothing, so dry runs
    can use it. Raises JournalError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return _of_plan(path, file.read(), digest, keep)[0][1:]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None


def plan_of(path: Path) -> str:
    """Return the digest of the plan to which a journal belongs. Raises JournalError."""
    try:
        return str(parse(str(path), path.read_bytes())[0][0].get("plan"))
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from None


def check_writable(path: Path) -> None:
    """Check that a journal could be opened or created, without doing so, for a dry run. Raises
    JournalError."""
    place = path if os.path.lexists(path) else path.parent
    wanted = os.W_OK if place == path else os.W_OK | os.X_OK
    if not os.access(place, wanted):
        raise JournalError(
            f"{place} cannot be written, so --execute would fail: name a file in another "
            "directory with --journal"
        )


def _of_plan(
    path: Path, data: bytes, digest: str, keep: Callable[[dict[str, Any]], object] = bool
) -> tuple[list[dict[str, Any]], int]:
    records, good = parse(str(path), data, keep)
    if records[0].get("plan") != digest:
        raise JournalError(
            f"{path} belongs to another plan: give each plan its own journal, with --journal"
        )
    return records, good


def _line(record: dict[str, Any]) -> bytes:
    return whole_file.sealed(json.dumps(record, separators=(",", ":")))


def parse(
    name: str, data: bytes, keep: Callable[[dict[str, Any]], object] = bool
) -> tuple[list[dict[str, Any]], int]:
    """Return a journal's records, and the number of bytes up to the last complete line. ``keep``:
    returns whether a record is needed; the first is always returned. Text after the last newline is
    ignored as an interrupted write. All other lines must be valid. Raises JournalError."""
    records: list[dict[str, Any]] = []
    good = 0
    for number, line in enumerate(io.BytesIO(data)):
        if not line.endswith(b"\n"):
            break
        record = _record(line[:-1])
        if record is None or record.get("n") != number:
            raise JournalError(
                f"{name}: line {number + 1} is damaged, so it is unknown which groups were moved: "
                "compare the offsets in both stores (zkmigrate status), then make a new plan"
            )
        if not number or keep(record):
            records.append(record)
        good += len(line)
    if not records or type(records[0].get("journal")) is not int:
        raise JournalError(f"{name} is not a journal of zkmigrate, or its first line is damaged")
    if (number := records[0]["journal"]) != FORMAT:
        raise JournalError(
            f"{name} is in format {number}, which this zkmigrate does not know: use the version "
            "that wrote it"
        )
    return records, good


def _record(raw: bytes) -> dict[str, Any] | None:
    body = whole_file.unsealed(raw)
    if body is None:
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
