"""Every limit of a request's size is made small in some test, so that a test crosses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZE = re.compile(r"^(_?(?:\w+_)?(?:BATCH|PIECE)|_?PACKET_\w+)\b.* = \d", re.MULTILINE)
SIZES = sorted(
    (str(path.relative_to(ROOT)), name)
    for path in (ROOT / "zkconsumer").rglob("*.py")
    if "sim" not in path.parts and "servers" not in path.parts
    for name in SIZE.findall(path.read_text(encoding="utf-8"))
)


def test_the_sizes_are_found() -> None:
    """The pattern finds the sizes that are known."""
    assert {name for _, name in SIZES} >= {"_BATCH", "READ_BATCH", "PACKET_PARTITIONS"}


@pytest.mark.parametrize(("file", "name"), SIZES)
def test_a_size_is_crossed(file: str, name: str) -> None:
    """A test sets it, in the module that defines it, by that module's name."""
    module = Path(file).stem
    set_in_test = re.compile(rf'setattr\(\s*(?:\w+\.)?{module}\w*,\s*"{name}"')
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert any(set_in_test.search(text) for text in texts), f"{file}: no test sets {name}"
