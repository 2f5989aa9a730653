"""Findings that were looked into and are expected: a file of ids, each with a reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from zkaudit.errors import InputMissingError
from zkaudit.findings.ids import LENGTH

_ID: Final = re.compile(f"[0-9a-f]{{{LENGTH}}}")


@dataclass(frozen=True, slots=True)
class Expected:
    """One line: the id of a finding, and what follows it: a date and a reason, for example."""

    id: str
    reason: str


def parse(text: str, name: str) -> dict[str, Expected]:
    """Read the lines of the file ``name``. Empty lines and what follows a ``#`` do not count.

    Raises InputMissingError for a line that does not begin with an id.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        id_, _, reason = line.partition("#")[0].strip().partition(" ")
        if not id_:
            continue
        if not _ID.fullmatch(id_):
            raise InputMissingError(
                f"{name}: line {number}: {id_!r} is not the id of a finding: copy the {LENGTH} "
                "digits that zkaudit findings prints in brackets"
            )
        found[id_] = Expected(id_, reason.strip())
    return found


def gone(expected: Iterable[Expected], ids: Iterable[str]) -> list[Expected]:
    """Return what is expected and not found."""
    there = set(ids)
    return [one for one in expected if one.id not in there]
