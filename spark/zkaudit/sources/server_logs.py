"""Client addresses of sessions, from the text logs of ZooKeeper's servers.

Two kinds of lines name both: "Established session 0x1... with negotiated timeout 30000 for client
/10.0.0.7:51442" (server log; from 3.6 on at level DEBUG) and "session=0x1... user=... ip=10.0.0.7"
(audit log, 3.6+). Transaction logs have no addresses. Driver's thread; only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit.errors import InputMissingError
from zkaudit.storage import Remote, local_url, place_of

_ESTABLISHED = r"session 0x([0-9a-f]{1,16}) with negotiated timeout [0-9]+ for client /?(\S+)"
_AUDITED = r"session=0x([0-9a-f]{1,16})\s.*\bip=(\S+)"


def check(places: Sequence[str]) -> None:
    """Raise InputMissingError for a file, directory or glob that does not exist."""
    for place in places:
        if not _local(place).exists() and not glob(place):
            raise InputMissingError(f"--server-logs {place}: no such file or directory")


def _local(place: str) -> Path:
    found = place_of(place)
    if isinstance(found, Remote):
        raise InputMissingError(f"--server-logs {place}: is a URL: copy the files, give a path")
    return found


def addresses(spark: SparkSession, places: Sequence[str]) -> DataFrame | None:
    """Return ``session`` and ``address``, one row for each session that a line names.

    ``None`` without places. A session that was resumed from other addresses gets all of them, in
    alphabetical order, because the lines of different servers have no common order of time.
    """
    if not places:
        return None
    urls = [local_url(_local(place)) for place in places]
    lines = spark.read.text(urls, recursiveFileLookup=True)
    found = [
        lines.select(
            F.conv(F.regexp_extract("value", regex, 1), 16, -10).cast("bigint").alias("session"),
            F.regexp_extract("value", regex, 2).alias("address"),
        )
        for regex in (_ESTABLISHED, _AUDITED)
    ]
    both = found[0].unionByName(found[1]).where("address != ''")
    every = F.array_sort(F.collect_set("address"))
    return both.groupBy("session").agg(F.concat_ws(", ", every).alias("address"))
