"""Starts the Spark session and converts its workers' errors to ``AuditError``.

Runs in the driver's thread. ``at_once`` runs what it is given in two threads of its own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zkaudit.errors import AuditError, no_file
from zkaudit.text import group_option

SMALL_BYTES: Final = 16 << 20
"""Logs of fewer bytes (about 130,000 transactions) take less time to read than Spark to plan."""
ROUNDS: Final = 4
"""How many times as much that is in the rounds of a stream, whose process runs for some time."""
PACKED: Final = 8
"""Logs have about this many times as many bytes as tables that are made from them."""
_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.zkaudit.little": "true",
}
"""Settings for little data: no code generation, no derived filters, no adaptive execution. The last
one is our own: see ``is_little``."""
_OURS: Final = {
    # By default Spark writes times without a time zone, unlike Arrow, which writes little tables.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
}
"""Settings that the tables depend on."""
_SYSTEM: Final = re.compile(r"\w+Error: \[Errno ([0-9]+)\] ([^:]+)(?:: '(.*)')?")
"""The last line of a traceback for an ``OSError``."""


def session(
    master: str | None = None, settings: Mapping[str, str] | None = None, little: bool = False
) -> SparkSession:
    """Return the running Spark session (``spark-submit``), or start one on ``master``.

    ``little``: there is little data. Then Java's second compiler would take longer than it saves.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("zkaudit")
    # Otherwise each call of a column's method makes five calls to the JVM for messages of errors.
    builder = builder.config("spark.python.sql.dataFrameDebugging.enabled", "false")
    # spark-submit sets SPARK_CONF_DIR. If this file exists, users choose the log level there.
    place = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", ""), "conf")
    quiet = not Path(place, "log4j2.properties").is_file()
    if master is not None:
        builder = builder.master(master)
        java = []
        if quiet:
            file = Path(__file__).with_name("log4j2.properties").as_uri()
            java.append(f"-Dlog4j2.configurationFile={file}")
        if little:
            java += [
                "-XX:TieredStopAtLevel=1",
                "-XX:ReservedCodeCacheSize=256m",
                "-XX:+UseSerialGC",
            ]
        # Unlike spark.driver.extraJavaOptions, this leaves the user's own options in force.
        builder = builder.config("spark.driver.defaultJavaOptions", " ".join(java))
    if master is not None and master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        builder = builder.config("spark.ui.enabled", "false")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in {**_OURS, **(settings or {})}.items():
        builder = builder.config(name, value)
    if quiet and master is None:  # spark-submit's JVM is already running
        builder = builder.config("spark.log.level", "ERROR")
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


@contextmanager
def planned_for(spark: SparkSession, size: int, times: int = 1) -> Iterator[None]:
    """Use settings for little data if ``size`` (bytes of logs) is less than ``times`` times
    ``SMALL_BYTES``, and Spark runs locally.

    The session's settings are restored at the end.
    """
    master = str(spark.conf.get("spark.master", ""))  # a Connect server may hide it
    if size >= times * SMALL_BYTES or not master.startswith("local"):
        yield
        return
    with settings_of(spark, _SMALL):
        yield


def our_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Use the settings that the tables depend on, also in a session that a user started."""
    return settings_of(spark, _OURS)


@contextmanager
def settings_of(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, and restore them at the end."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


def is_little(spark: SparkSession) -> bool:
    """Whether ``planned_for`` expects so little data that the driver may have it in memory."""
    return bool(spark.conf.get("spark.zkaudit.little", "false") == "true")


def at_once(spark: SparkSession, *jobs: Callable[[], Any]) -> list[Any]:
    """Return what the jobs return, in their order. Two of them run at once if there is little data.

    Spark uses one core to plan a job. With little data that takes longer than the job itself; with
    much data a job uses all cores and much of the memory, so the jobs run one after the other.
    Raises the error of the first job that fails.
    """
    if not is_little(spark):
        return [job() for job in jobs]
    with ThreadPoolExecutor(2, "zkaudit") as pool:
        started = [pool.submit(inheritable_thread_target(spark)(job)) for job in jobs]
        return [job.result() for job in started]


def bytes_of(files: Iterable[str | Path]) -> int:
    """Return the number of bytes written. Space that a server preallocates takes no blocks."""
    total = 0
    for file in files:
        with suppress(OSError):  # purged in the meantime
            found = Path(file).stat()
            total += min(found.st_size, found.st_blocks * 512)
    return total


def spark_errors() -> tuple[type[Exception], ...]:
    """Errors of Spark. A classic session also raises Java's own ones, from a library that one of
    Spark Connect does not need."""
    java = sys.modules.get("py4j.protocol")
    return (PySparkException,) if java is None else (PySparkException, java.Py4JError)


def reason_of(error: Exception) -> str:
    """Return the first line of an error of Spark. In one of Java, it only names the call."""
    lines = [line.removeprefix(": ").strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return next(iter(lines), type(error).__name__)


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise AuditError for zkaudit's own errors and ``OSError`` raised in Spark's workers."""
    try:
        yield
    except PySparkException as error:
        for line in str(error).splitlines():
            name, found, text = line.partition("zkaudit.errors.")
            if found and not name.strip():
                raise AuditError(text.partition(": ")[2]) from None
            if system := _SYSTEM.fullmatch(line):
                raise AuditError(no_file(int(system[1]), system[2], system[3])) from None
        raise


def check_group(spark: SparkSession, group: str | None) -> None:
    """Raise AuditError if Java rejects ``--groups-regex``."""
    try:
        spark.sql("select '' rlike :group", {"group": group or ""}).collect()
    except PySparkException:
        raise AuditError(
            f"{group_option(group or '')}: not a valid Java regex: see java.util.regex.Pattern"
        ) from None
