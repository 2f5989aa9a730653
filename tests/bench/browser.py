"""Chromium, timed from its start until it has drawn a page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr",
)  # fmt: skip
_DRAWN: Final = """
const frame = (act) => requestAnimationFrame(act);
frame(() => frame(() => report(document.documentElement.dataset.drawn)));
"""


def reported(page: Path, folder: Path, script: str) -> tuple[float, Any]:
    """Append a script to a page, and open it in Chromium.

    Returns the seconds from the start of Chromium until the script calls ``report(value)``, and the
    value. The page is neither changed nor read back: ``--dump-dom`` would need more time to return
    a page of 10 MB than Chromium needs to draw it. ``folder`` keeps Chromium's profile.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None, "no Chromium: apt install chromium"
    script = f'const report = (value) => console.log("%" + JSON.stringify(value) + "%");{script}'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.read_text().replace("script-src '", f"script-src 'sha256-{digest}' '", 1)
    file = folder / "timed.html"
    file.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    profile = f"--user-data-dir={folder / 'browser'}"
    begin = time.perf_counter()
    with subprocess.Popen(
        [browser, *FLAGS, profile, file.as_uri()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                seconds = time.perf_counter() - begin
                found = re.search(r'CONSOLE.*"%(.*)%"', line)
                if found:
                    return seconds, json.loads(found[1])
                assert "Uncaught" not in line, line
        finally:
            process.terminate()
            process.stderr.read()  # until all processes of Chromium have exited
    raise AssertionError(f"{page}: Chromium exited before the page was drawn")


def opened(page: Path, folder: Path) -> float:
    """Seconds from the start of Chromium until it has drawn the report.

    The page's script has then run, and the first frame after it was produced.
    """
    seconds, drawn = reported(page, folder, _DRAWN)
    assert drawn == "yes"
    return seconds
