"""Command lines in the documentation: each one is accepted by the program that it names.

Other tests run commands of many pages. Here they are only parsed, so a page cannot name a command
or an option that does not exist, leave out a required one, or use a wrong value. Targets of
``make`` and modules after ``python -m`` exist.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from zkaudit.cli import one_value_each
from zkaudit.commands.root import cli as audit_cli
from zkmigrate.commands.root import cli as migrate_cli

from zkconsumer.cli.main import cli

ROOT = Path(__file__).parents[2]
ROOTS: dict[str, click.Command] = {
    "zkconsumer": cli,
    "zkmigrate": migrate_cli,
    "zkaudit": audit_cli,
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not page.name.endswith("cli.md")),
]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
_BLOCK = re.compile(r"^( *)```(?:sh|console|bash)\n(.*?)^\1```", re.S | re.M)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


def lines(text: str, prompt: bool) -> Iterator[str]:
    """The commands of a block. With ``prompt``, all other lines are output."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        if prompt and not line.lstrip().startswith("$ "):
            continue
        yield line.strip().removeprefix("$ ")


def commands(line: str) -> Iterator[list[str]]:
    """The words of each program that a line starts: behind ``|``, ``&&`` and ``;`` too."""
    plain = re.sub(r"\$\([^)]*\)", "value", line)
    plain = re.sub(r"(?<![<\w])<[A-Z][^>]*>|\$\{[^}]*\}|\$[A-Z_]+", "value", plain)
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:  # a quotation that continues on the next line: our commands have none
        return
    skip = False
    for token in [*tokens, ";"]:
        if skip:
            skip = False
        elif set(token) <= set("<>"):
            skip = True
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif set(token) <= set("|&;<>"):
            while words and re.fullmatch(r"[A-Z_]+=.*|exec|time|sudo", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(token)


def found(page: Path) -> Iterator[tuple[str, bool]]:
    """Lines of a page's blocks, and pieces of code in its text; whether it is from a block."""
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        body = re.sub(f"^{block[1]}", "", block[2], flags=re.M)
        prompt = any(line.startswith("$ ") for line in body.splitlines())
        for line in lines(body, prompt):
            yield line, True
    for code in _INLINE.finditer(re.sub(r"```.*?```", "", text, flags=re.S)):
        yield code[1].replace("\n", " "), False


def parse(root: str, words: list[str], whole: bool) -> None:
    """Parse the words as the program does. Without ``whole``, values may be missing or stand for
    others: only commands and options are looked at.

    Raises click's errors.
    """
    words = one_value_each(words) if root == "zkaudit" else words
    command, name, rest = ROOTS[root], root, words
    parent: click.Context | None = None
    while True:
        context = click.Context(command, parent, info_name=name, **command.context_settings)
        if isinstance(command, click.Group):
            taken = command.make_parser(context).parse_args(list(rest))[1]
            if not taken or {"--help", "-h", "--version"} & set(rest):
                return
            name, rest, parent = taken[0], taken[1:], context
            sub = command.get_command(context, name)
            if sub is None:
                raise click.UsageError(f"{root} has no command {name}")
            command = sub
            continue
        if {"--help", "-h"} & set(rest):
            return
        try:
            command.parse_args(context, list(rest))
        except click.NoSuchOption:
            raise
        except click.UsageError:
            if whole:
                raise
        return


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file has to exist, and no callback reads one. A page may set the environment first."""
    monkeypatch.setenv("ZKCONSUMER_ZOOKEEPER", "localhost:2181")
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    monkeypatch.setattr(click.File, "convert", lambda self, value, param, ctx: value)
    for root in ROOTS.values():
        for command in every(root):
            for param in command.params:
                if param.name != "help":
                    monkeypatch.setattr(param, "callback", None)


def every(command: click.Command) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            assert sub is not None
            yield from every(sub)


def check(words: list[str], whole: bool) -> str | None:
    """Return what is wrong with a command, if anything is."""
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program in ("python", "python3") and rest[:1] == ["-m"] and len(rest) > 1:
        module = rest[1]
        if module in ROOTS:
            program, rest = module, rest[2:]
        elif module.startswith(("zk", "tests.")):
            return None if importlib.util.find_spec(module) else f"no module {module}"
    if program == "make":
        named = [word for word in rest if re.fullmatch("[a-z][a-z-]*", word)]
        return next((f"no target {word}" for word in named if word not in TARGETS), None)
    if program not in ROOTS:
        return None
    if any(word in ("...", "…") for word in rest):  # the page leaves something out
        rest, whole = [word for word in rest if word not in ("...", "…")], False
    try:
        parse(program, rest, whole)
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.usefixtures("only_parse")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_of_a_page_is_accepted(page: Path) -> None:
    """Commands and options exist, and their values can be read."""
    faults = []
    for line, block in found(page):
        for words in commands(line):
            if fault := check(words, block):
                faults.append(f"{line}\n    {fault}")
    assert not faults, "\n".join(faults)


@pytest.mark.usefixtures("only_parse")
@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("zkconsumer consum --group g", "no command consum"),
        ("cat x | zkconsumer groups list --al", "No such option"),
        ("X=1 zkmigrate plan --group", "requires an argument"),
        ("zkconsumer top --every never", "never"),
        ("make no-such-target", "no target"),
        ("python -m tests.no_such_module", "no module"),
    ],
)
def test_a_wrong_command_is_noticed(line: str, fault: str) -> None:
    """The check finds what it is for."""
    found: list[Any] = [check(words, True) for words in commands(line)]
    assert any(fault in str(one) for one in found), found
