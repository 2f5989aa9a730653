"""Which files a source reads: found by name, chosen by zxid, packed into tasks. Pure.

Runs where Spark plans, in a Python worker of the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkaudit.decode_columns import Filters
from zkaudit.errors import InputMissingError
from zkaudit.snapshot import snapshot_zxid
from zkconsumer.errors import ConfigError

BYTES_PER_TASK: Final = 128 << 20
"""A Python task costs about as much as decoding 10 MB, so small files share one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file: bytes ``start`` to ``stop`` (``None``: to its end)."""

    server: str
    path: str
    zxid: int
    size: int
    start: int = 0
    stop: int | None = None


def log_zxid(path: Path) -> int | None:
    """Return the zxid in a log's name, ``None`` when it is no such name."""
    kind, dot, number = path.name.partition(".")
    if kind != "log" or not dot or len(number) > 16:
        return None
    try:
        return int(number, 16)
    except ValueError:
        return None


def parse_servers(text: str) -> dict[str, Path]:
    """Read the option ``path``: directories, one for each server, separated by commas.

    Each may be ``name=directory``; without a name the directory is the name. Raises
    ``ConfigError``, ``InputMissingError``.
    """
    servers: dict[str, Path] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, equals, directory = part.partition("=")
        if not equals:
            name, directory = part, part
        if name in servers:
            raise ConfigError([f"path: {name} is named twice: give each server another name"])
        servers[name] = Path(directory)
        if not servers[name].exists():
            raise InputMissingError(f"{directory}: no such directory: name a server's dataLogDir")
    if not servers:
        raise ConfigError(["path: name the servers' directories: load('DIR,DIR,...')"])
    return servers


def find(servers: Mapping[str, Path], snapshots: bool = False) -> dict[str, list[Piece]]:
    """Return all logs (or all snapshots) of each server, in order of the zxids in their names.

    A directory is ``dataDir`` or ``dataLogDir``, or the ``version-2`` in one of them.
    """
    found: dict[str, list[Piece]] = {}
    for server, place in servers.items():
        pieces = []
        for directory in (place, place / "version-2"):
            for path in directory.iterdir() if directory.is_dir() else ():
                zxid = snapshot_zxid(path) if snapshots else log_zxid(path)
                if zxid is not None:
                    size = path.stat().st_blocks * 512  # reserved space is not there yet
                    pieces.append(Piece(server, str(path), zxid, size))
        found[server] = sorted(pieces, key=lambda piece: (piece.zxid, piece.path))
    return found


def within(pieces: list[Piece], filters: Filters) -> Iterator[Piece]:
    """Leave out the logs of one server that cannot hold a wanted zxid."""
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        if filters.end_zxid is not None and piece.zxid > filters.end_zxid:
            continue
        if (
            filters.start_zxid is not None
            and following is not None
            and following.zxid <= filters.start_zxid
        ):
            continue
        yield piece


def pack(pieces: Iterable[Piece], most: int = BYTES_PER_TASK) -> list[tuple[Piece, ...]]:
    """Put pieces together, in order, until a task has ``most`` bytes."""
    tasks: list[tuple[Piece, ...]] = []
    task: list[Piece] = []
    size = 0
    for piece in pieces:
        if task and size + piece.size > most:
            tasks.append(tuple(task))
            task, size = [], 0
        task.append(piece)
        size += piece.size
    return [*tasks, tuple(task)] if task else tasks


def parse_zxid(name: str, text: str | None) -> int | None:
    """Read a zxid, decimal or ``0x`` hexadecimal. Raises ``ConfigError``."""
    if text is None:
        return None
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        raise ConfigError([f"{name}: {text!r} is no zxid: use 123 or 0x7b"]) from None
