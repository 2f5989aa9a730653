"""What the subcommands print: summaries of plans, a progress bar, what became of each group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from zkconsumer.cli.tables import How, print_notes, print_rows
from zkmigrate.model import GroupPlan, Verdict
from zkmigrate.outcome import Outcome, Result

_COLUMNS: Final = ("group", "verdict", "partitions", "to_write", "kind", "what", "fix", "notes")


class Summary:
    """Rows, notes and counts of plans that pass by."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []
        self.notes: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()

    def watch(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """Pass plans on and remember what is to be told of them."""
        for plan in plans:
            self.verdicts[plan.verdict] += 1
            self.notes.update(plan.notes)
            head = (
                plan.group,
                plan.verdict.value,
                len(plan.entries),
                sum(entry.write for entry in plan.entries),
            )
            for problem in plan.problems or (None,):
                tail = (problem.kind.value, problem.what, problem.fix) if problem else ("",) * 3
                self.rows.append((*head, *tail, "; ".join(plan.notes)))
            yield plan

    def tell(self, how: How) -> None:
        """Print all."""
        if how == "table":  # the notes of many groups are alike: once below it, not in each row
            print_rows(_COLUMNS[:-1], [row[:-1] for row in self.rows], how)
            for note, count in self.notes.items():
                print_notes([note + (f" ({count} groups)" if count > 1 else "")])
        else:
            print_rows(_COLUMNS, self.rows, how)
        counts = [f"{self.verdicts[one]} {one.value}" for one in Verdict]
        click.echo(", ".join(counts), err=True)

    @property
    def status(self) -> int:
        """The exit status."""
        return 0 if set(self.verdicts) <= {Verdict.READY} else 1


@contextmanager
def progress(verb: str, total: int) -> Iterator[Callable[[Result], None]]:
    """Show a bar on a terminal; yield what is to be told of each group's result."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("groups, {task.fields[rate]} offsets/s, {task.fields[failed]} failed"),
    )
    started = time.monotonic()
    offsets = failed = 0
    disable = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task(verb, total=total, rate=0, failed=0)

        def on_group(result: Result) -> None:
            nonlocal offsets, failed
            offsets += result.offsets
            failed += not result.outcome.good
            rate = round(offsets / max(time.monotonic() - started, 0.001))
            bar.update(task, advance=1, rate=rate, failed=failed)

        yield on_group


def tell(results: list[Result], how: How) -> None:
    """Print what became of each group; exit with 1 when something is left to do."""
    rows = [(one.group, one.outcome.value, one.offsets, one.why) for one in results]
    print_rows(("group", "outcome", "offsets", "why"), rows, how)
    counts = Counter(one.outcome for one in results)
    offsets = sum(one.offsets for one in results)
    parts = [f"{counts[one]} {one.value}" for one in Outcome if counts[one]]
    click.echo(f"{offsets} offsets; groups: {', '.join(parts) or 'none'}", err=True)
    good = all(one.outcome.good for one in results)
    click.get_current_context().exit(0 if good else 1)
