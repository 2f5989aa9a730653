"""A ZooKeeper, or ZooKeeper and Kafka brokers, as real processes on this machine.

Used from one thread. Configuration, data and logs are below one directory: ``conf``, ``data``,
``logs``.
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import KRAFT_LINES
from zkconsumer.servers.kraft import (
    CONTROLLERS,
    Voter,
    format_storage,
    kraft_spec,
    new_cluster_id,
)
from zkconsumer.servers.servers import (
    STOP_SECONDS,
    Server,
    broker_spec,
    ensemble,
    wait_unregistered,
    zookeeper_spec,
)
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.topics.verbs import TopicVerbs
from zkconsumer.servers.waiting import free_port, wait_until


class LocalZooKeeper:
    """A ZooKeeper server, or an ensemble, of the version that one Kafka release needs.

    ``zookeepers`` is the number of servers, ``kafka`` a key of ``KAFKA_LINES``. Without ``dir``,
    all files are in a temporary directory and are deleted at the end. With it, they are kept, and a
    later start finds the same data. Use it as a context manager, or call ``start`` and ``close``.
    The servers end with the calling process, even if that process is killed. All methods raise
    ``ClusterError``.
    """

    def __init__(
        self, kafka: str = "3.9", dir: str | Path | None = None, zookeepers: int = 1
    ) -> None:
        if kafka in KRAFT_LINES and zookeepers:
            raise ClusterError(f"Kafka {kafka} has no ZooKeeper: use another release, such as 3.9")
        if zookeepers < 1 and kafka not in KRAFT_LINES:
            raise ClusterError(f"an ensemble needs at least one server, not {zookeepers}")
        self.kafka = kafka
        self._zookeepers = zookeepers
        self._dir = None if dir is None else Path(dir).absolute()
        self._temporary: Path | None = None
        self._supervisor: Supervisor | None = None
        self._servers: list[Server] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def zookeeper(self) -> str:
        """``127.0.0.1:PORT,...``, a value for ``zookeeper.connect``. Empty with Kafka 4."""
        return ",".join(server.address for server in self.zookeeper_servers)

    @property
    def zookeeper_server(self) -> Server:
        """The first ZooKeeper process."""
        return self.servers[0]

    @property
    def zookeeper_servers(self) -> tuple[Server, ...]:
        """All ZooKeeper processes."""
        return self.servers[: self._zookeepers]

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers, ZooKeeper first."""
        if not self._servers:
            raise ClusterError("the cluster has not been started")
        return tuple(self._servers)

    @property
    def supervisor_pid(self) -> int:
        """Process id of the parent of all servers."""
        return self._started().pid

    def start(self) -> None:
        """Start all servers. Return when they are ready. If one fails, all are stopped."""
        if self._supervisor is not None:
            raise ClusterError("the cluster has already been started")
        if self._dir is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="zkconsumer-"))
        root = self._temporary or self._dir
        assert root is not None
        try:
            self._supervisor = Supervisor(remove=self._removed_at_end())
            self._launch(self._supervisor, root)
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """Stop all servers. They are killed if their data will be deleted."""
        try:
            if self._dir is not None and self._supervisor is not None:
                for server in reversed(self._servers):
                    server.stop(STOP_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all servers, as in a crash. ``start`` starts them again."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        self._servers = []

    def detach(self) -> None:
        """Let the servers outlive this process. Afterwards, only signals can stop them."""
        self._started().detach()
        self._supervisor = None

    def _removed_at_end(self) -> Path | None:
        return self._temporary

    def _launch(self, supervisor: Supervisor, root: Path) -> None:
        self._start_zookeepers(supervisor, root)
        for server in self._servers:
            server.wait_ready()

    def _start_zookeepers(self, supervisor: Supervisor, root: Path) -> None:
        peers = ensemble(self._zookeepers) if self._zookeepers > 1 else ()
        self._servers = [
            Server(supervisor, zookeeper_spec(self.kafka, root, number + 1, peers))
            for number in range(self._zookeepers)
        ]
        for server in self._servers:
            server.start()

    def _started(self) -> Supervisor:
        if self._supervisor is None:
            raise ClusterError("the cluster has not been started")
        return self._supervisor


class LocalCluster(LocalZooKeeper, TopicVerbs):
    """ZooKeeper and ``brokers`` Kafka brokers with the ids 0, 1, ... in ZooKeeper mode.

    Kafka 4 runs without ZooKeeper (KRaft): the first brokers, 1 or 3, are also controllers. Start
    a ``LocalZooKeeper`` next to it if you need one. ``properties`` are added to each broker's
    ``server.properties`` and take precedence. Topics are not created automatically unless
    ``properties`` allow it. See ``LocalZooKeeper`` for ``kafka`` and ``dir``.
    """

    def __init__(
        self,
        kafka: str = "3.9",
        brokers: int = 1,
        dir: str | Path | None = None,
        properties: Mapping[str, str] | None = None,
        zookeepers: int | None = None,
    ) -> None:
        if zookeepers is None:
            zookeepers = 0 if kafka in KRAFT_LINES else 1
        super().__init__(kafka, dir, zookeepers)
        if brokers < 1:
            raise ClusterError(f"a cluster needs at least one broker, not {brokers}")
        self._brokers = brokers
        self._properties = dict(properties or {})
        self._cluster_id = new_cluster_id()

    @property
    def kraft(self) -> bool:
        """Whether the brokers run without ZooKeeper."""
        return self.kafka in KRAFT_LINES

    @property
    def broker_servers(self) -> tuple[Server, ...]:
        """The brokers; the index is the broker id."""
        return self.servers[self._zookeepers :]

    def _launch(self, supervisor: Supervisor, root: Path) -> None:
        if self.kraft:
            self._launch_kraft(supervisor, root)
            return
        used_before = any((root / "data").glob("zookeeper*"))
        self._start_zookeepers(supervisor, root)
        zookeepers = self.zookeeper_servers
        for broker_id in range(self._brokers):
            self._servers.append(self._broker(supervisor, root, broker_id))
        if used_before:  # killed brokers may still be registered
            for server in zookeepers:
                server.wait_ready()
            for broker_id in range(self._brokers):
                wait_unregistered([server.port for server in zookeepers], broker_id)
        # Otherwise the brokers start at once: their JVMs need longer than ZooKeeper's.
        for server in self.broker_servers:
            server.start()
        for server in self._servers:
            server.wait_ready()

    def _launch_kraft(self, supervisor: Supervisor, root: Path) -> None:
        controllers = CONTROLLERS if self._brokers >= CONTROLLERS else 1
        quorum = [Voter(node, free_port()) for node in range(controllers)]
        for node in range(self._brokers):
            spec = kraft_spec(
                self.kafka, root, node, self._brokers, free_port(), quorum, self._properties
            )
            self._servers.append(Server(supervisor, spec))
        names = [server.name for server in self._servers]
        format_storage(supervisor, self.kafka, root, names, self._cluster_id)
        for server in self._servers:
            server.start()
        for server in self._servers:
            server.wait_ready()

    def _broker(self, supervisor: Supervisor, root: Path, broker_id: int) -> Server:
        ports = [server.port for server in self.zookeeper_servers]
        spec = broker_spec(self.kafka, root, broker_id, self._brokers, ports, self._properties)
        return Server(supervisor, spec)


_CLOSE_SESSION: Final = -11


def expire_session(zookeeper: str, session_id: int, password: bytes, timeout: float = 10.0) -> None:
    """Make the server end a session, as if the session had expired.

    A second connection takes over the session and closes it. This is repeated until the server no
    longer knows the session. ``zookeeper`` is ``HOST:PORT`` (a chroot is ignored). In kazoo, id and
    password are in ``client.client_id``. Raises ``ClusterError`` if the server is unreachable.
    """
    host, _, port = zookeeper.partition("/")[0].split(",")[0].rpartition(":")

    def gone() -> bool:
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            # Both requests in one go: the client itself is about to take its session back.
            hello = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password
            goodbye = struct.pack(">ii", 1, _CLOSE_SESSION)
            packets = (hello + b"\0", goodbye)
            connection.sendall(b"".join(struct.pack(">i", len(p)) + p for p in packets))
            answer = b""
            while len(answer) < 12:  # length, protocol version, granted timeout
                part = connection.recv(4096)
                if not part:
                    return False
                answer += part
            (granted,) = struct.unpack_from(">i", answer, 8)
            return bool(granted <= 0)

    def tried() -> bool:
        try:
            return gone()
        except ConnectionResetError:
            return False
        except OSError as error:
            raise ClusterError(f"ZooKeeper at {host}:{port} is unreachable: {error}") from error

    wait_until(tried, timeout, f"ZooKeeper has ended session 0x{session_id:x}")
