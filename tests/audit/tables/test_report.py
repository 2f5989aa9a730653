"""The page shows what it is given, in a real browser, whatever the names are."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from zkaudit import report
from zkaudit.report import BUCKETS, MAX_ROWS, render
from zkaudit.tables import TABLES

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def data(name: str, rows: int = 1, cells: list[list[int]] | None = None) -> dict[str, Any]:
    """What ``data_of`` makes, for one group of this name."""
    finding = {
        "severity": "critical", "kind": "zombie commit", "chroot": "", "group": name,
        "topic": name, "partition": 0, "zxid": 3, "t": 500, "u": None, "basis": "proven",
        "sentence": f"Member {name} did it.",
        "evidence": [["commits", 3, 0, name], ["deliveries", None, None, "a.jsonl:7"]],
    }  # fmt: skip
    return {
        "summary": {
            "intervals": 7, "commits": 8, "logs": 1, "servers": 1, "holes": [],
            "journals": 2, "journal_lines": 1200, "unreadable": 3,
            "dropped": [[0x10000009A, 0x10000009E]], "unconfirmed": [],
            "findings": [{"severity": "critical", "kind": "zombie commit", "count": 1}],
        },
        "limits": ["An owner znode can never show two owners at once."],
        "findings": [finding], "begin": 0, "end": 480_000, "width": 1000,
        "rows": [["", name, name, number] for number in range(rows)],
        "partitions": rows, "cells": cells or [[0, 0, 400, 0]], "exact": None,
        "groups": [{"chroot": "", "group": name, "members": [[0, 2]], "commits": [[1, 5]],
                    "refused": []}],
        "members": [name],
        "herds": [{"chroot": "", "group": name, "member": name, "change": "join", "t": 5,
                   "basis": "modelled", "notified": 1999, "rebalances": 2000, "reads": 4000000}],
    }  # fmt: skip


def test_the_page_draws_its_findings(browse: Any, tmp_path: Path) -> None:
    """The script runs to its end; findings come first, with their evidence; limits are told."""
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
    assert shown.index("Member orders did it.") < shown.index('id="timeline"')


def test_hostile_names_stay_text(browse: Any, tmp_path: Path) -> None:
    """Markup, control and bidi characters in a name: nothing runs, nothing is invisible."""
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
    """The policy lets the page's own script run and no other, should one ever get in."""
    page = render(data("g")).replace("</body>", "<script>document.title='owned'</script></body>")
    assert "<title>zkaudit report</title>" in browse(page, tmp_path)


def test_the_page_is_whole_in_itself() -> None:
    """Nothing is fetched; the data can be read back."""
    page = render(data("g"))
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=", page)
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    assert json.loads(found[1]) == data("g")


def test_members_from_before_the_first_claim_are_drawn(spark: SparkSession) -> None:
    """Who registered before the first interval begins is a member at the chart's begin."""
    place: dict[str, Any] = {"chroot": "", "group": "g"}
    rows = {
        "registrations": [place],
        "membership": [
            {**place, "zxid": 1, "idx": 0, "members": 1, "time": datetime.fromtimestamp(1, UTC)},
            {**place, "zxid": 2, "idx": 0, "members": 2, "time": datetime.fromtimestamp(2, UTC)},
            {**place, "zxid": 9, "idx": 0, "members": 1, "time": datetime.fromtimestamp(25, UTC)},
        ],
    }
    names = ("registrations", "ownership", "membership", "commits", "failed_claims")
    specs = {table.name: table for table in TABLES if table.name in names}
    frames = {}
    for name, table in specs.items():
        columns = [column.name for column in table.columns]
        values = [tuple(row.get(column) for column in columns) for row in rows.get(name, [])]
        frames[name] = spark.createDataFrame(values, table.spark_type())
    (series,) = report._series(frames, begin=10_000, width=10_000)
    assert series["members"] == [[0, 2], [1, 1]]


@pytest.mark.parametrize("rows", [MAX_ROWS])
def test_the_largest_page_stays_small(browse: Any, rows: int, tmp_path: Path) -> None:
    """As many partitions and cells as a page can have: the size is bounded, and it draws."""
    cells = [[row, b, b, 0] for row in range(rows) for b in range(BUCKETS)]
    page = render(data("g", rows, cells))
    assert len(page) < 8_000_000
    assert 'data-drawn="yes"' in browse(page, tmp_path)


def test_exact_intervals_are_unpacked_by_the_page(
    spark: SparkSession, browse: Any, tmp_path: Path
) -> None:
    """20,000 intervals of two partitions, one of them without a known member: the page has each
    one's begin and end; with more than can be packed it says that there are cells only."""
    rows = [("", "g", "t", 0), ("", "g", "t", 1)]
    begin, end = 1_700_000_000_000, 1_700_000_200_000
    spans = [
        (
            *rows[n % 2],
            None if n == 7 else f"m{n % 9}",
            "released",
            begin + n * 10,
            begin + n * 10 + 9,
        )
        for n in range(20_000)
    ]
    ddl = "chroot string, `group` string, topic string, `partition` long, member string, "
    frame = spark.createDataFrame(spans, ddl + "ended string, a long, b long")
    members: dict[str, int] = {}
    exact = report._exact(frame, rows, members, begin, end)
    assert exact
    assert (exact["count"], exact["unit"], exact["ends"]) == (20_000, 1, ["released"])
    content = zlib.decompress(base64.b64decode(exact["packed"]))
    a, b, who = (np.frombuffer(content, "<u4", 20_000, 80_000 * n) for n in range(3))
    partition = np.frombuffer(content, "<u2", 20_000, 240_000)
    assert sorted(zip(partition, a, b, who, strict=True)) == [
        (n % 2, n * 10, n * 10 + 9, members[span[4] or "?"])
        for n, span in sorted(enumerate(spans), key=lambda item: (item[0] % 2, item[0]))
    ]
    shown = data("g") | {"exact": exact, "begin": begin, "end": end, "members": list(members)}
    shown["rows"] = [list(row) for row in rows]
    page = browse(render(shown), tmp_path, "--virtual-time-budget=20000")
    assert f'data-exact="20000 {begin} {begin + 199_999}"' in page
    assert "1 partitions, in cells" not in page
    assert "in cells of 1 s" in browse(render(shown | {"exact": None}), tmp_path)
