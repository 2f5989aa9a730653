"""``zkaudit log`` and ``zkaudit who`` on logs that are written by hand. Spark does not run."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from zkaudit.cli import run
from zkaudit.commands.question import Clock
from zkaudit.local.history import Question, read

from tests.audit.histories import History, registration
from tests.audit.snapshots import snapshot_after, snapshot_of
from tests.audit.written import write_log

ROOT = Path(__file__).parents[2]
EPOCH = 1 << 32
OWNERS, OFFSETS = "/consumers/g/owners", "/consumers/g/offsets"


@pytest.fixture
def zkaudit(capsys: pytest.CaptureFixture[str]) -> Any:
    """``zkaudit(*words)`` runs the command, which must succeed, and returns its lines."""

    def call(*words: object, status: int = 0) -> list[str]:
        capsys.readouterr()
        ended = run([str(word) for word in words])
        shown = capsys.readouterr()
        assert ended == status, shown.err
        return (shown.err if status else shown.out).splitlines()

    return call


def texts(lines: list[str]) -> list[str]:
    """The lines of a log without time and zxid, and without those about the logs."""
    shown = [line for line in lines if line[:2] == "20" or line[:1] == "-"]
    return [line[23:].split(None, 1)[1] for line in shown]


def moment(row: dict[str, Any], milliseconds: int = 0) -> str:
    """The time of a row, for an option."""
    time: datetime = row["time"] + timedelta(milliseconds=milliseconds)
    return time.isoformat()


def whole() -> History:
    """What happens to a group that two members share, from the first transaction on."""
    h = History()
    h.topic("t", 2)
    h.add("createSession", 5, timeout=6000)
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.claim("g", 1, "a", 5)
    h.add("create", 5, f"{OFFSETS}/t/0", data=b"10", ephemeral=False)
    h.commit("g", 0, 20, 5, version=1)
    h.join("g", "b", 6, registration("white_list", "t.*"))
    h.release("g", 1, 5)
    h.claim("g", 1, "b", 6)
    h.commit("g", 0, 15, 9, version=2)
    h.add("closeSession", 5, cxid=0)
    h.release("g", 1, 8)
    h.leave("g", "b", 6)
    return h


def test_every_change_is_a_line(tmp_path: Path, zkaudit: Any) -> None:
    """Members, owners and offsets, each with who did it, in the order of transactions."""
    h = whole()
    write_log(tmp_path, h.rows)
    lines = zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    assert lines[0] == f"Covered: 2026-11-21 00:00:01 to 2026-11-21 00:00:14 UTC, by {tmp_path}."
    assert lines[1] == "2026-11-21 00:00:01.000  0x1  topic t created with 2 partitions"
    assert texts(lines[2:]) == [
        "member a registered for t (session 0x5)",
        "t-0 claimed by a",
        "t-1 claimed by a",
        "t-0: offset none -> 10 by its owner a",
        "t-0: offset 10 -> 20 by its owner a",
        "member b registered for topics that match t.* (session 0x6)",
        "t-1 released by a",
        "t-1 claimed by b",
        "t-0: offset 20 -> 15 (back by 5) by session 0x9 (not a member's); its owner was a",
        "member a left: its session 0x5 expired; no longer owned: t-0",
        "t-1 taken from owner b: session 0x8 (not a member's) deleted the owner znode",
        "member b left: it deleted its registration",
    ]
    assert [int(line.split("  ")[1], 16) for line in lines[1:]] == [1, *range(3, 15)]


def test_a_timeline_for_other_tools(tmp_path: Path, zkaudit: Any) -> None:
    """The changes as CSV, with the columns that Timesketch needs."""
    write_log(tmp_path, whole().rows)
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    lines = list(csv.DictReader(zkaudit(*words, "--timeline")))
    assert len(lines) == 13
    assert list(lines[1])[:3] == ["datetime", "timestamp_desc", "message"]
    assert lines[1]["datetime"] == "2026-11-21T00:00:03.000+00:00"
    assert lines[1]["timestamp_desc"] == "registered"
    assert lines[1]["message"] == "member a registered for t (session 0x5)"
    (line,) = zkaudit(*words, "--timeline", "--json", status=2)[-1:]
    assert "--json and --timeline cannot be used together" in line


def test_a_range_of_time_and_topics(tmp_path: Path, zkaudit: Any) -> None:
    """``--from`` is the first moment that counts, ``--to`` the first that does not. Owners and
    offsets from before are known. Other topics are left out, but not the members."""
    h = whole()
    h.claim("g", 0, "b", 6, topic="u")
    write_log(tmp_path, h.rows)
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    begin, end = moment(h.rows[6]), moment(h.rows[8])
    lines = zkaudit(*words, "--from", begin, "--to", end)
    assert lines[0].startswith("Asked: 2026-11-21 00:00:07 to 2026-11-21 00:00:09. Covered: ")
    assert texts(lines) == [
        "t-0: offset 10 -> 20 by its owner a",
        "member b registered for topics that match t.* (session 0x6)",
    ]
    assert texts(zkaudit(*words, "--topic", "u", "--from", moment(h.rows[11]))) == [
        "member a left: its session 0x5 expired; no longer owned: t-0",
        "member b left: it deleted its registration",
        "u-0 claimed by b",
    ]
    nothing = zkaudit(*words, "--from", moment(h.rows[6], 1), "--to", moment(h.rows[7]))
    assert nothing[-1] == "no changes of the group in this time"


def test_time_that_no_log_covers_is_said_first(tmp_path: Path, zkaudit: Any) -> None:
    """The first lines have the time that was asked for, what the logs cover, and what they do
    not. A time apart from the logs is an error."""
    h = whole()
    write_log(tmp_path, h.rows)
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    lines = zkaudit(*words, "--to", "2026-11-22")
    assert lines[:2] == [
        "Asked: until 2026-11-22 00:00:00. Covered: 2026-11-21 00:00:01 to 2026-11-21 00:00:14 "
        f"UTC, by {tmp_path}.",
        "What happened from 2026-11-21 00:00:14 to 2026-11-22 00:00:00 (UTC) is unknown: the logs "
        "end earlier.",
    ]
    (line,) = zkaudit(*words, "--from", "2026-11-22", status=2)
    assert "--from 2026-11-22 00:00:00+00:00: the logs end before that, at 2026-11-21" in line
    at = ("--at", "2026-11-22")
    (line,) = zkaudit("who", "g", "t-0", *words[2:], *at, status=2)
    assert line.startswith("error: --at 2026-11-22")
    (*_, line) = zkaudit(*words, "--from", "2026-11-22", "--to", "2026-11-21", status=2)
    assert "is not after --from" in line
    (*_, line) = zkaudit(*words, "--from", "yesterday", status=2)
    assert "'yesterday' is not an ISO time" in line


def test_times_of_another_zone(tmp_path: Path, zkaudit: Any) -> None:
    """Options without a zone are of ``--timezone``, and so is the output."""
    h = whole()
    write_log(tmp_path, h.rows)
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1, "--timezone")
    lines = zkaudit(*words, "Asia/Tokyo", "--from", "2026-11-21T09:00:14")
    assert lines[0].startswith("Asked: from 2026-11-21 09:00:14. Covered: 2026-11-21 09:00:01 to ")
    assert " Asia/Tokyo, by " in lines[0]
    assert lines[1:] == ["2026-11-21 09:00:14.000  0xe  member b left: it deleted its registration"]
    (*_, line) = zkaudit(*words, "Berlin", status=2)
    assert "'Berlin' is not a time zone such as Europe/Berlin" in line


def test_a_clock_shows_milliseconds_in_any_order() -> None:
    """Times need not be in order, and may be before 1970."""
    clock = Clock("UTC", UTC)
    times = (1_500_000, 2_000_000, 1_501_999, -1, 1_500_000)
    assert [clock.shown(us)[17:] for us in times] == [
        "01.500", "02.000", "01.501", "59.999", "01.500",
    ]  # fmt: skip
    assert clock.shown(None) == f"{'-':23}"


def test_the_writes_of_a_mirror_are_named(tmp_path: Path, zkaudit: Any) -> None:
    """Its offsets, and what it has agreed on. Others in the same session are not."""
    h = History()
    h.mirror("g", (), 6)
    h.mirror("g", (20,), 6)
    h.commit("g", 0, 30, 6, version=2)
    h.add("delete", 6, "/consumers/g/record/lease")
    write_log(tmp_path, h.rows)
    lines = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))
    six = "session 0x6 (not a member's)"
    agreed = f"record of the migration (record/mirror) written by {six}"
    assert lines == [
        agreed,
        agreed,
        f"t-0: offset ? -> 20 by the group's mirror, {six}; no member owned it",
        f"t-0: offset 20 -> 30 by {six}; no member owned it",
        f"record of the migration (record/lease) deleted by {six}",
    ]
    rows = read(Question([str(tmp_path)], "g", servers=1)).rows.select(["path", "data"]).to_pylist()
    mirror = "/consumers/g/record/mirror"  # its content, which is long, is not even read
    assert [row["data"] for row in rows if row["path"] == mirror] == [None, None]
    assert sum(row["data"] is None for row in rows) == 3


def test_what_is_not_understood_is_named(tmp_path: Path, zkaudit: Any) -> None:
    """Owners in another client's layout, unknown znodes, contents that are no offsets, modes that
    are no modes. Parents of partitions are not worth a line until they are deleted."""
    h = History()
    h.join("g", "a", 5)
    for path in ("owners", "owners/t", "offsets", "offsets/t"):
        h.add("create", 5, f"/consumers/g/{path}", data=b"", ephemeral=False)
    h.add("create", 6, f"{OWNERS}/b't'/0-1", data=b"x", ephemeral=True)
    h.add("create", 6, "/consumers/g/state", data=b"\x1b[2Jnew", ephemeral=False)
    h.add("setData", 6, "/consumers/g/state", data=b"y" * 200, version=1)
    h.add("create", 6, f"{OFFSETS}/t/0", data=b"ten", ephemeral=False)
    h.add("setData", 6, f"{OFFSETS}/t/0", data=b"-1", version=1)
    h.add("create", 7, "/consumers/g/live/mode", data=b'{"version":1,"mode":"x"}', ephemeral=False)
    h.move("g", "kafka", 7)
    h.add("delete", 7, "/consumers/g/migration")
    h.add("setData", 7, f"{OWNERS}/t/0", data=b"b-0", version=1)
    h.add("delete", 7, f"{OFFSETS}/t/0")
    h.add("delete", 7, f"{OFFSETS}/t")
    h.add("setACL", 7, "/consumers/g/ids", version=1)
    h.add("create", 8, f"{OWNERS}/t/1", data=b"c-0", ephemeral=False)
    write_log(tmp_path, h.rows)
    lines = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))[1:]
    six, seven = "session 0x6 (not a member's)", "session 0x7 (not a member's)"
    assert lines[:6] == [
        f"{six} claimed t-1 in another client's layout, which members ignore: {OWNERS}/b't'/0-1",
        f"not understood: {six} created /consumers/g/state with '\\x1b[2Jnew'",
        f"not understood: {six} wrote /consumers/g/state with '{'y' * 60}'...",
        f"t-0: offset none -> 'ten', which is not an offset by {six}; no member owned it",
        f"t-0: offset 'ten' -> '-1', which is not an offset by {six}; no member owned it",
        f'{seven} wrote \'{{"version":1,"mode":"x"}}\' as the live mode: '
        "/consumers/g/live/mode names no mode that this version knows",
    ]
    claimed = lines.pop()
    assert claimed.startswith("t-1 claimed by c with a znode that is not ephemeral")
    assert lines[6:] == [
        f"migration marker: offsets moved to kafka, written by {seven}",
        f"migration marker deleted by {seven}",
        f"{seven} wrote 'b-0' into the owner znode of t-0",
        f"t-0: offset deleted by {seven}",
        f"{OFFSETS}/t deleted by {seven}",
        f"access list of /consumers/g/ids changed by {seven}",
    ]


def test_a_brokers_session_writes_for_its_clients(tmp_path: Path, zkaudit: Any) -> None:
    """An offset that arrives through a broker is not said to be the broker's decision."""
    h = History()
    h.add("create", 3, "/brokers/ids/7", data=b"{}", ephemeral=True)
    h.add("create", 3, f"{OFFSETS}/t/0", data=b"10", ephemeral=False)
    write_log(tmp_path, h.rows)
    lines = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))
    assert lines == [
        "t-0: offset none -> 10, written by broker 7 for a client that commits through brokers"
    ]


def test_partitions_that_are_added(tmp_path: Path, zkaudit: Any) -> None:
    """A topic's line has the number of partitions before and after."""
    h = History()
    h.topic("t", 2)
    h.join("g", "a", 5)
    for partitions in (2, 4):
        data = json.dumps({"partitions": dict.fromkeys(map(str, range(partitions)))}).encode()
        h.add("setData", 7, "/brokers/topics/t", data=data, version=1)
    h.add("delete", 7, "/brokers/topics/t")
    h.topic("other", 3)
    write_log(tmp_path, h.rows)
    assert texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)) == [
        "topic t created with 2 partitions",
        "member a registered for t (session 0x5)",
        "topic t: 2 -> 4 partitions",
        "topic t deleted by session 0x7 (not a member's)",
    ]


def test_a_group_below_several_chroots(tmp_path: Path, zkaudit: Any) -> None:
    """Each line names the chroot, and each partition has an answer of its own."""
    h = History()
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 6, f"/kafka{OWNERS}/t/0", data=b"b-0", ephemeral=True)
    h.add("create", 6, f"/kafka/consumers/g2{OWNERS[12:]}/t/0", data=b"b-0", ephemeral=True)
    write_log(tmp_path, h.rows)
    lines = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))
    assert [line.split("]")[0] for line in lines] == ["[/", "[/", "[/kafka"]
    words = ("--zookeeper-logs", tmp_path, "--servers", 1, "--at", moment(h.rows[-1]), "--json")
    answers = [json.loads(line) for line in zkaudit("who", "g", "t-0", *words)]
    assert [(row["chroot"], row["member"]) for row in answers] == [("", "a"), ("/kafka", "b")]


def owner(zkaudit: Any, place: Path, at: str, *more: object) -> tuple[Any, ...]:
    """Who owned t-0, since and until when, and the offset."""
    words = ("--zookeeper-logs", place, "--servers", 1, "--at", at, "--json", *more)
    (line,) = zkaudit("who", "g", "t-0", *words)
    row = json.loads(line)
    return tuple(row[name] for name in ("owner_state", "member", "start_zxid", "end_zxid", "ended",
                                        "committed_offset", "offset_zxid"))  # fmt: skip


def test_who_owned_a_partition(tmp_path: Path, zkaudit: Any) -> None:
    """Just at its claim the member is the owner, just at its end it is not."""
    h = whole()
    write_log(tmp_path, h.rows)
    held = ("owner", "a", "0x4", "0xc", "expired")
    free = ("none", None, None, None, None)
    for number, at, wanted in (
        (1, 0, (*free, None, None)),
        (4, -1, (*free, None, None)),
        (4, 0, (*held, None, None)),
        (6, 0, (*held, 10, "0x6")),
        (7, 0, (*held, 20, "0x7")),
        (11, 0, (*held, 15, "0xb")),
        (12, -1, (*held, 15, "0xb")),
        (12, 0, (*free, 15, "0xb")),
        (14, 0, (*free, 15, "0xb")),
    ):
        assert owner(zkaudit, tmp_path, moment(h.rows[number - 1], at)) == wanted, (number, at)


def test_who_in_words(tmp_path: Path, zkaudit: Any) -> None:
    """The answer for people has the session, its address, and how the ownership ended."""
    h = whole()
    write_log(tmp_path / "zk", h.rows)
    texts = tmp_path / "server.log"
    texts.write_text(
        "2026 INFO Established session 0x5 with negotiated timeout 6000 for client /10.0.0.7:51\n"
        "2026 INFO Established session 0x6 with negotiated timeout 6000 for client /10.0.0.8:52\n"
    )
    words = ("who", "g", "t-0", "--zookeeper-logs", tmp_path / "zk", "--servers", 1, "--at")
    lines = zkaudit(*words, moment(h.rows[10]), "--server-logs", texts)
    assert lines == [
        "partition  t-0 of group g at 2026-11-21 00:00:11.000 (UTC), after transaction 0xb",
        "owner      a",
        "session    0x5, opened 2026-11-21 00:00:02.000 at server 0, timeout 6000 ms",
        "address    10.0.0.7:51",
        "since      2026-11-21 00:00:04.000, transaction 0x4",
        "until      2026-11-21 00:00:12.000, transaction 0xc: its session expired",
        "offset     15, written 2026-11-21 00:00:11.000, transaction 0xb by session 0x9 (not a "
        "member's)",
        f"Covered: 2026-11-21 00:00:01 to 2026-11-21 00:00:14 UTC, by {tmp_path / 'zk'}.",
    ]
    lines = zkaudit(*words, moment(h.rows[13]))
    assert lines[1] == "owner      none since 2026-11-21 00:00:12.000, transaction 0xc"
    lines = zkaudit(*words[:2], "t-1", *words[3:], moment(h.rows[11]))
    assert lines[5] == (
        "until      2026-11-21 00:00:13.000, transaction 0xd: session 0x8 (not a member's) deleted "
        "the owner znode"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("log", "f"), "f: the logs have no group of this name: did you mean ff?"),
        (("log", "zebra"), "zebra: the logs have no group of this name: they have ff, g"),
        (("who", "g", "t-7"), "t-7: the logs do not show this partition: for t they show "
         "partitions 0 to 1"),
        (("who", "g", "u-0"), "u-0: the logs do not show this partition: they show topic t"),
        (("who", "g", "t"), "'t' is not TOPIC-PARTITION, such as orders-3"),
        (("who", "ff", "t-0"), "they show no partition of this group"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_an_error_with_the_right_ones(
    words: tuple[str, ...], text: str, tmp_path: Path, zkaudit: Any
) -> None:
    """A group or partition that is not in the logs ends with status 2 and what the logs have."""
    h = whole()
    h.join("ff", "c", 10)
    write_log(tmp_path, h.rows)
    at = ("--at", moment(h.rows[5])) if words[0] == "who" else ()
    lines = zkaudit(*words, "--zookeeper-logs", tmp_path, "--servers", 1, *at, status=2)
    assert text in lines[-1]


@pytest.mark.parametrize(
    ("words", "missing"),
    [(("log",), "GROUP"), (("who", "--at", "2026-11-21"), "GROUP"),
     (("who", "g", "--at", "2026-11-21"), "TOPIC-PARTITION"), (("show",), "ZXID")],
)  # fmt: skip
def test_an_argument_behind_the_directories(
    words: tuple[str, ...], missing: str, tmp_path: Path, zkaudit: Any
) -> None:
    """``--zookeeper-logs`` takes all words, so the error says where an argument goes, and so does
    the usage."""
    lines = zkaudit(*words, "--zookeeper-logs", tmp_path, "g", status=2)
    assert lines[0] in (
        "Usage: zkaudit log GROUP --zookeeper-logs DIR... [OPTIONS]",
        "Usage: zkaudit who GROUP TOPIC-PARTITION --zookeeper-logs DIR... [OPTIONS]",
        "Usage: zkaudit show ZXID --zookeeper-logs DIR... [OPTIONS]",
    )
    assert lines[-1].startswith(f"Error: {missing} is missing: write it before --zookeeper-logs")


def test_directories_without_logs(tmp_path: Path, zkaudit: Any) -> None:
    """A directory that does not exist, one without logs, and logs without transactions."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (line,) = zkaudit("log", "g", "--zookeeper-logs", empty, status=2)
    assert f"{empty}: no file log.<zxid>" in line
    (line,) = zkaudit("log", "g", "--zookeeper-logs", tmp_path / "none", status=2)
    assert "none" in line
    (empty / "log.1").write_bytes(b"")
    (line,) = zkaudit("log", "g", "--zookeeper-logs", empty, status=2)
    assert "the logs have no transaction" in line


def ensemble() -> tuple[list[dict[str, Any]], range]:
    """The history of three servers, and which rows only the killed leader of epoch 1 logged."""
    h = History()
    h.zxid = EPOCH
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 5, f"{OFFSETS}/t/0", data=b"10", ephemeral=False)
    begin = len(h.rows)
    h.release("g", 0, 5)
    h.commit("g", 0, 99, 9, version=1)
    alone = range(begin, len(h.rows))
    h.zxid = 2 << 32
    h.commit("g", 0, 20, 5, version=1)
    h.commit("g", 0, 30, 5, version=2)
    return h.rows, alone


def test_transactions_that_were_rolled_back(tmp_path: Path, zkaudit: Any) -> None:
    """What only a killed leader logged is a line at its place, and changes nothing after it."""
    rows, alone = ensemble()
    rest = [row for number, row in enumerate(rows) if number not in alone]
    write_log(tmp_path / "zk1", rows[: alone.stop])
    for name in ("zk2", "zk3"):
        write_log(tmp_path / name, rest)
    words = ("--zookeeper-logs", *(tmp_path / name for name in ("zk1", "zk2", "zk3")))
    assert texts(zkaudit("log", "g", *words))[2:] == [
        "t-0: offset none -> 10 by its owner a",
        "left out: 2 transactions, 0x100000004 to 0x100000005, rolled back when a leader changed",
        "t-0: offset 10 -> 20 by its owner a",
        "t-0: offset 20 -> 30 by its owner a",
    ]
    (line,) = zkaudit("who", "g", "t-0", *words, "--at", moment(rows[alone.start + 1]), "--json")
    assert json.loads(line)["member"] == "a"


@pytest.mark.parametrize("place", ["logs", "snapshot"])
def test_five_voters_of_which_three_logs_are_given(
    tmp_path: Path, zkaudit: Any, place: str
) -> None:
    """The newest configuration, of the logs or a snapshot, names five voters. So what only one of
    the three logs has may have been committed, and later versions show that it was."""
    h = History()
    h.zxid = EPOCH
    names = "".join(f"server.{n}=h:1:2:participant;0.0.0.0:3\n" for n in range(1, 6))
    config = "/zookeeper/config" if place == "logs" else "/config"
    h.add("setData", 0, config, data=names.encode(), version=1)
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 5, f"{OFFSETS}/t/0", data=b"10", ephemeral=False)
    begin = len(h.rows)
    h.commit("g", 0, 99, 5, version=1)
    alone = len(h.rows)
    h.zxid = 2 << 32
    h.commit("g", 0, 100, 5, version=2)
    h.zxid = 3 << 32
    h.commit("g", 0, 110, 5, version=3)
    rest = [*h.rows[:begin], *h.rows[alone:]]
    for name, rows in (("zk1", rest), ("zk2", rest), ("zk3", h.rows[:alone])):
        write_log(tmp_path / name, rows)
    if place == "snapshot":
        nodes = ((path, names.encode(), (0,) * 9) for path in (b"", b"/zookeeper/config"))
        (tmp_path / "zk2" / f"snapshot.{h.zxid:x}").write_bytes(snapshot_of(nodes))
    words = ("--zookeeper-logs", *(tmp_path / name for name in ("zk1", "zk2", "zk3")))
    assert texts(zkaudit("log", "g", *words))[3:] == [
        "t-0: offset 10 -> 99 by its owner a",
        "t-0: offset 99 -> 100 by its owner a",
        "t-0: offset 100 -> 110 by its owner a [may never have been committed]",
    ]


def test_transactions_in_doubt_are_marked(tmp_path: Path, zkaudit: Any) -> None:
    """The killed leader's log alone: nothing shows whether its last transactions were applied.
    Changes of access lists are marked, too."""
    rows, alone = ensemble()
    last = rows[alone.stop - 1]
    access = last | {"zxid": last["zxid"] + 1, "type": "setACL", "path": "/consumers/g/ids"}
    write_log(tmp_path, [*rows[: alone.stop], access])
    lines = zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 3)
    assert "access list of /consumers/g/ids changed by" in lines[-1]
    assert "6 transactions are not in a majority of the servers' logs" in lines[1]
    assert all(line.endswith(" [may never have been committed]") for line in lines[2:])
    lines = zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    assert not any("committed]" in line for line in lines)


def test_a_log_gap_is_a_line_at_its_place(tmp_path: Path, zkaudit: Any) -> None:
    """Behind a gap, what the logs do not show is unknown: the previous offset, the owner."""
    h = whole()
    h.commit("g", 0, 40, 6, version=3)
    write_log(tmp_path, h.rows[:7])
    write_log(tmp_path, h.rows[9:])
    lines = zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    assert lines[1] == (
        "What happened from 2026-11-21 00:00:07 to 2026-11-21 00:00:10 (UTC) is unknown: no log "
        "has zxids 0x8 to 0x9."
    )
    assert texts(lines)[6:9] == [
        "log gap: no log has the transactions 0x8 to 0x9",
        "t-1 claimed by b, whose registration is not in the logs (session 0x6)",
        "t-0: offset ? -> 15 by session 0x9 (never registered here); its owner is unknown",
    ]
    words = ("--zookeeper-logs", tmp_path, "--servers", 1, "--json", "--at")
    (line,) = zkaudit("who", "g", "t-0", *words, moment(h.rows[9]))
    row = json.loads(line)
    assert (row["owner_state"], row["committed_offset"]) == ("unknown", None)
    assert row["not_known"] == ["A log gap hides whether the partition had an owner."]
    (line,) = zkaudit("who", "g", "t-0", *words, moment(h.rows[6], 1))
    row = json.loads(line)
    assert (row["owner_state"], row["zxid"], row["not_known"]) == (
        "unknown",
        "0x7",
        [
            "This time is in a log gap: no log has the transactions 0x8 to 0x9. Before it, at 0x7, "
            "the owner was a."
        ],
    )
    between = texts(zkaudit("log", "g", *words[:4], "--from", moment(h.rows[6], 1)))
    assert between[0] == "log gap: no log has the transactions 0x8 to 0x9"


def test_logs_that_begin_with_a_snapshot(tmp_path: Path, zkaudit: Any) -> None:
    """What a snapshot shows is known: the owner, and the offset before the first write."""
    h = whole()
    place = tmp_path / "version-2"
    write_log(place, h.rows[7:])
    (place / "snapshot.7").write_bytes(snapshot_after(h.rows[:7]))
    lines = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))
    assert lines[:2] == [
        "the logs begin here: what happened before is unknown",
        "a snapshot shows session 0x5 of member a; it owned t-0 to 1",
    ]
    assert lines[3:6] == [
        "t-1 released by a",
        "t-1 claimed by b",
        "t-0: offset 20 -> 15 (back by 5) by session 0x9 (never registered here); its owner was a",
    ]
    at = moment(h.rows[8])
    held = ("owner", "a", "0x4", "0xc", "expired", 20, "0x7")
    assert owner(zkaudit, tmp_path, at) == held


def test_an_owner_that_only_the_end_of_its_session_shows(tmp_path: Path, zkaudit: Any) -> None:
    """The logs begin late, and the end of the session lists its znodes."""
    h = History()
    h.zxid = 10
    h.add("setData", 7, "/other", version=1, data=b"")
    paths = [f"{OWNERS}/t/0", "/consumers/g/ids/a"]
    h.add("closeSession", 5, cxid=0, deleted=paths)
    write_log(tmp_path, h.rows)
    held = ("owner", "a", None, "0xc", "expired", None, None)
    assert owner(zkaudit, tmp_path, moment(h.rows[0])) == held
    (line,) = texts(zkaudit("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1))[1:]
    assert line == "member a left: its session 0x5 expired; no longer owned: t-0"


def test_only_the_logs_of_a_time_are_read(
    tmp_path: Path, zkaudit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``who`` reads from the snapshot before the time, and later logs only to see how the ownership
    ended. Damage in logs that are not read does not matter."""
    h = History()
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5)
    h.add("create", 5, f"{OFFSETS}/t/0", data=b"10", ephemeral=False)
    h.add("setData", 7, "/other", version=1, data=b"", seconds=10_000)
    h.commit("g", 0, 20, 5, version=1, seconds=10_000)
    h.add("setData", 7, "/other", version=1, data=b"", seconds=10_000)
    h.release("g", 0, 5)
    write_log(tmp_path, h.rows[:3])
    write_log(tmp_path, h.rows[3:5])
    write_log(tmp_path, h.rows[5:])
    (tmp_path / "snapshot.3").write_bytes(snapshot_after(h.rows[:3]))
    at = moment(h.rows[4])
    opened: list[str] = []
    from zkaudit.decode import batches

    real = batches.opened
    monkeypatch.setattr(batches, "opened", lambda path: opened.append(str(path)) or real(path))
    assert owner(zkaudit, tmp_path, at) == ("owner", "a", "0x2", "0x7", "released", 20, "0x5")
    read = [Path(path).name for path in opened if "log." in path]
    assert read == ["log.4", "log.4", "log.6"]
    opened.clear()
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    assert texts(zkaudit(*words, "--from", at, "--to", moment(h.rows[4], 1))) == [
        "t-0: offset 10 -> 20 by its owner a"
    ]
    assert [Path(path).name for path in opened if "log." in path] == ["log.4"]


def test_a_damaged_log_of_one_server(tmp_path: Path, zkaudit: Any) -> None:
    """The other server has what follows the damage. Alone, the damaged log is an error, or with
    ``--allow-damage`` a log gap."""
    h = whole()
    log = write_log(tmp_path / "zk1", h.rows)
    write_log(tmp_path / "zk2", h.rows)
    content = bytearray(log.read_bytes())
    at = content.index(b"setData") if b"setData" in content else content.rindex(b"owners/t/1") + 3
    content[at] ^= 1
    log.write_bytes(content)
    words = ("--zookeeper-logs", tmp_path / "zk1", tmp_path / "zk2")
    lines = zkaudit("log", "g", *words)
    assert len(texts(lines)) == 13
    assert any("this log is read only up to there" in line for line in lines)
    (line,) = zkaudit("log", "g", "--zookeeper-logs", tmp_path / "zk1", status=1)
    assert "accept a log gap with --allow-damage" in line
    alone = zkaudit("log", "g", "--zookeeper-logs", tmp_path / "zk1", "--allow-damage")
    assert len(texts(alone)) == 11


def test_the_clock_of_the_next_leader_is_behind(tmp_path: Path, zkaudit: Any) -> None:
    """A time that occurs twice is answered for its second occurrence, and the answer says so."""
    h = History()
    h.zxid = EPOCH
    h.join("g", "a", 5)
    h.claim("g", 0, "a", 5, seconds=100)
    h.zxid = 2 << 32
    h.release("g", 0, 5, seconds=-60)
    h.claim("g", 0, "b", 6, seconds=100)
    write_log(tmp_path, h.rows)
    words = ("--zookeeper-logs", tmp_path, "--servers", 1, "--json", "--at", moment(h.rows[2], 1))
    (line,) = zkaudit("who", "g", "t-0", *words)
    row = json.loads(line)
    assert row["owner_state"] == "none"
    assert ["occurs twice" in text for text in row["not_known"]] == [True]


BLOCKED = """
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
sys.argv = ["zkaudit", *sys.argv[1:]]
from zkaudit.cli import main
main()
"""


def alone(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that cannot import Spark, and finds no Java."""
    path = f"{ROOT}{os.pathsep}{ROOT / 'spark'}"
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *map(str, words)],
        env={"PYTHONPATH": path, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_neither_spark_nor_java_is_needed(tmp_path: Path) -> None:
    """``log``, ``who``, ``show`` and the help of all commands work without Spark; ``run`` names
    what to install."""
    h = whole()
    write_log(tmp_path, h.rows)
    logs = ("--zookeeper-logs", tmp_path)
    at = ("--at", moment(h.rows[5]))
    for words in (("log", "g", *logs), ("who", "g", "t-0", *logs, *at), ("show", "0x3", *logs),
                  ("--help",), ("run", "--help"), ("stream", "--help")):  # fmt: skip
        done = alone(*words)
        assert (done.returncode, done.stderr) == (0, ""), words
    done = alone("run", *logs, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr == "error: zkaudit needs pyspark: in a clone run pip install '.[audit]'\n"


@contextmanager
def printing(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that waits because its first lines were read and the rest are not."""
    h = whole()
    for offset in range(20_000):
        h.commit("g", 0, offset, 5, version=3 + offset, seconds=0)
    write_log(place, h.rows)
    script = "from zkaudit.cli import main; main()"
    words = ("log", "g", "--zookeeper-logs", str(place))
    with subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'spark'}"},
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline()
        yield command
        assert command.wait(timeout=60) is not None


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    """If the reader exits, as ``| head`` does, the command ends with status 141 and no message."""
    with printing(tmp_path) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141


def test_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C ends the command with status 130 and one word."""
    with printing(tmp_path) as command:
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=60)[1] == b"\ninterrupted\n"
    assert command.returncode == 130


def test_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zkaudit: Any) -> None:
    """Long lines continue below, indented, and nothing is lost."""
    h = whole()
    write_log(tmp_path, h.rows)
    words = ("log", "g", "--zookeeper-logs", tmp_path, "--servers", 1)
    wide = texts(zkaudit(*words))
    for module in ("log", "who"):
        monkeypatch.setattr(f"zkaudit.commands.{module}.narrow", lambda: 40)
    lines = zkaudit(*words)[1:]
    assert max(map(len, lines)) <= 40
    assert textwrap.dedent("\n".join(lines)).count("2026-11-21") == len(wide)
    joined = " ".join(" ".join(lines).split())
    for text in wide:
        assert text in joined
    lines = zkaudit("who", "g", "t-0", *words[2:], "--at", moment(h.rows[10]))
    assert max(len(line) for line in lines if not line.startswith("Covered")) <= 40
