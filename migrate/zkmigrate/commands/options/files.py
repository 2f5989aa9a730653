"""Reads and writes the files that options name, always completely."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from zkconsumer.errors import ConfigError
from zkmigrate.errors import PlanFileError
from zkmigrate.formats import whole_file


def read_file(path: str) -> bytes:
    """Return a file's content; ``-`` is standard input. Raises PlanFileError."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise PlanFileError(f"{path}: {error.strerror}") from None


def write_out(path: str, lines: Iterable[str], option: str = "--out") -> str:
    """Write a new file completely or not at all. Return its SHA-256. Raises ConfigError."""
    digest = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for line in lines:
            data = line.encode()
            digest.update(data)
            yield data

    try:
        whole_file.create(Path(path), chunks())
    except FileExistsError:
        raise ConfigError([f"{option}: {path} exists: name a new file"]) from None
    except OSError as error:
        raise ConfigError([f"{option}: {path}: {error.strerror}"]) from None
    return digest.hexdigest()
