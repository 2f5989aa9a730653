"""A member's process on virtual time: the real loop, and its environment in a simulation.

Contains the simulated listener and the faults of a process (pause, crash, internal failure).
Everything runs inside kernel events, in the thread that runs the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic

from zkconsumer.core.common import commands, events
from zkconsumer.core.common.types import (
    ConsumerThreadId,
    Subscription,
    TopicPartition,
)
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import Coordination, Done, MachineT, MemberLoop
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits, SimHost
from zkconsumer.sim.members.light import SimPlane
from zkconsumer.sim.members.plane import Plane, Source


class SimListener:
    """The user's listener: the ``ListenerPort`` of a simulated member."""

    def __init__(self, host: SimHost, habits: Habits, plane: Plane) -> None:
        self.since: float | None = None
        self.commit: Callable[[Mapping[TopicPartition, int]], Future[tuple[str, ...]]]
        """Requests a commit from the member. Set before the listener is used."""
        self._host = host
        self._habits = habits
        self._plane = plane

    def releasing(self, partitions: frozenset[TopicPartition], leaving: bool, done: Done) -> None:
        """Implement ``ListenerPort.releasing``."""
        if self._habits.listener_commits:
            self._call(partial(self._commit, partitions, done))
        else:
            self._call(partial(self._return, done))

    def lost(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """Implement ``ListenerPort.lost``."""
        self._call(partial(self._return, done))

    def starting(self, assignment: Mapping[TopicPartition, ConsumerThreadId], done: Done) -> None:
        """Implement ``ListenerPort.starting``."""
        self._call(partial(self._return, done))

    def _call(self, action: Callable[[], object]) -> None:
        self.since = self._host.now()
        self._host.within(self._habits.listener, action)

    def _return(self, done: Done) -> None:
        raised = self._host.random.random() < self._habits.listener_error
        self._end(done, "the rebalance listener raised" if raised else None)

    def _commit(self, partitions: frozenset[TopicPartition], done: Done) -> None:
        """Commit the partitions that will be released, and return when the commit is answered."""
        positions = {tp: n for tp, n in self._plane.positions().items() if tp in partitions}
        self.commit(positions).add_done_callback(lambda _future: self._end(done, None))

    def _end(self, done: Done, error: str | None) -> None:
        self.since = None
        done(error)


class SimProcess(Generic[MachineT]):
    """One member's process. Messages are delivered if ``observer`` and ``data`` are given.

    ``loop`` and the classes that carry out its commands are those of a real member. ``data`` is the
    data plane.
    """

    loop: MemberLoop[MachineT]

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        subscription: Subscription,
        data: Source | None,
        observer: Observer | None,
        habits: Habits,
        note: Callable[[str], object] | None,
        *,
        always_open: bool = False,
    ) -> None:
        self.name = name
        self.subscription = subscription
        self.observer = observer
        self.habits = habits
        self.active_us = 0
        """When the machine handled its last event."""
        self.closing = False
        """Whether it was asked to leave."""
        self.host = SimHost(kernel, name, note)
        self.gate = self._make_gate(always_open)
        self.plane: Plane = (
            SimPlane(self.host, self.gate, None, observer, habits, lambda: self.session)
            if data is None
            else data.plane(self)
        )
        self.listener = SimListener(self.host, habits, self.plane)
        self._kernel = kernel
        self._delivers = data is not None
        self._late = False

    def _make_gate(self, always_open: bool) -> DeliveryGate:
        return DeliveryGate(always_open=always_open, now=self.host.lease_now)

    @property
    def session(self) -> int:
        """The observer's number for the member; 0 if it is not a member."""
        raise NotImplementedError

    @property
    def machine(self) -> MachineT:
        """The member's state machine."""
        return self.loop.machine

    @property
    def alive(self) -> bool:
        """Whether the process has neither crashed nor left."""
        return self.host.alive

    @property
    def paused(self) -> bool:
        """Whether the process is suspended."""
        return self.host.paused

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """The partitions that are delivered and not about to be released."""
        return self.plane.fetching

    def _make_loop(
        self,
        machine: MachineT,
        coordination: Coordination[MachineT],
        auto_commit: bool,
        watchers: Sequence[Any],
    ) -> None:
        self.watchers: Any = _Watchers(self, watchers)
        """Called with all actions of the member."""
        self.loop = MemberLoop(
            self.name,
            machine,
            coordination,
            self.plane,
            self.gate,
            self.host,
            self.listener,
            auto_commit_interval=(
                self.habits.commit_interval if auto_commit and self._delivers else None
            ),
            rebalances=RebalanceCounts((), (), (), self.host.now),
            observer=self.watchers,
        )
        self.listener.commit = partial(self.loop.commit, strict=True)
        self.loop.closed.add_done_callback(self._closed)

    # -- what a user or a fault does

    def post(self, event: Any) -> None:
        """Pass an event to the state machine."""
        self.loop.post(event)

    def commit(
        self, positions: Mapping[TopicPartition, int] | None = None
    ) -> Future[tuple[str, ...]]:
        """Request a commit of ``positions``, or of all consumed positions."""
        strict = positions is not None
        wanted = self.plane.positions() if positions is None else positions
        resets = self.plane.resets()

        def answered(future: Future[tuple[str, ...]]) -> None:
            if not future.result() and self.plane.resets() == resets:
                self.plane.check_stored(wanted)

        asked = self.loop.commit(wanted, strict)
        asked.add_done_callback(answered)
        return asked

    def close(self) -> None:
        """Leave the group cleanly."""
        self.closing = True
        self.loop.post(events.CloseRequested())

    def stall(self, seconds: float) -> None:
        """Make the application process one message for this long."""
        if self.alive:
            self.host.say(f"stall {seconds:.3f}")
            self.plane.stall(seconds)

    def crash(self) -> None:
        """Kill the process. The servers detect it by their timeouts."""
        if self.alive:
            self.host.say("crash")
            self.host.alive = False
            self.plane.close()

    def pause(self, seconds: float) -> None:
        """Suspend the process (SIGSTOP)."""
        if not self.alive or self.paused:
            return
        self.host.say(f"pause {seconds:.3f}")
        self.host.paused = True
        # The application may have passed the lease's check before, and deliver one message after.
        self._late = self.plane.may_deliver and self._kernel.rng.random() < 0.5
        if self._late:
            self.plane.hold_late()
        self._kernel.schedule(seconds, self._resume)

    def _resume(self) -> None:
        if not self.alive:
            return
        self.host.paused = False
        self.host.say("resume")
        if self._late or self.plane.judged:
            self.plane.deliver_late()
        self.host.work()

    def _closed(self, closed: Future[tuple[str, ...]]) -> None:
        """End the process after the machine has left the group."""
        if closed.exception() is not None:
            return
        self.host.say(f"closed {closed.result()}")
        self.host.alive = False

    def broken(self, rule: str, text: str) -> None:
        """Report a violation of ``rule``, which ``text`` describes."""
        assert self.observer is not None
        self.observer.note(rule, self._kernel.now, self.session, text)


class _Watchers:
    """The observer of a simulated member's loop. It passes everything on, and records
    the history."""

    def __init__(self, member: SimProcess[Any], watchers: Sequence[Any]) -> None:
        self._member = member
        self._watchers = watchers
        self._timers: dict[str, int] = {}
        """Token of the last timer of each name."""
        self._stale = False
        """Whether the machine is receiving a timer that was replaced."""

    def event(self, event: Any, epoch: int, attempt: int) -> None:
        """See ``Observer``."""
        member = self._member
        host = member.host
        if host.recorded:
            host.say(f"{event}")
        member.active_us = host.kernel.now_us
        fired = isinstance(event, events.TimerFired)
        self._stale = fired and self._timers.get(event.name) != event.token
        for watcher in self._watchers:
            watcher.event(event, epoch, attempt)

    def command(self, command: Any, epoch: int, attempt: int) -> None:
        """See ``Observer``."""
        if self._stale and self._member.plane.judged:
            self._member.broken("timers_count_once", f"{self._member.name}: {command}")
        if isinstance(command, commands.SetTimer):
            self._timers[command.name] = command.token
        for watcher in self._watchers:
            watcher.command(command, epoch, attempt)

    def op(self, *operation: Any) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.op(*operation)

    def reads(self, *reads: Any) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.reads(*reads)

    def shut(self, since_us: int) -> None:
        """See ``MemberObserver``."""
        for watcher in self._watchers:
            watcher.shut(since_us)

    def request(self, *request: Any) -> None:
        """See ``GroupObserver``."""
        for watcher in self._watchers:
            watcher.request(*request)
