"""What the subcommands print: summaries of plans, what became of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

import click

from zkconsumer.cli.tables import How, print_notes, print_rows
from zkmigrate.model import (
    GroupPlan,
    Kind,
    Note,
    Problem,
    Skip,
    StaysBehind,
    Verdict,
    covers,
    shown,
)
from zkmigrate.outcome import Outcome, Result
from zkmigrate.plan_file import Groups

_COLUMNS: Final = (
    "group", "verdict", "partitions", "to_write", "kind", "what", "fix", "notes", "stays_behind",
)  # fmt: skip
_IN_TABLE: Final = 7
"""So many of the columns are in a table; notes are printed below it."""
_SKIPS_SHOWN: Final = 1


class Summary:
    """Rows, notes and counts of plans that pass by.

    ``how``: only a table cuts lists of names. ``only_problems``: no rows of groups that are ready.
    ``skips``: what was given to ``--skip``.
    """

    def __init__(self, how: How, only_problems: bool, skips: Iterable[Skip]) -> None:
        self.how = how
        self.only_problems = only_problems
        self.kinds: Counter[Kind] = Counter()
        self.unlisted: Sequence[str] = ()
        """Partitions whose groups Kafka could not list; set before ``tell``."""
        self.rows: list[tuple[object, ...]] = []
        self.notes: dict[str, list[str]] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.unused = set(skips)

    def watch(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """Pass plans on and remember what is to be printed of them."""
        for plan in plans:
            self.verdicts[plan.verdict] += 1
            for note in plan.notes:
                self.notes.setdefault(_short(note), []).append(plan.group)
            self.unused -= {
                skip
                for skip in self.unused
                if fnmatchcase(plan.group, skip.group)
                and any(covers(frozenset({skip.pattern}), one.tp) for one in plan.stays)
            }
            head = (
                plan.group,
                plan.verdict.value,
                len(plan.entries),
                sum(entry.write for entry in plan.entries),
            )
            notes = "; ".join(plan.notes)
            stays = stays_cell(plan.stays, self.how)
            self.kinds.update({problem.kind for problem in plan.problems})
            for problem in plan.problems or (() if self.only_problems else (None,)):
                texts = ("", "", "") if problem is None else _cells(problem, self.how)
                row = (*head, *texts, notes, stays)
                self.rows.append(row[:_IN_TABLE] if self.how == "table" else row)
            yield plan

    def tell(self) -> None:
        """Print all."""
        if self.how == "table":  # the notes of many groups are alike: once below it
            print_rows(_COLUMNS[:_IN_TABLE], self.rows, self.how)
            groups = sum(self.verdicts.values())
            for note, named in self.notes.items():
                whose = f"{len(named)} groups" if len(named) > 1 else f"group {named[0]}"
                print_notes([note + (f" ({whose})" if groups > 1 else "")])
        else:
            print_rows(_COLUMNS, self.rows, self.how)
        print_notes(
            f"--skip {skip.group}:{skip.pattern} keeps no offset from being moved"
            for skip in sorted(self.unused)
        )
        if self.unlisted:
            print_notes([unlisted_note(self.unlisted)])
        counts = [f"{self.verdicts[one]} {one.value}" for one in Verdict]
        click.echo(", ".join(counts), err=True)
        if self.kinds:
            by_kind = [f"{count} {kind.value}" for kind, count in self.kinds.most_common()]
            click.echo(f"groups by problem: {', '.join(by_kind)}", err=True)

    @property
    def status(self) -> int:
        """The exit status."""
        good = {Verdict.READY, Verdict.MOVED}
        return 1 if self.unlisted or set(self.verdicts) - good else 0


def _cells(problem: Problem, how: How) -> tuple[str, str, str]:
    """Kind, what and fix of a problem; a table shows the first few names only."""
    if how != "table":
        return problem.kind.value, problem.what, problem.fix
    what = problem.text + shown(problem.names)
    fix = " ".join([problem.advice, *(f"--skip {skip}" for skip in problem.skips[:_SKIPS_SHOWN])])
    more = len(problem.skips) - _SKIPS_SHOWN
    return problem.kind.value, what, fix + (f" (and {more} more, see --json)" if more > 0 else "")


def _short(note: str) -> str:
    return note.short if isinstance(note, Note) else note


def stays_cell(stays: Iterable[StaysBehind], how: How) -> object:
    """Return the offsets that stay behind: objects in JSON, text elsewhere."""
    if how == "json":
        return [{**one.tp._asdict(), "offset": one.offset, "why": one.why} for one in stays]
    return ", ".join(map(str, stays))


def unlisted_note(partitions: Sequence[str]) -> str:
    """Return what to print when Kafka could not list all groups."""
    return f"groups may be missing, since a leader is missing of {shown(partitions)}"


class PassedGroups:
    """A plan's groups, which remembers of those that pass what is printed of them at the end."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.stays: dict[str, tuple[StaysBehind, ...]] = {}
        self.refused: dict[str, Problem] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupPlan]:
        for group in self._groups:
            if group.stays:
                self.stays[group.group] = group.stays
            if group.problems:
                self.refused[group.group] = group.problems[0]
            yield group


def tell(results: list[Result], passed: PassedGroups, how: How, only_problems: bool) -> None:
    """Print what became of each group; exit with 1 when something is left to do."""
    rows: list[tuple[object, ...]] = []
    for one in results:
        if only_problems and one.outcome.good:
            continue
        row = (one.group, one.outcome.value, one.offsets)
        if how != "table":
            rows.append((*row, one.why, stays_cell(passed.stays.get(one.group, ()), how)))
        elif one.outcome is Outcome.SKIPPED and one.group in passed.refused:
            rows.append((*row, ": ".join(_cells(passed.refused[one.group], how)[1:])))
        else:
            rows.append((*row, one.why))
    columns = ("group", "outcome", "offsets", "why")
    print_rows(columns if how == "table" else (*columns, "stays_behind"), rows, how)
    if how == "table":
        for group, stays in passed.stays.items():
            print_notes([f"group {group}: stays behind: {shown(map(str, stays))}"])
    counts = Counter(one.outcome for one in results)
    offsets = sum(one.offsets for one in results)
    parts = [f"{counts[one]} {one.value}" for one in Outcome if counts[one]]
    left = sum(map(len, passed.stays.values()))
    click.echo(
        f"{offsets} offsets; groups: {', '.join(parts) or 'none'}"
        + (f"; {left} offsets stay behind" if left else ""),
        err=True,
    )
    good = all(one.outcome.good for one in results)
    click.get_current_context().exit(0 if good else 1)
