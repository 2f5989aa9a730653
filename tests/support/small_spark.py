"""Settings of Spark for tests. Their data is small: compiling and planning again cost more
than they save.

``python -m tests.support.small_spark`` records which classes Spark loads. With them, it starts
with half the CPU time (Java's class data sharing).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import cache_dir, java


def class_archive() -> Path:
    """The file with the classes that Spark loads. Each Spark and each Java have their own."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    programs = (Path(java()).resolve(), Path(found.origin))
    text = "".join(f"{each} {each.stat().st_mtime_ns} " for each in programs)
    return cache_dir() / "classes" / f"spark-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsa"


def sharing() -> str:
    """The options with which Java uses the recorded classes; empty if there are none."""
    try:
        archive = class_archive()
    except (AssertionError, ClusterError):  # no Spark, no Java
        return ""
    # Java prints a warning if it cannot use the file.
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive.exists() else ""


PLANS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Plans that begin soon. ``tests/conftest.py`` gives them to every Spark that a test starts."""
SHARING: Final = sharing()
SUBMIT_ARGS: Final = shlex.join(
    [
        *(word for name, value in PLANS.items() for word in ("--conf", f"{name}={value}")),
        *(("--conf", f"spark.driver.extraJavaOptions={SHARING}") if SHARING else ()),
        "pyspark-shell",
    ]
)
"""Value of ``PYSPARK_SUBMIT_ARGS``. A session's ``spark.driver.defaultJavaOptions`` remain."""
DRIVER: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # No time to warm up. The cache that belongs to this level is full after some audits.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
    "-XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""A driver on loopback."""


def record() -> None:
    """Write the class archive, unless it exists. Java writes it when Spark ends."""
    archive = class_archive()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    written = archive.with_suffix(f".{os.getpid()}")
    option = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={written} -Xlog:disable"}
    os.environ["PYSPARK_SUBMIT_ARGS"] = "pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions as F

    with (
        SparkSession.builder.master("local[1]")
        .config(map=DRIVER | PLANS | option)
        .getOrCreate() as spark
    ):
        rows = spark.range(100).withColumn("key", F.col("id") % 7)
        with tempfile.TemporaryDirectory() as folder:
            rows.write.mode("overwrite").partitionBy("key").parquet(folder)
            spark.read.parquet(folder).join(rows, "id").groupBy(rows["key"]).count().collect()
        rows.mapInArrow(lambda batches: batches, rows.schema).orderBy("key").toArrow()
        gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(300)
    written.replace(archive)


if __name__ == "__main__":
    record()
