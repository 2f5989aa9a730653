"""One group with members of the original consumer and of ours, and the checks for it.

The methods run in the caller's thread; ``traffic`` has its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from kafka import KafkaProducer
from kazoo.exceptions import NoNodeError

from tests.support.groups import Delivery, GroupWatch
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.znodes import decode_registration, decode_topic, topic_path
from zkconsumer.servers.local_cluster import LocalCluster
from zkconsumer.servers.waiting import wait_until

SETTLE_SECONDS: Final = 30.0
"""How long a group may take until its owners are right, or messages are delivered."""

STABLE_SECONDS: Final = 0.3
"""How long the owners must be unchanged to count as settled."""


class Member(Protocol):
    """The code shared by both sides' members."""

    @property
    def deliveries(self) -> list[Delivery]:
        """Every message it has given out."""

    def leave(self) -> None:
        """Leave the group cleanly."""


class MixedGroup:
    """One group with members of both kinds, its topics, and the checks of each step.

    Topics are named ``<group>-<letters>``, members ``j1``... (original) and ``p1``... (ours).
    ``theirs`` has the settings that both sides share, and ``ours`` has more; both may be changed
    before members join. A failed check raises AssertionError or ClusterError.

    Args:
        cluster: where the group lives.
        jvm: where its original members run, unless they name another one.
        make_ours: makes one of our members from a configuration and the arguments that
            ``JvmMember`` takes for the subscription.
        group: the group id.
        strategy: ``range`` or ``roundrobin``, which takes the form of the original members.
        profile: of our members.
        store: where all members keep offsets: ``zookeeper``, ``kafka``, or ``dual`` for both.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        jvm: JvmMembers,
        make_ours: Callable[..., Member],
        group: str,
        strategy: str = "range",
        profile: str = "default",
        store: str = "zookeeper",
    ) -> None:
        self._make_ours = make_ours
        self.cluster = cluster
        self.jvm = jvm
        self.group = group
        self.strategy = strategy
        self.store = store
        self.members: dict[str, Member] = {}
        self.acked: dict[tuple[str, int, int], bytes] = {}
        """Value of every message acknowledged, by topic, partition and offset."""
        self.watch = GroupWatch(cluster.zookeeper, group)
        self.hash = RoundRobinHash.DASH if jvm.kafka == "1.1" else RoundRobinHash.BRACKETS_0_8_2
        self.partitions: dict[str, int] = {}
        self.profile = profile
        self.reread = 0
        self._claims: dict[TopicPartition, int] = {}
        self._gone: list[tuple[str, Member]] = []
        common: dict[str, object] = {
            "zookeeper.connect": cluster.zookeeper,
            "group.id": group,
            "zookeeper.session.timeout.ms": 4000,
            "rebalance.backoff.ms": 150,
            "rebalance.max.retries": 40,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 60_000,
            "refresh.leader.backoff.ms": 50,
            "partition.assignment.strategy": strategy,
            "offsets.storage": "zookeeper" if store == "zookeeper" else "kafka",
            "dual.commit.enabled": str(store == "dual").lower(),
        }
        self.theirs = common
        self.ours = common | {"zkconsumer.profile": profile}
        if strategy == "roundrobin":
            self.ours["zkconsumer.roundrobin.hash"] = self.hash.value

    def close(self) -> None:
        """Let all members leave."""
        try:
            for name in sorted(self.members):  # KAFKA-1848: 0.8.2 cannot stop while it rebalances
                self.members.pop(name).leave()
        finally:
            self.watch.close()

    def create(self, end: str, partitions: int, config: Mapping[str, str] | None = None) -> str:
        """Create a topic named ``<group>-<end>``; return its name."""
        name = f"{self.group}-{end}"
        self.cluster.create_topic(name, partitions, config=config)
        self.partitions[name] = partitions
        return name

    def create_telling(self, first: int, second: int) -> tuple[str, str]:
        """Create two topics whose names tell the two forms of roundrobin apart; return their names.

        The forms' hashes put the partitions of the two topics in different order. ``first`` and
        ``second`` are how many partitions they have; a regular expression for the ends of their
        names is ``[ab]+``.
        """
        ends = [(a * "a", b * "b") for a in range(1, 25) for b in range(1, 50)]
        for end, other_end in ends:
            topic, other = f"{self.group}-{end}", f"{self.group}-{other_end}"
            orders = {
                java_hash(f"{topic}-0") < java_hash(f"{other}-0"),
                java_hash(f"[{topic},0]") < java_hash(f"[{other},0]"),
            }
            if len(orders) == 2:
                return self.create(end, first), self.create(other_end, second)
        raise AssertionError("no names of two topics tell the two forms apart")

    def grow(self, topic: str, total: int) -> None:
        """Add partitions to a topic."""
        self.cluster.add_partitions(topic, total)
        self.partitions[topic] = total

    def start(self, side: str, number: int, streams: int, kind: str, topics: list[str]) -> None:
        """Let member ``<side><number>`` join; ``side`` is ``p`` (Python) or ``j`` (JVM).

        ``kind`` says how it subscribes to the topics of this group: by name, or by a filter that
        allows all of them.
        """
        kinds: dict[str, dict[str, Any]] = {
            "static": {"topics": dict.fromkeys(topics, streams)},
            "white_list": {"whitelist": f"{self.group}-[a-z]+", "streams": streams},
            "black_list": {"blacklist": f"(?!{self.group}-).*", "streams": streams},
        }
        self.join(f"{side}{number}", **kinds[kind])

    def join(self, name: str, jvm: JvmMembers | None = None, **subscription: Any) -> Member:
        """Have a member join with the given subscription; ``jvm``: in that process."""
        config = {"consumer.id": name}
        member: Member
        if name.startswith("j"):
            member = JvmMember(jvm or self.jvm, self.theirs | config, **subscription)
        else:
            member = self._make_ours(self.ours | config, **subscription)
        self.members[name] = member
        return member

    def leave(self, name: str) -> None:
        """Have a member leave cleanly."""
        member = self.members.pop(name)
        self._gone.append((name, member))
        member.leave()

    def lose(self, name: str, kill: Callable[[], object]) -> None:
        """Kill a member."""
        self._gone.append((name, self.members.pop(name)))
        kill()

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Send messages to all partitions all the time, in its own thread."""
        ended = threading.Event()
        faults: list[BaseException] = []

        def run() -> None:
            while not ended.wait(0.02):
                try:
                    self.send(1)
                except BaseException as error:  # noqa: BLE001
                    faults.append(error)
                    return

        thread = threading.Thread(target=run, name="traffic", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(40.0)
        assert faults == []

    def send(self, count: int = 5) -> None:
        """Send ``count`` messages to each partition, and wait until they are acknowledged."""
        sent: list[tuple[str, int, bytes, Any]] = []
        old = self.cluster.kafka == "0.8.2"
        producer = KafkaProducer(  # a new one each time, for it knows of no new partitions
            bootstrap_servers=self.cluster.bootstrap, api_version=(0, 8, 2) if old else None
        )
        for topic, partitions in list(self.partitions.items()):
            for partition in range(partitions):
                for _ in range(count):
                    value = f"{topic}/{partition}/{len(self.acked) + len(sent)}".encode()
                    future = producer.send(topic, value, partition=partition)
                    sent.append((topic, partition, value, future))
        for topic, partition, value, future in sent:
            self.acked[topic, partition, future.get(30).offset] = value
        producer.close(5)

    def deliveries(self) -> Counter[tuple[str, int, int]]:
        """How often each message was delivered, to all members of all times together."""
        found: Counter[tuple[str, int, int]] = Counter()
        for _, member in [*self._gone, *self.members.items()]:
            for delivery in list(member.deliveries):
                place = (delivery.topic, delivery.partition, delivery.offset)
                found[place] += 1
                assert place not in self.acked or self.acked[place] == delivery.value
        return found

    def delivered(self) -> None:
        """Wait until every acknowledged message has been delivered at least once."""

        def missing() -> set[tuple[str, int, int]]:
            return set(self.acked) - set(self.deliveries())

        try:
            wait_until(lambda: not missing(), SETTLE_SECONDS, "every message is delivered")
        except Exception as error:
            error.add_note(f"missing: {sorted(missing())[:20]}; {self.told()}")
            raise

    def once(self) -> None:
        """Every acknowledged message has been delivered, and our members delivered none twice.

        An original member (or ours with the ``scala`` profile) reads the stored offset before it
        claims a partition, so it may start from one that the last owner has replaced meanwhile:
        what it reads again is counted in ``reread``.
        """
        self.delivered()
        found = [
            (delivery.at, name, (delivery.topic, delivery.partition, delivery.offset))
            for name, member in [*self._gone, *self.members.items()]
            for delivery in list(member.deliveries)
        ]
        seen: set[tuple[str, int, int]] = set()
        again = []
        for _, name, place in sorted(found):
            if place in seen:
                again.append((name, *place))
            seen.add(place)
        self.reread = len(again)
        if self.profile == "default":
            ours = [each for each in again if each[0].startswith("p")]
            assert ours == [], f"ours delivered {ours} again; {self.told()}"

    def settled(self) -> dict[TopicPartition, str]:
        """Wait until the owners are right and stay so; return them.

        Right: each subscribed partition has one owner, which equals the result of both sides'
        assignors and was registered by the session that has the owner znode.
        """
        last: object = None
        unchanged: tuple[float, dict[TopicPartition, int]] = (0.0, {})

        def right() -> bool:
            nonlocal last, unchanged
            ids = self.watch.members()
            expected, owners, claims = self.expected(), self.owners(), self.claims()
            last = (ids, expected, owners, claims)
            members = sorted(f"{self.group}_{name}" for name in self.members)
            if ids != members or owners != expected or claims.keys() != owners.keys():
                claims = {}
            if claims != unchanged[1] or not claims:
                unchanged = (time.monotonic(), claims)
            return bool(claims) and time.monotonic() - unchanged[0] >= STABLE_SECONDS

        try:
            wait_until(right, SETTLE_SECONDS, "each partition is owned by whom it should be")
        except Exception as error:
            error.add_note(f"members, expected, owners, claims: {last}; {self.told()}")
            raise
        owners = self.owners()
        ids = self.watch.members()
        theirs = self.jvm.assignment(self.cluster.zookeeper, self.group, self.strategy, ids)
        mine = {tp: thread for tp, thread in theirs.items() if tp.topic in self.partitions}
        assert mine == owners, f"the original assignor says {mine}, the owners are {owners}"
        return owners

    def handed_over(self) -> None:
        """Each partition claimed since the last call was committed to its end before.

        Call it if everything was delivered before the change, and nothing was sent after it.
        """
        client, paths = self.watch.client, self.watch.paths
        ends, stored, claims = self.ends(), self.stored(), self.claims()
        for tp, claimed in claims.items():
            if tp in self._claims and claimed != self._claims[tp]:
                found = stored.get(tp)
                assert found == ends[tp], f"{tp} changed hands at {found}, read to {ends[tp]}"
                if self.store != "kafka":
                    stat = client.exists(paths.offset(tp))
                    assert stat.mzxid <= claimed, f"{tp} was committed after it was claimed"
        self._claims = claims

    def expected(self) -> dict[TopicPartition, str]:
        """The assignment that our assignors compute from the registrations."""
        client, paths = self.watch.client, self.watch.paths
        names = client.get_children("/brokers/topics")
        threads: dict[str, list[ConsumerThreadId]] = {}
        subscriptions: list[tuple[str, ...]] = []
        try:
            members = client.get_children(paths.ids)
        except NoNodeError:
            return {}
        for member in members:
            path = paths.member(member)
            try:
                subscription = decode_registration(path, client.get(path)[0])
            except NoNodeError:
                return {}
            wanted = expand(path, subscription, names, exclude_internal=True)
            subscriptions.append(tuple(wanted))
            for topic, ids in thread_ids(member, wanted).items():
                threads.setdefault(topic, []).extend(ids)
        assert set(threads) <= set(self.partitions), "filters allow this group's topics only"
        partitions = {t: decode_topic(topic_path(t), client.get(topic_path(t))[0]) for t in threads}
        assert {t: len(numbers) for t, numbers in partitions.items()}.items() <= (
            self.partitions.items()
        )
        if self.strategy == "range":
            result = assign_range(threads, partitions)
        else:
            result = assign_roundrobin(threads, partitions, self.hash, subscriptions)
        return {tp: str(thread) for tp, thread in result.items()}

    def owners(self) -> dict[TopicPartition, str]:
        """The owner znodes."""
        return {
            TopicPartition(topic, partition): thread
            for topic in self.partitions
            for partition, thread in self.watch.owners(topic).items()
        }

    def claims(self) -> dict[TopicPartition, int]:
        """The transaction that created each owner znode whose session registered its owner."""
        client, paths = self.watch.client, self.watch.paths
        found: dict[TopicPartition, int] = {}
        for tp, thread in self.owners().items():
            owner = client.exists(paths.owner(tp))
            member = client.exists(paths.member(ConsumerThreadId.parse(thread).consumer))
            if owner and member and owner.ephemeralOwner == member.ephemeralOwner:
                found[tp] = owner.czxid
        return found

    def stored(self) -> dict[TopicPartition, int]:
        """The committed offsets of the group's topics, checked to be equal in both stores."""
        znodes = {
            TopicPartition(topic, partition): offset
            for topic in self.partitions
            for partition, offset in self.watch.offsets(topic).items()
        }
        if self.store == "zookeeper":
            return znodes
        broker = BrokerEndpoint(0, "127.0.0.1", self.cluster.broker_servers[0].port)
        client = GroupCoordinators("watch", lambda: [broker], patience=SETTLE_SECONDS, backoff=0.1)
        try:
            every = [TopicPartition(t, p) for t, n in self.partitions.items() for p in range(n)]
            answer = client.stored(self.group, every)
        finally:
            client.close()
        kafka = {tp: stored.offset for tp, stored in answer.items()}
        wanted = kafka if self.store == "dual" else {}
        assert znodes == wanted, f"in ZooKeeper: {znodes}, in Kafka: {kafka}"
        return kafka

    def ends(self) -> dict[TopicPartition, int]:
        """The offset after the last acknowledged message of each partition."""
        found: dict[TopicPartition, int] = {}
        for topic, partition, offset in self.acked:
            tp = TopicPartition(topic, partition)
            found[tp] = max(found.get(tp, 0), offset + 1)
        return found

    def told(self) -> str:
        """The original members' error messages, and whether they failed."""
        failures = {
            name: member.failures
            for name, member in self.members.items()
            if isinstance(member, JvmMember) and member.failures
        }
        log = [line for line in self.jvm.log_text().splitlines() if self.group in line]
        return f"failures: {failures}; log: {[line[:300] for line in log[-15:]]}"
