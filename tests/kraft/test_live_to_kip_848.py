"""``zkmigrate live`` on brokers without ZooKeeper: a running group ends in KIP-848, and returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from zkmigrate.cli import run

from tests.kraft.conftest import LeftBehind
from tests.migrate.rows import rows_of, step_words
from tests.support.groups import Producer, Reader, delivered_once
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.errors import BrokerError
from zkconsumer.migratable import MigratableConsumerConnector
from zkconsumer.servers import wait_until

PARTITIONS = 6
SETTLED = 30
Act = Callable[..., str]
QUICK = {
    "session.timeout.ms": 6000,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 200,
    "refresh.leader.backoff.ms": 50,
}


@pytest.fixture
def act(
    left: LeftBehind,
    group: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Act:
    """Carries out a stage, and returns why it was refused."""
    monkeypatch.chdir(tmp_path)  # where the commands leave a journal

    def one(stage: str, outcome: str = "") -> str:
        where = ["--zookeeper", left.address, "--bootstrap-server", left.kraft.bootstrap]
        capsys.readouterr()
        status = run(
            [*step_words(stage), "--group", group, "--execute", "--wait", "20", "--json", *where]
        )
        (row,) = rows_of(capsys.readouterr().out)
        if stage == "prepare" and status:  # it does not wait until the members have read the mode
            return str(row["why"])
        assert (row["outcome"], status) == (outcome or "done", 3 if outcome == "refused" else 0), (
            row
        )
        return str(row["why"])

    return one


def test_a_live_move_ends_in_kip_848_and_returns(
    left: LeftBehind, topic: str, group: str, act: Act
) -> None:
    """A broker refuses a KIP-848 member while migratable members use their own strategy, and the
    error says what to do. A classic plain consumer ends that, and KIP-848 members replace the
    others. While there is one, the way back is refused. Nothing is lost or delivered twice."""
    left.kraft.create_topic(topic, PARTITIONS)
    both: dict[str, object] = {
        "zookeeper.connect": left.address,
        "bootstrap.servers": left.kraft.bootstrap,
        "zkconsumer.brokers": "bootstrap",
        "group.id": group,
        "zkconsumer.live.strategies": "cooperative-sticky",
        "heartbeat.interval.ms": 200,
        **QUICK,
    }
    plain: dict[str, object] = {
        "bootstrap.servers": left.kraft.bootstrap,
        "group.id": group,
        **QUICK,
    }
    classic = plain | {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 200,
    }
    modern = plain | {"group.protocol": "consumer"}
    members: list[MigratableConsumerConnector | CoordinatorConsumerConnector] = []
    readers: list[Reader] = []

    def join(
        member: MigratableConsumerConnector | CoordinatorConsumerConnector,
    ) -> MigratableConsumerConnector | CoordinatorConsumerConnector:
        members.append(member)
        readers.append(Reader(member.create_message_streams({topic: 1})[topic]))
        return member

    def migratable(name: str) -> MigratableConsumerConnector | CoordinatorConsumerConnector:
        return join(MigratableConsumerConnector(both | {"consumer.id": name}))

    def owned() -> list[int]:
        return [member.metrics().owned_partitions for member in members]

    def wait_owned(*shares: int) -> None:
        wait_until(lambda: owned() == list(shares), SETTLED, f"they have {shares}")

    def leave(number: int) -> None:
        members.pop(number).shutdown()

    try:
        with Producer(left.kraft.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer:
            migratable("m1")
            migratable("m2")
            wait_owned(3, 3)
            wait_until(lambda: not act("prepare", "was done before"), SETTLED, "all know the mode")
            act("lock")
            act("to-kafka")
            with CoordinatorConsumerConnector(modern) as early:
                expected = r"GROUP_ID_NOT_FOUND.*custom assignor.*zkmigrate live finalize"
                with pytest.raises(BrokerError, match=expected):
                    early.create_message_streams({topic: 1})
            act("finalize")
            wait_owned(3, 3)
            join(CoordinatorConsumerConnector(classic))
            wait_owned(2, 2, 2)  # by one of Kafka's strategies from now on
            leave(0)
            wait_owned(3, 3)
            join(CoordinatorConsumerConnector(modern))
            wait_owned(2, 2, 2)
            assert "plain members" in act("to-zookeeper", "refused")
            leave(0)
            leave(0)
            wait_owned(6)  # by KIP-848
            assert "plain members" in act("to-zookeeper", "refused")
            migratable("m3")
            wait_owned(3, 3)  # so the classic one has the latest epoch
            leave(0)
            wait_owned(6)
            act("to-zookeeper")
            act("unlock")
            wait_owned(6)
            delivered_once(producer, readers, SETTLED)
    finally:
        for member in members:
            member.shutdown()
