"""The states of a member on the coordinator and their expected answers, as data."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The states of a member. The value describes what the member does or waits for."""

    NEW = "not started"
    FINDING = "asking a broker for the coordinator"
    BACKING_OFF = "waiting before the next attempt"
    STOPPING = "stopping fetchers and clearing queues"
    COMMITTING = "committing the offsets of partitions that will be released"
    NOTIFYING_RELEASE = "calling the listener before the release"
    LOADING = "reading topics"
    JOINING = "JoinGroup is sent; waiting for the answer"
    LEADING = "as leader: reading the topics of all members"
    SYNCING = "SyncGroup is sent; waiting for the leader's assignment"
    FETCHING_OFFSETS = "reading committed offsets"
    NOTIFYING_START = "calling the listener before fetching"
    STARTING = "starting fetchers"
    STABLE = "a member of the group: fetching and sending heartbeats"
    NOTIFYING_LOST = "calling the listener: partitions were lost"
    LEAVING = "leaving the group"
    OUTSIDE = "left the group after max.poll.interval.ms; waiting for the application"
    FAILED = "failed permanently; the streams raise the error"
    CLOSED = "left the group"


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
#: States in which a member that keeps its partitions while it joins may still commit them.
JOIN_STATES = frozenset({State.LOADING, State.JOINING, State.BACKING_OFF})
#: States that wait for the application or for fetchers, even if the coordinator is lost.
WAITING = frozenset(
    {State.STOPPING, State.NOTIFYING_RELEASE, State.NOTIFYING_START, State.STARTING}
)
#: Between JoinGroup and the assignment.
BETWEEN = frozenset({State.JOINING, State.LEADING, State.SYNCING})
ENDED = frozenset({State.FAILED, State.CLOSED})
