"""The names that ``import zkconsumer`` offers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import zkconsumer
import zkconsumer.errors


def test_all_is_sorted_and_equals_the_visible_names() -> None:
    """``__all__``, ``dir()`` and the names for type checkers are the same set, sorted."""
    assert zkconsumer.__all__ == sorted(zkconsumer.__all__)
    assert [n for n in dir(zkconsumer) if not n.startswith("__")] == zkconsumer.__all__
    tree = ast.parse(Path(inspect.getfile(zkconsumer)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name for node in block.body for alias in node.names}  # type: ignore[attr-defined]
    assert typed == set(zkconsumer.__all__)


@pytest.mark.parametrize("name", zkconsumer.__all__)
def test_each_name_is_there(name: str) -> None:
    """Every exported name exists, is public in its module, and has a docstring."""
    found = getattr(zkconsumer, name)
    assert found.__name__ == name
    assert found.__module__.startswith("zkconsumer.")
    assert inspect.getdoc(found)


def test_all_errors_are_exported() -> None:
    """A user can name every error class without knowing its module."""
    errors = {
        name
        for name, cls in vars(zkconsumer.errors).items()
        if inspect.isclass(cls) and issubclass(cls, zkconsumer.errors.ZkConsumerError)
    }
    assert errors <= set(zkconsumer.__all__)


def test_a_missing_name_is_an_attribute_error() -> None:
    """A misspelt name fails as for any module."""
    with pytest.raises(AttributeError, match="Whitelst"):
        _ = zkconsumer.Whitelst  # type: ignore[attr-defined]


def test_importing_needs_neither_kazoo_nor_kafka_python() -> None:
    """``import zkconsumer``, its errors and its configuration load without both libraries."""
    script = (
        "import sys\n"
        "sys.modules['kazoo'] = sys.modules['kafka'] = None\n"
        "import zkconsumer\n"
        "zkconsumer.ConfigError, zkconsumer.ConsumerConfig, zkconsumer.TopicPartition\n"
        "try: zkconsumer.ZookeeperConsumerConnector\n"
        "except ImportError: print('blocked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "blocked\n"
