"""Shows plans and results as rows: complete in JSON and CSV, shortened in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.tables import How
from zkmigrate.plan.values import Problem, StaysBehind
from zkmigrate.reasons import Reason
from zkmigrate.text import shown

F = TypeVar("F", bound=Callable[..., Any])
_SKIPS_SHOWN: Final = 1


def only_problems_option(command: F) -> F:
    """Add ``--only-problems``."""
    return click.option(
        "--only-problems", is_flag=True, help="Hide the rows of groups without a problem."
    )(command)


def group_cell(group: str, kafka_group: str, how: How) -> str:
    """Return a group's name; a table adds its name in Kafka, which elsewhere has a column."""
    return f"{group} ({kafka_group} in Kafka)" if kafka_group and how == "table" else group


def in_columns(
    fields: Sequence[str], rows: Sequence[Sequence[object]], how: How
) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the columns and the cells of rows that begin with ``group`` and end with
    ``kafka_group``, which a table shows in one column."""
    if how != "table":
        return fields, rows
    return fields[:-1], [(group_cell(str(row[0]), str(row[-1]), how), *row[1:-1]) for row in rows]


def problem_cells(problem: Problem, how: How) -> tuple[str, str, str]:
    """Return kind, description and fix of a problem; a table shows the first few names only."""
    if how != "table":
        return problem.kind.value, problem.what, problem.fix
    what = problem.text + shown(problem.names)
    fix = " ".join([problem.advice, *(f"--skip {skip}" for skip in problem.skips[:_SKIPS_SHOWN])])
    more = len(problem.skips) - _SKIPS_SHOWN
    return problem.kind.value, what, fix + (f" (and {more} more, see --json)" if more > 0 else "")


def reasons_cell(reasons: Iterable[Reason], how: How) -> object:
    """Return the codes of reasons: an array in JSON, text elsewhere."""
    codes = list(dict.fromkeys(one.value for one in reasons))
    return codes if how == "json" else ", ".join(codes)


def stays_cell(stays: Iterable[StaysBehind], how: How) -> object:
    """Return the offsets that stay behind: objects in JSON, text elsewhere."""
    if how == "json":
        return [{**one.tp._asdict(), "offset": one.offset, "why": one.why} for one in stays]
    return ", ".join(map(str, stays))
