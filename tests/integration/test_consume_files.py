"""``zkconsumer consume --format arrow|parquet``: real processes, real servers, SIGKILL."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from pyarrow import ipc, parquet

from tests.integration.test_consume_cli import committed, consume
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

MESSAGES = 3000
ROWS = 500


@pytest.fixture
def filled(cluster: LocalCluster, topic: str) -> str:
    """A topic with 2 partitions."""
    cluster.create_topic(topic, partitions=2)
    for first in range(0, MESSAGES, 300):  # one batch of records cannot be split into files
        batch = range(first, first + 300)
        send(cluster.bootstrap, topic, [(b"k%d" % i, b"m%d" % i) for i in batch])
    return topic


def read(folder: Path) -> list[pa.Table]:
    """All finished files, sorted by name."""
    tables = []
    for path in sorted(folder.glob("part-*")):
        tables.append(
            parquet.read_table(path)
            if path.suffix == ".parquet"
            else ipc.open_file(path).read_all()
        )
    return tables


def values(tables: list[pa.Table]) -> Counter[bytes]:
    """How often each value occurs."""
    return Counter(value for table in tables for value in table["value"].to_pylist())


def settings(cluster: LocalCluster, group: str, topic: str, out: Path, form: str) -> list[str]:
    """Arguments of a command in its own group."""
    return [
        *("--zookeeper", cluster.zookeeper, "--group", group, "--topic", topic),
        *("--format", form, "--out", str(out), "--file-rows", str(ROWS)),
        *("--consumer-property", "auto.offset.reset=smallest"),
        *("--consumer-property", "zookeeper.session.timeout.ms=1000"),
        *("--consumer-property", "fetch.message.max.bytes=4096"),
    ]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_files_have_everything_once(
    cluster: LocalCluster, filled: str, group: str, zk: KazooClient, tmp_path: Path, form: str
) -> None:
    """All messages are in complete files, and exactly these messages are committed."""
    out = tmp_path / "out"
    done = consume(*settings(cluster, group, filled, out, form), "--max-messages", "2900")
    assert done.returncode == 0, done.stderr
    tables = read(out)
    assert sum(table.num_rows for table in tables) == 2900 == committed(zk, group, filled)
    assert max(values(tables).values()) == 1
    assert len(tables) >= 2
    assert {path.name[0] for path in out.iterdir()} == {"p"}


def test_a_kill_repeats_at_most_one_file(
    cluster: LocalCluster, filled: str, group: str, zk: KazooClient, tmp_path: Path, started: Any
) -> None:
    """The command is killed twice, as soon as a file appears. Nothing is missing, and committed
    messages are in files. Each kill repeats at most one file."""
    arguments = settings(cluster, group, filled, tmp_path, "parquet")
    kills = 2
    for _ in range(kills):
        before = len(list(tmp_path.glob("part-*")))
        process = started(*arguments, "--file-rows", "100")
        wait_until(
            lambda n=before: (  # type: ignore[misc]
                len(list(tmp_path.glob("part-*"))) > n or committed(zk, group, filled) == MESSAGES
            ),
            30,
            "a file appears, or the last process was quick enough to write everything",
        )
        process.kill()
        process.wait(10)
        found = read(tmp_path)
        assert committed(zk, group, filled) <= len(values(found))
    left = MESSAGES - committed(zk, group, filled)
    done = consume(*arguments, "--timeout-ms", "1500")
    assert done.returncode == (0 if left else 1), (left, done.stderr)
    tables = read(tmp_path)
    found = values(tables)
    assert len(found) == MESSAGES
    longest = max(table.num_rows for table in tables)
    assert sum(found.values()) - MESSAGES <= kills * longest
    assert committed(zk, group, filled) == MESSAGES


def test_an_interrupt_writes_and_commits_what_is_collected(
    cluster: LocalCluster, filled: str, group: str, zk: KazooClient, tmp_path: Path, started: Any
) -> None:
    """Ctrl-C ends the command, after a second member took a partition. Collected messages are on
    disk and committed, so nothing is repeated."""
    many = ["--file-rows", "700", "--file-seconds", "3600"]
    arguments = [*settings(cluster, group, filled, tmp_path, "arrow"), *many]
    first = started(*arguments)
    path = f"/consumers/{group}/ids"
    wait_until(lambda: read(tmp_path), 30, "the first file; more messages are being collected")
    second = started(*arguments)
    wait_until(lambda: len(zk.get_children(path)) == 2, 30, "both are members")
    assert committed(zk, group, filled) <= sum(table.num_rows for table in read(tmp_path))
    for process in (first, second):
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    rest = consume(*arguments, "--timeout-ms", "1000")
    assert rest.returncode in (0, 1), rest.stderr
    found = values(read(tmp_path))
    assert len(found) == MESSAGES == sum(found.values()) == committed(zk, group, filled)
    assert not list(tmp_path.glob(".*"))
