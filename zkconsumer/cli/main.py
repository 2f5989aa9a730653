"""The command ``zkconsumer``: its table of subcommands, and the one place that maps errors.

A subcommand's module is imported when it is used.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from zkconsumer.cli.lazy import LazyGroup
from zkconsumer.errors import ZkConsumerError

COMMANDS: Final = {
    "cluster": "zkconsumer.cli.cluster:cluster",
    "config": "zkconsumer.cli.config:config",
    "consume": "zkconsumer.cli.consume:consume",
    "demo": "zkconsumer.cli.demo:demo",
    "diagram": "zkconsumer.cli.diagram:diagram",
    "groups": "zkconsumer.cli.groups:groups",
    "herd": "zkconsumer.cli.herd:herd",
    "offsets": "zkconsumer.cli.offsets:offsets",
    "perf": "zkconsumer.cli.perf:perf",
    "replay": "zkconsumer.cli.replay:replay",
    "simulate": "zkconsumer.cli.simulate:simulate",
    "topics": "zkconsumer.cli.topics:topics",
    "trace": "zkconsumer.cli.trace:trace",
}
"""Name of each subcommand, and the module and attribute that hold it."""

_LIBRARIES: Final = (
    *("kazoo", "kafka-python", "crc32c", "regex"),
    *("lz4", "python-snappy", "zstandard"),
)

EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


class _Root(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Before click makes it status 1. What is still buffered has nowhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(EXIT_BROKEN_PIPE) from None


@click.group(
    cls=_Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    invoke_without_command=True,
)
@click.option("--version", "show_version", is_flag=True, help="Show the version and exit.")
@click.option(
    "--verbose",
    is_flag=True,
    help="With --version: also Python, the libraries, and whether records are decoded compiled.",
)
@click.pass_context
def cli(context: click.Context, show_version: bool, verbose: bool) -> None:
    """Run and study Kafka consumer groups that live in ZooKeeper."""
    if show_version:
        click.echo(f"zkconsumer {version('zkconsumer')}")
        if verbose:
            _echo_build()
        context.exit()
    if verbose:
        raise click.UsageError("--verbose goes with --version")
    if context.invoked_subcommand is None:
        raise click.UsageError("Missing command.")


def _echo_build() -> None:
    from zkconsumer.broker.records import COMPILED

    click.echo(f"{'python':16}{platform.python_implementation()} {platform.python_version()}")
    for library in (
        "kazoo",
        "kafka-python",
        "crc32c",
        "regex",
        "lz4",
        "python-snappy",
        "zstandard",
    ):
        try:
            click.echo(f"{library:16}{version(library)}")
        except PackageNotFoundError:
            click.echo(f"{library:16}not installed")
    click.echo(f"{'record decoder':16}{'compiled' if COMPILED else 'pure Python'}")


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status.

    An error of ours is one line on stderr, ``error: ...``, and gives its own ``exit_code``; wrong
    usage gives 2, Ctrl-C 130, a reader that went away 141 (as a program killed by SIGPIPE).
    """
    try:
        status = cli.main(args=list(arguments), prog_name="zkconsumer", standalone_mode=False)
        sys.stdout.flush()
    except ZkConsumerError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status if isinstance(status, int) else 0
