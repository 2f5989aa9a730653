"""Where the transactions of each finding are stored, and whether they were certainly committed.

Looks up the transactions that findings name, so that a reader can get from a sentence to the file
and the byte. Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from itertools import pairwise

from pyspark.sql import Column, DataFrame, functions as F

from zkaudit.findings import ids
from zkaudit.limits import SEVERITIES

UNCONFIRMED = (
    " These transactions may never have been committed: not all of them are in the logs of a "
    "majority of the servers."
)


def located(found: DataFrame, transactions: DataFrame, sessions: DataFrame) -> DataFrame:
    """Add ``server``, ``file`` and ``position`` to findings and their evidence, ``address`` and
    ``id``.

    ``found`` must be stored (not computed again), and have a ``number`` for each finding.
    ``transactions`` has server, file, position, zxid and confirmed. If a transaction may never have
    been committed, a finding that depends on it becomes ``inferred``, one severity lower, and its
    sentence says so.
    """
    of = F.col
    parts = found.select("number", F.posexplode_outer("evidence").alias("at", "part"))
    parts = parts.withColumn("place_zxid", of("part.zxid"))
    begins = found.select(
        "number", F.lit(-1).alias("at"),
        F.lit(None).cast(parts.schema["part"].dataType).alias("part"),
        of("zxid").alias("place_zxid"),
    )  # fmt: skip
    parts = parts.unionByName(begins)
    wanted = parts.select(of("place_zxid").alias("zxid")).distinct()
    places = (
        transactions.join(wanted, "zxid", "left_semi")
        .groupBy(of("zxid").alias("place_zxid"))
        .agg(
            F.min(F.struct("server", "file", "position")).alias("place"),
            F.min("confirmed").alias("confirmed"),
        )
    )
    parts = parts.join(places, "place_zxid", "left").withColumn(
        "row",
        F.struct(
            "at",
            F.struct(
                *[of(f"part.{n}").alias(n) for n in ("table", "zxid", "idx", "session", "what")],
                *[of(f"place.{n}").alias(n) for n in ("server", "file", "position")],
            ).alias("evidence"),
        ),
    )
    rows = parts.groupBy("number").agg(
        F.array_sort(F.collect_list(F.when(of("at") >= 0, of("row")))).alias("rows"),
        F.max(F.when(of("at") == -1, of("place"))).alias("place"),
        F.coalesce(F.min("confirmed"), F.lit(True)).alias("sure"),
    )
    addresses = sessions.where("address is not null").select("session", "address")
    found = found.drop("evidence", "server", "file", "position", "address").join(rows, "number")
    found = found.withColumn("id", ids.column())
    found = found.join(addresses, "session", "left")
    lower = F.create_map(*[F.lit(n) for pair in pairwise(SEVERITIES)
                           for n in pair])  # fmt: skip
    unsure = ~of("sure")

    def when_unsure(changed: Column, name: str) -> Column:
        return F.when(unsure, changed).otherwise(of(name))

    many = F.contains(of("address"), F.lit(", "))
    client = F.concat(F.lit(" Session 0x"), F.lower(F.hex("session")),
                      F.when(many, " was resumed: it came from ").otherwise(" came from "),
                      of("address"), F.lit("."))  # fmt: skip
    return found.withColumns(
        {
            "evidence": F.transform("rows", lambda row: row["evidence"]),
            **{name: of(f"place.{name}") for name in ("server", "file", "position")},
            "severity": when_unsure(F.coalesce(lower[of("severity")], "severity"), "severity"),
            "basis": F.when(unsure & (of("basis") == "proven"), "inferred").otherwise(of("basis")),
            "sentence": F.concat(
                "sentence", F.coalesce(client, F.lit("")),
                F.when(unsure, UNCONFIRMED).otherwise(""),
            ),
        }
    )  # fmt: skip
