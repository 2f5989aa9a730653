"""The files that a source reads: found by name, chosen by zxid, packed into tasks. Pure.

Runs during planning, in a Python worker of the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from zkaudit.decode.batches import cuts
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.errors import InputMissingError
from zkconsumer.errors import ConfigError

BYTES_PER_TASK: Final = 192 << 20
"""A Python task costs about as much as decoding 10 MB, so small files share one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file: from byte ``start`` to byte ``stop`` (``None``: to its end)."""

    server: str
    path: str
    zxid: int
    size: int
    start: int = 0
    stop: int | None = None


def log_zxid(path: Path) -> int | None:
    """Return the zxid in a log's name; ``None`` if it is not the name of a log."""
    kind, dot, number = path.name.partition(".")
    if kind != "log" or not dot or len(number) > 16:
        return None
    try:
        return int(number, 16)
    except ValueError:
        return None


def parse_servers(text: str, several: str | None = None) -> dict[str, list[Path]]:
    """Read the options ``path`` and ``paths``: the places of each server.

    In ``path``, places are separated by commas and each may be ``name=place``. ``paths`` is a JSON
    list, which Spark makes from ``load([PLACE, ...])``; its places have no names. A place is a
    directory, a file, or a glob, given as a path or a ``file:`` URI. Without a name, the server is
    named after the directory, or after the directory of the file. Raises ``ConfigError``,
    ``InputMissingError``.
    """
    named: list[tuple[str | None, str]] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, equals, rest = part.partition("=")
        named.append((name, rest) if equals else (None, part))
    if several is not None:
        try:
            named += [(None, str(item)) for item in json.loads(several)]
        except (ValueError, TypeError):
            raise ConfigError([f"paths: {several!r} is not a JSON list"]) from None
    if not named:
        raise ConfigError(["path: name the servers' directories: load('DIR,DIR,...')"])
    servers: dict[str, list[Path]] = {}
    for chosen, given in named:
        for place in _places(given):
            of_file = place.is_file()
            own = str(place.parent) if of_file else str(place) if _is_glob(given) else given
            server = own if chosen is None else chosen
            known = servers.setdefault(server, [])
            if place in known or (known and not (of_file and all(p.is_file() for p in known))):
                raise ConfigError([f"path: {server} is named twice: give each server another name"])
            known.append(place)  # absolute: executors may run in other directories
    return servers


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _places(text: str) -> list[Path]:
    """The directories or files to which a path, a glob or a URI refers."""
    scheme, colon, rest = text.partition(":")
    local = text
    if colon and rest.startswith("/") and scheme.isidentifier():
        if scheme.lower() != "file":
            raise ConfigError(
                [f"path: {text}: only local files can be read, not {scheme}: mount them, "
                 "or copy them"]
            )  # fmt: skip
        parsed = urlsplit(text)
        if parsed.netloc not in ("", "localhost"):
            raise ConfigError([f"path: {text}: write file:///DIR, with three slashes"])
        local = unquote(parsed.path)
    place = Path(local).absolute()
    if place.exists():
        return [place]
    found = [Path(name).absolute() for name in sorted(glob(local))] if _is_glob(local) else []
    if not found:
        what = "directory or file matches" if _is_glob(local) else "directory"
        raise InputMissingError(f"{text}: no such {what}: name a server's dataLogDir")
    return found


def find(servers: Mapping[str, Sequence[Path]], snapshots: bool = False) -> dict[str, list[Piece]]:
    """Return all logs (or all snapshots) of each server, in order of the zxids in their names.

    A place is a file, a ``dataDir`` or ``dataLogDir``, or the ``version-2`` in one of them.
    """
    found: dict[str, list[Piece]] = {}
    for server, places in servers.items():
        pieces = []
        for path in (path for place in places for path in _files(place)):
            zxid = snapshot_zxid(path) if snapshots else log_zxid(path)
            if zxid is not None and path.is_file():
                size = path.stat().st_blocks * 512  # preallocated space is not counted
                pieces.append(Piece(server, str(path), zxid, size))
        found[server] = sorted(pieces, key=lambda piece: (piece.zxid, piece.path))
    return found


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
    for directory in (place, place / "version-2"):
        if directory.is_dir():
            yield from directory.iterdir()


def within(pieces: list[Piece], filters: Filters) -> Iterator[Piece]:
    """Leave out the logs of one server that cannot contain a wanted zxid."""
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


def split(pieces: Iterable[Piece], most: int = BYTES_PER_TASK) -> Iterator[Piece]:
    """Split logs that are longer than two tasks into pieces of one task each.

    Servers begin a new log about every 100,000 transactions, so such files are rare. Each is
    scanned once, which takes about one second for a gigabyte.
    """
    for piece in pieces:
        if piece.size <= 2 * most:
            yield piece
            continue
        starts = [0, *cuts(piece.path, most)]
        stops = [*starts[1:], None]
        for start, stop in zip(starts, stops, strict=True):
            size = max(0, (piece.size if stop is None else stop) - start)
            yield replace(piece, start=start, stop=stop, size=size)


def pack(pieces: Iterable[Piece], most: int = BYTES_PER_TASK) -> list[tuple[Piece, ...]]:
    """Combine pieces, in order, until a task has ``most`` bytes."""
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
        raise ConfigError([f"{name}: {text!r} is not a zxid: use 123 or 0x7b"]) from None
