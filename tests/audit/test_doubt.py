"""Transactions that were rolled back: each pair and each single server of three, compared with all
three."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from zkaudit.history import committed, doubt
from zkaudit.history.doubt import Change
from zkaudit.limits import Limits
from zkaudit.local.found import findings
from zkaudit.local.history import Question, read

from tests.audit.histories import History, logged
from tests.audit.written import write_log

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


LOST = {("lost", "lost messages", "critical")}
"""What really happened."""


@pytest.mark.parametrize(("rejoined", "servers", "voters"), sorted(CASES, key=str))
def test_fewer_logs_give_no_worse_answer(
    tmp_path: Path, rejoined: bool, servers: str, voters: int | None
) -> None:
    """Two servers know as much as all three. One that was not killed does too, but without another
    log of the next epoch it cannot confirm the last transactions. With the killed leader's log
    alone, what follows from its last proposals is one severity lower, inferred, and says that they
    may never have been committed."""
    ensemble = Ensemble(rejoined)
    for server in servers:
        write_log(tmp_path / server, ensemble.log(int(server)))
    logs = [str(tmp_path / server) for server in servers]
    every = findings(read(Question(logs, None, servers=voters)), Limits())
    rows = [row for row in every if row["group_id"] is not None]
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


def test_spark_decides_the_same(spark: SparkSession) -> None:
    """It collects only the rows that decide."""
    rows = [row for server in (1, 2) for row in Ensemble(rejoined=True).log(server)]
    runs = [committed.Run(row["server"], row["zxid"], row["zxid"]) for row in rows]
    plan = committed.plan(runs, 3)
    found = doubt.decided_rows(logged_rows(rows, plan), plan)
    assert plan.unconfirmed
    assert not found.unconfirmed
    assert doubt.decided(lambda: logged(spark, rows), plan) == found


@pytest.mark.parametrize("gap", [False, True])
def test_a_log_gap_hides_what_happened_to_a_znode(gap: bool) -> None:
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
    plan = doubt.decided_rows(logged_rows(h.rows, plan), plan)
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
