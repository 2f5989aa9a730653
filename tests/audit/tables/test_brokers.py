"""Groups on the brokers: records of generations become a table of assignments over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession
from zkaudit import schema
from zkaudit.tables import brokers
from zkaudit.tables.catalog import BROKER_OWNERSHIP, GENERATIONS

EPOCH = datetime(2026, 11, 22, tzinfo=UTC)


def test_generations_become_intervals(spark: SparkSession) -> None:
    """If a member keeps a partition through several generations, that is one interval. An empty
    generation and the end of the group both end all intervals."""
    given: list[dict[str, Any] | None] = [
        {"t-0": "a", "t-1": "a"},
        {"t-0": "a", "t-1": "b"},
        {"t-0": "a", "t-1": "b"},
        {},
        {"t-0": "a", "odd-name-3": "a"},
        None,
    ]
    rows = []
    for number, assignment in enumerate(given):
        row = dict.fromkeys(column.name for column in schema.OFFSETS)
        row |= {"log_partition": 3, "log_offset": 10 * number, "kind": "group", "group_id": "g"}
        row |= {"time": EPOCH + timedelta(seconds=number), "deleted": assignment is None}
        if assignment is not None:
            row |= {"generation": number + 1, "assignment": assignment, "members": ["a", "b"],
                    "hosts": {"a": "/h1", "b": "/h2"}}  # fmt: skip
        rows.append(tuple(row.values()))
    stored = spark.createDataFrame(rows, schema.spark_type(schema.OFFSETS))
    every = GENERATIONS.shape(brokers.generations(stored)).localCheckpoint()
    assert [row["generation"] for row in every.orderBy("log_offset").collect()] == [
        1, 2, 3, 4, 5, None,
    ]  # fmt: skip
    owned = BROKER_OWNERSHIP.shape(brokers.ownership(every)).collect()
    told = {
        (row["topic"], row["partition"], row["member"], row["host"], row["first_generation"],
         row["last_generation"], row["start_time"].second, row["end_time"].second)
        for row in owned
    }  # fmt: skip
    assert told == {
        ("t", 0, "a", "/h1", 1, 3, 0, 3),
        ("t", 1, "a", "/h1", 1, 1, 0, 1),
        ("t", 1, "b", "/h2", 2, 3, 1, 3),
        ("t", 0, "a", "/h1", 5, 5, 4, 5),
        ("odd-name", 3, "a", "/h1", 5, 5, 4, 5),
    }
    assert len(owned) == len(told)
