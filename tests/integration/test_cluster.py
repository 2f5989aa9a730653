"""The embedded cluster: real servers that start fast, obey commands, and end with their parent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from tests.integration.kafka_offsets import KafkaOffsets, kafka_offsets
from tests.support.processes import processes_naming
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, ClusterError
from zkconsumer.servers import (
    LocalCluster,
    LocalZooKeeper,
    __main__,
    expire_session,
    free_port,
    jars,
    servers,
    wait_until,
)
from zkconsumer.servers.waiting import process_started

COMMAND = [sys.executable, "-c", "from zkconsumer.cli import main; main()"]
READY_LIMIT_SECONDS = 60.0
"""A quiet machine needs a few seconds. The limit is higher so that a busy one does not fail."""


def zkconsumer(*arguments: str, env: dict[str, str] | None = None) -> Any:
    """Run the command line to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(env or {})},
        check=False,
    )


def listens(port: int) -> bool:
    """Return whether a server accepts connections on a loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def session(zookeeper: str) -> Iterator[Callable[..., KazooClient]]:
    """Opens ZooKeeper sessions that are closed after the test."""
    opened: list[KazooClient] = []

    def open_session(address: str = zookeeper, timeout: float = 4.0) -> KazooClient:
        client = KazooClient(address, timeout=timeout)
        opened.append(client)
        client.start(timeout=15)
        return client

    yield open_session
    for client in opened:
        client.stop()
        client.close()


@pytest.mark.parametrize("kafka", ["3.9", "1.1", "0.9", "0.8.2"])
def test_each_generation_starts_and_serves(kafka: str) -> None:
    """Every line of Kafka is ready in 15 s (with cached jars) and keeps its data over a restart.
    Offsets committed without membership can be read back then. A missing offset stays missing, and
    while no broker answers, a commit fails in time or waits."""
    jars.fetch_jars(kafka)
    began = time.monotonic()
    with LocalCluster(kafka) as running:
        assert time.monotonic() - began < READY_LIMIT_SECONDS
        running.create_topic("first", partitions=3)
        running.create_topic("second")
        running.add_partitions("first", 5)
        running.delete_topic("second")
        tps = [TopicPartition("first", partition) for partition in range(3)]
        offsets, other = kafka_offsets(running, "stored"), kafka_offsets(running, "other")
        assert offsets.fetch(tps) == other.fetch(tps) == dict.fromkeys(tps)
        assert offsets.commit({tps[0]: 5, tps[1]: 0}) == {}
        assert offsets.fetch(tps) == {tps[0]: 5, tps[1]: 0, tps[2]: None}
        assert other.fetch(tps) == dict.fromkeys(tps)
        (broker,) = running.broker_servers
        port = broker.port
        broker.kill()
        assert not broker.running
        killed = time.monotonic()
        hasty = KafkaOffsets("stored", [BrokerEndpoint(0, "127.0.0.1", port)], patience=1.0)
        with pytest.raises(BrokerError, match="group stored did not answer within 1 s"):
            hasty.commit({tps[0]: 6})
        assert time.monotonic() - killed < 4
        restart = threading.Thread(target=lambda: (broker.start(), broker.wait_ready()))
        restart.start()
        assert offsets.commit({tps[0]: 8}) == {}
        restart.join()
        assert offsets.fetch(tps) == {tps[0]: 8, tps[1]: 0, tps[2]: None}
        for client in (hasty, offsets, other):
            client.close()
        assert broker.port == port
        running.add_partitions("first", 6)
        with pytest.raises(ClusterError, match="topic first already exists"):
            running.create_topic("first")
        with pytest.raises(ClusterError, match="topic second does not exist"):
            running.delete_topic("second")
        ports = [server.port for server in running.servers]
        pids = [server.pid for server in running.servers]
        log = broker.log
    assert not any(process_started(pid) for pid in pids)
    assert not any(listens(port) for port in ports)
    assert not log.exists()


def test_servers_start_with_recorded_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes of a line's servers are recorded once. A server uses them, and starts without
    them if the file is damaged."""
    for module in (__main__, servers):
        monkeypatch.setattr(module, "class_archive", lambda _, main: tmp_path / f"{main}.jsa")
    __main__.record_classes("0.8.2")
    archive = tmp_path / "org.apache.zookeeper.server.ZooKeeperServerMain.jsa"
    assert {*tmp_path.iterdir()} == {archive, tmp_path / "kafka.Kafka.jsa"}
    assert "JDK_JAVA_OPTIONS" not in os.environ
    recorded = archive.stat()
    __main__.record_classes("0.8.2")
    assert archive.stat() == recorded

    def is_used() -> bool:
        with LocalZooKeeper("0.8.2") as running:
            return str(archive) in Path(f"/proc/{running.zookeeper_server.pid}/maps").read_text()

    assert is_used()
    archive.unlink()
    archive.write_bytes(b"damaged")
    assert not is_used()


def test_messages_pass_and_topic_settings_arrive(cluster: LocalCluster, topic: str) -> None:
    """A created topic can be written and read at once, and has the given settings."""
    cluster.create_topic(topic, partitions=2, config={"max.message.bytes": "2000"})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for partition in (0, 1):
        producer.send(topic, b"value", partition=partition).get(timeout=20)
    with pytest.raises(Exception, match=r"(?i)large"):
        producer.send(topic, os.urandom(4000), partition=0).get(timeout=20)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    received = [(next(consumer).value) for _ in range(2)]
    consumer.close()
    assert received == [b"value", b"value"]


def test_replicas_survive_a_broker_and_properties_arrive(topic: str) -> None:
    """With two brokers, a replicated partition gets a new leader when its leader is killed. Given
    properties override the defaults. Here, topics are created automatically."""
    given = {"auto.create.topics.enable": "true"}
    with LocalCluster("3.9", brokers=2, properties=given) as running:
        producer = KafkaProducer(bootstrap_servers=running.bootstrap)
        producer.send(f"{topic}-sent", b"value").get(timeout=30)
        producer.close()
        running.create_topic(topic, partitions=2, replication=2)
        running.broker_servers[0].kill()
        with KafkaSession(running.zookeeper) as client:
            state = f"/brokers/topics/{topic}/partitions/0/state"
            wait_until(
                lambda: json.loads(client.get(state)[0])["leader"] == 1,
                20,
                "broker 1 leads partition 0",
            )
        running.create_topic(f"{topic}-later")  # by the remaining broker


class KafkaSession:
    """A ZooKeeper session as a context manager."""

    def __init__(self, zookeeper: str) -> None:
        self.client = KazooClient(zookeeper)

    def __enter__(self) -> KazooClient:
        self.client.start(timeout=15)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.stop()
        self.client.close()


def test_zookeeper_alone_keeps_data_in_its_directory(tmp_path: Path) -> None:
    """A named directory is kept. After a restart, even after a crash, it has the same znodes."""
    with LocalZooKeeper(dir=tmp_path) as first, KafkaSession(first.zookeeper) as client:
        client.create("/kept", b"1")
        first.kill()
    with LocalZooKeeper(dir=tmp_path) as second:
        with KafkaSession(second.zookeeper) as client:
            assert client.get("/kept")[0] == b"1"
        second.zookeeper_server.stop()
        second.zookeeper_server.start()
        second.zookeeper_server.wait_ready()
        with KafkaSession(second.zookeeper) as client:
            assert client.get("/kept")[0] == b"1"


def test_a_paused_server_answers_again_after_resume(session: Callable[..., KazooClient]) -> None:
    """Pause freezes ZooKeeper with its connections open. After resume the same session
    continues."""
    with LocalZooKeeper() as running:
        client = session(running.zookeeper, timeout=10.0)
        running.zookeeper_server.pause()
        pending = client.exists_async("/")
        with pytest.raises(Exception):  # noqa: B017 - kazoo's timeout has no class of its own
            pending.get(timeout=0.5)
        running.zookeeper_server.resume()
        assert pending.get(timeout=10) is not None


def test_short_session_timeouts_are_granted(session: Callable[..., KazooClient]) -> None:
    """The server grants session timeouts from 1 s, which the fault tests need."""
    client = session(timeout=1.0)
    assert client._session_timeout == 1000


def test_an_expired_session_is_lost(
    zookeeper: str, unique: str, session: Callable[..., KazooClient]
) -> None:
    """``expire_session`` ends the session at once. Its client gets LOST, and its ephemerals are
    deleted."""
    client, watcher = session(), session()
    states: list[str] = []
    lost = threading.Event()

    def listen(state: str) -> None:
        states.append(state)
        if state == KazooState.LOST:
            lost.set()

    client.add_listener(listen)
    client.create(f"/{unique}", ephemeral=True)
    session_id, password = client.client_id
    expire_session(zookeeper, session_id, password)
    assert watcher.exists(f"/{unique}") is None
    assert lost.wait(10), states


def test_the_proxy_loses_answers_refuses_and_recovers(
    cluster: LocalCluster, unique: str, session: Callable[..., KazooClient]
) -> None:
    """A request whose response is stalled is carried out, although its client never gets the
    response."""
    direct = session()
    with TcpProxy(cluster.zookeeper_server.port) as proxy:
        client = session(proxy.address, timeout=10.0)
        proxy.stall("answers")
        pending = client.create_async(f"/{unique}", b"")
        wait_until(lambda: direct.exists(f"/{unique}"), 10, "the request arrived")
        assert not pending.ready()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(Exception):  # noqa: B017 - the connection was lost
            pending.get(timeout=10)
        wait_until(lambda: not client.connected, 10, "the client noticed")
        assert not listens(proxy.port)
        proxy.resume()
        proxy.allow()
        wait_until(lambda: client.connected, 20, "the client is back")
        assert client.exists(f"/{unique}") is not None
        assert proxy.connections == 1
        client.stop()
        wait_until(lambda: proxy.connections == 0, 10, "the proxy closed the connection")


CRASHING_PARENT = """
import sys, time
from zkconsumer.servers import LocalCluster
with LocalCluster("3.9") as cluster:
    print(*[s.pid for s in cluster.servers], *[s.port for s in cluster.servers],
          cluster.servers[0].log, cluster.supervisor_pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_a_crashed_parent(how: signal.Signals) -> None:
    """Processes, ports and the temporary directory are gone, however the parent ends."""
    parent = subprocess.Popen(
        [sys.executable, "-c", CRASHING_PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    fields = parent.stdout.readline().split()
    pids, ports = [int(f) for f in fields[:2]], [int(f) for f in fields[2:4]]
    directory = Path(fields[4]).parent.parent
    assert all(process_started(pid) for pid in pids)
    os.killpg(parent.pid, how)  # to the whole group, as a terminal does
    parent.wait(timeout=30)
    parent.stdout.close()
    wait_until(lambda: not any(process_started(pid) for pid in pids), 10, "the servers ended")
    wait_until(lambda: not process_started(int(fields[5])), 10, "the supervisor ended")
    assert not any(listens(port) for port in ports)
    assert not directory.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's help is Linux's")
def test_servers_die_with_a_killed_supervisor() -> None:
    """If the supervisor itself is killed, its servers end with it and the user gets an error."""
    running = LocalZooKeeper()
    running.start()
    pid = running.zookeeper_server.pid
    os.kill(running.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: not process_started(pid), 10, "ZooKeeper ended")
    with pytest.raises(ClusterError, match=r"supervisor .* has ended"):
        running.zookeeper_server.stop()
    running.close()


def test_up_status_down(tmp_path: Path) -> None:
    """`up --json` prints exactly the addresses, and its servers keep running. `down` removes
    everything."""
    directory = tmp_path / "cluster"
    at = ("--dir", str(directory))
    assert zkconsumer("cluster", "status", *at).returncode == 1
    began = time.monotonic()
    started = zkconsumer("cluster", "up", *at, "--json")
    assert time.monotonic() - began < READY_LIMIT_SECONDS
    try:
        assert started.returncode == 0, started.stderr
        addresses = json.loads(started.stdout)
        assert sorted(addresses) == ["bootstrap", "zookeeper"]
        ports = [int(address.rpartition(":")[2]) for address in addresses.values()]
        assert all(listens(port) for port in ports)
        again = zkconsumer("cluster", "up", *at)
        assert again.returncode == 1
        assert re.fullmatch(r"error: a cluster is already up in .*", again.stderr.splitlines()[-1])
        shown = zkconsumer("cluster", "status", *at, "--json")
        assert (shown.returncode, json.loads(shown.stdout)) == (0, addresses)

        state = json.loads((directory / "cluster.json").read_text())
        os.kill(state["servers"][1]["pid"], signal.SIGKILL)
        broker_gone = zkconsumer("cluster", "status", *at)
        assert broker_gone.returncode == 1
        assert "not running: broker-0" in broker_gone.stderr
    finally:
        stopped = zkconsumer("cluster", "down", *at)
    assert stopped.returncode == 0, stopped.stderr
    assert not processes_naming(str(directory))
    assert not process_started(state["supervisor"]["pid"])
    assert not any(listens(port) for port in ports)
    assert sorted(entry.name for entry in directory.iterdir()) == ["cluster.lock", "logs"]
    assert zkconsumer("cluster", "down", *at).returncode == 0


def test_a_stale_state_kills_no_stranger(tmp_path: Path) -> None:
    """If a pid in the state file now belongs to another process, that process is not killed."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process = {"pid": stranger.pid, "started": "1"}
        state = {
            "kafka": "3.9",
            "zookeeper": "127.0.0.1:1",
            "bootstrap": "127.0.0.1:2",
            "supervisor": {"name": "supervisor", "port": None, **process},
            "servers": [{"name": "zookeeper", "port": 1, **process}],
        }
        (tmp_path / "cluster.json").write_text(json.dumps(state))
        assert zkconsumer("cluster", "status", "--dir", str(tmp_path)).returncode == 1
        assert zkconsumer("cluster", "down", "--dir", str(tmp_path)).returncode == 0
        assert stranger.poll() is None
        assert not (tmp_path / "cluster.json").exists()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_up_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """If `up` is interrupted or killed while it waits for its servers, they end and their data is
    deleted."""
    directory = tmp_path / "cluster"
    command = subprocess.Popen(
        [*COMMAND, "cluster", "up", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    marker = str(directory / "conf" / "broker-0.properties")
    wait_until(lambda: processes_naming(marker), 30, "the broker's JVM has been started")
    os.killpg(command.pid, how)  # to the whole group, as a terminal does
    _, errors = command.communicate(timeout=30)
    assert "Traceback" not in errors
    assert command.returncode == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: not processes_naming(str(directory)), 10, "everything ended")
    wait_until(lambda: not (directory / "data").exists(), 10, "the data was deleted")
    assert zkconsumer("cluster", "status", "--dir", str(directory)).returncode == 1


def test_foreign_files_are_not_touched(tmp_path: Path) -> None:
    """`up` refuses a directory with other files, and prints one line."""
    precious = tmp_path / "precious.txt"
    precious.write_text("x")
    refused = zkconsumer("cluster", "up", "--dir", str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("error: ")
    assert "precious.txt" in refused.stderr
    assert precious.read_text() == "x"


@pytest.mark.parametrize(("tool", "named"), [("java", "openjdk"), ("mvn", "apt install maven")])
def test_missing_tools_are_named(tmp_path: Path, tool: str, named: str) -> None:
    """Without Java or Maven the error is one line that names the package to install."""
    commands = tmp_path / "bin"
    commands.mkdir()
    if tool == "mvn":  # Java is installed, Maven is not
        (commands / "java").symlink_to(jars.java())
    env = {
        "PATH": str(commands),
        "JAVA_HOME": "",
        "ZKCONSUMER_CACHE": str(tmp_path / "cache"),
    }
    failed = zkconsumer("cluster", "up", "--dir", str(tmp_path / "cluster"), env=env)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("error: ")
    assert named in failed.stderr.splitlines()[-1]


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A broker that refuses its configuration gives one line with its reason. No process
    remains."""
    broken = LocalCluster("3.9", dir=tmp_path, properties={"log.segment.bytes": "none"})
    with pytest.raises(
        ClusterError,
        match=r"broker-0 exited immediately after it was started: .*log\.segment\.bytes",
    ):
        broken.start()
    assert not processes_naming(str(tmp_path))


def test_two_processes_fetch_once(tmp_path: Path) -> None:
    """If two processes need the same jars at once, Maven runs once and both find the jars."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "mvn").write_text(
        "#!/bin/sh\necho run >> " + str(tmp_path / "runs") + "\n"
        'for a in "$@"; do case "$a" in -DoutputDirectory=*) lib="${a#*=}";; esac; done\n'
        'sleep 0.5\nmkdir -p "$lib"\ntouch "$lib/a.jar"\n'
    )
    (commands / "mvn").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "ZKCONSUMER_CACHE": str(tmp_path / "cache"),
    }
    fetch = [sys.executable, "-m", "zkconsumer.servers", "3.9"]
    both = [subprocess.Popen(fetch, env=env, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"
    (lib,) = (tmp_path / "cache" / "jars").glob("kafka-3.9.1-*[!k]")
    assert [jar.name for jar in lib.iterdir()] == ["a.jar"]


def test_free_ports_are_not_given_to_outgoing_connections() -> None:
    """A server's port is below the kernel's range for outgoing connections, so it is free at a
    restart."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < free_port() < low for _ in range(50))


def test_processes_side_by_side_choose_different_ports() -> None:
    """Two servers that have not started yet never get the same port, even in different
    processes."""
    code = (
        "from zkconsumer.servers.waiting import free_port\nfor _ in range(400): print(free_port())"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ports = [line for process in asking for line in process.communicate(timeout=60)[0].split()]
    assert len(ports) == len(set(ports)) == 800
