"""Groups of original consumers and zkconsumer members, and the checks that apply to all of them.

One cluster of each broker line and one warm JVM of each release of the original consumer serve the
whole run. ``INTEROP=all`` runs every case. Without it, a test runs so many cases that any two
values of its parameters meet. Every result is written to ``build/interop.jsonl``. ``python -m
tests.interop.table`` generates the reference page from this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from tests.support.groups import Delivery, Reader
from tests.support.legacy_jvm import JvmMembers
from tests.support.legacy_jvm_group import MixedGroup
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.topic_filter import Blacklist, Whitelist
from zkconsumer.servers import KAFKA_LINES, LocalCluster
from zkconsumer.servers.legacy_jvm import LEGACY_LINES

RESULTS = Path(__file__).parents[2] / "build" / "interop.jsonl"
LINES = {version: line for line, version in KAFKA_LINES.items()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases that a short run omits."""
    if os.environ.get("INTEROP") == "all":
        return
    cases: dict[Any, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent:
            cases.setdefault(item.function, []).append(item)
    left_out = [item for same in cases.values() for item in set(same) - set(_sample(same))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _sample(cases: list[pytest.Function]) -> Iterator[pytest.Function]:
    """Few cases of a test: any two values of its parameters that occur together in some case do so
    in one of these."""
    pairs: dict[pytest.Function, set[Any]] = {}
    for case in cases:
        values = case.callspec.params.items() if hasattr(case, "callspec") else ()
        pairs[case] = set(combinations_with_replacement(map(str, values), 2)) or {None}
    missing = set().union(*pairs.values())
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        missing -= pairs[best]
        yield best


_OUTCOME = pytest.StashKey[str]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Record the result of each test, and its notes."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "setup" or report.failed:
        item.stash[_OUTCOME] = report.outcome
    if report.when == "call":
        item.user_properties.append(("seconds", round(call.duration, 2)))
    if report.when != "teardown":
        return
    RESULTS.parent.mkdir(exist_ok=True)
    line = {
        "test": f"{item.path.name}::{item.name}",
        "outcome": item.stash[_OUTCOME],
        **dict(item.user_properties),
    }
    with RESULTS.open("a") as results:
        results.write(json.dumps(line) + "\n")


@pytest.fixture(scope="session")
def clusters(cluster: LocalCluster) -> Iterator[Callable[[str], LocalCluster]]:
    """Returns the run's cluster of a broker version such as ``1.1.1``. The first call starts it."""
    running = {"3.9": cluster}

    def get(version: str) -> LocalCluster:
        line = LINES[version]
        if line not in running:
            started = LocalCluster(line)
            started.start()
            running[line] = started
        return running[line]

    yield get
    for line, started in running.items():
        if line != "3.9":
            started.close()


@pytest.fixture(scope="session")
def jvms() -> Iterator[Callable[[str], JvmMembers]]:
    """Returns the run's JVM of a release of the original consumer such as ``0.8.2.2``."""
    running: dict[str, JvmMembers] = {}

    def get(version: str) -> JvmMembers:
        line = LINES[version]
        assert line in LEGACY_LINES
        if line not in running:
            running[line] = JvmMembers(line)
        return running[line]

    yield get
    for jvm in running.values():
        jvm.close()


class OurMember:
    """A zkconsumer member in this process."""

    def __init__(
        self,
        config: Mapping[str, object],
        topics: Mapping[str, int] | None = None,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        handle: Callable[[Delivery], object] | None = None,
    ) -> None:
        self.connector = ZookeeperConsumerConnector(config)
        try:
            if topics is not None:
                by_topic = self.connector.create_message_streams(topics)
                found = [stream for some in by_topic.values() for stream in some]
            else:
                chosen = Whitelist(whitelist) if whitelist is not None else Blacklist(blacklist)
                found = self.connector.create_message_streams_by_filter(chosen, streams)
        except BaseException:
            self.connector.shutdown()
            raise
        self.reader = Reader(found, handle)

    @property
    def deliveries(self) -> list[Delivery]:
        """All messages that its streams delivered."""
        return self.reader.deliveries

    def leave(self) -> None:
        """Leave cleanly."""
        self.connector.shutdown()
        self.reader.join()


class OurProcess:
    """A zkconsumer member in its own process, which can be killed: the ``consume`` command."""

    def __init__(self, config: Mapping[str, object], topic: str, *more: str) -> None:
        self.deliveries: list[Delivery] = []
        options = ["--format=json", "--topic", topic, *more]
        pairs = [f"--consumer-property={key}={value}" for key, value in config.items()]
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("zkconsumer"), "consume", *options, *pairs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = json.loads(line)
            value = found["value"].encode()
            self.deliveries.append(
                Delivery(0.0, found["partition"], found["offset"], value, found["topic"])
            )

    def stop(self) -> int:
        """Ask it to leave (SIGTERM), and return its exit status."""
        self.process.terminate()
        status = self.process.wait(30.0)
        self._thread.join(10.0)
        return status

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self.process.kill()
        self.process.wait()
        self._thread.join(10.0)

    leave = kill


@pytest.fixture
def groups(request: pytest.FixtureRequest, group: str) -> Iterator[Callable[..., MixedGroup]]:
    """Creates mixed groups. Their members leave at the end."""
    made: list[MixedGroup] = []

    def make(*args: Any, **kwargs: Any) -> MixedGroup:
        made.append(MixedGroup(*args, OurMember, group, **kwargs))
        return made[-1]

    yield make
    for each in made:
        request.node.user_properties.append(("reread", each.reread))
        each.close()


@pytest.fixture
def process() -> type[OurProcess]:
    """A zkconsumer member in its own process."""
    return OurProcess
