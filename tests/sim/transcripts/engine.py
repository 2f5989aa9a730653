"""Plays a transcript on a simulated group."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tests.sim.runs.group_judge import GroupJudge
from tests.sim.runs.live_judge import PLAIN, LiveJudge
from tests.sim.runs.live_member import SimLiveMember
from tests.sim.runs.live_operator import SimOperator
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import RangeStrategy, RoundRobinStrategy, Strategy
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.reactions import name_of
from zkconsumer.core.groups.spec import ClassicSpec, GroupSpec, Kip848Spec
from zkconsumer.core.migration.commands import FromGroup, ToGroup
from zkconsumer.core.migration.strategy import OwnStrategy
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Create, Delete, Ok, SetData
from zkconsumer.core.zookeeper.view import Assignor, GroupView, MemberSpec
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.group_member import Brokers, SimGroupMember
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.light import SimLog
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.members.zookeeper import SimMember
from zkconsumer.sim.runs.world import GROUP, NEVER, World
from zkconsumer.sim.servers.classic import GroupCoordinator
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator
from zkconsumer.sim.servers.zk import FakeZk

TRIP_S: Final = 0.001
RATE: Final = 10.0
"""Messages that each partition gets, per second."""
REST_S: Final = 2.0
"""Time that passes after an input."""
SESSION_S: Final = 6.0
HABITS: Final = Habits(poll=(0.1, 0.1), stop=(0.0, 0.0), listener=(0.0, 0.0), commit_interval=5.0)

STRATEGIES: Final[dict[str, Strategy]] = {
    "range": RangeStrategy(),
    "roundrobin": RoundRobinStrategy(),
    "cooperative-sticky": StickyStrategy(cooperative=True),
}

_HIDDEN: Final = {"SetTimer", "SetBrokers", "Forget", "NotifyReleasing", "NotifyStarting"} | {
    "NotifyLost",
    "ListenerDone",
    "FetchingStarted",
    "Heartbeat",
}
"""Commands, and events that answer them, of which there is nothing to see."""
_QUIET: Final = {"TimerFired", "HeartbeatAnswered", "MemberHeartbeatAnswered", "BrokersLoaded"} | {
    "CommitRequested"
}
"""Events that are shown only with what follows from them."""
_LEFT_OUT: Final = {"token", "epoch", "known", "interval", "scope", "sessions"}
_BARE: Final = {"partitions", "positions", "claims", "wanted", "name", "path", "view", "text"}
"""Fields whose values are written without their names."""


class TranscriptError(Exception):
    """An input line cannot be played."""


@dataclass(slots=True)
class _Pending:
    """An event, and the lines for the commands that followed from it."""

    text: str
    quiet: bool
    commands: list[str]


class _Watcher:
    """Writes one member's events and commands."""

    def __init__(self, name: str, write: Callable[[str], object]) -> None:
        self._name = name
        self._write = write
        self._pending: _Pending | None = None

    def event(self, event: Any, _session: int, _attempt: int) -> None:
        """See ``MemberObserver``."""
        self.flush()
        side = "coordinator " if isinstance(event, FromGroup) else ""
        event = event.event if isinstance(event, FromGroup) else event
        name = type(event).__name__
        quiet = name in _HIDDEN or (name in _QUIET and not getattr(event, "code", 0))
        self._pending = _Pending(f"{self._name} {side}{name}{_fields(event)}", quiet, [])

    def command(self, command: Any, _session: int, _attempt: int) -> None:
        """See ``MemberObserver``."""
        side = "coordinator " if isinstance(command, ToGroup) else ""
        command = command.command if isinstance(command, ToGroup) else command
        name = type(command).__name__
        unchanged = name == "MemberHeartbeat" and command.owned is None
        if name in _HIDDEN or unchanged:
            return
        text = f"    {side}{name}{_fields(command)}"
        if self._pending is None:
            self._write(f"{self._name}\n{text}")
        else:
            self._pending.commands.append(text)

    def flush(self) -> None:
        """Write the last event, if there is something to see."""
        pending, self._pending = self._pending, None
        if pending is not None and not (pending.quiet and not pending.commands):
            for line in (pending.text, *pending.commands):
                self._write(line)

    def op(self, *_: object) -> None:
        """See ``MemberObserver``."""

    def reads(self, *_: object) -> None:
        """See ``MemberObserver``."""

    def request(self, *_: object) -> None:
        """See ``GroupObserver``."""

    def shut(self, _since_us: int) -> None:
        """See ``MemberObserver``."""
        self.flush()
        self._write(f"{self._name} delivery stops: its session may have ended")


class Stage:
    """A group and its servers, and the lines that were written since the last input."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.members: dict[str, SimProcess[Any]] = {}
        self.kernel = Kernel(1)
        self.observer = Observer()
        self.log = SimLog(self.kernel, RATE)
        self.options: tuple[str, ...] = ()
        self._watchers: dict[str, _Watcher] = {}
        self._delivered: dict[tuple[str, str], tuple[int, int]] = {}
        self._broken = 0

    # -- what the kinds of group have of their own

    def make(self, name: str, subscription: Subscription, watcher: Any) -> SimProcess[Any]:
        """A member that has not started."""
        raise NotImplementedError

    def cut(self, name: str, seconds: float) -> None:
        """Cut a member off from the servers."""
        raise NotImplementedError

    def set_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        self.log.add_partitions(topic, partitions)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that judge."""
        return (self.observer,)

    # -- inputs

    def play(self, text: str) -> list[str]:
        """Carry out one input, wait until the group rests, and return what was written."""
        self.lines = []
        self._delivered = {}
        rest = 0.0
        for part in text.split(";"):
            name, *words = part.split()
            action = getattr(self, f"do_{name}", None)
            if action is None:
                raise TranscriptError(f"{part.strip()!r}: no such input")
            seconds = action(*words)
            rest = max(rest, REST_S if seconds is None else seconds)
        self.kernel.run(until=self.kernel.now + rest)
        for watcher in self._watchers.values():
            watcher.flush()
        for (member, partition), (first, last) in sorted(self._delivered.items()):
            self.lines.append(f"= {member} delivers {partition} {first}..{last}")
        violations = [
            violation
            for observer in self.observers
            for violation in (*observer.violations, *observer.allowed)
        ]
        counts = Counter(violation.rule for violation in violations[self._broken :])
        self._broken = len(violations)
        broken = [f"! {rule} is broken: {count} times" for rule, count in counts.items()]
        return _collapsed(self.lines) + broken

    def do_topic(self, name: str, partitions: str) -> None:
        """See the package."""
        self.set_topic(name, int(partitions))

    def do_start(self, name: str, topics: str, streams: str = "1") -> None:
        """See the package."""
        if topics.startswith("/"):
            selected = Whitelist(topics.strip("/"))
            subscription = Subscription(selected.pattern, {selected.regex: int(streams)})
        else:
            wanted = dict.fromkeys(topics.split(","), int(streams))
            subscription = Subscription(Pattern.STATIC, wanted)
        watcher = _Watcher(name, self._write)
        self._watchers[name] = watcher
        self.members[name] = self.make(name, subscription, watcher)
        self.members[name].start()

    def _write(self, line: str) -> None:
        """Write a line of the current input."""
        self.lines.append(line)

    def do_leave(self, name: str) -> None:
        """See the package."""
        self.members[name].close()

    def do_crash(self, name: str) -> None:
        """See the package."""
        self.members[name].crash()

    def do_pause(self, name: str, seconds: str) -> float:
        """See the package."""
        self.members[name].pause(float(seconds))
        return float(seconds) + REST_S

    def do_cut(self, name: str, seconds: str) -> float:
        """See the package."""
        self.cut(name, float(seconds))
        return float(seconds) + REST_S

    def do_busy(self, name: str, seconds: str) -> None:
        """See the package."""
        self.members[name].stall(float(seconds))

    def do_commit(self, name: str) -> None:
        """See the package."""
        self.members[name].commit()

    def do_run(self, seconds: str) -> float:
        """See the package."""
        return float(seconds)

    def note(self, text: str) -> None:
        """A member's own words: deliveries are kept."""
        _, member, verb, *rest = text.split(" ")
        if verb == "delivers":
            member = member.removeprefix(f"{GROUP}_")
            first, last = map(int, rest[1].split(".."))
            begin, _ = self._delivered.get((member, rest[0]), (first, last))
            self._delivered[member, rest[0]] = (begin, last)


class ZooKeeperStage(Stage):
    """A group in ZooKeeper. Option ``scala``: members behave as the JVM's."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self.options = options
        zk = FakeZk(self.kernel, latency=(TRIP_S, TRIP_S))
        self.world = World(self.kernel, zk, self.log, self.observer)
        self.world.begin(range(2))

    def make(self, name: str, subscription: Subscription, watcher: Any) -> SimProcess[Any]:
        """See ``Stage``."""
        spec = self.spec(name, subscription)
        member = SimMember(
            self.world.zk, spec, self.log, self.observer, HABITS, self.note, [watcher]
        )
        self.world.members.append(member)
        return member

    def spec(self, name: str, subscription: Subscription) -> MemberSpec:
        """The configuration of a member."""
        return MemberSpec(
            paths=self.world.paths,
            consumer_id=f"{GROUP}_{name}",
            subscription=subscription,
            assignor=Assignor("roundrobin" if "roundrobin" in self.options else "range"),
            scala="scala" in self.options,
            backoff=1.0,
            reread=30.0 if "reread" in self.options else NEVER,
            session_timeout=SESSION_S,
        )

    def set_topic(self, topic: str, partitions: int) -> None:
        """See ``Stage``."""
        self.world.set_topic(topic, partitions)

    def cut(self, name: str, seconds: float) -> None:
        """See ``Stage``."""
        member: Any = self.members[name]
        member.client.disconnect(seconds)

    def do_expire(self, name: str) -> float:
        """See the package."""
        member: Any = self.members[name]
        member.client.expire()
        return REST_S

    def do_delete(self, _topic: str, name: str) -> None:
        """See the package."""
        self.log.delete_topic(name)
        self.world.do(Delete(f"/brokers/topics/{name}"))

    def do_znode(self, path: str, *words: str) -> None:
        """See the package."""
        data = " ".join(words).encode()
        if not words:
            done = self.world.do(Delete(path))
        else:
            done = isinstance(self.world.zk.do(SetData(path, data)), Ok) or self.world.do(
                Create(path, data)
            )
        if not done:
            raise TranscriptError(f"{path}: cannot be written")

    def do_owners(self) -> float:
        """Write which member owns each partition."""
        root = f"{self.world.paths.root}/owners"
        for topic in self.world.zk.children(root):
            for number in self.world.zk.children(f"{root}/{topic}"):
                node = self.world.zk.get(f"{root}/{topic}/{number}")
                if node is not None:
                    owner = node.data.decode().removeprefix(f"{GROUP}_")
                    self.lines.append(f"= {topic}-{number} {owner}")
        return 0.0


def _common(name: str, subscription: Subscription) -> dict[str, Any]:
    return {
        **{"group": GROUP, "consumer_id": name, "instance_id": None},
        **{"subscription": subscription, "exclude_internal": True, "auto_commit": True},
        **{"session_timeout": SESSION_S, "rebalance_timeout": 20.0, "heartbeat_interval": 1.0},
        **{"backoff": 1.0, "reread": NEVER},
    }


def classic_spec(
    name: str, subscription: Subscription, strategies: tuple[Strategy, ...]
) -> ClassicSpec:
    """The configuration of a member of the classic protocol."""
    return ClassicSpec(strategies=strategies, **_common(name, subscription))


def on_brokers(
    group: BrokerStage | LiveStage, spec: GroupSpec, observer: Observer, watcher: Any
) -> SimGroupMember:
    """A member of a group on the brokers that has not started."""
    member = SimGroupMember(
        group.brokers,
        spec,
        group.log,
        observer,
        HABITS,
        group.note,
        [watcher],
        group.judge.session,
    )
    member.trip_us = round(TRIP_S * 1e6)
    return member


class BrokerStage(Stage):
    """A group on the brokers: ``classic`` with a strategy, or ``consumer`` (KIP-848)."""

    def __init__(self, kind: str, *options: str) -> None:
        super().__init__()
        self.kind = kind
        self.options = options
        self.judge = judge = GroupJudge(self.kernel, self.observer)
        self.group: Any
        if kind == "consumer":
            self.group = ConsumerGroupCoordinator(
                self.kernel, lambda: self.log.topics, heartbeat=1.0, watch=judge, assignor="uniform"
            )
        else:
            self.group = GroupCoordinator(
                self.kernel, lambda: self.log.topics, initial_delay=0.0, watch=judge
            )
        self.brokers = Brokers(self.kernel, self.group)

    def make(self, name: str, subscription: Subscription, watcher: Any) -> SimProcess[Any]:
        """See ``Stage``."""
        spec: GroupSpec
        if self.kind == "consumer":
            spec = Kip848Spec(
                member_id=name, assignor=None, rack=None, **_common(name, subscription)
            )
        else:
            spec = classic_spec(name, subscription, tuple(STRATEGIES[n] for n in self.options))
        return on_brokers(self, spec, self.observer, watcher)

    def cut(self, name: str, seconds: float) -> None:
        """See ``Stage``."""
        member: Any = self.members[name]
        member.cut(seconds)

    def do_fail(self, _over: str, seconds: str) -> float:
        """See the package."""
        self.brokers.fail_over(float(seconds), 0.1)
        return float(seconds) + REST_S


class LiveStage(ZooKeeperStage):
    """A group that can move between ZooKeeper and the brokers. Options: as for ``BrokerStage``."""

    def __init__(self, *strategies: str) -> None:
        super().__init__(*strategies)
        self.strategies = tuple(STRATEGIES[name] for name in strategies or ("range",))
        self.group_observer = Observer()
        self.judge = LiveJudge(self.kernel, self.group_observer, lambda tp, name: False, str)
        self.group = GroupCoordinator(
            self.kernel, lambda: self.log.topics, initial_delay=0.0, watch=self.judge
        )
        self.brokers = Brokers(self.kernel, self.group)
        self.paths = LivePaths.of(GROUP)
        self.operator: SimOperator | None = None

    @property
    def observers(self) -> tuple[Observer, ...]:
        """See ``Stage``."""
        return self.observer, self.group_observer

    def _migratable(self) -> list[SimLiveMember]:
        return [each for each in self.members.values() if isinstance(each, SimLiveMember)]

    def make(self, name: str, subscription: Subscription, watcher: Any) -> SimProcess[Any]:
        """See ``Stage``: a plain Kafka consumer, a legacy member, or a migratable one."""
        if name.startswith("legacy"):
            return super().make(name, subscription, watcher)
        if name.startswith(PLAIN):
            spec = classic_spec(name, subscription, self.strategies)
            return on_brokers(self, spec, self.group_observer, watcher)
        own = OwnStrategy("range")
        own_spec = self.spec(name, subscription)
        member = SimLiveMember(
            self.world.zk,
            self.brokers,
            own_spec,
            classic_spec(own_spec.consumer_id, subscription, (own,)),
            self.strategies,
            self.log,
            self.observer,
            HABITS,
            self.note,
            [watcher],
        )
        member.trip_us = round(TRIP_S * 1e6)
        return member

    def do_operator(self, commands: str, seconds: str = "30") -> None:
        """See the package."""
        self.operator = SimOperator(
            self.world.zk,
            self.brokers,
            commands.split("+"),
            float(seconds),
            lambda text: self._write(f"operator {text}"),
        )

    def do_kill(self, _operator: str, seconds: str = "0") -> None:
        """See the package."""
        assert self.operator is not None
        self.kernel.schedule(float(seconds), self.operator.crash)

    def do_cut(self, name: str, seconds: str, where: str = "zookeeper") -> float:
        """See the package."""
        if where == "coordinator":
            member: Any = self.members[name]
            member.cut(float(seconds))
            return float(seconds) + REST_S
        return super().do_cut(name, seconds)

    def do_fail(self, _over: str, seconds: str) -> float:
        """See the package."""
        self.brokers.fail_over(float(seconds), 0.1)
        return float(seconds) + REST_S

    def do_offsets(self) -> float:
        """Write the committed offsets in both stores."""
        for tp in self._partitions():
            node = self.world.zk.get(self.paths.group.offset(tp))
            stored = "-" if node is None else node.data.decode()
            in_kafka = self.group.offsets.get(tp, "-")
            self.lines.append(f"= {tp} ZooKeeper {stored}, Kafka {in_kafka}")
        return 0.0

    def _partitions(self) -> list[TopicPartition]:
        counts = self.log.topics.items()
        return [TopicPartition(topic, n) for topic, count in counts for n in range(count)]


def stage(words: list[str]) -> Stage:
    """Return the group of the first input: ``group KIND OPTIONS``."""
    if words[:1] != ["group"] or words[1:2] == []:
        raise TranscriptError("a transcript begins with '> group KIND'")
    if words[1] == "zookeeper":
        return ZooKeeperStage(*words[2:])
    if words[1] == "live":
        return LiveStage(*words[2:])
    return BrokerStage(*words[1:])


def play(text: str) -> str:
    """Return the transcript with what happens now. Comments and blank lines are kept.

    Raises TranscriptError for an input that cannot be played.
    """
    played: list[str] = []
    group: Stage | None = None
    for line in text.splitlines():
        if line.startswith(">"):
            played.append(line)
            words = line[1:].split()
            if group is None:
                group = stage(words)
            else:
                happened = group.play(line.lstrip("> "))
                played += [] if line.startswith(">>") else happened
        elif not line or line.startswith("#"):
            played.append(line)
    return "\n".join(played) + "\n"


def _collapsed(lines: list[str]) -> list[str]:
    """Leave out events, with their commands, that repeat the events before them."""
    units: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and units:
            units[-1].append(line)
        else:
            units.append([line])
    kept: list[str] = []
    at = 0
    while at < len(units):
        for period in (1, 2, 3, 4):
            period_units = units[at : at + period]
            count = 1
            while units[at + count * period : at + (count + 1) * period] == period_units:
                count += 1
            if count > 2:
                kept += [line for unit in period_units for line in unit]
                kept.append(f"    ... the same {count - 1} more times")
                at += count * period
                break
        else:
            kept += units[at]
            at += 1
    return kept


def _fields(item: Any) -> str:
    """The fields of an event or command, as `` name=value``; empty ones are left out."""
    if type(item).__name__ == "Report":
        return f" {_text('event', item.event)}: {_text('text', item.text)}"
    pairs = [(each.name, getattr(item, each.name)) for each in dataclasses.fields(item)]
    pairs = [(name, _text(name, value)) for name, value in pairs if name not in _LEFT_OUT]
    shown = [(name, text) for name, text in pairs if text]
    bare = next((name for name, _ in shown if name in _BARE), None)
    texts = [text if name == bare else f"{name}={text}" for name, text in shown]
    return "".join(f" {text}" for text in texts)


def _text(name: str, value: Any) -> str:
    match value:
        case _ if name in ("protocols", "member_id", "leader"):
            return ""
        case int() if name == "code":
            return name_of(value) if value else ""
        case GroupView():
            members = ",".join(each.removeprefix(f"{GROUP}_") for each in value.members)
            topics = ",".join(f"{topic}:{len(n)}" for topic, n in value.partitions.items())
            refused = "".join(f" quarantined={path}" for path in value.quarantined)
            return f"members={members or '-'} topics={topics or '-'}{refused}"
        case Enum():
            return str(value.value).replace(" ", "-")
        case bool():
            return "yes" if value else ""
        case None:
            return ""
        case Mapping() if name == "codes":
            faults = {str(key): name_of(code) for key, code in value.items() if code}
            return ",".join(f"{key}:{fault}" for key, fault in sorted(faults.items()))
        case int():
            return str(value) if name in ("generation", "request", "owner") else ""
        case bytes():
            return ",".join(sorted(map(str, decode_assignment(value).partitions)))
        case str():
            return value.replace(f"{GROUP}_", "")
        case frozenset() | set():
            return ",".join(sorted(map(str, value)))
        case tuple() if value and isinstance(value[0], BrokerEndpoint):
            return ""
        case tuple():
            return ",".join(_item(each) for each in value)
        case Mapping():
            return ",".join(_pair(key, each) for key, each in sorted(value.items()))
    return ""


def _item(value: Any) -> str:
    if isinstance(value, tuple):  # a protocol and its metadata
        return str(value[0])
    return str(getattr(value, "member_id", value))


def _pair(key: Any, value: Any) -> str:
    match value:
        case ConsumerThreadId() | bytes():
            return str(key)
        case Claim():
            return str(key) if value.committed is None else f"{key}@{value.committed}"
        case (ConsumerThreadId(), offset):
            return str(key) if offset is None else f"{key}@{offset}"
        case None:
            return str(key)
        case int() if not isinstance(key, TopicPartition):
            return f"{key}:{value}"
        case int():
            return f"{key}@{value}"
        case tuple():
            return f"{key}:{'+'.join(map(str, value))}"
    return f"{key}={str(value).removeprefix(f'{GROUP}_')}"
