"""Standard output that is closed, or ends early: its reader has exited, or its disk is full."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import click

from zkconsumer.errors import ZkConsumerError

EXIT_BROKEN_PIPE: Final = 141
"""As a program that SIGPIPE has ended."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a file that standard output is redirected to."""


def check_open() -> None:
    """Raise ZkConsumerError if the process was started without standard output."""
    if sys.stdout is None:
        raise ZkConsumerError("standard output is closed: redirect it to /dev/null instead")


def discard() -> int:
    """Discard what is still buffered, as its reader has exited; return the exit status for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def reports_full(error: OSError) -> bool:
    """Print ``error`` as one line, and discard what is still buffered, if it is that the disk of
    standard output is full. Return whether it is."""
    if error.filename is not None or error.errno not in _FULL:
        return False
    discard()
    click.echo(f"error: standard output: {error.strerror}", err=True)
    return True
