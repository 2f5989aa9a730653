"""A member's brokers never answer. Every call of its connector still ends within its time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import CommitFailedError, RebalanceFailedError, ZkConsumerError
from zkconsumer.servers import wait_until

SLACK = 1.0
"""Seconds that a busy machine may add to a measured time."""


@pytest.fixture
def config(group: str) -> Iterator[dict[str, object]]:
    """Settings of a member whose only broker accepts connections but does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield {
            "bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}",
            "group.id": group,
            "max.poll.interval.ms": 3000,
        }


def test_start_while_brokers_are_silent(
    config: dict[str, object], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating streams ends within its time with the documented error, and leaves no thread."""
    monkeypatch.setattr("zkconsumer.coordinator.START_PATIENCE", 0.0)
    before = set(threading.enumerate())
    member = CoordinatorConsumerConnector(config)
    began = time.monotonic()
    with pytest.raises(RebalanceFailedError, match="the first rebalance did not end"):
        member.create_message_streams({topic: 1})
    assert time.monotonic() - began < 3.0 + SLACK
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "no thread is left")


def test_shutdown_while_brokers_are_silent(config: dict[str, object], topic: str) -> None:
    """``shutdown`` in another thread ends within its time. It also ends the call that creates
    streams."""
    before = set(threading.enumerate())
    member = CoordinatorConsumerConnector(config)
    raised: list[ZkConsumerError] = []

    def create() -> None:
        try:
            member.create_message_streams({topic: 1})
        except ZkConsumerError as error:
            raised.append(error)

    creating = threading.Thread(target=create)
    creating.start()
    wait_until(lambda: member.metrics().state != "NEW", 10, "the member joins")
    began = time.monotonic()
    try:
        member.shutdown(timeout=1.0)
    except CommitFailedError:
        pass
    assert time.monotonic() - began < 1.0 + SLACK
    creating.join(SLACK)
    assert not creating.is_alive()
    assert len(raised) == 1
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "no thread is left")
