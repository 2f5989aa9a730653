"""Groups that migrated while they ran: their modes.

Runs in the driver's thread. It collects only the last mode of each group.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, functions as F

from zkaudit.history.staging import Stage
from zkaudit.tables.build import GROUP, time_at


def migrations(stage: Stage, sessions: DataFrame) -> DataFrame:
    """Return table ``migrations``. ``sessions``: that table."""
    addresses = sessions.where("address is not null").select("session", "address")
    return stage.rows("migrations").join(addresses, "session", "left")


def summary(modes: DataFrame) -> list[dict[str, Any]]:
    """Return the summary of each group's move: last mode, since when, and the members that have not
    acknowledged it. ``modes``: table ``migrations``."""
    since = F.unix_micros("start_time").alias("since")
    last = F.max_by(F.struct("mode", since, "ended", "late"), F.struct("start_zxid", "version"))
    groups = modes.groupBy(*GROUP).agg(last.alias("last"), F.count("*").alias("modes"))
    return [
        {
            "chroot": row["chroot"],
            "group": row["group"],
            "mode": row["last"]["mode"],
            "since": (time := time_at(row["last"]["since"])) and time.isoformat(" ", "seconds"),
            "ended": row["last"]["ended"],
            "changes": row["modes"] - 1,
            "late": row["last"]["late"],
        }
        for row in groups.orderBy(*GROUP).collect()
    ]
