"""The operations that scripts yield, and the replies they get. Data only.

A script is a generator: it yields one ``ZkOp``, or several as ``Pipelined``, and is sent one
``Reply``. The live driver (``zkconsumer.zk.driver``) and the simulator
(``zkconsumer.sim.servers.zk``) carry out the same objects, so both interleave operations in the
same way. All paths are relative to the chroot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from zkconsumer.core.common.types import TopicPartition


class SessionEvent(Enum):
    """A change of a ZooKeeper session, as reported by its client."""

    OPENED = "opened"
    RESUMED = "resumed"
    SUSPENDED = "suspended"
    LOST = "lost"


def session_text(session: int) -> str:
    """Return a session id as ZooKeeper writes it."""
    return f"0x{session & 0xFFFFFFFFFFFFFFFF:x}"


class Code(Enum):
    """Why an operation failed. After ``CONNECTION_LOSS`` it may or may not have been applied."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    NO_CHILDREN_FOR_EPHEMERALS = "no children for ephemerals"
    NO_AUTH = "no auth"
    AUTH_REQUIRED = "authentication required"
    CONNECTION_LOSS = "connection loss"
    SESSION_EXPIRED = "session expired"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of a znode's stat that decisions use. ``ephemeral_owner`` 0: persistent.

    ``mtime_ms`` is the server's time of the last change, for display and tools; in the simulator
    it is 0.
    """

    czxid: int
    mzxid: int
    version: int
    ephemeral_owner: int
    mtime_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A znode's data and stat from one read."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Exists:
    """Read a stat. Reply: ``Stat``, or ``None`` if the znode does not exist. The watch also fires
    on creation."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetData:
    """Read a znode. Reply: ``Node``, or failure ``NO_NODE``, which leaves no watch."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Child names, in no particular order, and the number of changes of the list.

    ``changes`` counts each creation and deletion of a child since the znode itself was created by
    transaction ``czxid`` (the stat's ``cversion``, 32 bits, with overflow). ``pzxid`` is the
    transaction of the last change.
    """

    names: tuple[str, ...]
    czxid: int
    changes: int
    pzxid: int = 0


@dataclass(frozen=True, slots=True)
class GetChildren:
    """Read child names. Reply: tuple in no particular order, or failure ``NO_NODE``.

    With ``counted`` a ``Listing`` instead of the tuple.
    """

    path: str
    watch: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class GetMany:
    """Many independent reads, pipelined. They are not a snapshot, because each path is read at a
    different time.

    Reply: tuple of ``Node | None`` in the order of ``paths``; ``None`` for a znode that does not
    exist. With ``watch``, each existing znode gets a data watch. With ``children``, which only
    tools use and which cannot be combined with a watch, the reply has the names of each znode's
    children in place of the ``Node``.
    """

    paths: tuple[str, ...]
    watch: bool = False
    children: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. Reply: ``None``. Fails with ``NODE_EXISTS``, or with ``NO_NODE`` if the
    parent is missing."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a znode's data. Reply: the new ``Stat``. ``version`` -1 matches every version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode. Reply: ``None``. ``version`` -1 matches every version."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Check that the znode exists and has this version (-1: any). Only inside ``Multi``. Reply:
    ``None``."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class AclEntry:
    """The permissions (``perms``, ZooKeeper's bits) of an identity (``scheme``, ``who``)."""

    perms: int
    scheme: str
    who: str


@dataclass(frozen=True, slots=True)
class Acl:
    """A znode's ACL and its version."""

    entries: tuple[AclEntry, ...]
    version: int


@dataclass(frozen=True, slots=True)
class GetAcl:
    """Read a znode's ACL. Reply: ``Acl``. Only tools use it."""

    path: str


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Replace a znode's ACL. Reply: ``None``. ``version`` is the ACL's. Only tools use it."""

    path: str
    entries: tuple[AclEntry, ...]
    version: int


MultiOp = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """Carry out all of ``ops`` or none. Reply: tuple of the ops' replies, or a failure with the
    failed op's ``index``."""

    ops: tuple[MultiOp, ...]


ZkOp = (
    Exists | GetData | GetChildren | GetMany | Create | SetData | Delete | Multi | GetAcl | SetAcl
)


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Operations that are sent one after another, without waiting for answers in between.

    ZooKeeper carries out a session's requests in the order in which they were sent, so a read that
    follows a write sees it. Reply: ``Ok`` with a tuple of the replies. Each operation succeeds or
    fails on its own. Drivers never get this object: the script's runner sends ``ops``.
    """

    ops: tuple[ZkOp, ...]


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Read offsets that the group has stored in Kafka. Not a ZooKeeper operation.

    Reply: tuple of ``int | None`` in the order of ``partitions``; ``None`` if none is stored.
    """

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class StoreOffsets:
    """Store offsets in Kafka. Not a ZooKeeper operation.

    Reply: tuple of ``str | None`` in the order of ``positions``: why an offset was refused.
    """

    positions: tuple[tuple[TopicPartition, int], ...]


OffsetOp = FetchOffsets | StoreOffsets


class Permit(Enum):
    """Whether a member may send an operation on offsets in Kafka now, or why not.

    Kafka accepts offsets from any client. So before each attempt the member itself must be certain
    that no other member can have claimed the partitions and committed later offsets.
    """

    GRANTED = ""
    WAIT = "ZooKeeper did not answer in time: the session may have ended"
    """The session is probably alive. Ask again later."""
    OUTDATED = "the connection to ZooKeeper was re-established after owners were read"
    """Read the owners again."""
    ENDED = "the ZooKeeper session of this request has ended"
    """The operation must never be sent again."""


Permission = Callable[[], Permit]
"""Called right before an attempt is sent. Any thread."""


def always() -> Permit:
    """Permit every operation, as for clients that are not members."""
    return Permit.GRANTED


Value = (
    None
    | Stat
    | Node
    | Listing
    | Acl
    | tuple[str | None, ...]
    | tuple[int | None, ...]
    | tuple[Node | None, ...]
    | tuple[tuple[str, ...] | None, ...]
    | tuple[Stat | None, ...]
    | tuple["Ok | Failed", ...]
)


@dataclass(frozen=True, slots=True)
class Ok:
    """The operation was applied. ``value`` is described in the operation's class."""

    value: Value = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation failed. ``index`` is the position of the failed operation in a ``Multi``.

    ``detail`` gives more information if the code is not enough (refusals by Kafka).
    """

    code: Code
    index: int | None = None
    detail: str = ""


Reply = Ok | Failed
