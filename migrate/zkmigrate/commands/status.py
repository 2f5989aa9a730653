"""``zkmigrate status``."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import click

from zkconsumer.admin.snapshot import list_groups
from zkconsumer.console.collector import no_collector
from zkconsumer.console.tables import How, format_options
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.commands.cells import in_columns, only_problems_option
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.commands.watch import Look, look_once_or_often, watch_option
from zkmigrate.errors import MigrationError
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.status import Status, only_in_kafka, status_of, unknown
from zkmigrate.plan.values import Kind

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores


@click.command(epilog=HELP)
@selection
@watch_option
@server_options
@only_problems_option
@format_options
def status(
    which: Selection, watch: float | None, servers: Servers, only_problems: bool, how: How
) -> None:
    """Show which store is current for each group, and which groups need attention.

    For each group of either store it shows: which store is current (zookeeper, kafka, both,
    moving), members on both sides, lag in both stores, partitions of the source store that have
    changed since the move, whether old consumers are locked out, and days until the broker deletes
    the offsets. For a group that is moved while it runs, the column moved shows its mode.
    """
    look = partial(_look, which, servers, only_problems, how)
    click.get_current_context().exit(look_once_or_often(look, watch, how))


def _look(which: Selection, servers: Servers, only_problems: bool, how: How) -> Look:
    from zkmigrate.apply import guard
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    rows: list[Status] = []
    failed = False
    with (
        no_collector(),
        Progress("looking", bad="need attention") as progress,
        open_stores(servers, progress) as stores,
    ):
        names = which.of_store(partial(names_of_both, stores), Store.ZOOKEEPER)
        progress.total = len(names)
        now_ms = int(time.time() * 1000)
        retention = stores.retention()
        in_zookeeper = set(stores.zk.run(list_groups()))
        legal = list(filter(is_legal_group, names))
        locks = stores.zk.run_all(or_refusal(guard.look(name)) for name in legal)
        locked = {
            name: "unknown" if isinstance(lock, ZooKeeperError) else lock.guard.value
            for name, lock in zip(legal, locks, strict=True)
        }
        for state in read_states(stores, names, {}, False):
            if isinstance(state, GroupState):
                row, broken = status_of(state, locked[state.group], now_ms, retention)
            elif state[1].kind is Kind.BAD_NAME and state[0] not in in_zookeeper:
                row, broken = only_in_kafka(state[0]), False
            else:
                name, problem = state
                row, broken = unknown(name, f"{problem.what}: {problem.fix}"), True
            rows.append(row)
            failed = failed or broken
            progress.group(row.group, not row.attention)
    truths = Counter(row.truth for row in rows)
    parts = [f"{count} {truth}" for truth, count in truths.most_common()]
    attention = sum(bool(row.attention) for row in rows)
    if attention:
        parts.append(f"{attention} need attention")
    if only_problems:
        rows = [row for row in rows if row.attention]
    said = f"groups: {', '.join(parts)}"
    columns, cells = in_columns(Status._fields, rows, how)
    ended = exit_status(failed=failed, attention=attention > 0)
    return Look("status", columns, 1, cells, said, ended)


def names_of_both(stores: Stores) -> list[str]:
    """The groups of both stores; brokers before 0.9 cannot list theirs."""
    names = set(stores.zk.run(list_groups()))
    try:
        names |= set(stores.group_names(Store.KAFKA))
    except MigrationError as error:
        click.echo(f"note: {error}", err=True)
    return sorted(names)
