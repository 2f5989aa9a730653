"""Journals in files: JSON Lines, UTF-8, one object a line.

``JournalWriter.write`` may be called from any thread. Reading is strict about what a line says and
forgiving about the end of the file: a writer that was killed leaves half a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zkconsumer.errors import JournalFormatError
from zkconsumer.journal.recorder import Entry, run_entry
from zkconsumer.journal.schema import SCHEMA_VERSION, Kind, Type, fields_of

logger = logging.getLogger("zkconsumer.member")

_FIELDS = {kind.value: fields_of(kind) for kind in Kind}
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class JournalWriter:
    """Writes entries to a file, replacing what is there. Raises OSError.

    ``at_once``: hand each line to the operating system, so that a killed process loses none.
    """

    def __init__(self, path: Path, at_once: bool = False) -> None:
        self._lock = threading.Lock()
        buffering = 1 if at_once else 1 << 16
        self._file = path.open("w", encoding="ascii", newline="\n", buffering=buffering)

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        line = _encode(entry) + "\n"
        with self._lock:
            if not self._file.closed:
                self._file.write(line)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        with self._lock:
            if not self._file.closed:
                self._file.flush()

    def close(self) -> None:
        """Write out and close; later entries are dropped."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MemberJournal:
    """The journal of one running member: never in its way, whatever becomes of the disk.

    Args:
        directory: made if it is missing; the file's name begins with the consumer id.
        consumer_id: the member.
        settings: for the first line.

    Raises OSError when the file cannot be made. Later errors end the journal with one warning.
    """

    def __init__(self, directory: str, consumer_id: str, settings: Mapping[str, object]) -> None:
        now = time.time_ns() // 1000
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        self.path = place / f"{consumer_id[:200]}-{now}-{os.getpid()}.jsonl"
        self._writer: JournalWriter | None = JournalWriter(self.path, at_once=True)
        self.write(run_entry(now, "epoch", settings))

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        if self._writer is not None:
            try:
                self._writer.write(entry)
            except OSError as error:
                self._writer = None
                logger.warning("%s: the journal ends here: %s", self.path, error)

    def close(self) -> None:
        """Close the file; later entries are dropped."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


def check_entry(entry: object) -> str:
    """What is wrong with an entry, or ``""``."""
    if not isinstance(entry, dict):
        return "it is no JSON object"
    fields = _FIELDS.get(str(entry.get("kind")))
    if fields is None:
        return f"kind {entry.get('kind')!r} is none of {', '.join(_FIELDS)}"
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
    inner = int if wanted is Type.NUMBERS else str
    return isinstance(value, dict) and all(
        isinstance(item, inner) and not isinstance(item, bool) for item in value.values()
    )


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file in order.

    Raises JournalFormatError naming the line, OSError. A last line without its line end is what a
    killed writer leaves; it is passed over.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise JournalFormatError(str(path), number, f"no JSON: {error}") from None
            if number == 1 and (not isinstance(entry, dict) or entry.get("kind") != "run"):
                raise JournalFormatError(str(path), 1, "a journal begins with a line of kind run")
            if fault := check_entry(entry):
                raise JournalFormatError(str(path), number, fault)
            if number == 1 and entry["schema"] != SCHEMA_VERSION:
                reason = f"schema {entry['schema']} is not {SCHEMA_VERSION}, the one known here"
                raise JournalFormatError(str(path), 1, reason)
            yield entry
