"""The two programs of a mirrored group in a simulation: one commits to ZooKeeper, one to Kafka.

What they deliver does not matter here: only where they start and what they commit. Everything runs
inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tests.sim.runs.mirror_servers import SESSION, Coordinator
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Create, GetMany, Node, Ok, Reply, SetData
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.zk import FakeSession, FakeZk, SessionState

PATHS: Final = GroupPaths(GROUP)
Started = Callable[[str, Mapping[TopicPartition, int]], bool]
"""Called with a program's name and the offsets that it finds; whether it may continue there."""


class Program:
    """A program that runs until it is stopped. ``started`` gets the offsets that it finds."""

    name: str

    def __init__(self, kernel: Kernel, tps: Callable[[], list[TopicPartition]], started: Started):
        self.running = False
        self.quiet = False
        """It commits nothing for a while."""
        self._kernel, self._tps, self._started = kernel, tps, started
        self._positions: dict[TopicPartition, int] = {}
        self._runs = 0

    def start(self) -> None:
        """Start it, unless it runs."""
        if not self.running:
            self.running = True
            self._runs += 1
            self._positions = {}
            self._join(self._runs)

    def stop(self) -> None:
        """It commits its positions and leaves."""
        if self.running:
            if not self.quiet:
                for tp in self._positions:
                    self._progress(tp)
            self.running = False
            self._leave()

    def crash(self) -> None:
        """The process is gone. Its session ends later."""
        if self.running:
            self.running = False
            self._die()

    def topic_recreated(self) -> None:
        """Its consumers begin again."""
        self._positions = dict.fromkeys(self._positions, 0)

    def _found(self, run: int, offsets: Mapping[TopicPartition, int]) -> None:
        """The offsets where it is to start were read."""
        if not self.running or run != self._runs:
            return
        if not self._started(self.name, offsets):
            self.running = False
            self._leave()
            return
        self._positions = {tp: offsets.get(tp, 0) for tp in self._tps()}
        self._tick(run)

    def _tick(self, run: int) -> None:
        if not self.running or run != self._runs:
            return
        if not self.quiet and self._positions:
            self._progress(self._kernel.rng.choice(sorted(self._positions)))
        self._kernel.schedule(0.05 + 0.9 * self._kernel.rng.random(), lambda: self._tick(run))

    def _progress(self, tp: TopicPartition) -> None:
        if tp not in self._tps():
            return  # its topic is gone
        position = self._positions[tp] + self._kernel.rng.randint(0, 9)
        if self._commit(tp, position):
            self._positions[tp] = position

    def _join(self, run: int) -> None:
        """Become a member, and read where to start."""
        raise NotImplementedError

    def _leave(self) -> None:
        raise NotImplementedError

    def _die(self) -> None:
        raise NotImplementedError

    def _commit(self, tp: TopicPartition, offset: int) -> bool:
        raise NotImplementedError


class OldProgram(Program):
    """Consumers that register in ZooKeeper. ``count`` of them; the first one commits."""

    name = "the old program"

    def __init__(
        self,
        kernel: Kernel,
        tps: Callable[[], list[TopicPartition]],
        started: Started,
        zk: FakeZk,
        count: int,
    ) -> None:
        super().__init__(kernel, tps, started)
        self._zk, self._count = zk, count
        self.clients: list[FakeSession] = []
        """Their sessions."""

    def _join(self, run: int) -> None:
        self.clients = []
        for number in range(self._count):
            changed = partial(self._changed, run, number)
            self.clients.append(self._zk.connect(SESSION, lambda event: None, changed))

    def _changed(self, run: int, number: int, state: SessionState, _session: int) -> None:
        if state is not SessionState.CONNECTED or run != self._runs or not self.running:
            return
        client = self.clients[number]
        path = PATHS.member(f"{GROUP}_old-{run}-{number}")

        def registered(reply: Reply) -> None:
            if run != self._runs or not self.running:
                return
            if not isinstance(reply, Ok) and "AUTH" in reply.code.name:
                self.running = False
                self._leave()  # it is locked out
            elif number == 0 and isinstance(reply, Ok):
                tps = self._tps()
                wanted = GetMany(tuple(map(PATHS.offset, tps)))
                client.submit(wanted, partial(self._read, run, tps))

        client.submit(Create(path, b"{}", ephemeral=True), registered)

    def _read(self, run: int, tps: list[TopicPartition], reply: Reply) -> None:
        if isinstance(reply, Ok) and not self._positions:
            pairs = zip(tps, reply.value, strict=True)  # type: ignore[arg-type]
            self._found(run, {tp: int(node.data) for tp, node in pairs if isinstance(node, Node)})

    def _leave(self) -> None:
        for client in self.clients:
            client.close()

    def _die(self) -> None:
        for client in self.clients:
            client.kill()

    def _commit(self, tp: TopicPartition, offset: int) -> bool:
        client, path = self.clients[0], PATHS.offset(tp)
        there = self._zk.get(path) is not None
        data = encode_offset(offset)
        client.submit(SetData(path, data) if there else Create(path, data), lambda reply: None)
        return True


class FreeProgram(Program):
    """Consumers that commit to ZooKeeper through a broker, and do not register."""

    name = "the old program"

    def __init__(
        self,
        kernel: Kernel,
        tps: Callable[[], list[TopicPartition]],
        started: Started,
        zk: FakeZk,
    ) -> None:
        super().__init__(kernel, tps, started)
        self._zk = zk

    def _join(self, run: int) -> None:
        nodes = {tp: self._zk.get(PATHS.offset(tp)) for tp in self._tps()}
        self._found(run, {tp: int(node.data) for tp, node in nodes.items() if node})

    def _leave(self) -> None:
        """It is nowhere registered."""

    _die = _leave

    def _commit(self, tp: TopicPartition, offset: int) -> bool:
        path, data = PATHS.offset(tp), encode_offset(offset)
        self._zk.do(SetData(path, data) if self._zk.get(path) else Create(path, data))
        return True


class NewProgram(Program):
    """Consumers that join the group at its coordinator."""

    name = "the new program"

    def __init__(
        self,
        kernel: Kernel,
        tps: Callable[[], list[TopicPartition]],
        started: Started,
        coordinator: Coordinator,
    ) -> None:
        super().__init__(kernel, tps, started)
        self._at = coordinator

    @property
    def _member(self) -> str:
        return f"new-{self._runs}"

    def _join(self, run: int) -> None:
        if not self.running or run != self._runs:
            return
        if self._at.away:
            self._kernel.schedule(0.3, lambda: self._join(run))
            return
        self._at.join(self._member)
        self._kernel.schedule(0.005, lambda: self._read(run))

    def _read(self, run: int) -> None:
        found = {tp: one.offset for tp, one in self._at.offsets.items()}
        self._found(run, found)

    def _leave(self) -> None:
        self._at.leave(self._member)

    def _die(self) -> None:
        member = self._member
        self._kernel.schedule(SESSION, lambda: self._at.leave(member))

    def _commit(self, tp: TopicPartition, offset: int) -> bool:
        if self._at.away:
            return False
        self._at.store(None, {tp: StoredOffset(offset)})
        return True


__all__ = ["FreeProgram", "NewProgram", "OldProgram", "Program"]
