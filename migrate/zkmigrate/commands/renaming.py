"""``--rename``: groups that have another name in the target store. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import click

from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkmigrate.errors import MigrationError


class Rename(NamedTuple):
    """Two names, or two patterns with one ``*`` each, which stands for the same text in both."""

    old: str
    new: str

    def of(self, name: str) -> str | None:
        """Return a group's new name; ``None`` if the renaming does not apply to that group."""
        head, star, tail = self.old.partition("*")
        if not star:
            return self.new if name == self.old else None
        if len(name) < len(head) + len(tail) or not fnmatchcase(name, self.old):
            return None
        return self.new.replace("*", name[len(head) : len(name) - len(tail)])


def parse_renames(_context: object, _option: object, texts: tuple[str, ...]) -> tuple[Rename, ...]:
    """Parse the option's values. Raises UsageError."""
    found: list[Rename] = []
    for text in texts:
        one = Rename(*text.partition("=")[::2])
        plain = [part.replace("*", "") for part in one]
        if (
            one.old.count("*") != one.new.count("*")
            or one.old.count("*") > 1
            or not one.new
            or not one.old
            or not all(not part or is_legal_topic(part) for part in plain)
        ):
            raise click.UsageError(
                f"--rename {text}: write OLD=NEW, or with one '*' in both, as in 'legacy-*=*'"
            )
        found.append(one)
    return tuple(found)


def new_names(renames: Sequence[Rename], groups: Iterable[str]) -> dict[str, str]:
    """Return the new names of the groups that have one. The first rule that matches a group counts.

    Raises MigrationError when two groups would have the same name, or a rule matches no group.
    """
    if not renames:
        return {}
    every = list(groups)
    found: dict[str, str] = {}
    used: set[Rename] = set()
    for name in every:
        for one in renames:
            new = one.of(name)
            if new is not None:
                used.add(one)
                if not is_legal_topic(new):
                    raise MigrationError(
                        f"--rename {one.old}={one.new}: {name} would become {new!a}, "
                        "which cannot be the name of a group"
                    )
                if new != name:
                    found[name] = new
                break
    for one in renames:
        if one not in used:
            raise MigrationError(
                f"--rename {one.old}={one.new} matches none of the chosen groups: correct the name"
            )
    counts = Counter(found.get(name, name) for name in every)
    for new, count in counts.items():
        if count > 1:
            same = ", ".join(name for name in every if found.get(name, name) == new)
            raise MigrationError(f"--rename: {same} would all be called {new}: choose other names")
    return found
