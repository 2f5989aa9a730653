"""Shared by all tests: markers, servers, and names that no other test uses.

A test's folder is its marker. The servers start when the first test needs them. If a server does
not start, the tests that need it fail. With ``-n``, each worker process has its own servers.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests import times
from tests.support.small_spark import SUBMIT_ARGS
from zkconsumer.servers import LocalCluster

HERE = Path(__file__).parent
BEGIN = time.time()

KINDS = {
    "unit": "pure code, milliseconds",
    "property": "random inputs from a printed seed",
    "model": "bounded models of the protocols, searched through",
    "sim": "the decision core and the data plane on virtual time",
    "integration": "real servers",
    "faults": "real servers that are killed, paused and cut off",
    "interop": "the JVM's own consumer beside ours",
    "secure": "TLS, SASL, Kerberos and access lists, on a broker and a ZooKeeper that demand them",
    "docker": "servers and members in containers; skipped where no Docker engine answers",
    "migrate": "the offset mover, on real servers where it meets them",
    "audit": "logs of real ZooKeepers, decoded and told; Spark on this machine",
    "fuzz": "bytes that no honest program has written",
    "peers": "members of other clients, from PyPI and npm, beside ours",
    "kraft": "Kafka 4, which has no ZooKeeper, and the change to it",
    "compiled": "the compiled record decoder, compared with its source",
    "wheels": "wheels that are built, installed into empty environments and run",
    "lakes": "tables in Delta and Iceberg, on the oldest Spark that zkaudit supports",
    "site": "the documentation as `make docs` has built it",
    "repo": "promises about the repository itself",
}

ON_SERVERS = {
    *("integration", "faults", "interop", "secure", "docker"),
    *("migrate", "audit", "kraft", "peers"),
}
"""Markers of tests that depend on how fast real servers answer. With ``ZKC_RERUNS=1`` (CI) such
a test runs once more if it fails, as in Kafka's own build. A test without servers never runs
twice."""
LONGEST = (
    *("test_stream.py", "test_refusals.py", "test_group_history.py"),
    *("test_coordinator_pages.py", "test_coordinator_mixed.py"),
)
"""The slowest test files of their targets. They begin first, so that at the end no worker waits for
the one that has them."""
CLEAN_UP = 60.0
"""Seconds for which a test may clean up after two tries."""
STDERR = pytest.StashKey[int]()
"""Descriptor of the standard error that pytest does not capture."""
MOST_RERUNS = 2
"""If more tests than this needed a second try, the run fails."""


def pytest_configure(config: pytest.Config) -> None:
    """Register one marker for each folder, and let Ctrl-C reach the programs that tests start.

    Programs inherit an ignored SIGINT, and a shell ignores it for programs in the background. They
    also inherit Spark's settings for small data.
    """
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGS)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[STDERR] = os.dup(2)
    for kind, meaning in KINDS.items():
        config.addinivalue_line("markers", f"{kind}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder. A test elsewhere is a mistake. The longest files come
    first."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        kind = item.path.relative_to(HERE).parts[0]
        if kind not in KINDS:
            raise pytest.UsageError(f"{item.path}: tests lie in one of {', '.join(KINDS)}")
        item.add_marker(kind)
        if kind in ON_SERVERS and os.environ.get("ZKC_RERUNS"):
            item.add_marker(pytest.mark.flaky(reruns=int(os.environ["ZKC_RERUNS"])))


def pytest_collection_finish() -> None:
    """Leave what is loaded now out of garbage collections, and make them rare: they took a sixth of
    the CPU time of tests in pure Python."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why each repeated test failed the first time, because a rare fault is still a fault.

    With ``ZKC_TIMES``, record how long the run took.
    """
    if not hasattr(terminalreporter.config, "workerinput"):  # not in a worker of xdist
        reports = [report for kind in terminalreporter.stats.values() for report in kind]
        times.record((report for report in reports if hasattr(report, "duration")), BEGIN)
    reruns = terminalreporter.stats.get("rerun", [])
    if len(reruns) > MOST_RERUNS:
        terminalreporter.section(f"failed: {len(reruns)} tests needed a second try")
    for report in reruns:
        terminalreporter.section(f"failed at the first try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"{title}\n{text}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if many tests needed a second try. That is not bad luck."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and len(terminal.stats.get("rerun", [])) > MOST_RERUNS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process, and print the stack of each thread, if a test hangs past its timeout.

    ``pytest-timeout`` interrupts a test once, and never in its second try: nothing else ends a
    clean-up or a second try that hangs. With xdist, the test fails and a new worker runs the rest.
    """
    marker = item.get_closest_marker("timeout")
    option = item.config.getoption("timeout")
    timeout = float(marker.args[0] if marker else option or item.config.getini("timeout") or 0)
    watchdog = threading.Timer(2 * timeout + CLEAN_UP, _abandon, (item,))
    watchdog.daemon = True
    if timeout:
        watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def _abandon(item: pytest.Item) -> None:
    stderr = item.config.stash[STDERR]
    os.write(stderr, f"\n{item.nodeid} hangs although its timeout has passed\n".encode())
    faulthandler.dump_traceback(stderr, all_threads=True)
    os._exit(pytest.ExitCode.INTERNAL_ERROR)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """ZooKeeper and one Kafka 3.9 broker for a whole worker. Tests leave both running."""
    with LocalCluster("3.9") as running:
        yield running


@pytest.fixture(scope="session")
def zookeeper(cluster: LocalCluster) -> str:
    """Address of the worker's ZooKeeper, without a chroot."""
    return cluster.zookeeper


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A word that names the test and is valid in topics, groups and paths.

    It is the same in each run, because other things depend on it: the order of partitions in
    roundrobin, and the coordinator of a group. A second try gets a new word, so it does not find
    data of the first.
    """
    words = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:60]
    name = f"{words}-{zlib.crc32(request.node.nodeid.encode()):08x}"
    tries = getattr(request.node, "execution_count", 1)  # counted by pytest-rerunfailures
    return name if tries < 2 else f"{name}-{tries}"


@pytest.fixture
def chroot(zookeeper: str, unique: str) -> str:
    """``HOST:PORT/path`` of an empty chroot that exists. No broker is registered in it."""
    client = KazooClient(zookeeper)
    client.start(timeout=15)
    try:
        client.create(f"/{unique}")
    finally:
        client.stop()
        client.close()
    return f"{zookeeper}/{unique}"


@pytest.fixture
def group(unique: str) -> str:
    """A group id that no other test uses."""
    return f"group-{unique}"


@pytest.fixture
def topic(unique: str) -> str:
    """A topic name that no other test uses. The topic is not created."""
    return f"topic-{unique}"
