"""``zkmigrate mirror``, ``cut-over`` and ``complete``: keep both stores of a group in step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Final

import click

from zkconsumer.admin.printable import printable
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import no_effect, only_with
from zkconsumer.console.tables import How, execute_option
from zkconsumer.console.times import duration_option
from zkconsumer.errors import ZkConsumerError
from zkmigrate.apply.outcome import Outcome, Result, result_of
from zkmigrate.apply.parallel import Run
from zkmigrate.commands.clusters.to_cluster import (
    ToCluster,
    names_there,
    open_other,
    target_options,
)
from zkmigrate.commands.options.renaming import new_names
from zkmigrate.commands.options.running import Work, open_run, work_options
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import open_stores, server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.metrics import metrics_option
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.output.progress import Progress
from zkmigrate.commands.output.rows import format_options
from zkmigrate.commands.output.watch import Look, look_once_or_often
from zkmigrate.commands.steps import COMPLETE, Stage, by_move, carry_out, legal_names
from zkmigrate.errors import refused
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import Direction, Store
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers

if TYPE_CHECKING:
    from zkmigrate.mirror.across import Across
    from zkmigrate.mirror.mirroring import Mirroring
    from zkmigrate.mirror.step import Step
    from zkmigrate.stores.contents import OtherCluster
    from zkmigrate.stores.sessions import Stores

    Act = Callable[[Mirroring, str, bool, float], Result]

_POLL: Final = 1.0
_PATIENCE: Final = 4.0
"""Seconds after which a group is reported as failed if its coordinator does not answer."""
_SESSION: Final = 6.0
"""Seconds after which ZooKeeper is reported as unavailable, and a killed mirror's
session expires."""


@click.command(epilog=HELP)
@selection
@execute_option
@click.option(
    "--lead",
    type=click.Choice([one.value for one in Store]),
    help="The store whose offsets are correct. Where the stores differ at the start, or after the "
    "mirror has stopped, the other store gets these offsets. With --to-cluster, they are "
    "translated, and no store is changed.",
)
@click.option(
    "--when-empty",
    is_flag=True,
    help="Cut a group over as soon as its last old member has left, if this process has seen one "
    "since it connected to ZooKeeper, or if a cut-over has begun. A member whose session has ended "
    "counts as having left, even if its program still runs. It is locked out until zkmigrate undo.",
)
@click.option(
    "--end",
    is_flag=True,
    help="Stop mirroring the groups; only while ZooKeeper leads. A cut-over in progress is undone.",
)
@click.option("--once", is_flag=True, help="Copy the differences once, then exit.")
@duration_option(
    "--poll",
    default=_POLL,
    least=0.1,
    help="If Kafka leads, how often it is read. If ZooKeeper leads, how often changes are copied. "
    "Kafka is then read every ten seconds, or less often with more than 600 groups.",
)
@target_options(
    "Keep the offsets in this cluster, which mirrors the topics, in step with the group's own "
    "offsets. Without --execute, show how far they are behind."
)
@metrics_option
@server_options
@only_problems_option
@format_options
def mirror(
    which: Selection,
    execute: bool,
    lead: str | None,
    when_empty: bool,
    end: bool,
    once: bool,
    poll: float,
    elsewhere: ToCluster | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Keep groups' offsets in step in both stores.

    Each offset that is stored in the leading store is copied to the other store, until you run
    zkmigrate complete, or this command with --end. ZooKeeper leads first; after zkmigrate cut-over
    Kafka leads. So the old program can resume at any time where the new one stopped: see zkmigrate
    undo.

    The command runs until Ctrl-C, and prints a row when the state of a group changes. If it is
    killed, run it again, on any machine. A second process for the same groups is on standby. Groups
    are chosen when the command begins.

    The mirror stops copying a group if members run on both sides, or if a client has committed to
    the store that does not lead. The group's row shows the offsets of both stores. To continue,
    start the mirror again with --lead.

    With --to-cluster, the mirror finds each offset's record in the other cluster, as zkmigrate plan
    does, and stores proven offsets there. Hand the group over with zkmigrate cut-over --to-cluster.
    """
    if end and (lead or when_empty or once):
        raise click.UsageError("--end cannot be used together with --lead, --when-empty or --once")
    often = None if once or end or not execute else poll
    if often is not None:  # other groups wait meanwhile, and it is asked again soon
        shorter = min(servers.coordinator_timeout, _PATIENCE)
        timeout = min(servers.timeout, _SESSION)
        servers = servers._replace(coordinator_timeout=shorter, timeout=timeout)
    if elsewhere is not None:
        no_effect("--to-cluster", "when_empty", "end")
        elsewhere = elsewhere._replace(lead=None if lead is None else Store(lead))
        status = _mirror_elsewhere(which, execute, often, elsewhere, servers, only_problems, how)
        click.get_current_context().exit(status)
    with Progress("mirroring", changes=False) as progress, open_stores(servers, progress) as stores:
        from zkmigrate.mirror.mirroring import READ_AGAIN_S, Mirroring

        names = legal_names(which, stores.zk)
        progress.total = len(names)
        mirroring = Mirroring(stores, lambda text: click.echo(printable(text), err=True))
        leader = None if lead is None else Store(lead)
        if not execute:
            click.echo("dry run: nothing was changed; give --execute to act", err=True)
        begun: dict[str, Result] = {}
        tried = 0.0

        def begin(some: list[str], again: bool = False) -> None:
            nonlocal tried
            if end:
                results: Iterable[Result] = (
                    result_of(name, lambda name=name: mirroring.end(name, execute))  # type: ignore[misc]
                    for name in some
                )
            else:
                results = mirroring.begin(some, leader, execute, again)
            for one in results:
                begun[one.group] = one
                if _idle(one) and not which.names:
                    del begun[one.group]  # also what an earlier try has found
            tried = time.monotonic()

        begin(names)

        def one_pass() -> Look:
            if time.monotonic() - tried > READ_AGAIN_S:
                refused = [name for name, one in begun.items() if _is_refused(one)]
                begin([name for name, one in begun.items() if _may_begin_later(one)])
                begin(refused, again=True)  # another process may mirror them by now
            idle = end or not execute
            mirrored = {name for name, one in begun.items() if not idle and _is_mirrored(one)}
            passing = [name for name in names if name in mirrored]
            with no_collector():  # it is on between the passes
                steps = {one.group: one for one in mirroring.steps(passing, when_empty)}
            steps |= {name: _as_step(one) for name, one in begun.items() if name not in steps}
            return _as_look(
                [steps[name] for name in names if name in steps], progress, only_problems
            )

        def look() -> Look:
            try:
                return one_pass()
            except ZkConsumerError:
                progress.pass_failed()
                raise

        status = look_once_or_often(look, often, how)
    click.get_current_context().exit(status)


def _mirror_elsewhere(
    which: Selection,
    execute: bool,
    often: float | None,
    elsewhere: ToCluster,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> int:
    """Mirror groups to another cluster, once or until Ctrl-C. Return the exit status."""
    with (
        Progress("mirroring", changes=False) as progress,
        open_stores(servers, progress) as stores,
        _open_across(stores, names := legal_names(which, stores.zk), elsewhere, servers) as (
            across,
            _,
        ),
    ):
        progress.total = len(names)
        if not execute:
            click.echo("dry run: nothing was changed; give --execute to act", err=True)

        def look() -> Look:
            try:
                with no_collector():
                    steps = list(across.steps(names, execute))
            except ZkConsumerError:
                progress.pass_failed()
                raise
            wanted = [one for one in steps if which.names or one.state != Outcome.SKIPPED.value]
            return _as_look(wanted, progress, only_problems)

        return look_once_or_often(look, often, how)


@contextmanager
def _open_across(
    stores: Stores,
    groups: Sequence[str],
    elsewhere: ToCluster,
    servers: Servers,
    stopped: Event | None = None,
) -> Iterator[tuple[Across, OtherCluster]]:
    from zkmigrate.mirror.across import Across  # loads kafka-python, which takes long

    renamed = new_names(elsewhere.groups, groups)

    def names(group: str, topics: Iterable[str]) -> Mapping[str, str]:
        try:
            return names_there(topics, elsewhere.topics)
        except click.UsageError as error:
            raise refused(group, Reason.TOPIC_MISSING, error.message) from None

    with open_other(stores, elsewhere, servers) as (other, translator):
        lower, lead = elsewhere.lower, elsewhere.lead
        across = Across(stores, other, translator, names, lower, stopped, lead, renamed)
        with closing(across):
            yield across, other


def _may_begin_later(result: Result) -> bool:
    return result.outcome is Outcome.FAILED or Reason.NOTHING in result.reasons


def _is_refused(result: Result) -> bool:
    return result.outcome is Outcome.REFUSED and Reason.MIRROR_STOPPED not in result.reasons


def _idle(result: Result) -> bool:
    return result.outcome in (Outcome.NOTHING, Outcome.SKIPPED)


def _is_mirrored(result: Result) -> bool:
    going = result.outcome in (Outcome.DONE, Outcome.WAS_DONE)
    return going or Reason.MIRROR_STOPPED in result.reasons


def _as_step(result: Result) -> Step:
    """Return the row of a group whose mirror did not start, or has ended."""
    from zkmigrate.mirror.step import ENDED, Step

    done = result.outcome in (Outcome.DONE, Outcome.NOTHING)
    state = ENDED if done else result.outcome.value
    return Step(result.group, "", state, why=result.why, reasons=result.reasons)


def _as_look(steps: list[Step], progress: Progress, only_problems: bool) -> Look:
    counts = Counter((one.leader, one.state) for one in steps)
    late = sum(not one.good for one in steps)
    progress.mirrored(counts, sum(one.copied for one in steps), late)
    rows = [one[:7] for one in steps if not (only_problems and one.good)]
    states = Counter(one.state for one in steps)
    said = ", ".join(f"{count} {state}" for state, count in states.most_common())
    failed = any(one.state == Outcome.FAILED.value for one in steps)
    ended = exit_status(failed=failed, attention=late > 0)
    return Look("mirror", 1, rows, f"groups: {said or 'none'}", ended)


@click.command("cut-over", epilog=HELP)
@work_options("How long to wait for old members to leave.")
@target_options("Hand the group over to this cluster, which mirrors the topics.")
@click.option(
    "--lead",
    type=click.Choice([one.value for one in Store]),
    help="With --to-cluster: the store whose offsets are correct, as for zkmigrate mirror.",
)
def cut_over(work: Work, lead: str | None, elsewhere: ToCluster | None) -> None:
    """Let a mirrored group's new program take over.

    From now on old members cannot register. Stop the old program. As soon as its last member has
    left, the command copies the last offsets to Kafka, Kafka leads, and the new program may start.
    You can move the group back with zkmigrate undo, until you run zkmigrate complete.

    If old members remain after --wait, the group stays locked: stop them and run the command again,
    or run zkmigrate undo.

    With --to-cluster, the command copies the last offsets to the other cluster as soon as the
    records have arrived there. After that, nothing is copied. zkmigrate unlock lets old members
    start again.
    """
    if elsewhere is not None:
        no_effect("--to-cluster", "parallel")
        store = None if lead is None else Store(lead)
        _cut_over_elsewhere(work, elsewhere._replace(lead=store))
        return
    only_with("--to-cluster", "lead")
    from zkmigrate.mirror.mirroring import Mirroring  # loads kafka-python, which takes long

    _each_group("cutting over", work, Mirroring.cut_over)


def _cut_over_elsewhere(work: Work, elsewhere: ToCluster) -> None:
    """Hand groups over to another cluster, one at a time, print the outcomes and exit."""
    with (
        Outcomes("cutting over", work, work.which.groups) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
        open_run(work, stores.cluster_id(), {"to_cluster": elsewhere.bootstrap}) as run,
        _open_across(
            stores,
            names := legal_names(work.which, stores.zk, outcomes.add),
            elsewhere,
            work.servers,
            run.stopped,
        ) as (across, other),
    ):
        outcomes.progress.total = len(names)

        def stop_waiting() -> None:
            stores.kafka.stop_waiting()
            other.kafka.stop_waiting()

        def act(_stores: Stores, name: str, execute: bool, wait: float) -> Result:
            return across.cut_over(name, execute, wait)

        for result in _each(run, [stores], names, work, act, stop_waiting):
            outcomes.add(result)
    outcomes.finish(names)


@click.command(epilog=HELP)
@work_options("How long to wait for old members to leave.")
def complete(work: Work) -> None:
    """Finish a mirrored or live move.

    The group then counts as moved, as after zkmigrate apply. It stays locked, and its offsets are
    no longer copied to ZooKeeper.

    A mirrored group must have been cut over. The command compares both stores once more.

    For a live move, 'zkmigrate live finalize' must have been run, and all members must be
    plain consumers. With --all or a pattern, groups that are not ready for this are left out.
    """
    from zkmigrate.mirror.mirroring import Mirroring  # loads kafka-python, which takes long

    _each_group("completing", work, Mirroring.complete, COMPLETE)


def _each_group(verb: str, work: Work, act: Act, stage: Stage | None = None) -> None:
    """Work on each chosen group, print the outcomes and exit. ``stage``: the action on groups in a
    live move."""
    named = frozenset(work.which.groups)
    with (
        Outcomes(verb, work, named) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
        open_run(work, stores.cluster_id(), {}, Direction.ZK_TO_KAFKA) as run,
    ):
        names = legal_names(work.which, stores.zk, outcomes.add)
        outcomes.progress.total = len(names)
        live, others = ([], names) if stage is None else by_move(stores.zk, names)
        results = [each_mirrored(run, stores, others, work, act)]
        if stage is not None:
            results.append(carry_out(stage, run, stores, live, named, work))
        for result in chain.from_iterable(results):
            outcomes.add(result)
    outcomes.finish(names)


def each_mirrored(
    run: Run, stores: Stores, groups: Iterable[str], work: Work, act: Act
) -> Iterator[Result]:
    """Run ``act`` on mirrored groups, or only check. Yield the outcomes in any order."""
    from zkmigrate.mirror.mirroring import Mirroring

    def one(stores: Stores, name: str, execute: bool, wait: float) -> Result:
        def say(text: str) -> None:
            click.echo(printable(text), err=True)

        return act(Mirroring(stores, say, run.stopped), name, execute, wait)

    workers = stores.each_thread(work.parallel)
    yield from _each(run, workers, groups, work, one, stores.kafka.stop_waiting)


def _each(
    run: Run,
    workers: Sequence[Stores],
    groups: Iterable[str],
    work: Work,
    act: Callable[[Stores, str, bool, float], Result],
    stop_waiting: Callable[[], object],
) -> Iterator[Result]:
    """Check each group, and act on it if that would be done."""
    from zkmigrate.stores.group_states import case_in

    command = str(click.get_current_context().command.name)

    def one(stores: Stores, name: str) -> Result:
        def once(execute: bool) -> Result:
            return act(stores, name, execute, work.wait if execute else 0.0)

        return run.carry_out(name, command, once, lambda: case_in(stores, name))

    yield from run.each(workers, groups, one, stop_waiting)
