"""Which broker is asked when any will do."""

from __future__ import annotations

from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.types import BrokerEndpoint

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
