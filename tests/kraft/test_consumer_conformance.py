"""The simulated coordinator of KIP-848 and a real broker give the same responses to the same
requests.

What a broker does after some time without a request is not compared. Its assignor runs while it
answers (``group.consumer.assignor.offload.enable=false``). Otherwise the target that a heartbeat
returns would depend on timing.
"""

from __future__ import annotations

import random
import uuid
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from tests.sim.runs.either_group import EitherGroup
from tests.support.specs import classic_spec, kip848_spec
from zkconsumer.broker.cluster_reader import read_cluster
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.groups.kip848_client import (
    LEAVE,
    LEAVE_STATIC,
    ConsumerGroupClient,
)
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import (
    commands as group_commands,
    events as group_events,
    kip848_commands as commands,
)
from zkconsumer.core.groups.commands import CommitOffsets, FindCoordinator, LeaveGroup
from zkconsumer.core.groups.formats.consumer_protocol import (
    AssignmentData,
    SubscriptionData,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.classic import GroupState
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator

SEEDS: Final = (1, 2, 5, 7, 13, 15, 20)
MIXED_SEEDS: Final = (1, 2, 3)
STEPS: Final = 200
PARTITIONS: Final = 5
LONG: Final = 600.0
Owned = Mapping[str, tuple[int, ...]]
"""Partition numbers by topic name."""


@pytest.fixture(scope="module")
def orderly() -> Iterator[LocalCluster]:
    """A broker whose groups change only on requests."""
    quiet = {
        "group.consumer.assignor.offload.enable": "false",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.max.session.timeout.ms": "600000",
        "group.consumer.session.timeout.ms": "600000",
    }
    with LocalCluster("4", properties=quiet) as running:
        yield running


@dataclass(eq=False)
class Member:
    """One process, and the state from its last accepted response."""

    spec: Kip848Spec
    client: ConsumerGroupClient
    epoch: int = 0
    before: int = 0
    assigned: Owned | None = None

    @property
    def name(self) -> str:
        return self.spec.member_id


class Pair:
    """One group at both coordinators."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        host, _, port = cluster.bootstrap.rpartition(":")
        self.group, self.topic = group, group
        self.at = BrokerEndpoint(0, host, int(port))
        self._clients: list[GroupClient] = []
        cluster.create_topic(self.topic, PARTITIONS)
        wait_until(self._found, 30, "a coordinator")
        broker = BrokerConnection(self.at, "tests", 20.0, 0)
        text = read_cluster(broker).topics[self.topic].topic_id
        broker.close()
        self.topic_id = str(uuid.UUID(bytes=urlsafe_b64decode(text + "==")))
        wait_until(self._assigned, 30, "the topic")
        self.fake = ConsumerGroupCoordinator(Kernel(1), lambda: {self.topic: PARTITIONS}, 0.0)
        self.steps: list[str] = []
        self.codes: Counter[int] = Counter()

    def _found(self) -> bool:
        answer = self._member("x").client.execute(commands.MemberHeartbeat(0, "x", 1, False, None))
        return bool(answer.code == ErrorCode.GROUP_ID_NOT_FOUND)

    def _assigned(self) -> bool:
        """Return whether the coordinator knows the topic: a member of another group gets its
        partitions."""
        scout = self._member("x", group="scouts")
        answer = scout.client.execute(commands.MemberHeartbeat(0, "x", 0, True, {}))
        scout.client.execute(LeaveGroup(0, "x"))
        return bool(answer.assignment)

    def member(self, chance: random.Random, instance: str | None = None) -> Member:
        """A new process with the same id at both coordinators."""
        return self._member(str(uuid.UUID(int=chance.getrandbits(128))), instance_id=instance)

    def _member(self, name: str, **changes: Any) -> Member:
        spec = kip848_spec(
            **{"group": self.group, "member_id": name, "consumer_id": name, "assignor": "range"}
            | {"subscription": Subscription(Pattern.STATIC, {self.topic: 1})}
            | {"session_timeout": LONG, "rebalance_timeout": LONG, "heartbeat_interval": 5.0}
            | {"backoff": 1.0}
            | changes
        )
        known = KnownBrokers(lambda: (self.at,), lambda _: 0)
        client = ConsumerGroupClient(spec, "tests", known, timeout=20.0)
        client.execute(FindCoordinator(0))
        self._clients.append(client)
        return Member(spec, client)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def _ask_fake(self, member: Member, command: Any) -> Any:
        answers: list[Any] = []
        self.fake.handle(command, member.spec, answers.append)
        (answer,) = answers
        return answer

    def _compare(self, what: str, real: object, fake: object) -> None:
        self.steps.append(f"{what} -> {real}")
        if real != fake:
            told = "\n".join(self.steps[-12:])
            pytest.fail(f"the simulator answers {fake}; the last steps:\n{told}")

    def beat(self, member: Member, epoch: int, owned: Owned | None, full: bool = False) -> int:
        """Send one heartbeat to both, process an accepted response, and return the error code."""
        full = full or epoch == 0
        found = member.client.execute(
            commands.MemberHeartbeat(0, member.name, epoch, full, self._of(self.topic_id, owned)),
        )
        given = self._of(self.topic, found.assignment)
        real = (found.code, found.epoch, given) if not found.code else (found.code,)
        name = self.fake._ids.get(self.topic, f"{self.topic}#1")
        command = commands.MemberHeartbeat(0, member.name, epoch, full, self._of(name, owned))
        answer = self._ask_fake(member, command)
        mine = self._of(self.topic, answer.assignment)
        fake = (answer.code, answer.epoch, mine) if not answer.code else (answer.code,)
        self._compare(f"{self._who(member)} beats with epoch {epoch}, {owned}, {full}", real, fake)
        self.codes[found.code] += 1
        if not found.code:
            if found.epoch != member.epoch:
                member.before, member.epoch = member.epoch, found.epoch
            member.assigned = member.assigned if given is None else given
        return found.code

    def leave(self, member: Member) -> None:
        """Leave the group at both."""
        static = member.spec.instance_id is not None
        epoch = LEAVE_STATIC if static else LEAVE
        found = member.client.execute(commands.MemberHeartbeat(0, member.name, epoch, False, None))
        known = member.name in self.fake.seats
        self._ask_fake(member, LeaveGroup(0, member.name))
        self._compare(f"{self._who(member)} leaves", found.code == 0, known)
        member.epoch, member.assigned = 0, None

    def commit(self, member: Member, epoch: int, numbers: tuple[int, ...], offset: int) -> None:
        """Commit these partitions at both."""
        positions = {TopicPartition(self.topic, number): offset for number in numbers}
        command = CommitOffsets(0, member.name, epoch, positions)
        real, fake = member.client.execute(command).codes, self._ask_fake(member, command).codes
        self._compare(f"{self._who(member)} commits {numbers} with epoch {epoch}", real, fake)
        self.codes.update(real.values())

    def fetch(self, member: Member, epoch: int) -> None:
        """Read all committed offsets from both."""
        every = frozenset(TopicPartition(self.topic, number) for number in range(PARTITIONS))
        command = commands.FetchMemberOffsets(0, member.name, epoch, every)
        real, fake = (
            (getattr(answer, "code", 0), getattr(answer, "offsets", {}))
            for answer in (member.client.execute(command), self._ask_fake(member, command))
        )
        self._compare(f"{self._who(member)} fetches with epoch {epoch}", real, fake)
        self.codes[real[0]] += 1

    @staticmethod
    def _of(topic: Any, numbers: Mapping[Any, tuple[int, ...]] | None) -> dict[Any, Any] | None:
        """The same partitions under the topic's other name."""
        if numbers is None:
            return None
        found = sorted(one for part in numbers.values() for one in part)
        return {topic: tuple(found)} if numbers else {}

    def _who(self, member: Member) -> str:
        return f"{member.name[:4]}/{member.spec.instance_id or ''}"


def owned_of(chance: random.Random, member: Member, before: Owned | None) -> Owned | None:
    """The partitions that a heartbeat lists: usually the current assignment, sometimes the previous
    one."""
    return chance.choice([None, member.assigned, member.assigned, before, {}])


def play(pair: Pair, chance: random.Random) -> None:
    """Do one random run."""
    members = [pair.member(chance, name) for name in (None, None, "one", "two")]
    pair.beat(members[0], 0, {}, full=True)  # the group exists from here on
    had: dict[Member, Owned | None] = {}
    for step in range(STEPS):
        place = chance.randrange(len(members))
        member = members[place]
        before = had.get(member)
        epochs = [member.epoch] * 3 + [member.before, max(member.epoch - 1, 0), member.epoch + 1]
        match chance.randrange(20):
            case 0 | 1:
                pair.beat(member, 0, {}, full=True)
            case 2:
                pair.leave(member)
            case 3:
                members[place] = replace(
                    pair.member(chance, member.spec.instance_id), epoch=0, assigned=None
                )
            case 4:
                epoch = chance.choice(epochs)
                pair.beat(member, epoch, {} if epoch == 0 else owned_of(chance, member, before))
            case 5 | 6 if member.epoch:
                wanted = tuple(chance.sample(range(PARTITIONS), chance.randint(1, 3)))
                pair.commit(member, chance.choice(epochs), wanted, step)
            case 7 if member.epoch:
                pair.fetch(member, chance.choice(epochs))
            case _:
                full = chance.random() < 0.2
                owned = owned_of(chance, member, before)
                if member.epoch == 0:
                    owned, full = {}, True
                elif full and owned is None:
                    owned = member.assigned or {}
                had[member] = member.assigned
                pair.beat(member, member.epoch, owned, full)


def test_random_requests_get_the_same_answers(orderly: LocalCluster, unique: str) -> None:
    """Members join, stay, acknowledge or do not, fall behind, leave, and return with their instance
    id or a new member id. They commit and fetch with current and older epochs."""
    codes: Counter[int] = Counter()
    for seed in SEEDS:
        pair = Pair(orderly, f"{unique}-{seed}")
        print(f"seed {seed}")  # noqa: T201
        play(pair, random.Random(seed))
        pair.close()
        codes.update(pair.codes)
    assert codes.keys() == {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }


class ClassicMember:
    """One process of the classic protocol, and what the last accepted answers taught it."""

    def __init__(self, pair: MixedPair) -> None:
        self.spec = classic_spec(
            group=pair.group,
            consumer_id="tests",
            subscription=Subscription(Pattern.STATIC, {pair.topic: 1}),
            session_timeout=LONG,
            rebalance_timeout=LONG,
            heartbeat_interval=5.0,
            backoff=1.0,
        )
        self.id, self.epoch, self.before = "", -1, -1
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.had: frozenset[TopicPartition] = frozenset()


class MixedPair(Pair):
    """One group that both protocols use, at both coordinators."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        super().__init__(cluster, group)
        self.either = EitherGroup(self.fake.kernel, lambda: {self.topic: PARTITIONS}, 0.0)
        self.fake = self.either._mixed
        self.client = GroupClient(
            group,
            "tests",
            None,
            KnownBrokers(lambda: (self.at,), lambda _: 0),
            session_timeout=LONG,
            rebalance_timeout=LONG,
            timeout=20.0,
        )
        self.client.execute(FindCoordinator(0))
        self._clients.append(self.client)

    def _ask_fake(self, member: Member | ClassicMember, command: Any) -> Any:
        answers: list[Any] = []
        self.either.handle(command, member.spec, answers.append)
        self.fake.kernel.run(until=self.fake.kernel.now + 2.0)  # the first generation waits a while
        (answer,) = answers
        return answer

    def _both(self, member: ClassicMember, what: str, command: Any) -> Any:
        """Send a request to both; the broker's answer."""
        real, fake = self.client.execute(command), self._ask_fake(member, command)
        self._compare(f"{member.id[-4:]} {what}", _shown(real), _shown(fake))
        self.codes.update(_codes(real))
        return real

    def join(self, member: ClassicMember, owned: frozenset[TopicPartition]) -> None:
        """It joins, or joins again, with partitions that it says it owns."""
        data = SubscriptionData((self.topic,), owned=owned, version=1)
        protocols = (("cooperative-sticky", encode_subscription(data)),)
        if not member.id:
            asked = self.client.execute(group_commands.JoinGroup(0, "", protocols))
            assert isinstance(asked, group_events.RequestFailed), asked
            assert asked.code == ErrorCode.MEMBER_ID_REQUIRED, asked
            member.id = asked.member_id
            if self.either.classic:  # the broker chose the id
                self.either._classic.roster.pending.add(member.id)
                self.either._classic.state = GroupState.EMPTY
        command = group_commands.JoinGroup(0, member.id, protocols)
        answer = self._both(member, f"joins with {sorted(owned)}", command)
        assert isinstance(answer, group_events.Joined), answer
        if answer.generation != member.epoch:
            member.before, member.epoch = member.epoch, answer.generation

    def sync(self, member: ClassicMember, epoch: int, given: Mapping[str, bytes]) -> None:
        """It asks for its assignment."""
        command = group_commands.SyncGroup(0, member.id, epoch, given)
        answer = self._both(member, f"syncs with {epoch}", command)
        if isinstance(answer, group_events.Synced):
            member.had, member.assigned = (
                member.assigned,
                decode_assignment(answer.assignment).partitions,
            )

    def classic_beat(self, member: ClassicMember, epoch: int) -> None:
        """One heartbeat."""
        command = group_commands.Heartbeat(0, member.id, epoch)
        self._both(member, f"beats with {epoch}", command)

    def classic_commit(
        self, member: ClassicMember, epoch: int, numbers: Iterable[int], offset: int
    ) -> None:
        """It commits these partitions."""
        positions = {TopicPartition(self.topic, number): offset for number in numbers}
        command = group_commands.CommitOffsets(0, member.id, epoch, positions)
        self._both(member, f"commits {sorted(positions)} with {epoch}", command)

    def classic_leave(self, member: ClassicMember) -> None:
        """It leaves. That it was no member is not told."""
        self._both(member, "leaves", group_commands.LeaveGroup(0, member.id))
        member.epoch, member.assigned = -1, frozenset()


def _shown(answer: Any) -> object:
    """What is compared of an answer."""
    match answer:
        case group_events.Joined(_, name, generation, _, protocol):
            return "joined", name, generation, protocol
        case group_events.Synced(_, assignment):
            return "synced", sorted(decode_assignment(assignment).partitions)
        case group_events.Left():
            return "left"
    return _codes(answer)


def _codes(answer: Any) -> list[int]:
    if isinstance(answer, group_events.OffsetsCommitted):
        return [int(answer.codes[tp]) for tp in sorted(answer.codes)]
    return [int(getattr(answer, "code", 0))]


def play_mixed(pair: MixedPair, chance: random.Random) -> None:
    """A classic group becomes one of KIP-848, random requests follow, and it is classic again."""
    classic = [ClassicMember(pair) for _ in range(3)]
    every = [TopicPartition(pair.topic, number) for number in range(PARTITIONS)]
    pair.join(classic[0], frozenset())
    everything = encode_assignment(AssignmentData(frozenset(every)))
    pair.sync(classic[0], classic[0].epoch, {classic[0].id: everything})
    anchor, *modern = (pair.member(chance) for _ in range(3))
    pair.beat(anchor, 0, {}, full=True)  # the group is of KIP-848 from now on
    for step in range(STEPS):
        if chance.random() < 0.4:
            member = chance.choice([anchor, *modern])
            if member.epoch == 0:
                pair.beat(member, 0, {}, full=True)
            elif member is not anchor and chance.random() < 0.1:
                pair.leave(member)
            else:
                pair.beat(member, member.epoch, chance.choice([None, member.assigned]))
            continue
        one = chance.choice(classic)
        epoch = chance.choice([one.epoch, one.epoch, one.epoch, one.before, one.epoch + 1])
        match chance.randrange(12):
            case _ if one.epoch < 0:
                pair.join(one, frozenset())
            case 0:
                pair.classic_leave(one)
            case 1 | 2 | 3:
                pair.join(one, chance.choice([one.assigned, one.assigned, one.had, frozenset()]))
            case 4 | 5 | 6:
                pair.sync(one, epoch, {})
            case 7 | 8:
                wanted = chance.sample(range(PARTITIONS), chance.randint(1, 3))
                pair.classic_commit(one, epoch, wanted, step)
            case _:
                pair.classic_beat(one, epoch)
    left = [one for one in classic if one.epoch >= 0]
    if not left:
        pair.join(classic[0], frozenset())
        left = classic[:1]
    for gone in (*modern, anchor):
        pair.leave(gone)
    for one in left:
        pair.classic_beat(one, one.epoch)
        pair.classic_commit(one, one.epoch, range(PARTITIONS), STEPS)
    for one in left:
        pair.client.execute(group_commands.LeaveGroup(0, one.id))


def test_classic_members_in_a_group_of_the_new_protocol_get_the_same_answers(
    orderly: LocalCluster, unique: str
) -> None:
    """A classic group is converted; classic members join, sync, fall behind, commit and leave next
    to members of KIP-848. When the last of those has left, who is behind is refused."""
    codes: Counter[int] = Counter()
    for seed in MIXED_SEEDS:
        pair = MixedPair(orderly, f"{unique}-{seed}")
        print(f"seed {seed}")  # noqa: T201
        play_mixed(pair, random.Random(seed))
        pair.close()
        codes.update(pair.codes)
    assert codes.keys() >= {
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
