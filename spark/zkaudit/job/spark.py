"""Starts the Spark session and converts its workers' errors to ``AuditError``. Driver's thread."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zkaudit.errors import AuditError, no_file
from zkaudit.text import group_option

SMALL_BYTES: Final = 16 << 20
"""Size in bytes of logs (about 130,000 transactions) up to which Java's second compiler costs more
time than it saves."""
_OURS: Final = {
    # Spark's default, INT96, has no time zone and is deprecated.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
}
"""Settings on which the tables depend."""
_SYSTEM: Final = re.compile(r"\w+Error: \[Errno ([0-9]+)\] ([^:]+)(?:: '(.*)')?")
"""Pattern of the last line of a traceback for an ``OSError``."""


def session(
    master: str | None = None, settings: Mapping[str, str] | None = None, small: bool = False
) -> SparkSession:
    """Return the running Spark session (``spark-submit``), or start one on ``master``.

    ``small``: the logs are smaller than ``SMALL_BYTES``.
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
        if small:
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


def our_settings(spark: SparkSession) -> AbstractContextManager[None]:
    """Set the settings of Spark on which the tables' content depends, even in a session that a user
    started."""
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


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's errors. A classic session also raises errors of Py4J, which
    Spark Connect does not need."""
    java = sys.modules.get("py4j.protocol")
    return (PySparkException,) if java is None else (PySparkException, java.Py4JError)


def reason_of(error: Exception) -> str:
    """Return the first line of a Spark error; for an error from Java the second line, because the
    first only names the call."""
    lines = [line.removeprefix(": ").strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    return next(iter(lines), type(error).__name__)


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise an AuditError for each of zkaudit's errors, and each OSError, that Spark's workers
    report."""
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
    if group is None:
        return
    try:
        spark.sql("select '' rlike :group", {"group": group}).collect()
    except PySparkException:
        raise AuditError(
            f"{group_option(group)}: not a valid Java regex: see java.util.regex.Pattern"
        ) from None
