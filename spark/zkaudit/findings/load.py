"""The cost of rebalances: herds.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from zkaudit.findings.base import Tables, finding, row, text
from zkaudit.limits import Limits


def large_herds(tables: Tables, limits: Limits) -> DataFrame:
    """Changes that woke many members, measured from journals or else as an upper bound."""
    large = tables.herds.where(F.col("notified") >= limits.herd_members)
    large = large.withColumn("evidence", F.array(row("herds", "zxid", "idx", None, F.col("basis"))))
    modelled = F.col("basis") == "modelled"
    return finding(
        large,
        "low",
        "herd",
        F.when(modelled, "modelled").otherwise("measured"),
        "The ", F.col("change"), " of ", text("member"), " made ",
        F.when(modelled, "up to ").when(F.col("basis") == "measured", "")
        .otherwise("at least "),
        text("notified"), " members of group ", F.col("group"), " react, with ",
        text("rebalances"), " rebalances and ", text("reads"), " znode reads.",
    )  # fmt: skip
