"""Collects and prints the outcome of each group, for every command that changes groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Self

import click

from zkconsumer.console.tables import print_notes
from zkconsumer.errors import ZkConsumerError
from zkmigrate.apply.outcome import NOT_LOCKED, Outcome, Result, status_of_outcomes
from zkmigrate.commands.options.running import Work
from zkmigrate.commands.output.cells import problem_cells
from zkmigrate.commands.output.progress import Progress
from zkmigrate.commands.output.rows import print_table
from zkmigrate.text import shown, unlisted_note


class Outcomes:
    """Collects the outcomes of groups, and shows progress. Use it as a context manager.

    If a signal or an error ends the work early, the outcomes so far are printed.

    Args:
        verb: the action on the groups, such as ``moving``.
        work: the operator's options.
        named: the groups that were chosen by name; ``None``: all. Other groups have no row if there
            is nothing to do, and need no attention if they are skipped.
    """

    def __init__(self, verb: str, work: Work, named: Iterable[str] | None = None) -> None:
        self.progress = Progress(verb if work.execute else "checking", changes=work.execute)
        self.results: list[Result] = []
        self.work = work
        self._named = None if named is None else frozenset(named)

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        self.progress.__exit__(kind, error, _trace)
        if isinstance(error, ZkConsumerError | KeyboardInterrupt) and self.results:
            with suppress(OSError):  # the terminal may be gone
                self._print(self.results)

    def add(self, result: Result) -> None:
        """Count a group whose work has ended."""
        self.results.append(result)
        self.progress.result(result)

    def finish(self, names: Sequence[str], unlisted: Sequence[str] = ()) -> None:
        """Print the outcomes, and exit with the status.

        ``names``: the groups to print first, in this order. ``unlisted``: partitions whose groups
        Kafka could not list, so that groups may be missing.
        """
        if not self.work.execute:
            click.echo("dry run: nothing was changed; give --execute to act", err=True)
        by_name = {one.group: one for one in self.results}
        first = [by_name.pop(name) for name in names if name in by_name]
        self._print([*first, *by_name.values()])
        bad = [one.outcome for one in self.results if not self._good(one)]
        if unlisted:
            print_notes([unlisted_note(unlisted)])
            bad.append(Outcome.FAILED)
        click.get_current_context().exit(status_of_outcomes(bad))

    def _is_named(self, result: Result) -> bool:
        return self._named is None or result.group in self._named

    def _good(self, result: Result) -> bool:
        skipped = result.outcome is Outcome.SKIPPED and not self._is_named(result)
        return result.outcome.good or skipped

    def _print(self, results: Iterable[Result]) -> None:
        every = [
            one for one in results if one.outcome is not Outcome.NOTHING or self._is_named(one)
        ]
        self._print_rows(every)
        click.echo("; ".join(_summary(every)), err=True)

    def _print_rows(self, results: Sequence[Result]) -> None:
        hidden = self.work.only_problems
        rows = [self._row(one) for one in results if not (hidden and self._good(one))]
        print_table("outcome", rows, self.work.how)
        if self.work.how == "table":
            print_notes(
                f"group {one.group}: stays behind: {shown(map(str, one.stays))}"
                for one in results
                if one.stays
            )

    def _row(self, one: Result) -> tuple[object, ...]:
        why = one.why
        if self.work.how == "table" and one.outcome is Outcome.SKIPPED and one.problem is not None:
            why = ": ".join(problem_cells(one.problem, self.work.how)[1:])
        idle = one.outcome in (Outcome.NOTHING, Outcome.WAS_DONE)
        return (
            one.group,
            one.outcome.value,
            "" if one.way is None or idle else one.way.value,
            one.mode,
            one.offsets,
            why,
            one.reasons,
            one.stays,
            one.kafka_group,
        )


def _summary(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines about all groups."""
    offsets = sum(one.offsets for one in results)
    if offsets:
        yield f"{offsets} offsets"
    counts = Counter(one.outcome for one in results)
    parts = [f"{counts[one]} {one.value}" for one in Outcome if counts[one]]
    yield f"groups: {', '.join(parts) or 'none'}"
    stays = sum(len(one.stays) for one in results)
    if stays:
        yield f"{stays} offsets stay behind"
    unlocked = sum(one.not_locked for one in results)
    if unlocked:
        hint = "keep old consumers out with zkmigrate lock --hold"
        yield f"{unlocked} groups are {NOT_LOCKED}: {hint}"
