"""Standard output that ends early: its reader has exited, or the disk it is written to is full."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

import click

EXIT_BROKEN_PIPE: Final = 141
"""As a program that SIGPIPE has ended."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a file that standard output is redirected to."""


def reader_exited() -> int:
    """Discard what is still buffered, which has nowhere to go; return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def is_full(error: OSError) -> bool:
    """Return whether ``error`` is that standard output could not be written.

    If so, print it as one line and discard what is still buffered.
    """
    if error.filename is not None or error.errno not in _FULL:
        return False
    reader_exited()
    click.echo(f"error: standard output: {error.strerror}", err=True)
    return True
