"""One Spark session for all tests of tables, findings and jobs; a browser for the report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two threads of this machine, on loopback, without its web page."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("zkaudit tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.codegen.wholeStage", "false")  # the data is small: compiling costs more
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session")
def browse() -> Callable[..., str]:
    """``browse(page, folder, *flags)``: the document as Chromium leaves it after its scripts."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "Chromium is not installed (Debian: apt install chromium)"

    def shown(page: str, folder: Path, *flags: str) -> str:
        file = folder / "report.html"
        file.write_text(page, encoding="utf-8")
        ran = subprocess.run(
            [program, *FLAGS, *flags, f"--user-data-dir={folder / 'browser'}", "--dump-dom",
             file.as_uri()],
            capture_output=True,
            timeout=150,
            check=True,
        )  # fmt: skip
        return ran.stdout.decode()

    return shown
