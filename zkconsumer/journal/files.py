"""Journals in files: JSON Lines, UTF-8, one object a line.

``JournalWriter.write`` may be called from any thread. Reading is strict about what a line says and
forgiving about the end of the file: a writer that was killed leaves half a line.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zkconsumer.errors import JournalFormatError
from zkconsumer.journal.recorder import Entry
from zkconsumer.journal.schema import SCHEMA_VERSION, Kind, Type, fields_of

_FIELDS = {kind.value: fields_of(kind) for kind in Kind}
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class JournalWriter:
    """Writes entries to a file, replacing what is there. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="ascii", newline="\n", buffering=1 << 16)

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
