"""The herd on a real ensemble: journal, server and simulator agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zkconsumer.journal import Tally, read_journal
from zkconsumer.sim.herd import Herd, simulate
from zkconsumer.testing import LocalZooKeeper
from zkconsumer.testing.herd import RealHerd, run_herd


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A ZooKeeper of its own: its counters are compared with the members' journals."""
    with LocalZooKeeper() as zookeeper:
        yield zookeeper.zookeeper_server.port


@pytest.mark.parametrize("profile", ["scala", "default"])
def test_simulator_and_ensemble_count_the_same(profile: str, port: int, tmp_path: Path) -> None:
    """One join: reads and writes of the simulator are within 5 % of those on a real server.

    And the server has received what the members' journals say, pings aside. A race that one member
    loses costs an attempt more, so runs are compared in which as many were lost as simulated.
    """
    simulated = simulate(Herd(12, 36, profile=profile))
    for trial in range(4):
        real = run_herd(RealHerd(port, 12, 36, profile=profile), tmp_path / str(trial))
        if real.attempts == simulated.attempts:
            break
    assert simulated.reads == pytest.approx(real.reads, rel=0.05)
    assert simulated.writes == pytest.approx(real.writes, rel=0.05)
    assert simulated.bytes_in == pytest.approx(real.bytes_in, rel=0.1)
    assert real.unowned_at_end == 0
    assert real.attempts == simulated.attempts
    assert real.watches_fired >= 12
    received, expected = real.server["packets_received"], real.server["packets_expected"]
    assert abs(received - expected) <= 15 + real.server["packets_idle"]
    if "bytes_received" in real.server:
        assert real.server["bytes_received"] >= real.bytes_out
        pings = 60 * (received - real.requests + 10)
        assert real.server["bytes_received"] - real.bytes_out < pings


def test_a_killed_member_and_its_journal(port: int, tmp_path: Path) -> None:
    """A killed member's partitions have no owner until its session ends, and then all have one."""
    real = run_herd(RealHerd(port, 6, 12, event="crash", session_timeout=4.0), tmp_path)
    assert real.unowned_at_end == 0
    assert real.seconds_to_stable is not None
    assert 2.0 < real.unowned_longest <= real.seconds_to_stable < 12.0
    entries = list(read_journal(tmp_path / "journal.jsonl"))
    assert [entry["name"] for entry in entries if entry["kind"] == "event"] == ["crash"]
    tally = Tally()
    for entry in entries:
        tally.entry(entry, len("/herd"))
    assert len(tally.ownership.spans) == 12
