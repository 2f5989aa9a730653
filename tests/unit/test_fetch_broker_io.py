"""How often a fetcher asks a failing broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.runtime.counters import FetchCounts
from zkconsumer.runtime.fetch.broker_io import BrokerIO


@pytest.mark.parametrize(
    ("cause", "used", "asked"),
    [
        (ConnectionResetError(), True, 2),
        (ConnectionResetError(), False, 1),
        (TimeoutError(), True, 1),
        (BlockingIOError(), True, 1),
    ],
)
def test_a_request_is_repeated_on_a_closed_connection_only(
    cause: OSError, used: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker has closed an idle connection, it is opened again at once. A broker that does not
    answer in time costs the timeout once."""
    config = ConsumerConfig.parse({"zookeeper.connect": "127.0.0.1:1", "group.id": "g"})
    broker = BrokerIO(config, "c", FetchCounts())
    connection = SimpleNamespace(is_open=used)
    monkeypatch.setattr(broker, "_connect", lambda endpoint: connection)
    asking: list[object] = []

    def send(over: Any) -> None:
        asking.append(over)
        raise BrokerUnavailableError("no answer") from cause

    with pytest.raises(BrokerUnavailableError):
        broker._ask(BrokerEndpoint(0, "127.0.0.1", 1), cast(Any, send))
    assert asking == [connection] * asked


def test_socket_timeout_ms_is_in_milliseconds() -> None:
    """A connection counts in seconds."""
    given = {"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "socket.timeout.ms": 2500}
    broker = BrokerIO(ConsumerConfig.parse(given), "c", FetchCounts())
    assert broker._connect(BrokerEndpoint(0, "127.0.0.1", 1)).timeout == 2.5
