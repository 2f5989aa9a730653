"""The states of a ZooKeeper group's member, and its data. Fields that change together are grouped.

No rebalance logic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.events import Claim


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
_NO_COMMIT = OUTSIDE | CLOSING | {State.REGISTERING, State.COMMITTING, State.RELEASING}
#: States in which a commit that was asked for may run during the rebalance.
COMMIT_STATES = frozenset(State) - _NO_COMMIT


@dataclass(frozen=True, slots=True)
class Remembered:
    """The position and the claim of a partition when it was stopped or lost.

    ``sent`` is the offset of a commit that was in flight when the session was lost.
    """

    position: int
    claim: Claim
    sent: int | None = None


@dataclass(slots=True)
class Registration:
    """The session and its registration.

    ``session`` is ``None`` between sessions, ``number`` counts them. ``confirmed``: as far as
    known, the registration belongs to this session. ``refusals``: number of consecutive refusals
    because of another session's registration.
    """

    session: int | None = None
    number: int = 0
    confirmed: bool = False
    refusals: int = 0


@dataclass(slots=True)
class Triggers:
    """Work to do as soon as the member is idle. Triggers are flags, so that they coalesce.

    ``group``: read the group again. ``zxid``: zxid of the first watch event that caused this;
    ``None`` if the cause was another event, or if ZooKeeper sent no zxid. ``claims``: try again to
    claim partitions that other members owned. ``owners``: compare the owner znodes in the next
    pass.
    """

    group: bool = False
    zxid: int | None = None
    claims: bool = False
    owners: bool = False


@dataclass(slots=True)
class Brokers:
    """The ``known`` brokers, the ``token`` of a read in progress, and whether the list of brokers
    has ``changed`` since the current view was requested."""

    known: tuple[BrokerEndpoint, ...] | None = None
    token: int | None = None
    changed: bool = False


@dataclass(slots=True)
class Release:
    """Partitions that were stopped for a release, and their final positions.

    ``unwanted``: claims with unknown outcome that are released together with them.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unwanted: frozenset[TopicPartition] = frozenset()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Closing:
    """Whether the member is leaving. ``wanted``: leave as soon as fetching has stopped.
    ``faults``: errors while leaving."""

    wanted: bool = False
    faults: list[str] = field(default_factory=list)
