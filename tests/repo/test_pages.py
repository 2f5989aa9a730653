"""Pages that need no servers: output of commands, fresh figures, a newcomer's questions."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from tests.support.pages import is_shown, shown
from zkconsumer.cli.main import cli
from zkconsumer.core.groups import states as groups
from zkconsumer.core.zookeeper import states as zk

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXPLANATIONS = ("assignment", "coordinator")
BLOCKS = [
    (name, block.command, block.output)
    for name in EXPLANATIONS
    for block in shown((DOCS / "explanation" / f"{name}.md").read_text(encoding="utf-8"))
    if not block.mark
]
QUESTIONS = (DOCS / "questions.md").read_text(encoding="utf-8").split("|---|---|\n")[1].splitlines()


def _figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIGURES = _figures()


@pytest.mark.parametrize(("name", "command", "output"), BLOCKS, ids=[block[1] for block in BLOCKS])
def test_a_command_prints_what_the_page_shows(name: str, command: str, output: str) -> None:
    """Each block is the command's output, or the table after it has columns of it."""
    program, *words = shlex.split(command)
    if program == "python":
        printed = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    else:
        printed = CliRunner().invoke(cli, words, catch_exceptions=False).stdout
    is_shown(printed, output)


@pytest.mark.parametrize("name", sorted(FIGURES.FIGURES))
def test_a_figure_is_what_the_code_draws(name: str) -> None:
    """A figure is fresh, has light and dark colours, and is on a page."""
    drawn = FIGURES.FIGURES[name]()
    path = DOCS / "images" / name
    assert path.read_text(encoding="utf-8") == drawn, "run python docs/figures.py"
    assert "prefers-color-scheme: dark" in drawn
    assert any(f"images/{name}" in page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))


DIAGRAMS = [
    pytest.param(source, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, source in enumerate(
        re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.DOTALL)
    )
]


@pytest.mark.parametrize("source", DIAGRAMS)
def test_a_diagram_can_be_drawn_for_the_site(source: str) -> None:
    """The drawing has each participant, each message and each note of the Mermaid source."""
    drawn = ElementTree.fromstring(FIGURES.sequence(source))
    texts = [one.text or "" for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    lines = source.strip().splitlines()[1:]
    named = [line.partition(" as ")[2] for line in lines if "participant" in line]
    said = [line.partition(": ")[2] for line in lines if ": " in line]
    assert sorted(" ".join(texts).split()) == sorted(" ".join(named + said).split())
    assert len(drawn.findall("{*}polyline")) == len(named) + sum(">>" in line for line in lines)


def test_a_diagram_that_cannot_be_drawn_names_its_line() -> None:
    """Mermaid can do more than the site draws: the build ends instead of leaving a part out."""
    with pytest.raises(ValueError, match="this line of a diagram: loop each second"):
        FIGURES.sequence("sequenceDiagram\n participant A as B\n loop each second\n")


@pytest.mark.parametrize(
    ("heading", "states"), [("In ZooKeeper", zk), ("On the coordinator", groups)]
)
def test_the_page_of_states_has_every_state(heading: str, states: ModuleType) -> None:
    """The section has a row for each state of its machine."""
    page = (DOCS / "reference" / "states.md").read_text(encoding="utf-8")
    section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    assert all(f"| `{state.name}` |" in section for state in states.State)


def test_there_are_many_questions() -> None:
    """The list of a newcomer's questions is read."""
    assert len(QUESTIONS) >= 24


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row.split("|")[1].strip())
def test_a_newcomers_question_is_answered_in_two_clicks_or_one_help(row: str) -> None:
    """The index links to the list of questions. The list links to a page with the answer, or names
    a command whose help has the option."""
    _, _, answer, _ = row.split("|")
    links = re.findall(r"\]\(([^)]+)\)", answer)
    commands = re.findall(r"`((?:zkconsumer|zkmigrate) [^`]+)`", answer)
    assert links or commands
    for link in links:
        path, _, anchor = link.partition("#")
        text = (DOCS / path).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        assert not anchor or anchor in headings, link
    for command in commands:
        words = shlex.split(command)
        if words[0] == "zkmigrate":
            from zkmigrate.commands.root import cli as root
        else:
            root = cli  # type: ignore[assignment]
        found: click.Command = root
        for word in words[1:]:
            if isinstance(found, click.Group):
                found = found.get_command(click.Context(found), word) or pytest.fail(command)
            elif word.startswith("--"):
                assert any(word in option.opts for option in found.params), command


def test_the_citation_has_the_projects_version() -> None:
    """``CITATION.cff`` and ``pyproject.toml`` name the same version, which is a release's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
