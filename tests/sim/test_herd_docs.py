"""The figures in the pages on the herd and on split brain are the output of their commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from zkconsumer.cli.main import cli

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
BLOCKS = [
    (page, command, output)
    for page in ("herd.md", "split-brain.md")
    for command, output in re.findall(
        r"```console\n\$ zkconsumer (simulate [^\n]*)\n(.*?)```",
        (DOCS / page).read_text(encoding="utf-8"),
        re.DOTALL,
    )
]


@pytest.mark.parametrize(("page", "command", "output"), BLOCKS, ids=[b[1] for b in BLOCKS])
def test_the_page_shows_what_the_command_prints(page: str, command: str, output: str) -> None:
    """Each block of a command and its output equals the command's current output."""
    found = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    printed = re.sub(r"[ \t]+$", "", found.stdout, flags=re.MULTILINE).rstrip()
    expected = re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE).rstrip()
    assert printed == expected, f"{page}: run zkconsumer {command}"


def test_both_pages_have_such_blocks() -> None:
    """Both pages have figures from a command."""
    assert {page for page, _, _ in BLOCKS} == {"herd.md", "split-brain.md"}
