"""The reference page of the configuration agrees with the table of keys."""

from __future__ import annotations

from pathlib import Path

from zkconsumer.config.keys import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"


def test_config_page_explains_every_key() -> None:
    """Every key has its own section."""
    headings = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "###"]
    assert headings == [f"### {row.name}" for row in KEYS]
