"""The states of a member on the coordinator and which answer is legal where: data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from zkconsumer.core import facts as common
from zkconsumer.core.membership import facts
from zkconsumer.core.membership.facts import MembershipFact


class State(Enum):
    """Where a member stands. The value is what it is doing or waiting for."""

    NEW = "not started"
    FINDING = "asking a broker for the coordinator"
    BACKING_OFF = "waiting before the next attempt"
    STOPPING = "stopping fetchers and clearing queues"
    COMMITTING = "committing what is about to be released"
    NOTIFYING_RELEASE = "in the listener, before the release"
    LOADING = "reading the topics that the subscription means"
    JOINING = "JoinGroup is sent; waiting for all members"
    LEADING = "leader: reading the topics of all members"
    SYNCING = "SyncGroup is sent; waiting for the leader's assignment"
    FETCHING_OFFSETS = "reading committed offsets"
    NOTIFYING_START = "in the listener, before fetching"
    STARTING = "starting fetchers"
    STABLE = "a member that fetches and sends heartbeats"
    NOTIFYING_LOST = "in the listener: partitions were taken away"
    LEAVING = "LeaveGroup is sent"
    OUTSIDE = "left by itself after max.poll.interval.ms; waiting for the application"
    FAILED = "cannot go on"
    CLOSED = "left the group"


#: Which answers each state waits for, and the method that handles them.
ANSWERS: Mapping[State, Mapping[type[MembershipFact], str]] = {
    State.FINDING: {facts.CoordinatorFound: "_found", facts.RequestFailed: "_find_failed"},
    State.STOPPING: {common.FetchingStopped: "_stopped"},
    State.COMMITTING: {
        facts.OffsetsCommitted: "_released_committed",
        facts.RequestFailed: "_release_commit_failed",
    },
    State.NOTIFYING_RELEASE: {common.ListenerDone: "_release_announced"},
    State.LOADING: {facts.TopicsLoaded: "_loaded", facts.RequestFailed: "_load_failed"},
    State.JOINING: {facts.Joined: "_joined", facts.RequestFailed: "_join_failed"},
    State.LEADING: {facts.TopicsLoaded: "_group_loaded", facts.RequestFailed: "_load_failed"},
    State.SYNCING: {facts.Synced: "_synced", facts.RequestFailed: "_sync_failed"},
    State.FETCHING_OFFSETS: {
        facts.OffsetsFetched: "_offsets_fetched",
        facts.RequestFailed: "_offsets_failed",
    },
    State.NOTIFYING_START: {common.ListenerDone: "_start_announced"},
    State.STARTING: {common.FetchingStarted: "_fetching"},
    State.NOTIFYING_LOST: {common.ListenerDone: "_loss_announced"},
    State.LEAVING: {facts.Left: "_left", facts.RequestFailed: "_left"},
}

#: Facts that answer nothing; legal in every state but ``CLOSED``.
ANYWHERE: Mapping[type[MembershipFact], str] = {
    facts.Started: "_start",
    facts.HeartbeatAnswered: "_heartbeat_answered",
    facts.PollExpired: "_poll_expired",
    facts.PollResumed: "_poll_resumed",
    common.TimerFired: "_timer_fired",
    common.Dropped: "_dropped",
    common.CommitRequested: "_commit_requested",
    common.CloseRequested: "_close_requested",
}

#: States in which a commit that was asked for may run: the generation is settled.
COMMIT_STATES = frozenset(
    {
        State.STABLE,
        State.STOPPING,
        State.NOTIFYING_RELEASE,
        State.NOTIFYING_START,
        State.FETCHING_OFFSETS,
        State.STARTING,
    }
)
#: States that wait for the application or for fetchers, whatever becomes of the coordinator.
WAITING = frozenset(
    {State.STOPPING, State.NOTIFYING_RELEASE, State.NOTIFYING_START, State.STARTING}
)
#: Between JoinGroup and the assignment.
BETWEEN = frozenset({State.JOINING, State.LEADING, State.SYNCING})
ENDED = frozenset({State.FAILED, State.CLOSED})
