"""The configuration table: how its rows are declared, and how texts become checked values.

`key` declares a row, `rows_of` reads them back. A row is a field of a frozen dataclass, so table
and configuration object cannot differ. `examine` turns a mapping or a properties file into checked
values and reports all faults. It works on any table; the keys are in `zkconsumer.config.keys`. Any
thread may call it.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Final, Literal, NamedTuple

from zkconsumer.config.values import HIDDEN, Password
from zkconsumer.errors import ConfigError

REQUIRED: Final = "(required)"
"""The default of a key that must be given."""
OWN: Final = "zkconsumer"
"""Where a key is from, in place of a version of Kafka."""

Kind = Literal["int", "boolean", "string", "password", "function"]
_KINDS: Final[Mapping[str, Kind]] = {
    "int": "int",
    "bool": "boolean",
    "str": "string",
    "Password": "password",
    "Any": "function",
}
"""Kind of a key by the type of its field."""
Importance = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Check:
    """A rule for one value. ``text``: its description. ``fault`` gets the typed value, and returns
    the fault and its fix, or None if the value is valid."""

    text: str
    fault: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a default is derived from another key's value, as text and as a function."""

    text: str
    apply: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One key. ``attr`` is the attribute of the configuration object that holds its value.

    ``default_from`` names the key whose value is the default, or from whose value ``derive``
    computes it. ``ignored`` says why a key has no effect.
    """

    name: str
    attr: str
    kind: Kind
    default: object
    default_from: str | None
    derive: Derivation | None
    check: Check | None
    importance: Importance
    since: str
    doc: str
    ignored: str | None
    lower: bool

    @property
    def default_text(self) -> str:
        """The default as shown in the reference."""
        if self.derive is not None:
            return self.derive.text
        if self.default_from is not None:
            return f"= {self.default_from}"
        if self.default is None:
            return "(none)"
        return text_of(self.default) or "(empty)"

    @property
    def status(self) -> str:
        """How the key is supported: ``supported``, or ``accepted, ignored`` with the reason."""
        if self.ignored is not None:
            return f"accepted, ignored: {self.ignored}"
        return "supported"


def key(
    doc: str,
    *,
    name: str | None = None,
    default: object = None,
    default_from: str | None = None,
    derive: Derivation | None = None,
    check: Check | None = None,
    importance: Importance = "medium",
    since: str = "0.8",
    ignored: str | None = None,
    lower: bool = False,
) -> Any:
    """Declare a row, as the value of a dataclass field. The field has the type and the name of the
    key, with ``_`` for ``.`` and without the prefix ``zkconsumer.`` (if ``since`` is ``OWN``).

    ``name`` is for a key with another name. ``default`` is the value in its type, ``REQUIRED``, or
    None for "not set". ``lower`` converts a value to lower case first, for keys where the JVM does
    so.
    """
    return field(metadata=locals())  # each argument is a field of ``Row``


def rows_of(table: type) -> tuple[Row, ...]:
    """Return the rows of a table in the order in which they are declared."""
    return tuple(
        Row(
            **{**f.metadata, "name": f.metadata["name"] or _key_of(f.name, f.metadata["since"])},
            attr=f.name,
            kind=_KINDS[str(f.type).removesuffix(" | None")],
        )
        for f in dataclasses.fields(table)
        if f.metadata
    )


def _key_of(attr: str, since: str) -> str:
    return (f"{OWN}." if since == OWN else "") + attr.replace("_", ".")


def text_of(value: object) -> str:
    """Return a value as it is written in a properties file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def at_least(smallest: int) -> Check:
    """Return a check that an integer is at least ``smallest``."""
    return Check(
        f"at least {smallest}",
        lambda value: None if value >= smallest else f"must be at least {smallest}",
    )


def one_of(*choices: str, fixes: Mapping[str, str] | None = None) -> Check:
    """Return a check that a value is one of ``choices``. ``fixes`` maps wrong to correct values."""

    def fault(value: str) -> str | None:
        if value in choices:
            return None
        meant = (fixes or {}).get(value)
        hint = f"; write {meant}" if meant else ""
        return f"must be {' or '.join(choices)}, in this spelling{hint}"

    return Check(" or ".join(choices), fault)


def path_name(text: str) -> Check:
    """Return a check of a text that becomes part of a ZooKeeper path."""

    def fault(value: str) -> str | None:
        if not value:
            return "must not be empty: it names a ZooKeeper node"
        if re.fullmatch(r"[A-Za-z0-9._-]{1,255}", value) is None or value in (".", ".."):
            return "use 1 to 255 letters, digits, '.', '_' and '-' (not '.' or '..')"
        return None

    return Check(text, fault)


def word(text: str) -> Check:
    """Return a check that a text has only letters, digits, ``.``, ``_`` and ``-``, or is empty."""

    def fault(value: str) -> str | None:
        legal = re.fullmatch(r"[A-Za-z0-9._-]*", value)
        return None if legal else "use letters, digits, '.', '_' and '-' only"

    return Check(text, fault)


_INT32 = range(-(2**31), 2**31)


def nearest_key(name: str, known: Collection[str], renamed: Mapping[str, str]) -> str | None:
    """Return the known key that was probably meant; ``None`` if no key is similar."""
    plain = {re.sub(r"[._-]", "", key.lower()): key for key in known}
    wanted = re.sub(r"[._-]", "", name.lower())
    if name in renamed:
        return renamed[name]
    close = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _typed(row: Row, raw: object) -> tuple[object, str | None]:
    """Return the typed value and None, or None and the fault."""
    value: object = raw.strip() if isinstance(raw, str) else raw
    if row.lower and isinstance(value, str):
        value = value.lower()
    if row.kind == "int":
        if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,20}", value):
            value = int(value)
        if type(value) is not int or value not in _INT32:
            return None, "must be a whole number of at most 32 bits"
    elif row.kind == "boolean":
        value = {"true": True, "false": False}.get(value, value) if type(value) is str else value
        if type(value) is not bool:
            return None, "must be true or false, in lower case"
    elif row.kind == "password":
        value = Password(value) if isinstance(value, str) else value
        if not isinstance(value, Password):
            return None, f"must be a text, not {type(value).__name__}"
    elif row.kind == "function":
        pass  # its check knows
    elif not isinstance(value, str):
        return None, f"must be a text, not {type(value).__name__}"
    fault = row.check.fault(value) if row.check is not None else None
    return value, fault


def _shown(value: object) -> str:
    text = text_of(value)
    if not isinstance(value, str | int) or not text.isprintable() or text != text.strip():
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


class Rule(NamedTuple):
    """A check that involves several keys: see ``rule``."""

    key: str
    text: str
    fatal: bool
    broken: Callable[[Mapping[str, Any], frozenset[str]], str | None]


def rule(
    key: str, text: str, *, fatal: bool = True
) -> Callable[[Callable[[Mapping[str, Any], frozenset[str]], str | None]], Rule]:
    """Declare a rule. ``text``: its description. ``key``: the key to change.

    The decorated function returns one line that describes the fault, or None. It gets the values by
    attribute, and the attributes that were set. A rule that needs an invalid value is skipped.
    """
    return lambda broken: Rule(key, text, fatal, broken)


class Given(NamedTuple):
    """Keys and values. ``place(key)``: the key's file and line, put before messages about it."""

    values: Mapping[str, object]
    place: Callable[[str], str] = lambda _: ""
    faults: tuple[str, ...] = ()
    """Lines that are malformed."""
    notes: tuple[str, ...] = ()
    """Warnings about repeated keys."""


Source = Given | Mapping[str, object] | str | PathLike[str]
"""Keys and values, or the path of a Java ``.properties`` file."""


class Examined(NamedTuple):
    """The values by attribute, complete only if there are no faults."""

    values: dict[str, Any]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for a configuration object. Raises ConfigError with all faults."""
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
    """Check keys and values against a table, and add defaults for the other keys.

    ``renamed`` maps other tools' names to this table's. A value of None counts as not given. With
    ``strict``, unknown keys are faults. Keys that start with ``external`` are never reported as
    unknown, as in Scala VerifiableProperties.
    """
    faults, warnings, place = [*given.faults], [*given.notes], given.place
    present = {name: value for name, value in given.values.items() if value is not None}
    known = [row.name for row in rows]
    nearest = {
        name: nearest_key(name, known, renamed)
        for name in present
        if name not in known and not name.startswith("external")
    }
    values: dict[str, Any] = {}
    for row in rows:
        if row.name in present:
            value, fault = _typed(row, present[row.name])
            if fault is None:
                values[row.attr] = value
                if row.ignored is not None:
                    warnings.append(f"{place(row.name)}{row.name} has no effect: {row.ignored}")
            else:
                shown = HIDDEN if row.kind == "password" else _shown(present[row.name])
                faults.append(f"{place(row.name)}{row.name}={shown}: {fault}")
        elif row.default is REQUIRED:
            meant = [name for name, near in nearest.items() if near == row.name]
            hint = f" (found {meant[0]}: is that what you meant?)" if meant else ""
            what = row.doc.split(". ")[0]
            faults.append(f"{place('')}{row.name} is missing{hint}; set it: {what}")
        elif row.default_from is None:
            values[row.attr] = row.default
    for row in rows:  # a default may come from a key that itself has a derived default
        if row.default_from is not None and row.name not in present:
            source = next(r for r in rows if r.name == row.default_from)
            if source.attr in values:
                value = values[source.attr]
                values[row.attr] = value if row.derive is None else row.derive.apply(value)
    for name, near in nearest.items():
        hint = f"did you mean {near}?" if near else "`zkconsumer config` lists all keys"
        unknown = f"{place(name)}{name} is not a known key and has no effect: {hint}"
        (faults if strict else warnings).append(unknown)
    attrs = frozenset(row.attr for row in rows if row.name in present)
    for fatal, text in _broken(rows, rules, values, attrs, place):
        (faults if fatal else warnings).append(text)
    return Examined(values, tuple(faults), tuple(warnings))


def _broken(
    rows: Iterable[Row],
    rules: Iterable[Rule],
    values: Mapping[str, Any],
    given: frozenset[str],
    place: Callable[[str], str],
) -> Iterator[tuple[bool, str]]:
    for each in rules:
        try:
            broken = each.broken(values, given)
        except KeyError as missing:
            if missing.args[0] not in {row.attr for row in rows}:
                raise
            continue
        if broken is not None:
            yield each.fatal, place(each.key) + broken
