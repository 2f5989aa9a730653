"""``zkmigrate release``."""

from __future__ import annotations

import click

from zkconsumer.console.tables import How, format_options
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.guard import each_group
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, server_options
from zkmigrate.exits import HELP


@click.command(epilog=HELP)
@selection
@click.option("--execute", is_flag=True, help="Release them; without it nothing is changed.")
@server_options
@only_problems_option
@format_options
def release(
    which: Selection, execute: bool, servers: Servers, only_problems: bool, how: How
) -> None:
    """Let old consumers start again, in groups that guard or apply has locked.

    A consumer that starts resumes from the offsets in ZooKeeper, so move the offsets back first. A
    dry run unless --execute is given.
    """
    from zkmigrate.apply import guard

    each_group(
        "releasing",
        which,
        servers,
        lambda group: guard.release(group, execute),
        only_problems,
        how,
        "" if execute else "release",
    )
