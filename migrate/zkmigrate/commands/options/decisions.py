"""Options for decisions that a plan cannot make by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import click

from zkmigrate.commands.options.files import read_file
from zkmigrate.formats import decisions_file
from zkmigrate.model import Direction
from zkmigrate.plan.options import CHOICES, Options, Rule, Skip

F = TypeVar("F", bound=Callable[..., Any])


_HELP: Final = {
    "on_conflict": "Which offset to use if the stores differ.",
    "out_of_range": "Offsets outside the log; clamp: use the nearest valid offset.",
    "misplaced": "Offsets that 1.1.0 brokers put in 'offset'.",
    "missing_topics": "Topics and partitions that do not exist.",
    "unproven_topics": "After a migration to KRaft: topics that have no id in ZooKeeper; trust: "
    "assume they are the original ones.",
    "recreated_topics": "Offsets that are older than their topic.",
    "expired_offsets": "Offsets that disappeared after their move; moved: write them again.",
    "other_znodes": "Znodes of unknown kinds; ignore: leave them.",
    "source_means": "What a stored offset names: the record to read next, or the last one read.",
    "without_offset": "Partitions without any offset; leave: auto.offset.reset decides.",
}
"""Help of the decisions that are a choice, in the order of the help."""


_SKIP: Final = re.compile(r"(.+?):([\w.*?\[\]!-]+)(?::([0-9*?\[\]!-]+))?", re.ASCII | re.DOTALL)
"""The format of ``--skip``. A group's name may contain colons; names of topics cannot."""


def _skips(_context: object, _option: object, texts: tuple[str, ...]) -> tuple[Skip, ...]:
    skips: list[Skip] = []
    for text in texts:
        parts = _SKIP.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--skip {text}: write GROUP:TOPIC or GROUP:TOPIC:PARTITION")
        skips.append(Skip(*filter(None, parts.groups())))
    return tuple(skips)


def _choice(name: str, values: Sequence[str], what: str) -> Callable[[F], F]:
    """Return an option with these values. The first is the default."""
    shown = values[0] not in ("refuse", "default")
    option = f"--{name.replace('_', '-')}"
    return click.option(
        option, type=click.Choice(values), default=values[0], show_default=shown, help=what
    )


def decisions_option(command: F) -> F:
    """Add ``--decisions``."""
    return click.option(
        "--decisions",
        metavar="FILE",
        help="Decisions in TOML, see plan --decisions-out.",
    )(command)


def rules_in(file: str | None) -> tuple[Rule, ...]:
    """Return the rules in a file of decisions; an empty tuple if ``file`` is ``None``. Raises
    PlanFileError."""
    return decisions_file.parse(file, read_file(file)) if file else ()


def decisions(command: F) -> F:
    """Add the options with which an operator makes decisions. The command receives them as
    ``direction`` and ``options``."""

    @wraps(command)
    def bundled(
        direction: str,
        skips: tuple[Skip, ...],
        max_idle_days: int,
        decisions: str | None,
        **others: Any,
    ) -> Any:
        chosen = {name: others.pop(name) for name in _HELP}
        options = Options(
            skips=skips,
            max_idle_days=max_idle_days,
            rules=rules_in(decisions),
            **chosen,
        )
        return command(direction=Direction(direction), options=options, **others)

    for option in (
        decisions_option,
        click.option(
            "--max-idle-days",
            type=click.IntRange(min=0),
            default=Options().max_idle_days,
            show_default=True,
            help="Groups without a commit for this many days need a decision.",
        ),
        click.option(
            "--skip",
            "skips",
            metavar="GROUP:TOPIC[:PARTITION]",
            multiple=True,
            callback=_skips,
            help="Leave these offsets as they are. Each part may be a glob such as '*'. May be "
            "repeated.",
        ),
        *(_choice(name, CHOICES[name], what) for name, what in reversed(_HELP.items())),
        _choice("direction", [one.value for one in Direction], "Source and target."),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]
