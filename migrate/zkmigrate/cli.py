"""The command ``zkmigrate``: its start, and the signals that end it."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

_ENDED_BY_SIGNAL: Final = 128
"""Added to a signal's number: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""


def main() -> None:
    """Run ``zkmigrate`` with the arguments of this process and exit with its status."""
    try:
        status = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"error: zkmigrate needs {error.name}: in a clone run pip install '.[cli]'\n"
        )
        status = 1
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status.

    The status is that of ``exit_status``, or 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    from zkconsumer.console.run import exit_status

    received: list[int] = []
    """The signal that ended the command. Some libraries raise their own error instead of the
    signal's."""

    def start() -> object:
        with _signals_interrupt(received):
            from zkmigrate.commands.root import cli

            logging.getLogger("zkconsumer").addHandler(logging.NullHandler())
            return cli.main(list(arguments), prog_name="zkmigrate", standalone_mode=False)

    return exit_status(
        start,
        interrupted=lambda: _interrupted(received[0] if received else signal.SIGINT),
        signalled=lambda: bool(received),
    )


def _interrupted(number: int) -> int:
    import click

    with suppress(OSError):  # the terminal may be gone
        click.echo("interrupted: run the same command again to resume", err=True)
    return _ENDED_BY_SIGNAL + number


@contextmanager
def _signals_interrupt(received: list[int]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does. A second one ends the process. A signal
    that is ignored, such as SIGHUP with nohup, remains ignored. Does nothing outside the main
    thread."""

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
