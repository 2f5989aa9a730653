"""Audits of groups that moved while they ran: a real one, and one in which everything is wrong.

One cluster for both. The real group goes to the coordinator and back with ``zkmigrate live``, with
a plain consumer in between; all its members write journals. The other one is written by hand.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from zkaudit.findings.base import Tables
from zkaudit.findings.outside import from_records
from zkaudit.history import staging
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.limits import Limits
from zkaudit.report.found import read
from zkaudit.report.verdict import verdict
from zkaudit.tables import catalog, migrations, timeline
from zkmigrate.cli import run as migrate

from tests.audit.histories import frame_of, in_snapshots, keep, logged
from tests.support.groups import Producer, Reader
from tests.support.members import quick
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import encode_member, encode_mode
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
PARTITIONS = 4
ROAD = ("zookeeper", "locked", "kafka", "open", "kafka", "locked", "zookeeper")
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
LOCKED = json.dumps({"zkmigrate": "locked", "version": 1, "acl": [], "data": ""}).encode()
START = datetime(2026, 11, 21, tzinfo=UTC)
FRAMES = [
    name
    for name, field in Tables.__dataclass_fields__.items()
    if field.default is MISSING and field.default_factory is MISSING
]


def live_move(cluster: LocalCluster, journals: Path) -> None:
    """A group moves to the coordinator and back; a plain consumer is a member for a while."""
    cluster.create_topic("live", PARTITIONS)
    config = quick(cluster, "live")
    in_zookeeper = {
        "zookeeper.connect": cluster.zookeeper,
        "zkconsumer.live.strategies": "cooperative-sticky",
    }

    def stage(name: str) -> None:
        step = [name] if name in ("lock", "unlock") else ["live", name]
        words = [*step, "--group", "live", "--execute", "--wait", "60"]
        assert migrate([*words, "--zookeeper", cluster.zookeeper]) == 0, name

    with Producer(cluster.bootstrap, "live", range(PARTITIONS), interval=0.02):
        members = []
        for name in ("m1", "m2"):
            own = {"consumer.id": name, "zkconsumer.journal.dir": str(journals / name)}
            members.append(MigratableConsumerConnector(config | in_zookeeper | own))
            Reader(members[-1].create_message_streams({"live": 1})["live"])

        def owned() -> list[int]:
            return [member.metrics().owned_partitions for member in members]

        wait_until(lambda: owned() == [2, 2], 60, "both have their share")
        for name in ("prepare", "lock", "to-kafka", "finalize"):
            stage(name)
        plain = config | {
            "partition.assignment.strategy": "cooperative-sticky",
            "zkconsumer.journal.dir": str(journals / "plain"),
        }
        with CoordinatorConsumerConnector(plain) as newer:
            reader = Reader(newer.create_message_streams({"live": 1})["live"])
            wait_until(lambda: len(reader.deliveries) > 5, 60, "the plain one reads")
        wait_until(lambda: sum(owned()) == PARTITIONS, 60, "ours have all again")
        for name in ("to-zookeeper", "unlock"):
            stage(name)
        for member in members:
            member.shutdown()


@contextmanager
def session(zookeeper: str) -> Iterator[KazooClient]:
    """A session of its own."""
    client = KazooClient(zookeeper, timeout=20)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def by_hand(cluster: LocalCluster) -> None:
    """A group whose operator skips modes and waits for no member, and a member that writes one."""
    root = "/consumers/bad"
    mine, mode = f"{root}/live/members/bad_m", f"{root}/live/mode"
    at = cluster.zookeeper
    with session(at) as tool, session(at) as member, session(at) as legacy:
        for path in (f"{root}/ids", f"{root}/live/members", f"{root}/owners/t"):
            tool.ensure_path(path)
        legacy.create(f"{root}/ids/bad_old", REGISTRATION, ephemeral=True)
        both = member.transaction()
        both.create(f"{root}/ids/bad_m", REGISTRATION, ephemeral=True)
        both.create(mine, encode_member(None), ephemeral=True)
        both.commit()
        member.create(f"{root}/owners/t/0", b"bad_m-0", ephemeral=True)
        tool.create(mode, encode_mode(Mode.ZOOKEEPER))
        tool.set(f"{root}/ids", LOCKED)
        tool.set(mode, encode_mode(Mode.LOCKED))
        tool.set(mode, encode_mode(Mode.OPEN))
        member.set(mode, encode_mode(Mode.KAFKA))
        member.set(mine, encode_member(3, "bad-1"))
        tool.set(f"{root}/ids", b"")


def journals_by_hand(folder: Path) -> None:
    """A migratable member in mode kafka and a plain consumer deliver one partition at once."""
    begin = time.time()

    def line(at: float, kind: str, name: str, member: str, **more: Any) -> dict[str, Any]:
        return {"at": int((begin + at) * 1e6), "kind": kind, "name": name, "member": member,
                "session": "0x1", "attempt": 1, **more}  # fmt: skip

    mode = {"result": "mode", "detail": "mode kafka, version 3"}
    where: dict[str, Any] = {"partitions": ["t-0"]}
    made = {
        "bad_m": [
            line(0, "command", "StartFetching", "bad_m", offsets={"t-0": 0}, **where),
            line(1, "command", "StopFetching", "bad_m", **where),
            line(1, "event", "FetchingStopped", "bad_m", offsets={"t-0": 10}),
            line(2, "command", "Report", "bad_m", **mode),
            line(3, "command", "StartFetching", "bad_m", offsets={"t-0": 10}, **where),
            line(20, "command", "StopFetching", "bad_m", **where),
            line(20, "event", "FetchingStopped", "bad_m", offsets={"t-0": 90}),
        ],
        "plain": [
            line(
                8, "command", "StartFetching", "plain", offsets={"t-0": 40}, generation=7, **where
            ),
            line(18, "command", "StopFetching", "plain", generation=7, **where),
            line(18, "event", "FetchingStopped", "plain", offsets={"t-0": 80}, generation=7),
        ],
    }
    run = {"at": 0, "kind": "run", "schema": 1, "clock": "epoch", "settings": {"group.id": "bad"}}
    for name, lines in made.items():
        place = folder / f"{name}.jsonl"
        place.write_text("".join(json.dumps(one) + "\n" for one in (run, *lines)))


@dataclass
class Audited:
    """The audit of both groups."""

    summary: dict[str, Any]
    tables: dict[str, DataFrame]
    findings: list[dict[str, Any]]

    def rows(self, table: str, group: str, *order: str) -> list[Any]:
        """Rows of one group."""
        return self.tables[table].where(f"group_id = '{group}'").orderBy(*order).collect()


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Both groups played, then audited."""
    folder = tmp_path_factory.mktemp("live")
    journals = folder / "journals"
    with LocalCluster(dir=folder / "cluster") as cluster:
        live_move(cluster, journals)
        by_hand(cluster)
        journals_by_hand(journals)
        logs = folder / "cluster" / "data" / "zookeeper"
        options = job.Options(
            [str(logs)],
            str(folder / "out"),
            journals=[str(journals)],
            bootstrap=cluster.bootstrap,
        )
        summary = job.run(spark, options)
    return Audited(summary, load(spark, folder / "out")[1], read(folder / "out"))


def test_a_real_move_is_one_history(audited: Audited) -> None:
    """Every mode with its writer and the members that acknowledged it, and no finding at all."""
    rows = audited.rows("migrations", "live", "start_zxid")
    assert [row["mode"] for row in rows] == list(ROAD)
    on_brokers = ("kafka", "open")
    assert [row["coordination"] for row in rows] == [
        "coordinator" if mode in on_brokers else "zookeeper" for mode in ROAD
    ]
    assert [row["version"] for row in rows] == list(range(len(ROAD)))
    assert [row["ended"] for row in rows] == ["next mode"] * 6 + ["still"]
    assert [row["members"] for row in rows[1:]] == [2] * 6
    for row in rows:
        assert {ack["member"] for ack in row["acknowledged"]} == {"live_m1", "live_m2"}
        assert row["late"] == []
        assert row["start_zxid"] <= row["settled_zxid"]
        assert all(row["start_zxid"] < ack["zxid"] for ack in row["acknowledged"])
    assert all(one["end_zxid"] == two["start_zxid"] for one, two in pairwise(rows))
    assert len({row["session"] for row in rows}) == 6, "to-zookeeper writes two modes"
    assert [f for f in audited.findings if f["group_id"] == "live"] == []


def test_a_partition_has_one_timeline_for_both_coordinations(audited: Audited) -> None:
    """Its intervals say which coordination they belong to; a change of it interrupts no owner. The
    plain consumer is in it, from its journal and from the coordinator's records."""
    rows = audited.rows("group_ownership", "live", "topic", "partition", "start_time")
    sources = Counter(row["source"] for row in rows)
    assert sources["journal"] >= 1
    assert sources["generation"] >= 1
    for row in rows:
        if row["source"] != "owner znode":
            assert (row["coordination"], row["session"]) == ("coordinator", None)
    for partition in range(PARTITIONS):
        mine = [
            row for row in rows if row["partition"] == partition and row["source"] == "owner znode"
        ]
        seen = [row["coordination"] for row in mine]
        assert seen[0] == seen[-1] == "zookeeper"
        assert "coordinator" in seen
        for one, two in pairwise(mine):
            if one["ended"] == "next coordination":
                assert (one["end_zxid"], one["member"]) == (two["start_zxid"], two["member"])
                assert one["coordination"] != two["coordination"]
            else:
                assert one["end_zxid"] <= two["start_zxid"]
    delivered = audited.rows("deliveries", "live", "start_time")
    of_plain = [row for row in delivered if not row["member"].startswith("live_m")]
    assert of_plain
    assert {row["coordination"] for row in of_plain} == {"coordinator"}
    assert {row["coordination"] for row in delivered} == {"coordinator", "zookeeper"}


def test_what_went_wrong_is_found_with_its_transactions(audited: Audited) -> None:
    """Each finding of the group by hand, with file, byte and the command that shows it."""
    found = [row for row in audited.findings if row["group_id"] == "bad"]
    kinds = Counter(row["kind"] for row in found)
    assert kinds["mode written too early"] == 3
    assert kinds["mode out of order"] == 1
    assert kinds["mode written by a member"] == 1
    assert kinds["legacy member in a locked group"] == 1
    assert kinds["two operators"] == 1
    assert kinds["unlocked during a move"] == 1
    assert kinds["overlapping delivery"] == 1
    ours = [row for row in found if row["kind"] != "overlapping delivery"]
    for row in (row for row in ours if "mode" in row["kind"] or "operators" in row["kind"]):
        assert row["file"].startswith("log.")
        assert row["command"].startswith(f"zkaudit show {row['zxid']} --zookeeper-logs ")
        assert row["evidence"][0]["position"] is not None
    (twice,) = [row for row in found if row["kind"] == "overlapping delivery"]
    assert (twice["severity"], twice["basis"]) == ("critical", "measured")
    assert "offsets 40 to 79 were delivered by both" in twice["sentence"]


def test_the_summary_and_the_report_name_moves(audited: Audited) -> None:
    """The mode of each group, since when, and who has not acknowledged it."""
    moves = {row["group_id"]: row for row in audited.summary["migrations"]}
    assert moves.keys() == {"live", "bad"}
    assert (moves["live"]["mode"], moves["live"]["changes"]) == ("zookeeper", 6)
    assert (moves["bad"]["mode"], moves["bad"]["late"]) == ("kafka", [])
    lines = [line["text"] for line in verdict([], audited.summary)]
    assert any(
        line.startswith("Live move of group live: in mode zookeeper since") for line in lines
    )


def test_without_records_nothing_is_planned() -> None:
    """No group with a mode: no rule about records is in the plan of the findings."""
    frames: dict[str, Any] = dict.fromkeys(FRAMES)
    tables = Tables(**frames)
    assert from_records(tables, Limits()) == []


def test_logs_that_begin_during_a_move(spark: SparkSession) -> None:
    """A snapshot shows the mode, its version, the members and what they have acknowledged."""
    root = "/kafka/consumers/g"
    fixed = {"server": "a", "file": "snapshot.64", "zxid": 100, "complete_zxid": 110,
             "version": 0, "cversion": 0, "aversion": 0, "ephemeral_owner": 0, "pzxid": 0,
             "ctime": START, "mtime": START}  # fmt: skip
    znodes = [
        {"path": f"{root}/live/mode", "data": encode_mode(Mode.LOCKED), "version": 1,
         "czxid": 5, "mzxid": 50},
        {"path": f"{root}/live/members/g_a", "data": encode_member(1, "id"), "version": 2,
         "czxid": 20, "mzxid": 60, "ephemeral_owner": 7},
        {"path": f"{root}/ids/g_a", "data": REGISTRATION, "czxid": 20, "mzxid": 20,
         "ephemeral_owner": 7},
    ]  # fmt: skip
    snapshot = in_snapshots(spark, [fixed | znode for znode in znodes])
    common = {"server": "a", "file": "log.65", "idx": 0, "size": 0, "cxid": 1, "type": "setData"}
    rows = [
        common | {"zxid": 120, "session": 3, "path": f"{root}/live/mode", "version": 2,
                  "data": encode_mode(Mode.KAFKA)},
        common | {"zxid": 121, "session": 7, "path": f"{root}/live/members/g_a", "version": 3,
                  "data": encode_member(2, "id")},
    ]  # fmt: skip
    values = [
        row | {"position": row["zxid"], "time": START + timedelta(seconds=row["zxid"])}
        for row in rows
    ]
    log_gaps = ((0, 101),)
    stage = staging.stage(logged(spark, values), log_gaps, snapshot, keep=keep)
    written = migrations.migrations(stage, {})
    modes = catalog.MIGRATIONS.shape(written)
    first, second = modes.orderBy("start_zxid").collect()
    assert (first["chroot"], first["mode"], first["version"]) == ("/kafka", "locked", 1)
    assert (first["start_zxid"], first["end_zxid"], first["ended"]) == (50, 120, "next mode")
    assert [(ack["member"], ack["zxid"]) for ack in first["acknowledged"]] == [("g_a", 50)]
    assert (second["mode"], second["session"], second["members"]) == ("kafka", 3, 1)
    assert second["settled_zxid"] == 121
    (group,) = migrations.summary(modes.toArrow().to_pylist())
    since = START + timedelta(seconds=120)
    assert group == {
        "chroot": "/kafka", "group_id": "g", "mode": "kafka", "since": since.isoformat(" "),
        "ended": "still", "changes": 1, "late": [],
    }  # fmt: skip
    assert [tuple(row) for row in timeline.chroots(stage).collect()] == [("g", "/kafka")]


def test_two_owners_during_a_move(spark: SparkSession) -> None:
    """A plain consumer that was assigned a partition while a member had its owner znode: for longer
    than clocks differ, and not when that member's session had expired."""

    def piece(partition: int, source: str, member: str, *seconds: int, **more: Any) -> Any:
        begin, end = (START + timedelta(seconds=at) for at in seconds)
        return {"chroot": "", "group_id": "g", "topic": "t", "partition": partition,
                "member": member, "source": source, "start_time": begin, "end_time": end,
                "ended": "released", "coordination": "coordinator", **more}  # fmt: skip

    znode = {"session": 5, "start_zxid": 9}
    rows = [
        piece(0, "owner znode", "g_a", 10, 20, **znode),
        piece(0, "generation", "plain-1", 15, 40),
        piece(1, "owner znode", "g_a", 10, 20, **znode),
        piece(1, "generation", "plain-1", 20, 40),
        piece(2, "owner znode", "g_a", 10, 20, **znode, ended="expired"),
        piece(2, "generation", "plain-1", 14, 40),
        piece(3, "generation", "plain-1", 10, 30),
        piece(3, "owner znode", "g_a", 25, 60, **znode),
        piece(3, "journal", "plain", 10, 60),
    ]
    owned = frame_of(spark, catalog.GROUP_OWNERSHIP.spark_type(), rows)
    frames: dict[str, Any] = dict.fromkeys(FRAMES)
    frames["end_us"] = round((START + timedelta(seconds=99)).timestamp() * 1e6)
    tables = Tables(**frames, group_ownership=owned)
    (frame,) = from_records(tables, Limits())
    found = frame.where("kind = 'two owners'").orderBy("partition").collect()
    assert [(row["partition"], row["basis"], row["zxid"]) for row in found] == [
        (0, "inferred", 9), (3, "inferred", 9)
    ]  # fmt: skip
    assert found[0]["member"] == found[1]["member"] == "g_a"
    assert (
        "t-0 of group g was assigned to plain-1 by the coordinator while member g_a"
        in (found[0]["sentence"])
    )
    assert "for 5.0 s" in found[1]["sentence"]
