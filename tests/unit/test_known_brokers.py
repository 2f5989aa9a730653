"""Which broker is asked when any will do."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import search_coordinator
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.types import QUICK_S
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerUnavailableError, CommitFailedError

A, B, C = (BrokerEndpoint(number, f"host{number}", 9092) for number in range(3))
BOOTSTRAP = [BrokerEndpoint(-1, A.host, A.port), BrokerEndpoint(-2, B.host, B.port)]


def test_the_least_loaded_comes_first() -> None:
    """Fewest requests first. A broker of the bootstrap list is counted under its real id."""
    known = KnownBrokers(
        lambda: BOOTSTRAP, lambda broker: {"host0": 3, "host1": 2}.get(broker.host, 0)
    )
    assert known.least_loaded() == BOOTSTRAP[::-1]
    known.learn([A, B, C])
    assert known.least_loaded() == [C, B, A]


def test_equals_are_drawn_by_lot() -> None:
    """Members do not all ask the same broker."""
    known = KnownBrokers(lambda: [A, B, C], lambda _: 0)
    assert {known.least_loaded()[0] for _ in range(200)} == {A, B, C}


def test_who_failed_comes_last_until_it_answers() -> None:
    """A broker that failed is asked after all others, whatever their load."""
    known = KnownBrokers(lambda: [A, B, C], lambda broker: {A: 0, B: 1, C: 9}[broker])
    known.failed(BrokerEndpoint(-1, A.host, A.port))
    assert known.least_loaded() == [B, C, A]
    known.failed(B)
    assert known.least_loaded() == [C, A, B]
    known.answered(A)
    assert known.least_loaded() == [A, C, B]


@pytest.fixture
def brokers() -> Iterator[list[BrokerEndpoint]]:
    """A broker that takes connections and does not answer, and one that refuses them."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        yield [BrokerEndpoint(0, *silent.getsockname()[:2]), BrokerEndpoint(1, "127.0.0.1", port)]


def read_cluster(brokers: list[BrokerEndpoint]) -> None:
    """Read the cluster."""
    servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    reader = ClusterReader(servers, "c", 30.0)
    reader._known.failed(brokers[1])  # it is asked last
    reader.read()


def find_coordinator(brokers: list[BrokerEndpoint]) -> None:
    """Search for a coordinator, as members do."""
    found = search_coordinator("g", brokers, lambda at: BrokerConnection(at, "c", 30.0, 0))
    raise found.error


def ask_any(brokers: list[BrokerEndpoint]) -> None:
    """Ask for what any broker knows, as tools do."""
    coordinators = GroupCoordinators("c", lambda: brokers, timeout=30.0, patience=0.0)
    coordinators._order = list  # type: ignore[assignment, method-assign]
    coordinators.retention_minutes()


@pytest.mark.parametrize("ask", [read_cluster, find_coordinator, ask_any])
def test_a_silent_broker_does_not_keep_the_next_one_from_being_asked(
    ask: Callable[[list[BrokerEndpoint]], None], brokers: list[BrokerEndpoint]
) -> None:
    """The silent one has two seconds and not its whole timeout, because another one is left."""
    began = time.monotonic()
    with pytest.raises((BrokerUnavailableError, CommitFailedError), match=r"refused|1 more"):
        ask(brokers)
    assert QUICK_S * 0.9 < time.monotonic() - began < QUICK_S + 5
