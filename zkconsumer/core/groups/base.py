"""GroupMachine: the common part of both machines of members in Kafka. Events in, commands
out.

It finds the coordinator, fetches offsets and starts, releases (stop, commit, listener), handles
lost partitions and requested commits, leaves, and ends. The subclass decides how a member joins and
gets partitions: ``ClassicMachine`` for the classic protocol, ``Kip848Machine`` for
KIP-848.

It has the same contract as ``zkconsumer.core.zookeeper.machine``: it handles any event in any
state, late answers are dropped and counted, and ``held`` has the partitions that may be delivered.
The owner thread is the only caller.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from zkconsumer.core.common.commands import (
    AnswerCommit,
    AnswerStart,
    Close,
    Drop,
    Fail,
    Forget,
    NotifyLost,
    NotifyReleasing,
    NotifyStarting,
    Outcome,
    Report,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.events import (
    CloseRequested,
    CommitAbandoned,
    CommitRequested,
    Dropped,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.faults import Fault, Trouble
from zkconsumer.core.common.machine import Handler, Machine
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.data import Goal, Lookup, Purpose, Release
from zkconsumer.core.groups.reactions import (
    SENT_AGAIN,
    TABLE,
    Reaction,
    Request,
    Row,
    by_code,
    codes_of,
    name_of,
    reaction,
    worst,
)
from zkconsumer.core.groups.spec import GroupSpec
from zkconsumer.core.groups.states import BETWEEN, COMMIT_STATES, ENDED, WAITING, State


class GroupMachine(Machine[State, Any, Any]):
    """The state machine of one member. ``on`` handles an event and returns the commands.

    ``generation`` is -1 outside the group; KIP-848 calls it the member epoch. ``held`` maps the
    member's partitions to their streams; ``rejoins`` counts joins, ``lost`` the lost partitions.
    ``assigned`` is the number of partitions in the last assignment. ``obstacle`` is why nothing
    can be assigned to the member, and ``misread`` why its topic filter is not evaluated; both may
    be empty.
    """

    REACTIONS: ClassVar[Mapping[int, Row]] = by_code(TABLE)
    """The member's reaction to each error code."""

    def __init__(self, spec: GroupSpec) -> None:
        super().__init__(State.NEW)
        self.spec = spec
        self.member_id = ""
        self.generation = -1
        self.held: dict[TopicPartition, ConsumerThreadId] = {}
        self.rejoins = self.lost = 0
        self.assigned = 0
        self.obstacle = ""
        self.misread = ""
        self.closing = False
        self._in_listener = False  # the listener has called ``shutdown``, and waits
        self._faults: list[str] = []  # offsets that could not be stored while closing
        self._goal = Goal.LOAD
        self._lookup = Lookup()
        self._releasing = Release()
        self._starting: dict[TopicPartition, ConsumerThreadId] = {}
        self._offsets: Mapping[TopicPartition, int | None] = {}  # committed, of the starting ones
        self._beat: Any = None  # the heartbeat in flight
        self._rows = self.REACTIONS
        self._reread: int | None = None
        self._answered_start = False
        self._rejoin_wanted = False
        self._outside = False
        self._committed_in = -1  # the generation of the commit in progress
        self._stale = -1  # a generation in which no commit is accepted any more

    @property
    def kept(self) -> frozenset[TopicPartition]:
        """The member's partitions, except those that it is releasing."""
        return frozenset(self.held) - self._releasing.partitions

    # -- what the protocols do differently

    @abstractmethod
    def _load(self) -> None:
        """Start to join."""

    @abstractmethod
    def _pursue(self, goal: Goal) -> None:
        """Carry out a goal that only this protocol has."""

    @abstractmethod
    def _send_heartbeat(self) -> None:
        """Send a heartbeat now, if this is a member and the coordinator is known."""

    @abstractmethod
    def _rejoin(self) -> None:
        """Rejoin, because the group or the subscription has changed."""

    @abstractmethod
    def _read_again(self, token: int) -> None:
        """Read topics again, to detect changes that are not reported."""

    @abstractmethod
    def _reread_done(self, event: Any) -> None:
        """Handle the answer to ``_read_again``."""

    def _ask_offsets(self, token: int, partitions: frozenset[TopicPartition]) -> None:
        """Read committed offsets."""
        self._emit(commands.FetchOffsets(token, partitions))

    def _is_joining(self) -> bool:
        """Whether the group may have a new generation that this member does not know yet."""
        return False

    def _may_leave(self) -> bool:
        """Whether the member must tell the coordinator that it leaves."""
        return bool(self.member_id) and self.spec.instance_id is None

    def _leave(self) -> None:
        member_id, self.member_id = self.member_id, ""
        self.generation = -1
        self._emit(commands.LeaveGroup(self._await(State.LEAVING), member_id))

    def _reaction(self, request: Request, code: int) -> Reaction:
        return reaction(request, code, self._rows)

    def _worst(self, codes: Iterable[int]) -> tuple[Reaction, int]:
        return worst(codes, self._rows)

    # -- see ``Machine``

    def _ended(self, event: Any) -> bool:
        if self.state not in ENDED:
            return False
        if isinstance(event, CommitRequested) and event.request is not None:
            failed = self.state is State.FAILED
            why = "the member has failed" if failed else "the connector is shut down"
            self._emit(AnswerCommit(event.request, (why,)))
        elif isinstance(event, CloseRequested) and self.state is State.FAILED:
            self._close()
        return True

    def _answered_otherwise(self, token: int, event: Any) -> bool:
        if token == self._reread:
            self._reread = None
            self._reread_done(event)
        elif token == self._lookup.token:
            self._lookup.token = None
            self._search_done(event)
        else:
            return False
        return True

    def _report(self, event: str, text: str) -> None:
        self._emit(Report(event, text))

    # -- finding the coordinator, pauses -----------------------------------------------------------

    def _start(self, event: events.Started) -> None:
        if self.state is State.NEW:
            self._timer("reread", self.spec.reread)
            self._go(Goal.LOAD)

    def _go(self, goal: Goal) -> None:
        """Pursue ``goal`` next, after finding the coordinator if it is unknown."""
        self._goal = goal
        if not self._lookup.known:
            if self._lookup.token is None:
                self._emit(commands.FindCoordinator(self._await(State.FINDING)))
            else:
                self.state, self._awaited = State.FINDING, self._lookup.token
                self._lookup.token = None
            return
        match goal:
            case Goal.LOAD:
                self._load()
            case Goal.COMMIT:
                self._commit_release()
            case Goal.OFFSETS:
                self._fetch_offsets()
            case Goal.REST:
                self._rest()
            case _:
                self._pursue(goal)

    def _found(self, event: events.CoordinatorFound) -> None:
        self._lookup.known = True
        self._send_heartbeat()
        self._go(self._goal)

    def _find_failed(self, event: events.RequestFailed) -> None:
        if self._reaction(Request.FIND, event.code) is Reaction.FATAL:
            self._fail(event.code, event.detail)
        else:
            self._back_off(self._goal)

    def _find_while_waiting(self) -> None:
        """Search a lost coordinator in a state that waits for something else. A member that waits
        for its listener must send heartbeats, and the listener may wait for a commit."""
        lost = not self._lookup.known and self.generation >= 0 and self.state in WAITING
        if lost and self._lookup.token is None and not self._lookup.paused:
            self._lookup.token = self._next_token()
            self._emit(commands.FindCoordinator(self._lookup.token))

    def _search_done(self, event: Any) -> None:
        if isinstance(event, events.CoordinatorFound):
            self._lookup.known = True
            self._send_heartbeat()
        elif isinstance(event, events.RequestFailed):
            if self._reaction(Request.FIND, event.code) is Reaction.FATAL:
                self._fail(event.code, event.detail)
            else:
                self._lookup.paused = True
                self._timer("search", self.spec.backoff)

    def _back_off(self, goal: Goal, times: int = 1) -> None:
        self._goal = goal
        self._awaited = None
        self.state = State.BACKING_OFF
        self._timer("backoff", times * self.spec.backoff)

    def _coordinator_lost(self) -> None:
        """Join, or remain a member, because requests in flight will not be answered.

        In other states the failure of the expected answer leads to the next request, or to
        ``_find_while_waiting``.
        """
        goal = Goal.LOAD if self.state in BETWEEN else Goal.REST
        if self.state in BETWEEN or self.state is State.STABLE:
            self._find_again(goal)
        elif self._lookup.lost():
            self._lookup.paused = True
            self._timer("search", self.spec.backoff)

    def _find_again(self, goal: Goal) -> None:
        if self._lookup.lost():
            self._back_off(goal)
        else:
            self._go(goal)

    def _timer_fired(self, event: TimerFired) -> None:
        if self._timers.get(event.name) != event.token:
            return
        if event.name == "heartbeat":
            if self._beat is None:
                self._send_heartbeat()
        elif event.name == "commit":
            self._commits.paused = False
        elif event.name == "search":
            self._lookup.paused = False
        elif event.name == "release":
            self._releasing.late = True
            if self._goal is Goal.COMMIT and self.state in (State.BACKING_OFF, State.FINDING):
                self._give_up_commit()
        elif event.name == "backoff" and self.state is State.BACKING_OFF:
            self._go(self._goal)
        elif event.name == "reread":
            self._timer("reread", self.spec.reread)
            if self.state is State.STABLE and self._reread is None:
                self._reread = self._next_token()
                self._read_again(self._reread)

    def _load_failed(self, event: events.RequestFailed) -> None:
        self._lookup.known = False  # whom we asked is gone: begin with the next broker
        self._back_off(Goal.LOAD)

    def _react(self, what: Reaction, event: events.RequestFailed, goal: Goal) -> None:
        """Carry out the table's reaction to an expected answer."""
        match what:
            case Reaction.PROCEED | Reaction.RETRY | Reaction.TAKE_ID | Reaction.REFUSE:
                self._back_off(goal)
            case Reaction.AFTER_HEARTBEAT:
                self._back_off(goal)
                self._send_heartbeat()
            case Reaction.FIND_AGAIN:
                self._find_again(goal)
            case Reaction.REJOIN:
                self._rejoin()
            case Reaction.LOST | Reaction.EXPELLED:
                self._lose(what is Reaction.EXPELLED)
            case Reaction.FATAL:
                self._fail(event.code, event.detail)

    def _look_for_obstacle(self, event: events.TopicsLoaded, named: tuple[str, ...] | None) -> bool:
        """Record why nothing can be assigned. Return whether a topic may not be described.

        ``named``: the topics subscribed to by name; ``None`` for a filter.
        """
        before, own = self.obstacle, named or ()
        denied = [
            topic
            for topic in own
            if event.errors.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        ]
        self.obstacle = ""
        if denied:
            self.obstacle = (
                f"{name_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}: this member's principal is not "
                f"authorized to describe {', '.join(denied[:3])}: allow it Describe and Read"
            )
        elif own and not any(topic in event.partitions for topic in own):
            self.obstacle = f"topic {own[0]} does not exist, nor does any other that it names"
        if self.obstacle and self.obstacle != before:
            self._report("unassignable", self.obstacle)
        return bool(denied)

    def faults(self) -> Iterator[Fault]:
        """Return the member's current faults. Any thread."""
        if self.obstacle:
            yield Fault(Trouble.UNASSIGNABLE, self.obstacle)
        if self.misread:
            yield Fault(Trouble.MISREAD, self.misread)

    # -- starting partitions -----------------------------------------------------------------------

    def _extend(self) -> None:
        if self._starting:
            self._go(Goal.OFFSETS)
        else:
            self._go(Goal.REST)

    def _fetch_offsets(self) -> None:
        partitions = frozenset(self._starting)
        self._ask_offsets(self._await(State.FETCHING_OFFSETS), partitions)

    def _offsets_failed(self, event: events.RequestFailed) -> None:
        if event.code == ErrorCode.UNSTABLE_OFFSET_COMMIT and self._rejoin_wanted:
            self._starting = {}  # the transaction may last longer than the group waits
            self._rejoin()
            return
        self._react(self._reaction(Request.FETCH, event.code), event, Goal.OFFSETS)

    def _offsets_fetched(self, event: events.OffsetsFetched) -> None:
        self._offsets = event.offsets
        assignment = dict(self._starting)
        self._notify(State.NOTIFYING_START, lambda of: NotifyStarting(of, assignment))

    def _start_announced(self, event: ListenerDone) -> None:
        self._listener_error(event)
        token = self._await(State.STARTING)
        self.held.update(self._starting)
        for tp in self._starting:
            self._commits.note_stored(tp, self._offsets.get(tp))
        self._emit(
            StartFetching(
                token, {tp: (of, self._offsets.get(tp)) for tp, of in self._starting.items()}
            )
        )
        self._starting = {}

    def _fetching(self, event: FetchingStarted) -> None:
        self._go(Goal.REST)

    def _rest(self) -> None:
        self.state = State.STABLE
        if not self._answered_start:
            self._answered_start = True
            self._emit(AnswerStart(Outcome.SETTLED))
        if self._rejoin_wanted:
            self._rejoin()

    # -- giving up partitions ----------------------------------------------------------------------

    def _release(self, partitions: frozenset[TopicPartition], purpose: Purpose) -> None:
        self._releasing = Release(partitions, purpose)
        self._timers.pop("release", None)
        self._emit(StopFetching(self._await(State.STOPPING), partitions))

    def _limit_release(self) -> None:
        self._timer("release", self.spec.release_timeout(self.closing))

    def _stopped(self, event: FetchingStopped) -> None:
        releasing = self._releasing
        releasing.stopped_at = {
            tp: offset for tp, offset in event.positions.items() if tp in releasing.partitions
        }
        if self.spec.auto_commit and releasing.stopped_at:
            releasing.uncommitted = dict(releasing.stopped_at)
            self._commits.stopped(releasing.stopped_at)
            self._go(Goal.COMMIT)
        else:
            self._announce_release()

    def _commit_release(self) -> None:
        token, positions = self._await(State.COMMITTING), dict(self._releasing.uncommitted)
        self._emit(commands.CommitOffsets(token, self.member_id, self.generation, positions))

    def _release_committed(self, event: events.OffsetsCommitted | events.RequestFailed) -> None:
        releasing = self._releasing
        codes = codes_of(event, releasing.uncommitted)
        left = {tp: code for tp, code in codes.items() if code}
        self._note_stored(codes, releasing.uncommitted)
        releasing.uncommitted = {tp: releasing.uncommitted[tp] for tp in left}
        what, code = self._worst(left.values())
        if what in (Reaction.FATAL, Reaction.EXPELLED, Reaction.LOST):
            text = f"offsets are not stored: {name_of(code)}"
            self._note_fault(text)
            self._react(what, events.RequestFailed(0, code, text), Goal.LOAD)
            return
        if what is Reaction.FIND_AGAIN:
            self._lookup.known = False
        named = ", ".join(sorted(f"{tp}: {name_of(code)}" for tp, code in left.items()))
        releasing.fault = getattr(event, "detail", "") or named
        if what in SENT_AGAIN and not releasing.late:
            if "release" not in self._timers:
                self._limit_release()
            self._back_off(Goal.COMMIT)
            if what is Reaction.AFTER_HEARTBEAT:
                self._send_heartbeat()
        elif left:
            self._give_up_commit()
        else:
            self._announce_release()

    def _give_up_commit(self) -> None:
        self._note_fault(f"offsets are not stored: {self._releasing.fault}")
        self._announce_release()

    def _note_fault(self, text: str) -> None:
        self._report("commit-failed", text)
        if self.closing:
            self._faults.append(text)

    def _announce_release(self) -> None:
        partitions, leaving = self._releasing.partitions, self.closing
        self._notify(
            State.NOTIFYING_RELEASE,
            lambda token: NotifyReleasing(token, partitions, leaving),
        )

    def _notify(self, state: State, call: Callable[[int], Any]) -> None:
        """Call the listener and wait for it, unless it is waiting for this member to leave."""
        token = self._await(state)
        if self._in_listener:
            self._answer(token, ListenerDone(token))
        else:
            self._emit(call(token))

    def _release_announced(self, event: ListenerDone) -> None:
        self._listener_error(event)
        released, self._releasing = self._releasing, Release()
        for tp in released.partitions:
            self.held.pop(tp, None)
        self._emit(Forget(released.partitions))
        if self.closing:
            self._finish_closing()
        elif released.purpose is Purpose.SHRINK:
            self._extend()
        else:
            self._go(Goal.LOAD)

    def _lose(self, expelled: bool) -> None:
        """Handle that the group continued without this member: deliver and commit nothing."""
        self.generation = -1
        self._beat = None
        self._releasing = Release()
        if expelled:
            self.member_id = ""
        lost = self._drop_all()
        self._commits.refuse("the group has given the partitions to other members")
        if not lost:
            self._after_loss()
            return
        self.lost += len(lost)
        self._report("lost", f"{len(lost)} partitions were lost")
        self._notify(State.NOTIFYING_LOST, lambda token: NotifyLost(token, lost))

    def _drop_all(self) -> frozenset[TopicPartition]:
        """Drop all held partitions. Return them, and those that the listener expects to be
        fetched."""
        held = frozenset(self.held)
        announced = (
            frozenset(self._starting) if self.state is State.NOTIFYING_START else frozenset()
        )
        self.held.clear()
        self._starting = {}
        if held:
            self._emit(Drop(held))
        return held | announced

    def _loss_announced(self, event: ListenerDone) -> None:
        self._listener_error(event)
        self._after_loss()

    def _after_loss(self) -> None:
        if self.closing:
            self._finish_closing()
        elif self._outside:
            self.state, self._awaited = State.OUTSIDE, None
        else:
            self._go(Goal.LOAD)

    def _dropped(self, event: Dropped) -> None:
        pass  # their positions do not matter: they may not be committed

    def _listener_error(self, event: ListenerDone) -> None:
        if event.error is not None:
            self._report("listener-error", event.error)

    # -- the application is too slow ---------------------------------------------------------------

    def _poll_expired(self, event: events.PollExpired) -> None:
        if self.generation < 0 or self.closing or self._outside:
            return
        self._outside = True
        self._report("poll-expired", "max.poll.interval.ms is over: leaving the group")
        self.generation = -1
        self._beat = None
        self._releasing = Release(self._drop_all())
        self._commits.refuse("the member has left the group: max.poll.interval.ms is over")
        if self._may_leave():
            self._leave()
        else:
            self._announce_loss()

    def _announce_loss(self) -> None:
        lost, self._releasing = self._releasing.partitions, Release()
        self._notify(State.NOTIFYING_LOST, lambda token: NotifyLost(token, lost))

    def _poll_resumed(self, event: events.PollResumed) -> None:
        self._outside = False
        if self.state is State.OUTSIDE:
            self._go(Goal.LOAD)

    # -- requested commits ------------------------------------------------------------------------

    def _commit_requested(self, event: CommitRequested) -> None:
        if not event.strict:  # positions read before the partitions stopped are out of date
            last = self._releasing.stopped_at
            event = replace(
                event, positions={tp: last.get(tp, n) for tp, n in event.positions.items()}
            )
        self._commits.add(event)
        if self.generation < 0:  # the caller that waits for the answer may keep it from joining
            self._commits.refuse("the member is not in the group at the moment")

    def _stepped(self) -> None:
        self._commits.forget_above(lambda: self.kept)
        self._find_while_waiting()
        ready = self._may_commit() and self.generation >= 0 and self._lookup.known
        if ready and self._commits.next(self._obstacle):
            self._commits.token = token = self._next_token()
            self._committed_in = self.generation
            positions = self._commits.sent
            self._emit(commands.CommitOffsets(token, self.member_id, self.generation, positions))
        self._answer_commits()

    def _may_commit(self) -> bool:
        """Whether a requested commit may be sent in this state."""
        return self.state in COMMIT_STATES

    def _obstacle(self, tp: TopicPartition, _: int) -> str | None:
        """See ``CommitQueue.next``."""
        return None if tp in self.held else "not owned by this member"

    def _commit_answered(self, event: Any) -> None:
        if not isinstance(event, events.OffsetsCommitted | events.RequestFailed):
            self.stale_answers += 1
            return
        codes = codes_of(event, self._commits.left)
        self._note_stored(codes, self._commits.sent)
        what, code = self._worst(codes.values())
        if what in (Reaction.LOST, Reaction.EXPELLED) and self._is_joining():
            # The group may have completed the rebalance that this member is joining. The answer to
            # JoinGroup decides; a commit of the partitions that the member keeps follows it.
            self._stale = self._committed_in
            self._commits.settle(again=codes)
            return
        again = set[TopicPartition]()
        if self._commits.attempts < self.spec.commit_attempts:
            again = {
                tp for tp, n in codes.items() if self._reaction(Request.COMMIT, n) in SENT_AGAIN
            }
        faults = {tp: code for tp, code in codes.items() if code and tp not in again}
        self._commits.settle([f"{tp}: {name_of(code)}" for tp, code in faults.items()], again)
        self._lookup.unproved = self._lookup.unproved and what is Reaction.FIND_AGAIN
        if what is Reaction.FIND_AGAIN:
            self._coordinator_lost()
        elif what in (Reaction.RETRY, Reaction.AFTER_HEARTBEAT):
            self._commits.paused = True
            self._timer("commit", self.spec.backoff)
            if what is Reaction.AFTER_HEARTBEAT:
                self._send_heartbeat()
        elif what in (Reaction.LOST, Reaction.EXPELLED):
            self._lose(what is Reaction.EXPELLED)
        elif what is Reaction.FATAL:
            self._fail(code, name_of(code))

    def _note_stored(
        self, codes: Mapping[TopicPartition, int], sent: Mapping[TopicPartition, int]
    ) -> None:
        self._commits.stored.update({tp: sent[tp] for tp, code in codes.items() if not code})

    # -- the end -----------------------------------------------------------------------------------

    def _close_requested(self, event: CloseRequested) -> None:
        if self.closing:
            return
        self.closing, self._in_listener = True, event.in_listener
        in_call = self.state in (State.NOTIFYING_RELEASE, State.NOTIFYING_LOST)
        if self._in_listener and in_call and self._awaited is not None:
            self._answer(self._awaited, ListenerDone(self._awaited))
            return
        if self._releasing.partitions:
            if "release" in self._timers:
                self._limit_release()
            return  # it continues when these partitions are released
        if self.state in (State.NOTIFYING_LOST, State.LEAVING):
            return
        self._finish_closing()

    def _finish_closing(self) -> None:
        if self.held:
            self._release(frozenset(self.held), Purpose.CLOSE)
        elif self._lookup.known and self._may_leave():
            self._leave()
        else:
            self._close()

    def _left(self, event: events.Left | events.RequestFailed) -> None:
        if self._releasing.partitions:
            self._announce_loss()
        else:
            self._after_loss()

    def _close(self) -> None:
        self.state, self._awaited, self.generation = State.CLOSED, None, -1
        self._refuse_commits("the connector is shut down")
        self._emit(Close(tuple(self._faults)))

    def _fail(self, code: int, text: str) -> None:
        self._drop_all()
        self._releasing = Release()
        self.state, self._awaited, self.generation = State.FAILED, None, -1
        self._commits.refuse(text)
        self._emit(Fail(code, text))
        if self.closing:
            self._close()

    # -- which event is legal where --------------------------------------------------------------

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        events.Started: _start,
        events.PollExpired: _poll_expired,
        events.PollResumed: _poll_resumed,
        TimerFired: _timer_fired,
        Dropped: _dropped,
        CommitRequested: _commit_requested,
        CommitAbandoned: Machine._commit_abandoned,
        CloseRequested: _close_requested,
    }
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        State.FINDING: {events.CoordinatorFound: _found, events.RequestFailed: _find_failed},
        State.STOPPING: {FetchingStopped: _stopped},
        State.COMMITTING: {
            events.OffsetsCommitted: _release_committed,
            events.RequestFailed: _release_committed,
        },
        State.NOTIFYING_RELEASE: {ListenerDone: _release_announced},
        State.FETCHING_OFFSETS: {
            events.OffsetsFetched: _offsets_fetched,
            events.RequestFailed: _offsets_failed,
        },
        State.NOTIFYING_START: {ListenerDone: _start_announced},
        State.STARTING: {FetchingStarted: _fetching},
        State.NOTIFYING_LOST: {ListenerDone: _loss_announced},
        State.LEAVING: {events.Left: _left, events.RequestFailed: _left},
    }
