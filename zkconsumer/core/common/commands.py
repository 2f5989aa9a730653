"""Commands: the output of a member's machine, in ZooKeeper and in Kafka.

A command with a ``token`` is answered by exactly one event that repeats it, unless the session or
the membership ends first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition


@dataclass(frozen=True, slots=True)
class SetBrokers:
    """Pass the current brokers to the leader finder. No answer."""

    brokers: tuple[BrokerEndpoint, ...]


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Stop fetchers, clear queues, wait for unacknowledged messages. Answer:
    ``FetchingStopped``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop partitions immediately, because they are no longer owned. Answer: ``Dropped``, without a
    token."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class NotifyReleasing:
    """Call the listener before partitions are released. Answer: ``ListenerDone``.

    ``leaving``: the member leaves the group. The JVM does not call its listener in this case.
    """

    token: int
    partitions: frozenset[TopicPartition]
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class NotifyLost:
    """Call the listener with the lost partitions. Answer: ``ListenerDone``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the positions of stopped and released partitions. No answer."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class NotifyStarting:
    """Call the listener's ``before_starting_fetchers``. Answer: ``ListenerDone``."""

    token: int
    assignment: Mapping[TopicPartition, ConsumerThreadId]


@dataclass(frozen=True, slots=True)
class StartFetching:
    """Fetch and deliver each partition from its offset (``None``: by ``auto.offset.reset``).

    Answer: ``FetchingStarted``.
    """

    token: int
    partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send ``TimerFired`` after ``seconds``, plus up to ``jitter`` random seconds."""

    token: int
    name: str
    seconds: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerCommit:
    """Answer the caller of a commit. ``faults`` is empty if all offsets are stored."""

    request: int
    faults: tuple[str, ...]


class Outcome(Enum):
    """The result of the first rebalance."""

    SETTLED = "settled"
    REBALANCE_FAILED = "rebalance failed"
    DUPLICATE_ID = "duplicate consumer id"
    REFUSED = "refused by ZooKeeper"
    FOREIGN_MEMBER = "a member of another library"
    UNUSABLE = "the member's registration cannot be used"


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """Report the result of the first rebalance. Sent once."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Log a message for operators. ``event`` is a fixed name, counted in the metrics."""

    event: str
    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End the membership after an error. ``code``: an error code of the protocol. ``text``: one
    line of explanation. No answer."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Close:
    """Close the member, which has left or can no longer leave. ``faults``: the errors."""

    faults: tuple[str, ...] = ()


CommonCommand = (
    SetBrokers
    | StopFetching
    | Drop
    | NotifyReleasing
    | NotifyLost
    | Forget
    | NotifyStarting
    | StartFetching
    | SetTimer
    | AnswerCommit
    | AnswerStart
    | Report
    | Fail
    | Close
)
