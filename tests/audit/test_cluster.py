"""The audit on a standalone Spark cluster, submitted with the wheel, as operators do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pyspark
import pytest
from zkaudit.job.place import finished

from tests.audit.answers import same
from tests.audit.conftest import Judged
from tests.audit.corpus.incidents import LIMITS
from tests.support.small_spark import PLANS
from zkconsumer.servers.jars import java
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, wait_until

pytestmark = pytest.mark.timeout(900)  # seven JVMs and a wheel on a busy machine
ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SUBMITTED = "from zkaudit.cli import main\n\nmain()\n"
PACKED = ("numpy", "pyarrow", "cramjam", "crc32c", "kafka-python", "kazoo")
"""Libraries that executors need. Spark's own Python code is part of the workers' Spark."""
PRINTS_PLACES = """
from zkaudit.job.spark import session

def places(_):
    import numpy, pyarrow, zkaudit
    return [module.__file__ for module in (numpy, pyarrow, zkaudit)]

context = session().sparkContext
print("imported:", *context.parallelize([1], 1).mapPartitions(places).collect(), flush=True)
"""


@dataclass(frozen=True)
class Cluster:
    """A master, and the directories in which its workers run executors."""

    master: str
    homes: tuple[Path, ...]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of one core each, from the pyspark package, on loopback.

    Their environment has no ``PYTHONPATH`` and no Python with zkaudit on the ``PATH``.
    """
    tmp_path = tmp_path_factory.mktemp("cluster")
    port, page = free_port(), free_port()
    environment = {
        "PATH": os.defpath,
        "JAVA_HOME": str(Path(java()).resolve().parents[1]),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    start = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, in pure Python."""
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "-w", str(folder), str(ROOT)],
        env=os.environ | {"ZKCONSUMER_COMPILE": "no"},
        check=True,
    )
    (made,) = folder.glob("zkconsumer-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel next to the libraries of this environment.

    The libraries are on its path, but this checkout is not, so zkaudit can only be imported from
    the wheel.
    """
    home = tmp_path_factory.mktemp("driver")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    argv = ["--python", str(python), "install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([*PIP, *argv], check=True)
    said = subprocess.run(
        [python, "-c", "import zkaudit; print(zkaudit.__file__)"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(str(home))
    return python


def packed(wheel: Path, folder: Path) -> Path:
    """The archive of a virtual environment with the wheel and the libraries that executors need."""
    home = folder / "packed"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    archive = folder / "zkaudit.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(home, ".")
        for name in PACKED:
            for file in metadata.files(name) or ():
                if not {"..", "tests", "include"} & set(file.parts):
                    inside = packages.relative_to(home) / file
                    tar.add(str(file.locate()), f"./{inside}", recursive=False)
    shutil.rmtree(home)
    return archive


def submitted(
    cluster: Cluster, cwd: Path, text: str, arguments: Sequence[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Submit a program in client mode from the directory ``cwd``; return when it has ended well."""
    file = cwd / "audit.py"
    file.write_text(text)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # no time to warm up
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.memory": "768m",
        "spark.ui.enabled": "false",
    }
    argv = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    argv += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    at = arguments.index("run")
    argv += [*arguments[:at], str(file), *arguments[at:]]
    ran = subprocess.run(
        argv,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
        | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran


def test_a_cluster_gives_what_local_mode_gives(
    cluster: Cluster, wheel: Path, python: Path, judged: Judged, tmp_path: Path
) -> None:
    """Every table and the summary are the same. Both workers took part, and the report is written.

    The workers' machines have Spark and Python only. The audit brings an archive, and a link gives
    the driver its own environment below the same relative path.
    """
    out = tmp_path / "cluster"
    (tmp_path / "environment").symlink_to(python.parents[1])
    argv = ["--archives", f"{packed(wheel, tmp_path)}#environment"]
    for name, value in (PLANS | {"spark.sql.shuffle.partitions": "4"}).items():
        argv += ["--conf", f"{name}={value}"]
    argv += ["run", "--master", "submit", "--zookeeper-logs", str(judged.logs), "--out", str(out)]
    for name, value in LIMITS.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    ran = submitted(
        cluster,
        tmp_path,
        PRINTS_PLACES + SUBMITTED,
        argv,
        PYSPARK_DRIVER_PYTHON=str(python),
        PYSPARK_PYTHON="./environment/bin/python",
    )
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("imported: "))
    for place in line.split()[1:]:
        assert any(Path(place).is_relative_to(home) for home in cluster.homes), line
        assert "/environment/lib/" in place
    assert f"report: {out / 'report.html'}" in ran.stdout
    assert len(ran.stderr.splitlines()) < 500, "thousands of lines of INFO"
    assert all(list(home.glob("app-*/*")) for home in cluster.homes), "an idle worker"
    here = judged.place / "whole"
    assert finished(out)[0] == finished(here)[0]
    same(out, here)
    for home in cluster.homes:
        for unpacked in home.glob("app-*"):
            shutil.rmtree(unpacked, ignore_errors=True)
