"""Servers that several modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkconsumer.servers import LocalCluster


@pytest.fixture(scope="session")
def middle() -> Iterator[LocalCluster]:
    """ZooKeeper and one broker of 1.1 for a whole worker. Tests leave both running."""
    with LocalCluster("1.1") as running:
        yield running
