"""Logs and snapshots written by real ZooKeeper servers of several versions, recorded once per run.

The server of each version runs the same workload, which includes every transaction type that the
version knows. The server is then stopped, and tests read its files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Create2, long_struct
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pyspark.sql import SparkSession
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.errors import LogFormatError

from tests.audit import s3 as s3_server
from tests.audit.corpus.judge import IN_CI, Verdict, judge, verdict_of
from tests.maven import fetched
from tests.support.small_spark import DRIVER
from zkconsumer.servers.jars import JVM_FILES, java
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port, wait_until

VERSIONS = ("3.4.14", "3.5.10", "3.6.4", "3.9.3")
COMPRESSION = {"3.6.4": "gz", "3.9.3": "snappy"}
LOCALE = (
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
    "-Dsun.stdout.encoding=UTF-8",
    "-Duser.timezone=UTC",
    "-Duser.language=en",
    "-Duser.country=US",
)
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Djava.awt.headless=true")


@dataclass(frozen=True, slots=True)
class Recording:
    """The files of one server: ``logs`` and ``snapshots``, sorted by name."""

    version: str
    jars: Path
    logs: tuple[Path, ...]
    snapshots: tuple[Path, ...]

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of this version's own tools and return what it printed."""
        argv = [java(), *JVM, *LOCALE, "-cp", f"{self.jars}/*", main, *arguments]
        ran = subprocess.run(argv, capture_output=True, timeout=60, check=False)
        assert ran.returncode == 0, ran.stderr.decode(errors="replace")[-2000:]
        return ran.stdout.decode("utf-8", "surrogateescape")


def jars_of(version: str) -> Path:
    """All jars of one ZooKeeper."""
    pom = Path(__file__).with_name("zookeeper.xml")
    return fetched(pom, f"zookeeper-{version}", f"-Dzk.version={version}")


class CreateContainer(Create2):
    """A request that kazoo lacks: the server deletes such a znode once it has lost all children."""

    type = 19


class CreateTTL(Create2):
    """A request that kazoo lacks: the server deletes such a znode if it does not change for a
    time."""

    type = 21
    ttl_ms = 500

    def serialize(self) -> bytearray:
        """A create2 request followed by the time to live, in milliseconds."""
        return super().serialize() + long_struct.pack(self.ttl_ms)


class CreateLongTTL(CreateTTL):
    """The same for a znode that outlives the recording."""

    ttl_ms = 600_000


def call(client: KazooClient, request: Any) -> Any:
    """Send a request that kazoo has no method for."""
    answer = client.handler.async_result()
    client._call(request, answer)
    return answer.get(timeout=15)


@contextmanager
def serving(version: str, root: Path) -> Iterator[str]:
    """A server of a version, with its files below ``root``; its address. It is killed at the
    end."""
    port = free_port()
    config = root / "zoo.cfg"
    data = root / "data"
    data.mkdir(parents=True)
    config.write_text(
        f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=200\n"
        "minSessionTimeout=400\nmaxSessionTimeout=60000\nadmin.enableServer=false\n"
        "4lw.commands.whitelist=*\nextendedTypesEnabled=true\n"
    )
    flags = ["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=64", "-Dzookeeper.snapCount=150"]
    flags += ["-Dzookeeper.jmx.log4j.disable=true"]
    flags += ["-Dznode.container.checkIntervalMs=100", "-Dzookeeper.extendedTypesEnabled=true"]
    flags += [f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"]
    if version in COMPRESSION:
        flags += [f"-Dzookeeper.snapshot.compression.method={COMPRESSION[version]}"]
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    supervisor = Supervisor()
    try:
        argv = [java(), *JVM, *flags, "-cp", f"{jars_of(version)}/*", main, str(config)]
        supervisor.start("zookeeper", argv, root / "log")
        wait_until(lambda: answers(port), 60, f"ZooKeeper {version} serves")
        yield f"127.0.0.1:{port}"
    finally:
        supervisor.close()


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A directory that one of the processes of this run makes for all of them."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    place = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / f"{name}.made").exists():
            shutil.rmtree(place, ignore_errors=True)
            make(place)
            (root / f"{name}.made").touch()
    return place


def record(version: str, root: Path) -> None:
    """Start a server, run the workload of all clients, stop the server."""
    data = root / "data"
    with serving(version, root) as address:
        client = work(address, version)
        # The server writes its snapshots in a thread of its own, while it serves requests.
        wait_until(lambda: all(map(is_whole, snapshots_in(data))), 60, "the snapshots are whole")
    client.stop()
    client.close()


def recorded(version: str, root: Path) -> Recording:
    """What ``record`` has recorded."""
    data = root / "data"
    logs = sorted((data / "version-2").glob("log.*"), key=lambda path: int(path.name[4:], 16))
    return Recording(version, jars_of(version), tuple(logs), snapshots_in(data))


def snapshots_in(data: Path) -> tuple[Path, ...]:
    """The snapshots of a server by its data directory, sorted by name."""
    return tuple(sorted((data / "version-2").glob("snapshot.*")))


def is_whole(snapshot: Path) -> bool:
    """Return whether the server has written the whole of a snapshot."""
    try:
        open_snapshot(snapshot)
    except LogFormatError:
        return False
    return True


def answers(port: int) -> bool:
    """Return whether the server reports that it serves requests."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(4096)
    except OSError:
        return False


def work(address: str, version: str) -> KazooClient:
    """Write every type of transaction, some of them with awkward names and contents."""
    newer = version >= "3.5"
    client = KazooClient(address, timeout=20)
    client.start(timeout=20)
    client.create("/a", b"first")
    client.create("/ä/日本", b"\x00\xff\x80bytes", makepath=True)
    client.create("/null", None if version < "3.5" else b"")  # later toolkits fail at null
    client.create("/acl", b"", acl=[make_digest_acl("who", "secret", read=True)])
    client.set_acls("/a", OPEN_ACL_UNSAFE)
    for number in range(120):
        client.set("/a", b"x" * number)
        client.create("/a/child-", str(number).encode(), sequence=True, ephemeral=number % 3 == 0)
    client.delete("/a/child-0000000000")
    refused(lambda: client.create("/a"))
    refused(lambda: client.set("/missing", b""))
    refused(lambda: client.set("/a", b"", version=1))
    good = client.transaction()
    good.check("/a", 120)
    good.create("/multi", b"made")
    good.set_data("/multi", b"set")
    good.create("/multi/gone", ephemeral=True)
    good.delete("/multi/gone")
    assert not any(isinstance(result, Exception) for result in good.commit())
    bad = client.transaction()
    bad.set_data("/multi", b"never")
    bad.create("/a")
    assert all(isinstance(result, Exception) for result in bad.commit())
    # A znode whose content is a record of a delete must not be read as one.
    payload = struct.pack(">qiqqii", 1, 2, 3, 4, 2, 2) + b"/a"
    trap = struct.pack(">qi", zlib.adler32(payload), len(payload)) + payload + b"B"
    client.create("/trap", trap * 3)
    brief = KazooClient(address, timeout=20)
    brief.start(timeout=20)
    for number in range(5):
        brief.create(f"/brief-{number}", b"", ephemeral=True)
    brief.stop()
    brief.close()
    empty = KazooClient(address, timeout=20)
    empty.start(timeout=20)
    empty.stop()
    empty.close()
    if newer:
        client.create("/second", b"2", include_data=True)
        call(client, CreateContainer("/box", b"c", OPEN_ACL_UNSAFE, 4))
        client.create("/box/only", b"")
        client.delete("/box/only")
        call(client, CreateTTL("/ttl", b"t", OPEN_ACL_UNSAFE, 5))
        call(client, CreateLongTTL("/ttl-kept", b"t", OPEN_ACL_UNSAFE, 5))
        client.create("/ttl-kept/child", b"")
        wait_until(
            lambda: not client.exists("/box") and not client.exists("/ttl"),
            20,
            "container and time to live have ended",
        )
    for number in range(120):
        client.set("/null", str(number).encode())
    client.create("/left", b"left alive", ephemeral=True)
    # The server is killed with this session alive: its snapshot and log end without its close.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    return client


def refused(write: Callable[[], Any]) -> None:
    """A write that the server must refuse (and logs)."""
    with pytest.raises(KazooException):
        write()


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recording]:
    """``recordings(version)`` returns the files of a server of that version. The first call records
    them. Tests do not change them."""

    @cache
    def recording(version: str) -> Recording:
        place = once(tmp_path_factory, f"zk-{version}", partial(record, version))
        return recorded(version, place)

    return recording


@pytest.fixture(params=VERSIONS)
def recording(request: pytest.FixtureRequest, recordings: Any) -> Recording:
    """The recordings of all versions, one at a time."""
    found: Recording = recordings(request.param)
    return found


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """Credentials for the S3 server. Spark's processes have the environment of their start."""
    with pytest.MonkeyPatch.context() as change:
        for name, value in s3_server.CREDENTIALS.items():
            change.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def s3(credentials: None) -> Iterator[s3_server.S3]:
    """An S3 server with an empty bucket."""
    with s3_server.server() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session on two threads and loopback that knows both sources. Each process has one.
    A test of the cluster and one of the corpus plan as an audit does."""
    from zkaudit.sources.zookeeper import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config(map=DRIVER)
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()


@dataclass(frozen=True, slots=True)
class Judged:
    """The incidents that were written with the rules (``corpus.LIMITS``), audited."""

    place: Path
    """``whole`` is the audit of ``logs-whole``, with ``CORPUS=all`` also ``late``."""
    verdict: Verdict

    @property
    def logs(self) -> Path:
        """The logs of the audit ``whole``. Tests do not change them."""
        return self.place / "logs-whole"


@pytest.fixture(scope="session")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """One audit for all tests that compare others with it."""
    place = once(tmp_path_factory, "judged", lambda place: judge(spark, place, IN_CI))
    return Judged(place, verdict_of(place, IN_CI))
