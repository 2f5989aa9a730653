"""Recording the classes of servers: what is written, and when it cannot be."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from zkconsumer.errors import ClusterError
from zkconsumer.servers import __main__ as setup, servers

ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"


def write() -> None:
    """Write the archive, as Java does when a server ends."""
    option = re.search('ArchiveClassesAtExit=([^"]+)', os.environ["JDK_JAVA_OPTIONS"])
    assert option is not None
    Path(option[1]).write_text("classes")


def fail() -> None:
    """End as a server that does not stop in time."""
    raise ClusterError("the server still runs")


def run(
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    broker: Callable[[], None] = write,
    zookeeper: Callable[[], None] = write,
) -> int:
    """Run the program for one line whose servers end with these calls; return its exit status."""
    servers = [
        SimpleNamespace(name=name, stop=lambda _timeout, end=end: end())
        for name, end in (("zookeeper", zookeeper), ("broker", broker))
    ]
    cluster = nullcontext(SimpleNamespace(servers=servers))
    monkeypatch.setattr(sys, "argv", ["setup", "3.9"])
    monkeypatch.setattr(setup, "java", lambda: "java")
    monkeypatch.setattr(setup, "fetch_jars", lambda _kafka: cache)
    monkeypatch.setattr(setup, "class_archive", lambda _, main: cache / main)
    monkeypatch.setattr(setup, "LocalCluster", lambda _kafka, dir: cluster)
    return setup.main()


@pytest.mark.parametrize(("cache", "broker"), [("missing", write), ("", lambda: None)])
def test_setup_succeeds_without_an_archive(
    cache: str,
    broker: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the cache cannot be written, or Java wrote no archive, a warning is enough."""
    assert run(monkeypatch, tmp_path / cache, broker) == 0
    assert "warning: Kafka 3.9 will start more slowly" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_recording_that_ended_early_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the broker's classes were recorded, the next setup records both servers' classes."""
    run(monkeypatch, tmp_path, zookeeper=fail)
    assert {file.name for file in tmp_path.iterdir()} == {"kafka.Kafka"}

    def without_an_archive() -> None:
        assert not (tmp_path / "kafka.Kafka").exists()
        write()

    run(monkeypatch, tmp_path, without_an_archive)
    assert {file.name for file in tmp_path.iterdir()} == {"kafka.Kafka", ZOOKEEPER}


@pytest.mark.parametrize(
    ("main", "server"),
    [
        ("org.apache.zookeeper.server.quorum.QuorumPeerMain", ZOOKEEPER),
        (ZOOKEEPER, ZOOKEEPER),
        ("kafka.tools.StorageTool", "kafka.Kafka"),
        ("LegacyMembers", "kafka.Kafka"),
    ],
)
def test_each_program_shares_the_classes_of_a_server(
    main: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of an ensemble shares ZooKeeper's, and all others the broker's. Without a recording
    it starts without an option."""
    monkeypatch.setattr(servers, "class_archive", lambda _, main: tmp_path / main)
    assert servers.sharing("3.9", main) == ()
    (tmp_path / server).touch()
    assert servers.sharing("3.9", main) == (f"-XX:SharedArchiveFile={tmp_path / server}",)
