"""Promises about the pages in docs/: generated pages are fresh, links work, names exist."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import zkconsumer
from tests.support.pages import COLUMN
from zkconsumer.core.common.faults import Trouble

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(DOCS))  # as for a script
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = _generator()


def _code() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "zkconsumer").rglob("*.py")))


@pytest.mark.parametrize("name", sorted(GENERATE.PAGES))
def test_generated_pages_are_fresh(name: str) -> None:
    """A generated page equals the current output of ``python docs/generate.py``."""
    checked_in = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert checked_in == GENERATE.PAGES[name](), f"{name} is stale: run python docs/generate.py"


def test_deviations_in_code_and_page_are_the_same() -> None:
    """Each numbered deviation is in the table and in a comment of the code, without missing
    numbers."""
    listed = re.findall(
        r"^\| DEVIATION-(\d\d) \|", _page("explanation/deviations.md"), re.MULTILINE
    )
    commented = re.findall(r"# DEVIATION-(\d\d): ", _code())
    assert listed == [f"{number:02d}" for number in range(1, len(listed) + 1)]
    assert sorted(set(commented)) == listed


def test_commands_that_install_work_without_a_package_index() -> None:
    """No distribution of this name is published, so the texts install from a clone or a wheel."""
    folders = ("zkconsumer", "migrate", "spark", "docs")
    found = [path for name in folders for path in (ROOT / name).rglob("*")]
    texts = [path for path in [*PAGES, *found] if path.suffix in (".py", ".md")]
    wrong = [
        str(path.relative_to(ROOT))
        for path in texts
        if re.search(r"pip install '?zkconsumer(\[|'|$)", path.read_text(encoding="utf-8"))
    ]
    assert not wrong


def test_the_znodes_page_names_every_znode_that_the_code_does() -> None:
    """Every path that the library or a tool builds is on the page, which claims to list all of
    them."""
    page = _page("reference/znodes.md")
    code = [
        *(ROOT / "zkconsumer" / "admin").glob("*.py"),
        *(ROOT / "zkconsumer" / "zk").glob("*.py"),
    ]
    code += [
        ROOT / "zkconsumer" / "core" / "zookeeper" / "znodes.py",
        ROOT / "migrate" / "zkmigrate" / "stores" / "migration_marker.py",
    ]
    names = set()
    for path in code:
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        for text in (str(node.value) for node in texts if id(node) not in docs):
            names.update([] if " " in text else re.findall(r"/([a-z]+)", text))
    assert {"ids", "owners", "offsets", "topics", "partitions", "state"} <= names
    assert not {name for name in names if f"/{name}" not in page}


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_page_of_symptoms_has_each_reason_of_health() -> None:
    """A user who sees a reason in ``health()`` finds there what to do."""
    page = _page("how-to/troubleshoot.md").partition("## The health check says")[2]
    assert [trouble.label for trouble in Trouble if f"`{trouble.label}`" not in page] == []


def test_each_symptom_has_a_command_or_says_what_to_do() -> None:
    """A section of the page of symptoms has the command to run, or a table of what to do."""
    _, *sections = _page("how-to/troubleshoot.md").split("\n## ")
    assert len(sections) > 10
    assert not [
        part.splitlines()[0] for part in sections if not re.search("```sh|What to do", part)
    ]


def test_no_page_is_an_orphan() -> None:
    """Every page of docs/ is linked from the README or from another page."""
    linked = set()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                linked.add((page.parent / target).resolve())
    orphans = [page for page in sorted(DOCS.rglob("*.md")) if page.resolve() not in linked]
    assert orphans == []


def test_the_scala_map_names_what_exists() -> None:
    """Names in the map that are Python classes or functions can be imported."""
    names = set()
    page = _page("reference/scala-map.md")
    for dotted in re.findall(r"`(zkconsumer\.[\w.]+)`", page):
        assert pkgutil.resolve_name(dotted) is not None
    for row in page.splitlines():
        cells = row.split("|")
        if len(cells) > 2:
            names.update(re.findall(r"`([A-Z][A-Za-z]+|\w+_decoder)", cells[2]))
    assert len(names) > 15
    assert names <= set(zkconsumer.__all__)


def test_the_file_map_names_what_exists() -> None:
    """Paths in the internals page exist."""
    tables = _page("explanation/internals.md").split("## File map")[1].split("## Threads")[0]
    for part, table in zip(
        ("zkconsumer", "spark/zkaudit"), tables.split("## The audit"), strict=True
    ):
        rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        assert rows
        for row in rows:
            first, *others = re.findall(r"`([^`]+)`", row)
            assert list((ROOT / part).glob(first)), first
            for other in others:
                assert list((ROOT / part / first).parent.glob(other)), other


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_compile(page: Path) -> None:
    """Every Python block is valid Python."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        compile(block, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_fit_into_the_column(page: Path) -> None:
    """No line of a block is cut off on the site: the column has room for so many characters."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```(.*)\n([\s\S]*?)^\1```$", text, re.MULTILINE)
    lines = [
        line.removeprefix(indent)
        for indent, language, body in blocks
        if language != "mermaid" and not language.startswith("{")
        for line in body.splitlines()
    ]
    assert [line for line in lines if len(line) > COLUMN] == []
