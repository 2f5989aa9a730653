"""Moves of running groups, judged from what members and operators wrote: each rule finds its fault,
and says nothing of what resembles it. Plain Python, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from zkaudit.group import (
    Act,
    Coverage,
    Event,
    Evidence,
    Facts,
    Finding,
    LiveMove,
    Moment,
    Shown,
    audit_group,
)
from zkaudit.group.live_moves import Span, Wait
from zkaudit.limits import Limits
from zkaudit.report.verdict import moves

from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import encode_member, encode_mode

TOOL, MEMBER, OTHER, LEGACY, SECOND = 1, 11, 12, 21, 2
"""Sessions: of an operator's tool, two migratable members, a legacy one, a second operator."""
LOCKED = json.dumps({"zkmigrate": "locked", "version": 1, "acl": []}).encode()
ROOT = "/consumers/g"
IDS, LIVE, MODE = f"{ROOT}/ids", f"{ROOT}/live/members", f"{ROOT}/live/mode"
FIRST = 101
"""The first transaction."""


class Story:
    """What happens to one group; each step is a transaction and takes a second."""

    def __init__(self) -> None:
        self.zxid = FIRST - 1
        self.seconds = 0.0
        self.version = -1
        self.events: list[Event] = []
        self.shown: list[Shown] = []
        self.sessions: dict[str, int] = {}
        self.log_gaps: list[tuple[int, int]] = []

    def now(self, seconds: float = 1) -> None:
        self.zxid += 1
        self.seconds += seconds

    def act(
        self, act: Act, path: str, session: int, data: bytes | None = None, idx: int = 0,
        ephemeral: bool = False,
    ) -> None:  # fmt: skip
        version = self.version if path == MODE and act is Act.SET else None
        self.events.append(
            Event(self.zxid, idx, int(self.seconds * 1e6), session, act, path, data, ephemeral,
                  version=version)
        )  # fmt: skip

    def mode(self, mode: str, session: int = TOOL, seconds: float = 1) -> None:
        self.version += 1
        self.now(seconds)
        data = encode_mode(Mode(mode)) if mode in {one.value for one in Mode} else mode.encode()
        self.act(Act.SET if self.version else Act.CREATE, MODE, session, data)

    def delete(self) -> None:
        self.now()
        self.act(Act.DELETE, MODE, TOOL)

    def join(self, member: str, session: int, live: bool = True, wants: bool = True) -> None:
        self.now()
        self.sessions[member] = session
        topics = {"t": 1} if wants else {}
        data = json.dumps({"version": 1, "subscription": topics, "pattern": "static"}).encode()
        self.act(Act.CREATE, f"{IDS}/{member}", session, data, ephemeral=True)
        if live:
            data = encode_member(None)
            self.act(Act.CREATE, f"{LIVE}/{member}", session, data, 1, ephemeral=True)

    def leave(self, member: str) -> None:
        self.now()
        self.act(Act.DELETE, f"{IDS}/{member}", self.sessions[member])

    def close(self, session: int) -> None:
        self.now()
        self.events.append(Event(self.zxid, 0, int(self.seconds * 1e6), session, Act.CLOSE))

    def acknowledge(self, *members: str, seconds: float = 1) -> None:
        for member in members:
            self.now(seconds)
            data = encode_member(self.version, f"id of {member}")
            self.act(Act.SET, f"{LIVE}/{member}", self.sessions[member], data)

    def lock(self, locked: bool, session: int = TOOL) -> None:
        self.now()
        self.act(Act.SET, IDS, session, LOCKED if locked else b"")

    def audit(self, standstill: float = 1000) -> tuple[LiveMove, list[Finding]]:
        facts = Facts(Moment(self.zxid, 0, int(self.seconds * 1e6)))
        limits = Limits(standstill_seconds=standstill)
        coverage = Coverage(self.log_gaps)
        history, findings = audit_group(self.events, facts, limits, coverage, self.shown)
        (move,) = history.live_moves
        return move, findings

    def spans(self) -> tuple[Span, ...]:
        return self.audit()[0].spans

    def found(self, standstill: float = 1000) -> list[Finding]:
        return self.audit(standstill)[1]

    def kinds(self, standstill: float = 1000) -> Counter[str]:
        return Counter(one.kind for one in self.found(standstill))


def prepared() -> Story:
    """Two members that have acknowledged the first mode."""
    story = Story()
    story.mode("zookeeper", MEMBER)
    story.join("a", MEMBER)
    story.join("b", OTHER)
    story.acknowledge("a", "b")
    return story


def on_the_road(*modes: str) -> Story:
    """A group that was taken through these modes as zkmigrate does it."""
    story = prepared()
    for mode in modes:
        if mode == "locked" and story.version == 0:
            story.lock(True)
        story.mode(mode)
        story.acknowledge("a", "b")
        if mode == "zookeeper":
            story.lock(False)
    return story


def test_the_whole_road_and_back_is_no_fault() -> None:
    """Each mode lasts until the next one; all acknowledge; nothing is found."""
    road = ("locked", "kafka", "open", "kafka", "locked", "zookeeper")
    story = on_the_road(*road)
    move, found = story.audit()
    assert [span.mode and span.mode.value for span in move.spans] == ["zookeeper", *road]
    assert [span.version for span in move.spans] == list(range(7))
    assert [span.ended for span in move.spans] == ["next mode"] * 6 + ["still"]
    assert all(first.end == second.start for first, second in pairwise(move.spans))
    assert [span.members for span in move.spans] == [0, *[2] * 6]
    for span in move.spans[1:]:
        assert {ack.member for ack in span.acknowledged} == {"a", "b"}
        assert span.settled == span.acknowledged[-1].at
        assert span.late == ()
    assert move.member_ids == {"id of a", "id of b"}
    assert found == []


def test_a_session_follows_one_coordination_after_the_other() -> None:
    """A member follows a mode from its acknowledgement on; one that registers, from the mode that
    holds."""
    story = on_the_road("locked", "kafka")
    kafka = story.spans()[-1]
    story.join("c", 13)
    story.acknowledge("c")
    story.mode("locked")
    story.acknowledge("a", "b", "c")
    move, _ = story.audit()
    back = {ack.member: ack.at for ack in move.spans[-1].acknowledged}
    acted = {ack.member: ack.at for ack in kafka.acknowledged}
    assert [(p.session, p.begin, p.end, p.coordination) for p in move.phases()] == [
        (MEMBER, None, acted["a"], "zookeeper"),
        (MEMBER, acted["a"], back["a"], "coordinator"),
        (MEMBER, back["a"], None, "zookeeper"),
        (OTHER, None, acted["b"], "zookeeper"),
        (OTHER, acted["b"], back["b"], "coordinator"),
        (OTHER, back["b"], None, "zookeeper"),
        (13, None, back["c"], "coordinator"),
        (13, back["c"], None, "zookeeper"),
    ]


def test_a_mode_that_is_written_before_all_have_acknowledged() -> None:
    """Proven for a member that was registered before the mode that it has not acknowledged."""
    story = on_the_road("locked")
    story.mode("kafka")
    story.acknowledge("a")
    story.mode("open", SECOND)
    (found,) = story.found()
    assert (found.kind, found.severity, found.basis) == ("mode written too early", "high", "proven")
    assert (found.member, found.session, found.zxid) == ("b", SECOND, story.zxid)
    assert "Mode open of group g was written while b had not acknowledged mode kafka" in (
        found.sentence
    )
    assert Evidence("migrations", story.zxid, 0, SECOND, "wrote mode open") in found.evidence


@pytest.mark.parametrize(("seconds", "kinds"), [(5, 0), (40, 1)])
def test_a_member_that_has_just_registered_may_be_overlooked(seconds: int, kinds: int) -> None:
    """A tool that looked before it registered is not to blame; half a minute later it is."""
    story = on_the_road("locked")
    story.join("c", 13)
    story.mode("kafka", seconds=seconds)
    story.acknowledge("a", "b", "c")
    assert story.kinds() == Counter({"mode written too early": kinds} if kinds else {})
    assert all((f.severity, f.basis) == ("medium", "inferred") for f in story.found())


def test_a_member_that_left_need_not_acknowledge() -> None:
    """Neither one that left before the next mode, nor one that has registered again since."""
    story = on_the_road("locked")
    story.mode("kafka")
    story.acknowledge("a")
    story.leave("b")
    story.mode("open")
    story.acknowledge("a")
    assert story.found() == []
    span = story.spans()[2]
    assert span.settled is not None
    assert span.late == ()


def test_legacy_members_in_a_locked_group() -> None:
    """Found whether they stayed or came; not in mode zookeeper, and not a tool's registration."""
    story = prepared()
    story.join("stays", LEGACY, live=False)
    story.join("leaves", 22, live=False)
    story.leave("leaves")
    story.lock(True)
    story.mode("locked")
    story.acknowledge("a", "b")
    story.join("g_zkmigrate-probe", TOOL, live=False)
    story.join("holds", TOOL, live=False, wants=False)
    story.mode("kafka")
    story.acknowledge("a", "b")
    story.join("comes", 23, live=False)
    story.leave("comes")
    left = story.zxid
    story.mode("locked")
    story.acknowledge("a", "b")
    story.mode("zookeeper")
    back = story.zxid
    story.acknowledge("a", "b")
    story.lock(False)
    story.join("later", 24, live=False)
    found = {one.member: one for one in story.found()}
    assert found.keys() == {"stays", "comes"}
    assert {(f.kind, f.severity, f.basis) for f in found.values()} == {
        ("legacy member in a locked group", "high", "proven")
    }
    assert "was still registered when mode locked was written" in found["stays"].sentence
    assert found["stays"].end_zxid == back
    assert "registered in mode kafka" in found["comes"].sentence
    assert found["comes"].end_zxid == left


def test_a_migration_that_stands_still() -> None:
    """One finding for each mode: who did not acknowledge it, else that the group was left in it."""
    story = on_the_road("locked")
    story.mode("kafka", seconds=30)
    story.acknowledge("a")
    story.acknowledge("b", seconds=100)
    story.mode("open")
    story.acknowledge("a", "b")
    story.now(seconds=500)
    assert story.found(standstill=200) == []
    late, left = sorted(story.found(standstill=25), key=lambda one: one.severity, reverse=True)
    assert (late.kind, late.severity, late.member) == ("migration stands still", "medium", "b")
    assert "not acknowledged by b for 101.0 s" in late.sentence
    assert (left.kind, left.severity, left.member) == ("migration stands still", "low", None)
    assert "Group g was in mode locked for 32.0 s" in left.sentence
    story = on_the_road("locked", "kafka")
    story.now(seconds=50)
    (still,) = story.found(standstill=40)
    assert "Group g has been in mode kafka" in still.sentence
    assert still.end_zxid is None
    story = prepared()
    story.join("c", 13)
    story.now(seconds=500)
    assert story.found(standstill=40) == [], "a group that was never moved"


@pytest.mark.parametrize("acknowledged", [(), ("a", "b")])
def test_a_standstill_by_two_leaders_clocks_is_inferred(acknowledged: tuple[str, ...]) -> None:
    """The clock of the new leader may be ahead. Both findings say so."""
    story = on_the_road("locked")
    story.mode("kafka")
    story.acknowledge(*acknowledged)
    story.now(seconds=50)
    assert [one.basis for one in story.found(standstill=40)] == ["proven"]
    story.zxid = 1 << 32
    story.now(seconds=50)
    (still,) = story.found(standstill=40)
    assert still.basis == "inferred"
    assert still.sentence.endswith("so the time is by the clocks of two servers.")


def test_modes_out_of_order() -> None:
    """Only neighbours, only what is a mode; a znode may go when no member follows it."""
    story = on_the_road("locked")
    story.mode("open")
    story.acknowledge("a", "b")
    assert story.kinds() == {"mode out of order": 1}
    story = on_the_road("locked")
    story.mode("{}")
    assert story.kinds() == {"mode out of order": 1}
    story = on_the_road("locked", "kafka")
    story.mode("kafka")
    story.acknowledge("a", "b")
    assert story.found() == [], "written once more"
    story.delete()
    assert story.kinds() == {"mode out of order": 1}
    assert story.spans()[-1].ended == "deleted"
    story = on_the_road("locked", "kafka", "open")
    story.leave("a")
    story.leave("b")
    story.delete()
    assert story.found() == []
    for left, kinds in ((["b"], Counter({"mode out of order": 1})), (["a", "b"], Counter[str]())):
        story = on_the_road("locked", "kafka", "open")
        for member in left:
            story.leave(member)
        story.mode("zookeeper")
        assert story.kinds() == kinds, "zkmigrate complete, which needs that no member is left"
    for mode, kinds in (("locked", Counter[str]()), ("kafka", Counter({"mode out of order": 1}))):
        story = Story()
        story.mode(mode)
        assert story.kinds() == kinds, "the first mode of a group that was not prepared"


def test_a_mode_that_a_member_wrote() -> None:
    """Members create the znode; all else is for the operator's tool."""
    story = on_the_road("locked")
    story.mode("kafka", MEMBER)
    story.acknowledge("a", "b")
    (found,) = story.found()
    assert (found.kind, found.member, found.session) == ("mode written by a member", "a", MEMBER)


def test_two_operators() -> None:
    """Found while the session that went forward is open; not when it was closed before."""
    story = on_the_road("locked", "kafka")
    story.mode("locked", SECOND)
    story.acknowledge("a", "b")
    (found,) = story.found()
    assert (found.kind, found.severity, found.basis) == ("two operators", "medium", "inferred")
    assert found.session == SECOND
    story.close(TOOL)
    assert story.kinds() == {"two operators": 1}
    story = on_the_road("locked", "kafka")
    story.close(TOOL)
    story.mode("locked", SECOND)
    story.acknowledge("a", "b")
    assert story.found() == [], "the first one had finished"
    story = on_the_road("locked")
    story.mode("kafka", SECOND)
    story.acknowledge("a", "b")
    assert story.found() == [], "the other one goes on in the same direction"


def test_a_lock_that_is_lifted_during_a_move() -> None:
    """Found in the modes that keep legacy consumers out; writing the record again is no change."""
    story = on_the_road("locked", "kafka")
    story.lock(True)
    assert story.found() == []
    story.lock(False, SECOND)
    (found,) = story.found()
    assert (found.kind, found.session, found.zxid) == (
        "unlocked during a move", SECOND, story.zxid
    )  # fmt: skip
    assert on_the_road("locked", "zookeeper").found() == []


def test_what_the_logs_lack_is_not_judged() -> None:
    """Versions show that modes are missing; behind a log gap the last mode may have ended."""
    story = on_the_road("locked")
    story.version += 2
    story.mode("zookeeper")
    story.acknowledge("a", "b")
    assert [span.ended for span in story.spans()] == ["next mode", "unknown", "still"]
    assert story.found() == []
    story = on_the_road("locked", "kafka")
    story.log_gaps = [(story.zxid, story.zxid + 5)]
    story.zxid += 10
    assert story.spans()[-1].ended == "unknown"
    story = on_the_road("locked")
    story.mode("kafka")
    story.log_gaps = [(story.zxid, story.zxid + 5)]
    story.zxid += 10
    story.mode("open")
    story.acknowledge("a", "b")
    assert [span.ended for span in story.spans()][-2:] == ["next mode", "still"]
    assert story.found() == []
    assert not any("kafka of group g was not ack" in f.sentence for f in story.found(0.5))


def test_a_snapshot_shows_who_had_acknowledged() -> None:
    """Its content may be newer than the znode's creation, so the time is not known."""
    story = Story()
    story.log_gaps = [(0, FIRST)]
    for path, data, czxid, mzxid, session, version in (
        (MODE, encode_mode(Mode.KAFKA), 10, 90, 0, 5),
        (f"{LIVE}/a", encode_member(5), 85, 95, 7, 3),
    ):
        story.shown.append(Shown(FIRST - 1, path, data, czxid, 8, mzxid, 9, session, version))
    story.now()
    span = story.spans()[0]
    assert [(ack.member, ack.at) for ack in span.acknowledged] == [("a", Moment(90, 0, None))]
    assert (span.version, span.session, span.start.zxid) == (5, 0, 90)


def test_acknowledgements_are_known_after_the_beginning_of_the_logs_was_deleted() -> None:
    """What was kept of the deleted part is the last state of each lifetime, as of a snapshot. A
    member creates its znode without a mode and acknowledges by writing it."""
    story = on_the_road("locked")
    (mode,) = (one for one in story.events[-4:] if one.path == MODE)
    kept = audit_group(story.events)[0].lifetimes
    later = Story()
    later.zxid, later.log_gaps = story.zxid, [(0, story.zxid + 1)]
    later.shown = [
        Shown(story.zxid, one.znode.path, one.data, one.start_zxid or 0, 0, one.start_zxid or 0, 0,
              one.session or 0)
        for one in kept
    ] + [Shown(story.zxid, MODE, mode.data, FIRST, 0, mode.zxid, 0, 0, mode.version)]  # fmt: skip
    later.now()
    (span,) = later.spans()
    assert {ack.member for ack in span.acknowledged} == {"a", "b"}
    assert span.late == ()


def shown_mode(mode: str, mzxid: int, at: int) -> Shown:
    """What a snapshot shows of the mode znode."""
    return Shown(at, MODE, encode_mode(Mode(mode)), 10, 0, mzxid, 0, 0, 5)


@pytest.mark.parametrize(("at", "ended"), [(FIRST - 1, "still"), (FIRST - 11, "unknown")])
def test_a_snapshot_shows_which_mode_is_in_force(at: int, ended: str) -> None:
    """An audit that begins with a snapshot knows its mode, unless transactions are missing after
    it."""
    story = Story()
    story.log_gaps = [(0, FIRST)]
    story.shown = [shown_mode("kafka", 50, zxid) for zxid in (60, at)]
    story.now(seconds=500)
    assert [span.ended for span in story.spans()] == [ended]
    sentences = [one.sentence for one in story.found(standstill=40)]
    assert len(sentences) == (ended == "still")
    assert all("Group g has been in mode kafka" in sentence for sentence in sentences)


@pytest.mark.parametrize(("shown_at", "found"), [(None, 0), (140, 0), (149, 1)])
def test_a_mode_may_have_ended_in_a_log_gap(shown_at: int | None, found: int) -> None:
    """A member that registers after the gap need not have met it, unless a snapshot shows it."""
    story = on_the_road("locked")
    written = next(one.zxid for one in reversed(story.events) if one.path == MODE)
    story.log_gaps = [(story.zxid, 150)]
    story.zxid = 150
    if shown_at is not None:
        story.shown = [shown_mode("locked", written, shown_at)]
    story.join("comes", LEGACY, live=False)
    story.log_gaps.append((story.zxid, story.zxid + 10))
    story.zxid += 20
    assert story.spans()[-1].ended == "unknown"
    assert story.kinds()["legacy member in a locked group"] == found


def test_the_verdict_names_each_move() -> None:
    """Its mode, since when, and who has not acknowledged it; the first twenty groups."""
    since = "2026-11-21 00:00:07+00:00"
    rows: list[dict[str, Any]] = [
        {"chroot": "", "group_id": "a", "mode": "kafka", "since": since, "ended": "still",
         "changes": 2, "late": ["m1", "m2", "m3", "m4", "m5"]},
        {"chroot": "", "group_id": "b", "mode": None, "since": None, "ended": "deleted",
         "changes": 0, "late": []},
        {"chroot": "", "group_id": "c", "mode": "open", "since": since, "ended": "unknown",
         "changes": 3, "late": []},
    ]  # fmt: skip
    assert moves({}) == []
    assert moves({"migrations": rows}) == [
        f"Live move of group a: in mode kafka since {since}, not acknowledged by m1, m2, m3 and "
        "2 more.",
        "Live move of group b: its mode was deleted.",
        "Live move of group c: in mode open before a log gap.",
    ]
    lines = moves({"migrations": rows * 8})
    assert lines[20:] == ["4 more groups have a mode for live moves."]


@pytest.mark.parametrize(
    ("first", "last", "missing"),
    [(5, 20, True), (5, 10, False), (12, 20, False), (10, 12, True), (1, 5, False)],
)
def test_missing_between(first: int, last: int, missing: bool) -> None:
    """Between two transactions that are known, 11 is missing or is not."""
    assert Coverage([(10, 12)]).is_missing(first, last) is missing


def test_a_member_that_acknowledged_in_its_second_session_is_not_late() -> None:
    """Its first session is still registered and has not acknowledged. The move does not wait for
    it."""
    begin, later = Moment(100, 0, 1_000_000), Moment(101, 0, 2_000_000)
    waits = (
        Wait("twice", 1, begin, None, False),
        Wait("twice", 2, begin, later, True),
        Wait("other", 3, begin, None, False),
    )
    span = Span(Mode.ZOOKEEPER, 0, begin, TOOL, True, None, "still", 100, 2, waits=waits)
    assert span.late == ("other",)
