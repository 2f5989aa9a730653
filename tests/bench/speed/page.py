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

from tests.bench.speed.results import RECORDED

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


def tables(run: Mapping[str, Any]) -> str:
    """The part of the page that has the figures."""
    out = [
        f"{run['machine']}, {run['rounds']} rounds, {run['date']}. Load average at the start: "
        f"{run['load']:.1f}. {run['note']}\n",
    ]
    cases: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for figure in run["figures"]:
        rows = cases.setdefault(figure["case"], {})
        rows.setdefault(figure["reader"], {})[figure["figure"]] = figure
    others = [case for case, rows in cases.items() if "msg/s" in next(iter(rows.values()))][1:]
    changes = [case for case in cases if case.startswith(("join", "leave", "first", "later"))]
    out.append("### Every figure\n\nMedians. `tests/bench/results/speed.json` has every round.")
    for case, rows in cases.items():
        if case in changes or case in others:
            continue
        units = [unit for unit in _UNITS if any(unit in row for row in rows.values())]
        out.append(f"\n**{case}**\n\n| Reader | {' | '.join(units)} |")
        out.append("|---" * (len(units) + 1) + "|")
        for reader, row in rows.items():
            cells = [_median(row[unit]) if unit in row else "" for unit in units]
            out.append(f"| {reader} | {' | '.join(cells)} |")
    if others:
        out.append("\n**Other messages**: msg/s, and CPU s/M\n")
        out += _by_case(cases, others)
    if changes:
        readers = list(dict.fromkeys(reader for case in changes for reader in cases[case]))
        out.append(f"\n**Groups**\n\n| Case | {' | '.join(readers)} |")
        out.append("|---" * (len(readers) + 1) + "|")
        for case in changes:
            rows = cases[case]
            cells = [
                ", ".join(f"{_median(rows[one][u])} {u}" for u in _UNITS if u in rows[one])
                for one in readers
                if one in rows
            ]
            out.append(f"| {case} | {' | '.join(cells + [''] * (len(readers) - len(cells)))} |")
    return "\n".join(out) + "\n"


def _median(figure: Mapping[str, Any]) -> str:
    return number(figure["median"])


def _by_case(
    cases: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]], names: Sequence[str]
) -> list[str]:
    """A table with a line for each reader and a column for each case."""
    readers = dict.fromkeys(reader for name in names for reader in cases[name])
    lines = [f"| Reader | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for reader in readers:
        rows = [cases[name].get(reader) for name in names]
        cells = [
            f"{_median(row['msg/s'])}; {_median(row['CPU s/M'])}" if row else "" for row in rows
        ]
        lines.append(f"| {reader} | {' | '.join(cells)} |")
    return lines


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
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(run)}\n{END}{after}")
    CHART.write_text(chart(run))


if __name__ == "__main__":
    if not RECORDED.exists():
        sys.exit(f"error: {RECORDED.relative_to(ROOT)} is missing: make bench ARGS=--record")
    write(json.loads(RECORDED.read_text()))
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} and {CHART.relative_to(ROOT)} are written\n")
