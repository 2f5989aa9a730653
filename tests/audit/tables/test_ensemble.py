"""The logs of a real ensemble whose leader was killed with pending proposals are one history.

Spark does not run. ``tests/audit/test_doubt.py`` compares its plan with that of one process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.history.committed import Run, plan
from zkaudit.local.history import Question, read
from zkaudit.local.log import entries

from zkconsumer.servers.jars import JVM_FILES, fetch_jars, java
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, stands_still, wait_until

pytestmark = pytest.mark.timeout(600)
FLAGS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
ALL = (1, 2, 3)
OWNER = "/consumers/g/owners/t/{}"


@dataclass
class Ensemble:
    """Three servers of one ensemble, each with its own directory."""

    root: Path
    supervisor: Supervisor
    ports: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Ports of each server: for clients, followers and elections."""
    pids: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in ALL:
            self.ports[number] = (free_port(), free_port(), free_port())
        servers = "".join(
            f"server.{n}=127.0.0.1:{quorum}:{vote}:participant;127.0.0.1:{client}\n"
            for n, (client, quorum, vote) in self.ports.items()
        )
        for number in ALL:
            place = self.logs(number)
            place.mkdir(parents=True)
            (place / "myid").write_text(f"{number}\n")
            # Servers are frozen for a while. Their peers must not give up on them meanwhile.
            (self.root / f"zoo{number}.cfg").write_text(
                f"dataDir={place}\ntickTime=500\ninitLimit=20\nsyncLimit=120\n"
                "maxSessionTimeout=60000\nadmin.enableServer=false\nstandaloneEnabled=false\n"
                f"reconfigEnabled=true\nskipACL=yes\n4lw.commands.whitelist=*\n{servers}"
            )

    def logs(self, number: int) -> Path:
        return self.root / f"data{number}"

    def start(self, *numbers: int) -> None:
        for number in numbers:
            flags = ["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64"]
            flags += ["-Dzookeeper.skipACL=yes", "-Dzookeeper.jmx.log4j.disable=true"]
            flags += [f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"]
            main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            config = str(self.root / f"zoo{number}.cfg")
            argv = [java(), *FLAGS, *flags, "-cp", f"{fetch_jars('3.9')}/*", main, config]
            self.pids[number] = self.supervisor.start(
                f"zookeeper-{number}", argv, self.root / f"log{number}"
            )

    def kill(self, number: int) -> None:
        self.supervisor.signal(f"zookeeper-{number}", signal.SIGKILL)
        wait_until(
            lambda: self.supervisor.poll(f"zookeeper-{number}") is not None,
            30,
            "the leader is killed",
        )

    def freeze(self, *numbers: int) -> None:
        """Stop all threads of these servers, and check that they are stopped."""
        for number in numbers:
            os.kill(self.pids[number], signal.SIGSTOP)
        for number in numbers:
            wait_until(
                partial(stands_still, self.pids[number]), 30, f"server {number} stands still"
            )

    def mode(self, number: int) -> str:
        import socket

        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.ports[number][0]), timeout=5) as connection,
        ):
            connection.sendall(b"srvr")
            found = re.search(r"Mode: (\w+)", connection.recv(4096).decode())
            return found[1] if found else ""
        return ""

    def serving(self, *numbers: int) -> int:
        """Wait until all servers serve clients, and return the leader."""
        modes: dict[int, str] = {}

        def ready() -> bool:
            modes.update({number: self.mode(number) for number in numbers})
            return all(modes.values()) and "leader" in modes.values()

        wait_until(ready, 120, f"servers {numbers} serve")
        return next(number for number in numbers if modes[number] == "leader")

    @contextlib.contextmanager
    def client(self, number: int) -> Iterator[KazooClient]:
        found = KazooClient(f"127.0.0.1:{self.ports[number][0]}", timeout=60)
        found.start(timeout=60)
        try:
            yield found
        finally:
            found.stop()
            found.close()

    def operations(self, number: int) -> list[Operation]:
        files = sorted(
            (self.logs(number) / "version-2").glob("log.*"), key=lambda p: int(p.name[4:], 16)
        )
        return [op for file in files for op in read_transactions(file)]


@dataclass
class Left:
    """The ensemble's directories, the killed leader, and its state just after it was killed."""

    logs: dict[int, Path]
    leader: int
    at_death: Path
    phantoms: list[int]
    """Zxids of the proposals that only the killed leader logged."""
    reconfigs: dict[int, list[Operation]]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Members claim partitions. The leader logs five more claims alone and is killed. The other
    servers continue."""
    root = tmp_path_factory.mktemp("ensemble")
    supervisor = Supervisor()
    ensemble = Ensemble(root, supervisor)
    try:
        ensemble.start(*ALL)
        first = ensemble.serving(*ALL)
        others = [number for number in ALL if number != first]
        with ensemble.client(first) as client:
            client.create("/consumers/g/ids/m", b"{}", makepath=True)
            client.ensure_path("/consumers/g/owners/t")
            for number in range(20):
                client.create(OWNER.format(number), b"m-0")
            client.reconfig(joining=None, leaving=None, new_members=_members(ensemble))
        client = KazooClient(f"127.0.0.1:{ensemble.ports[first][0]}", timeout=60)
        client.start(timeout=60)
        settled = _settled(ensemble, first)
        ensemble.freeze(*others)
        for number in range(100, 105):
            client.create_async(OWNER.format(number), b"phantom-0")
        wait_until(
            lambda: sum("phantom" in str(op.data) for op in ensemble.operations(first)) == 5,
            60,
            "the leader has logged five proposals",
        )
        ensemble.kill(first)
        for number in others:  # data in their sockets is lost with them
            ensemble.kill(number)
        client.stop()
        client.close()
        phantoms = [op.zxid for op in ensemble.operations(first) if "phantom" in str(op.data)]
        assert all(zxid > settled for zxid in phantoms)
        at_death = root / "at-death"
        shutil.copytree(ensemble.logs(first), at_death)
        ensemble.start(*others)
        second = ensemble.serving(*others)
        with ensemble.client(second) as client:
            for number in range(200, 220):
                client.create(OWNER.format(number), b"m-0")
        ensemble.start(first)
        ensemble.serving(*ALL)
        with ensemble.client(first) as client:
            client.create(OWNER.format(300), b"m-0")
            assert client.exists(OWNER.format(100)) is None
        zxids = {n: {op.zxid for op in ensemble.operations(n)} for n in others}
        assert not any(zxid in held for zxid in phantoms for held in zxids.values())
        logs = {number: ensemble.logs(number) for number in ALL}
        reconfigs = {n: [op for op in ensemble.operations(n) if op.type == "reconfig"] for n in ALL}
        return Left(logs, first, at_death, phantoms, reconfigs)
    finally:
        supervisor.close()


def _members(ensemble: Ensemble) -> str:
    return ",".join(
        f"server.{n}=127.0.0.1:{quorum}:{vote}:participant;127.0.0.1:{client}"
        for n, (client, quorum, vote) in ensemble.ports.items()
    )


def _settled(ensemble: Ensemble, leader: int) -> int:
    """Wait until all servers have logged the same transactions, and return the last zxid."""
    last = 0

    def same() -> bool:
        nonlocal last
        ends = {ensemble.operations(number)[-1].zxid for number in ALL}
        last = max(ends)
        return len(ends) == 1

    wait_until(same, 60, "all servers have logged the same")
    return last


def _runs(name: str, place: Path) -> list[Run]:
    return [
        Run(name, op.zxid, op.zxid)
        for file in (place / "version-2").glob("log.*")
        for op in read_transactions(file)
        if op.idx == 0
    ]


def test_what_never_was_committed_is_left_out(left: Left) -> None:
    """The audit drops exactly the five proposals that only the killed leader logged, and reports no
    log gap."""
    made = plan([run for n, place in left.logs.items() for run in _runs(str(n), place)])
    dropped = {z for first, last in made.dropped for z in range(first, last + 1)}
    told = {z for ranges in made.take.values() for f, t in ranges for z in range(f, t + 1)}
    assert not told & set(left.phantoms)
    assert dropped <= set(left.phantoms)
    assert made.log_gaps == ()
    # If the leader truncated its log when it restarted, there is nothing left to drop.
    kept = {op.zxid for op in _operations(left.logs[left.leader])}
    assert dropped == set(left.phantoms) & kept


def _operations(place: Path) -> list[Operation]:
    return [op for f in (place / "version-2").glob("log.*") for op in read_transactions(f)]


def test_without_a_witness_the_tail_is_unconfirmed(left: Left) -> None:
    """The log of the killed leader alone, one of three servers, proves none of its proposals."""
    made = plan(_runs("1", left.at_death), ensemble=3)
    unsure = {z for first, last in made.unconfirmed for z in range(first, last + 1)}
    assert set(left.phantoms) <= unsure
    assert made.dropped == ()


def test_the_history_of_the_ensemble(left: Left) -> None:
    """The logs of the three directories list each claim once, and no claim that was never
    committed.

    The killed leader's directory is a copy from just after the kill, so its log has the uncommitted
    claims.
    """
    logs = left.logs | {left.leader: left.at_death}
    history = read(Question([str(p) for p in logs.values()], "g"))
    assert len(history.coverage.servers) == 3
    assert list(history.log_gaps) == []
    assert [z for a, b in history.plan.dropped for z in range(a, b + 1)] == left.phantoms
    lines = list(entries(history, "g"))
    claimed = [e.partition for e in lines if e.kind == "claimed"]
    assert claimed == [*range(20), *range(200, 220), 300]
    (left_out,) = (e for e in lines if e.kind == "rolled back")
    assert left_out.zxid == left.phantoms[0]


def test_a_reconfig_is_what_zookeepers_own_tool_prints(left: Left) -> None:
    """The decoder shows a reconfig as the toolkit prints it: path, content and version."""
    (number, (op,)) = next((n, ops) for n, ops in left.reconfigs.items() if len(ops) == 1)
    assert op.path == "/zookeeper/config"
    assert b"version=" in (op.data or b"")
    for log in (left.logs[number] / "version-2").glob("log.*"):
        main = "org.apache.zookeeper.server.persistence.TxnLogToolkit"
        argv = [java(), *FLAGS, "-cp", f"{fetch_jars('3.9')}/*", main, "-d", str(log)]
        printed = subprocess.run(argv, capture_output=True, timeout=60, check=True).stdout.decode()
        if "reconfig" in printed:
            break
    head = (
        f"session 0x{op.session & (1 << 64) - 1:x} cxid 0x{op.cxid:x} zxid 0x{op.zxid:x} reconfig"
    )
    line = printed[printed.index(head) + len(head) + 1 :]
    assert op.data is not None
    assert line.startswith(f"{op.path},{op.data.decode()},{op.version}\n")
