"""Options that several subcommands share: which groups, and what a plan is to decide."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from zkconsumer.cli.tables import print_notes, zookeeper_options
from zkmigrate.errors import MigrationError
from zkmigrate.model import (
    Direction,
    MissingTopics,
    OnConflict,
    Options,
    OutOfRange,
    Skip,
    Slipped,
    Store,
)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups that the operator wants. ``excluded``: names or globs.

    Raises UsageError unless groups are chosen in exactly one way.
    """

    groups: tuple[str, ...]
    regex: str | None
    everything: bool
    excluded: tuple[str, ...]

    def __post_init__(self) -> None:
        if bool(self.groups) + (self.regex is not None) + self.everything != 1:
            raise click.UsageError("choose groups with one of --group, --groups-regex and --all")
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise click.UsageError(f"--groups-regex: {error}") from None

    def of_store(self, names: Callable[[], list[str]], store: Store) -> list[str]:
        """Return the chosen groups of a store, at least one. ``names`` lists what it knows."""
        if self.groups and store is Store.KAFKA:
            return self._without_excluded(self.groups)  # brokers before 0.9 cannot list groups
        return self.among(names(), store.value, "is the chroot right?")

    def among(self, known: Sequence[str], where: str, advice: str) -> list[str]:
        """Return the chosen groups of those that are ``known``, at least one.

        Raises MigrationError for a group that is not known, or when none is chosen.
        """
        for group in self.groups:
            if group not in known:
                near = difflib.get_close_matches(group, known, n=3)
                hint = f"did you mean {' or '.join(near)}?" if near else advice
                raise MigrationError(
                    f"there is no group {group} among the {len(known)} of {where}: {hint}"
                )
        chosen: Iterable[str] = self.groups or known
        if self.regex is not None:
            chosen = [name for name in known if re.fullmatch(self.regex, name)]
        if not chosen:
            raise MigrationError(
                f"none of the {len(known)} groups in {where} is chosen, so nothing was looked "
                f"at: {advice}"
            )
        return self._without_excluded(chosen)

    def _without_excluded(self, names: Iterable[str]) -> list[str]:
        chosen = list(dict.fromkeys(names))
        for pattern in self.excluded:
            left = [name for name in chosen if name != pattern and not fnmatchcase(name, pattern)]
            if left == chosen:
                print_notes([f"--exclude {pattern} matches none of the chosen groups"])
            chosen = left
        if not chosen:
            raise MigrationError(
                "--exclude leaves none of the chosen groups: nothing was looked at"
            )
        return chosen


def selection(command: F) -> F:
    """Add the options that choose groups, given to the command as ``which``."""

    @wraps(command)
    def bundled(
        groups: tuple[str, ...],
        groups_regex: str | None,
        everything: bool,
        exclude: tuple[str, ...],
        **others: Any,
    ) -> Any:
        which = Selection(groups, groups_regex, everything, exclude)
        return command(which=which, **others)

    for option in (
        click.option(
            "--exclude",
            metavar="GROUP",
            multiple=True,
            help="Not this group; a name or a glob such as 'test-*'; may be repeated.",
        ),
        click.option("--all", "everything", is_flag=True, help="Every group."),
        click.option("--groups-regex", metavar="RE", help="Every group whose whole name matches."),
        click.option(
            "--group", "groups", metavar="GROUP", multiple=True, help="One group; may be repeated."
        ),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]


class Servers(NamedTuple):
    """Where the servers are, and for how many seconds to wait for them."""

    zookeeper: str
    timeout: float
    coordinator_timeout: float


def server_options(command: F) -> F:
    """Add the options that find and wait for servers, given to the command as ``servers``."""

    @wraps(command)
    def bundled(zookeeper: str, timeout: float, coordinator_timeout: float, **others: Any) -> Any:
        return command(servers=Servers(zookeeper, timeout, coordinator_timeout), **others)

    waiting = click.option(
        "--coordinator-timeout",
        type=click.FloatRange(min=0.1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a group coordinator that is away, once for all of its groups.",
    )
    return zookeeper_options(waiting(bundled))  # type: ignore[return-value]


def only_problems_option(command: F) -> F:
    """Add ``--only-problems``."""
    return click.option(
        "--only-problems", is_flag=True, help="Print no rows of groups that are in order."
    )(command)


def _skips(_context: object, _option: object, texts: tuple[str, ...]) -> tuple[Skip, ...]:
    for text in texts:
        if not 2 <= len(text.split(":")) <= 3 or not all(text.split(":")):
            raise click.UsageError(f"--skip {text}: write GROUP:TOPIC or GROUP:TOPIC:PARTITION")
    return tuple(Skip(*text.split(":")) for text in texts)


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
            "--skip",
            "skips",
            metavar="GROUP:TOPIC[:PARTITION]",
            multiple=True,
            callback=_skips,
            help="Leave these offsets as they are in both stores; each part may be a glob such as "
            "'*'; may be repeated.",
        ),
        click.option(
            "--missing-topics",
            type=click.Choice([one.value for one in MissingTopics]),
            default=MissingTopics.REFUSE.value,
            show_default=True,
            help="Offsets of topics and partitions that do not exist; skip: they stay behind.",
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
        raw["skips"],
        raw["max_idle_days"],
        MissingTopics(raw["missing_topics"]),
    )
