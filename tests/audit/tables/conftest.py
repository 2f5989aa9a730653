"""A browser for the report."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def browse() -> Callable[..., str]:
    """``browse(page, folder, *flags)`` returns the document after Chromium has run its scripts."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "Chromium is not installed (Debian: apt install chromium)"

    def shown(page: str, folder: Path, *flags: str) -> str:
        file = folder / "report.html"
        file.write_text(page, encoding="utf-8")
        ran = subprocess.run(
            [program, *FLAGS, *flags, f"--user-data-dir={folder / 'browser'}", "--dump-dom",
             file.as_uri()],
            capture_output=True,
            timeout=150,
            check=True,
        )  # fmt: skip
        return ran.stdout.decode()

    return shown
