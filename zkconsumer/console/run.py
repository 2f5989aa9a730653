"""Runs a command line and maps its end to a message and an exit status.

Also handles a closed standard output, a reader that has exited, and a full disk.
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
"""Exit status of a program that SIGPIPE has ended."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error codes of a file to which standard output is redirected."""


def exit_status(
    start: Callable[[], object],
    *,
    interrupted: Callable[[], int] = lambda: EXIT_INTERRUPTED,
    signalled: Callable[[], bool] = lambda: False,
    reason: Callable[[Exception], str | None] = lambda error: None,
    escape: Callable[[str], str] = printable,
) -> int:
    """Run a command line and return its exit status: the result of ``start``, or 0.

    An error of this project is printed as one line on stderr, ``error: ...``, and sets the status
    to its ``exit_code``. Wrong usage gives 2. The status is 141 if the reader of stdout has exited
    (as if SIGPIPE had ended the program), and 1 if stdout is closed or its disk is full.

    Args:
        start: parses the arguments and runs the command, with click's ``standalone_mode`` off.
        interrupted: called after Ctrl-C; returns the exit status.
        signalled: whether a signal was received. If so, an error is treated as that signal, because
            some libraries replace its exception with their own.
        reason: returns the line for any other error (exit status 1), or ``None`` to raise it.
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
    """Discard buffered output whose reader has exited. Return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


def _is_full(error: OSError) -> bool:
    """Whether the disk of standard output is full."""
    return error.filename is None and error.errno in _FULL
