"""``zkmigrate reset``."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from zkconsumer.admin.snapshot import list_groups
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import at_most_one, no_effect
from zkconsumer.console.tables import print_notes
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import ZkConsumerError
from zkmigrate.apply.outcome import Changed, Outcome, Result, result_of, unreadable
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import RESET
from zkmigrate.commands.options.renaming import check_once, renamed_in
from zkmigrate.commands.options.running import Work, journal_path, open_run, work_options
from zkmigrate.commands.options.selection import offsets_in
from zkmigrate.commands.options.servers import open_stores
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.output.rows import print_table
from zkmigrate.commands.status import names_of_both
from zkmigrate.exits import HELP
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.reset import (
    BOTH,
    Reset,
    Target,
    To,
    check_undone,
    chosen,
    reset as reset_group,
    stores_of,
)

if TYPE_CHECKING:
    from zkmigrate.stores.sessions import Stores

_TARGETS: Final = (
    "--to-earliest", "--to-latest", "--to-current", "--to-offset", "--to-datetime", "--by-duration",
    "--shift-by", "--from-file",
)  # fmt: skip
_DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d+)?)S)?)?", re.ASCII
)

Topics = dict[str, frozenset[int]]


def _topics(_context: object, _option: object, texts: tuple[str, ...]) -> Topics:
    topics: Topics = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not is_legal_topic(topic) or (colon and not re.fullmatch(r"[0-9]+(,[0-9]+)*", numbers)):
            raise click.UsageError(f"--topic {text}: write TOPIC or TOPIC:0,1,2")
        topics[topic] = frozenset(map(int, filter(None, numbers.split(","))))
    return topics


def _moment(_context: object, _option: object, text: str | None) -> int | None:
    """Return the milliseconds since 1970 of an ISO 8601 time; without a zone it is UTC."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to-datetime {text}: write a time such as 2024-05-31T12:00:00.000"
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _duration(_context: object, _option: object, text: str | None) -> int | None:
    """Return the milliseconds of an ISO 8601 duration."""
    if text is None:
        return None
    parts = _DURATION.fullmatch(text)
    if parts is None or not any(parts.groups()):
        raise click.UsageError(f"--by-duration {text}: write a duration such as P7D or PT1H30M")
    days, hours, minutes, seconds = (float(one or 0) for one in parts.groups())
    return int(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))


@click.command(epilog=HELP)
@work_options(waits="", journal="zkmigrate-reset.journal")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITIONS]",
    multiple=True,
    callback=_topics,
    help="A topic, or some of its partitions as in t:0,1; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Every partition with an offset in the store.")
@click.option("--to-earliest", is_flag=True, help="To the beginning of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option(
    "--to-current",
    is_flag=True,
    help="Keep valid offsets; replace others by the nearest valid one.",
)
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    callback=_moment,
    help="To the first message at or after this time, such as 2024-05-31T12:00:00.000; UTC unless "
    "it has another time zone.",
)
@click.option(
    "--by-duration",
    metavar="DURATION",
    callback=_duration,
    help="To the first message that is no older than this, such as P7D or PT1H30M.",
)
@click.option(
    "--shift-by",
    type=int,
    metavar="N",
    help="Forward by N messages, or back if N < 0. Repeating the command shifts them again.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    help="To the offsets in FILE: CSV, JSON, or the output of Kafka's ExportZkOffsets.",
)
@click.option(
    "--store",
    type=click.Choice([*(one.value for one in Store), BOTH]),
    help="Store in which to set the offsets.  [default: the current store, see zkmigrate status; "
    "both in a live move]",
)
def reset(
    work: Work,
    topics: Topics,
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift_by: int | None,
    from_file: str | None,
    store: str | None,
) -> None:
    """Set the offsets of stopped groups.

    The options are those of kafka-consumer-groups --reset-offsets, for groups in ZooKeeper and in
    Kafka. An offset outside the log is replaced by the nearest valid offset. Each group is claimed
    while its offsets are set, as in a move. The journal records who set them, the previous offsets
    and each group's outcome.
    """
    now_ms = int(time.time() * 1000)
    targets = [
        Target(To.EARLIEST) if to_earliest else None,
        Target(To.LATEST) if to_latest else None,
        Target(To.CURRENT) if to_current else None,
        Target(To.OFFSET, to_offset) if to_offset is not None else None,
        Target(To.TIME, to_datetime) if to_datetime is not None else None,
        None if by_duration is None else Target(To.TIME, now_ms - by_duration),
        Target(To.SHIFT, shift_by) if shift_by is not None else None,
        Target(To.FILE) if from_file is not None else None,
    ]
    given = [target for target in targets if target is not None]
    at_most_one(option for option, one in zip(_TARGETS, targets, strict=True) if one is not None)
    if not given:
        raise click.UsageError(f"choose the new offsets with one of {', '.join(_TARGETS)}")
    if from_file is not None:
        no_effect("--from-file", "topics", "all_topics")
    elif topics and all_topics:
        at_most_one(("--topic", "--all-topics"))
    elif not topics and not all_topics:
        raise click.UsageError("choose partitions with --topic or with --all-topics")
    offsets = None if from_file is None else offsets_in(from_file, work.which)
    said = {"store": store, "to": given[0].to.value, "number": given[0].number}
    with (
        no_collector(),
        _Resets("resetting", work) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
        open_run(work, stores.cluster_id(), said) as run,
    ):
        if offsets is None:
            names = work.which.of_store(partial(names_of_both, stores), Store.ZOOKEEPER)
            own, moved = _in_zookeeper(stores, names)
            names = _once(dict.fromkeys(own.values()), moved)
        else:
            own, _ = _in_zookeeper(stores, offsets)
            check_once(own)
            offsets = {own[name]: one for name, one in offsets.items()}
            names = list(offsets)
        outcomes.progress.total = len(names)

        def one(own: Stores, name: str) -> Result:
            target = given[0] if offsets is None else Target(To.FILE, offsets=offsets[name])
            done = outcomes.done[name] = []
            result = result_of(
                name, lambda: _reset(own, name, topics or None, target, store, run, done)
            )
            changed = (Changed(*row.tp, where.value, *row[1:3]) for where, row in done)
            return replace(result, offsets=len(done), changed=tuple(changed))

        workers = stores.each_thread(work.parallel)
        for result in run.each(workers, names, one, stores.kafka.stop_waiting):
            outcomes.add(result)
    if work.execute:
        where = journal_path(None, work.journal)
        click.echo(f"the previous offsets are in {where}", err=True)
    outcomes.finish(names, () if work.which.all_named else stores.unlisted)


class _Resets(Outcomes):
    """The outcomes of groups, with a row for each offset. ``done``: the offsets set in
    each group."""

    def __init__(self, verb: str, work: Work) -> None:
        super().__init__(verb, work)
        self.done: dict[str, list[tuple[Store, Reset]]] = {}

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        shifted = click.get_current_context().params["shift_by"] is not None
        if kind is not None and shifted and self.work.execute and any(self.done.values()):
            print_notes(
                [
                    "--shift-by would shift groups with new offsets again: leave them out when you "
                    "repeat the command"
                ]
            )

    def _print_rows(self, results: Iterable[Result]) -> None:
        rows: list[tuple[object, ...]] = []
        for one in results:
            if not (self.work.only_problems and one.outcome.good):
                done = self.done.get(one.group, ())
                rows += ((one.group, *row.tp, where.value, *row[1:]) for where, row in done)
            if not one.outcome.good:
                rows.append((one.group, *[None] * 5, one.why))
        print_table("reset", rows, self.work.how)


def _in_zookeeper(
    stores: Stores, chosen: Collection[str]
) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return the chosen names, each with the group's name in ZooKeeper, whose record is used.

    Also return the names in Kafka of groups that were moved, unless only one group in ZooKeeper is
    chosen.
    """
    known = set(stores.zk.run(list_groups()))
    one = len(chosen) == 1 and known.issuperset(chosen)
    moved = {} if one else stores.moved_groups()
    moved_as = renamed_in(moved)
    return {name: name if name in known else moved_as.get(name, name) for name in chosen}, moved


def _once(chosen: Collection[str], in_kafka: Mapping[str, str]) -> list[str]:
    """Return the chosen groups, each under one name.

    ``in_kafka``: the names in Kafka of groups that were moved. A group under both names counts
    once, so that its offsets are not shifted twice.
    """
    other = {there for name in chosen if (there := in_kafka.get(name, name)) != name}
    return [name for name in chosen if name not in other]


def _reset(
    stores: Stores,
    group: str,
    topics: Topics | None,
    target: Target,
    wanted: str | None,
    run: Run,
    done: list[tuple[Store, Reset]],
) -> Result:
    """Reset one group, or only check in a dry run. Raises ZkConsumerError.

    ``done``: receives the offsets set in each store, even if an error follows.
    """
    from zkmigrate.apply import resetting
    from zkmigrate.stores.group_states import case_in, read_states

    run.begin(group, lambda: case_in(stores, group))
    named = {tp.topic for tp in target.offsets} if target.offsets is not None else set(topics or ())
    extra = {group: {TopicPartition(topic, 0): 0 for topic in named}}
    (state,) = read_states(stores, [group], extra, False)
    if (
        isinstance(state, GroupState)
        and state.moved_to is Store.ZOOKEEPER
        and not (state.record.interrupted or state.record.in_doubt)
    ):  # members use its own name again, even if it had another name in Kafka
        (state,) = read_states(stores, [group], extra, False, {group: group})
    if not isinstance(state, GroupState):
        raise unreadable(group, state[1])
    resetting.check_stopped(state)
    where = stores_of(state, wanted)
    both = len(where) > 1
    partitions = chosen(state, where, topics, target)
    times: dict[TopicPartition, int] = {}
    if target.to is To.TIME:
        for tp, offset in stores.logs.at(partitions, target.number).items():
            if not isinstance(offset, int):
                raise ZkConsumerError(f"group {group}: {tp}: {offset}")
            times[tp] = offset
    ranges = stores.logs.fresh(partitions)  # read after the offsets, which may be clamped to them
    rows = {
        store: reset_group(state, store, target, partitions, ranges, times, both) for store in where
    }
    if not both:
        check_undone(state, where[0], rows[where[0]])
    serial = state.record

    def note(late: Collection[TopicPartition]) -> None:
        run.step(group, "late", held=[[*tp] for tp in late])

    for store in where:
        found = [(store, row) for row in rows[store]]
        if run.journal is None:
            done += found
            continue
        before = [[*row.tp, row.before, row.after] for row in rows[store]]
        run.step(group, RESET, store=store.value, held=before)
        wrote = partial(done.extend, found)
        serial = resetting.carry_out(stores, state, store, rows[store], serial, note, wrote)
    return Result(group, Outcome.WOULD if run.journal is None else Outcome.DONE, 0)
