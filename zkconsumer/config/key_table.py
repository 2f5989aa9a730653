"""The rows of the configuration table: `key` declares one, `rows_of` reads them back.

A row is a field of a frozen dataclass, so the table and the object that holds the values cannot
drift apart. Pure; any thread may call it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

REQUIRED: Final = "(required)"
"""The default of a key that must be given."""

Kind = Literal["int", "boolean", "string", "password", "function"]
_KINDS: Final[Mapping[str, Kind]] = {
    "int": "int",
    "bool": "boolean",
    "str": "string",
    "Password": "password",
    "Any": "function",
}
"""The type of a key, by that of its field."""
Importance = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Check:
    """A rule for one value: ``text`` for people; ``fault`` returns the fault and its fix.

    ``fault`` gets the value in its type, and returns None if the value is right.
    """

    text: str
    fault: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a default follows from another key's value, for people and for the parser."""

    text: str
    apply: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One key. ``attr`` is the attribute of the configuration object that holds its value.

    ``default_from`` names the key whose value is the default, or from which ``derive`` computes it.
    ``ignored`` says why a key has no effect.
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
        """The default for people."""
        if self.derive is not None:
            return self.derive.text
        if self.default_from is not None:
            return f"= {self.default_from}"
        if self.default is None:
            return "(none)"
        return text_of(self.default) or "(empty)"

    @property
    def status(self) -> str:
        """Support for people: supported, or accepted and ignored (why)."""
        if self.ignored is not None:
            return f"accepted, ignored: {self.ignored}"
        return "supported"


def key(
    name: str,
    doc: str,
    *,
    default: object = None,
    default_from: str | None = None,
    derive: Derivation | None = None,
    check: Check | None = None,
    importance: Importance = "medium",
    since: str = "0.8",
    ignored: str | None = None,
    lower: bool = False,
) -> Any:
    """Declare a row; to be used as the value of a dataclass field, whose type is the value's.

    ``default`` is the value in its type, ``REQUIRED``, or None for "not set". ``lower`` turns a
    value to lower case first, where the JVM does so.
    """
    return field(metadata=locals())  # each argument is a field of ``Row``


def rows_of(table: type) -> tuple[Row, ...]:
    """Return the rows of a table in the order they are declared."""
    return tuple(
        Row(attr=f.name, kind=_KINDS[str(f.type).removesuffix(" | None")], **f.metadata)
        for f in dataclasses.fields(table)
        if f.metadata
    )


def text_of(value: object) -> str:
    """Return a value as a properties file writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def at_least(smallest: int) -> Check:
    """Check for an integer that must not be smaller than this."""
    return Check(
        f"at least {smallest}",
        lambda value: None if value >= smallest else f"must be at least {smallest}",
    )


def one_of(*choices: str, fixes: Mapping[str, str] | None = None) -> Check:
    """Check that a value is one of ``choices``; ``fixes`` has the right word for wrong ones."""

    def fault(value: str) -> str | None:
        if value in choices:
            return None
        meant = (fixes or {}).get(value)
        hint = f"; write {meant}" if meant else ""
        return f"must be {' or '.join(choices)}, in this spelling{hint}"

    return Check(" or ".join(choices), fault)


def path_name(text: str) -> Check:
    """Check for a text that becomes part of a ZooKeeper path."""

    def fault(value: str) -> str | None:
        if not value:
            return "must not be empty: it names a ZooKeeper node"
        if re.fullmatch(r"[A-Za-z0-9._-]{1,255}", value) is None or value in (".", ".."):
            return "use 1 to 255 letters, digits, '.', '_' and '-' (not '.' or '..')"
        return None

    return Check(text, fault)


def word(text: str) -> Check:
    """Check for letters, digits, ``.``, ``_`` and ``-``; may be empty."""

    def fault(value: str) -> str | None:
        legal = re.fullmatch(r"[A-Za-z0-9._-]*", value)
        return None if legal else "use letters, digits, '.', '_' and '-' only"

    return Check(text, fault)
