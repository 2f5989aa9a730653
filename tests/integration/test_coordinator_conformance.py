"""The simulated group coordinator and a real broker give the same responses to the same requests.

Where a broker is free to choose, the simulator follows the broker's response: see ``OPEN``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from tests.support.specs import classic_spec
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import GroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.formats.consumer_protocol import SubscriptionData, encode_subscription
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.classic import LENIENCIES, GroupCoordinator, GroupState

OPEN: Final = (
    "which member leads after a leader that has gone",
    "the order of the members that the leader is told of",
)
"""Choices that depend on the hashes of random member ids in a broker. The simulator takes the
first."""

SEEDS = range(1, 7)
STEPS = 250
CODES = {0, 22, 23, 25, 27, 79, 82}
WAIT = 20.0
LONG = 60.0
DELAY = 1.0
TOPIC = "t"
STATES = {
    "Dead": GroupState.DEAD,
    "Empty": GroupState.EMPTY,
    "PreparingRebalance": GroupState.PREPARING,
    "CompletingRebalance": GroupState.COMPLETING,
    "Stable": GroupState.STABLE,
}


def metadata(*topics: str) -> bytes:
    """A consumer's metadata for these topics in JoinGroup."""
    return encode_subscription(SubscriptionData(topics))


RANGE, ROBIN = ("range", metadata(TOPIC)), ("roundrobin", metadata(TOPIC))
OTHER = ("range", metadata(TOPIC, "u"))
STICKY = ("sticky", metadata(TOPIC))


class Connection(BrokerConnection):
    """A connection that signals when a request has been sent."""

    sent: threading.Event | None = None

    def _receive(self, sock: Any, until: float) -> memoryview:
        if self.sent is not None:
            self.sent.set()
        return super()._receive(sock, until)


class Client(GroupClient):
    """Sends one request at a time, from its own thread."""

    def __init__(self, broker: BrokerEndpoint, spec: ClassicSpec) -> None:
        super().__init__(
            spec.group,
            spec.consumer_id,
            spec.instance_id,
            KnownBrokers(lambda: [broker], lambda _: 0),
            session_timeout=spec.session_timeout,
            rebalance_timeout=spec.rebalance_timeout,
            timeout=WAIT,
        )
        self.coordinator = broker
        self.sent = threading.Event()
        self.idle = True

    def _connection(
        self, endpoint: BrokerEndpoint, timeout: float | None = None
    ) -> BrokerConnection:
        key = (endpoint, timeout or WAIT)
        if key not in self._connections:
            made = Connection(endpoint, self._client_id, key[1], 0)
            made.open()
            made.sent = self.sent
            self._connections[key] = made
        return self._connections[key]

    def send(self, order: Any, answers: list[Any]) -> None:
        """Return once the request has been sent."""

        def work() -> None:
            answer = self.execute(order)
            self.idle = True
            answers.append(answer)

        self.idle = False
        self.sent.clear()
        threading.Thread(target=work, daemon=True).start()
        assert self.sent.wait(WAIT), f"{order} cannot be sent"


@dataclass(eq=False)
class Member:
    """One process: its settings, and the values it learned from responses. Ids are the
    simulator's."""

    spec: ClassicSpec
    name: str = ""
    generation: int = -1
    told: tuple[str, ...] = ()
    clients: list[Client] = field(default_factory=list)


@dataclass(eq=False)
class Asked:
    """A request, and the responses to it so far: at most one from each side."""

    member: Member
    order: Any
    fake: list[Any] = field(default_factory=list)
    real: list[Any] = field(default_factory=list)

    @property
    def answer(self) -> Any:
        (found,) = self.fake
        return found


class Follower(GroupCoordinator):
    """The simulated coordinator, which follows the broker in the first point of ``OPEN``."""

    choose: Callable[[Sequence[str]], str]

    def _elect(self, joined: Sequence[str]) -> str:
        return self.choose(joined)


class Pair:
    """One group at both coordinators. A step is sent to the broker first."""

    def __init__(self, cluster: LocalCluster, group: str, initial_delay: float = 0.0) -> None:
        host, _, port = cluster.bootstrap.rpartition(":")
        self.broker = BrokerEndpoint(0, host, int(port))
        self.group = group
        self.kernel = Kernel(1)
        self.fake = Follower(self.kernel, lambda: {TOPIC: 3}, initial_delay)
        self.fake.choose = self._leader_of
        self.real_of: dict[str, str] = {}
        self.under_way: list[Asked] = []
        self.members: list[Member] = []
        self.codes: set[int] = set()
        self.states: set[GroupState] = set()
        self._looker = BrokerConnection(self.broker, "looker", WAIT, 0)

    def member(
        self, name: str, instance: str | None = None, session: float = LONG, rebalance: float = LONG
    ) -> Member:
        """A new process."""
        subscription = Subscription(Pattern.STATIC, {TOPIC: 1})
        spec = classic_spec(
            group=self.group,
            consumer_id=name,
            instance_id=instance,
            subscription=subscription,
            strategies=(),
            auto_commit=False,
            session_timeout=session,
            rebalance_timeout=rebalance,
            backoff=1,
        )
        self.members.append(Member(spec))
        return self.members[-1]

    def close(self) -> None:
        for member in self.members:
            for client in member.clients:
                client.close()
        self._looker.close()

    # -- requests

    def ask(self, member: Member, order: Any) -> Asked:
        """Send ``order`` to both, and compare all responses that it causes."""
        asked = Asked(member, order)
        self.under_way.append(asked)
        client = next((one for one in member.clients if one.idle), None)
        if client is None:
            client = Client(self.broker, member.spec)
            member.clients.append(client)
            for warm in (commands.SyncGroup(0, "?", 0, {}), commands.Heartbeat(0, "?", 0)):
                client.execute(warm)  # opens its connections
        client.send(self._translated(order), asked.real)
        for _ in range(2):  # one thread serves all in order: it is carried out
            self.look()
        self.fake.handle(order, member.spec, asked.fake.append)
        self.kernel.run(until=self.kernel.now)
        self.compare(str(order))
        return asked

    def passes(self, seconds: float) -> float:
        """Let time pass until a response arrives. Return the real seconds that it took."""
        began = time.monotonic()
        before = sum(len(asked.fake) for asked in self.under_way)
        until = self.kernel.now + seconds
        while sum(len(asked.fake) for asked in self.under_way) == before:
            due = self.kernel.next_due()
            assert due is not None, "no response would ever arrive"
            assert due <= until, f"nothing is answered within {seconds} s"
            self.kernel.run(until=due)
        self.compare(f"{seconds} s pass")
        return time.monotonic() - began

    def join(self, member: Member, *protocols: tuple[str, bytes]) -> Asked:
        """Send JoinGroup, then again with the id that the coordinator assigns."""
        asked = self.ask(member, commands.JoinGroup(0, member.name, protocols or (RANGE,)))
        if asked.fake and getattr(asked.answer, "code", 0) == 79:
            asked = self.ask(member, commands.JoinGroup(0, member.name, protocols or (RANGE,)))
        return asked

    def sync(self, member: Member) -> Asked:
        """Send SyncGroup. A leader assigns each member its own name."""
        given = {name: name.encode() for name in member.told}
        return self.ask(member, commands.SyncGroup(0, member.name, member.generation, given))

    def beat(self, member: Member) -> int:
        """Send a heartbeat."""
        order = commands.Heartbeat(0, member.name, member.generation)
        return int(self.ask(member, order).answer.code)

    def settle(self, *members: Member) -> None:
        """All members join and sync."""
        for member in members:
            self.join(member)
        if any(member.generation != self.fake.generation for member in members):
            for member in members:
                self.join(member)
        for member in sorted(members, key=lambda one: not one.told):
            self.sync(member)
        assert self.fake.state is GroupState.STABLE

    # -- comparing

    def look(self) -> tuple[GroupState, dict[str, bytes]]:
        """The group as the broker describes it: its state, and the members with their
        assignment."""
        request = DescribeGroupsRequest(groups=[self.group])
        answer = self._looker.call(request, DescribeGroupsResponse, 0)
        (found,) = answer.groups
        given = {one.member_id: bytes(one.member_assignment or b"") for one in found.members}
        return STATES[found.group_state], given

    def compare(self, what: str) -> None:
        """Check that both have answered the same requests alike and are in the same state."""
        where = f"{self.group}: {what}"
        answered = [asked for asked in self.under_way if asked.fake]
        for asked in answered:
            late = f"{where}: {asked.order}: the broker has answered, as {asked.fake} was simulated"
            wait_until(lambda asked=asked: asked.real, WAIT, late)  # type: ignore[misc]
            self._learn(asked)
        for asked in answered:
            fake, real = self._plain(asked.fake[0]), self._plain(self._back(asked.real[0]))
            assert fake == real, f"{where}: {asked.order}: simulated {fake}, real {real}"
            self.codes.add(getattr(asked.fake[0], "code", 0))
        self.under_way = [asked for asked in self.under_way if not asked.fake]
        group = f"{self.fake.state}, {list(self.fake.seats)}, {dict(self.fake._parts)}"
        wait_until(self._alike, WAIT, f"{where}: the broker's group is as simulated: {group}")
        for asked in self.under_way:
            assert not asked.real, f"{where}: {asked.order} was answered: {asked.real}"
        self.states.add(self.fake.state)

    def _alike(self) -> bool:
        state, given = self.look()
        if state is not self.fake.state:
            return False
        known = {self.real_of[name] for name in self.fake.seats if name in self.real_of}
        if len(given) != len(self.fake.seats) or not known <= given.keys():
            return False
        if state is not GroupState.STABLE:
            return True
        parts = {self.real_of[name]: part for name, part in self.fake._parts.items()}
        return given == {name: parts.get(name, b"") for name in given}

    def _learn(self, asked: Asked) -> None:
        """Match the ids in two responses to one request. The member remembers its id."""
        fake, real = asked.fake[0], asked.real[0]
        member = asked.member
        if isinstance(fake, events.Joined) and isinstance(real, events.Joined):
            self.real_of.setdefault(fake.member_id, real.member_id)
            member.name, member.generation = fake.member_id, fake.generation
            member.told = tuple(one.member_id for one in fake.members)
        elif getattr(fake, "code", 0) == 79 and getattr(real, "code", 0) == 79:
            self.real_of.setdefault(fake.member_id, real.member_id)
            member.name = fake.member_id

    def _leader_of(self, joined: Sequence[str]) -> str:
        """The leader that the broker chose. The response to any of ``joined`` names it."""
        waiting = [
            asked
            for asked in self.under_way
            if isinstance(asked.order, commands.JoinGroup)
            and asked.order.member_id in ("", *joined)
        ]

        def leaders() -> list[str]:
            instances = self.fake.roster.instances
            return [
                asked.order.member_id or instances[str(asked.member.spec.instance_id)]
                for asked in waiting
                for one in asked.real
                if isinstance(one, events.Joined) and one.leader == one.member_id
            ]

        wait_until(lambda: leaders(), WAIT, "the broker has chosen a leader")
        (leader,) = leaders()
        assert leader in joined
        return leader

    def _translated(self, order: Any) -> Any:
        """``order`` with the broker's ids."""
        if not hasattr(order, "member_id"):
            return order
        order = replace(order, member_id=self.real_of.get(order.member_id, order.member_id))
        if isinstance(order, commands.SyncGroup):
            given = {self.real_of.get(n, n): part for n, part in order.assignments.items()}
            order = replace(order, assignments=given)
        return order

    def _back(self, fact: Any) -> Any:
        """The broker's response with the simulator's ids."""
        back = {real: name for name, real in self.real_of.items()}
        if not isinstance(fact, events.Joined):
            return fact
        members = [replace(one, member_id=back.get(one.member_id, "?")) for one in fact.members]
        return replace(
            fact,
            member_id=back.get(fact.member_id, "?"),
            leader=back.get(fact.leader, "?"),
            members=tuple(members),
        )

    def _plain(self, fact: Any) -> Any:
        """The response without its message texts, and without the second point of ``OPEN``."""
        if isinstance(fact, events.Joined):
            return replace(fact, members=tuple(sorted(fact.members, key=str)))
        if isinstance(fact, events.RequestFailed):
            return replace(fact, detail="", member_id="")
        return fact


def started(delay: float) -> LocalCluster:
    """A broker that serves one request at a time, in the order of arrival."""
    return LocalCluster(
        "3.9",
        properties={
            "num.network.threads": "1",
            "num.io.threads": "1",
            "group.min.session.timeout.ms": "100",
            "group.initial.rebalance.delay.ms": str(round(delay * 1000)),
        },
    )


@pytest.fixture(scope="module")
def orderly() -> Iterator[LocalCluster]:
    """A broker without an initial rebalance delay."""
    with started(0.0) as running:
        running.create_topic(TOPIC, 3)
        wait_for_coordinator(running)
        yield running


@pytest.fixture(scope="module")
def delaying() -> Iterator[LocalCluster]:
    """A broker with an initial rebalance delay."""
    with started(DELAY) as running:
        wait_for_coordinator(running)
        yield running


def wait_for_coordinator(cluster: LocalCluster) -> None:
    """The first search creates ``__consumer_offsets``, and a group's partition loads afterwards."""
    host, _, port = cluster.bootstrap.rpartition(":")
    for number in range(8):  # among them are groups for each of the four partitions
        pair = Pair(cluster, f"first-{number}")
        client = Client(BrokerEndpoint(0, host, int(port)), pair.member("first").spec)
        wait_until(
            lambda client=client: isinstance(  # type: ignore[misc]
                client.execute(commands.FindCoordinator(0)), events.CoordinatorFound
            ),
            WAIT,
            "a coordinator is found",
        )
        wait_until(
            lambda client=client: client.execute(commands.Heartbeat(0, "?", 0)).code == 25,  # type: ignore[misc]
            WAIT,
            "the coordinator answers",
        )
        client.close()
        pair.close()


@pytest.fixture
def pair(orderly: LocalCluster, group: str) -> Iterator[Pair]:
    """The test's group."""
    made = Pair(orderly, group)
    yield made
    made.close()


OFFERS = ((RANGE, ROBIN), (RANGE, ROBIN), (RANGE,), (ROBIN,), (OTHER, ROBIN), (STICKY, RANGE))


def random_order(rng: random.Random, pair: Pair, member: Member) -> Any:
    """A random request that ``member`` could send. Some have a mistake."""
    name = member.name if rng.random() < 0.93 else rng.choice(["", "nobody"])
    generation = member.generation + (rng.choice((-1, 1)) if rng.random() < 0.08 else 0)
    weights = {
        GroupState.PREPARING: (20, 1, 2, 1, 2, 1),
        GroupState.COMPLETING: (1, 20, 2, 1, 2, 1),
    }.get(pair.fake.state, (3, 6, 4, 1, 4, 2))
    kind = rng.choices(range(6), weights)[0]
    if not member.name and kind < 3 and rng.random() < 0.9:
        kind = 0
    if kind == 0:
        offer = rng.choice(OFFERS) if rng.random() < 0.3 else OFFERS[0]
        return commands.JoinGroup(0, name, offer)
    if kind == 1:
        told = [one for one in member.told if rng.random() < 0.9]
        given = {one: bytes([rng.randrange(256)]) for one in told}
        return commands.SyncGroup(0, name, generation, given)
    if kind == 2:
        return commands.Heartbeat(0, name, generation)
    if kind == 3:
        return commands.LeaveGroup(0, name)
    partitions = [TopicPartition(TOPIC, number) for number in range(rng.randint(1, 3))]
    if kind == 4:
        positions = {tp: rng.randrange(1000) for tp in partitions}
        return commands.CommitOffsets(0, name, generation, positions)
    return commands.FetchOffsets(0, frozenset(partitions))


def test_random_requests_get_the_same_answers(orderly: LocalCluster) -> None:
    """Random requests of five processes, two of them with one instance id, get the same responses.

    After each step the test compares which requests were answered and how, the group's state, its
    members and their assignments. A request that waits at one coordinator also waits at the other.
    """
    codes: set[int] = set()
    states = {GroupState.DEAD}
    for seed in SEEDS:
        rng = random.Random(seed)
        pair = Pair(orderly, f"random-{seed}")
        assert pair.look()[0] is pair.fake.state is GroupState.DEAD
        for name, instance in (("a", None), ("b", None), ("c", None), ("d", "x"), ("e", "x")):
            pair.member(name, instance)
        try:
            for _ in range(STEPS):
                member = rng.choice(pair.members)
                waits = any(one.member is member for one in pair.under_way)
                if not waits or rng.random() < 0.2:
                    pair.ask(member, random_order(rng, pair, member))
        finally:
            pair.close()
        codes |= pair.codes
        states |= pair.states
    assert codes == CODES
    assert states == set(GroupState)


# -- chosen sequences ------------------------------------------------------------------------------


def code(asked: Asked) -> int:
    """The error code of the response, or 0 if there is none."""
    return int(getattr(asked.answer, "code", 0))


def test_a_group_begins_and_ends(pair: Pair) -> None:
    """The group is Dead, Empty, has two generations, and is Empty again, which counts as a
    generation."""
    a, b = pair.member("a"), pair.member("b")
    assert code(pair.ask(a, commands.JoinGroup(0, "gone", (RANGE,)))) == 25
    commit = commands.CommitOffsets(0, "gone", 1, {TopicPartition(TOPIC, 0): 7})
    assert set(pair.ask(a, commit).answer.codes.values()) == {22}
    assert pair.fake.state is GroupState.DEAD
    pair.join(a)
    assert (pair.fake.generation, a.told) == (1, (a.name,))
    pair.sync(a)
    assert pair.fake.state is GroupState.STABLE
    joining = pair.join(b)
    assert not joining.fake
    assert pair.beat(a) == 27
    pair.join(a)
    assert (a.generation, b.generation) == (2, 2)
    waiting = pair.sync(b)
    assert not waiting.fake
    pair.sync(a)
    assert waiting.answer.assignment == b.name.encode()
    for member in (a, b):
        pair.ask(member, commands.LeaveGroup(0, member.name))
    assert (pair.fake.state, pair.fake.generation) == (GroupState.EMPTY, 3)
    late = commands.CommitOffsets(0, a.name, 2, {TopicPartition(TOPIC, 0): 7})
    assert set(pair.ask(a, late).answer.codes.values()) == {25}
    alone = commands.CommitOffsets(0, "", -1, {TopicPartition(TOPIC, 0): 7})
    assert set(pair.ask(a, alone).answer.codes.values()) == {0}
    stored = pair.ask(b, commands.FetchOffsets(0, frozenset(alone.positions))).answer
    assert stored.offsets == alone.positions
    a.name = ""
    pair.join(a)
    assert a.generation == 4


def test_most_votes_choose_the_strategy(pair: Pair) -> None:
    """Two of three members prefer roundrobin. A member that supports neither strategy is
    refused."""
    members = [pair.member(name) for name in "abc"]
    offers = ((RANGE, ROBIN), (ROBIN, RANGE), (ROBIN, RANGE))
    for _ in range(2):
        for member, offer in zip(members, offers, strict=True):
            pair.join(member, *offer)
    assert {one.generation for one in members} == {pair.fake.generation}
    assert pair.fake._protocol == "roundrobin"
    assert code(pair.ask(pair.member("d"), commands.JoinGroup(0, "", (STICKY,)))) == 23
    assert code(pair.ask(members[0], commands.JoinGroup(0, members[0].name, (STICKY,)))) == 23


def test_a_lone_member_cannot_change_its_strategy_at_once(pair: Pair) -> None:
    """The strategies of its previous JoinGroup also count, even if it is the only member."""
    a = pair.member("a")
    pair.settle(a)
    assert code(pair.ask(a, commands.JoinGroup(0, a.name, (STICKY,)))) == 23
    assert code(pair.join(a, STICKY, RANGE)) == 0
    assert code(pair.join(a, STICKY)) == 0


def test_an_instance_id_belongs_to_the_process_that_came_last(pair: Pair) -> None:
    """A static member that returns keeps its assignment, with any metadata. The previous process is
    fenced."""
    old, new, other = pair.member("s1", "x"), pair.member("s2", "x"), pair.member("a")
    pair.settle(old, other)
    generation = pair.fake.generation
    assert code(pair.join(new, OTHER)) == 0
    assert (new.generation, pair.fake.state) == (generation, GroupState.STABLE)
    assert new.name != old.name
    assert pair.sync(new).answer.assignment == old.name.encode()
    assert pair.beat(old) == 82
    assert code(pair.ask(old, commands.JoinGroup(0, old.name, (RANGE,)))) == 82
    assert code(pair.ask(old, commands.SyncGroup(0, old.name, generation, {}))) == 82
    commit = commands.CommitOffsets(0, old.name, generation, {TopicPartition(TOPIC, 0): 7})
    assert set(pair.ask(old, commit).answer.codes.values()) == {82}
    stranger = pair.member("s3", "y")
    assert code(pair.ask(stranger, commands.Heartbeat(0, new.name, generation))) == 25


def test_a_fenced_process_hears_it_in_the_middle_of_a_rebalance(pair: Pair) -> None:
    """Waiting JoinGroup and SyncGroup requests are answered when another process takes the instance
    id."""
    one, two, three = (pair.member(f"s{number}", "x") for number in range(3))
    a = pair.member("a")
    pair.settle(one, a)
    joining = pair.join(pair.member("b"))
    waiting = pair.ask(one, commands.JoinGroup(0, one.name, (RANGE,)))
    pair.join(two)
    assert code(waiting) == 82
    pair.join(a)
    assert joining.fake
    followers = [member for member in (two, a) if not member.told]
    waiting = pair.sync(two) if two in followers else pair.sync(a)
    pair.join(three)
    if two in followers:
        assert code(waiting) == 82
    assert pair.fake.state is GroupState.PREPARING


def test_who_does_not_join_again_in_time_is_left_behind(pair: Pair) -> None:
    """After the longest rebalance timeout the generation begins without the member. A static member
    stays in the group until it does not sync either."""
    a, b = pair.member("a", rebalance=1.0), pair.member("b", rebalance=0.5)
    static = pair.member("s", "x", rebalance=0.5)
    pair.settle(a, b, static)
    waiting = pair.ask(a, commands.JoinGroup(0, a.name, (OTHER,)))
    assert not waiting.fake
    assert pair.passes(1.0) > 0.9
    assert a.told == (static.name, a.name) or set(a.told) == {static.name, a.name}
    assert pair.beat(b) == 25
    pair.sync(a)
    assert pair.fake.state is GroupState.STABLE
    pair.kernel.run(until=pair.kernel.now + 1.0)
    pair.compare("SyncGroup of the static member does not come")
    assert pair.fake.state is GroupState.PREPARING
    assert static.name not in pair.fake.seats


def test_who_does_not_sync_in_time_is_expelled(pair: Pair) -> None:
    """Without the leader's SyncGroup, the other members are asked to rejoin without the leader."""
    a, b = pair.member("a", rebalance=1.0), pair.member("b", rebalance=1.0)
    pair.settle(a, b)
    for member in (a, b):
        pair.ask(member, commands.JoinGroup(0, member.name, (OTHER,)))
    leader, follower = (a, b) if a.told else (b, a)
    waiting = pair.sync(follower)
    assert pair.passes(1.0) > 0.9
    assert code(waiting) == 27
    assert pair.beat(leader) == 25
    pair.join(follower)
    assert follower.told == (follower.name,)


def test_a_silent_member_expires(pair: Pair) -> None:
    """After its session timeout the other members are asked to rejoin. Static members expire
    too."""
    a, silent = pair.member("a"), pair.member("b", session=0.6)
    static = pair.member("s", "x", session=0.6)
    pair.settle(a, silent, static)
    began = time.monotonic()
    pair.kernel.run(until=pair.kernel.now + 0.6)
    pair.compare("two members are silent")
    assert time.monotonic() - began > 0.4
    assert pair.fake.state is GroupState.PREPARING
    assert pair.beat(a) == 27
    assert pair.beat(silent) == pair.beat(static) == 25
    pair.join(a)
    assert a.told == (a.name,)


def test_an_id_that_is_not_used_holds_up_the_group_for_a_session_timeout(pair: Pair) -> None:
    """The group waits for a member that was given an id, until that id expires."""
    a, absent = pair.member("a"), pair.member("b", session=0.6)
    pair.settle(a)
    assert code(pair.ask(absent, commands.JoinGroup(0, "", (RANGE,)))) == 79
    waiting = pair.ask(a, commands.JoinGroup(0, a.name, (RANGE,)))
    assert not waiting.fake
    assert pair.passes(0.6) > 0.4
    assert waiting.fake
    assert code(pair.ask(absent, commands.JoinGroup(0, absent.name, (RANGE,)))) == 25


def test_an_empty_group_waits_for_more_members(delaying: LocalCluster, group: str) -> None:
    """The initial delay starts again when another member joins during it, but only in a group's
    first generation."""
    pair = Pair(delaying, group, DELAY)
    try:
        a, b = pair.member("a"), pair.member("b")
        began = time.monotonic()
        pair.join(a)
        pair.join(b)
        assert pair.fake.state is GroupState.PREPARING
        pair.passes(3 * DELAY)
        assert time.monotonic() - began > 1.9 * DELAY
        assert pair.kernel.now == pytest.approx(2 * DELAY)
        assert set(a.told) == {a.name, b.name}
        for member in (a, b):
            pair.ask(member, commands.LeaveGroup(0, member.name))
        assert pair.fake.state is GroupState.EMPTY
        a.name = b.name = ""
        before = pair.kernel.now
        pair.join(b)
        pair.join(a)
        assert pair.passes(3 * DELAY) < 1.8 * DELAY
        assert pair.kernel.now - before == pytest.approx(DELAY)
        assert set(b.told) == {a.name, b.name}
    finally:
        pair.close()


def test_a_lenient_coordinator_differs_where_it_says(pair: Pair) -> None:
    """A static member returns with other metadata. The broker stays in its generation, but the
    lenient coordinator begins another one."""
    assert len(LENIENCIES) == 1
    pair.fake.lenient = True
    old, new = pair.member("s1", "x"), pair.member("s2", "x")
    pair.settle(old)
    pair.fake.handle(commands.JoinGroup(0, "", (OTHER,)), new.spec, lambda fact: None)
    assert pair.fake.generation == 2
    client = Client(pair.broker, new.spec)
    answer = client.execute(commands.JoinGroup(0, "", (OTHER,)))
    client.close()
    assert isinstance(answer, events.Joined)
    assert answer.generation == 1
