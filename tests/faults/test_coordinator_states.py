"""The coordinator's broker is killed while its groups are in each possible state."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from tests.support.endpoints import endpoints
from tests.support.groups import Producer, Reader
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster, wait_until

SESSION = 10.0
HEAL = SESSION + 5
"""Each partition has one member that delivers it within this number of seconds after a new
coordinator is there."""
PARTITIONS = 4
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
MOVES = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: retry."""


class Gated:
    """A member that can be blocked in its listener, or between JoinGroup and SyncGroup."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        self.topic = topic
        self.armed = ""
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.fault: BaseException | None = None
        self.committed = False
        """Whether its listener has committed after it was unblocked."""
        self.reader: Reader | None = None
        config: dict[str, object] = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "session.timeout.ms": int(SESSION * 1000),
            "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 60_000,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "refresh.leader.backoff.ms": 50,
            "socket.timeout.ms": 5000,
        }
        self.connector = CoordinatorConsumerConnector(config, on_exchange=self._exchanged)
        self.connector.set_consumer_rebalance_listener(self)
        self._thread = threading.Thread(target=self._join, daemon=True)
        self._thread.start()

    def _join(self) -> None:
        try:
            self.reader = Reader(self.connector.create_message_streams({self.topic: 1})[self.topic])
        except BaseException as error:  # noqa: BLE001
            self.fault = error

    def _exchanged(self, _broker: object, _request: object, answer: Any) -> None:
        if type(answer).__name__ == "JoinGroupResponse" and not answer.error_code:
            self._hold("joined")

    def on_partitions_revoked(self, _partitions: object) -> None:
        """The listener's call. It commits after it was blocked."""
        if self._hold("releasing"):
            self.connector.commit_offsets()
            self.committed = True

    def _hold(self, where: str) -> bool:
        if self.armed != where:
            return False
        self.armed = ""
        self.reached.set()
        self.go_on.wait(120)
        return True

    @property
    def machine(self) -> Any:
        """The member's state machine."""
        assert self.connector._loop is not None
        return self.connector._loop.machine

    def held(self) -> set[int]:
        """The member's partitions."""
        if self.connector._loop is None:
            return set()
        return {tp.partition for tp in self.machine.held}

    def deliveries(self) -> list[Any]:
        """Messages that its stream delivered."""
        if self.fault is not None:
            raise self.fault
        assert self.reader is None or not self.reader.errors, self.reader.errors
        return [] if self.reader is None else list(self.reader.deliveries)

    def close(self) -> None:
        """Leave the group."""
        self.go_on.set()
        self.connector.shutdown()
        self._thread.join(20)


class Story:
    """A group that reaches a state before its coordinator is killed, and continues afterwards."""

    def __init__(self, bench: Bench, state: str) -> None:
        self.bench, self.state = bench, state
        self.group = bench.group_of_victim(state)
        self.members: list[Gated] = []
        self.healed = -1.0
        self.rejoins: list[int] = []
        self.former: tuple[str, int] = ("", -1)
        """Member id and generation of its first member before the kill."""

    def member(self) -> Gated:
        """Add a member."""
        self.members.append(Gated(self.bench.cluster, self.group, self.bench.topic))
        return self.members[-1]

    def prepare(self) -> None:
        """Bring the group into its state."""
        first = self.member()
        wait_until(lambda: len(first.deliveries()) > 20, 30, "the first member reads")
        self.former = (first.machine.member_id, first.machine.generation)
        if self.state in ("Empty", "Dead"):
            first.close()
        else:
            if self.state != "Stable":
                first.armed = "joined" if self.state == "CompletingRebalance" else "releasing"
            self.member()
            if self.state == "Stable":
                wait_until(self.shared, 30, "the partitions are shared")
                self.rejoins = [member.machine.rejoins for member in self.members]
                self.former = (first.machine.member_id, first.machine.generation)
            else:
                assert first.reached.wait(30), f"held in {self.state}"
        if self.state == "Dead":
            self.bench.admin.delete_groups([self.group])
        wait_until(lambda: self.bench.state_of(self.group) == self.state, 20, self.state)

    def go_on(self) -> None:
        """Continue after there is a coordinator again."""
        if self.state in ("Empty", "Dead"):
            self.member()
        for member in self.members:
            member.go_on.set()

    def shared(self) -> bool:
        """Return whether each partition has one owner, and all remaining members own equally
        many."""
        shares = [member.held() for member in self.members if not member.connector.closed]
        sizes = {len(share) for share in shares}
        return len(set().union(*shares)) == PARTITIONS and sizes == {PARTITIONS // len(shares)}

    def delivers(self, since: float) -> bool:
        """Return whether each partition's owner has delivered messages since then."""
        return self.shared() and all(
            member.held() <= {found.partition for found in member.deliveries() if found.at > since}
            for member in self.members
        )

    def got(self) -> Counter[tuple[int, int]]:
        """Messages that its members delivered, by partition and offset."""
        return Counter((d.partition, d.offset) for m in self.members for d in m.deliveries())


class Bench:
    """One cluster, one topic that all groups read, and the broker to be killed."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        cluster.create_topic(topic, PARTITIONS, replication=2)
        self.coordinators = GroupCoordinators("tests", lambda: endpoints(cluster), 5.0, 60.0)
        self.victim = self.coordinators.coordinator(f"{topic}-any").broker_id
        self.admin = KafkaAdminClient(
            bootstrap_servers=endpoints_text(cluster), request_timeout_ms=5000
        )
        self.producer = Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.01)
        self.lowered: list[str] = []
        self._stored: dict[tuple[str, TopicPartition], int] = {}
        self.stories = {state: Story(self, state) for state in STATES}

    def group_of_victim(self, word: str) -> str:
        """A group that the victim coordinates."""
        names = (f"{self.topic}-{word}-{number}" for number in range(1000))
        found = (n for n in names if self.coordinators.coordinator(n).broker_id == self.victim)
        return next(found)

    def state_of(self, group: str) -> str:
        """The group's state as its coordinator reports it."""
        state = self.admin.describe_groups([group])[group]["group_state"]
        return "CompletingRebalance" if state == "AwaitingSync" else str(state)

    def look(self) -> None:
        """Record stored offsets that went down."""
        for story in self.stories.values():
            wanted = [TopicPartition(self.topic, n) for n in range(PARTITIONS)]
            for tp, stored in self.coordinators.fetch(story.group, wanted).items():
                before = self._stored.get((story.group, tp), 0)
                if stored.offset < before and story.state != "Dead":
                    self.lowered.append(f"{story.group} {tp}: {before} -> {stored.offset}")
                self._stored[story.group, tp] = stored.offset

    def run(self) -> None:
        """Bring all groups into their states, kill their coordinator, and wait until they
        continue."""
        for story in self.stories.values():
            story.prepare()
        self.look()
        server = self.cluster.broker_servers[self.victim]
        server.kill()

        for story in self.stories.values():
            self.coordinators.members(story.group)  # retries until there is a coordinator
            assert self.coordinators.coordinator(story.group).broker_id != self.victim
        again = time.monotonic()
        for story in self.stories.values():
            story.go_on()

        def healed() -> bool:
            for story in self.stories.values():
                if story.healed < 0 and story.delivers(again):
                    story.healed = time.monotonic() - again
            self.look()
            return all(story.healed >= 0 for story in self.stories.values())

        with suppress(ClusterError):  # each group's test fails if it has not healed
            wait_until(healed, HEAL + 15, "all groups continue")
        server.start()
        server.wait_ready()

    def close(self) -> None:
        """Stop everything."""
        for story in self.stories.values():
            for member in story.members:
                if not member.connector.closed:
                    member.close()
        self.producer.close()
        self.admin.close()
        self.coordinators.close()
        server = self.cluster.broker_servers[self.victim]
        if not server.running:
            server.start()
            server.wait_ready()


def endpoints_text(cluster: LocalCluster) -> list[str]:
    """Addresses of the brokers."""
    return [server.address for server in cluster.broker_servers]


@pytest.fixture(scope="module", params=["3.9", "1.1"])
def struck(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Groups in all states, whose coordinator was killed. Both brokers run again."""
    name = "pair" if request.param == "3.9" else "older_pair"
    bench = Bench(request.getfixturevalue(name), f"struck-{request.param.replace('.', '-')}")
    try:
        bench.run()
        yield bench
    finally:
        bench.close()


@pytest.mark.parametrize("state", STATES)
def test_the_coordinator_is_killed(struck: Bench, state: str) -> None:
    """Within session timeout + 5 s after the other broker took over, each partition has exactly one
    member that delivers it. Nothing is lost, and stored offsets never go down. No member delivers
    what another has delivered, except in a deleted group, which starts over. A commit from before
    the kill is refused. A stable group does not rebalance."""
    story = struck.stories[state]
    print(f"{state}: healed after {story.healed:.1f} s")  # noqa: T201
    assert 0 <= story.healed <= HEAL
    struck.producer.settle()
    sent = set(struck.producer.acked)
    wait_until(lambda: story.got().keys() >= sent, 30, "nothing is lost")
    assert story.shared()
    assert not [text for text in struck.lowered if text.startswith(story.group)]
    if state != "Dead":
        assert not [found for found, count in story.got().items() if count > 1]
    if state == "PreparingRebalance":
        assert story.members[0].committed, "its listener commits, although the coordinator is gone"
    if state == "Stable":
        assert [member.machine.rejoins for member in story.members] == story.rejoins
    check_stale_commit(struck, story)


def check_stale_commit(bench: Bench, story: Story) -> None:
    """A commit of an old generation is refused and changes nothing."""
    tp = TopicPartition(bench.topic, 0)
    member_id, generation = story.former
    if story.state == "Stable":
        generation -= 1
    client = GroupClient(
        story.group,
        "stale",
        None,
        KnownBrokers(lambda: endpoints(bench.cluster), lambda _: 0),
        session_timeout=10,
        rebalance_timeout=10,
        timeout=10,
    )
    codes: list[int] = []

    def refused() -> bool:
        """Return whether a coordinator has judged the commit. The group moves again when the broker
        returns."""
        if isinstance(client.execute(commands.FindCoordinator(1)), events.CoordinatorFound):
            answer = client.execute(commands.CommitOffsets(2, member_id, generation, {tp: 1}))
            if isinstance(answer, events.OffsetsCommitted):
                codes.append(answer.codes[tp])
        return bool(codes) and codes[-1] not in MOVES

    wait_until(refused, 60, "a coordinator answers the commit")
    client.close()
    assert codes[-1] in (22, 25), codes
    assert bench.coordinators.fetch(story.group, [tp])[tp].offset > 1
