"""Options for decisions that a plan cannot make by itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

import click

from zkmigrate.commands.options.files import read_file
from zkmigrate.formats import decisions_file
from zkmigrate.model import Direction
from zkmigrate.plan.options import (
    Expired,
    Misplaced,
    MissingTopics,
    OnConflict,
    Options,
    OtherZnodes,
    OutOfRange,
    Recreated,
    Rule,
    Skip,
    Unproven,
    WithoutOffset,
)

F = TypeVar("F", bound=Callable[..., Any])


def _skips(_context: object, _option: object, texts: tuple[str, ...]) -> tuple[Skip, ...]:
    for text in texts:
        if not 2 <= len(text.split(":")) <= 3 or not all(text.split(":")):
            raise click.UsageError(f"--skip {text}: write GROUP:TOPIC or GROUP:TOPIC:PARTITION")
    return tuple(Skip(*text.split(":")) for text in texts)


def _choice(name: str, values: type[Enum], what: str) -> Callable[[F], F]:
    """Return an option that takes one of the values; the first is the default."""
    every = [one.value for one in values]
    shown = every[0] != "refuse"
    return click.option(
        name, type=click.Choice(every), default=every[0], show_default=shown, help=what
    )


def decisions_option(command: F) -> F:
    """Add ``--decisions``."""
    return click.option(
        "--decisions",
        metavar="FILE",
        help="A TOML file with decisions about single groups and topics, see plan --decisions-out.",
    )(command)


def rules_in(file: str | None) -> tuple[Rule, ...]:
    """Return the decisions in a file. Raises PlanFileError."""
    return decisions_file.parse(file, read_file(file)) if file else ()


def decisions(command: F) -> F:
    """Add the options of a plan, given to the command as ``direction`` and ``options``."""

    @wraps(command)
    def bundled(
        direction: str,
        on_conflict: str,
        out_of_range: str,
        misplaced: str,
        missing_topics: str,
        skips: tuple[Skip, ...],
        max_idle_days: int,
        recreated_topics: str,
        without_offset: str,
        unproven_topics: str,
        expired_offsets: str,
        other_znodes: str,
        decisions: str | None,
        **others: Any,
    ) -> Any:
        options = Options(
            OnConflict(on_conflict),
            OutOfRange(out_of_range),
            Misplaced(misplaced),
            skips,
            max_idle_days,
            MissingTopics(missing_topics),
            Recreated(recreated_topics),
            WithoutOffset(without_offset),
            rules_in(decisions),
            Unproven(unproven_topics),
            Expired(expired_offsets),
            OtherZnodes(other_znodes),
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
        _choice(
            "--without-offset",
            WithoutOffset,
            "Partitions without any offset; leave: auto.offset.reset decides.",
        ),
        _choice(
            "--other-znodes",
            OtherZnodes,
            "Groups with other znodes next to their offsets; ignore: leave these znodes.",
        ),
        _choice(
            "--expired-offsets",
            Expired,
            "Offsets that an earlier move wrote and that are gone since; moved: write them again.",
        ),
        _choice(
            "--recreated-topics",
            Recreated,
            "Offsets that are older than their topic.",
        ),
        _choice(
            "--unproven-topics",
            Unproven,
            "Offsets of topics without an id in ZooKeeper, after the change to KRaft; trust: it is "
            "the same topic.",
        ),
        _choice(
            "--missing-topics",
            MissingTopics,
            "Offsets of topics and partitions that do not exist.",
        ),
        _choice(
            "--misplaced",
            Misplaced,
            "Offsets that a 1.1.0 broker stored below 'offset'.",
        ),
        _choice(
            "--out-of-range",
            OutOfRange,
            "Offsets outside of the log; clamp: use the nearest one in it.",
        ),
        _choice(
            "--on-conflict",
            OnConflict,
            "Which offset to use if the stores differ.",
        ),
        _choice("--direction", Direction, "Source store and target store."),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]
