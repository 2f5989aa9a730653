"""``zkmigrate reset``: Kafka's options for groups in ZooKeeper and in Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zkmigrate.cli

from tests.migrate.rows import rows_of
from zkconsumer.cli.main import run as zkconsumer_run
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import fetch_jars, java

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]

ALL = ("--all-topics",)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is written to the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["zookeeper", "kafka"])
def store(request: pytest.FixtureRequest, bench: Bench, group: str, topic: str) -> str:
    """A group that has committed 3 and 40 in one of the stores. The log has 0 to 20."""
    bench.topic(topic, 2)
    name: str = request.param
    (bench.set_zk if name == "zookeeper" else bench.set_kafka)(group, topic, {0: 3, 1: 40})
    return name


def held(bench: Bench, store: str, group: str, topic: str) -> list[int | None]:
    """The store's offsets of both partitions."""
    if store == "zookeeper":
        root = f"/consumers/{group}/offsets/{topic}"
        there = [bench.client.exists(f"{root}/{number}") for number in (0, 1)]
        return [
            int(bench.client.get(f"{root}/{number}")[0]) if there[number] else None
            for number in (0, 1)
        ]
    found = bench.committed(group, {topic: 2})
    stored = [found.get(TopicPartition(topic, number)) for number in (0, 1)]
    return [one.offset if one else None for one in stored]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--to-earliest", *ALL), [0, 0]),
        (("--to-latest", *ALL), [20, 20]),
        (("--to-current", *ALL), [3, 20]),
        (("--to-offset", "7", *ALL), [7, 7]),
        (("--to-offset", "99", "--topic", "T:1"), [3, 20]),
        (("--shift-by", "5", "--topic", "T:0"), [8, 40]),
        (("--shift-by", "-9", *ALL), [0, 20]),
        (("--to-datetime", "2020-01-01T00:00:00.000", *ALL), [20, 20]),
        (("--by-duration", "PT0S", *ALL), [20, 20]),
    ],
)
def test_each_option(
    bench: Bench,
    shell: Shell,
    store: str,
    group: str,
    topic: str,
    words: tuple[str, ...],
    expected: list[int],
) -> None:
    """A dry run changes nothing. It shows the offsets that ``--execute`` then sets in the current
    store. No claim remains."""
    chosen = [word.replace("T:", f"{topic}:") for word in ("--group", group, *words)]
    status, rows = shell.rows("reset", *chosen)
    assert status == 0
    assert held(bench, store, group, topic) == [3, 40]
    assert {row["store"] for row in rows} == {store}
    status, again = shell.rows("reset", *chosen, "--execute")
    assert (status, again) == (0, rows)
    assert held(bench, store, group, topic) == expected
    for row in rows:
        assert row["after"] == expected[row["partition"]]
    if bench.client.exists(f"/consumers/{group}/ids"):
        assert not bench.client.get_children(f"/consumers/{group}/ids")
    else:
        assert store == "kafka", "a group that is only in Kafka leaves no trace in ZooKeeper"
        assert not bench.client.exists(f"/consumers/{group}")


def test_from_a_file(
    bench: Bench, shell: Shell, store: str, group: str, topic: str, tmp_path: Path
) -> None:
    """An earlier export can be restored. A partition without an offset gets one."""
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,12\n{topic},1,13\n")
    status, _ = shell.rows("reset", "--group", group, "--from-file", str(file), "--execute")
    assert status == 0
    assert held(bench, store, group, topic) == [12, 13]
    export = tmp_path / "before.csv"
    chosen = ("--group", group, "--store", store, "--out", str(export))
    assert shell("offsets", "export", "--format", "csv", *chosen)[0] == 0
    assert export.read_text() == file.read_text()


def test_what_is_refused(bench: Bench, shell: Shell, store: str, group: str, topic: str) -> None:
    """A group with members, offsets in both stores without a choice, a partition that does not
    exist, and a shift without an offset are refused. Nothing is changed, and the error names the
    fix."""
    bench.client.create(f"/consumers/{group}/ids/x", b"{}", ephemeral=True, makepath=True)
    chosen = ("reset", "--group", group, "--to-latest", "--execute")
    status, out, _ = shell(*chosen, *ALL)
    assert (status, "x registered in ZooKeeper: stop these" in out) == (3, True)
    bench.client.delete(f"/consumers/{group}/ids/x")
    status, out, _ = shell(*chosen, "--topic", f"{topic}:5")
    assert (status, f"{topic}-5: there is no such partition" in out) == (3, True)
    other = bench.set_kafka if store == "zookeeper" else bench.set_zk
    other(group, topic, {0: 3})
    status, out, _ = shell(*chosen, *ALL)
    assert (status, "choose one with --store" in out) == (3, True)
    status, _, err = shell(*chosen)
    assert (status, "--topic or with --all-topics" in err) == (2, True)
    status, _, err = shell(*chosen, *ALL, "--shift-by", "1")
    assert (status, "cannot be used together: use only one of them" in err) == (2, True)
    assert held(bench, store, group, topic) == [3, 40]


def test_a_time_is_that_of_messages(bench: Bench, shell: Shell, group: str, topic: str) -> None:
    """The offset is that of the first message with this timestamp or a later one."""
    bench.topic(topic, 1, messages=0)
    address = bench.cluster.broker_servers[0].address
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address)
    base = int(time.time() * 1000) - 100_000
    for number in range(10):
        producer.send(topic, b"x", partition=0, timestamp_ms=base + number * 1000).get(30)
    producer.close()
    bench.set_zk(group, topic, {0: 0})
    at = datetime.fromtimestamp((base + 4500) / 1000, UTC).isoformat(timespec="milliseconds")
    status, rows = shell.rows("reset", "--group", group, "--to-datetime", at, *ALL)
    assert (status, [row["after"] for row in rows]) == (0, [5])


def test_both_stores_after_a_restore(bench: Bench, shell: Shell, group: str, topic: str) -> None:
    """ZooKeeper was restored from a backup, so Kafka has higher offsets. The command in the error
    sets both stores to the higher one, or to the end of a log that lacks it. The stage then
    succeeds."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 7})
    bench.set_kafka(group, topic, {0: 12, 1: 40})
    stage = ("live", "prepare", "--group", group, "--execute")
    status, (row,) = shell.rows(*stage)
    assert status == 3
    advice = row["why"].rpartition("was restored from a backup, stop them and run zkmigrate ")[2]
    status, _ = shell.rows(*advice.split(), "--group", group, "--execute")
    assert status == 0
    for store in ("zookeeper", "kafka"):
        assert held(bench, store, group, topic) == [12, 20]
    status, (row,) = shell.rows(*stage)
    assert (status, row["outcome"]) == (0, "done")


def test_as_the_original_tool(bench: Bench, shell: Shell, group: str, topic: str) -> None:
    """For a group in Kafka each option shows the same offsets as kafka-consumer-groups
    --reset-offsets."""
    bench.topic(topic, 2)
    bench.set_kafka(group, topic, {0: 3, 1: 40})
    jvm = [java(), "-cp", os.path.join(fetch_jars("1.1"), "*")]
    command = [*jvm, "kafka.admin.ConsumerGroupCommand"]
    address = bench.cluster.broker_servers[0].address
    chosen = ["--group", group, "--all-topics"]
    for words in (
        ["--to-offset", "99"],
        ["--shift-by", "-9"],
        ["--to-datetime", "2020-01-01T00:00:00.000"],
        ["--by-duration", "PT0S"],
    ):
        line = [*command, "--bootstrap-server", address, "--reset-offsets", "--dry-run", "--export"]
        done = subprocess.run(
            [*line, *chosen, *words], capture_output=True, text=True, timeout=120, check=False
        )
        theirs = {tuple(row.split(",")) for row in done.stdout.split() if row.count(",") == 2}
        _, rows = shell.rows("reset", *chosen, *words)
        ours = {(row["topic"], str(row["partition"]), str(row["after"])) for row in rows}
        assert {tuple(cell.strip('"') for cell in row) for row in theirs} == ours, (words, done)


def test_the_same_command_of_zkconsumer(
    bench: Bench, store: str, group: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``zkconsumer offsets reset`` is ``zkmigrate reset``: a dry run by default, the same rows and
    the same lock. A group with members is refused."""
    words = ["--group", group, "--shift-by", "2", "--topic", f"{topic}:0", "--json"]
    words += ["--zookeeper", bench.cluster.zookeeper]
    printed = []
    for run, command in ((zkmigrate.cli.run, ["reset"]), (zkconsumer_run, ["offsets", "reset"])):
        assert run([*command, *words]) == 0
        out, err = capsys.readouterr()
        assert "dry run" in err
        printed.append(rows_of(out))
    assert printed[0] == printed[1]
    assert [row["after"] for row in printed[1]] == [5]
    assert held(bench, store, group, topic) == [3, 40]
    bench.client.create(f"/consumers/{group}/ids/x", b"{}", ephemeral=True, makepath=True)
    assert zkconsumer_run(["offsets", "reset", *words, "--execute"]) == 3
    (row,) = rows_of(capsys.readouterr().out)
    assert "x registered in ZooKeeper: stop these" in row["why"]
    assert held(bench, store, group, topic) == [3, 40]
    bench.client.delete(f"/consumers/{group}/ids/x")
    assert zkconsumer_run(["offsets", "reset", *words, "--execute"]) == 0
    assert held(bench, store, group, topic) == [5, 40]
    assert not bench.client.get_children(f"/consumers/{group}/ids")


def test_the_library_loads_no_migrator_before_it_is_asked_for() -> None:
    """An import does not need it."""
    code = (
        "import sys; from zkconsumer.cli.offsets import offsets; import click\n"
        "offsets.get_command(click.Context(offsets), 'import')\n"
        "assert not [name for name in sys.modules if name.startswith('zkmigrate')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
