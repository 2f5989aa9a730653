"""Client addresses of sessions, from the text logs of ZooKeeper's servers.

Two kinds of lines name both: "Established session 0x1... with negotiated timeout 30000 for client
/10.0.0.7:51442" (server log; from 3.6 on at level DEBUG) and "session=0x1... user=... ip=10.0.0.7"
(audit log, 3.6+). Transaction logs do not contain addresses. Driver's thread.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Final, TextIO

from zkaudit.errors import InputMissingError
from zkaudit.storage import Remote, place_of

_LINES: Final = (
    re.compile(r"session 0x([0-9a-f]{1,16}) with negotiated timeout [0-9]+ for client /?(\S+)"),
    re.compile(r"session=0x([0-9a-f]{1,16})\s.*\bip=(\S+)"),
)


def check(places: Sequence[str]) -> None:
    """Raise InputMissingError for a file, directory or glob that does not exist."""
    for place in places:
        if not _local(place).exists() and not glob(place):
            raise InputMissingError(f"--server-logs {place}: no such file or directory")


def _local(place: str) -> Path:
    found = place_of(place)
    if isinstance(found, Remote):
        raise InputMissingError(
            f"--server-logs {place} is a URL: copy the files to a local directory, and name it"
        )
    return found


def addresses(places: Sequence[str], sessions: Container[int] | None = None) -> dict[int, str]:
    """Return the client address of each session that a line of the servers' logs names.
    ``sessions``: the sessions to look for.

    If a session was resumed from another address, it gets all its addresses in alphabetical order,
    because the lines of different servers have no common order in time.
    """
    every: dict[int, set[str]] = defaultdict(set)
    for file in (file for place in places for file in _files(place)):
        with _opened(file) as lines:
            for line in lines:
                for session, address in _named(line) if "session" in line else ():
                    if sessions is None or session in sessions:
                        every[session].add(address)
    return {session: ", ".join(sorted(found)) for session, found in every.items()}


def _opened(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", errors="replace")
    return file.open(encoding="utf-8", errors="replace")


def _named(line: str) -> Iterator[tuple[int, str]]:
    """Return the sessions in a line, each with its address."""
    for pattern in _LINES:
        if match := pattern.search(line):
            session = int(match[1], 16)
            yield session - (session >> 63 << 64), match[2]


def _files(place: str) -> Iterator[Path]:
    named = _local(place)
    for path in [named] if named.exists() else map(Path, sorted(glob(place))):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in inside if file.is_file())
