"""How the tools read one partition: messages of any size, damaged ones, and the end of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.support.batches import batch
from tests.unit.test_records import message_set
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching import one_log
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.broker.types import Got, Want
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import InvalidMessageError, LeaderUnavailableError

TP = TopicPartition("t", 0)


class Fetcher:
    """Answers as brokers before 0.10.1 do: it cuts a message off that is larger than requested."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data = data
        self.error = error
        self.limits: list[int] = []

    def fetch(self, wanted: Sequence[Want], _wait: int, _least: int, most: int) -> list[Got]:
        (want,) = wanted
        self.limits.append(most)
        assert most < 2**31
        assert want == Want(*TP, 3, most)
        return [Got(*TP, cast(Any, self.error), 9, self.data[:most])]


def log(monkeypatch: pytest.MonkeyPatch, fetcher: Fetcher) -> OneLog:
    """A log whose requests for up to 16 bytes are answered by ``fetcher``."""
    monkeypatch.setattr(one_log, "BrokerFetcher", lambda _, committed: fetcher)
    return OneLog(cast(BrokerConnection, None), TP, 16)


@pytest.mark.parametrize("old", [True, False])
def test_a_message_of_any_size_is_read(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """A request asks for more until the message is whole, and so do the following requests."""
    items = [(None, b"x" * 100)]
    data = message_set(0, items, 3) if old else batch(items, 3)
    fetcher = Fetcher(data)
    reading = log(monkeypatch, fetcher)
    records, following = reading.read(3, 0)
    assert [(record[2], record[4]) for record in records] == [(3, b"x" * 100)]
    assert following == 4
    assert fetcher.limits[-1] >= len(data)
    asked = len(fetcher.limits)
    reading.read(3, 0)
    assert len(fetcher.limits) == asked + 1


def test_at_the_end_of_the_log_the_position_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is no reason to ask for more."""
    fetcher = Fetcher(b"")
    records, following = log(monkeypatch, fetcher).read(3, 0)
    assert (list(records), following, fetcher.limits) == ([], 3, [16])


def test_a_message_that_never_becomes_whole_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker cuts each answer off. No request asks for more than the protocol can express."""
    whole = batch([(None, b"x" * 100)], 3)
    fetcher = Fetcher(whole[:-1])
    with pytest.raises(InvalidMessageError, match=r"t-0: .* at offset 3, "):
        log(monkeypatch, fetcher).read(3, 0)
    assert max(fetcher.limits) == 2**31 - 1


def test_damaged_data_and_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger requests would not help."""
    records, _ = log(monkeypatch, Fetcher(b"\xff" * 100)).read(3, 0)
    with pytest.raises(InvalidMessageError):
        list(records)
    with pytest.raises(LeaderUnavailableError):
        log(monkeypatch, Fetcher(b"", LeaderUnavailableError("moved"))).read(3, 0)
