"""Reads Java ``.properties`` files as ``java.util.Properties`` does.

Comments (``#``, ``!``), continued lines, ``=``, ``:`` or blanks between key and value, escapes.
The file is read as UTF-8, or as ISO-8859-1 when it is not valid UTF-8. Any thread may call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from zkconsumer.errors import ConfigError

_BLANKS = " \t\f"
_ENTRY = re.compile(r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Entry(NamedTuple):
    """One property, and the number of the line on which it starts, counted from 1."""

    key: str
    value: str
    line: int


def read_properties(path: str | PathLike[str]) -> tuple[list[Entry], list[str]]:
    """Return a file's properties in order, repeated keys included, and its malformed lines.

    Malformed lines are given as texts that name file and line. Raises ConfigError naming the file
    if it is unreadable.
    """
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{path}: cannot read the properties file: {reason}"]) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("iso-8859-1")
    entries: list[Entry] = []
    faults: list[str] = []
    for number, line in _logical_lines(text):
        parts = _ENTRY.match(line)
        assert parts is not None  # every part of the expression may be empty
        try:
            entries.append(Entry(_unescape(parts["key"]), _unescape(parts["value"]), number))
        except ValueError as error:
            faults.append(f"{path}:{number}: {error}")
    return entries, faults


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that holds a property, after joining continued lines."""
    joined = ""
    start = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = natural.lstrip(_BLANKS)
        if not joined:  # also after a line of just a backslash, as in Java
            if not line or line[0] in "#!":
                continue
            start = number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued:
            yield start, joined
            joined = ""
    if joined:
        yield start, joined


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] != "u":
            return _CONTROLS.get(escaped, escaped)
        if len(escaped) == 1:
            raise ValueError(
                r"\u is not followed by four hexadecimal digits: add them, or write \\u for \u"
            )
        return chr(int(escaped[1:], 16))

    return _ESCAPE.sub(replace, text)
