"""Rules about groups on the coordinator find what is planted, and nothing that resembles it."""

from __future__ import annotations

from dataclasses import MISSING
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType
from zkaudit.findings.base import Tables
from zkaudit.findings.coordinator import coordinator, two_owners
from zkaudit.history.modes import Group
from zkaudit.limits import Limits
from zkaudit.tables import catalog, timeline
from zkaudit.tables.migrations import Moving

from tests.audit.histories import END, frame_of, keep

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
START = datetime(2026, 11, 21, tzinfo=UTC)
FRAMES = [name for name, field in Tables.__dataclass_fields__.items() if field.default is MISSING
          and field.default_factory is MISSING]  # fmt: skip


def tables_of(spark: SparkSession, **more: Any) -> Tables:
    """Tables that are empty but for ``more``; the history ends after a day."""
    end = frame_of(spark, END, [{"zxid": 99, "time": START + timedelta(days=1)}])
    frames: dict[str, Any] = dict.fromkeys(FRAMES, end)
    return Tables(**frames | more)


class Log:
    """States of groups, as table ``generations`` has them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last: dict[str, int] = {}

    def state(self, group: str, at: float, members: str, step: int = 1, **more: Any) -> None:
        """A state ``step`` generations after the last one. ``members``: ``client@host#number`` of
        each; the number makes the ids differ."""
        generation = self.last[group] = self.last.get(group, 0) + step
        ids = members.split()
        names = {one: one.partition("#")[0].partition("@") for one in ids}
        row = {"chroot": "", "group": group, "log_partition": 3, "log_offset": len(self.rows),
               "time": START + timedelta(seconds=at), "group_protocol": "classic",
               "generation": generation, "protocol": "range", "members": ids,
               "clients": {one: name[0] for one, name in names.items()},
               "hosts": {one: f"/{name[2]}" for one, name in names.items()},
               "assignment": {}, **more}  # fmt: skip
        self.rows.append(row)

    def found(self, spark: SparkSession) -> dict[tuple[str, str], Any]:
        """The findings by group and kind."""
        columns = catalog.GENERATIONS.spark_type().add("chroot", StringType())
        tables = tables_of(spark, generations=frame_of(spark, columns, self.rows))
        parts = coordinator(tables, Limits(), keep)
        rows = [row for part in parts for row in part.collect()]
        by = {(row["group"], row["kind"]): row for row in rows}
        assert len(by) == len(rows)
        return by


def test_rebalance_storms_on_the_coordinator(spark: SparkSession) -> None:
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
        log.state("starts", 0.1 * number, ids, group_protocol="consumer")
        log.state("moves", 10 * number, "a@h1#0", protocol=f"{timeline.OWN_PROTOCOL}x")
        log.state("epochs", 6 * number, "a@h1#0", group_protocol="consumer")
    log.state("refused", 0, "a@h1#0")
    log.state("refused", 60, "a@h1#0", step=20)
    log.state("unseen", 0, "a@h1#0")
    log.state("unseen", 6000, "a@h1#0", step=20)
    found = log.found(spark)
    storms = {group: row["severity"] for (group, kind), row in found.items() if "storm" in kind}
    assert storms == {"crash": "medium", "epochs": "high", "refused": "high"}
    crash = found["crash", "rebalance storm"]
    assert crash["basis"] == "inferred"
    assert crash["sentence"] == (
        "Group crash rebalanced 13 times within 600 s on the coordinator; members left it 6 times. "
        "Of these, 6 were members with client id a on host h1. It may have begun earlier: "
        "compaction removes older records."
    )
    assert [part["what"] for part in crash["evidence"]] == [
        "generation 1, __consumer_offsets-3, offset 0",
        "generation 13, __consumer_offsets-3, offset 12",
    ]


def test_members_that_leave_and_return(spark: SparkSession) -> None:
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
    found = log.found(spark)
    assert {group for group, kind in found if kind == "flapping member"} == {"flaps", "ghost"}
    assert found["ghost", "flapping member"]["sentence"].startswith(
        "Up to 2 members at a time with client id a on host h1 left group ghost and returned 7 "
    )
    flaps = found["flaps", "flapping member"]
    assert (flaps["severity"], flaps["basis"]) == ("medium", "inferred")
    assert flaps["sentence"] == (
        "The member with client id a on host h1 left group flaps and returned 3 times within "
        "3600 s, while other members stayed. Each time rebalances the group. The coordinator's "
        "records do not show why it left."
    )


def test_two_owners_of_a_group_that_was_stopped_and_moved(spark: SparkSession) -> None:
    """A consumer on the coordinator that starts before the last legacy member has stopped. It is
    less severe if the group moves while it runs, or may do so before the logs begin. Not: a clean
    move, and a legacy member whose session had expired."""

    def piece(group: str, source: str, begin: float, end: float | None, **more: Any) -> Any:
        return {"chroot": "", "group": group, "topic": "t", "partition": 0, "source": source,
                "member": f"{group}_{source[0]}", "start_time": START + timedelta(seconds=begin),
                "end_time": end and START + timedelta(seconds=end), "ended": "released",
                **more}  # fmt: skip

    znode = {"session": 5, "start_zxid": 9}
    rows = []
    for group, begin in (("early", 15.0), ("moves", 15.0), ("clean", 21.0), ("expired", 15.0)):
        ended = "expired" if group == "expired" else "closed"
        rows.append(piece(group, "owner znode", 10, 20, **znode | {"ended": ended}))
        rows.append(piece(group, "generation", begin, None, ended="still held"))
    rows.append(piece("late", "owner znode", 10, 20, session=5, start_zxid=3))
    rows.append(piece("late", "generation", 15, 30))
    owned = frame_of(spark, catalog.GROUP_OWNERSHIP.spark_type(), rows)
    moving = Moving((Group("", "moves", ()),))
    tables = tables_of(spark, moving=moving, known=(5,))
    found = {row["group"]: row for row in two_owners(tables, owned, Limits()).collect()}
    assert {
        group: (row["severity"], row["kind"], row["basis"]) for group, row in found.items()
    } == {
        "early": ("high", "two owners", "inferred"),
        "late": ("medium", "two owners", "inferred"),
        "moves": ("medium", "two owners during a move", "inferred"),
    }
    assert found["early"]["sentence"] == (
        "t-0 of group early was assigned to early_g by the coordinator while member early_o had "
        "its owner znode, for 5.0 s (measured with two clocks). Both may have delivered, unless "
        "one of them had stopped. Journals would show which."
    )
    assert found["late"]["sentence"].endswith("whether the group was moving while it ran.")
    assert [(part["table"], part["zxid"], part["what"]) for part in found["early"]["evidence"]] == [
        ("group_ownership", 9, "owner znode"), ("group_ownership", None, "early_g")
    ]  # fmt: skip
