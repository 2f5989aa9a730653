"""The readers, how to start each in its own process, and the two builds of the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zkconsumer.servers import LocalCluster, fetch_jars, java

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "bench"
HEAP = ("-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""The options with which Kafka's own scripts start a consumer performance test."""
TIMEOUT = 300.0


@dataclass(frozen=True)
class Reader:
    """One kind of reader. A slow reader reads at most ``most`` messages."""

    name: str
    kind: str
    how: str = ""
    build: str = "compiled"
    coordinator: bool = False
    most: int | None = None
    codecs: Sequence[str] = field(default=("none", "gzip", "snappy", "lz4", "zstd"))
    streams: bool = True
    """Whether it can read several streams."""


READERS = (
    Reader("ours", "ours", "single"),
    Reader("ours, batches", "ours", "batches"),
    Reader("ours, arrow", "ours", "arrow"),
    Reader("ours, pure", "ours", "single", build="pure"),
    Reader("ours, pure, batches", "ours", "batches", build="pure"),
    Reader("ours, pure, arrow", "ours", "arrow", build="pure"),
    Reader("ours, coordinator", "ours", "single", coordinator=True),
    Reader("ours, coordinator, batches", "ours", "batches", coordinator=True),
    Reader("ours, coordinator, arrow", "ours", "arrow", coordinator=True),
    Reader("JVM legacy 1.1.1", "LegacyReader", codecs=("none", "gzip", "snappy", "lz4")),
    Reader("Java KafkaConsumer 3.9", "ClientReader"),
    Reader("confluent-kafka", "confluent"),
    Reader("confluent-kafka, tuned", "confluent", "tuned"),
    Reader("aiokafka", "aiokafka", most=300_000, streams=False),
    Reader("kafka-python", "kafka-python", most=200_000, streams=False),
    Reader("floor", "floor", streams=False),
)
BY_NAME = {reader.name: reader for reader in READERS}


def prepare() -> None:
    """Compile the Java readers and the wheel into ``build/bench``. Raises CalledProcessError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for line, name in (("1.1", "LegacyReader"), ("3.9", "ClientReader")):
        subprocess.run(
            [
                *(java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-proc:none"),
                *("-cp", _jars(line), "-d", str(BUILD / line)),
                *(str(HERE / f"{name}.java"), str(HERE / "Meter.java")),
            ],
            check=True,
            timeout=120,
        )
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--wheel-dir", str(BUILD), str(ROOT)),
        ],
        check=True,
        timeout=600,
        env={**os.environ, "ZKCONSUMER_COMPILE": "yes"},
    )
    for wheel in sorted(BUILD.glob("*.whl"), key=lambda path: path.stat().st_mtime):
        subprocess.run(["rm", "-rf", str(BUILD / "compiled")], check=True)
        zipfile.ZipFile(wheel).extractall(BUILD / "compiled")


def _jars(line: str) -> str:
    return os.pathsep.join(str(jar) for jar in sorted(fetch_jars(line).glob("*.jar")))


def run(
    reader: Reader,
    cluster: LocalCluster,
    topic: str,
    count: int,
    *,
    mode: str = "read",
    streams: int = 1,
    partitions: int = 4,
) -> dict[str, Any]:
    """Run a reader to its end. Return its output, and ``start``: the seconds until it read.

    Raises ``RuntimeError`` with its output if it fails.
    """
    group = f"bench-{uuid.uuid4().hex[:10]}"
    if reader.kind.endswith("Reader"):
        legacy = reader.kind == "LegacyReader"
        line = "1.1" if legacy else "3.9"
        address = cluster.zookeeper if legacy else cluster.bootstrap
        argv = [java(), *HEAP, "-cp", f"{BUILD / line}{os.pathsep}{_jars(line)}", reader.kind]
        argv += [mode, address, group, topic, str(count), str(streams)]
        environment = dict(os.environ)
    elif reader.kind == "franz-go":
        argv = [str(BUILD / "franz-go"), cluster.bootstrap, group, topic, str(count)]
        environment = dict(os.environ)
    else:
        order = {"reader": reader.kind, "how": reader.how, "mode": mode, "topic": topic}
        order |= {"coordinator": reader.coordinator, "count": count, "streams": streams}
        order |= {"zookeeper": cluster.zookeeper, "bootstrap": cluster.bootstrap}
        order |= {"group": group, "partitions": partitions}
        argv = [sys.executable, str(HERE / "reader.py"), json.dumps(order)]
        place = BUILD / "compiled" if reader.build == "compiled" else ROOT
        environment = {**os.environ, "PYTHONPATH": str(place)}
    begun = time.monotonic_ns()
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{reader.name} on {topic} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if reader.kind == "ours" and found["compiled"] != (reader.build == "compiled"):
        raise RuntimeError(f"{reader.name} ran the other build")
    found["start"] = (found["first"] - begun) / 1e9
    found["seconds"] = (found["last"] - found["first"]) / 1e9
    return found
