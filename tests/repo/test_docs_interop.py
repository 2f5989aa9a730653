"""The page of interop results lists exactly the cases that exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_interop_case_is_in_the_table_and_passed() -> None:
    """A case that is added, renamed or removed, and one that failed when the page was made, shows
    here: then ``make interop`` must run again."""
    checked = subprocess.run(
        [sys.executable, "-m", "tests.interop.table", "--check"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
