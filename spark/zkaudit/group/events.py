"""Input events and result rows of a group's fold.

A time is a number of microseconds since 1970 by the leader's clock. It is never used to order
events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN, Coverage, Unknown
from zkaudit.group.znodes import Znode
from zkaudit.schema import CREATES, DELETES

_THREAD: Final = re.compile(r"(?s)(.+)-([0-9]+)")
_DIGITS: Final = re.compile(rb"[0-9]{1,19}")
_MOST: Final = 2**63 - 1
_CONTAINER: Final = -(2**63)

FROM_SNAPSHOT: Final = 2**31 - 1
"""Index of a create that only a snapshot shows. It follows all operations of its transaction."""


class Act(StrEnum):
    """An operation on one znode, or on a session and its ephemeral znodes."""

    CREATE = "create"
    DELETE = "delete"
    SET = "set"
    CLOSE = "close"
    REFUSED = "refused"
    """ZooKeeper refused a create of the session because the znode exists. The log has no path."""


ACTS: Final = {
    **dict.fromkeys(CREATES, Act.CREATE),
    **dict.fromkeys(DELETES, Act.DELETE),
    "setData": Act.SET,
    "closeSession": Act.CLOSE,
}
"""The act of each type of transaction that the fold reads (``zkaudit.schema.TXNLOG``)."""


class Event(NamedTuple):
    """One operation of the history. Events are in the order of (zxid, idx)."""

    zxid: int
    idx: int
    time: int | None
    session: int
    act: Act
    path: str | None = None
    data: bytes | None = None
    ephemeral: bool | None = None
    cxid: int = 1
    """For a close: 0 if the server ended the session, because it expired."""
    deleted: Iterable[str] | None = None
    """For a close: the paths that it lists (ZooKeeper 3.6 and later)."""
    version: int | None = None
    """For a set: the version of the content."""


class Shown(NamedTuple):
    """A znode of a group in a snapshot (``zkaudit.schema.SNAPSHOT``)."""

    zxid: int
    """The last transaction when the server began to write the snapshot."""
    path: str
    data: bytes | None
    czxid: int
    ctime: int | None
    mzxid: int
    mtime: int | None
    session: int
    """The session that owns an ephemeral znode."""
    version: int | None = None

    @property
    def is_ephemeral(self) -> bool:
        """Whether the znode is ephemeral. A container's owner field is set, too, but is not a
        session."""
        return self.session not in (0, _CONTAINER)


class Moment(NamedTuple):
    """A point in the history. ``time`` is only for display."""

    zxid: int
    idx: int
    time: int | None = None


class Ended(StrEnum):
    """How the lifetime of a znode ended, as in the column ``ended``."""

    RELEASED = "released"
    FOREIGN_DELETE = "foreign delete"
    CLOSED = "closed"
    EXPIRED = "expired"
    STILL_HELD = "still held"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Lifetime:
    """A registration or an owner znode, from its creation to its end."""

    znode: Znode
    session: int | None
    """``None`` if the znode is not ephemeral, or if the logs do not show its creation."""
    data: bytes | None
    """Data at its creation, or at its last write for a member in a live migration."""
    start: Moment | Unknown
    seen_in: int
    """The last segment in which the znode is known to have existed."""
    end: Moment | None = None
    """The first operation after which the znode is certainly gone."""
    last_seen: int | None = None
    """If a log gap hides the end, the last zxid at which the znode is known to have existed."""
    ended: Ended = Ended.STILL_HELD
    ended_by: int | None = None
    expired: bool = False
    """Whether its session expired while the znode existed. It may have been recreated in a log
    gap."""
    gone_in: int | None = None
    """The segment in which the znode is known to be gone. A session's close after a log gap proves
    it only if it lists the znode, because another member may have claimed in the gap."""
    member: str | None = None
    """The consumer id in an owner znode."""

    @property
    def start_zxid(self) -> int | None:
        """The transaction that created the znode, if known."""
        return None if self.start is UNKNOWN else self.start.zxid

    def seen_until(self, coverage: Coverage) -> int:
        """Return the last transaction at which the znode is known to have existed. Call it only if
        a log gap hides the znode's end."""
        return max(coverage.end_of(self.seen_in), self.start_zxid or 0)

    def existed_before(self, zxid: int) -> bool:
        """Whether the znode is known to have existed just before a transaction. Call it only when
        the whole history was read."""
        if self.start is UNKNOWN or self.start.zxid >= zxid:
            return False
        if self.ended is Ended.UNKNOWN:
            return self.last_seen is not None and self.last_seen >= zxid
        return self.end is None or self.end.zxid >= zxid


class Began(NamedTuple):
    """The row for the start of a lifetime. The row for its end is the ``Lifetime`` itself."""

    lifetime: Lifetime


class Change(NamedTuple):
    """An operation on a znode that belongs to a migration, or its content in a snapshot."""

    znode: Znode
    event: Event


class Write(NamedTuple):
    """The content of an offset znode, with the transaction that wrote it."""

    data: bytes | None
    offset: int | None
    zxid: int
    time: int | None


class Kind(StrEnum):
    """The kind of a write of an offset."""

    COMMIT = "commit"
    CLAIM = "claim"
    """A write of the unchanged value in the multi that creates the owner znode."""
    SAME = "same"
    """Any other write of the unchanged value."""


class Commit(NamedTuple):
    """A write of an offset znode, with the partition's owner at that moment."""

    znode: Znode
    zxid: int
    idx: int
    time: int | None
    session: int
    data: bytes | None
    offset: int | None
    previous: Write | Unknown | None
    """``None``: there was no offset before."""
    kind: Kind
    created: bool
    owner: Lifetime | Unknown | None
    """``None``: the partition had no owner."""
    free_since: int | None
    """Without an owner: the zxid at which the last owner znode was certainly gone."""
    by_mirror: bool = False
    """Whether the group's mirror wrote it, as its transaction shows."""


class Deleted(NamedTuple):
    """The deletion of an offset znode."""

    znode: Znode
    zxid: int
    idx: int
    time: int | None
    session: int
    previous: Write | None
    """Its content; ``None``: unknown."""


class Refused(NamedTuple):
    """A write by a registered member that ZooKeeper refused."""

    registration: Lifetime
    at: Moment


class Membership(NamedTuple):
    """A change of the group's members. It follows the row of the registration that began or
    ended."""

    registration: Lifetime
    at: Moment
    change: str | None
    """``join`` or ``leave``. ``None``: a log gap may hide the end, and ``at`` is the last
    transaction at which the registration is known to have existed."""
    step: int
    """Change of the number of known registrations."""
    members: int | None
    """Registrations after the change; ``None``: unknown."""


@dataclass(slots=True, eq=False)
class Burst:
    """A sequence of claims, releases, joins, leaves and refused writes without a long pause in
    between."""

    znode: Znode
    """The group's znode."""
    first_zxid: int
    start_time: int
    last_zxid: int
    end_time: int
    ends: int = 0
    refused: int = 0
    joins: int = 0
    leaves: int = 0
    claims: Counter[str] = field(default_factory=Counter)
    """Number of claims by partition name."""
    released: set[str] = field(default_factory=set)
    """Partitions whose owner is gone."""
    claimants: set[str | None] = field(default_factory=set)
    changed: Counter[str] = field(default_factory=Counter)
    """Number of joins and leaves by member."""

    @property
    def is_rebalance(self) -> bool:
        """Whether a partition was claimed or released, so that the burst is a row of the table
        ``rebalances``."""
        return bool(self.claims) or self.ends > 0

    @property
    def partitions(self) -> int:
        """Number of partitions that were claimed or released."""
        return len(self.released.union(self.claims))

    @property
    def members(self) -> int:
        """Number of members that claimed a partition."""
        return len(self.claimants - {None})

    @property
    def rounds(self) -> int:
        """Number of claims of the partition that was claimed most often."""
        return max(self.claims.values(), default=0)


Row = Began | Lifetime | Membership | Commit | Deleted | Change | Refused | Burst
"""A result of a fold. Its last row may be a ``LiveMove``."""


def member_of(data: bytes | None) -> tuple[str | None, str | None]:
    """Return the consumer id and the stream in an owner znode's data. Some clients write no
    stream."""
    if not data:
        return None, None
    text = data.decode("utf-8", "replace")
    parts = _THREAD.fullmatch(text)
    return (text, None) if parts is None else (parts[1], parts[2])


def offset_of(data: bytes | None) -> int | None:
    """Return the offset in an offset znode's data; ``None`` if it is not a 64-bit number."""
    if data is None or _DIGITS.fullmatch(data) is None:
        return None
    offset = int(data)
    return offset if offset <= _MOST else None
