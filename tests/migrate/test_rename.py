"""``plan --rename``: a group that has another name in the target store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from zkmigrate.commands.options.renaming import Rename, parse_renames

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


@pytest.mark.parametrize(
    ("rule", "name", "new"),
    [
        (("a", "b"), "a", "b"),
        (("a", "b"), "aa", None),
        (("old-*", "*"), "old-x", "x"),
        (("*", "new-*"), "x", "new-x"),
        (("a*b", "c*d"), "axyb", "cxyd"),
        (("ab*b", "*"), "ab", None),
        (("a.*", "b.*"), "axy", None),
        (("a[1]*", "b*"), "a[1]x", "bx"),
        (("/(a+)-v(1|2)/", r"\2.\1"), "aa-v2", "2.aa"),
        (("/a/", "b"), "aa", None),
    ],
)
def test_what_a_rule_makes_of_a_name(rule: tuple[str, str], name: str, new: str | None) -> None:
    """A star stands for the same text on both sides. All other characters are literal, except
    between slashes."""
    assert Rename(*rule).of(name) == new


def test_rules_are_parsed() -> None:
    """A regular expression may contain any character; a wrong one is refused."""

    def parsed(*texts: str) -> tuple[Rename, ...]:
        return parse_renames(None, click.Option(["--rename"]), texts)

    assert parsed("a=b", r"/(x(?=y)/=z)=.*/=\1") == (("a", "b"), (r"/(x(?=y)/=z)=.*/", r"\1"))
    for text in ("/a(/=b", r"/a/=\1", "/a=b", "a/=b", "/a/", "a", "=b", "*=b"):
        with pytest.raises(click.UsageError, match=re.escape(text)):
            parsed(text)


def test_a_renamed_group_goes_there_and_back(
    filled: Bench, shell: Shell, group: str, topic: str, tmp_path: Path
) -> None:
    """The offsets are written under the new name, also with a pattern and with planning at apply.
    verify, status and a later plan use the new name automatically. A rollback deletes the offsets,
    and a move back finds the group by its new name."""
    new = f"new.{group}"
    there = {topic: 2}
    for number, more in enumerate(((), ("--at-apply",))):
        plan = str(tmp_path / f"plan{number}")
        words = ("--group", group, "--rename", "*=new.*", *more, "--out", plan)
        assert shell("plan", *words)[0] == 0
        assert shell("apply", plan, "--execute")[0] == 0
        assert sorted(one.offset for one in filled.committed(new, there).values()) == [3, 4]
        assert filled.committed(group, there) == {}
        assert shell("status", plan)[0] == 0
        _, rows = shell.rows("status", "--group", group)
        assert (rows[0]["truth"], rows[0]["kafka_lag"]) == ("kafka", 33)
        filled.set_kafka(new, topic, {0: 9})
        status, rows = shell.rows("plan", "--group", group, "--out", plan + "-again")
        assert (status, rows[0]["verdict"]) == (0, "moved")
        filled.set_kafka(new, topic, {0: 3})
        if number == 0:
            assert shell("undo", plan, "--execute")[0] == 0
            assert filled.committed(new, there) == {}
    filled.set_kafka(new, topic, {0: 11})
    filled.set_kafka(f"never.{group}", topic, {0: 12})
    back = str(tmp_path / "back")
    for number, chosen in enumerate(
        (
            ("--groups-regex", f".*{group}"),
            ("--group", group),
            ("--group", new, "--rename", "new.*=*"),
        )
    ):
        words = ("--direction", "kafka-to-zk", *chosen)
        status, rows = shell.rows("plan", *words, "--out", f"{back}{number}")
        assert [(row["group"], row["kafka_group"]) for row in rows] == [(group, new)]
        assert status == 0
        _, rows = shell.rows("plan", *words)
        assert [(row["group"], row["kafka_group"]) for row in rows] == [(group, new)]
    back += "0"
    assert shell("apply", back, "--execute")[0] == 0
    assert filled.znodes(group)[f"/consumers/{group}/offsets/{topic}/0"] == b"11"
    assert not filled.client.exists(f"/consumers/{new}")
    assert not filled.client.exists(f"/consumers/never.{group}")
    assert shell("status", back)[0] == 0


def test_what_is_refused(bench: Bench, shell: Shell, unique: str, topic: str) -> None:
    """Two groups with one name, a rule that matches no group, and a malformed rule are refused."""
    bench.topic(topic, 1)
    names = [f"{unique[-8:]}-{tail}" for tail in "ab"]
    for name in names:
        bench.set_zk(name, topic, {0: 3})
    chosen = ["plan", "--out", "unused", *(word for name in names for word in ("--group", name))]
    _, _, err = shell(*chosen, "--rename", f"{names[0]}={names[1]}")
    assert f"{names[0]}, {names[1]} would all be called {names[1]}" in err
    _, _, err = shell(*chosen, "--rename", "nobody=x")
    assert "matches none of the chosen groups" in err
    for text in ("x", "=x", "x=", "a*=b", "a=b*", "**=*", "a=b/c", "a=..", "a=b=c"):
        status, _, err = shell(*chosen, "--rename", text)
        assert (status, "write OLD=NEW" in err) == (2, True), text
