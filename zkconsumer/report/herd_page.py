"""The report on membership changes: figures, charts over the number of members, timelines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from zkconsumer.report.charts import COLOURS, bars, lines, timeline

#: Metric, its heading, its unit.
METRICS = (
    ("operations", "ZooKeeper operations", "znodes read and transactions requested"),
    ("requests", "Requests to the servers", "packets to any server"),
    ("bytes_total", "Bytes", "both directions"),
    ("watches_fired", "Watches fired", "events sent to members"),
    ("attempts", "Rebalance attempts", "all members"),
    ("failed_attempts", "Failed attempts", "all members"),
    ("stopped", "Partitions that stop", "without an owner for some time"),
    ("seconds_to_stable", "Seconds to stable", "until the last change of an owner"),
    ("unowned_seconds", "Partition-seconds unowned", "without an owner, all partitions"),
)
COLUMNS = (
    "members",
    "partitions",
    "watches_fired",
    "reads",
    "writes",
    "requests",
    "bytes_total",
    "attempts",
    "failed_attempts",
    "conflicts",
    "moved",
    "stopped",
    "seconds_to_stable",
    "unowned_seconds",
    "unowned_longest",
    "unowned_at_end",
)
_PER_MEMBER_ROWS = 12


def label(run: Mapping[str, Any]) -> str:
    """Return the label of a run's line in the charts."""
    return str(run["profile"]) if run["mode"] == "simulated" else f"{run['profile']} (real)"


def herd_report(runs: Sequence[Mapping[str, Any]], title: str, command: str) -> str:
    """Return the report as an HTML page.

    Args:
        runs: ``Measures.as_json()`` of each run.
        title: heading of the page.
        command: the command that produced it, shown unchanged.
    """
    names = list(dict.fromkeys(label(run) for run in runs))
    rows = [
        _row(run) for run in sorted(runs, key=lambda run: (names.index(label(run)), run["members"]))
    ]
    charts = []
    for metric, heading, unit in METRICS:
        series = {
            name: [
                (row["members"], row[metric])
                for row in rows
                if label(row) == name and row[metric] is not None
            ]
            for name in names
        }
        charts.append({"heading": heading, "unit": unit, "svg": lines(series, "members")})
    sizes = sorted({row["members"] for row in rows})
    environment = Environment(
        loader=PackageLoader("zkconsumer.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["figure"] = figure
    return environment.get_template("herd.html").render(
        title=title,
        command=command,
        columns=COLUMNS,
        rows=rows,
        names=[(name, COLOURS[i % len(COLOURS)]) for i, name in enumerate(names)],
        charts=charts,
        sizes=sizes,
        details=[_detail(row, names) for row in rows],
        data=_data(runs),
    )


def figure(value: object) -> str:
    """Return a figure as it is shown on the page."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _row(run: Mapping[str, Any]) -> dict[str, Any]:
    row = dict(run)
    row["bytes_total"] = run["bytes_out"] + run["bytes_in"]
    row["label"] = label(run)
    return row


def _detail(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    busiest = sorted(row["by_member"].items(), key=lambda item: -item[1]["requests"])
    return {
        "label": row["label"],
        "members": row["members"],
        "kinds": row["by_kind"],
        "busiest": busiest[:_PER_MEMBER_ROWS],
        "rest": max(0, len(busiest) - _PER_MEMBER_ROWS),
        "rates": bars(
            row["requests_per_second"], COLOURS[names.index(row["label"]) % len(COLOURS)]
        ),
        "timeline": timeline(
            row["timeline"], 1.25 * (row["seconds_to_stable"] or row["seconds_observed"])
        ),
    }


def _data(runs: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the runs as JSON that cannot end its script element."""
    text = json.dumps(list(runs), separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
