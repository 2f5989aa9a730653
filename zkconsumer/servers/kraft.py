"""Kafka without ZooKeeper (KRaft): configuration files, and storage formatted by Kafka's own tool.

Any one thread at a time.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.servers import (
    HOST,
    READY_SECONDS,
    ServerSpec,
    broker_settings,
    made,
    main_argv,
    read_metadata,
    write_properties,
)
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import wait_until

CONTROLLERS: Final = 3
"""Largest number of brokers that are also controllers; the quorum needs an odd number."""


@dataclass(frozen=True, slots=True)
class Voter:
    """One controller of a quorum, with its port on 127.0.0.1 for the other controllers."""

    node: int
    port: int


def new_cluster_id() -> str:
    """Return a cluster id in Kafka's format: 16 bytes in URL-safe base64 without padding.

    As in Kafka's ``Uuid``, no id begins with ``-``, which Kafka's tool would read as an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def quorum_settings(quorum: Sequence[Voter]) -> dict[str, object]:
    """Return the settings with which a server finds the controllers."""
    voters = ",".join(f"{controller.node}@{HOST}:{controller.port}" for controller in quorum)
    return {
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
    }


def kraft_spec(
    kafka: str,
    root: Path,
    node: int,
    brokers: int,
    port: int,
    quorum: Sequence[Voter],
    properties: Mapping[str, str],
) -> ServerSpec:
    """Write the configuration of one broker, which is also a controller if it is in ``quorum``.

    ``properties`` take precedence over the library's settings.
    """
    own = next((controller for controller in quorum if controller.node == node), None)
    listeners = [f"PLAINTEXT://{HOST}:{port}"]
    if own is not None:
        listeners.append(f"CONTROLLER://{HOST}:{own.port}")
    settings: dict[str, object] = {
        **broker_settings(root, node, brokers),
        **quorum_settings(quorum),
        "process.roles": "broker" if own is None else "broker,controller",
        "node.id": node,
        "listeners": ",".join(listeners),
        "advertised.listeners": listeners[0],
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "share.coordinator.state.topic.replication.factor": min(3, brokers),
        "share.coordinator.state.topic.min.isr": 1,
    }
    config = write_properties(
        root / "conf" / f"broker-{node}.properties", {**settings, **properties}
    )

    def is_ready() -> bool:
        view = read_metadata(port)
        return view is not None and view.brokers >= set(range(brokers))

    return ServerSpec(
        name=f"broker-{node}",
        port=port,
        argv=main_argv(kafka, ("-Xmx512m",), "kafka.Kafka", str(config)),
        log=made(root / "logs") / f"broker-{node}.log",
        is_ready=is_ready,
        before_restart=lambda: None,
    )


def format_storage(
    supervisor: Supervisor,
    kafka: str,
    root: Path,
    names: Sequence[str],
    cluster_id: str,
    *more: str,
) -> None:
    """Format the directories of these servers together, unless they are already formatted.

    ``names``: the servers' names, as in their properties files; ``more`` are additional arguments
    of Kafka's tool. Raises ``ClusterError``.
    """
    log = made(root / "logs") / "format.log"
    tool = "kafka.tools.StorageTool"
    runs = [f"format-{name}" for name in names]
    for name, run in zip(names, runs, strict=True):
        config = str(root / "conf" / f"{name}.properties")
        # With `-t`, the tool would take an id that begins with "-" for an option. Brokers with
        # ZooKeeper choose such ids.
        of_cluster = f"--cluster-id={cluster_id}"
        arguments = ("format", of_cluster, "-c", config, "--ignore-formatted", *more)
        supervisor.start(run, main_argv(kafka, ("-Xmx256m",), tool, *arguments), log)
    done: Callable[[], bool] = lambda: all(supervisor.poll(run) is not None for run in runs)  # noqa: E731
    wait_until(done, READY_SECONDS, "the servers' storage is formatted")
    if any(supervisor.poll(run) for run in runs):
        lines = log.read_text(errors="replace").splitlines() or ["it printed nothing"]
        raise ClusterError(
            f"Kafka's StorageTool could not format the log directory: {lines[-1]} (log: {log})"
        )
