"""``zkmigrate export``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import click

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.tools import GroupTools
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import print_notes
from zkconsumer.core.common.types import INTERNAL_TOPICS
from zkconsumer.errors import SessionExpiredError, ZkUnavailableError, ZooKeeperError
from zkmigrate.commands.options.files import write_out
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import (
    Servers,
    announce,
    open_stores,
    print_not_looked_at,
    server_options,
)
from zkmigrate.commands.output.progress import Progress
from zkmigrate.exits import HELP, exit_status
from zkmigrate.formats import offset_csv
from zkmigrate.model import GroupState, Store
from zkmigrate.reasons import Reason
from zkmigrate.text import shown, unlisted_note

_AT_ONCE: Final = 100


@click.command(epilog=HELP)
@selection
@click.option(
    "--store",
    type=click.Choice([one.value for one in Store]),
    default="zookeeper",
    show_default=True,
    help="The store to read.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(offset_csv.FORMATS),
    default="csv",
    show_default=True,
    help="csv: the format of kafka-consumer-groups --from-file; jvm: the format of "
    "ImportZkOffsets.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--out", metavar="FILE", help="A new file; standard output without it.")
@server_options
def export(
    which: Selection,
    store: str,
    form: str,
    as_json: bool,
    out: str | None,
    servers: Servers,
) -> None:
    """Write the offsets of a store. With a single --group, the CSV has no group column.

    Offsets that a 1.1.0 broker stored below 'offset' instead of 'offsets' are included where
    there is no other. What cannot be exported is named: groups and offsets that cannot be read,
    znodes in another client's layout, and two offsets of one partition that differ.
    """
    if as_json:
        no_effect("--json", "form")
        form = "json"
    with no_collector(), Progress("reading", bad="left out") as progress:
        if store == Store.ZOOKEEPER.value:
            offsets, left_out = _offsets_in_zookeeper(which, servers, progress)
            away = False
        else:
            offsets, left_out, away = _offsets_in_kafka(which, servers, progress)
    text = offset_csv.render(offsets, form, one_group=len(which.groups) == 1)
    if out is None:
        sys.stdout.write(text)
    else:
        write_out(out, [text])
        click.echo(f"{len(offsets)} offsets are in {out}", err=True)
    if left_out:
        click.echo("the export is not complete: the notes name what is missing", err=True)
    click.get_current_context().exit(exit_status(failed=away, attention=left_out > 0))


def _offsets_in_zookeeper(
    which: Selection, servers: Servers, progress: Progress
) -> tuple[dict[OffsetKey, int], int]:
    """Return offsets in ZooKeeper, and how much is left out. No broker is asked."""
    exported: dict[OffsetKey, int] = {}
    left_out = 0
    where = (servers.zookeeper, servers.timeout, servers.security)
    with GroupTools(*where, before_requests=servers.pace) as tools:
        tools.zk.sync()
        announce(servers, tools.zk)
        names = which.of_store(tools.group_names, Store.ZOOKEEPER)
        progress.total = len(names)
        for start in range(0, len(names), _AT_ONCE):
            chunk = names[start : start + _AT_ONCE]
            for group, offsets in _export(tools, chunk):
                exported.update(offsets or {})
                left_out += offsets is None
                progress.group(group, offsets is not None)
            more, paths = tools.elsewhere(chunk)
            for key, offset in more.items():
                if exported.setdefault(key, offset) != offset:
                    left_out += 1
                    path = f"/consumers/{key.group}/offset/{key.topic}/{key.partition}"
                    other = f"{key.path} holds {exported[key]}"
                    tools.notes.append(f"{path} holds {offset}; it is left out, since {other}")
            left_out += len(paths)
            tools.notes += [f"{path} is left out: it is not in Kafka's layout" for path in paths]
        left_out += tools.unexported
        print_notes(tools.notes)
        print_not_looked_at(tools.zk, servers)
    return exported, left_out


def _export(
    tools: GroupTools, groups: list[str]
) -> Iterator[tuple[str, Mapping[OffsetKey, int] | None]]:
    """Yield each group's offsets, ``None`` where ZooKeeper refuses to show them."""
    noted, unexported = len(tools.notes), tools.unexported
    try:
        offsets = tools.export(groups)
    except (ZkUnavailableError, SessionExpiredError):
        raise
    except ZooKeeperError as error:
        del tools.notes[noted:]
        tools.unexported = unexported
        if len(groups) == 1:
            tools.notes.append(f"group {groups[0]} is left out: {error}")
            yield groups[0], None
        else:
            for group in groups:
                yield from _export(tools, [group])
        return
    by_group: dict[str, dict[OffsetKey, int]] = {group: {} for group in groups}
    for key, offset in offsets.items():
        by_group[key.group][key] = offset
    yield from by_group.items()


def _offsets_in_kafka(
    which: Selection, servers: Servers, progress: Progress
) -> tuple[dict[OffsetKey, int], int, bool]:
    """Return offsets in Kafka, how many groups cannot be read, and whether a coordinator is away.

    Groups that ZooKeeper could not hold are left out and noted.
    """
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    offsets: dict[OffsetKey, int] = {}
    left_out = 0
    away = False
    notes: list[str] = []
    with open_stores(servers, progress) as stores:
        chosen = which.of_store(partial(stores.group_names, Store.KAFKA), Store.KAFKA)
        progress.total = len(chosen)
        hidden: frozenset[str] = frozenset()
        for state in read_states(stores, chosen, {}, False):
            if isinstance(state, GroupState):
                name, good = state.group, True
                hidden = state.hidden - INTERNAL_TOPICS
                for tp, stored in state.kafka.items():
                    offsets[OffsetKey(state.group, *tp)] = stored.offset
            else:
                name, problem = state
                good = problem.kind is Reason.BAD_NAME
                left_out += not good
                away = away or problem.kind is Reason.COORDINATOR_AWAY
                notes.append(f"{problem.what}; it is left out")
            progress.group(name, good)
        if hidden:
            notes.append(f"the broker's access lists hide offsets of {shown(sorted(hidden))}")
    if stores.unlisted:
        left_out += 1
        away = True
        notes.append(unlisted_note(stores.unlisted))
    print_notes(notes)
    return offsets, left_out, away
