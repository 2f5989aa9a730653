"""The command ``zkmigrate``: the one place that maps errors to a message and an exit status."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence


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
    Ctrl-C 130, 141 if the reader of stdout exited.
    """
    import click

    from zkconsumer.admin.text import printable
    from zkconsumer.errors import ZkConsumerError

    try:
        from zkmigrate.commands.root import cli

        logging.getLogger("zkconsumer").addHandler(logging.NullHandler())  # errors say it in a line
        status = cli.main(args=list(arguments), prog_name="zkmigrate", standalone_mode=False)
        sys.stdout.flush()
    except ZkConsumerError as error:
        click.echo(f"error: {printable(str(error))}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted: run the same command again to resume", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status if isinstance(status, int) else 0
