"""Where ``zkconsumer consume --partition`` starts, and what happens when the leader moves."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import pytest

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching import one_log
from zkconsumer.broker.fetching.list_offsets import EARLIEST
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.cli.consume import partition as consume_partition
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerUnavailableError, ConfigError, LeaderUnavailableError

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("ends", [(0, 0), (0, 5), (3, 5), (5, 5)])
def test_the_offset_may_be_from_the_start_of_the_log_to_its_end(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is the offset of the next message; 0 is that of an empty partition. With
    ``read_committed``, ``latest`` is the last stable offset; a later one may be given."""

    def answer(_connection: Any, wanted: Any, which: int, *, committed: bool) -> Any:
        end = ends[0] if committed else ends[1]
        return dict.fromkeys(wanted, ends[0] if which == EARLIEST else end)

    monkeypatch.setattr(one_log, "list_offsets", answer)
    log = OneLog(cast(BrokerConnection, None), TP, 1, committed=True)
    assert consume_partition._first(log, TP, "latest") == ends[0]
    assert consume_partition._first(log, TP, str(ends[1])) == ends[1]
    log = OneLog(cast(BrokerConnection, None), TP, 1)
    for start in range(ends[0], ends[1] + 1):
        assert consume_partition._first(log, TP, str(start)) == start
    assert consume_partition._first(log, TP, "earliest") == ends[0]
    assert consume_partition._first(log, TP, "latest") == ends[1]
    for start in (ends[0] - 1, ends[1] + 1):
        with pytest.raises(ConfigError, match=f"partition 0 has {ends[0]} to {ends[1]}"):
            consume_partition._first(log, TP, str(start))


def test_reading_continues_at_the_next_leader_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader ends, and brokers name one for a while that does not lead any more. They are not
    asked again and again without a pause. If no broker answers, reading ends."""
    moved, ended = LeaderUnavailableError("moved"), BrokerUnavailableError("ended")
    errors = [ended, moved, moved, ended]
    pauses: list[float] = []

    def read(*_: object) -> NoReturn:
        error = errors.pop(0)
        if not errors:
            monkeypatch.setattr(consume_partition, "_leader", no_broker)
        raise error

    def no_broker(*_: object) -> NoReturn:
        raise BrokerUnavailableError("no broker can be used")

    monkeypatch.setattr(consume_partition, "_leader", lambda *_: BrokerEndpoint(0, "b", 9092))
    monkeypatch.setattr(consume_partition, "_first", lambda *_: 0)
    monkeypatch.setattr(OneLog, "read", read)
    monkeypatch.setattr(consume_partition.time, "sleep", pauses.append)
    config = CoordinatorConfig.parse({"bootstrap.servers": "b:9092", "group.id": "g"})
    messages = consume_partition.messages_of(config, TP, "earliest", None, lambda: None)
    with pytest.raises(BrokerUnavailableError, match="no broker can be used"):
        next(messages)
    assert len(pauses) == 4
    assert all(pause > 0 for pause in pauses)
