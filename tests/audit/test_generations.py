"""The records of one group on the brokers become its states, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zkaudit import schema
from zkaudit.decode.offsets_topic import decode
from zkaudit.history.generations import states

RECORDS = Path(__file__).with_name("group_history.txt")
"""Time, key and value of each record that a broker of Kafka 4.4 wrote about one group: ``one`` and
``two`` are classic members, ``two`` is killed, ``three`` is a KIP-848 member, ``one`` leaves,
``four`` is another one and is killed, ``five`` is classic, ``three`` leaves, ``five`` leaves."""
MAPS = ("hosts", "clients", "assignment")


def record(offset: int, time: int | None, **values: Any) -> dict[str, Any]:
    """A row of ``schema.OFFSETS``."""
    row: dict[str, Any] = dict.fromkeys(column.name for column in schema.OFFSETS)
    row |= {"group_id": "g", "log_partition": 3, "log_offset": offset, "time": time}
    row |= {"deleted": False}
    return row | {key: {} for key in MAPS} | values


def real() -> list[dict[str, Any]]:
    """The recorded group."""
    found = []
    for offset, line in enumerate(RECORDS.read_text().splitlines()):
        time, key, value = line.split()
        content = None if value == "-" else bytes.fromhex(value)
        row = decode(bytes.fromhex(key), content, lambda _: "topic")
        if row["kind"] != "other":
            found.append(record(offset, int(time), **row))
    return found


def brief(rows: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """Protocol, epoch, members and the owner of each partition, by client id."""
    found = []
    for row in rows:
        names, assigned = row.get("clients") or {}, row.get("assignment") or {}
        owners = [names.get(assigned.get(f"topic-{number}"), "-") for number in range(6)]
        found.append(
            (row.get("group_protocol"), row.get("generation"), " ".join(sorted(names.values())),
             " ".join(owners))
        )  # fmt: skip
    return found


def test_a_group_that_changes_its_protocol_twice() -> None:
    """One history: epochs continue generations, and the change of the protocol is no end. A member
    that is to release partitions has them until it has done so."""
    assert brief(list(states(real()))) == [
        ("classic", 0, "", "- - - - - -"),
        ("classic", 1, "one", "one one one one one one"),
        ("classic", 2, "one two", "one one one two two two"),
        ("classic", 3, "one", "one one one one one one"),
        ("consumer", 4, "one three", "one one one one one one"),
        ("consumer", 4, "one three", "one one one - - -"),
        ("consumer", 4, "one three", "one one one three three three"),
        ("consumer", 5, "three", "- - - three three three"),
        ("consumer", 5, "three", "three three three three three three"),
        ("consumer", 6, "four three", "three three three three three three"),
        ("consumer", 6, "four three", "three three three - - -"),
        ("consumer", 6, "four three", "three three three four four four"),
        ("consumer", 7, "three", "three three three - - -"),
        ("consumer", 7, "three", "three three three three three three"),
        ("consumer", 8, "five three", "three three three three three three"),
        ("consumer", 8, "five three", "three three three - - -"),
        ("consumer", 8, "five three", "three three three five five five"),
        ("classic", 8, "five", "- - - five five five"),
        ("classic", 9, "five", "five five five five five five"),
        ("classic", 10, "", "- - - - - -"),
    ]


def test_what_compaction_leaves_of_a_group() -> None:
    """Of each key the last record is left. Where the epoch's record is newer than a member's, the
    member's own epoch is known. The last state is the true one."""
    every = [row for row in real() if row["log_offset"] < 34]
    last = {(row["kind"], row["member"]): row for row in every}
    left = sorted(last.values(), key=lambda row: row["log_offset"])
    found = list(states(left))
    assert brief(found)[-1] == brief(list(states(every)))[-1]
    first = next(row for row in found if row.get("group_protocol") == "consumer")
    assert first["generation"] is None or first["generation"] <= 6
    for row in found:
        assert set((row.get("assignment") or {}).values()) <= set(row.get("members") or ())


def test_the_end_of_a_group() -> None:
    """An empty KIP-848 group is a state, and its end is another one."""
    found = list(
        states(
            [
                record(0, 1, kind="group epoch", generation=4),
                record(1, 2, kind="target epoch", generation=4),
                record(2, 3, kind="target epoch", deleted=True),
                record(3, 3, kind="group epoch", deleted=True),
                record(4, None, kind="group", generation=1, members=["m"]),
                record(5, None, kind="group", deleted=True),
            ]
        )
    )
    assert [(row["log_offset"], row.get("generation"), row.get("members")) for row in found] == [
        (0, 4, []),
        (3, None, None),
        (4, 1, ["m"]),
        (5, None, None),
    ]


@pytest.mark.parametrize("first", ["group", "group epoch"])
def test_a_group_that_returns_to_the_classic_protocol_has_members(first: str) -> None:
    """The coordinator writes the classic group and deletes the epoch in one batch, in either order.
    That is one state, and it has the group's members."""
    batch = [
        {"kind": "group", "generation": 9, "members": ["m"]},
        {"kind": "group epoch", "deleted": True},
    ]
    batch.sort(key=lambda row: row["kind"] != first)
    rows = [record(0, 1, kind="group epoch", generation=8)]
    rows += [record(1 + number, 2, **row) for number, row in enumerate(batch)]
    found = [(row.get("group_protocol"), row.get("members")) for row in states(rows)]
    assert found == [("consumer", []), ("classic", ["m"])]
