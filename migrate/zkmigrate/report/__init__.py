"""The report that an operator hands in after the move: an HTML page, and a CSV line per partition.

It is made from a plan and its journal alone, without any server. Pure, any thread. Jinja2 escapes
text from groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from zkmigrate.apply.records import Records, recorded
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.plan.values import Entry, GroupPlan, Verdict

MOVED: Final = "moved"
BACK: Final = "rolled back"
OPEN: Final = "unfinished"
LEFT: Final = "not begun"
BEFORE: Final = "moved before"
STATES: Final = (
    MOVED,
    BEFORE,
    OPEN,
    LEFT,
    BACK,
    Verdict.DECIDE.value,
    Verdict.REFUSED.value,
)
"""The possible results for a group, in the order of the page."""
COLUMNS: Final = (
    "group", "kafka_group", "state", "topic", "partition", "zookeeper", "kafka", "to", "written",
    "why",
)  # fmt: skip
"""Of the CSV."""
_PLAIN: Final = ("both hold it", "only ", "no offset: auto.offset.reset decides")
_UNCHANGED: Final = "has not changed since"


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group: its plan and its outcome.

    ``ended_ms``: of its last step. ``held_s``: for how long the last run held it.
    """

    plan: GroupPlan
    state: str
    ended_ms: int | None
    held_s: float | None

    @property
    def written(self) -> int:
        """How many offsets were to be written."""
        return sum(entry.write for entry in self.plan.entries)

    @property
    def decided(self) -> list[Entry]:
        """The partitions where an operator's decision counted."""
        return [entry for entry in self.plan.entries if _is_decision(entry)]


def _is_decision(entry: Entry) -> bool:
    reason = entry.reason
    plain = reason.startswith(_PLAIN) or _UNCHANGED in reason
    return not plain or ";" in reason


def look(plan: PlanFile, begun: Mapping[str, Records]) -> Iterator[GroupReport]:
    """Yield the outcome of each group. ``begun``: the journal's records by group."""
    for planned in plan.groups:
        records = begun.get(planned.group, [])
        group = recorded(records) or planned
        last = records[-1] if records else None
        if last is None:
            state = {Verdict.READY: LEFT, Verdict.MOVED: BEFORE}.get(
                planned.verdict, planned.verdict.value
            )
        else:
            state = {"done": MOVED, "undo-done": BACK}.get(last["step"], OPEN)
        ended = last.get("at_ms") if last else None
        claims = [one["at_ms"] for one in records if "claim" in one["step"] and "at_ms" in one]
        held = (ended - claims[-1]) / 1000 if ended and claims else None
        yield GroupReport(group, state, ended, held)


def csv_rows(groups: Iterable[GroupReport]) -> Iterator[tuple[object, ...]]:
    """Yield a row of ``COLUMNS`` for each partition, for each offset that stays behind, and for
    each problem."""
    for group in groups:
        plan = group.plan
        head = (plan.group, plan.in_kafka, group.state)
        done = group.state == MOVED
        for entry in plan.entries:
            kafka = entry.kafka.offset if entry.kafka else None
            moved = "yes" if done and entry.write else "no"
            yield (*head, *entry.tp, entry.zk, kafka, entry.to, moved, entry.reason)
        for one in plan.stays:
            yield (*head, *one.tp, one.offset, None, None, "no", f"stays behind: {one.why}")
        for problem in plan.problems:
            yield (*head, *[None] * 5, "no", f"{problem.kind.value}: {problem.what}: {problem.fix}")


def page(plan: PlanFile, groups: Iterable[GroupReport], runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the HTML page. ``runs``: the journal's records of each run."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    every = list(groups)
    counts = Counter(group.state for group in every)
    environment = Environment(
        loader=PackageLoader("zkmigrate.report", "."), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["at"] = _at
    environment.filters["shown"] = lambda value: "-" if value is None else value
    moved = [group for group in every if group.state == MOVED]
    return environment.get_template("page.html").render(
        plan=plan,
        names={"zookeeper": "ZooKeeper", "kafka": "Kafka"},
        groups=[group for group in every if group.ended_ms is not None],
        counts=[(state, counts[state]) for state in STATES if counts[state]],
        offsets=sum(group.written for group in moved),
        runs=list(runs),
        decided=[(group.plan, entry) for group in every for entry in group.decided],
        refused=[(group.plan, one) for group in every for one in group.plan.problems],
        stays=[(group.plan, one) for group in every for one in group.plan.stays],
        longest=max((group.held_s or 0 for group in moved), default=0),
    )


def _at(ms: int | None) -> str:
    """Return a moment in UTC."""
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
