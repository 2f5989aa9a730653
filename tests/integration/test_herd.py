"""Journal, server and simulator agree about the herd on a real ensemble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from zkconsumer.herd.measures import Measures
from zkconsumer.herd.tally import Tally
from zkconsumer.journal import read_journal
from zkconsumer.servers import LocalZooKeeper
from zkconsumer.servers.herd.membership_change import RealHerd, run_herd
from zkconsumer.servers.legacy_jvm import JvmHerd
from zkconsumer.sim.runs.herd import Herd, simulate

#: So long that no pause of a busy machine ends a session.
PATIENT = 30.0


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A ZooKeeper only for this test, because its counters are compared with the members'
    journals."""
    with LocalZooKeeper() as zookeeper:
        yield zookeeper.zookeeper_server.port


def _server_agrees(real: Measures) -> None:
    """The server received what the journals say. Pings at rest are an estimate."""
    received, expected = real.server["packets_received"], real.server["packets_expected"]
    assert abs(received - expected) <= 15 + real.server["packets_idle"]


def _watches_fired(found: Measures) -> dict[int, int]:
    """Watches fired by the member's number. In both runs the names are like ``g_m00006-0``."""
    return {
        int(name[-7:-2]): share["watches_fired"]
        for name, share in found.by_member.items()
        if share["watches_fired"]
    }


@pytest.mark.parametrize(
    ("event", "members", "partitions"),
    [("join", 12, 12), ("leave", 12, 6), ("topic-create", 6, 12), ("broker-bounce", 6, 12)],
)
@pytest.mark.parametrize("profile", ["scala", "default"])
def test_simulator_and_ensemble_count_the_same(
    event: str, members: int, partitions: int, profile: str, port: int, tmp_path: Path
) -> None:
    """If no two members ever want one partition at the same time, every count is equal: each kind
    of request, reads and writes, bytes, watches and attempts.

    (A member that joins gets nothing, because there are no more partitions than members. A member
    that leaves owned nothing. In the other events no partition moves to another member.) One thing
    is random: the watch that a leaving member fires itself. ZooKeeper sends it just before the
    response, and kazoo passes the two to different threads. So the member may be gone when its
    watch arrives.
    """
    simulated = simulate(Herd(members, partitions, event=event, profile=profile))
    herd = RealHerd(
        members, partitions, port=port, event=event, profile=profile, session_timeout=PATIENT
    )
    real = run_herd(herd, tmp_path)
    for name in ("reads", "writes", "requests", "changes", "attempts"):
        assert getattr(real, name) == getattr(simulated, name), (name, real.by_kind)
    fired, expected = _watches_fired(real), _watches_fired(simulated)
    if event == "leave":
        leaver = members // 2
        assert fired.pop(leaver, 0) in (0, expected.pop(leaver, 0))
    assert fired == expected
    for kind, sums in simulated.by_kind.items():
        counts = ("requests", "reads", "writes")
        assert [real.by_kind[kind][name] for name in counts] == [sums[name] for name in counts]
    assert simulated.bytes_in == pytest.approx(real.bytes_in, rel=0.1)  # names differ in length
    assert real.unowned_at_end == 0
    assert real.requests > 0
    _server_agrees(real)
    if "bytes_received" in real.server:
        received = real.server["packets_received"]
        assert real.server["bytes_received"] >= real.bytes_out
        pings = 60 * (received - real.requests + 10)
        assert real.server["bytes_received"] - real.bytes_out < pings


@pytest.mark.parametrize("profile", ["scala", "default"])
def test_all_members_restart(profile: str, port: int, tmp_path: Path) -> None:
    """In a rolling restart each member leaves and another one joins. Afterwards all partitions have
    owners, and the server has counted the requests of the journals."""
    herd = RealHerd(
        *(4, 8),
        port=port,
        event="rolling-restart",
        profile=profile,
        session_timeout=PATIENT,
        restart=0.3,
    )
    real = run_herd(herd, tmp_path)
    assert real.unowned_at_end == 0
    assert real.moved == 8
    assert len(real.by_member) == 8
    assert real.attempts >= 8
    _server_agrees(real)


def test_a_killed_member_and_its_journal(port: int, tmp_path: Path) -> None:
    """A killed member's partitions have no owner until its session ends. Then all have one."""
    real = run_herd(RealHerd(6, 12, port=port, event="crash", session_timeout=4.0), tmp_path)
    assert real.unowned_at_end == 0
    assert real.seconds_to_stable is not None
    assert 2.0 < real.unowned_longest <= real.seconds_to_stable < 60.0
    entries = list(read_journal(tmp_path / "journal.jsonl"))
    assert [entry["name"] for entry in entries if entry["kind"] == "action"] == ["crash"]
    tally = Tally()
    for entry in entries:
        tally.entry(entry, len("/herd"))
    assert len(tally.ownership.spans) == 12


def test_original_members_beside(port: int, tmp_path: Path) -> None:
    """JVM members are in the group. The figures omit their partitions, but the server's counters
    include their requests."""
    herd = RealHerd(3, 8, port=port, profile="default", session_timeout=PATIENT, backoff=1.0)
    real = run_herd(herd, tmp_path, jvm=JvmHerd(1, PATIENT, 1.0))
    assert real.unowned_at_end == 0
    assert real.partitions < 8
    assert "1 JVM members" in real.notes[0]
    theirs = real.server["packets_received"] - real.server["packets_expected"]
    assert theirs >= 5  # one attempt at least: the list of members, the members, a topic
