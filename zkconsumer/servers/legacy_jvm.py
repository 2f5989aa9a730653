"""The original consumer (Kafka's JVM classes) as members of a group, for tests together with this
library's.

``JvmMembers`` is one JVM process that runs ``jvm/LegacyMembers.java`` and any number of members;
one thread reads its reports. Any thread may call the methods.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from zkconsumer.config.properties import read_properties
from zkconsumer.core.common.types import Pattern
from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import JVM_FILES, cache_dir, fetch_jars, java
from zkconsumer.servers.servers import sharing
from zkconsumer.servers.waiting import wait_until

LEGACY_LINES: Final = ("1.1", "0.8.2")
"""Keys of ``KAFKA_LINES`` whose jars contain the original consumer."""

_SOURCE: Final = JVM_FILES / "LegacyMembers.java"
_FLAGS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
_READY_SECONDS: Final = 60.0
_COMPILE_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 40.0


class JvmMembers:
    """A JVM that runs members of the original consumer, from construction to ``kill``.

    Args:
        kafka: one of ``LEGACY_LINES``, the release of the consumer.

    The first use of a release fetches its jars with Maven and compiles the driver with the compiler
    in the Java runtime (any JDK has it, as does Debian's ``openjdk-17-jre-headless``). The JVM ends
    with this process, even if this process is killed. All methods raise ``ClusterError``.
    """

    def __init__(self, kafka: str = "1.1") -> None:
        if kafka not in LEGACY_LINES:
            raise ClusterError(
                f"there is no original consumer for Kafka {kafka!r}: choose one of 1.1, 0.8.2"
            )
        self.kafka = kafka
        self._members: dict[str, JvmMember] = {}
        self._lock = threading.Lock()  # guards the members, and writing orders
        self._ready = threading.Event()
        self._dir = Path(tempfile.mkdtemp(prefix="zkconsumer-jvm-"))
        self._log = self._dir / "log"
        classpath = compiled(kafka, _SOURCE)
        logging = f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"
        main = _SOURCE.stem
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [java(), *_FLAGS, *sharing(kafka, main), logging, "-cp", classpath, main],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._read, name="jvm-members", daemon=True)
        self._thread.start()
        try:
            wait_until(
                lambda: self._ready.is_set() or not self.running, _READY_SECONDS, "the JVM is ready"
            )
            if not self.running:
                lines = self.log_text().splitlines() or ["it printed nothing"]
                raise ClusterError(f"the JVM of the original consumer ended: {lines[0]}")
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the JVM (SIGKILL). Its members' sessions expire later."""
        self._process.kill()
        self._process.wait()
        self._thread.join(10.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        shutil.rmtree(self._dir, ignore_errors=True)

    def log_text(self) -> str:
        """Return the log of the original consumer up to now."""
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def attempts(self, consumer_id: str) -> int:
        """Return how many rebalance attempts a member has started, according to the log."""
        return self.log_text().count(f"begin rebalancing consumer {consumer_id} try #")

    def _add(self, member: JvmMember) -> None:
        with self._lock:
            if member.consumer_id in self._members:
                raise ClusterError(f"a member {member.consumer_id} is already running in this JVM")
            self._members[member.consumer_id] = member

    def _order(self, *words: str) -> None:
        line = "\t".join(urllib.parse.quote_plus(word) for word in words)
        stdin = self._process.stdin
        try:
            with self._lock:
                if stdin is None or stdin.closed:
                    raise ClusterError("the JVM of the original consumer was stopped")
                stdin.write(line.encode() + b"\n")
                stdin.flush()
        except BrokenPipeError as error:
            raise ClusterError("the JVM of the original consumer has ended") from error

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = [urllib.parse.unquote_plus(word) for word in line.decode().rstrip().split("\t")]
            if words[0] == "ready":
                self._ready.set()
                continue
            self._report(words)

    def _report(self, words: Sequence[str]) -> None:
        with self._lock:
            member = self._members.get(words[1])
        if member is not None:
            member._report(words[0], words[2:])


class JvmMember:
    """One member of the original consumer. It joins at construction.

    Args:
        jvm: the process in which it runs.
        config: the original consumer's properties.
        topics: topic to number of streams.
        whitelist, blacklist: instead of ``topics``, a regex with ``streams`` streams.
        file: a ``.properties`` file that Java reads; ``config`` takes precedence.

    ``group.id`` and ``consumer.id`` must be given, in ``config`` or ``file``.

    Each stream is read by its own thread; a message counts as consumed when it is read. The
    constructor returns before the first rebalance has ended; ``wait_joined`` waits for that.
    """

    def __init__(
        self,
        jvm: JvmMembers,
        config: Mapping[str, object],
        topics: Mapping[str, int] | None = None,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        file: str | Path | None = None,
    ) -> None:
        self.jvm = jvm
        named = {entry.key: entry.value for entry in read_properties(file)[0]} if file else {}
        named |= {key: str(value) for key, value in config.items()}
        self.consumer_id = f"{named['group.id']}_{named['consumer.id']}"
        self.failures: list[str] = []
        """Exceptions of the original consumer: creating streams, iterating, shutting down."""
        self._counts: Counter[str] = Counter()
        if topics is not None:
            kind, wanted = Pattern.STATIC, dict(topics)
        elif whitelist is not None:
            kind, wanted = Pattern.WHITE_LIST, {whitelist: streams}
        elif blacklist is not None:
            kind, wanted = Pattern.BLACK_LIST, {blacklist: streams}
        else:
            raise ClusterError("pass topics, whitelist or blacklist")
        jvm._add(self)
        pairs = [f"{key}={value}" for key, value in config.items() if value is not None]
        if file is not None:
            pairs.insert(0, f"={file}")
        subscribed = [f"{name}={count}" for name, count in wanted.items()]
        jvm._order("join", self.consumer_id, kind.value, *pairs, "--", *subscribed)

    def wait_joined(self, timeout: float = 30.0) -> None:
        """Wait for the end of the first rebalance. Raises ClusterError if it fails or does not
        end."""
        self._await("joined", 1, timeout, 0)

    def _await(self, what: str, count: int, timeout: float, already: int) -> None:
        """Wait for a report, or for a failure that did not exist before the command."""
        wait_until(
            lambda: (
                self._counts[what] >= count or len(self.failures) > already or not self.jvm.running
            ),
            timeout,
            f"the original consumer {self.consumer_id} has {what}",
        )
        if self._counts[what] < count:
            reason = self.failures[-1] if self.failures else "its JVM has ended"
            raise ClusterError(f"the original consumer {self.consumer_id}: {reason}")

    def _report(self, kind: str, words: Sequence[str]) -> None:
        """Record one report. Called by the thread that reads them."""
        if kind == "failed":
            self.failures.append(words[0])
        else:
            self._counts[kind] += 1


def compiled(kafka: str, source: Path) -> str:
    """Compile a program with one release's jars, unless that was done before. Return its class
    path.

    Raises ``ClusterError``.
    """
    jars = fetch_jars(kafka)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    classes = cache_dir() / "classes" / f"{jars.name}-{digest}"
    classpath = f"{jars}/*{os.pathsep}{classes}"
    if classes.is_dir():
        return classpath
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent) as temporary:
        made = Path(temporary) / "made"
        paths = os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))
        argv = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-proc:none"]
        argv += ["-cp", paths, "-d", str(made), str(source)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
        )
        if done.returncode != 0:
            raise ClusterError(_compile_fault(source, done.stdout + done.stderr))
        with contextlib.suppress(OSError):  # another process was faster
            made.rename(classes)
    return classpath


def _compile_fault(source: Path, output: str) -> str:
    if "Module jdk.compiler not found" in output:
        return (
            "this Java has no compiler, which the original consumer's driver needs: install a "
            "JDK 17 (Debian and Ubuntu: openjdk-17-jre-headless is enough) or set JAVA_HOME"
        )
    messages = [line for line in output.splitlines() if "error" in line] or [output.strip()]
    return f"{source.name} does not compile: {messages[0]}"


@dataclass(slots=True)
class JvmHerd:
    """``count`` members of Kafka 1.1's consumer. Times are in seconds."""

    count: int
    session_timeout: float
    backoff: float
    _jvm: JvmMembers | None = None
    _members: list[JvmMember] = field(default_factory=list)

    def start(self, zookeeper: str, group: str, topics: Sequence[str]) -> None:
        """Start all members and wait for their first rebalance. Raises ClusterError."""
        self._jvm = JvmMembers()
        for number in range(self.count):
            config = {
                "zookeeper.connect": zookeeper,
                "group.id": group,
                "consumer.id": f"jvm{number:05d}",
                "zookeeper.session.timeout.ms": int(self.session_timeout * 1000),
                "rebalance.backoff.ms": int(self.backoff * 1000),
                "rebalance.max.retries": 20,
            }
            self._members.append(JvmMember(self._jvm, config, dict.fromkeys(topics, 1)))
        for member in self._members:
            member.wait_joined(120.0)

    def attempts(self) -> int:
        """Return how many rebalance attempts the members have made, according to their log."""
        assert self._jvm is not None
        return sum(self._jvm.attempts(member.consumer_id) for member in self._members)

    def close(self) -> None:
        """Kill the JVM."""
        if self._jvm is not None:
            self._jvm.kill()
