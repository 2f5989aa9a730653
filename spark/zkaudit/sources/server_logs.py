"""Client addresses of sessions, from the text logs of ZooKeeper's servers.

Two kinds of lines name both: "Established session 0x1... with negotiated timeout 30000 for client
/10.0.0.7:51442" (server log; from 3.6 on at level DEBUG) and "session=0x1... user=... ip=10.0.0.7"
(audit log, 3.6+). Transaction logs do not contain addresses. Driver's thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zkaudit.errors import InputMissingError
from zkaudit.storage import Remote, local_url, place_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_LINES: Final = (
    re.compile(r"session 0x([0-9a-f]{1,16}) with negotiated timeout [0-9]+ for client /?(\S+)"),
    re.compile(r"session=0x([0-9a-f]{1,16})\s.*\bip=(\S+)"),
)


def check(places: Sequence[str]) -> None:
    """Raise InputMissingError for a file, directory or glob that does not exist."""
    for place in places:
        if not _local(place).exists() and not glob(place):
            raise InputMissingError(f"--server-logs {place}: no such file or directory")


def _local(place: str) -> Path:
    found = place_of(place)
    if isinstance(found, Remote):
        raise InputMissingError(f"--server-logs {place} is a URL: copy the files")
    return found


def addresses(spark: SparkSession, places: Sequence[str]) -> dict[int, str]:
    """Return the client address of each session that a line of the servers' logs names.

    If a session was resumed from another address, it gets all its addresses in alphabetical order,
    because the lines of different servers have no common order in time.
    """
    if not places:
        return {}
    from pyspark.sql import functions as F

    urls = [local_url(_local(place)) for place in places]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = [place for line in batch["value"].to_pylist() for place in _named(line)]
            yield pa.RecordBatch.from_pylist(
                [{"session": session, "address": address} for session, address in rows],
                pa.schema([("session", pa.int64()), ("address", pa.string())]),
            )

    lines = spark.read.text(urls, recursiveFileLookup=True)
    lines = lines.where(F.col("value").contains("session"))
    every = F.array_sort(F.collect_set("address"))
    both = lines.mapInArrow(read, "session long, address string").groupBy("session")
    found = both.agg(F.concat_ws(", ", every).alias("address")).toArrow()
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def addresses_of(places: Sequence[str], sessions: set[int]) -> dict[int, str]:
    """Return the client addresses of a few sessions, like ``addresses``, but without Spark."""
    every: dict[int, set[str]] = defaultdict(set)
    for file in (file for place in places for file in _files(place)):
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                for session, address in _named(line):
                    if session in sessions:
                        every[session].add(address)
    return {session: ", ".join(sorted(addresses)) for session, addresses in every.items()}


def _named(line: str) -> Iterator[tuple[int, str]]:
    """Return the sessions in a line, each with its address."""
    for pattern in _LINES:
        if match := pattern.search(line):
            session = int(match[1], 16)
            yield session - (session >> 63 << 64), match[2]


def _files(place: str) -> Iterator[Path]:
    named = _local(place)
    for path in [named] if named.exists() else map(Path, sorted(glob(place))):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in inside if file.is_file())
