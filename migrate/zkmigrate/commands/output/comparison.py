"""The output of ``zkmigrate status PLAN``: the stores compared with a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zkconsumer.console.tables import How, print_notes
from zkmigrate import verify
from zkmigrate.apply.journal import read_records
from zkmigrate.apply.records import Records, begun_by, late_partitions, recorded
from zkmigrate.commands.options.running import check_cluster
from zkmigrate.commands.options.servers import reading
from zkmigrate.commands.output.watch import Look
from zkmigrate.errors import JournalError
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.plan.table import UNFINISHED
from zkmigrate.plan.values import GroupPlan, Problem, Verdict
from zkmigrate.stores.cluster import Servers


def look_at_plan(
    loaded: PlanFile,
    journal: Path,
    servers: Servers,
    strict: bool,
    only_problems: bool,
    how: How,
) -> Look:
    """Compare both stores with a plan. ``strict``: an offset that new consumers have moved forward
    is a problem."""
    from zkmigrate.stores.group_states import read_offsets  # loads kafka-python, which takes long

    differing: list[verify.Difference] = []
    groups = compared = 0
    with reading(servers, "comparing", "differ", len(loaded.groups)) as (progress, stores):
        check_cluster(loaded, stores)
        begun: Mapping[str, Records] = {}
        try:
            begun = begun_by(read_records(journal, loaded.digest, _is_needed))
        except JournalError as error:
            if loaded.at_apply is not None:
                raise
            print_notes([str(error)])  # the plan alone says what was to be moved

        def ready() -> Iterator[GroupPlan]:
            """Yield the groups to compare. All others are reported as differences without a
            comparison."""
            for group in loaded.groups:
                written = recorded(begun.get(group.group, []))
                if group.ignored:
                    differing.append(verify.about_group(group, verify.IGNORED, group.ignored))
                    progress.group(group.group, True)
                elif written is not None:
                    yield written
                elif loaded.at_apply is not None and group.verdict is not Verdict.MOVED:
                    what = "is planned when it is applied, and was not applied"
                    differing.append(verify.about_group(group, verify.NOT_MOVED, what))
                elif group.problems:
                    problem = group.problems[0]
                    what = f"was not ready when the plan was made: {problem.kind.value}"
                    differing.append(verify.about_group(group, verify.NOT_MOVED, what))
                else:
                    yield group

        for group, state in read_offsets(stores, ready()):
            mine: list[verify.Difference] = []
            if isinstance(state, Problem):
                what = f"{state.kind.value}: {state.what}"
                mine.append(verify.about_group(group, verify.UNREADABLE, what))
            else:
                mine += verify.compare(group, loaded.direction, state)
                if state.record.interrupted:
                    mine.append(verify.about_group(group, verify.NOT_MOVED, UNFINISHED.why))
                late = {*late_partitions(begun.get(group.group, [])), *state.record.late}
                mine += verify.doubtful(group, loaded.direction, state, late)
                mine += verify.stays_behind(group, loaded.direction, state)
                groups += 1
                compared += len(group.entries)
            differing += (one._replace(kafka_group=group.kafka_group) for one in mine)
            good = {one.kind for one in mine} <= {verify.AHEAD, verify.STAYS}
            progress.group(group.group, good)
    order = list(verify.ORDER)
    differing.sort(key=lambda one: order.index(one.kind))
    counts = Counter(one.kind for one in differing)
    parts = [f"{counts[kind]} {kind}" for kind in order if counts[kind]]
    said = ", ".join(parts) or "all as planned"
    summary = f"{compared} partitions of {groups} groups compared: {said}"
    shown = [one for one in differing if not only_problems or verify.status([one], strict)]
    return Look("difference", 3, shown, summary, verify.status(differing, strict))


def _is_needed(record: dict[str, Any]) -> bool:
    """Whether a comparison needs this record."""
    return "step" in record
