"""What a round of a stream has to audit, without Spark: from recorded files and the last round."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from zkaudit import schema
from zkaudit.history import committed
from zkaudit.job import buckets, stream
from zkaudit.job.audit import Options

ROWS = pa.schema([f.with_nullable(True) for f in schema.arrow_schema(schema.TXNLOG_GROUPS)])
EPOCH = 1 << 32


def batch(
    folder: Path, first: int, last: int, rows: dict[int, list[dict[str, Any]]]
) -> buckets.Batches:
    """Write the rows of some buckets, as batches ``first`` to ``last``."""
    place = folder / f"batches-{first:010}-{last:010}"
    place.mkdir(parents=True)
    for number, found in rows.items():
        (place / f"bucket={number}").mkdir()
        full = [dict.fromkeys(ROWS.names) | row for row in found]
        table = pa.Table.from_pylist(full, schema=ROWS)
        pq.write_table(table, place / f"bucket={number}" / "part.parquet")
    (place / "_SUCCESS").touch()
    return buckets.Batches(first, last, place)


def run(server: str, first: int, last: int, second: int = 0) -> dict[str, Any]:
    """A run of zxids of epoch 1; the last one's time is so many seconds after 2026 began."""
    time = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    zxids = {"zxid": EPOCH + first, "last_zxid": EPOCH + last}
    return {"server": server, "file": "log.1", "type": schema.RUN, "time": time} | zxids


def used(tables: Path, **sessions: list[int]) -> None:
    """Write which sessions each bucket used: ``b3=[1, 2]``."""
    place = tables / ".state" / "used"
    place.mkdir(parents=True)
    for name, numbers in sessions.items():
        pq.write_table(pa.table({"session": numbers}), place / f"bucket-{name[1:]}-0.parquet")


def test_each_batch_counts_once(tmp_path: Path) -> None:
    """A directory that is not finished does not count, nor one whose batches a larger one has."""
    assert buckets.recorded(tmp_path / "nothing") == []
    one, merged, late = (batch(tmp_path, *n, {}) for n in ((15, 15), (0, 15), (16, 16)))
    (tmp_path / "batches-0000000017-0000000017").mkdir()
    (tmp_path / "snapshots").mkdir()
    assert buckets.recorded(tmp_path) == [merged, late]
    (merged.place / "_SUCCESS").unlink()
    assert buckets.recorded(tmp_path) == [one, late]


def test_runs_that_continue_one_another_are_one() -> None:
    """Many rounds leave few runs. Log gaps, servers and epochs stay apart."""
    rows = [run("a", 4, 6, 2), run("a", 1, 3, 1), run("a", 9, 9, 3), run("b", 1, 3, 4)]
    other = run("a", 0, 0) | {"zxid": 2 * EPOCH, "last_zxid": 2 * EPOCH + 5}
    found = buckets.folded([*rows, other])
    assert found == [run("a", 1, 6, 2), run("a", 9, 9, 3), other, run("b", 1, 3, 4)]
    assert buckets.covered(found) == [
        (EPOCH + 1, EPOCH + 6), (EPOCH + 9, EPOCH + 9), (2 * EPOCH, 2 * EPOCH + 5)
    ]  # fmt: skip


def test_a_row_touches_its_group_and_the_groups_that_its_session_used(tmp_path: Path) -> None:
    """A session's end ends what it owned in any group, and its refused creates may be claims."""
    used(tmp_path, b3=[1, 2], b4=[2, 7], b5=[8], b6=[9])
    closed = {"type": "closeSession", "session": 2}
    refused = {"type": "error", "session": 8, "path": "/consumers/g/owners/t/0"}
    new = batch(tmp_path, 1, 1, {200: [{"session": 1}], buckets.SHARED: [closed, refused]})
    assert buckets.touched_by([new], tmp_path) == {3, 4, 5, 200}
    topic = {"type": "setData", "session": 8, "path": "/brokers/topics/t"}
    other = batch(tmp_path, 2, 2, {buckets.SHARED: [topic]})
    assert buckets.touched_by([new, other], tmp_path) is None


def test_what_all_groups_depend_on_touches_all(tmp_path: Path) -> None:
    """A round audits everything after a change that is not of single groups."""
    tables = tmp_path / "tables"
    used(tables, b3=[1])
    rows = [run("a", 1, 9, 1), run("b", 1, 9, 1), run("c", 1, 5)]
    batch(tmp_path / "recorded", 0, 0, {buckets.RUNS: rows})
    options = Options(["a", "b", "c"], str(tmp_path))

    def touched(options: Options = options, **change: Any) -> frozenset[int] | None:
        batches = buckets.recorded(tmp_path / "recorded")
        runs = buckets.runs_of(batches)
        plan = committed.plan(buckets.as_runs(runs))
        now = replace(stream._state(options, batches, runs, plan), always=(7,), **change)
        if not (tables / ".state" / "state.json").exists():
            now.write(tables)
        return stream._touched(options, batches, plan, tables, now)

    assert touched() == {7}
    new = run("a", 10, 12, 2), run("b", 10, 11, 2)
    batch(tmp_path / "recorded", 1, 1, {buckets.RUNS: list(new), 200: [{"session": 1}]})
    assert touched() == {7, 200}
    assert touched(replace(options, start="2026-01-01")) is None
    assert touched(replace(options, journals=["journal"])) is None
    assert touched(end_us=1) is None
    assert touched(end_us=None) is None
    # The third server continues behind a log gap. That proves the other servers' last transaction,
    # which no new row is about.
    later = run("c", 12, 13, 3)
    batch(tmp_path / "recorded", 2, 2, {buckets.RUNS: [later]})
    state = buckets.State.of(tables)
    assert state is not None
    replace(state, last=1, unconfirmed=[[EPOCH + 10, EPOCH + 11]]).write(tables)
    assert touched() is None
    (tables / ".state" / "state.json").unlink()
    assert stream._touched(options, [], committed.plan([]), tables, state) is None


@pytest.mark.parametrize("audited", [None, (3, 4)])
def test_a_state_is_read_as_it_was_written(tmp_path: Path, audited: tuple[int, ...]) -> None:
    """Also the numbers of buckets, which are texts in JSON."""
    state = buckets.State(7, {"log_gaps": [[1, 3]]}, [[1, 2]], 5, {3: 9}, (3,), audited)
    state.write(tmp_path)
    found = buckets.State.of(tmp_path)
    assert found is not None
    assert replace(found, audited=audited) == state
    assert found.audited is None if audited is None else list(found.audited or ()) == [3, 4]
