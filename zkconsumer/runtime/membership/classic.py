"""BrokerCoordination: carries out a member's commands at the group coordinator.

Owns the requests in flight, the lease that acknowledged heartbeats extend, and the check of the
application's progress (``max.poll.interval.ms``). Runs on the host's thread; answers arrive on the
threads of the request lines. A second line carries heartbeats, so that neither a rebalance nor the
application delays them, and commits while JoinGroup waits. The first line carries all other
requests, of which JoinGroup and SyncGroup may wait for other members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.groups.spec import GroupSpec
from zkconsumer.core.groups.states import ENDED, State
from zkconsumer.core.zookeeper.ops import Permission, always
from zkconsumer.journal.group import GroupObserver
from zkconsumer.runtime.gate import LEASE, DeliveryGate
from zkconsumer.runtime.membership.loop import Host, MemberPort

_MEMBER: Final = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
"""Error codes of heartbeats with which the coordinator still treats this member as live."""
_AWAY: Final = ENDED | {State.OUTSIDE}


class RequestLine(Protocol):
    """One connection to the coordinator (``zkconsumer.runtime.membership.line.ServerLine``)."""

    coordinator: Any
    """The group's coordinator, to which requests are sent. One of the lines finds it for both."""

    def submit(
        self,
        command: Any,
        on_answer: Callable[[Any, float, int], object],
        permission: Permission = always,
    ) -> None:
        """Carry out ``command`` after those submitted before.

        ``on_answer`` gets the answer, and the time at which the request was sent: in seconds on the
        lease's clock, and in microseconds since 1970. Any thread may call it. ``permission`` is
        checked right before a commit is sent.
        """

    def interrupt(self) -> None:
        """Make the request in flight fail."""

    def interrupt_ended(self) -> None:
        """Make the request in flight fail if it is no longer permitted."""

    def close(self) -> None:
        """Abandon all requests."""


class Progress(Protocol):
    """The methods of a stream that show the application's progress."""

    @property
    def in_hand(self) -> object | None:
        """Return the record that the application is processing."""


class Called(Protocol):
    """The methods of a listener that show the application's progress."""

    @property
    def since(self) -> float | None:
        """When the current call began, on the host's clock; ``None`` between calls."""


class BrokerCoordination:
    """The part of a member that exchanges requests with the group's coordinator.

    Args:
        spec: the member.
        host: runs the member.
        gate: kept open while the coordinator is certain to treat this member as live.
        requests, heartbeats: connections to the coordinator.
        streams: the application must make progress in each within ``max.poll.interval.ms``.
        listener: each of its calls must return within the same time.
        observer: called with every request.
    """

    def __init__(
        self,
        spec: GroupSpec,
        host: Host,
        gate: DeliveryGate,
        requests: RequestLine,
        heartbeats: RequestLine,
        streams: Sequence[Progress],
        listener: Called | None,
        observer: GroupObserver | None = None,
    ) -> None:
        self.committed = 0
        """Number of offsets stored. Written by the host's thread."""
        self.last_fault = ""
        """Why the latest answered request failed; empty if it succeeded. Host's thread."""
        self._spec = spec
        self._host = host
        self._gate = gate
        self._requests = requests
        self._heartbeats = heartbeats
        self._streams = tuple(streams)
        self._listener = listener
        self.observer = observer
        self._member: MemberPort[GroupMachine]
        self._settled_at = -math.inf
        """When the last request of a settled generation was sent, in seconds on the lease's
        clock. Written by the lines' threads."""
        self._synced: tuple[str, int] | None = None
        """Member id and generation of the last assignment. Written by the request line's thread."""
        self._proof: commands.SyncGroup | None = None
        """A request that proves membership, without an event. Heartbeat line only."""
        self._joining: int | None = None
        """Token of the JoinGroup in flight."""
        self._unacknowledged: dict[Progress, tuple[object, float]] = {}
        """The record that each stream's application is processing, and since when."""
        self._slow = False

    # -- the host's thread ---------------------------------------------------------------------

    def begin(self, member: MemberPort[GroupMachine]) -> None:
        """Implement ``Coordination.begin``: start joining."""
        self._member = member
        if self._streams or self._listener is not None:
            member.every(min(1.0, self._spec.rebalance_timeout / 5), self._watch_progress)
        member.take(events.Started())

    @property
    def coordinator(self) -> Any:
        """The broker to which requests are sent; ``None`` while it is unknown."""
        return self._requests.coordinator

    def stamp(self) -> tuple[int, int]:
        """Implement ``Coordination.stamp``: generation and number of rejoins."""
        machine = self._member.machine
        return machine.generation, machine.rejoins

    def carry_out(self, command: Any) -> None:
        """Send the request of a command."""
        match command:
            case commands.Heartbeat():
                self._send(self._heartbeats, command)
                return
            case commands.FindCoordinator() | commands.LeaveGroup():
                self._requests.interrupt()  # the answer under way is of no use any more
                self._heartbeats.interrupt()
            case commands.CommitOffsets() if self._joining is not None:
                # JoinGroup may wait for other members for minutes.
                self._send(self._heartbeats, command)
                return
            case commands.LoadTopics() if self._member.machine.state is State.LOADING:
                # As the Java consumer does. This commit is answered before JoinGroup is sent.
                self._host.post(self._member.commit_consumed)
            case commands.JoinGroup():
                self._joining = command.token
        self._send(self._requests, command)

    def close(self, timeout: float) -> None:
        """Implement ``Coordination.close``. Does not wait."""
        self._requests.close()
        self._heartbeats.close()

    def _send(self, line: RequestLine, command: Any) -> None:
        line.submit(command, partial(self._answered, command))

    def _take_answer(self, command: Any, event: Any, sent_us: int) -> None:
        failed = isinstance(event, events.RequestFailed)
        if not failed or event.code != ErrorCode.MEMBER_ID_REQUIRED:  # a normal step
            self.last_fault = event.detail if failed else ""
        if command.token == self._joining:
            self._joining = None
        if self.observer is not None:
            self.observer.request(command, event, sent_us, *self.stamp())
        if isinstance(event, events.OffsetsCommitted):
            self.committed += sum(not code for code in event.codes.values())
        if isinstance(event, events.Joined) and not event.leader and not self._gate.is_open:
            # Kafka 4 ``classicGroupJoinToConsumerGroup`` creates a member that it does not know. A
            # classic group, which names its leader, answers UNKNOWN_MEMBER_ID.
            self._member.take(events.MembershipLapsed())
        self._member.take(event)

    def _watch_progress(self) -> None:
        """Report when the application is too slow, and when it continues.

        Slowness is reported repeatedly until the member has left, because the machine reacts only
        while it is a member.
        """
        now = self._host.now()
        since = None if self._listener is None else self._listener.since
        longest = 0.0 if since is None else now - since
        for stream in self._streams:
            record = stream.in_hand
            before = self._unacknowledged.get(stream)
            if record is None:
                self._unacknowledged.pop(stream, None)
            elif before is None or before[0] is not record:
                self._unacknowledged[stream] = (record, now)
            else:
                longest = max(longest, now - before[1])
        slow = longest > self._spec.rebalance_timeout
        if slow and self._member.machine.state not in _AWAY:
            self._member.take(events.PollExpired())
        elif self._slow and not slow:
            self._member.take(events.PollResumed())
        self._slow = slow

    # -- the lines' threads --------------------------------------------------------------------

    def _answered(self, command: Any, event: Any, sent: float, sent_us: int) -> None:
        if isinstance(command, commands.Heartbeat):
            if not isinstance(event, events.HeartbeatAnswered):
                event = events.HeartbeatAnswered(command.token, UNREACHABLE)
            elif event.code == ErrorCode.NONE and not self._gate.is_open:
                self._prove(command)
            elif event.code in _MEMBER:
                self.confirm(sent, event.code)
        elif command is self._proof:
            self._proof = None
            if isinstance(event, events.Synced):
                self.confirm(sent, ErrorCode.NONE)
            return
        elif isinstance(event, events.Synced):
            self._synced = command.member_id, command.generation
            self.confirm(sent, ErrorCode.NONE)
        elif isinstance(event, events.CoordinatorFound):
            self._heartbeats.coordinator = self._requests.coordinator
        self._host.post(partial(self._take_answer, command, event, sent_us))

    def _prove(self, beat: commands.Heartbeat) -> None:
        """Prove membership after the lease has expired, because the group may have continued
        without this member.

        A coordinator that is still loading the group answers every heartbeat with NONE, but not a
        SyncGroup. In a settled generation SyncGroup changes nothing, and returns the assignment to
        members only.
        """
        settled = (beat.member_id, beat.generation) == self._synced
        if settled and self._proof is None:
            self._proof = commands.SyncGroup(0, beat.member_id, beat.generation, {})
            self._send(self._heartbeats, self._proof)

    def confirm(self, sent: float, code: int) -> None:
        """Extend the lease, because the coordinator answered a request that was sent at ``sent``.
        While the coordinator waits for members to rejoin (REBALANCE_IN_PROGRESS), the lease lasts
        at most for the rebalance timeout. The coordinator then continues without the members that
        have not rejoined."""
        if code == ErrorCode.NONE:
            self._settled_at = max(self._settled_at, sent)
        until = sent + self._spec.session_timeout * LEASE
        self._gate.extend(min(until, self._settled_at + self._spec.rebalance_timeout))
