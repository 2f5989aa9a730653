"""Findings about members whose znodes have another client's layout.

Members of the JVM and of this library ignore such znodes, so both may read the same partitions. The
audit does not understand them either: it only says that they are there. Runs in the driver's thread
and only builds DataFrames.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from zkaudit.findings.base import GROUP, Tables, finding, row, session, text

KIND = "owner in another layout"


def foreign_owners(tables: Tables) -> list[DataFrame]:
    """One finding for each topic and session with owner znodes that are not named like partitions.
    ``high`` if another session owned the topic meanwhile, as far as both times are known."""
    if tables.foreign is None:
        return []
    last = F.lit(2**63 - 1)

    def until(frame: str) -> F.Column:
        return F.coalesce(f"{frame}.end_zxid", f"{frame}.end_after_zxid", last)

    claims = tables.foreign.where("session is not null").alias("f")
    owned = tables.ownership.select(*GROUP, "topic", "session", "start_zxid", "end_zxid",
                                    "end_after_zxid").alias("o")  # fmt: skip
    same = [F.col(f"f.{name}") == F.col(f"o.{name}") for name in (*GROUP, "topic")]
    together = (F.coalesce("f.start_zxid", F.lit(0)) < until("o")) & (
        F.coalesce("o.start_zxid", F.lit(0)) < until("f")
    )
    other = ~F.col("o.session").eqNullSafe(F.col("f.session"))
    both = claims.join(owned, [*same, together & other], "left").select(
        "f.*", F.col("o.topic").isNotNull().alias("shared")
    )
    at = F.coalesce("start_zxid", "end_zxid")
    found = both.groupBy(*GROUP, "topic", "session").agg(
        F.min(at).alias("zxid"),
        F.min_by(F.coalesce("start_time", "end_time"), at).alias("time"),
        F.min_by("path", at).alias("path"),
        F.min_by(F.array("partition"), at).getItem(0).alias("partition"),
        F.count_distinct("path").alias("count"),
        F.max(F.coalesce("end_zxid", last)).alias("until"),
        F.max("end_time").alias("end_time"),
        F.max("shared").alias("shared"),
    )
    open_ = F.col("until") == last
    found = found.withColumns(
        {
            "end_zxid": F.when(~open_, F.col("until")),
            "end_time": F.when(~open_, F.col("end_time")),
            "evidence": F.array(row("registrations", "zxid", None, "session", F.col("path"))),
        }
    )
    return [
        finding(
            found,
            F.when(F.col("shared"), "high").otherwise("medium"),
            KIND,
            "proven",
            "Session ", session("session"), " claimed ", text("count"), " partitions of topic ",
            F.col("topic"), " of group ", F.col("group"), " in another client's layout (",
            F.col("path"), "). Members of the JVM and of zkconsumer ignore such owners",
            F.when(F.col("shared"), ", and one of them owned partitions of this topic meanwhile: "
                   "both may have read the same messages.").otherwise("."),
        )
    ]  # fmt: skip
