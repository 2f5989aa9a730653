"""The text of the report page, tested without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zkaudit.report import page as report
from zkaudit.report.page import render
from zkaudit.report.verdict import NOT_SHOWN, Count, verdict

LOGS: dict[str, Any] = {"log_gaps": [], "dropped": [], "unconfirmed": []}


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "&lt;", "]]>"])
def test_no_text_ends_the_script_that_holds_it(text: str) -> None:
    """A group may have any name."""
    page, plain = render({"groups": [text]}), render({"groups": ["g"]})
    for mark in ("<", ">", "&"):
        assert page.count(mark) == plain.count(mark)


def test_a_full_disk_leaves_the_page_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of a page would be newer than the tables, so a stream would not write it again."""
    fakes: dict[str, Any] = {
        "finished": lambda *_: ({}, tmp_path),
        "Tables": SimpleNamespace(at=lambda *_: None),
        "data_of": lambda *_: {"groups": ["\u00e9"]},
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(report, name, fake)
    page = tmp_path / "report.html"
    assert report.write(tmp_path) == page
    whole = page.read_bytes()
    write = Path.write_text

    def full(file: Path, text: str, *_: Any, **__: Any) -> int:
        write(file, text[: len(text) // 2], encoding="utf-8")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            report.write(tmp_path)
    assert page.read_bytes() == whole
    other = tmp_path / "link.html"
    other.symlink_to("another.html")
    assert report.write(tmp_path, page=other) == other
    assert other.is_symlink()
    assert other.read_bytes() == whole


def test_the_verdict_names_what_was_lost_before_all_else() -> None:
    """The verdict first names lost and repeated messages with their numbers, then critical and high
    findings by kind. The rest is a number. Each sentence links to its findings."""
    counts = [
        Count("critical", "zombie commit", "none", 6, 2, 0, 6, True),
        Count("critical", "lost messages", "lost", 1, 1, 615, 0, True),
        Count("high", "offset regression", "repeated", 2, 1, 6623, 0, True),
        Count("medium", "zombie commit", "repeated", 1, 1, 0, 1, False),
        Count("high", "rebalance storm", None, 1, 1, 0, 1, False),
        Count("medium", "claim contention", None, 3, 1, 0, 3, False),
    ]
    lines = verdict(counts, LOGS)
    assert [(line["severity"], line["text"]) for line in lines] == [
        ("critical", "Messages were lost: 615 offsets in 1 finding of 1 group."),
        ("critical", "Members committed offsets of partitions that other members owned: "
                     "6 findings of 2 groups."),
        ("high", "Messages were delivered again: 6,623 offsets and an unknown number more in "
                 "3 findings of at least 1 group. Not all of this is proven."),
        ("high", "Groups rebalanced again and again: 1 finding of 1 group. "
                 "Not all of this is proven."),
        (None, "3 other findings of lower severity."),
        (None, NOT_SHOWN),
    ]  # fmt: skip
    assert [(line["kind"], line["effect"]) for line in lines[:2]] == [
        (None, "lost"),
        ("zombie commit", None),
    ]


def test_a_clean_history_is_said_to_be_clean_only_where_the_logs_are_whole() -> None:
    """The page also says so if there are no findings. If there are log gaps or uncertain
    transactions, it adds that."""
    assert [line["text"] for line in verdict([], LOGS)] == [
        "No rule found anything wrong in these logs.",
        NOT_SHOWN,
    ]
    gaps = verdict([], LOGS | {"log_gaps": [[0, 9]], "unconfirmed": [[1, 2]]})
    assert "have 1 gap: what happened there is unknown" in gaps[1]["text"]
    assert "Add the logs of all servers." in gaps[2]["text"]
    ranged = LOGS | {"begin": 9, "log_gaps": [[0, 9], [20, 30]]}
    assert "have 1 gap: what happened there is unknown" in verdict([], ranged)[1]["text"]
    late = verdict([], ranged | {"begin": None, "log_gaps": [[0, 9]]})
    assert "have 1 gap: what happened there is unknown" in late[1]["text"]


@pytest.mark.parametrize("effect", ["lost", "repeated"])
def test_the_larger_loss_is_not_the_milder_verdict(effect: str) -> None:
    """A log cannot show an intention. So the verdict claims none, and counts offsets."""
    counts = [Count("critical", "lost messages", effect, 12, 1, 48_000_000, 0, False)]
    (line, _) = verdict(counts, LOGS)
    assert line["severity"] == "critical"
    assert "48,000,000 offsets in 12 findings of 1 group" in line["text"]
    assert "purpose" not in line["text"]


def test_the_verdict_says_how_many_transactions_were_left_out() -> None:
    """A reader must know that logs have transactions that the audit did not use."""
    (_, line, _) = verdict([], LOGS | {"dropped": [[5, 9], [20, 20]]})
    assert line["text"].startswith("6 transactions were rolled back when a leader changed")
    (_, line, _) = verdict([], LOGS | {"dropped": [[5, 5]]})
    assert line["text"].startswith("1 transaction was rolled back")
