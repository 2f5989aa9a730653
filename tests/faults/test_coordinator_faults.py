"""Members on the coordinator under faults: processes are killed and paused, and the coordinator
fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.coordinated import (
    HEAL,
    PARTITIONS,
    SESSION,
    config,
    held,
    twice,
    written,
)
from tests.support.endpoints import endpoints
from tests.support.groups import Delivery, Producer, Reader, all_delivered, delivered_since, places
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import CommitFailedError
from zkconsumer.servers import LocalCluster, wait_until

SCRIPT = Path(__file__).with_name("member.py")


class Outside:
    """A member in its own process."""

    def __init__(self, config: dict[str, object], topic: str, log: Path) -> None:
        self.log = log
        log.touch()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(config), topic, str(log)]
        )

    def lines(self) -> list[tuple[float, int, int]]:
        return [(float(at), int(part), int(offset)) for at, _, part, offset in written(self.log)]

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


@pytest.mark.parametrize(
    ("fault", "strategy"),
    [
        ("SIGKILL", "cooperative-sticky"),
        ("SIGSTOP", "range"),
        ("SIGSTOP", "cooperative-sticky"),
        ("SIGTERM", "range"),
    ],
)
def test_a_member_ends_or_pauses(
    pair: LocalCluster, group: str, topic: str, tmp_path: Path, fault: str, strategy: str
) -> None:
    """One member is killed, paused beyond the session timeout, or leaves. The other members deliver
    its partitions within session timeout + 5 s. A paused member delivers at most its unacknowledged
    message when it continues, and rejoins. Nothing is lost, and no stored offset goes down."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, partition_assignment_strategy=strategy)
    slow = tmp_path / "other.log.slow"
    stored = Stored(pair, group, topic)
    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        CoordinatorConsumerConnector(settings) as member,
    ):
        reader = Reader(member.create_message_streams({topic: 1})[topic])
        other = Outside(settings, topic, tmp_path / "other.log")
        try:
            wait_until(lambda: held(member) == 2, 20, "the other member owns half")
            wait_until(lambda: len(other.lines()) > 20, 20, "the other member reads")
            if fault == "SIGSTOP":  # killed with an unacknowledged message and more in its queue
                slow.touch()
                count = len(other.lines())
                wait_until(lambda: len(other.lines()) > count + 3, 20, "the member is slow")
            struck = time.monotonic()
            other.process.send_signal(getattr(signal, fault))
            wait_until(
                lambda: stored.look() and held(member) == PARTITIONS,
                HEAL,
                "this member owns everything",
            )
            wait_until(
                lambda: len({d.partition for d in reader.deliveries if d.at > struck}) == 4,
                HEAL - (time.monotonic() - struck),
                "this member delivers everything within session timeout + 5 s",
            )
            took = time.monotonic() - struck
            if fault == "SIGSTOP":
                before = len(other.lines())
                woken = time.monotonic()
                other.process.send_signal(signal.SIGCONT)
                wait_until(
                    lambda: stored.look() and held(member) == 2, HEAL, "the other member is back"
                )
                slow.unlink()
                wait_until(
                    lambda: stored.look() and len(other.lines()) > before + 20,
                    HEAL,
                    "the member reads again",
                )
                taken_over = {
                    (d.partition, d.offset) for d in reader.deliveries if struck < d.at < woken
                }
                stale = [line for line in other.lines()[before:] if line[1:] in taken_over]
                assert not stale, (
                    "the unacknowledged message is already in the log, and this is another one"
                )
            elif fault == "SIGTERM":
                assert other.process.wait(10) == 0
                assert took < SESSION, "the group does not wait for a member that leaves"
            sent = set(producer.stop())

            def got() -> set[tuple[int, int]]:
                return set(places([reader])) | {(p, o) for _, p, o in other.lines()}

            wait_until(lambda: got() >= sent, 15, "nothing is lost")
            assert stored.look()
            assert not stored.lowered, "no commit of an older generation is accepted"
            assert not reader.errors
        finally:
            other.close()


class Stored:
    """Reads a group's stored offsets and records each one that went down."""

    def __init__(self, cluster: LocalCluster, group: str, topic: str) -> None:
        self.lowered: list[str] = []
        self._coordinators = GroupCoordinators("tests", lambda: endpoints(cluster))
        self._group = group
        self._wanted = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        self._last: dict[TopicPartition, int] = {}

    def look(self) -> bool:
        """Read the offsets. Returns true, so that a condition to wait for can call it."""
        for tp, found in self._coordinators.fetch(self._group, self._wanted).items():
            if found.offset < self._last.get(tp, 0):
                self.lowered.append(f"{tp}: {self._last[tp]} -> {found.offset}")
            self._last[tp] = found.offset
        return True


class Slow:
    """A member in this process that can be made to process slowly."""

    def __init__(self, settings: dict[str, object], topic: str) -> None:
        self.armed = False
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.stale: list[str] = []
        """The results of commits by a member that had lost its partitions."""
        self.in_hand: Delivery | None = None
        self.topic = topic
        self.connector = CoordinatorConsumerConnector(settings)

    def read(self) -> Reader:
        """Join and read."""
        streams = self.connector.create_message_streams({self.topic: 1})
        return Reader(streams[self.topic], self.handle)

    def handle(self, found: Delivery) -> None:
        """Process a message. If armed, wait for ``go_on`` and then commit the message by hand."""
        if self.armed and not self.reached.is_set():
            self.in_hand = found
            self.linger()

    def linger(self) -> None:
        """Wait for ``go_on``, then commit the position from long ago."""
        since = time.monotonic()
        self.reached.set()
        assert self.go_on.wait(60)
        if time.monotonic() < since + self.connector.config.max_poll_interval_ms / 1000:
            return
        try:
            self.connector.commit_offsets({TopicPartition(self.topic, n): 0 for n in range(4)})
        except CommitFailedError as error:
            self.stale.append(str(error))


class SlowToLetGo(Slow):
    """A member whose listener is slow when partitions are revoked."""

    def __init__(self, settings: dict[str, object], topic: str) -> None:
        super().__init__(settings, topic)
        self.connector.set_consumer_rebalance_listener(self)

    def handle(self, found: Delivery) -> None:
        """Process a message at once."""

    def on_partitions_revoked(self, _partitions: object) -> None:
        """The listener's callback."""
        if self.armed and not self.reached.is_set():
            self.linger()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_processing_takes_too_long(
    pair: LocalCluster, group: str, topic: str, strategy: str
) -> None:
    """A member that processes one message for longer than max.poll.interval.ms leaves the group.
    Within session timeout + 5 s the other member delivers everything. After that the first member's
    commit is refused. It rejoins, and delivers nothing that the other member has delivered. Nothing
    is lost, and only the unacknowledged message may be delivered twice (librdkafka #5541)."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, partition_assignment_strategy=strategy)
    slow = Slow(settings | {"max.poll.interval.ms": 2000}, topic)
    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        slow.connector,
        CoordinatorConsumerConnector(settings) as other,
    ):
        late = slow.read()
        reader = Reader(other.create_message_streams({topic: 1})[topic])
        wait_until(lambda: held(slow.connector) == held(other) == 2, 20, "shared")
        late.wait(20)
        slow.armed = True
        assert slow.reached.wait(20)
        struck = time.monotonic()
        wait_until(lambda: held(other) == PARTITIONS, 2 + HEAL, "the other member owns everything")
        wait_until(
            lambda: len(delivered_since([reader], struck)) == PARTITIONS,
            2 + HEAL - (time.monotonic() - struck),
            "the other member delivers everything",
        )
        assert slow.connector.metrics().state == "OUTSIDE"
        had, count = set(places([reader])), len(late.deliveries)
        slow.go_on.set()
        wait_until(
            lambda: held(slow.connector) == held(other) == 2, HEAL, "the member has rejoined"
        )
        wait_until(lambda: len(late.deliveries) > count + 20, 20, "the member reads again")
        assert slow.stale, "its commit is refused"
        assert not had & {(d.partition, d.offset) for d in late.deliveries[count:]}
        all_delivered(producer, [late, reader])
        assert slow.in_hand is not None
        assert twice(late, reader) <= {(slow.in_hand.partition, slow.in_hand.offset)}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("patience", [60_000, 2000], ids=["waited-for", "given-up"])
def test_slow_rejoin(
    pair: LocalCluster, group: str, topic: str, strategy: str, patience: int
) -> None:
    """The group waits for a member with a slow listener for up to max.poll.interval.ms. Until then
    no member delivers the partitions that the slow one should release. Afterwards it is removed
    from the group, and the other member delivers everything within session timeout + 5 s. The slow
    member's commit is refused. It rejoins, and delivers nothing that the other has delivered.
    Nothing is lost, and only messages after its last commit may be repeated."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, partition_assignment_strategy=strategy)
    slow = SlowToLetGo(settings | {"max.poll.interval.ms": patience}, topic)
    with (
        Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer,
        slow.connector,
        CoordinatorConsumerConnector(settings) as other,
    ):
        late = slow.read()
        late.wait(20)
        slow.armed = True
        joined: list[Reader] = []
        joining = threading.Thread(  # its first rebalance waits for the slow member
            target=lambda: joined.append(Reader(other.create_message_streams({topic: 1})[topic]))
        )
        joining.start()
        assert slow.reached.wait(20)
        struck = time.monotonic()
        if patience > 2000:
            ahead = len(producer.acked) + 200
            wait_until(lambda: producer.settle() or len(producer.acked) > ahead, 20, "2 seconds")
            assert held(other) == 0
        else:
            wait_until(
                lambda: held(other) == PARTITIONS, 2 + HEAL, "the other member owns everything"
            )
            wait_until(
                lambda: joined and len(delivered_since([joined[0]], struck)) == PARTITIONS,
                2 + HEAL - (time.monotonic() - struck),
                "the other member delivers everything",
            )
        count, had = len(late.deliveries), [d for reader in joined for d in reader.deliveries]
        slow.go_on.set()
        wait_until(lambda: held(slow.connector) == held(other) == 2, HEAL, "shared")
        assert bool(slow.stale) is (patience == 2000)
        wait_until(lambda: len(late.deliveries) > count + 20, 20, "the slow member reads")
        joining.join(20)
        after = {(d.partition, d.offset) for d in late.deliveries[count:]}
        assert not after & {(d.partition, d.offset) for d in had}
        all_delivered(producer, [late, joined[0]])
        if patience > 2000 or strategy == "range":  # else it leaves while it owns partitions
            assert not twice(late, joined[0])


@pytest.mark.parametrize(("strategy", "static"), [("range", True), ("cooperative-sticky", False)])
def test_rolling_restart(
    pair: LocalCluster, group: str, topic: str, tmp_path: Path, strategy: str, static: bool
) -> None:
    """Two of three members are restarted, one at a time. When a member leaves, the others own its
    partitions at once. A static member gets its own partitions back, and no other member
    rebalances. A member that does not return is replaced within session timeout + 5 s. Nothing is
    lost or repeated."""
    pair.create_topic(topic, 6, replication=2)
    session = 2 * SESSION  # a restart is slow on a busy machine
    settings = config(pair, group, partition_assignment_strategy=strategy)
    settings["session.timeout.ms"] = int(session * 1000)

    def named(name: str) -> dict[str, object]:
        return settings | ({"group.instance.id": name} if static else {})

    everyone: list[Outside] = []

    def start(name: str) -> Outside:
        log = tmp_path / f"{name}-{len(everyone)}.log"
        everyone.append(Outside(named(name), topic, log))
        return everyone[-1]

    try:
        with (
            Producer(pair.bootstrap, topic, range(6), interval=0.01) as producer,
            CoordinatorConsumerConnector(named("a")) as member,
        ):
            reader = Reader(member.create_message_streams({topic: 1})[topic])
            running = {name: start(name) for name in ("b", "c")}

            def share(one: Outside, since: float) -> set[int]:
                return {partition for at, partition, _ in one.lines() if at > since}

            wait_until(
                lambda: held(member) == 2 and all(share(m, 0) for m in running.values()),
                30,
                "all members have a share",
            )
            assert member._loop is not None
            machine = member._loop.machine
            for name in ("b", "c"):
                settled = time.monotonic()
                wait_until(
                    lambda s=settled: all(len(share(m, s)) == 2 for m in running.values()),
                    30,
                    "all members read their share",
                )
                rejoins, mine = machine.rejoins, set(machine.held)
                before = share(running[name], settled)
                running[name].process.send_signal(signal.SIGTERM)
                if not static:
                    wait_until(
                        lambda: held(member) == 3,
                        SESSION,
                        "the group does not wait for a member that leaves",
                    )
                assert running[name].process.wait(20) == 0
                running[name] = start(name)
                wait_until(
                    lambda n=name: len(share(running[n], 0)) == 2, 30, "the member reads again"
                )
                wait_until(lambda: held(member) == 2, 20, "shared")
                if static:
                    assert share(running[name], 0) == before
                    assert (machine.rejoins, set(machine.held)) == (rejoins, mine)
            running["b"].process.send_signal(signal.SIGTERM)
            struck = time.monotonic()
            wait_until(lambda: held(member) == 3, session + 5, "its share is assigned to others")
            wait_until(
                lambda: (
                    delivered_since([reader], struck) | share(running["c"], struck) == set(range(6))
                ),
                session + 5 - (time.monotonic() - struck),
                "everything is delivered",
            )
            sent = set(producer.stop())

            def got() -> Counter[tuple[int, int]]:
                ours = Counter(places([reader]))
                return ours + Counter((p, o) for one in everyone for _, p, o in one.lines())

            wait_until(lambda: got().keys() >= sent, 15, "nothing is lost")
            assert not reader.errors
            assert not [found for found, count in got().items() if count > 1]
    finally:
        for one in everyone:
            one.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_leaving_while_others_are_waited_for(
    pair: LocalCluster, group: str, topic: str, tmp_path: Path, strategy: str
) -> None:
    """A member that leaves in the middle of a rebalance does not wait for other members. Its
    delivered messages are committed, so the next owner starts after them."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    settings = config(pair, group, partition_assignment_strategy=strategy)
    settings |= {"session.timeout.ms": 30_000, "auto.commit.interval.ms": 60_000}
    others = [Outside(settings, topic, tmp_path / "first.log")]
    member = CoordinatorConsumerConnector(settings)
    try:
        with Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer:
            reader = Reader(member.create_message_streams({topic: 1})[topic])
            wait_until(lambda: held(member) == 2, 20, "shared")
            reader.wait(20)
            others[0].process.send_signal(signal.SIGSTOP)
            others.append(Outside(settings, topic, tmp_path / "second.log"))
            wait_until(lambda: member.metrics().state == "JOINING", 20, "the member rejoins")
            if strategy == "cooperative-sticky":
                count = len(reader.deliveries)
                reader.wait(count + 20)
            begun = time.monotonic()
            member.shutdown()
            assert time.monotonic() - begun < 10, "the paused member has 30 s"
            producer.stop()
        wanted = {TopicPartition(topic, d.partition): d.offset + 1 for d in reader.deliveries}
        stored = GroupCoordinators("tests", lambda: endpoints(pair)).fetch(group, wanted)
        assert {tp: stored[tp].offset for tp in wanted} == wanted
    finally:
        for one in others:
            one.close()


def test_the_coordinator_hangs(pair: LocalCluster, group: str, topic: str) -> None:
    """If the coordinator no longer answers, the members switch to the next one and continue there
    within session timeout + 5 s. When the first coordinator continues, nothing changes and nothing
    is lost."""
    pair.create_topic(topic, PARTITIONS, replication=2)
    members = [CoordinatorConsumerConnector(config(pair, group)) for _ in range(2)]
    loops = []
    with Producer(pair.bootstrap, topic, range(PARTITIONS), interval=0.01) as producer:
        readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in members]
        wait_until(lambda: [held(m) for m in members] == [2, 2], 20, "shared")
        for one, reader in zip(members, readers, strict=True):
            reader.wait(20)
            assert one._loop is not None
            loops.append(one._loop)
        former = loops[0].coordination.coordinator
        assert former is not None
        server = pair.broker_servers[former.broker_id]
        server.pause()
        try:
            wait_until(
                lambda: all(o.coordination.coordinator not in (None, former) for o in loops),
                60,
                "the other broker coordinates",
            )
            sent = producer.sent
            wait_until(
                lambda: producer.acknowledged(sent) == set(range(PARTITIONS)),
                60,
                "the producer has found the partitions' new leaders",
            )
            again = time.monotonic()
            wait_until(
                lambda: (
                    [held(m) for m in members] == [2, 2]
                    and delivered_since(readers, again) == set(range(4))
                ),
                HEAL,
                "everything is delivered",
            )
        finally:
            server.resume()
            server.wait_ready()
        all_delivered(producer, readers)
        for one in members:
            one.shutdown()
