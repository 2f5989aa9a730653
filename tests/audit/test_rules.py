"""The rules of a group: each finds its fault in a few events, and nothing in a correct history that
resembles it. No Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from zkaudit.group import (
    Act,
    Coverage,
    Event,
    Facts,
    FactsReader,
    Finding,
    Moment,
    Opened,
    Partition,
    Shown,
    Topics,
    audit_group,
)
from zkaudit.limits import Limits

OWNER = "/consumers/g/owners/t/0"
MEMBER = "/consumers/g/ids/g_{}"


def claim(zxid: int, session: int, member: str = "a", partition: int = 0, idx: int = 0) -> Event:
    """A session claims a partition under the name of a member. A zxid takes a second."""
    path = f"/consumers/g/owners/t/{partition}"
    return event(zxid, session, Act.CREATE, path, f"g_{member}-0".encode(), idx)


def join(
    zxid: int, session: int, member: str = "a", *topics: str, pattern: str = "static"
) -> Event:
    """A session registers a member that subscribes to topics, by default to t."""
    subscription = dict.fromkeys(topics or ("t",), 1)
    data = json.dumps({"version": 1, "subscription": subscription, "pattern": pattern})
    return event(zxid, session, Act.CREATE, MEMBER.format(member), data.encode())


def at(event: Event, second: int) -> Event:
    """The event at another time."""
    return event._replace(time=second * 1_000_000)


def topics(**partitions: Partition) -> Topics:
    """Topics with one partition each."""
    return Topics({("", topic): {0: partition} for topic, partition in partitions.items()})


def end_at(second: int, **more: Any) -> Facts:
    """A history that ends at a time."""
    return Facts(Moment(1_000, 0, second * 1_000_000), **more)


def delete(zxid: int, session: int, path: str = OWNER) -> Event:
    """A session deletes a znode."""
    return event(zxid, session, Act.DELETE, path)


def close(zxid: int, session: int, expired: bool = False) -> Event:
    """A session ends."""
    return event(zxid, session, Act.CLOSE)._replace(cxid=0 if expired else 7)


def event(
    zxid: int, session: int, act: Act, path: str | None = None, data: bytes | None = None,
    idx: int = 0,
) -> Event:  # fmt: skip
    """Any event. Creates are of ephemeral znodes."""
    return Event(zxid, idx, zxid * 1_000_000, session, act, path, data, act is Act.CREATE)


def found(
    *events: Event,
    facts: Facts | None = None,
    gaps: Sequence[tuple[int, int]] = (),
    known: Sequence[int | None] = (0,),
    shown: Sequence[Shown] = (),
    **limits: Any,
) -> list[Finding]:
    """What the rules find."""
    return audit_group(events, facts, Limits(**limits), Coverage(gaps, known), shown)[1]


def kinds(*events: Event, **more: Any) -> list[tuple[str, str]]:
    """Severity and kind of what the rules find."""
    return [(finding.severity, finding.kind) for finding in found(*events, **more)]


def test_only_a_deletion_by_another_session_is_a_foreign_release() -> None:
    """A release by the owner or by the end of its session is correct."""
    mine = [claim(1, 5), delete(2, 5), claim(3, 5), close(4, 5)]
    assert kinds(*mine) == []
    assert kinds(claim(1, 5), delete(2, 6)) == [("critical", "foreign release")]
    (finding,) = found(join(1, 6, "b"), claim(2, 5), delete(3, 6))
    assert (finding.member, finding.session, finding.zxid) == ("g_a", 5, 3)
    assert finding.sentence.startswith("Member g_b (session 0x6) deleted the owner znode of t-0")
    assert [part.what for part in finding.evidence] == ["claimed", "deleted"]
    of_jvm = "host1-1795219200000-aaaa0001"
    (finding,) = found(join(1, 5, of_jvm), claim(2, 5, of_jvm), delete(3, 6))
    assert f"that belonged to Member g_{of_jvm} (host host1, session 0x5)." in finding.sentence


@pytest.mark.parametrize("early", [False, True])
def test_a_session_that_began_after_a_log_gap_owns_nothing_older(early: bool) -> None:
    """Whoever owned the znode, its deletion is a foreign release: also if the logs show an earlier
    claim, whose znode may be another one. A claim shows no deletion."""
    opened = Facts(opened=Opened([(6, 25)]))
    gaps, claims = ([(10, 20)], [claim(2, 5)]) if early else ([(0, 20)], [])
    (finding,) = found(*claims, delete(30, 6), gaps=gaps, facts=opened)
    assert (finding.severity, finding.kind, finding.basis) == (
        "critical", "foreign release", "proven",
    )  # fmt: skip
    assert (finding.member, finding.session) == (None, None)
    assert [part.what for part in finding.evidence] == ["deleted"]
    assert "a session that had claimed it before the " in finding.sentence
    (finding,) = found(join(26, 6), *claims, delete(30, 6), gaps=gaps, facts=opened)
    assert (finding.severity, finding.basis) == ("critical", "inferred")
    assert found(*claims, delete(30, 6), gaps=gaps) == []
    assert found(*claims, claim(30, 6), gaps=gaps, facts=opened) == []


def test_the_last_transaction_may_have_no_time() -> None:
    """A time outside the years 1 to 9999 is unknown. It orders nothing."""
    last = join(3, 5)._replace(time=None)
    assert kinds(last, facts=Facts(Moment(3, 0, 7))) == []


def test_a_release_by_the_members_other_session_harms_nobody_else() -> None:
    """The member itself has released the partition."""
    (finding, *_) = found(claim(1, 5), join(2, 6), delete(3, 6))
    assert (finding.severity, finding.kind) == ("medium", "foreign release")
    assert "its other session 0x5" in finding.sentence


def test_an_older_owner_znode_is_not_a_new_sessions() -> None:
    """A znode without a create in the logs: only a session that began in them did not create it."""
    gap = [(0, 10)]
    assert kinds(delete(12, 6), gaps=gap) == []
    facts = Facts(opened=Opened([(6, 11)]))
    (finding,) = found(delete(12, 6), gaps=gap, facts=facts)
    assert (finding.kind, finding.basis, finding.session) == ("foreign release", "proven", None)
    assert "a session that had claimed it before the logs begin" in finding.sentence
    assert kinds(delete(22, 6), gaps=[(0, 10), (15, 20)], facts=facts) == []


def test_one_consumer_id_on_two_sessions() -> None:
    """From the later of the two znodes to the earlier end."""
    kind = "one consumer id on two sessions"
    (finding,) = found(join(1, 5), claim(2, 5), close(3, 5), claim(4, 6), join(6, 7), close(9, 6))
    assert (finding.kind, finding.zxid, finding.end_zxid) == (kind, 6, 9)
    assert (finding.time, finding.end_time) == (6_000_000, 9_000_000)
    assert (finding.session, finding.evidence[1].session) == (6, 7)
    (finding,) = found(join(1, 5), claim(2, 6), delete(4, 5, MEMBER.format("a")))
    assert (finding.zxid, finding.end_zxid) == (2, 4)
    (finding,) = found(join(1, 5), claim(2, 6))
    assert finding.end_zxid is None


def test_two_sessions_are_found_as_by_comparing_all() -> None:
    """Members join, leave and claim at random under two names."""
    rng = random.Random(4)
    events: list[Event] = []
    live: dict[str, tuple[str, int]] = {}
    for zxid in range(1, 1500):
        member, session = rng.choice("ab"), rng.randrange(1, 4)
        create = rng.choice(
            [join(zxid, session, member), claim(zxid, session, member, rng.randrange(40))]
        )
        assert create.path is not None
        if create.path not in live:
            events.append(create)
            live[create.path] = member, session
        elif rng.random() < 0.3:
            events.append(delete(zxid, live.pop(create.path)[1], create.path))
    history, findings = audit_group(events)
    ids, owners = ([one for one in history.lifetimes if one.znode.tree == tree]
                   for tree in ("ids", "owners"))  # fmt: skip
    last = 10_000
    expected = sorted(
        (o.znode.partition, max(o.start_zxid or 0, r.start_zxid or 0))
        for o in owners
        for r in ids
        if o.member == r.znode.name and o.session != r.session
        and max(o.start_zxid or 0, r.start_zxid or 0)
        < min(o.end.zxid if o.end else last, r.end.zxid if r.end else last)
    )  # fmt: skip
    mine = [one for one in findings if one.kind == "one consumer id on two sessions"]
    assert len(expected) > 100
    assert sorted((one.partition, one.zxid) for one in mine) == expected


def test_a_member_that_returns_in_a_new_session_is_not_on_two() -> None:
    """Its old session ended before."""
    returns = [join(1, 5), claim(2, 5), close(3, 5), join(4, 6), claim(5, 6)]
    assert kinds(*returns) == []
    assert kinds(join(1, 5), claim(2, 6, "b")) == []


def test_a_log_gap_may_hide_the_end_of_the_other_session() -> None:
    """Then nothing proves that both existed at once."""
    both = [join(1, 5), claim(20, 6), close(30, 6)]
    assert kinds(*both) == [("high", "one consumer id on two sessions")]
    assert kinds(*both, gaps=[(5, 20)]) == []


def test_a_partition_without_an_owner() -> None:
    """Only if a member that subscribes to the topic was registered all that time."""
    released = [join(1, 5), claim(2, 5), delete(3, 5)]
    (finding,) = found(*released, at(claim(60, 5), 60))
    assert (finding.severity, finding.kind, finding.basis) == (
        "medium", "unowned interval", "proven",
    )  # fmt: skip
    assert (finding.zxid, finding.end_zxid) == (3, 60)
    assert finding.sentence == (
        "t-0 of group g had no owner for 57.0 s although members were registered."
    )
    (finding,) = found(*released, facts=end_at(90))
    assert (finding.severity, finding.kind, finding.end_zxid) == ("high", "orphan partition", None)
    assert "has had no owner for the last 87.0 s of the logs" in finding.sentence
    assert kinds(*released, at(claim(60, 5), 32)) == []
    assert kinds(join(1, 5, "a", "other"), *released[1:], facts=end_at(90)) == []
    assert kinds(*released, delete(4, 5, MEMBER.format("a")), facts=end_at(90)) == []
    late = [claim(2, 5), delete(3, 5), at(join(10, 6, "b"), 40)]
    assert kinds(*late, facts=end_at(69)) == []
    (finding,) = found(*late, facts=end_at(71))
    assert (finding.zxid, finding.time) == (10, 40_000_000)
    assert [row.what for row in finding.evidence] == [
        "owner gone: released", "a subscribed member",
    ]  # fmt: skip


def test_a_restart_does_not_hide_that_a_partition_had_no_owner() -> None:
    """A member that did not claim is restarted, and then claims: the time ends with its first
    registration."""
    stuck = [join(1, 5), claim(2, 5), delete(3, 5), at(close(4, 5), 3600)]
    back = [at(join(5, 6), 3605), at(claim(6, 6), 3606)]
    for history in ([*stuck, *back], stuck):
        (finding,) = found(*history, facts=end_at(3_700))
        assert (finding.kind, finding.zxid, finding.end_zxid) == ("unowned interval", 3, 4)
        assert finding.sentence == (
            "t-0 of group g had no owner for 3,597.0 s although a member was registered, until "
            "that member left."
        )
    # A new partition that its first members did not claim is the same.
    new = topics(t=Partition(3, 3_000_000, True))
    history = [join(1, 5), at(close(4, 5), 3600), *back]
    (finding,) = found(*history, facts=end_at(3_700, topics=new))
    assert (finding.kind, finding.zxid, finding.end_zxid) == ("unowned interval", 3, 4)
    # Nothing is found twice, nor while no member was registered.
    waited = [at(join(5, 6), 3605), at(claim(6, 6), 3650)]
    assert [one.end_zxid for one in found(*stuck, *waited)] == [4]
    longer = [at(join(5, 6), 3605), at(claim(6, 6), 9_000)]
    assert [one.end_zxid for one in found(*stuck, *longer)] == [6]
    assert kinds(*stuck[:3], at(close(4, 5), 20), at(join(5, 6), 900), at(claim(6, 6), 901)) == []
    assert kinds(join(1, 5, "a", "other"), claim(2, 5), delete(3, 5), stuck[3], *back) == []


def test_a_log_gap_does_not_hide_what_ended_before_it() -> None:
    """The claim may be in the log gap, and the time before it is certain."""
    stuck = [join(1, 5), claim(2, 5), delete(3, 5), at(close(4, 5), 3600)]
    later = [at(join(25, 6), 3700), at(claim(26, 6), 3701)]
    (finding,) = found(*stuck, *later, gaps=[(10, 20)])
    assert (finding.kind, finding.zxid, finding.end_zxid) == ("unowned interval", 3, 4)
    # A member that does not leave: the group's last row before the gap shows the time.
    last = event(8, 7, Act.SET, "/consumers/g/offsets/t/1", b"3")._replace(time=3_000_000_000)
    in_gap = Shown(20, MEMBER.format("b"), None, 15, 4_000_000_000, 15, 4_000_000_000, 8)
    for behind in ([], later):
        history = [*stuck[:3], last, *behind]
        some = found(*history, gaps=[(10, 20)], shown=[in_gap], facts=end_at(9_000))
        (finding,) = (one for one in some if one.kind == "unowned interval")
        assert (finding.severity, finding.zxid, finding.end_zxid) == ("medium", 3, 8)
        assert finding.sentence == (
            "t-0 of group g had no owner for 2,997.0 s although members were registered, up to a "
            "log gap."
        )


def test_the_member_that_registered_first_shows_the_longest_time() -> None:
    """Members join and leave at random while partitions have no owner. Each unowned interval gets
    the registration that began first, of those that lasted to its end."""
    rng = random.Random(5)
    events, joined, owned = [], dict[str, int](), dict[int, int | None]()
    expected, number = set(), 0
    for zxid in range(1, 1_500):
        if rng.random() < 0.3:
            if joined and rng.random() < 0.5:
                member = rng.choice(list(joined))
                events.append(delete(zxid, int(member), MEMBER.format(member)))
                del joined[member]
            else:
                number += 1
                joined[str(number)] = zxid
                events.append(join(zxid, number, str(number)))
            continue
        partition = rng.randrange(40)
        if partition in owned and owned[partition] is None:
            events.append(delete(zxid, 9_999, f"/consumers/g/owners/t/{partition}"))
            owned[partition] = zxid
            continue
        begin = max(owned.get(partition) or zxid, min(joined.values(), default=zxid))
        if zxid - begin >= 30:
            expected.add((partition, begin, zxid))
        events.append(claim(zxid, 9_999, "x", partition))
        owned[partition] = None
    findings = [one for one in found(*events) if one.kind == "unowned interval"]
    assert {(one.partition, one.zxid, one.end_zxid) for one in findings} == expected
    assert len(expected) > 100


@pytest.mark.parametrize("log_gap", [None, (3, 14), (4, 14), (13, 15), (15, 17)])
def test_no_unowned_interval_across_a_log_gap(log_gap: tuple[int, int] | None) -> None:
    """Nothing in a log gap shows who owned the partition, so the audit reports no unowned interval
    across it and no orphan partition."""
    history = [
        event for event in (
            join(1, 1), claim(2, 1), claim(2, 1, partition=1, idx=1), delete(3, 1),
            delete(3, 1, OWNER[:-1] + "1")._replace(idx=1), at(claim(14, 1), 60),
        ) if log_gap is None or not log_gap[0] < event.zxid < log_gap[1]
    ]  # fmt: skip
    gaps = [log_gap] if log_gap else []
    found_ = found(*history, gaps=gaps, known=(0, 17), facts=end_at(100))
    expected = [("unowned interval", 0)] * (log_gap in (None, (15, 17)))
    expected += [("unowned interval", 1)] * (log_gap == (15, 17))  # up to the gap
    expected += [("orphan partition", 1)] * (not log_gap)
    assert [(one.kind, one.partition) for one in found_] == expected


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_a_partition_that_no_member_claimed_before_a_log_gap(left: bool, behind: bool) -> None:
    """The log gap may hide the first claim. It does not hide that there was none for a minute while
    a member was registered, which the whole logs show too."""
    facts = end_at(100, topics=topics(t=Partition(1, 0, True), u=Partition(2, 0, True)))
    until = close(4, 5) if left else join(4, 6, "b", "u")
    early = [at(join(3, 5), 10), at(until, 70)]
    late = [at(claim(20, 8, "c"), 80)] if behind else []
    for gaps in ([], [(4, 15)]):
        findings = found(*early, *late, facts=facts, gaps=gaps)
        (one,) = (one for one in findings if one.topic == "t")
        assert one.severity == ("medium" if gaps or behind or left else "high")
        assert (one.zxid, one.partition, one.basis) == (3, 0, "proven")
        if gaps:
            assert (one.kind, one.end_zxid) == ("unowned interval", 4)
            assert "t-0 of group g had no owner for 60.0 s although" in one.sentence


@pytest.mark.parametrize("claimed", [False, True])
def test_a_partition_that_no_member_claimed_between_two_log_gaps(claimed: bool) -> None:
    """A snapshot shows that member and partition are older than the first log gap, and that there
    is no owner. The group's rows between the gaps show how long that lasted at least."""
    facts = end_at(900, topics=topics(t=Partition(1, 0, True)))
    rows = [join(3, 5), at(join(25, 6, "b", "u"), 100), at(join(27, 7, "c", "u"), 170)]
    last = at(claim(27, 5), 170) if claimed else rows.pop()
    shown = [Shown(21, MEMBER.format("a"), rows[0].data, 3, 3_000_000, 3, 3_000_000, 5)]
    for known, expected in ((22, [(25, 27)]), (26, []), (None, [])):
        findings = found(*rows, last, gaps=[(10, 20), (30, 40)], known=(0, known), shown=shown,
                         facts=facts)  # fmt: skip
        assert [(one.zxid, one.end_zxid) for one in findings if one.topic == "t"] == expected
    assert found(*rows, last, gaps=[(10, 20), (30, 40)], known=(0, 22), facts=facts) == []


@pytest.mark.parametrize("early", [[], [claim(2, 9, "z")], [claim(2, 9, "z"), delete(3, 9)]])
def test_an_owner_before_a_log_gap_hides_no_time_without_one(early: list[Event]) -> None:
    """A snapshot behind the log gap shows that there is no owner. Or a session that claimed in the
    gap, or before it, deletes the owner znode. Earlier logs take nothing away from that."""
    facts = end_at(100, topics=topics(t=Partition(1, 0, True)))
    later = [at(join(25, 5), 10), at(claim(40, 5), 70)]
    gaps = [(10, 20)]
    (one,) = found(*early, *later, gaps=gaps, known=(0, 20), facts=facts)
    assert (one.kind, one.severity, one.zxid, one.end_zxid) == (
        "unowned interval",
        "medium",
        25,
        40,
    )
    gone = at(delete(26, 9), 12)
    for known in (None, 22):
        (one,) = found(*early, *later, gone, gaps=gaps, known=(0, known), facts=facts)
        assert (one.kind, one.basis, one.zxid, one.end_zxid) == (
            "unowned interval", "proven", 26, 40,
        )  # fmt: skip
        assert one.evidence[0].what == "owner znode deleted"
        assert found(*early, later[0], gone, gaps=gaps, known=(0, known), facts=facts)[0].kind == (
            "orphan partition"
        )
    # The snapshot shows that it still has the owner, up to another log gap.
    shown = [Shown(21, OWNER, b"g_z-0", 2, 0, 2, 0, 9)]
    history = [claim(2, 9, "z"), later[0], at(join(41, 6, "b", "u"), 70)]
    facts, gaps = replace(facts, end=Moment(45, 0, 90_000_000)), [(10, 20), (50, 60)]
    for more in ([], [at(join(61, 7, "c", "u"), 90)]):
        findings = found(*history, *more, gaps=gaps, known=(0, 21), facts=facts, shown=shown)
        assert not [one for one in findings if one.topic is not None]


@pytest.mark.parametrize(("known", "since"), [(None, None), (10, None), (35, None), (35, 50)])
def test_the_time_before_the_first_claim(known: int | None, since: int | None) -> None:
    """A new partition without an owner is an unowned interval, from its creation or the
    registration of a member. If the partition may be older, the owners must be known, and the time
    begins where they are."""
    claims = {"new": (40, 80), "old": (41, 81), "quick": (42, 32)}
    partitions = {name: Partition(20, 0, name != "old") for name in (*claims, "late")}
    facts = Facts(
        topics=topics(**partitions), known_us=None if since is None else since * 1_000_000
    )
    late = OWNER.replace("/t/", "/late/")
    findings = found(
        at(join(30, 1, "a", *claims, "late"), 20),
        *[at(event(zxid, 1, Act.CREATE, OWNER.replace("/t/", f"/{name}/"), b"g_a-0"), second)
          for name, (zxid, second) in claims.items()],
        facts=facts, gaps=[(0, 10)], known=(0, known),
        shown=[Shown(60, late, b"g_a-0", 43, 80_000_000, 43, 80_000_000, 1)],
    )  # fmt: skip
    assert [one.topic for one in findings] == ["new", "old"][: 2 if known == 10 or since else 1]
    for one in findings:
        assert one.topic is not None
        later = one.topic == "old" and since is not None
        assert (one.zxid, one.end_zxid) == (35 if later else 30, claims[one.topic][0])
        time = "31.0 s before its first claim in the logs" if later else "6"
        assert f" had no owner for {time}" in one.sentence
        proof = [part.table for part in one.evidence]
        assert proof == ["partitions", *["registrations"] * (not later), "ownership"]


@pytest.mark.parametrize(("known", "since"), [(None, 10), (20, None), (20, 10), (3, 0)])
def test_partitions_without_an_owner_when_the_logs_begin(
    known: int | None, since: int | None
) -> None:
    """A snapshot shows that a partition has no owner, and the logs show no claim. Before that there
    may have been an owner. What begins in the logs is found without a snapshot too."""
    names = ("never", "earlier", "held", "claimed", "left", "joined")
    facts = end_at(
        100,
        topics=topics(**{name: Partition(5, 0, False) for name in names}),
        known_us=None if since is None else since * 1_000_000,
    )
    joins = [at(join(6, n, name, name), 0) for n, name in enumerate(names, 20)][:-1]
    owners = {name: OWNER.replace("/t/", f"/{name}/") for name in names}
    shown = [Shown(19, owners["held"], b"g_m-0", 7, 1_000_000, 7, 1_000_000, 40)]
    shown += [Shown(19, one.path or "", one.data, 6, 0, 6, 0, one.session) for one in joins[:4]]
    events = [
        *joins,
        at(event(7, 40, Act.CREATE, owners["held"], b"g_m-0"), 1),
        at(event(7, 40, Act.CREATE, owners["earlier"], b"g_m-0", 1), 1),
        at(close(15, 24), 5),
        at(join(25, 25, "joined", "joined"), 20),
        at(event(30, 40, Act.CREATE, owners["claimed"], b"g_m-0"), 60),
        at(delete(31, 40, owners["claimed"]), 90),
    ]
    cut = known == 20
    if not cut:
        events.append(at(delete(13, 40, owners["earlier"]), 5))
    findings = found(
        *sorted(events), facts=facts, gaps=[(9, 12)] if cut else [(0, 2)], known=(0, known),
        shown=shown if cut else [],
    )  # fmt: skip
    orphans = {one.topic: one for one in findings if one.kind == "orphan partition"}
    first = {"never": (6, "never had an owner")}
    if cut:
        first = dict.fromkeys(("never", "earlier"), (20, "had no owner when the logs begin"))
    if since is None:
        first = {}
    joined = {} if known is None else {"joined": (25, "never had an owner")}
    first = {} if known is None else first | joined
    if not cut:
        assert orphans.pop("earlier").zxid == 13  # it was released
    assert {topic: one.zxid for topic, one in orphans.items()} == {
        topic: zxid for topic, (zxid, _) in first.items()
    }
    for topic, one in orphans.items():
        assert (one.severity, one.basis) == ("high", "proven")
        assert f"{topic}-0 of group g {first[str(topic)][1]}" in one.sentence
    if cut and since:
        assert orphans["never"].sentence.endswith("were registered for 90.0 s.")
        assert orphans["never"].time == 10_000_000


def test_partitions_that_no_member_ever_owned() -> None:
    """A member joined and left often, and never claimed some partitions: the audit reports one
    finding for each, except for one that is newer than the member."""
    made = {
        n: Partition(zxid, time * 1_000_000, True)
        for n, zxid, time in ((0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 500, 4_001), (4, 5_001, 5_100))
    }
    events = [at(claim(2, 7), 1), at(delete(3, 7), 2)]
    for n in range(50):
        events += [at(join(10 + 20 * n, n), 100 * n), at(close(11 + 20 * n, n), 100 * n + 60)]
    facts = Facts(Moment(10_000, 0, 9_000_000_000), topics=Topics({("", "t"): made}))
    findings = [one for one in found(*events, facts=facts) if "never" in one.sentence]
    assert sorted((one.partition or 0, one.zxid) for one in findings) == [
        (1, 10), (2, 10), (3, 810),
    ]  # fmt: skip
    assert {(one.kind, one.severity) for one in findings} == {("unowned interval", "medium")}


def test_filters_mean_the_topics_that_a_member_sees() -> None:
    """Each filter matches topics of its own chroot only. Broken filters and internal topics match
    nothing."""
    names = [(c, f"{k}{n}") for c in ("", "/b") for k in ("x", "y") for n in range(5)]
    known = Topics({name: {} for name in (*names, ("", "__consumer_offsets"), ("", "x01"))})
    assert known.matching("", "white_list", "x[0-2]") == ["x0", "x1", "x2"]
    assert known.matching("/b", "black_list", "x.*") == [f"y{n}" for n in range(5)]
    assert known.matching("", "white_list", "[") == []
    assert known.matching("/none", "white_list", ".*") == []
    assert len(known.matching("", "white_list", ".*")) == 11
    quiet = [claim(2, 5), delete(3, 5)]
    matching, other = (
        kinds(join(1, 5, "a", regex, pattern="white_list"), *quiet, facts=end_at(90))
        for regex in ("t|u", "u")
    )
    assert (matching, other) == ([("high", "orphan partition")], [])


def test_a_member_without_its_share() -> None:
    """Two members subscribe to four partitions, and one owns three of them."""
    four = Topics({("", "t"): dict.fromkeys(range(4), Partition(1, 0, True))})
    facts = end_at(60, topics=four)
    fair = [join(2, 5), join(3, 6, "b"), claim(4, 5), claim(5, 5, "a", 1), claim(6, 6, "b", 2)]
    assert kinds(*fair, claim(7, 6, "b", 3), facts=facts) == []
    history = [*fair, claim(7, 5, "a", 3)]
    (finding,) = found(*history, facts=facts)
    assert (finding.kind, finding.member) == ("member without its share", "g_b")
    assert "owns 1 partitions 53.0 s after the last change; every" in finding.sentence
    assert kinds(*history, facts=end_at(30, topics=four)) == []
    (finding,) = found(*[event for event in history if event.zxid != 6], facts=end_at(60))
    assert "while another stream holds two or more partitions of t." in finding.sentence


def commit(second: float, member: str) -> Event:
    """An owner commits an offset of its partition; its session has the number of its letter."""
    partition = ord(member) - ord("a")
    path = f"/consumers/g/offsets/t/{partition}"
    zxid = int(10 * second) + ord(member)
    offset = str(int(second * 10)).encode()
    return Event(zxid, 0, int(second * 1e6), ord(member), Act.SET, path, offset, False)


BOTH = list(range(0, 1200, 60))
BUSY = list(range(0, 6000, 60))
CONTINUES = [*BOTH, *range(2000, 3000, 60), *range(3400, 6000, 60)]


@pytest.mark.parametrize(
    ("of_a", "of_b", "stalled"),
    [
        (BOTH, BUSY, [("a", "4,800.0 s", None, 1)]),
        (CONTINUES, BUSY, [("a", "860.0 s", 20_097, 2)]),
        ([*BOTH, *range(2000, 3000, 60)], [*BOTH, *range(2000, 3000, 60)], []),
        ([*BOTH, *range(1380, 6000, 60)], BUSY, []),
        ([*BOTH, *range(2000, 6000, 60)], [*BOTH, *range(2001, 6000, 60)], []),
        (BOTH, [*BOTH, 2000, 2050], []),
        (BOTH, [*BOTH, *range(2000, 2200, 50)], [("a", "1,010.0 s", None, 1)]),
        ([at + n / 100 for at in range(0, 6000, 600) for n in range(20)], BUSY, []),
        (range(0, 3000, 290), BUSY, []),
        (BOTH, [], []),
    ],
    ids=[
        "ends",
        "continues",
        "outage",
        "briefly",
        "outlasted",
        "outage at the end",
        "not only an outage",
        "batches",
        "rarely",
        "alone",
    ],
)
def test_an_owner_that_stops_committing(
    of_a: Sequence[float], of_b: Sequence[float], stalled: list[Any]
) -> None:
    """An owner stalls if it committed regularly and then paused for five minutes, while another
    member still committed after that time. It does not matter whether it continues. There is one
    finding for each member."""
    claims = [at(claim(1, ord(member), member, number, number), 0)
              for number, member in enumerate("ab")]  # fmt: skip
    commits = [commit(second, "a") for second in of_a] + [commit(second, "b") for second in of_b]
    findings = [one for one in found(*claims, *commits) if one.kind == "stalled owner"]
    assert [(one.member, one.end_zxid) for one in findings] == [
        (f"g_{member}", end) for member, _, end, _ in stalled
    ]
    for one, (_, lasted, end, times) in zip(findings, stalled, strict=True):
        assert f"nothing for {lasted} although it owned 1 partitions and other" in one.sentence
        assert (f"It stalled {times} times" in one.sentence) == (times > 1)
        assert one.zxid == 11_400 + 97
        assert len(one.evidence) == (1 if end is None else 2)


@pytest.mark.parametrize(("ended", "stalls"), [(1_150, 0), (1_500, 1), (None, 1)])
def test_an_owner_that_lost_its_partition_need_not_commit(ended: int | None, stalls: int) -> None:
    """Only the time counts in which it owned a partition."""
    claims = [at(claim(1, ord(member), member, number, number), 0)
              for number, member in enumerate("ab")]  # fmt: skip
    commits = [commit(second, "a") for second in BOTH] + [commit(second, "b") for second in BUSY]
    ends = [] if ended is None else [at(close(10 * ended + 1, ord("a")), ended)]
    findings = [one for one in found(*claims, *commits, *ends) if one.kind == "stalled owner"]
    assert len(findings) == stalls
    if ended == 1_500:
        assert "nothing for 360.0 s" in findings[0].sentence


def offsets(seconds: Iterable[int], member: str, partition: int) -> Iterator[Event]:
    """An owner's commits of a partition that gets 10 messages a second."""
    path = f"/consumers/g/offsets/t/{partition}"
    for second in seconds:
        zxid = 10 * second + 2 + partition
        yield commit(second, member)._replace(zxid=zxid, path=path, data=b"%d" % (10 * second))


def stuck(
    commits: Iterable[int], busy: Iterable[int], end: int | None = None, then: Iterable[int] = ()
) -> list[Finding]:
    """The findings about partition 0, whose owner also has partition 1, which is ``busy``. At
    ``end`` the next owner has both, and commits ``then``."""
    events = [at(claim(number, ord("a"), "a", number), 0) for number in (0, 1)]
    events += [*offsets(commits, "a", 0), *offsets(busy, "a", 1)]
    if end is not None:
        events.append(at(close(10 * end, ord("a")), end))
        events.append(at(claim(10 * end + 1, ord("b"), "b"), end))
        events += offsets(then, "b", 0)
    every = found(*sorted(events, key=lambda event: event.zxid))
    return [one for one in every if one.kind == "stuck partition"]


REGULARLY = list(range(0, 1200, 60))


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (stuck(REGULARLY, range(0, 3300, 60)), [("low", None)]),
        (stuck([*REGULARLY, 3000], range(0, 3300, 60)), [("medium", 30_002)]),
        (stuck([*REGULARLY, 1400], range(0, 1600, 60)), []),
        (stuck(REGULARLY, range(0, 2000, 60), 2000, [2100]), [("medium", 21_002)]),
        (stuck(REGULARLY, range(0, 2000, 60), 2000), [("low", None)]),
        (stuck(REGULARLY, range(0, 1400, 60), 1400, [2100]), []),
        (stuck(range(0, 3000, 400), range(0, 3300, 60)), []),
        (stuck([0, 60, 120], range(0, 3300, 60)), []),
        (stuck([*REGULARLY, 3000], [*REGULARLY, 3000]), []),
        (stuck(REGULARLY, []), []),
    ],
    ids=[
        "still",
        "resumes",
        "briefly",
        "restarted",
        "gone",
        "released",
        "rarely",
        "new",
        "all",
        "alone",
    ],
)
def test_a_partition_that_stands_still_while_its_owner_commits_others(
    findings: list[Finding], expected: list[Any]
) -> None:
    """The next commit, by any owner, shows that messages had waited."""
    assert [(one.severity, one.end_zxid) for one in findings] == expected
    for one in findings:
        assert (one.topic, one.partition, one.member, one.zxid) == ("t", 0, "g_a", 11_402)


def test_a_partition_without_messages_is_not_stuck() -> None:
    """Its next commit is hardly higher. A log gap hides whether there were commits."""
    history = [at(claim(number, ord("a"), "a", number), 0) for number in (0, 1)]
    history += [*offsets([*REGULARLY, 3000], "a", 0), *offsets(range(0, 3300, 60), "a", 1)]
    history.sort(key=lambda event: event.zxid)
    idle = [event._replace(data=b"11500") if event.zxid == 30_002 else event for event in history]
    severities = []
    for events, gaps in ((history, []), (idle, []), (history, [(12_000, 20_000)])):
        every = found(*events, gaps=gaps, known=(0, 20_000)[: 1 + len(gaps)])
        severities.append([one.severity for one in every if one.kind == "stuck partition"])
    assert severities == [["medium"], [], []]


def test_commits_in_a_log_gap_are_unknown() -> None:
    """A member that committed nothing on both sides of a log gap may have committed in it."""
    claims = [at(claim(1, ord(member), member, number, number), 0)
              for number, member in enumerate("ab")]  # fmt: skip
    commits = [commit(second, "a") for second in CONTINUES] + [commit(at, "b") for at in BUSY]
    history = [event for event in (*claims, *commits) if not 15_000 < event.zxid < 15_500]
    (finding,) = (one for one in found(*history) if one.kind == "stalled owner")
    assert "It stalled 2 times" in finding.sentence
    shown = [Shown(15_499, one.path or "", one.data, 1, 0, 1, 0, one.session) for one in claims]
    cut = found(*history, gaps=[(15_000, 15_500)], known=(0, 15_500), shown=shown)
    (finding,) = (one for one in cut if one.kind == "stalled owner")
    assert "nothing for 440.0 s" in finding.sentence


def test_a_member_whose_sessions_expire() -> None:
    """Three times within an hour. A member that leaves is not flapping."""
    lost = [event for n in range(3) for event in (join(10 * n + 1, n), close(10 * n + 5, n, True))]
    (finding,) = found(*lost)
    assert (finding.kind, finding.member, finding.session) == ("flapping member", "g_a", 0)
    assert (finding.zxid, finding.end_zxid) == (5, 25)
    assert "expired 3 times within 3600 s" in finding.sentence
    assert kinds(*lost[:-1]) == []
    assert kinds(*lost, flapping_seconds=15) == []
    left = [event for n in range(3) for event in (join(10 * n + 1, n), close(10 * n + 5, n))]
    assert kinds(*left) == []


@pytest.mark.parametrize("early", [False, True])
def test_a_session_that_expires_behind_a_log_gap(early: bool) -> None:
    """The end of the session lists the member's registration, so the session was the member's."""
    lost = [event for n in range(3) for event in (join(10 * n + 1, n), close(10 * n + 5, n, True))]
    begin = lost[4:5] if early else []
    last = lost[5]._replace(zxid=40, deleted=[MEMBER.format("a")])
    (finding,) = found(*lost[:4], *begin, last, gaps=[(21, 30)])
    assert (finding.kind, finding.end_zxid) == ("flapping member", 40)
    for end in (last._replace(cxid=7), last._replace(deleted=[]), last._replace(deleted=None)):
        assert kinds(*lost[:4], *begin, end, gaps=[(21, 30)]) == []


def rebalances(*seconds: int, members: Sequence[str] = ()) -> list[Event]:
    """At each of these times, a member joins, and two partitions are claimed and one released."""
    events = []
    for number, second in enumerate(seconds):
        zxid, name = 10 * number, members[number] if members else f"m{number}"
        events += [
            at(join(zxid, 1, name), second),
            at(claim(zxid + 1, 1, name, 2 * number), second),
            at(claim(zxid + 2, 1, name, 2 * number + 1), second),
            at(delete(zxid + 5, 1, f"/consumers/g/owners/t/{2 * number}"), second + 1),
        ]
    return events


def test_a_storm_begins_with_its_first_rebalance() -> None:
    """A storm is recognised at its tenth rebalance, but the earlier ones belong to it. A later
    storm is a separate one, and the rebalances between the two are not part of either."""
    ten = [20 * n for n in range(10)]
    hosts = [f"h-170000000000{n}-0a" for n in range(6)] + ["b", "c", "d", "e"]
    assert kinds(*rebalances(*ten[:9]), unowned_seconds=10_000) == []
    (storm,) = found(*rebalances(*ten, members=hosts), unowned_seconds=10_000)
    assert (storm.zxid, storm.end_zxid, storm.severity) == (0, 95, "medium")
    assert "rebalanced 10 times within 600 s; there were 10 joins and leaves. The" in storm.sentence
    # 20 claims, 10 ends and 10 joins within 181 s, of which 10 s were rebalances.
    assert storm.sentence.endswith(
        "The averages per minute were 6.6 claims, 3.3 ends of ownership, and 3.3 joins and leaves. "
        "Rebalances took 6 % of the time. 6 of the joins and leaves came from host h."
    )
    later = [3_000 + 20 * n for n in range(12)]
    both = found(*rebalances(*ten, 900, *later), unowned_seconds=10_000)
    assert [(one.zxid, one.end_zxid) for one in both] == [(0, 95), (110, 225)]
    assert "rebalanced 12 times within 600 s; there were 12 joins and leaves." in both[1].sentence


def test_a_storm_that_slows_down_is_no_milder() -> None:
    """Its worst ten minutes count, or its average if it was shorter."""
    hot = [7 * n for n in range(86)]
    slower = [600 + 50 * n for n in range(100)]

    def storms(times: Sequence[int]) -> list[str]:
        findings = found(*rebalances(*times), unowned_seconds=10_000)
        return [one.severity for one in findings if one.kind == "rebalance storm"]

    assert storms(hot) == storms(hot[:12]) == storms([*hot, *slower]) == ["high"]
    assert storms(slower) == ["medium"]


def test_restarts_without_a_pause_are_a_storm() -> None:
    """Although the group is never quiet in between. It is not a storm if many members start within
    a minute and then work, or if a member tries again many times after one change."""
    starts: list[Event] = []
    flaps = [join(1, 1, "stays"), at(claim(2, 1, "stays"), 20)]
    tries = [at(join(1, 1), 1)]
    for n in range(41):
        zxid, session = 10 * n + 10, 100 + n
        flaps += [
            at(one, 21 + 3 * n)
            for one in (
                join(zxid, session, "b"), delete(zxid + 1, 1), claim(zxid + 2, session, "b"),
                close(zxid + 3, session), claim(zxid + 4, 1, "stays"),
            )
        ]  # fmt: skip
        starts.append(at(join(zxid, session, f"m{n}"), n))
        tries += [at(one, 2 + 2 * n) for one in (claim(zxid, 1), delete(zxid + 1, 1))]
        tries.append(at(event(zxid + 2, 1, Act.REFUSED), 2 + 2 * n))
    starts += [at(claim(1_000 + n, 100 + n, f"m{n}", n), 41 + n // 10) for n in range(41)]
    assert kinds(*starts) == []
    assert "rebalance storm" not in {kind for _, kind in kinds(*tries)}
    (storm,) = (one for one in found(*flaps) if one.kind == "rebalance storm")
    assert storm.severity == "high"  # 41 a minute
    assert "82 of the joins and leaves came from member g_b." in storm.sentence


def test_claims_that_are_refused() -> None:
    """Only those of registered members count."""
    refused = [event(10 + n, 5, Act.REFUSED) for n in range(20)]
    calm = [at(one, 10) for one in refused]
    history = [at(join(1, 5), 10), at(claim(2, 5), 10)]
    (finding,) = found(*history, *calm)
    assert (finding.kind, finding.zxid, finding.end_zxid) == ("claim contention", 1, 29)
    assert "refused 20 writes by members because the znode already" in finding.sentence
    assert kinds(*history, *calm[1:]) == []
    assert kinds(at(join(40, 5), 10), *history[1:], *calm) == []


def foreign(zxid: int, session: int, partition: int = 0) -> Event:
    """A session claims a partition in the layout of pykafka."""
    return event(zxid, session, Act.CREATE, f"/consumers/g/owners/b't'/0-{partition}", b"x")


def test_owners_in_another_layout() -> None:
    """One finding for each session and topic, worse if a member owned the topic at that time."""
    (finding,) = found(foreign(1, 5), foreign(2, 5, 1), close(9, 5))
    assert (finding.severity, finding.kind) == ("medium", "owner in another layout")
    assert (finding.topic, finding.zxid, finding.end_zxid) == ("t", 1, 9)
    assert "claimed 2 partitions of topic t of group g in another client's layout" in (
        finding.sentence
    )
    for history in (
        [foreign(1, 5), claim(2, 6), close(9, 5)],
        [claim(1, 6), foreign(2, 5)],
    ):
        (finding,) = found(*history)
        assert finding.severity == "high"
        assert finding.sentence.endswith("both may have read the same messages.")
    assert kinds(claim(1, 6), close(2, 6), foreign(3, 5), close(4, 5), claim(5, 6)) == [
        ("medium", "owner in another layout")
    ]


def test_owners_in_another_layout_may_have_ended_in_a_log_gap() -> None:
    """A session that claims after the gap need not have met them."""
    gaps = [(5, 20)]
    (finding,) = found(foreign(1, 5), claim(22, 6), gaps=gaps)
    assert (finding.severity, finding.end_zxid) == ("medium", 5)
    (finding,) = found(claim(1, 6), foreign(22, 5), gaps=gaps)
    assert (finding.severity, finding.end_zxid) == ("medium", None)
    (finding,) = found(foreign(1, 5), claim(3, 6), gaps=gaps)
    assert (finding.severity, finding.end_zxid) == ("high", 5)
    path = "/consumers/g/owners/t/0"
    for zxid, severity in ((21, "high"), (4, "medium")):
        shown = [Shown(zxid, foreign(1, 5).path or "", b"", 1, 0, 1, 0, 5),
                 Shown(21, path, b"g_a-0", 12, 0, 12, 0, 6)]  # fmt: skip
        (finding,) = found(foreign(1, 5), gaps=gaps, shown=shown)
        assert (finding.severity, finding.kind) == (severity, "owner in another layout")


def test_commits_after_a_move() -> None:
    """Until the group is moved back. The migration itself may write."""

    def marker(zxid: int, store: str) -> Event:
        data = json.dumps({"moved_to": store}).encode()
        return event(zxid, 9, Act.SET, "/consumers/g/migration", data)

    def write(zxid: int, session: int) -> Event:
        return event(zxid, session, Act.SET, "/consumers/g/offsets/t/0", b"%d" % (zxid * 10))

    history = [
        join(1, 5),
        write(2, 5),
        marker(10, "kafka"),
        write(11, 9),
        write(12, 5),
        write(13, 5),
    ]
    (finding,) = (one for one in found(*history) if "commit past" in one.kind)
    assert (finding.zxid, finding.end_zxid, finding.member) == (12, 13, "g_a")
    assert finding.sentence.startswith("g_a wrote 2 times to the offset of t-0 of group g in Zoo")
    assert finding.evidence[1].what == "wrote 120"
    back = [*history[:3], marker(11, "zookeeper"), write(12, 5)]
    assert [one for one in kinds(*back) if "commit past" in one[1]] == []


def test_a_recreated_topic_counts_from_its_creation() -> None:
    """A deleted topic has no partitions, so none lacks an owner."""
    released = [join(1, 5), claim(2, 5), delete(3, 5)]
    again = topics(t=Partition(50, 50_000_000, True, None, 40))
    (finding,) = found(*released, facts=end_at(100, topics=again))
    assert "for the last 50.0 s of the logs" in finding.sentence
    gone = topics(t=Partition(1, 0, True, 40, 40))
    assert kinds(*released, facts=end_at(100, topics=gone)) == []
    fewer = topics(t=Partition(50, 50_000_000, True, None, 40))
    other = [join(1, 5), claim(2, 5, partition=1), delete(3, 5, OWNER[:-1] + "1"), claim(4, 5)]
    assert kinds(*other, facts=end_at(100, topics=fewer)) == []


def test_facts_of_logs_and_snapshots() -> None:
    """Partitions are new if the transaction is known that added them. The same data in a snapshot
    adds nothing. A recreated topic has the partitions of its latest lifetime."""

    def topic(zxid: int, act: Act, *numbers: int, name: str = "t") -> Event:
        data = json.dumps({"partitions": {str(number): [1] for number in numbers}})
        return event(zxid, 9, act, f"/x/brokers/topics/{name}", data.encode())

    reader = FactsReader(Coverage([(6, 20)]))
    for one in (
        topic(2, Act.CREATE, 0), topic(4, Act.SET, 0, 1), topic(21, Act.SET, 0, 1, 2),
        topic(3, Act.CREATE, 0, 1, name="u"), topic(5, Act.DELETE, name="u"),
        topic(22, Act.CREATE, 0, name="u"), topic(23, Act.CREATE, 0, name="v"),
        topic(24, Act.DELETE, name="v"), topic(25, Act.CREATE, 0, name="v/partitions"),
        event(26, 8, Act.CREATE, "/x/brokers/ids/7"),
    ):  # fmt: skip
        reader.read(one)
    logged, other = topic(4, Act.SET, 0, 1), topic(15, Act.SET, 0, name="w")
    for one, created in ((logged, 2), (other, 12)):
        reader.show(Shown(19, one.path or "", one.data, created, 1, one.zxid, one.time, 0))
    reader.open(5, 30)
    reader.open(5, 3)
    facts = reader.facts(Moment(40, 0))
    assert facts.opened.zxid(5) == 3
    assert facts.opened.zxid(6) is None
    assert facts.brokers == {8: "7"}
    assert {name: set(numbers) for (_, name), numbers in facts.topics.items()} == {
        "t": {0, 1, 2}, "u": {0}, "v": {0}, "w": {0},
    }  # fmt: skip
    created = {(name, number): (one.zxid, one.is_created, one.gone_zxid, one.deleted_zxid)
               for (_, name), numbers in facts.topics.items()
               for number, one in numbers.items()}  # fmt: skip
    assert created == {
        ("t", 0): (2, True, None, None), ("t", 1): (4, True, None, None),
        ("t", 2): (21, False, None, None), ("u", 0): (22, True, None, 5),
        ("v", 0): (23, True, 24, 24), ("w", 0): (15, False, None, None),
    }  # fmt: skip


def test_an_owner_znode_that_is_not_ephemeral() -> None:
    """It belongs to no session, not even to one of the member that it names."""
    history = [join(1, 6), claim(2, 5)._replace(ephemeral=False), delete(3, 6)]
    (finding,) = found(*history)
    assert (finding.severity, finding.kind) == ("critical", "foreign release")
    assert "belonged to no session, as it is not ephemeral. From then on" in finding.sentence
    assert (
        kinds(claim(1, 5)._replace(ephemeral=False), join(2, 6), delete(3, 6, MEMBER.format("a")))
        == []
    )


def odd(zxid: int, session: int, member: str, content: bytes) -> Event:
    """A session registers a member with a content that no member reads."""
    return join(zxid, session, member)._replace(data=content)


@pytest.mark.parametrize("content", [b"t", b"", b"{}", b"[]", b'{"subscription":{"t":"1"}}'])
def test_a_registration_that_members_cannot_read_is_a_finding(content: bytes) -> None:
    """It is a problem for members that are registered at the same time, before it or after it."""
    kind = "unreadable registration"
    alone = odd(1, 5, "x", content), delete(2, 5, MEMBER.format("x"))
    assert kinds(*alone) == [("info", kind)]
    assert kinds(*alone, join(3, 6)) == kinds(join(0, 6), close(0, 6), *alone) == [("info", kind)]
    for events in ((alone[0], join(2, 6)), (join(0, 6), alone[0])):
        (finding,) = (one for one in found(*events) if one.kind == kind)
        assert (finding.severity, finding.basis, finding.end_zxid) == ("high", "proven", None)
        assert (finding.member, finding.session, finding.zxid) == ("g_x", 5, 1)
        assert "members of the JVM fail to rebalance" in finding.sentence


def test_registrations_with_one_fault_are_one_finding() -> None:
    """Clients such as pykafka register under a new name each time."""
    events = [odd(1, 5, "x", b"t"), odd(2, 6, "y", b"t"), close(3, 5), odd(4, 7, "z", b""),
              close(5, 6)]  # fmt: skip
    first, second = found(*events)
    assert (first.member, first.zxid, first.end_zxid) == ("g_x", 1, 5)
    assert first.sentence == (
        "The registration of g_x in group g is not JSON: b't' (written by pykafka or samsa, as it "
        "is the bare name of a topic). 2 registrations have this fault. It is unknown which "
        "topics it means."
    )
    assert (second.member, second.end_zxid) == ("g_z", None)


@pytest.mark.parametrize("odd_first", [True, False])
@pytest.mark.parametrize(
    ("begins", "shown_at", "severity"),
    [((1, 3), None, "high"), ((1, 22), None, "info"), ((1, 22), 21, "high"), ((1, 12), 4, "info"),
     ((1, 12), 21, "high")],
)  # fmt: skip
def test_an_unreadable_registration_may_have_ended_in_a_log_gap(
    odd_first: bool, begins: tuple[int, int], shown_at: int | None, severity: str
) -> None:
    """Another member that registers after the gap need not have met it, unless a snapshot shows
    that the first of the two still existed (``shown_at``)."""
    first, second = odd(begins[0], 5, "x", b"t"), join(begins[1], 6)
    if not odd_first:
        first, second = join(begins[0], 6), odd(begins[1], 5, "x", b"t")
    shown = []
    for one, zxid in ((first, shown_at), (second, 21)):
        if zxid is not None and (one is first or begins[1] == 12):
            czxid = one.zxid
            shown.append(Shown(zxid, one.path or "", one.data, czxid, 0, czxid, 0, one.session))
    events = [first] if begins[1] == 12 else [first, second]
    every = found(*events, gaps=[(5, 20)], shown=shown)
    (finding,) = (one for one in every if one.kind == "unreadable registration")
    assert finding.severity == severity
    lasts = shown_at == 21 if odd_first else begins[1] > 5
    assert finding.end_zxid == (None if lasts else 5)


def test_registrations_that_differ_by_their_time_are_one_finding() -> None:
    """A client that restarts each minute writes another timestamp each time."""
    events = [
        one
        for zxid in range(0, 20, 2)
        for one in (
            odd(zxid, zxid, "x", b'{"timestamp":%d}' % zxid),
            delete(zxid + 1, zxid, MEMBER.format("x")),
        )
    ]
    (finding,) = found(*events)
    assert (finding.zxid, finding.end_zxid) == (0, 19)
    assert "10 registrations have this fault." in finding.sentence


@pytest.mark.parametrize(
    ("member", "content"),
    [("a", b'{"version":1,"subscription":{},"pattern":"static"}'),
     ("zkmigrate-probe", b'{"version":1,"subscription":{"t":1},"pattern":"static"}')],
)  # fmt: skip
def test_a_registration_of_zkmigrate_is_no_other_member(member: str, content: bytes) -> None:
    """It holds a locked group, or tries the lock. It never rebalances."""
    for zxid in (0, 2):
        events = odd(1, 5, "x", b"t"), odd(zxid, 6, member, content)
        assert ("info", "unreadable registration") in kinds(*events)


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"pattern": "static", "subscription": {"t": 1}, "x": "x" * 65_536}),
        json.dumps({"pattern": "static", "subscription": {f"t{n}": 1 for n in range(1_001)}}),
        json.dumps({"pattern": "static", "subscription": {"t": 1_001}}),
        '{"pattern":"static","subscription":{"t":1},"x":' + "[" * 20 + "]" * 20 + "}",
    ],
    ids=["bytes", "topics", "streams", "depth"],
)
def test_members_of_the_jvm_may_read_a_registration_beyond_our_limits(content: str) -> None:
    """Only this library leaves it out."""
    every = found(odd(1, 5, "x", content.encode()), join(2, 6))
    (finding,) = (one for one in every if one.kind == "unreadable registration")
    assert finding.severity == "info"
    assert finding.sentence.endswith("zkconsumer does not read it, but members of the JVM may.")


def test_a_registration_that_the_scala_consumer_reads_is_no_finding() -> None:
    """Without topics, as tools write it; with a filter; with what other clients add."""
    for content in (
        b'{"version":1,"subscription":{},"pattern":"static"}',
        b'{"subscription":{"t.*":1,"u":1},"pattern":"white_list"}',
        b'{"subscription":{"t":1},"pattern":"other","client":"x"} text',
    ):
        assert kinds(odd(1, 5, "x", content), join(2, 6)) == []
