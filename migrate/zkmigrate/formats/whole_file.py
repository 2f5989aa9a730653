"""Creates files that appear complete or not at all, and lines with a checksum."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)
"""Errors of ``link`` on volumes without hard links."""
_NO_FSYNC: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
"""Error codes of ``fsync`` on file systems where a directory needs no writing."""


def sealed(text: str) -> bytes:
    """Return a line with a checksum."""
    return f"{text}\t{zlib.crc32(text.encode()):08x}\n".encode()


def unsealed(line: bytes) -> bytes | None:
    """Return the text of a line from ``sealed``, without checksum and newline; ``None`` if the
    checksum is wrong."""
    text, tab, checksum = line.rpartition(b"\t")
    return text if tab and checksum == b"%08x" % zlib.crc32(text) else None


def create(path: Path, chunks: Iterable[bytes]) -> None:
    """Create a file that does not exist yet. On return, its content and its name are on disk.

    The content is written to a temporary file, which is then linked to ``path``. On a volume
    without hard links, such as many network shares, ``path`` is created empty and then replaced.
    The file has mode 0600. Symbolic links are not followed. Raises OSError, FileExistsError when
    ``path`` exists.
    """
    if os.path.lexists(path):  # before the content is made, which may take long
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = path.parent / f".{path.name[:200]}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    if temporary.is_file() and not temporary.is_symlink():
        temporary.unlink()  # of a killed run with the same process id
    with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
        try:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(temporary, path, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(folder)


def _replace(temporary: Path, path: Path) -> None:
    """Rename a file to a name that no other file may have."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(path, flags, 0o600))
    try:
        temporary.replace(path)
    except OSError:
        path.unlink()
        raise
