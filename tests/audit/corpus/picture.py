"""Draw the pictures of the report that the documentation shows, in the light and the dark scheme.

The report is that of the recorded incidents. ``make report-pictures`` runs this.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from zkaudit.job.audit import Options, run
from zkaudit.job.spark import session
from zkaudit.limits import Limits
from zkaudit.report.page import write

from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES
from tests.audit.corpus.judge import directories

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
    "--virtual-time-budget=20000", "--window-size=900,1050", "--force-device-scale-factor=1.5",
)  # fmt: skip
SCHEMES: Final = {"audit-report.png": 1, "audit-report-dark.png": 0}
"""Chromium's number of the colour scheme of each picture."""


def draw(page: Path, folder: Path) -> None:
    """Draw the pictures of a page."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser, "Chromium is not installed (Debian: apt install chromium)"
    for name, scheme in SCHEMES.items():
        subprocess.run(
            [browser, *FLAGS, f"--user-data-dir={folder / 'browser'}",
             f"--blink-settings=preferredColorScheme={scheme}",
             f"--screenshot={IMAGES / name}", page.as_uri()],
            stderr=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):  # its page names the logs
        folder = Path(name)
        spark = session("local[2]", {"spark.ui.showConsoleProgress": "false"})
        logs = directories(folder)["whole"].name
        limits = Limits(**WRITTEN_WITH_THE_RULES.limits)
        run(spark, Options([logs], str(folder / "out"), limits=limits))
        page = write(folder / "out")
        spark.stop()
        draw(page, folder)
