"""Objects are complete when they are constructed: no code sets the attributes of another object."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "zkconsumer"
PLACES = (
    *("runtime/**/*.py", "broker/**/*.py", "zk/*.py"),
    *("connector.py", "coordinator.py", "migratable.py"),
)
EXCEPTIONS = {
    r".*: \w+\.__cause__": "Python's own: why an error was raised",
    r".*(security|sasl)\.py: record\.args": "a filter of logging changes the record that it gets",
    r"zk/connection\.py: (client|self\.client)\..*": "kazoo's objects, which take no such argument",
    r"runtime/.*: ([\w.]+\.)?_?info\.\w+": "each attribute's docstring names the writing thread",
    r"runtime/delivery/reader\.py: owner\.(__next__|spare)": "the generator is the iterator's code",
    r"runtime/delivery/\w*reader\.py: run\.noted": "the run of messages is the reader's own",
    r"runtime/fetch/\w+\.py: (state|share|error)\.\w+": "rows of the table and of the log",
    r"runtime/membership/\w+\.py: [\w.]+\.coordinator": "which broker a line asks, found later",
    r"runtime/membership/zookeeper\.py: running\.\w+": "a script in progress: a record of its own",
    r"runtime/observation/health\.py: \w+\.at": "a record of its own",
    r"broker/groups/group_coordinators\.py: other\._(connections|is_another)": "a copy of itself",
}
"""Where an attribute of another object is set, and why that is right."""


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to, or deletes."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            pass
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one) | ast.For(target=one):
            found = [one]
        case ast.withitem(optional_vars=ast.expr() as one):
            found = [one]
        case _:
            return []
    return [
        part for each in found for part in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]


def set_from_outside() -> Iterator[str]:
    """Each assignment to an attribute of another object: file, object and attribute."""
    for place in PLACES:
        for path in sorted(ROOT.glob(place)):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for target in targets(node):
                    if isinstance(target, ast.Attribute):
                        owner = ast.unparse(target.value)
                        if owner not in ("self", "cls"):
                            yield f"{path.relative_to(ROOT)}: {owner}.{target.attr}"


def test_no_object_is_completed_from_outside() -> None:
    """What an object needs is an argument of its constructor. Later changes are its methods."""
    found = set(set_from_outside())
    assert len(found) > 10
    unexplained = [
        line for line in sorted(found) if not any(re.fullmatch(rule, line) for rule in EXCEPTIONS)
    ]
    assert unexplained == []


def test_every_exception_is_needed() -> None:
    """An exception that nothing needs any more is removed."""
    found = set(set_from_outside())
    unneeded = [rule for rule in EXCEPTIONS if not any(re.fullmatch(rule, line) for line in found)]
    assert unneeded == []
