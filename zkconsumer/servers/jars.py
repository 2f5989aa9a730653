"""The servers' jars, pinned in ``jvm/kafka-<line>.xml``, fetched once by Maven, and cached.

Any thread or process; a file lock lets one of them download while the others wait.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import wait_until

JVM_FILES: Final = Path(__file__).with_name("jvm")

KAFKA_LINES: Final = {
    "3.9": "3.9.1", "1.1": "1.1.1", "0.9": "0.9.0.1", "0.8.2": "0.8.2.2", "4": "4.4.0"
}  # fmt: skip
"""The Kafka releases that can be started, each with its exact version."""

KRAFT_LINES: Final = frozenset({"4"})
"""The releases that run without ZooKeeper; all others run in ZooKeeper mode."""

_DOWNLOAD_SECONDS = 900.0


def java() -> str:
    """Return the path of the ``java`` command (``JAVA_HOME`` first). Raises ``ClusterError``."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=os.path.join(home, "bin")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise ClusterError(
            "Java was not found: install a Java 17 runtime"
            " (Debian and Ubuntu: apt install openjdk-17-jre-headless)"
        )
    return program


def cache_dir() -> Path:
    """Return the directory of all caches: ``ZKCONSUMER_CACHE``, or one below ``XDG_CACHE_HOME``."""
    override = os.environ.get("ZKCONSUMER_CACHE")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zkconsumer"


def pom(kafka: str) -> Path:
    """Return the Maven file that pins the jars of one Kafka release. Raises ``ClusterError``."""
    if kafka not in KAFKA_LINES:
        raise ClusterError(
            f"unknown Kafka release {kafka!r}: choose one of {', '.join(KAFKA_LINES)}"
        )
    return JVM_FILES / f"kafka-{kafka}.xml"


def fetch_jars(kafka: str) -> Path:
    """Return a directory with all jars of one Kafka release, downloading them the first time.

    ``kafka`` is a key of ``KAFKA_LINES``. The class path is ``<directory>/*``. The jars of ``1.1``
    and ``0.8.2`` also contain the JVM's old consumer. Raises ``ClusterError`` if Maven is missing
    or fails.
    """
    return fetch_pinned(f"kafka-{KAFKA_LINES[kafka]}", pom(kafka))


def fetch_pinned(name: str, source: Path) -> Path:
    """Return a directory with all jars that a Maven file pins, downloading them the first time.

    ``name`` is for messages. Raises ``ClusterError``.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    base = cache_dir() / "jars"
    jars = base / f"{name}-{digest}"
    if jars.is_dir():
        return jars
    base.mkdir(parents=True, exist_ok=True)
    with _locked(base / f"{jars.name}.lock"):
        if not jars.is_dir():  # another process may have finished while we waited
            _download(name, source, jars)
    return jars


def class_archive(kafka: str, main: str) -> Path:
    """Return the file with the classes that a server of one release loads (Java's class data
    sharing).

    It makes the server start faster. ``python -m zkconsumer.servers`` writes it. Each Java version
    has its own files. ``main`` is the class that the server runs. Raises ``ClusterError``.
    """
    program = Path(java()).resolve()
    version = hashlib.sha256(f"{program} {program.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    jars = fetch_jars(kafka)
    return jars.with_name(f"{jars.name}-{main}-{version}.jsa")


def _download(name: str, source: Path, jars: Path) -> None:
    java()  # Maven would complain at length
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterError(
            "Maven was not found: install it to fetch the servers' jars"
            " (Debian and Ubuntu: apt install maven)"
        )
    sys.stderr.write(f"zkconsumer: fetching the jars of {name} with Maven (once)\n")
    sys.stderr.flush()
    partial = jars.with_name(jars.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    log = partial / "maven.log"
    # Not next to the package: Maven must find no parent project and write nothing there.
    shutil.copy(source, partial / "pom.xml")
    argv = [maven, "-B", "-ntp", "-Dstyle.color=never", "-f", str(partial / "pom.xml")]
    argv += ["dependency:copy-dependencies", f"-DoutputDirectory={partial / 'lib'}"]
    argv += ["-DincludeScope=runtime"]
    supervisor = Supervisor()
    try:
        supervisor.start("maven", argv, log)
        wait_until(
            lambda: supervisor.poll("maven") is not None,
            _DOWNLOAD_SECONDS,
            f"Maven has fetched the jars of {name}",
        )
        failed = supervisor.poll("maven") != 0
    finally:
        supervisor.close()
    if failed:
        lines = log.read_text(errors="replace").splitlines()
        reason = next((line for line in lines if line.startswith("[ERROR]")), "it gave no reason")
        raise ClusterError(f"Maven could not fetch the jars of {name}: {reason} (whole log: {log})")
    (partial / "lib").rename(jars)
    shutil.rmtree(partial)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ModuleNotFoundError:
        raise ClusterError("servers run on Linux and macOS: on Windows use WSL") from None
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
