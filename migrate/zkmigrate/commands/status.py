"""``zkmigrate status``."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import click

from zkconsumer.admin.ids_lock import Found, Guard
from zkconsumer.admin.snapshot import list_groups
from zkconsumer.console.tables import How
from zkconsumer.core.migration.modes import Mode, neighbours
from zkconsumer.errors import ZkConsumerError, ZooKeeperError
from zkmigrate.commands.options.running import journal_option, journal_path, load
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import reading, server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.comparison import look_at_plan
from zkmigrate.commands.output.rows import format_options
from zkmigrate.commands.output.watch import Look, look_once_or_often, watch_option
from zkmigrate.errors import MigrationError
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.status import (
    LOCK_UNKNOWN,
    Status,
    differing,
    only_in_kafka,
    status_of,
    unknown,
)
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers
from zkmigrate.text import unlisted_note

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores


@click.command(epilog=HELP)
@click.argument("plan", required=False)
@selection
@click.option(
    "--strict",
    is_flag=True,
    help="With PLAN: an offset that new consumers have moved forward also needs attention.",
)
@journal_option("PLAN.journal")
@watch_option
@server_options
@only_problems_option
@format_options
def status(
    plan: str | None,
    which: Selection,
    strict: bool,
    journal: str | None,
    watch: float | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Show each group's current store, and what needs attention.

    For each group in either store it shows its case, which store is current (zookeeper, kafka,
    both, moving), members and lag on both sides, partitions of the source store that have changed
    since the move, whether old consumers are locked out, and days until the broker deletes the
    offsets. For a group in a live move it shows the mode, and what prevents the next modes.

    With PLAN, it shows each difference between the plan and both stores: behind (the target has no
    offset, or a lower one), source-moved-on (the source store has changed since the move), ahead
    (the new consumers have made progress), not-moved, unreadable, stays-behind (left out by the
    plan), ignored (by a decision). The first two and not-moved need attention, with --strict also
    ahead.
    """
    if plan is None:
        for option, given in (("--strict", strict), ("--journal", journal)):
            if given:
                raise click.UsageError(f"{option} has no effect without PLAN")
        look = partial(_look, which, servers, only_problems, how)
    else:
        loaded = load(plan, which)
        where = journal_path(plan, journal)
        look = partial(look_at_plan, loaded, where, servers, strict, only_problems, how)
    click.get_current_context().exit(look_once_or_often(look, watch, how))


def _look(which: Selection, servers: Servers, only_problems: bool, how: How) -> Look:
    from zkmigrate.apply import guard
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    rows: list[Status] = []
    failed = False
    with reading(servers, "looking", "need attention") as (progress, stores):
        names = which.of_store(partial(names_of_both, stores), Store.ZOOKEEPER)
        progress.total = len(names)
        now_ms = int(time.time() * 1000)
        retention = stores.retention()
        in_zookeeper = set(stores.zk.run(list_groups()))
        locks = dict(guard.look_at_all(stores.zk, names))
        for state in read_states(stores, names, {}, False):
            if isinstance(state, GroupState):
                first = state if differing(state) else None
                if first is not None:
                    (again,) = read_states(stores, [state.group], {}, False)
                    state = again if isinstance(again, GroupState) else state
                locked = _locked(locks[state.group], state)
                row, broken = status_of(state, locked, now_ms, retention, first)
                if state.in_live_move:
                    row, lost = _with_modes(stores, row)
                    broken = broken or lost
            elif state[1].kind is Reason.BAD_NAME and state[0] not in in_zookeeper:
                row, broken = only_in_kafka(state[0]), False
            else:
                name, problem = state
                text = f"{problem.what}: {problem.fix}"
                row, broken = unknown(name, text, problem.kind), True
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
    if stores.unlisted and not which.all_named:
        said, failed = f"{said}; {unlisted_note(stores.unlisted)}", True
    ended = exit_status(failed=failed, attention=attention > 0)
    return Look("status", 1, rows, said, ended)


def _locked(lock: Found | ZooKeeperError, state: GroupState) -> str:
    """Return a word for the row: whether old consumers of a group are locked out."""
    if isinstance(lock, ZooKeeperError):
        return LOCK_UNKNOWN
    if state.moved_to is Store.KAFKA and lock.lets_live_in:
        return Guard.OPEN.value  # left by a live move that never began
    return lock.guard.value


def _with_modes(stores: Stores, row: Status) -> tuple[Status, bool]:
    """Add a live group's mode, and what prevents the next modes. Return whether that failed."""
    from zkmigrate.apply.live import before_stage, look
    from zkmigrate.commands.steps import perform

    try:
        facts = perform(stores, look(row.group))
    except ZkConsumerError as error:
        return _needs(row, Reason.UNREADABLE, str(error)), True
    if facts.all_locked and facts.mode is not Mode.ZOOKEEPER:
        text = "migratable members cannot start: run zkmigrate complete, or the last step again"
        row = _needs(row, Reason.LOCKED, text)
    after = [
        f"{mode.value}: {'; '.join(before_stage(facts, mode)) or 'open'}"
        for mode in neighbours(facts.mode)
    ]
    return row._replace(mode=facts.mode.value, next_modes=" | ".join(after)), False


def _needs(row: Status, reason: Reason, text: str) -> Status:
    attention = "; ".join(filter(None, (row.attention, text)))
    return row._replace(attention=attention, reasons=(*row.reasons, reason))


def names_of_both(stores: Stores) -> list[str]:
    """Return the names of the groups in both stores. Brokers before 0.9 cannot list groups."""
    names = set(stores.zk.run(list_groups()))
    try:
        names |= set(stores.group_names(Store.KAFKA))
    except MigrationError as error:
        click.echo(f"note: {error}", err=True)
    return sorted(names)
