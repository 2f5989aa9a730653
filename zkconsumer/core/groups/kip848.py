"""Kip848Machine: one member of a group by KIP-848. Events in, commands out.

It decides when to join, what to report to the coordinator, and how to change to the assigned
partitions. ``GroupMachine`` does the rest. Heartbeats continue during that: any answer may contain
another assignment, which is processed when the current step is done. The owner thread is the only
caller.

Two members never read the same partition, because:

- A heartbeat names as owned all partitions that this member has, or begins or may begin to read:
  also assigned ones that it has not processed yet. The coordinator takes away only partitions that
  are not named.
- A partition is no longer named once it is stopped, committed and released.
- A commit names only partitions that are held, because the coordinator accepts any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from uuid import NAMESPACE_OID, uuid5

from zkconsumer.core.common.commands import AnswerStart, Outcome, SetBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.events import TimerFired
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.assignors.strategies import assign_to_streams
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.commands import LeaveGroup, LoadTopics
from zkconsumer.core.groups.data import Goal, Purpose
from zkconsumer.core.groups.events import (
    CoordinatorFound,
    OffsetsFetched,
    RequestFailed,
    TopicsLoaded,
)
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData
from zkconsumer.core.groups.kip848_reactions import HINTS, ROWS, ROWS_OF_MEMBERS
from zkconsumer.core.groups.reactions import Reaction, Request, Row, name_of
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.groups.states import State

Owned = Mapping[str, tuple[int, ...]]
"""Partition numbers, sorted, by topic id."""

FENCED_JOINS: Final = 2
"""Number of fenced joins after which a member takes another member id."""
MAX_PAUSES: Final = 32
"""Longest pause between two joins, as a multiple of ``rebalance.backoff.ms``."""
IDLE_BEATS: Final = 3
"""Number of the heartbeat after whose answer a member without an assignment reads its topics.
Earlier it is normal to have none, because other members release partitions for it."""
NAMES_AGAIN: Final = 1.0
"""Seconds until the name of an unknown topic id is requested again."""


class Kip848Machine(GroupMachine):
    """The state machine of one KIP-848 member; see ``GroupMachine``. ``generation`` is the member
    epoch, -1 outside the group."""

    REACTIONS: ClassVar[Mapping[int, Row]] = ROWS
    spec: Kip848Spec

    def __init__(self, spec: Kip848Spec) -> None:
        super().__init__(spec)
        self.member_id = spec.member_id
        self._target: Owned = {}  # the last assignment
        self._names: dict[str, str] = {}  # of topic ids
        self._nameless: frozenset[str] = frozenset()  # ids that the broker did not know
        self._ids: dict[TopicPartition, str] = {}  # topic ids of what is held or starting
        self._entered = False  # the coordinator may know this member
        self._interval = spec.heartbeat_interval
        self._beat: tuple[int, Owned] | None = None  # token, and what it named as owned
        self._beat_due = False  # another one, as soon as that is answered
        self._said: Owned | None = None  # what the coordinator surely knows; None: nothing
        self._idle = 0  # heartbeats answered since nothing is assigned
        self._fenced = 0  # joins refused with FENCED_MEMBER_EPOCH, one after the other
        self._unreleased: int | None = None
        """Set while another member has the instance id. 0: waiting; otherwise the last token
        before the wait ended, because the answer to an earlier heartbeat may be late."""

    @property
    def releasing(self) -> bool:
        """Whether the coordinator waits for this member to release partitions."""
        return any(not self._is_target(tp) for tp in (*self.held, *self._starting))

    def awaits(self, token: int) -> bool:
        """Whether the heartbeat with ``token`` is in flight and its answer is still valid."""
        return self._beat is not None and self._beat[0] == token

    # -- joining ---------------------------------------------------------------------------------

    def _load(self) -> None:
        self.rejoins += 1
        self.state, self._awaited = State.JOINING, None
        self._entered = True
        self._beat, self._said = None, None
        self._send_heartbeat()

    def _rejoin(self) -> None:
        """Wait for an assignment, because the coordinator never asks a member to rejoin."""

    def _may_leave(self) -> bool:
        return self._entered

    def _leave(self) -> None:
        self._entered = False
        self.generation = -1
        self._starting = {}
        self._forget_group()
        token = self._await(State.LEAVING)
        self._emit(LeaveGroup(token, self.member_id))

    def _lose(self, expelled: bool) -> None:
        self._forget_group()
        super()._lose(False)

    def _forget_group(self) -> None:
        self._target, self._said, self._beat, self._beat_due = {}, None, None, False
        self._nameless = frozenset()
        self._ids.clear()
        self.assigned = 0
        self._idle = 0

    # -- heartbeats ------------------------------------------------------------------------------

    def _owned(self) -> Owned:
        """Return the partitions that this member has, or may begin to read without asking."""
        owned: dict[str, set[int]] = {
            topic: set(numbers) for topic, numbers in self._target.items()
        }
        for tp in {*self.held, *self._starting}:
            owned.setdefault(self._ids[tp], set()).add(tp.partition)
        return {
            topic: tuple(sorted(numbers)) for topic, numbers in sorted(owned.items()) if numbers
        }

    def _send_heartbeat(self) -> None:
        joining = self.generation < 0
        if not self._lookup.known or (joining and self.state is not State.JOINING):
            return
        if self._beat is not None:
            self._beat_due = True
            return
        owned = self._owned()
        full = joining or self._said is None
        self._beat, self._beat_due = (self._next_token(), owned), False
        self._emit(
            commands.MemberHeartbeat(
                self._beat[0],
                self.member_id,
                max(self.generation, 0),
                full,
                owned if full or owned != self._said else None,
            )
        )

    def _found(self, event: Any) -> None:
        self._unanswered()
        super()._found(event)

    def _search_done(self, event: Any) -> None:
        if isinstance(event, CoordinatorFound):
            self._unanswered()
        super()._search_done(event)

    def _unanswered(self) -> None:
        """Record that the search ended the heartbeat in flight, which the coordinator may have
        received."""
        self._wait_anew()
        if self._beat is not None:
            self._beat = self._said = None

    def _heartbeat_answered(self, event: events.MemberHeartbeatAnswered) -> None:
        if self._beat is None or event.token != self._beat[0]:
            self.stale_answers += 1
            return
        owned, self._beat = self._beat[1], None
        joining = self.generation < 0
        if joining and self.state is not State.JOINING:
            return
        if event.code == ErrorCode.NONE:
            self._said = owned
            self._accepted(event)
            return
        self._said = None
        request = Request.JOIN if joining else Request.HEARTBEAT
        what = self._reaction(request, event.code)
        self._lookup.unproved = self._lookup.unproved and what is Reaction.FIND_AGAIN
        if event.code != ErrorCode.UNRELEASED_INSTANCE_ID:
            self._wait_anew()
        if not joining:
            self._timer("heartbeat", self.spec.backoff)
        match what:
            case Reaction.FIND_AGAIN:
                self._coordinator_lost()
            case Reaction.LOST:
                self._lose(False)
            case Reaction.FATAL:
                self._refused(event)
            case _ if joining:
                self._join_later(event)

    def _accepted(self, event: events.MemberHeartbeatAnswered) -> None:
        self._rows = ROWS_OF_MEMBERS
        self._fenced = 0
        self._lookup.unproved = False
        self._wait_anew()
        self._interval = event.interval or self._interval
        self._timer("heartbeat", self._interval)
        self._commits.paused = False
        self.generation = event.epoch
        if event.assignment is not None:
            self._target = {
                topic: tuple(sorted(numbers)) for topic, numbers in event.assignment.items()
            }
            self.assigned = sum(map(len, self._target.values()))
            if self.assigned:
                self.obstacle = ""
        self._idle = 0 if self.assigned else self._idle + 1
        due = self._beat_due
        if self.state in (State.JOINING, State.STABLE):
            self._rest()
        if self.generation >= 0 and (due or self._owned() != self._said):
            self._send_heartbeat()

    def _join_later(self, event: events.MemberHeartbeatAnswered) -> None:
        if event.code == ErrorCode.UNRELEASED_INSTANCE_ID:
            if self._unreleased and event.token > self._unreleased:
                self._refused(event)
                return
            if self._unreleased is None:
                self._unreleased = 0
                self._timer("instance", self.spec.session_timeout)
                self._report("instance-taken", f"waiting: {event.detail}")
        if event.code == ErrorCode.FENCED_MEMBER_EPOCH:
            self._fenced += 1
            if self._fenced % FENCED_JOINS == 0 and self.spec.instance_id is None:
                self._change_id()
                return
        self._back_off(Goal.LOAD, min(2**self._fenced, MAX_PAUSES))

    def _change_id(self) -> None:
        """Leave with the member id that the coordinator refuses, and join with a new one.

        Brokers 4.0 and 4.1 refuse epoch 0 of a member that missed two epochs, until its session
        expires.
        """
        old, self.member_id = self.member_id, str(uuid5(NAMESPACE_OID, self.member_id))
        text = f"the coordinator does not let member {old} join again: joining as {self.member_id}"
        self._report("new-member-id", text)
        self._entered = False
        self._emit(LeaveGroup(self._await(State.LEAVING), old))

    def _wait_anew(self) -> None:
        """Restart the wait, because a coordinator that takes over restarts the session timeout of
        all members."""
        self._unreleased = None
        self._timers.pop("instance", None)

    def _refused(self, event: events.MemberHeartbeatAnswered) -> None:
        hint = HINTS.get(event.code)
        parts = [name_of(event.code), event.detail, hint or ""]
        self._fail(event.code, ": ".join(part for part in parts if part))

    def _timer_fired(self, event: TimerFired) -> None:
        current = self._timers.get(event.name) == event.token
        if current and event.name == "instance":
            self._unreleased = self._token
        elif current and event.name == "names":
            self._nameless = frozenset()
            if self.state is State.STABLE:
                self._rest()
        else:
            super()._timer_fired(event)

    # -- from what it has to what it is assigned -------------------------------------------------

    def _rest(self) -> None:
        """Process the assignment: release the removed partitions first, then start the new ones."""
        self.state, self._awaited = State.STABLE, None
        if self.closing:
            self._finish_closing()
            return
        gone = frozenset(tp for tp in self.held if not self._is_target(tp))
        if gone:
            self._release(gone, Purpose.SHRINK)
            return
        if self._target.keys() - self._names.keys() - self._nameless:
            self._go(Goal.NAMES)
            return
        fresh = {
            TopicPartition(self._names[topic], number): topic
            for topic, numbers in self._target.items()
            for number in numbers
            if topic in self._names
        }
        topics = self.spec.topics({tp.topic for tp in fresh})
        given = AssignmentData(frozenset(tp for tp in fresh if tp.topic in topics))
        self._starting = assign_to_streams(self.spec.consumer_id, topics, given, self.held)
        if self._starting:
            self._ids.update({tp: fresh[tp] for tp in self._starting})
            self._go(Goal.OFFSETS)
            return
        if not self._answered_start:
            self._answered_start = True
            self._emit(AnswerStart(Outcome.SETTLED))
        named = self.spec.topics_named is not None
        if named and self._idle == IDLE_BEATS and self._reread is None:
            self._reread = self._next_token()
            self._read_again(self._reread)

    def _is_target(self, tp: TopicPartition) -> bool:
        return tp.partition in self._target.get(self._ids[tp], ())

    def _pursue(self, goal: Goal) -> None:
        if goal is Goal.NAMES:
            unknown = self._target.keys() - self._names.keys() - self._nameless
            token = self._await(State.LOADING)
            self._emit(commands.ReadTopicNames(token, tuple(sorted(unknown))))

    def _names_read(self, event: events.TopicNamesRead) -> None:
        self._learn(event)
        self._go(Goal.REST)

    def _names_failed(self, event: RequestFailed) -> None:
        self._lookup.known = False  # whom we asked is gone: begin with the next broker
        self._back_off(Goal.REST)

    def _learn(self, event: events.TopicNamesRead) -> None:
        self._emit(SetBrokers(event.brokers))
        self._names.update(event.names)
        self._nameless = frozenset(self._target.keys() - self._names.keys())
        if self._nameless:  # created or deleted a moment ago
            self._timer("names", NAMES_AGAIN)

    def _read_again(self, token: int) -> None:
        """Read topics by name, because the coordinator does not report why it assigns nothing."""
        if self.assigned or self.spec.topics_named is None:
            self._emit(commands.ReadTopicNames(token, tuple(sorted(self._target))))
        else:
            self._emit(LoadTopics(token, self.spec.topics_named))

    def _reread_done(self, event: Any) -> None:
        if isinstance(event, events.TopicNamesRead):
            self._learn(event)
        elif isinstance(event, TopicsLoaded):
            self._emit(SetBrokers(event.brokers))
            if not self.assigned:
                self._look_for_obstacle(event, self.spec.topics_named)

    def _ask_offsets(self, token: int, partitions: frozenset[TopicPartition]) -> None:
        self._emit(commands.FetchMemberOffsets(token, self.member_id, self.generation, partitions))

    def _offsets_failed(self, event: RequestFailed) -> None:
        if event.code == ErrorCode.UNSTABLE_OFFSET_COMMIT and self.releasing:
            self._starting = {}  # the transaction may last longer than the group waits
            self._extend()
            return
        super()._offsets_failed(event)

    def _extend(self) -> None:
        """Extend the lease: partitions are released, for which the coordinator waits."""
        self._send_heartbeat()
        self._go(Goal.REST)

    # -- which event is legal where --------------------------------------------------------------

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        **GroupMachine.ANYWHERE,
        events.MemberHeartbeatAnswered: _heartbeat_answered,
        TimerFired: _timer_fired,
    }
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        **GroupMachine.ANSWERS,
        State.FINDING: {
            CoordinatorFound: _found,
            RequestFailed: GroupMachine._find_failed,
        },
        State.FETCHING_OFFSETS: {
            OffsetsFetched: GroupMachine._offsets_fetched,
            RequestFailed: _offsets_failed,
        },
        State.LOADING: {
            events.TopicNamesRead: _names_read,
            RequestFailed: _names_failed,
        },
    }
