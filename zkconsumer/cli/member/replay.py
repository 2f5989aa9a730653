"""``zkconsumer replay``: run a member's state machine again on the events in its journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from zkconsumer.admin.printable import printable
from zkconsumer.console.tables import count_option
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
)
from zkconsumer.errors import ConfigError
from zkconsumer.journal.json_lines import read_journal
from zkconsumer.journal.recorder import RELEASE
from zkconsumer.journal.replay import Did, Difference, Replayed, replay as replay_entries
from zkconsumer.journal.sequence import sequence

_STRATEGIES: Final = (RangeStrategy, RoundRobinStrategy, LegacyStrategy, StickyStrategy)
_AROUND: Final = 60
"""Number of journal lines before a difference that the diagram shows."""
_SHOWN: Final = 400
"""Largest number of characters of an event or command in the output."""


@click.command()
@click.argument("journal", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--member",
    help="Consumer id of the member. By default, every member in the journal is replayed.",
)
@count_option("--until", metavar="LINE", help="Stop after this line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def replay(journal: Path, member: str | None, until: int | None, as_json: bool) -> None:
    """Replay a member's decisions, and compare them with its journal.

    After each event, the member's state and commands must be those in the journal, and no rule may
    be broken. The first difference is shown with its line, the expected (the journal's) and the
    actual (this release's) result, and a Mermaid sequence diagram of everything before it.

    Members write such a journal if the key `zkconsumer.journal.dir` is set. The exit status is 1 if
    there is a difference, and 2 if the journal cannot be read or replayed to its end.
    """
    try:
        runs = replay_entries(str(journal), read_journal(journal), _STRATEGIES, member, until)
        drawn = {run.line: _diagram(journal, run) for run in runs if run.difference}
    except OSError as error:
        raise ConfigError([f"{journal}: {error.strerror}"]) from None
    if as_json:
        members = [asdict(run) | {"diagram": drawn.get(run.line, "")} for run in runs]
        click.echo(json.dumps({"release": RELEASE, "members": members}, indent=2))
    else:
        click.echo("\n".join(line for run in runs for line in _lines(journal, run)))
        for diagram in drawn.values():
            click.echo("\n" + diagram, nl=False)
    missing = any(run.dropped_line for run in runs)
    click.get_current_context().exit(1 if drawn else 2 if missing else 0)


def _diagram(journal: Path, run: Replayed) -> str:
    """Return the diagram of the member's steps up to the difference, with a note at its place."""
    there = run.difference
    assert there is not None
    last = max([there.event_line, *(command.line for command in there.expected)])
    first = max(run.line, there.event_line - _AROUND)
    note = f"    Note over M: line {there.line}: differs after {there.event.name}\n"
    return sequence(islice(read_journal(journal), first - 1, last), run.member) + note


def _lines(journal: Path, run: Replayed) -> Iterator[str]:
    """Return one run as lines of text."""
    place = f"{journal}:{run.line}: member {printable(run.member)} ({run.coordination})"
    if run.release != RELEASE:
        yield f"{place}: it ran zkconsumer {run.release}, this is {RELEASE}"
    there = run.difference
    if there is None:
        yield f"{place}: {run.events} events, {run.commands} commands: as recorded"
        where = f", after line {run.last_line}" if run.last_line else ""
        yield f"  state {run.state}{where}"
        if run.dropped_line:
            yield (
                f"  line {run.dropped_line}: entries are missing, since the disk did not keep up: "
                "what follows cannot be replayed"
            )
        return
    yield f"{place}: {run.events - 1} events as recorded, then it differs"
    yield f"{journal}:{there.line}: {_what(there)}"
    yield f"  event of {datetime.fromtimestamp(there.at / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    yield f"    {_shown(there.event)}"
    yield "  state after it"
    yield f"    expected  {there.expected_state or '(not recorded)'}"
    yield f"    actual    {there.actual_state}"
    yield "  commands"
    for title, done in (("expected", there.expected), ("actual  ", there.actual)):
        for command in done or [Did("none", {})]:
            yield f"    {title}  {_shown(command)}"
    for rule in there.broken:
        yield f"  broken rule: {printable(rule)}"


def _what(there: Difference) -> str:
    states = there.expected_state in ("", there.actual_state)
    both = (_plain(there.expected), _plain(there.actual))
    parts = ["state"] * (not states) + ["commands"] * (both[0] != both[1])
    return f"differs: {', '.join(parts + ['a rule is broken'] * bool(there.broken))}"


def _plain(done: Sequence[Did]) -> list[tuple[str, Any]]:
    return [(command.name, command.fields) for command in done]


def _shown(command: Did) -> str:
    text = f"{command.name} {json.dumps(command.fields)}" if command.fields else command.name
    text = printable(text if len(text) <= _SHOWN else text[:_SHOWN] + " ...")
    return f"line {command.line}: {text}" if command.line else text
