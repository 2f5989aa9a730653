"""What a test replaces in the product exists, so that a rename cannot leave a plant behind."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parents[1]
PRODUCTS = ("zkconsumer", "zkmigrate", "zkaudit", "tests")


def imported(tree: ast.Module) -> dict[str, Any]:
    """Our modules, classes and functions that a file imports, by the name it uses."""
    names: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.split(".")[0] in PRODUCTS:
            module = importlib.import_module(node.module)
            for alias in node.names:
                names[alias.asname or alias.name] = (
                    getattr(module, alias.name)
                    if hasattr(module, alias.name)
                    else importlib.import_module(f"{node.module}.{alias.name}")
                )
    return names


def patched(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Each ``setattr(object, "name", ...)`` of a file that does not allow a missing name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.expr() as owner, ast.Constant(value=str() as name), *_],
                keywords=named,
            ) if not any(word.arg == "raising" for word in named):
                yield owner, name


def missing() -> Iterator[str]:
    """Each replaced name that its object does not have: file, object and name."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "setattr(" not in text:
            continue
        tree = ast.parse(text)
        found = list(patched(tree))
        if not found:
            continue
        names = imported(tree)
        for owner, name in found:
            root, *parts = ast.unparse(owner).split(".")
            if not isinstance(names.get(root), type | ModuleType):
                continue  # an object of the test, or a fixture
            value = names[root]
            for part in parts:
                value = getattr(value, part, None)
            if not hasattr(value, name):
                yield f"{path.relative_to(TESTS)}: {ast.unparse(owner)}.{name}"


def test_what_a_test_replaces_exists() -> None:
    """Planted bugs and fakes name functions of the product, which are renamed or removed."""
    assert not list(missing())
