"""Options that select groups: ``--group``, ``--groups-from``, ``--groups-regex``, ``--all``,
``--exclude``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, Final, TypeVar

import click

from zkconsumer.console.exclusive import at_most_one
from zkconsumer.console.tables import print_notes
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import OffsetsFileError
from zkmigrate.commands.options.files import read_file
from zkmigrate.errors import MigrationError, PlanFileError
from zkmigrate.formats import offset_csv
from zkmigrate.model import Store
from zkmigrate.plan.options import is_glob

F = TypeVar("F", bound=Callable[..., Any])
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
"""Start of a comment. A group's name may contain ``#``."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups that the operator chose.

    ``groups`` and ``excluded``: names or globs. ``listed``: the names or globs in a file. Raises
    UsageError unless groups are chosen in exactly one way.
    """

    groups: tuple[str, ...]
    regex: str | None
    everything: bool
    excluded: tuple[str, ...]
    listed: bool = False

    def __post_init__(self) -> None:
        by_name = "--groups-from" if self.listed else "--group"
        by_regex = self.regex is not None
        ways = ((by_name, self.groups), ("--groups-regex", by_regex), ("--all", self.everything))
        given = [option for option, chosen in ways if chosen]
        at_most_one(given)
        if not given:
            raise click.UsageError(
                "choose groups with --group or --groups-from (or both), with --groups-regex, or "
                "with --all"
            )
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise click.UsageError(f"--groups-regex: {error}") from None

    @property
    def options(self) -> dict[str, object]:
        """The options with which the groups were chosen, for the journal. The names in a file
        replace its path."""
        given = {
            "group": list(self.groups) or None,
            "groups_regex": self.regex,
            "exclude": list(self.excluded) or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def names(self) -> list[str]:
        """The groups that were chosen by name, not by a pattern."""
        return [group for group in self.groups if not is_glob(group)]

    @property
    def only(self) -> str | None:
        """The group's name, if exactly one group was chosen by name; otherwise ``None``."""
        return self.groups[0] if self.all_named and len(self.groups) == 1 else None

    @property
    def all_named(self) -> bool:
        """Whether every group was chosen by name, so that no list of groups is needed."""
        return bool(self.groups) and len(self.names) == len(self.groups)

    def of_store(self, names: Callable[[], list[str]], store: Store) -> list[str]:
        """Return the chosen groups of a store. Raises MigrationError if there are none. ``names``:
        returns all groups of the store."""
        if self.all_named and store is Store.KAFKA:
            return self._without_excluded(self.groups)  # brokers before 0.9 cannot list groups
        return self.among(names(), store.value, "is the chroot right?")

    def among(self, known: Sequence[str], where: str, advice: str) -> list[str]:
        """Return the chosen groups among the ``known`` ones.

        ``where`` and ``advice``: for the message. Raises MigrationError if no group is chosen, or
        if a group chosen by name is unknown.
        """
        names = set(known)
        chosen: list[str] = []
        unknown: list[str] = []
        for group in self.groups:
            if group in names:
                chosen.append(group)
            elif is_glob(group) and (matches := [one for one in known if fnmatchcase(one, group)]):
                chosen += matches
            else:
                unknown.append(group)
        if unknown and (self.listed or len(unknown) > 1):
            raise MigrationError(
                f"{len(unknown)} of the {len(self.groups)} named groups are not among the "
                f"{len(known)} in {where}: {', '.join(unknown)}"
            )
        for group in unknown:
            near = difflib.get_close_matches(group, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else advice
            raise MigrationError(
                f"there is no group {group} among the {len(known)} in {where}: {hint}"
            )
        if self.regex is not None:
            chosen = [name for name in known if re.fullmatch(self.regex, name)]
        elif self.everything:
            chosen = list(known)
        if not chosen:
            raise MigrationError(
                f"none of the {len(known)} groups in {where} matches the selection, so nothing "
                "was checked: "
                f"{advice}"
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
            raise MigrationError("--exclude excludes every chosen group: nothing was checked")
        return chosen


def selection(command: F) -> F:
    """Add the options that choose groups, which the command receives as ``which``.

    The default is all groups of the argument PLAN, if there is one.
    """

    @wraps(command)
    def bundled(
        groups: tuple[str, ...],
        groups_from: str | None,
        groups_regex: str | None,
        exclude: tuple[str, ...],
        everything: bool = False,
        **others: Any,
    ) -> Any:
        names = groups if groups_from is None else (*groups, *_names_in(groups_from))
        planned = others.get("plan") is not None
        every = everything or (planned and not names and groups_regex is None)
        which = Selection(names, groups_regex, every, exclude, groups_from is not None)
        return command(which=which, **others)

    for option in (
        click.option("--all", "everything", is_flag=True, help="Every group."),
        click.option(
            "--exclude",
            metavar="GROUP",
            multiple=True,
            help="Exclude this group; a name or a glob such as 'test-*'. May be repeated.",
        ),
        click.option(
            "--groups-regex", metavar="RE", help="Every group whose whole name matches RE."
        ),
        click.option(
            "--groups-from",
            metavar="FILE",
            help="A file with a name or a glob on each line, or - for standard input. # begins a "
            "comment.",
        ),
        click.option(
            "--group",
            "groups",
            metavar="GROUP",
            multiple=True,
            help="A group: a name or a glob such as 'etl-*'. May be repeated.",
        ),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]


def _names_in(file: str) -> list[str]:
    """Return the names in a file, at least one. Raises PlanFileError."""
    text = read_file(file).decode("utf-8", errors="replace")
    names = [_COMMENT.sub("", line).strip() for line in text.split("\n")]
    groups = list(dict.fromkeys(filter(None, names)))
    if not groups:
        raise PlanFileError(f"{file} lists no groups: write one name per line")
    return groups


def offsets_in(file: str, which: Selection) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets of the chosen groups in a file.

    If the file has no group names, the single ``--group`` is the group. Raises OffsetsFileError,
    and MigrationError for a group that is not in the file.
    """
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for key, offset in offset_csv.parse(file, read_file(file), which.only).items():
        offsets.setdefault(key.group, {})[TopicPartition(key.topic, key.partition)] = offset
    if not offsets:
        raise OffsetsFileError([f"{file}: has no offsets"])
    chosen = which.among(sorted(offsets), file, "name groups of the file, or give --all")
    return {name: offsets[name] for name in chosen}
