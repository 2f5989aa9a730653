"""Commands that a user of Kafka's tools would type, on real servers and compared with those
tools."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaProducer

from tests.integration.test_admin_jvm import output, start
from tests.integration.test_consume_cli import consume
from zkconsumer import CoordinatorConsumerConnector
from zkconsumer.cli.main import run
from zkconsumer.servers import LocalCluster

CONSOLE = "kafka.tools.ConsoleConsumer"
GROUPS = "kafka.admin.ConsumerGroupCommand"
FORMAT = [
    *("--property", "print.key=true", "--property", "print.timestamp=true"),
    *("--property", "key.separator=|"),
]


@pytest.fixture
def filled(cluster: LocalCluster, topic: str) -> str:
    """A topic with one partition and five messages. Some keys, headers and values are null."""
    cluster.create_topic(topic, partitions=1)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    producer.send(topic, b"one", key=b"k", headers=[("a", b"1"), ("b", b"2")])
    producer.send(topic, b"two")
    producer.send(topic, None, key=b"gone")
    producer.send(topic, "drei \u00e4".encode(), key=b"")
    producer.send(topic, b"", key=b"last")
    producer.close(timeout=20)
    return topic


def test_lines_are_those_of_kafkas_console_consumer(
    cluster: LocalCluster, filled: str, group: str
) -> None:
    """With the same ``--property``, the lines equal those of Kafka 1.1 byte for byte. This holds
    for a group on the brokers, a group in ZooKeeper, and one partition without a group."""
    brokers = ["--bootstrap-server", cluster.bootstrap]
    common = ["--topic", filled, "--from-beginning", "--max-messages", "5", *FORMAT]
    theirs = start("1.1", CONSOLE, *brokers, *common)
    ours = consume(*brokers, *common, "--group", group)
    legacy = consume("--zookeeper", cluster.zookeeper, *common)
    single = consume(*brokers, *common, "--partition", "0")
    expected = output(theirs)
    assert expected.count("\n") == 5
    assert ours.stdout == expected, ours.stderr
    assert legacy.stdout == expected, legacy.stderr
    assert single.stdout == expected, single.stderr


def test_a_group_on_the_brokers_commits_and_resumes(
    cluster: LocalCluster, filled: str, group: str
) -> None:
    """``consume --bootstrap-server`` commits the printed messages, and the next run continues
    there."""
    brokers = ["--bootstrap-server", cluster.bootstrap, "--topic", filled]
    first = consume(*brokers, "--group", group, "--from-beginning", "--max-messages", "2")
    assert first.stdout == "one\ntwo\n", first.stderr
    second = consume(*brokers, "--group", group, "--max-messages", "1")
    assert second.stdout == "null\n", second.stderr


@pytest.mark.parametrize(
    ("offset", "values"),
    [("3", "drei \u00e4\n\n"), ("earliest", "one\ntwo\nnull\ndrei \u00e4\n\n")],
)
def test_a_partition_is_read_from_an_offset(
    cluster: LocalCluster, filled: str, offset: str, values: str
) -> None:
    """``--partition --offset`` reads from that offset. The timeout ends the command with status
    0."""
    place = ["--bootstrap-server", cluster.bootstrap, "--topic", filled, "--partition", "0"]
    done = consume(*place, "--offset", offset, "--timeout-ms", "500")
    assert (done.returncode, done.stdout) == (0, values), done.stderr


@pytest.mark.parametrize(
    ("partition", "offset", "word"), [("9", "0", "partition 9"), ("0", "6", "0 to 5")]
)
def test_a_partition_or_offset_that_is_not_there_is_named(
    cluster: LocalCluster, filled: str, partition: str, offset: str, word: str
) -> None:
    """The error names the option and the available values."""
    place = ["--bootstrap-server", cluster.bootstrap, "--topic", filled]
    done = consume(*place, "--partition", partition, "--offset", offset)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def member(cluster: LocalCluster, filled: str, group: str) -> Iterator[None]:
    """A member on the brokers that has committed two messages."""
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
        "client.id": "tester",
    }
    with CoordinatorConsumerConnector(config) as connector:
        (stream,) = connector.create_message_streams({filled: 1})[filled]
        messages = iter(stream)
        assert [next(messages).value for _ in range(2)] == [b"one", b"two"]
        stream.mark_consumed()
        connector.commit_offsets()
        yield


@pytest.mark.usefixtures("member")
def test_groups_on_the_brokers_are_described_as_by_kafka(
    cluster: LocalCluster, filled: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets, lag, owner, host, client and state equal those of kafka-consumer-groups, in columns
    of the same names."""
    brokers = ["--bootstrap-server", cluster.bootstrap]
    theirs = [
        start("1.1", GROUPS, *brokers, "--describe", "--group", group, *more)
        for more in ([], ["--state"])
    ]

    def ours(*arguments: str) -> list[dict[str, object]]:
        assert run(["groups", *arguments, *brokers, "--json"]) == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
        return found

    (row,) = ours("describe", "--group", group)
    table = [text.split() for text in output(theirs[0]).splitlines() if text.strip()]
    heading, line = [cells for cells in table if len(cells) == 8]
    values = dict(zip(heading, line, strict=True))
    shown = {name.upper().replace("_", "-"): str(value) for name, value in row.items()}
    assert shown.pop("GROUP") == group
    assert values == shown | {"HOST": f"/{shown['HOST']}"}
    (state,) = ours("describe", "--group", group, "--state")
    assert (state["state"], state["members"], state["assignment_strategy"]) == (
        "Stable",
        1,
        "range",
    )
    told = output(theirs[1])
    assert "Stable" in told
    assert "range" in told
    (found,) = ours("describe", "--group", group, "--members", "--verbose")
    assert (found["consumer_id"], found["partitions"]) == (row["consumer_id"], 1)
    assert found["assignment"] == f"{filled}-0"
    assert {"group": group} in ours("list")
    assert run(["top", group, "--count", "1", *brokers]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:6] == [
        group,
        "Stable",
        "1",
        "1",
        "0",
        "3",
    ]


def test_an_unknown_group_on_the_brokers_is_an_error(
    cluster: LocalCluster, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names a group that no broker knows."""
    brokers = ["--bootstrap-server", cluster.bootstrap]
    assert run(["groups", "describe", "--group", group, *brokers]) == 1
    assert f"group {group} does not exist on the brokers" in capsys.readouterr().err


def test_a_member_that_joins_and_dies_shows_in_tree_top_and_describe(
    cluster: LocalCluster,
    filled: str,
    group: str,
    capsys: pytest.CaptureFixture[str],
    started: Callable[..., subprocess.Popen[bytes]],
) -> None:
    """``tree --watch`` prints the registration and the owner when they appear and when they vanish.
    ``describe --members``, ``describe --state`` and ``top`` show the member of the group in
    ZooKeeper."""
    place = ["--zookeeper", cluster.zookeeper]
    done = consume(
        *place, "--group", group, "--topic", filled, "--from-beginning", "--max-messages", "1"
    )
    assert done.returncode == 0, done.stderr
    entry = [sys.executable, "-m", "zkconsumer"]
    watching = subprocess.Popen(
        [*entry, "tree", group, "--watch", "--every", "50ms", *place],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        for line in watching.stdout:
            if "offsets" in line:
                break
        joined = started(*place, "--group", group, "--topic", filled)
        seen: list[str] = []
        for line in watching.stdout:
            seen.append(line)
            if f"+ /consumers/{group}/owners/{filled}/0" in line:
                break
        assert any(f"+ /consumers/{group}/ids/{group}_" in line for line in seen)
        assert all("ephemeral, session 0x" in line for line in seen if "/ids/" in line)
        assert run(["groups", "describe", group, "--members", *place, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["streams"], row["partitions"], row["subscription"]) == (1, 1, filled)
        assert "assignment" not in row
        members = ["groups", "describe", group, "--members", "--verbose", *place, "--json"]
        assert run(members) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["assignment"] == f"{filled}-0"
        assert run(["groups", "describe", group, "--state", *place, "--json"]) == 0
        (state,) = json.loads(capsys.readouterr().out)
        assert (state["state"], state["members"], state["unowned"]) == ("Stable", 1, 0)
        assert run(["top", group, "--count", "2", "--every", "200ms", *place]) == 0
        assert capsys.readouterr().out.count("Stable") == 2
        joined.terminate()
        joined.wait(timeout=30)
        for line in watching.stdout:
            if f"- /consumers/{group}/ids/{group}_" in line:
                break
        else:
            pytest.fail("the registration did not vanish")
    finally:
        watching.terminate()
        watching.wait(timeout=30)
        watching.stdout.close()
