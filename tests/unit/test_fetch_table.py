"""The fetch table: which fetcher gets a partition, and which thread is woken."""

from __future__ import annotations

import pytest

from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.runtime.fetch.table import fetcher_index


@pytest.mark.parametrize(
    ("topic", "partition", "fetchers", "index"),
    [
        ("topic1", 0, 2, 0),
        ("topic1", 1, 2, 1),
        ("orders", 3, 4, 2),
        ("clicks", 5, 4, 2),
        ("t1", 0, 4, 3),
    ],
)
def test_fetcher_index(topic: str, partition: int, fetchers: int, index: int) -> None:
    """A partition has the same fetcher thread as in the JVM."""
    assert fetcher_index(topic, partition, fetchers) == index


def test_abs_of_the_smallest_integer() -> None:
    """Scala CoreUtilsTest.testAbs: abs of -2^31 is 0, of -1 and 1 it is 1, of 0 it is 0."""
    base = 31 * java_hash("t")  # small and positive
    modulus = 2**31 - 1

    def absolute(value: int) -> int:
        return fetcher_index("t", value - base, modulus)

    assert absolute(-(2**31)) == 0
    assert [absolute(-1), absolute(0), absolute(1)] == [1, 0, 1]
    assert absolute(-5) == 5
    assert absolute(2**31 - 2) == 2**31 - 2
