"""The reference page of the configuration agrees with the table of keys."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from zkconsumer.cli.main import cli
from zkconsumer.config.keys import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def test_config_page_is_fresh() -> None:
    """docs/reference/config.md equals the current output of ``zkconsumer config --markdown``."""
    result = CliRunner().invoke(cli, ["config", "--markdown"])
    assert result.exit_code == 0
    assert PAGE.read_text(encoding="utf-8") == result.stdout


def test_config_page_explains_every_key() -> None:
    """Every key has its own section."""
    headings = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "###"]
    assert headings == [f"### {row.name}" for row in KEYS]
