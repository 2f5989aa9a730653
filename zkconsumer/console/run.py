"""Runs a command line: the one place that maps its end to a message and an exit status.

Also standard output that is closed, or ends early: its reader has exited, or its disk is full.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

import click

from zkconsumer.admin.printable import printable
from zkconsumer.errors import ZkConsumerError

EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""As a program that SIGPIPE has ended."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of a file that standard output is redirected to."""


def exit_status(
    start: Callable[[], object],
    *,
    interrupted: Callable[[], int] = lambda: EXIT_INTERRUPTED,
    signalled: Callable[[], bool] = lambda: False,
    reason: Callable[[Exception], str | None] = lambda error: None,
    escape: Callable[[str], str] = printable,
) -> int:
    """Run a command line and return its exit status: the result of ``start``, or 0.

    One of our errors is one line on stderr, ``error: ...``, and gives its own ``exit_code``. Wrong
    usage gives 2, 141 means that the reader of stdout has exited (as a program killed by SIGPIPE),
    and 1 that stdout is closed or its disk is full.

    Args:
        start: parses the arguments and runs the command, with click's ``standalone_mode`` off.
        interrupted: called after Ctrl-C; returns the exit status.
        signalled: whether a signal has ended the command, so that an error stands for it: some
            libraries raise their own.
        reason: the line for an error that is not ours (exit status 1); ``None`` raises it.
        escape: makes a line safe for terminals.
    """
    try:
        if sys.stdout is None:
            raise ZkConsumerError("standard output is closed: redirect it to /dev/null instead")
        if not hasattr(os, "register_at_fork"):
            raise ZkConsumerError("commands run on Linux and macOS: on Windows use WSL")
        status = start()
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return interrupted()
    except BrokenPipeError:
        return discard()
    except Exception as error:
        ours = isinstance(error, ZkConsumerError)
        if signalled() and (ours or isinstance(error, OSError)):
            return interrupted()
        if isinstance(error, OSError) and _is_full(error):
            discard()
            line: str | None = f"standard output: {error.strerror}"
        else:
            line = str(error) if ours else reason(error)
        if line is None:
            raise
        click.echo(f"error: {escape(line)}", err=True)
        return error.exit_code if isinstance(error, ZkConsumerError) else ZkConsumerError.exit_code
    return status if isinstance(status, int) else 0


def discard() -> int:
    """Discard buffered output, whose reader has exited; return the exit status for that."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _is_full(error: OSError) -> bool:
    """Whether the disk of standard output is full."""
    return error.filename is None and error.errno in _FULL
