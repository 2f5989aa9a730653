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


def command(result: Result) -> str:
    """The options with which ``python -m tests.soak`` repeats a run."""
    settings = result["settings"]
    words = [f"--kind {settings['kind']} --seed {settings['seed']}"]
    if result["mode"] == "recovery":
        words.append(f"--recovery {result['rounds']}")
        if result["only"]:
            words.append(f'--only "{",".join(result["only"])}"')
    else:
        words.append(f"--seconds {settings['seconds']:g}")
    if result["mode"] == "every":
        words.append(f"--every {result['every']:g}")
    for option, usual in (("members", 8), ("partitions", 64), ("rate", 2000), ("brokers", 2)):
        if settings[option] != usual:
            words.append(f"--{option} {settings[option]}")
    if settings["broken"]:
        words.append(f"--broken {settings['broken']}")
    return " ".join(words)


def row(cells: Iterable[object]) -> str:
    """One line of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def header(*names: str) -> list[str]:
    """The first two lines of a table."""
    return [row(names), row(["---"] * len(names))]


def began(result: Result) -> str:
    """When a run began, for people."""
    return str(result["began"]).replace("T", " ")


def runs_table(found: Sequence[Result]) -> list[str]:
    """One line for all runs of a kind of group."""
    lines = header("Group", "Runs", "Hours", "Messages", "Faults seen", "Repeated", "Broken rules")
    for kind in sorted({one["settings"]["kind"] for one in found}):
        runs = [one for one in found if one["settings"]["kind"] == kind]
        faults = [fault for one in runs for fault in one["faults"].values()]
        seen, planned = (sum(f[key] for f in faults) for key in ("delivered", "planned"))
        acknowledged, repeated = (
            sum(one["counts"][key] for one in runs) for key in ("acknowledged", "repeated")
        )
        broken = sum(bool(one["violations_by_rule"]) for one in runs)
        hours = f"{sum(one['disturbed'] for one in runs) / 3600:.1f}"
        counts = [f"{acknowledged:,}", f"{seen} of {planned}", f"{repeated:,}"]
        lines.append(row([kind, len(runs), hours, *counts, f"in {broken}" if broken else "none"]))
    return lines


def violations_list(found: Sequence[Result]) -> list[str]:
    """The first violation of each rule of each run, with the options that repeat the run."""
    lines = []
    for one in found:
        for violation in one["violations"]:
            count = one["violations_by_rule"][violation["rule"]]
            lines.append(
                f"- {began(one)}, `{command(one)}`: "
                f"**{violation['rule']}** ({count:,}). {violation['text']}"
            )
    return lines


def faults_table(found: Sequence[Result]) -> list[str]:
    """One line for each fault: how often it was seen, and how long a group took to recover from it.

    Faults of a storm overlap, so only single faults have a time.
    """
    seen: dict[str, list[int]] = {}
    times: dict[str, list[float]] = {}
    producer: dict[str, list[float]] = {}
    for one in found:
        for fault, counts in one["faults"].items() if one["mode"] != "recovery" else ():
            total = seen.setdefault(fault, [0, 0])
            total[0] += counts["delivered"]
            total[1] += counts["planned"]
        for fault, values in one["recovery"].items():
            if "hiccup" in values:  # not in an earlier measure, with machine pauses
                times.setdefault(fault, []).extend(values["all"])
                producer.setdefault(fault, []).extend(values["producer"])
    lines = header("Fault", "Seen", "Recoveries", "Median, s", "Longest, s", "Producer, s")
    for fault in sorted(seen | times):
        cells = [f"{seen[fault][0]} of {seen[fault][1]}" if fault in seen else ""]
        if fault in times:
            slowest = [percentile(times[fault], 0.5), max(times[fault]), max(producer[fault])]
            cells += [str(len(times[fault])), *(f"{seconds:.1f}" for seconds in slowest)]
        lines.append(row([fault, *cells, *[""] * (5 - len(cells))]))
    return lines


def resources_table(found: Sequence[Result]) -> list[str]:
    """One line for each run in which a member lived long enough to show growth."""
    measures = ("rss", "descriptors", "threads", "watches")
    lines = header("Run (UTC)", "Group", "Highest memory, MiB", *("memory", *measures[1:]))
    for one in found:
        if one["resources"]["rss"]["growth"] is None:
            continue
        grown = [one["resources"][measure]["growth"] for measure in measures]
        cells = ["" if part is None else f"{part:+.1%}" for part in grown]
        highest = f"{one['resources']['rss']['highest'] / (1 << 20):.0f}"
        lines.append(row([began(one), one["settings"]["kind"], highest, *cells]))
    return lines


def page(found: Sequence[Result]) -> list[str]:
    """All tables of the page."""
    sound = [one for one in found if not one["settings"]["broken"]]
    broken = [one for one in found if one["settings"]["broken"]]
    storms = [one for one in sound if one["mode"] != "recovery"]
    lines = ["### Runs", "", *runs_table(sound), ""]
    lines += ["Runs that broke a rule, with the first violation of each rule:", ""]
    lines += violations_list(sound) or ["none."]
    if broken:
        lines += ["", "### Broken builds", "", *runs_table(broken), "", *violations_list(broken)]
    lines += ["", "### Faults", "", *faults_table(sound)]
    lines += ["", "### Growth in a run", "", *resources_table(storms)]
    return lines


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
