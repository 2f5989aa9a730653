"""KnownBrokers: chooses a broker for requests that any broker can answer. Any thread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from zkconsumer.broker.types import QUICK_S
from zkconsumer.core.common.types import BrokerEndpoint


def in_time(
    brokers: Iterable[BrokerEndpoint], timeout: float
) -> Iterator[tuple[BrokerEndpoint, float]]:
    """Yield each broker, and how many seconds to spend on opening a connection to it.

    The last one gets the whole ``timeout``, because the network may be slow. The others get a few
    seconds, because another broker can be asked instead.
    """
    left = list(brokers)
    while left:
        broker = left.pop(0)
        yield broker, min(QUICK_S, timeout) if left else timeout


class KnownBrokers:
    """The brokers that one member knows, and their failures.

    Args:
        bootstrap: returns the first brokers to ask.
        load: returns the number of the member's requests in flight to a broker.
    """

    def __init__(
        self,
        bootstrap: Callable[[], Iterable[BrokerEndpoint]],
        load: Callable[[BrokerEndpoint], int],
    ) -> None:
        self._bootstrap = bootstrap
        self._load = load
        self._learnt: tuple[BrokerEndpoint, ...] = ()
        self._failures: dict[tuple[str, int], float] = {}
        """By address, when a broker failed. Removed when it answers again."""

    def learn(self, brokers: Sequence[BrokerEndpoint]) -> None:
        """Store the brokers of the cluster from a broker's answer."""
        self._learnt = tuple(brokers)

    def failed(self, broker: BrokerEndpoint) -> None:
        """Record that a broker is unreachable, or did not answer."""
        self._failures[broker.host, broker.port] = time.monotonic()

    def answered(self, broker: BrokerEndpoint) -> None:
        """Record that a broker is reachable."""
        self._failures.pop((broker.host, broker.port), None)

    def least_loaded(self) -> list[BrokerEndpoint]:
        """Return all brokers in the order in which to ask them.

        Brokers with the fewest requests in flight are first, in random order if the numbers are
        equal. Brokers that failed are last, the latest failure at the end. Source:
        NetworkClient.leastLoadedNode of Kafka 3.9, which skips a broker that failed recently.
        """
        brokers = list(
            {
                (broker.host, broker.port): broker for broker in (*self._bootstrap(), *self._learnt)
            }.values()
        )
        random.shuffle(brokers)

        def place(broker: BrokerEndpoint) -> tuple[float, int]:
            return self._failures.get((broker.host, broker.port), 0.0), self._load(broker)

        return sorted(brokers, key=place)
