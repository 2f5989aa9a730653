"""The audit on a standalone Spark cluster, submitted with the installed wheel, as operators do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit.job import audit as job
from zkaudit.job.output import load
from zkaudit.tables import catalog as tables

from zkconsumer.testing.supervisor import Supervisor
from zkconsumer.testing.waiting import free_port, wait_until

pytestmark = pytest.mark.timeout(900)  # seven JVMs and a wheel on a busy machine
ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
SUBMITTED = "from zkaudit.cli import main\n\nmain()\n"


@dataclass(frozen=True)
class Cluster:
    """A master, and the directories in which its workers run executors."""

    master: str
    homes: tuple[Path, ...]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each, from the pyspark package, on loopback."""
    port, page = free_port(), free_port()
    environment = {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    start = ["env", *(f"{name}={value}" for name, value in environment.items())]
    start += [str(SPARK_HOME / "bin" / "spark-class")]
    place = "org.apache.spark.deploy"
    supervisor = Supervisor()
    try:
        argv = [*start, f"{place}.master.Master", "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--webui-port", str(page)]
        supervisor.start("master", argv, tmp_path / "master.log")
        wait_until(lambda: workers(page) == 0, 120, "the master answers")
        homes = []
        for name in ("one", "two"):
            homes.append(tmp_path / name)
            argv = [*start, f"{place}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            argv += ["--cores", "1", "--memory", "1g", "--work-dir", str(homes[-1])]
            argv += [f"spark://127.0.0.1:{port}"]
            supervisor.start(name, argv, tmp_path / f"{name}.log")
        wait_until(lambda: workers(page) == 2, 120, "both workers are registered")
        yield Cluster(f"spark://127.0.0.1:{port}", tuple(homes))
    finally:
        supervisor.close()


def workers(page: int) -> int | None:
    """How many workers the master's page shows, or ``None`` if there is no page yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # no page, or another page while the master starts
        return None


def installed(folder: Path) -> Path:
    """The Python of an environment that has the wheel next to the libraries of this environment.

    The libraries are on its path, but this checkout is not, so zkaudit can only be imported from
    the wheel.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.glob("zkconsumer-*.whl")
    home = folder / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    argv = ["--python", str(python), "install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([*pip, *argv], check=True)
    said = subprocess.run(
        [python, "-c", "import zkaudit; print(zkaudit.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(str(home))
    return python


def rows(frame: DataFrame) -> list[Any]:
    """All rows in a fixed order."""
    return sorted(frame.collect(), key=repr)


def test_a_cluster_gives_what_local_mode_gives(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Every table and the summary are the same. Both workers took part, and the report is
    written."""
    logs = tmp_path / "logs"
    subprocess.run(
        [sys.executable, ROOT / "tests/bench/audit_logs.py", logs, "40000", "5000"], check=True
    )
    python = installed(tmp_path)
    file = tmp_path / "audit.py"
    file.write_text(SUBMITTED)
    out = tmp_path / "cluster"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "768m",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }
    argv = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    argv += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    argv += [str(file), "run", "--master", "submit"]
    argv += ["--zookeeper-logs", str(logs), "--out", str(out)]
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
    }
    ran = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert f"report: {out / 'report.html'}" in ran.stdout
    assert len(ran.stderr.splitlines()) < 500, "thousands of lines of INFO"
    assert all(list(home.glob("app-*/*")) for home in cluster.homes), "an idle worker"

    here = job.run(spark, job.Options([str(logs)], str(tmp_path / "local")))
    there, made = load(spark, out)
    assert there == json.loads(json.dumps(here))
    _, expected = load(spark, tmp_path / "local")
    for table in tables.TABLES:
        assert rows(made[table.name]) == rows(expected[table.name]), table.name
    assert made["ownership"].count() > 1000
    shutil.rmtree(tmp_path / "environment")
