"""Scripts on a simulated ZooKeeper: each ends correctly, whichever answer gets lost."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.scripts import one_by_one
from zkconsumer.core.common.types import ConsumerThreadId, Pattern, Subscription, TopicPartition
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.member_scripts import LiveRegistered, scripts_of
from zkconsumer.core.migration.znodes import LivePaths
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import ScriptCommand
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.known import NOTHING, Known
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    FetchOffsets,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    OffsetOp,
    Ok,
    Reply,
    SetData,
    StoreOffsets,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts import common, view
from zkconsumer.core.zookeeper.scripts.by_command import script_for
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    ScriptContext,
    op_bytes,
    packets,
)
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_topic, encode_registration
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeSession, FakeZk

PATHS = GroupPaths("g")
T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
MINE = ConsumerThreadId("g_m", 0)
TOPIC = b'{"version":1,"partitions":{"0":[0]}}'


@dataclass
class Bench:
    """One member's session on its own ensemble, and another client's session."""

    scala: bool = False
    zk: FakeZk = field(default_factory=lambda: FakeZk(Kernel(1)))

    def __post_init__(self) -> None:
        self.seen: list[str] = []
        self.sent = 0
        self.client = self.connect(lambda event: self.seen.append(event.path))
        self.stranger = self.connect()
        for path in ("/consumers", PATHS.root, PATHS.ids, PATHS.owners, PATHS.owners_topic("t")):
            self.zk.do(Create(path))
        for path in (PATHS.offsets, PATHS.offsets_topic("t")):
            self.zk.do(Create(path))
        spec = MemberSpec(PATHS, "g_m", Subscription(Pattern.STATIC, {"t": 1}), scala=self.scala)
        self.context = ScriptContext(spec, self.client.session_id, lambda: 7)
        self.scripts: Callable[..., MemberScript[Any]] = script_for

    def connect(self, on_watch: Callable[[Any], object] = lambda event: None) -> FakeSession:
        client = self.zk.connect(6.0, on_watch, lambda state, session: None)
        self.zk.kernel.run(until=self.zk.kernel.now + 1)
        assert client.session_id
        return client

    def send(self, op: ZkOp, client: FakeSession | None = None) -> Reply:
        replies: list[Reply] = []
        (client or self.client).submit(op, replies.append)
        self.zk.kernel.run(until=self.zk.kernel.now + 0.1)
        return replies[0]

    def run(
        self,
        order: ScriptCommand,
        lose: int | None = None,
        applied: bool = True,
        before: Callable[[int, ZkOp], object] = lambda index, op: None,
    ) -> Any:
        """Return the event that ends the script. ``sent`` has the number of its operations.

        The answer to operation ``lose`` gets lost, ``applied`` or not. ``before`` is called with
        each operation before it is sent.
        """
        script = one_by_one(self.scripts(order, self.context))
        op, count = next(script), 0
        while True:
            before(count, op)
            reply: Reply = Failed(Code.CONNECTION_LOSS)
            if count != lose or applied:
                reply = self.send(op)
            if count == lose:
                reply = Failed(Code.CONNECTION_LOSS)
            count += 1
            assert count < 100, "the script does not end"
            try:
                op = script.send(reply)
            except StopIteration as end:
                self.sent = count
                return end.value

    def take_over(self, tp: TopicPartition, text: bytes = b"g_a-0") -> None:
        """Another client becomes the owner, and leaves no trace in the offset, as the JVM."""
        self.zk.do(Delete(PATHS.owner(tp)))
        self.send(Create(PATHS.owner(tp), text, ephemeral=True), self.stranger)

    def with_cluster(self, topic: bytes | None = TOPIC) -> Bench:
        """Create the folders of brokers and topics, and the topic ``t``."""
        for path in ("/brokers", "/brokers/topics", "/brokers/ids"):
            self.zk.do(Create(path))
        if topic is not None:
            self.zk.do(Create("/brokers/topics/t", topic))
        return self

    def owner(self, tp: TopicPartition) -> int:
        node = self.zk.get(PATHS.owner(tp))
        return node.stat.ephemeral_owner if node else 0

    def offset(self, tp: TopicPartition) -> bytes | None:
        node = self.zk.get(PATHS.offset(tp))
        return node.data if node else None


def registered(scala: bool = False) -> Bench:
    """A bench whose member is registered in its first session."""
    bench = Bench(scala)
    assert bench.run(commands.Register(1, 0)) == events.Registered(1)
    return bench


def losses(order: ScriptCommand, make: Callable[[], Bench]) -> list[tuple[int, bool]]:
    """Every operation of the command's script, with its answer lost after or before its effect."""
    bench = make()
    bench.run(order)
    return [(index, applied) for index in range(bench.sent) for applied in (True, False)]


@pytest.mark.parametrize("epoch", [0, 3])
def test_register_survives_each_lost_answer(epoch: int) -> None:
    """The registration exists once, is ours, and has the version that names the session."""
    order = commands.Register(1, epoch)
    for lose, applied in losses(order, Bench):
        bench = Bench()
        assert bench.run(order, lose, applied) == events.Registered(1), (lose, applied)
        node = bench.zk.get(PATHS.member("g_m"))
        assert node is not None
        assert node.stat.ephemeral_owner == bench.client.session_id
        assert node.stat.version == epoch


def test_register_is_refused_while_another_session_has_the_name() -> None:
    """The owner of the registration is named, and nothing is changed."""
    bench = Bench()
    bench.send(Create(PATHS.member("g_m"), b"x", ephemeral=True), bench.stranger)
    fact = bench.run(commands.Register(1, 0))
    assert fact == events.RegistrationRefused(1, bench.stranger.session_id)


def test_deregister_survives_each_lost_answer() -> None:
    """The member's registration is gone afterwards."""
    order = commands.Deregister(2, 0)
    for lose, applied in losses(order, registered):
        bench = registered()
        assert bench.run(order, lose, applied) == events.Deregistered(2), (lose, applied)
        assert bench.zk.get(PATHS.member("g_m")) is None


def test_an_older_registration_is_deleted_by_what_was_just_read() -> None:
    """The session has registered in another epoch. The deletion is a ``Multi``, which is not sent
    after a reconnection: a restored server may have another session's registration there."""
    bench, sent = Bench(), list[ZkOp]()
    bench.run(commands.Register(1, 0))
    bench.run(commands.Register(2, 1), before=lambda _, op: sent.append(op))
    assert Multi((Delete(PATHS.member("g_m"), 0),)) in sent


def test_deregister_leaves_the_registration_of_another_session() -> None:
    """Another live member has the same id, and so the same path and version. Its registration
    stays."""
    bench = Bench()
    bench.send(Create(PATHS.member("g_m"), b"x", ephemeral=True), bench.stranger)
    before = bench.zk.get(PATHS.member("g_m"))
    assert bench.run(commands.Deregister(2, 0)) == events.Deregistered(2)
    assert before is not None
    assert bench.zk.get(PATHS.member("g_m")) == before


CLAIM = commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE, T2: MINE})


def contested() -> Bench:
    """T0 has an offset, T1 none, T2 is owned by another client."""
    bench = registered()
    bench.zk.do(Create(PATHS.offset(T0), b"40"))
    bench.take_over(T2)
    return bench


def test_claim_survives_each_lost_answer() -> None:
    """Free partitions are ours, with their stored offset and its newest version. The others are
    blocked."""
    for lose, applied in losses(CLAIM, contested):
        bench = contested()
        fact = bench.run(CLAIM, lose, applied)
        assert fact.blocked == {T2: "g_a-0"}
        assert fact.sessions == {T2: bench.stranger.session_id}
        node = bench.zk.get(PATHS.offset(T0))
        assert node is not None
        assert fact.claims == {
            T0: Claim(MINE, node.stat.version, 40),
            T1: Claim(MINE, None, None),
        }
        assert node.stat.version > 0  # touched: an earlier owner's version is outdated
        assert bench.owner(T0) == bench.owner(T1) == bench.client.session_id


def test_claim_reads_the_offset_that_an_earlier_owner_wrote_last() -> None:
    """A commit between the reads and the claim is noticed, not overwritten."""
    bench = contested()
    wrote = []

    def commit_meanwhile(_index: int, op: ZkOp) -> None:
        if not isinstance(op, GetMany | Create) and not wrote:
            wrote.append(bench.zk.do(SetData(PATHS.offset(T0), b"55")))
            wrote.append(bench.zk.do(Create(PATHS.offset(T1), b"9")))

    fact = bench.run(CLAIM, before=commit_meanwhile)
    assert (fact.claims[T0].committed, fact.claims[T1].committed) == (55, 9)


def test_a_claim_reads_missing_offsets_again_after_a_lost_packet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier owner's first commit arrives after the first packet. The second packet is lost
    with the connection, and the servers that answer next have another offset of equal version."""
    monkeypatch.setattr(common, "PACKET_PARTITIONS", 1)
    bench = registered()

    def before(index: int, op: ZkOp) -> None:
        if index == 4:
            assert isinstance(op, GetMany), "the read of the missing offsets, sent with the claims"
            bench.zk.do(Create(PATHS.offset(T0), b"5"))
        elif index == 5:
            bench.zk.do(Delete(PATHS.offset(T0)))
            bench.zk.do(Create(PATHS.offset(T0), b"9"))

    command = commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE})
    fact = bench.run(command, lose=3, applied=False, before=before)
    assert fact.claims == {T0: Claim(MINE, 1, 9), T1: Claim(MINE, None, None)}
    assert bench.offset(T0) == b"9"


def test_claim_leaves_a_broken_offset_alone() -> None:
    """A partition whose offset cannot be read is not claimed, and its znode is not changed."""
    bench = registered()
    bench.zk.do(Create(PATHS.offset(T0), b"forty"))
    fact = bench.run(CLAIM)
    assert set(fact.broken) == {T0}
    assert set(fact.claims) == {T1, T2}
    assert (bench.offset(T0), bench.owner(T0)) == (b"forty", 0)


def test_claim_leaves_a_broken_offset_alone_that_comes_in_between() -> None:
    """An earlier owner's first commit arrives during the claim, and cannot be read."""
    bench = registered()

    def before(_index: int, op: ZkOp) -> None:
        if isinstance(op, Multi) and bench.offset(T0) is None:
            bench.zk.do(Create(PATHS.offset(T0), b"forty"))

    fact = bench.run(CLAIM, before=before)
    assert set(fact.broken) == {T0}
    assert set(fact.claims) == {T1, T2}


def drive(script: Generator[Any, Reply, Any], answer: Callable[[Any], Reply]) -> Any:
    """Return the script's result."""
    op = next(script)
    while True:
        try:
            op = script.send(answer(op))
        except StopIteration as end:
            return end.value


def with_kafka(
    bench: Bench,
    order: ScriptCommand,
    answer: Callable[[OffsetOp], Reply],
    before: Callable[[ZkOp], object] = lambda op: None,
) -> Any:
    """Return the event that ends the script of a member with its offsets in Kafka. ``before`` is
    called with each operation in ZooKeeper before it is sent."""
    spec = replace(bench.context.spec, kafka_storage=True)
    context = ScriptContext(spec, bench.client.session_id, lambda: 7)
    script = one_by_one(script_for(order, context))

    def send(op: ZkOp | OffsetOp) -> Reply:
        if isinstance(op, OffsetOp):
            return answer(op)
        before(op)
        return bench.send(op)

    return drive(script, send)


@pytest.mark.parametrize("scala", [False, True])
def test_with_offsets_in_kafka_alone_those_in_zookeeper_may_be_unreadable(scala: bool) -> None:
    """The partitions are claimed, and the znodes keep their content, also one that is written
    during the claim. Their versions still fence an earlier owner."""
    bench = registered(scala)
    bench.zk.do(Create(PATHS.offset(T0), b"forty"))
    fetched: list[OffsetOp] = []

    def answer(op: OffsetOp) -> Reply:
        fetched.append(op)
        return Ok((7, 7, 7))

    def before(op: ZkOp) -> None:
        if isinstance(op, Multi) and bench.offset(T1) is None:
            bench.zk.do(Create(PATHS.offset(T1), b"fifty"))

    fact = with_kafka(bench, CLAIM, answer, before)
    assert fetched == [FetchOffsets((T0, T1, T2))]
    assert not fact.broken
    assert [fact.claims[tp].committed for tp in (T0, T1, T2)] == [7, 7, 7]
    assert bench.offset(T0) == b"forty"
    if not scala:
        assert bench.offset(T1) == b"fifty"
        assert [fact.claims[tp].version for tp in (T0, T1, T2)] == [1, 1, None]


def test_nothing_is_held_whose_offset_kafka_was_not_asked_for() -> None:
    """The registration vanishes during a claim. The partitions claimed so far have no offset
    yet."""
    bench = registered()
    away = with_kafka(bench, CLAIM, lambda op: Failed(Code.OTHER, detail="no coordinator"))
    assert isinstance(away, events.ScriptFailed)
    assert bench.owner(T0) == bench.client.session_id, "the claim had won before Kafka was asked"
    bench.zk.do(Create(PATHS.offset(T1), b"7"))  # so that the next claim has something to write
    bench.zk.do(Delete(PATHS.member("g_m")))
    gone = with_kafka(bench, CLAIM, lambda op: pytest.fail(f"asked {op}"))
    assert gone.unregistered
    assert gone.claims == {}


@pytest.mark.parametrize(("invalidated", "sent"), [(True, 5), (False, 40)])
def test_kafka_takes_a_lower_offset_only_where_the_stored_one_is_void(
    invalidated: bool, sent: int
) -> None:
    """Kafka accepts any offset, so offsets are checked before they are sent."""
    bench = registered()
    bench.run(commands.ClaimPartitions(2, 0, {T0: MINE}))
    order = commands.Commit(3, 0, {T0: 5}, {T0: Claim(MINE, None, 40, invalidated)})
    stored: list[OffsetOp] = []

    def answer(op: OffsetOp) -> Reply:
        stored.append(op)
        return Ok((None,))

    fact = with_kafka(bench, order, answer)
    assert stored == [StoreOffsets(((T0, sent),))]
    assert fact.claims[T0] == Claim(MINE, None, sent)


def test_an_owner_znode_of_another_session_blocks_whatever_its_text() -> None:
    """Even with the text that this member would write. It is of an earlier session, or of another
    process with the same consumer id (DEVIATION-11)."""
    bench = registered()
    mine = str(MINE).encode()
    bench.take_over(T0, mine)
    fact = bench.run(commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE}))
    assert fact.blocked == {T0: str(MINE)}
    assert set(fact.claims) == {T1}
    assert bench.owner(T0) == bench.stranger.session_id


@pytest.mark.parametrize("mixed", [False, True])
def test_a_release_that_is_late_leaves_the_next_owner_alone(mixed: bool) -> None:
    """Another member has claimed the partition since the owner znode was read, or since the claim.
    Its claim has rewritten the offset, so the deletion by path is refused."""
    bench = registered()
    bench.zk.do(Create(PATHS.offset(T0), b"7"))
    claimed = bench.run(commands.ClaimPartitions(2, 0, {T0: MINE}))

    def take_over(_index: int, op: ZkOp) -> None:
        if isinstance(op, Multi) and bench.owner(T0) == bench.client.session_id:
            bench.take_over(T0)
            bench.send(SetData(PATHS.offset(T0), b"7"), bench.stranger)

    fact = bench.run(commands.Release(3, 0, claimed.claims, mixed), before=take_over)
    assert fact == events.Released(3, frozenset({T0}))
    assert bench.owner(T0) == bench.stranger.session_id


@pytest.mark.parametrize("scala", [False, True])
def test_commits_are_offsets_that_were_stored(scala: bool) -> None:
    """Each written offset znode and each offset that Kafka accepted counts. Created parents,
    refused operations, unchanged offsets and a claim's write do not."""
    bench = registered(scala)
    bench.zk.do(Create(PATHS.offset(T1), b"7"))
    claimed = bench.run(commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE, T2: MINE}))
    stored = bench.context.stored
    assert (stored.zookeeper, stored.kafka) == (0, 0)
    first = commands.Commit(3, 0, {T0: 5, T1: 7, T2: 1}, claimed.claims)
    done = bench.run(first)
    assert (stored.zookeeper, stored.kafka) == (2, 0), "the offset of T1 is already 7"
    if not scala:
        bench.zk.do(SetData(PATHS.offset(T1), b"90"))
        bench.run(commands.Commit(4, 0, {T1: 8}, done.claims))
        assert stored.zookeeper == 2, "another writer is ahead"
    spec = replace(bench.context.spec, kafka_storage=True)
    bench.context = replace(bench.context, spec=spec)
    answers = iter((Ok((None, "refused")), Failed(Code.OTHER)))
    for _ in range(2):
        order = commands.Commit(5, 0, {T0: 6, T2: 6}, done.claims)
        script = one_by_one(script_for(order, bench.context))
        drive(script, lambda op: next(answers) if isinstance(op, StoreOffsets) else bench.send(op))
    assert (stored.zookeeper, stored.kafka) == (2, 1)


@pytest.mark.parametrize("harm", ["deleted", "rewritten"])
def test_nothing_is_written_without_the_own_registration(harm: str) -> None:
    """Claim, commit and release check that the session that decided is the one that acts."""
    bench = registered()
    claimed = bench.run(commands.ClaimPartitions(2, 0, {T0: MINE}))
    path = PATHS.member("g_m")
    bench.zk.do(Delete(path) if harm == "deleted" else SetData(path, b"{}"))
    before = bench.zk.zxid
    claims = dict(claimed.claims)
    outcomes = [
        bench.run(commands.ClaimPartitions(3, 0, {T1: MINE})),
        bench.run(commands.Commit(4, 0, {T0: 8}, claims)),
        bench.run(commands.Release(5, 0, claims)),
    ]
    for outcome in outcomes:
        assert outcome.unregistered
    assert bench.zk.zxid == before


def holding() -> tuple[Bench, dict[TopicPartition, Claim]]:
    """A member that owns T0 (stored offset 40) and T1 (none)."""
    bench = registered()
    bench.zk.do(Create(PATHS.offset(T0), b"40"))
    fact = bench.run(commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE}))
    return bench, dict(fact.claims)


def test_commit_survives_each_lost_answer() -> None:
    """Both offsets are stored, none is mistaken for another client's write, and the tokens are
    current."""
    bench, claims = holding()
    order = commands.Commit(3, 0, {T0: 50, T1: 5}, claims)
    for lose, applied in losses(order, lambda: holding()[0]):
        bench, _ = holding()
        fact = bench.run(order, lose, applied)
        assert (bench.offset(T0), bench.offset(T1)) == (b"50", b"5")
        assert not fact.fenced
        assert not fact.foreign
        for tp, claim in fact.claims.items():
            node = bench.zk.get(PATHS.offset(tp))
            assert node is not None
            assert (claim.version, claim.committed) == (node.stat.version, int(node.data))


@pytest.mark.parametrize(("theirs", "stays"), [(b"45", b"50"), (b"60", b"60"), (None, b"50")])
def test_a_foreign_commit_never_lowers_an_offset(theirs: bytes | None, stays: bytes) -> None:
    """Another client wrote although we own the partition, and this is reported. The larger offset
    stays. A deleted one is stored again."""
    bench, claims = holding()
    bench.zk.do(SetData(PATHS.offset(T0), theirs) if theirs else Delete(PATHS.offset(T0)))
    fact = bench.run(commands.Commit(3, 0, {T0: 50}, claims))
    assert fact.foreign == ({T0} if theirs else set())
    assert fact.claims[T0].committed == int(stays)
    assert bench.offset(T0) == stays


def test_a_void_offset_is_lowered_whichever_answer_gets_lost() -> None:
    """``auto.offset.reset`` lowered the position. The stored offset is replaced, and counts again
    from then on."""

    def make() -> Bench:
        return holding()[0]

    _, claims = holding()
    order = commands.Commit(3, 0, {T0: 5}, {T0: replace(claims[T0], invalidated=True)})
    for lose, applied in losses(order, make):
        bench = make()
        fact = bench.run(order, lose, applied)
        assert (bench.offset(T0), fact.foreign) == (b"5", frozenset()), (lose, applied)
        assert fact.claims[T0].committed == 5
        assert not fact.claims[T0].invalidated


def test_a_void_offset_is_lowered_although_another_one_is_foreign() -> None:
    """One other client's write refuses the whole packet. That says nothing about the invalidated
    offset."""
    bench, claims = holding()
    bench.zk.do(Create(PATHS.offset(T1), b"8"))
    void = {T0: replace(claims[T0], invalidated=True), T1: claims[T1]}
    fact = bench.run(commands.Commit(3, 0, {T0: 5, T1: 9}, void))
    assert (bench.offset(T0), bench.offset(T1)) == (b"5", b"9")
    assert fact.claims[T0].committed == 5
    bench.zk.do(SetData(PATHS.offset(T0), b"70"))
    fact = bench.run(
        commands.Commit(4, 0, {T0: 6}, {T0: replace(fact.claims[T0], invalidated=True)})
    )
    assert (bench.offset(T0), fact.foreign) == (b"70", {T0}), "a later foreign write stays"


@pytest.mark.parametrize("tp", [T0, T1])
def test_a_former_owner_commits_nothing(tp: TopicPartition) -> None:
    """Once another session has claimed the partition, a commit is fenced and writes nothing."""
    bench, claims = holding()
    bench.take_over(tp)
    if tp == T0:
        bench.send(SetData(PATHS.offset(T0), b"40"), bench.stranger)
    before = bench.offset(tp)
    fact = bench.run(commands.Commit(3, 0, {tp: 99}, claims))
    assert fact.fenced == {tp}
    assert bench.offset(tp) == before


def test_a_version_from_before_a_reconnection_proves_nothing() -> None:
    """A restored ensemble uses versions again. Another member has claimed and committed since, and
    the version is the one that we knew."""
    bench, claims = holding()
    unchecked = {tp: replace(claim, unchecked=True) for tp, claim in claims.items()}
    bench.zk.do(Delete(PATHS.owner(T0)))
    bench.send(Create(PATHS.owner(T0), b"g_a-0", ephemeral=True), bench.stranger)
    bench.zk.do(Delete(PATHS.offset(T0)))
    bench.zk.do(Create(PATHS.offset(T0), b"40"))
    bench.zk.do(SetData(PATHS.offset(T0), b"60"))
    node = bench.zk.get(PATHS.offset(T0))
    assert node is not None
    assert node.stat.version == claims[T0].version
    fact = bench.run(commands.Commit(3, 0, {T0: 99}, unchecked))
    assert isinstance(fact, events.Committed)
    assert fact.fenced == {T0}
    assert bench.offset(T0) == b"60"


def test_an_offset_that_went_back_is_stored_again() -> None:
    """The servers were restored from a backup. Our session and our owner znode are in it, but not
    the offset that the member has already stored."""
    bench, claims = holding()
    stored = bench.run(commands.Commit(3, 0, {T0: 50}, claims))
    assert isinstance(stored, events.Committed)
    bench.zk.do(Delete(PATHS.offset(T0)))
    bench.zk.do(Create(PATHS.offset(T0), b"40"))
    unchecked = {T0: replace(stored.claims[T0], unchecked=True)}
    fact = bench.run(commands.Commit(4, 0, {T0: 50}, unchecked))
    assert isinstance(fact, events.Committed)
    assert fact.claims == {T0: Claim(MINE, 1, 50)}
    assert bench.offset(T0) == b"50"


@pytest.mark.parametrize("mixed", [False, True])
def test_release_survives_each_lost_answer(mixed: bool) -> None:
    """Our owner znodes are gone, whichever answer got lost. A second release changes nothing."""
    bench, claims = holding()
    order = commands.Release(3, 0, claims, mixed)
    for lose, applied in losses(order, lambda: holding()[0]):
        bench, _ = holding()
        assert bench.run(order, lose, applied) == events.Released(3), (lose, applied)
        assert bench.owner(T0) == bench.owner(T1) == 0
        before = bench.zk.zxid
        assert bench.run(order) == events.Released(3)
        assert bench.zk.zxid == before


@pytest.mark.parametrize("tp", [T0, T1])
def test_release_leaves_the_znode_of_somebody_else(tp: TopicPartition) -> None:
    """Even if the claim left no trace in the offset, as the JVM's does."""
    bench, claims = holding()
    bench.take_over(tp)
    assert bench.run(commands.Release(3, 0, claims)) == events.Released(3, frozenset({tp}))
    assert bench.owner(tp) == bench.stranger.session_id


@pytest.mark.parametrize(
    ("mixed", "offset", "unchecked", "looks"),
    [
        (False, b"40", False, False),
        (True, b"40", False, True),
        (False, b"41", False, True),
        (False, b"40", True, True),
    ],
)
def test_a_group_of_this_library_releases_without_a_look(
    mixed: bool, offset: bytes, unchecked: bool, looks: bool
) -> None:
    """But only while the offset is what it was at the last claim or commit, by this connection."""
    bench, claims = holding()
    if offset != b"40":
        bench.zk.do(SetData(PATHS.offset(T0), offset))
    ops: list[ZkOp] = []
    order = commands.Release(3, 0, {T0: replace(claims[T0], unchecked=unchecked)}, mixed)
    fact = bench.run(order, before=lambda _index, op: ops.append(op))
    assert fact == events.Released(3)
    assert bench.owner(T0) == 0
    assert any(not isinstance(op, Multi) for op in ops) == looks


def test_a_group_is_mixed_if_a_registration_is_not_of_this_library() -> None:
    """Such as that of a member with profile ``scala``."""
    for others, mixed in (((), False), ((True,), False), ((True, False), True)):
        bench = registered()
        for number, ours in enumerate(others):
            data = encode_registration(bench.context.spec.subscription, 7, ours=ours)
            bench.send(Create(PATHS.member(f"g_{number}"), data, ephemeral=True), bench.stranger)
        assert bench.run(commands.LoadView(2)).view.mixed == mixed


def test_a_znode_in_the_way_is_a_refusal_not_a_loop() -> None:
    """There is an ephemeral znode in place of a topic's folder. The script ends and names the
    path."""
    bench = registered()
    bench.send(Create(PATHS.owners_topic("x"), b"", ephemeral=True), bench.stranger)
    order = commands.ClaimPartitions(2, 0, {TopicPartition("x", 0): MINE})
    fact = bench.run(order)
    assert fact.code is Code.NO_CHILDREN_FOR_EPHEMERALS
    assert fact.path == PATHS.owner(TopicPartition("x", 0))


def test_an_ended_session_ends_the_script() -> None:
    """Whichever operation notices it, the command's answer says so."""
    bench = registered()
    script = one_by_one(script_for(CLAIM, bench.context))
    next(script)
    with pytest.raises(StopIteration) as end:
        script.send(Failed(Code.SESSION_EXPIRED))
    assert end.value.value == events.ScriptFailed(2, Code.SESSION_EXPIRED)


def test_the_scala_profile_reads_one_znode_at_a_time() -> None:
    """The JVM's reads are single round trips. Ours are pipelined."""
    seen: dict[bool, list[ZkOp]] = {}
    for scala in (True, False):
        bench = registered(scala)
        bench.send(Create(PATHS.member("g_n"), b"{}", ephemeral=True), bench.stranger)
        seen[scala] = []
        bench.run(commands.LoadView(2), before=lambda _index, op, ops=seen[scala]: ops.append(op))
    reads = [op for op in seen[True] if isinstance(op, GetMany)]
    assert reads
    assert all(len(op.paths) == 1 for op in reads)
    assert any(isinstance(op, GetMany) and len(op.paths) == 2 for op in seen[False])
    for ops in seen.values():
        assert all(isinstance(op, GetMany | GetData | GetChildren | Exists) for op in ops)


def test_a_view_reads_only_what_may_have_changed() -> None:
    """After one full view, it reads the list of members, and registrations that are new or may have
    changed."""
    bench = registered().with_cluster()
    bench.zk.do(Create("/brokers/ids/0", b'{"host":"b","port":9092}'))
    body = b'{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}'
    bench.send(Create(PATHS.member("g_n"), body % b"t", ephemeral=True), bench.stranger)

    def look(known: Known) -> tuple[events.ViewLoaded, list[str]]:
        read: list[str] = []

        def note(_index: int, op: ZkOp) -> None:
            read.extend(op.paths if isinstance(op, GetMany) else [op.path])

        fact = bench.run(commands.LoadView(2, known=known), before=note)
        return fact, read

    first, read = look(NOTHING)
    assert set(first.view.members) == {"g_m", "g_n"}
    assert len(read) == 6  # two lists, a broker, two registrations, a topic
    again, read = look(first.known)
    assert (again.view, read) == (first.view, [PATHS.ids])
    bench.send(Create(PATHS.member("g_o"), body % b"t", ephemeral=True), bench.stranger)
    joined, read = look(again.known)
    assert set(joined.view.members) == {"g_m", "g_n", "g_o"}
    assert read == [PATHS.ids, PATHS.member("g_o")]
    bench.send(Delete(PATHS.member("g_o")), bench.stranger)
    left, read = look(joined.known)
    assert (left.view, read) == (first.view, [PATHS.ids])
    bench.send(Delete(PATHS.member("g_n")), bench.stranger)
    bench.send(Create(PATHS.member("g_n"), body % b"u", ephemeral=True), bench.stranger)
    replaced, read = look(left.known)
    assert replaced.view.members["g_n"] == {"u": 1}
    assert read == [PATHS.ids, PATHS.member("g_m"), PATHS.member("g_n")]
    bench.zk.do(Delete(PATHS.member("g_m")))
    gone, read = look(replaced.known)
    assert not gone.view.registered
    assert read == [PATHS.ids]


def test_a_registration_of_a_later_session_s_version_is_made_again() -> None:
    """Its version names the session. A higher one would pass the checks of a later session."""
    bench = Bench()
    path = PATHS.member("g_m")
    bench.send(Create(path, b"{}", ephemeral=True))
    for version in range(3):
        bench.send(SetData(path, b"{}", version))
    assert bench.run(commands.Register(1, 1)) == events.Registered(1)
    node = bench.zk.get(path)
    assert node is not None
    assert node.stat.version == 1


def test_a_packet_fits_into_a_request() -> None:
    """Whatever its operations are. Those of one item stay together."""
    items = [(n, (Create(f"/{n}", b"x" * 100_000), Delete(f"/{n}"))) for n in range(7)]
    found = list(packets(items))
    assert [n for packet in found for n in packet] == list(range(7))
    assert all(len(ops) == 2 for packet in found for ops in packet.values())
    for packet in found:
        assert sum(op_bytes(op) for ops in packet.values() for op in ops) <= common.PACKET_BYTES


def test_each_packet_that_failed_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the last of them."""
    monkeypatch.setattr(common, "PACKET_BYTES", 1)
    bench = registered()

    def run(order: ScriptCommand) -> Any:
        lost: list[ZkOp] = []

        def answer(op: ZkOp) -> Reply:
            if isinstance(op, Multi) and len(lost) < 3:
                lost.append(op)
                return Failed(Code.CONNECTION_LOSS)
            return bench.send(op)

        return drive(one_by_one(script_for(order, bench.context)), answer)

    claimed = run(CLAIM)
    assert set(claimed.claims) == {T0, T1, T2}
    committed = run(commands.Commit(3, 0, {T0: 4, T1: 5, T2: 6}, claimed.claims))
    assert [bench.offset(tp) for tp in (T0, T1, T2)] == [b"4", b"5", b"6"]
    assert run(commands.Release(4, 0, committed.claims)) == events.Released(4)
    assert [bench.owner(tp) for tp in (T0, T1, T2)] == [0, 0, 0]


def test_a_view_watches_what_is_missing() -> None:
    """The member notices brokers and a topic that are created after the view."""
    bench = registered()
    bench.zk.do(Create("/brokers"))
    bench.zk.do(Create("/brokers/topics"))
    fact = bench.run(commands.LoadView(2))
    assert (fact.view.brokers, fact.view.partitions) == ((), {})
    bench.send(Create("/brokers/ids"), bench.stranger)
    bench.send(Create("/brokers/topics/t", TOPIC), bench.stranger)
    assert bench.seen == ["/brokers/ids", "/brokers/topics/t"]


def test_a_view_watches_what_it_was_made_from() -> None:
    """The member notices a member that joins, a topic that grows, and a broker."""
    bench = registered().with_cluster()
    bench.run(commands.LoadView(2))
    bench.send(Create(PATHS.member("g_n"), b"{}", ephemeral=True), bench.stranger)
    bench.send(SetData("/brokers/topics/t", TOPIC), bench.stranger)
    bench.send(Create("/brokers/ids/0", b"{}", ephemeral=True), bench.stranger)
    assert bench.seen == [PATHS.ids, "/brokers/topics/t", "/brokers/ids"]


def test_a_view_survives_each_lost_answer() -> None:
    """Each read is repeated after a lost connection, and watches what it read."""

    def make() -> Bench:
        bench = registered().with_cluster()
        bench.zk.do(Create("/brokers/ids/0", b'{"host":"b","port":9092}'))
        return bench

    order = commands.LoadView(2)
    whole = make().run(order)
    for lose, applied in losses(order, make):
        bench = make()
        fact = bench.run(order, lose, applied)
        assert fact.view == whole.view, (lose, applied)
        bench.send(SetData("/brokers/topics/t", TOPIC), bench.stranger)
        assert bench.seen == ["/brokers/topics/t"], (lose, applied)


def test_a_topic_is_decoded_again_only_when_it_was_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of partitions take milliseconds to decode. A topic that has grown is decoded
    again."""
    decoded: list[str] = []

    def decode(path: str, data: bytes) -> tuple[int, ...]:
        decoded.append(path)
        return decode_topic(path, data)

    monkeypatch.setattr(view, "decode_topic", decode)
    bench = registered().with_cluster()
    known = NOTHING
    for grown, times in ((False, 1), (False, 1), (True, 2)):
        if grown:
            bench.zk.do(SetData("/brokers/topics/t", b'{"partitions":{"0":[0],"1":[0]}}'))
            known = replace(known, topics={})
        fact = bench.run(commands.LoadView(2, known=known))
        assert fact.view.partitions == {"t": (0, 1) if grown else (0,)}
        assert len(decoded) == times
        known = fact.known


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_view_is_of_the_session_that_registered(epoch: int) -> None:
    """A registration with another version was rewritten, or is of another session."""
    fact = registered().run(commands.LoadView(2, epoch=epoch))
    assert fact.view.registered is (epoch == 0)


def test_the_owner_of_a_blocked_partition_is_watched() -> None:
    """The member is told at once that it is free."""
    bench = registered()
    bench.take_over(T0)
    order = commands.WatchBlockers(2, frozenset({T0}))
    assert bench.run(order) == events.BlockersWatched(2, gone=False)
    bench.send(Delete(PATHS.owner(T0)), bench.stranger)
    assert bench.seen == [PATHS.owner(T0)]
    assert bench.run(order) == events.BlockersWatched(2, gone=True)


def test_owner_znodes_of_another_session_are_foreign() -> None:
    """Missing ones count as well."""
    bench, _ = holding()
    bench.take_over(T1, b"g_m-0")
    fact = bench.run(commands.CheckOwners(3, frozenset({T0, T1, T2})))
    assert fact == events.OwnersChecked(3, frozenset({T1, T2}))


def kafka_bench(dual: bool) -> tuple[Bench, dict[TopicPartition, Claim]]:
    """A member with offsets in Kafka that owns T0 (40 in ZooKeeper) and T1 (none)."""
    bench, claims = holding()
    spec = replace(bench.context.spec, kafka_storage=True, dual_commit=dual)
    bench.context = replace(bench.context, spec=spec)
    return bench, claims


@pytest.mark.parametrize(("in_kafka", "start"), [(30, 40), (50, 50), (None, 40)])
def test_dual_commit_starts_at_the_larger_offset(in_kafka: int | None, start: int) -> None:
    """The JVM does the same, because a group may be moving from one store to the other."""
    bench, _ = kafka_bench(dual=True)
    order = commands.ClaimPartitions(3, 0, {T0: MINE})
    fact = with_kafka(bench, order, lambda op: Ok((in_kafka,)))
    assert fact.claims[T0].committed == start


def test_dual_commit_raises_an_offset_that_is_lower_in_zookeeper() -> None:
    """Also if nothing is read meanwhile. So a group that goes back to ``offsets.storage=zookeeper``
    continues where it was."""
    bench, _ = kafka_bench(dual=True)
    claimed = with_kafka(bench, commands.ClaimPartitions(3, 0, {T0: MINE}), lambda op: Ok((50,)))
    assert bench.offset(T0) == b"40"
    order = commands.Commit(4, 0, {T0: 50}, claimed.claims)
    committed = with_kafka(bench, order, lambda op: Ok((None,)))
    assert bench.offset(T0) == b"50"
    assert not committed.claims[T0].lags


def test_a_dual_commit_after_a_reconnection_trusts_no_version() -> None:
    """ZooKeeper was restored while Kafka was asked. Another member owns the partition, and its
    offset has the version of this member's claim."""
    bench, claims = kafka_bench(dual=True)
    sent: list[OffsetOp] = []

    def restored(op: OffsetOp) -> Reply:
        sent.append(op)
        if len(sent) > 1:
            return Ok((None,))
        bench.take_over(T0)
        bench.zk.do(Delete(PATHS.offset(T0)))
        bench.zk.do(Create(PATHS.offset(T0), b"40"))
        bench.zk.do(SetData(PATHS.offset(T0), b"60"))
        return Failed(Code.CONNECTION_LOSS)

    fact = with_kafka(bench, commands.Commit(4, 0, {T0: 99}, claims), restored)
    node = bench.zk.get(PATHS.offset(T0))
    assert node is not None
    assert (node.data, node.stat.version) == (b"60", claims[T0].version)
    assert (fact.fenced, len(sent)) == ({T0}, 1)


def test_a_former_owner_writes_nothing_to_kafka() -> None:
    """Kafka cannot fence it, so the owner znode is read."""
    bench, claims = kafka_bench(dual=False)
    bench.take_over(T0, b"g_m-0")
    sent: list[OffsetOp] = []

    def answer(op: OffsetOp) -> Reply:
        sent.append(op)
        return Ok((None,))

    fact = with_kafka(bench, commands.Commit(3, 0, {T0: 50, T1: 60}, claims), answer)
    assert fact.fenced == {T0}
    assert sent == [StoreOffsets(((T1, 60),))]


def test_an_offset_that_is_older_than_its_topic_is_reported_at_the_claim() -> None:
    """The topic was deleted and created again. A later commit or claim makes the offset new."""
    bench = Bench().with_cluster(topic=None)
    bench.zk.do(Create("/brokers/ids/0", b'{"version":1,"host":"b","port":1}'))
    bench.zk.do(Create(PATHS.offset(T0), b"40"))
    bench.zk.do(Create("/brokers/topics/t", b'{"partitions":{"0":[0],"1":[0]}}'))
    bench.zk.do(Create(PATHS.offset(T1), b"40"))
    bench.run(commands.Register(1, 0))
    bench.run(commands.LoadView(2))
    claim = commands.ClaimPartitions(3, 0, {T0: MINE, T1: MINE, T2: MINE})
    fact = bench.run(claim)
    assert fact.claims.keys() == {T0, T1, T2}
    assert fact.outdated == {T0}
    fact = bench.run(claim)
    assert fact.outdated == frozenset()


def without(bench: Bench, *gone: str) -> Bench:
    """An operator deletes these znodes, which the member knows. The deepest is named first."""
    bench.context.known_paths.update(gone)
    for path in gone:
        assert isinstance(bench.zk.do(Delete(path)), Ok)
    return bench


@pytest.mark.parametrize("scala", [False, True])
def test_a_commit_ends_although_its_folders_were_deleted(scala: bool) -> None:
    """An operator deletes the offsets of a running group. The commit stores them again."""
    bench = registered(scala)
    claimed = bench.run(commands.ClaimPartitions(1, 0, {T0: MINE}))
    without(bench, PATHS.offsets_topic("t"), PATHS.offsets)
    committed = bench.run(commands.Commit(2, 0, {T0: 7}, claimed.claims))
    assert committed.claims[T0].committed == 7
    assert bench.offset(T0) == b"7"


@pytest.mark.parametrize("scala", [False, True])
def test_a_claim_ends_although_its_folders_were_deleted(scala: bool) -> None:
    """The owner znode is created below new folders."""
    bench = without(registered(scala), PATHS.owners_topic("t"), PATHS.owners)
    claimed = bench.run(commands.ClaimPartitions(1, 0, {T0: MINE}))
    assert set(claimed.claims) == {T0}
    assert bench.owner(T0) == bench.client.session_id


@pytest.mark.parametrize("scala", [False, True])
def test_a_member_registers_although_the_group_was_deleted(scala: bool) -> None:
    """The group's znodes are created again."""
    bench = Bench(scala)
    folders = (PATHS.owners_topic("t"), PATHS.owners, PATHS.offsets_topic("t"), PATHS.offsets)
    without(bench, *folders, PATHS.ids, PATHS.root)
    if scala:  # this profile looks at its folder first, so it is deleted after that
        bench.context.known_paths.clear()
        deleted: list[ZkOp] = []

        def delete(_index: int, op: ZkOp) -> None:
            if isinstance(op, Create) and op.path == PATHS.member("g_m") and not deleted:
                deleted.append(op)
                without(bench, PATHS.ids, PATHS.root)

        bench.run(commands.Register(1, 0), before=delete)
    else:
        assert bench.run(commands.Register(1, 0)) == events.Registered(1)
    node = bench.zk.get(PATHS.member("g_m"))
    assert node is not None
    assert node.stat.ephemeral_owner == bench.client.session_id


def test_a_migratable_member_registers_although_the_group_was_deleted() -> None:
    """Both of its registrations are created, below new folders."""
    bench, live = Bench(), LivePaths.of("g")
    for path in (live.members.rpartition("/")[0], live.members):
        bench.zk.do(Create(path))
    live_root = live.members.rpartition("/")[0]
    folders = (PATHS.owners_topic("t"), PATHS.owners, PATHS.offsets_topic("t"), PATHS.offsets)
    without(bench, live.members, live_root, *folders, PATHS.ids, PATHS.root)
    scripts = scripts_of(live, LiveMachine())
    bench.scripts = lambda order, context: scripts(order, context)
    assert isinstance(bench.run(commands.Register(1, 0)), LiveRegistered)
    for path in (PATHS.member("g_m"), live.member("g_m")):
        assert bench.zk.get(path) is not None
