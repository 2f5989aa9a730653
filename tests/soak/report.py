"""Write the tables of the evidence page from results: ``python -m tests.soak.report [DIR...]``.

Each DIR is the folder of a run, or a folder with such folders. Each ``result.json`` is copied to
``tests/soak/results``, with only the first violation of each rule. Then
``docs/explanation/evidence.md`` is rewritten between its marks, from all stored results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.soak.recovery import percentile

HERE = Path(__file__).parent
KEPT = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "explanation" / "evidence.md"
BEGIN, END = "<!-- runs: python -m tests.soak.report -->", "<!-- end of runs -->"

Result = dict[str, Any]


def keep(folders: Iterable[Path]) -> None:
    """Copy the results below these folders."""
    KEPT.mkdir(exist_ok=True)
    for folder in folders:
        for file in sorted(folder.rglob("result.json")):
            result = json.loads(file.read_text())
            result["violations"] = _first_of_each(result["violations"])
            (KEPT / f"{name(result)}.json").write_text(json.dumps(result, indent=1) + "\n")


def _first_of_each(violations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in violations:
        found.setdefault(one["rule"], one)
    return list(found.values())


def name(result: Result) -> str:
    """The name of a run: time and kind."""
    settings = result["settings"]
    parts = [result["began"].replace(":", ""), result["mode"], settings["kind"], settings["broken"]]
    return "-".join([*filter(None, parts), str(settings["seed"])])


def results() -> list[Result]:
    """All stored results, in order of time."""
    return [json.loads(file.read_text()) for file in sorted(KEPT.glob("*.json"))]


def row(cells: Iterable[object]) -> str:
    """One line of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def header(*names: str) -> list[str]:
    """The first two lines of a table."""
    return [row(names), row(["---"] * len(names))]


def runs_table(found: Sequence[Result]) -> list[str]:
    """One line for all runs of a kind of group, and one for those of its broken builds."""
    lines = header("Group", "Runs", "Hours", "Messages", "Faults seen", "Repeated", "Broken rules")
    for group in sorted({_group(one) for one in found}):
        runs = [one for one in found if _group(one) == group]
        faults = [fault for one in runs for fault in one["faults"].values()]
        seen, planned = (sum(f[key] for f in faults) for key in ("delivered", "planned"))
        acknowledged, repeated = (
            sum(one["counts"][key] for one in runs) for key in ("acknowledged", "repeated")
        )
        broken = sum(bool(one["violations_by_rule"]) for one in runs)
        hours = f"{sum(one['disturbed'] for one in runs) / 3600:.1f}"
        counts = [f"{acknowledged:,}", f"{seen} of {planned}", f"{repeated:,}"]
        lines.append(row([group, len(runs), hours, *counts, f"in {broken}" if broken else "none"]))
    return lines


def _group(result: Result) -> str:
    kind = str(result["settings"]["kind"])
    return f"{kind}, broken build" if result["settings"]["broken"] else kind


FAULTS = {
    "kill": "SIGKILL of a member; another member starts",
    "pause": "SIGSTOP of a member for longer than its session",
    "expiry": "another client closes the member's session in ZooKeeper, or sends LeaveGroup for it "
    "to the coordinator",
    "silence": "a member's connection stays open, but requests, answers or both are held back: of "
    "one ZooKeeper server, of all, or of a broker",
    "ambiguous write": "a commit is stored and its answer is lost, with the connection or without",
    "full disk": "every write of the member's journal fails with ENOSPC",
    "leave": "a member leaves cleanly; another member starts",
    "rolling restart": "all members leave and come back, one at a time",
    "follower": "a follower of ZooKeeper is stopped (SIGSTOP) or killed",
    "leader": "the same with the leader",
    "ensemble": "the same with all ZooKeeper servers",
    "broker": "the same with a broker",
}
"""What happens, by kind of fault. A name of a fault may continue with its variant."""


def faults_table(found: Sequence[Result]) -> list[str]:
    """One line for each kind of fault: how often it was seen, and how long a group took to recover.

    Faults of a storm overlap, so only single faults have a time.
    """
    seen: dict[str, list[int]] = {}
    times: dict[str, list[float]] = {}
    for one in found:
        for fault, counts in one["faults"].items() if one["mode"] != "recovery" else ():
            total = seen.setdefault(fault.partition(":")[0], [0, 0])
            total[0] += counts["delivered"]
            total[1] += counts["planned"]
        for fault, values in one["recovery"].items():
            if "hiccup" in values:  # not in an earlier measure, with machine pauses
                times.setdefault(fault.partition(":")[0], []).extend(values["all"])
    lines = header("Fault", "What happens", "Seen", "Recoveries", "Median, s", "Longest, s")
    for fault, what in FAULTS.items():
        cells = [f"{seen[fault][0]} of {seen[fault][1]}" if fault in seen else ""]
        if fault in times:
            slowest = [percentile(times[fault], 0.5), max(times[fault])]
            cells += [str(len(times[fault])), *(f"{seconds:.1f}" for seconds in slowest)]
        lines.append(row([fault, what, *cells, *[""] * (4 - len(cells))]))
    return lines


def growth(found: Sequence[Result]) -> str:
    """How much members grew in the runs in which some lived long enough to show it."""
    long = [one for one in found if one["resources"]["rss"]["growth"] is not None]
    most = {
        measure: max((one["resources"][measure]["growth"] or 0.0 for one in long), default=0.0)
        for measure in ("rss", "descriptors", "threads", "watches")
    }
    highest = max((one["resources"]["rss"]["highest"] for one in long), default=0) / (1 << 20)
    return (
        f"In the {len(long)} runs long enough to show it, members grew by at most "
        f"{most['rss']:.1%} in memory (to {highest:.0f} MiB), "
        f"{most['descriptors']:.1%} in descriptors, "
        f"{most['threads']:.1%} in threads and {most['watches']:.1%} in watches."
    )


def page(found: Sequence[Result]) -> list[str]:
    """All tables of the page."""
    sound = [one for one in found if not one["settings"]["broken"]]
    storms = [one for one in sound if one["mode"] != "recovery"]
    return [
        *runs_table(found),
        "",
        *faults_table(sound),
        "",
        growth(storms),
    ]


def main() -> None:
    """Store new results and write the page."""
    keep(Path(word) for word in sys.argv[1:])
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    body = "\n".join([BEGIN, "", *page(results()), "", END])
    PAGE.write_text(head + body + tail)


if __name__ == "__main__":
    main()
