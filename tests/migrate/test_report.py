"""``zkmigrate report``: the record of a migration."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


def test_a_report_names_what_was_moved_decided_and_refused(
    bench: Bench, shell: Shell, unique: str, topic: str, tmp_path: Path
) -> None:
    """Page and CSV list all groups that were moved, refused, skipped or rolled back, with decisions
    and fixes. Names are escaped. The command contacts no server."""
    bench.topic(topic, 2)
    plain, conflict, bad, back = (f"{unique[-8:]}-{tail}" for tail in ("a", "b", "c", "d"))
    for group in (plain, conflict, bad, back):
        bench.set_zk(group, topic, {0: 3, 1: 4})
    bench.set_kafka(conflict, topic, {0: 5})
    bench.set_zk(bad, topic, {0: b"<script>alert(1)</script>"})
    bench.set_zk(plain, "gone", {0: 3})
    plan = str(tmp_path / "plan")
    chosen = [word for group in (plain, conflict, bad, back) for word in ("--group", group)]
    rules = ("--on-conflict", "kafka", "--missing-topics", "skip", "--rename", f"{plain}=new")
    assert shell("plan", *chosen, *rules, "--out", plan)[0] == 3
    assert shell("apply", plan, "--execute")[0] == 3
    assert shell("undo", plan, "--group", back, "--execute")[0] == 0
    from zkmigrate.cli import run

    page, table = tmp_path / "report.html", tmp_path / "report.csv"
    assert run(["report", plan, "--out", str(page), "--csv", str(table)]) == 3
    text = page.read_text()
    assert "<script>alert" not in text
    for part in (
        "<b>2</b>moved",
        "<b>1</b>needs a decision",
        "<b>1</b>rolled back",
        "--on-conflict kafka (the other: 3)",
        "gone-0",
        "topic-missing",
        "<td>new</td>",
        "correct the znode with zkconsumer offsets import",
        "parallel=8",
    ):
        assert part in text, part
    rows = list(csv.DictReader(table.open()))
    written = {(row["group"], row["topic"], row["partition"]): row for row in rows}
    row = written[conflict, topic, "0"]
    assert (row["zookeeper"], row["kafka"], row["to"], row["written"]) == ("3", "5", "5", "no")
    assert written[conflict, topic, "1"]["written"] == "yes"
    assert written[plain, topic, "1"]["kafka_group"] == "new"
    assert written[plain, "gone", "0"]["why"] == "stays behind: topic-missing"
    assert written[back, topic, "0"]["state"] == "rolled back"
    assert "--skip" in written[bad, "", ""]["why"]
    assert run(["report", plan, "--out", str(page)]) == 2, "no file is overwritten"
