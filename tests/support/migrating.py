"""A cluster of Kafka 3.9 that goes through Kafka's own change from ZooKeeper to KRaft.

Used from one thread. One broker, one ZooKeeper and one controller, on loopback.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from zkconsumer.errors import ClusterError
from zkconsumer.servers.kraft import Voter, format_storage, quorum_settings
from zkconsumer.servers.servers import (
    HOST,
    Server,
    ServerSpec,
    broker_settings,
    broker_spec,
    made,
    main_argv,
    read_metadata,
    write_properties,
    zookeeper_spec,
)
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.topics.in_zookeeper import zookeeper_session
from zkconsumer.servers.topics.verbs import TopicVerbs
from zkconsumer.servers.waiting import free_port, wait_until

_LINE: Final = "3.9"
_CONTROLLER: Final = 3000
_MIGRATED: Final = "Completed migration of metadata from ZooKeeper to KRaft"
_SECONDS: Final = 120.0
_BOTH: Final = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}


class MigratingCluster(TopicVerbs):
    """ZooKeeper and one broker; then ``provision``, ``migrate``, ``finalize`` in this order.

    All files are below ``directory``. Use it as a context manager. All methods raise
    ``ClusterError``.

    Source of the steps: "ZooKeeper to KRaft Migration" of Kafka 3.9's documentation.
    """

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._supervisor = Supervisor()
        self._quorum = [Voter(_CONTROLLER, free_port())]
        self._zookeeper = Server(self._supervisor, zookeeper_spec(_LINE, directory))
        self._port = free_port()
        self._old = self._broker_spec({})
        self._broker = Server(self._supervisor, self._old)
        self._controller: Server | None = None
        self._is_kraft = False

    def __enter__(self) -> Self:
        try:
            self._zookeeper.start()
            self._broker.start()
            self._zookeeper.wait_ready()
            self._broker.wait_ready()
        except BaseException:
            self._supervisor.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.close()

    @property
    def zookeeper(self) -> str:
        """``127.0.0.1:PORT``, the same for its whole life."""
        return self._zookeeper.address

    @property
    def broker_servers(self) -> tuple[Server, ...]:
        """The broker, which keeps its port."""
        return (self._broker,)

    @property
    def kraft(self) -> bool:
        """Whether the broker has left ZooKeeper."""
        return self._is_kraft

    def provision(self) -> None:
        """Start a controller; restart the broker, which stays in ZooKeeper, with its address.

        Returns when the controller has copied the metadata and writes to both.
        """
        with zookeeper_session(self.zookeeper) as client:
            cluster_id = str(json.loads(client.get("/cluster/id")[0])["id"])
        spec = self._controller_spec(self._migration())
        format_storage(self._supervisor, _LINE, self._root, [spec.name], cluster_id)
        self._controller = controller = Server(self._supervisor, spec)
        controller.start()
        controller.wait_ready(_SECONDS)
        quorum = {key: str(value) for key, value in quorum_settings(self._quorum).items()}
        self._restart_broker(self._broker_spec({**quorum, **self._migration()}))
        wait_until(
            lambda: _MIGRATED in controller.log.read_text(errors="replace"),
            _SECONDS,
            "the controller has copied the metadata from ZooKeeper",
        )

    def migrate(self) -> None:
        """Restart the broker in KRaft mode. Until ``finalize`` the way back is open."""
        port = self._port
        listener = f"PLAINTEXT://{HOST}:{port}"
        settings = {
            **broker_settings(self._root, 0, 1),
            **quorum_settings(self._quorum),
            **self._migration(),
            "process.roles": "broker",
            "node.id": 0,
            "listeners": listener,
            "advertised.listeners": listener,
        }
        config = write_properties(self._root / "conf" / "broker-0-kraft.properties", settings)

        def is_ready() -> bool:
            view = read_metadata(port)
            return view is not None and bool(view.brokers)

        argv = main_argv(_LINE, ("-Xmx512m",), "kafka.Kafka", str(config))
        self._restart_broker(
            replace(self._old, argv=argv, is_ready=is_ready, before_restart=lambda: None)
        )
        self._is_kraft = True

    def finalize(self) -> None:
        """Restart the controller without ZooKeeper, which can be switched off from now on."""
        if self._controller is None:
            raise ClusterError("the change to KRaft has not begun: call provision first")
        self._controller.stop()
        self._controller = Server(self._supervisor, self._controller_spec({}))
        self._controller.start()
        self._controller.wait_ready(_SECONDS)

        def led() -> bool:
            view = read_metadata(self._port)
            return view is not None and bool(view.brokers)

        wait_until(led, _SECONDS, "the broker has found its controller again")

    def _migration(self) -> dict[str, str]:
        return {
            **_BOTH,
            "zookeeper.metadata.migration.enable": "true",
            "zookeeper.connect": self.zookeeper,
        }

    def _controller_spec(self, properties: Mapping[str, str]) -> ServerSpec:
        """Write the configuration of a controller that is not a broker."""
        port = self._quorum[0].port
        settings: dict[str, object] = {
            **quorum_settings(self._quorum),
            "process.roles": "controller",
            "node.id": _CONTROLLER,
            "listeners": f"CONTROLLER://{HOST}:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": made(self._root / "data" / f"controller-{_CONTROLLER}"),
        }
        name = f"controller-{_CONTROLLER}"
        config = self._root / "conf" / f"{name}.properties"
        return ServerSpec(
            name=name,
            port=port,
            argv=main_argv(
                _LINE,
                ("-Xmx256m",),
                "kafka.Kafka",
                str(write_properties(config, {**settings, **properties})),
            ),
            log=made(self._root / "logs") / f"{name}.log",
            is_ready=lambda: _accepts(port),
            before_restart=lambda: None,
        )

    def _broker_spec(self, properties: Mapping[str, str]) -> ServerSpec:
        port = self._port
        return broker_spec(_LINE, self._root, 0, 1, [self._zookeeper.port], properties, port)

    def _restart_broker(self, spec: ServerSpec) -> None:
        self._broker.stop()
        self._old.before_restart()
        self._broker = Server(self._supervisor, spec)
        self._broker.start()
        self._broker.wait_ready(_SECONDS)


def _accepts(port: int) -> bool:
    """Whether a server listens at this port of 127.0.0.1."""
    try:
        with socket.create_connection((HOST, port), timeout=2.0):
            return True
    except OSError:
        return False
