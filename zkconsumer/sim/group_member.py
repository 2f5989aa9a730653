"""A simulated member of a group on a broker, the real machine in virtual time, and its connections.

Owns what a live member adds around the core: a line for requests and one for heartbeats, as
``zkconsumer.runtime.group_loop`` has threads, and the fence that confirmed heartbeats keep open.
Everything runs inside kernel events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from zkconsumer.core import facts as common
from zkconsumer.core import orders as common_orders
from zkconsumer.core.invariants import MemberAtRest, Observer
from zkconsumer.core.membership import facts, orders
from zkconsumer.core.membership.facts import MembershipFact
from zkconsumer.core.membership.machine import MembershipMachine
from zkconsumer.core.membership.reactions import UNREACHABLE
from zkconsumer.core.membership.spec import GroupSpec
from zkconsumer.core.types import TopicPartition
from zkconsumer.journal.group import GroupObserver
from zkconsumer.sim.coordinator import NOT_AVAILABLE, GroupCoordinator, failure
from zkconsumer.sim.group_roster import Reply
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.process import LEASE, Habits, SimLog, SimProcess

NOT_COORDINATOR: Final = 16
_CONFIRMED: Final = (0, 27)
"""Answers to a heartbeat which say that the coordinator counts this member in."""


class Brokers:
    """The brokers of a cluster, one of which is the group's coordinator.

    ``home`` is its number; ``down`` while there is none. Requests queue there and take ``service``
    seconds each. ``loss`` and ``delay`` are the probabilities that a request, or its answer, gets
    lost with its connection, and that an answer is late by up to 5 s.
    """

    def __init__(self, kernel: Kernel, group: GroupCoordinator, service: float = 0.0) -> None:
        self.kernel = kernel
        self.group = group
        self.service = service
        self.loss = 0.0
        self.delay = 0.0
        self.home = 0
        self.down = False
        self.alive = {0, 1}
        self.members: list[SimGroupMember] = []
        self._free_us = 0

    def receive(self, order: Any, asked: int, spec: GroupSpec, reply: Reply) -> None:
        """A request has come to broker ``asked``; it waits for its turn."""
        self._free_us = max(self._free_us, self.kernel.now_us) + round(self.service * 1e6)
        turn = partial(self._serve, order, asked, spec, reply)
        self.kernel.schedule_at_us(self._free_us, turn)

    def _serve(self, order: Any, asked: int, spec: GroupSpec, reply: Reply) -> None:
        if isinstance(order, orders.FindCoordinator):
            code = NOT_AVAILABLE if self.down else 0
        elif self.down or asked != self.home:
            code = NOT_COORDINATOR if asked in self.alive else UNREACHABLE
        else:
            self.group.handle(order, spec, reply)
            return
        if not code:
            reply(facts.CoordinatorFound(order.token))
        else:
            reply(failure(order, code))

    def fail_over(self, seconds: float, loading: float, dies: bool = True) -> None:
        """The coordinator dies (or gives the group up); ``seconds`` later the other broker is it,
        and reads the group for ``loading`` seconds."""
        if self.down:
            return
        self.down = True
        gone, self.home = self.home, 1 - self.home
        if not dies:
            self.group.resign(NOT_COORDINATOR)
        self.group.restart()
        self.group.loading = True
        if dies:
            self.alive.discard(gone)
            for member in self.members:
                member.cut(0.0)

        def elected() -> None:
            self.down = False
            self.alive.add(gone)
            self.group.restart()  # sessions begin when the group has been read
            self.kernel.schedule(loading, partial(setattr, self.group, "loading", False))

        self.kernel.schedule(seconds, elected)


class Line:
    """One connection of a member: a request at a time, each answered once."""

    def __init__(self, member: SimGroupMember) -> None:
        self._member = member
        self._waiting: deque[Any] = deque()
        self._number = 0
        self._busy: tuple[int, Any, int] | None = None

    def send(self, order: Any) -> None:
        """Send ``order`` when those before it are answered."""
        self._waiting.append(order)
        self._next()

    def break_(self) -> None:
        """The connection breaks: what is under way gets no answer."""
        if self._busy is not None:
            number, order, _ = self._busy
            self._member.enqueue(partial(self._arrived, number, failure(order, UNREACHABLE)))

    def _next(self) -> None:
        member = self._member
        if self._busy is not None or not self._waiting or not member.alive:
            return
        order = self._waiting.popleft()
        brokers, kernel = member.cluster, member.cluster.kernel
        self._number += 1
        self._busy = self._number, order, kernel.now_us
        later = partial(self._after, self._number)
        if member.is_cut:
            later(member.trip_us, failure(order, UNREACHABLE))
            return
        lost = brokers.loss > 0 and kernel.rng.random() < brokers.loss
        if lost:
            later(round(3e6 * kernel.rng.random()), failure(order, UNREACHABLE))
            if kernel.rng.random() < 0.5:
                return  # else only the answer is
        reply = partial(self._reply, self._number)
        arrive = partial(brokers.receive, order, member.home, member.spec, reply)
        kernel.schedule_at_us(kernel.now_us + member.trip_us, arrive)

    def _reply(self, number: int, fact: MembershipFact) -> None:
        brokers, wait = self._member.cluster, self._member.trip_us
        if brokers.delay and brokers.kernel.rng.random() < brokers.delay:
            wait += round(5e6 * brokers.kernel.rng.random())
        self._after(number, wait, fact)

    def _after(self, number: int, wait_us: int, fact: MembershipFact) -> None:
        kernel = self._member.cluster.kernel
        come = partial(self._member.enqueue, partial(self._arrived, number, fact))
        kernel.schedule_at_us(kernel.now_us + wait_us, come)

    def _arrived(self, number: int, fact: MembershipFact) -> None:
        if self._busy is None or self._busy[0] != number:
            return  # the connection broke before
        _, order, sent_us = self._busy
        self._busy = None
        self._member.answered(order, fact, sent_us)
        self._next()


class SimGroupMember(SimProcess):
    """One member. Call ``start`` once.

    ``identify`` gives the number by which the observer knows a member id. Readable besides what
    ``SimProcess`` says: ``machine``, ``failed`` (why it cannot go on).
    """

    def __init__(
        self,
        cluster: Brokers,
        spec: GroupSpec,
        log: SimLog | None = None,
        observer: Observer | None = None,
        habits: Habits = Habits(),  # noqa: B008
        note: Callable[[str], object] | None = None,
        watchers: Sequence[GroupObserver] = (),
        identify: Callable[[str, int], int] = lambda name, generation: 1,
    ) -> None:
        super().__init__(
            cluster.kernel, spec.consumer_id, spec.auto_commit, log, observer, habits, note
        )
        self.spec = spec
        self.cluster = cluster
        self.machine = MembershipMachine(spec)
        self.trip_us = 1000
        self.home = 0
        """The broker that it takes for the coordinator."""
        self.failed = ""
        self._watchers = watchers
        self.identify = identify
        self._lines = (Line(self), Line(self))  # all requests, and heartbeats
        self._fence = -1.0
        self._settled_at = -1.0
        self._stalled_until = -1.0
        self._cut_until = -1.0
        self._stopped_at: Mapping[TopicPartition, int] = {}
        self._listening: dict[int, int] = {}  # commit to the token of the listener that waits

    def start(self) -> None:
        """Join the group."""
        self.cluster.members.append(self)
        self.post(facts.Started())
        self._begin_delivery()

    # -- what a fault does

    def crash(self) -> None:
        """The process dies; the coordinator finds out by the session timeout."""
        super().crash()
        if self in self.cluster.members:
            self.cluster.members.remove(self)

    def cut(self, seconds: float) -> None:
        """Its connections break, with what is under way; none can be made for a while."""
        self._say(f"cut {seconds:.3f}")
        self._cut_until = max(self._cut_until, self._kernel.now + seconds)
        for line in self._lines:
            line.break_()

    @property
    def is_cut(self) -> bool:
        """Whether no connection can be made now."""
        return self._kernel.now < self._cut_until

    def stall(self, seconds: float) -> None:
        """The application works on one message for so long."""
        until = self._kernel.now + seconds
        if not self.alive or until <= self._stalled_until:
            return
        self._say(f"stall {seconds:.3f}")
        self._stalled_until = until
        self._kernel.schedule(self.spec.rebalance_timeout, self._expire)
        self._kernel.schedule(seconds, partial(self.post, facts.PollResumed()))

    def _expire(self) -> None:
        """Tell again and again, as the loop does: the machine hears it only as a member."""
        if self.alive and self._kernel.now_us < round(self._stalled_until * 1e6):
            self.post(facts.PollExpired())
            self._kernel.schedule(1.0, self._expire)

    def at_rest(self) -> MemberAtRest:
        """What the invariants at rest need to know."""
        fetching = frozenset(self.machine.held) if self._log is None else self.fetching
        return MemberAtRest(self.name, self.session, False, fetching, None, {})

    # -- mailbox

    def enqueue(self, action: Callable[[], object]) -> None:
        """Do this in the process, when it runs."""
        self._enqueue(action)

    def answered(self, order: Any, fact: MembershipFact, sent_us: int) -> None:
        """A request was answered, or its connection broke."""
        machine = self.machine
        for watcher in self._watchers:
            watcher.request(order, fact, sent_us, machine.generation, machine.rejoins)
        if isinstance(fact, facts.CoordinatorFound):
            self.home = self.cluster.home
        code = fact.code if isinstance(fact, facts.HeartbeatAnswered) else UNREACHABLE
        if isinstance(fact, facts.Synced):
            code = 0
        if code in _CONFIRMED:
            sent = sent_us / 1e6
            if code == 0:
                self._settled_at = sent
            until = sent + self.spec.session_timeout * LEASE
            kept = self._settled_at + self.spec.rebalance_timeout  # then others go on without it
            self._fence = max(self._fence, min(until, kept))
        self._take(fact)

    def _may_deliver(self) -> bool:
        """The coordinator counted this member in not too long ago; the application has time."""
        return self._stalled_until <= self._kernel.now < self._fence

    def _take(self, fact: MembershipFact) -> None:
        machine = self.machine
        if self._record is not None:
            self._say(f"{fact}")
        self.active_us = self._kernel.now_us
        if isinstance(fact, common.FetchingStopped):
            self._stopped_at = fact.positions
        for watcher in self._watchers:
            watcher.fact(fact, machine.generation, machine.rejoins)
        following = machine.on(fact)
        if machine.member_id:
            self.session = self.identify(machine.member_id, machine.generation)
        for order in following:
            for watcher in self._watchers:
                watcher.order(order, machine.generation, machine.rejoins)
            self._carry_out(order)

    def _carry_out(self, order: Any) -> None:
        requests, beats = self._lines
        match order:
            case orders.Heartbeat():
                beats.send(order)
            case orders.FindCoordinator() | orders.LeaveGroup():
                requests.break_()  # what is under way is of no use any more
                beats.break_()
                requests.send(order)
            case orders.Forget():
                pass  # the process has let go of them already
            case orders.NotifyLost():
                self._notify(order.token)
            case common_orders.NotifyReleasing() if self._habits.listener_commits:
                self._after(self._habits.listener, partial(self._commit_and_tell, order.token))
            case common_orders.AnswerCommit(request):
                self._carry_out_common(order)
                if request in self._listening:
                    self.post(common.ListenerDone(self._listening.pop(request)))
            case orders.Fail():
                self.failed = order.text
            case orders.Close():
                self._closed(order.faults)
                self.cluster.members.remove(self)
            case _ if not self._carry_out_common(order):
                requests.send(order)

    def _commit_and_tell(self, token: int) -> None:
        """The listener commits what is about to be released, and returns when it is answered."""
        if self.alive:
            self._listening[self.commit(self._stopped_at)] = token


__all__ = ["Brokers", "SimGroupMember"]
