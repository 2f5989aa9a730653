"""The machine's states and which fact is legal where: data, from which the docs are generated."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from zkconsumer.core import facts
from zkconsumer.core.facts import Fact


class State(Enum):
    """Where a member stands. The value is what it is doing or waiting for."""

    NEW = "no session yet"
    SESSIONLESS = "the session is lost; waiting for the next"
    REGISTERING = "creating the registration"
    VIEWING = "reading the group"
    CHECKING = "comparing owner znodes with the session"
    STOPPING = "stopping fetchers and clearing queues"
    COMMITTING = "committing what is about to be released"
    NOTIFYING_RELEASE = "in the listener, before the release"
    RELEASING = "deleting owner znodes"
    REVIEWING = "reading the group after the release (scala)"
    CLAIMING = "creating owner znodes and reading offsets"
    NOTIFYING_START = "in the listener, before fetching"
    STARTING = "starting fetchers"
    WATCHING = "watching owner znodes that stand in the way"
    RESTING = "the rebalance is done"
    BACKING_OFF = "waiting after a failed attempt"
    FAILED = "attempts used up; owns nothing until the next change (scala)"
    CLOSING_STOP = "leaving: stopping fetchers"
    CLOSING_COMMIT = "leaving: last commit"
    CLOSING_RELEASE = "leaving: deleting owner znodes"
    CLOSING_DEREGISTER = "leaving: deleting the registration"
    CLOSED = "left the group"


#: Which answers each state waits for, and the method that handles them. ``ScriptFailed`` with the
#: awaited token is handled in every one of these states.
ANSWERS: Mapping[State, Mapping[type[Fact], str]] = {
    State.REGISTERING: {
        facts.Registered: "_registered",
        facts.RegistrationRefused: "_registration_refused",
    },
    State.VIEWING: {facts.ViewLoaded: "_view_loaded"},
    State.CHECKING: {facts.OwnersChecked: "_owners_checked"},
    State.STOPPING: {facts.FetchingStopped: "_fetching_stopped"},
    State.COMMITTING: {facts.Committed: "_committed_before_release"},
    State.NOTIFYING_RELEASE: {facts.ListenerDone: "_release_announced"},
    State.RELEASING: {facts.Released: "_released"},
    State.REVIEWING: {facts.ViewLoaded: "_reviewed"},
    State.CLAIMING: {facts.Claimed: "_claimed"},
    State.NOTIFYING_START: {facts.ListenerDone: "_start_announced"},
    State.STARTING: {facts.FetchingStarted: "_started"},
    State.WATCHING: {facts.BlockersWatched: "_blockers_watched"},
    State.CLOSING_STOP: {facts.FetchingStopped: "_closing_stopped"},
    State.CLOSING_COMMIT: {facts.Committed: "_closing_committed"},
    State.CLOSING_RELEASE: {facts.Released: "_closing_released"},
    State.CLOSING_DEREGISTER: {facts.Deregistered: "_closing_deregistered"},
}

#: Facts that answer nothing; legal in every state but ``CLOSED``.
ANYWHERE: Mapping[type[Fact], str] = {
    facts.SessionOpened: "_session_opened",
    facts.SessionResumed: "_session_resumed",
    facts.SessionLost: "_session_lost",
    facts.Changed: "_changed",
    facts.TimerFired: "_timer_fired",
    facts.Dropped: "_dropped",
    facts.OffsetReset: "_offset_reset",
    facts.CommitRequested: "_commit_requested",
    facts.CloseRequested: "_close_requested",
    facts.BrokersLoaded: "_brokers_loaded",
}

#: States in which a trigger may start the next attempt.
IDLE = frozenset({State.RESTING, State.FAILED})
#: States in which a commit that was asked for may run beside the rebalance.
COMMIT_STATES = frozenset(State) - {
    State.NEW,
    State.SESSIONLESS,
    State.REGISTERING,
    State.COMMITTING,
    State.RELEASING,
    State.CLOSING_STOP,
    State.CLOSING_COMMIT,
    State.CLOSING_RELEASE,
    State.CLOSING_DEREGISTER,
    State.CLOSED,
}
#: States of no member, in which no rebalance is under way.
OUTSIDE = frozenset({State.NEW, State.SESSIONLESS})
CLOSING = frozenset(
    {
        State.CLOSING_STOP,
        State.CLOSING_COMMIT,
        State.CLOSING_RELEASE,
        State.CLOSING_DEREGISTER,
        State.CLOSED,
    }
)
