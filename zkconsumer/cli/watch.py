"""``zkconsumer groups verify --watch``: repeats the check and prints changes.

Everything runs on the main thread. Ctrl-C and SIGTERM end it, even during a pass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.verifier import Finding
from zkconsumer.console.repeating import repeat
from zkconsumer.errors import ZkConsumerError

Look = Callable[[], Sequence[Finding]]
"""Reads the groups once. Raises ZkConsumerError if that fails."""


class Change(NamedTuple):
    """A change since the previous pass.

    A problem was ``found`` or ``cleared``, or the groups could no longer be read (``away``) or can
    be read again (``back``).
    """

    change: str
    finding: Finding | None
    text: str


@dataclass(slots=True)
class Watch:
    """Compares each pass with the previous ones.

    Args: grace: seconds that a finding must last before it is reported, because rebalances briefly
    leave partitions without an owner.
    """

    grace: float
    _since: dict[Finding, float] = field(default_factory=dict)
    _shown: dict[Finding, Finding] = field(default_factory=dict)
    _away: bool = False

    @property
    def wrong(self) -> int:
        """Number of errors that were found and have not been cleared."""
        return sum(finding.wrong for finding in self._shown.values())

    def looked(self, findings: Sequence[Finding], now: float) -> Iterator[Change]:
        """Record the findings of a pass at the time ``now``, and yield the changes to report."""
        if self._away:
            self._away = False
            yield Change("back", None, "the groups can be read again")
        present = {_key(finding): finding for finding in findings}
        self._since = {key: self._since.get(key, now) for key in present}
        for key, finding in present.items():
            if key not in self._shown and now - self._since[key] >= self.grace:
                self._shown[key] = finding
                yield Change("found", finding, finding.what)
        for key in self._shown.keys() - present.keys():
            finding = self._shown.pop(key)
            yield Change("cleared", finding, finding.what)

    def failed(self, error: ZkConsumerError) -> Iterator[Change]:
        """Record that a pass failed, and yield the change to report, if any. Earlier findings are
        kept."""
        if not self._away:
            self._away = True
            yield Change("away", None, str(error))


def _key(finding: Finding) -> Finding:
    """Return the key of a finding. Findings whose texts differ only in numbers are equal."""
    return finding._replace(what="")


def watch(look: Look, grace: float, every: float, seconds: float | None, as_json: bool) -> int:
    """Check every ``every`` seconds, for ``seconds`` in total; return the exit status.

    Raises ZkConsumerError if the first check fails.
    """
    watching = Watch(grace)

    def show(changes: Iterable[Change]) -> None:
        for change in changes:
            _print(change, as_json)

    repeat(
        look,
        lambda findings, at: show(watching.looked(findings, at)),
        lambda error: show(watching.failed(error)),
        every,
        seconds,
    )
    click.echo(f"errors that last: {watching.wrong}", err=True)
    return 1 if watching.wrong else 0


def _print(change: Change, as_json: bool) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    finding = change.finding
    if as_json:
        entry: Mapping[str, object] = {
            "at": at,
            "change": change.change,
            "group": finding and finding.group,
            "level": finding and ("error" if finding.wrong else "warning"),
            "kind": finding and finding.kind.value,
            "where": finding and finding.where,
            "what": change.text,
        }
        sys.stdout.write(json.dumps(entry) + "\n")
    elif finding is None:
        sys.stdout.write(f"{at} {change.change}: {printable(change.text)}\n")
    else:
        level = "error" if finding.wrong else "warning"
        sys.stdout.write(
            f"{at} {change.change} {level} {finding.kind.value}: {printable(finding.where)}: "
            f"{printable(change.text)}\n"
        )
    sys.stdout.flush()
