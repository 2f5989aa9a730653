"""Every output of the machine of a ZooKeeper group's member.

A command with a ``token`` is answered by exactly one event that repeats it, unless the session
ends first. The ZooKeeper part of a command is a script (``zkconsumer.core.zookeeper.scripts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from zkconsumer.core.common.commands import CommonCommand
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.known import NOTHING, Known


@dataclass(frozen=True, slots=True)
class Register:
    """Create the registration znode. Answer: ``Registered`` or ``RegistrationRefused``.

    ``epoch`` is the data version that the znode must reach: the number of earlier sessions of this
    member. A multi checks it to make sure that the session that made a decision is still current.
    """

    token: int
    epoch: int


class Scope(Enum):
    """The part of the group that ``LoadView`` reads. Profile ``scala`` reads in two steps."""

    ALL = "everything"
    OWN = "own registration and brokers"
    GROUP = "members and topics"


@dataclass(frozen=True, slots=True)
class LoadView:
    """Read the group and set the watches. Answer: ``ViewLoaded``.

    ``epoch`` is the version of this member's registration, unless another process wrote to it.
    Data in ``known`` is not read again. ``zxid`` is the transaction whose watch event triggered
    this rebalance. It is ``None`` if there was another trigger, or if ZooKeeper sent no zxid. Later
    attempts of the rebalance have the same value.
    """

    token: int
    scope: Scope = Scope.ALL
    epoch: int = 0
    known: Known = NOTHING
    zxid: int | None = None


@dataclass(frozen=True, slots=True)
class LoadBrokers:
    """Read the brokers, and watch their list. Answer: ``BrokersLoaded``."""

    token: int


@dataclass(frozen=True, slots=True)
class CheckOwners:
    """Find out which partitions have no owner znode of this session. Answer: ``OwnersChecked``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Commit:
    """Store ``positions`` of held partitions. Answer: ``Committed``."""

    token: int
    epoch: int
    positions: Mapping[TopicPartition, int]
    claims: Mapping[TopicPartition, Claim]


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the owner znodes of ``claims``. Answer: ``Released``.

    ``mixed``: other libraries' members may be in the group, so owner znodes are read first.
    """

    token: int
    epoch: int
    claims: Mapping[TopicPartition, Claim]
    mixed: bool = True


@dataclass(frozen=True, slots=True)
class ClaimPartitions:
    """Create owner znodes and read offsets, with fencing. Answer: ``Claimed``."""

    token: int
    epoch: int
    wanted: Mapping[TopicPartition, ConsumerThreadId]


@dataclass(frozen=True, slots=True)
class WatchBlockers:
    """Watch owner znodes that block a claim. Answer: ``BlockersWatched``."""

    token: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Deregister:
    """Delete this member's registration znode. Answer: ``Deregistered``."""

    token: int
    epoch: int


ScriptCommand = (
    Register
    | LoadView
    | LoadBrokers
    | CheckOwners
    | Commit
    | Release
    | ClaimPartitions
    | WatchBlockers
    | Deregister
)
"""The commands that a script carries out (``scripts.by_command``)."""
Command = ScriptCommand | CommonCommand
