"""Findings that an operator has examined: a file of ids, each with a severity and a
reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zkaudit.errors import InputMissingError
from zkaudit.findings.ids import LENGTH
from zkaudit.limits import SEVERITIES

_ID: Final = re.compile(f"[0-9a-f]{{{LENGTH}}}")


@dataclass(frozen=True, slots=True)
class Expected:
    """A line of a file of expected findings: the finding's id, its severity when the line was
    written, and a remark, such as a date and a reason."""

    id: str
    severity: str
    reason: str

    def covers(self, severity: str) -> bool:
        """Whether the finding is still expected with this severity. It is not if it has become more
        severe."""
        return SEVERITIES.index(self.severity) <= SEVERITIES.index(severity)


def expected_of(finding: Mapping[str, Any], expected: Mapping[str, Expected]) -> Expected | None:
    """Return the line that makes a finding expected; ``None`` if it is not expected."""
    one = expected.get(finding["id"])
    return one if one is not None and one.covers(finding["severity"]) else None


def parse(text: str, name: str) -> dict[str, Expected]:
    """Return the lines of the file ``name``. Empty lines and text after a ``#`` are ignored.

    Raises InputMissingError for a line that does not begin with an id and a severity.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split(None, 2)
        if not words:
            continue
        id_, severity, reason = (*words, "", "")[:3]
        if not _ID.fullmatch(id_):
            raise InputMissingError(
                f"{name}: line {number}: {id_!r} is not the id of a finding: copy the {LENGTH} "
                "digits that zkaudit findings prints in brackets"
            )
        if severity not in SEVERITIES:
            raise InputMissingError(
                f"{name}: line {number}: {severity!r} is not a severity: write the finding's "
                f"severity after its id: {', '.join(SEVERITIES)}"
            )
        found[id_] = Expected(id_, severity, reason.strip())
    return found


def gone(expected: Iterable[Expected], ids: Iterable[str]) -> list[Expected]:
    """Return the expected findings that did not occur."""
    there = set(ids)
    return [one for one in expected if one.id not in there]
