"""The data of a ZooKeeper group's member, grouped by what changes together. No rebalance logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.events import Claim


@dataclass(frozen=True, slots=True)
class Remembered:
    """The position of a stopped or lost partition, and its claim at that time.

    ``sent`` is the offset of a commit that was in flight when the session was lost.
    """

    position: int
    claim: Claim
    sent: int | None = None


@dataclass(slots=True)
class Registration:
    """The session and its registration.

    ``session`` is ``None`` between sessions, ``number`` counts them. ``confirmed``: as far as is
    known, the registration is this session's. ``refusals``: consecutive refusals by another's.
    """

    session: int | None = None
    number: int = 0
    confirmed: bool = False
    refusals: int = 0


@dataclass(slots=True)
class Triggers:
    """Work to do as soon as the member rests: flags, so that triggers coalesce.

    ``group``: read the group again. ``zxid``: the transaction whose watch event was the first
    reason for that; ``None``: there was another reason, or ZooKeeper did not send it. ``claims``:
    claim again what other members owned. ``owners``: compare the owner znodes in the next pass.
    """

    group: bool = False
    zxid: int | None = None
    claims: bool = False
    owners: bool = False


@dataclass(slots=True)
class Brokers:
    """The ``known`` brokers, the ``token`` of a read in progress, and whether their list has
    ``changed`` since the current view was requested."""

    known: tuple[BrokerEndpoint, ...] | None = None
    token: int | None = None
    changed: bool = False


@dataclass(slots=True)
class Release:
    """The partitions that were stopped to be released, and their final positions.

    ``unwanted``: claims with unknown outcome that are released with them.
    """

    partitions: frozenset[TopicPartition] = frozenset()
    unwanted: frozenset[TopicPartition] = frozenset()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Closing:
    """``wanted``: leave as soon as fetching has stopped. ``faults``: errors while leaving."""

    wanted: bool = False
    faults: list[str] = field(default_factory=list)
