"""Write the recorded figures into docs/explanation/speed.md and docs/images/speed.svg.

Run it with ``python -m tests.bench.speed.page``. It replaces the text between the page's two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.bench.speed.results import BEFORE, RECORDED, judged

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "speed.md"
CHART = ROOT / "docs" / "images" / "speed.svg"
BEGIN, END = "<!-- figures: `make bench-page` writes them -->", "<!-- end of the figures -->"
_UNITS = ("msg/s", "CPU s/M", "MiB", "start s", "p50 ms", "p99 ms", "% of a core", "s", "requests")


def number(value: float) -> str:
    """A number with three significant digits, or all digits of a large number."""
    if value >= 10_000:
        return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread(figure: Mapping[str, Any]) -> str:
    """The median, and in brackets the lowest and highest value."""
    if len(figure["rounds"]) == 1:
        return number(figure["median"])
    return f"{number(figure['median'])} ({number(figure['min'])} to {number(figure['max'])})"


def tables(run: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """The part of the page that has the figures. ``before`` is the run recorded before this one."""
    out = [f"{_conditions(run)}\n"]
    if before is not None:
        out.append(f"The run before: {_conditions(before)}\n")
    out += [
        "### Targets\n",
        "| Measure | Target | Found | Run before | |\n|---|---|---|---|---|",
    ]
    earlier = {target.name: value for target, value, _ in judged((before or {}).get("figures", []))}
    for target, value, good in judged(run["figures"]):
        sign = "≥" if target.at_least else "≤"
        verdict = "reached" if good else "missed"
        was = f"{earlier[target.name]:.3g}" if target.name in earlier else ""
        out.append(
            f"| {target.name} | {sign} {target.limit:.3g} | {value:.3g} | {was} | {verdict} |"
        )
    cases: dict[str, dict[str, dict[str, str]]] = {}
    for figure in run["figures"]:
        rows = cases.setdefault(figure["case"], {})
        rows.setdefault(figure["reader"], {})[figure["figure"]] = spread(figure)
    out.append("\n### Every figure\n\nMedian, and in brackets the least and the greatest round.")
    single: list[str] = []
    for case, rows in cases.items():
        units = [unit for unit in _UNITS if any(unit in row for row in rows.values())]
        if case.startswith(("join", "leave", "first", "later")):
            for reader, row in rows.items():
                text = ", ".join(f"{row[unit]} {unit}" for unit in units if unit in row)
                single.append(f"| {case} | {reader} | {text} |")
            continue
        out.append(f"\n**{case}**\n\n| Reader | {' | '.join(units)} |")
        out.append("|---" * (len(units) + 1) + "|")
        for reader, row in rows.items():
            out.append(f"| {reader} | {' | '.join(row.get(unit, '') for unit in units)} |")
    if single:
        out += ["\n**Groups**\n\n| Case | Reader | |\n|---|---|---|", *single]
    return "\n".join(out) + "\n"


def _conditions(run: Mapping[str, Any]) -> str:
    return (
        f"{run['machine']}; {run['date']}; {run['rounds']} rounds; load of the machine at the "
        f"start {run['load']:.1f}. {run['note']}"
    )


def chart(run: Mapping[str, Any]) -> str:
    """Throughput of each case as bars: the median, with a line from the lowest to the highest
    value."""
    rates = [figure for figure in run["figures"] if figure["figure"] == "msg/s"]
    cases: dict[str, list[Mapping[str, Any]]] = {}
    for figure in rates:
        cases.setdefault(figure["case"], []).append(figure)
    top = max((f["max"] for f in rates if f["reader"] != "floor"), default=1.0) * 1.05
    left, width, step = 190, 480, 17
    parts: list[str] = []
    y = 14
    for case, figures in cases.items():
        parts.append(f'<text x="4" y="{y + 4}" class="case">{escape(case)}</text>')
        y += step
        for figure in _ordered(figures):
            name = figure["reader"]
            if name == "floor":
                continue
            kind = "ours" if name.startswith("ours") else "other"
            low, middle, high = (width * figure[k] / top for k in ("min", "median", "max"))
            parts.append(
                f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
                f'<rect class="{kind}" x="{left}" y="{y - 6}" width="{middle:.1f}" height="12"/>'
                f'<line x1="{left + low:.1f}" x2="{left + high:.1f}" y1="{y}" y2="{y}"/>'
                f'<text x="{left + max(high, middle) + 5:.1f}" y="{y + 4}">'
                f"{number(figure['median'])}</text>"
            )
            y += step
        y += 8
    style = (
        "text{font:11px sans-serif;fill:#222}.case{font-weight:bold}.ours{fill:#1a6fb0}"
        ".other{fill:#b9c2c9}line{stroke:#222;stroke-width:2}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ours{fill:#4493f8}"
        ".other{fill:#57606a}line{stroke:#e6edf3}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 70} {y}" '
        f'role="img"><title>Messages per second</title><style>{style}</style>'
        f"{''.join(parts)}</svg>\n"
    )


def _ordered(figures: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(figures, key=lambda figure: -figure["median"])


def write(run: Mapping[str, Any]) -> None:
    """Write page and chart."""
    earlier = json.loads(BEFORE.read_text()) if BEFORE.exists() else None
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(run, earlier)}\n{END}{after}")
    CHART.write_text(chart(run))


if __name__ == "__main__":
    if not RECORDED.exists():
        sys.exit(f"error: {RECORDED.relative_to(ROOT)} is missing: make bench ARGS=--record")
    write(json.loads(RECORDED.read_text()))
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} and {CHART.relative_to(ROOT)} are written\n")
