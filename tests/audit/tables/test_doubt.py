"""Transactions that were rolled back: each pair and each single server of three, compared with all
three."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, LongType, StructType
from zkaudit.findings.places import located
from zkaudit.history import committed, doubt
from zkaudit.history.doubt import Change

from tests.audit.histories import (
    History,
    findings_of,
    frame_of,
    logged,
    tables_of,
)

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine


@dataclass
class Ensemble:
    """The logs of three servers. Server 1 led epoch 1, logged its last proposals alone, and was
    killed. ``rejoined``: it returned in epoch 2 and got a snapshot, so its old log is as it was."""

    rejoined: bool
    h: History = field(default_factory=History)
    versions: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        h = self.h
        h.zxid = 1 << 32
        for number, group in enumerate(("deleted", "closed", "raised", "stolen", "lost", "new")):
            session = 10 * (number + 1)
            h.add("createSession", session, timeout=6000)
            h.join(group, "a", session)
            h.claim(group, 0, "a", session)
            for offset in (50, 100):
                self.commit(group, offset, session)
        h.join("stolen", "b", 47)
        begin, before = len(h.rows), dict(self.versions)
        h.release("deleted", 0, 99)
        h.add("closeSession", 20)
        self.commit("raised", 900, 30)
        h.release("stolen", 0, 40)
        h.claim("stolen", 0, "b", 47)
        self.commit("stolen", 110, 47)
        h.add("createSession", 77, timeout=6000)
        h.join("new", "phantom", 77)
        self.alone = range(begin, len(h.rows))
        self.versions = before
        h.zxid = 2 << 32
        for group, session in (("deleted", 10), ("closed", 20), ("raised", 30), ("stolen", 40)):
            self.commit(group, 110, session)
            self.commit(group, 120, session)
        h.release("deleted", 0, 10)
        h.add("closeSession", 20)
        h.add("closeSession", 50)
        self.commit("lost", 500, 98)
        h.add("createSession", 55, timeout=6000)
        h.join("lost", "a", 55)
        h.claim("lost", 0, "a", 55)
        self.commit("lost", 510, 55)

    def commit(self, group: str, offset: int, session: int) -> None:
        version = self.versions[group] = self.versions.get(group, -1) + 1
        self.h.commit(group, 0, offset, session, version=version)

    def log(self, server: int) -> list[dict[str, Any]]:
        """The rows in the log of one server."""
        late = self.h.rows[self.alone.stop :]
        if server == 1:
            rows = self.h.rows[: self.alone.stop] + (late[5:] if self.rejoined else [])
        else:
            rows = self.h.rows[: self.alone.start] + late
        return [row | {"server": str(server)} for row in rows]


def used(
    spark: SparkSession, ensemble: Ensemble, servers: str, voters: int | None
) -> list[dict[str, Any]]:
    """The rows that an audit of some servers' logs uses, each with ``confirmed``."""
    rows = [row for server in servers for row in ensemble.log(int(server))]
    runs = [committed.Run(row["server"], row["zxid"], row["zxid"]) for row in rows]
    whole = committed.plan(runs, voters)
    plan = doubt.decided(lambda: logged(spark, rows), whole)
    assert doubt.decided_rows(logged_rows(rows, whole), whole) == plan
    return [
        row | {"confirmed": not committed.within(row["zxid"], plan.unconfirmed)}
        for row in sorted(rows, key=lambda row: row["zxid"])
        if committed.within(row["zxid"], plan.take.get(row["server"], ()))
    ]


def logged_rows(rows: list[dict[str, Any]], plan: committed.History) -> Iterator[dict[str, Any]]:
    """The rows that the plan takes, with all columns that ``doubt`` reads."""
    for row in rows:
        if committed.within(row["zxid"], plan.take.get(row["server"], ())):
            yield dict.fromkeys(("path", "version", "ephemeral")) | row


CASES = {
    (rejoined, servers, voters)
    for rejoined in (False, True)
    for servers in ("123", "12", "13", "23", "1", "2", "3")
    for voters in ((3, None) if len(servers) == 2 else (3,))
}


@pytest.fixture(scope="module")
def findings(spark: SparkSession) -> dict[str, list[Any]]:
    """The findings of all cases, by chroot. They are one history, each case below its own chroot
    and with its own sessions, because one audit costs as much as all of them."""
    h = History()
    for number, (rejoined, servers, voters) in enumerate(sorted(CASES, key=str)):
        chroot = f"/{'rejoined' if rejoined else 'dead'}-{servers}-{voters}"
        for row in used(spark, Ensemble(rejoined), servers, voters):
            h.zxid += 1
            path = row["path"] and chroot + row["path"]
            more = {"zxid": h.zxid, "path": path, "session": row["session"] + 1000 * number}
            h.rows.append(row | more)
    h.now = max(row["time"] for row in h.rows)
    found = findings_of(*tables_of(spark, h))
    places = [{name: row[name] for name in ("zxid", "confirmed")} for row in h.rows]
    columns = StructType().add("zxid", LongType()).add("confirmed", BooleanType())
    transactions = frame_of(spark, columns, places).selectExpr(
        "'' as server", "'' as file", "0L as position", "*"
    )
    by: dict[str, list[Any]] = defaultdict(list)
    for row in located(found, transactions, {}).collect():
        by[row["chroot"]].append(row)
    return by


LOST = {("lost", "lost messages", "critical")}
"""What really happened."""


@pytest.mark.parametrize(("rejoined", "servers", "voters"), sorted(CASES, key=str))
def test_fewer_logs_give_no_worse_answer(
    findings: dict[str, list[Any]], rejoined: bool, servers: str, voters: int | None
) -> None:
    """Two servers know as much as all three. One that was not killed does too, but without another
    log of the next epoch it cannot confirm the last transactions. With the killed leader's log
    alone, what follows from its last proposals is one severity lower, inferred, and says that they
    may never have been committed."""
    rows = findings[f"/{'rejoined' if rejoined else 'dead'}-{servers}-{voters}"]
    found = {(row["group_id"], row["kind"], row["severity"]) for row in rows}
    doubted = [row for row in rows if "may never have been committed" in row["sentence"]]
    for row in doubted:
        assert row["basis"] == "inferred", row
    if servers == "1":
        assert len(doubted) == len(rows)
        assert rejoined or ("deleted", "foreign release", "high") in found
        assert "critical" not in {severity for *_, severity in found}
    elif len(servers) > 1 and (rejoined or servers in ("23", "123")):
        assert found == LOST
        assert not doubted
    else:
        assert {(group, kind) for group, kind, _ in found} == {("lost", "lost messages")}


@pytest.mark.parametrize("gap", [False, True])
def test_a_log_gap_hides_what_happened_to_a_znode(spark: SparkSession, gap: bool) -> None:
    """A version that is not larger refutes an earlier write, unless the znode may have been created
    again in between."""
    h = History()
    h.zxid = 1 << 32
    h.commit("g", 0, 10, 1, version=5)
    doubted = (h.zxid, h.zxid)
    h.zxid = 2 << 32 | 7
    h.commit("g", 0, 20, 1, version=3)
    gaps = ((2 << 32 | 3, 2 << 32 | 6),) if gap else ()
    plan = committed.History({"a": (doubted, (2 << 32 | 1, h.zxid))}, gaps, (), (doubted,))
    assert doubt.decided_rows(logged_rows(h.rows, plan), plan) == (
        plan := doubt.decided(lambda: logged(spark, h.rows), plan)
    )
    assert (plan.dropped, plan.unconfirmed) == (((), (doubted,)) if gap else ((doubted,), ()))


SET = Change(2, "set", 4, None, False, None)
CREATE = Change(2, "create", None, True, False, None)
DELETE = Change(2, "delete", None, None, False, None)


@pytest.mark.parametrize(
    ("change", "then", "right"),
    [
        (SET, Change(9, "set", 5, None, True, None), True),
        (SET, Change(9, "set", 4, None, True, None), False),
        (SET, Change(9, "set", 6, None, True, None), None),
        (SET, Change(9, "set", None, None, True, None), None),
        (SET, Change(9, "delete", None, None, True, None), None),
        (CREATE, Change(9, "create", None, True, True, None), False),
        (CREATE._replace(closed_zxid=8), Change(9, "create", None, True, True, None), None),
        (CREATE._replace(closed_zxid=10), Change(9, "create", None, True, True, None), False),
        (CREATE, Change(9, "set", 1, None, True, None), True),
        (CREATE, Change(9, "set", 2, None, True, None), False),
        (CREATE, Change(9, "delete", None, None, True, None), True),
        (DELETE, Change(9, "create", None, True, True, None), None),
        (DELETE, Change(9, "set", 3, None, True, None), False),
        (DELETE, Change(9, "delete", None, None, True, None), False),
    ],
)
def test_what_the_next_change_shows(change: Change, then: Change, right: bool | None) -> None:
    """The next change shows whether the earlier one happened. If another unconfirmed change is in
    between, only a version that is not larger shows it. Nothing does across a log gap."""
    known = [] if right is None else [(2, right)]
    assert [*doubt.of_znode([change, then], ())] == known
    assert [*doubt.of_znode([change, then], ((9, 12), (20, 30)))] == known
    assert [*doubt.of_znode([change, then], ((5, 8),))] == []
    between = Change(5, "set", None, None, False, None)
    refuted = (change.act, then.act, right) == ("set", "set", False)
    assert dict(doubt.of_znode([change, between, then], ())).get(2) == (False if refuted else None)
    assert [*doubt.of_znode([change], ())] == []
