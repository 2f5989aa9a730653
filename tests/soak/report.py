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
    """One line for each run."""
    lines = header(
        "Run (UTC)", "Options", "Seconds", "Messages", "Faults seen", "Repeated", "Broken rules"
    )
    for one in found:
        faults = one["faults"].values()
        seen, planned = (sum(f[key] for f in faults) for key in ("delivered", "planned"))
        broken = ", ".join(f"{k} {v:,}" for k, v in one["violations_by_rule"].items())
        lines.append(
            row(
                [
                    began(one),
                    f"`{command(one)}`",
                    f"{one['disturbed']:.0f}",
                    f"{one['counts']['acknowledged']:,}",
                    f"{seen} of {planned}",
                    f"{one['counts']['repeated']:,}",
                    broken or "none",
                ]
            )
        )
    return lines


def violations_list(found: Sequence[Result]) -> list[str]:
    """The first violation of each rule of each run."""
    lines = []
    for one in found:
        for violation in one["violations"]:
            count = one["violations_by_rule"][violation["rule"]]
            lines.append(
                f"- {began(one)}, seed {one['settings']['seed']}: "
                f"**{violation['rule']}** ({count:,}). {violation['text']}"
            )
    return lines


def faults_table(found: Sequence[Result]) -> list[str]:
    """One line for each kind of fault and variant."""
    kinds = sorted({one["settings"]["kind"] for one in found})
    totals: dict[str, dict[str, list[int]]] = {}
    for one in found:
        for fault, counts in one["faults"].items():
            cell = totals.setdefault(fault, {}).setdefault(one["settings"]["kind"], [0, 0])
            cell[0] += counts["delivered"]
            cell[1] += counts["planned"]
    lines = header("Fault", *kinds)
    for fault in sorted(totals):
        cells = [totals[fault].get(kind, [0, 0]) for kind in kinds]
        lines.append(
            row([fault, *(f"{seen} of {tried}" if tried else "" for seen, tried in cells)])
        )
    sums = [[sum(t.get(k, [0, 0])[i] for t in totals.values()) for i in (0, 1)] for k in kinds]
    lines.append(row(["**all**", *(f"**{seen} of {tried}**" for seen, tried in sums)]))
    return lines


def recovery_table(found: Sequence[Result]) -> list[str]:
    """Seconds by fault and kind of group: median, longest and number of times."""
    kinds = sorted({one["settings"]["kind"] for one in found})
    rows: dict[str, dict[str, list[float]]] = {}
    for one in found:
        for fault, values in one["recovery"].items():
            if "hiccup" not in values:
                continue  # an earlier measure, with machine pauses
            into = rows.setdefault(fault, {})
            into.setdefault(one["settings"]["kind"], []).extend(values["all"])
            into.setdefault("producer", []).extend(values["producer"])
    lines = header("Fault", *kinds, "producer")
    for fault, seconds in sorted(rows.items()):
        cells = []
        for kind in kinds:
            times = seconds.get(kind, [])
            middle = f"{percentile(times, 0.5):.1f}, " if len(times) > 1 else ""
            cells.append(f"{middle}{max(times):.1f} ({len(times)})" if times else "")
        lines.append(row([fault, *cells, f"{max(seconds['producer']):.1f}"]))
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
    lines += ["The first violation of each rule in each run:", ""]
    lines += violations_list(sound) or ["none."]
    if broken:
        lines += ["", "### Broken builds", "", *runs_table(broken), "", *violations_list(broken)]
    lines += ["", "### Faults seen", "", *faults_table(storms)]
    lines += ["", "### Seconds to recover from one fault", "", *recovery_table(sound)]
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
