"""The file that ``--out`` names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zkconsumer.errors import ConfigError
from zkmigrate.formats import whole_file


def write_out(path: str, lines: Iterable[str]) -> None:
    """Write a new file whole, or leave none. Raises ConfigError."""
    try:
        whole_file.create(Path(path), (line.encode() for line in lines))
    except FileExistsError:
        raise ConfigError([f"--out: {path} exists: name a new file"]) from None
    except OSError as error:
        raise ConfigError([f"--out: {path}: {error.strerror}"]) from None
