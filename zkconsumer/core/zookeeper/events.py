"""Every input of the machine of a ZooKeeper group's member. Data, never subclassed.

An event that answers a command repeats its ``token``; the machine drops answers that it no longer
expects. Partitions are ``TopicPartition``; offsets are always the next offset to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zkconsumer.core.common.events import CommonEvent
from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.known import NOTHING, Known
from zkconsumer.core.zookeeper.ops import Code
from zkconsumer.core.zookeeper.view import GroupView


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition held by this member.

    ``version`` is the fencing token: the version of the offset znode, or ``None`` while there is no
    offset znode. ``committed`` is the stored offset, ``None`` if there is none. The claim is
    ``invalidated`` if ``auto.offset.reset`` has replaced that offset; then a lower offset may be
    stored. The claim ``lags`` if ``committed`` is from Kafka and higher than ZooKeeper's offset,
    which is then raised even if ``committed`` does not change. The claim is ``unchecked`` if the
    connection was re-established since ``version`` was read, because servers restored from a backup
    reuse versions. Then the owner znode and the offset are read before the next commit.
    """

    thread: ConsumerThreadId
    version: int | None
    committed: int | None
    invalidated: bool = False
    lags: bool = False
    unchecked: bool = False

    def would_regress(self, position: int) -> bool:
        """Whether a commit of ``position`` would lower the stored offset."""
        return self.committed is not None and not self.invalidated and position < self.committed

    def is_behind(self, position: int) -> bool:
        """Whether ``position`` is ahead of the stored offset, or the stored offset is
        invalidated."""
        if self.committed is None or self.invalidated:
            return True
        return position >= self.committed if self.lags else position > self.committed


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A ZooKeeper session was established for the first time or after ``SessionLost``."""

    session_id: int


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The connection was re-established within the same session; watches may have been lost."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session has ended: registration and owner znodes are gone or soon will be."""


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The ``ClaimRule`` has changed, so the group must be read again."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Other members may have delivered these partitions, so they must be stopped at once and
    released without a commit."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Changed:
    """A watch on ``path`` fired. ``zxid``: the transaction that changed it; ``None`` before
    ZooKeeper 3.9, and for changes that the brokers report."""

    path: str
    zxid: int | None = None


@dataclass(frozen=True, slots=True)
class ScriptFailed:
    """A script did not finish, because the session ended, or ZooKeeper or Kafka refused an
    operation. ``path``: the znode that caused it, if any. ``detail``: the reason."""

    token: int
    code: Code
    path: str = ""
    detail: str = ""

    @property
    def text(self) -> str:
        """The failure as one line."""
        return self.detail or f"{self.path or 'ZooKeeper'}: {self.code.value}"


@dataclass(frozen=True, slots=True)
class Registered:
    """The registration znode exists and belongs to the current session."""

    token: int


@dataclass(frozen=True, slots=True)
class RegistrationRefused:
    """The registration znode belongs to another session, ``owner``."""

    token: int
    owner: int


@dataclass(frozen=True, slots=True)
class ViewLoaded:
    """One pass of reads over the group is complete. ``known`` has the data of the view."""

    token: int
    view: GroupView
    known: Known = field(default=NOTHING, compare=False)


@dataclass(frozen=True, slots=True)
class BrokersLoaded:
    """The list of brokers was read again."""

    token: int
    brokers: tuple[BrokerEndpoint, ...]


@dataclass(frozen=True, slots=True)
class OwnersChecked:
    """The partitions of ``CheckOwners`` that have no owner znode of this session."""

    token: int
    foreign: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """``auto.offset.reset`` replaced the position ``old``, which is not in the log.

    The stored offset is then ignored, and a lower position may replace it. Otherwise the next
    member would skip the messages between the two. ``old`` is ``None`` if no offset was stored, so
    there is nothing to replace. ``new`` is the chosen position, for the journal only.
    """

    partition: TopicPartition
    old: int | None
    new: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of ``Commit``.

    ``claims`` has the new claim of each stored partition. ``fenced`` are partitions that another
    session owns. ``broken`` maps partitions whose offset znode is unusable to the reason.
    ``foreign`` are partitions that this member owns, but for which another process wrote an offset.
    ``unregistered``: this member's registration was missing, so nothing more was written.
    """

    token: int
    claims: Mapping[TopicPartition, Claim]
    fenced: frozenset[TopicPartition] = frozenset()
    broken: Mapping[TopicPartition, str] = field(default_factory=dict)
    foreign: frozenset[TopicPartition] = frozenset()
    unregistered: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """Owner znodes of this session were deleted. ``foreign`` ones belonged to another session and
    were kept.

    ``unregistered``: this member's registration was missing, so some znodes may remain.
    """

    token: int
    foreign: frozenset[TopicPartition] = frozenset()
    unregistered: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """Outcome of ``ClaimPartitions``.

    ``blocked`` maps partitions owned by others to the owner znode's text; ``broken`` maps
    partitions whose offset znode is unusable to the reason. ``unregistered`` as in ``Committed``.
    ``sessions`` has the session of each blocking owner znode; 0 if it is not ephemeral.
    ``outdated`` are claimed partitions whose offset was stored before their topic was created.
    """

    token: int
    claims: Mapping[TopicPartition, Claim]
    blocked: Mapping[TopicPartition, str] = field(default_factory=dict)
    broken: Mapping[TopicPartition, str] = field(default_factory=dict)
    unregistered: bool = False
    sessions: Mapping[TopicPartition, int] = field(default_factory=dict)
    outdated: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class BlockersWatched:
    """Watches on blocking owner znodes are set. ``gone``: one had already been deleted."""

    token: int
    gone: bool


@dataclass(frozen=True, slots=True)
class Deregistered:
    """The registration znode is gone."""

    token: int


Event = (
    SessionOpened
    | SessionResumed
    | SessionLost
    | RulesChanged
    | TakenBack
    | Changed
    | ScriptFailed
    | Registered
    | RegistrationRefused
    | ViewLoaded
    | BrokersLoaded
    | OwnersChecked
    | OffsetReset
    | Committed
    | Released
    | Claimed
    | BlockersWatched
    | Deregistered
    | CommonEvent
)
