"""ZooKeeper answers late, does not answer, or ends the migrator's session at every step of a
move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.apply.parallel import Run
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import Direction
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.sessions import Stores

from tests.support.tcp_proxy import TcpProxy
from zkconsumer.errors import ZkUnavailableError
from zkconsumer.servers import expire_session

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


@pytest.fixture
def proxy(bench: Bench) -> Iterator[TcpProxy]:
    """A proxy in front of the run's ZooKeeper."""
    with TcpProxy(int(bench.cluster.zookeeper.rpartition(":")[2])) as running:
        yield running


def applied(
    proxy: TcpProxy, plan: PlanFile, journal: Path, effect: Callable[[str, Stores], None]
) -> list[Result]:
    """Apply through the proxy."""
    with Stores(Servers(proxy.address, 10.0, 30.0)) as stores:

        def told(what: str) -> None:
            effect(what, stores)

        with Journal(journal, plan.digest, told) as opened:
            return Migrator(stores, told).apply(plan, Run(opened, idle=True), lambda _result: None)


@pytest.mark.parametrize("direction", list(Direction))
def test_each_answer_of_zookeeper_is_lost(
    bench: Bench, proxy: TcpProxy, group: str, topic: str, direction: Direction
) -> None:
    """ZooKeeper carries out every change that the migrator sends, but the connection breaks before
    the response. The move still ends as planned."""
    bench.topic(topic, 3)
    stored = {0: 0, 1: 7}
    store = bench.set_zk if direction is Direction.ZK_TO_KAFKA else bench.set_kafka
    store(group, topic, stored)
    plan, journal = bench.plan([group], direction)
    lost: list[str] = []

    def effect(what: str, _stores: Stores) -> None:
        # A change that is tried again was not sent the first time, because the connection had
        # broken after the reads that it depends on.
        if what.startswith("before zookeeper") and what not in lost[-1:]:
            lost.append(what)
            proxy.stall("answers")
            threading.Timer(0.3, break_off).start()

    def break_off() -> None:
        proxy.cut()
        proxy.resume()

    (result,) = applied(proxy, plan, journal, effect)
    assert result.outcome is Outcome.DONE, result.why
    assert len(lost) >= 5
    znodes = bench.znodes(group)
    offsets = f"/consumers/{group}/offsets/{topic}"
    assert {path for path in znodes if "/o" in path[10:]} == {f"{offsets}/0", f"{offsets}/1"}
    assert [znodes[f"{offsets}/{partition}"] for partition in stored] == [b"0", b"7"]
    held = bench.committed(group, {topic: 3})
    assert sorted(found.offset for found in held.values()) == [0, 7]  # type: ignore[attr-defined]
    assert bench.client.get_children(f"/consumers/{group}/ids") == []


def test_zookeeper_goes_away(bench: Bench, proxy: TcpProxy, group: str, topic: str) -> None:
    """Without ZooKeeper the run ends, and does not fail every group. The next run waits for the
    lost session and continues."""
    bench.topic(topic, 2)
    groups = [f"{group}-{number}" for number in range(3)]
    for name in groups:
        bench.set_zk(name, topic, {0: 3})
    plan, journal = bench.plan(groups)

    def effect(what: str, _stores: Stores) -> None:
        if what.startswith("after kafka commit") and groups[1] in what:
            proxy.close()

    with pytest.raises(ZkUnavailableError):
        applied(proxy, plan, journal, effect)
    assert bench.committed(groups[2], {topic: 2}) == {}
    results = bench.apply(plan, journal)
    assert [one.outcome for one in results] == [Outcome.WAS_DONE, Outcome.DONE, Outcome.DONE]


@pytest.mark.parametrize("moment", ["before journal write", "after kafka commit"])
def test_the_session_ends(
    bench: Bench, proxy: TcpProxy, group: str, topic: str, moment: str
) -> None:
    """If ZooKeeper ends the migrator's session, its claims are gone. The group is not reported as
    moved, but the others are. The next run moves it."""
    bench.topic(topic, 2)
    groups = [f"{group}-{number}" for number in range(2)]
    for name in groups:
        bench.set_zk(name, topic, {0: 3})
    plan, journal = bench.plan(groups)
    left = [moment]

    def effect(what: str, stores: Stores) -> None:
        if left and what.startswith(left[0]):
            left.clear()
            session = stores.zk._driver._client.client_id
            expire_session(bench.cluster.zookeeper, *session)

    first, second = applied(proxy, plan, journal, effect)
    assert first.outcome is Outcome.FAILED
    assert "session" in first.why
    assert f"/consumers/{groups[0]}/migration" not in bench.znodes(groups[0])
    assert second.outcome is Outcome.DONE, second.why
    results = bench.apply(plan, journal)
    assert [one.outcome for one in results] == [Outcome.DONE, Outcome.WAS_DONE]
