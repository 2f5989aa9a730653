"""Options that ``herd`` and ``simulate`` share, and the check of their values. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.tables import count_option
from zkconsumer.console.times import duration_option
from zkconsumer.errors import ConfigError
from zkconsumer.herd.parameters import EVENTS
from zkconsumer.sim.runs.herd import Herd

F = TypeVar("F", bound=Callable[..., Any])

JVM: Final = "jvm"
"""The name shown to people for profile ``scala``."""


def _profile_name(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Return the profile's own name."""
    return "scala" if value == JVM else value


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, ...]:
    """One number or several with commas."""
    try:
        return tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r}: give a number, or several with commas") from None


def herd_options(
    profiles: Sequence[str], profile_help: str, default: str, members_help: str
) -> Callable[[F], F]:
    """Add what describes a group, the change in it, and where the figures go.

    Args:
        profiles: what ``--profile`` accepts, next to ``jvm`` and ``all``.
        profile_help: help of ``--profile``.
        default: of ``--members``.
        members_help: help of ``--members``.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    options = (
        click.option(
            "--members",
            callback=_numbers,
            default=default,
            show_default=True,
            metavar="N[,N..]",
            help=members_help,
        ),
        count_option("--partitions", default=100, help="Partitions of each topic."),
        count_option("--topics", default=1, help="Topics that every member subscribes to."),
        click.option(
            "--event",
            type=click.Choice(EVENTS),
            default="join",
            show_default=True,
            help="The one change to make in the group.",
        ),
        click.option(
            "--profile",
            type=click.Choice([*profiles, JVM, "all"]),
            default="all",
            show_default=True,
            callback=_profile_name,
            help=profile_help,
        ),
        duration_option(
            "--session-timeout", default=6.0, help="zookeeper.session.timeout.ms of every member."
        ),
        duration_option("--backoff", default=2.0, help="rebalance.backoff.ms of every member."),
        click.option(
            "--rate",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            metavar="N",
            help="Pretend that each partition gets this many messages a second, and count those "
            "that are consumed twice.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON."),
        click.option("--journal", type=path, help="Write the group's journal to this file."),
        click.option("--html", type=path, help="Write a report with charts to this file."),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def check_herds(herds: Sequence[Herd], most: int, journal: Path | None) -> None:
    """Refuse impossible group sizes, and one journal for several runs. Raises ConfigError.

    ``most`` is the largest number of members.
    """
    for herd in herds:
        herd.check()
        if herd.members > most:
            raise ConfigError([f"--members {herd.members}: must be 2 to {most}"])
    if journal is not None and len(herds) > 1:
        raise ConfigError(["--journal: one run at a time: give one size, profile and seed"])
