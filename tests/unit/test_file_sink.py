"""Files of ``zkconsumer consume --format arrow``, without servers."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from zkconsumer.broker.fetching.columns import of_records
from zkconsumer.broker.fetching.records import TimestampType
from zkconsumer.cli.consume.file_sink import FileSink, FlushBeforeRelease

ROWS = of_records("t", 0, [("t", 0, 5, None, b"v", -1, TimestampType.NONE, ())])


def test_a_file_that_a_rebalance_could_not_write_ends_the_command(tmp_path: Path) -> None:
    """The listener's error does not reach the command. So the next messages do, and the end: the
    exit status is not 0, and nothing is committed."""
    folder = tmp_path / "out"
    sink = FileSink(folder, "arrow", 10, 60.0, None)
    sink.commit = lambda offsets: pytest.fail(f"committed {offsets}")
    assert sink.add(ROWS)
    folder.rmdir()
    with pytest.raises(click.ClickException, match="cannot be written"):
        FlushBeforeRelease(sink).before_releasing_partitions({"t": frozenset({0})})
    folder.mkdir()
    for use in (lambda: sink.add(ROWS), sink.close):
        with pytest.raises(click.ClickException, match="cannot be written"):
            use()
    assert list(folder.iterdir()) == []
