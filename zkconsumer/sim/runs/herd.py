"""One membership change in a settled group, in virtual time, and its cost.

The group settles first under ideal conditions: all members start at the same time, all messages
take equally long, and servers need no time. Then the requested conditions are set, counting
starts, and the event happens. Everything runs in the caller's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Create, Delete
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    topic_path,
)
from zkconsumer.errors import ConfigError
from zkconsumer.herd.measures import Measures, measure
from zkconsumer.herd.parameters import (
    BOUNCE_SECONDS,
    EVENTS,
    GROUP,
    RESTART_SECONDS,
    HerdGroup,
    broker_content,
    member_name,
)
from zkconsumer.herd.recorders import MemberCounter, SizedRecorder
from zkconsumer.herd.tally import Tally, owner_partition
from zkconsumer.journal.recorder import MemberObserver, Sink, event_entry
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.bulk import BulkViews
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.members.zookeeper import SimMember
from zkconsumer.sim.servers.zk import FakeZk, Txn

PROFILES = ("scala", "default", "coordinator", "consumer")
MemberT = TypeVar("MemberT", bound=SimProcess[Any])
#: Nothing is due for so long: the group rests.
REST = 1e5


@dataclass(frozen=True, slots=True)
class Herd(HerdGroup):
    """The parameters of a simulation. Times are in seconds.

    ``latency`` is the range of the delay in one direction, drawn for each connection; ``service``
    is a server's time for a read and for a write. ``bulk``: equal reads of many members are
    simulated once; the counts are the same.
    """

    seed: int = 0
    latency: tuple[float, float] = (0.0002, 0.001)
    service: tuple[float, float] = (0.00002, 0.0001)
    bulk: bool = True

    def check(self) -> None:
        """Raise a ConfigError that names each invalid option, if there are any."""
        faults = []
        if self.event not in EVENTS:
            faults.append(f"--event {self.event}: choose one of {', '.join(EVENTS)}")
        if self.profile not in PROFILES:
            faults.append(f"--profile {self.profile}: choose one of {', '.join(PROFILES)}")
        if not 2 <= self.members <= 10_000:
            faults.append(f"--members {self.members}: must be 2 to 10000")
        if not 1 <= self.partitions * self.topics <= 100_000:
            faults.append(
                f"--partitions {self.partitions} x --topics {self.topics}: must be 1 to 100000"
            )
        slowest = max(self.latency)
        if self.session_timeout < 10 * slowest:
            faults.append(
                f"--session-timeout {self.session_timeout:g}s with --latency-ms "
                f"{1000 * slowest:g}: must be at least ten times as long, or sessions end before "
                "members have joined"
            )
        if faults:
            raise ConfigError(faults)


class HerdRun(ABC, Generic[MemberT]):
    """One run of a group of any kind. ``perform`` carries it out; the public attributes then have
    the results."""

    def __init__(self, herd: Herd, sink: Sink | None = None) -> None:
        herd.check()
        self.herd = herd
        self.kernel = Kernel(herd.seed)
        self.tally = Tally()
        self.members: dict[int, MemberT] = {}
        self._restarts: dict[int, int] = {}
        self._sink = sink
        self._habits = Habits(stop=(0.0, 0.0), listener=(0.0, 0.0))

    @abstractmethod
    def perform(self) -> Measures:
        """Let the group settle, trigger the event, wait until it is stable, and measure."""

    @abstractmethod
    def _start(self, number: int) -> None:
        """Start a member, or restart it."""

    @abstractmethod
    def _bounce(self) -> None:
        """Stop a broker and start it again."""

    @abstractmethod
    def _create_topic(self) -> None:
        """Create the topic ``t-new``."""

    def _name(self, number: int) -> str:
        return member_name(number, self._restarts.get(number, 0))

    def _event(self) -> None:
        event, member = self.herd.event, self.members[self.herd.members // 2]
        about = {"join": member_name(self.herd.members), "leave": member.name, "crash": member.name}
        self._note(event, about.get(event, ""))
        match event:
            case "join":
                self._start(self.herd.members)
            case "leave":
                member.close()
            case "crash":
                self.tally.ownership.gone(self.kernel.now_us, member.name)
                member.crash()
            case "rolling-restart":
                self._restart(0)
            case "broker-bounce":
                self._bounce()
            case "topic-create":
                self._create_topic()

    def _note(self, name: str, member: str = "") -> None:
        if self._sink is not None:
            self._sink.write(event_entry(self.kernel.now_us, name, member))

    def _restart(self, number: int) -> None:
        """Let members leave and return one at a time, at a fixed pace."""
        if number >= self.herd.members:
            return
        self.members[number].close()

        def again() -> None:
            self._restarts[number] = self._restarts.get(number, 0) + 1
            self._start(number)
            self.kernel.schedule(RESTART_SECONDS, partial(self._restart, number + 1))

        self.kernel.schedule(RESTART_SECONDS, again)

    def _measured(self, partitions: Sequence[TopicPartition], end_us: int, note: str) -> Measures:
        herd = self.herd
        return measure(
            self.tally,
            partitions,
            end_us,
            herd,
            mode="simulated",
            seed=herd.seed,
            notes=[note] if note else [],
        )


class ZooKeeperRun(HerdRun[SimMember]):
    """A run of a group in ZooKeeper."""

    def __init__(self, herd: Herd, sink: Sink | None = None) -> None:
        super().__init__(herd, sink)
        self._paths = GroupPaths(GROUP)
        self._subscription = herd.subscription()
        self._partitions: list[TopicPartition] = []
        self.zk = FakeZk(
            self.kernel,
            latency=(0.001, 0.001),
            service=(0.0, 0.0),
            steady=True,
            names_causes=True,
        )
        self.zk.on_commit(self._committed)
        self.bulk = BulkViews(self.zk, self._paths) if herd.bulk else None
        self._counting = False
        self._to_count: list[tuple[str, list[MemberObserver]]] = []

    def perform(self) -> Measures:
        """Implement ``HerdRun.perform``."""
        herd = self.herd
        self._prepare()
        for number in range(herd.members):
            self._start(number)
        self._rest()
        if any(member.machine.state is not State.RESTING for member in self.members.values()):
            raise AssertionError("the group did not settle before the event")
        self.zk.set_latency(herd.latency)
        if self.bulk is not None:
            self.bulk.set_service(herd.service)
        else:
            self.zk.service = herd.service
        self.kernel.run(until=self.kernel.now + 1.0)
        self._count()
        self._event()
        self._rest()
        return self._measures()

    # -- the course

    def _prepare(self) -> None:
        paths = self._paths
        below = ("ids", "owners", "offsets")
        for path in ("/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers", paths.root):
            self.zk.do(Create(path))
        for name in below:
            self.zk.do(Create(f"{paths.root}/{name}"))
        for broker in range(self.herd.brokers):
            self._add_broker(broker)
        for topic in self.herd.topic_names():
            self._add_topic(topic)

    def _add_broker(self, broker: int) -> None:
        self.zk.do(Create(broker_path(broker), broker_content(broker)))

    def _add_topic(self, topic: str) -> None:
        partitions = [TopicPartition(topic, number) for number in range(self.herd.partitions)]
        self._partitions += partitions
        if self.herd.event == "topic-create" and topic == "t-new":
            self.tally.ownership.changed_at = self.kernel.now_us
        for parent in (self._paths.owners_topic(topic), self._paths.offsets_topic(topic)):
            self.zk.do(Create(parent))
        for tp in partitions:
            self.zk.do(Create(self._paths.offset(tp), b"0"))
        self.zk.do(Create(topic_path(topic), self.herd.topic_content()))

    def _start(self, number: int) -> None:
        herd = self.herd
        name = self._name(number)
        spec = herd.member_spec(name, self._subscription)
        watchers: list[MemberObserver] = []
        if self._counting:
            watchers.append(self._counter(name))
        else:
            self._to_count.append((name, watchers))
        if self._sink is not None:
            watchers.append(SizedRecorder(self._sink, name, lambda: self.kernel.now_us))
        member = SimMember(
            self.zk,
            spec,
            habits=self._habits,
            watchers=watchers,
            bulk=self.bulk,
        )
        if not self._counting:
            # All start in the same instant, so each would read another list, which cannot be done
            # in bulk. What they read early would not count.
            member.machine.reads_early = False
        self.members[number] = member
        member.start()

    def _counter(self, name: str) -> MemberObserver:
        return MemberCounter(self.tally, name, lambda: self.kernel.now_us)

    def _count(self) -> None:
        """Start to count. Settling alone costs more than everything that is counted."""
        self.tally.reset(self.kernel.now_us)
        self._counting = True
        for name, watchers in self._to_count:
            watchers.append(self._counter(name))

    def _rest(self) -> None:
        """Run until nothing is due for a long time."""
        while (due := self.kernel.next_due()) is not None and due < self.kernel.now + REST:
            self.kernel.run(until=due)

    def _bounce(self) -> None:
        self.zk.do(Delete(broker_path(0)))
        self.kernel.schedule(BOUNCE_SECONDS, partial(self._add_broker, 0))

    def _create_topic(self) -> None:
        self._add_topic("t-new")

    # -- looking

    def _committed(self, _zxid: int, txn: Txn) -> None:
        """Follow the owner znodes."""
        now, ownership = self.kernel.now_us, self.tally.ownership
        for change in txn.changes:
            tp = owner_partition(change.path)
            if tp is None:
                continue
            before, after = change.before, change.after
            if before is not None:
                ownership.lost(now, tp, _member_of(before.data))
            if after is not None:
                ownership.took(now, tp, _member_of(after.data))

    def _measures(self) -> Measures:
        tally = self.tally
        end = max(tally.ownership.changed_at, tally.start)
        for member in self.members.values():
            end = max(end, member.active_us)
        note = "" if self.bulk is None else f"{self.bulk.bulk_reads} reads in bulk"
        return self._measured(self._partitions, end, note)


def _member_of(owner: bytes) -> str:
    return owner.decode().rpartition("-")[0]


def simulate(herd: Herd, sink: Sink | None = None) -> Measures:
    """Simulate one change. Raises ConfigError."""
    return ZooKeeperRun(herd, sink).perform()
