"""The tools wait once for each absent coordinator, not once for each group."""

from __future__ import annotations

import pytest

from zkconsumer.broker.groups import group_coordinators
from zkconsumer.broker.groups.coordinator_calls import Search
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import (
    BrokerUnavailableError,
    CommitFailedError,
    UnsupportedBrokerError,
)
from zkconsumer.servers import wait_until

GOOD, SILENT = BrokerEndpoint(0, "good", 1), BrokerEndpoint(1, "silent", 1)
PATIENCE = 0.5


class Brokers:
    """Two brokers. Groups that begin with ``s`` have their coordinator on the silent one. Groups
    that begin with ``n`` have none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent = True
        self.asked: list[BrokerEndpoint] = []
        self.looked_up: list[str] = []
        self.waits: list[str] = []
        brokers = self

        class Connection:
            def __init__(self, endpoint: BrokerEndpoint, *_: object) -> None:
                self.endpoint = endpoint

            def open(self) -> None:
                if self.endpoint == SILENT and brokers.silent:
                    raise BrokerUnavailableError("broker 1 gave no answer")

            def close(self) -> None:
                pass

            def version(self, *_: int) -> int:
                brokers.asked.append(self.endpoint)
                self.open()
                raise UnsupportedBrokerError("as 0.8.2: no members")

        def search(group: str, *_: object) -> Search:
            brokers.looked_up.append(group)
            error = BrokerUnavailableError("no coordinator")
            if group.startswith("n") and brokers.silent:
                return Search(None, ErrorCode.COORDINATOR_NOT_AVAILABLE, error)
            return Search(SILENT if group.startswith("s") else GOOD, 0, error)

        monkeypatch.setattr(group_coordinators, "BrokerConnection", Connection)
        monkeypatch.setattr(group_coordinators, "search_coordinator", search)
        self.coordinators = GroupCoordinators(
            "tests",
            lambda: [GOOD, SILENT],
            patience=PATIENCE,
            backoff=0.1,
            place=lambda group: group[:2],
            on_wait=self.waits.append,
        )


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """The two brokers."""
    return Brokers(monkeypatch)


def test_a_silent_broker_is_waited_for_once(brokers: Brokers) -> None:
    """The first group waits for a broker that is registered but silent. No other group asks that
    broker again, whatever its partition. Groups of the other broker are served."""
    for number in range(50):
        for group in (f"s{number}", f"g{number}"):
            if group.startswith("g"):
                assert brokers.coordinators.members(group) == ()
            else:
                with pytest.raises(CommitFailedError, match=f"of group {group} did not answer"):
                    brokers.coordinators.members(group)
    assert len(brokers.waits) == 1
    assert brokers.asked.count(SILENT) < 10


def test_a_partition_without_a_leader_is_waited_for_once(brokers: Brokers) -> None:
    """Groups of one partition of the offsets topic share the wait for its leader. The wait for the
    next partition is much shorter."""
    for number in range(50):
        with pytest.raises(CommitFailedError, match="COORDINATOR_NOT_AVAILABLE"):
            brokers.coordinators.members(f"n1-{number}")
    first = len(brokers.looked_up)
    assert first < 10
    with pytest.raises(CommitFailedError):
        brokers.coordinators.members("n2")
    assert len(brokers.looked_up) - first <= 2
    assert brokers.waits == [f"the offset coordinator of group n{n}" for n in ("1-0", "2")]


def test_groups_whose_offsets_are_not_known_at_once_are_left_out(brokers: Brokers) -> None:
    """``fetch`` shows why: their brokers are older than 3.0, or silent."""
    for asked in (2, 3):  # by place, before the coordinator is known
        assert brokers.coordinators.fetch_several(["g1", "g2"]) == {}
        assert brokers.asked.count(GOOD) == asked
    assert brokers.coordinators.fetch_several(["s1", "n1"]) == {}


def test_a_coordinator_that_came_back_is_asked_again(brokers: Brokers) -> None:
    """After the waiting time, a coordinator that was given up is asked again."""
    for group in ("s1", "n1"):
        with pytest.raises(CommitFailedError):
            brokers.coordinators.members(group)
    brokers.silent = False

    def served() -> bool:
        try:
            return [brokers.coordinators.members(group) for group in ("s1", "n1")] == [(), ()]
        except CommitFailedError:
            return False

    wait_until(served, 20, "both are asked again")


def test_an_object_for_another_thread_is_closed_alone(brokers: Brokers) -> None:
    """The others still wait for a coordinator that is away, and know those that they found."""
    with brokers.coordinators.another() as another:
        assert another.members("good") == ()
    assert brokers.coordinators.members("good") == ()
    assert brokers.looked_up == ["good"]
    brokers.coordinators._on_wait = lambda _what: setattr(brokers, "silent", False)
    assert brokers.coordinators.members("silent") == ()
    third = brokers.coordinators.another()
    brokers.coordinators.close()
    brokers.silent = True
    asked = brokers.asked.count(SILENT)
    with pytest.raises(CommitFailedError):
        third.members("silent")
    assert brokers.asked.count(SILENT) == asked + 1  # it does not wait
