"""What to do. Every output of the machine is one of these; the driver carries them out.

Orders with a ``token`` are answered by exactly one fact that repeats it, unless the session ends
first. The ZooKeeper part of an order is a script (``zkconsumer.core.scripts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zkconsumer.core.facts import Claim
from zkconsumer.core.known import NOTHING, Known
from zkconsumer.core.types import BrokerEndpoint, ConsumerThreadId, TopicPartition


@dataclass(frozen=True, slots=True)
class Register:
    """Create the registration znode. Answer: ``Registered`` or ``RegistrationRefused``.

    ``epoch`` is the data version it must reach: the number of earlier sessions of this member. It
    lets a multi check that the session which made a decision is still the one that acts.
    """

    token: int
    epoch: int


class Scope(Enum):
    """How much ``LoadView`` reads: the legacy order reads twice, before and after the release."""

    ALL = "everything"
    OWN = "own registration and brokers"
    GROUP = "members and topics"


@dataclass(frozen=True, slots=True)
class LoadView:
    """Read the group and arm the watches. Answer: ``ViewLoaded``.

    ``epoch`` is the version the own registration has unless somebody else wrote to it. What is
    ``known`` is not read again.
    """

    token: int
    scope: Scope = Scope.ALL
    epoch: int = 0
    known: Known = NOTHING


@dataclass(frozen=True, slots=True)
class LoadBrokers:
    """Read the brokers and watch their list. Answer: ``BrokersLoaded``."""

    token: int


@dataclass(frozen=True, slots=True)
class SetBrokers:
    """Tell the leader finder which brokers there are. No answer."""

    brokers: tuple[BrokerEndpoint, ...]


@dataclass(frozen=True, slots=True)
class CheckOwners:
    """Find out which held partitions have lost their owner znode. Answer: ``OwnersChecked``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Stop fetchers, clear queues, wait for messages in hand. Answer: ``FetchingStopped``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Drop:
    """Take partitions away at once: they are not owned any more. Answer: ``Dropped``, no token."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class NotifyReleasing:
    """Call the listener before partitions are released. Answer: ``ListenerDone``.

    ``leaving``: the member leaves the group; the JVM's listener is not called then.
    """

    token: int
    partitions: frozenset[TopicPartition]
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class NotifyLost:
    """Tell the listener that partitions were taken away unasked. Answer: ``ListenerDone``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Forget:
    """Stopped partitions are released: their positions are of no use any more. No answer."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class NotifyStarting:
    """Call the listener's ``before_starting_fetchers``. Answer: ``ListenerDone``."""

    token: int
    assignment: Mapping[TopicPartition, ConsumerThreadId]


@dataclass(frozen=True, slots=True)
class Commit:
    """Store ``positions`` of held partitions. Answer: ``Committed``."""

    token: int
    epoch: int
    positions: Mapping[TopicPartition, int]
    claims: Mapping[TopicPartition, Claim]


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the owner znodes of ``claims``. Answer: ``Released``."""

    token: int
    epoch: int
    claims: Mapping[TopicPartition, Claim]


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Create owner znodes and read offsets, fenced. Answer: ``Claimed``."""

    token: int
    epoch: int
    wanted: Mapping[TopicPartition, ConsumerThreadId]


@dataclass(frozen=True, slots=True)
class WatchBlockers:
    """Watch owner znodes that stand in the way. Answer: ``BlockersWatched``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class StartFetching:
    """Fetch and deliver; each partition from its offset (``None``: by ``auto.offset.reset``).

    Answer: ``FetchingStarted``.
    """

    token: int
    partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send ``TimerFired`` after ``seconds``, plus up to ``jitter`` seconds drawn by the driver."""

    token: int
    name: str
    seconds: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Deregister:
    """Delete the own registration znode. Answer: ``Deregistered``."""

    token: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AnswerCommit:
    """Tell the one who asked: ``faults`` is empty when all offsets are stored."""

    request: int
    faults: tuple[str, ...]


class Outcome(Enum):
    """How the first rebalance ended."""

    SETTLED = "settled"
    REBALANCE_FAILED = "rebalance failed"
    DUPLICATE_ID = "duplicate consumer id"
    REFUSED = "refused by ZooKeeper"


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """The first rebalance is over; given once."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Something an operator wants to know. ``event`` is a fixed name, counted in the metrics."""

    event: str
    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The member cannot continue: ``code`` of the protocol and one line for people. No answer."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """The member has left (or cannot any more). ``faults``: what went wrong."""

    faults: tuple[str, ...] = ()


Order = (
    Register
    | LoadView
    | LoadBrokers
    | SetBrokers
    | CheckOwners
    | StopFetching
    | Drop
    | NotifyReleasing
    | NotifyStarting
    | Commit
    | Release
    | ClaimPartitions
    | WatchBlockers
    | StartFetching
    | SetTimer
    | Deregister
    | AnswerCommit
    | AnswerStart
    | Report
    | Close
)
