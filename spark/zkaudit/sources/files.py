"""The files that a source reads: found by name, chosen by zxid, packed into tasks. Pure.

Runs during planning, in a Python worker of the driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zkaudit.decode.batches import cuts
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.errors import InputMissingError
from zkaudit.storage import Place, is_glob, matching, missing, name_of, shown, written
from zkconsumer.errors import ConfigError

BYTES_PER_TASK: Final = 192 << 20
"""A Python task costs about as much as decoding 10 MB, so small files share one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file: from byte ``start`` to byte ``stop`` (``None``: to its end).

    ``path`` is a path or a URL.
    """

    server: str
    path: str
    zxid: int
    size: int
    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.path)


def log_zxid(name: str) -> int | None:
    """Return the zxid in a log's name; ``None`` if it is not the name of a log."""
    kind, dot, number = name.partition(".")
    if kind != "log" or not dot or len(number) > 16:
        return None
    try:
        return int(number, 16)
    except ValueError:
        return None


def parse_servers(text: str, several: str | None = None) -> dict[str, list[Place]]:
    """Read the options ``path`` and ``paths``: the places of each server.

    In ``path``, places are separated by commas and each may be ``name=place``. ``paths`` is a JSON
    list, which Spark makes from ``load([PLACE, ...])``; its places have no names. A place is a
    directory, a file, or a glob, given as a path or a URL (see ``storage``). Without a name, the
    server is named after the directory, or after the directory of the file, without the options of
    a URL. Raises ``ConfigError``, ``InputMissingError``, ``AuditError``.
    """
    named: list[tuple[str | None, str]] = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, equals, rest = part.partition("=")
        has_name = equals and "://" not in name  # otherwise the = is in the URL's options
        named.append((name, rest) if has_name else (None, part))
    if several is not None:
        try:
            named += [(None, str(item)) for item in json.loads(several)]
        except (ValueError, TypeError):
            raise ConfigError([f"paths: {several!r} is not a JSON list"]) from None
    if not named:
        raise ConfigError(["path: name the servers' directories: load('DIR,DIR,...')"])
    servers: dict[str, list[Place]] = {}
    for chosen, given in named:
        for place in _places(given):
            of_file = place.is_file()
            own = place.parent if of_file else place if is_glob(given) else given
            server = shown(str(own)) if chosen is None else chosen
            known = servers.setdefault(server, [])
            if place in known or (known and not (of_file and all(p.is_file() for p in known))):
                raise ConfigError([f"path: {server} is named twice: give each server another name"])
            known.append(place)  # absolute: executors may run in other directories
    return servers


def _places(text: str) -> list[Place]:
    """The directories or files to which a path, a glob or a URL refers."""
    found = matching(text)
    if not found:
        what = "directory or file matches" if is_glob(text) else "directory"
        raise InputMissingError(missing(text, what, "name a server's dataLogDir"))
    return found


def find(servers: Mapping[str, Sequence[Place]], snapshots: bool = False) -> dict[str, list[Piece]]:
    """Return all logs (or all snapshots) of each server, in order of the zxids in their names.

    A place is a file, a ``dataDir`` or ``dataLogDir``, or the ``version-2`` in one of them.
    """
    found: dict[str, list[Piece]] = {}
    for server, places in servers.items():
        pieces = []
        for path in (path for place in places for path in _files(place)):
            zxid = snapshot_zxid(path.name) if snapshots else log_zxid(path.name)
            if zxid is not None and path.is_file():
                pieces.append(Piece(server, str(path), zxid, written(path)))
        found[server] = sorted(pieces, key=lambda piece: (piece.zxid, piece.path))
    return found


def _files(place: Place) -> Iterator[Place]:
    if place.is_file():
        yield place
        return
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
    scanned once, which takes about one second for a gigabyte on a local disk.
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
