"""A simulated member of a group on a broker: the real loop in virtual time, and its connections.

Contains the brokers' side of the connections, and the member's two lines to them, one for requests
and one for heartbeats. Everything runs inside kernel events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.events import Event
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.kip848_events import MemberHeartbeatAnswered
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.groups.spec import ClassicSpec, GroupSpec, Kip848Spec
from zkconsumer.core.zookeeper.ops import Permission, Permit, always
from zkconsumer.journal.group import GroupObserver
from zkconsumer.runtime.membership.classic import BrokerCoordination
from zkconsumer.runtime.membership.kip848 import ConsumerGroupCoordination
from zkconsumer.runtime.membership.loop import MachineT
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.plane import Source
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.servers.classic import NOT_AVAILABLE
from zkconsumer.sim.servers.group_roster import Reply, failure

NOT_COORDINATOR: Final = ErrorCode.NOT_COORDINATOR


class Group(Protocol):
    """A group on a coordinator, with members of either protocol."""

    loading: bool
    """Whether the coordinator is still loading the group."""

    @property
    def seats(self) -> Mapping[str, Any]:
        """The members by id."""

    def handle(self, command: Any, spec: Any, reply: Reply) -> None:
        """Answer a member's request."""

    def resign(self, code: int) -> None:
        """Make another broker the coordinator. Pending requests are answered with ``code``."""

    def restart(self) -> None:
        """Restart the session timeouts of all members."""


class Brokers:
    """The brokers of a cluster, one of which is the group's coordinator.

    ``home`` is the coordinator's number; ``down``: there is no coordinator. Requests are queued at
    the coordinator and take ``service`` seconds each. ``loss`` is the probability that a request,
    or its answer, is lost with its connection. ``delay`` is the probability that an answer is late
    by up to 5 s.
    """

    def __init__(
        self,
        kernel: Kernel,
        group: Group,
        service: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.group = group
        self.service = service
        self.loss = 0.0
        self.delay = 0.0
        self.home = 0
        self.down = False
        self.failovers = 0
        self.alive = {0, 1}
        self.members: list[LinesProcess[Any]] = []
        self._free_us = 0

    def receive(self, command: Any, asked: int, spec: Any, reply: Reply) -> None:
        """Queue a request that has reached broker ``asked``."""
        self._free_us = max(self._free_us, self.kernel.now_us) + round(self.service * 1e6)
        turn = partial(self._serve, command, asked, spec, reply)
        self.kernel.schedule_at_us(self._free_us, turn)

    def _serve(self, command: Any, asked: int, spec: Any, reply: Reply) -> None:
        if isinstance(command, commands.FindCoordinator):
            code = NOT_AVAILABLE if self.down else 0
        elif self.down or asked != self.home:
            code = NOT_COORDINATOR if asked in self.alive else UNREACHABLE
        else:
            self.group.handle(command, spec, reply)
            return
        if not code:
            reply(events.CoordinatorFound(command.token))
        else:
            reply(failure(command, code))

    def fail_over(self, seconds: float, loading: float, dies: bool = True) -> None:
        """Kill the coordinator or, unless ``dies``, end its role as coordinator. After ``seconds``
        the other broker takes over, and loads the group for ``loading`` seconds."""
        if self.down:
            return
        self.down = True
        self.failovers += 1
        gone, self.home = self.home, 1 - self.home
        if not dies:
            self.group.resign(NOT_COORDINATOR)
        self.group.restart()
        self.group.loading = True
        if dies:
            self.alive.discard(gone)
            for member in list(self.members):  # a member that was leaving leaves now
                member.cut(0.0)

        def elected() -> None:
            self.down = False
            self.alive.add(gone)
            self.group.restart()  # sessions begin when the group has been read
            self.kernel.schedule(loading, partial(setattr, self.group, "loading", False))

        self.kernel.schedule(seconds, elected)


OnAnswer = Callable[[Any, float, int], object]


class Line:
    """One connection of a member (``RequestLine``). It sends one request at a time, and passes on
    one answer for each."""

    def __init__(self, member: LinesProcess[Any]) -> None:
        self.coordinator = 0
        """The broker that this connection treats as the coordinator."""
        self._member = member
        self._waiting: deque[tuple[Any, OnAnswer, Permission]] = deque()
        self._number = 0
        self._busy: tuple[int, Any, OnAnswer, int] | None = None
        self._permission: Permission = always
        """The permission of the request in flight."""

    def submit(self, command: Any, on_answer: OnAnswer, permission: Permission = always) -> None:
        """Implement ``RequestLine.submit``."""
        self._waiting.append((command, on_answer, permission))
        self._next()

    def interrupt(self) -> None:
        """Break the connection, so that requests in flight get no answer."""
        if self._busy is not None:
            number, command, *_ = self._busy
            self._member.host.post(partial(self._arrived, number, failure(command, UNREACHABLE)))

    def interrupt_ended(self) -> None:
        """Implement ``RequestLine.interrupt_ended``."""
        if self._permission() is Permit.ENDED:
            self.interrupt()

    def close(self) -> None:
        """Implement ``RequestLine.close``."""
        self._waiting.clear()
        self._busy = None

    def _next(self) -> None:
        member = self._member
        if self._busy is not None or not self._waiting or not member.alive:
            return
        command, on_answer, permission = self._waiting.popleft()
        self._permission = permission
        brokers, kernel = member.cluster, member.cluster.kernel
        self._number += 1
        self._busy = self._number, command, on_answer, kernel.now_us
        later = partial(self._after, self._number)
        commits = isinstance(command, commands.CommitOffsets)
        if member.is_cut or (commits and permission() is not Permit.GRANTED):
            later(member.trip_us, failure(command, UNREACHABLE))
            return
        lost = brokers.loss > 0 and kernel.rng.random() < brokers.loss
        if lost:
            later(round(3e6 * kernel.rng.random()), failure(command, UNREACHABLE))
            if kernel.rng.random() < 0.5:
                return  # else only the answer is
        reply = partial(self._reply, self._number)
        arrive = partial(brokers.receive, command, self.coordinator, member.group_spec, reply)
        kernel.schedule_at_us(kernel.now_us + member.trip_us, arrive)

    def _reply(self, number: int, event: Event) -> None:
        brokers, wait = self._member.cluster, self._member.trip_us
        if brokers.delay and brokers.kernel.rng.random() < brokers.delay:
            wait += round(5e6 * brokers.kernel.rng.random())
        self._after(number, wait, event)

    def _after(self, number: int, wait_us: int, event: Event) -> None:
        kernel = self._member.cluster.kernel
        come = partial(self._member.host.post, partial(self._arrived, number, event))
        kernel.schedule_at_us(kernel.now_us + wait_us, come)

    def _arrived(self, number: int, event: Event) -> None:
        if self._busy is None or self._busy[0] != number:
            return  # the connection broke before
        _, command, on_answer, sent_us = self._busy
        self._busy = None
        if isinstance(event, events.CoordinatorFound):
            self.coordinator = self._member.cluster.home
        self._member.heard(command, event, sent_us / 1e6)
        on_answer(event, sent_us / 1e6, sent_us)
        self._next()


class LinesProcess(SimProcess[MachineT]):
    """A member's process, and its connections to its group's coordinator.

    A subclass sets ``group_spec``.
    """

    group_spec: GroupSpec

    def _connect(self, cluster: Brokers, lines: int) -> None:
        self.cluster = cluster
        self.trip_us = 1000
        """Microseconds that a request or its answer needs."""
        self.proved_group = -math.inf
        """When the last request was sent whose answer proved that the coordinator treats the
        member as live."""
        self._lines = tuple(Line(self) for _ in range(lines))
        self._cut_until = -1.0

    def heard(self, command: Any, event: Any, sent: float) -> None:
        """Record an answer that shows that the coordinator treats the member as live. ``sent``:
        when the request was sent, in seconds."""
        member = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        kinds = (events.HeartbeatAnswered, MemberHeartbeatAnswered)
        beat = isinstance(event, kinds) and event.code in member
        if beat or isinstance(event, events.Synced):
            self.proved_group = max(self.proved_group, sent)

    def _leave(self) -> None:
        if self in self.cluster.members:
            self.cluster.members.remove(self)

    def crash(self) -> None:
        """Kill the process. The coordinator detects it by the session timeout."""
        super().crash()
        self._leave()

    def cut(self, seconds: float) -> None:
        """Break the connections to brokers, with the requests in flight, and prevent new
        connections for a while."""
        self.host.say(f"cut {seconds:.3f}")
        self._cut_until = max(self._cut_until, self._kernel.now + seconds)
        for line in self._lines:
            line.interrupt()

    @property
    def is_cut(self) -> bool:
        """Whether no connection is possible now."""
        return self._kernel.now < self._cut_until


class SimGroupMember(LinesProcess[GroupMachine]):
    """One member of a group on a coordinator. Call ``start`` once.

    ``identify`` returns the observer's number for a member id.
    """

    def __init__(
        self,
        cluster: Brokers,
        spec: GroupSpec,
        data: Source | None = None,
        observer: Observer | None = None,
        habits: Habits = Habits(),  # noqa: B008
        note: Callable[[str], object] | None = None,
        watchers: Sequence[GroupObserver] = (),
        identify: Callable[[str, int], int] = lambda name, generation: 1,
    ) -> None:
        super().__init__(
            cluster.kernel, spec.consumer_id, spec.subscription, data, observer, habits, note
        )
        self.spec = self.group_spec = spec
        self._connect(cluster, 2)  # all requests, and heartbeats
        self.identify = identify
        self._last_session = 0
        machine: GroupMachine
        kind = BrokerCoordination
        if isinstance(spec, Kip848Spec):
            machine, kind = Kip848Machine(spec), ConsumerGroupCoordination
        else:
            assert isinstance(spec, ClassicSpec)
            machine = ClassicMachine(spec)
        requests, heartbeats = self._lines
        self._coordination = kind(
            spec,
            self.host,
            self.gate,
            requests,
            heartbeats,
            self.plane.progress,
            self.listener if data is not None else None,
        )
        self._make_loop(machine, self._coordination, spec.auto_commit, watchers)
        self._coordination.observer = self.watchers
        self.loop.closed.add_done_callback(lambda _: self._leave())

    def start(self) -> None:
        """Join the group."""
        self.cluster.members.append(self)
        self.host.post(self.loop.begin)
        self.plane.begin()

    @property
    def session(self) -> int:
        """Implement ``SimProcess.session``."""
        machine = self.machine
        if machine.member_id:
            self._last_session = self.identify(machine.member_id, machine.generation)
        return self._last_session

    @property
    def home(self) -> int:
        """The broker that the member treats as coordinator."""
        return self._lines[0].coordinator

    @home.setter
    def home(self, broker: int) -> None:
        for line in self._lines:
            line.coordinator = broker

    @property
    def failed(self) -> str:
        """Why the member cannot continue."""
        return self.plane.failed
