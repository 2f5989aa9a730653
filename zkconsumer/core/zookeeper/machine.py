"""RebalanceMachine: holds the state of a member's rebalance, which only this machine changes.

Events in, commands out. One thread owns a machine; watches, timers, sessions and users only post
events to that thread's mailbox. The rules of every ``Machine`` apply. Because of the tokens, a late
``FetchingStopped`` from an earlier session cannot answer the stop of the next one. Two more rules:

1. ``SessionLost`` is legal everywhere; it drops all partitions without a commit and remembers their
   positions, so that a claim which finds the stored offset unchanged continues from there. (The JVM
   only forgets what it owns: its fetchers and streams continue until the next attempt.)
2. Triggers coalesce to one flag and are never lost.

There are two profiles. The default one reads the group, then releases only what it loses:

    view -> stop fetchers, clear queues -> commit -> listener -> release -> claim -> listener
         -> start fetchers; other members' partitions are watched, and claimed once released

The ``scala`` profile is the JVM's (Scala 1.1.1 ``ZKRebalancerListener``): everything is released
first, then the group is read, one conflict undoes the attempt, and after ``rebalance.max.retries``
attempts the member stays registered and owns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from zkconsumer.core.common.commands import (
    AnswerStart,
    Close,
    Drop,
    NotifyReleasing,
    NotifyStarting,
    Outcome,
    Report,
    SetBrokers,
    StartFetching,
    StopFetching,
)
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
from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Scope
from zkconsumer.core.zookeeper.committing import (
    ClaimRule,
    Committing,
    GroupRule,
    consumer_of,
)
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.known import NOTHING, Knowledge
from zkconsumer.core.zookeeper.ops import Code, session_text
from zkconsumer.core.zookeeper.states import (
    CLOSING,
    IDLE,
    Brokers,
    Closing,
    Release,
    State,
    Triggers,
)
from zkconsumer.core.zookeeper.view import Decision, MemberSpec
from zkconsumer.core.zookeeper.znodes import BROKER_IDS

#: Seconds between attempts to register while another session holds the consumer id.
REGISTER_RETRY = 0.5


class RebalanceMachine(Committing):
    """The state machine of one member in ZooKeeper. ``on(event)`` returns the commands, in order.

    ``rule`` decides which partitions the member claims; without it, the group's assignment does.

    The owner thread may read at any time: ``state``, ``held`` (claims by partition), ``fetching``
    (partitions being delivered), ``blocked`` (partitions that others own, with the owner's text),
    ``blockers`` (their sessions), ``view`` (the last one), ``quarantined`` (registrations left
    out: path and reason), ``obstacle`` (why nothing can be assigned to this member, or empty),
    ``decision``, ``attempts``, ``failed_attempts``, ``stale_answers``.
    """

    def __init__(self, spec: MemberSpec, rule: ClaimRule | None = None) -> None:
        super().__init__(spec, GroupRule(spec) if rule is None else rule)
        self.decision = Decision({}, {})
        self.attempts = 0
        self.failed_attempts = 0
        self._brokers = Brokers()
        self._due = Triggers()
        self._attempt = 0
        self._cause: int | None = None
        #: Whether the first view is requested together with the registration. ZooKeeper carries out
        #: its reads after that. (Other rules need several round trips to register.)
        self.reads_early = rule is None and self.profile.recovers
        #: The token of the view that was requested together with the registration.
        self._early: int | None = None
        self._releasing = Release()
        self._closing = Closing()
        #: What a lost session held, with the offset of a commit that was under way.
        self._lost: dict[TopicPartition, tuple[Claim, int | None]] = {}
        self._knowledge = Knowledge(spec.consumer_id)
        self._start_answered = False

    @property
    def registered(self) -> bool:
        """Whether the current session is known to have registered the member."""
        return self._registration.confirmed

    @property
    def closing(self) -> bool:
        """Whether the member is leaving its group."""
        return self._closing.wanted or self.state in CLOSING

    # -- session -------------------------------------------------------------------------------

    def _session_opened(self, event: events.SessionOpened) -> None:
        if self.state not in (State.NEW, State.SESSIONLESS):
            return
        self._registration.session = event.session_id
        self._registration.number += 1
        self._registration.refusals = 0
        self._register()

    def _session_resumed(self, _event: events.SessionResumed) -> None:
        if self._registration.session is not None:
            self._knowledge.reconnected()
            self._doubt_claims()
            self._due.owners = True
            self._pull_trigger()

    def _session_lost(self, _event: events.SessionLost) -> None:
        if self._registration.session is None:
            return
        self._registration.session = None
        self._registration.confirmed = False
        self._awaited = None
        self._after_commit = None
        sent = self._commits.sent
        self._refuse_commits("the ZooKeeper session was lost")
        if self.state in CLOSING or self._closing.wanted:
            self._closing.faults.append("the ZooKeeper session was lost before the last commit")
            self._close()
            return
        if self.held and not self.profile.forgets_positions:
            self._lost = {tp: (claim, sent.get(tp)) for tp, claim in self.held.items()}
            self._emit(Drop(frozenset(self.held)))
            self.fetching.clear()
        self._forget_claims()
        self.blocked.clear()
        self._releasing.partitions = frozenset()
        self._timers.clear()
        self._knowledge.forget()
        self._brokers.token = None
        self._due = Triggers(owners=self._due.owners)
        self.state = State.SESSIONLESS

    def _dropped(self, event: Dropped) -> None:
        for tp, position in event.positions.items():
            if tp in self._lost:
                self._remember(tp, position, *self._lost.pop(tp))

    def _register(self) -> None:
        self._registration.confirmed = False
        token = self._await(State.REGISTERING)
        self._emit(commands.Register(token, self.registered_epoch))
        self._early = None
        if self.reads_early and not self._registration.refusals:
            self._early, self._cause = self._next_token(), self._due.zxid
            self._load_view(self._early)

    def _register_again(self) -> None:
        """Register again. The current rebalance restarts with its earlier cause."""
        self._due.group, self._due.zxid = True, self._cause
        self._register()

    def _registered(self, _event: events.Registered) -> None:
        self._registration.confirmed = True
        if self.profile.rereads:
            self._timer("reread", self.spec.reread, self.spec.reread / 10)
        if self._early is None:
            self._begin_attempts()
        else:
            self.state, self._awaited = State.VIEWING, self._early
            self.attempts += 1
            self._collect_changes()

    def _registration_refused(self, event: events.RegistrationRefused) -> None:
        self._registration.refusals += 1
        wait = self.profile.takeover_wait(self.spec.session_timeout)
        if self._registration.refusals * REGISTER_RETRY > wait:
            text = (
                f"{self.spec.paths.member(self.spec.consumer_id)} is registered by another live "
                f"session ({session_text(event.owner)}); give each member its own "
                "consumer.id, or leave the key out"
            )
            self._answer_start(Outcome.DUPLICATE_ID, text)
            self._emit(Report("duplicate-id", text))
            self._registration.refusals = 0
        self._timer("register", REGISTER_RETRY)

    # -- triggers and timers -------------------------------------------------------------------

    def _answered_otherwise(self, token: int, event: events.Event) -> bool:
        if self.state is not State.REGISTERING or token != self._early:
            return False
        self._early = None  # it was read before the registration was known to exist
        return True

    def _changed(self, event: events.Changed) -> None:
        if self._registration.session is None or self.state in CLOSING:
            return
        self._knowledge.invalidate(event.path)
        if event.path.startswith(self.spec.paths.owners + "/"):
            self._due.claims = True
            if self.state is State.RESTING:
                self._claim_rest()
        elif event.path == BROKER_IDS:
            self._load_brokers()
        else:
            # DEVIATION-25: the JVM keeps partitions of a static topic that is deleted.
            self._pull_trigger(event.zxid)

    def _load_brokers(self) -> None:
        self._brokers.changed = True
        self._brokers.token = self._next_token()
        self._emit(commands.LoadBrokers(self._brokers.token))

    def _brokers_loaded(self, event: events.BrokersLoaded) -> None:
        if event.token != self._brokers.token:
            self.stale_answers += 1
            return
        self._brokers.token = None
        # The view may have been read while there were none, before their absence was noted here.
        had_none = not self._brokers.known or (self.view is not None and not self.view.brokers)
        self._set_brokers(event.brokers)
        if had_none and event.brokers:
            self._pull_trigger()

    def _set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        if brokers != self._brokers.known:
            self._brokers.known = brokers
            self._emit(SetBrokers(brokers))

    def _pull_trigger(self, zxid: int | None = None) -> None:
        if not self._due.group:
            self._due.group, self._due.zxid = True, zxid
        if self.state in IDLE:
            self._schedule_attempt()

    def _schedule_attempt(self) -> None:
        """Start an attempt now or, right after the last one, later with further changes."""
        if "coalesce" not in self._timers:
            self._timer("coalesce", 0.0)

    def _collect_changes(self) -> None:
        """Delay the next attempt briefly. Changes that arrive until then cause one attempt."""
        if wait := self.profile.coalesce(self.spec.coalesce):
            self._timer("coalesce", wait, wait)

    def _timer_fired(self, event: TimerFired) -> None:
        if self._timers.get(event.name) != event.token:
            return
        del self._timers[event.name]
        if event.name == "coalesce" and self.state in IDLE and self._due.group:
            self._begin_attempts()
        elif event.name == "backoff" and self.state is State.BACKING_OFF:
            self._view()
        elif event.name == "blocked":
            self._due.claims = True
            if self.state is State.RESTING:
                self._claim_rest()
        elif event.name == "register" and self.state is State.REGISTERING:
            self._register()
        elif event.name == "reread":
            self._timer("reread", self.spec.reread, self.spec.reread / 10)
            self._knowledge.force_refresh()
            self._due.owners = True
            self._pull_trigger()

    # -- one attempt ---------------------------------------------------------------------------

    def _begin_attempts(self) -> None:
        self._attempt, self._cause = 0, self._due.zxid
        self._collect_changes()
        self._view()

    def _view(self) -> None:
        self._attempt += 1
        self.attempts += 1
        self._load_view(self._await(State.VIEWING))

    def _load_view(self, token: int) -> None:
        if self.profile.recovers or self._attempt == 1:
            self._due.group, self._due.zxid = False, None
        self._due.claims = False
        self._brokers.changed = False
        scope = Scope.OWN if self.profile.releases_first else Scope.ALL
        known = NOTHING if self.profile.reads_everything else self._knowledge.ask()
        self._emit(commands.LoadView(token, scope, self.registered_epoch, known, self._cause))

    def _view_loaded(self, event: events.ViewLoaded) -> None:
        self.view = view = event.view
        self._knowledge.learned(event.known)
        if event.token == self._early and (self._due.group or not view.registered):
            # Others register too, or a lost connection has reversed the order: it does not count.
            self.state, self.attempts = State.RESTING, self.attempts - 1
            self._due.group, self._due.zxid = True, self._cause or self._due.zxid
            self._schedule_attempt()
            return
        if not view.registered:
            if self.profile.recovers:
                self._emit(Report("registration-gone", "the member's registration is missing"))
                self._register_again()
            else:
                self._attempt_failed()
            return
        if self._brokers.changed:
            self._load_brokers()  # the view may have been read before the change
        else:
            self._set_brokers(view.brokers)
        self._report_faults(view)
        own = self.spec.paths.member(self.spec.consumer_id)
        if view.foreign and not self._start_answered:
            reason = view.quarantined[min(view.foreign)]
            self._answer_start(Outcome.FOREIGN_MEMBER, reason)
            self._settle()
        elif own in view.quarantined and not self._start_answered:
            self._answer_start(Outcome.UNUSABLE, view.quarantined[own])
            self._settle()
        elif not view.brokers:
            self._settle()
        elif self.profile.releases_first:
            self._stop(frozenset(self.held) | self.fetching)
        else:
            self.decision = self._rule.decide(view, self.held)
            if (self._due.owners and self.held) or self._suspected:
                token = self._await(State.CHECKING)
                checked = frozenset((*self.held, *self._suspected))
                self._emit(commands.CheckOwners(token, checked))
            else:
                self._stop_what_is_lost()

    def _owners_checked(self, event: events.OwnersChecked) -> None:
        self._due.owners = event.token <= self._doubted
        self._owners_known(event.token, event.foreign)
        self._stop_what_is_lost()

    def _stop_what_is_lost(self) -> None:
        mine = self.decision.mine
        lost = {tp for tp, claim in self.held.items() if mine.get(tp) != claim.thread}
        if lost:
            self._stop(frozenset(lost))
        elif self._unwanted_claims(mine):
            self._when_no_commit_runs(self._release)
        else:
            self._claim()

    def _stop(self, partitions: frozenset[TopicPartition]) -> None:
        self._releasing.partitions = partitions
        token = self._await(State.STOPPING)
        self._emit(StopFetching(token, partitions))

    def _fetching_stopped(self, event: FetchingStopped) -> None:
        self.fetching -= self._releasing.partitions
        positions = {tp: at for tp, at in event.positions.items() if tp in self.held}
        if self._closing.wanted or not self.profile.forgets_positions:
            for tp, position in positions.items():
                self._remember(tp, position, self.held[tp])
        # Those stopped by an attempt that failed are not among the answer's.
        self._releasing.positions = {**self._resumed(self._releasing.partitions), **positions}
        if self._closing.wanted:
            self._close_requested(CloseRequested())
        elif self.spec.auto_commit and self._releasing.positions:
            self._when_no_commit_runs(self._commit_before_release)
        else:
            self._announce_release()

    def _commit_before_release(self) -> None:
        token = self._await(State.COMMITTING)
        claims = {tp: self.held[tp] for tp in self._releasing.positions if tp in self.held}
        positions = {tp: self._releasing.positions[tp] for tp in claims}
        self._commits.stopped(positions)
        self._emit(commands.Commit(token, self.registered_epoch, positions, claims))

    def _committed_before_release(self, event: events.Committed) -> None:
        self._note_committed(event)
        if self._closing.wanted:
            self._close_requested(CloseRequested())
        else:
            self._announce_release()

    def _announce_release(self) -> None:
        token = self._await(State.NOTIFYING_RELEASE)
        self._emit(NotifyReleasing(token, self._releasing.partitions & self.held.keys()))

    def _release_announced(self, event: ListenerDone) -> None:
        if self._listener_failed(event):
            return
        self._when_no_commit_runs(self._release)

    def _release(self) -> None:
        token = self._await(State.RELEASING)
        claims = {tp: self.held[tp] for tp in self._releasing.partitions if tp in self.held}
        unwanted = self._unwanted_claims(self.decision.mine)
        self._releasing.unwanted = frozenset(unwanted)
        self._emit_release(token, unwanted | claims)

    def _released(self, event: events.Released) -> None:
        if event.unregistered:
            self._register_again()
            return
        for tp in self._releasing.partitions:
            self.held.pop(tp, None)
            self._remembered.pop(tp, None)
        for tp in self._releasing.unwanted:
            self._unknown_claims.pop(tp, None)
        self._releasing.partitions = frozenset()
        if self.profile.releases_first:
            token = self._await(State.REVIEWING)
            epoch, cause = self.registered_epoch, self._cause
            self._emit(commands.LoadView(token, Scope.GROUP, epoch, zxid=cause))
        else:
            self._claim()

    def _reviewed(self, event: events.ViewLoaded) -> None:
        # This second view has the group only; without its brokers the next change of any broker
        # would look like that of the first one, which alone calls for a rebalance.
        assert self.view is not None
        self.view = replace(event.view, brokers=self.view.brokers)
        self.decision = self._rule.decide(event.view, self.held)
        if self.spec.consumer_id in event.view.members:
            self._claim()
        else:
            self._attempt_failed()

    def _claim(self) -> None:
        self.blocked = {}
        wanted = {tp: thread for tp, thread in self.decision.mine.items() if tp not in self.held}
        if not wanted:
            self._start()
            return
        if self.profile.cleans_up:
            self._unknown_claims.update(wanted)
        token = self._await(State.CLAIMING)
        self._emit(commands.ClaimPartitions(token, self.registered_epoch, wanted))

    def _claim_rest(self) -> None:
        """Claim the blocked partitions again, without reading the group again."""
        self._due.claims = False
        if self.blocked:
            self._claim()

    def _claimed(self, event: events.Claimed) -> None:
        for tp, claim in event.claims.items():
            self._hold(tp, claim, event.token, 1)
            self._note_stored(tp, self.held[tp])
        self.blocked, self.blockers = dict(event.blocked), event.sessions
        self._report_blocked()
        for tp in (*event.claims, *event.blocked):
            self._unknown_claims.pop(tp, None)
        self._release_forbidden()
        for reason in event.broken.values():
            self._emit(Report("broken-offset", reason))
        for tp in sorted(event.outdated):
            text = (
                f"{self.spec.paths.offset(tp)}: was stored before topic {tp.topic} was created, so "
                "it is an offset of an earlier topic of that name: messages may be skipped; "
                "correct it with zkconsumer offsets, or delete it"
            )
            self._emit(Report("outdated-offset", text))
        if event.unregistered:
            self._register_again()
        elif self.blocked and not self.profile.recovers:
            self._attempt_failed()
        else:
            self._start()

    def _release_forbidden(self) -> None:
        """Stop holding partitions that the rules forbid. The next attempt releases them."""
        forbidden = [tp for tp in self.held.keys() - self.fetching if not self._rule.may_claim(tp)]
        if forbidden:
            self._disown(forbidden)
            self._due.group = True

    def _start(self) -> None:
        if self.profile.releases_first or self.held.keys() - self.fetching:
            token = self._await(State.NOTIFYING_START)
            self._emit(NotifyStarting(token, self.decision.assignment))
        else:
            self._finish()

    def _start_announced(self, event: ListenerDone) -> None:
        if self._listener_failed(event):
            return
        self._release_forbidden()
        new = sorted(self.held.keys() - self.fetching)
        starting = {tp: (self.held[tp].thread, self._start_offset(tp)) for tp in new}
        self.fetching.update(starting)
        token = self._await(State.STARTING)
        self._emit(StartFetching(token, starting))

    def _start_offset(self, tp: TopicPartition) -> int | None:
        position = self._resumed_at(tp)
        self._remembered.pop(tp, None)
        return self.held[tp].committed if position is None else position

    def _listener_failed(self, event: ListenerDone) -> bool:
        """Report a listener that raised. Return whether this fails the attempt."""
        if event.error is None:
            return False
        self._emit(Report("listener-error", event.error))
        if self.profile.needs_listener:
            self._attempt_failed()
        return self.profile.needs_listener

    def _started(self, _event: FetchingStarted) -> None:
        self._finish()

    def _finish(self) -> None:
        if self.blocked:
            # The last one of each blocker: they are released in order, so all are free by then.
            one_each = {consumer_of(text): tp for tp, text in sorted(self.blocked.items())}
            token = self._await(State.WATCHING)
            self._emit(commands.WatchBlockers(token, frozenset(one_each.values())))
        else:
            self._settle()

    def _blockers_watched(self, event: events.BlockersWatched) -> None:
        self._timer("blocked", self.profile.pause(self.spec.backoff), self.spec.backoff / 2)
        self._due.claims = self._due.claims or event.gone
        self._settle()

    def _settle(self) -> None:
        self.state = State.RESTING
        self._attempt = 0
        self._answer_start(Outcome.SETTLED)
        if self._due.group:
            self._collect_changes()  # they arrived during the attempt, so more may follow
            self._schedule_attempt()
        elif self._due.claims:
            self._claim_rest()

    # -- failure -------------------------------------------------------------------------------

    def _script_failed(self, event: events.ScriptFailed) -> None:
        text = event.text
        if event.code is not Code.SESSION_EXPIRED:
            self._emit(Report("refused", text))
        if self.state in CLOSING:
            self._closing.faults.append(text)
            self._close()
            return
        if self.profile.reports_refusals and event.code is not Code.SESSION_EXPIRED:
            self._answer_start(Outcome.REFUSED, text)
        if self._closing.wanted:
            self._close_requested(CloseRequested())
        elif self.state is State.REGISTERING:
            self._timer("register", REGISTER_RETRY)
        else:
            self._attempt_failed()

    def _attempt_failed(self) -> None:
        self.failed_attempts += 1
        if self.profile.gives_up and self._attempt >= self.spec.max_attempts:
            self.state = State.FAILED
            text = f"{self.spec.consumer_id} can't rebalance after {self._attempt} attempts"
            self._emit(Report("rebalance-failed", text))
            self._answer_start(Outcome.REBALANCE_FAILED, text)
            if self._due.group:
                self._schedule_attempt()
            return
        self.state = State.BACKING_OFF
        backoff = self.spec.backoff
        self._timer("backoff", self.profile.pause(backoff), self.profile.jitter(backoff))

    def _answer_start(self, outcome: Outcome, detail: str = "") -> None:
        if not self._start_answered:
            self._start_answered = True
            self._emit(AnswerStart(outcome, detail))

    # -- leaving -------------------------------------------------------------------------------

    def _close_requested(self, _event: CloseRequested) -> None:
        if self.state in CLOSING:
            return
        if self.state in (State.STOPPING, State.COMMITTING) and self._awaited is not None:
            # The positions under way belong into the last commit. A commit under way is awaited: in
            # Kafka it might be stored after the release.
            self._closing.wanted = True
            return
        self._timers.clear()
        self._after_commit = None
        if self._registration.session is None:
            self._close()
            return
        token = self._await(State.CLOSING_STOP)
        self._emit(StopFetching(token, frozenset(self.held) | self.fetching))

    def _closing_stopped(self, event: FetchingStopped) -> None:
        self.fetching.clear()
        self._releasing.positions = {**self._resumed(self.held), **event.positions}
        self._when_no_commit_runs(self._closing_commit)

    def _closing_commit(self) -> None:
        self._refuse_commits("the connector is shutting down")
        if self.spec.auto_commit and self._releasing.positions:
            token = self._await(State.CLOSING_COMMIT)
            claims = {tp: self.held[tp] for tp in self._releasing.positions if tp in self.held}
            positions = {tp: self._releasing.positions[tp] for tp in claims}
            self._emit(commands.Commit(token, self.registered_epoch, positions, claims))
        else:
            self._closing_release()

    def _closing_committed(self, event: events.Committed) -> None:
        self._closing.faults += self._note_committed(event)
        if event.unregistered:
            self._closing.faults.append("this member's registration was missing at the last commit")
        self._closing_release()

    def _closing_release(self) -> None:
        if not self.profile.cleans_up:
            self._close()
            return
        token = self._await(State.CLOSING_RELEASE)
        self._emit_release(token, self._unwanted_claims(()) | self.held)

    def _closing_released(self, _event: events.Released) -> None:
        self.held.clear()
        if not self._registration.confirmed:
            self._close()  # what is registered there may be another live member
            return
        token = self._await(State.CLOSING_DEREGISTER)
        self._emit(commands.Deregister(token, self.registered_epoch))

    def _closing_deregistered(self, _event: events.Deregistered) -> None:
        self._close()

    def _close(self) -> None:
        self._refuse_commits("the connector is shutting down")
        self.state = State.CLOSED
        self.blocked = {}
        self.quarantined = self.doubtful = {}
        self.obstacle = ""
        self._forget_claims()
        self.fetching.clear()
        self._emit(Close(tuple(self._closing.faults)))

    # -- which event is legal where --------------------------------------------------------------

    ANYWHERE: ClassVar[Mapping[type, Handler]] = {
        events.SessionOpened: _session_opened,
        events.SessionResumed: _session_resumed,
        events.SessionLost: _session_lost,
        events.RulesChanged: Committing._rules_changed,
        events.TakenBack: Committing._taken_back,
        events.Changed: _changed,
        TimerFired: _timer_fired,
        Dropped: _dropped,
        events.OffsetReset: Committing._offset_reset,
        CommitRequested: Committing._commit_requested,
        CommitAbandoned: Committing._commit_abandoned,
        CloseRequested: _close_requested,
        events.BrokersLoaded: _brokers_loaded,
    }
    # ``ScriptFailed`` with the awaited token is handled in each of these states.
    ANSWERS: ClassVar[Mapping[State, Mapping[type, Handler]]] = {
        State.REGISTERING: {
            events.Registered: _registered,
            events.RegistrationRefused: _registration_refused,
        },
        State.VIEWING: {events.ViewLoaded: _view_loaded},
        State.CHECKING: {events.OwnersChecked: _owners_checked},
        State.STOPPING: {FetchingStopped: _fetching_stopped},
        State.COMMITTING: {events.Committed: _committed_before_release},
        State.NOTIFYING_RELEASE: {ListenerDone: _release_announced},
        State.RELEASING: {events.Released: _released},
        State.REVIEWING: {events.ViewLoaded: _reviewed},
        State.CLAIMING: {events.Claimed: _claimed},
        State.NOTIFYING_START: {ListenerDone: _start_announced},
        State.STARTING: {FetchingStarted: _started},
        State.WATCHING: {events.BlockersWatched: _blockers_watched},
        State.CLOSING_STOP: {FetchingStopped: _closing_stopped},
        State.CLOSING_COMMIT: {events.Committed: _closing_committed},
        State.CLOSING_RELEASE: {events.Released: _closing_released},
        State.CLOSING_DEREGISTER: {events.Deregistered: _closing_deregistered},
    }
