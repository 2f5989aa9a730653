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
    """The command that repeats a run."""
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
    return "python -m tests.soak " + " ".join(words)


def row(cells: Iterable[object]) -> str:
    """One line of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def runs_table(found: Sequence[Result]) -> list[str]:
    """One line for each run."""
    lines = [
        row(["Run (UTC)", "Group", "Seed", "Seconds", "Members", "Partitions", "Messages",
             "Faults seen", "of", "Repeated", "Broken rules"]),
        row(["---"] * 11),
    ]  # fmt: skip
    for one in found:
        settings, counts = one["settings"], one["counts"]
        faults = one["faults"].values()
        broken = ", ".join(f"{k} {v:,}" for k, v in one["violations_by_rule"].items())
        lines.append(
            row(
                [
                    one["began"].replace("T", " "),
                    settings["kind"] + (f", {settings['broken']}" if settings["broken"] else ""),
                    settings["seed"],
                    f"{one['disturbed']:.0f}",
                    settings["members"],
                    settings["partitions"],
                    f"{counts['acknowledged']:,}",
                    sum(f["delivered"] for f in faults),
                    sum(f["planned"] for f in faults),
                    f"{counts['repeated']:,}",
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
                f"- {one['began'].replace('T', ' ')}, seed {one['settings']['seed']}: "
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
    lines = [row(["Fault", *kinds]), row(["---"] * (1 + len(kinds)))]
    for fault in sorted(totals):
        cells = [totals[fault].get(kind, [0, 0]) for kind in kinds]
        lines.append(
            row([fault, *(f"{seen} of {tried}" if tried else "" for seen, tried in cells)])
        )
    sums = [[sum(t.get(k, [0, 0])[i] for t in totals.values()) for i in (0, 1)] for k in kinds]
    lines.append(row(["**all**", *(f"**{seen} of {tried}**" for seen, tried in sums)]))
    return lines


def recovery_table(found: Sequence[Result]) -> list[str]:
    """Seconds by fault, for all runs of one kind of group."""
    lines = []
    for kind in sorted({one["settings"]["kind"] for one in found}):
        rows: dict[str, dict[str, list[float]]] = {}
        for one in found:
            if one["settings"]["kind"] == kind:
                for fault, values in one["recovery"].items():
                    if "hiccup" not in values:
                        continue  # an earlier measure, with machine pauses
                    into = rows.setdefault(fault, {})
                    for part, seconds in values.items():
                        into.setdefault(part, []).extend(seconds)
        if not rows:
            continue
        lines += [f"### Group: {kind}", ""]
        lines += [
            row(["Fault", "Times", "p50", "p99", "max", "after its end: p50", "max",
                 "producer: p50", "max", "hiccups: max", "sessions lost"]),
            row(["---"] * 11),
        ]  # fmt: skip
        for fault, values in sorted(rows.items()):
            whole, back, producer = values["all"], values["back"], values["producer"]
            lines.append(
                row(
                    [
                        fault,
                        len(whole),
                        f"{percentile(whole, 0.5):.1f}",
                        f"{percentile(whole, 0.99):.1f}",
                        f"{max(whole):.1f}",
                        f"{percentile(back, 0.5):.1f}",
                        f"{max(back):.1f}",
                        f"{percentile(producer, 0.5):.1f}",
                        f"{max(producer):.1f}",
                        f"{max(values['hiccup']):.1f}",
                        sum(values["sessions"]),
                    ]
                )
            )
        lines.append("")
    return lines


def resources_table(found: Sequence[Result]) -> list[str]:
    """One line for each run that was long enough to show growth."""
    lines = [
        row(["Run (UTC)", "Group", "Measure", "Members", "Growth", "Median", "Highest"]),
        row(["---"] * 7),
    ]
    for one in found:
        for measure, values in one["resources"].items():
            grown = values["growth"]
            unit = 1 << 20 if measure == "rss" else 1
            lines.append(
                row(
                    [
                        one["began"].replace("T", " "),
                        one["settings"]["kind"],
                        "memory (RSS, MiB)" if measure == "rss" else measure,
                        values.get("members", ""),
                        "" if grown is None else f"{grown:+.1%}",
                        f"{values['median'] / unit:.0f}",
                        f"{values['highest'] / unit:.0f}",
                    ]
                )
            )
    return lines


def page(found: Sequence[Result]) -> list[str]:
    """All tables of the page."""
    sound = [one for one in found if not one["settings"]["broken"]]
    broken = [one for one in found if one["settings"]["broken"]]
    storms = [one for one in sound if one["mode"] != "recovery"]
    rounds = [one for one in sound if one["mode"] == "recovery"]
    lines = ["## Runs", "", *runs_table(storms), ""]
    lines += ["Violations, the first of each rule in each run:", ""]
    lines += violations_list(storms) or ["none."]
    lines += ["", "## Faults that were seen", "", *faults_table(storms), ""]
    if broken:
        lines += ["## Broken builds", "", *runs_table(broken), "", *violations_list(broken), ""]
    lines += ["## Recovery, one fault at a time", ""]
    if rounds:
        lines += [*runs_table(rounds), ""]
        lines += violations_list(rounds)
        lines += [""] if violations_list(rounds) else []
    lines += recovery_table(sound)
    lines += ["## Resources", "", *resources_table(storms), ""]
    lines += ["## Commands", "", "```sh", *sorted({command(one) for one in found}), "```"]
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
