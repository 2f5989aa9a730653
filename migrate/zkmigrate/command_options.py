"""Options that several subcommands share, and how they read and write files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zkmigrate.errors import MigrationError
from zkmigrate.model import Direction, OnConflict, Options, OutOfRange, Slipped, Store

F = TypeVar("F", bound=Callable[..., Any])


def selection(command: F) -> F:
    """Add the options that choose groups."""
    command = click.option("--all", "everything", is_flag=True, help="Every group.")(command)
    command = click.option(
        "--groups-regex", metavar="RE", help="Every group whose whole name matches."
    )(command)
    return click.option(
        "--group", "groups", metavar="GROUP", multiple=True, help="One group; may be repeated."
    )(command)


def decisions(command: F) -> F:
    """Add the options that settle what a plan cannot decide."""
    for option in (
        click.option(
            "--max-idle-days",
            type=click.IntRange(min=0),
            default=Options().max_idle_days,
            show_default=True,
            help="Groups that wrote no offset for longer need a decision.",
        ),
        click.option(
            "--skip-topic",
            "skip_topics",
            multiple=True,
            help="Leave this topic's offsets as they are in both stores.",
        ),
        click.option(
            "--slipped",
            type=click.Choice([one.value for one in Slipped]),
            default=Slipped.REFUSE.value,
            show_default=True,
            help="Offsets that a 1.1.0 broker stored below 'offset' instead of 'offsets'.",
        ),
        click.option(
            "--out-of-range",
            type=click.Choice([one.value for one in OutOfRange]),
            default=OutOfRange.REFUSE.value,
            show_default=True,
            help="Offsets outside of what the log holds.",
        ),
        click.option(
            "--on-conflict",
            type=click.Choice([one.value for one in OnConflict]),
            default=OnConflict.REFUSE.value,
            show_default=True,
            help="Which offset counts where the stores hold different ones.",
        ),
        click.option(
            "--direction",
            type=click.Choice([one.value for one in Direction]),
            default=Direction.ZK_TO_KAFKA.value,
            show_default=True,
            help="From which store to which.",
        ),
    ):
        command = option(command)
    return command


def chosen_options(raw: dict[str, Any]) -> Options:
    """Return the operator's decisions."""
    return Options(
        OnConflict(raw["on_conflict"]),
        OutOfRange(raw["out_of_range"]),
        Slipped(raw["slipped"]),
        frozenset(raw["skip_topics"]),
        raw["max_idle_days"],
    )


def check_selection(groups: tuple[str, ...], regex: str | None, everything: bool) -> None:
    """Raise UsageError unless groups are chosen in exactly one way."""
    if bool(groups) + (regex is not None) + everything != 1:
        raise click.UsageError("choose groups with one of --group, --groups-regex and --all")
    try:
        re.compile(regex or "")
    except re.error as error:
        raise click.UsageError(f"--groups-regex: {error}") from None


def chosen_groups(
    names: Callable[[], list[str]], store: Store, groups: tuple[str, ...], regex: str | None
) -> list[str]:
    """Return the groups that were chosen of those that a store knows; there is at least one."""
    if groups and store is Store.KAFKA:
        return list(dict.fromkeys(groups))  # brokers before 0.9 cannot list groups
    known = names()
    if groups:
        for group in groups:
            if group not in known:
                near = difflib.get_close_matches(group, known, n=3)
                hint = f"did you mean {' or '.join(near)}?" if near else "is the chroot right?"
                raise MigrationError(f"{store.value} knows no group {group} ({len(known)}): {hint}")
        return list(dict.fromkeys(groups))
    chosen = known
    if regex is not None:
        chosen = [name for name in known if re.fullmatch(regex, name)]
    if not chosen:
        raise MigrationError(
            f"none of the {len(known)} groups in {store.value} is chosen, so nothing was looked "
            "at: is the chroot right?"
        )
    return chosen
