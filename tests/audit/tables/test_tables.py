"""The tables keep their columns, and their page says what they are."""

from __future__ import annotations

import re
from pathlib import Path

from zkaudit import tables
from zkaudit.job_input import follows, holes_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "audit-tables.md"


def test_the_page_is_what_the_description_says() -> None:
    """docs/reference/audit-tables.md: run ``python -m zkaudit.tables`` after a change."""
    assert PAGE.read_text() == tables.page()


def test_every_table_has_a_grain_and_every_column_a_meaning() -> None:
    """No column is without a meaning, no name is used twice in a table."""
    for table in tables.TABLES:
        names = [c.name for c in table.columns]
        assert len(names) == len(set(names)), table.name
        assert table.grain.startswith("one row for each"), table.name
        assert all(re.fullmatch(r"\S.*[^.]", c.meaning) for c in table.columns), table.name
        assert table.spark_type().fieldNames() == names


def test_holes() -> None:
    """Runs of all servers cover a history together; what none covers is a hole."""
    epoch = 1 << 32
    assert holes_of([(1, 10), (11, 20)]) == []
    assert holes_of([(1, 10), (5, 8), (9, 20)]) == []
    assert holes_of([(12, 20), (1, 10)]) == [(10, 12)]
    assert holes_of([(5, 20)]) == [(0, 5)]
    assert holes_of([(epoch + 1, epoch + 9), (2 * epoch + 1, 2 * epoch + 3)]) == []
    assert holes_of([(epoch + 1, epoch + 9), (2 * epoch + 5, 2 * epoch + 6)]) == [
        (epoch + 9, 2 * epoch + 5)
    ]
    assert holes_of([]) == []
    assert not follows(3, 5)
