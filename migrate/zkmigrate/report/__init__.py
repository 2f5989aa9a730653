"""The report on a move, for an operator to hand in: an HTML page, and JSON.

It is generated without any server. Results come only from the outcomes in the journal. The plan
adds the groups that were not started, and why. Pure, any thread. Jinja2 escapes text from groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.apply.records import ALONE, RESET, History, Records, recorded
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.plan.values import Entry, GroupPlan, Verdict
from zkmigrate.text import moment

MOVED: Final = "moved"
BACK: Final = "rolled back"
OPEN: Final = "unfinished"
LEFT: Final = "not begun"
BEFORE: Final = "moved before"
SET: Final = "reset"
DONE: Final = (Outcome.DONE.value, Outcome.WAS_DONE.value, Outcome.NOTHING.value)
"""Outcomes of locks and of steps of live moves that mean success."""
STATES: Final = (
    MOVED,
    BEFORE,
    SET,
    *DONE,
    Verdict.IGNORED.value,
    OPEN,
    LEFT,
    BACK,
    Outcome.FAILED.value,
    Outcome.SKIPPED.value,
    Verdict.DECIDE.value,
    Verdict.REFUSED.value,
)
"""The possible results for a group, in the order of the page."""
_VERDICTS: Final = (Verdict.DECIDE.value, Verdict.REFUSED.value)
_KILLED: Final = "the last run ended before the outcome was recorded: apply or roll back again"


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group in the report, with its plan and its outcome.

    ``why``: what the last run reported about the group, if anything. ``wrote``: whether the planned
    offsets were written and have not been restored since. ``ended_ms``: the time of the group's
    last step. ``held_s``: seconds for which the last run had claimed the group. ``history``: the
    outcomes of all runs.
    """

    plan: GroupPlan
    state: str
    why: str
    wrote: bool
    not_locked: bool
    ended_ms: int | None
    held_s: float | None
    history: History

    @property
    def written(self) -> int:
        """Number of offsets that were written."""
        return len(self.history.changed) if self.wrote else 0

    @property
    def reasons(self) -> list[tuple[str, str, str]]:
        """The reasons why the group is not moved: kind of problem, finding, and fix."""
        if self.state in (MOVED, BEFORE, SET, *DONE):
            return []
        if self.plan.ignored:
            return [(self.state, self.plan.ignored, "")]
        rows = [(one.kind.value, one.what, one.fix) for one in self.plan.problems]
        if self.why and not (rows and self.state in _VERDICTS):
            rows.append((self.state, self.why, ""))
        return rows

    @property
    def decided(self) -> list[Entry]:
        """The partitions to which an operator's decision applied."""
        return [entry for entry in self.plan.entries if entry.decided]


def look(
    groups: Iterable[GroupPlan],
    begun: Mapping[str, Records],
    histories: Mapping[str, History],
) -> Iterator[GroupReport]:
    """Yield each group's part of the report. ``begun``: the groups' steps in the journal."""
    for planned in groups:
        records = begun.get(planned.group, [])
        history = histories.get(planned.group) or History()
        group = recorded(records) or planned
        last = records[-1] if records else None
        step = last["step"] if last else ""
        outcome = history.last
        why = outcome.why if outcome else _KILLED if records else ""
        wrote = any(one["step"] in ("done", RESET) for one in records) and step[:4] != "undo"
        ended = last.get("at_ms") if last else None
        claims = [one["at_ms"] for one in records if "claim" in one["step"] and "at_ms" in one]
        held = (ended - claims[-1]) / 1000 if ended and claims else None
        state = _state(group, step, outcome)
        not_locked = outcome is not None and outcome.not_locked
        yield GroupReport(group, state, why, wrote, not_locked, ended, held, history)


def unplanned(histories: Mapping[str, History]) -> list[GroupPlan]:
    """Return a plan without partitions for each group of a journal that has no plan."""
    return [GroupPlan(group) for group in histories]


def _state(plan: GroupPlan, step: str, outcome: Result | None) -> str:
    """Return the state of a group, from the last ``step`` and the outcome of its last run."""
    if plan.ignored:
        return plan.verdict.value
    if outcome is None:
        if step:
            return OPEN
        return {Verdict.READY: LEFT, Verdict.MOVED: BEFORE}.get(plan.verdict, plan.verdict.value)
    if step == "undo-done":
        return BACK
    if outcome.outcome is Outcome.NOTHING and step not in ALONE:
        return BEFORE
    if outcome.outcome.good:
        if step.startswith("undo"):
            return BACK
        if not step or step in ALONE:
            return str(outcome.outcome.value)
        return SET if step == RESET else MOVED
    skipped = outcome.outcome is Outcome.SKIPPED and plan.verdict is not Verdict.READY
    return str(plan.verdict.value if skipped else outcome.outcome.value)


def group_rows(groups: Iterable[GroupReport]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each group, for the report in JSON."""
    for one in groups:
        plan = one.plan
        why = one.why or "; ".join(": ".join(filter(None, reason)) for reason in one.reasons)
        locked = next(
            (seen.result.locked for seen in reversed(one.history.ended)
             if seen.result.locked is not None), None
        )  # fmt: skip
        changed = [row._asdict() for row in one.history.changed]
        runs = [
            {
                "at": _at(seen.at_ms),
                "command": seen.run.get("command"),
                "by": seen.run.get("by"),
                "note": seen.run.get("note"),
                "approved_by": seen.run.get("approved_by"),
                "outcome": seen.result.outcome.value,
                "mode": seen.result.mode,
                "why": seen.result.why,
                "reasons": [reason.value for reason in seen.result.reasons],
            }
            for seen in one.history.ended
        ]
        head = (plan.group, plan.kafka_group, one.state, one.written, locked)
        ended = one.history.last
        codes = [item.kind for item in plan.problems] if ended is None else ended.reasons
        reasons = list(dict.fromkeys(code.value for code in codes))
        yield *head, _at(one.ended_ms), why, reasons, changed, runs


def page(
    plan: PlanFile | None,
    groups: Iterable[GroupReport],
    runs: Iterable[Mapping[str, Any]],
    command: str = "",
) -> str:
    """Return the HTML page. ``runs``: the journal's records of each run. ``command``: the
    journal's command, if there is no plan."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    every = list(groups)
    counts = Counter(group.state for group in every)
    environment = Environment(
        loader=PackageLoader("zkmigrate.report", "."), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["at"] = lambda ms: _at(ms) or "-"
    environment.filters["shown"] = lambda value: "-" if value is None else value
    moved = [group for group in every if group.state == MOVED]
    return environment.get_template("page.html").render(
        plan=plan,
        command=command,
        names={"zookeeper": "ZooKeeper", "kafka": "Kafka"},
        groups=[group for group in every if group.ended_ms is not None],
        counts=[(state, counts[state]) for state in STATES if counts[state]],
        offsets=sum(group.written for group in every),
        runs=list(runs),
        decided=[(group.plan, entry) for group in every for entry in group.decided],
        refused=[(group.plan, *one) for group in every for one in group.reasons],
        unlocked=[group for group in every if group.not_locked],
        stays=[(group.plan, one) for group in every for one in group.plan.stays],
        longest=max((group.held_s or 0 for group in moved), default=0),
    )


def _at(ms: int | None) -> str | None:
    return None if ms is None else moment(ms)
