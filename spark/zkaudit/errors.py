"""Errors of zkaudit, which derive from ``ZkConsumerError``.

::

    AuditError
    +- InputMissingError
    +- LogFormatError
    +- SchemaMismatchError
"""

from __future__ import annotations

import errno

from zkconsumer.errors import ZkConsumerError


class AuditError(ZkConsumerError):
    """The audit failed. The text names the input and the fix."""


class InputMissingError(AuditError):
    """An input directory or file does not exist or contains nothing readable."""

    exit_code = 2


class NoLogsError(InputMissingError):
    """A server's directory has no logs."""


class LogFormatError(AuditError):
    """A transaction log or snapshot is damaged. ``position`` is the byte at which reading stopped.

    Nothing after the position is read, because bytes that look like a record may be a znode's
    data.
    """

    def __init__(self, file: str, position: int, reason: str) -> None:
        self.file = file
        self.position = position
        self.reason = reason
        super().__init__(f"{file}: byte {position}: {reason}")

    def __reduce__(self) -> tuple[type[LogFormatError], tuple[str, int, str]]:
        """Return the arguments for pickle, with which errors are sent from Spark's workers."""
        return (LogFormatError, (self.file, self.position, self.reason))


class SchemaMismatchError(AuditError):
    """The columns of a table on disk are not those that this release reads."""


def no_file(number: int | None, reason: str, file: str | None) -> str:
    """Return the message for an ``OSError``, in one line: the file, the reason and the fix."""
    fix = {
        errno.ENOENT: "if ZooKeeper has deleted it, run again; zkaudit collect keeps logs",
        errno.EACCES: "give this user permission to read and write it",
        errno.EPERM: "give this user permission to read and write it",
        errno.ENOSPC: "free disk space, then run again",
    }
    return f"{file or 'a file'}: {reason}: {fix.get(number or 0, 'fix the cause, then run again')}"
