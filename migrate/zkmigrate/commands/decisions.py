"""Options for decisions that a plan cannot make by itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

import click

from zkmigrate.commands.files import read_file
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
    return click.option(
        name, type=click.Choice(every), default=every[0], show_default=True, help=what
    )


def decisions_option(command: F) -> F:
    """Add ``--decisions``."""
    return click.option(
        "--decisions",
        metavar="FILE",
        help="A TOML file with decisions about single groups and topics, see plan --decisions-out. "
        "They override other options.",
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
            help="Groups that have written no offset for this many days need a decision.",
        ),
        click.option(
            "--skip",
            "skips",
            metavar="GROUP:TOPIC[:PARTITION]",
            multiple=True,
            callback=_skips,
            help="Leave these offsets as they are in both stores; each part may be a glob such as "
            "'*'; may be repeated.",
        ),
        _choice(
            "--without-offset",
            WithoutOffset,
            "Where to start in partitions without an offset in either store; leave: the new "
            "consumers' auto.offset.reset decides.",
        ),
        _choice(
            "--other-znodes",
            OtherZnodes,
            "What to do with groups that have znodes of another kind next to their offsets, such "
            "as a wrapper's state; ignore: move the group and leave these znodes.",
        ),
        _choice(
            "--expired-offsets",
            Expired,
            "What to do with offsets that an earlier move wrote and that are gone since, for "
            "example because Kafka deletes offsets that are not committed again; moved: the offset "
            "that was moved, earliest and latest: the log's beginning and end.",
        ),
        _choice(
            "--recreated-topics",
            Recreated,
            "What to do with offsets that were stored before their topic was created; skip: leave "
            "them behind, earliest: start at the log's beginning.",
        ),
        _choice(
            "--unproven-topics",
            Unproven,
            "What to do with offsets of topics without an id in ZooKeeper, if the cluster has "
            "left ZooKeeper; trust: assume that it is the same topic, skip: leave them behind, "
            "earliest: start at the log's beginning.",
        ),
        _choice(
            "--missing-topics",
            MissingTopics,
            "What to do with offsets of topics and partitions that do not exist; skip: leave them "
            "behind.",
        ),
        _choice(
            "--misplaced",
            Misplaced,
            "What to do with offsets that a 1.1.0 broker stored below 'offset' instead of "
            "'offsets'.",
        ),
        _choice(
            "--out-of-range",
            OutOfRange,
            "What to do with offsets outside of the log; clamp: use the nearest one in it.",
        ),
        _choice(
            "--on-conflict",
            OnConflict,
            "Which offset to use if the stores have different ones.",
        ),
        _choice("--direction", Direction, "Source store and target store."),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]
