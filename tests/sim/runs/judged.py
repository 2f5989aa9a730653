"""Processes of members that are judged at each step, at their end and at rest, in kernel events."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from tests.sim.runs.at_rest import MemberAtRest
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.errors import ConnectorFailedError
from zkconsumer.runtime.membership.loop import MachineT
from zkconsumer.sim.members.group_member import LinesProcess, SimGroupMember
from zkconsumer.sim.members.host import InjectedFault
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.members.zookeeper import ZkProcess

ANSWER_S: Final = 4.0
"""Within this time a commit is answered if the servers have no fault."""
_EXPIRES_S: Final = 3.0
"""Within this time after ``max.poll.interval.ms`` a member has left the group."""


class Judged(SimProcess[MachineT]):
    """What all kinds of judged members have in common."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._asked: list[tuple[float, Future[tuple[str, ...]]]] = []
        """Commits, and when they were requested."""
        self.pauses = 0
        """How often the process stood still."""
        super().__init__(*args, **settings)
        if self.plane.judged:
            self.host.on_step = self._judge
            self.host.on_fault = lambda error: self.loop.crashed(error)
            self.host.on_error = self._raised

    @property
    def commits_by_itself(self) -> bool:
        """Whether it commits every ``commit_interval``, and stores how far it got."""
        raise NotImplementedError

    @property
    def proved(self) -> float:
        """When the last answered request of this session was sent."""
        raise NotImplementedError

    @property
    def _session_timeout(self) -> float:
        """Seconds after which the servers give a silent member up."""
        raise NotImplementedError

    def session_now(self, session: int) -> int:
        """The observer's current number for a member that began something in ``session``."""
        return session

    def commit(
        self, positions: Mapping[TopicPartition, int] | None = None
    ) -> Future[tuple[str, ...]]:
        """See ``SimProcess``."""
        asked = super().commit(positions)
        self._asked.append((self._kernel.now, asked))
        return asked

    def unanswered(self, seconds: float = 0.0) -> int:
        """Commit requests without an answer that were made at least ``seconds`` ago."""
        self._asked = [(at, future) for at, future in self._asked if not future.done()]
        return sum(at <= self._kernel.now - seconds for at, _ in self._asked)

    def pause(self, seconds: float) -> None:
        """See ``SimProcess``."""
        self.pauses += self.alive and not self.paused
        super().pause(seconds)

    def stalls(self, seconds: float) -> None:
        """The application works on one message for this long."""

    def fail(self) -> None:
        """An internal failure of the member. The application gets the error and ends the
        process."""
        if not self.alive or self.paused or self.loop.ended:
            return
        self.host.post(_fault)
        for future in (self.loop.started, self.loop.closed):
            if not future.done() or not (
                isinstance(future.exception(), ConnectorFailedError) or future is self.loop.started
            ):
                self.broken("end_is_heard", f"{self.name}: a fault inside is not reported")
        self._ended()
        self.host.alive = False

    def _closed(self, closed: Future[tuple[str, ...]]) -> None:
        if closed.exception() is None:  # otherwise see ``fail``
            self._ended()
            if self.plane.judged and not closed.result():
                self._check_left()
        super()._closed(closed)

    def _check_left(self) -> None:
        """The member has left in order: look whether the servers know."""

    def _ended(self) -> None:
        """The member has ended: so have its streams, its gate and its calls."""
        if self.plane.judged:
            self.plane.end()
            if self.gate.is_open and not self.gate.always_open:
                self.broken("gate", f"{self.name}: it is open after the end")
            if self.unanswered():
                self.broken("commits_answered", f"{self.name}: {self.unanswered()} at its end")

    def _raised(self, error: Exception) -> None:
        """A step of the member has raised: that is a fault, and the end of its process."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        self.broken("no_error_of_its_own", f"{self.name}: {error!r} at {where}")
        self.crash()

    def _judge(self) -> None:
        """Check the rules that apply whenever the process rests."""
        self.plane.check()
        gate, until = self.gate, self.proved + self._session_timeout
        if gate.valid_until > until + 1e-6 and gate.is_open and not gate.always_open:
            text = f"{self.name}: open until {gate.valid_until}, the session {until}"
            self.broken("lease", text)


class JudgedInZooKeeper(Judged[MachineT], ZkProcess[MachineT]):
    """A member with a session in ZooKeeper."""

    @property
    def commits_by_itself(self) -> bool:
        """See ``Judged``."""
        return self.spec.auto_commit and not self.spec.scala

    @property
    def proved(self) -> float:
        """See ``Judged``."""
        return self._zk.proved

    @property
    def _session_timeout(self) -> float:
        return self.spec.session_timeout


class JudgedOnBrokers(Judged[MachineT], LinesProcess[MachineT]):
    """A member with lines to its coordinator."""

    def heard(self, command: Any, event: Any, sent: float) -> None:
        """See ``LinesProcess``."""
        super().heard(command, event, sent)
        if isinstance(command, commands.CommitOffsets) and command.generation < 0:
            self.broken("commit_in_generation", f"{self.name}: {command}")


class WholeGroupMember(JudgedOnBrokers[Any], SimGroupMember):
    """A member of a group on the coordinator."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._left = ""
        """The last member id."""
        self._failovers = 0
        self._refused = False
        """Whether LeaveGroup failed: a member tries once, as the Java client."""
        super().__init__(*args, **settings)

    @property
    def session(self) -> int:
        """See ``SimProcess``."""
        self._left = self.machine.member_id or self._left
        return super().session

    def session_now(self, session: int) -> int:
        """See ``Judged``: a cooperative member keeps its partitions while it joins."""
        return self.session

    @property
    def commits_by_itself(self) -> bool:
        """See ``Judged``."""
        return self.spec.auto_commit

    @property
    def proved(self) -> float:
        """See ``Judged``."""
        return self.proved_group

    @property
    def _session_timeout(self) -> float:
        return self.spec.session_timeout

    def close(self) -> None:
        """See ``SimProcess``; from now on the member keeps its current id."""
        self._left = self.machine.member_id
        self._failovers = self.cluster.failovers
        super().close()

    def _check_left(self) -> None:
        brokers = self.cluster
        lost = brokers.loss or brokers.delay or brokers.down or brokers.group.loading
        # A coordinator stores who is a member when a generation is complete, and not before.
        if self._refused or self._failovers < brokers.failovers:
            return
        leaves = self.spec.instance_id is None and self.machine._lookup.known  # else nobody to tell
        if leaves and not lost and not self.is_cut and self._left in brokers.group.seats:
            self.broken("leaves_in_order", f"{self._left} is still in the group")

    def heard(self, command: Any, event: Any, sent: float) -> None:
        """See ``LinesProcess``."""
        super().heard(command, event, sent)
        if isinstance(command, commands.LeaveGroup):
            self._refused = isinstance(event, events.RequestFailed)

    def stalls(self, seconds: float) -> None:
        """See ``Judged``."""
        due = self.spec.rebalance_timeout + _EXPIRES_S
        if seconds > due + _EXPIRES_S:
            held = [stream.in_hand for stream in self.plane.progress]
            self._kernel.schedule(due, partial(self._check_expired, held, self.pauses, 0))

    def _check_expired(self, held: Sequence[object], pauses: int, generation: int) -> None:
        """The application has worked on these records for longer than it may. A member that joins
        meanwhile leaves again: so the same ``generation`` must be seen twice."""
        still = [stream.in_hand for stream in self.plane.progress]
        same = any(a is b and a is not None for a, b in zip(held, still, strict=True))
        ran = self.alive and not self.paused and self.pauses == pauses and not self.closing
        now = self.machine.generation
        if not (same and ran and now >= 0):
            return
        if generation == now:
            self.broken("poll_expires", f"{self.name} is in the group")
        elif generation == 0:
            again = partial(self._check_expired, held, pauses, now)
            self._kernel.schedule(_EXPIRES_S, again)

    def at_rest(self) -> MemberAtRest:
        """The data that the invariants at rest need."""
        fetching = self.fetching if self._delivers else frozenset(self.machine.held)
        return MemberAtRest(self.name, self.session, False, fetching, None, {})


def _fault() -> None:
    raise InjectedFault("an injected fault")


__all__ = ["ANSWER_S", "Judged", "JudgedInZooKeeper", "JudgedOnBrokers", "WholeGroupMember"]
