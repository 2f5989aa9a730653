"""One embedded server: its configuration files and its process. Any one thread at a time."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, ClusterError
from zkconsumer.servers.jars import JVM_FILES, KRAFT_LINES, class_archive, fetch_jars, java
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, stands_still, wait_until

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
TICK_MS: Final = 500
BROKER_SESSION_MS: Final = 4000

HOST: Final = "127.0.0.1"
ZOOKEEPER_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
BROKER_MAIN: Final = "kafka.Kafka"
_JVM_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """The commands and files with which ``Server`` runs one server."""

    name: str
    port: int
    argv: tuple[str, ...]
    log: Path
    is_ready: Callable[[], bool]
    """Asks the server once whether it is ready."""
    before_restart: Callable[[], None]


class Server:
    """A ZooKeeper server or a broker that can be stopped, killed, paused and started again.

    It keeps its port and its data until the cluster is closed.
    """

    def __init__(self, supervisor: Supervisor, spec: ServerSpec) -> None:
        self._supervisor = supervisor
        self._spec = spec
        self._pid: int | None = None
        self._started_before = False

    @property
    def name(self) -> str:
        """``zookeeper`` or ``broker-<id>``."""
        return self._spec.name

    @property
    def port(self) -> int:
        """The server's port on 127.0.0.1."""
        return self._spec.port

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self._spec.log

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises ``ClusterError`` if it is not running."""
        if self._pid is None or not self.running:
            raise ClusterError(f"{self.name} is not running")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process exists. It may be paused."""
        return self._pid is not None and self._supervisor.poll(self.name) is None

    def start(self) -> None:
        """Start the process. ``wait_ready`` waits until it is ready.

        A broker that ran before is started only after ZooKeeper has removed its old registration.
        Raises ``ClusterError`` if it is already running.
        """
        if self.running:
            raise ClusterError(f"{self.name} is already running")
        if self._started_before:
            self._spec.before_restart()
        self._started_before = True
        self._pid = self._supervisor.start(self.name, self._spec.argv, self.log)

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait at most ``timeout`` seconds until the server answers. Raises ``ClusterError``."""

        def ready() -> bool:
            if not self.running:
                raise ClusterError(
                    f"{self.name} exited immediately after it was started: {self._last_words()}"
                )
            return self._spec.is_ready()

        wait_until(ready, timeout, f"{self.name} is ready")

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End the server cleanly (SIGTERM) and wait until it is gone."""
        if self.running:
            self._supervisor.signal(self.name, signal.SIGTERM)
            self._supervisor.signal(self.name, signal.SIGCONT)  # it may be paused
            self._wait_gone(timeout)

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash."""
        if self.running:
            self._supervisor.signal(self.name, signal.SIGKILL)
            self._wait_gone(STOP_SECONDS)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP). Its connections stay open, but it does not answer."""
        pid = self._pid
        if pid is not None and self.running:
            self._supervisor.signal(self.name, signal.SIGSTOP)
            wait_until(lambda: stands_still(pid), STOP_SECONDS, f"{self.name} is paused")

    def resume(self) -> None:
        """Let a paused server continue (SIGCONT)."""
        self._supervisor.signal(self.name, signal.SIGCONT)

    def _wait_gone(self, timeout: float) -> None:
        wait_until(
            lambda: self._supervisor.poll(self.name) is not None, timeout, f"{self.name} has ended"
        )
        self._pid = None

    def _last_words(self) -> str:
        """Return the last line of its log that looks like the reason, for a one-line error."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-200:]
        except OSError:
            lines = []
        marks = ("Exception", "ERROR", "FATAL", "Error")
        messages = [line for line in lines if not line.startswith("\t")]  # no stack traces
        errors = [line for line in messages if any(mark in line for mark in marks)]
        return (errors or messages or ["it printed nothing"])[-1].strip()


@dataclass(frozen=True, slots=True)
class Peer:
    """One server of an ensemble: its number and its ports on 127.0.0.1."""

    number: int
    client: int
    quorum: int
    election: int


def ensemble(servers: int) -> tuple[Peer, ...]:
    """Return the peers of an ensemble of this many servers, with free ports."""
    return tuple(Peer(n, free_port(), free_port(), free_port()) for n in range(1, servers + 1))


def zookeeper_spec(
    kafka: str, root: Path, number: int = 1, peers: Sequence[Peer] = ()
) -> ServerSpec:
    """Write the configuration of a ZooKeeper server for one Kafka release.

    With ``peers`` it is server ``number`` of that ensemble, otherwise a standalone server.
    """
    name = f"zookeeper-{number}" if peers else "zookeeper"
    port = peers[number - 1].client if peers else free_port()
    data = made(root / "data" / name)
    settings: dict[str, object] = {
        "dataDir": data,
        "clientPort": port,
        "clientPortAddress": HOST,
        "tickTime": TICK_MS,
        "minSessionTimeout": TICK_MS,
        "maxSessionTimeout": 600_000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }
    if peers:
        (data / "myid").write_text(f"{number}\n")
        settings |= {"initLimit": 20, "syncLimit": 10}
        settings |= {f"server.{p.number}": f"{HOST}:{p.quorum}:{p.election}" for p in peers}
    config = write_properties(root / "conf" / f"{name}.properties", settings)
    # A crash of the process loses nothing without fsync; only a crash of the machine would.
    flags = (
        "-Xmx256m",
        "-Dzookeeper.forceSync=no",
        "-Dzookeeper.preAllocSize=1024",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dzookeeper.4lw.commands.whitelist=*",
        "-Dzookeeper.admin.enableServer=false",
    )
    kind = "quorum.QuorumPeerMain" if peers else "ZooKeeperServerMain"
    return ServerSpec(
        name=name,
        port=port,
        argv=main_argv(kafka, flags, f"org.apache.zookeeper.server.{kind}", str(config)),
        log=made(root / "logs") / f"{name}.log",
        is_ready=lambda: "Mode:" in four_letters(port, "srvr"),
        before_restart=lambda: None,
    )


def broker_settings(root: Path, broker_id: int, brokers: int) -> dict[str, object]:
    """Return a broker's settings for both ZooKeeper and KRaft. Old brokers ignore unknown ones."""
    replicas = min(3, brokers)
    return {
        "log.dirs": made(root / "data" / f"broker-{broker_id}"),
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replicas,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.index.size.max.bytes": 1 << 20,
        "log.retention.hours": 876_000,  # records may carry any time stamp
        "group.initial.rebalance.delay.ms": 0,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": 1,
    }


def broker_spec(
    kafka: str,
    root: Path,
    broker_id: int,
    brokers: int,
    zookeeper_ports: Sequence[int],
    properties: Mapping[str, str],
    port: int | None = None,
) -> ServerSpec:
    """Write the configuration of one broker. ``properties`` take precedence over the library's
    settings.

    Without ``port``, a free port is used.
    """
    port = free_port() if port is None else port
    settings: dict[str, object] = {
        **broker_settings(root, broker_id, brokers),
        "broker.id": broker_id,
        "zookeeper.connect": ",".join(f"{HOST}:{port}" for port in zookeeper_ports),
        "zookeeper.session.timeout.ms": BROKER_SESSION_MS,
        "zookeeper.connection.timeout.ms": 30_000,
    }
    if kafka == "0.8.2":
        settings |= {"host.name": HOST, "advertised.host.name": HOST, "port": port}
    else:
        settings |= {"listeners": f"PLAINTEXT://{HOST}:{port}"}
    config = write_properties(
        root / "conf" / f"broker-{broker_id}.properties", {**settings, **properties}
    )

    def is_ready() -> bool:
        if not any(is_registered(port, broker_id) for port in zookeeper_ports):
            return False
        view = read_metadata(port)
        # Brokers of 0.8.2 know of no brokers, not even themselves, before the first topic exists.
        return view is not None and (kafka == "0.8.2" or view.brokers >= set(range(brokers)))

    return ServerSpec(
        name=f"broker-{broker_id}",
        port=port,
        argv=main_argv(kafka, ("-Xmx512m",), "kafka.Kafka", str(config)),
        log=made(root / "logs") / f"broker-{broker_id}.log",
        is_ready=is_ready,
        before_restart=lambda: wait_unregistered(zookeeper_ports, broker_id),
    )


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One broker's view of the cluster: live broker ids, and leaders by topic and partition.

    A leader of -1 means that the broker knows of none.
    """

    brokers: frozenset[int]
    leaders: Mapping[str, Mapping[int, int]]


def is_registered(zookeeper_port: int, broker_id: int) -> bool:
    """Whether ZooKeeper still has the broker's registration."""
    return f"\t/brokers/ids/{broker_id}\n" in four_letters(zookeeper_port, "dump")


def wait_unregistered(zookeeper_ports: Sequence[int], broker_id: int) -> None:
    """Wait until ZooKeeper has removed a broker's old registration, because it would prevent a new
    one."""

    def forgotten() -> bool:
        shown = [four_letters(port, "dump") for port in zookeeper_ports]
        shown = [sessions for sessions in shown if "Sessions" in sessions]
        return bool(shown) and not any(f"\t/brokers/ids/{broker_id}\n" in text for text in shown)

    timeout = BROKER_SESSION_MS / 1000 + 15
    wait_until(forgotten, timeout, f"ZooKeeper has forgotten the last run of broker {broker_id}")


def read_metadata(port: int) -> BrokerView | None:
    """Ask the broker at a loopback port for its view of the cluster; ``None`` if it is unreachable.

    The request names no topics, so that no broker creates one.
    """
    endpoint = BrokerEndpoint(-1, HOST, port)
    with closing(BrokerConnection(endpoint, "zkconsumer-servers", 2.0, 0)) as connection:
        try:
            answer = ask_metadata(connection, None)
        except BrokerError:  # open: a broker of 0.8.2 that knows of no brokers yet
            return BrokerView(frozenset(), {}) if connection.is_open else None
    leaders = {
        topic.name: {part.partition_index: part.leader_id for part in topic.partitions}
        for topic in answer.topics
    }
    return BrokerView(frozenset(broker.broker_id for broker in answer.brokers), leaders)


def four_letters(port: int, word: str) -> str:
    """Send one of ZooKeeper's four-letter words. Return the answer, which is empty if the server
    is unreachable."""
    try:
        with socket.create_connection((HOST, port), timeout=2.0) as connection:
            connection.sendall(word.encode())
            received = bytearray()
            while part := connection.recv(4096):
                received += part
    except OSError:
        return ""
    return received.decode(errors="replace")


def main_argv(kafka: str, flags: Sequence[str], main: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a server, or one of Kafka's tools, with one release's
    jars."""
    if kafka in KRAFT_LINES:
        logging = f"-Dlog4j2.configurationFile={JVM_FILES / 'log4j2.properties'}"
    else:
        logging = f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"
    classpath = f"{fetch_jars(kafka)}/*"
    shared = sharing(kafka, main)
    return (java(), *_JVM_FLAGS, *shared, *flags, logging, "-cp", classpath, main, *arguments)


def sharing(kafka: str, main: str) -> tuple[str, ...]:
    """Return the JVM options for loading the classes of ``main`` from a server's archive.

    The class path must begin with all jars of the release. Java ignores an archive that it cannot
    use.
    """
    zookeeper = main.startswith("org.apache.zookeeper.")
    archive = class_archive(kafka, ZOOKEEPER_MAIN if zookeeper else BROKER_MAIN)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a Java properties file, with values escaped as in JSON, which Java can read."""
    made(path.parent)
    path.write_text("".join(f"{key}={json.dumps(str(settings[key]))[1:-1]}\n" for key in settings))
    return path


def made(directory: Path) -> Path:
    """Return the directory, creating it if it does not exist."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory
