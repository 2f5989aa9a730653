"""``zkmigrate plan``."""

from __future__ import annotations

import time
from importlib.metadata import version

import click

from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import How
from zkmigrate.commands.clusters.from_cluster import FromCluster, offsets_from
from zkmigrate.commands.clusters.to_cluster import (
    ToCluster,
    Translated,
    to_cluster_options,
    translate_plans,
    write_offsets,
)
from zkmigrate.commands.options.decisions import decisions
from zkmigrate.commands.options.files import write_out
from zkmigrate.commands.options.layout import FromLayout, layout_option
from zkmigrate.commands.options.renaming import Rename, choose, rename_option
from zkmigrate.commands.options.selection import Selection, offsets_in, selection
from zkmigrate.commands.options.servers import reading, server_options
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.rows import format_options
from zkmigrate.commands.planning import Summary, plan_groups
from zkmigrate.exits import HELP
from zkmigrate.formats import decisions_file, plan_file
from zkmigrate.model import Direction
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import Verdict
from zkmigrate.stores.cluster import Servers


@click.command(epilog=HELP)
@selection
@decisions
@click.option(
    "--at-apply",
    is_flag=True,
    help="Record decisions only. Groups may run until zkmigrate apply reads their offsets.",
)
@click.option("--out", metavar="PLAN", help="Write the plan to this new file.")
@click.option(
    "--decisions-out",
    metavar="FILE",
    help="Write a template for --decisions.",
)
@click.option(
    "--from-file",
    metavar="FILE",
    help="Read offsets from FILE: CSV, JSON, or the output of Kafka's ExportZkOffsets.",
)
@layout_option
@rename_option
@to_cluster_options
@server_options
@only_problems_option
@format_options
def plan(
    which: Selection,
    direction: Direction,
    options: Options,
    at_apply: bool,
    out: str | None,
    decisions_out: str | None,
    from_file: str | None,
    layout: FromLayout | None,
    renames: tuple[Rename, ...],
    elsewhere: ToCluster | None,
    servers: Servers,
    only_problems: bool,
    how: How,
) -> None:
    """Show which groups can be moved, and what prevents the others.

    With --out, also write a plan to review. Nothing else is changed. A group is refused if it needs
    a decision that no option or file makes. The value 'skip' leaves offsets where they are.
    """
    summary = Summary(how, only_problems, options.skips)
    if at_apply:
        no_effect("--at-apply", "from_file", "layout")
    if layout is not None:
        no_effect("--layout", "from_file")
    if direction is Direction.KAFKA_TO_ZK and (layout or options.source_means != "default"):
        raise click.UsageError("--layout and --source-means require --direction zk-to-kafka")
    if out is not None:
        no_effect("--out", "decisions_out")
    offsets = offsets_in(from_file, which) if from_file else None
    with reading(servers, "planning", "not ready") as (progress, stores):
        if layout is not None:
            layout = layout.read(stores.zk)
            offsets = {layout.group: layout.numbers}
        back: FromCluster | None = None
        if elsewhere is not None and elsewhere.back:
            back = offsets_from(stores, which, renames, options.skips, elsewhere, servers, progress)
            offsets, elsewhere, renames = back.offsets, None, ()
            summary.away = back.away
        own, renamed = choose(stores, direction, which, renames, offsets)
        if offsets is not None:
            offsets = {own[name]: offset for name, offset in offsets.items()}
        chosen = list(own.values())
        kept = renamed if elsewhere is None else None
        more = (offsets, at_apply, kept, layout, elsewhere is not None)
        made = plan_groups(stores, direction, options, chosen, progress, *more)
        if back is not None:
            made = back.complete(made, {name: group for group, name in own.items()})
        found: Translated | None = None
        if elsewhere is not None:
            found = translate_plans(stores, made, renamed, elsewhere, servers, progress, how)
            if elsewhere.out is not None:
                write_offsets(found.plans, elsewhere.out, which.only is not None)
            made = iter(found.plans)
        plans = summary.watch(made)
        if out is not None:
            lines = plan_file.render(
                direction,
                int(time.time() * 1000),
                plans,
                options if at_apply else None,
                stores.cluster_id(),
                {"version": version("zkconsumer"), "options": decisions_file.to_json(options)},
                None if found is None else found.to,
                None if back is None else back.cluster,
            )
            digest = write_out(out, lines)
        elif decisions_out is not None:
            write_out(decisions_out, decisions_file.template(plans), "--decisions-out")
        for _ in plans:
            pass
        summary.unlisted = stores.unlisted + (() if back is None else back.unlisted)
    if found is None:
        summary.print_all()
    if out is not None:
        ready = summary.verdicts[Verdict.READY]
        then = f"carry it out with zkmigrate apply {out} --execute" if ready else "none is ready"
        click.echo(f"the plan is in {out}, SHA-256 {digest}; {then}", err=True)
    click.get_current_context().exit(summary.status if found is None else found.status)
