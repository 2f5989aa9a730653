"""``zkmigrate report``: the record of a migration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.migrate.rows import rows_of

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


def test_a_report_names_what_was_moved_decided_and_refused(
    bench: Bench,
    shell: Shell,
    unique: str,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page lists all groups that were moved, refused, skipped or rolled back, with decisions
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

    page = tmp_path / "report.html"
    capsys.readouterr()
    assert run(["report", plan, "--out", str(page), "--json"]) == 3
    rows = {row["group"]: row for row in rows_of(capsys.readouterr().out)}
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
    states = {group: row["state"] for group, row in rows.items()}
    assert states == {
        plain: "moved",
        conflict: "moved",
        bad: "needs a decision",
        back: "rolled back",
    }
    (changed,) = rows[conflict]["changed"]
    assert (changed["partition"], changed["before"], changed["after"]) == (1, None, 4)
    assert rows[plain]["kafka_group"] == "new"
    assert "--skip" in rows[bad]["why"]
    assert run(["report", plan, "--out", str(page)]) == 2, "no file is overwritten"
