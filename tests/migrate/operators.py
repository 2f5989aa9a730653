"""Operators of one group on a simulated cluster, each with a machine and a session of their own.

``Machine`` runs whole commands. Something may happen at any of its points: before each request to
ZooKeeper, around each change in Kafka and before each record of its journal. It may be killed
there, or suspended until its session has ended. Time is virtual.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Self

import pytest
from zkmigrate.apply import live, parallel
from zkmigrate.apply.journal import Journal

from tests.migrate import matrix
from tests.migrate.simulated import Ran, Simulated, SimulatedZk
from zkconsumer.admin import ids_lock
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Create
from zkconsumer.core.zookeeper.znodes import GroupPaths

PATHS: Final = GroupPaths("g")
LATE: Final = 600
"""The offset that other clients commit."""
_LONG_S: Final = 1000.0
_ACTED: Final = Ran(0, [{"outcome": "done"}], "")


Command = Callable[["Machine"], Ran]


class Killed(BaseException):
    """The process is gone."""


class End(NamedTuple):
    """The state of the group, as another operator finds it."""

    zk: dict[str, bytes]
    kafka: dict[TopicPartition, StoredOffset]
    truth: str
    locked: str
    mode: str
    ids: object
    case: str


class World:
    """A cluster with the group in a state, and two operators with their plans.

    ``new`` returns a copy that has a folder of its own.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, state: str) -> None:
        self._patch = patch
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        here = os.getcwd()
        self.one = Simulated(patch, self.folder)
        self.one.topic("__consumer_offsets", (0, 0))
        {one.__name__: one for one in (*matrix.STATES, mixed, live_open_alike)}[state](self.one)
        self.first, self.second = machines(self.one)
        for machine in (self.first, self.second):
            machine.plan()
        os.chdir(here)
        replica = self.one.zk.zk._leader
        assert not any(replica.tree.ephemerals.values())
        kafka = self.one.kafka
        self._saved = pickle.dumps(
            (replica.tree, replica.zxid, self.one.zk._times, kafka.committed, kafka.log,
             self.one.ends)
        )  # fmt: skip

    def new(self) -> World:
        """Return a copy of this world as it was at first."""
        copy = World.__new__(World)
        copy._patch = self._patch
        copy.folder = Path(tempfile.mkdtemp(dir=self.folder.parent))
        shutil.copytree(self.folder, copy.folder, dirs_exist_ok=True)
        here = os.getcwd()
        copy.one = one = Simulated(self._patch, copy.folder)
        os.chdir(here)
        replica = one.zk.zk._leader
        (replica.tree, replica.zxid, times, one.kafka.committed, one.kafka.log, one.ends) = (
            pickle.loads(self._saved)
        )
        one.zk._times = times
        copy.first, copy.second = machines(one)
        return copy

    def close(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self.folder)

    def status(self) -> dict[str, Any]:
        """Return what ``status`` shows to a third operator."""
        (row,) = Machine(self.one, self.folder / "third").run("status", "--group", "g").rows
        return row

    def end(self) -> End:
        """Return the state of the group."""
        row = self.status()
        zk = {
            path.removeprefix(PATHS.offsets): node[0]
            for path, node in self.one.znodes("g").items()
            if path.startswith(PATHS.offsets) and path.count("/") == PATHS.offsets.count("/") + 2
        }
        kafka = dict(self.one.kafka.committed.get("g", {}))
        where = map(row.__getitem__, ("truth", "locked", "mode"))
        return End(zk, kafka, *where, ids(self.one), row["case"])


def machines(one: Simulated) -> tuple[Machine, Machine]:
    """Return the machines of two operators."""
    return Machine(one, one.folder / "first"), Machine(one, one.folder / "second")


def mixed(one: Simulated) -> None:
    """Each store has offsets that the other does not have: one is 0, one has metadata, and one
    znode says that there is none."""
    matrix.untouched(one)
    one.topic("u", (0, 1000), (0, 1000), (0, 1000))
    one.in_zookeeper("g", "u", 0, -1)
    one.kafka.store("g", {TopicPartition("u", 2): StoredOffset(40, -1, "kept")})


def live_open_alike(one: Simulated) -> None:
    """The mode of the live move is ``open``, and both stores have the same offsets, so the group
    can go back."""
    matrix.live_open(one)
    one.in_zookeeper("g", "t", 500, 501)


def ids(one: Simulated) -> object:
    """The lock of the group's ids, and their data and access list without it."""
    found = one.zk.run(ids_lock.look("g"))
    return (
        found.guard.value,
        found.data if found.record is None else found.old_data,
        *(f"{one.scheme}:{one.who[:15]} {one.perms}" for one in found.acl.entries),
    )


class Machine:
    """A machine with its own folder and its own session with ZooKeeper."""

    def __init__(self, one: Simulated, folder: Path) -> None:
        self.one, self.folder = one, folder
        folder.mkdir(exist_ok=True)
        self.zk = SimulatedZk(lambda: self.one.now_ms)
        self.zk.zk, self.zk._times = self.one.zk.zk, self.one.zk._times
        self.zk.connect()
        self.point: Callable[[str], object] = lambda what: None
        """Called at each point with its name."""
        self.zk.before = lambda op: self.point(type(op).__name__)

    def run(self, *words: str) -> Ran:
        """Run a command there."""
        one, here = self.one, os.getcwd()
        first, around = one.zk, one.kafka.around
        one.zk, one.kafka.around = self.zk, lambda what: self.point(what)
        os.chdir(self.folder)
        RUNNING.append(self)
        Simulated.current = one
        try:
            return one.run(*words)
        finally:
            assert RUNNING.pop() is self
            os.chdir(here)
            one.zk, one.kafka.around = first, around

    def plan(self) -> None:
        """Plan both ways, into ``plan`` and ``back``."""
        for name, way in (("plan", "zk-to-kafka"), ("back", "kafka-to-zk")):
            (self.folder / name).unlink(missing_ok=True)
            self.run("plan", "--group", "g", "--out", name, "--direction", way)

    def at(self, number: int, act: Callable[[str], object], command: Command) -> Ran | None:
        """Run a command, and do something at its point of that number.

        Return what it answered; ``None`` if it was killed.
        """
        left = [number]

        def point(what: str) -> None:
            left[0] -= 1
            if left[0] == -1:
                act(what)

        self.point = point
        try:
            return command(self)
        except Killed:
            self.point = lambda what: None
            self.zk.expire()
            return None
        finally:
            self.point = lambda what: None

    def kill(self, _what: str = "") -> None:
        """The process ends now, without a last word. Its session ends later."""

        def gone(_what: str) -> None:
            raise Killed

        self.point = gone
        raise Killed

    def suspend(self) -> None:
        """The machine sleeps for so long that the session ends."""
        CLOCK.pass_(_LONG_S)
        self.zk.expire()


class Inline:
    """A pool that does its work at once, in the calling thread."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """See ``ThreadPoolExecutor``."""
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - the future raises it
            done.set_exception(error)
        return done


class Clock:
    """Seconds, of all machines."""

    def __init__(self) -> None:
        self.now = 1000.0

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


CLOCK: Final = Clock()
RUNNING: Final[list[Machine]] = []
"""The machines whose commands run, the last one innermost."""


def virtual_time(patch: pytest.MonkeyPatch) -> None:
    """Let commands wait in virtual time, in one thread, and have points at journal records."""
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: CLOCK.now
    clock.sleep = CLOCK.pass_
    clock.clock_gettime = lambda _which: CLOCK.now
    write = Journal.write

    def written(journal: Journal, **record: Any) -> None:
        if RUNNING:
            RUNNING[-1].point("journal")
        write(journal, **record)

    for name, module in list(sys.modules.items()):
        if name.startswith("zkmigrate.") and getattr(module, "time", None) is time:
            patch.setattr(module, "time", clock)
    patch.setattr(os, "fsync", lambda file: None)
    patch.setattr(live, "_POLL", 0)
    patch.setattr(Journal, "write", written)
    patch.setattr(parallel, "ThreadPoolExecutor", Inline)


def registers(machine: Machine) -> Ran:
    """An old consumer registers in ZooKeeper, and stays."""
    machine.zk.do(Create(PATHS.member("g_old"), b"{}", ephemeral=True))
    return _ACTED


def joins(machine: Machine) -> Ran:
    """A new consumer joins the group at its coordinator."""
    machine.one.kafka.joined["g"] = ("new-1",)
    return _ACTED


def commits_to_zookeeper(machine: Machine) -> Ran:
    """A client that is not a member writes an offset, whatever was there."""
    machine.one.in_zookeeper("g", "t", LATE)
    return _ACTED


def commits_to_kafka(machine: Machine) -> Ran:
    """A client that is not a member commits an offset."""
    machine.one.in_kafka("g", "t", LATE)
    return _ACTED
