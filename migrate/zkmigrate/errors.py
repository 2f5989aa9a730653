"""zkmigrate's errors, which derive from those of ``zkconsumer.errors``.

::

    ZkConsumerError
    +- MigrationError
       +- PlanFileError
       +- JournalError
          +- JournalWriteError
       +- GroupRefusedError
          +- GroupInUseError
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from zkconsumer.admin.printable import printable, shown
from zkconsumer.errors import ZkConsumerError
from zkmigrate.exits import ATTENTION, FAILED, USAGE
from zkmigrate.reasons import Reason


class MigrationError(ZkConsumerError):
    """A command failed, or its work on one group failed. The text says what to do."""


class PlanFileError(MigrationError):
    """A plan, a file of offsets or another input file cannot be used as it is. The text names file
    and line."""

    exit_code: ClassVar[int] = USAGE


class JournalError(MigrationError):
    """The journal is damaged, belongs to another plan, or is in use."""

    exit_code: ClassVar[int] = USAGE


class JournalWriteError(JournalError):
    """A record could not be written, for example because the disk is full.

    Nothing was changed after the last complete record, so the command may be repeated.
    """

    exit_code: ClassVar[int] = FAILED


class GroupRefusedError(MigrationError):
    """One group cannot be moved now. Other groups are not affected.

    The text says what must be done first, such as stopping a consumer. ``reason``: the kind of
    problem, for programs.
    """

    exit_code: ClassVar[int] = ATTENTION

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


class GroupInUseError(GroupRefusedError):
    """A group has members, which must stop before it can be moved."""


def in_use(group: str, reason: Reason, why: str) -> GroupInUseError:
    """Return the error that names a group and its members."""
    return GroupInUseError(printable(f"group {group}: {why}"), reason)


def check_members(
    group: str,
    registered: Iterable[str] = (),
    joined: Iterable[str] = (),
    owned: Iterable[object] = (),
) -> None:
    """Check that a group has no members, in ZooKeeper or at the coordinator. ``owned``: partitions
    with an owner. Raises GroupInUseError."""
    if names := shown(registered):
        text = f"{names} registered in ZooKeeper: stop these members first"
        raise in_use(group, Reason.LIVE_MEMBER, text)
    if names := shown(map(str, owned)):
        text = f"partitions owned by members that are not registered: {names}: delete /consumers/"
        fix = f"{group}/owners when no process of the group is running"
        raise in_use(group, Reason.OWNED, text + fix)
    if names := shown(joined):
        text = f"{names} joined at the broker's coordinator: stop these consumers"
        raise in_use(group, Reason.COORDINATOR_MEMBER, text)


def refused(group: str, reason: Reason, why: str) -> GroupRefusedError:
    """Return the error that names a group and says why it is refused."""
    return GroupRefusedError(printable(f"group {group}: {why}"), reason)
