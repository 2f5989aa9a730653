"""Plans the chosen groups, and summarizes the plans."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from zkconsumer.console.tables import How, print_notes
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ZooKeeperError
from zkmigrate.apply import guard
from zkmigrate.commands.output.cells import problem_cells
from zkmigrate.commands.output.progress import Progress
from zkmigrate.commands.output.rows import print_table
from zkmigrate.exits import exit_status
from zkmigrate.model import Direction, GroupState
from zkmigrate.plan import findings
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options, Skip, covers
from zkmigrate.plan.values import LIVE, GroupPlan, Problem, ReadAs, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.text import Note, unlisted_note

if TYPE_CHECKING:
    from zkmigrate.commands.options.layout import FromLayout
    from zkmigrate.stores.sessions import Stores

_NO_WAY_BACK: Final = (
    "a rollback would fail: allow zkmigrate to delete this group in Kafka (Delete on the group)"
)


def plan_groups(
    stores: Stores,
    direction: Direction,
    options: Options,
    groups: Sequence[str],
    progress: Progress,
    from_file: Mapping[str, Mapping[TopicPartition, int]] | None = None,
    may_run: bool = False,
    renamed: Mapping[str, str] | None = None,
    layout: FromLayout | None = None,
    elsewhere: bool = False,
) -> Iterator[GroupPlan]:
    """Yield the plan of each group. A group that cannot be read gets a plan with a problem.

    ``may_run``: plan groups even if they have members. ``renamed``: groups' names in Kafka, if
    different. ``layout``: the znode layout from which ``from_file`` was read; ``None`` if it is
    from a file. ``elsewhere``: the plans are for another cluster, and this one is not changed.
    """
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    progress.total = len(groups)
    now_ms = int(time.time() * 1000)
    here_to_kafka = direction is Direction.ZK_TO_KAFKA and not elsewhere
    retention = stores.retention() if here_to_kafka else None
    times = options.needs_commit_times
    closed, unlockable = _without_rights(stores, () if elsewhere else groups)
    ignored = {name: why for name in groups if (why := options.ignored(name))}
    for name, why in ignored.items():
        yield GroupPlan(name, notes=(f"is ignored: {why}",), ignored=why)
        progress.group(name, True)
    wanted = [name for name in groups if name not in ignored]
    in_kafka = {(renamed or {}).get(name, name): name for name in wanted}
    no_way_back = (
        {in_kafka[name] for name in stores.kafka.undeletable(in_kafka)} if here_to_kafka else set()
    )
    for state in read_states(stores, wanted, from_file or {}, times, renamed):
        if isinstance(state, GroupState):
            if layout is not None:
                place, znodes = layout.place, layout.znodes
                below = tuple(one for one in state.foreign if not place.covers(one))
                state = replace(state, layout=place.name, layout_zk=znodes, foreign=below)
            plan = plan_group(state, direction, options, now_ms, retention)
            if layout is not None:
                plan = replace(plan, layout=ReadAs(str(layout.place), layout.numbers))
        elif state[1].kind is Reason.UNREADABLE and options.skips_all(state[0]):
            why = f"it is skipped, and cannot be read: {state[1].what}"
            plan = GroupPlan(state[0], notes=(why,), ignored=why)
        else:
            plan = GroupPlan(state[0], (state[1],))
        if plan.group in no_way_back and not plan.moved:
            plan = replace(plan, notes=(*plan.notes, _NO_WAY_BACK))
        if may_run and any(one.kind in LIVE for one in plan.problems):
            others = tuple(one for one in plan.problems if one.kind not in LIVE)
            note = "its members run: stop them before or during apply"
            plan = replace(plan, problems=others, notes=(*plan.notes, note))
        if plan.group in unlockable and here_to_kafka and not plan.moved:
            note = "cannot be locked: let zkmigrate change the access list of its ids znode (ADMIN)"
            plan = replace(plan, notes=(*plan.notes, note))
        if plan.group in closed and not plan.moved and not plan.ignored:
            plan = replace(plan, problems=(*plan.problems, closed[plan.group]))
        yield plan
        progress.group(plan.group, not plan.problems)


def _without_rights(stores: Stores, groups: Sequence[str]) -> tuple[dict[str, Problem], set[str]]:
    """Return the problem of each group in which the migrator cannot register as required.

    Includes groups that it may not lock.
    """
    closed: dict[str, Problem] = {}
    unlockable: set[str] = set()
    for name, found in guard.look_at_all(stores.zk, groups):
        if isinstance(found, ZooKeeperError):
            continue
        if not found.may_register(stores.zk.identities):
            closed[name] = findings.problem(
                Reason.CLOSED,
                f"/consumers/{name}/ids: its access list does not let zkmigrate register",
                "allow its identity, as --command-config gives it, to create znodes there",
            )
        if not found.may_lock(stores.zk.identities):
            unlockable.add(name)
    return closed, unlockable


class Summary:
    """Collects rows, notes and counts from the plans that pass through ``watch``.

    ``how``: the format; only a table shortens lists of names. ``only_problems``: hide the rows of
    groups that are ready. ``skips``: the operator's values of ``--skip``.
    """

    def __init__(self, how: How, only_problems: bool, skips: Iterable[Skip]) -> None:
        self.how = how
        self.only_problems = only_problems
        self.kinds: Counter[Reason] = Counter()
        self.unlisted: Sequence[str] = ()
        """Partitions whose groups Kafka could not list. Set before ``print_all``."""
        self.away = False
        """Whether brokers of another cluster did not answer."""
        self.rows: list[tuple[object, ...]] = []
        self.notes: dict[str, list[str]] = {}
        self.verdicts: Counter[Verdict] = Counter()
        self.unused = set(skips)

    def watch(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """Yield the plans unchanged, and collect the data for the summary."""
        for plan in plans:
            self.verdicts[plan.verdict] += 1
            for note in plan.notes:
                self.notes.setdefault(_short(note), []).append(plan.group)
            self.unused -= {
                skip
                for skip in self.unused
                if skip.is_of(plan.group)
                and any(covers(frozenset({skip.pattern}), one.tp) for one in plan.stays)
            }
            head = (
                plan.group,
                plan.verdict.value,
                len(plan.entries),
                sum(entry.write for entry in plan.entries),
            )
            notes = "; ".join(plan.notes)
            self.kinds.update({problem.kind for problem in plan.problems})
            for problem in plan.problems or (() if self.only_problems else (None,)):
                texts = ("", "", "") if problem is None else problem_cells(problem, self.how)
                self.rows.append((*head, *texts, notes, plan.stays, plan.kafka_group))
            yield plan

    def print_all(self) -> None:
        """Print rows, notes and counts."""
        print_table("plan", self.rows, self.how)
        if self.how == "table":  # the notes of many groups are alike: once below it
            groups = sum(self.verdicts.values())
            for note, named in self.notes.items():
                whose = f"{len(named)} groups" if len(named) > 1 else f"group {named[0]}"
                print_notes([note + (f" ({whose})" if groups > 1 else "")])
        print_notes(
            f"--skip {skip.group}:{skip.pattern} keeps no offset from being moved"
            for skip in sorted(self.unused)
        )
        if self.unlisted:
            print_notes([unlisted_note(self.unlisted)])
        counts = [f"{self.verdicts[one]} {one.value}" for one in Verdict]
        click.echo(", ".join(counts), err=True)
        if self.kinds:
            by_kind = [f"{count} {kind.value}" for kind, count in self.kinds.most_common()]
            click.echo(f"groups by problem: {', '.join(by_kind)}", err=True)

    @property
    def status(self) -> int:
        """The exit status of the command."""
        good = {Verdict.READY, Verdict.MOVED, Verdict.IGNORED}
        away = self.away or bool(self.unlisted) or Reason.COORDINATOR_AWAY in self.kinds
        return exit_status(failed=away, attention=bool(set(self.verdicts) - good))


def _short(note: str) -> str:
    return note.short if isinstance(note, Note) else note
