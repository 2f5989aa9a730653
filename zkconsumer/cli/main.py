"""The command ``zkconsumer`` and its table of subcommands.

A subcommand's module is imported when it is used.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

from zkconsumer.console.lazy import LazyGroup
from zkconsumer.console.run import exit_status

SECTIONS: Final = {
    "Work with groups": ("consume", "groups", "tree", "top", "offsets", "topics", "config"),
    "Observe a member": ("trace", "diagram", "replay"),
    "Laboratory": ("cluster", "demo", "herd", "simulate", "perf"),
}
"""Groups of subcommands in the help."""

COMMANDS: Final = {
    "cluster": "zkconsumer.cli.laboratory.cluster:cluster",
    "config": "zkconsumer.cli.config:config",
    "consume": "zkconsumer.cli.consume.command:consume",
    "demo": "zkconsumer.cli.laboratory.demo:demo",
    "diagram": "zkconsumer.cli.member.diagram:diagram",
    "groups": "zkconsumer.cli.groups:groups",
    "herd": "zkconsumer.cli.laboratory.herd:herd",
    "offsets": "zkconsumer.cli.offsets:offsets",
    "perf": "zkconsumer.cli.laboratory.perf:perf",
    "replay": "zkconsumer.cli.member.replay:replay",
    "simulate": "zkconsumer.cli.laboratory.simulate:simulate",
    "top": "zkconsumer.cli.top:top",
    "topics": "zkconsumer.cli.topics:topics",
    "trace": "zkconsumer.cli.member.trace:trace",
    "tree": "zkconsumer.cli.tree:tree",
}
"""Each subcommand's name, with the module and attribute that contain it."""

_LIBRARIES: Final = (
    *("kazoo", "kafka-python", "crc32c"),
    *("lz4", "python-snappy", "zstandard"),
)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    invoke_without_command=True,
)
@click.option("--version", "show_version", is_flag=True, help="Show the version and exit.")
@click.option(
    "--verbose",
    is_flag=True,
    help="With --version: also show the versions of Python and libraries, and whether the record "
    "decoder is compiled.",
)
@click.pass_context
def cli(context: click.Context, show_version: bool, verbose: bool) -> None:
    """Run and study Kafka consumer groups that live in ZooKeeper.

    Two more programs come with it: zkmigrate moves groups' offsets to Kafka and back, and zkaudit
    shows, from ZooKeeper's logs, who owned which partition.
    """
    if show_version:
        click.echo(f"zkconsumer {version('zkconsumer')}")
        if verbose:
            _echo_build()
        context.exit()
    if verbose:
        raise click.UsageError("--verbose requires --version")
    if context.invoked_subcommand is None:
        raise click.UsageError("Missing command.")
    # What kazoo logs about a server that is away is said once by zkconsumer.zk.
    logging.getLogger("zkconsumer.zk.kazoo").setLevel(logging.CRITICAL)


def _echo_build() -> None:
    from zkconsumer.broker.fetching.records import COMPILED

    click.echo(f"{'python':16}{platform.python_implementation()} {platform.python_version()}")
    for library in _LIBRARIES:
        try:
            click.echo(f"{library:16}{version(library)}")
        except PackageNotFoundError:
            click.echo(f"{library:16}not installed")
    click.echo(f"{'record decoder':16}{'compiled' if COMPILED else 'pure Python'}")


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status, see ``exit_status``."""
    return exit_status(
        lambda: cli.main(args=list(arguments), prog_name="zkconsumer", standalone_mode=False)
    )
