"""The page of interop results lists exactly the existing cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_interop_case_is_in_the_table_and_passed() -> None:
    """Fails if a case was added, renamed or removed, or failed when the page was made. Then run
    ``make interop`` again."""
    checked = subprocess.run(
        [sys.executable, "-m", "tests.interop.table", "--check"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
