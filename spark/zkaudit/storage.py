"""Input files and directories: on this machine, or on another file system by URL.

A place is a ``Path``, or a ``Remote`` for ``s3:``, ``gs:``, ``abfs:`` and ``hdfs:``. Both have the
methods that the audit needs: ``name``, ``parent``, ``exists``, ``is_file``, ``is_dir`` and
``iterdir``. Remote file systems are read through ``pyarrow.fs``, with its own settings and
environment variables (``AWS_ACCESS_KEY_ID`` and so on). Every error names the place. Driver and
Spark's Python workers; an open file belongs to one thread.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from zkaudit.compressed import Unpacked, codec_of
from zkaudit.errors import AuditError
from zkconsumer.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow import fs

FIRST: Final = 64 << 10
"""Smallest size in bytes of the first request for a remote file. Many files are only read there."""
AHEAD: Final = 8 << 20
"""Smallest size in bytes of each later request, because a request takes longer than reading a
megabyte."""

_ARROW_NAMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEMES: Final = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
_KNOWN: Final = {*_SCHEMES, *_ARROW_NAMES, "viewfs"}
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/.*)", re.DOTALL)
_SECRETS: Final = re.compile(r"(?:client_secret|sig|secret_key|sas_token)=", re.IGNORECASE)
_NOISE: Final = re.compile(r" *\(Request ID: [^)]*\)")
_FIXES: Final = (
    (("ACCESS_DENIED", "HTTP status 403", "INVALID_ACCESS_KEY", "SIGNATURE", "credential"),
     "check the credentials, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    (("NETWORK_CONNECTION", "resolve host"),
     "check the network, and the endpoint (?endpoint_override=HOST:PORT)"),
    (("libhdfs", "libjvm"),
     "set JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob) on every machine"),
)  # fmt: skip


class File(Protocol):
    """An open file. ``damage``: why the rest of a compressed file cannot be read; ``None`` if no
    damage was found."""

    damage: str | None

    def read_at(self, size: int, position: int) -> bytes:
        """Return ``size`` bytes from ``position`` on, or fewer at the end of the file."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file or directory on another file system.

    ``address``: ``scheme://authority``. ``path``: the path without slashes at its ends; nothing in
    it is percent-encoded. ``query``: the options of the file system. ``length``: the size in bytes,
    for files in a listing. ``str`` gives the URL, ``shown`` a URL for messages.
    """

    address: str
    path: str
    query: str = ""
    length: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.shown + ("?" + self.query if self.query else "")

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.address, f"{self.path}/{name}".lstrip("/"), self.query)

    def __lt__(self, other: Remote) -> bool:
        return str(self) < str(other)

    @property
    def shown(self) -> str:
        """The URL without the options of the file system, for messages."""
        return f"{self.address}/{self.path}".rstrip("/")

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The directory that contains this place."""
        return Remote(self.address, self.path.rpartition("/")[0], self.query)

    def absolute(self) -> Remote:
        """Return this place itself, because a URL is always absolute."""
        return self

    def exists(self) -> bool:
        """Whether this place exists. Raises AuditError if that cannot be determined."""
        return bool(self._info().type.name != "NotFound")

    def is_file(self) -> bool:
        """Whether this place is a file."""
        return self.length is not None or bool(self._info().is_file)

    def is_dir(self) -> bool:
        """Whether this place is a directory."""
        return self.length is None and self._info().type.name == "Directory"

    def iterdir(self) -> Iterator[Remote]:
        """Yield the entries of this directory; none if it does not exist."""
        return self._list(recursive=False)

    def rglob(self, pattern: str) -> Iterator[Remote]:
        """Yield the files below this directory whose names match the pattern."""
        return (file for file in self._list(recursive=True)
                if file.length is not None and fnmatchcase(file.name, pattern))  # fmt: skip

    def open(self) -> fs.NativeFile:
        """Open this file for reading. Raises FileNotFoundError, AuditError."""
        with _named(self):
            system, root = _system(self.address, self.query)
            return system.open_input_file(root + self.path)

    def _info(self) -> Any:
        with _named(self):
            system, root = _system(self.address, self.query)
            return system.get_file_info((root + self.path).rstrip("/") or "/")

    def _list(self, recursive: bool) -> Iterator[Remote]:
        from pyarrow import fs

        with _named(self):
            system, root = _system(self.address, self.query)
            top = (root + self.path).rstrip("/") or "/"
            found = system.get_file_info(
                fs.FileSelector(top, allow_not_found=True, recursive=recursive)
            )
        for info in found:
            below = info.path.removeprefix(root).lstrip("/")
            yield Remote(self.address, below, self.query, info.size if info.is_file else None)


Place: TypeAlias = Path | Remote


def place_of(text: str | Path) -> Place:
    """Return the place with this path or URL. A local path becomes absolute.

    Raises ConfigError for a file system that cannot be read, and for a URL with a secret in it.
    """
    url = _URL.fullmatch(text) if isinstance(text, str) else None
    if url is None or not isinstance(text, str):
        return Path(text).absolute()
    scheme = url[1].lower()
    if scheme == "file":
        parsed = urlsplit(text)
        if parsed.netloc not in ("", "localhost"):
            raise ConfigError([f"{text}: write file:///DIR, with three slashes"])
        return Path(unquote(parsed.path)).absolute()
    if scheme not in _KNOWN:
        raise ConfigError(
            [f"{text}: cannot read {scheme}: mount it, or copy the files to a local directory or "
             f"to {', '.join(_SCHEMES)}"]
        )  # fmt: skip
    if not url[2].startswith("//"):
        raise ConfigError([f"{text}: write {scheme}://BUCKET/DIR, with two slashes"])
    authority, _, path = url[2][2:].partition("/")
    before, mark, query = (path if path else authority).rpartition("?")
    if not mark or "=" not in query:  # a question mark of a glob, or of a name
        before, query = path if path else authority, ""
    if path:
        path = before
    else:
        authority = before
    if ":" in authority.rpartition("@")[0] or _SECRETS.search(query):
        shown = f"{scheme}://{authority.rpartition('@')[2]}/{path}"
        raise ConfigError(
            [f"{shown}: the URL has a secret, which reports would show: set it in the environment, "
             "for example AWS_SECRET_ACCESS_KEY"]
        )  # fmt: skip
    if not authority and scheme not in ("hdfs", "viewfs"):
        raise ConfigError([f"{text} names no bucket: write {scheme}://BUCKET/DIR"])
    return Remote(f"{scheme}://{authority}", path.strip("/"), query)


def is_glob(text: str) -> bool:
    """Whether a path, or the path of a URL, has wildcards."""
    place = place_of(text)
    return any(character in str(getattr(place, "path", text)) for character in "*?[")


def matching(text: str) -> list[Place]:
    """Return the places that match a path, a URL or a glob, sorted; empty if there are none."""
    place = place_of(text)
    if place.exists():
        return [place]
    if not is_glob(text):
        return []
    if isinstance(place, Remote):
        return list(_globbed(Remote(place.address, "", place.query), place.path.split("/")))
    local = str(place) if _URL.match(text) else text
    return [Path(name).absolute() for name in sorted(glob(local))]


def _globbed(top: Remote, parts: list[str]) -> Iterator[Remote]:
    fixed = 0
    while fixed < len(parts) and not any(character in parts[fixed] for character in "*?["):
        fixed += 1
    for part in parts[:fixed]:
        top /= part
    if fixed == len(parts):
        if top.exists():
            yield top
        return
    for found in sorted(top.iterdir()):
        if fnmatchcase(found.name, parts[fixed]):
            if fixed + 1 == len(parts):
                yield found
            else:
                yield from _globbed(found, parts[fixed + 1 :])


def local_url(place: Path) -> str:
    """Return a local path as a URL. Without a scheme, Spark would look for it in the session's
    default file system. Nothing is percent-encoded, because Hadoop takes the path literally."""
    return f"file://{place.absolute()}"


def missing(text: str, what: str, fix: str = "") -> str:
    """Return the message that a place does not exist, in one line. If its bucket is missing, the
    message says so."""
    place = place_of(text)
    if isinstance(place, Remote):
        bucket = Remote(place.address, "", place.query)
        if place.path and not bucket.exists():
            return f"{place.shown}: no such bucket: {bucket.shown}"
    return f"{shown(text)}: no such {what}" + (f": {fix}" if fix else "")


def written(place: Place) -> int:
    """Return the number of bytes in a file. For a local file, preallocated space is not counted.

    Raises FileNotFoundError, AuditError.
    """
    if isinstance(place, Path):
        return place.stat().st_blocks * 512
    if place.length is not None:
        return place.length
    with opened(str(place)) as file:
        return file.size()


def name_of(path: str | Path) -> str:
    """Return the name of a file, given its path or URL."""
    return place_of(path).name if isinstance(path, str) and _URL.match(path) else Path(path).name


def shown(path: str | Path) -> str:
    """Return a path or URL for display, without the options of a file system."""
    place = place_of(path) if isinstance(path, str) and _URL.match(path) else path
    return place.shown if isinstance(place, Remote) else str(path)


@contextmanager
def opened(path: str | Path) -> Iterator[File]:
    """Open a file to read at any position. ``.gz`` and ``.zst`` are unpacked during reading.
    Raises FileNotFoundError, OSError, AuditError."""
    place = place_of(path)
    file: File
    if codec := codec_of(place.name):
        file = Unpacked(lambda: stream(path), codec)
    else:
        file = _Local(place) if isinstance(place, Path) else _Ahead(place)
    try:
        yield file
    except OSError as error:
        error.filename = error.filename or shown(path)
        raise
    finally:
        file.close()


def read_all(path: str | Path) -> bytes:
    """Return the content of a file. Raises FileNotFoundError, OSError, AuditError."""
    place = place_of(path)
    if isinstance(place, Path):
        return place.read_bytes()
    with place.open() as file, _named(place):
        return bytes(file.read())


def stream(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes in order. Raises FileNotFoundError, AuditError."""
    place = place_of(path)
    if isinstance(place, Path):
        return place.open("rb")
    return io.BufferedReader(_Stream(_Ahead(place)), FIRST)


class _Local:
    """A local file. It may grow while it is read."""

    __slots__ = ("_descriptor", "damage")

    def __init__(self, path: Path) -> None:
        self.damage: str | None = None
        self._descriptor = os.open(path, os.O_RDONLY)

    def read_at(self, size: int, position: int) -> bytes:
        return os.pread(self._descriptor, size, position)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)


class _Ahead:
    """A remote file that is read in few large requests, forwards or backwards.

    The end of a log is found by reading backwards, because servers preallocate space.
    """

    def __init__(self, place: Remote) -> None:
        self.damage: str | None = None
        self._place = place
        self._file = place.open()
        self._held = b""
        self._at = 0  # where the held bytes begin
        with _named(place):
            self._size = int(self._file.size())

    def read_at(self, size: int, position: int) -> bytes:
        end = min(position + size, self._size)
        if end <= position:
            return b""
        if position < self._at or end > self._at + len(self._held):
            self._fetch(position, end)
        return self._held[position - self._at : end - self._at]

    def _fetch(self, begin: int, end: int) -> None:
        least = AHEAD if self._held else FIRST
        after = self._at + len(self._held)
        kept = b""
        if self._at <= begin < after:  # continues: only what is not held
            kept = self._held[begin - self._at :]
        elif self._held and begin < self._at:  # backwards
            begin = min(begin, max(0, end - least))
        start = begin + len(kept)
        stop = min(max(end, start + least), self._size) if begin >= self._at else end
        with _named(self._place):
            self._held = kept + self._file.read_at(stop - start, start)
        self._at = begin

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()


class _Stream(io.RawIOBase):
    """A remote file as the stream that Python's buffered reader needs."""

    def __init__(self, file: _Ahead) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._file.read_at(len(buffer), self._position)
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


@lru_cache(maxsize=64)
def _system(address: str, query: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the beginning of its paths: the bucket, or a slash."""
    from pyarrow import fs

    scheme, _, authority = address.partition("://")
    name = _ARROW_NAMES.get(scheme, scheme)
    system, root = fs.FileSystem.from_uri(f"{name}://{authority}/" + ("?" + query if query else ""))
    return system, root.rstrip("/") + "/"


@contextmanager
def _named(place: Remote) -> Iterator[None]:
    """Name the place in errors of pyarrow, as one line with the fix."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", place.shown) from None
    except (OSError, ValueError, NotImplementedError) as error:  # Arrow's own are ValueErrors
        lines = str(error).splitlines() or [type(error).__name__]
        reason = _NOISE.sub("", lines[0])
        fix = next(
            (fix for signs, fix in _FIXES if any(sign in str(error) for sign in signs)),
            "fix the cause, then run again",
        )
        raise AuditError(f"{place.shown}: {reason}: {fix}") from None
