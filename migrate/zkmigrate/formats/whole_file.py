"""Creates files that appear complete or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def create(path: Path, chunks: Iterable[bytes]) -> None:
    """Create a new file, with its content and its name on disk when this returns.

    The content is written to a temporary file, which is then linked to ``path``. Mode 0600, never
    through a symbolic link. Raises OSError, FileExistsError when ``path`` exists.
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
            os.link(temporary, path, follow_symlinks=False)
        finally:
            temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
