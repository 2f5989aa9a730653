"""Offsets that cannot be compared while a group is mirrored: nothing is copied, or decided on."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest
from zkmigrate.mirror import mirroring, readings
from zkmigrate.stores import record

from tests.migrate import matrix
from tests.migrate.operators import CLOCK, virtual_time
from tests.migrate.simulated import Simulated, simulated
from tests.migrate.test_mirror import COMPLETE, CUT_OVER, ONCE, UNDO, held, row
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerError, BrokerUnavailableError

__all__ = ["simulated"]  # the fixture


def topic_is_hidden(one: Simulated) -> None:
    """zkmigrate may no longer describe the topic."""
    one.hide("t")


def topic_is_hidden_in_kraft(one: Simulated) -> None:
    """The same, once the brokers have left ZooKeeper."""
    one.hide("t")
    one.leave_zookeeper()


def topic_is_unreadable(one: Simulated) -> None:
    """The znode of the topic is broken."""
    one.zk.set("/brokers/topics/t", b"{")


def offset_is_misplaced(one: Simulated) -> None:
    """A 1.1.0 broker stores offsets."""
    one.in_zookeeper("g", "t", 900, where="offset")


def topic_is_unproven(one: Simulated) -> None:
    """The brokers have left ZooKeeper, which has no id of the topic (Kafka before 2.8)."""
    one.zk.set("/brokers/topics/t", json.dumps({"version": 1, "partitions": {"0": [0]}}).encode())
    one.leave_zookeeper()


DOUBTS = {
    topic_is_hidden: "hidden-offsets",
    topic_is_hidden_in_kraft: "hidden-offsets",
    topic_is_unreadable: "unreadable",
    offset_is_misplaced: "misplaced-offsets",
    topic_is_unproven: "topic-unproven",
}


@pytest.mark.parametrize(("doubt", "reason"), DOUBTS.items())
def test_zookeeper_leads(simulated: Simulated, doubt: object, reason: str) -> None:
    """The mirror and a cut-over refuse, and old members are not locked out."""
    matrix.mirror_zookeeper_leads(simulated)
    before = held(simulated)
    doubt(simulated)  # type: ignore[operator]
    for words in (ONCE, CUT_OVER):
        assert row(simulated, *words, status=3)["reasons"] == [reason]
    assert held(simulated) == before
    found = simulated.run("status", "--group", "g").rows[0]
    assert (found["locked"], reason in found["reasons"]) == ("no", True)


@pytest.mark.parametrize("doubt", [topic_is_hidden, topic_is_unreadable, offset_is_misplaced])
def test_kafka_leads(simulated: Simulated, doubt: object) -> None:
    """Neither the way back nor the end of the mirror is carried out."""
    matrix.mirror_kafka_leads(simulated)
    before = held(simulated)
    doubt(simulated)  # type: ignore[operator]
    for words in (ONCE, UNDO, COMPLETE):
        ran = simulated.run(*words)
        assert ran.status in (1, 3)
        assert ran.rows[0]["reasons"] == [DOUBTS[doubt]]  # type: ignore[index]
    assert held(simulated) == before


def test_a_mirror_does_not_begin(simulated: Simulated) -> None:
    """A topic without an id needs a decision, which only a plan can have."""
    matrix.untouched(simulated)
    topic_is_unproven(simulated)
    assert row(simulated, *ONCE, status=3)["reasons"] == ["topic-unproven"]
    assert "record" not in simulated.zk.zk.children("/consumers/g")


def test_a_running_mirror_finds_out(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten seconds, and that it is over, too."""
    virtual_time(monkeypatch)
    matrix.mirror_zookeeper_leads(simulated)
    mirror = mirroring.Mirroring(simulated.stores())

    def pass_() -> str:
        CLOCK.pass_(max(readings.BELOW_S, mirroring.READ_AGAIN_S) + 1)
        return next(iter(mirror.steps(["g"]))).state

    assert pass_() == "in step"
    offset_is_misplaced(simulated)
    assert pass_() == "refused"
    simulated.zk.delete("/consumers/g/offset")
    topic_is_hidden(simulated)
    assert pass_() == "refused"
    simulated.kafka.denied.clear()
    assert pass_() == "in step"


def test_other_topics_that_are_hidden_are_named_where_kafka_leads(simulated: Simulated) -> None:
    """The new program may consume them, and the brokers do not show it."""
    matrix.mirror_kafka_leads(simulated)
    simulated.topic("secret", (0, 9))
    simulated.hide("secret")
    assert "secret" in simulated.run(*ONCE).err


def test_hidden_topics_are_asked_for_again_after_a_question_that_failed(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no topic would be hidden until the list is read again."""
    matrix.untouched(simulated)
    simulated.hide("t")
    stores = simulated.stores()

    def away(_topics: object) -> None:
        raise BrokerUnavailableError("no broker answers")

    with monkeypatch.context() as patch:
        patch.setattr(simulated.kafka, "hidden", away)
        with pytest.raises(BrokerUnavailableError):
            stores.hidden_topics()
    assert stores.hidden_topics() == {"t"}


def refuse_commits(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the coordinator refuse all commits, as without permission for the topic."""

    def commit(_group: str, offsets: Collection[TopicPartition], *_: object) -> object:
        return {tp: BrokerError("TOPIC_AUTHORIZATION_FAILED") for tp in offsets}

    monkeypatch.setattr(simulated.kafka, "commit", commit)


def test_a_cut_over_that_waits_is_undone_although_kafka_refuses_commits(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper leads, and old members need nothing from Kafka."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    member = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
    simulated.znode(GroupPaths("g").member("g_old"), member)
    row(simulated, *CUT_OVER, status=3)
    simulated.in_zookeeper("g", "t", 500)
    refuse_commits(simulated, monkeypatch)
    before = held(simulated)
    assert row(simulated, *UNDO)["outcome"] == "done"
    assert held(simulated) == before
    assert not simulated.zk.run(record.read("g")).locked


def test_a_command_waits_for_members_only(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting does not help against other refusals."""
    matrix.mirror_zookeeper_leads(simulated)
    row(simulated, *ONCE)
    simulated.in_zookeeper("g", "t", 500)
    refuse_commits(simulated, monkeypatch)
    ran = simulated.run("cut-over", "--group", "g", "--execute", "--wait", "2")
    assert ran.rows[0]["reasons"] == ["coordinator-refused"]
    assert "members to leave" not in ran.err
