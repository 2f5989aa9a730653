"""Error messages if servers require an identity and none is configured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl
from zkmigrate.formats.plan_file import render
from zkmigrate.model import Direction

from tests.migrate.rows import run
from zkconsumer.servers.jars import JVM_FILES, fetch_jars, java
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

EVERY_COMMAND = (
    ["plan", "--all"],
    ["plan", "--all", "--out", "{folder}/new.plan"],
    ["apply", "{folder}/plan"],
    ["status", "{folder}/plan"],
    ["offsets", "export", "--all", "--store", "kafka"],
)


def error_of(
    capsys: pytest.CaptureFixture[str], folder: Path, words: list[str], zookeeper: str
) -> str:
    """The one line of a failing command, after the one about the cluster."""
    (folder / "plan").write_text("".join(render(Direction.ZK_TO_KAFKA, 1, [])))
    capsys.readouterr()
    arguments = [word.format(folder=folder) for word in words]
    assert run([*arguments, "--zookeeper", zookeeper, "--timeout", "10"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    *first, error = printed.err.splitlines()
    assert all(line.startswith("cluster ") for line in first), printed.err
    assert len(first) <= 1
    return error


@pytest.mark.parametrize("words", EVERY_COMMAND, ids=lambda words: words[0])
def test_a_broker_that_offers_no_plaintext_listener_is_named(
    bench: Bench, chroot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """If the registered brokers offer only SASL or TLS, each command names the broker and its
    listeners. It does not tell the operator to check the chroot."""
    data = {"version": 4, "endpoints": ["SASL_PLAINTEXT://h:9092"], "host": None, "port": -1}
    path = "/" + chroot.partition("/")[2] + "/brokers/ids/0"
    bench.client.ensure_path(path)
    bench.client.set(path, json.dumps(data).encode())
    bench.client.ensure_path("/" + chroot.partition("/")[2] + "/consumers/g")
    error = error_of(capsys, tmp_path, words, chroot)
    assert "broker 0 offers SASL_PLAINTEXT at h:9092 only" in error
    assert "security.protocol=PLAINTEXT" in error
    assert "--bootstrap-server HOST:PORT" in error
    assert "chroot" not in error


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ZooKeeper whose clients must authenticate with SASL."""
    root = tmp_path_factory.mktemp("zookeeper")
    port = free_port()
    config = root / "zoo.cfg"
    config.write_text(
        f"dataDir={root}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=500\n"
        "admin.enableServer=false\n"
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
    )
    flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true"]
    flags += ["-Dzookeeper.sessionRequireClientSASLAuth=true"]
    flags += [f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"]
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    argv = [java(), *flags, "-cp", f"{fetch_jars('3.9')}/*", main, str(config)]
    supervisor = Supervisor()
    try:
        supervisor.start("zookeeper", argv, root / "log")
        wait_until(lambda: "binding to port" in (root / "log").read_text(), 60, "it listens")
        yield f"127.0.0.1:{port}"
    finally:
        supervisor.close()


@pytest.mark.parametrize("chrooted", ["", "/kafka"])
def test_a_zookeeper_that_requires_sasl_is_named(
    strict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chrooted: str
) -> None:
    """The error is one line that says that authentication is missing, and not that an operation was
    refused."""
    error = error_of(capsys, tmp_path, ["plan", "--all"], strict + chrooted)
    assert "requires clients to authenticate" in error
    assert "zkconsumer.zookeeper.sasl.jaas.config" in error


def test_a_znode_with_an_access_list_is_named(
    bench: Bench, chroot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If an ACL hides all groups, the error says that no identity was given."""
    path = "/" + chroot.partition("/")[2] + "/consumers"
    bench.client.ensure_path(path)
    bench.client.set_acls(path, [make_acl("world", "anyone", admin=True)])
    error = error_of(capsys, tmp_path, ["offsets", "export", "--all"], chroot)
    assert "/consumers: the znode's access list does not allow it" in error
    assert "a client without identity (set zkconsumer.zookeeper.digest" in error
