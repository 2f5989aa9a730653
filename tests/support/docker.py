"""``LocalCluster`` on a Docker engine: ZooKeeper servers and Kafka brokers as containers.

Used from one thread. The containers share the network of the machine and bind to 127.0.0.1, so the
engine must run on this machine; they need no bridge and publish nothing. Their image is the one
that ``docker/build.sh`` builds.
"""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from tests.support.docker_engine import (
    DockerContainer,
    connect_engine,
    create_container,
    engine_errors,
    remove_cluster,
    remove_leftovers,
)
from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import KAFKA_LINES, KRAFT_LINES
from zkconsumer.servers.servers import READY_SECONDS, is_registered, read_metadata
from zkconsumer.servers.topics.verbs import TopicVerbs
from zkconsumer.servers.waiting import free_port, wait_until

IMAGE: Final = "zkconsumer"
"""The name that ``docker/build.sh`` gives its image."""

_HOST: Final = "127.0.0.1"


class DockerServer(DockerContainer):
    """A ZooKeeper or a broker in a container, with the methods of ``zkconsumer.servers.Server``.

    A broker that is restarted waits until its previous session in ZooKeeper has ended.
    """

    def __init__(
        self,
        container: Any,
        name: str,
        port: int,
        is_ready: Callable[[], bool],
    ) -> None:
        super().__init__(container, name)
        self._port = port
        self._is_ready = is_ready

    @property
    def port(self) -> int:
        """The server's port at 127.0.0.1."""
        return self._port

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{_HOST}:{self._port}"

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait ``timeout`` seconds at most for an answer of the server. Raises ``ClusterError``."""

        def ready() -> bool:
            if not self.running:
                raise ClusterError(
                    f"{self.name} exited right after its start: {self._last_words()}"
                )
            return self._is_ready()

        wait_until(ready, timeout, f"{self.name} is ready")

    def _last_words(self) -> str:
        """The last line of its log that looks like the reason, so that the error is one line."""
        lines = [line for line in self.log_text().splitlines() if not line.startswith("\t")]
        marks = ("Exception", "ERROR", "FATAL", "rror: ")
        telling = [line for line in lines if any(mark in line for mark in marks)]
        return (telling or lines or ["it printed nothing"])[-1].strip()


class DockerCluster(TopicVerbs):
    """``LocalCluster`` in containers: ``zookeepers`` ZooKeeper servers and ``brokers`` brokers.

    Args:
        kafka: a key of ``KAFKA_LINES`` but 4; ZooKeeper is of the version that belongs to it.
        brokers: how many brokers; their ids are 0, 1, ...
        zookeepers: how many ZooKeeper servers; more than one form an ensemble.
        properties: added to each broker's ``server.properties``; they take precedence.
        image: what to run, built by ``docker/build.sh``.

    Use it as a context manager, or call ``start`` and ``close``. Data lives in the containers,
    which are removed at the end, also when Python exits without ``close``; those of a process that
    was killed are removed by the next start of a cluster. All methods raise ``ClusterError``.
    """

    def __init__(
        self,
        kafka: str = "3.9",
        brokers: int = 1,
        zookeepers: int = 1,
        properties: Mapping[str, str] | None = None,
        image: str = IMAGE,
    ) -> None:
        lines = [line for line in KAFKA_LINES if line not in KRAFT_LINES]
        if kafka not in lines:
            raise ClusterError(f"unknown Kafka line {kafka!r}: choose one of {', '.join(lines)}")
        if brokers < 1 or zookeepers < 1:
            raise ClusterError("a cluster needs at least one broker and one ZooKeeper server")
        self.kafka = kafka
        self.id = uuid.uuid4().hex[:12]
        self._brokers = brokers
        self._zookeepers = zookeepers
        self._properties = dict(properties or {})
        self._image = image
        self._client: Any = None
        self._servers: list[DockerServer] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def zookeeper(self) -> str:
        """``127.0.0.1:PORT,...`` of all ZooKeeper servers, fit for ``zookeeper.connect``."""
        return ",".join(server.address for server in self.zookeeper_servers)

    @property
    def servers(self) -> tuple[DockerServer, ...]:
        """All servers, the ZooKeeper servers first."""
        if not self._servers:
            raise ClusterError("the cluster has not been started")
        return tuple(self._servers)

    @property
    def zookeeper_servers(self) -> tuple[DockerServer, ...]:
        """The ZooKeeper servers; the index is ``myid`` - 1."""
        return self.servers[: self._zookeepers]

    @property
    def zookeeper_server(self) -> DockerServer:
        """The first ZooKeeper server."""
        return self.servers[0]

    @property
    def broker_servers(self) -> tuple[DockerServer, ...]:
        """The brokers; the index is the broker id."""
        return self.servers[self._zookeepers :]

    def start(self) -> None:
        """Start all servers and return when they are ready. If one fails, all are stopped."""
        if self._client is not None:
            raise ClusterError("the cluster has been started already")
        self._client = connect_engine()
        atexit.register(self.close)
        try:
            remove_leftovers(self._client)
            self._launch()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all containers and remove them, with their data."""
        if self._client is None:
            return
        try:
            remove_cluster(self._client, self.id)
        finally:
            self._client.close()
            self._client = None
            self._servers = []
            atexit.unregister(self.close)

    def run(self, name: str, argv: Sequence[str]) -> DockerContainer:
        """Start ``argv`` in one more container of the image, which ends with the cluster."""
        container = DockerContainer(self._create(name, argv), name)
        container.start()
        return container

    def _launch(self) -> None:
        ensemble = self._ensemble()
        for number in range(1, self._zookeepers + 1):
            self._servers.append(self._zookeeper(number, ensemble))
        connect = self.zookeeper
        for broker_id in range(self._brokers):
            self._servers.append(self._broker(broker_id, connect))
        # All at once: a broker's JVM needs longer to start than ZooKeeper's, and waits for it.
        for server in self._servers:
            server.start()
        for server in self._servers:
            server.wait_ready()

    def _ensemble(self) -> list[str]:
        if self._zookeepers == 1:
            return []
        return [
            f"server.{number}={_HOST}:{free_port()}:{free_port()}"
            for number in range(1, self._zookeepers + 1)
        ]

    def _zookeeper(self, number: int, ensemble: Sequence[str]) -> DockerServer:
        port = free_port()
        name = f"zookeeper-{number}"
        argv = ["kafka-jvm", "zookeeper", str(port), f"myid={number}", *ensemble]
        container = self._create(name, argv)

        def is_ready() -> bool:
            with engine_errors(f"container {name}"):
                asked = container.exec_run(["kafka-jvm", "healthy", "zookeeper", str(port)])
            return bool(asked.exit_code == 0)

        return DockerServer(container, name, port, is_ready)

    def _broker(self, broker_id: int, connect: str) -> DockerServer:
        port = free_port()
        name = f"broker-{broker_id}"
        replicas = str(min(3, self._brokers))
        properties = {
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            **self._properties,
        }
        settings = [f"{key}={value}" for key, value in properties.items()]
        argv = ["kafka-jvm", "broker", str(broker_id), str(port), connect, *settings]

        def is_ready() -> bool:
            if not is_registered(self._live_zookeeper_port(), broker_id):
                return False
            view = read_metadata(port)
            # Brokers of 0.8.2 know of no brokers, not even themselves, before the first topic.
            wanted = {i for i, server in enumerate(self.broker_servers) if server.running}
            return view is not None and (self.kafka == "0.8.2" or view.brokers >= wanted)

        return DockerServer(
            self._create(name, argv),
            name,
            port,
            is_ready,
        )

    def _live_zookeeper_port(self) -> int:
        for server in self.zookeeper_servers:
            if server.running:
                return server.port
        raise ClusterError("no ZooKeeper server is running")

    def _create(self, name: str, argv: Sequence[str]) -> Any:
        if self._client is None:
            raise ClusterError("the cluster has not been started")
        return create_container(
            self._client, self.id, name, self._image, argv, {"KAFKA_LINE": self.kafka}
        )
