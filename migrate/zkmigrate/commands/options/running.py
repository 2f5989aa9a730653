"""Shared by the commands that change groups: the plan, its journal, hooks and other options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkconsumer.console.times import duration_option
from zkmigrate.apply.hooks import Hooks
from zkmigrate.apply.journal import Journal, read_records
from zkmigrate.apply.records import begun_by
from zkmigrate.commands.options.selection import Selection
from zkmigrate.errors import MigrationError, PlanFileError
from zkmigrate.formats import plan_file
from zkmigrate.formats.plan_file import Groups, PlanFile
from zkmigrate.model import Direction
from zkmigrate.plan.values import GroupPlan, Verdict

if TYPE_CHECKING:
    from zkmigrate.apply.migrator import Migrator
    from zkmigrate.stores.sessions import Stores

F = TypeVar("F", bound=Callable[..., Any])


def journal_option(command: F) -> F:
    """Add ``--journal``."""
    return click.option(
        "--journal", metavar="FILE", help="The journal's file.  [default: PLAN.journal]"
    )(command)


def record_options(command: F) -> F:
    """Add ``--note`` and ``--approved-by``, which ``open_journal`` records."""

    def keep(context: click.Context, option: click.Parameter, text: str | None) -> None:
        context.meta[f"{__name__}.{option.name}"] = text

    note = click.option(
        "--note",
        metavar="TEXT",
        expose_value=False,
        callback=keep,
        help="Recorded in the journal, such as the number of a ticket. The report shows it.",
    )
    approved = click.option(
        "--approved-by",
        metavar="NAME",
        expose_value=False,
        callback=keep,
        help="Recorded as --note: who has approved this command.",
    )
    return note(approved(command))


def journal_path(plan_path: str, journal: str | None) -> Path:
    """Return the path of a plan's journal."""
    return Path(journal or f"{plan_path}.journal")


def load(
    path: str,
    which: Selection,
    limit: int | None = None,
    journal: Path | None = None,
    sha256: str | None = None,
) -> PlanFile:
    """Return a plan with the chosen groups.

    ``limit``: most groups, of those that are ready and not done according to the ``journal``.
    ``sha256``: the digest that the file must have. Raises PlanFileError.
    """
    loaded = plan_file.load(path)
    if sha256 is not None and sha256.lower() != loaded.digest:
        raise PlanFileError(
            f"{path}: its SHA-256 is {loaded.digest}, not that of --sha256: it is not the plan "
            "that was approved"
        )
    if limit is None and which.everything and not which.excluded:
        return loaded
    verdicts = {group.group: group.verdict for group in loaded.groups}
    names = which.among(list(verdicts), path, "name groups of the plan")
    if limit is not None:
        records = read_records(journal, loaded.digest) if journal else []
        last = {name: begun[-1]["step"] for name, begun in begun_by(records).items()}
        left = [
            name for name in names if verdicts[name] is Verdict.READY and last.get(name) != "done"
        ]
        names = left[:limit]
        click.echo(f"--limit {limit}: {len(left) - len(names)} groups are left", err=True)
    return replace(loaded, groups=_ChosenGroups(loaded.groups, set(names)))


def hook_options(command: F) -> F:
    """Add ``--before-group``, ``--after-group`` and ``--hook-timeout``, given as ``hooks``."""

    @wraps(command)
    def bundled(before_group: str, after_group: str, hook_timeout: float, **others: Any) -> Any:
        return command(hooks=Hooks(before_group, after_group, hook_timeout), **others)

    before = click.option(
        "--before-group",
        metavar="CMD",
        default="",
        help="With --execute: run this shell command before the work on each group, such as one "
        "that stops its consumers. A group for which it fails is refused.",
    )
    after = click.option(
        "--after-group",
        metavar="CMD",
        default="",
        help="Run this one afterwards, whatever the outcome. If it fails, the group needs "
        "attention. Both find the group in ZKMIGRATE_GROUP; see docs/how-to/run-unattended.md.",
    )
    limit = duration_option(
        "--hook-timeout",
        default=60.0,
        least=0.1,
        help="How long each of these commands may take.",
    )
    return before(after(limit(bundled)))  # type: ignore[return-value]


def check_cluster(plan: PlanFile, stores: Stores) -> None:
    """Check that a plan was made for this cluster, as far as that is known. Raises
    MigrationError."""
    here = stores.cluster_id()
    if plan.cluster is not None and here is not None and plan.cluster != here:
        raise MigrationError(
            f"the plan was made for the cluster {plan.cluster}, and this is {here}: correct "
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


def open_migrator(
    stores: Stores,
    plan: str,
    direction: Direction,
    parallel: int,
    hooks: Hooks,
    force: bool = False,
    lock: bool = False,
) -> Migrator:
    """Return a migrator. ``plan``: its file. Loads kafka-python, which takes long."""
    from zkmigrate.apply.migrator import Migrator

    facts = {
        "COMMAND": click.get_current_context().command.name or "",
        "PLAN": plan,
        "DIRECTION": direction.value,
        "CLUSTER": stores.cluster_id() or "",
    }
    hooks = replace(hooks, facts=facts)
    return Migrator(stores, force=force, lock=lock, parallel=parallel, hooks=hooks)


@contextmanager
def open_journal(
    path: Path,
    digest: str,
    execute: bool,
    stores: Stores,
    options: Mapping[str, object],
    which: Selection,
) -> Iterator[Journal | None]:
    """Open a journal, unless it is a dry run, and record the start of the command.

    Its options are recorded, and which groups it chose. Raises JournalError.
    """
    if not execute:
        yield None
        return
    context = click.get_current_context()
    with Journal(path, digest) as journal:
        journal.begin(
            command=context.command.name,
            version=version("zkconsumer"),
            cluster=stores.cluster_id(),
            options={**options, **which.options},
            note=context.meta.get(f"{__name__}.note"),
            approved_by=context.meta.get(f"{__name__}.approved_by"),
        )
        yield journal


class _ChosenGroups:
    """Some groups of a plan."""

    def __init__(self, groups: Groups, chosen: set[str]) -> None:
        self._groups = groups
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[GroupPlan]:
        return (group for group in self._groups if group.group in self._chosen)
