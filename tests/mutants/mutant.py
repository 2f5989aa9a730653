"""One planted bug."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of one place of the product that the tests must notice."""

    name: str
    file: str
    """Path below the repository."""
    old: str
    """Text that the file has exactly once."""
    new: str
    tests: tuple[str, ...]
    """Arguments for pytest: at least one of these tests fails with the bug."""
