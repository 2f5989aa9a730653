"""In a real browser, a reader uses the page: keys, pointer, links and tables."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zkaudit.report.data import _Intervals, _packed
from zkaudit.report.page import render

from tests.audit.tables.test_report import WAIT, data, part, then

HELPERS = """
const press = (key, more = {}) => {
  const event = new KeyboardEvent("keydown", { key, cancelable: true, bubbles: true, ...more });
  return !document.activeElement.dispatchEvent(event);
};
const point = (ms, y, type = "pointermove") => {
  const box = canvas.getBoundingClientRect();
  const x = box.left + at(ms, box.width);
  canvas.dispatchEvent(new PointerEvent(type, { clientX: x, clientY: box.top + y, bubbles: true }));
};
const seen = () => [Math.round(view.from), Math.round(view.to)];
const tip = () => byId("tip").textContent;
// Virtual time stands still while there are messages, so the browser gets the time to draw.
const messages = new MessageChannel();
const frame = async () => {
  let drawn = false;
  requestAnimationFrame(() => { drawn = true; });
  while (!drawn) await new Promise((done) => {
    messages.port1.onmessage = done;
    messages.port2.postMessage(null);
  });
};
const until = async (condition) => {
  for (let i = 0; i < 100 && !condition(); i++) {
    await frame();
    await new Promise((done) => setTimeout(done, 50));
  }
  return condition();
};
"""


def used(browse: Any, tmp_path: Path, shown: dict[str, Any], steps: str) -> Any:
    """What the steps return that a reader takes after the page is drawn."""
    script = f"""{{ {HELPERS}
    const steps = async () => {{ {steps} }};
    steps().then((found) => {{ document.body.dataset.found = JSON.stringify(found); }},
      (error) => {{ document.body.dataset.found = JSON.stringify(String(error)); }}); }}"""
    drawn = browse(then(render(shown), script), tmp_path, WAIT)
    found = re.search(r'data-found="([^"]*)"', drawn)
    assert found, part(drawn, "head")
    return json.loads(html.unescape(found[1]))


def many(times: list[int], shown: dict[str, Any]) -> list[dict[str, Any]]:
    """A finding at each time, each of another member."""
    first = shown["findings"][0]
    return [
        first | {"t": t, "zxid": n + 1, "member": f"m{n}", "sentence": f"Number {n}."}
        for n, t in enumerate(times)
    ]


def test_arrows_move_and_signs_zoom_the_timeline(browse: Any, tmp_path: Path) -> None:
    """An arrow moves by a quarter of what is shown, up to the first and last time. Plus and equals
    show half as much, minus twice as much, and 0 all. The browser does not act on these keys, only
    on all others and with Ctrl. The page's address and the line above the chart follow."""
    steps = """
    canvas.focus();
    const found = [];
    for (const key of ["+", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "=", "-", "-"])
      found.push([key, press(key), ...seen()]);
    press("+"); press("=");
    found.push(["hash", new URLSearchParams(location.hash.slice(1)).get("time"), ...seen()]);
    await until(() => byId("span").textContent.includes(" 00:03:00.000"));
    found.push(["span", byId("span").textContent, ...seen()]);
    found.push(["Ctrl", press("+", { ctrlKey: true }), ...seen()]);
    found.push(["x", press("x"), ...seen()], ["0", press("0"), ...seen()]);
    return found;"""
    assert used(browse, tmp_path, data("orders"), steps) == [
        ["+", True, 120_000, 360_000],
        ["ArrowRight", True, 180_000, 420_000],
        ["ArrowRight", True, 240_000, 480_000],
        ["ArrowRight", True, 240_000, 480_000],
        ["ArrowLeft", True, 180_000, 420_000],
        ["=", True, 240_000, 360_000],
        ["-", True, 180_000, 420_000],
        ["-", True, 0, 480_000],
        ["hash", "180000-300000", 180_000, 300_000],
        ["span", "1970-01-01 00:03:00.000 to 1970-01-01 00:05:00.000 UTC", 180_000, 300_000],
        ["Ctrl", False, 180_000, 300_000],
        ["x", False, 180_000, 300_000],
        ["0", True, 0, 480_000],
    ]


def test_n_and_p_go_through_the_findings_by_time(browse: Any, tmp_path: Path) -> None:
    """N goes to the next finding in time and P to the previous one. After the last comes the first.
    The page shows the finding below the chart, marks its row, and scrolls the row into view, also
    when there are many."""
    shown = data("orders")
    shown["findings"] = many([n * 997 % 480 * 1000 for n in range(300)], shown)
    steps = """
    canvas.focus();
    const found = [];
    for (const key of ["n", "n", "P", "P", "p", "n", "N"]) {
      press(key);
      const row = document.querySelector("#findings .chosen");
      const inside = await until(() => {
        const [box, frame] = [row, row.closest(".scroll")].map((e) => e.getBoundingClientRect());
        return box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
      });
      found.push([chosen.t, tip() === `critical: ${chosen.sentence}`, inside,
        row.ariaSelected, row.textContent.includes(chosen.sentence)]);
    }
    return [found, byId("tip").classList.contains("near")];"""
    found, near = used(browse, tmp_path, shown, steps)
    times = sorted(finding["t"] for finding in shown["findings"])
    assert [row[0] for row in found] == [
        times[0], times[1], times[0], times[-1], times[-2], times[-1], times[0],
    ]  # fmt: skip
    assert [row[1:] for row in found] == [[True, True, "true", True]] * 7
    assert not near


def test_keys_move_between_the_rows_of_findings(browse: Any, tmp_path: Path) -> None:
    """One row at a time can be reached with Tab. Arrows go to the next and previous row. Enter
    chooses the row: the timeline shows its time, and the focus stays on it."""
    shown = data("orders")
    shown["end"], shown["width"] = 48_000_000, 100_000
    shown["findings"] = many([1_000_000, 20_000_000, 30_000_000], shown)
    steps = """
    const rows = () => [...document.querySelectorAll("#findings tr")];
    const where = () => rows().indexOf(document.activeElement);
    rows()[0].focus();
    const found = [[where(), rows().map((row) => row.tabIndex)]];
    for (const key of ["ArrowUp", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"]) {
      press(key);
      found.push([key, where(), rows().map((row) => row.tabIndex)]);
    }
    press("Enter");
    return [...found, [where(), chosen.t, ...seen(), rows().map((row) => row.ariaSelected)]];"""
    assert used(browse, tmp_path, shown, steps) == [
        [0, [0, -1, -1]],
        ["ArrowUp", 0, [0, -1, -1]],
        ["ArrowDown", 1, [-1, 0, -1]],
        ["ArrowDown", 2, [-1, -1, 0]],
        ["ArrowDown", 2, [-1, -1, 0]],
        ["ArrowUp", 1, [-1, 0, -1]],
        [1, 20_000_000, 19_970_000, 20_030_000, ["false", "true", "false"]],
    ]


def test_the_tooltip_names_the_owner_and_goes_away(browse: Any, tmp_path: Path) -> None:
    """Over a cell, the tooltip has the partition, the time and the member that owned it. Where it
    had no owner, it says so. It is gone when the pointer is over the names of partitions, drags the
    chart, or leaves it."""
    shown = data("orders", 2, [[0, 400, 0], []])
    steps = """
    canvas.scrollIntoView({ block: "center" });
    const found = [], note = () => found.push([tip(), byId("tip").classList.contains("near")]);
    point(100_000, 5); note();
    const tipBox = byId("tip").getBoundingClientRect(), box = canvas.getBoundingClientRect();
    found.push([tipBox.left >= 0 && tipBox.right <= innerWidth,
      Math.abs(tipBox.left - (box.left + at(100_000, box.width)) - 14) < 1]);
    point(450_000, 5); note();
    point(100_000, ROW + 5); note();
    point(-50_000, 5); note();
    point(100_000, 5);
    canvas.setPointerCapture = () => {};
    point(100_000, 5, "pointerdown"); point(90_000, 5); point(90_000, 5, "pointerup"); note();
    point(100_000, 5); point(100_000, 5, "pointerleave"); note();
    point(100_000, 5); canvas.focus(); press("+"); note();
    return found;"""
    at = "orders orders-0 at 1970-01-01 00:01:40.000"
    assert used(browse, tmp_path, shown, steps) == [
        [f"{at}: orders for most of this moment", True],
        [True, True],
        ["orders orders-0 at 1970-01-01 00:07:30.000: no owner", True],
        ["orders orders-1 at 1970-01-01 00:01:40.000: no owner", True],
        ["", False],
        ["", False],
        ["", False],
        ["", False],
    ]


def test_the_tooltip_of_an_exact_interval_has_its_begin_end_and_reason(
    browse: Any, tmp_path: Path
) -> None:
    """If the exact intervals are drawn, the tooltip shows when the interval began and ended, and
    how. Its end belongs to the next one. In a time range, the first one may have begun earlier."""
    intervals = _Intervals(
        np.array([0, 0, 0]), np.array([0, 60_000, 200_000]), np.array([60_000, 150_000, 480_000]),
        np.array([0, 1, 0]), ["a", "b"], np.array([0, 1, 0]), ["released", "expired"],
    )  # fmt: skip
    members: dict[str, int] = {}
    shown = data("orders") | {"exact": _packed(intervals, members, 0, 480_000)}
    shown["members"] = list(members)
    steps = """
    await unpacking;
    const found = [];
    for (const ms of [30_000, 60_000, 149_000, 170_000, 210_000]) {
      point(ms, 5);
      found.push(tip());
    }
    data.clamped = true;
    for (const ms of [30_000, 60_000]) { point(ms, 5); found.push(tip()); }
    return found.map((one) => one.slice("orders orders-0 at 1970-01-01 ".length));"""
    day = "1970-01-01 "
    assert used(browse, tmp_path, shown, steps) == [
        f"00:00:30.000: a, {day}00:00:00.000 to {day}00:01:00.000, released",
        f"00:01:00.000: b, {day}00:01:00.000 to {day}00:02:30.000, expired",
        f"00:02:29.000: b, {day}00:01:00.000 to {day}00:02:30.000, expired",
        "00:02:50.000: no owner",
        f"00:03:30.000: a, {day}00:03:20.000 to {day}00:08:00.000, released",
        f"00:00:30.000: a, before {day}00:00:00.000 to {day}00:01:00.000, released",
        f"00:01:00.000: b, {day}00:01:00.000 to {day}00:02:30.000, expired",
    ]


def test_links_and_marks_choose_a_finding(browse: Any, tmp_path: Path) -> None:
    """A line of the verdict links to its first finding. A row, a finding in the row's list and a
    mark in the timeline can be clicked. Each time, the timeline shows the finding, its row is
    marked, and the page's address links to it. The list stays open for a finding in it."""
    shown = data("orders")
    shown["end"], shown["width"] = 48_000_000, 100_000
    first = shown["findings"][0]
    shown["findings"] = [
        first | {"t": 10_000_000, "id": "1", "kind": "orphan commit", "severity": "high"},
        *[first | {"t": t, "id": f"{t}", "sentence": f"At {t}."} for t in (20_000_000, 30_000_000)],
    ]
    steps = """
    const found = [], note = () => {
      const link = new URLSearchParams(location.hash.slice(1)).get("finding");
      const row = document.querySelector("#findings .chosen");
      const list = row.querySelector("details");
      found.push([chosen.t, ...seen(), link, row.rowIndex, list && list.open]);
    };
    document.querySelector("#verdict a").click(); note();
    document.querySelector("#findings tr").click(); note();
    document.querySelector("#findings details a").click(); note();
    whole();
    await until(() => byId("span").textContent.includes("13:20:00"));
    point(10_000_000, 5, "click"); note();
    return found;"""
    half = 30_000
    assert used(browse, tmp_path, shown, steps) == [
        [20_000_000, 20_000_000 - half, 20_000_000 + half, "20000000", 2, False],
        [10_000_000, 10_000_000 - half, 10_000_000 + half, "1", 1, None],
        [30_000_000, 30_000_000 - half, 30_000_000 + half, "30000000", 2, True],
        [10_000_000, 10_000_000 - half, 10_000_000 + half, "1", 1, None],
    ]


def test_findings_can_be_filtered_and_ordered(browse: Any, tmp_path: Path) -> None:
    """The choice of a severity and words in the findings leave those that match, and the heading
    counts them. They are ordered worst first, or by time. If none is left, the table says so."""
    shown = data("orders")
    first = shown["findings"][0]
    shown["findings"] = [
        first | {"t": 9000, "sentence": "Late."},
        first | {"t": 50, "severity": "low", "kind": "flapping member", "sentence": "Early."},
    ]
    shown["summary"]["findings"][0]["count"] = 5
    steps = """
    const set = (id, value, type) => {
      byId(id).value = value;
      byId(id).dispatchEvent(new Event(type));
    };
    const what = (row) => row.children.length > 1 ? row.children[3].firstChild : row;
    const rows = () => [...document.querySelectorAll("#findings tr")].map(what);
    const found = [], note = () => found.push(
      [byId("findings-head").textContent, ...rows().map((one) => one.textContent)]);
    note();
    set("order", "time", "change"); note();
    set("severity", "low", "change"); note();
    set("severity", "", "change"); set("words", "LATE", "input"); note();
    set("words", "flapping", "input"); note();
    set("words", "nothing", "input"); note();
    return [found, byId("findings").querySelector("td").getBoundingClientRect().width
      / byId("findings").getBoundingClientRect().width, byId("kinds").textContent.trim()];"""
    found, wide, kinds = used(browse, tmp_path, shown, steps)
    assert found == [
        ["Findings: 2 shown of 5", "Late.", "Early."],
        ["Findings: 2 shown of 5", "Early.", "Late."],
        ["Findings: 1 shown of 5", "Early."],
        ["Findings: 1 shown of 5", "Late."],
        ["Findings: 1 shown of 5", "Early."],
        ["Findings: 0 shown of 5", "None in this page for this choice."],
    ]
    assert wide > 0.95
    assert kinds.replace("\xa0", "").strip() == "critical 5 zombie commit"


@pytest.mark.parametrize(("notified", "opened"), [(50, True), (49, False)])
def test_the_table_of_changes_is_open_if_one_woke_many_members(
    browse: Any, notified: int, opened: bool, tmp_path: Path
) -> None:
    """The table of joins and leaves has the numbers of each, and how they are known. It is open if
    one of them woke at least as many members as makes a herd."""
    shown = data("orders")
    change = shown["herds"][0] | {"notified": notified, "rebalances": 1234, "reads": 5_000_000}
    shown["herds"] = [
        change | {"basis": "measured"},
        change | {"basis": "measured in part", "change": "leave", "notified": 3},
        change | {"notified": 2},
    ]
    shown["changes"] = 3
    steps = """
    const rows = [...document.querySelectorAll("#herds tr")];
    return [byId("woken").open, byId("herds-cut").textContent,
      rows.map((row) => [...row.children].map((cell) => cell.textContent))];"""
    at = "1970-01-01 00:00:00.005"
    assert used(browse, tmp_path, shown, steps) == [
        opened,
        "",
        [
            [at, "orders: join of orders", str(notified), "1,234", "5,000,000",
             "measured from journals"],
            [at, "orders: leave of orders", "3", "1,234", "5,000,000",
             "measured in part: a lower bound"],
            [at, "orders: join of orders", "2", "1,234", "5,000,000", "modelled: an upper bound"],
        ],
    ]  # fmt: skip


def test_only_findings_of_the_timelines_groups_are_drawn_in_it(browse: Any, tmp_path: Path) -> None:
    """A finding about a whole group is a line through the group's rows. A finding of a group that
    has no row is not drawn until it is chosen. One about no group is drawn through all rows."""
    shown = data("a", 2)
    shown["rows"][1] = ["", "b", "b", 0]
    shown["cells"] = [[], []]
    first = shown["findings"][0]
    shown["findings"] = [
        first | {"t": t, "group_id": group, "topic": None, "partition": None, "zxid": t}
        for t, group in ((100_000, "b"), (200_000, "elsewhere"), (300_000, None))
    ]
    steps = """
    const scale = devicePixelRatio, red = (ms, row) => {
      const x = at(ms, canvas.clientWidth), y = row * ROW + ROW / 2;
      const image = canvas.getContext("2d").getImageData((x - 1) * scale, y * scale, 4, 1).data;
      return [0, 4, 8, 12].some((i) => image[i] > 150 && image[i + 1] < 90 && image[i + 3] > 40);
    };
    const drawn = () => [100_000, 200_000, 300_000].map((ms) => [red(ms, 0), red(ms, 1)]);
    const found = [drawn()];
    choose(data.findings[1], false);
    return [...found, [red(200_000, 0), red(200_000, 1)]];"""
    assert used(browse, tmp_path, shown, steps) == [
        [[False, True], [False, False], [True, True]],
        [True, True],
    ]


def test_a_short_timeline_is_drawn_in_its_full_width(browse: Any, tmp_path: Path) -> None:
    """A timeline of few rows has no scroll bar, so it is not drawn narrower and then stretched."""
    drawn, wide = used(
        browse, tmp_path, data("orders"), "return [canvas.width, canvas.clientWidth];"
    )
    assert drawn == wide


def test_times_fit_their_column(browse: Any, tmp_path: Path) -> None:
    """In the row of several findings, the first and the last time do not reach into the text."""
    shown = data("orders")
    shown["findings"] = [shown["findings"][0] | {"t": t} for t in (0, 400_000)]
    steps = """
    const [first, last, text] = [...document.querySelectorAll("#findings td")].slice(1);
    return [last.textContent, last.scrollWidth <= last.clientWidth, text.clientWidth > 200];"""
    assert used(browse, tmp_path, shown, steps) == [
        "1970-01-01 00:00:00.000to 1970-01-01 00:06:40.000", True, True,
    ]  # fmt: skip


def test_rows_out_of_view_are_not_laid_out(browse: Any, tmp_path: Path) -> None:
    """The browser lays out a row of the table of findings when it comes into view."""
    shown = data("orders")
    shown["findings"] = many(list(range(500)), shown)
    steps = """
    const laid = (row) => row.firstChild.checkVisibility({ contentVisibilityAuto: true });
    const rows = document.querySelectorAll("#findings tr");
    byId("table").parentElement.scrollIntoView();
    const found = [await until(() => laid(rows[0])), laid(rows[499])];
    rows[499].scrollIntoView();
    return [...found, await until(() => laid(rows[499]))];"""
    assert used(browse, tmp_path, shown, steps) == [True, False, True]
