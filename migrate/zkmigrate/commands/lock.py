"""``zkmigrate lock`` and ``unlock``: whether old consumers of a group can start.

The effect depends on the group's case. A group that was moved to Kafka has its own lock. A group in
a live move is locked by its mode, which requires a request to the coordinator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.reads import cluster_id
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import How
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.errors import ZkConsumerError
from zkmigrate.apply.outcome import Result
from zkmigrate.commands.options.running import Work, open_run, work_options
from zkmigrate.commands.options.selection import Selection
from zkmigrate.commands.options.servers import open_stores, open_zookeeper
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.output.rows import print_json_line
from zkmigrate.commands.steps import (
    LOCK,
    UNLOCK,
    Stage,
    by_move,
    carry_out,
    carry_out_stopped,
    legal_names,
)
from zkmigrate.exits import HELP, exit_status
from zkmigrate.stores.cluster import Servers

if TYPE_CHECKING:
    from zkmigrate.apply.holding import Event

_POLL = 1.0
"""Seconds between two checks of the groups that are held."""


@click.command(epilog=HELP)
@work_options()
@click.option(
    "--hold",
    is_flag=True,
    help="If ZooKeeper does not enforce ACLs: keep running, and own every partition of the "
    "groups until Ctrl-C.",
)
def lock(work: Work, hold: bool) -> None:
    """Keep old consumers from starting.

    Afterwards, no client may create a registration below the group's ids znode, so an old consumer
    fails with NoAuth when it starts. The command locks groups that were moved to Kafka, and groups
    for which 'zkmigrate live prepare' has set a mode. Other groups are skipped.

    With --hold, the command ends when no group is held any more.
    """
    if hold:
        unused = ("execute", "only_problems", "csv", "wait", "parallel", "before_group",
                  "after_group", "hook_timeout", "journal", "note", "approved_by")  # fmt: skip
        no_effect("--hold", *unused)
        _hold(work.which, work.servers, work.how)
        return
    from zkmigrate.apply import guard

    _each_group("locking", LOCK, guard.lock_moved, work)


@click.command(epilog=HELP)
@work_options()
def unlock(work: Work) -> None:
    """Let old consumers start again.

    In a group that was moved to Kafka, a consumer that starts resumes from the offsets in
    ZooKeeper, so move the offsets back first. A group in a live move is refused in the modes
    'kafka' and 'open', in which the coordinator assigns its partitions.
    """
    from zkmigrate.apply import guard

    _each_group("unlocking", UNLOCK, guard.release, work)


def _each_group(
    verb: str, stage: Stage, stopped: Callable[[str, bool], Script[Result]], work: Work
) -> None:
    """Work on each chosen group according to its case, print the outcomes and exit.

    Brokers are asked only about groups in a live move.
    """
    with Outcomes(verb, work, work.which.groups) as outcomes, open_zookeeper(work.servers) as zk:
        names = legal_names(work.which, zk, outcomes.add)
        outcomes.progress.total = len(names)
        live, still = by_move(zk, names)
        with open_run(work, zk.run(cluster_id()), {}, stage.direction) as run:
            for result in carry_out_stopped(stage, run, zk, still, stopped, work):
                outcomes.add(result)
            if live:
                with open_stores(work.servers, outcomes.progress) as stores:
                    for result in carry_out(stage, run, stores, live, frozenset(live), work):
                        outcomes.add(result)
    outcomes.finish(names)


def _hold(which: Selection, servers: Servers, how: How) -> None:
    """Own every partition of the chosen groups until Ctrl-C, and print events."""
    from zkmigrate.apply.holding import Event, Holding

    with open_zookeeper(servers) as zk:
        bad_names: list[Result] = []
        holding = Holding(zk, legal_names(which, zk, bad_names.append))
        unusable = ((one.group, Event.OTHER, one.why) for one in bad_names)
        refused = 0
        try:
            bad = {Event.OTHER, Event.NOT_MOVED} if which.names else {Event.OTHER}
            quiet = set() if which.names else {Event.LOCKED, Event.NOT_MOVED}
            events = list(_said(chain(unusable, holding.take()), how, quiet))
            refused = sum(event in bad for event in events)
            others = sum(event in quiet for event in events)
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
    events: Iterable[tuple[str, Event, str]], how: How, quiet: Collection[Event] = ()
) -> Iterator[Event]:
    """Print events of groups, one line for each, and yield them. ``quiet``: events that are not
    printed."""
    for group, event, text in events:
        if event in quiet:
            pass
        elif how == "json":
            print_json_line("hold", ("group", "what"), (group, text))
        else:
            click.echo(printable(f"group {group}: {text}"))
        sys.stdout.flush()
        yield event
