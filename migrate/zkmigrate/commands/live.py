"""``zkmigrate live``: moves running groups between ZooKeeper and the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkconsumer.admin.text import printable
from zkconsumer.cli.exclusive import at_most_one
from zkconsumer.cli.tables import How, format_options, print_rows
from zkconsumer.cli.times import duration_option
from zkconsumer.core.migration.modes import Mode, neighbours
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import ZkConsumerError
from zkmigrate.commands.progress import Progress
from zkmigrate.commands.servers import Servers, open_stores, server_options

if TYPE_CHECKING:
    from zkmigrate.apply.live import LiveMove, Step
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS = ("group", "outcome", "mode", "why")


@click.group()
def live() -> None:
    """Move running groups between ZooKeeper and the coordinator without stopping them.

    All members must be MigratableConsumerConnector. The steps are prepare, lock, to-kafka and
    finalize. To go back, use to-zookeeper and unlock. Each step checks whether the group is ready,
    writes the group's mode and waits until all members act on it. To resume an interrupted step,
    run the same command again, on any machine.
    """


def _groups(command: F) -> F:
    """Add ``GROUP...`` and ``--all-ready``, given as ``groups`` and ``all_ready``."""
    command = click.argument("groups", nargs=-1, metavar="GROUP...")(command)
    return click.option(
        "--all-ready",
        is_flag=True,
        help="Every group that has migratable members and is ready for this step.",
    )(command)


def _stage(target: Mode | None, act: Callable[[LiveMove], Step]) -> Callable[[F], F]:
    """Make a command of a stage. ``target``: the mode whose gate a dry run checks."""

    def decorate(function: F) -> F:
        @wraps(function)
        def run(
            groups: tuple[str, ...],
            all_ready: bool,
            execute: bool,
            wait: float,
            servers: Servers,
            how: How,
        ) -> None:
            _run(target, act, groups, all_ready, execute, wait, servers, how)

        command: Any = format_options(server_options(run))
        command = duration_option(
            "--wait", default=60.0, help="How long to wait in each step for members and offsets."
        )(command)
        command = click.option(
            "--execute",
            is_flag=True,
            help="Carry out the step; without it, only check whether the group is ready.",
        )(command)
        return _groups(command)  # type: ignore[no-any-return]

    return decorate


def _check_choice(groups: tuple[str, ...], all_ready: bool) -> None:
    if groups and all_ready:
        at_most_one(("GROUP", "--all-ready"))
    if not groups and not all_ready:
        raise click.UsageError("name groups, or give --all-ready")


def _names(
    stores: Stores, groups: tuple[str, ...], all_ready: bool, ready: Callable[[str], bool]
) -> list[str]:
    from zkconsumer.admin.snapshot import list_groups

    if wrong := [name for name in groups if not is_legal_topic(name)]:
        raise click.UsageError(f"{wrong[0]!r} cannot be the name of a group in ZooKeeper")
    if groups:
        return list(dict.fromkeys(groups))
    return [name for name in stores.zk.run(list_groups()) if is_legal_topic(name) and ready(name)]


def _run(
    target: Mode | None,
    act: Callable[[LiveMove], Step],
    groups: tuple[str, ...],
    all_ready: bool,
    execute: bool,
    wait: float,
    servers: Servers,
    how: How,
) -> None:
    from zkmigrate.apply.live import LiveMove, look

    _check_choice(groups, all_ready)
    if not execute:
        click.echo("dry run: nothing is changed; give --execute to act", err=True)
    rows: list[tuple[object, ...]] = []
    good = True
    with Progress("moving") as progress, open_stores(servers, progress) as stores:

        def ready(name: str) -> bool:
            try:
                facts = look(stores, name)
                if not facts.members or target is None:
                    return bool(facts.members)
                step = LiveMove(stores, name, 0, lambda _: None).check(target)
            except ZkConsumerError:
                return False
            return facts.mode is not target and not step.why

        names = _names(stores, groups, all_ready, ready)
        progress.total = len(names)
        for name in names:

            def say(text: str, name: str = name) -> None:
                click.echo(printable(f"group {name}: {text}"), err=True)

            move = LiveMove(stores, name, wait, say)
            try:
                if execute:
                    step = act(move)
                elif target is not None:
                    step = move.check(target)
                else:
                    step = move.check(Mode.LOCKED)
                fine = not step.why
                outcome = "refused" if not fine else "done" if step.changed else "was done"
                if fine and not execute:
                    outcome = "would be done"
                rows.append((name, outcome, step.mode.value, "; ".join(step.why)))
            except ZkConsumerError as error:
                fine = False
                rows.append((name, "failed", None, str(error)))
            good = good and fine
            progress.group(name, fine)
    print_rows(_COLUMNS, rows, how)
    click.get_current_context().exit(0 if good else 1)


@live.command()
@_groups
@server_options
@format_options
def status(groups: tuple[str, ...], all_ready: bool, servers: Servers, how: How) -> None:
    """Show each group's mode, its members, and what prevents its next modes.

    Exit status 1 when a group could not be read.
    """
    from zkconsumer.core.migration.gates import obstacles
    from zkmigrate.apply.live import look

    _check_choice(groups, all_ready)
    rows: list[tuple[object, ...]] = []
    good = True
    with Progress("looking") as progress, open_stores(servers, progress) as stores:

        def ready(name: str) -> bool:
            try:
                return bool(look(stores, name).members)
            except ZkConsumerError:
                return False

        for name in _names(stores, groups, all_ready, ready):
            try:
                facts = look(stores, name)
            except ZkConsumerError as error:
                good = False
                rows.append((name, None, None, None, None, None, None, str(error)))
                continue
            acked = sum(number == facts.version for number in facts.members.values())
            after = [
                f"{mode.value}: {'; '.join(obstacles(facts, mode)) or 'open'}"
                for mode in neighbours(facts.mode)
            ]
            legacy = len(facts.registered - facts.members.keys())
            locked = "yes" if facts.ids_locked else "no"
            cells = (len(facts.members), acked, legacy, len(facts.plain))
            rows.append((name, facts.mode.value, locked, *cells, " | ".join(after)))
    columns = ("group", "mode", "locked", "members", "acknowledged", "legacy", "plain", "gates")
    print_rows(columns, rows, how)
    click.get_current_context().exit(0 if good else 1)


@live.command()
@_stage(None, lambda move: move.prepare())
def prepare() -> None:
    """Give groups a mode and name the members that are not migratable.

    Restart these members as MigratableConsumerConnector, one at a time. To go back, restart them
    with the old class. The exit status is 1 while there are any.
    """


@live.command()
@_stage(Mode.LOCKED, lambda move: move.lock())
def lock() -> None:
    """Keep legacy consumers from starting, and plain Kafka consumers from joining.

    Refused while a member is not migratable. ZooKeeper still assigns the partitions. To go back,
    use unlock. The exit status is 1 if a group is refused.
    """


@live.command("to-kafka")
@_stage(Mode.KAFKA, lambda move: move.go(Mode.KAFKA))
def to_kafka() -> None:
    """Let the coordinator assign the partitions; offsets are stored in both stores.

    To go back, use to-zookeeper. The exit status is 1 if a group is refused.
    """


@live.command()
@_stage(Mode.OPEN, lambda move: move.go(Mode.OPEN))
def finalize() -> None:
    """Let plain Kafka consumers join.

    Then replace the members by plain consumers, one at a time. To go back when no plain consumer is
    left, use to-zookeeper. The exit status is 1 if a group is refused.
    """


@live.command("to-zookeeper")
@_stage(Mode.LOCKED, lambda move: move.back())
def to_zookeeper() -> None:
    """Let ZooKeeper assign the partitions again; the group stays locked.

    From mode open, the group passes through mode kafka. Refused while plain consumers are members.
    The exit status is 1 if a group is refused.
    """


@live.command()
@_stage(Mode.ZOOKEEPER, lambda move: move.unlock())
def unlock() -> None:
    """Let legacy consumers start again. The group is then in ZooKeeper as before.

    Exit status 1 when a group is refused.
    """
