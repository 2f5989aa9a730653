"""``zkconsumer offsets export``: writes the offsets of either store into a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import click

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.snapshot import (
    GroupSnapshot,
    interpret,
    list_groups,
    partition_number,
    read_group,
)
from zkconsumer.admin.verifier import Kind, verify
from zkconsumer.console.collector import no_collector
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import print_notes
from zkconsumer.core.common.types import INTERNAL_TOPICS
from zkconsumer.core.zookeeper.znodes import is_legal_group, is_legal_topic
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.commands.options.files import write_out
from zkmigrate.commands.options.layout import FromLayout, layout_option
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import (
    open_stores,
    open_zookeeper,
    print_not_looked_at,
    server_options,
)
from zkmigrate.commands.output.progress import Progress
from zkmigrate.exits import HELP, exit_status
from zkmigrate.formats import offset_csv
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.findings import bad_name
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.offset_znodes import misplaced_root, zk_offset
from zkmigrate.text import shown, unlisted_note


@click.command(epilog=HELP)
@selection
@layout_option
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
    default="jvm",
    show_default=True,
    help="jvm: the format of ImportZkOffsets and `offsets import`; csv: the format of "
    "kafka-consumer-groups --from-file.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--out", metavar="FILE", help="Write to this new file, not to standard output.")
@server_options
def export(
    which: Selection,
    layout: FromLayout | None,
    store: str,
    form: str,
    as_json: bool,
    out: str | None,
    servers: Servers,
) -> None:
    """Export the offsets that groups have in ZooKeeper, or in Kafka.

    With a single --group that is not a pattern, the CSV has no group column. All formats can
    be read with `zkmigrate plan --from-file` and `zkconsumer offsets reset --from-file`.

    Offsets that a 1.1.0 broker stored in 'offset' instead of 'offsets' are included where there is
    no other offset. The command reports what it cannot export.
    """
    if as_json:
        no_effect("--json", "form")
        form = "json"
    with no_collector(), Progress("reading", bad="left out") as progress:
        if layout is not None:
            no_effect("--layout", "store")
            with open_zookeeper(servers) as zk:
                found = layout.read_next(zk)
            offsets = {OffsetKey(layout.group, *tp): next_ for tp, next_ in found.items()}
            left_out, away = 0, False
        elif store == Store.ZOOKEEPER.value:
            offsets, left_out = _offsets_in_zookeeper(which, servers, progress)
            away = False
        else:
            offsets, left_out, away = _offsets_in_kafka(which, servers, progress)
    text = offset_csv.render(offsets, form, one_group=which.only is not None)
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
    """Return offsets in ZooKeeper, and how many are left out. No broker is asked."""
    offsets: dict[OffsetKey, int] = {}
    left_out: list[str] = []
    with open_zookeeper(servers) as zk:
        names = which.of_store(lambda: zk.run(list_groups()), Store.ZOOKEEPER)
        progress.total = len(names)
        legal = list(filter(is_legal_group, names))
        for name in sorted({*names}.difference(legal)):
            left_out.append(f"{bad_name(name).what}; it is left out")
            progress.group(name, False)
        scripts = (or_refusal(read_group(name)) for name in legal)
        for name, found in zip(legal, zk.run_all(scripts), strict=True):
            if isinstance(found, ZooKeeperError):
                left_out.append(f"group {name} is left out: {found}")
            elif found is not None:
                left_out += _stored(found, offsets)
            progress.group(name, not isinstance(found, ZooKeeperError))
        print_notes(left_out)
        print_not_looked_at(zk, servers)
    return offsets, len(left_out)


def _stored(snapshot: GroupSnapshot, offsets: dict[OffsetKey, int]) -> Iterator[str]:
    """Add a group's offsets, and yield those left out. Offsets below ``offsets`` take
    precedence."""
    paths = snapshot.paths
    for root, tree in (
        (paths.offsets, snapshot.offsets),
        (misplaced_root(snapshot.group), snapshot.misplaced),
    ):
        for topic, nodes in tree.items():
            for name, node in nodes.items():
                path = f"{root}/{topic}/{name}"
                number = partition_number(name) if is_legal_topic(topic) else None
                stored = zk_offset(path, node)
                if number is None and tree is snapshot.offsets:
                    yield f"{path} is left out: it is not a partition of a topic"
                elif stored.fault and number is not None:
                    yield f"{stored.fault}; it is left out"
                elif stored.offset is not None and number is not None:
                    key = OffsetKey(snapshot.group, topic, number)
                    held = offsets.setdefault(key, stored.offset)
                    if held != stored.offset:
                        other = f"{key.path} holds {held}"
                        yield f"{path} holds {stored.offset}; it is left out, since {other}"
    known = (f"{paths.ids}/", f"{paths.owners}/", f"{paths.offsets}/")
    below = [path for path in snapshot.filled if path.startswith(f"{paths.offsets}/")]
    for finding in verify(snapshot, interpret(snapshot, ()), {}, {}):
        if finding.kind is Kind.FOREIGN_LAYOUT and not finding.where.startswith(known):
            below.append(finding.where)
    yield from (f"{path} is left out: it is not in Kafka's layout" for path in below)


def _offsets_in_kafka(
    which: Selection, servers: Servers, progress: Progress
) -> tuple[dict[OffsetKey, int], int, bool]:
    """Return offsets in Kafka, how many groups cannot be read, and whether a coordinator is
    unavailable. Groups that cannot be in ZooKeeper are left out and noted."""
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long

    offsets: dict[OffsetKey, int] = {}
    left_out = 0
    away = False
    notes: list[str] = []
    with open_stores(servers, progress) as stores:
        chosen = which.of_store(partial(stores.group_names, Store.KAFKA), Store.KAFKA)
        progress.total = len(chosen)
        hidden: frozenset[str] = frozenset()
        # A group of ZooKeeper may have this name, and another one in Kafka.
        for state in read_states(stores, chosen, {}, False, {name: name for name in chosen}):
            if isinstance(state, GroupState):
                name, good = state.group, bool(state.kafka) or not which.all_named
                if not good:
                    left_out += 1
                    notes.append(f"group {name} has no offset in Kafka")
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
