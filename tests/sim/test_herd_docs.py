"""The figures in the pages on the herd and on split brain are the output of their commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.pages import is_shown, shown
from zkconsumer.cli.main import cli

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
BLOCKS = [
    (page, block.command.removeprefix("zkconsumer "), block.output)
    for page in ("herd.md", "split-brain.md")
    for block in shown((DOCS / page).read_text(encoding="utf-8"))
    if block.command.startswith("zkconsumer simulate ")
]


@pytest.mark.parametrize(("page", "command", "output"), BLOCKS, ids=[b[1] for b in BLOCKS])
def test_the_page_shows_what_the_command_prints(page: str, command: str, output: str) -> None:
    """Each command's current output is what the page shows: all of it, or columns of a table."""
    found = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    is_shown(found.stdout, output)


def test_both_pages_have_such_blocks() -> None:
    """Both pages have figures from a command."""
    assert {page for page, _, _ in BLOCKS} == {"herd.md", "split-brain.md"}
