"""The one way from a mapping or a properties file to checked values. Any thread may call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

from zkconsumer.config.key_table import Row
from zkconsumer.config.parse import parse
from zkconsumer.config.rules import Rule, check_rules
from zkconsumer.errors import ConfigError


class Given(NamedTuple):
    """Keys and values. ``place(key)`` is put before each message about a key: its file and line."""

    values: Mapping[str, object]
    place: Callable[[str], str] = lambda _: ""
    faults: tuple[str, ...] = ()
    """Malformed lines."""
    notes: tuple[str, ...] = ()
    """Warnings about repeated keys."""


Source = Given | Mapping[str, object] | str | PathLike[str]
"""Keys and values, or the path of a Java ``.properties`` file."""


class Examined(NamedTuple):
    """The values by attribute: all of them if there are no faults."""

    values: dict[str, Any]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a configuration object. Raises ConfigError with all faults."""
        if self.faults:
            raise ConfigError(self.faults)
        return {**self.values, "warnings": self.warnings}


def given_in(source: Source, overrides: Mapping[str, object] | None = None) -> Given:
    """Return the keys of ``source``; those of ``overrides`` take precedence.

    A value of None counts as not given. If a key occurs twice in a file, the last value counts, as
    in Java. Raises ConfigError if a file cannot be read.
    """
    changes = dict(overrides or {})
    if isinstance(source, Given):
        return source
    if isinstance(source, Mapping):
        every = {**source, **changes}
        return Given({name: value for name, value in every.items() if value is not None})
    from zkconsumer.config.properties import read_properties

    file, values, lines, notes = fspath(source), dict[str, object](), dict[str, int](), list[str]()
    entries, malformed = read_properties(source)
    for name, value, line in entries:
        if name in lines:
            notes.append(f"{file}:{line}: {name} replaces its value of line {lines[name]}")
        values[name], lines[name] = value, line

    def place(name: str) -> str:
        if name in changes:
            return ""
        return f"{file}:{lines[name]}: " if name in lines else f"{file}: "

    return Given(values | changes, place, tuple(malformed), tuple(notes))


def examine(
    rows: Sequence[Row],
    rules: Iterable[Rule],
    renamed: Mapping[str, str],
    given: Given,
    strict: bool = False,
) -> Examined:
    """Check keys and values; ``renamed`` is as in ``parse``. With ``strict`` unknown keys are
    faults."""
    parsed = parse(rows, given.values, place=given.place, renamed=renamed)
    faults, warnings = [*given.faults, *parsed.faults], [*given.notes, *parsed.warnings]
    (faults if strict else warnings).extend(parsed.unknown)
    broken, odd = check_rules(rules, parsed, given.place)
    return Examined(dict(parsed.values), (*faults, *broken), (*warnings, *odd))
