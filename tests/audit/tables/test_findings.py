"""Findings and tables that need Spark: journals of members, and which members a change woke.

What the rules find in the fold of a group is tested without Spark, in ``tests/audit/test_rules.py``
and ``tests/audit/test_rules_offsets.py``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit.findings.base import Tables
from zkaudit.history.staging import Stage, shared_rows
from zkaudit.job import audit as job
from zkaudit.limits import Limits
from zkaudit.sources import selection
from zkaudit.tables import build as tables_build, catalog as tables, causes, journals

from tests.audit.histories import EPOCH, History, findings_of, frame_of, logged, tables_of

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
        # After a reset the member continues elsewhere and delivers nothing in between.
        Journal("reset", "reset_a").starts(10, 0).asks(11, 10)
        .add(12, "event", "OffsetReset", partitions=["t-0"]).asks(13, 900).stops(20, 950),
        Journal("reset", "reset_b").starts(30, 100).stops(40, 200),
        # A reset with its offsets.
        Journal("skips", "skips_a").starts(10, 0).asks(11, 100).resets(12, 100, 500)
        .asks(13, 510).stops(20, 600),
        Journal("skips", "skips_b").starts(30, 600).stops(40, 700),
        # The first position of a group is no reset.
        Journal("first", "first_a").add(10, "command", "StartFetching", partitions=["t-0"])
        .resets(11, None, 50).stops(20, 70)
        .add(30, "command", "StartFetching", partitions=["t-0"]).resets(31, None, 50).stops(40, 50),
        # The fetch thread has chosen the first position, and it is committed before it is reported.
        Journal("begins", "begins_a").add(10, "command", "StartFetching", partitions=["t-0"])
        .asks(10.9, 50).resets(11, None, 50).stops(20, 70),
        # The reset arrives after the stop: the last position is not one of what was delivered.
        Journal("stops", "stops_a").starts(10, 0).asks(11, 10)
        .add(12, "command", "StopFetching", partitions=["t-0"]).resets(13, 10, 400)
        .add(14, "event", "FetchingStopped", offsets={"t-0": 400}),
        # Two short intervals within a long one.
        Journal("nested", "nested_a").starts(10, 0).stops(100, 10),
        Journal("nested", "nested_b").starts(20, 90).stops(30, 91),
        Journal("nested", "nested_c").starts(50, 95).stops(60, 96),
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
            path = IDS.format("measured")
            journal.add(float(MEASURED), "event", "Changed", path=path)
            journal.add(float(MEASURED), "command", "LoadView")
        made.append(journal)
    for journal in made:
        journal.write(folder)


IDS = "/consumers/{}/ids"
MEASURED = 4_000
"""Seconds into the history at which a member joins the group whose members kept journals."""


@dataclass
class Planted:
    """A history with a group for each fault, and its journals."""

    history: History
    stage: Stage
    tables: Tables
    lines: DataFrame
    """The lines of the journals, each with its group."""
    findings: dict[tuple[str, str], list[Any]]
    """By group and kind."""
    sessions: pa.Table

    def zxid(self, group: str, member: str) -> int:
        """The transaction with which a member joined."""
        path = f"{IDS.format(group)}/{group}_{member}"
        return next(row["zxid"] for row in self.history.rows if row["path"] == path)


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """One history for all tests, because it costs as much as one for each of them."""
    h, folder = History(), tmp_path_factory.mktemp("journals")
    small_history(h)
    h.join("zombie", "zombie_a", 11)
    h.claim("zombie", 0, "zombie_a", 11)
    h.commit("zombie", 0, 9, 11)
    h.join("zombie", "zombie_b", 99)
    h.commit("zombie", 0, 7, 99)
    named_causes(h, folder)
    for group in ("modelled", "measured"):
        for number in range(4):
            h.join(group, f"{group}_{number}", 110 + number)
    h.now = EPOCH + timedelta(seconds=MEASURED - 2)
    for group in ("modelled", "measured"):
        h.join(group, f"{group}_4", 120)
    h.add("createSession", 130, timeout=1, seconds=100)
    journals_of_members(folder)
    limits = Limits(herd_members=4)
    made, stage = tables_of(spark, h, journal=(folder,), limits=limits)
    lines = journals.lines(journals.read(spark, (folder,)), made.registrations)
    by: dict[tuple[str, str], list[Any]] = {}
    for row in findings_of(made, stage, limits).orderBy("time").collect():
        by.setdefault((row["group_id"], row["kind"]), []).append(row)
    used = stage.read("used", "session")["session"].combine_chunks()
    shared = shared_rows(logged(spark, h.rows))
    return Planted(h, stage, made, lines, by, tables_build.sessions(shared, used, {}, {}))


def small_history(h: History) -> None:
    """Two members. One leaves, and the session of the other one ends."""
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


def named_causes(h: History, folder: Path) -> None:
    """Members join within seconds. The first one's watch event is late."""
    groups = ("named", "unnamed")
    for group in groups:
        for number, member in enumerate("abc"):
            h.join(group, f"{group}_{member}", 210 + number)
    joined = {(row["path"].split("/")[2], row["session"]): row for row in h.rows if row["path"]}
    for group in groups:
        first, second = (joined[group, session]["zxid"] for session in (211, 212))
        at = (joined[group, 212]["time"] - EPOCH).total_seconds()
        for delay, member, zxid in ((0.5, "a", first), (0.6, "b", second)):
            sent = {"zxid": zxid} if group == "named" else {}
            line = Journal(group, f"{group}_{member}")
            line.add(at + delay, "event", "Changed", path=IDS.format(group), **sent)
            line.add(at + delay, "command", "LoadView", detail="all", **sent)
            cost = {"requests": 1, "reads": 5, "writes": 1, "changes": 0}
            line.add(at + delay + 1, "op", "GetMany", sent=0, result="ok", **cost)
            line.add(at + delay + 40, "op", "GetMany", sent=0, result="ok", **cost)
            line.add(at + delay + 2, "command", "LoadView", detail="all")
            line.lines[-1]["attempt"] = 2
            line.write(folder)


PLANTED = {
    ("zombie", "zombie commit"): "critical",
    ("modelled", "herd"): "low",
    ("measured", "herd"): "low",
    ("double", "overlapping delivery"): "critical",
    ("nested", "overlapping delivery"): "high 2",
    ("nested", "delivery gap"): "high 2",
    ("again", "delivered twice"): "low",
    ("reset", "offset reset"): "medium",
    ("skips", "offset reset"): "high",
    ("views", "members whose views disagree"): "high",
}


def test_every_planted_fault_is_found_and_nothing_else(planted: Planted) -> None:
    """The audit reports exactly the planted faults, with the right kinds, severities and
    numbers."""

    def told(rows: list[Any]) -> str:
        (severity,) = {row["severity"] for row in rows}
        return severity if len(rows) == 1 else f"{severity} {len(rows)}"

    assert {key: told(rows) for key, rows in planted.findings.items()} == PLANTED


def test_findings_can_be_read_and_checked(planted: Planted) -> None:
    """Each finding has a sentence, a place in the history, and evidence rows with transactions."""
    found = planted.findings
    for row in (row for rows in found.values() for row in rows):
        assert row["sentence"].endswith("."), row
        assert row["evidence"], row
        assert row["time"], row
        if row["basis"] == "measured" and row["kind"] != "herd":
            assert all(re.search(r"\.jsonl:\d+$", e["what"]) for e in row["evidence"]), row
        else:
            assert row["zxid"], row
            assert all(e["zxid"] for e in row["evidence"]), row
    (measured,) = found["measured", "herd"]
    (modelled,) = found["modelled", "herd"]
    assert "measured_4 made 4 members" in measured["sentence"]
    assert "modelled_4 made up to 4 members" in modelled["sentence"]
    assert [measured["basis"], modelled["basis"]] == ["measured", "modelled"]
    (skips,) = found["skips", "offset reset"]
    assert (skips["effect"], skips["messages"]) == ("lost", 400)
    assert (skips["basis"], skips["time"].timestamp()) == ("measured", EPOCH.timestamp() + 12)
    assert skips["evidence"][0]["what"].endswith(".jsonl:4")


def test_deliveries_end_at_a_reset(planted: Planted) -> None:
    """Unless it is the first position of a group, or arrives after the stop."""
    rows = planted.tables.deliveries.where("group_id in ('begins', 'first', 'skips', 'stops')")
    periods = [
        (row["group_id"], row["ended"], row["start_offset"], row["end_offset"], row["reset"],
         row["reset_from"], row["reset_to"])
        for row in rows.orderBy("group_id", "member", "line").collect()
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


def test_causes_that_zookeeper_names_are_proven(planted: Planted) -> None:
    """By its transaction, a late watch event counts to the right change, and by its time to the
    wrong one. A rebalance without a watch event has no cause, although members have just joined."""
    figures = {
        (row["member"], row["cause"]): (row["notified"], row["rebalances"], row["reads"])
        for row in planted.tables.herds.where("group_id in ('named', 'unnamed')").collect()
    }
    assert figures == {
        ("named_a", "inferred"): (0, 0, 0),
        ("named_b", "proven"): (1, 1, 5),
        ("named_c", "proven"): (1, 1, 5),
        ("unnamed_a", "inferred"): (0, 0, 0),
        ("unnamed_b", "inferred"): (0, 0, 0),
        ("unnamed_c", "inferred"): (2, 4, 10),
    }
    attempts = causes.attempts(planted.stage.rows("membership"), planted.lines)
    found = tables.ATTEMPTS.shape(attempts).where("group_id in ('named', 'unnamed')").collect()
    second, third = planted.zxid("named", "b"), planted.zxid("named", "c")
    unnamed = planted.zxid("unnamed", "c")
    assert {(r["member"], r["attempt"], r["trigger_zxid"], r["basis"], r["trigger_path"])
            for r in found} == {
        ("named_a", 1, second, "proven", IDS.format("named")),
        ("named_a", 2, None, None, None),
        ("named_b", 1, third, "proven", IDS.format("named")),
        ("named_b", 2, None, None, None),
        *((member, attempt, unnamed, "inferred", None)
          for member in ("unnamed_a", "unnamed_b") for attempt in (1, 2)),
    }  # fmt: skip


def test_tables_of_a_small_history(planted: Planted) -> None:
    """The tables of sessions, members, refused writes and bursts are correct in every row."""
    stage = planted.stage
    sessions = {
        row["session"]: (
            row["created_zxid"], row["timeout_ms"], row["closed_zxid"], row["closed_by"]
        )
        for row in planted.sessions.to_pylist() if row["session"] < 3
    }  # fmt: skip
    assert sessions == {1: (1, 6000, 12, "client"), 2: (2, 4000, 10, "server")}

    def rows(table: str, order: str) -> list[Any]:
        return stage.rows(table).where("group_id = 'g'").orderBy(order).collect()

    changes = [
        (r["zxid"], r["member"], r["change"], r["cause"], r["members"])
        for r in rows("membership", "zxid")
    ]
    assert changes == [
        (3, "a", "join", None, 1),
        (5, "b", "join", None, 2),
        (10, "b", "leave", "expired", 1),
        (11, "a", "leave", "released", 0),
    ]
    assert [(r["zxid"], r["member"]) for r in rows("failed_claims", "zxid")] == [(7, "b")]
    bursts = [
        (r["first_zxid"], r["last_zxid"], r["claims"], r["ends"], r["partitions"], r["members"],
         r["refused"], r["joins"], r["leaves"])
        for r in rows("rebalances", "first_zxid")
    ]  # fmt: skip
    assert bursts == [(3, 7, 1, 0, 1, 1, 1, 2, 0), (9, 12, 1, 2, 2, 1, 0, 0, 2)]


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


def test_findings_of_a_time(spark: SparkSession) -> None:
    """``--from`` keeps everything that still exists when the logs end, no matter when it began, and
    everything that ended later. A finding without a time may be of any time, as in
    ``zkaudit findings``."""

    def after(seconds: float) -> datetime:
        return EPOCH + timedelta(seconds=seconds)

    rows: list[dict[str, Any]] = [
        {"kind": "orphan partition", "group_id": "open", "time": after(0)},
        {"kind": "unowned interval", "group_id": "over", "time": after(0), "end_time": after(40)},
        {"kind": "unowned interval", "group_id": "across", "time": after(0), "end_time": after(60)},
        {"kind": "zombie commit", "group_id": "once", "time": after(0)},
        {"kind": "zombie commit", "group_id": "later", "time": after(60)},
        {"kind": "herd", "group_id": "any"},
    ]
    last = round(after(100).timestamp() * 1e6)
    wrong = frame_of(spark, tables.FINDINGS.spark_type(), rows)

    def told(start: float | None, end: float | None) -> set[str]:
        times = [None if at is None else after(at).isoformat(" ") for at in (start, end)]
        kept = job.within(wrong, last, *times)
        assert kept.columns == wrong.columns
        return {row["group_id"] for row in kept.collect()}

    assert told(50, None) == {"any", "open", "across", "later"}
    assert told(50, 55) == {"any", "open", "across"}
    assert told(100.5, None) == {"any"}
    assert told(None, 55) == {"any", "open", "over", "across", "once"}
