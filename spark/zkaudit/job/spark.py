"""The Spark session, and its workers' errors as ``AuditError``. Driver's thread."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from zkaudit.errors import AuditError, no_file
from zkaudit.text import group_option

_SYSTEM: Final = re.compile(r"\w+Error: \[Errno ([0-9]+)\] ([^:]+)(?:: '(.*)')?")
"""The last line of a traceback for an ``OSError``."""


def session(master: str | None = None) -> SparkSession:
    """Return the running Spark session (``spark-submit``), or start one on ``master``."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("zkaudit")
    # spark-submit sets SPARK_CONF_DIR. Where such a file is, users say what is logged.
    place = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME", ""), "conf")
    quiet = not Path(place, "log4j2.properties").is_file()
    if master is not None:
        builder = builder.master(master)
        if quiet:
            file = Path(__file__).with_name("log4j2.properties").as_uri()
            builder = builder.config(
                "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={file}"
            )
    if master is not None and master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
        builder = builder.config("spark.ui.enabled", "false")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", str(8 * (os.cpu_count() or 2)))
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    if quiet and master is None:  # spark-submit's JVM runs already
        spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def errors_named() -> Iterator[None]:
    """Raise AuditError for one of our errors or an ``OSError`` that a worker of Spark raised."""
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
    """Raise AuditError when Java does not take ``--group`` for a regex."""
    try:
        spark.sql("select '' rlike :group", {"group": group or ""}).collect()
    except PySparkException:
        raise AuditError(
            f"{group_option(group or '')}: not a regex of Java: see java.util.regex.Pattern"
        ) from None
