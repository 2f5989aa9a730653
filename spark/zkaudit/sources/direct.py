"""Reads a data source without Spark's planning of Python sources, which starts more processes.

Driver's thread; the source's ``read`` runs in the executors' Python workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from zkaudit import schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def rows(
    spark: SparkSession, reader: DataSourceReader, columns: tuple[schema.Column, ...]
) -> DataFrame:
    """Return the rows that a reader of a data source yields, with one task for each of its
    partitions.

    ``columns``: the columns of the reader's batches. Raises the errors of ``reader.partitions``,
    which is called immediately.
    """
    parts = reader.partitions()

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from reader.read(parts[number])

    numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
    return numbers.mapInArrow(read, schema.spark_type(columns))
