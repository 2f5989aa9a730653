"""Each rule of the soak's judge fires on a history made by hand, and only on that history."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak import audit, judge, recovery
from tests.soak.history import (
    Claim,
    Expelled,
    FaultRecord,
    Finding,
    Foreign,
    History,
    Life,
    Lowered,
    Message,
    Registration,
)
from tests.soak.resources import grown, growth

SESSION = 4.0


def healthy(kind: str = "zookeeper") -> History:
    """Two members with a partition each, and a message every 0.1 s for 40 s. The end is quiet."""
    history = History(kind, SESSION, commit_interval=0.5, partitions=2)
    for partition, member in enumerate(("anna", "bert")):
        history.lives.append(Life(member, partition, 0.0))
        messages = [Message(i / 10, i, i, member) for i in range(400)]
        history.acked[partition] = {m.offset: m for m in messages}
        history.delivered[partition] = [m._replace(at=m.at + 0.01) for m in messages]
        history.claims.append(Claim(partition, member, partition + 1, 0.0, None, "still held"))
        history.registrations.append(Registration(member, partition + 1, 0.0, None, "still held"))
    history.quiet = [(16.0, 39.0)]
    return history


def handed_over(how: str = "expired", at: float = 20.0) -> History:
    """Anna's session ends at 20 s. Bert owns partition 0 from then on."""
    history = healthy()
    history.claims[0].ended, history.claims[0].how = at, "expired"
    history.registrations[0].ended, history.registrations[0].how = at, how
    history.claims.append(Claim(0, "bert", 2, at + 0.01, None, "still held"))
    history.lives[0].ended, history.lives[0].how = at - SESSION, "killed"
    before = [m for m in history.delivered[0] if m.at < at - SESSION]
    rest = [m for m in history.delivered[0] if m.at >= at - SESSION]
    history.delivered[0] = before + [
        m._replace(at=max(m.at, at + 0.05), member="bert") for m in rest
    ]
    return history


def again(history: History, offset: int, at: float, member: str = "bert") -> None:
    """``member`` delivers an offset of partition 0 once more."""
    history.delivered[0].append(Message(at, offset, offset, member))
    history.delivered[0].sort()


def rules(history: History) -> set[str]:
    """Return the names of the broken rules."""
    return set(judge.judge(history)["violations_by_rule"])


@pytest.mark.parametrize("kind", ["zookeeper", "coordinator", "mixed"])
def test_a_healthy_history_breaks_no_rule(kind: str) -> None:
    """A healthy history gives no violation."""
    assert rules(healthy(kind)) == set()


def test_a_takeover_breaks_no_rule() -> None:
    """Neither does a killed member whose partition another one delivers."""
    assert rules(handed_over()) == set()


def _lost(history: History) -> None:
    del history.delivered[0][100]


def _wrong(history: History) -> None:
    history.delivered[0][100] = history.delivered[0][100]._replace(number=7)


def _repeated(history: History) -> None:
    again(history, 100, 30.0)


def _outlived(history: History) -> None:
    history.registrations[0].ended, history.registrations[0].how = 20.0, "released"


def _lowered(history: History) -> None:
    history.lowered.append(Lowered(5.0, 0, "anna", 9, 8))


def _foreign(history: History) -> None:
    history.foreign.append(Foreign(5.0, 1, "anna", "bert"))


def _idle(history: History) -> None:
    history.lives.append(Life("carl", 2, 0.0))


def _unowned(history: History) -> None:
    late = [m for m in history.delivered[0] if m.at > 20]
    early = [m for m in history.delivered[0] if m.at <= 20]
    history.delivered[0] = early + [m._replace(at=39.5) for m in late]
    history.claims.append(Claim(1, "anna", 1, 30.0, None, "still held"))
    history.delivered[1] = [
        m._replace(member="anna" if m.at > 30 else "bert") for m in history.delivered[1]
    ]


def _hung(history: History) -> None:
    history.lives.append(Life("carl", 2, 0.0, 9.0, "hung"))


def _audited(history: History) -> None:
    history.findings.append(Finding("critical", "zombie commit", "anna", "It wrote."))


def _two(history: History) -> None:
    history.claims[0].ended, history.claims[0].how = 20.0, "expired"
    history.registrations[0].ended, history.registrations[0].how = 20.0, "expired"
    history.claims.append(Claim(0, "bert", 2, 20.0, None, "still held"))


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("lost", _lost),
        ("wrong message", _wrong),
        ("repeated", _repeated),
        ("two deliverers", _two),
        ("owner without a session", _outlived),
        ("offset lowered", _lowered),
        ("foreign commit", _foreign),
        ("idle member", _idle),
        ("unowned partition", _unowned),
        ("hung", _hung),
        ("audit", _audited),
    ],
)
def test_each_rule_fires_alone(rule: str, plant: Callable[[History], None]) -> None:
    """The history has one fault, and exactly one rule reports it."""
    history = healthy()
    plant(history)
    assert rules(history) == {rule}


def test_every_rule_is_planted() -> None:
    """The table above has all rules."""
    (mark,) = test_each_rule_fires_alone.pytestmark
    assert {name for name, _ in mark.args[1]} | {"resources"} == set(judge.RULES)


@pytest.mark.parametrize(
    ("measure", "by", "median", "broken"),
    [
        ("rss", 0.06, 45_000_000, {"resources"}),
        ("rss", 0.04, 45_000_000, set()),
        ("rss", None, 45_000_000, set()),
        ("threads", 0.091, 11, set()),
        ("threads", 0.182, 11, {"resources"}),
    ],
)
def test_resources_that_grow(measure: str, by: float | None, median: int, broken: set[str]) -> None:
    """Growth above 5 % is a violation, but one more thread is not. Without a figure there is
    no violation."""
    table = {measure: {"growth": by, "highest": 9, "median": median}}
    assert set(judge.judge(healthy(), grown(table))["violations_by_rule"]) == broken


def test_no_member_is_idle_while_the_brokers_take_nothing() -> None:
    """There is nothing to deliver then."""
    history = healthy()
    for partition in (0, 1):
        acked = history.acked[partition]
        history.acked[partition] = {offset: m for offset, m in acked.items() if m.at < 24}
        history.delivered[partition] = [m for m in history.delivered[partition] if m.at < 24.1]
    assert rules(history) == set()


def test_a_producer_that_sees_acknowledgements_late() -> None:
    """A message that was delivered before the producer knew that it was stored is not late."""
    history = healthy()
    for partition in (0, 1):
        acked = history.acked[partition]
        history.delivered[partition] = [m for m in history.delivered[partition] if m.at < 25]
        history.acked[partition] = {
            offset: m._replace(at=30.0 if m.at > 24 else m.at)
            for offset, m in acked.items()
            if m.at < 24.9
        }
    assert rules(history) == set()


@pytest.mark.parametrize(
    ("first", "how", "broken"),
    [
        (15.5, "expired", set()),  # since the last commit before the kill at 16 s
        (13.0, "expired", {"repeated"}),  # long stored by then
        (15.5, "released", {"repeated"}),  # a clean leave stores everything
    ],
)
def test_repeats_after_an_expiry(first: float, how: str, broken: set[str]) -> None:
    """Messages that a member had not committed before its session ended may be repeated, and no
    others."""
    history = handed_over(how)
    history.lives[0].how = "left" if how == "released" else "killed"
    again(history, int(first * 10), 20.5)
    assert rules(history) == broken


@pytest.mark.parametrize(("first", "broken"), [(15.5, set()), (13.0, {"repeated"})])
def test_repeats_after_a_kill_that_is_noticed_late(first: float, broken: set[str]) -> None:
    """If a server is away, a dead member's session ends much later than its timeout. The time of
    the kill counts."""
    history = handed_over(at=26.0)
    history.lives[0].ended = 16.0
    history.delivered[0] = [
        m._replace(at=max(m.at, 26.05), member="bert") if m.at > 16.0 else m
        for m in healthy().delivered[0]
    ]
    history.quiet = []
    again(history, int(first * 10), 26.5)
    assert rules(history) == broken


@pytest.mark.parametrize(("first", "broken"), [(19.5, set()), (17.0, {"repeated"})])
def test_repeats_after_a_forced_expiry(first: float, broken: set[str]) -> None:
    """Another client closes the session, so the time of its end is known exactly."""
    history = handed_over("closed")
    history.delivered[0] = [
        m._replace(member="anna" if m.at < 20 else "bert") for m in healthy().delivered[0]
    ]
    history.lives[0].ended, history.lives[0].how = None, ""
    history.quiet = []
    history.faults.append(
        FaultRecord("expiry", "", "0", began=19.99, ended=20.05, members=("anna",), evidence="x")
    )
    again(history, int(first * 10), 20.5)
    assert rules(history) == broken


@pytest.mark.parametrize(("at", "broken"), [(20.5, set()), (24.0, {"repeated", "two deliverers"})])
def test_repeats_by_the_one_that_has_lost_its_session(at: float, broken: set[str]) -> None:
    """During its lease it may deliver messages that the next owner has already delivered."""
    history = handed_over("closed")
    history.delivered[0] = [
        m._replace(member="anna" if m.at < 20 else "bert") for m in healthy().delivered[0]
    ]
    history.lives[0].ended, history.lives[0].how = None, ""
    history.quiet = []
    history.faults.append(
        FaultRecord("expiry", "", "0", began=19.99, ended=20.05, members=("anna",), evidence="x")
    )
    for after in (0.0, 0.1):  # the first one may have been unacknowledged
        again(history, int((at - 0.3 + after) * 10), at + after, "anna")
    assert rules(history) == broken


@pytest.mark.parametrize(("kind", "broken"), [("kill", set()), ("leave", {"repeated"})])
def test_repeats_on_the_coordinator(kind: str, broken: set[str]) -> None:
    """There, the faults themselves show which member could not store its offsets."""
    history = healthy("coordinator")
    history.faults.append(
        FaultRecord(kind, "", "0", began=15.6, ended=15.6, members=("anna",), evidence="x")
    )
    again(history, 155, 20.5)
    assert rules(history) == broken


@pytest.mark.parametrize(("first", "broken"), [(15.5, set()), (10.0, {"repeated"})])
def test_repeats_after_a_coordinator_that_stood_still(first: float, broken: set[str]) -> None:
    """When it resumes, it ends the session of a member that it did not hear, however long it was
    paused. Messages that the member had not committed before may be repeated."""
    history = healthy("coordinator")
    history.faults.append(
        FaultRecord("broker", "paused", "1", began=16.0, ended=23.5, evidence="x")
    )
    history.expelled.append(Expelled("anna", 24.0))
    history.quiet = []
    again(history, int(first * 10), 24.5)
    assert rules(history) == broken


@pytest.mark.parametrize(("away", "broken"), [(15.8, set()), (None, {"repeated"})])
def test_repeats_after_a_leave_without_a_coordinator(away: float | None, broken: set[str]) -> None:
    """A member that has to leave while its coordinator is away cannot commit its last offsets."""
    history = healthy("coordinator")
    history.lives[0].ended, history.lives[0].how = 19.0, "left"
    history.quiet = []
    if away is not None:
        history.faults.append(
            FaultRecord("broker", "killed", "1", began=away, ended=25.0, evidence="x")
        )
    history.delivered[0] = [
        m if m.at < 16 else m._replace(at=max(m.at, 26.0), member="bert")
        for m in history.delivered[0]
    ]
    again(history, 155, 26.5, "bert")
    assert rules(history) == broken


def test_losses_of_a_member_without_a_journal_are_in_its_log(tmp_path: Path) -> None:
    """The full disk ends the journal. The member's log continues."""
    history = healthy("coordinator")
    history.faults.append(
        FaultRecord("full disk", "", "0", began=16.0, ended=16.0, members=("anna",), evidence="x")
    )
    lines = ("10:00:00,500", "10:00:07,250")
    (tmp_path / "anna.err").write_text(
        "".join(f"2026-11-22 {at} zkconsumer.member lost: 8 partitions were lost\n" for at in lines)
        + "2026-11-22 10:00:08,000 zkconsumer.journal the disk is full\n"
    )
    first = time.mktime((2026, 11, 22, 10, 0, 0, 0, 0, -1)) + 0.5
    history.expelled.append(Expelled("anna", first - 0.1))  # from the journal
    audit.losses_in_logs(history, tmp_path)
    assert [one.at for one in history.expelled] == [first - 0.1, first + 6.75]


def test_a_message_in_hand_and_one_within_the_lease_are_counted() -> None:
    """A stream may deliver one message after a pause, and continue during its lease."""
    history = healthy()
    history.quiet = []
    _two(history)
    history.delivered[0] = [
        m._replace(member="anna" if m.at < 22 else "bert") for m in history.delivered[0]
    ]
    found = judge.judge(history)
    assert not found["violations_by_rule"]
    assert found["counts"]["late within the lease"] == 19
    late = [m for m in history.delivered[0] if not 20 <= m.at < 25 or m.member == "bert"]
    history.delivered[0] = sorted([*late, Message(25.0, 200, 200, "anna")])
    found = judge.judge(history)
    assert found["counts"]["late but unacknowledged"] == 1
    assert "two deliverers" not in found["violations_by_rule"]


@pytest.mark.parametrize(("woke", "broken"), [(25.0, set()), (23.0, {"repeated"})])
def test_the_next_owner_has_the_message_in_hand_too(woke: float, broken: set[str]) -> None:
    """It is delivered right after a pause longer than session and lease, and at no other time."""
    history = healthy()
    history.quiet = []
    _two(history)
    history.faults.append(
        FaultRecord("pause", "", "0", began=14.9, ended=woke, members=("anna",), evidence="x")
    )
    history.delivered[0] = [
        m if m.at < 15 else m._replace(member="bert", at=max(m.at, 20.1))
        for m in history.delivered[0]
    ]
    again(history, 150, 25.001, "anna")
    found = judge.judge(history)
    assert set(found["violations_by_rule"]) == broken
    assert found["counts"]["late but unacknowledged"] == 1


@pytest.mark.parametrize(
    ("owner", "deleter", "broken"),
    [("", "john", set()), ("", "bert", {"foreign commit"}), ("bert", "john", {"foreign commit"})],
)
def test_the_original_consumer_deletes_an_owner(owner: str, deleter: str, broken: set[str]) -> None:
    """The former owner may commit until another member has claimed the partition."""
    history = healthy("mixed")
    history.lives.append(Life("john", 7, 0.0, ours=False))
    history.foreign.append(Foreign(20.0, 0, "anna", owner, deleter))
    assert rules(history) == broken


def test_the_original_consumer_is_not_judged() -> None:
    """A JVM member may repeat, be late or lower offsets."""
    history = healthy("mixed")
    history.lives[0].ours = False
    _two(history)
    _lowered(history)
    again(history, 100, 30.0)
    assert rules(history) == set()
    assert judge.judge(history)["counts"]["repeated by the original consumer"] == 1


def _sent(first: float, count: int) -> dict[int, Message]:
    """Return ten messages a second from ``first``."""
    return {n: Message(first + n / 10, n, n) for n in range(count)}


def test_late_is_what_comes_after_its_acknowledgement() -> None:
    """A message's first delivery decides whether it is late. Time in which nothing was written is
    not late."""
    acked = _sent(10.0, 20) | {20: Message(18.0, 20, 20)}
    on_time = [Message(m.at + 0.1, m.offset, m.number, "anna") for m in acked.values()]
    assert recovery.late(acked, on_time) == []
    again = [*on_time, Message(19.0, 3, 3, "bert")]
    assert recovery.late(acked, again) == []
    slow = [*on_time[:5], Message(14.0, 5, 5, "bert"), *on_time[6:]]
    assert recovery.late(acked, slow) == [(11.0, 14.0)]
    assert recovery.late(acked, on_time[:-1]) == [(18.5, float("inf"))]


def test_recovery_ends_when_nothing_is_late() -> None:
    """Late messages within three seconds of each other are one recovery, and so are all that are
    late by more than a second. The rest is a hiccup."""
    blocks = recovery.merged([(10.6, 13.0), (11.0, 12.0), (15.0, 15.2), (25.0, 25.3)])
    assert recovery.recovered(blocks, 10.0, 30.0) == pytest.approx((5.2, 0.8))
    assert recovery.recovered(blocks, 16.0, 30.0) == pytest.approx((0.0, 0.8))
    assert recovery.recovered([*blocks, (28.0, 28.6)], 10.0, 30.0)[0] == pytest.approx(18.6)
    assert recovery.recovered([(20.0, float("inf"))], 10.0, 30.0) == (20.0, 0.0)
    assert recovery.recovered(blocks, 26.0, 30.0) == (0.0, 0.0)


def test_gaps_of_the_producer() -> None:
    """A producer that cannot write has a gap, even if it never writes again."""
    times = [i / 10 for i in range(100)] + [13.0 + i / 10 for i in range(50)]
    assert recovery.gaps(times, 18.0) == [(pytest.approx(10.4), 13.0)]
    assert recovery.gaps(times[:100], 17.0) == [(pytest.approx(10.4), 17.0)]


def test_recovery_takes_faults_alone() -> None:
    """The slowest partition counts, for faults that happened alone."""
    history = handed_over()
    history.quiet = [(16.5, 30.0)]
    for alone in (True, False):
        history.faults.append(
            FaultRecord("kill", "", "0", alone, 16.0, 16.2, ("anna",), evidence="ended with -9")
        )
    history.faults.append(FaultRecord("pause", "", "0", True, 17.0, 18.0))
    (one,) = recovery.measured(history)
    assert one["fault"] == "kill"
    assert 4.0 < one["all"] < 4.2
    assert one["producer"] == 0.0


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        ([100.0] * 20, 0.0, 0.0),
        ([100.0] * 10 + [180.0] + [100.0] * 9, 0.0, 0.0),  # one that is far off
        ([100.0 + i for i in range(20)], 0.1, 0.2),
    ],
)
def test_growth(values: list[float], least: float, most: float) -> None:
    """A steady increase is found. A single sample is ignored."""
    assert least <= growth(values) <= most
