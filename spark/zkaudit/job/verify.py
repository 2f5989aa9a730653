"""``--verify``: replays every server's logs and compares the tree's digest after each transaction.

A server's transactions must be replayed in order, but a snapshot has the tree at one point. So each
server's logs are split at snapshots. Each section is one Spark task, which holds the tree in its
worker's memory as ZooKeeper did. Driver's thread and Spark's Python workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import SparkSession

from zkaudit.decode.digest import Verified, verify_digests
from zkaudit.errors import AuditError
from zkaudit.history.committed import within
from zkaudit.sources.files import Piece

if TYPE_CHECKING:
    import pyarrow as pa

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
SECTION_BYTES: Final = 64 << 20
"""Minimum bytes of logs in a section, because loading its snapshot takes time too."""


@dataclass(frozen=True, slots=True)
class Section:
    """The section that one task replays: the arguments of ``verify_digests``."""

    logs: tuple[str, ...]
    snapshots: tuple[str, ...]
    begin: int | None
    later: tuple[int, ...]


def sections(
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    dropped: _Ranges = (),
    size: int = SECTION_BYTES,
) -> Iterator[Section]:
    """Split each server's logs at snapshots into sections of at least ``size`` bytes."""
    of: dict[str, tuple[list[Piece], list[Piece]]] = defaultdict(lambda: ([], []))
    for place, pieces in enumerate((logs, snapshots)):
        for piece in sorted(pieces, key=lambda piece: piece.zxid):
            of[piece.server][place].append(piece)
    for mine, taken in of.values():
        begins = [log.zxid for log in mine]
        paths = tuple(piece.path for piece in mine)
        cuts: list[int] = []
        first = 0
        for snapshot in taken:
            at = bisect_right(begins, snapshot.zxid)
            real = not within(snapshot.zxid, dropped)
            if real and at and sum(log.size for log in mine[first:at]) >= size:
                cuts.append(snapshot.zxid)
                first = at
        for number, begin in enumerate([None, *cuts]):
            # The log with the first transaction after the snapshot, and all later logs.
            start = 0 if begin is None else max(0, bisect_right(begins, begin + 1) - 1)
            yield Section(paths[start:], tuple(p.path for p in taken), begin, tuple(cuts[number:]))


def verify(
    spark: SparkSession,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    dropped: _Ranges = (),
    size: int = SECTION_BYTES,
) -> Verified:
    """Compare all digests of all servers. ``dropped``: proposals that were never committed.

    Raises AuditError at the first digest that differs, and for damaged logs and snapshots.
    """
    every = list(sections(logs, snapshots, dropped, size))

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch["id"].to_pylist():
                part = every[number]
                found, error = Verified(), None
                try:
                    found = verify_digests(
                        part.logs, part.snapshots, dropped, part.begin, part.later
                    )
                except AuditError as raised:
                    error = str(raised)
                row = {"id": number, "equal": found.equal, "unknown": found.unknown}
                yield pa.RecordBatch.from_pylist(
                    [row | {"error": error}],
                    pa.schema([*((name, pa.int64()) for name in row), ("error", pa.string())]),
                )

    rows = spark.range(0, len(every), 1, max(1, len(every))).mapInArrow(
        check, "id long, equal long, unknown long, error string"
    )
    total = Verified()
    for row in sorted(rows.collect(), key=lambda row: int(row["id"])):
        if row["error"] is not None:
            raise AuditError(row["error"])
        total += Verified(row["equal"], row["unknown"])
    return total
