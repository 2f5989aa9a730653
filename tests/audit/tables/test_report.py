"""In a real browser, the page shows its data correctly, even with hostile names."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.report import data as report
from zkaudit.report.data import BUCKETS, MAX_GROUPS, MAX_ROWS
from zkaudit.report.page import render, write
from zkaudit.tables.catalog import SCHEMA_VERSION, TABLES

from tests.audit.test_local import alone

WAIT = "--virtual-time-budget=20000"
"""Lets Chromium unpack what is packed in the page."""
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


MEASURE = """{
const luminance = (colour) => {
  const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const style = (element) => getComputedStyle(element), root = document.documentElement;
const finding = document.querySelector("#findings td:last-child div");
const [low, high] = [style(finding).color, style(document.body).backgroundColor]
  .map(luminance).sort((a, b) => a - b);
const all = [...document.body.querySelectorAll("*")];
parent.postMessage(JSON.stringify({
  width: innerWidth, needs: root.scrollWidth, has: root.clientWidth,
  wider: all.filter((e) => e.getBoundingClientRect().right > root.clientWidth)
    .map((e) => e.id || e.tagName),
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
  contrast: (high + 0.05) / (low + 0.05),
  smallest: Math.min(...all.map((e) => parseFloat(style(e).fontSize))),
}), "*");
}"""


def data(name: str, rows: int = 1, cells: list[list[int]] | None = None) -> dict[str, Any]:
    """The result of ``data_of`` for one group of this name."""
    finding = {
        "id": "0123456789",
        "severity": "critical", "kind": "zombie commit", "chroot": "", "group_id": name,
        "topic": name, "partition": 0, "zxid": 3, "t": 500, "u": None, "basis": "proven",
        "sentence": f"Member {name} did it.", "member": name, "effect": "lost", "messages": 7,
        "place": "zk1: log.1, byte 16", "command": "zkaudit show 0x3 --zookeeper-logs zk1",
        "evidence": [["commits", 3, 0, name], ["deliveries", None, None, "a.jsonl:7"]],
    }  # fmt: skip
    return {
        "summary": {
            "intervals": 7, "commits": 8, "logs": 1, "servers": 1, "log_gaps": [],
            "journals": 2, "journal_lines": 1200, "unreadable": 3,
            "dropped": [[0x10000009A, 0x10000009E]], "unconfirmed": [],
            "findings": [{"severity": "critical", "kind": "zombie commit", "count": 1}],
        },
        "verdict": [{"severity": "critical", "text": "It was bad.", "kind": "zombie commit",
                     "effect": None}],
        "only": None,
        "limits": ["An owner znode can never show two owners at once."],
        "findings": [finding], "begin": 0, "end": 480_000, "width": 1000,
        "rows": [["", name, name, number] for number in range(rows)],
        "partitions": rows, "cells": cells or [[0, 400, 0]], "exact": None,
        "groups": [{"chroot": "", "group_id": name, "worst": "critical", "findings": 1,
                    "partitions": rows, "changes": 1, "members": [[0, 2]], "commits": [[1, 5]],
                    "refused": []}],
        "all_groups": 1, "others": None, "changes": 1,
        "members": [name],
        "herds": [{"chroot": "", "group_id": name, "member": name, "change": "join", "t": 5,
                   "basis": "modelled", "notified": 1999, "rebalances": 2000, "reads": 4000000}],
    }  # fmt: skip


def test_the_page_draws_its_findings(browse: Any, tmp_path: Path) -> None:
    """The script runs to its end. The page shows the findings with their evidence first, and names
    the limits."""
    shown = browse(render(data("orders")), tmp_path)
    assert 'data-drawn="yes"' in shown
    assert "Findings: 1 shown of 1" in shown
    assert "Member orders did it." in shown
    assert "commits 0x3: orders · deliveries: a.jsonl:7" in shown
    assert "orders: join of orders" in shown
    assert "1,999" in shown
    assert "modelled: an upper bound" in shown
    assert "2 journals of members, 3 of their 1,200 lines unreadable." in shown
    assert "never were committed: 0x10000009a to 0x10000009e" in shown
    assert "can never show two owners" in shown
    assert "zk1: log.1, byte 16" in shown
    assert "zkaudit show 0x3 --zookeeper-logs zk1" in shown
    places = [shown.index(text) for text in ("It was bad.", 'id="timeline"', "orders did it.")]
    assert places == sorted(places)


def test_a_group_shows_the_mode_of_its_live_move(browse: Any, tmp_path: Path) -> None:
    """The group's row has the mode that holds. A mode that was deleted or lies before a log gap is
    not shown."""
    moves = [
        {"chroot": "", "group_id": name, "mode": "kafka", "ended": ended}
        for name, ended in (("orders", "still"), ("gone", "deleted"), ("gap", "unknown"))
    ]
    modes = report._modes({"migrations": moves})
    assert modes == {("", "orders"): "kafka"}
    shown = data("orders")
    shown["groups"][0]["mode"] = modes["", "orders"]
    choices = part(browse(render(shown), tmp_path), "group").strip("|").split("||")
    assert choices == ["all", "orders (critical), mode kafka"]


def test_hostile_names_stay_text(browse: Any, tmp_path: Path) -> None:
    """Markup, control and bidi characters in a name run nothing, and no character is invisible."""
    page = render(data(EVIL))
    assert page.count("</script>") == 2
    assert "\u202e" not in page
    assert "\x1b" not in page
    shown = browse(page, tmp_path)
    assert 'data-drawn="yes"' in shown
    assert "<title>zkaudit report</title>" in shown
    assert "<img" not in shown
    assert html.escape("<img src=x onerror=alert(1)>\\u202e\\x1b", quote=False) in shown


def test_a_script_that_is_not_the_pages_own_does_not_run(browse: Any, tmp_path: Path) -> None:
    """The page's security policy runs only the page's own script, should another one get in."""
    page = render(data("g")).replace("</body>", "<script>document.title='owned'</script></body>")
    assert "<title>zkaudit report</title>" in browse(page, tmp_path)


def test_the_page_is_whole_in_itself() -> None:
    """The page loads nothing from elsewhere, and its data can be read back."""
    page = render(data("g"))
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", page)
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    assert json.loads(found[1]) == data("g")


def tables_of(rows: dict[str, list[dict[str, Any]]]) -> report.Tables:
    """Tables of an audit with these rows. Columns that are not named are null."""
    return report.Tables(
        {
            table.name: dataset.dataset(
                pa.Table.from_pylist(rows.get(table.name, []), schema=table.arrow_schema())
            )
            for table in TABLES
        }
    )


def second(number: int) -> datetime:
    """A time in 1970, this number of seconds after its start."""
    return datetime.fromtimestamp(number, UTC)


def history(groups: int, bad: dict[str, str], partitions: int = 1) -> dict[str, Any]:
    """Rows of groups ``g0000``, ``g0001``, and so on. Two members joined each group, and one of
    them owned the partitions. ``bad`` gives the severity of the finding in some groups."""
    made: dict[str, Any] = {
        name: [] for name in ("registrations", "ownership", "membership", "herds", "findings")
    }
    for group in (f"g{number:04}" for number in range(groups)):
        place = {"chroot": "", "group_id": group}
        made["registrations"].append(place | {"member": "m0"})
        for number in (0, 1):
            row = place | {"zxid": 1 + number, "idx": 0, "time": second(number), "change": "join",
                           "members": 1 + number, "member": f"m{number}", "notified": number,
                           "basis": "modelled", "rebalances": 2, "reads": 4}  # fmt: skip
            made["membership"].append(row)
            made["herds"].append(row)
        made["ownership"] += [
            place | {"topic": "t", "partition": number, "member": "m0", "ended": "released",
                     "start_time": second(1), "end_time": second(100)}
            for number in range(partitions)
        ]  # fmt: skip
        if group in bad:
            made["findings"].append(
                place | {"id": f"{len(made['findings']):010x}",
                         "severity": bad[group], "kind": "unowned interval",
                         "topic": "t", "partition": 0,
                         "zxid": 3, "time": second(50), "basis": "proven", "sentence": "Bad.",
                         "evidence": []}
            )  # fmt: skip
    return made


def summary_of(rows: dict[str, Any]) -> dict[str, Any]:
    """The summary that belongs to ``history``."""
    kinds: dict[str, int] = {}
    for row in rows["findings"]:
        kinds[row["severity"]] = kinds.get(row["severity"], 0) + 1
    return data("g")["summary"] | {
        "intervals": len(rows["ownership"]), "last_time": "1970-01-01T00:01:40+00:00",
        "findings": [
            {"severity": s, "kind": "unowned interval", "count": n} for s, n in kinds.items()
        ],
    }  # fmt: skip


def choose(page: str, group: str = "", searched: str = "") -> str:
    """The page after a reader has chosen a group, or typed into the search box."""
    steps = f"""{{
    const box = document.getElementById("search"), select = document.getElementById("group");
    const typed = {json.dumps(searched)}, wanted = {json.dumps(group)};
    if (typed) {{ box.value = typed; box.dispatchEvent(new Event("input")); }}
    if (wanted) {{
      select.value = [...select.options].find((o) => o.label.split(" ")[0] === wanted).value;
      select.dispatchEvent(new Event("change"));
    }}
    }}"""
    return then(page, steps)


def then(page: str, steps: str) -> str:
    """The page with another script after its own."""
    script = base64.b64encode(hashlib.sha256(steps.encode()).digest()).decode()
    page = page.replace("script-src '", f"script-src 'sha256-{script}' '", 1)
    return page.replace("</body>", f"<script>{steps}</script></body>")


def part(shown: str, name: str) -> str:
    """The text of one element of a page that Chromium has drawn."""
    found = re.search(rf'<(\w+) [^>]*id="{name}"[^>]*>(.*?)</\1>', shown, re.DOTALL)
    assert found, name
    return html.unescape(re.sub("<[^>]*>", "|", found[2]))


def test_findings_are_reached_by_keys_and_links_and_leave_as_files(
    browse: Any, tmp_path: Path
) -> None:
    """Findings of one member are one row. The key N goes to the next one and shows its time. The
    page's address then links to that finding, in the chosen time zone. CSV, JSON and trace have all
    findings."""
    shown = data("=orders")
    first = shown["findings"][0]
    shown["end"], shown["width"] = 480_000_000, 1_000_000
    shown["findings"] = [
        first | {"t": t, "zxid": t, "id": f"{t:010x}"} for t in (500, 200_000_000, 90_000_000)
    ]
    page = render(shown)
    steps = """{
    const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("n"); press("N");
    byId("zone").value = "Asia/Tokyo"; byId("zone").dispatchEvent(new Event("change"));
    const kept = new URLSearchParams(location.hash.slice(1));
    whole();
    location.hash = "#" + kept;
    recall(); draw();
    const csv = csvOf().trim().split("\\r\\n"), trace = JSON.parse(traceOf()).traceEvents;
    document.body.dataset.found = JSON.stringify([
      chosen.t, Math.round(view.from), Math.round(view.to), kept.get("zone"), csv.length,
      csv[1].includes(",'=orders,"), JSON.parse(jsonOf()).map((f) => f.time),
      trace.map((e) => e.ph).join(""), document.querySelectorAll("tr.found").length ]);
    }"""
    drawn = browse(then(page, steps), tmp_path)
    found = re.search(r'data-found="([^"]*)"', drawn)
    assert found
    times = ["1970-01-01T00:00:00.500Z", "1970-01-03T07:33:20.000Z", "1970-01-02T01:00:00.000Z"]
    assert json.loads(html.unescape(found[1])) == [
        90_000_000, 90_000_000 - 30_000, 90_000_000 + 30_000, "Asia/Tokyo", 4, True, times,
        "MMXiii", 1,
    ]  # fmt: skip
    assert "1970-01-02 10:00:00.000" in part(drawn, "findings")
    assert "critical: Member =orders did it." in part(drawn, "tip")
    assert "2 more of this kind, of this member" in drawn


@pytest.fixture(scope="module")
def crowded() -> dict[str, Any]:
    """The data of a page that has room for fewer groups than there are."""
    rows = history(MAX_GROUPS + 50, {"g0240": "high", "g0249": "critical", "g0001": "info"})
    return report.data_of(summary_of(rows), tables_of(rows))


def test_groups_with_the_worst_findings_can_be_chosen(
    crowded: dict[str, Any], browse: Any, tmp_path: Path
) -> None:
    """The page has room for fewer groups than there are. It shows groups with the worst findings
    first, even if their names sort last. It prints how many groups it omits and how to see them."""
    assert [(g["group_id"], g["worst"]) for g in crowded["groups"]][:4] == [
        ("g0249", "critical"), ("g0240", "high"), ("g0001", "info"), ("g0000", None),
    ]  # fmt: skip
    shown = browse(render(crowded), tmp_path)
    choices = part(shown, "group").strip("|").split("||")
    assert choices[:4] == ["all", "g0249 (critical)", "g0240 (high)", "g0001 (info)"]
    assert len(choices) == 1 + MAX_GROUPS
    assert part(shown, "groups-cut").startswith("Not in this page: 50 of 250 groups. To see them,")
    assert "run: zkaudit report OUT --groups-regex REGEX" in part(shown, "groups-cut")
    assert part(shown, "series-cut") == "Only the 200 groups that can be chosen are counted here."
    assert part(shown, "herds-cut").startswith("Not in this page: 490 of 500 joins and leaves.")


def test_unknown_numbers_of_members_are_named(browse: Any, tmp_path: Path) -> None:
    """If the logs do not show which members were registered, the page says so and does not draw a
    zero."""
    shown = data("orders")
    assert part(browse(render(shown), tmp_path), "series-cut") == ""
    shown["groups"][0]["members"] = [[0, None], [9, 2]]
    text = part(browse(render(shown), tmp_path), "series-cut")
    assert text == "Grey: the logs do not show how many members were registered."


def test_every_group_that_can_be_chosen_shows_its_members(browse: Any, tmp_path: Path) -> None:
    """The page shows the joins of a small group between larger ones, although other joins woke more
    members. It never says that no member joined when some did."""
    rows = history(40, {})
    for row in rows["herds"]:
        if row["group_id"] != "g0039" and row["notified"]:
            row["notified"] = 99
    page = render(report.data_of(summary_of(rows), tables_of(rows)))
    shown = browse(choose(page, "g0039"), tmp_path)
    assert "g0039: join of m1" in part(shown, "herds")
    assert part(shown, "herds-cut").startswith("Not in this page: 1 of 2 joins and leaves of this")
    assert "OUT/tables/herds" in part(shown, "herds-cut")
    assert part(shown, "groups-cut") == ""
    alone = data("g") | {"herds": []}  # its one member woke no other
    assert "Members joined or left 1 time, no" in part(browse(render(alone), tmp_path), "herds")
    alone["changes"] = 0
    assert "No member joined or left." in part(browse(render(alone), tmp_path), "herds")


def test_partitions_that_are_not_in_the_timeline_are_counted(browse: Any, tmp_path: Path) -> None:
    """The timeline has room only for the partitions of the worst groups. For any other group the
    page says so and prints the command that shows them, quoted for the shell."""
    rows = history(3, {"g0001": "high"}, MAX_ROWS // 2)
    for table in rows.values():
        for row in table:
            row["group_id"] = {"g0002": "it's.late"}.get(row["group_id"], row["group_id"])
    page = render(report.data_of(summary_of(rows), tables_of(rows)))
    assert "Not in this page: 250 of 750 partitions." in part(browse(page, tmp_path), "rows-cut")
    shown = browse(choose(page, "g0001"), tmp_path)
    assert part(shown, "rows-cut") == ""
    shown = browse(choose(page, "it's.late"), tmp_path)
    assert part(shown, "rows-cut").startswith(
        "Not in this page: 250 of 250 partitions of this group. "
        r"To see them, run: zkaudit report OUT --group 'it'\''s.late' (OUT"
    )


def test_the_search_box_finds_a_group(crowded: dict[str, Any], browse: Any, tmp_path: Path) -> None:
    """Typing part of a name leaves the groups that contain it. If there is no such group in the
    audit, the page says so."""
    page = render(crowded)
    shown = browse(choose(page, searched="G012"), tmp_path)
    assert part(shown, "group").strip("|").split("||") == [f"g012{n}" for n in range(10)]
    assert "g0120: join of m1" in part(shown, "herds")
    assert "g0000" not in part(shown, "herds")
    assert part(shown, "groups-cut") == ""
    shown = browse(choose(page, searched="nope"), tmp_path, WAIT)
    assert part(shown, "groups-cut") == "No group of the audit has such a name."


def test_the_search_finds_groups_that_the_page_has_no_room_for(browse: Any, tmp_path: Path) -> None:
    """For a group that the page does not contain, the search shows its findings by severity and
    kind, and the command that makes its page. The name is quoted for the shell and stays text. A
    link to such a group searches for it."""
    bad = {f"g{n:04}": "high" for n in range(MAX_GROUPS)} | {f"g{MAX_GROUPS:04}": "low"}
    rows = history(MAX_GROUPS + 20, bad)
    names = {f"g{MAX_GROUPS:04}": "it's.late<b>\u202e", f"g{MAX_GROUPS + 1:04}": "late.fine"}
    for table in rows.values():
        for row in table:
            row["group_id"] = names.get(row["group_id"], row["group_id"])
    page = render(report.data_of(summary_of(rows), tables_of(rows)))
    assert "\u202e" not in page
    shown = browse(choose(page, searched="LATE"), tmp_path, WAIT)
    assert part(shown, "groups-cut") == "Not in this page: 2 groups with such a name."
    assert part(shown, "others").strip("|").split("|||||") == [
        "low|| it's.late<b>\\u202e||: 1 low unowned interval.||Its page: |zkaudit report OUT "
        r"--group 'it'\''s.late<b>\u202e' --page group.html",
        "late.fine||: no findings.||Its page: |zkaudit report OUT --group 'late.fine' "
        "--page group.html",
    ]  # fmt: skip
    shown = browse(choose(page, searched="g02"), tmp_path, WAIT)
    assert part(shown, "groups-cut") == "Not in this page: 18 groups with such a name."
    assert "8 more: type more of the name." in part(shown, "others")
    link = 'location.hash = "#group=" + encodeURIComponent(JSON.stringify(["", "late.fine"]));'
    shown = browse(then(page, link), tmp_path, WAIT)
    assert "late.fine||: no findings." in part(shown, "others")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fits_narrow_windows_and_both_colour_schemes(
    browse: Any, dark: bool, width: int, tmp_path: Path
) -> None:
    """Nothing is wider than the page, even with long names: the page does not scroll sideways. In
    the light and in the dark scheme, the text of a finding contrasts with the background by at
    least 4.5 (WCAG AA), and no text is smaller than 11 pixels."""
    shown = data("a-long-name-without-any-space." * 8)
    shown["groups"].append(shown["groups"][0] | {"group_id": "second"})
    shown["findings"].append(shown["findings"][0] | {"zxid": 4, "t": None, "kind": "x" * 80})
    inner = then(render(shown), MEASURE)
    outer = f"""<!doctype html><style>:root {{ color-scheme: light dark }}
    iframe {{ width: {width}px; height: 900px; border: 0 }}</style>
    <iframe srcdoc="{html.escape(inner)}"></iframe>
    <script>onmessage = (event) => {{ document.body.dataset.measured = event.data; }}</script>"""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    drawn = browse(outer, tmp_path, WAIT, scheme)
    found = re.search(r'data-measured="([^"]*)"', drawn)
    assert found
    measured = json.loads(html.unescape(found[1]))
    assert measured["width"] == width
    assert measured["needs"] <= measured["has"], measured["wider"]
    assert measured["dark"] == dark
    assert measured["contrast"] >= 4.5
    assert measured["smallest"] >= 11


def test_the_timeline_of_a_time_range_begins_an_hour_before_it() -> None:
    """Owners have been there for weeks when a time range begins. Those that left before it are not
    in the timeline."""
    rows = history(2, {})
    rows["ownership"][1] |= {"ended": "still held", "end_time": None}
    times = {"last_time": "1970-01-01T03:00:00+00:00", "from": None}

    def seen(**more: str) -> tuple[int, int, bool, list[str]]:
        made = report.data_of(summary_of(rows) | times | more, tables_of(rows))
        groups = [row[1] for row, cells in zip(made["rows"], made["cells"], strict=True) if cells]
        return made["begin"], made["end"], made["clamped"], groups

    assert seen() == (1_000, 10_800_000, False, ["g0000", "g0001"])
    late = seen(**{"from": "1970-01-01 02:00:00"})
    assert late == (3_600_000, 10_800_000, True, ["g0001"])


def test_members_from_before_the_first_claim_are_drawn() -> None:
    """A member that registered before the first interval is drawn from the start of the chart."""
    place: dict[str, Any] = {"chroot": "", "group_id": "g"}
    rows = {
        "registrations": [place],
        "membership": [
            {**place, "zxid": 1, "idx": 0, "members": 1, "time": second(1)},
            {**place, "zxid": 2, "idx": 0, "members": 2, "time": second(2)},
            {**place, "zxid": 9, "idx": 0, "members": 1, "time": second(25)},
            {**place, "zxid": 10, "idx": 0, "members": None, "time": second(35)},
        ],
        "ownership": [
            {**place, "topic": "t", "partition": 0, "member": "m", "ended": "released",
             "start_time": second(10), "end_time": second(10 + 10 * BUCKETS - 1)},
        ],
    }  # fmt: skip
    made = report.data_of(summary_of(history(0, {})) | {"intervals": 1}, tables_of(rows))
    (series,) = made["groups"]
    assert made["begin"] == 10_000
    assert series["members"] == [[0, 2], [1, 1], [2, None]]


@pytest.mark.parametrize("rows", [MAX_ROWS])
def test_the_largest_page_stays_small(browse: Any, rows: int, tmp_path: Path) -> None:
    """A page with the maximum of partitions and cells has a limited size and is drawn."""
    cells = [[n for b in range(BUCKETS) for n in (b, b, 0)] for _ in range(rows)]
    page = render(data("g", rows, cells))
    assert len(page) < 8_000_000
    assert 'data-drawn="yes"' in browse(page, tmp_path)


def test_exact_intervals_are_unpacked_by_the_page(browse: Any, tmp_path: Path) -> None:
    """With 20,000 intervals of two partitions, one without a known member, the page has the begin
    and end of each interval. If there are more than it can pack, the page says that it has cells
    only."""
    rows = [("", "g", "t", 0), ("", "g", "t", 1)]
    begin, end = 1_700_000_000_000, 1_700_000_200_000
    owners = [None if n == 7 else f"m{n % 9}" for n in range(20_000)]
    intervals = intervals_of(
        rows, [(n % 2, owner, begin + n * 10, begin + n * 10 + 9) for n, owner in enumerate(owners)]
    )
    members: dict[str, int] = {}
    exact = report._packed(intervals, members, begin, end)
    assert (exact["count"], exact["unit"], exact["ends"]) == (20_000, 1, ["released"])
    content = zlib.decompress(base64.b64decode(exact["packed"]))
    columns = []
    for size in exact["bytes"]:
        planes = np.frombuffer(content, "u1", size * 20_000).reshape(size, -1)
        content = content[size * 20_000 :]
        columns.append(sum(plane.astype("u4") << 8 * n for n, plane in enumerate(planes)))
    partition, since, length, who, ended = columns
    assert not content
    assert not ended.any()
    lengths = (since + length).reshape(2, -1)
    b = np.cumsum(lengths, axis=1).ravel()
    a = b - length
    assert sorted(zip(partition, a, b, who, strict=True)) == [
        (n % 2, n * 10, n * 10 + 9, members[owner or "?"])
        for n, owner in sorted(enumerate(owners), key=lambda item: (item[0] % 2, item[0]))
    ]
    shown = data("g") | {"exact": exact, "begin": begin, "end": end, "members": list(members)}
    shown["rows"] = [list(row) for row in rows]
    page = browse(render(shown), tmp_path, WAIT)
    assert f'data-exact="20000 {begin} {begin + 199_999}"' in page
    assert "1 partitions, in cells" not in page
    assert "in cells of 1 s" in browse(render(shown | {"exact": None}), tmp_path)


def test_a_page_of_the_groups_that_were_asked_for(browse: Any, tmp_path: Path) -> None:
    """The page of ``report --group`` counts and shows only those groups, and needs no Spark. A
    pattern that matches no
    whole name, or is not a valid Python regex, is an error that names it."""
    rows = history(3, {"g0001": "high", "g0002": "low"})
    for table in TABLES:
        (place := tmp_path / "tables" / table.name).mkdir(parents=True)
        some = pa.Table.from_pylist(rows.get(table.name, []), schema=table.arrow_schema())
        pq.write_table(some, place / "part-0.parquet")
    (tmp_path / "summary.json").write_text(
        json.dumps(summary_of(rows) | {"schema_version": SCHEMA_VERSION})
    )
    page = write(tmp_path, "g000[13]", tmp_path / "one.html")
    done = alone("report", tmp_path, "--groups-regex", "g000[13]", "--page", tmp_path / "two.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "two.html").read_text() == page.read_text()
    shown = browse(page.read_text(), tmp_path)
    assert part(shown, "group") == "|all||g0001 (high)|"
    assert part(shown, "findings-head") == "Findings: 1 shown of 1"
    assert "1 ownership interval and 0 writes of offsets" in part(shown, "head")
    assert "Only groups whose name matches g000[13]." in part(shown, "head")
    with pytest.raises(
        InputMissingError, match=r"--groups-regex 'g000': .* has no group with such a name"
    ):
        write(tmp_path, "g000")
    with pytest.raises(AuditError, match="not a valid Python regex"):
        write(tmp_path, "[")


def test_no_table_that_is_as_long_as_the_history_is_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such tables are read in batches, and the batches do not change the page."""
    rows = history(40, {"g0001": "high"})
    for row in rows["membership"] + rows["herds"]:
        row["time"] = second(20)
    tables = tables_of(rows)
    whole = report.data_of(summary_of(rows), tables)
    read: set[str] = set()
    at_once, in_batches = report.Tables.rows, report.Tables.batches

    def single(self: report.Tables, *given: Any) -> Any:
        for batch in in_batches(self, *given):
            yield from (batch.slice(row, 1) for row in reversed(range(len(batch))))

    def note(self: report.Tables, name: str, *given: Any) -> pa.Table:
        read.add(name)
        return at_once(self, name, *given)

    monkeypatch.setattr(report.Tables, "batches", single)
    monkeypatch.setattr(report.Tables, "rows", note)
    again = report.data_of(summary_of(rows), tables)
    assert again == whole
    assert len(whole["herds"]) == 40
    assert whole["groups"][0]["members"] == [[91, 2]]
    assert read <= {"findings", "migrations"}


def intervals_of(
    rows: list[tuple[str, str, str, int]], spans: list[tuple[int, str | None, int, int]]
) -> report._Intervals:
    """Intervals of the partitions in ``rows``: the row, the member, begin and end in
    milliseconds."""
    owned = [
        dict(zip(report.KEY, rows[row], strict=True))
        | {"member": member, "ended": "released",
           "start_time": a * 1000, "end_time": b * 1000}
        for row, member, a, b in spans
    ]  # fmt: skip
    return report._intervals(tables_of({"ownership": owned}), rows, report._Spans(None, 0))


def test_a_cell_has_the_member_that_owned_the_partition_longest() -> None:
    """Each bucket of time shows one member, and consecutive buckets of one member are one run."""
    random = np.random.default_rng(7)
    rows = [("", "g", "t", number) for number in range(3)]
    times = np.cumsum(random.integers(1, 9_999, (3, 2, 400)).reshape(3, -1), axis=1)
    spans = [
        (row, f"m{n % 5}" if n % 11 else None, int(a), int(b))
        for row in range(2)
        for n, (a, b) in enumerate(times[row].reshape(-1, 2))
    ]
    begin, end = int(times[:2].min()), int(times[:2].max())
    width = -(-(end - begin + 1) // BUCKETS)
    owned: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for row, member, a, b in spans:
        for bucket in range((a - begin) // width, (b - begin) // width + 1):
            low = begin + bucket * width
            owned[row, bucket][member or "?"] += min(b, low + width) - max(a, low)
    members: dict[str, int] = {}
    cells = report._cells(intervals_of(rows, spans), len(rows), members, begin, width)
    names, shown = list(members), dict[tuple[int, int], str]()
    for row, runs in enumerate(cells):
        last = None
        for first, until, number in zip(*[iter(runs)] * 3, strict=True):
            assert last != (first - 1, number), "one run"
            last = (until, number)
            shown |= {(row, bucket): names[number] for bucket in range(first, until + 1)}
    assert shown.keys() == owned.keys()
    for place, member in shown.items():
        assert owned[place][member] == max(owned[place].values())
    assert len(cells[0]) > 300
    assert cells[2] == []
