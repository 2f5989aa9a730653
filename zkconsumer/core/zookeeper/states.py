"""The machine's states and their legal events, as data from which the docs are generated."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The states of a member. The value describes what the member does or waits for."""

    NEW = "no session yet"
    SESSIONLESS = "the session is lost; waiting for a new one"
    REGISTERING = "creating the registration"
    VIEWING = "reading the group"
    CHECKING = "comparing owner znodes with the session"
    STOPPING = "stopping fetchers and clearing queues"
    COMMITTING = "committing the offsets of partitions that will be released"
    NOTIFYING_RELEASE = "calling the listener before the release"
    RELEASING = "deleting owner znodes"
    REVIEWING = "reading the group after the release (scala)"
    CLAIMING = "creating owner znodes and reading offsets"
    NOTIFYING_START = "calling the listener before fetching"
    STARTING = "starting fetchers"
    WATCHING = "setting watches on owner znodes that block a claim"
    RESTING = "no rebalance is in progress"
    BACKING_OFF = "waiting after a failed attempt"
    FAILED = "all attempts failed; owns nothing until the next change (scala)"
    CLOSING_STOP = "leaving: stopping fetchers"
    CLOSING_COMMIT = "leaving: last commit"
    CLOSING_RELEASE = "leaving: deleting owner znodes"
    CLOSING_DEREGISTER = "leaving: deleting the registration"
    CLOSED = "left the group"


#: States in which a trigger may start the next attempt.
IDLE = frozenset({State.RESTING, State.FAILED})
#: States in which a commit that was asked for may run during the rebalance.
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
