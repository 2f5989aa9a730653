"""The table of ``zkconsumer top`` on narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from zkconsumer.cli.top import TopRow, _table

ROWS = (
    TopRow("orders-of-the-northern-region", "Stable", 12, 120, 0, 1_234_567, 2_000.5, 3, 40),
    TopRow("tutorial", "Empty", 0, 4, 4, None, None, 0, 0),
)


def drawn(width: int) -> list[str]:
    """Return the lines of the table."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(_table(ROWS, width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_shows_fewer_columns_and_whole_numbers(width: int) -> None:
    """A number is never cut off; columns are left out instead."""
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert "1,234,567" in lines[2]
    assert "LAG" in lines[0]
    shown = [name.upper() for name in TopRow._fields if name.upper() in lines[0]]
    assert len(shown) == len(lines[0].replace("│", "┃").split("┃"))


def test_a_wide_terminal_shows_all_columns() -> None:
    """With 120 characters nothing is left out or shortened."""
    lines = drawn(120)
    assert all(name.upper() in lines[0] for name in TopRow._fields)
    assert "orders-of-the-northern-region" in lines[2]
