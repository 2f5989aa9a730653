"""Journals in files: JSON Lines, UTF-8, one object per line.

Any thread may use a writer; the writer of a running member has its own thread. A reader checks
lines strictly, but accepts an incomplete last line, which a killed writer may leave.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from zkconsumer.errors import ConfigError, JournalFormatError
from zkconsumer.journal.recorder import Entry, event_entry, run_entry
from zkconsumer.journal.schema import SCHEMA_VERSION, Kind, Type, fields_of

logger = logging.getLogger("zkconsumer.member")

_FIELDS = {kind.value: fields_of(kind) for kind in Kind}
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode

QUEUE_BYTES: Final = 16 << 20
"""Largest number of bytes of a member's journal that may be queued for the disk."""


_CRC: Final = b',"crc":"'
_CRC_BYTES: Final = len(_CRC) + 11
"""Length of the end of a line, which has the checksum of the rest of the object in 8 hexadecimal
digits."""


def _line(entry: Entry) -> bytes:
    text = _encode(entry).encode()
    return b'%b%b%08x"}\n' % (text[:-1], _CRC, zlib.crc32(text))


def parse_line(line: bytes) -> Any:
    """Parse a line that includes its newline. Raises ValueError or RecursionError. A line without a
    checksum, as other programs write it, is accepted."""
    text, end = line[:-_CRC_BYTES] + b"}", line[-_CRC_BYTES:]
    if not end.startswith(_CRC):
        return json.loads(line)
    if end != b'%b%08x"}\n' % (_CRC, zlib.crc32(text)):
        raise ValueError("its checksum is wrong: the line was edited or is damaged")
    return json.loads(text)


class JournalWriter:
    """Writes entries to a file, whose content it replaces. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("wb", buffering=1 << 16)

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        line = _line(entry)
        with self._lock:
            if not self._file.closed:
                self._file.write(line)

    def flush(self) -> None:
        """Pass everything to the operating system."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        """Write everything and close the file. Later entries are dropped."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class MemberJournal:
    """The journal of one running member. It never delays the member, even if the disk fails.

    ``write`` queues an entry; a separate thread writes the queue to the operating system, in order
    and without ``fsync``. So a killed process loses the entries since the last write. If the
    machine fails, entries that the operating system had not stored are lost. If the disk is too
    slow and ``QUEUE_BYTES`` are waiting, entries are dropped until the queue is written. An entry
    ``EntriesDropped`` then shows how many are missing. A failed write, for example on a full disk,
    ends the journal. In both cases a warning is logged.

    Args:
        directory: created if it is missing; the file's name begins with the consumer id.
        consumer_id: id of the member.
        settings: the values in the first line.

    Raises ConfigError when the file cannot be created. ``write`` and ``close`` raise nothing.
    """

    def __init__(self, directory: str, consumer_id: str, settings: Mapping[str, object]) -> None:
        now = time.time_ns() // 1000
        place = Path(directory)
        self.path = place / f"{consumer_id[:200]}-{now}-{os.getpid()}.jsonl"
        self._member = consumer_id
        try:
            place.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
            raise ConfigError([f"zkconsumer.journal.dir: {error}"]) from None
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._bytes = 0
        """Number of bytes that are queued or being written."""
        self._dropped = 0
        self._ended = False
        self._writing = b""
        """Entries taken from the queue but not written completely. The thread only."""
        self._written = 0
        """Number of bytes that are certainly in the file. The thread only."""
        self.write(run_entry(now, "epoch", settings))
        self._thread = self._start()

    def write(self, entry: Entry) -> None:
        """Queue one entry. Never waits for the disk."""
        line = _line(entry)
        with self._changed:
            if self._ended:
                return
            full = self._bytes + len(line) > QUEUE_BYTES or (self._dropped and self._bytes)
            if full:
                self._dropped += 1
            else:
                self._mark_dropped()
                self._queue(line)
        if full and self._dropped == 1:
            logger.warning("%s: the disk does not keep up: entries are dropped", self.path)

    def close(self, timeout: float = 1.0) -> None:
        """Write the queued entries, for at most ``timeout`` seconds. Later entries are dropped."""
        with self._changed:
            if not self._ended:
                self._mark_dropped()
            self._ended = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            waiting = f"{self._bytes:,} bytes were not written in {timeout:g} s"
            logger.warning("%s: the journal lacks its end: %s", self.path, waiting)

    def check(self) -> None:
        """Restart the thread if it has ended. It continues after the last line that it wrote."""
        with self._changed:
            lives = self._ended or self._thread.is_alive()
        if not lives:
            logger.warning("%s: the journal's thread has ended; starting it again", self.path)
            self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"{self._member}_journal", daemon=True)
        thread.start()
        return thread

    def _queue(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._changed.notify()

    def _mark_dropped(self) -> None:
        if self._dropped:
            entry = event_entry(time.time_ns() // 1000, "EntriesDropped", self._member)
            self._queue(_line(entry | {"count": self._dropped}))
            logger.warning("%s: %d entries were dropped", self.path, self._dropped)
            self._dropped = 0

    def _run(self) -> None:
        try:
            if self._writing:  # an earlier thread has ended while it wrote this
                self._file.seek(self._written)
                self._file.truncate()
            while self._take():
                self._file.write(self._writing)
                self._file.flush()
                with self._changed:
                    self._bytes -= len(self._writing)
                    self._written += len(self._writing)
                    self._writing = b""
            self._file.close()
        except OSError as error:
            with self._changed:
                self._ended = True
            text = "%s: the journal ends here: %s: free disk space, then restart the member"
            logger.warning(text, self.path, error.strerror)
            with contextlib.suppress(OSError):
                self._file.close()

    def _take(self) -> bool:
        """Wait for entries. Return false if the journal has ended."""
        with self._changed:
            if not self._writing:
                self._changed.wait_for(lambda: self._lines or self._ended)
                self._writing, self._lines = b"".join(self._lines), []
            return bool(self._writing)


def check_entry(entry: object) -> str:
    """Return what is wrong with an entry; empty if it is valid."""
    if not isinstance(entry, dict):
        return "it is not a JSON object"
    fields = _FIELDS.get(str(entry.get("kind")))
    if fields is None:
        return f"kind {entry.get('kind')!r} is not one of {', '.join(_FIELDS)}"
    for name, field in fields.items():
        if name not in entry:
            if field.required:
                return f"{entry['kind']}: the field {name} is missing"
        elif not _is(field.type, entry[name]):
            return f"{entry['kind']}: {name} must be {field.type.value}"
    unknown = entry.keys() - fields.keys()
    if unknown:
        return f"{entry['kind']}: unknown field {min(unknown)}"
    return ""


def _is(wanted: Type, value: Any) -> bool:
    if wanted is Type.INTEGER:
        return isinstance(value, int) and not isinstance(value, bool)
    if wanted is Type.TEXT:
        return isinstance(value, str)
    if wanted is Type.NAMES:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if wanted is Type.OBJECT:
        return isinstance(value, dict)
    inner = int if wanted is Type.NUMBERS else str
    return isinstance(value, dict) and all(
        isinstance(item, inner) and not isinstance(item, bool) for item in value.values()
    )


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file in order.

    Raises JournalFormatError, which names the line, and OSError. A last line without a newline is
    skipped: its writer may have been killed.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                entry = parse_line(line)
            except (ValueError, RecursionError) as error:
                raise JournalFormatError(str(path), number, f"cannot be read: {error}") from None
            if number == 1 and (not isinstance(entry, dict) or entry.get("kind") != "run"):
                raise JournalFormatError(
                    str(path), 1, "a journal must begin with a line of kind run"
                )
            if fault := check_entry(entry):
                raise JournalFormatError(str(path), number, fault)
            if number == 1 and entry["schema"] != SCHEMA_VERSION:
                reason = f"schema {entry['schema']} is not {SCHEMA_VERSION}, the one known here"
                raise JournalFormatError(str(path), 1, reason)
            yield entry
