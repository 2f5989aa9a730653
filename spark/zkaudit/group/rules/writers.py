"""Roles of sessions that write offsets: owner, another member, a tool, a broker."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN, Unknown
from zkaudit.group.events import Commit, Lifetime, member_of
from zkaudit.group.rules.rule import Group
from zkconsumer.admin.takeover import TOOL_NAME_END

_TOOL: Final = re.compile(TOOL_NAME_END)


class Role(StrEnum):
    """How the session that wrote an offset was related to the partition's owner."""

    OWNER = "owner"
    ZOMBIE = "zombie"
    """Another member, or a session that may be one, while the partition had an owner."""
    ORPHAN = "orphan"
    """Another member, or a session that may be one, while the partition had no owner."""
    MIGRATION = "migration"
    BROKER = "broker"
    """A broker that writes for a client, or a session that may be such a broker, because the
    owner's client lets brokers write."""
    TOOL = "tool"
    """Certainly not a member, because all registrations are known, or the session began in the
    logs."""
    UNKNOWN = "unknown"
    """A session that may be the owner."""


class Writer(NamedTuple):
    """The session that wrote an offset, and what is known about it."""

    role: Role
    member: str | None = None
    broker: str | None = None
    is_threaded: bool | None = None
    """Whether the owner znode names a stream; ``None``: unknown, or no owner."""
    is_import: bool = False
    """A tool owns the partition while it writes."""
    has_owned: bool | None = None
    """Whether the session, or another session of its member, owned the partition before. If not, it
    has delivered no messages of it. ``None``: unknown."""

    @property
    def is_stranger(self) -> bool:
        """Whether the writer is a member that never delivered a message of the partition."""
        return self.has_owned is False and self.role in (Role.ORPHAN, Role.ZOMBIE)

    @property
    def skips(self) -> bool:
        """Whether messages are skipped if this session writes a higher offset, because no member
        delivered them."""
        return self.role in (Role.TOOL, Role.BROKER) or self.is_stranger

    @property
    def is_past_owner(self) -> bool:
        """Whether a broker wrote the offset although the owner's client writes offsets itself."""
        return self.role is Role.BROKER and self.is_threaded is True


def is_tool(member: str | None) -> bool:
    """Return whether a consumer id belongs to a tool, which claims a group's partitions while it
    writes offsets."""
    return member is not None and _TOOL.search(member) is not None


def is_threaded(owner: Lifetime | Unknown | None) -> bool | None:
    """Return whether an owner znode names a stream, which shows that its client writes offsets
    itself; ``None`` if the znode's data are unknown."""
    if not isinstance(owner, Lifetime) or owner.start is UNKNOWN:
        return None
    return member_of(owner.data)[1] is not None


def writer_of(commit: Commit, group: Group) -> Writer:
    """Return the session that wrote an offset, with its role."""
    session, owner = commit.session, commit.owner
    broker = group.facts.brokers.get(session)
    threaded = is_threaded(owner)
    if isinstance(owner, Lifetime) and owner.session == session:
        if is_tool(owner.member):
            return Writer(Role.TOOL, None, broker, threaded, True)
        return Writer(Role.OWNER, group.member(session), broker, threaded)
    member = group.member(session)
    is_new = group.is_new(session)
    return Writer(_role(commit, group, member, is_new), member, broker, threaded)


def _role(commit: Commit, group: Group, member: str | None, is_new: bool) -> Role:
    """Return the role of a session that does not own the partition."""
    owner = commit.owner
    if group.is_migration(commit):
        return Role.MIGRATION
    if member is None:
        without_stream = is_threaded(owner) is False
        if commit.session in group.facts.brokers or (without_stream and not is_new):
            return Role.BROKER
        if is_new or group.is_known(commit.zxid):
            return Role.TOOL
    if owner is UNKNOWN:
        return Role.UNKNOWN
    return Role.ORPHAN if owner is None else Role.ZOMBIE
