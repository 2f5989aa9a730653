"""Jars that tests need, fetched by Maven the first time and kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

from zkconsumer.servers.jars import cache_dir


def fetched(pom: Path, name: str, *options: str) -> Path:
    """Return the directory of all jars of a Maven file. ``name``: begin of the directory's name."""
    name = f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    jars = cache_dir() / "jars" / name
    if jars.is_dir():
        return jars
    jars.parent.mkdir(parents=True, exist_ok=True)
    with jars.with_name(f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be fetching them
        if not jars.is_dir():
            partial = jars.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            shutil.copy(pom, partial / "pom.xml")
            argv = ["mvn", "-B", "-q", "-ntp", *options, "-f", f"{partial}/pom.xml"]
            argv += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}/lib"]
            subprocess.run(argv, check=True, timeout=170)
            (partial / "lib").rename(jars)
            shutil.rmtree(partial)
    return jars
