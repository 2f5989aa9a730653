"""Processes that a test or its programs have started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


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


class Measured(NamedTuple):
    """What a finished command has cost: ``seconds`` from its start to its end, ``cpu`` seconds, and
    ``mib``, its largest memory. ``first``: seconds until the first byte of output."""

    seconds: float
    cpu: float
    mib: float
    first: float
    status: int
    output: bytes
    errors: str


def measured(words: Sequence[str]) -> Measured:
    """Run a command to its end."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        output = process.stdout.read(1)
        first = time.perf_counter() - began
        output += process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        errors.seek(0)
        return Measured(
            seconds,
            used.ru_utime + used.ru_stime,
            used.ru_maxrss / 1024,
            first,
            process.returncode,
            output,
            errors.read().decode(),
        )


def program(name: str, *words: str) -> list[str]:
    """Return the command line of ``zkconsumer`` or ``zkmigrate`` under this interpreter."""
    return [sys.executable, "-c", f"from {name}.cli import main; main()", *words]
