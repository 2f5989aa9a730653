"""A cluster that outlives the command that started it: ``up``, ``status`` and ``down``.

Its directory holds ``cluster.json`` (the state: addresses, and each process with its start time),
``cluster.lock``, ``conf``, ``data`` and ``logs``. The data lives from ``up`` to ``down``; the logs
stay until the next ``up``. One command at a time works in a directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.local_cluster import LocalCluster
from zkconsumer.servers.waiting import process_started, wait_until

_STATE: Final = "cluster.json"
_LOCK: Final = "cluster.lock"
_PARTS: Final = ("conf", "data", "logs")
_DOWN_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of the cluster. Pid and start time together identify it."""

    name: str
    pid: int
    started: str
    port: int | None

    @property
    def alive(self) -> bool:
        """Whether this process exists, and not a later one with the same id."""
        return process_started(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of the cluster, as stored by ``up``."""

    kafka: str
    zookeeper: str
    bootstrap: str
    supervisor: ServerProcess
    servers: tuple[ServerProcess, ...]

    @property
    def processes(self) -> tuple[ServerProcess, ...]:
        """The supervisor and all servers."""
        return (self.supervisor, *self.servers)

    @property
    def up(self) -> bool:
        """Whether every server is running."""
        return all(server.alive for server in self.servers)


class _BackgroundCluster(LocalCluster):
    """Keeps everything below one directory, but deletes the data when it ends."""

    def _removed_at_end(self) -> Path | None:
        return None if self._dir is None else self._dir / "data"


def default_dir() -> Path:
    """Return the directory of this user's cluster, below ``XDG_STATE_HOME``."""
    state_home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state_home) / "zkconsumer" / "cluster"


def up(directory: Path, kafka: str = "3.9", brokers: int = 1) -> ClusterState:
    """Start an empty cluster that runs until ``down``. Return when it is ready.

    Raises ``ClusterError`` if a cluster is already running in the directory, or if the directory
    has other content. After a failure or an interruption, no process is left running.
    """
    with _only_command(directory, create=True):
        old = _read_state(directory)
        if old is not None and any(server.alive for server in old.servers):
            raise ClusterError(
                f"a cluster is already up in {directory}: stop it with 'zkconsumer cluster "
                "down', or use another --dir"
            )
        foreign = {entry.name for entry in directory.iterdir()} - {_STATE, _LOCK, *_PARTS}
        if foreign:
            raise ClusterError(
                f"{directory} contains other files ({sorted(foreign)[0]}): use an empty --dir"
            )
        _clear(directory, old)
        shutil.rmtree(directory / "logs", ignore_errors=True)
        cluster = _BackgroundCluster(kafka, brokers, dir=directory)
        try:
            cluster.start()
            state = _describe(cluster)
            _write_state(directory, state)
            cluster.detach()
        except BaseException as error:
            cluster.kill()
            _clear(directory, None)
            if isinstance(error, ClusterError) and (directory / "logs").is_dir():
                raise ClusterError(f"{error} (logs: {directory / 'logs'})") from error
            raise
        return state


def status(directory: Path) -> ClusterState:
    """Return the state of the cluster. Each process shows whether it is alive.

    Raises ``ClusterError`` if no server of the directory's cluster is running.
    """
    state = _read_state(directory)
    if state is None or not any(server.alive for server in state.servers):
        raise ClusterError(
            f"no cluster is up in {directory}: start one with 'zkconsumer cluster up'"
        )
    return state


def down(directory: Path) -> bool:
    """End every process of the cluster and delete its data. Return whether there was a cluster.

    It works even if some processes have already ended. Raises ``ClusterError`` if a process cannot
    be ended.
    """
    if not directory.is_dir():
        return False
    with _only_command(directory, create=False):
        state = _read_state(directory)
        was_up = state is not None and any(process.alive for process in state.processes)
        _clear(directory, state)
        return was_up


def _clear(directory: Path, state: ClusterState | None) -> None:
    """End the remains of a cluster and delete its data, configuration and state."""
    if state is not None:
        _send(state.supervisor, signal.SIGTERM)  # it kills its servers and waits for them
        _wait_gone((state.supervisor,))
        for server in state.servers:
            _send(server, signal.SIGKILL)
        _wait_gone(state.servers)
    for part in ("data", "conf"):
        shutil.rmtree(directory / part, ignore_errors=True)
    (directory / _STATE).unlink(missing_ok=True)


def _send(process: ServerProcess, number: signal.Signals) -> None:
    if not process.alive:
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ClusterError(
            f"{process.name} (process {process.pid}) belongs to another user, who must stop it"
        ) from error


def _wait_gone(processes: tuple[ServerProcess, ...]) -> None:
    names = ", ".join(f"{process.name} (process {process.pid})" for process in processes)
    wait_until(
        lambda: not any(process.alive for process in processes), _DOWN_SECONDS, f"{names} ended"
    )


def _describe(cluster: LocalCluster) -> ClusterState:
    return ClusterState(
        kafka=cluster.kafka,
        zookeeper=cluster.zookeeper,
        bootstrap=cluster.bootstrap,
        supervisor=_process("supervisor", cluster.supervisor_pid, None),
        servers=tuple(_process(s.name, s.pid, s.port) for s in cluster.servers),
    )


def _process(name: str, pid: int, port: int | None) -> ServerProcess:
    started = process_started(pid)
    if started is None:
        raise ClusterError(f"{name} exited immediately after it was started")
    return ServerProcess(name, pid, started, port)


def _write_state(directory: Path, state: ClusterState) -> None:
    partial = directory / "conf" / _STATE
    partial.write_text(json.dumps(asdict(state), indent=2) + "\n")
    partial.replace(directory / _STATE)


def _read_state(directory: Path) -> ClusterState | None:
    path = directory / _STATE
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        return ClusterState(
            kafka=content["kafka"],
            zookeeper=content["zookeeper"],
            bootstrap=content["bootstrap"],
            supervisor=ServerProcess(**content["supervisor"]),
            servers=tuple(ServerProcess(**server) for server in content["servers"]),
        )
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise ClusterError(f"{directory} is not a directory: use another --dir") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{path} is damaged: end the Java processes of this cluster, then delete the file"
        ) from error


@contextmanager
def _only_command(directory: Path, *, create: bool) -> Iterator[None]:
    """Hold the directory's lock. The lock file is kept, because deleting it would let two commands
    in."""
    import fcntl  # not on Windows

    try:
        if create:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (directory / _LOCK).open("a")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClusterError(f"cannot use {directory}: {reason}; use another --dir") from error
    with lock:
        deadline = time.monotonic() + _DOWN_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"another cluster command is running in {directory}: wait until it has "
                        "ended"
                    ) from None
                time.sleep(0.1)
        yield
