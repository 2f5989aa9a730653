"""Named cases of split brain: shown with legacy behaviour, absent with ours."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from zkconsumer.cli.main import cli
from zkconsumer.journal.json_lines import check_entry
from zkconsumer.sim.runs.split_brain import SCENARIOS, SEEDS, play, story


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_case_shows_with_legacy_behaviour(name: str) -> None:
    """Each case is found, told step by step, and drawn as a timeline."""
    played = play(name, "scala")
    assert played.showed == 1, f"not within {SEEDS} seeds"
    text = story(played)
    assert "decides to own" in text
    assert "owner znode" in text
    if name == "torn-views":
        assert "both want" in played.finding
        assert any("the attempt has failed" in line for line in played.lines)
    else:
        # The story is in order: the session ends, B takes over, A still delivers.
        at = {
            what: next(i for i, line in enumerate(played.lines) if what in line)
            for what in ("the server ends A's session", "B  owns 0, 1", "though B owns it now")
        }
        assert sorted(at, key=lambda what: at[what]) == list(at)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_case_does_not_show_with_ours(name: str) -> None:
    """The same events with many seeds: the command counts no member that delivers another's
    partition, and no attempt that fails."""
    done = CliRunner().invoke(cli, ["simulate", "--scenario", name, "--profile", "default"])
    assert done.exit_code == 0, done.output
    assert f"0 of {SEEDS} seeds" in done.output


def test_a_story_is_a_function_of_its_seed() -> None:
    """The same seed gives the same story. Its journal follows the schema."""
    first, again = play("two-claims", "scala", 3), play("two-claims", "scala", 3)
    assert first.entries == again.entries
    assert story(first) == story(again)
    assert {check_entry(entry) for entry in first.entries} == {""}
