"""The group tools on a real ZooKeeper: ports of the JVM tools' tests, and hostile znodes.

Members are znodes that the test writes. ``test_admin_jvm`` has real members, and
``tests/unit/test_admin_changes.py`` other clients that make changes meanwhile.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from zkconsumer.admin.describe import GroupRow
from zkconsumer.admin.tools import GroupTools
from zkconsumer.admin.verifier import Kind
from zkconsumer.cli.main import run
from zkconsumer.core.zookeeper.ops import (
    Code,
    Delete,
    Exists,
    Failed,
    GetChildren,
    Ok,
)
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.errors import (
    ChrootMissingError,
    GroupError,
    UnknownGroupError,
    ZkUnavailableError,
)
from zkconsumer.servers import LocalZooKeeper, free_port
from zkconsumer.zk.blocking import BlockingZk

EXPORT = ("offsets", "export", "--all")


@pytest.fixture
def zk(chroot: str) -> Iterator[KazooClient]:
    """A session in an empty chroot. Its ephemeral znodes stand for members."""
    client = KazooClient(chroot)
    client.start(timeout=15)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def tools(chroot: str) -> Iterator[GroupTools]:
    """The group tools, connected to that chroot."""
    with GroupTools(chroot, timeout=15) as opened:
        yield opened


def fill(
    zk: KazooClient,
    group: str,
    topics: tuple[str, ...] = ("orders",),
    member: str | None = None,
    partitions: int = 1,
) -> None:
    """Create a group with offsets and owner directories. With ``member`` it also has a live
    member."""
    zk.ensure_path(f"/consumers/{group}/ids")
    if member is not None:
        names = ",".join(f'"{topic}":1' for topic in topics)
        text = f'{{"version":1,"subscription":{{{names}}},"pattern":"static","timestamp":"1"}}'
        zk.create(f"/consumers/{group}/ids/{member}", text.encode(), ephemeral=True)
    for topic in topics:
        for kind in ("owners", "offsets"):
            zk.ensure_path(f"/consumers/{group}/{kind}/{topic}")
        with zk.transaction() as many:
            for number in range(partitions):
                many.create(f"/consumers/{group}/offsets/{topic}/{number}", b"%d" % (10 + number))
                if member is not None:
                    path = f"/consumers/{group}/owners/{topic}/{number}"
                    many.create(path, f"{member}-0".encode(), ephemeral=True)


def topic_znodes(zk: KazooClient, topic: str, partitions: int = 1) -> None:
    """Create a topic as the controller does. Its leader is a broker that does not exist."""
    replicas = {str(number): [0] for number in range(partitions)}
    content = json.dumps({"version": 1, "partitions": replicas}).encode()
    zk.create(f"/brokers/topics/{topic}", content, makepath=True)
    state = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":2,"isr":[0]}'
    for number in range(partitions):
        zk.create(f"/brokers/topics/{topic}/partitions/{number}/state", state, makepath=True)


def tree(zk: KazooClient, path: str = "/consumers") -> set[str]:
    """All paths below a znode."""
    if zk.exists(path) is None:
        return set()
    found, waiting = {path}, [path]
    while waiting:
        asked = [(one, zk.get_children_async(one)) for one in waiting]
        waiting = [f"{one}/{name}" for one, answer in asked for name in answer.get(timeout=15)]
        found.update(waiting)
    return found


# -- ListConsumerGroupTest ---------------------------------------------------------------------


def test_list_old_consumer_groups(zk: KazooClient, tools: GroupTools) -> None:
    """ListConsumerGroupTest.testListOldConsumerGroups: both groups, with members and topics."""
    fill(zk, "test.group")
    fill(zk, "other", ("a", "b"), member="other_c1")
    assert list(tools.counts(tools.group_names())) == [("other", 1, 2), ("test.group", 0, 1)]


def test_list_group_with_no_existing_group(tools: GroupTools) -> None:
    """ListConsumerGroupTest.testListGroupWithNoExistingGroup: an empty list, no error."""
    assert tools.group_names() == []


# -- Many groups -------------------------------------------------------------------------------


def test_reading_many_groups_takes_few_requests(
    zk: KazooClient, tools: GroupTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names need one request, counts one for 200 lists, and descriptions less than one for five
    groups. The first rows do not wait for the last group."""
    groups = [f"g{number:03}" for number in range(300)]
    for group in groups:
        fill(zk, group, partitions=2)
    driver = tools._zk._driver

    def requests(read: Callable[[], object]) -> int:
        before = driver.operations
        read()
        return driver.operations - before

    assert requests(lambda: tools.group_names()) == 1
    counts: list[object] = []
    assert requests(lambda: counts.extend(tools.counts(groups))) <= 300 * 3 / 200 + 3
    assert counts == [(group, 0, 1) for group in groups]
    rows: list[GroupRow] = []
    assert requests(lambda: rows.extend(tools.describe(groups, lag=False))) <= 60
    assert [row[:4] for row in rows] == [
        (group, "orders", number, 10 + number) for group in groups for number in range(2)
    ]
    monkeypatch.setattr("zkconsumer.zk.blocking.AT_ONCE", 30)
    monkeypatch.setattr("zkconsumer.admin.snapshot._BATCH", 100)
    described = tools.describe(groups, lag=False)
    first = requests(lambda: next(described))
    following: list[GroupRow] = []
    assert first < requests(lambda: following.extend(described)) / 3
    assert following == rows[1:]


# -- DescribeConsumerGroupTest -----------------------------------------------------------------


def test_describe_non_existing_group(zk: KazooClient, tools: GroupTools) -> None:
    """DescribeConsumerGroupTest.testDescribeNonExistingGroupWithOldConsumer: the error names groups
    with similar names. The JVM's tool prints no rows."""
    fill(zk, "test.group")
    with pytest.raises(UnknownGroupError, match=r"no group missing\.group .*"):
        list(tools.describe(["missing.group"]))
    with pytest.raises(UnknownGroupError, match=r"did you mean test\.group\?"):
        list(tools.describe(["test.gruop"]))


def test_describe_existing_group(zk: KazooClient, tools: GroupTools) -> None:
    """DescribeConsumerGroupTest.testDescribeExistingGroupWithOldConsumer: one row with owner."""
    topic_znodes(zk, "orders")
    fill(zk, "g", member="g_c1")
    (row,) = tools.describe(["g"])
    assert row == ("g", "orders", 0, 10, None, None, "g_c1-0", "", "")
    hint, note = tools.notes
    assert "ZooKeeper lists no broker that can be used: give one with --bootstrap-server" in hint
    assert note == "broker 0 has no usable registration: no log end of 1 partition"


# -- DeleteConsumerGroupTest -------------------------------------------------------------------


def test_group_wide_delete(zk: KazooClient, tools: GroupTools) -> None:
    """DeleteConsumerGroupTest.testGroupWideDeleteInZK: the whole tree of an inactive group is
    deleted. Another group is untouched, and showing the plan changes nothing."""
    fill(zk, "gone", ("a", "b"), partitions=3)
    fill(zk, "stays", ("a",))
    before, others = tree(zk), tree(zk, "/consumers/stays")
    plan = tools.plan_delete("gone")
    assert tree(zk) == before
    deleted = tools.delete("gone")
    assert set(deleted.paths) == set(plan.paths) == tree_without_ids(before, "gone")
    assert tree(zk) == {"/consumers"} | others


def tree_without_ids(paths: set[str], group: str) -> set[str]:
    """A group's paths without its ``ids``, which guards the deletion."""
    root = f"/consumers/{group}"
    return {path for path in paths if (path + "/").startswith(root + "/") and path != f"{root}/ids"}


def test_topic_delete_for_a_group_with_one_topic(zk: KazooClient, tools: GroupTools) -> None:
    """DeleteConsumerGroupTest.testGroupTopicWideDeleteInZKForGroupConsumingOneTopic: if its only
    topic is deleted, the whole group is removed."""
    fill(zk, "gone", ("orders",))
    fill(zk, "stays", ("orders",))
    assert tools.delete("gone", "orders").whole
    assert tree(zk) == {"/consumers"} | tree(zk, "/consumers/stays")


def test_topic_delete_for_a_group_with_several_topics(zk: KazooClient, tools: GroupTools) -> None:
    """DeleteConsumerGroupTest.testGroupTopicWideDeleteInZKForGroupConsumingMultipleTopics: only
    that topic's owners and offsets are deleted. Other topics and groups stay."""
    fill(zk, "g", ("a", "b"), partitions=2)
    fill(zk, "other", ("a",))
    before = tree(zk)
    tools.delete("g", "a")
    gone = {path for path in before if path.startswith("/consumers/g/") and "/a" in path[13:]}
    assert len(gone) == 4
    assert tree(zk) == before - gone


def test_topic_wide_delete(
    zk: KazooClient, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeleteConsumerGroupTest.testTopicWideDeleteInZK: all groups lose the topic and keep their
    other topic. An active group is skipped and named, and the status is 1."""
    for group in ("one", "two"):
        fill(zk, group, ("a", "b"))
    assert run(["groups", "delete", "--all", "--topic", "a", "--zookeeper", chroot]) == 0
    assert "dry run" in capsys.readouterr().err
    before = tree(zk)
    arguments = ["groups", "delete", "--all", "--topic", "a", "--execute", "--zookeeper", chroot]
    assert run(arguments) == 0
    assert not any(path.split("/")[4:5] == ["a"] for path in tree(zk))
    assert len(before) - len(tree(zk)) == 6
    fill(zk, "live", ("a", "b"), member="live_c")
    assert run(arguments) == 1
    assert "live_c" in capsys.readouterr().err


def test_a_large_group_is_deleted_in_several_packets(zk: KazooClient, tools: GroupTools) -> None:
    """All znodes are deleted, even if one request cannot carry them all and some are below
    partitions."""
    fill(zk, "g", ("a", "b" * 200), partitions=1500)
    zk.create("/consumers/g/offsets/a/0/below", b"", makepath=True)
    steps: list[int] = []
    deleted = tools.delete("g", progress=steps.append)
    assert len(steps) > 1
    assert sum(steps) == len(deleted.paths)
    assert tree(zk) == {"/consumers"}


# -- export and import -------------------------------------------------------------------------


def test_a_group_moves_through_a_file(
    zk: KazooClient, chroot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After export and delete, a dry run of the import changes nothing. ``--execute`` restores all
    offsets, and a second import has nothing to do."""
    fill(zk, "g", ("a", "b"), partitions=12)
    zk.set("/consumers/g/offsets/b/3", b" 8")
    zk.create("/consumers/g/offsets/b/0-1", b"8")
    file = tmp_path / "offsets"
    assert run([*EXPORT, "--out", str(file), "--zookeeper", chroot]) == 3
    notes = [line for line in capsys.readouterr().err.splitlines() if "is left out" in line]
    assert [note.split(" ")[1].rstrip(":") for note in notes] == [
        "/consumers/g/offsets/b/0-1",
        "/consumers/g/offsets/b/3",
    ]
    lines = file.read_text().splitlines()
    assert lines[:3] == [f"/consumers/g/offsets/a/{n}:{10 + n}" for n in range(3)]
    assert len(lines) == 23
    assert run([*EXPORT, "--out", str(file), "--zookeeper", chroot]) == 2
    assert "exists: name a new file" in capsys.readouterr().err

    zk.delete("/consumers/g", recursive=True)
    before = tree(zk)
    command = ["offsets", "import", str(file), "--csv", "--zookeeper", chroot]
    assert run(command) == 0
    table = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert table[0] == ["group", "topic", "partition", "old", "new"]
    assert table[1] == ["g", "a", "0", "", "10"]
    assert len(table) == 24
    assert tree(zk) == before
    assert run([*command, "--execute"]) == 0
    assert zk.get("/consumers/g/offsets/b/11")[0] == b"21"
    capsys.readouterr()
    assert run([*command, "--execute"]) == 0
    assert "0 offsets to write, 23 are already correct" in capsys.readouterr().err
    assert run([*EXPORT, "--zookeeper", chroot]) == 0
    assert capsys.readouterr().out == file.read_text()


def test_a_file_with_one_bad_line_writes_nothing(
    zk: KazooClient, chroot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a file has one bad line, its good lines are not written either. The error names the
    line."""
    file = tmp_path / "bad"
    file.write_text("/consumers/g/offsets/a/0:1\n/consumers/g/offsets/a/1: 2\n")
    assert run(["offsets", "import", str(file), "--execute", "--zookeeper", chroot]) == 2
    assert f"error: {file}:2: ' 2' is not an offset" in capsys.readouterr().err
    assert tree(zk) == set()
    missing = tmp_path / "missing"
    assert run(["offsets", "import", str(missing), "--zookeeper", chroot]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_zookeeper_of_2014(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ZooKeeper 3.4 has no multi-read. A group with more znodes than one batch can still be
    described, verified, exported, rewritten and deleted."""
    with LocalZooKeeper("0.8.2") as old:
        client = KazooClient(old.zookeeper)
        client.start(timeout=15)
        fill(client, "g", ("a", "b"), partitions=1100)
        address = ["--zookeeper", old.zookeeper]
        assert run(["groups", "describe", "g", "--csv", *address]) == 0
        assert capsys.readouterr().out.splitlines()[2:4] == ["g,a,1,11,,,,", "g,a,2,12,,,,"]
        assert run(["groups", "verify", "g", *address]) == 0
        capsys.readouterr()
        assert run([*EXPORT, *address]) == 0
        file = tmp_path / "offsets"
        file.write_text(capsys.readouterr().out.replace(":10\n", ":5\n"))
        assert run(["offsets", "import", str(file), "--execute", *address]) == 0
        assert "2 offsets written" in capsys.readouterr().err
        assert client.get("/consumers/g/offsets/b/0")[0] == b"5"
        assert run(["groups", "delete", "g", "--topic", "a", "--execute", *address]) == 0
        assert client.get_children("/consumers/g/offsets") == ["b"]
        assert run(["groups", "delete", "g", "--execute", *address]) == 0
        assert client.get_children("/consumers") == []
        client.stop()
        client.close()


# -- hostile and broken ------------------------------------------------------------------------


def test_hostile_znodes_stop_nothing(
    zk: KazooClient, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With any znodes below /consumers, every command ends with a result. No command prints a
    control or bidirectional character."""
    seed = 20261121
    chance = random.Random(seed)
    topic_znodes(zk, "orders", 2)
    fill(zk, "g", member="g_c1", partitions=2)
    names = ["evil\u202e", "b'orders'", "0-1", "partition_0", "=1+1", "\u05d0", "x" * 300, "-1"]
    contents = [
        b"",
        b"\x00\x1b[2J",
        b"{}",
        b"[" * 10_000,
        b'{"subscription":{"(a+)+b":1},"pattern":"white_list"}',
        "\u202e".encode(),
        b"9" * 5000,
        b"\xff",
    ]
    for where in (
        "",
        "g/",
        "g/ids/",
        "g/owners/",
        "g/owners/orders/",
        "g/offsets/",
        "g/offsets/orders/",
        "g/offset/",
        "g/offset/orders/",
    ):
        for name in names:
            path = f"/consumers/{where}{name}"
            zk.create(path, chance.choice(contents), makepath=True)
    zk.create("/brokers/ids/7", b"\x00", makepath=True)
    zk.create("/brokers/topics/\u202ebad", b"[]")
    zk.create("/brokers/topics/worse", b'{"partitions":{"0":"x"}}')
    expected = {
        ("groups", "list"): 0,
        ("groups", "list", "--counts"): 0,
        ("groups", "list", "--state"): 0,
        ("groups", "describe", "--all"): 0,
        ("groups", "verify", "--all", "--strategy", "range"): 1,
        ("groups", "delete", "g"): 1,
        EXPORT: 3,
        ("topics", "list"): 0,
        ("topics", "describe"): 0,
    }
    for arguments, status in expected.items():
        assert run([*arguments, "--zookeeper", chroot, "--timeout", "15"]) == status, arguments
        printed = capsys.readouterr()
        text = printed.out + printed.err
        assert "Traceback" not in text
        assert all(character == "\n" or " " <= character <= "~" for character in text), arguments


def test_verify_names_a_foreign_member_and_exits_1(
    zk: KazooClient, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A healthy group gives status 0. With a pykafka registration next to it, the status is 1 and
    the member is named."""
    topic_znodes(zk, "orders", 2)
    fill(zk, "g", member="g_c1", partitions=2)
    command = ["groups", "verify", "g", "--no-lag", "--zookeeper", chroot]
    assert run(command) == 0
    assert capsys.readouterr() == ("", "groups verified: 1; errors: 0\n")
    zk.create("/consumers/g/ids/pykafka-1", b"orders", ephemeral=True)
    assert run([*command, "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["kind"] == Kind.QUARANTINED.value
    assert finding["where"] == "/consumers/g/ids/pykafka-1"
    assert "pykafka" in finding["what"]


def test_the_wrong_server_is_named(chroot: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No ZooKeeper, no chroot, a malformed address or unknown topics: one line and an exit
    status."""
    with pytest.raises(ZkUnavailableError), GroupTools(f"127.0.0.1:{free_port()}", 1):
        pass
    with pytest.raises(ChrootMissingError), GroupTools(f"{chroot}/missing", 15):
        pass
    assert run(["groups", "list", "--zookeeper", "a b"]) == 2
    assert capsys.readouterr().err.startswith("error: zookeeper: 'a b' is not host:port")
    with GroupTools(chroot) as tools, pytest.raises(GroupError, match="no topic nothing"):
        tools.describe_topics(["nothing"])


def test_scripts_run_at_once_and_in_order(zk: KazooClient, chroot: str) -> None:
    """The results of many scripts are in the given order, even if some take longer."""
    for number in range(30):
        fill(zk, f"g{number:02}", partitions=number % 7)

    def count(group: str, reads: int) -> Script[tuple[str, int]]:
        found = 0
        for _ in range(reads):
            reply = yield GetChildren(f"/consumers/{group}/offsets/orders")
            assert not isinstance(reply, Failed)
            assert isinstance(reply, Ok)
            found = len(reply.value)  # type: ignore[arg-type]
        return group, found

    with BlockingZk(chroot, 15) as blocking:
        scripts = (count(f"g{number:02}", 1 + (number * 5) % 9) for number in range(30))
        results = list(blocking.run_all(scripts))
        assert blocking.do(Exists("/consumers/missing")) == Ok(None)
        assert blocking.do(Delete("/consumers/g00")) == Failed(Code.NOT_EMPTY)
    assert results == [(f"g{number:02}", number % 7) for number in range(30)]
