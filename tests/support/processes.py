"""Processes that a test or its programs have started."""

from __future__ import annotations

import os
from pathlib import Path


def processes_naming(text: str) -> set[int]:
    """Processes whose command line contains ``text``."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.add(int(entry.name))
        except OSError:
            continue
    return found
