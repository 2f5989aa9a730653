"""The mirror as a service: on standby, with metrics, and with few connections."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.commands.output import metrics
from zkmigrate.mirror import mirroring
from zkmigrate.model import Store
from zkmigrate.stores import mirror_state

from tests.migrate import matrix
from tests.migrate.operators import CLOCK, virtual_time
from tests.migrate.simulated import Simulated, SimulatedCoordinators, simulated
from tests.migrate.test_mirror import CUT_OVER, ONCE, PREPARE, row
from zkconsumer.console.signals import SignalledError
from zkconsumer.core.zookeeper.ops import Delete
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZkUnavailableError

__all__ = ["simulated"]  # the fixture


def after_each_pass(patch: pytest.MonkeyPatch, *acts: Any) -> None:
    """Let time pass after each pass of a mirror, and do something; then interrupt it."""
    left = list(acts)

    def passed(_seconds: float) -> None:
        CLOCK.pass_(mirroring.READ_AGAIN_S + 1)
        if not left:
            raise SignalledError(signal.SIGTERM)
        left.pop(0)()

    patch.setattr("zkconsumer.console.repeating.time.sleep", passed)


def test_a_group_that_was_refused_begins_when_an_operator_has_decided(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was started before. It takes over when the operator's command has ended."""
    matrix.untouched(simulated)
    simulated.in_kafka("g", "t", 7)
    assert row(simulated, *ONCE, status=3)["state"] == "refused"
    virtual_time(monkeypatch)  # in all modules that are loaded

    def decide() -> None:
        other = mirroring.Mirroring(simulated.stores())
        assert [one.outcome.value for one in other.begin(["g"], Store.ZOOKEEPER, True)] == ["done"]
        assert [one.state for one in other.steps(["g"])] == ["in step"]

    def end() -> None:
        simulated.zk.do(Delete(mirror_state.lease_path("g")))

    after_each_pass(monkeypatch, lambda: None, decide, end)
    said = simulated.run("mirror", "--group", "g", "--execute", rows=False).err
    states = [f"1 {state}" for state in ("refused", "standby", "in step")]
    assert [state for state in states if state in said] == states


def test_no_group_is_in_step_after_a_pass_that_failed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an alert on late groups rings while ZooKeeper does not answer."""
    matrix.mirror_zookeeper_leads(simulated)
    virtual_time(monkeypatch)
    monkeypatch.setattr(metrics, "INTERVAL", 1e6)

    def away(_op: object) -> Any:
        raise ZkUnavailableError("ZooKeeper does not answer")

    after_each_pass(monkeypatch, lambda: monkeypatch.setattr(simulated.zk, "_send", away))
    path = simulated.file("metrics")
    simulated.run("mirror", "--group", "g", "--execute", "--metrics-file", path, rows=False)
    text = Path(path).read_text()
    label = '{command="mirror",leader="zookeeper",state='
    assert f'zkmigrate_mirrored_groups{label}"failed"}} 1\n' in text
    assert 'zkmigrate_mirror_late_groups{command="mirror"} 1\n' in text
    assert 'zkmigrate_mirror_pass_time_seconds{command="mirror"} 0.0' not in text


def test_cut_overs_share_the_connections_of_their_threads(simulated: Simulated) -> None:
    """However many groups there are."""
    simulated.topic("t", (0, 1000))
    for number in range(8):
        simulated.znode(GroupPaths(f"g{number}").ids)
        simulated.in_zookeeper(f"g{number}", "t", 100)
    matrix.good(simulated.run("mirror", "--all", "--execute", "--once"))
    made: list[object] = []

    class Counted(SimulatedCoordinators):
        """Notes each set of connections."""

        def __init__(self, first: SimulatedCoordinators) -> None:
            self.__dict__ = first.__dict__

        def another(self) -> SimulatedCoordinators:
            made.append(self)
            return Counted(self)

    simulated.kafka = Counted(simulated.kafka)
    matrix.good(simulated.run("cut-over", "--all", "--execute", "--wait", "0", "--parallel", "2"))
    assert len(made) == 3


def test_a_live_move_does_not_begin_if_the_mirror_cannot_end(simulated: Simulated) -> None:
    """A cut-over waits, and cannot be taken back, as a client has committed to Kafka."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    path = GroupPaths("g").member("g_old")
    data = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
    simulated.znode(path, data)
    row(simulated, *CUT_OVER, status=3)
    simulated.zk.delete(path)
    simulated.in_kafka("g", "t", 20)
    found = row(simulated, *PREPARE, status=3)
    assert found["reasons"] == ["follower-moved"]
    assert simulated.zk.zk.get("/consumers/g/live/mode") is None


def test_a_group_that_was_refused_keeps_the_leader_that_the_operator_chose(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service does not begin with the other store. Nor does it overwrite offsets later, when
    these may no longer be those that the operator saw. It begins when nothing differs."""
    matrix.untouched(simulated)
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.in_zookeeper("g", "t", 100, 50)
    simulated.in_kafka("g", "t", None, 50)
    assert row(simulated, *ONCE, "--lead", "kafka", status=3)["state"] == "refused"
    virtual_time(monkeypatch)
    held: list[object] = []

    def look() -> None:
        held.append(simulated.held("g", "t"))

    def older() -> None:
        simulated.in_kafka("g", "t", 90)

    def same() -> None:
        look()
        simulated.in_kafka("g", "t", 100)

    after_each_pass(monkeypatch, look, older, same, look)
    ran = simulated.run("mirror", "--group", "g", "--lead", "kafka", "--execute", rows=False)
    assert held[0] == ({0: 100, 1: 50}, {1: 50})
    assert held[1] == ({0: 100, 1: 50}, {0: 90, 1: 50})
    assert held[2] == ({0: 100, 1: 50}, {0: 100, 1: 50})
    found, _ = simulated.zk.run(mirror_state.read_mirror("g"))
    assert found is not None, ran
    assert found.leader is Store.KAFKA


def test_a_group_that_needs_no_mirror_does_not_stay_failed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved long ago, and its coordinator was away when the service for all groups began."""
    matrix.moved(simulated)
    simulated.in_zookeeper("h", "t", 5)
    every = ("mirror", "--all", "--execute")
    assert [one["group"] for one in simulated.run(*every, "--once").rows] == ["h"]
    virtual_time(monkeypatch)
    simulated.kafka.away.add("g")
    after_each_pass(monkeypatch, simulated.kafka.away.clear, lambda: None)
    ran = simulated.run(*every, rows=False)
    assert "1 failed" in ran.err
    assert ran.status == 0, ran.err
