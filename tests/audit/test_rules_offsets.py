"""Rules about wrong and lower offsets: each case takes about five events. No Spark."""

from __future__ import annotations

import json
import math
import random
import sys
from types import FrameType
from typing import Any

import pytest
from zkaudit.findings.kinds import KINDS
from zkaudit.group import Act, Event, Facts, Finding, Opened, Partition, Shown
from zkaudit.group.rules.offsets import WrongOffsets
from zkaudit.group.rules.resets import Pace
from zkaudit.limits import SEVERITIES

from tests.audit import test_rules
from tests.audit.test_rules import claim, close, delete, event, join
from zkconsumer.admin.takeover import tool_name

MEMBER, OTHER, TOOL, BROKER = 1, 2, 50, 900
OPENED = Opened([(TOOL, 1)])
GAP = [(0, 1)]
"""The logs begin with transaction 1, and no snapshot shows what was before."""


def commit(
    zxid: int, offset: object, session: int = MEMBER, partition: int = 0, **more: Any
) -> Event:
    """A session writes an offset, or other data."""
    data = offset if isinstance(offset, bytes) else str(offset).encode()
    path = f"/consumers/g/offsets/t/{partition}"
    return event(zxid, session, Act.SET, path, data)._replace(**more)


def stopped(*, partitions: int = 1) -> list[Event]:
    """A member that came to offset 100 and stopped, up to zxid 9."""
    events = [join(1, MEMBER)]
    for partition in range(partitions):
        events.append(claim(2 + 2 * partition, MEMBER, partition=partition))
        events.append(commit(3 + 2 * partition, 100, partition=partition))
    return [*events, close(9, MEMBER)]


def restarted(zxid: int, first: int | None = None) -> list[Event]:
    """The member returns in a new session and commits."""
    events = [join(zxid, OTHER), claim(zxid + 1, OTHER)]
    return events if first is None else [*events, commit(zxid + 2, first, OTHER)]


def running() -> list[Event]:
    """A member at offset 100 that still owns the partition, up to zxid 3."""
    return [join(1, MEMBER), claim(2, MEMBER), commit(3, 100)]


def found(*events: Event, **more: Any) -> list[Finding]:
    """What the rules about offsets find."""
    every = test_rules.found(*events, **more)
    return [one for one in every if one.effect is not None or one.kind.startswith("commit past")]


def judged(*events: Event, **more: Any) -> list[tuple[Any, ...]]:
    """Kind, severity, basis, effect and number of each finding."""
    names = ("kind", "severity", "basis", "effect", "messages")
    return [tuple(getattr(one, name) for name in names) for one in found(*events, **more)]


def only(*events: Event, **more: Any) -> Finding:
    """The one finding."""
    (finding,) = found(*events, **more)
    return finding


def test_owners_that_commit_and_hand_over_are_no_finding() -> None:
    """Nor is an offset that is written again, or a claim that touches it."""
    touch = event(21, OTHER, Act.SET, "/consumers/g/offsets/t/0", b"130", idx=1)
    events = [*running(), commit(4, 110), commit(5, 110), commit(6, 130), delete(7, MEMBER)]
    assert (
        judged(*events, join(20, OTHER, "b"), claim(21, OTHER, "b"), touch, commit(22, 140, 2))
        == []
    )


@pytest.mark.parametrize(
    ("offset", "first", "expected"),
    [
        (1000, 1010, ("lost messages", "critical", "inferred", "lost", 900)),
        (1000, None, ("lost messages", "critical", "inferred", "lost", 900)),
        (1000, 130, ("lost messages", "critical", "inferred", "lost", 30)),  # 1000 did not exist
        (1000, 50, ("offset regression", "high", "proven", "repeated", 50)),
        (10, 20, ("offset regression", "high", "proven", "repeated", 90)),
        (10, None, ("offset regression", "high", "inferred", "repeated", 90)),
        (10, 105, ("offset regression", "high", "inferred", "repeated", 90)),
        (100, 110, ("tool write", "info", "proven", "none", None)),
        (-1, 9000, ("lost messages", "critical", "inferred", "lost", 8900)),
        (-1, None, ("tool write", "info", "proven", "none", None)),
        (b"abc", 20, ("offset regression", "high", "inferred", "repeated", 80)),
    ],
)
def test_a_tools_write_to_a_stopped_group(
    offset: object, first: int | None, expected: tuple[Any, ...]
) -> None:
    """What the next owner starts from decides. It may have chosen another offset, as its first
    commit shows."""
    assert judged(*stopped(), commit(10, offset, TOOL), *restarted(11, first)) == [expected]


def test_a_tools_write_that_no_member_started_from() -> None:
    """It may still be repaired."""
    finding = only(*stopped(), commit(10, 1000, TOOL))
    assert (finding.kind, finding.severity, finding.effect) == ("tool write", "info", "none")
    assert finding.sentence == (
        "Session 0x32, which is not a member's, wrote 1000 for t-0 of group g while no member "
        "owned it; no member has started from it."
    )
    text = only(*stopped(), commit(10, b"abc", TOOL))
    assert "wrote 'abc', not an offset, for t-0" in text.sentence
    repaired = [*stopped(), commit(10, 1000, TOOL), commit(11, 100, 51), *restarted(12, 110)]
    assert [one[:4] for one in judged(*repaired)] == [
        ("tool write", "info", "proven", "repaired"),
        ("tool write", "info", "proven", "none"),
    ]
    undone = only(*stopped(), commit(10, 1000, TOOL), commit(11, 100, TOOL), *restarted(12, 110))
    assert (undone.effect, undone.end_zxid) == ("repaired", 11)
    assert "wrote 2 times, 1000 to 100, for" in undone.sentence
    assert undone.sentence.endswith("its last write restored the offset.")


def test_the_first_offset_of_a_partition_is_no_finding() -> None:
    """A tool sets where the group begins. It may have overwritten an offset only if the logs begin
    late."""
    first = [commit(10, 1000, TOOL), *restarted(11, 1010)]
    assert judged(*first) == []
    new = event(10, TOOL, Act.CREATE, "/consumers/g/offsets/t/0", b"1000")
    assert judged(new, *first[1:], facts=Facts(opened=OPENED), gaps=[(0, 1)]) == []
    late = judged(*first, facts=Facts(opened=OPENED), gaps=[(0, 1)])
    assert late == [("tool write", "medium", "inferred", "unknown", None)]
    owned = [join(1, MEMBER), claim(2, MEMBER), close(9, MEMBER)]
    claimed = only(*owned, *first)
    assert (claimed.severity, claimed.effect) == ("info", "unknown")
    assert claimed.sentence.endswith(
        "; member g_a started from it, and what the group had reached is unknown."
    )


def test_what_was_delivered_before_is_not_lost() -> None:
    """A tool's write makes a member deliver messages again. Another one skips them after that."""
    again = [*stopped(), commit(10, 7, TOOL), *restarted(11, 50), delete(14, OTHER)]
    assert [one[:3] for one in judged(*again, commit(15, 100, TOOL), *restarted(16, 101))] == [
        ("offset regression", "high", "proven"), ("tool write", "info", "proven"),
    ]  # fmt: skip


def test_a_whole_topic_is_no_milder_than_one_partition() -> None:
    """The sentence has the extent, if the group was stopped."""
    both = [commit(10, 1000, TOOL, 0), commit(11, 1000, TOOL, 1)]
    starts = [join(12, OTHER), claim(13, OTHER), claim(14, OTHER, partition=1)]
    extent = " The session wrote all 2 partitions of the topic while the group was stopped."
    findings = found(*stopped(partitions=2), *both, *starts)
    assert [one.severity for one in findings] == ["critical"] * 2
    assert all(one.sentence.endswith(extent) for one in findings)
    (finding,) = found(*stopped(partitions=2), both[0], *starts)
    assert finding.sentence.endswith("900 offsets (100 to 999) were not delivered.")


def test_a_tools_write_to_a_running_group() -> None:
    """The owner overwrites it, or may continue from it."""
    assert judged(*running(), commit(4, 50, TOOL), commit(5, 110)) == [
        ("tool write", "info", "proven", "repaired", None)
    ]
    assert judged(*running(), commit(4, 500, TOOL), commit(5, 510)) == [
        ("tool write", "medium", "inferred", "unknown", None)
    ]
    assert (
        "overwritten with 110 1.0 s later"
        in only(*running(), commit(4, 50, TOOL), commit(5, 110)).sentence
    )


def test_a_member_may_write_before_it_registers() -> None:
    """As a JVM member does whose commit was under way when its session expired."""
    late = [*running(), delete(4, MEMBER), commit(5, 120, OTHER), join(6, OTHER, "b")]
    assert [one[0] for one in judged(*late)] == ["orphan commit"]
    assert [one[0] for one in judged(*late[:-1])] == ["tool write"]


def test_an_import_is_the_write_of_a_tool() -> None:
    """Although the tool owns the partition while it writes."""
    name = tool_name("g").encode()
    owner = "/consumers/g/owners/t/0"
    holds = event(10, TOOL, Act.CREATE, owner, name + b"-0")
    events = [*stopped(), holds, commit(11, 1000, TOOL), close(12, TOOL), *restarted(13, 1010)]
    finding = only(*events)
    assert (finding.kind, finding.messages) == ("lost messages", 900)
    assert "while no member owned it" in finding.sentence


def test_a_member_that_writes_the_offset_of_another_owner() -> None:
    """Not its own other session."""
    zombie = only(*running(), join(4, OTHER, "b"), commit(5, 7, OTHER), commit(6, 11, OTHER))
    assert (zombie.kind, zombie.severity, zombie.basis) == ("zombie commit", "critical", "proven")
    assert zombie.sentence == (
        "Member g_b (session 0x2) committed 2 times, 7 to 11, for t-0 of group g although member "
        "g_a (session 0x1) owned it."
    )
    same = only(*running(), join(4, OTHER, "b"), commit(5, 100, OTHER))
    assert (same.severity, same.effect) == ("medium", "none")
    itself = [join(1, MEMBER), claim(2, OTHER), commit(3, 100, OTHER), commit(4, 90, MEMBER)]
    (finding,) = [one for one in found(*itself) if one.kind == "zombie commit"]
    assert finding.severity == "medium"
    assert "although its other session 0x2 owned it" in finding.sentence


def test_a_member_that_writes_while_no_member_owns_the_partition() -> None:
    """The next owner repeats messages if it began before. Nobody is harmed without members."""
    free = [*running(), delete(4, MEMBER), commit(5, 120)]
    orphan = only(*free)
    assert (orphan.kind, orphan.severity, orphan.effect) == ("orphan commit", "high", "none")
    assert orphan.sentence.endswith("while no member owned it, members registered then: 1.")
    lower = only(*running(), delete(4, MEMBER), commit(5, 90), join(6, OTHER, "b"),
                 claim(7, OTHER, "b"))  # fmt: skip
    assert (lower.severity, lower.effect, lower.messages) == ("high", "repeated", 10)
    gone = only(*running(), close(4, MEMBER), commit(5, 120))
    assert (gone.severity, gone.effect) == ("info", "none")


@pytest.mark.parametrize("step", [1, 1_000_000, 10**15])
def test_a_member_that_never_owned_the_partition_skips_messages(step: int) -> None:
    """It has delivered nothing of it, so the next owner skips what it starts behind. What was
    delivered in another session of the same member counts."""
    stranger = [join(10, OTHER, "b"), close(12, OTHER), join(13, 3), claim(14, 3)]
    write = commit(11, 100 + step, OTHER)
    expected = ("orphan commit", "critical", "inferred", "lost", step)
    assert judged(*stopped(), *stranger, write) == [expected]
    assert judged(*stopped(), *stranger, write, commit(15, 100 + step, 3)) == [expected]
    below = judged(*stopped(), *stranger, write, commit(15, 101, 3))
    assert below == [("orphan commit", "critical", "inferred", "lost", 1)]
    returned = [join(10, OTHER), write, close(12, OTHER), join(13, 3, "b"), claim(14, 3, "b")]
    own = ("critical", "unknown") if step == 10**15 else ("high", "none")
    assert [(one[1], one[3]) for one in judged(*stopped(), *returned)] == [own]
    late = only(*stopped(), *stranger, write, gaps=[(0, 1)], known=(0, 0))
    assert (late.severity, late.basis, late.effect) == (own[0], "inferred", "unknown")
    assert late.sentence.endswith("were not delivered, unless this session had delivered them.")


def test_an_owner_that_lowers_its_offset() -> None:
    """It delivers messages again if it, or the next owner, starts there. That shows only if later
    writes climb through the range, or an owner claims the partition."""
    lower = ("offset regression", "medium", "proven", "unknown", None)
    read = ("offset regression", "high", "proven", "repeated", 60)
    assert judged(*running(), commit(4, 40), commit(5, 120)) == [lower]
    assert judged(*running(), commit(4, 40)) == [lower]
    assert judged(*running(), commit(4, 40), commit(5, 60)) == [read]
    starts = [delete(5, MEMBER), join(6, OTHER, "b"), claim(7, OTHER, "b")]
    assert judged(*running(), commit(4, 40), *starts) == [read]
    assert judged(*running(), commit(4, 40), *starts, commit(8, 50, OTHER)) == [read]
    later = [*running(), commit(4, 40), *starts, commit(8, 150, OTHER)]
    assert judged(*later) == [("offset regression", "high", "inferred", "repeated", 60)]
    assert only(*later).sentence.endswith(
        "60 offsets (40 to 99) were delivered again, unless member g_b, whose first commit is 150, "
        "began elsewhere."
    )


def test_an_owner_that_begins_below_the_stored_offset() -> None:
    """Its offset was out of range, or it sought. Not if a tool had stored the offset."""
    starts = [delete(4, MEMBER), join(5, OTHER, "b"), claim(6, OTHER, "b")]
    finding = only(*running(), *starts, commit(7, 20, OTHER), commit(8, 30, OTHER))
    assert (finding.kind, finding.messages) == ("offset regression", 80)
    assert finding.sentence.endswith(
        "It is the first commit after a claim, so `auto.offset.reset` or a seek may have chosen "
        "where the owner began."
    )
    first = judged(*running(), *starts, commit(7, 20, OTHER))
    assert first == [("offset regression", "high", "inferred", "repeated", 80)]


def test_times_by_two_leaders_clocks_are_named() -> None:
    """The sentence says so where it has a time between two epochs."""
    later = 1 << 32
    repaired = only(*running(), commit(4, 50, TOOL), commit(later, 110, time=9_000_000))
    assert repaired.sentence.endswith("so the time is by the clocks of two servers.")
    jump = only(*running(), commit(later, 500_000, time=4_000_000))
    assert jump.basis == "inferred"
    assert "The leader changed (epoch 0 to 1)" in jump.sentence


def test_a_lower_offset_of_a_recreated_topic_is_none() -> None:
    """Its messages begin at 0 again."""
    made = {0: Partition(6, 6, True, None, 5)}
    again = Facts(topics={("", "t"): made})
    stale = only(*running(), commit(7, 40), commit(8, 50), facts=again)
    assert (stale.kind, stale.severity, stale.effect) == (
        "offset of a deleted topic", "medium", "unknown"
    )  # fmt: skip
    assert stale.sentence.endswith(
        "The member did not begin there. The offset was probably out of range, so that "
        "`auto.offset.reset` chose another."
    )
    text = event(7, MEMBER, Act.SET, "/consumers/g/offsets/t/0", b"odd")
    sentence = only(*running(), text, commit(8, 50), facts=again).sentence
    assert sentence.endswith("still 100, of a deleted topic of the same name.")
    before = judged(*running(), commit(4, 40), commit(8, 50), facts=again)
    assert ("offset regression", "high", "proven", "repeated", 60) in before


def test_a_member_starts_a_recreated_topic_from_the_old_offset() -> None:
    """It skips what the new topic had by then. Not if the offset was deleted, or set anew."""
    facts = Facts(topics={("", "t"): {0: Partition(6, 6, True, None, 5)}})
    finding = only(*running(), commit(7, 130), facts=facts)
    assert (finding.severity, finding.effect, finding.messages) == ("high", "lost", 100)
    assert [part.zxid for part in finding.evidence] == [5, 6, 7]
    assert finding.sentence.endswith(
        "first committed 130 for t-0 of group g when the stored offset was still 100, of a deleted "
        "topic of the same name. If the member began there, 100 offsets (0 to 99) of the new topic "
        "were not delivered."
    )
    new = event(7, MEMBER, Act.CREATE, "/consumers/g/offsets/t/0", b"130")
    gone = delete(4, MEMBER, "/consumers/g/offsets/t/0")
    assert judged(*running(), gone, new, facts=facts) == []
    kinds = [one[0] for one in judged(*running(), commit(7, 0, TOOL), commit(8, 130), facts=facts)]
    assert "offset of a deleted topic" not in kinds


def test_a_migration_writes_the_offset_of_a_recreated_topic() -> None:
    """It owns the partition meanwhile, and knows from the other store where the group is."""
    facts = Facts(topics={("", "t"): {0: Partition(6, 6, True, None, 5)}})
    marker = event(10, TOOL, Act.SET, "/consumers/g/migration", b"{}")
    moved = [delete(4, MEMBER), claim(7, TOOL, tool_name("g")[2:]), commit(8, 130, TOOL), marker]
    for later in ([], restarted(20, 140)):
        kinds = [one[0] for one in judged(*running(), *moved, *later, facts=facts)]
        assert "offset of a deleted topic" not in kinds


def steps(first: int, last: int, size: int = 10, seconds: int = 1) -> list[Event]:
    """Commits of an owner, from 100 on, each so much later and higher than the one before."""
    return [
        commit(zxid, 100 + size * (zxid - 3), time=zxid * seconds * 1_000_000)
        for zxid in range(first, last)
    ]


def test_a_step_faster_than_any_consumer() -> None:
    """By its own time, or since the claim."""
    jump = only(*running(), commit(4, 500_000))
    assert (jump.kind, jump.severity, jump.messages) == ("offset jump", "medium", 499_900)
    assert judged(*running(), commit(4, 500_000, time=100_000_000)) == []
    handed = [delete(4, MEMBER), join(5, OTHER, "b"), claim(200, OTHER, "b")]
    first = only(*running(), *handed, commit(201, 500_000, OTHER))
    assert ", as its first commit after the claim. No consumer reads so fast" in first.sentence
    assert judged(*running(), *handed, commit(201, 90_000, OTHER)) == []


@pytest.mark.parametrize("who", ["owner", "deleted", "broker", "tool", "pending", "past owner",
                                 "other broker", "unknown"])  # fmt: skip
def test_a_finding_is_worse_the_more_offsets_may_be_skipped(who: str) -> None:
    """It does not matter who wrote the offset. No consumer reads the largest number in a month."""
    severities, facts, more = list[int](), Facts(brokers={BROKER: "1"}), dict[str, Any]()
    path, by_broker = "/consumers/g/offsets/t/0", b"g_kn"
    for offset in (10**6, 10**8, 10**9, 10**15):
        written = b"%d" % offset
        events = {
            "owner": [*running(), commit(4, offset)],
            "deleted": [
                *stopped(), delete(10, TOOL, path), join(20, OTHER), claim(21, OTHER),
                event(22, OTHER, Act.CREATE, path, written),
            ],
            "broker": [
                join(1, MEMBER, "kn"),
                event(2, MEMBER, Act.CREATE, "/consumers/g/owners/t/0", by_broker),
                commit(3, 10, BROKER), commit(4, offset, BROKER),
            ],
            "tool": [*running(), commit(4, offset, TOOL), commit(5, offset + 10)],
            "pending": [*stopped(), commit(10, offset, TOOL)],
            "past owner": [
                *running(), delete(4, MEMBER), commit(5, offset),
                *restarted(11, offset + 5),
            ],
            "other broker": [*stopped(), commit(10, offset, BROKER), *restarted(20, offset + 10)],
            "unknown": [commit(2, 100, 7), commit(3, offset, 8)],
        }[who]  # fmt: skip
        if who == "unknown":
            more = {"gaps": [(0, 1)], "known": (None,)}
        known = judged(*events, facts=facts, **more)
        worst = [SEVERITIES.index(severity) for _, severity, *_ in known]
        severities.append(min(worst, default=len(SEVERITIES)))
        assert all(severity in KINDS[kind].severities for kind, severity, *_ in known)
    assert severities == sorted(severities, reverse=True)
    assert SEVERITIES[severities[-1]] == "critical"


def test_an_owner_that_overwrites_a_lower_offset_has_not_jumped() -> None:
    """It is where it was before. A new owner has started from the lower offset."""
    high = [join(1, MEMBER), claim(2, MEMBER), commit(3, 900_000)]
    lowered = [*high, commit(4, 5, TOOL)]
    assert [one.kind for one in found(*lowered, commit(5, 900_010))] == ["tool write"]
    twice = [*lowered, commit(5, 7, TOOL), commit(6, 900_010)]
    assert {one.kind for one in found(*twice)} == {"tool write"}
    again = [*lowered, close(5, MEMBER), join(6, OTHER, "b"), claim(7, OTHER, "b")]
    assert "offset jump" in {one.kind for one in found(*again, commit(8, 900_010, OTHER))}
    on = [*lowered, commit(5, 900_010), commit(6, 1_900_010)]
    assert [one.messages for one in found(*on) if one.kind == "offset jump"] == [1_000_000]


def test_a_write_is_compared_only_with_those_that_wait_for_it() -> None:
    """A job may store its offset with a new session each time, and never claim. Then the steps of
    the rule grow with the number of writes, not with its square."""
    code, steps = WrongOffsets._answered.__code__, 0

    def count(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal steps
        steps += what == "line"
        return count if frame.f_code is code else None

    written = [commit(n, n, 1_000 + n) for n in range(10, 310)]
    before = sys.gettrace()
    sys.settrace(count)
    try:
        findings = found(join(1, MEMBER, "a", "other"), *written)
    finally:
        sys.settrace(before)
    assert len(findings) == 300
    assert 300 < steps < 300 * 20


def test_a_step_is_compared_with_its_topic() -> None:
    """It is slower than a consumer, but much faster than 99 % of the topic's commits, before or
    after it."""
    jump = only(*running(), *steps(4, 150), commit(150, 152_000))
    assert (jump.severity, jump.messages) == ("low", 152_000 - 1560)
    assert "99 % of the commits of this topic rise by less than 10 a second" in jump.sentence
    early = [commit(4, 152_000), *(commit(n, 152_000 + 10 * n) for n in range(5, 150))]
    assert only(*running(), *early).zxid == 4
    assert judged(*running(), *steps(4, 150), commit(150, 1560 + 9_000)) == []
    assert judged(*running(), *steps(4, 100), commit(100, 152_000)) == []
    fast = [commit(n, 100 + 1_000 * n) for n in range(4, 150)]
    assert judged(*running(), *fast, commit(150, 149_000 + 15_000)) == []
    others = [commit(150, 152_000, OTHER), commit(151, 1570)]
    assert [one[0] for one in judged(*running(), *steps(4, 150), join(3, OTHER, "b"), *others)] == [
        "zombie commit"
    ]


def test_a_new_partition_begins_at_0() -> None:
    """What was written before its first owner came was skipped."""
    facts = Facts(topics={("", "t"): {0: Partition(1, 1_000_000, True)}})
    path = "/consumers/g/offsets/t/1"
    new = event(151, MEMBER, Act.CREATE, path, b"160000")
    events = [*running(), *steps(4, 150), claim(150, MEMBER, partition=1), new]
    assert judged(*events, facts=facts) == []
    facts = Facts(topics={("", "t"): {1: Partition(1, 1_000_000, True)}})
    assert judged(*events, facts=facts) == [("offset jump", "low", "inferred", "unknown", 160_000)]
    facts = Facts(topics={("", "t"): {1: Partition(1, 1_000_000, False)}})
    assert judged(*events, facts=facts) == []


def test_an_owner_that_begins_after_its_offset_was_deleted() -> None:
    """It does not matter how fast that is. A tool that stores another offset is judged by what it
    wrote, a recreated topic begins at 0, and what a log gap hides is unknown."""
    path = "/consumers/g/offsets/t/0"
    gone = [*stopped(), delete(10, TOOL, path)]

    def first(offset: int) -> list[Event]:
        new = event(22, OTHER, Act.CREATE, path, b"%d" % offset)
        return [join(20, OTHER), claim(21, OTHER), new, commit(23, offset + 10, OTHER)]

    finding = only(*gone, *first(9_000))
    assert (finding.kind, finding.severity, finding.basis) == ("offset jump", "medium", "inferred")
    assert (finding.messages, [part.zxid for part in finding.evidence]) == (8_900, [10, 22])
    assert finding.sentence == (
        "Session 0x32 deleted the offset 100 of t-0 of group g. The next one is 9000, written by "
        "its owner, Member g_a (session 0x2). `auto.offset.reset` chose where it began, so up to "
        "8900 offsets (100 to 8999) were not delivered, or earlier ones were delivered again."
    )
    assert judged(*gone, *first(100)) == []
    new = event(5, MEMBER, Act.CREATE, path, b"9000")
    assert judged(*running(), delete(4, TOOL, path), new, commit(6, 9010)) == []
    assert [one[0] for one in judged(*gone, *first(40))] == ["offset regression"]
    set_by_tool = [*gone, event(11, TOOL, Act.CREATE, path, b"100")]
    assert [one[0] for one in judged(*set_by_tool, *restarted(20, 9_000))] == ["tool write"]
    again = Facts(topics={("", "t"): {0: Partition(15, 15, True, None, 14)}})
    assert judged(*gone, *first(9_000), facts=again) == []
    assert judged(*gone, *first(9_000), gaps=[(12, 18)], known=(0, 18)) == []


def test_what_an_owner_had_reached_before_a_log_gap_hides_no_jump() -> None:
    """Another owner may have started from the lower offset in the gap."""
    high = [join(1, MEMBER), claim(2, MEMBER), commit(3, 900_000), commit(4, 5, TOOL)]
    behind = [commit(30, 10), commit(31, 900_010)]
    shown = [Shown(25, "/consumers/g/owners/t/0", b"g_a-0", 2, 0, 2, 0, MEMBER)]
    some = found(*high, *behind, gaps=[(6, 25)], known=(0, 25), shown=shown)
    assert [one.messages for one in some if one.kind == "offset jump"] == [900_000]


def test_the_usual_rate_is_that_of_sorting_all() -> None:
    """To a thousandth, without the fastest step of each partition. It is unknown after a few
    steps."""
    rng = random.Random(5)
    for _ in range(50):
        pace, rates = Pace(), [rng.lognormvariate(3, 3) for _ in range(rng.randrange(120, 900))]
        paths = [f"/{rng.randrange(3)}" for _ in rates]
        for number, (path, rate) in enumerate(zip(paths, rates, strict=True)):
            assert (pace.usual() is None) == (number - len({*paths[:number]}) < 100)
            pace.add(path, rate)
        of = {path: [r for p, r in zip(paths, rates, strict=True) if p == path] for path in paths}
        counted = sorted(rate for its in of.values() for rate in sorted(its)[:-1])
        exact = counted[math.ceil(0.99 * len(counted)) - 1]
        assert pace.usual() == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("resets", [1, 5, 10])
def test_a_reset_of_many_partitions_is_no_milder_than_one(resets: int) -> None:
    """The resets themselves are not the usual speed of the topic."""
    events, zxid = [join(1, MEMBER), *(claim(2, MEMBER, "a", n, idx=n) for n in range(10))], 3
    for second in range(10, 50):
        for partition in range(10):
            skipped = 150_000 if partition < resets and second >= 30 else 0
            offset = 10 * second + skipped
            time = second * 1_000_000
            events.append(commit(zxid, offset, partition=partition, time=time))
            zxid += 1
    assert [one[:2] for one in judged(*events)] == [("offset jump", "low")] * resets


def test_a_broker_writes_for_its_clients() -> None:
    """That is normal for an owner whose client lets brokers write, and not for any other."""
    facts = Facts(brokers={BROKER: "1"})
    through = only(*running(), commit(4, 5000, BROKER), commit(5, 110), facts=facts)
    assert (through.kind, through.severity) == ("offset written through a broker", "medium")
    assert through.sentence.startswith(
        "Broker 1 (OffsetCommit v0, for a client that the log does not name) wrote 5000 for t-0"
    )
    owner = event(2, MEMBER, Act.CREATE, "/consumers/g/owners/t/0", b"g_kn")
    client = [join(1, MEMBER, "kn"), owner, commit(3, 10, BROKER), commit(4, 20, BROKER)]
    assert judged(*client, close(5, MEMBER), facts=facts) == []


def test_a_broker_that_raises_an_offset_may_skip_messages() -> None:
    """If a member that writes its own offsets starts from it, whether or not the partition had an
    owner. The client may have delivered them."""
    facts = Facts(brokers={BROKER: "1"})
    skipped = ("offset written through a broker", "high", "inferred", "lost", 4900)
    free = [*stopped(), commit(10, 5000, BROKER), *restarted(20, 5010)]
    owned = [*running(), commit(4, 5000, BROKER), close(5, MEMBER), *restarted(20, 5010)]
    assert judged(*free, facts=facts) == [skipped]
    assert judged(*owned, facts=facts) == [skipped]
    assert only(*free, facts=facts).sentence.endswith(
        "; member g_a started from it: 4900 offsets (100 to 4999) were not delivered, unless that "
        "client delivered them."
    )
    owner = event(21, OTHER, Act.CREATE, "/consumers/g/owners/t/0", b"g_kn")
    client = [join(20, OTHER, "kn"), owner, commit(22, 110, BROKER), delete(23, OTHER)]
    last = [commit(24, 120, BROKER), join(25, 3), claim(26, 3), commit(27, 130, 3)]
    assert judged(*stopped(), *client, *last, facts=facts) == []


def test_an_owner_that_a_log_gap_hides() -> None:
    """A lower offset may be its own. It is harmless if another session overwrites it."""
    late = [commit(2, 100, 7), commit(3, 40, 7)]
    gap = [(0, 2)]
    assert judged(*late, gaps=gap) == [("offset regression", "high", "inferred", "unknown", None)]
    other = [commit(2, 100, 7), commit(3, 40, 8), commit(4, 110, 7)]
    assert judged(*other, gaps=gap) == [("offset regression", "info", "inferred", "repaired", None)]
    assert judged(commit(2, 100, 7), commit(4, 40, 7), gaps=[*gap, (2, 4)]) == []


def test_who_owns_a_partition_behind_a_log_gap_is_unknown() -> None:
    """So a commit is not that of a zombie or an orphan."""
    events = [join(1, OTHER, "b"), join(2, MEMBER), claim(3, MEMBER)]
    events += [commit(20, 5, OTHER), commit(21, 5, OTHER, partition=1)]
    assert [one.kind for one in found(*events)] == ["zombie commit", "orphan commit"]
    assert found(*events, gaps=[(5, 15)]) == []


def test_nothing_waits_across_a_log_gap() -> None:
    """The claim behind it may not be the next one."""
    lowered = [*running(), commit(4, 40)]
    claimed = [join(20, OTHER, "b"), claim(21, OTHER, "b"), commit(22, 50, OTHER)]
    (finding,) = found(*lowered, *claimed, gaps=[(4, 20)])
    assert (finding.zxid, finding.effect, finding.severity) == (4, "unknown", "medium")


@pytest.mark.parametrize(("offset", "severity"), [(1000, "medium"), (40, "medium"), (100, "info")])
def test_a_log_gap_hides_whether_a_member_started_from_a_tools_write(
    offset: int, severity: str
) -> None:
    """Also if the group has no row behind the gap. Not if it was overwritten before, or is the
    first offset of the partition."""
    history = [*stopped(), commit(10, offset, TOOL)]
    gap = [(12, 20)]
    for behind in ([], restarted(22, 1010)):
        (finding,) = found(*history, *behind, gaps=gap, facts=test_rules.end_at(30))
        assert (finding.kind, finding.severity) == ("tool write", severity)
        if offset != 100:
            assert (finding.basis, finding.effect) == ("inferred", "unknown")
            assert finding.sentence.endswith("; a log gap hides whether a member started from it.")
    begins = [commit(10, offset, TOOL)]
    (finding,) = found(*begins, gaps=gap, facts=test_rules.end_at(30))
    assert (finding.severity, finding.effect) == ("info", "none")
    (repaired, _) = found(*history, commit(11, 100, 51), gaps=gap, facts=test_rules.end_at(30))
    assert repaired.severity == "info"


def test_writes_after_a_move_to_kafka() -> None:
    """One finding for each session, and nothing about its effect on owners."""

    def move(zxid: int, store: str) -> Event:
        data = json.dumps({"version": 1, "moved_to": store, "offsets": {}}).encode()
        return event(zxid, 77, Act.SET, "/consumers/g/migration", data)

    late = only(*running(), move(4, "kafka"), commit(5, 110), commit(6, 120))
    assert (late.kind, late.severity) == ("commit past the end of a move", "critical")
    # The owner may commit to both stores. Another session does not.
    assert late.basis == "inferred"
    assert "unless this member commits to both stores" in late.sentence
    other = only(*running(), move(4, "kafka"), commit(5, 110, TOOL))
    assert (other.severity, other.basis) == ("critical", "proven")
    assert "both stores" not in other.sentence
    assert (late.zxid, late.end_zxid) == (5, 6)
    assert "wrote 2 times to the offset of t-0" in late.sentence
    assert judged(*running(), move(4, "kafka"), move(5, "zookeeper"), commit(6, 120)) == []
    assert judged(*running(), move(4, "kafka"), commit(5, 120, 77)) == []


def test_a_log_gap_may_hide_that_a_group_was_moved_back() -> None:
    """A snapshot behind it shows whether it was. Without one, the finding is not proven."""
    marker, content = "/consumers/g/migration", json.dumps({"moved_to": "kafka"}).encode()
    moved = event(4, 77, Act.SET, marker, content)
    late = [join(25, OTHER), claim(26, OTHER), commit(27, 120, OTHER)]
    gap = [(10, 20)]

    def past(known: int | None, *shown: Shown) -> list[tuple[Any, ...]]:
        findings = found(*running(), moved, *late, gaps=gap, known=(0, known), shown=shown)
        return [(one.severity, one.basis, "log gap" in one.sentence) for one in findings]

    assert past(None) == [("critical", "inferred", True)]
    assert past(20) == []
    late[2] = commit(27, 120, TOOL)
    assert past(20, Shown(20, marker, content, 4, 0, 4, 0, 0)) == [("critical", "proven", False)]
    in_gap = Shown(20, marker, content, 12, 0, 12, 0, 0)
    assert past(20, in_gap) == [("critical", "proven", False)]


MIRROR = 60


def mirrored(zxid: int, *offsets: int, session: int = MIRROR) -> list[Event]:
    """One transaction of a group's mirror. Without offsets, ZooKeeper leads."""
    agreed = event(zxid, session, Act.SET, "/consumers/g/record/mirror", b"{}", idx=1)
    copied = [commit(zxid, one, session, at, idx=2 + at) for at, one in enumerate(offsets)]
    return [agreed, *copied]


def cut_over() -> list[Event]:
    """A group whose mirror copies what Kafka has, after its member came to offset 100."""
    copies = [one for zxid in (30, 31, 32) for one in mirrored(zxid, 100 * (zxid - 28))]
    lease = event(8, MIRROR, Act.CREATE, "/consumers/g/record/lease", b"me run")
    return [*running(), *mirrored(7), lease, close(9, MEMBER), *mirrored(10), *copies]


@pytest.mark.parametrize("gaps", [[], GAP, [(0, 10)], [(11, 20)]])
def test_a_mirror_may_write_offsets(gaps: list[tuple[int, int]]) -> None:
    """A member starts from the last one after the group was taken back, and continues. The mirror
    may also copy a lower one, as the leading store was reset. What a log gap hides changes none of
    it."""
    facts = Facts(opened=Opened([(MIRROR, 6)]))
    begin = gaps[0][1] if gaps and gaps[0][0] == 0 else 0
    hidden = range(gaps[0][0] + 1, gaps[0][1]) if gaps else ()
    for last in ([], mirrored(33, 20)):
        offset = 20 if last else 400
        back = [*restarted(40), commit(42, offset, OTHER), commit(43, offset + 10, OTHER)]
        for events in ([*cut_over(), *last], [*cut_over(), *last, *back, *mirrored(44)]):
            seen = [one for one in events if one.zxid >= begin and one.zxid not in hidden]
            assert test_rules.kinds(*seen, gaps=gaps, facts=facts) == []


def test_a_tool_in_a_mirrored_group_is_found() -> None:
    """Also if the mirror's next transaction follows at once, and if its session is the mirror's."""
    for session in (TOOL, MIRROR):
        events = [*cut_over(), commit(33, 900, session), *mirrored(34), *restarted(40, 910)]
        finding = only(*events)
        assert (finding.kind, finding.effect, finding.messages) == ("lost messages", "lost", 500)
        assert (finding.session, finding.zxid) == (session, 33)
    events = [*cut_over(), commit(33, 900, TOOL), *mirrored(34, 500), *restarted(40, 510)]
    finding = only(*events)
    assert (finding.kind, finding.severity, finding.effect) == ("tool write", "info", "repaired")
