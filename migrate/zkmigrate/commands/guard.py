"""``zkmigrate guard``, and code shared with ``release``."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import click

from zkconsumer.admin.snapshot import list_groups
from zkconsumer.admin.text import printable
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import How, format_options
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZkConsumerError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.apply.outcome import Outcome, Result, status_of_outcomes
from zkmigrate.commands.cells import only_problems_option
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.rows import print_table
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, open_zookeeper, server_options
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import Store

_POLL = 1.0
"""Seconds between two checks of the groups that are held."""


@click.command(epilog=HELP)
@selection
@click.option("--execute", is_flag=True, help="Lock them; without it nothing is changed.")
@click.option(
    "--hold",
    is_flag=True,
    help="If access lists cannot be used: keep running and own every partition of the groups "
    "until Ctrl-C.",
)
@server_options
@only_problems_option
@format_options
def guard(
    which: Selection,
    execute: bool,
    hold: bool,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Keep the old consumers of moved groups from starting.

    After this, no client may create a registration below the group's ids znode, so an old consumer
    fails with NoAuth when it starts. Groups that were not moved to Kafka are skipped. A dry run
    unless --execute is given. The command release lifts the lock. A group that was not
    moved needs attention if --group gives its exact name.

    With --hold, locked groups are skipped, and the command ends when no unlocked group is left.
    """
    if hold:
        no_effect("--hold", "execute", "only_problems", "csv")
        _hold(which, servers, how)
        return
    from zkmigrate.apply import guard as lock

    now_ms = int(time.time() * 1000)
    each_group(
        "locking",
        which,
        servers,
        lambda group: lock.lock_moved(group, now_ms, execute),
        only_problems,
        how,
        "" if execute else "lock",
    )


def each_group(
    verb: str,
    which: Selection,
    servers: Servers,
    script: Callable[[str], Script[Result]],
    only_problems: bool,
    how: How,
    dry: str,
) -> None:
    """Run a script for each chosen group; print the results and exit. No broker is asked.

    ``dry``: what ``--execute`` would do, if this is a dry run.
    """
    results: list[Result] = []
    with (
        Progress(verb) as progress,
        open_zookeeper(servers) as zk,
    ):
        if dry:
            click.echo(f"dry run: nothing is changed; give --execute to {dry}", err=True)
        names = _chosen(which, zk)
        progress.total = len(names)
        for result in zk.run_all(_caught(name, script) for name in names):
            results.append(result)
            progress.group(result.group, result.outcome not in (Outcome.REFUSED, Outcome.FAILED))

    def good(one: Result) -> bool:
        return one.outcome.good or (one.outcome is Outcome.SKIPPED and one.group not in which.names)

    rows = [(one.group, one.outcome.value, one.why) for one in results]
    if only_problems:
        rows = [row for row, one in zip(rows, results, strict=True) if not good(one)]
    print_table("lock", ("group", "outcome", "why"), rows, how)
    counts = Counter(one.outcome for one in results)
    parts = [f"{counts[one]} {one.value}" for one in Outcome if counts[one]]
    click.echo(f"groups: {', '.join(parts)}", err=True)
    click.get_current_context().exit(status_of_outcomes(x.outcome for x in results if not good(x)))


def _chosen(which: Selection, zk: BlockingZk) -> list[str]:
    names = which.of_store(lambda: zk.run(list_groups()), Store.ZOOKEEPER)
    return list(filter(is_legal_group, names))


def _caught(group: str, script: Callable[[str], Script[Result]]) -> Script[Result]:
    """Run a group's script; what cannot be done is that group's result."""
    try:
        result = yield from or_refusal(script(group))
    except ZkConsumerError as error:
        result = error  # type: ignore[assignment]
    if isinstance(result, ZkConsumerError):
        return Result(group, Outcome.FAILED, 0, str(result))
    return result


def _hold(which: Selection, servers: Servers, how: How) -> None:
    """Own every partition of the chosen groups until Ctrl-C; say what happens to them."""
    from zkmigrate.apply.holding import HELD, LOCKED, NOT_MOVED, Holding

    with open_zookeeper(servers) as zk:
        holding = Holding(zk, _chosen(which, zk))
        refused = 0
        try:
            fine = {HELD, LOCKED} if which.names else {HELD, LOCKED, NOT_MOVED}
            quiet = set() if which.names else {LOCKED, NOT_MOVED}
            events = [what for _, what in _said(holding.take(), how, quiet)]
            refused = sum(what not in fine for what in events)
            others = sum(what in quiet for what in events)
            click.echo(
                f"{len(holding.held)} groups are held; Ctrl-C releases them"
                + (f"; {others} others are locked or were not moved to Kafka" if others else ""),
                err=True,
            )
            while holding.held:
                time.sleep(_POLL)
                try:
                    for _ in _said(holding.look(), how):
                        pass
                except ZkConsumerError as error:
                    click.echo(f"error: {printable(str(error))}; trying again", err=True)
        except KeyboardInterrupt:
            holding.release()
            click.echo("released", err=True)
    click.get_current_context().exit(exit_status(attention=refused > 0))


def _said(
    events: Iterator[tuple[str, str]], how: How, quiet: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Print what happened to groups, a line for each, and pass it on. ``quiet``: not printed."""
    for group, what in events:
        if what in quiet:
            pass
        elif how == "json":
            sys.stdout.write(json.dumps({"group": group, "what": what}) + "\n")
        else:
            click.echo(printable(f"group {group}: {what}"))
        sys.stdout.flush()
        yield group, what
