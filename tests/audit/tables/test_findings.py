"""Every rule finds the faults it is made for, and reports nothing in a history without faults."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit.findings.base import Tables
from zkaudit.findings.outside import from_records
from zkaudit.job import audit as job
from zkaudit.limits import Limits
from zkaudit.sources import selection
from zkaudit.tables import build as tables_build, catalog as tables, causes, journals

from tests.audit.histories import (
    END,
    EPOCH,
    History,
    findings_of,
    found,
    frame_of,
    kept,
    registration,
    tables_of,
)

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine


class Journal:
    """A member's journal. Times are seconds since the start of the history."""

    def __init__(self, group: str, member: str, session: int = 1) -> None:
        self.member = member
        self.session = session
        settings = {"group.id": group, "zookeeper.connect": "a:2181,b:2181"}
        self.lines: list[dict[str, Any]] = [
            {"at": 0, "kind": "run", "schema": 1, "clock": "epoch", "settings": settings}
        ]

    def add(self, at: float, kind: str, name: str, **more: Any) -> Journal:
        us = int((EPOCH.timestamp() + at) * 1e6)
        entry = {"at": us, "kind": kind, "name": name, "member": self.member, **more}
        if kind != "action":
            entry |= {"session": hex(self.session), "attempt": 1}
        self.lines.append(entry)
        return self

    def starts(self, at: float, offset: int) -> Journal:
        where = {"partitions": ["t-0"], "offsets": {"t-0": offset}}
        return self.add(at, "command", "StartFetching", **where)

    def asks(self, at: float, offset: int) -> Journal:
        return self.add(at, "event", "CommitRequested", offsets={"t-0": offset})

    def stops(self, at: float, offset: int) -> Journal:
        self.add(at, "command", "StopFetching", partitions=["t-0"])
        return self.add(at, "event", "FetchingStopped", offsets={"t-0": offset})

    def drops(self, at: float, offset: int) -> Journal:
        self.add(at, "command", "Drop", partitions=["t-0"])
        return self.add(at, "event", "Dropped", offsets={"t-0": offset})

    def resets(self, at: float, old: int | None, new: int) -> Journal:
        """A reset with its offsets, which older journals do not have."""
        replaced = {} if old is None else {"replaced": {"t-0": old}}
        where = {"partitions": ["t-0"], "offsets": {"t-0": new}}
        return self.add(at, "event", "OffsetReset", **where, **replaced)

    def sees(self, at: float, *members: str) -> Journal:
        return self.add(at, "event", "ViewLoaded", members=list(members))

    def shut(self, at: float, since: float) -> Journal:
        us = int((EPOCH.timestamp() + since) * 1e6)
        return self.add(at, "action", "DeliveryShut", since=us)

    def write(self, folder: Path) -> None:
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        (folder / f"{self.member}-{len(list(folder.iterdir()))}.jsonl").write_text(text)


def journals_of_members(folder: Path) -> None:
    """Journals of members with faults, and for each fault a case that resembles it but is
    correct."""
    made = [
        # Both members deliver offsets 30 to 49.
        Journal("double", "double_a").starts(10, 0).asks(20, 50).asks(70, 50),
        Journal("double", "double_b").starts(30, 30).stops(60, 80),
        # The members deliver 40 to 49 in turn. The session was lost in between.
        Journal("again", "again_a").starts(10, 0).drops(20, 50),
        Journal("again", "again_b").starts(30, 40).stops(60, 80),
        # A member is frozen until 50, but its gate closed before the other member began.
        Journal("paused", "paused_a").starts(10, 0).shut(50, 15).drops(50, 40),
        Journal("paused", "paused_b").starts(20, 40).stops(60, 80),
        # A clean handover, and back.
        Journal("handed", "handed_a").starts(10, 0).stops(20, 40).starts(40, 70).stops(60, 90),
        Journal("handed", "handed_b").starts(20.01, 40).stops(39.99, 70),
        # After a reset the member continues elsewhere and delivers nothing in between.
        Journal("reset", "reset_a").starts(10, 0).asks(11, 10)
        .add(12, "event", "OffsetReset", partitions=["t-0"]).asks(13, 900).stops(20, 950),
        Journal("reset", "reset_b").starts(30, 100).stops(40, 200),
        # Two short intervals within a long one.
        Journal("nested", "nested_a").starts(10, 0).stops(100, 10),
        Journal("nested", "nested_b").starts(20, 90).stops(30, 91),
        Journal("nested", "nested_c").starts(50, 95).stops(60, 96),
        # A member is restarted under the same name before its old journal ends.
        Journal("same", "same_a").starts(10, 0).asks(50, 40),
        Journal("same", "same_a").starts(40, 30).stops(60, 50),
        # One member never notices that the other joined. In the next group it does, 20 s later.
        Journal("views", "views_a").sees(0, "views_a").asks(200, 1),
        Journal("views", "views_b").sees(50, "views_a", "views_b").asks(200, 1),
        Journal("late", "late_a").sees(0, "late_a").sees(70, "late_a", "late_b").asks(200, 1),
        Journal("late", "late_b").sees(50, "late_a", "late_b").asks(200, 1),
    ]  # fmt: skip
    for number in range(5):
        journal = Journal("measured", f"measured_{number}")
        journal.sees(0)
        if number < 4:
            path = "/consumers/measured/ids"
            journal.add(float(MEASURED), "event", "Changed", path=path)
            journal.add(float(MEASURED), "command", "LoadView")
        made.append(journal)
    for journal in made:
        journal.write(folder)


MEASURED = 4_000
"""Seconds into the history at which a member joins the group whose members kept journals."""


@pytest.fixture(scope="module")
def planted(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], list[Any]]:
    """One history with a group for each fault."""
    h = History()
    for number, group in enumerate(("clean", "zombie", "orphan", "foreign", "twins", "lonely")):
        session = 10 * number + 1
        h.join(group, f"{group}_a", session)
        h.claim(group, 0, f"{group}_a", session)
        h.commit(group, 0, 5, session)
        h.commit(group, 0, 9, session)
    h.join("zombie", "zombie_b", 99)
    h.commit("zombie", 0, 7, 99)  # zombie, and a regression
    h.commit("zombie", 0, 11, 99)
    h.release("orphan", 0, 21)
    for offset in (20, 21, 22):
        h.commit("orphan", 0, offset, 21)
    h.claim("orphan", 0, "orphan_a", 21)
    h.release("foreign", 0, 98)
    h.claim("foreign", 0, "foreign_a", 31, seconds=60)  # an unowned interval as well
    h.claim("twins", 1, "twins_a", 42)  # not the session of the registration
    h.join("lonely", "lonely_b", 52)
    h.claim("lonely", 1, "lonely_a", 51)
    h.commit("clean", 0, 9, 1)  # unchanged
    h.release("clean", 0, 1)
    h.commit("quiet", 0, 3, 97)  # a tool, while no member is registered
    h.commit("quiet", 0, 2, 97)
    h.join("storm", "storm_a", 61)
    for _ in range(12):
        h.claim("storm", 0, "storm_a", 61, seconds=20)
        h.release("storm", 0, 61)
    h.claim("storm", 0, "storm_a", 61, seconds=20)
    h.join("fight", "fight_a", 71)
    h.claim("fight", 0, "fight_a", 71, seconds=20)
    for _ in range(25):
        h.add("error", 71, error=-110, seconds=0.1)
    h.claim("clean", 0, "clean_a", 1)
    share(h)
    h.join("moved", "moved_a", 101)
    h.claim("moved", 0, "moved_a", 101)
    h.commit("moved", 0, 5, 101)
    h.join("moved", "mover", 102, registration("static", "", 0).replace(b'"": 0', b""))
    h.move("moved", "kafka", 102)
    h.commit("moved", 0, 6, 101)
    h.join("back", "back_a", 103)
    h.claim("back", 0, "back_a", 103)
    h.move("back", "kafka", 104)
    h.move("back", "zookeeper", 104)
    h.commit("back", 0, 6, 103)
    h.join("rolled", "mover", 105, registration("static", "", 0).replace(b'"": 0', b""))
    h.claim("rolled", 0, "mover", 105)
    h.move("rolled", "kafka", 106)
    h.commit("rolled", 0, 6, 105)
    h.move("rolled", "zookeeper", 105)
    h.join("deserted", "deserted_a", 107)
    h.claim("deserted", 0, "deserted_a", 107)
    h.release("deserted", 0, 107)
    h.leave("deserted", "deserted_a", 107)
    h.join("fought", "fought_a", 108)
    h.claim("fought", 0, "fought_a", 108, seconds=20)
    h.leave("fought", "fought_a", 108)
    for _ in range(25):
        h.add("error", 108, error=-110, seconds=0.1)
    h.topic("gone", 1)
    h.add("delete", 7, "/brokers/topics/gone")
    h.join("gone", "gone_a", 109, registration("static", "gone"))
    h.join("calm", "calm_a", 62)
    for _ in range(12):
        h.claim("calm", 0, "calm_a", 62, seconds=80)
        h.release("calm", 0, 62)
    h.claim("calm", 0, "calm_a", 62)
    for group in ("modelled", "measured"):
        for number in range(4):
            h.join(group, f"{group}_{number}", 110 + number)
    h.now = EPOCH + timedelta(seconds=MEASURED - 2)
    for group in ("modelled", "measured"):
        h.join(group, f"{group}_4", 120)
    h.add("createSession", 130, timeout=1, seconds=100)
    folder = tmp_path_factory.mktemp("journals")
    journals_of_members(folder)
    return found(spark, h, journal=(folder,), limits=Limits(herd_members=4))


def share(h: History) -> None:
    """Known topics. No member claims some partitions, and some members own fewer than any
    assignment gives them."""
    h.topic("u", 2)
    h.topic("other", 9)
    h.join("never", "never_a", 81, registration("white_list", "u|v"))
    h.claim("never", 0, "never_a", 81, "u")
    h.join("black", "black_a", 82, registration("black_list", "t|u"))
    for number in range(9):
        h.claim("black", number, "black_a", 82, "other")
    h.join("broken", "broken_a", 83, registration("white_list", "("))
    h.join("nothing", "nothing_a", 89, registration("white_list", "zzz"))
    for member, session in (("a", 84), ("b", 85)):
        h.join("unfair", f"unfair_{member}", session, registration("white_list", "u"))
        h.join("fair", f"fair_{member}", session, registration("static", "u"))
    for number in range(2):
        h.claim("unfair", number, "unfair_a", 84, "u")
        h.claim("fair", number, f"fair_{'ab'[number]}", 84 + number, "u")
    # With two partitions, three streams cannot have one each.
    for member in range(3):
        h.join("many", f"many_{member}", 86 + member, registration("static", "u"))
    for number in range(2):
        h.claim("many", number, f"many_{number}", 86 + number, "u")


PLANTED = {
    ("zombie", "zombie commit"): "critical",
    ("orphan", "orphan commit"): "high",
    ("foreign", "foreign release"): "critical",
    ("foreign", "unowned interval"): "medium",
    ("twins", "one consumer id on two sessions"): "high",
    ("lonely", "member without its share"): "medium",
    ("storm", "rebalance storm"): "medium",
    ("fight", "claim contention"): "medium",
    ("quiet", "tool write"): "info",
    ("clean", "unowned interval"): "medium",
    ("calm", "unowned interval"): "medium 11",
    ("never", "orphan partition"): "high",
    ("unfair", "member without its share"): "medium",
    ("moved", "commit past the end of a move"): "critical",
    ("modelled", "herd"): "low",
    ("measured", "herd"): "low",
    ("double", "overlapping delivery"): "critical",
    ("nested", "overlapping delivery"): "high 2",
    ("nested", "delivery gap"): "high 2",
    ("again", "delivered twice"): "low",
    ("reset", "offset reset"): "medium",
    ("views", "members whose views disagree"): "high",
}


def test_every_planted_fault_is_found_and_nothing_else(
    planted: dict[tuple[str, str], list[Any]],
) -> None:
    """The audit reports exactly the planted faults, with the right kinds, severities and
    numbers."""

    def told(rows: list[Any]) -> str:
        (severity,) = {row["severity"] for row in rows}
        return severity if len(rows) == 1 else f"{severity} {len(rows)}"

    assert {key: told(rows) for key, rows in planted.items()} == PLANTED


def test_findings_can_be_read_and_checked(planted: dict[tuple[str, str], list[Any]]) -> None:
    """Each finding has a sentence, a place in the history, and evidence rows with transactions."""
    for rows in planted.values():
        for row in rows:
            assert row["sentence"].endswith("."), row
            assert row["evidence"], row
            assert row["time"], row
            if row["basis"] == "measured" and row["kind"] != "herd":
                assert all(re.search(r"\.jsonl:\d+$", e["what"]) for e in row["evidence"]), row
            else:
                assert row["zxid"], row
                assert all(e["zxid"] for e in row["evidence"]), row
    (zombie,) = planted["zombie", "zombie commit"]
    assert zombie["sentence"] == (
        "Member zombie_b (session 0x63) committed 2 times, 7 to 11, for t-0 of group zombie "
        "although member zombie_a (session 0xb) owned it."
    )
    (double,) = planted["double", "overlapping delivery"]
    assert "for 30.0 s; offsets 30 to 49 were delivered by both." in double["sentence"]
    (again,) = planted["again", "delivered twice"]
    assert "10 messages (offsets 40 to 49)" in again["sentence"]
    (views,) = planted["views", "members whose views disagree"]
    assert "views_a saw 1 (views_a)" in views["sentence"]
    assert "views_b saw 2 (views_a, views_b)" in views["sentence"]
    (measured,) = planted["measured", "herd"]
    (modelled,) = planted["modelled", "herd"]
    assert "measured_4 made 4 members" in measured["sentence"]
    assert "modelled_4 made up to 4 members" in modelled["sentence"]
    assert [measured["basis"], modelled["basis"]] == ["measured", "modelled"]
    assert planted["unfair", "member without its share"][0]["basis"] == "proven"
    assert planted["lonely", "member without its share"][0]["basis"] == "inferred"


def test_resets_of_offsets(spark: SparkSession, tmp_path: Path) -> None:
    """A reset that skips messages, one that repeats them, and one of which the journal has no
    offsets. Not: the first position of a group. A reset hides no gap but those that it may explain:
    one before it, and one after it where it is known how far it led, are found."""
    made = [
        Journal("skips", "skips_a").starts(10, 0).asks(11, 100).resets(12, 100, 500)
        .asks(13, 510).stops(20, 600),
        Journal("skips", "skips_b").starts(30, 600).stops(40, 700),
        Journal("repeats", "repeats_a").starts(10, 900).resets(12, 900, 0).stops(20, 950),
        Journal("first", "first_a").add(10, "command", "StartFetching", partitions=["t-0"])
        .resets(11, None, 50).stops(20, 70)
        .add(30, "command", "StartFetching", partitions=["t-0"]).resets(31, None, 50).stops(40, 50),
        # The fetch thread has chosen the first position, and it is committed before it is reported.
        Journal("begins", "begins_a").add(10, "command", "StartFetching", partitions=["t-0"])
        .asks(10.9, 50).resets(11, None, 50).stops(20, 70),
        Journal("same", "same_a").starts(10, 40).resets(11, 40, 40).stops(20, 50),
        # Reset twice, with a gap before it and a gap after it.
        Journal("gaps", "gaps_a").starts(10, 0).stops(20, 10),
        Journal("gaps", "gaps_b").starts(30, 15).resets(31, 20, 60).resets(32, 60, 80)
        .stops(40, 100),
        Journal("gaps", "gaps_c").starts(50, 107).stops(60, 120),
        # Dropped before it committed: it may have delivered what the next member left out.
        Journal("astray", "astray_a").starts(10, 0).asks(11, 10)
        .add(12, "event", "OffsetReset", partitions=["t-0"]).add(13, "command", "Drop",
                                                                partitions=["t-0"]),
        Journal("astray", "astray_b").starts(30, 500).stops(40, 600),
        # The reset arrives after the stop: the last position is not one of what was delivered.
        Journal("stops", "stops_a").starts(10, 0).asks(11, 10)
        .add(12, "command", "StopFetching", partitions=["t-0"]).resets(13, 10, 400)
        .add(14, "event", "FetchingStopped", offsets={"t-0": 400}),
        # Another member delivers the same messages after the reset, not before it.
        Journal("both", "both_a").starts(10, 0).resets(20, 5, 100).stops(40, 200),
        Journal("both", "both_b").starts(30, 150).stops(50, 180),
    ]  # fmt: skip
    for journal in made:
        journal.write(tmp_path)
    registered = rows_of(spark, tables.REGISTRATIONS)
    lines = journals.lines(journals.read(spark, (tmp_path,)), registered)
    deliveries = kept(tables.DELIVERIES.shape(journals.deliveries(lines)))
    periods = [
        (row["group"], row["ended"], row["start_offset"], row["end_offset"], row["reset"],
         row["reset_from"], row["reset_to"])
        for row in deliveries.where("`group` in ('begins', 'first', 'skips', 'stops')")
        .orderBy("group", "member", "line").collect()
    ]  # fmt: skip
    assert periods == [
        ("begins", "stopped", 50, 70, True, None, 50),
        ("first", "stopped", 50, 70, True, None, 50),
        ("first", "stopped", 50, 50, True, None, 50),
        ("skips", "reset", 0, 100, False, None, None),
        ("skips", "stopped", 500, 600, True, 100, 500),
        ("skips", "stopped", 600, 700, False, None, None),
        ("stops", "stopped", 0, 10, False, None, None),
    ]
    every = Few(
        registrations=registered,
        deliveries=deliveries,
        views=rows_of(spark, tables.VIEWS),
        commits=rows_of(spark, tables.COMMITS),
        herds=rows_of(spark, tables.HERDS),
    )
    by: dict[tuple[str, str], list[Any]] = {}
    (part,) = from_records(cast(Tables, every), Limits())
    for row in part.orderBy("time").collect():
        by.setdefault((row["group"], row["kind"]), []).append(row)
    assert {
        key: [(row["severity"], row["effect"], row["messages"]) for row in rows]
        for key, rows in by.items()
    } == {
        ("skips", "offset reset"): [("high", "lost", 400)],
        ("repeats", "offset reset"): [("medium", "repeated", 900)],
        ("same", "offset reset"): [("info", "none", 0)],
        ("gaps", "offset reset"): [("high", "lost", 40), ("high", "lost", 20)],
        ("gaps", "delivery gap"): [("high", "lost", 5), ("high", "lost", 7)],
        ("astray", "offset reset"): [("medium", "unknown", None)],
        ("both", "offset reset"): [("high", "lost", 95)],
        ("both", "overlapping delivery"): [("critical", None, None)],
    }
    (skips,) = by["skips", "offset reset"]
    assert skips["sentence"] == (
        "Member skips_a reset its offset of t-0 of group skips from 100 to 500, because the log "
        "began after it: up to 400 messages were not delivered."
    )
    assert (skips["basis"], skips["time"].timestamp()) == ("measured", EPOCH.timestamp() + 12)
    assert skips["evidence"][0]["what"].endswith(".jsonl:4")
    assert by["repeats", "offset reset"][0]["basis"] == "inferred"
    (astray,) = by["astray", "offset reset"]
    assert astray["sentence"].endswith("which; it had reached 10.")


def test_nothing_is_claimed_beyond_a_log_gap(spark: SparkSession) -> None:
    """If transactions are missing, a commit is not reported as a zombie or an orphan. The audit
    also does not report that a partition never had an owner."""
    h = History()
    h.topic("u", 1)
    h.join("g", "g_b", 3, registration("static", "u"))
    h.join("g", "g_a", 1)
    h.join("g", "g_c", 2)
    h.claim("g", 0, "g_a", 1)
    h.zxid += 10
    h.commit("g", 0, 5, 2)
    h.commit("g", 1, 5, 2)
    h.add("createSession", 9, timeout=1, seconds=60)
    assert found(spark, h, ((5, 15),)) == {}
    assert set(found(spark, h)) == {
        ("g", "zombie commit"),
        ("g", "orphan commit"),
        ("g", "orphan partition"),
    }


def rows_of(spark: SparkSession, table: tables.Table, *rows: dict[str, Any]) -> DataFrame:
    """Rows of a table, written by hand."""
    return frame_of(spark, table.spark_type(), rows)


@dataclass
class Few:
    """Only the tables that a rule reads."""

    registrations: Any
    deliveries: Any
    views: Any
    commits: Any
    herds: Any
    has_journals: bool = True
    generations: Any = None
    group_ownership: Any = None
    moving: Any = None
    known: tuple[int | None, ...] = (0,)
    log_gaps: tuple[tuple[int, int], ...] = ()


def after(seconds: float) -> datetime:
    """A time after the start of the history."""
    return EPOCH + timedelta(seconds=seconds)


def deleted_topics(h: History) -> None:
    """Two groups whose topics are deleted. One topic is recreated and owned again, the other is
    only recreated."""
    for topic in ("d", "e", "f"):
        h.topic(topic, 1)
    names = {"static": registration("static", "d"), "filter": registration("white_list", "d|e|f")}
    for session, (group, data) in enumerate(names.items(), 801):
        h.join(group, f"{group}_a", session, data)
        h.claim(group, 0, f"{group}_a", session, "d")
    for topic in ("e", "f"):
        h.claim("filter", 0, "filter_a", 802, topic)
        h.add("delete", 802, f"/consumers/filter/owners/{topic}/0")
    for session, group in enumerate(names, 801):
        h.add("delete", session, f"/consumers/{group}/owners/d/0")
    for topic in ("d", "e", "f"):
        h.add("delete", 7, f"/brokers/topics/{topic}")
    h.add("createSession", 9, timeout=1, seconds=100)
    for topic in ("e", "f"):
        h.topic(topic, 1)
    h.claim("filter", 0, "filter_a", 802, "e", seconds=5)


def test_a_deleted_topic_has_no_partitions_without_owner(
    incidents: dict[tuple[str, str], list[Any]],
) -> None:
    """A subscription that still names a deleted topic, or a filter that matched it, does not make
    its partitions orphans. A recreated topic counts from its creation."""
    told = {key: rows for key, rows in incidents.items() if key[0] in ("static", "filter")}
    assert set(told) == {("filter", "orphan partition")}
    (orphan,) = told["filter", "orphan partition"]
    assert orphan["topic"] == "f"
    assert "for the last 105.0 s" in orphan["sentence"]


WRONG = ("again", "lost", "reset", "undone", "adopted", "repaired", "unread", "preset",
          "rewound", "itself", "mine", "late", "once_more")  # fmt: skip


def test_the_middle_of_a_rebalance_is_not_a_missing_share(
    incidents: dict[tuple[str, str], list[Any]],
) -> None:
    """The logs, or one round of a stream, end just after a member has released its partitions. The
    rebalance is not finished, so the audit does not report that the member lacks its share."""
    assert {kind for group, kind in incidents if group == "busy"} == set()


def wrong_offsets(h: History) -> None:
    """A group for each possible effect of a wrong offset."""
    for number, group in enumerate(WRONG):
        a, b = 1000 + 10 * number + 1, 1000 + 10 * number + 2
        h.join(group, f"{group}_a", a)
        h.claim(group, 0, f"{group}_a", a)
        if group == "preset":
            continue
        h.commit(group, 0, 90, a)
        h.commit(group, 0, 100, a)
        h.join(group, f"{group}_b", b)
    sessions = {group: 1000 + 10 * number for number, group in enumerate(WRONG)}

    def stop(group: str) -> None:
        h.release(group, 0, sessions[group] + 1)

    def start(group: str, offset: int | None = None) -> None:
        h.claim(group, 0, f"{group}_b", sessions[group] + 2)
        if offset is not None:
            h.commit(group, 0, offset, sessions[group] + 2)

    stop("again")
    h.commit("again", 0, 40, 901)
    start("again", 45)
    stop("lost")
    h.commit("lost", 0, 500, 901)
    start("lost", 510)
    stop("reset")
    h.commit("reset", 0, 500, 901)
    start("reset", 130)  # 500 did not exist
    h.commit("undone", 0, 600, 901)
    h.commit("undone", 0, 105, sessions["undone"] + 1)
    stop("undone")
    start("undone", 110)
    h.commit("adopted", 0, 600, 901)
    h.commit("adopted", 0, 605, sessions["adopted"] + 1)
    stop("repaired")
    h.commit("repaired", 0, 7, 901)
    h.commit("repaired", 0, 100, 901)
    start("repaired", 120)
    stop("unread")
    h.commit("unread", 0, 7, 901)
    h.release("preset", 0, sessions["preset"] + 1)
    h.commit("preset", 0, 1000, 901)
    h.claim("preset", 0, "preset_a", sessions["preset"] + 1)
    stop("rewound")
    start("rewound", 60)
    h.join("itself", "itself_a", 902)
    h.commit("itself", 0, 101, 902)
    h.add("delete", 903, "/consumers/mine/ids/mine_a")
    h.join("mine", "mine_a", 903)
    h.release("mine", 0, 903)
    stop("late")
    h.commit("late", 0, 80, sessions["late"] + 1)
    h.commit("late", 0, 81, sessions["late"] + 1)
    start("late")
    stop("once_more")
    h.commit("once_more", 0, 7, 901)
    start("once_more", 50)
    h.release("once_more", 0, sessions["once_more"] + 2)
    h.commit("once_more", 0, 100, 901)  # 50 to 99 were delivered before
    start("once_more", 101)


def test_an_offset_matters_if_a_member_starts_from_it(
    incidents: dict[tuple[str, str], list[Any]],
) -> None:
    """Each wrong offset write gives one finding. Its severity depends on where the next owner
    started: messages lost, delivered again, or neither because the owner overwrote the offset."""
    other = ("one consumer id on two sessions", "unowned interval", "orphan partition")
    everything = {
        key: rows for key, rows in incidents.items() if key[0] in WRONG and key[1] not in other
    }
    told = {
        key: [(row["severity"], row["basis"]) for row in rows] for key, rows in everything.items()
    }
    assert told == {
        ("again", "offset regression"): [("high", "proven")],
        ("lost", "lost messages"): [("critical", "inferred")],
        ("reset", "lost messages"): [("critical", "inferred")],
        ("undone", "tool write"): [("info", "proven")],
        ("adopted", "tool write"): [("medium", "inferred")],
        ("repaired", "tool write"): [("info", "proven")],
        ("unread", "tool write"): [("info", "proven")],
        ("preset", "tool write"): [("info", "proven")],
        ("rewound", "offset regression"): [("high", "inferred")],
        ("itself", "zombie commit"): [("medium", "proven")],
        ("mine", "foreign release"): [("medium", "proven")],
        ("late", "orphan commit"): [("high", "proven")],
        ("once_more", "offset regression"): [("high", "proven")],
        ("once_more", "tool write"): [("info", "proven")],
    }
    said = {key: rows[0]["sentence"] for key, rows in everything.items()}
    assert said["again", "offset regression"] == (
        "Session 0x385, which is not a member's, wrote 40 for t-0 of group again while no member "
        "owned it; member again_b started from it: 60 offsets (40 to 99) were delivered again."
    )
    assert said["lost", "lost messages"].endswith(
        "; member lost_b started from it: 400 offsets (100 to 499) were not delivered."
    )
    assert said["reset", "lost messages"].endswith(
        "; member reset_b claimed the partition next and its first commit is 130: up to 30 "
        "offsets (100 to 129) were not delivered."
    )
    assert said["undone", "tool write"].endswith(
        " although member undone_a (session 0x407) owned it; overwritten with 105 1.0 s later, "
        "before any member started from it."
    )
    assert (
        "60, written by its owner, Member rewound_b (session 0x43a)"
        in said["rewound", "offset regression"]
    )
    assert "40 offsets (60 to 99)" in said["rewound", "offset regression"]
    assert "Member itself_a (session 0x386)" in said["itself", "zombie commit"]
    assert "although its other session 0x443 owned it" in said["itself", "zombie commit"]
    assert "that belonged to its other session 0x44d." in said["mine", "foreign release"]
    assert "19 offsets (81 to 99) were delivered again" in said["late", "orphan commit"]


def incident(h: History) -> None:
    """A shortened version of a real incident: two JVM members, one Python member, tools, and
    restarts."""
    for session in (1, 2, 3):
        h.add("createSession", session, timeout=6000, seconds=0)
    jvm1, jvm2, ours = "incident_host1-1795219200000-aaaa0001", "incident_jvm2", "incident_ours"
    for session, member in enumerate((jvm1, jvm2, ours), 1):
        h.join("incident", member, session, seconds=0)
    owners = [(jvm1, 1), (jvm1, 1), (jvm2, 2), (jvm2, 2), (ours, 3), (ours, 3)]
    for partition, (member, session) in enumerate(owners):
        h.claim("incident", partition, member, session, seconds=0.1)
    for second in range(30):
        for partition, (_, session) in enumerate(owners):
            h.commit("incident", partition, 100 + 20 * second, session, seconds=0.15)
    h.add("createSession", 90, timeout=6000, seconds=6)  # 36 s: a tool, the owner is alive
    h.commit("incident", 1, 733, 1, seconds=0.1)
    h.commit("incident", 1, 3, 90, seconds=0.1)
    h.commit("incident", 1, 753, 1, seconds=0.4)
    h.release("incident", 0, 90, seconds=15)  # 51 s: a tool deletes an owner znode
    for number in range(47):
        h.commit("incident", 0, 700 + number, 1, seconds=0.85)
    h.commit("incident", 2, 1837, 2, seconds=0.1)  # 91 s: JVM2 is frozen for 16 s
    h.commit("incident", 3, 1837, 2, seconds=0.1)
    h.add("closeSession", 2, cxid=0, seconds=6)
    for partition in (0, 2, 3):
        h.claim("incident", partition, jvm1, 1, seconds=0.1)
    for partition in (2, 3):
        h.commit("incident", partition, 2190, 1, seconds=4)
    h.add("createSession", 20, timeout=6000, seconds=2)
    for partition in (2, 3):
        h.commit("incident", partition, 1837, 20, seconds=0.1)
        h.commit("incident", partition, 2197, 1, seconds=0.06)
    h.join("incident", jvm2, 20)
    h.release("incident", 3, 1)
    h.claim("incident", 3, jvm2, 20)
    for number in range(41):  # 122 s: a member restarts every 3 s
        session = 200 + number
        h.add("createSession", session, timeout=6000, seconds=1)
        h.join("incident", "incident_d", session, seconds=0.5)
        h.release("incident", 5, 3, seconds=0.1)
        h.claim("incident", 5, "incident_d", session, seconds=0.1)
        h.add("closeSession", session, seconds=0.8)
        h.claim("incident", 5, ours, 3, seconds=0.5)
    for partition, session in ((0, 1), (1, 1), (2, 1), (3, 20), (4, 3), (5, 3)):
        h.commit("incident", partition, 6630, session, seconds=3)
    for session in (1, 20, 3):  # 310 s: all are killed
        h.add("closeSession", session, cxid=0, seconds=1)
    h.add("createSession", 91, timeout=6000, seconds=30)
    h.commit("incident", 4, 10630, 91)  # 341 s: a tool, no member is alive
    h.commit("incident", 5, 7, 91)
    h.add("createSession", 40, timeout=6000, seconds=70)
    h.add("createSession", 50, timeout=6000)
    h.join("incident", "incident_jvm4", 40, seconds=0.1)  # 411 s
    h.join("incident", "incident_jvm5", 50, seconds=0.1)
    for partition, session in ((0, 40), (4, 40), (5, 40), (1, 50), (2, 50), (3, 50)):
        member = {40: "incident_jvm4", 50: "incident_jvm5"}[session]
        h.claim("incident", partition, member, session, seconds=0.1)
    for partition, offset, session in ((4, 7297, 40), (5, 1542, 40), (3, 7709, 50), (4, 7326, 40)):
        h.commit("incident", partition, offset, session)
    h.commit("incident", 3, 8209, 91, seconds=20)  # 433 s: a tool, the owner is alive
    h.commit("incident", 3, 7728, 50)
    h.add("createSession", 99, timeout=6000, seconds=100)


INCIDENT = {
    ("tool write", 1): "info proven",
    ("foreign release", 0): "critical proven",
    ("orphan commit", 0): "high proven",
    ("unowned interval", 0): "medium proven",
    ("zombie commit", 2): "critical proven",
    ("zombie commit", 3): "critical proven",
    ("rebalance storm", None): "high inferred",
    ("lost messages", 4): "critical inferred",
    ("offset regression", 5): "high proven",
    ("tool write", 3): "info proven",
}


@pytest.fixture(scope="module")
def incidents(spark: SparkSession) -> dict[tuple[str, str], list[Any]]:
    """One history with all the incidents below. Topic f ends after 105 s without an owner."""
    h = History()
    incident(h)
    wrong_offsets(h)
    restarts(h)
    deleted_topics(h)
    for member, session in (("a", 811), ("b", 812)):
        h.join("busy", f"busy_{member}", session, seconds=0)
    for partition, member, session in ((0, "a", 811), (1, "a", 811), (2, "b", 812)):
        h.claim("busy", partition, f"busy_{member}", session, seconds=0)
    h.add("createSession", 9, timeout=1, seconds=100)
    h.release("busy", 2, 812, seconds=0)
    return found(spark, h)


def test_a_whole_incident(incidents: dict[tuple[str, str], list[Any]]) -> None:
    """Each fault is one finding that names its cause and its effect. A fault without an effect is
    information. The member that repaired an offset is not blamed."""
    rows = [row for (group, _), rows in incidents.items() if group == "incident" for row in rows]
    told = [((row["kind"], row["partition"]), f"{row['severity']} {row['basis']}") for row in rows]
    assert sorted(told, key=repr) == sorted(INCIDENT.items(), key=repr)
    said = {(row["kind"], row["partition"]): row["sentence"] for row in rows}
    assert said["tool write", 1].endswith(
        "overwritten with 753 0.4 s later, before any member started from it."
    )
    assert said["foreign release", 0] == (
        "Session 0x5a deleted the owner znode of t-0 of group incident that belonged to Member "
        "incident_host1-1795219200000-aaaa0001 (host host1, session 0x1). From then on another "
        "member could claim the partition while that member still consumed it."
    )
    assert "(host host1, session 0x1) committed 47 times, 700 to 746," in said["orphan commit", 0]
    assert said["zombie commit", 2].startswith(
        "Member incident_jvm2 (session 0x14) committed 1837 for t-2 of group incident although "
        "member incident_host1-1795219200000-aaaa0001 (session 0x1) owned it; overwritten with 2197"
    )
    assert said["lost messages", 4].endswith(
        "member incident_jvm4 claimed the partition next and its first commit is 7297: up to 667 "
        "offsets (6630 to 7296) were not delivered."
    )
    assert said["offset regression", 5].endswith(
        "member incident_jvm4 started from it: 6623 offsets (7 to 6629) were delivered again."
    )
    assert "Session 0x5b, which is not a member's, wrote 8209" in said["tool write", 3]


def test_an_incident_in_logs_that_begin_late(spark: SparkSession) -> None:
    """If the joins and first claims are missing, the audit rates the remaining findings as high and
    never calls a write one without members. Nothing that depends on unknown members is stated as
    proven. No count of members is negative."""
    h = History()
    incident(h)
    cut = next(row["zxid"] for row in h.rows if row["session"] == 90)
    h.rows = [row for row in h.rows if row["zxid"] >= cut]
    made, stage = tables_of(spark, h, ((0, cut),))
    counts = stage.rows("membership").select("members").distinct()
    assert [row["members"] for row in counts.collect()] == [None]
    rows = findings_of(made).collect()
    told = [((row["kind"], row["partition"]), f"{row['severity']} {row['basis']}") for row in rows]
    expected = {
        **INCIDENT,
        ("orphan commit", 0): "high inferred",
        ("tool write", 1): "info inferred",
    }
    del expected["unowned interval", 0]  # which member would have wanted the partition is unknown
    assert sorted(told, key=repr) == sorted(expected.items(), key=repr)
    said = {(row["kind"], row["partition"]): row["sentence"] for row in rows}
    assert "members unknown: the logs do not show" in said["orphan commit", 0]
    assert "a session that had claimed it before the logs begin" in said["foreign release", 0]


def test_first_offsets_in_logs_that_begin_late(spark: SparkSession) -> None:
    """A tool creates the offset of a group, which then starts from it. This is not a finding,
    because there was no offset before. If the tool may have overwritten one, it is, and is only
    inferred, because the owner is unknown."""
    h = History()
    h.add("createSession", 9, timeout=1)
    cut = h.zxid = 10
    for group, kind in (("first", "create"), ("later", "setData")):
        h.add("createSession", cut, timeout=1)
        h.add(kind, cut, f"/consumers/{group}/offsets/t/0", data=b"100", ephemeral=False)
        h.join(group, f"{group}_a", cut + 1)
        h.claim(group, 0, f"{group}_a", cut + 1)
        h.commit(group, 0, 110, cut + 1)
        cut += 2
    h.rows = h.rows[1:]
    told = found(spark, h, ((0, h.rows[0]["zxid"]),))
    assert {
        key: [(row["severity"], row["basis"]) for row in rows] for key, rows in told.items()
    } == {("later", "tool write"): [("medium", "inferred")]}


def test_a_herd_is_measured_in_part_while_a_member_with_a_journal_is_registered(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A member that a log gap hides does not count."""
    h = History()
    h.join("g", "a", 1)
    h.join("g", "b", 2)
    h.zxid += 10  # b leaves
    h.leave("g", "c", 3)
    h.leave("g", "d", 4)
    h.join("g", "e", 5)
    h.leave("g", "a", 1)
    h.add("closeSession", 2)
    for member in "bce":
        Journal("g", member).sees(0, "a").write(tmp_path)
    herds = tables_of(spark, h, ((2, 13),), (tmp_path,))[0].herds.orderBy("zxid").collect()
    assert [(row["member"], row["basis"]) for row in herds if row["zxid"] > 13] == [
        ("d", "modelled"), ("e", "measured in part"), ("a", "measured in part"),
        ("b", "measured in part"),
    ]  # fmt: skip
    assert {row["cause"] for row in herds if row["basis"] == "measured in part"} == {"inferred"}
    assert selection.known((), ()) == (0,)
    assert selection.known(((0, 5), (9, 20), (30, 40)), (4, 7, 25, 12, 19)) == (0, 4, 19, None)


def test_causes_that_zookeeper_names_are_proven(spark: SparkSession, tmp_path: Path) -> None:
    """Two members join within a second. The first one's watch event is late. By its transaction it
    counts to the right change, and by its time to the wrong one. A rebalance without a watch event
    has no cause, although members have just joined."""
    h = History()
    ids = "/consumers/{}/ids"
    for group in ("named", "unnamed"):
        for number, member in enumerate("abc"):
            h.join(group, f"{group}_{member}", 10 + number)
    joined = {(row["path"].split("/")[2], row["session"]): row for row in h.rows if row["path"]}
    for group in ("named", "unnamed"):
        first, second = (joined[group, session]["zxid"] for session in (11, 12))
        at = (joined[group, 12]["time"] - EPOCH).total_seconds()
        for delay, member, zxid in ((0.5, "a", first), (0.6, "b", second)):
            sent = {"zxid": zxid} if group == "named" else {}
            line = Journal(group, f"{group}_{member}")
            line.add(at + delay, "event", "Changed", path=ids.format(group), **sent)
            line.add(at + delay, "command", "LoadView", detail="all", **sent)
            cost = {"requests": 1, "reads": 5, "writes": 1, "changes": 0}
            line.add(at + delay + 1, "op", "GetMany", sent=0, result="ok", **cost)
            line.add(at + delay + 40, "op", "GetMany", sent=0, result="ok", **cost)
            line.add(at + delay + 2, "command", "LoadView", detail="all")
            line.lines[-1]["attempt"] = 2
            line.write(tmp_path)
    made, stage = tables_of(spark, h, journal=(tmp_path,))
    figures = {
        (row["member"], row["cause"]): (row["notified"], row["rebalances"], row["reads"])
        for row in made.herds.collect()
    }
    assert figures == {
        ("named_a", "inferred"): (0, 0, 0),
        ("named_b", "proven"): (1, 1, 5),
        ("named_c", "proven"): (1, 1, 5),
        ("unnamed_a", "inferred"): (0, 0, 0),
        ("unnamed_b", "inferred"): (0, 0, 0),
        ("unnamed_c", "inferred"): (2, 4, 10),
    }
    lines = journals.lines(journals.read(spark, (tmp_path,)), made.registrations)
    found = tables.ATTEMPTS.shape(causes.attempts(stage.rows("membership"), lines)).collect()
    assert {(r["member"], r["attempt"], r["trigger_zxid"], r["basis"], r["trigger_path"])
            for r in found} == {
        ("named_a", 1, joined["named", 11]["zxid"], "proven", ids.format("named")),
        ("named_a", 2, None, None, None),
        ("named_b", 1, joined["named", 12]["zxid"], "proven", ids.format("named")),
        ("named_b", 2, None, None, None),
        *((member, attempt, joined["unnamed", 12]["zxid"], "inferred", None)
          for member in ("unnamed_a", "unnamed_b") for attempt in (1, 2)),
    }  # fmt: skip


def test_findings_of_a_time(spark: SparkSession) -> None:
    """``--from`` keeps everything that still exists when the logs end, no matter when it began, and
    everything that ended later."""
    rows: list[dict[str, Any]] = [
        {"kind": "orphan partition", "group": "open", "time": after(0)},
        {"kind": "unowned interval", "group": "over", "time": after(0), "end_time": after(40)},
        {"kind": "unowned interval", "group": "across", "time": after(0), "end_time": after(60)},
        {"kind": "zombie commit", "group": "once", "time": after(0)},
        {"kind": "zombie commit", "group": "later", "time": after(60)},
    ]
    last = frame_of(spark, END, [{"zxid": 20, "time": after(100)}])
    wrong = rows_of(spark, tables.FINDINGS, *rows)

    def told(start: float | None, end: float | None) -> set[str]:
        times = [None if at is None else after(at).isoformat(" ") for at in (start, end)]
        kept = job.within(wrong, last, *times)
        assert kept.columns == wrong.columns
        return {row["group"] for row in kept.collect()}

    assert told(50, None) == {"open", "across", "later"}
    assert told(50, 55) == {"open", "across"}
    assert told(100.5, None) == set()
    assert told(None, 55) == {"open", "over", "across", "once"}


def restarts(h: History) -> None:
    """A member that restarts, members that start together, a member that tries again and again
    because one of its claims is refused, and one that rebalances again and again without reason."""
    h.join("flaps", "flaps_stays", 701)
    h.join("tries", "tries_a", 702)
    h.join("grows", "grows_a", 703)
    h.claim("flaps", 0, "flaps_stays", 701, seconds=20)
    for number in range(41):
        session = 2000 + number
        h.join("flaps", "flaps_b", session, seconds=0.6)
        h.release("flaps", 0, 701, seconds=0.6)
        h.claim("flaps", 0, "flaps_b", session, seconds=0.6)
        h.add("closeSession", session, seconds=0.6)
        h.claim("flaps", 0, "flaps_stays", 701, seconds=0.6)
    for number in range(41):
        h.join("start", f"start_{number}", 3000 + number, seconds=1)
    for number in range(41):
        h.claim("start", number, f"start_{number}", 3000 + number, seconds=0.1)
    for _ in range(41):
        h.claim("tries", 0, "tries_a", 702, seconds=1)
        h.add("error", 702, error=-110, seconds=0)
        h.release("tries", 0, 702, seconds=1)
    for _ in range(12):
        h.claim("grows", 0, "grows_a", 703, seconds=1)
        h.release("grows", 0, 703, seconds=1)
    h.claim("grows", 0, "grows_a", 703, seconds=1)


def test_restarts_without_a_pause_are_a_storm(
    incidents: dict[tuple[str, str], list[Any]],
) -> None:
    """A member that restarts 41 times in 120 s is a storm, although the group was never quiet in
    between. Nor is there a join or leave in every storm. It is not a storm if 41 members start
    within one minute and then work, or if a member tries again many times after one change."""
    storms = {group for group, kind in incidents if kind == "rebalance storm"}
    assert storms == {"flaps", "incident", "grows"}
    (storm,) = incidents["flaps", "rebalance storm"]
    assert (storm["end_time"] - storm["time"]).total_seconds() > 120
    assert storm["severity"] == "high"  # 41 a minute
    assert "82 of the joins and leaves came from member flaps_b." in storm["sentence"]
    assert (
        "rebalanced 83 times within 600 s; there were 82 joins and leaves. The"
        in (storm["sentence"])
    )


def test_tables_of_a_small_history(spark: SparkSession) -> None:
    """The tables of sessions, members, refused writes and bursts are correct in every row."""
    h = History()
    h.add("createSession", 1, timeout=6000)
    h.add("createSession", 2, timeout=4000)
    h.join("g", "a", 1)
    h.add("error", 2, error=-110)  # not registered yet
    h.join("g", "b", 2)
    h.claim("g", 0, "a", 1)
    h.add("error", 2, error=-110)
    h.add("error", 2, error=-101)
    h.claim("g", 1, "b", 2, seconds=20)
    h.add("closeSession", 2, cxid=0)
    h.leave("g", "a", 1)
    h.add("closeSession", 1, cxid=7)
    _, stage = tables_of(spark, h)
    sessions = {
        row["session"]: (
            row["created_zxid"], row["timeout_ms"], row["closed_zxid"], row["closed_by"]
        )
        for row in tables_build.sessions(stage).collect()
    }  # fmt: skip
    assert sessions == {1: (1, 6000, 12, "client"), 2: (2, 4000, 10, "server")}
    changes = [
        (r["zxid"], r["member"], r["change"], r["cause"], r["members"])
        for r in stage.rows("membership").orderBy("zxid").collect()
    ]
    assert changes == [
        (3, "a", "join", None, 1),
        (5, "b", "join", None, 2),
        (10, "b", "leave", "expired", 1),
        (11, "a", "leave", "released", 0),
    ]
    assert [(r["zxid"], r["member"]) for r in stage.rows("failed_claims").collect()] == [(7, "b")]
    bursts = [
        (r["first_zxid"], r["last_zxid"], r["claims"], r["ends"], r["partitions"], r["members"],
         r["refused"], r["joins"], r["leaves"])
        for r in stage.rows("rebalances").orderBy("first_zxid").collect()
    ]  # fmt: skip
    assert bursts == [(3, 7, 1, 0, 1, 1, 1, 2, 0), (9, 12, 1, 2, 2, 1, 0, 0, 2)]
