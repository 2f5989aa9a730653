"""Errors of zkaudit: the ``AuditError`` branch below ``ZkConsumerError``.

::

    AuditError
    +- InputMissingError
    +- LogFormatError
    +- DigestMismatchError
    +- SchemaMismatchError
"""

from __future__ import annotations

import errno

from zkconsumer.errors import ZkConsumerError


class AuditError(ZkConsumerError):
    """The audit cannot do what it was asked to; the text names the input and the fix."""


class InputMissingError(AuditError):
    """A directory or file named as input does not exist or holds nothing that can be read."""

    exit_code = 2


class LogFormatError(AuditError):
    """A transaction log or snapshot is damaged. ``position`` is the byte where reading stopped.

    Nothing behind the position is read: whatever looks like a record there may be a znode's data.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        self.file = file
        self.position = position
        self.reason = reason
        super().__init__(f"{file}: byte {position}: {reason}")

    def __reduce__(self) -> tuple[type[LogFormatError], tuple[str, int, str]]:
        """Errors travel from Spark's workers by pickle."""
        return (LogFormatError, (self.file, self.position, self.reason))


class DigestMismatchError(AuditError):
    """The tree rebuilt from a log is not the one the server had. ``zxid`` is where they part."""

    def __init__(self, file: str, zxid: int, reason: str) -> None:
        self.file = file
        self.zxid = zxid
        self.reason = reason
        super().__init__(f"{file}: zxid {zxid:#x}: {reason}")

    def __reduce__(self) -> tuple[type[DigestMismatchError], tuple[str, int, str]]:
        """Errors travel from Spark's workers by pickle."""
        return (DigestMismatchError, (self.file, self.zxid, self.reason))


class SchemaMismatchError(AuditError):
    """A table on disk was written with other columns than this release reads."""


def no_file(number: int | None, reason: str, file: str | None) -> str:
    """Return one line for an ``OSError``: which file, what is wrong, what to do."""
    fix = {
        errno.ENOENT: "if it was deleted meanwhile, run again; zkaudit collect keeps logs",
        errno.EACCES: "let this user read and write it",
        errno.EPERM: "let this user read and write it",
        errno.ENOSPC: "make room, then run again",
    }
    return f"{file or 'a file'}: {reason}: {fix.get(number or 0, 'fix this, then run again')}"
