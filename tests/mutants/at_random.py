# ruff: noqa: T201 - a command
"""Plants bugs at random, in modules for which nobody has planted one: how many do tests find?

``make held-out``, or ``.venv/bin/python -m tests.mutants.at_random SEED COUNT``. A bug is another
comparison, another operator, a condition without its ``not``, or a statement that is left out. The
tests are those that import the module, then some that import it through others and need no server,
so the whole suite may find more. Survivors are printed as an entry of a ``*.toml``. Some of them
change nothing that a user could notice. Exit status: as of ``tests.mutants.run``.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutants.run import ROOT, Mutant, Result, Trees, load, try_all, try_without

_SOURCES: Final = ("zkconsumer", "migrate/zkmigrate", "spark/zkaudit")
_SERVERS: Final = re.compile(
    r"\b(bench|cluster|shell|kraft|spark|planted|jvm|recordings?|any_bench)\b *[:,)]"
)
"""Fixtures that start servers or Spark."""
_MOST: Final = 8
"""Test files for one bug."""
_LEVELS: Final = 2
"""How many modules may be between a test file and the bug."""
_OTHER: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def _module(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in ("migrate", "spark") else parts)


@cache
def _imports(path: Path) -> frozenset[str]:
    """Return the names that a file imports, with those of their modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def _files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def _tests(servers: bool) -> list[Path]:
    """Return the test files; without ``servers``, those that need none."""
    files = [path for path in _files("tests") if path.name.startswith("test_")]
    return [one for one in files if servers or not _SERVERS.search(one.read_text("utf-8"))]


def tests_of(path: Path) -> tuple[str, ...]:
    """Return the test files that a developer would run after a change of a module."""
    names = {_module(path)}
    found = [file for file in _tests(servers=True) if names & _imports(file)]
    for _ in range(_LEVELS):
        names |= {_module(file) for file in _files(*_SOURCES) if names & _imports(file)}
        found += [
            file for file in _tests(servers=False) if file not in found and names & _imports(file)
        ]
    quick = _tests(servers=False)
    found = sorted(found[:_MOST], key=lambda file: file not in quick)
    return tuple(str(file.relative_to(ROOT)) for file in found)


def bugs(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the replacement of each change of a source."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    raw = text.encode()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left, [operator], [right]) if type(operator) in _OTHER:
                left_end, right_start = place(left)[1], place(right)[0]
                if b"(" not in raw[left_end:right_start] and b")" not in raw[left_end:right_start]:
                    yield left_end, right_start, f" {_OTHER[type(operator)]} "
            case ast.BoolOp(operator, [first, second]):
                between = place(first)[1], place(second)[0]
                word = b"and" if isinstance(operator, ast.And) else b"or"
                if raw[slice(*between)].strip() == word:
                    yield *between, f" {'or' if word == b'and' else 'and'} "
            case ast.UnaryOp(ast.Not(), operand):
                yield place(node)[0], place(operand)[0], ""
            case ast.Expr(ast.Call()) | ast.AugAssign():
                yield *place(node), "pass"


def plant(path: Path, rng: random.Random, name: str) -> Mutant | None:
    """Return a bug in a module; ``None`` if it has no place for one, or no tests."""
    text = path.read_text(encoding="utf-8")
    tests, places = tests_of(path), list(bugs(text))
    if not tests or not places:
        return None
    raw = text.encode()
    start, end, new = rng.choice(places)
    first, last = raw.rfind(b"\n", 0, start), raw.find(b"\n", end)
    while raw.count(raw[first:last]) > 1 and first > 0:
        first = raw.rfind(b"\n", 0, first)
    old, planted = raw[first:last], raw[first:start] + new.encode() + raw[end:last]
    file = str(path.relative_to(ROOT))
    return Mutant(name, file, old.decode(), planted.decode(), tests)


def choose(seed: int, count: int) -> list[Mutant]:
    """Return this number of bugs, each in another module."""
    rng = random.Random(seed)
    known = {ROOT / mutant.file for mutant in load()}
    paths = [path for path in _files(*_SOURCES) if path not in known and path.stem != "__init__"]
    rng.shuffle(paths)
    found = (plant(path, rng, f"{seed}-{number}") for number, path in enumerate(paths))
    return [mutant for mutant, _ in zip(filter(None, found), range(count), strict=False)]


def main(arguments: list[str]) -> int:
    """Run the command."""
    seed, count = map(int, arguments or ["1", "60"])
    mutants = choose(seed, count)

    def show(result: Result) -> None:
        print(f"{result.seconds:6.1f} s  {result.name} {result.file}: {result.outcome}", flush=True)

    with tempfile.TemporaryDirectory(prefix="held-out-") as folder:
        trees = Trees(Path(folder), 2)
        results = try_all(trees, mutants, show)
        # A test that fails without a bug has found none.
        failed = {result.by.partition("[")[0] for result in results if result.by}
        wrong = try_without(trees, [replace(mutants[0], tests=(*failed,))]) if failed else []
        if wrong:
            print(*wrong, "error: these tests fail without a bug", sep="\n", file=sys.stderr)
            return 1
    for mutant, result in zip(mutants, results, strict=True):
        if not result.good:
            print(f"\n[[mutant]]\nname = {mutant.name!r}\nfile = {mutant.file!r}")
            print(f"old = '''{mutant.old}'''\nnew = '''{mutant.new}'''\ntests = {[*mutant.tests]}")
    found = sum(result.good for result in results)
    print(f"seed {seed}: {found} of {len(results)} bugs were found")
    return int(found < len(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
