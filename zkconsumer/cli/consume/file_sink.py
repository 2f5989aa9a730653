"""Files of ``zkconsumer consume --format arrow|parquet``: written completely, then committed.

Streams' threads add Arrow columns, and the listener's thread flushes before partitions are
released. One lock guards the buffer and the current file, so at most one file has offsets that are
not committed yet.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.errors import CommitFailedError, UsageError

FORMATS: Final = ("arrow", "parquet")
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Largest size in memory of one file's columns."""


class FileSink:
    """Collects columns, writes them to a new file, and then commits their offsets.

    Args:
        directory: directory of the files; created if it does not exist.
        form: one of ``FORMATS``.
        rows: number of messages after which a file is written.
        seconds: age of the first message at which a file is written.
        limit: largest number of messages; ``None``: no limit.

    Raises ``UsageError`` when pyarrow is not installed or the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        form: str,
        rows: int,
        seconds: float,
        limit: int | None,
    ) -> None:
        try:
            import numpy  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"--format {form} needs pyarrow and numpy: install the extra 'arrow' ({error})"
            ) from None
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {directory}: {error.strerror or error}") from None
        self.count = 0
        """Number of messages taken."""
        self.last = time.monotonic()
        """When messages were last taken, or when the command began."""
        self._directory = directory
        self._form = form
        self._rows = rows
        self._seconds = seconds
        self._limit = limit
        self.commit: Callable[[Mapping[TopicPartition, int]], None] = lambda _offsets: None
        """Commits offsets: ``commit_offsets`` of the connector, set before streams are read."""
        self._lock = threading.Lock()
        # All below is guarded by the lock.
        self._closed = False
        self._failure: BaseException | None = None
        """Why a file could not be written, even if only the rebalance listener noticed."""
        self._batches: list[Any] = []
        self._offsets: dict[TopicPartition, int] = {}
        self._waiting = self._bytes = 0
        self._since = 0.0
        self._files = 0

    def add(self, batch: Any) -> bool:
        """Add an Arrow batch of one partition, which may be empty. Return false if no more messages
        are accepted. Raises ``ClickException`` if this or an earlier file cannot be written; its
        offsets are not committed."""
        with self._lock:
            self._check()
            if self._closed:
                return False
            if self._limit is not None:
                batch = batch.slice(0, self._limit - self.count)
            if batch.num_rows:
                self.last = time.monotonic()
                if not self._batches:
                    self._since = self.last
                self._batches.append(batch)
                self.count += batch.num_rows
                self._waiting += batch.num_rows
                self._bytes += batch.nbytes
                end = batch.num_rows - 1
                tp = TopicPartition(batch["topic"][end].as_py(), batch["partition"][end].as_py())
                self._offsets[tp] = batch["offset"][end].as_py() + 1
            enough = self._limit is not None and self.count >= self._limit
            if self._batches and (
                self._waiting >= self._rows
                or self._bytes >= _MOST_BYTES
                or time.monotonic() - self._since >= self._seconds
            ):
                try:
                    self._flush()
                except CommitFailedError as error:
                    click.echo(f"warning: {error}", err=True)
            return not enough

    def flush(self) -> None:
        """Write the collected messages and commit them.

        Raises ``ClickException`` as ``add`` does. Raises ``CommitFailedError`` if the commit
        fails; the file is kept, and its messages are delivered again.
        """
        with self._lock:
            if self._batches:
                self._flush()

    def close(self) -> None:
        """Write and commit the collected messages, like ``flush``, and accept no more."""
        with self._lock:
            self._closed = True
            self._check()
            if self._batches:
                self._flush()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _flush(self) -> None:
        from pyarrow import Table

        table = Table.from_batches(self._batches).unify_dictionaries()
        self._files += 1
        at = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"part-{at}-{os.getpid()}-{self._files:06d}.{self._form}"
        unfinished = self._directory / f".{name}.unfinished"
        try:
            self._write(table, unfinished)
            _sync(unfinished)
            unfinished.rename(self._directory / name)
            _sync(self._directory)
        except BaseException as error:
            self._batches, self._failure = [], error  # not tried again: it may be there by now
            if isinstance(error, OSError):
                self._failure = click.ClickException(
                    f"{self._directory / name} cannot be written: {error.strerror or error}; "
                    "none of its messages were committed"
                )
                raise self._failure from error
            raise
        finally:
            unfinished.unlink(missing_ok=True)
        offsets, self._offsets, self._batches = self._offsets, {}, []
        self._waiting = self._bytes = 0
        self.commit(offsets)

    def _write(self, table: Any, path: Path) -> None:
        if self._form == "parquet":
            from pyarrow import parquet

            parquet.write_table(table, path)
        else:
            from pyarrow import ipc

            with ipc.new_file(path, table.schema) as file:
                file.write_table(table)


class FlushBeforeRelease:
    """A rebalance listener that writes and commits the collected messages before partitions are
    released."""

    def __init__(self, sink: FileSink) -> None:
        self._sink = sink

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Write and commit the collected messages."""
        self._sink.flush()

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[str, Mapping[int, ConsumerThreadId]]
    ) -> None:
        """Do nothing."""


def _sync(path: Path) -> None:
    """Wait until the file is stored on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
