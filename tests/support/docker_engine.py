"""The Docker engine of this machine: its containers, their owners, and its errors as ours.

Any one thread at a time.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.servers import STOP_SECONDS
from zkconsumer.servers.waiting import process_started, wait_until

CLUSTER_LABEL: Final = "zkconsumer.cluster"
"""Label of every container; its value names the cluster."""

_OWNER_LABEL: Final = "zkconsumer.owner"


def connect_engine() -> Any:
    """Return a ``docker.DockerClient`` for the engine of the environment (``DOCKER_HOST``).

    Raises ``ClusterError`` when the SDK is not installed or no engine answers.
    """
    # By name: in the repository's root a plain import finds the folder docker/ without the SDK.
    try:
        sdk: Any = importlib.import_module("docker")
    except ImportError:
        sdk = None
    if not hasattr(sdk, "from_env"):
        raise ClusterError(
            "the Docker SDK for Python was not found: run pip install --group docker"
        )
    with engine_errors("no Docker engine answers (start it, or set DOCKER_HOST)"):
        client = sdk.from_env()
        try:
            client.ping()
        except BaseException:
            client.close()
            raise
    return client


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Errors of the SDK, and of the HTTP library below it, leave as ``ClusterError``."""
    errors: Any = importlib.import_module("docker.errors")
    try:
        yield
    except errors.ImageNotFound as error:
        raise ClusterError(f"{doing}: {error.explanation}; docker/build.sh builds it") from error
    except errors.APIError as error:
        raise ClusterError(f"{doing}: {error.explanation or error}") from error
    except (errors.DockerException, OSError) as error:  # requests raises OSErrors
        raise ClusterError(f"{doing}: {error}") from error


class DockerContainer:
    """One container of a cluster. It keeps its files while it is stopped and started again."""

    def __init__(self, container: Any, name: str) -> None:
        self._container = container
        self._name = name

    @property
    def name(self) -> str:
        """``zookeeper-<id>``, ``broker-<id>``, or the name given to ``DockerCluster.run``."""
        return self._name

    @property
    def container_id(self) -> str:
        """The engine's id of the container."""
        return str(self._container.id)

    @property
    def running(self) -> bool:
        """Whether it runs; a paused one does."""
        with self._errors():
            self._container.reload()
        return self._container.status in ("running", "paused")

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last run (137 after ``kill``); ``None`` while it runs."""
        return None if self.running else int(self._container.attrs["State"]["ExitCode"])

    def start(self) -> None:
        """Start the container, also after a stop. Raises ``ClusterError`` if it is running."""
        if self.running:
            raise ClusterError(f"{self.name} is running already")
        with self._errors():
            self._container.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End it cleanly (SIGTERM), or kill it after ``timeout`` seconds, and wait until it has
        ended."""
        if self.running:
            with self._errors():
                if self._container.status == "paused":
                    self._container.unpause()
                self._container.stop(timeout=round(timeout))

    def kill(self) -> None:
        """Kill the container (SIGKILL), as a crash would, and wait until it has ended."""
        if self.running:
            with self._errors():
                self._container.kill()
            wait_until(lambda: not self.running, STOP_SECONDS, f"{self.name} has ended")

    def pause(self) -> None:
        """Freeze the container: connections stay open, but it does not answer."""
        with self._errors():
            self._container.pause()

    def resume(self) -> None:
        """Resume a paused container."""
        with self._errors():
            self._container.unpause()

    def output(self) -> bytes:
        """The container's output on stdout so far, in all its runs."""
        with self._errors():
            return bytes(self._container.logs(stdout=True, stderr=False))

    def log_text(self) -> str:
        """Its output on stderr so far; servers log there."""
        with self._errors():
            return bytes(self._container.logs(stdout=False, stderr=True)).decode(errors="replace")

    def _errors(self) -> Any:
        return engine_errors(f"container {self._name}")


def create_container(
    client: Any,
    cluster: str,
    name: str,
    image: str,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> Any:
    """Create a container on the machine's network, labelled with its cluster and this process."""
    with engine_errors(f"cannot create the container {name}"):
        return client.containers.create(
            image,
            name=f"zkconsumer-{cluster}-{name}",
            entrypoint=argv[0],
            command=list(argv[1:]),
            environment=dict(environment),
            network_mode="host",
            labels={CLUSTER_LABEL: cluster, _OWNER_LABEL: _owner(os.getpid())},
        )


def remove_cluster(client: Any, cluster: str) -> None:
    """Kill all containers of a cluster and remove them."""
    _remove_labelled(client, f"{CLUSTER_LABEL}={cluster}")


def remove_leftovers(client: Any) -> None:
    """Remove the containers of processes that were killed before they could do it themselves."""
    us = _owner(os.getpid()).split(" ")
    with engine_errors("cannot list the containers"):
        found = client.api.containers(all=True, filters={"label": _OWNER_LABEL})
    for owner in {container["Labels"][_OWNER_LABEL] for container in found}:
        host, namespace, pid, _ = owner.split(" ", 3)
        if [host, namespace] == us[:2] and owner != _owner(int(pid)):
            _remove_labelled(client, f"{_OWNER_LABEL}={owner}")


def _remove_labelled(client: Any, label: str) -> None:
    errors: Any = importlib.import_module("docker.errors")
    with engine_errors(f"cannot remove the containers labelled {label}"):
        for container in client.api.containers(all=True, filters={"label": label}):
            try:
                client.api.remove_container(container["Id"], force=True, v=True)
            except errors.NotFound:
                pass  # somebody else removed it


def _owner(pid: int) -> str:
    """Identify a process of this machine; a process that is gone never has the same identity."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""  # not Linux
    return f"{socket.gethostname()} {namespace} {pid} {process_started(pid)}"
