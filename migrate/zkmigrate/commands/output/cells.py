"""Shows plans and results as rows: complete in JSON and CSV, shortened in a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.tables import How
from zkmigrate.plan.values import Problem
from zkmigrate.text import shown

F = TypeVar("F", bound=Callable[..., Any])
_SKIPS_SHOWN: Final = 1


def only_problems_option(command: F) -> F:
    """Add ``--only-problems``."""
    return click.option(
        "--only-problems", is_flag=True, help="Hide the rows of groups without a problem."
    )(command)


def problem_cells(problem: Problem, how: How) -> tuple[str, str, str]:
    """Return a problem's kind, description and fix. In a table, the description has only the first
    names."""
    if how != "table":
        return problem.kind.value, problem.what, problem.fix
    what = problem.text + shown(problem.names)
    fix = " ".join([problem.advice, *(f"--skip {skip}" for skip in problem.skips[:_SKIPS_SHOWN])])
    more = len(problem.skips) - _SKIPS_SHOWN
    return problem.kind.value, what, fix + (f" (and {more} more, see --json)" if more > 0 else "")
