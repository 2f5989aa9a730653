"""The connector's calls with a loop that answers badly or not at all. They end in time, with the
documented error."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.common.commands import AnswerStart, Outcome
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    DuplicateConsumerIdError,
    RebalanceFailedError,
    ZkConsumerError,
    ZooKeeperError,
)
from zkconsumer.runtime.calls import checked_offsets
from zkconsumer.runtime.connector import StreamConnector
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.threads import MemberThread
from zkconsumer.runtime.observation.health import Membership
from zkconsumer.runtime.observation.metrics import Metrics

SLACK = 0.5
"""Seconds that a busy machine may add to a measured time."""


class StuckLoop:
    """Answers the start as the test demands, and nothing else."""

    def __init__(self, answer: AnswerStart | None, faults: tuple[str, ...] | None) -> None:
        self.started: Future[AnswerStart] = Future()
        self.closed: Future[tuple[str, ...]] = Future()
        if answer is not None:
            self.started.set_result(answer)
        self.left = self.ended = False
        self.closes_after = 0.0
        """Seconds from the request to close to the answer."""
        self.given_up: list[float] = []
        """The time left when the connector gave up."""
        self._faults = faults

    def give_up(self, reason: str, timeout: float) -> None:
        self.given_up.append(timeout)

    def post(self, fact: object) -> None:
        if self._faults is not None:
            threading.Timer(self.closes_after, self.closed.set_result, [self._faults]).start()


class StuckThread(MemberThread):
    """A thread that runs nothing and never ends."""

    def start(self, member: object) -> None:
        pass

    def join(self, timeout: float) -> bool:
        time.sleep(timeout)
        return False


class Connector(StreamConnector):
    """A connector with the test's loop."""

    def __init__(
        self, answer: AnswerStart | None, faults: tuple[str, ...] | None = None, patience: float = 1
    ) -> None:
        config = ConsumerConfig.parse({"zookeeper.connect": "127.0.0.1:1", "group.id": "g"})
        super().__init__(config, DeliveryGate(), None)
        self._servers = "ZooKeeper at 127.0.0.1:1"
        self._start_patience = self._leave_patience = patience
        self._host = StuckThread("stuck")
        self.loop = StuckLoop(answer, faults)

    def _member(self, *_: object) -> StuckLoop:
        return self.loop

    def _membership(self, loop: object) -> Membership:
        return Membership("starting", "starting", False, False, 0, 0)

    def _metrics(self) -> Metrics:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.DUPLICATE_ID, DuplicateConsumerIdError),
        (Outcome.REFUSED, ZooKeeperError),
        (Outcome.REBALANCE_FAILED, RebalanceFailedError),
        (None, RebalanceFailedError),
    ],
)
@pytest.mark.parametrize("faults", [None, ("the last commit failed",), ()])
def test_a_failed_start_raises_the_documented_error(
    outcome: Outcome | None, kind: type[ZkConsumerError], faults: Sequence[str] | None
) -> None:
    """Whatever happens when the member leaves, the call raises why the start failed. A failure to
    leave is a note on that error. ``None`` means no answer."""
    answer = None if outcome is None else AnswerStart(outcome, "as the server says")
    connector = Connector(answer, faults if faults is None else tuple(faults), patience=0.4)
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        connector.create_message_streams({"t": 1})
    assert time.monotonic() - began < 0.4 + SLACK
    notes = getattr(raised.value, "__notes__", [])
    if faults == ():
        assert notes == []
    else:
        text = "shutdown did not end within 0.1 s" if faults is None else "the last commit failed"
        assert len(notes) == 1
        assert text in notes[0]
    assert connector.closed


@pytest.mark.parametrize("faults", [None, ("not stored",)])
def test_one_deadline_for_the_whole_shutdown(faults: tuple[str, ...] | None) -> None:
    """``shutdown`` takes its timeout once, whether the loop answers late and its thread does not
    end, or there is no answer at all. Ending without an answer is part of that time."""
    connector = Connector(AnswerStart(Outcome.SETTLED, ""), faults)
    connector.create_message_streams({"t": 1})
    connector.loop.closes_after = 0.8
    began = time.monotonic()
    with pytest.raises(CommitFailedError):
        connector.shutdown(timeout=1.2)
    assert time.monotonic() - began < 1.2 + SLACK
    if faults is None:
        (left,) = connector.loop.given_up
        assert 0.0 < left <= 1.2 / 4
    else:
        assert connector.loop.given_up == []


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({("t", 0): -1}, "t-0: an offset is a number from 0"),
        ({("t", 0): 2**63}, "t-0: an offset is a number from 0"),
        ({("t", 0): True}, "t-0: an offset is a number from 0"),
        ({("t", 0): "5"}, "t-0: an offset is a number from 0"),
        ({("t", "0"): 5, ("t", 1): 5}, r"\('t', '0'\): a partition is the name of a topic and"),
        ({(None, 0): 5}, r"\(None, 0\): a partition is the name of a topic and"),
    ],
)
def test_an_offset_that_cannot_be_stored_is_refused_in_the_call(offsets: Any, words: str) -> None:
    """On the member's thread, it would end the member."""
    with pytest.raises(ConfigError, match=words):
        checked_offsets(offsets)
    assert checked_offsets({TopicPartition("t", 0): 2**63 - 1}) == {("t", 0): 2**63 - 1}
