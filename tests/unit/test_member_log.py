"""What the log of ``zkconsumer.member`` says, with the logging that the how-to recommends."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import SessionEvent
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import partitions_text
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Member, Switch  # type: ignore[import-not-found]

SOON = 10.0
LOGGER = "zkconsumer.member"


def has(caplog: pytest.LogCaptureFixture, pattern: str) -> bool:
    """Whether a line matches."""
    return any(re.search(pattern, line) for line in caplog.messages)


def lose_session(member: ZookeeperConsumerConnector) -> None:
    """The member's session ends, and another one begins."""
    driver: Any = member._zk
    old = driver.client
    driver._on_session(SessionEvent.SUSPENDED, old.session_id)
    driver.client = driver._zk.connect(600.0, lambda event: None, lambda state, session: None)
    old.expire()
    driver._run()
    driver._on_session(SessionEvent.LOST, old.session_id)
    driver._on_session(SessionEvent.OPENED, driver.client.session_id)


def test_each_step_of_a_member_in_zookeeper_has_a_line(
    switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sessions with their ids and duration, pauses with theirs, and partitions with the reason. The
    metrics count sessions."""
    with caplog.at_level(logging.INFO, LOGGER):
        member = ZookeeperConsumerConnector({"group.id": "g", "zookeeper.connect": "nowhere:1"})
        member.create_message_streams({"t": 1})
        session = f"0x{member._zk.client.session_id:x}"  # type: ignore[attr-defined]
        assert has(caplog, f"^ZooKeeper session {session} opened$")
        wait_until(
            lambda: has(caplog, r"^claimed 1 partition \(t-0\): assigned to this member$"),
            SOON,
            "the claim",
        )
        assert (member.metrics().sessions, member.metrics().disconnections) == (1, 0)
        lose_session(member)
        wait_until(lambda: member.metrics().sessions == 2, SOON, "another session")
        wait_until(lambda: member.metrics().owned_partitions == 1, SOON, "it owns again")
        assert member.metrics().disconnections == 1
        assert has(caplog, rf"^ZooKeeper session {session} lost after \d+\.\d s$")
        assert has(caplog, r"^delivery pauses: the connection is lost$")
        wait_until(lambda: has(caplog, r"^delivery resumes after \d+\.\d s$"), SOON, "it resumes")
        assert has(caplog, r"^lost 1 partition \(t-0\): no longer owned")
        caplog.clear()
        member.shutdown()
    assert has(caplog, r"^released 1 partition \(t-0\): this member leaves the group$")
    assert not has(caplog, "delivery pauses")


def test_partitions_that_are_given_to_others_have_a_line(
    member: Member, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    """In both kinds of groups."""
    with caplog.at_level(logging.INFO, LOGGER):
        member.create_message_streams({"t": 1})
        wait_until(lambda: has(caplog, r"^claimed 1 partition \(t-0\)"), SOON, "the claim")
        switch.heartbeat = ErrorCode.REBALANCE_IN_PROGRESS
        pattern = r"^released 1 partition \(t-0\): assigned to other members$"
        wait_until(lambda: has(caplog, pattern), SOON, "the release")


def test_the_names_of_many_partitions_are_cut() -> None:
    """A line stays short."""
    partitions = [TopicPartition("t", n) for n in range(3000)]
    assert partitions_text(partitions) == "3000 partitions (t-0, t-1, t-2, t-3, t-4, ...)"


def test_a_pause_without_an_event_is_noticed() -> None:
    """No server answers, so the lease ends by time alone. That is one line, and its end another."""
    now, lines = [100.0], list[str]()
    gate = DeliveryGate(now=lambda: now[0], on_change=lines.append)
    gate.look()
    gate.extend(104.0)
    gate.look()
    assert lines == []
    now[0] = 107.5
    gate.look()
    gate.look()
    assert lines == ["delivery pauses: no server answers"]
    assert gate.suspended_seconds == 3.5
    now[0] = 110.0
    gate.extend(114.0)
    assert lines[1:] == ["delivery resumes after 6.0 s"]
    assert gate.suspended_seconds == 6.0
    gate.end()
    assert len(lines) == 2
