"""The demo's messages: lines of text files on this machine. Reads files, no state."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

Message = tuple[bytes, bytes]
"""Key (``file:line``) and value (the line)."""


def real_lines(logs: Path, wanted: int) -> list[Message]:
    """Up to ``wanted`` lines that are not blank: the servers' logs, then Python's own sources."""
    return list(islice(_lines(logs), wanted))


def _lines(logs: Path) -> Iterator[Message]:
    for file in sorted(logs.glob("*.log")):
        yield from _lines_of(file, file.name)
    for name in ("stdlib", "purelib"):
        root = Path(sysconfig.get_path(name))
        for file in sorted(root.rglob("*.py")):
            relative = file.relative_to(root)
            if name == "purelib" or "site-packages" not in relative.parts:
                yield from _lines_of(file, str(relative))


def _lines_of(file: Path, name: str) -> Iterator[Message]:
    try:
        content = file.read_bytes()
    except OSError:
        return  # unreadable files are no input
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{name}:{number}".encode(), line
