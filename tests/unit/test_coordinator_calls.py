"""Requests to a coordinator: a missing part of an answer is not a success, and retries end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.coordinator_calls import (
    StoredOffset,
    TryAgainError,
    commit,
    fetch_offsets,
    search_coordinator,
    until,
)
from zkconsumer.broker.groups.describe_groups import DescribedGroup
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.errors import BrokerError, BrokerUnavailableError, CommitFailedError

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HERE = BrokerEndpoint(0, "127.0.0.1", 1)


class Broker:
    """Supports every version, answers with ``answer``, and keeps the requests."""

    endpoint = HERE

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    def version(self, _key: int, *wanted: int) -> int:
        return wanted[0]

    def limit_opening(self, _seconds: float) -> None:
        """It answers at once."""

    def ready(self) -> None:
        """A request can be sent without delay."""

    def call(self, request: Any, _response: type[Any], _version: int) -> Any:
        self.requests.append(request)
        return self.answer


def part(number: int, **fields: object) -> SimpleNamespace:
    """One partition of an answer."""
    defaults = {"error_code": 0, "committed_leader_epoch": -1, "metadata": ""}
    return SimpleNamespace(partition_index=number, **{**defaults, **fields})


def answer(*parts: SimpleNamespace, code: int = 0) -> SimpleNamespace:
    """An answer about topic ``t``."""
    return SimpleNamespace(
        error_code=code, topics=[SimpleNamespace(name="t", partitions=list(parts))]
    )


def test_a_partition_that_an_answer_leaves_out_has_not_been_read() -> None:
    """That differs from a partition without an offset, where a member would begin elsewhere."""
    broker: Any = Broker(answer(part(0, committed_offset=7)))
    found = fetch_offsets(broker, "g", [T0, T1])
    assert found.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found.offsets == {T0: StoredOffset(7)}


def test_a_partition_with_an_error_has_not_been_read() -> None:
    """The first error counts, whatever the other parts have."""
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    parts = (part(0, committed_offset=-1, error_code=code), part(1, committed_offset=7))
    broker: Any = Broker(answer(*parts))
    found = fetch_offsets(broker, "g", [T0, T1])
    assert (found.code, found.what) == (code, f"stored offset of {T0}")


def test_a_partition_that_an_answer_leaves_out_is_not_committed() -> None:
    """It is sent again."""
    broker: Any = Broker(answer(part(0)))
    codes = commit(broker, "g", {T0: StoredOffset(1), T1: StoredOffset(2)}, 7)
    assert codes == {T0: 0, T1: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_the_search_for_a_coordinator_ends_in_its_time() -> None:
    """The search ends even if the coordinator keeps asking to retry."""
    tries: list[int] = []

    def once() -> None:
        tries.append(1)
        assert len(tries) < 50
        raise TryAgainError(BrokerError("moving"))

    with pytest.raises(CommitFailedError, match="moving"):
        until(once, lambda: None, 0.2, 0.02, threading.Event(), "the coordinator")
    assert len(tries) > 1


class Bench:
    """A client of the coordinator ``broker``, with the limits of its connections."""

    def __init__(self, reply: Any) -> None:
        self.broker, self.timeouts = Broker(reply), list[float | None]()
        brokers = KnownBrokers(lambda: [HERE], lambda broker: 0)
        limits: Mapping[str, Any] = {"session_timeout": 10, "rebalance_timeout": 60, "timeout": 5}
        self.client = GroupClient("g", "c", None, brokers, **limits)
        self.client.coordinator = HERE

    def execute(self, command: Any) -> Any:
        def connect(_endpoint: BrokerEndpoint, timeout: float | None = None) -> Any:
            self.timeouts.append(timeout)
            return self.broker

        self.client._connection = connect  # type: ignore[method-assign]
        return self.client.execute(command)


def test_a_join_says_its_times_in_milliseconds_and_waits_for_the_rebalance() -> None:
    """The coordinator answers when all members have joined, or when the rebalance timeout is
    over."""
    reply = SimpleNamespace(
        error_code=0, member_id="m", generation_id=3, leader="m", protocol_name="range", members=[]
    )
    bench = Bench(reply)
    assert bench.execute(commands.JoinGroup(1, "m", ())).generation == 3
    (request,) = bench.broker.requests
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (10_000, 60_000)
    (timeout,) = bench.timeouts
    assert timeout is not None
    assert timeout > 60


def test_a_member_reads_no_offset_that_an_open_transaction_commits() -> None:
    """As Java's consumer: it would read messages again that the transaction's producer has read."""
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    bench = Bench(answer(part(0, committed_offset=-1, error_code=code)))
    failed = bench.execute(commands.FetchOffsets(1, frozenset({T0})))
    assert isinstance(failed, events.RequestFailed)
    assert failed.code == code
    (request,) = bench.broker.requests
    assert request.require_stable


@pytest.mark.parametrize("known", [True, False])
def test_a_group_with_another_strategy_is_explained(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what the group uses, if the coordinator says it, and what this member
    offers."""

    def describe(groups: Any, connection: Any, partitions: bool) -> Any:
        assert (groups, partitions) == (["g"], False)
        if not known:
            raise BrokerError("away")
        return {"g": DescribedGroup(HERE, "Stable", "RoundRobinAssigner", ())}

    monkeypatch.setattr("zkconsumer.broker.groups.classic_client.describe_groups", describe)
    bench = Bench(SimpleNamespace(error_code=23, member_id=""))
    failed = bench.execute(commands.JoinGroup(1, "", (("range", b""), ("roundrobin", b""))))
    used = "'RoundRobinAssigner'" if known else "another strategy"
    assert failed.code == 23
    assert failed.detail.endswith(
        f"INCONSISTENT_GROUP_PROTOCOL (23): the group's members use {used}, and this member offers "
        "range, roundrobin: set partition.assignment.strategy to one that all members have"
    )


def test_a_commit_names_its_generation() -> None:
    """Without it the coordinator would accept the commit from any client."""
    bench = Bench(answer(part(0)))
    found = bench.execute(commands.CommitOffsets(1, "m", 7, {T0: 5}))
    assert found == events.OffsetsCommitted(1, {T0: 0})
    (request,) = bench.broker.requests
    assert (request.generation_id_or_member_epoch, request.member_id) == (7, "m")


def test_a_heartbeat_without_an_answer_fails() -> None:
    """The coordinator may be gone."""
    bench = Bench(None)
    bench.client.coordinator = None
    found = bench.client.execute(commands.Heartbeat(1, "m", 7))
    assert found == events.RequestFailed(1, UNREACHABLE, "the coordinator is unknown")


@pytest.mark.parametrize(("call", "discards"), [("interrupt", True), ("close", False)])
def test_an_interrupted_request_is_not_sent_later(call: str, discards: bool) -> None:
    """The system would send a commit for minutes, when others may own the partitions. At the end
    the request to leave may be on its way."""
    bench = Bench(None)
    aborted: list[bool] = []
    connection: Any = SimpleNamespace(abort=lambda discard: aborted.append(discard))
    bench.client._connections[HERE, 5.0] = connection
    getattr(bench.client, call)()
    assert aborted == [discards]


def test_a_client_that_was_closed_connects_no_more() -> None:
    """Whatever its thread still tries to send."""
    bench = Bench(None)
    bench.client.close()
    found = bench.client.execute(commands.LeaveGroup(1, "m"))
    assert isinstance(found, events.RequestFailed)
    assert found.detail == "this member has closed its connections"


THERE = BrokerEndpoint(1, "there", 1)


class Searched:
    """A search among two brokers. ``silent`` ones cannot be reached."""

    def __init__(self, silent: set[BrokerEndpoint], codes: dict[BrokerEndpoint, int]) -> None:
        self.silent, self.codes = silent, codes
        self.failed: list[BrokerEndpoint] = []
        self.result = search_coordinator(
            "g", [HERE, THERE], self._connect, accept=self._accept, failed=self.failed.append
        )

    def _connect(self, broker: BrokerEndpoint) -> Any:
        if broker in self.silent:
            raise BrokerUnavailableError(f"{broker.host} is silent")
        code = self.codes.get(broker, 0)
        named = SimpleNamespace(error_code=code, node_id=1, host="there", port=1)
        asked = Broker(named)
        asked.endpoint = broker
        return asked

    def _accept(self, connection: Any) -> None:
        assert connection.endpoint == THERE


def test_the_next_broker_is_asked_if_one_does_not_name_the_coordinator() -> None:
    """It may be silent, or not know one."""
    assert Searched(set(), {}).result.coordinator == THERE
    without = Searched(set(), {HERE: ErrorCode.COORDINATOR_NOT_AVAILABLE})
    assert (without.result.coordinator, without.failed) == (THERE, [])
    silent = Searched({HERE}, {})
    assert (silent.result.coordinator, silent.failed) == (THERE, [HERE])


def test_a_search_without_a_result_says_why() -> None:
    """The last broker's reason counts. A coordinator that cannot be reached is not one."""
    codes = dict.fromkeys((HERE, THERE), int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    refused = Searched(set(), codes).result
    assert (refused.coordinator, refused.code) == (None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert str(refused.error) == "coordinator of group g: COORDINATOR_NOT_AVAILABLE (15)"
    away = Searched({THERE}, {})
    assert (away.result.coordinator, away.result.code) == (None, 0)
    assert str(away.result.error) == "there is silent"
    assert away.failed == [THERE, THERE]
    nobody = search_coordinator("g", [], away._connect)
    assert (nobody.coordinator, str(nobody.error)) == (None, "no broker is known")
