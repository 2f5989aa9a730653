"""Rules about journals and about groups on the coordinator find what is planted, and nothing that
resembles it. No Spark."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
from zkaudit.findings import outside
from zkaudit.group import Coverage, Finding
from zkaudit.group.records import (
    Committed,
    Delivery,
    Herd,
    Lowered,
    Owned,
    Records,
    State,
    View,
)
from zkaudit.group.records.coordinator import OWN_PROTOCOL
from zkaudit.limits import Limits
from zkaudit.schema import arrow_schema

US = 1_000_000


class Log:
    """States of groups, as table ``generations`` has them."""

    def __init__(self) -> None:
        self.groups: defaultdict[str, list[State]] = defaultdict(list)
        self.offset = 0

    def state(
        self,
        group: str,
        at: float,
        members: str,
        step: int = 1,
        classic: bool = True,
        protocol: str = "range",
    ) -> None:
        """A state ``step`` generations after the last one. ``members``: ``client@host#number`` of
        each; the number makes the ids differ."""
        states, ids = self.groups[group], members.split()
        generation = (states[-1].generation or 0 if states else 0) + step
        names = {one: one.partition("#")[0].partition("@") for one in ids}
        clients = {one: name[0] for one, name in names.items()}
        hosts = {one: f"/{name[2]}" for one, name in names.items()}
        time = round(at * US)
        states.append(
            State(3, self.offset, time, classic, generation, protocol, ids, clients, hosts)
        )
        self.offset += 1

    def found(self) -> dict[tuple[str, str], Finding]:
        """The findings by group and kind."""
        by = {}
        for group, states in self.groups.items():
            for finding in Records(group, states=states).findings(Coverage(), Limits()):
                assert (group, finding.kind) not in by
                by[group, finding.kind] = finding
        return by


def test_rebalance_storms_on_the_coordinator() -> None:
    """Ten generations within ten minutes are a storm; the sentence names the member that left most.
    Not a storm: slow changes, a generation that is stored twice, the epochs of members that start
    together, and the generations of migratable members."""
    log = Log()
    log.state("crash", 0, "a@h1#0 b@h2#0")
    for number in range(6):
        log.state("crash", 60 * number + 20, "b@h2#0")
        log.state("crash", 60 * number + 40, f"a@h1#{number + 1} b@h2#0")
    for number in range(12):
        log.state("slow", 100 * number, f"a@h1#{number}")
        log.state("twice", 10 * number, "a@h1#0", step=number == 0)
        ids = " ".join(f"a@h1#{one}" for one in range(number + 1))
        log.state("starts", 0.1 * number, ids, classic=False)
        log.state("moves", 10 * number, "a@h1#0", protocol=f"{OWN_PROTOCOL}x")
        log.state("epochs", 6 * number, "a@h1#0", classic=False)
    log.state("refused", 0, "a@h1#0")
    log.state("refused", 60, "a@h1#0", step=20)
    log.state("unseen", 0, "a@h1#0")
    log.state("unseen", 6000, "a@h1#0", step=20)
    found = log.found()
    storms = {
        group: finding.severity for (group, kind), finding in found.items() if "storm" in kind
    }
    assert storms == {"crash": "medium", "epochs": "high", "refused": "high"}
    crash = found["crash", "rebalance storm"]
    assert crash.basis == "inferred"
    assert crash.sentence == (
        "Group crash rebalanced 13 times within 600 s on the coordinator; members left it 6 times. "
        "Of these, 6 were members with client id a on host h1. It may have begun earlier: "
        "compaction removes older records."
    )
    assert [part.what for part in crash.evidence] == [
        "generation 1, __consumer_offsets-3, offset 0",
        "generation 13, __consumer_offsets-3, offset 12",
    ]


def test_members_that_leave_and_return() -> None:
    """A member that returns three times within an hour, also if its new id joins before the old one
    is expelled. Not: a rolling restart of members with one name, a job that starts its whole group
    again, a static member that is replaced without a rebalance, and returns over many hours."""
    log = Log()
    for number in range(4):
        log.state("flaps", 600 * number, f"a@h1#{number} b@h2#0")
        log.state("flaps", 600 * number + 30, "b@h2#0")
        log.state("job", 600 * number, f"a@h1#{number} b@h2#{number}")
        log.state("job", 600 * number + 30, f"b@h2#{number}")
        log.state("job", 600 * number + 31, "")
        log.state("static", 600 * number, f"a@h1#{number} b@h2#0", step=number == 0)
        log.state("slow", 3000 * number, f"a@h1#{number} b@h2#0")
        log.state("slow", 3000 * number + 30, "b@h2#0")
        old = [f"a@h1#{one + (4 if one < number else 0)}" for one in range(4)]
        log.state("rolls", 60 * number, " ".join(old))
        log.state("rolls", 60 * number + 30, " ".join(old[:number] + old[number + 1 :]))
    for number in range(8):
        log.state("ghost", 200 * number, f"b@h2#0 a@h1#{number}")
        log.state("ghost", 200 * number + 10, f"b@h2#0 a@h1#{number} a@h1#{number + 1}")
    found = log.found()
    assert {group for group, kind in found if kind == "flapping member"} == {"flaps", "ghost"}
    assert found["ghost", "flapping member"].sentence.startswith(
        "Up to 2 members at a time with client id a on host h1 left group ghost and returned 7 "
    )
    flaps = found["flaps", "flapping member"]
    assert (flaps.severity, flaps.basis) == ("medium", "inferred")
    assert flaps.sentence == (
        "The member with client id a on host h1 left group flaps and returned 3 times within "
        "3600 s, while other members stayed. Each time rebalances the group. The coordinator's "
        "records do not show why it left."
    )


def owned(source: str, begin: float, end: float, zxid: int | None = None) -> Owned:
    """A time in which partition t-0 belonged to a member of this name."""
    by_znode = zxid is not None
    session = 5 if by_znode else None
    return Owned("t", 0, source, session, by_znode, round(begin * US), round(end * US), zxid)


def test_two_owners_of_a_group_that_was_stopped_and_moved() -> None:
    """A consumer on the coordinator that starts before the last legacy member has stopped. It is
    less severe if the group moves while it runs, or may do so before the logs begin. Not: a clean
    move."""
    legacy, plain = owned("legacy", 10, 20, 9), owned("plain", 15, 99)
    known, late = Coverage([], [5]), Coverage([], [12])

    def judged(*rows: Owned, moves: bool = False, coverage: Coverage = known) -> list[Finding]:
        return list(Records("g", moves, owned=list(rows)).findings(coverage, Limits()))

    (early,) = judged(legacy, plain)
    assert (early.severity, early.kind, early.basis) == ("high", "two owners", "inferred")
    assert early.sentence == (
        "t-0 of group g was assigned to plain by the coordinator while member legacy had its owner "
        "znode, for 5.0 s (measured with two clocks). Both may have delivered, unless one of them "
        "had stopped. Journals would show which."
    )
    assert [(part.table, part.zxid, part.what) for part in early.evidence] == [
        ("group_ownership", 9, "owner znode"),
        ("group_ownership", None, "plain"),
    ]
    assert (early.zxid, early.time, early.end_time) == (9, 15 * US, 20 * US)
    (moves,) = judged(legacy, plain, moves=True)
    assert (moves.severity, moves.kind) == ("medium", "two owners during a move")
    (unsure,) = judged(legacy, plain, coverage=late)
    assert unsure.severity == "medium"
    assert unsure.sentence.endswith("whether the group was moving while it ran.")
    assert judged(legacy, owned("plain", 21, 99)) == []
    assert judged(legacy, owned("plain", 19.5, 99)) == []
    assert judged(legacy, owned("other", 15, 99, 10)) == []


def test_an_offset_in_kafka_that_went_back() -> None:
    """Nothing shows who wrote it."""
    records = Records("g", kafka=[Lowered("t", 0, 5, 90, 100, 3, 77)])
    (finding,) = records.findings(Coverage(), Limits())
    assert (finding.severity, finding.basis, finding.effect) == ("medium", "proven", "unknown")
    assert finding.evidence[0].what == "100 -> 90 at __consumer_offsets-3 offset 77"


def delivery(
    member: str,
    start: float,
    end: float,
    offsets: tuple[int | None, int | None],
    *,
    ended: str = "stopped",
    reset: tuple[int | None, int | None] | None = None,
) -> Delivery:
    """A member delivered messages of t-0."""
    times = round(start * US), round(end * US)
    before, after = reset or (None, None)
    return Delivery("t", 0, member, 1, *times, ended, *offsets, reset is not None, before, after,
                    f"/journals/{member}.jsonl", round(start))  # fmt: skip


def judged(*deliveries: Delivery, registered: tuple[str, ...] = ()) -> list[Finding]:
    """What the rules find in journals."""
    records = Records("g", registered=list(registered), deliveries=list(deliveries))
    return list(records.findings(Coverage(), Limits()))


def test_deliveries_that_overlap() -> None:
    """In time or in offsets. Not what one member delivers again, and not a clean handover."""
    (both,) = judged(delivery("a", 10, 70, (0, 50)), delivery("b", 30, 60, (30, 80)))
    assert (both.kind, both.severity) == ("overlapping delivery", "critical")
    assert (both.time, both.end_time) == (30 * US, 60 * US)
    assert both.sentence == (
        "Members b and a were both delivering messages of t-0 of group g for 30.0 s; offsets 30 to "
        "49 were delivered by both."
    )
    assert [part.what for part in both.evidence] == ["b.jsonl:30", "a.jsonl:10"]
    (apart,) = judged(delivery("a", 10, 70, (0, 50)), delivery("b", 30, 60, (50, 80)))
    assert apart.severity == "high"
    (again,) = judged(delivery("a", 10, 20, (0, 50)), delivery("b", 30, 60, (40, 80)))
    assert (again.kind, again.severity, again.time) == ("delivered twice", "low", 30 * US)
    assert "10 messages (offsets 40 to 49)" in again.sentence
    handed = [delivery("a", 10, 20, (0, 40)), delivery("b", 20.01, 39.99, (40, 70))]
    assert judged(*handed, delivery("a", 40, 60, (70, 90))) == []
    assert judged(delivery("a", 10, 50, (0, 40)), delivery("a", 40, 60, (30, 50))) == []
    assert judged(delivery("a", 10, 20.5, (0, 40)), delivery("b", 20, 30, (40, 50))) == []


def test_messages_that_no_member_delivered() -> None:
    """Only if all members kept journals to their end. A reset may explain the gap before it, and
    hides what follows if it is unknown where it led."""
    gap = [delivery("a", 10, 20, (0, 10)), delivery("b", 30, 40, (15, 20))]
    (finding,) = judged(*gap)
    assert (finding.kind, finding.messages) == ("delivery gap", 5)
    assert judged(*gap, registered=("c",)) == []
    assert judged(gap[0], gap[1]._replace(ended="open")) == []
    led = delivery("b", 30, 40, (60, 100), reset=(20, 60))
    after = delivery("c", 50, 60, (107, 120))
    assert [one.kind for one in judged(gap[0], led, after)] == ["offset reset", "delivery gap"]
    lost = delivery("b", 30, 40, (None, None), reset=(20, None))
    assert [one.kind for one in judged(gap[0], lost, after)] == ["offset reset"]


def test_resets_of_a_members_position() -> None:
    """Not the first position of a group."""
    (skips,) = judged(delivery("a", 10, 20, (500, 600), reset=(100, 500)))
    assert (skips.severity, skips.effect, skips.messages) == ("high", "lost", 400)
    (repeats,) = judged(delivery("a", 10, 20, (0, 950), reset=(900, 0)))
    assert (repeats.severity, repeats.basis, repeats.messages) == ("medium", "inferred", 900)
    (same,) = judged(delivery("a", 10, 20, (40, 50), reset=(40, 40)))
    assert (same.severity, same.effect) == ("info", "none")
    old = delivery("a", 10, 12, (0, 10), ended="reset")
    (unknown,) = judged(old, delivery("a", 12, 20, (None, None), reset=(None, None)))
    assert unknown.effect == "unknown"
    assert unknown.sentence.endswith("which; it had reached 10.")
    assert judged(delivery("a", 10, 20, (50, 70), reset=(None, 50))) == []


def test_commits_past_delivery() -> None:
    """One finding for each member, with its first such commit and its highest."""
    records = Records("g", deliveries=[delivery("a", 10, 20, (0, 50))])
    for number, offset in enumerate((50, 60, 55, 70)):
        records.committed(Committed("t", 0, "a", 100 + number, 0, 7, 1, offset))
    records.committed(Committed("t", 0, "b", 200, 0, 7, 1, 90))
    records.committed(Committed("t", 1, "a", 201, 0, 7, 1, 90))
    (finding,) = records.findings(Coverage(), Limits())
    assert (finding.kind, finding.zxid, finding.messages) == ("commit past delivery", 101, 20)


def test_members_with_different_views() -> None:
    """For longer than it takes to notice a change."""

    def seen(member: str, start: int, end: int, *members: str) -> View:
        return View(member, start * US, end * US, members, f"{member}.jsonl", start)

    apart = [seen("a", 0, 200, "a"), seen("b", 50, 200, "a", "b")]
    (finding,) = Records("g", views=apart).findings(Coverage(), Limits())
    assert (finding.severity, finding.member, finding.time) == ("high", "b", 80 * US)
    assert "a saw 1 (a), b saw 2 (a, b)." in finding.sentence
    late = [seen("a", 0, 70, "a"), seen("a", 70, 200, "a", "b"), apart[1]]
    assert list(Records("g", views=late).findings(Coverage(), Limits())) == []


def test_rows_of_all_parts_reach_their_rules() -> None:
    """As Spark hands them to a Python worker: groups follow one another, in batches of any size."""
    parts: dict[str, Any] = {
        "registered": {"member": "a"},
        "delivery": delivery("a", 10, 20, (0, 50), ended="stopped")._asdict(),
        "view": {"member": "a", "start": 0, "end": 200 * US, "members": ["a"], "file": "f",
                 "line": 1},
        "owned": owned("legacy", 10, 20, 9)._asdict(),
        "state": State(3, 1, 5, True, 1, "range", ["a"], {"a": "c"}, {"a": "/h"})._asdict()
        | {"clients": [("a", "c")], "hosts": [("a", "/h")]},
        "lowered": Lowered("t", 0, 5, 90, 100, 3, 77)._asdict(),
        "herd": Herd(7, 0, 7 * US, "a", "join", "measured in part", "inferred", 60, 3, 9)._asdict(),
        "committed": Committed("t", 0, "a", 100, 0, 7, 1, 60)._asdict(),
    }  # fmt: skip
    more = [
        ("view", parts["view"] | {"member": "b", "members": ["b"]}),
        ("owned", owned("plain", 15, 99)._asdict()),
    ]
    empty = dict.fromkeys((*parts, "moves"))
    rows = [
        {"chroot": "", "group_id": group} | empty | {name: part}
        for group in ("g", "h")
        for name, part in sorted([*parts.items(), *more], key=lambda one: one[0] == "committed")
    ]
    rows.append({"chroot": "", "group_id": "h"} | empty | {"moves": True})
    table = pa.Table.from_pylist(rows)
    rules = outside.Outside(Coverage([], [5]), Limits())
    schema = arrow_schema(outside.COLUMNS)
    batches = outside.judged(schema, rules, table.to_batches(max_chunksize=4))
    found = [row for batch in batches for row in batch.to_pylist()]
    kinds = ["commit past delivery", "herd", "members whose views disagree", "offset regression"]
    assert sorted(row["kind"] for row in found if row["group_id"] == "g") == [*kinds, "two owners"]
    assert sorted(row["kind"] for row in found if row["group_id"] == "h") == [
        *kinds, "two owners during a move"
    ]  # fmt: skip
    assert all(row["evidence"] and row["sentence"] for row in found)
    (herd,) = (row for row in found if row["kind"] == "herd" and row["group_id"] == "g")
    assert (herd["severity"], herd["basis"], herd["zxid"]) == ("low", "measured", 7)
    assert herd["sentence"] == (
        "The join of a made at least 60 members of group g react, with 3 rebalances and 9 znode "
        "reads."
    )
