"""The tables keep their columns, and each is described."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession
from zkaudit.history.committed import Run, log_gaps_of, plan
from zkaudit.tables import catalog as tables


def test_every_table_has_a_grain_and_every_column_a_meaning(spark: SparkSession) -> None:
    """Every column has a meaning, and no name is used twice in a table."""
    for table in tables.TABLES:
        names = [c.name for c in table.columns]
        assert len(names) == len(set(names)), table.name
        assert table.grain.startswith("one row for each"), table.name
        assert all(re.fullmatch(r"\S.*[^.]", c.meaning) for c in table.columns), table.name
        assert table.spark_type().fieldNames() == names


def test_log_gaps() -> None:
    """The runs of all servers together cover a history. What no run covers is a log gap, also at
    the front."""
    epoch = 1 << 32

    def log_gaps(*runs: tuple[int, int]) -> list[tuple[int, int]]:
        return log_gaps_of(plan([Run("a", first, last) for first, last in runs]))

    assert log_gaps((1, 10), (11, 20)) == []
    assert log_gaps((12, 20), (1, 10)) == [(10, 12)]
    assert log_gaps((5, 20)) == [(0, 5)]
    assert log_gaps((epoch + 1, epoch + 9), (2 * epoch + 1, 2 * epoch + 3)) == []
    assert log_gaps((epoch + 1, epoch + 9), (2 * epoch + 5, 2 * epoch + 6)) == [
        (2 * epoch, 2 * epoch + 5)
    ]
    assert log_gaps() == []
