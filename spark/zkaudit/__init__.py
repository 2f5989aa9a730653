"""zkaudit: who owned what when, from ZooKeeper's own logs, in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the formats ``zookeeper_txnlog`` and ``zookeeper_snapshot`` known to a session.

    The executors need zkaudit too, at the same version.
    """
    from zkaudit.sources import zookeeper  # importing the package alone does not load Spark

    zookeeper.register(spark)
