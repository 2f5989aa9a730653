"""Running commands, and the rows that they print with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from zkmigrate.cli import run as run_zkmigrate
from zkmigrate.commands.output.rows import SCHEMAS

from zkconsumer.cli.main import run as run_zkconsumer

_TYPES: Final[dict[str, type]] = {"string": str, "integer": int, "boolean": bool, "array": list}


def run(words: Sequence[str]) -> int:
    """Run a command of zkmigrate, or of ``zkconsumer offsets``; return its status."""
    return run_zkconsumer(words) if words[0] == "offsets" else run_zkmigrate(words)


def rows_of(text: str) -> list[dict[str, Any]]:
    """Return the rows of a document; none of no document. All are as their schema says."""
    if not text:
        return []
    document = json.loads(text)
    schema = SCHEMAS[document["schema"]]
    assert document["version"] == schema.version
    rows: list[dict[str, Any]] = document["rows"]
    for row in rows:
        assert list(row) == [column.name for column in schema.columns]
        for column in schema.columns:
            cell = row[column.name]
            fits = column.nullable if cell is None else type(cell) is _TYPES[column.type]
            assert fits, (document["schema"], column, cell)
    return rows


def step_words(step: str) -> tuple[str, ...]:
    """Return the command that carries out a step of a live move."""
    return (step,) if step in ("lock", "unlock", "complete") else ("live", step)
