"""``zkmigrate lock`` and ``unlock``: whether old consumers of a group can start.

What they do depends on the group's case. A group that was moved to Kafka has a lock of its own. A
group in a live move is locked by its mode, for which the coordinator must be asked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import How
from zkconsumer.console.times import duration_option
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZkConsumerError, ZooKeeperError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkmigrate.apply.outcome import Result
from zkmigrate.commands.options.running import parallel_option
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import Servers, open_stores, open_zookeeper, server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.metrics import metrics_option
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.output.rows import format_options, print_json_line
from zkmigrate.commands.steps import LOCK, UNLOCK, Stage, carry_out
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import Store
from zkmigrate.stores.migration_marker import state_of

if TYPE_CHECKING:
    from zkmigrate.apply.holding import Event

F = TypeVar("F", bound=Callable[..., Any])
_POLL = 1.0
"""Seconds between two checks of the groups that are held."""


def _lock_options(verb: str) -> Callable[[F], F]:
    """Add the options of both commands."""

    def decorate(command: F) -> F:
        waiting = duration_option(
            "--wait",
            default=60.0,
            help="In a live move: how long to wait for a group's members.",
        )
        options = server_options(only_problems_option(format_options(command)))
        options = parallel_option(metrics_option(options))
        execute = click.option(
            "--execute", is_flag=True, help=f"{verb} them; without it nothing is changed."
        )
        return selection(execute(waiting(options)))

    return decorate


@click.command(epilog=HELP)
@_lock_options("Lock")
@click.option(
    "--hold",
    is_flag=True,
    help="If access lists cannot be used: keep running and own every partition of the groups "
    "until Ctrl-C.",
)
def lock(
    which: Selection,
    execute: bool,
    wait: float,
    parallel: int,
    hold: bool,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Keep old consumers from starting. A dry run unless --execute is given.

    After this, no client may create a registration below the group's ids znode, so an old consumer
    fails with NoAuth when it starts. It works on groups that were moved to Kafka, and on groups
    that live prepare has given a mode: there it also keeps plain Kafka consumers from joining, and
    is refused while a member is not migratable. Other groups are skipped; they need attention if
    --group gives their exact name.

    With --hold, locked groups are skipped, and the command ends when no unlocked group is left.
    """
    if hold:
        no_effect("--hold", "execute", "only_problems", "csv", "wait", "parallel")
        _hold(which, servers, how)
        return
    from zkmigrate.apply import guard

    now_ms = int(time.time() * 1000)
    stopped = partial(guard.lock_moved, now_ms=now_ms, execute=execute)
    _each_group("locking", LOCK, stopped, which, execute, wait, parallel, servers, only_problems,
                how)  # fmt: skip


@click.command(epilog=HELP)
@_lock_options("Unlock")
def unlock(
    which: Selection,
    execute: bool,
    wait: float,
    parallel: int,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Let old consumers start again. A dry run unless --execute is given.

    In a group that was moved to Kafka, a consumer that starts resumes from the offsets in
    ZooKeeper, so move the offsets back first. A group in a live move is refused in the modes kafka
    and open, in which the coordinator assigns its partitions.
    """
    from zkmigrate.apply import guard

    stopped = partial(guard.release, execute=execute)
    _each_group("unlocking", UNLOCK, stopped, which, execute, wait, parallel, servers,
                only_problems, how)  # fmt: skip


def _each_group(
    verb: str,
    stage: Stage,
    stopped: Callable[[str], Script[Result]],
    which: Selection,
    execute: bool,
    wait: float,
    parallel: int,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Work on each chosen group by its case; print the outcomes and exit.

    Brokers are asked only about groups in a live move.
    """
    with Outcomes(verb, execute, how, only_problems, which.groups) as outcomes:
        with open_zookeeper(servers) as zk:
            names = _chosen(which, zk)
            outcomes.progress.total = len(names)
            states = zk.run_all(or_refusal(state_of(name)) for name in names)
            live = [
                name
                for name, state in zip(names, states, strict=True)
                if isinstance(state, ZooKeeperError) or state.in_live_move
            ]
            every = frozenset(live)
            others = [name for name in names if name not in every]
            for result in zk.run_all(map(stopped, others)):
                outcomes.add(result)
        if live:
            with open_stores(servers, outcomes.progress) as stores:
                for result in carry_out(stage, stores, live, every, execute, wait, parallel):
                    outcomes.add(result)
    outcomes.finish(names)


def _chosen(which: Selection, zk: BlockingZk) -> list[str]:
    names = which.of_store(lambda: zk.run(list_groups()), Store.ZOOKEEPER)
    return list(filter(is_legal_group, names))


def _hold(which: Selection, servers: Servers, how: How) -> None:
    """Own every partition of the chosen groups until Ctrl-C; say what happens to them."""
    from zkmigrate.apply.holding import Event, Holding

    with open_zookeeper(servers) as zk:
        holding = Holding(zk, _chosen(which, zk))
        refused = 0
        try:
            bad = {Event.OTHER, Event.NOT_MOVED} if which.names else {Event.OTHER}
            quiet = set() if which.names else {Event.LOCKED, Event.NOT_MOVED}
            events = list(_said(holding.take(), how, quiet))
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
    events: Iterator[tuple[str, Event, str]], how: How, quiet: Collection[Event] = ()
) -> Iterator[Event]:
    """Print what happened to groups, a line for each, and pass it on. ``quiet``: not printed."""
    for group, event, text in events:
        if event in quiet:
            pass
        elif how == "json":
            print_json_line("hold", ("group", "what"), (group, text))
        else:
            click.echo(printable(f"group {group}: {text}"))
        sys.stdout.flush()
        yield event
