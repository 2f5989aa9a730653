"""``--rename``: other names of groups in the target store, and which groups are chosen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkmigrate.commands.options.selection import Selection
from zkmigrate.errors import MigrationError
from zkmigrate.model import Direction, Store

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])


class Rename(NamedTuple):
    """A rule that gives groups or topics new names.

    It has two names; two patterns with one ``*`` each, which stands for the same text in both; or
    a regular expression between slashes, and a text with references such as ``\\g<1>``.
    """

    old: str
    new: str

    def of(self, name: str) -> str | None:
        """Return the new name of ``name``; ``None`` if the rule does not apply to it."""
        if self.old.startswith("/"):
            found = re.fullmatch(self.old[1:-1], name)
            return None if found is None else found.expand(self.new)
        head, star, tail = self.old.partition("*")
        if not star:
            return self.new if name == self.old else None
        long = len(name) >= len(head) + len(tail)
        if not (long and name.startswith(head) and name.endswith(tail)):
            return None
        return self.new.replace("*", name[len(head) : len(name) - len(tail)])


def parse_renames(
    _context: object, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[Rename, ...]:
    """Parse the values of ``--rename`` or ``--topic-map``. Raises UsageError."""
    renames: list[Rename] = []
    for text in texts:
        if (by_regex := _parse_regex(text)) is not None:
            renames.append(by_regex)
            continue
        one = Rename(*text.partition("=")[::2])
        plain = [part.replace("*", "") for part in one]
        if (
            one.old.count("*") != one.new.count("*")
            or one.old.count("*") > 1
            or not one.new
            or "=" in one.new
            or not one.old
            or not all(not part or is_legal_group(part) for part in plain)
        ):
            raise click.UsageError(
                f"{option.opts[0]} {text}: write OLD=NEW, or with one '*' in both, as in "
                "'legacy-*=*', or /REGEX/=NEW"
            )
        renames.append(one)
    return tuple(renames)


def _parse_regex(text: str) -> Rename | None:
    """Parse a renaming by a regular expression, if it is one. Group names have no slashes."""
    old, slash, new = text.rpartition("/=")
    if not text.startswith("/") or not slash or not new:
        return None
    try:
        re.sub(old[1:], new, "")
    except (re.error, IndexError) as error:  # IndexError: a name of no group
        raise click.UsageError(f"{text}: {error}") from None
    return Rename(f"{old}/", new)


def rename_option(command: F) -> F:
    """Add ``--rename``, which the command receives as ``renames``."""
    return click.option(
        "--rename",
        "renames",
        metavar="OLD=NEW",
        multiple=True,
        callback=parse_renames,
        help="A group's name in the target, or a rule for many: 'legacy-*=*', '/(.+)-v1/=\\1'. May "
        "be repeated.",
    )(command)


def choose(
    stores: Stores,
    direction: Direction,
    which: Selection,
    renames: Sequence[Rename],
    listed: Iterable[str] | None = None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two maps: from chosen names to names in ZooKeeper, and from ZooKeeper names to Kafka
    names, if different.

    On the way back from Kafka, patterns choose only groups that were moved to Kafka, so that no
    other group in Kafka gets an old consumer's znodes. Each group gets the name that it had before
    the move. ``listed``: the chosen groups, if a file names them. Raises MigrationError.
    """
    if direction is Direction.ZK_TO_KAFKA:
        known = stores.group_names(Store.ZOOKEEPER)
        every = which.of_store(lambda: known, Store.ZOOKEEPER) if listed is None else listed
        chosen = list(every)
        return {name: name for name in chosen}, new_names(renames, chosen, known)
    moved = stores.moved_groups()
    if listed is not None:
        chosen = list(listed)
    else:
        candidates = list(dict.fromkeys([*sorted(moved), *which.names]))
        if len(which.names) < len(which.groups):  # a name may look like a glob
            there = set(stores.group_names(Store.KAFKA)).difference(candidates)
            candidates += [name for name in which.groups if name in there]
        advice = "name other groups of Kafka with --group"
        chosen = which.among(candidates, "zookeeper that were moved to kafka", advice)
    moved_as = renamed_in(moved)
    own = {name: moved_as.get(name, name) for name in chosen}
    in_kafka = {name: moved.get(own[name], name) for name in chosen}
    given = new_names(renames, dict.fromkeys(in_kafka.values()))
    own = {name: given.get(in_kafka[name], own[name]) for name in chosen}
    check_once(own)
    pairs = ((own[name], in_kafka[name]) for name in chosen)
    return own, {name: there for name, there in pairs if there != name}


def renamed_in(moved: Mapping[str, str]) -> dict[str, str]:
    """Return the ZooKeeper name of each group that has another name in Kafka.

    ``moved``: the groups that were moved, and their names in Kafka. A Kafka name that is also the
    name of a moved group is left out.
    """
    return {in_kafka: name for name, in_kafka in moved.items() if in_kafka not in moved}


def check_once(own: Mapping[str, str]) -> None:
    """Check that no two chosen names belong to the same group. Raises MigrationError."""
    twice = [name for name, count in Counter(own.values()).items() if count > 1]
    if twice:
        same = ", ".join(name for name in own if own[name] == twice[0])
        raise MigrationError(f"{same} are the same group, {twice[0]}: name it once")


def new_names(
    renames: Sequence[Rename], groups: Iterable[str], known: Iterable[str] = ()
) -> dict[str, str]:
    """Return the new names of the groups that get one. The first matching rule applies.

    ``known``: names of other groups, which must not be used. Raises MigrationError if two groups
    would have the same name, or a rule matches no group.
    """
    if not renames:
        return {}
    every = list(groups)
    names: dict[str, str] = {}
    used: set[Rename] = set()
    for name in every:
        for one in renames:
            new = one.of(name)
            if new is not None:
                used.add(one)
                if not is_legal_group(new):
                    raise MigrationError(
                        f"--rename {one.old}={one.new}: {name} would become {new!a}, "
                        "which cannot be the name of a group"
                    )
                if new != name:
                    names[name] = new
                break
    for one in renames:
        if one not in used:
            raise MigrationError(
                f"--rename {one.old}={one.new} matches none of the chosen groups: correct the name"
            )
    counts = Counter(names.get(name, name) for name in every)
    for new, count in counts.items():
        if count > 1:
            same = ", ".join(name for name in every if names.get(name, name) == new)
            raise MigrationError(f"--rename: {same} would all be called {new}: choose other names")
    others = set(known).difference(every)
    for name, new in names.items():
        if new in others:
            raise MigrationError(
                f"--rename: {name} would be called {new}, but another group has that name: "
                "choose another name"
            )
    return names
