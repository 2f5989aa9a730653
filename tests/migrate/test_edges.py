"""Offsets 0 and the log's end, empty logs, and other names in Kafka. On a simulated cluster."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from zkmigrate.model import Direction

from tests.migrate.simulated import Simulated, simulated
from zkconsumer.core.common.types import TopicPartition

__all__ = ["simulated"]
T0 = TopicPartition("t", 0)
FORTH, BACK = Direction.ZK_TO_KAFKA, Direction.KAFKA_TO_ZK
DO = ("--execute", "--parallel", "1")


@pytest.mark.parametrize(
    ("log", "offset"), [((0, 10), n) for n in (0, 1, 9, 10)] + [((0, 0), 0), ((7, 7), 7)]
)
def test_an_offset_at_any_edge_is_moved_and_comes_back(
    simulated: Simulated, log: tuple[int, int], offset: int
) -> None:
    """Each command treats it as the offset that it is: there, inside of the log, and equal."""
    simulated.topic("t", log)
    simulated.in_zookeeper("g", "t", offset)
    copy = simulated.run("offsets", "export", "--all", "--format", "csv", rows=False)
    assert (copy.status, f"g,t,0,{offset}\n" in copy.err) == (0, True)
    assert simulated.run("gate", "--all").status == 3
    plan, back = simulated.file("plan"), simulated.file("back")
    assert simulated.run("plan", "--all", "--out", plan).status == 0
    assert simulated.run("apply", plan, *DO).status == 0
    assert simulated.held("g", "t") == ({0: offset}, {0: offset})
    assert simulated.run("status", plan, "--strict").status == 0
    assert simulated.run("gate", "--all").status == 0
    found = simulated.run("status", "--all")
    lag = log[1] - offset
    assert (found.status, found.rows[0]["kafka_lag"], found.rows[0]["attention"]) == (0, lag, "")
    assert simulated.run("apply", plan, *DO).rows[0]["outcome"] == "was done before"
    way = ("--direction", BACK.value)
    assert simulated.run("plan", "--all", *way, "--out", back).status == 0
    assert simulated.run("apply", back, *DO).status == 0
    assert simulated.run("status", back, "--strict").status == 0
    assert simulated.run("undo", back, *DO).status == 0
    assert simulated.run("undo", plan, *DO).status == 0
    assert simulated.held("g", "t") == ({0: offset}, {})


@pytest.mark.parametrize("store", ["zookeeper", "kafka"])
@pytest.mark.parametrize(
    ("words", "at_time", "after"),
    [
        (("--to-datetime", "2024-05-31T12:00:00"), 0, 0),
        (("--to-datetime", "2024-05-31T12:00:00"), 9, 9),
        (("--to-datetime", "2024-05-31T12:00:00"), -1, 10),
        (("--by-duration", "P1D"), 0, 0),
        (("--by-duration", "P1D"), -1, 10),
        (("--shift-by", "-5"), None, 0),
        (("--shift-by", "-6"), None, 0),
        (("--shift-by", "5"), None, 10),
        (("--shift-by", "6"), None, 10),
        (("--shift-by", "0"), None, 5),
        (("--to-offset", "0"), None, 0),
        (("--to-offset", "10"), None, 10),
        (("--to-offset", "11"), None, 10),
        (("--to-earliest",), None, 0),
        (("--to-latest",), None, 10),
    ],
)
def test_a_reset_to_any_edge(
    simulated: Simulated, store: str, words: tuple[str, ...], at_time: int | None, after: int
) -> None:
    """A first message at offset 0 is a message: only without one the log's end is used."""
    simulated.topic("t", (0, 10))
    if store == "zookeeper":
        simulated.in_zookeeper("g", "t", 5)
    else:
        simulated.in_kafka("g", "t", 5)
    if at_time is not None:
        simulated.at_time[T0] = at_time
    done = simulated.run("reset", "--all", "--all-topics", "--execute", *words)
    assert done.status == 0, done
    assert simulated.held("g", "t")[store == "kafka"] == {0: after}


@pytest.mark.parametrize("offset", [0, 10])
def test_a_file_with_an_edge(simulated: Simulated, offset: int) -> None:
    """Both a reset and a plan take it as it is."""
    simulated.topic("t", (0, 10))
    simulated.in_zookeeper("g", "t", 5)
    (simulated.folder / "offsets.csv").write_text(f"g,t,0,{offset}\n")
    words = ("--all", "--from-file", simulated.file("offsets.csv"))
    assert simulated.run("plan", *words, "--out", simulated.file("plan")).status == 0
    assert simulated.run("apply", simulated.file("plan"), *DO).status == 0
    assert simulated.held("g", "t")[1] == {0: offset}
    simulated.kafka.committed.clear()
    simulated.zk.delete("/consumers/g")
    simulated.in_zookeeper("g", "t", 5)
    assert simulated.run("reset", *words, "--execute").status == 0
    assert simulated.held("g", "t")[0] == {0: offset}


MEMBERS = {"nobody": (), "old": ("live-member",), "new": ("coordinator-member",)}
PLANS: dict[tuple[str, bool, Direction], tuple[str, ...]] = {
    # marker, whether the store that is current lacks the offset, way: kinds without members
    ("none", False, FORTH): ("ready",),
    ("none", False, BACK): ("ready",),
    ("none", True, FORTH): ("ready",),
    ("none", True, BACK): ("nothing-stored",),
    ("kafka", False, FORTH): ("moved",),
    ("kafka", False, BACK): ("ready",),
    ("kafka", True, FORTH): ("expired",),
    ("kafka", True, BACK): ("expired",),
    ("zookeeper", False, FORTH): ("ready",),
    ("zookeeper", False, BACK): ("moved",),
    ("zookeeper", True, FORTH): ("expired",),
    ("zookeeper", True, BACK): ("expired",),
}
OWN = {FORTH: "new", BACK: "old"}
"""The members that may run in a group that was moved this way before."""


CELLS = [
    (*key, who, renamed)
    for key, who, renamed in product(PLANS, MEMBERS, [False, True])
    if not renamed or key[0] != "none" or key[1:] == (True, FORTH)  # else another group has it
]


@pytest.mark.parametrize(("marker", "gone", "way", "members", "renamed"), CELLS)
def test_marker_name_lost_offset_and_members(
    simulated: Simulated, marker: str, gone: bool, way: Direction, members: str, renamed: bool
) -> None:
    """Whatever the group's name in Kafka is, its offsets and members there are seen."""
    name = "other" if renamed else "g"
    given = ("--rename", "g=other") if renamed else ()
    there = ("--rename", "other=g") if renamed else ()
    back = ("plan", "--group", name, "--direction", BACK.value, *there)
    simulated.topic("t", (0, 10))
    simulated.in_zookeeper("g", "t", 0)
    if marker == "none" and not gone:
        simulated.in_kafka("g", "t", 0)
    if marker != "none":
        simulated.run("plan", "--all", *given, "--out", simulated.file("one"))
        assert simulated.run("apply", simulated.file("one"), "--no-lock", *DO).status == 0
    if marker == "zookeeper":
        simulated.run(*back, "--out", simulated.file("two"))
        assert simulated.run("apply", simulated.file("two"), *DO).status == 0
    if marker == "kafka" and gone:
        simulated.kafka.committed.clear()
    if marker == "zookeeper" and gone:
        simulated.zk.delete("/consumers/g/offsets/t/0")
    if members == "old":
        simulated.zk.set("/consumers/g/ids/g_m", b"{}")
    if members == "new":
        simulated.kafka.joined[name] = ("c at h (m)",)

    out = ("--out", simulated.file("plan"))
    made = (
        simulated.run(*back, *out) if way is BACK else simulated.run("plan", "--all", *given, *out)
    )
    expected = {*PLANS[marker, gone, way], *MEMBERS[members]}
    if "moved" in expected and members == OWN[way]:
        expected = {"moved"}
    if len(expected) > 1:
        expected -= {"ready", "moved"}
    assert {row["kind"] or row["verdict"] for row in made.rows} == expected, made

    if marker != "none" or not renamed:
        (row,) = [one for one in simulated.run("status", "--all").rows if one["group"] == "g"]
        seen = (row["zookeeper_members"], row["kafka_members"])
        assert seen == (int(members == "old"), int(members == "new"))


def test_a_reset_and_a_check_of_a_group_with_another_name(simulated: Simulated) -> None:
    """They read and write the offsets under that name."""
    simulated.topic("t", (0, 10))
    simulated.in_zookeeper("g", "t", 5)
    plan = simulated.file("plan")
    simulated.run("plan", "--all", "--rename", "g=other", "--out", plan)
    assert simulated.run("apply", plan, *DO).status == 0
    done = simulated.run("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    assert (done.status, done.rows[0]["store"]) == (0, "kafka")
    assert simulated.held("other", "t")[1] == {0: 0}
    assert simulated.held("g", "t")[1] == {}
    assert simulated.run("status", plan).status == 3
    simulated.kafka.joined["other"] = ("c at h (m)",)
    done = simulated.run("reset", "--group", "g", "--all-topics", "--to-latest", "--execute")
    assert done.status == 3
    assert "joined at the broker's coordinator" in done.rows[0]["why"]


@pytest.mark.parametrize("stale", [None, "zookeeper", "kafka"])
def test_stores_of_a_member_with_dual_commit_differ_for_a_moment(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, stale: str | None
) -> None:
    """It commits between the reads of both stores, at every look. Only a store that does not follow
    needs attention."""
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper("g", "t", 5)
    simulated.in_kafka("g", "t", 4)
    fetch, offsets = simulated.kafka.fetch, iter(range(10, 1000, 10))

    def committing(*words: Any) -> Any:
        offset = next(offsets)
        if stale != "kafka":
            simulated.in_kafka("g", "t", offset)
        found = fetch(*words)
        if stale != "zookeeper":
            simulated.in_zookeeper("g", "t", offset)
        return found

    monkeypatch.setattr(simulated.kafka, "fetch", committing)
    ran = simulated.run("status", "--group", "g")
    assert ran.rows[0]["truth"] == "both"
    assert ran.rows[0]["reasons"] == ([] if stale is None else ["conflict"])
    assert ran.status == (0 if stale is None else 3)


@pytest.mark.parametrize("rule", ["kafka", "zookeeper", "max", "min"])
def test_a_group_with_a_decided_conflict_is_moved_and_not_used(
    simulated: Simulated, rule: str
) -> None:
    """Until a consumer commits, whichever store's offset was chosen."""
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.in_zookeeper("g", "t", 5, 7)
    simulated.in_kafka("g", "t", 6, 3)
    plan = simulated.file("plan")
    assert simulated.run("plan", "--all", "--on-conflict", rule, "--out", plan).status == 0
    assert simulated.run("apply", plan, *DO).status == 0
    assert simulated.run("status", "--all").rows[0]["case"] == "moved"
    simulated.in_kafka("g", "t", 900)
    assert simulated.run("status", "--all").rows[0]["case"] == "moved and used"
