"""Every command says which cluster it is about to work on, and can be told which one it must be."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from zkmigrate.model import Log
from zkmigrate.stores.logs import Logs

from tests.migrate.simulated import Simulated, simulated
from zkconsumer.admin import cluster_zk
from zkconsumer.admin.cluster_zk import ClusterZk
from zkconsumer.admin.reads import children
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.cluster_view import ClusterView, PartitionView, TopicView
from zkconsumer.core.zookeeper.ops import ZkOp
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.zk.blocking import BlockingZk

__all__ = ["simulated"]
HERE = "cluster here (brokers 0 at sim:1), ZooKeeper sim:1, 2 groups"
ONLY_ZOOKEEPER = "cluster here, ZooKeeper sim:1, 2 groups"
CHOSEN = ("--group", "g")
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "assessment": (("plan", *CHOSEN), HERE),
    "gate": (("gate", *CHOSEN), HERE),
    "plan": (("plan", *CHOSEN, "--out", "another"), HERE),
    "apply": (("apply", "plan"), HERE),
    "apply it": (("apply", "plan", "--execute"), HERE),
    "undo": (("undo", "plan"), HERE),
    "status of a plan": (("status", "plan"), HERE),
    "status": (("status", "--all"), HERE),
    "reset": (("reset", *CHOSEN, "--all-topics", "--to-earliest"), HERE),
    "live": (("live", "prepare", "--group", "g"), HERE),
    "lock": (("lock", *CHOSEN), ONLY_ZOOKEEPER),
    "hold": (("lock", "--group", "h", "--hold"), ONLY_ZOOKEEPER),
    "unlock": (("unlock", *CHOSEN), ONLY_ZOOKEEPER),
    "export": (("offsets", "export", *CHOSEN), ONLY_ZOOKEEPER),
    "export from Kafka": (("offsets", "export", *CHOSEN, "--store", "kafka"), HERE),
}
WITHOUT_JSON = ("export", "export from Kafka", "hold")


@pytest.fixture
def here(simulated: Simulated) -> Simulated:
    """Two groups in a cluster with an id, and a plan for one of them that was begun."""
    simulated.zk.set("/cluster/id", b'{"version":"1","id":"here"}')
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    simulated.in_zookeeper("h", "t", 5)
    assert simulated.run("plan", *CHOSEN, "--out", "plan").status == 0
    assert simulated.run("apply", "plan", "--execute").status == 0
    return simulated


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_line_says_which_cluster_it_is(here: Simulated, name: str) -> None:
    """Id, brokers, ZooKeeper with its chroot, and the number of groups."""
    words, expected = COMMANDS[name]
    ran = here.run(*words, rows=False)
    lines = ran.err.splitlines()
    assert lines[0] == expected
    assert lines.count(expected) == 1
    if name not in WITHOUT_JSON:
        if name == "plan":
            words = (*words[:-1], "a-third")
        first = json.loads(here.run(*words).err.splitlines()[0])
        brokers = {"0": "sim:1"} if expected == HERE else {}
        assert first == {"cluster": "here", "brokers": brokers, "zookeeper": "sim:1", "groups": 2}


@pytest.mark.parametrize("name", COMMANDS)
def test_another_cluster_than_the_expected_one_is_left_alone(here: Simulated, name: str) -> None:
    """On one ensemble, another chroot is another cluster with groups of the same names."""
    words, _ = COMMANDS[name]
    ran = here.run(*words, "--expect-cluster", "there", rows=False)
    assert ran.status == 1
    assert "this is the cluster here, but --expect-cluster is there" in ran.err
    assert not (here.folder / "another").exists()
    assert here.run(*words, "--expect-cluster", "here", rows=False).status in (0, 1, 3)
    here.zk.delete("/cluster/id")
    ran = here.run(*words, "--expect-cluster", "here", rows=False)
    assert "this cluster's id is not known" in ran.err


class Reader:
    """Brokers of the cluster ``there``."""

    view = ClusterView(
        "there",
        (BrokerEndpoint(1, "there", 9),),
        {"t": TopicView("id-there", {0: PartitionView(1, 0, (1,), (1,))})},
    )

    def __init__(self, *_: object) -> None:
        pass

    def read(self) -> ClusterView:
        """Return what the brokers say."""
        return self.view

    def disconnect(self) -> None:
        """Nothing is open."""


@contextmanager
def joined(here: Simulated, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterZk]:
    """The product's session with this ZooKeeper and with brokers of ``there``."""
    import zkconsumer.broker.cluster_reader

    monkeypatch.setattr(zkconsumer.broker.cluster_reader, "ClusterReader", Reader)
    monkeypatch.setattr(BlockingZk, "__enter__", lambda self: self)
    monkeypatch.setattr(BlockingZk, "__exit__", lambda *_: None)

    def run(self: ClusterZk, script: Any) -> Any:
        zk = here.zk

        def answered() -> Iterator[Any]:
            reply: Any = None
            while True:
                try:
                    op = next(script) if reply is None else script.send(reply)
                except StopIteration as end:
                    return end.value
                reply = self._known(op) or (yield op)

        return zk.run(answered())

    monkeypatch.setattr(BlockingZk, "run", run)
    with cluster_zk.ClusterZk("sim:1", 1.0, "there:9") as zk:
        yield zk


def test_the_topics_are_those_of_the_brokers(
    here: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of this library may keep its offsets in a ZooKeeper that another, living cluster
    uses. Its topics and ids say nothing about the group's."""
    here.zk.set("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
    with joined(here, monkeypatch) as zk:
        assert (zk.foreign, zk.live) == (True, False)
        logs = Logs(zk, lambda: (), 1.0)
        topic = logs.of(["t"])[0]["t"]
        assert (topic.partitions, topic.log) == ((0,), Log.UNPROVEN)
        logs.close()
    monkeypatch.setattr(Reader, "view", replace(Reader.view, cluster_id="here"))
    with joined(here, monkeypatch) as zk:
        assert (zk.foreign, zk.live) == (False, True)


@pytest.mark.parametrize(
    ("expect", "refused"), [((), True), (("--expect-cluster", "there"), False),
                            (("--expect-cluster", "here"), True)],
)  # fmt: skip
def test_groups_of_other_brokers_need_a_confirmation(
    here: Simulated, monkeypatch: pytest.MonkeyPatch, expect: tuple[str, ...], refused: bool
) -> None:
    """Without it, the offsets of one cluster could be committed to another."""
    monkeypatch.setattr(here.zk, "foreign", True)
    monkeypatch.setattr(here.zk, "live", False)
    monkeypatch.setattr(here.zk, "cluster_ids", lambda: ("here", "there"))
    here.zk.view = Reader.view
    ran = here.run("status", "--all", *expect, rows=False)
    assert (ran.status == 1 and "belong to the cluster here" in ran.err) is refused, ran
    if refused:
        assert "confirm it with --expect-cluster there" in ran.err
    else:
        assert ran.err.startswith("cluster there (brokers 1 at there:9), ZooKeeper sim:1")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_reads_an_old_state(here: Simulated, name: str) -> None:
    """A new session may be with a server that has not caught up. A gate that judged its state could
    pass what another session has seen already."""
    synced = here.zk.synced
    read: list[ZkOp] = []

    def before(op: ZkOp) -> None:
        if here.zk.synced == synced:
            read.append(op)

    here.zk.before = before
    here.run(*COMMANDS[name][0], rows=False)
    assert here.zk.synced > synced
    assert read == []


def test_a_session_finds_out_that_its_cluster_has_left_zookeeper(
    here: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror may run across the change to KRaft. It then reads topics from the brokers."""
    monkeypatch.setattr(Reader, "view", replace(Reader.view, cluster_id="here"))
    with joined(here, monkeypatch) as zk:
        assert zk.live
        here.zk.delete("/brokers/ids/0")
        zk.look_again()
        assert not zk.live


def test_threads_that_look_at_the_same_time_still_ask_the_brokers(
    here: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads in ZooKeeper only what it wants from there. Otherwise topics that ZooKeeper
    kept would be compared with themselves, and a recreated topic would not be noticed."""
    monkeypatch.setattr(Reader, "view", replace(Reader.view, cluster_id="here"))
    here.zk.delete("/brokers/ids/0")
    here.topic("deleted", (0, 100))
    first_reads, second_reads, first_ended = (threading.Event() for _ in range(3))

    def first() -> Script[None]:
        first_reads.set()
        assert second_reads.wait(60)
        yield from children("/consumers")

    def second() -> Script[None]:
        second_reads.set()
        assert first_ended.wait(60)
        yield from children("/consumers")

    with joined(here, monkeypatch) as zk:

        def read_first() -> None:
            zk.run_in_zookeeper(first())
            first_ended.set()

        def read_second() -> None:
            assert first_reads.wait(60)
            zk.run_in_zookeeper(second())

        threads = [threading.Thread(target=one) for one in (read_first, read_second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert zk.run(children("/brokers/topics")) == ["t"]


def test_one_thread_at_a_time_asks_the_brokers(
    here: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has one connection."""
    inside, most = 0, 0

    def read(self: Reader) -> ClusterView:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)
        inside -= 1
        return self.view

    with joined(here, monkeypatch) as zk:
        monkeypatch.setattr(Reader, "read", read)
        monkeypatch.setattr(cluster_zk, "_FRESH", -1.0)
        threads = [threading.Thread(target=zk.view) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 1
