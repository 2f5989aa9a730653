"""Commands on the pages of docs/, and what a page shows of their output."""

from __future__ import annotations

import re
import textwrap
from typing import Final, NamedTuple

COLUMN: Final = 90
"""Characters of a code block that fit into the column of the site."""

_SHOWN = re.compile(
    r"(?:<!-- test: (?P<mark>.+?) -->\n)?```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n"
    r"(?P<output>.*?)```\n(?P<table>\n(?:\|[^\n]*\n)+)?",
    re.DOTALL,
)


class Shown(NamedTuple):
    """A command and what the page shows of its output.

    Attributes:
        mark: the comment before the block, without which it is empty.
        command: one line.
        output: the rest of the block. If there is none, the Markdown table after it.
    """

    mark: str
    command: str
    output: str


def shown(page: str) -> list[Shown]:
    """The console blocks of a page that begin with a command."""
    found = []
    for block in _SHOWN.finditer(page):
        command = re.sub(r"\\\n\s*", "", block["command"])
        output = block["output"] or (block["table"] or "").lstrip("\n")
        found.append(Shown(block["mark"] or "", command, output))
    return found


def wrapped(text: str) -> list[str]:
    """The lines of an output as pages show them.

    A line that is longer than the column continues on the next one, four characters further in.
    """
    lines = []
    for line in text.rstrip().splitlines():
        inner = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(
            line,
            COLUMN,
            subsequent_indent=inner,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return lines


def is_shown(printed: str, output: str) -> None:
    """Assert that a page shows what a command printed.

    A line of ``...`` stands for lines that the page leaves out. A Markdown table has some columns
    of the printed table, and may have commas in numbers.
    """
    expected = [line.rstrip() for line in output.strip().splitlines()]
    if expected[0].startswith("|"):
        names, _, *rows = [
            [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
            for line in expected
        ]
        header, *lines = [line.split() for line in printed.strip().splitlines()]
        found = [dict(zip(header, cells, strict=True)) for cells in lines]
        assert rows == [[row[name] for name in names] for row in found]
        return
    actual = "\n".join(line.rstrip() for line in wrapped(printed.strip()))
    pattern = "\n".join(".*" if line == "..." else re.escape(line) for line in expected)
    assert re.fullmatch(pattern, actual, re.DOTALL), actual
