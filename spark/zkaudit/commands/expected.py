"""The option ``--expected`` of commands that list or count findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkaudit.text import printable

if TYPE_CHECKING:
    from zkaudit.findings.expected import Expected

F = TypeVar("F", bound=Callable[..., Any])


def _parsed(_: click.Context, __: click.Parameter, file: str | None) -> Mapping[str, Expected]:
    from zkaudit.errors import InputMissingError
    from zkaudit.findings.expected import parse

    if file is None:
        return {}
    try:
        return parse(Path(file).read_text(encoding="utf-8"), file)
    except OSError as error:
        raise InputMissingError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputMissingError(f"{file} is not text in UTF-8") from None


def expected_option(command: F) -> F:
    """Add ``--expected``, which the command receives as ``expected``: a mapping from finding ids to
    the lines of the file."""
    option: Callable[[F], F] = click.option(
        "--expected",
        metavar="FILE",
        callback=_parsed,
        help="File of expected findings. Each line has a finding's id and severity, and "
        "optionally a remark, such as a date and a reason. Expected findings do not count for "
        "--fail-on, unless they have become more severe. Ids that are not in the audit are "
        "printed.",
    )
    return option(command)


def print_gone(lines: Iterable[Expected]) -> None:
    """Print expected findings that did not occur."""
    for one in lines:
        click.echo(f"expected, but not found: {one.id} {printable(one.reason)}".rstrip(), err=True)


def count_expected(
    out: str, expected: Mapping[str, Expected], say: bool = True
) -> Counter[tuple[str, str]]:
    """Return the number of expected findings of each severity and kind in the audit in ``out``.
    ``say``: also print how many there are, and which did not occur."""
    from zkaudit.report.found import acknowledged

    if not expected:
        return Counter()
    counts, missing = acknowledged(Path(out), expected)
    if say:
        click.echo(f"{counts.total():,} of these findings are expected")
        print_gone(missing)
    return counts
