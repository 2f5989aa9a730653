"""Where ``zkconsumer consume --partition`` starts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.fetching import one_log
from zkconsumer.broker.fetching.list_offsets import EARLIEST
from zkconsumer.broker.fetching.one_log import OneLog
from zkconsumer.cli.consume import partition as consume_partition
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import ConfigError

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("ends", [(0, 0), (0, 5), (3, 5), (5, 5)])
def test_the_offset_may_be_from_the_start_of_the_log_to_its_end(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is the offset of the next message; 0 is that of an empty partition."""

    def answer(_connection: Any, wanted: Any, which: int) -> Any:
        return dict.fromkeys(wanted, ends[0] if which == EARLIEST else ends[1])

    monkeypatch.setattr(one_log, "list_offsets", answer)
    log = OneLog(cast(BrokerConnection, None), TP, 1)
    for start in range(ends[0], ends[1] + 1):
        assert consume_partition._first(log, TP, str(start)) == start
    assert consume_partition._first(log, TP, "earliest") == ends[0]
    assert consume_partition._first(log, TP, "latest") == ends[1]
    for start in (ends[0] - 1, ends[1] + 1):
        with pytest.raises(ConfigError, match=f"partition 0 has {ends[0]} to {ends[1]}"):
            consume_partition._first(log, TP, str(start))
