"""The page of the Python API: it lists what ``zkconsumer`` exports, by name."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import zkconsumer
from zkconsumer import KafkaStream, ZkConsumerError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"^\.\. auto(?:class|function):: (?P<place>[\w.]+)\.(?P<name>\w+)(?P<bare>\(\))?"
    r"(?:\n   :members:(?P<members>(?: .*)?(?:\n      .*)*))?",
    re.MULTILINE,
)
"""An entry of the page. With ``()``, its constructor is not for users."""


def entries() -> list[re.Match[str]]:
    """The classes and functions on the page, without those that start servers."""
    found = [entry for entry in ENTRY.finditer(PAGE) if entry["place"] != "zkconsumer.servers"]
    assert len(found) > 20
    return found


def documented(entry: re.Match[str]) -> Any:
    """The object of an entry."""
    return getattr(import_module(entry["place"]), entry["name"])


def members(entry: re.Match[str]) -> list[str]:
    """The members that an entry lists by name."""
    return re.findall(r"\w+", entry["members"] or "")


def public(owner: type) -> set[str]:
    """Names of the members that a class has without an underscore."""
    return {name for name in dir(owner) if not name.startswith("_")}


def test_every_exported_name_is_on_a_page() -> None:
    """Errors are on their own page."""
    listed = {entry["name"] for entry in entries() if entry["place"] == "zkconsumer"}
    for name in zkconsumer.__all__:
        exported = getattr(zkconsumer, name)
        if isinstance(exported, type) and issubclass(exported, ZkConsumerError):
            assert f"`{name}`" in ERRORS, name
        else:
            assert name in listed, name


def test_every_error_says_what_to_do() -> None:
    """The meaning of an error that is raised, not of the base of others, has a second sentence."""
    for name in zkconsumer.__all__:
        error = getattr(zkconsumer, name)
        if isinstance(error, type) and issubclass(error, ZkConsumerError):
            text = " ".join((error.__doc__ or "").split())
            assert error.__subclasses__() or re.search(r"[\w`)]\. [A-Z`]", text), name


def test_every_name_on_the_page_can_be_imported() -> None:
    """Users import it from the place that the page names, and each listed member exists."""
    for entry in entries():
        assert entry["name"] in import_module(entry["place"]).__all__
        owner = documented(entry)
        for name in members(entry):
            assert hasattr(owner, name), f"{entry['name']}.{name}"
            assert not name.startswith("_")


def test_the_page_lists_every_member_of_a_stream() -> None:
    """A stream has no public member that only the runtime needs."""
    (entry,) = (entry for entry in entries() if entry["name"] == "KafkaStream")
    assert set(members(entry)) == public(KafkaStream)
    assert entry["bare"], "its constructor is the runtime's"


@pytest.mark.parametrize(
    "name",
    [
        "ZookeeperConsumerConnector",
        "CoordinatorConsumerConnector",
        "MigratableConsumerConnector",
        "ConsumerRebalanceListener",
    ],
)
def test_the_page_lists_the_members_of_connectors(name: str) -> None:
    """All of them, except what the metrics and tools read."""
    (entry,) = (entry for entry in entries() if entry["name"] == name)
    internal = {"states", "in_zookeeper", "config", "consumer_id"}
    assert public(documented(entry)) - internal == set(members(entry))


@cache
def imports(module: str) -> dict[str, str]:
    """Names that a module imports with ``from``, each with its place."""
    source = Path(sys.modules[module].__file__ or "").read_text(encoding="utf-8")
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def functions(entry: re.Match[str]) -> Iterator[Any]:
    """What users may call of an entry: the constructor, and the members that it lists."""
    owner = documented(entry)
    if not isinstance(owner, type):
        yield owner
        return
    if not entry["bare"] and "__init__" in vars(owner):
        yield owner.__init__  # type: ignore[misc]
    for name in members(entry):
        member = inspect.unwrap(getattr(owner, name))
        if callable(member):
            yield member


def test_the_types_of_parameters_are_on_the_page() -> None:
    """Whoever calls what is on the page can import everything that it takes."""
    owners = [documented(entry) for entry in entries()]
    homes = {(owner.__module__, owner.__qualname__) for owner in owners}
    checked = 0
    for entry in entries():
        for function in functions(entry):
            own = function.__module__
            for name, annotation in function.__annotations__.items():
                if name == "return":
                    continue
                for word in re.findall(r"\b[A-Z]\w+", str(annotation)):
                    place = imports(own).get(word, own)
                    kind = getattr(import_module(place), word, None)
                    if not isinstance(kind, type) or not kind.__module__.startswith("zkconsumer"):
                        continue
                    if issubclass(kind, ZkConsumerError):
                        continue  # errors are on their own page
                    checked += 1
                    home = (kind.__module__, kind.__qualname__)
                    assert home in homes, f"{entry['name']}: {function.__qualname__}, {word}"
    assert checked > 10
