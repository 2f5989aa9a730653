"""The command ``zkmigrate``: the one place that maps errors and signals to message and status."""

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
    """Run the command line; return the exit status.

    Own errors print one line on stderr and set ``exit_code``. Other statuses: 2 for a usage error,
    130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if the reader of stdout exited.
    """
    import click

    from zkconsumer.admin.printable import printable
    from zkconsumer.console import stdout
    from zkconsumer.errors import ZkConsumerError

    received: list[int] = []
    """The signal that ended the command. Some libraries raise their own error instead of ours."""
    try:
        stdout.check_open()
        with _signals_interrupt(received):
            from zkmigrate.commands.root import cli

            logging.getLogger("zkconsumer").addHandler(logging.NullHandler())
            status = cli.main(list(arguments), prog_name="zkmigrate", standalone_mode=False)
            sys.stdout.flush()
    except ZkConsumerError as error:
        if received:
            return _interrupted(received[0])
        click.echo(f"error: {printable(str(error))}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _interrupted(received[0] if received else signal.SIGINT)
    except BrokenPipeError:
        return stdout.discard()
    except OSError as error:
        if received:  # the terminal is gone
            return _interrupted(received[0])
        if not stdout.reports_full(error):
            raise
        return ZkConsumerError.exit_code
    return status if isinstance(status, int) else 0


def _interrupted(number: int) -> int:
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write("interrupted: run the same command again to resume\n")
    return _ENDED_BY_SIGNAL + number


@contextmanager
def _signals_interrupt(received: list[int]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt as Ctrl-C does; a second one ends the process.

    A signal that is ignored, as SIGHUP below nohup, stays so. Outside of the main thread nothing is
    done.
    """

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
