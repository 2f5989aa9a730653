"""Converts texts or typed values to the values of a configuration table. Reports all faults.

It works on any table; the keys are in `zkconsumer.config.keys`. Pure; any thread may call it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.config.key_table import REQUIRED, Row, text_of
from zkconsumer.config.values import HIDDEN, Password

_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Values by attribute (all of them if there are no faults), and messages about them.

    ``given`` has the attributes that were set and not derived; ``unknown`` has a line for each
    unknown key.
    """

    values: Mapping[str, object]
    given: frozenset[str]
    faults: tuple[str, ...]
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


def parse(
    rows: Sequence[Row],
    given: Mapping[str, object],
    *,
    place: Callable[[str], str],
    renamed: Mapping[str, str],
) -> Parsed:
    """Check the given keys against the table, and add the others' defaults.

    ``place(key)`` is put before each message about a key (file and line, or nothing). ``renamed``
    maps names from other tools to ours. A value of None counts as not given. Keys that start with
    ``external`` are never called unknown, as in Scala VerifiableProperties.
    """
    values: dict[str, object] = {}
    faults: list[str] = []
    warnings: list[str] = []
    unknown: list[str] = []
    present = {name: value for name, value in given.items() if value is not None}
    known = [row.name for row in rows]
    nearest = {
        name: nearest_key(name, known, renamed)
        for name in present
        if name not in known and not name.startswith("external")
    }
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
        unknown.append(f"{place(name)}{name} is not a known key and has no effect: {hint}")
    attrs = frozenset(row.attr for row in rows if row.name in present)
    return Parsed(values, attrs, tuple(faults), tuple(warnings), tuple(unknown))


def nearest_key(name: str, known: Collection[str], renamed: Mapping[str, str]) -> str | None:
    """Return the known key that was probably meant, or None."""
    plain = {re.sub(r"[._-]", "", key.lower()): key for key in known}
    wanted = re.sub(r"[._-]", "", name.lower())
    if name in renamed:
        return renamed[name]
    close = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.7)
    return plain[close[0]] if close else None


def _typed(row: Row, raw: object) -> tuple[object, str | None]:
    """The value in its type and None, or the fault."""
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
