"""Reads one snapshot without its quiet groups. Planned in the driver; reads in a Python worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from zkaudit import schema
from zkaudit.decode.batches import nodes_of
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.history.quiet import QuietGroups, TimeRange
from zkaudit.sources.files import Piece
from zkaudit.sources.options import Settings
from zkaudit.sources.rows import nodes_of_groups, padded
from zkaudit.sources.zookeeper import SnapshotReader


class ActiveReader(SnapshotReader):
    """Reads the znodes of all groups that are not quiet, and one row for each that is: columns of
    ``schema.SNAPSHOT_OR_QUIET``."""

    def __init__(self, settings: Settings, rows: Sequence[str], time_range: TimeRange) -> None:
        """``rows``: the Parquet files with all rows after the snapshot (``schema.TXNLOG_GROUPS``).
        The executors read them at the same path."""
        super().__init__(settings)
        self._rows = rows
        self._range = time_range

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Decode the snapshot, find the quiet groups, and leave them out."""
        snapshot = open_snapshot(piece.path)
        quiet = QuietGroups(snapshot.zxid, self._range)
        for batch in ds.dataset(self._rows, format="parquet").to_batches() if self._rows else ():
            quiet.rows(batch)
        for batch in nodes_of(snapshot, columns=quiet.NODE_COLUMNS):
            quiet.nodes(batch)
        wanted = schema.arrow_schema(schema.SNAPSHOT_OR_QUIET)
        yield padded(quiet.table(), wanted)
        for batch in nodes_of(snapshot, piece.server, only=quiet.chosen()):
            yield padded(nodes_of_groups(batch, ()), wanted)
