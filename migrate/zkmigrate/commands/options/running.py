"""Options of the commands that change groups: the plan, its journal, hooks and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from zkconsumer.console.tables import How, execute_option
from zkconsumer.console.times import duration_option
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import Journal, check_writable, read_records
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import begun_by
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.metrics import metrics_option
from zkmigrate.commands.output.rows import format_options
from zkmigrate.errors import MigrationError, PlanFileError
from zkmigrate.formats import plan_file
from zkmigrate.formats.plan_file import Groups, PlanFile
from zkmigrate.model import Direction
from zkmigrate.plan.values import GroupPlan, Verdict
from zkmigrate.stores.cluster import Servers

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])


class Work(NamedTuple):
    """The options of a command that changes groups. See ``work_options``, and each option's help.

    Without ``execute`` it is a dry run. ``wait``: seconds. ``how``: the format of the rows.
    """

    which: Selection
    execute: bool
    wait: float
    parallel: int
    hooks: Hooks
    journal: str | None
    note: str | None
    approved_by: str | None
    servers: Servers
    only_problems: bool
    how: How


def work_options(
    waits: str = "In a live move: how long to wait for a group's members.",
    wait: float = 60.0,
    journal: str = "zkmigrate-COMMAND.journal",
) -> Callable[[F], F]:
    """Add the options that are common to all commands that change groups. The command receives them
    as ``work``.

    ``waits``: the help of ``--wait``; empty if there is no such option. ``journal``: the default of
    ``--journal``, for its help.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def bundled(
            before_group: str,
            after_group: str,
            hook_timeout: float,
            wait: float = 0.0,
            **others: Any,
        ) -> Any:
            hooks = Hooks(before_group, after_group, hook_timeout)
            own = {name: others.pop(name) for name in Work._fields if name in others}
            return command(work=Work(hooks=hooks, wait=wait, **own), **others)

        for option in (
            format_options,
            only_problems_option,
            server_options,
            metrics_option,
            *reversed(_RECORDED),
            journal_option(journal),
            parallel_option,
            *reversed(_HOOKS),
            *((duration_option("--wait", default=wait, help=waits),) if waits else ()),
            execute_option,
            selection,
        ):
            bundled = option(bundled)
        return bundled  # type: ignore[return-value]

    return decorate


def journal_option(default: str) -> Callable[[F], F]:
    """Return ``--journal``. ``default``: shown in its help."""
    return click.option("--journal", metavar="FILE", help=f"Journal file.  [default: {default}]")


def journal_path(plan: str | None, journal: str | None) -> Path:
    """Return the path of a command's journal. ``plan``: the plan's path. ``journal``: the path that
    the operator named."""
    command = click.get_current_context().command.name
    return Path(journal or (f"zkmigrate-{command}.journal" if plan is None else f"{plan}.journal"))


def load(
    path: str,
    which: Selection,
    limit: int | None = None,
    journal: Path | None = None,
    sha256: str | None = None,
    elsewhere: bool = False,
) -> PlanFile:
    """Read a plan file, and return the plan for the chosen groups. Raises PlanFileError.

    ``limit``: the largest number of groups to move. Groups that are not ready, or are already done
    or rolled back according to the ``journal``, do not count. ``sha256``: the digest that the file
    must have. ``elsewhere``: accept a plan for another cluster.
    """
    loaded = plan_file.load(path, elsewhere)
    if sha256 is not None and sha256.lower() != loaded.digest:
        raise PlanFileError(
            f"{path}: its SHA-256 is {loaded.digest}, which differs from --sha256: this is not "
            "the approved plan"
        )
    if limit is None and which.everything and not which.excluded:
        return loaded
    verdicts = {group.group: group.verdict for group in loaded.groups}
    names = which.among(list(verdicts), path, "name groups of the plan")
    if limit is not None:
        records = read_records(journal, loaded.digest) if journal else []
        last = {name: begun[-1]["step"] for name, begun in begun_by(records).items()}
        left = [
            name
            for name in names
            if verdicts[name] is Verdict.READY and last.get(name) not in ("done", "undo-done")
        ]
        names = left[:limit]
        click.echo(f"--limit {limit}: {len(left) - len(names)} groups are left", err=True)
    return replace(loaded, groups=_ChosenGroups(loaded.groups, set(names)))


_RECORDED: Final = (
    click.option(
        "--note",
        metavar="TEXT",
        help="A remark for the journal and the report, such as a ticket number.",
    ),
    click.option(
        "--approved-by",
        metavar="NAME",
        help="Who approved this command. Recorded like --note.",
    ),
)
_HOOKS: Final = (
    click.option(
        "--before-group",
        metavar="CMD",
        default="",
        help="With --execute: run this shell command before the work on each group, for example to "
        "stop its consumers. If the command fails, the group is refused.",
    ),
    click.option(
        "--after-group",
        metavar="CMD",
        default="",
        help="Run this shell command after the work on each group, even if the group is refused or "
        "fails. If the command fails, the group needs attention. It does not run if Ctrl-C ends "
        "the wait for the group, or after a second Ctrl-C. Like the command of --before-group, it "
        "gets the group's name in the environment variable ZKMIGRATE_GROUP.",
    ),
    duration_option(
        "--hook-timeout",
        default=60.0,
        least=0.1,
        help="How long each command of --before-group and --after-group may take.",
    ),
)


def check_cluster(plan: PlanFile, stores: Stores) -> None:
    """Check that a plan was made for this cluster, if both ids are known. Raises MigrationError."""
    here = stores.cluster_id()
    if plan.cluster is not None and here is not None and plan.cluster != here:
        raise MigrationError(
            f"the plan was made for the cluster {plan.cluster}, but this is {here}: correct "
            "--zookeeper, or make a new plan"
        )


def parallel_option(command: F) -> F:
    """Add ``--parallel``."""
    return click.option(
        "--parallel",
        type=click.IntRange(min=1, max=64),
        metavar="N",
        default=8,
        show_default=True,
        help="How many groups to work on at a time.",
    )(command)


@contextmanager
def open_run(
    work: Work,
    cluster: str | None,
    options: Mapping[str, object],
    direction: Direction | None = None,
    plan: str | None = None,
    digest: str = "",
    journal: Path | None = None,
    idle: bool = False,
) -> Iterator[Run]:
    """Open the journal of a command, unless it is a dry run, and record its start and options.

    A dry run only reads the journal, and checks that it could be written. ``direction`` and the
    file ``plan`` are passed to the hooks. ``digest``: the plan's digest. A command without a plan
    has its own journal. ``idle``: see ``Run``. Raises JournalError.
    """
    command = str(click.get_current_context().command.name)
    facts = {
        "COMMAND": command,
        "PLAN": plan or "",
        "DIRECTION": "" if direction is None else direction.value,
        "CLUSTER": cluster or "",
    }
    hooks = replace(work.hooks, facts=facts)
    where = journal or journal_path(plan, work.journal)
    if not work.execute:
        check_writable(where)
        yield Run(None, hooks, idle, read_records(where, digest or command))
        return
    with Journal(where, digest or command) as opened:
        opened.begin(
            command=command,
            version=version("zkconsumer"),
            cluster=cluster,
            options={
                "wait": work.wait,
                "parallel": work.parallel,
                **options,
                **hooks.commands,
                **work.which.options,
            },
            note=work.note,
            approved_by=work.approved_by,
        )
        yield Run(opened, hooks, idle)


class _ChosenGroups:
    """The chosen groups of a plan."""

    def __init__(self, groups: Groups, chosen: set[str]) -> None:
        self._groups = groups
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[GroupPlan]:
        return (group for group in self._groups if group.group in self._chosen)
