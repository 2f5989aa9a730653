"""The fold over Arrow batches: any division into batches, and a group that is never in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from zkaudit.group import ACTS, Act, Coverage, Event, Facts, replay
from zkaudit.history.batches import OUTPUT, fold_batches
from zkaudit.history.fold_input import EVENTS, INPUT, LATER, SHOWN
from zkaudit.limits import Limits
from zkaudit.schema import arrow_schema

from tests.audit.group_histories import RandomGroup
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import encode_member, encode_mode

TYPES = {act: kind for kind, act in reversed(ACTS.items())}


def row_of(key: int, part: int, event: Event) -> dict[str, Any]:
    """An event as a row of ``INPUT``."""
    return event._asdict() | {"key": key, "part": part, "type": TYPES[event.act], "act": None}


def batches_of(rows: list[dict[str, Any]], size: int) -> Iterator[pa.RecordBatch]:
    """Rows of ``INPUT`` in batches."""
    for begin in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[begin : begin + size], schema=arrow_schema(INPUT))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_groups_in_batches_of_any_size(size: int) -> None:
    """Groups begin and end anywhere in a batch. The rows are those of a fold of each group."""
    rng = random.Random(7)
    groups = [RandomGroup(rng, f"g{number}", steps=120) for number in range(6)]
    rows: list[dict[str, Any]] = []
    expected = 0
    coverage = Coverage([(0, 20), (50, 60)])
    for key, group in enumerate(groups):
        events = [e for e in group.events if e.zxid >= 20 and not 50 < e.zxid < 60]
        history = replay(events, coverage, group.shown)
        expected += len(history.lifetimes) + len(history.commits)
        rows += (shown._asdict() | {"key": key, "part": SHOWN} for shown in group.shown)
        rows += (row_of(key, LATER, e) for e in events if "/offsets/" not in (e.path or ""))
        rows += (row_of(key, EVENTS, event) for event in events)
    output = fold_batches(arrow_schema(OUTPUT), coverage, batches_of(rows, size))
    table = pa.Table.from_batches(output, arrow_schema(OUTPUT))
    tables = table["table"].to_pylist()
    others = sum(map(tables.count, ("used", "rebalances", "membership", "names")))
    assert len(tables) - others == expected
    named = {(r["group_id"], r["tree"]) for r in table.to_pylist() if r["table"] == "names"}
    assert named == {
        (f"g{number}", tree) for number in range(6) for tree in ("ids", "owners", "offsets")
    }
    states = {(row["zxid"], row["idx"], row["group_id"]): row["owner_state"]
              for row in table.to_pylist() if row["table"] == "offsets"}  # fmt: skip
    whole = {
        (c.zxid, c.idx, c.znode.group): c.owner
        for group in groups
        for c in replay(group.events).commits
    }
    assert {"owner", "none", "unknown"} == set(states.values())
    for place, state in states.items():
        assert state == "unknown" or (state == "none") == (whole[place] is None)


def test_a_group_is_a_stream() -> None:
    """Rows are returned while the group is still being read, so its size does not matter."""
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for number in range(10):
            read += 1
            rows = [
                row_of(1, EVENTS, Event(number * 5000 + i, 0, 0, 1, Act.SET,
                                        "/consumers/g/offsets/t/0", b"%d" % i))
                for i in range(5000)
            ]  # fmt: skip
            yield from batches_of(rows, 5000)

    output = fold_batches(arrow_schema(OUTPUT), Coverage(), batches())
    assert next(output).num_rows == 10_000
    assert read == 2
    last = [row for batch in output for row in batch.select(["table", "tree"]).to_pylist()]
    assert len(last) == 40_002
    assert [row["tree"] for row in last if row["table"] == "names"] == ["offsets"]


def test_findings_leave_with_the_rows() -> None:
    """Each finding has the group's name and its evidence."""
    owner = "/x/consumers/g/owners/t/0"
    events = [
        Event(1, 0, 1, 5, Act.CREATE, owner, b"g_c-0", True),
        Event(2, 0, 2, 6, Act.DELETE, owner),
    ]
    rows = [row_of(1, EVENTS, event) for event in events]
    output = fold_batches(arrow_schema(OUTPUT), Coverage(), batches_of(rows, 10), Facts(), Limits())
    table = pa.Table.from_batches(output, arrow_schema(OUTPUT)).to_pylist()
    (finding,) = (row for row in table if row["table"] == "findings")
    assert (finding["chroot"], finding["group_id"], finding["kind"]) == (
        "/x",
        "g",
        "foreign release",
    )
    assert [(row["zxid"], row["what"]) for row in finding["evidence"]] == [
        (1, "claimed"), (2, "deleted"),
    ]  # fmt: skip


def test_the_modes_of_a_live_move_are_rows() -> None:
    """An id that is not valid Unicode, from a znode that anybody may write, fails no audit."""
    member = "/consumers/g/live/members/a"
    events = [
        Event(1, 0, 1, 4, Act.CREATE, "/consumers/g/live/mode", encode_mode(Mode.KAFKA), False),
        Event(2, 0, 2, 5, Act.CREATE, "/consumers/g/ids/a", b"{}", True),
        Event(2, 1, 2, 5, Act.CREATE, member, encode_member(None, "\ud800"), True),
        Event(3, 0, 3, 5, Act.SET, member, encode_member(0, "a-1"), False, version=1),
    ]
    rows = [row_of(1, EVENTS, event) for event in events]
    output = fold_batches(arrow_schema(OUTPUT), Coverage(), batches_of(rows, 10))
    table = pa.Table.from_batches(output, arrow_schema(OUTPUT)).to_pylist()
    (mode,) = (row for row in table if row["table"] == "migrations")
    assert (mode["mode"], mode["coordination"], mode["version"]) == ("kafka", "coordinator", 0)
    assert (mode["start_zxid"], mode["ended"], mode["session"]) == (1, "still", 4)
    assert [(ack["member"], ack["zxid"]) for ack in mode["acknowledged"]] == [("a", 3)]
    (phase,) = (row for row in table if row["table"] == "phases")
    assert (phase["session"], phase["coordination"], phase["end_zxid"]) == (5, "coordinator", None)
    assert {row["member"] for row in table if row["table"] == "member_ids"} == {"?", "a-1"}
