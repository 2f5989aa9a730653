"""``--verify``: replays every server's logs and compares the tree's digest after each transaction.

One task for each server, since its transactions follow one another; the tree is in that worker's
memory, as it was in ZooKeeper's. Driver's thread and Spark's Python workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pyspark.sql import SparkSession

from zkaudit.decode.digest import Verified, verify_digests
from zkaudit.errors import AuditError
from zkaudit.sources.files import Piece

_Ranges: TypeAlias = tuple[tuple[int, int], ...]


def verify(
    spark: SparkSession,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    dropped: _Ranges = (),
) -> Verified:
    """Compare all digests of all servers; ``dropped``: proposals that never were committed.

    Raises AuditError at the first digest that differs, and for damaged logs and snapshots.
    """
    servers: dict[str, tuple[list[str], list[str]]] = {}
    for place, pieces in enumerate((logs, snapshots)):
        for piece in pieces:
            servers.setdefault(piece.server, ([], []))[place].append(piece.path)

    def check(paths: tuple[list[str], list[str]]) -> Verified | str:
        try:
            return verify_digests(*paths, dropped)
        except AuditError as error:
            return str(error)

    tasks = spark.sparkContext.parallelize(list(servers.values()), len(servers))
    total = Verified()
    for found in tasks.map(check).collect():
        if isinstance(found, str):
            raise AuditError(found)
        total += found
    return total
