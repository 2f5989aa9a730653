"""The files that a source reads: found by name, chosen by zxid, and packed into tasks. Pure.

Runs during planning, in a Python worker of the driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from zkaudit.compressed import CODECS, RATIO, codec_of
from zkaudit.decode.batches import cuts, end_of_log
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.decode.txnlog import first_zxid
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.storage import (
    Place,
    is_glob,
    matching,
    missing,
    name_of,
    opened,
    place_of,
    shown,
    written,
)
from zkconsumer.errors import ConfigError

BYTES_PER_TASK: Final = 192 << 20
"""Number of bytes per task. A Python task costs about as much as decoding 10 MB, so small files
share one."""
_LOG: Final = re.compile(rf"log\.([0-9a-fA-F]{{1,16}})(?:{'|'.join(map(re.escape, CODECS))})?")
_NOT_READ: Final = (".bz2", ".lz4", ".snappy", ".tgz", ".xz", ".zip")
_BLOCK: Final = 4 << 20


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
    """Return the zxid in a log's name; ``None`` if the name is not that of a log."""
    found = _LOG.fullmatch(name)
    return int(found[1], 16) if found else None


def split_name(text: str) -> tuple[str | None, str]:
    """Split ``NAME=PLACE`` into the name of a server (``None`` without one) and a place."""
    name, equals, place = text.partition("=")
    if not equals or not name or "/" in name or Path(text).exists():
        return None, text
    return name, place


def absolute(text: str) -> str:
    """Return ``PLACE`` or ``NAME=PLACE`` with the place as an absolute path or a URL."""
    name, place = split_name(text)
    found = str(place_of(place))
    return found if name is None else f"{name}={found}"


def parse_servers(text: str, several: str | None = None) -> dict[str, list[Place]]:
    """Return the places of each server that the options ``path`` and ``paths`` name.

    In ``path``, places are separated by commas. ``paths`` is a JSON list, which Spark creates from
    ``load([PLACE, ...])``. A place is a directory, a file, or a glob, given as a path or a URL (see
    ``storage``). ``NAME=PLACE`` names the server; several places may have the same name, such as a
    server's ``dataLogDir`` and ``dataDir``. Without a name, the server has the name of the
    directory. Raises ``ConfigError``, ``InputMissingError``, ``AuditError``.
    """
    named = [split_name(part) for part in filter(None, map(str.strip, text.split(",")))]
    if several is not None:
        try:
            named += [split_name(str(item)) for item in json.loads(several)]
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
            alone = chosen is None and not (of_file and all(p.is_file() for p in known))
            if place in known or (known and alone):
                raise ConfigError([f"path: {server} is named twice: give each server another name"])
            known.append(place)  # absolute: executors may run in other directories
    return servers


def _places(text: str) -> list[Place]:
    """Return the directories or files that match a path, a glob or a URL."""
    found = matching(text)
    if not found:
        what = "directory or file matches" if is_glob(text) else "directory"
        raise InputMissingError(missing(text, what, "name a server's dataLogDir"))
    return found


def find(servers: Mapping[str, Sequence[Place]], snapshots: bool = False) -> dict[str, list[Piece]]:
    """Return all logs (or all snapshots) of each server, in the order of the zxids in their names.

    A place is a file, a ``dataDir`` or ``dataLogDir``, or the ``version-2`` in one of them. There
    may be several copies of a file; see ``distinct``.
    """
    found: dict[str, list[Piece]] = {}
    for server, places in servers.items():
        pieces = []
        for path in (path for place in places for path in _files(place)):
            zxid = snapshot_zxid(path.name) if snapshots else _zxid_of_log(path)
            if zxid is not None and path.is_file():
                ratio = 1 if codec_of(path.name) is None else RATIO
                pieces.append(Piece(server, str(path), zxid, written(path) * ratio))
        found[server] = sorted(pieces, key=lambda piece: (piece.zxid, piece.path))
    return found


def unread(servers: Mapping[str, Sequence[Place]]) -> list[str]:
    """Return the files that look like logs or snapshots but have other names, or an unknown
    compression, each with the reason."""
    found = []
    for path in (path for places in servers.values() for place in places for path in _files(place)):
        kind, dot, _ = path.name.partition(".")
        if not dot or kind not in ("log", "snapshot"):
            continue
        zxid = _zxid_of_log(path) if kind == "log" else snapshot_zxid(path.name)
        if zxid is None and path.is_file():
            reason = f"not a {kind}'s name"
            if path.name.endswith(_NOT_READ):
                reason = "compressed, but neither .gz nor .zst"
            found.append(f"{shown(str(path))} ({reason})")
    return sorted(found)


def _zxid_of_log(path: Place) -> int | None:
    """Return the zxid in a log's name. A word with the letters a to f, such as ``log.bad``, is
    not a zxid if the file begins with another transaction."""
    zxid = log_zxid(path.name)
    if zxid is None or any(character.isdigit() for character in path.name):
        return zxid
    return zxid if first_zxid(str(path)) in (zxid, None) else None


def distinct(pieces: Iterable[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return the longest copy of each log of a server, and all other copies.

    There may be a copy from ``zkaudit collect`` next to the server's own log. The shorter one must
    then be a prefix of the other. Raises AuditError for two different logs with the same name, and
    ``OSError``.
    """
    kept: dict[tuple[str, int], Piece] = {}
    left_out = []
    for piece in pieces:
        key = piece.server, piece.zxid
        if key in kept:
            kept[key], copy = _longer(kept[key], piece)
            left_out.append(copy)
        else:
            kept[key] = piece
    return list(kept.values()), left_out


def _longer(one: Piece, other: Piece) -> tuple[Piece, Piece]:
    ends = [end_of_log(piece.path, 0).position for piece in (one, other)]
    with opened(one.path) as left, opened(other.path) as right:
        for begin in range(0, min(ends), _BLOCK):
            size = min(_BLOCK, min(ends) - begin)
            if left.read_at(size, begin) != right.read_at(size, begin):
                raise AuditError(
                    f"{shown(one.path)} and {shown(other.path)} are different logs with the "
                    "same name: "
                    "keep one of them, or name their directories as two servers"
                )
    return (one, other) if ends[0] >= ends[1] else (other, one)


def _files(place: Place) -> Iterator[Place]:
    if place.is_file():
        yield place
        return
    for directory in (place, place / "version-2"):
        if directory.is_dir():
            yield from directory.iterdir()


def within(pieces: list[Piece], filters: Filters) -> Iterator[Piece]:
    """Yield the logs of one server that may contain a zxid that ``filters`` accepts."""
    for piece, following in zip(pieces, [*pieces[1:], None], strict=False):
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
    """Split logs that are longer than two tasks may read. Each piece is read by one task.

    Servers begin a new log about every 100,000 transactions, so such files are rare. Each is
    scanned once. A compressed log is not split, because each part would have to unpack everything
    before it.
    """
    for piece in pieces:
        if piece.size <= 2 * most or codec_of(piece.path) is not None:
            yield piece
            continue
        starts = [0, *cuts(piece.path, most)]
        stops = [*starts[1:], None]
        for start, stop in zip(starts, stops, strict=True):
            size = max(0, (piece.size if stop is None else stop) - start)
            yield replace(piece, start=start, stop=stop, size=size)


def pack(pieces: Iterable[Piece], most: int = BYTES_PER_TASK) -> list[tuple[Piece, ...]]:
    """Combine pieces, in order, into tasks of up to ``most`` bytes."""
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
    """Return the zxid in a text, decimal or hexadecimal with ``0x``. ``name``: the option's name.
    Raises ``ConfigError``."""
    if text is None:
        return None
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        raise ConfigError([f"{name}: {text!r} is not a zxid: use 123 or 0x7b"]) from None
