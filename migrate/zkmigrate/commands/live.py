"""``zkmigrate live``: moves running groups between ZooKeeper and the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import wraps
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from zkconsumer.admin.text import printable
from zkconsumer.console.tables import How, format_options
from zkconsumer.console.times import duration_option
from zkconsumer.core.migration.modes import Mode, has_reached, neighbours
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZkConsumerError
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.rows import print_table
from zkmigrate.commands.running import parallel_option
from zkmigrate.commands.selection import Selection, selection
from zkmigrate.commands.servers import Servers, open_stores, server_options
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import Store

if TYPE_CHECKING:
    from zkconsumer.core.migration.gates import Facts
    from zkmigrate.apply.live import LiveMove, Step
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS = ("group", "outcome", "mode", "why")


@click.group()
def live() -> None:
    """Move running groups between ZooKeeper and the coordinator without stopping them.

    All members must be MigratableConsumerConnector. The steps are prepare, lock, to-kafka, finalize
    and, when all members are plain consumers, complete. To go back before that, use to-zookeeper
    and unlock. Each step checks whether the group is ready,
    writes the group's mode and waits until all members act on it. To resume an interrupted step,
    run the same command again, on any machine. With --all or a pattern, a step leaves out groups
    that have no migratable members.
    """


class _Stage(NamedTuple):
    """One stage of a move.

    Args:
        target: the mode whose gate is checked.
        back: whether it leads towards ZooKeeper.
        act: carries out the stage.
        always: whether the stage can be carried out before all members are migratable.
        only_check: checks whether the stage can be carried out, if that is not a gate.
    """

    target: Mode
    back: bool
    act: Callable[[LiveMove], Step]
    always: bool = False
    only_check: Callable[[LiveMove], Step] | None = None

    def check(self, move: LiveMove) -> Step:
        """Return whether the stage can be carried out."""
        if self.only_check is not None:
            return self.only_check(move)
        return move.check(self.target, self.back)

    def concerns(self, facts: Facts) -> bool:
        """Whether the stage is for a group that is not named individually."""
        if self.only_check is not None:
            return facts.mode is Mode.OPEN
        return bool(facts.members)


def _command(stage: _Stage) -> Callable[[F], F]:
    """Make a command of a stage."""

    def decorate(function: F) -> F:
        @wraps(function)
        def run(
            which: Selection,
            execute: bool,
            wait: float,
            parallel: int,
            servers: Servers,
            how: How,
        ) -> None:
            _run(stage, which, execute, wait, parallel, servers, how)

        command: Any = format_options(server_options(parallel_option(run)))
        command = duration_option(
            "--wait",
            default=60.0,
            help="How long to wait for a group's members and offsets in each step.",
        )(command)
        command = click.option(
            "--execute",
            is_flag=True,
            help="Carry out the step; without it, only check whether the group is ready.",
        )(command)
        return selection(command)  # type: ignore[no-any-return]

    return decorate


def _names(stores: Stores, which: Selection) -> list[str]:
    from zkconsumer.admin.snapshot import list_groups

    names = which.of_store(lambda: stores.zk.run(list_groups()), Store.ZOOKEEPER)
    return list(filter(is_legal_group, names))


def _run(
    stage: _Stage,
    which: Selection,
    execute: bool,
    wait: float,
    parallel: int,
    servers: Servers,
    how: How,
) -> None:
    from zkmigrate.apply.live import LiveMove, look
    from zkmigrate.apply.parallel import Parallel

    stopped = Event()

    def work(stores: Stores, name: str) -> Step | None:
        def say(text: str) -> None:
            click.echo(printable(f"group {name}: {text}"), err=True)

        move = LiveMove(stores, name, wait, say, stopped)
        if name not in which.groups and not stage.concerns(look(stores, name)):
            return None
        return stage.act(move) if execute else stage.check(move)

    rows: dict[str, tuple[object, ...]] = {}
    failed = refused = False
    with Progress("moving", changes=execute) as progress, open_stores(servers, progress) as stores:
        if not execute:
            click.echo("dry run: nothing is changed; give --execute to act", err=True)
        names = _names(stores, which)
        progress.total = len(names)
        pool = Parallel(stores.each_thread(parallel), stopped, stores.kafka.stop_waiting)
        with closing(pool.each(names, work)) as ended:
            for name, result in ended:
                fine = True
                if isinstance(result, ZkConsumerError):
                    fine = False
                    failed = True
                    rows[name] = (name, "failed", None, str(result))
                elif result is not None:
                    fine = not result.why
                    refused = refused or not fine
                    outcome = _outcome(result, execute, stage)
                    rows[name] = (name, outcome, result.mode.value, "; ".join(result.why))
                progress.group(name, fine)
    print_table("live", _COLUMNS, [rows[name] for name in names if name in rows], how)
    click.get_current_context().exit(exit_status(failed=failed, attention=refused))


def _outcome(step: Step, execute: bool, stage: _Stage) -> str:
    if step.why:
        return "refused"
    if step.changed:
        return "done"
    return "was done" if execute or has_reached(step.mode, *stage[:2]) else "would be done"


@live.command(epilog=HELP)
@selection
@parallel_option
@server_options
@format_options
def status(which: Selection, parallel: int, servers: Servers, how: How) -> None:
    """Show each group's mode, its members, and what prevents its next modes.

    A group that is not named individually is shown if it has migratable members.
    """
    from zkmigrate.apply.live import LiveMove, before_stage, look
    from zkmigrate.apply.parallel import Parallel

    def work(stores: Stores, name: str) -> tuple[Facts, tuple[str, ...]]:
        facts = look(stores, name)
        return facts, LiveMove(stores, name, 0, lambda _text: None).moved(facts.mode)

    rows: dict[str, tuple[object, ...]] = {}
    good = True
    with Progress("looking") as progress, open_stores(servers, progress) as stores:
        names = _names(stores, which)
        progress.total = len(names)
        pool = Parallel(stores.each_thread(parallel), Event(), stores.kafka.stop_waiting)
        with closing(pool.each(names, work)) as ended:
            for name, result in ended:
                progress.group(name, not isinstance(result, ZkConsumerError))
                if isinstance(result, ZkConsumerError):
                    good = False
                    rows[name] = (name, None, None, None, None, None, None, str(result))
                    continue
                facts, moved = result
                if name not in which.groups and not facts.members:
                    continue
                acked = sum(number == facts.version for number in facts.members.values())
                after = [
                    f"{mode.value}: {'; '.join(moved or before_stage(facts, mode)) or 'open'}"
                    for mode in neighbours(facts.mode)
                ]
                legacy = len(facts.registered - facts.members.keys())
                locked = "yes" if facts.ids_locked else "no"
                cells = (len(facts.members), acked, legacy, len(facts.plain))
                rows[name] = (name, facts.mode.value, locked, *cells, " | ".join(after))
    columns = ("group", "mode", "locked", "members", "acknowledged", "legacy", "plain", "gates")
    print_table("live-status", columns, [rows[name] for name in names if name in rows], how)
    click.get_current_context().exit(exit_status(failed=not good))


@live.command(epilog=HELP)
@_command(_Stage(Mode.LOCKED, False, lambda move: move.prepare(), always=True))
def prepare() -> None:
    """Give groups a mode and name the members that are not migratable.

    Restart these members as MigratableConsumerConnector, one at a time. To go back, restart them
    with the old class.
    """


@live.command(epilog=HELP)
@_command(_Stage(Mode.LOCKED, False, lambda move: move.lock()))
def lock() -> None:
    """Keep legacy consumers from starting, and plain Kafka consumers from joining.

    Refused while a member is not migratable. ZooKeeper still assigns the partitions. To go back,
    use unlock.
    """


@live.command("to-kafka", epilog=HELP)
@_command(_Stage(Mode.KAFKA, False, lambda move: move.go(Mode.KAFKA)))
def to_kafka() -> None:
    """Let the coordinator assign the partitions; offsets are stored in both stores.

    To go back, use to-zookeeper.
    """


@live.command(epilog=HELP)
@_command(_Stage(Mode.OPEN, False, lambda move: move.go(Mode.OPEN)))
def finalize() -> None:
    """Let plain Kafka consumers join.

    Then replace the members by plain consumers, one at a time. To go back when no plain consumer is
    left, use to-zookeeper.
    """


@live.command(epilog=HELP)
@_command(
    _Stage(
        Mode.ZOOKEEPER,
        True,
        lambda move: move.complete(),
        only_check=lambda move: move.complete(execute=False),
    )
)
def complete() -> None:
    """Record that the move is finished, once all members are plain Kafka consumers.

    The group then counts as moved, as after zkmigrate apply: status, plan, guard and release work
    on it, and zkmigrate plan --direction kafka-to-zk moves it back. It stays locked. With --all or
    a pattern: every such group in mode open.
    """


@live.command("to-zookeeper", epilog=HELP)
@_command(_Stage(Mode.LOCKED, True, lambda move: move.back()))
def to_zookeeper() -> None:
    """Let ZooKeeper assign the partitions again; the group stays locked.

    From mode open, the group passes through mode kafka. Refused while plain consumers are members.
    """


@live.command(epilog=HELP)
@_command(_Stage(Mode.ZOOKEEPER, True, lambda move: move.unlock()))
def unlock() -> None:
    """Let legacy consumers start again. The group is then in ZooKeeper as before."""
