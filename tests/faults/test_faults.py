"""One fault at a time on real servers.

Each test ends with ``arena.finish()``: nothing is lost, no stored offset went down, and every
member read forwards. Clean leaves repeat nothing. After other faults, a stream repeats only
messages delivered since the last commit and one unacknowledged message.
"""

from __future__ import annotations

import signal
import time

import pytest

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import CommitFailedError
from zkconsumer.servers import wait_until

SESSION = 2.0
HEAL = SESSION + 5
PATIENT = {"zookeeper_session_timeout_ms": 20_000}
"""For members whose sessions must outlast any pause of a busy machine."""


def test_clean_leaves(arena) -> None:
    """Members that join and leave cleanly, in threads or processes, repeat nothing."""
    one = arena.inside("a", **PATIENT)
    arena.wait_progress(one)
    two = arena.outside("b", **PATIENT)
    arena.settle()
    arena.wait_progress(two)
    three = arena.inside("c", **PATIENT)
    arena.settle()
    arena.wait_progress(three)
    two.leave()
    arena.settle()
    one.leave()
    arena.settle()
    arena.wait_progress(three)
    assert arena.finish() == 0


def test_session_expiry(arena) -> None:
    """A member whose session expires registers again with the same id and continues."""
    one, two = arena.inside("a"), arena.inside("b")
    arena.settle()
    bound = 0
    for victim in (one, two, one):
        arena.wait_progress(one)
        arena.wait_progress(two)
        old = victim.connector._zk.session_id
        stored = arena.watch.offsets(arena.topic)
        victim.expire()
        wait_until(
            lambda v=victim, o=old: v.connector._zk.session_id not in (0, o), HEAL, "a new session"
        )
        bound += arena.unstored(victim, stored) + 1
        arena.settle()
    # If other members are faster than the expired member, they take the partitions over at the
    # committed offset. That repeats the messages it had received since its last commit.
    assert arena.finish() <= bound


def test_expiry_of_the_only_member_repeats_nothing(arena) -> None:
    """If no other member takes over, an expired member continues at its position, not at the
    committed offset. At most the unacknowledged message is repeated."""
    one = arena.inside("a", auto_commit_interval_ms=60_000)
    arena.settle()
    arena.wait_progress(one, 200)
    one.expire()
    arena.settle()
    arena.wait_progress(one, 200)
    assert arena.finish() <= 1


def test_sigkill(arena) -> None:
    """A killed member's partitions have owners again within session timeout + 5 s. Only messages
    that it received after its last commit are repeated."""
    one, victim = arena.inside("a"), arena.outside("v")
    arena.settle()
    arena.wait_progress(victim, 100)
    stored = arena.watch.offsets(arena.topic)
    victim.kill()
    began = time.monotonic()
    arena.settle()
    assert time.monotonic() - began < HEAL
    arena.wait_progress(one, 100)
    assert arena.finish() <= arena.unstored(victim, stored) + 1


def test_sigstop_longer_than_the_session(arena) -> None:
    """A member is stopped until its session has expired. When it continues, other members own its
    partitions. It delivers no more fetched messages, except one that was on its way to the
    application. It commits nothing, and rejoins."""
    one, victim = arena.inside("a"), arena.outside("v")
    arena.settle()
    arena.wait_progress(victim, 100)
    stored = arena.watch.offsets(arena.topic)
    victim.signal(signal.SIGSTOP)
    before = len(victim.deliveries())
    victim.alive = False
    arena.settle()
    arena.wait_progress(one, 300)
    wait_until(
        lambda: all(
            at > found.offset + 1
            for p, at in arena.watch.offsets(arena.topic).items()
            for found in victim.deliveries()[-1:]
            if found.partition == p
        ),
        HEAL,
        "the new owner has committed more",
    )
    taken_over = arena.watch.offsets(arena.topic)
    victim.signal(signal.SIGCONT)
    victim.alive = True
    arena.settle()
    arena.wait_progress(victim, 100)
    late = victim.deliveries()[before:]
    stale = [found for found in late if found.offset < taken_over[found.partition]]
    assert len(stale) <= 1, stale
    assert arena.finish() <= arena.unstored(victim, stored) - arena.unstored(victim, taken_over) + 2


def test_zookeeper_restart(arena) -> None:
    """ZooKeeper is killed and restarted. Members keep their sessions and partitions, and repeat
    nothing. The session timeout is longer than a slow server's restart."""
    one, two = arena.inside("a", **PATIENT), arena.outside("b", **PATIENT)
    owners = arena.settle()
    arena.wait_progress(two)
    made = arena.watch.client.exists(arena.watch.paths.owner(TopicPartition(arena.topic, 0))).czxid
    server = arena.cluster.zookeeper_server
    server.kill()
    server.start()
    server.wait_ready()
    assert arena.settle() == owners
    arena.wait_progress(one)
    arena.wait_progress(two)
    found = arena.watch.client.exists(arena.watch.paths.owner(TopicPartition(arena.topic, 0)))
    assert found.czxid == made
    assert arena.finish() == 0


def test_broker_restart(arena) -> None:
    """The broker is stopped and restarted. Owners stay, reading continues, and nothing is
    repeated."""
    one, two = arena.inside("a", **PATIENT), arena.outside("b", **PATIENT)
    owners = arena.settle()
    arena.wait_progress(two)
    server = arena.cluster.broker_servers[0]
    server.stop(30)
    assert arena.watch.owners(arena.topic) == owners
    server.start()
    server.wait_ready()
    arena.wait_progress(one, 100)
    arena.wait_progress(two, 100)
    assert arena.settle() == owners
    assert arena.finish() == 0


def test_blip_shorter_than_the_session(arena) -> None:
    """A connection hangs for less than the session timeout. Delivery pauses after two thirds of the
    timeout and continues afterwards. Owners stay and nothing is repeated. The other member never
    pauses."""
    session = 12.0
    one = arena.inside("a", zookeeper_session_timeout_ms=12_000)
    two = arena.inside("b", zookeeper_session_timeout_ms=12_000)
    owners = arena.settle()
    arena.wait_progress(one)
    before = one.connector.metrics().suspended_seconds
    one.proxy.stall()
    began = time.monotonic()
    wait_until(
        lambda: one.connector.metrics().suspended_seconds > before, session, "delivery pauses"
    )
    shut = time.monotonic() - began
    assert session / 3 <= shut <= session * 5 / 6
    paused = len(one.deliveries())
    arena.wait_progress(two, 20)
    assert len(one.deliveries()) <= paused + 1
    one.proxy.resume()
    assert time.monotonic() - began < session
    arena.wait_progress(one, 20)
    assert arena.watch.owners(arena.topic) == owners
    pause = max(b.at - a.at for a, b in zip(one.deliveries(), one.deliveries()[1:], strict=False))
    assert pause >= 0.1
    assert arena.finish() == 0


def test_connection_cut(arena) -> None:
    """Connections that break and reconnect at once disturb no member, even if they do so often."""
    one, two = arena.inside("a", **PATIENT), arena.inside("b", **PATIENT)
    owners = arena.settle()
    for _ in range(10):
        arena.wait_progress(one, 5)
        one.proxy.cut()
        two.proxy.cut()
    arena.wait_progress(two)
    assert arena.settle() == owners
    assert arena.finish() == 0


def test_former_owner_is_fenced(arena) -> None:
    """Another client takes a member's owner znode while the member's session is alive. The new
    owner's claim changed the offset znode's version, so the member can no longer store offsets. It
    gets an error, drops the partition, and continues with the others."""
    unasked = {"zkconsumer_reread_interval_ms": 600_000}  # else it may notice before it commits
    one = arena.inside("a", auto_commit_enable="false", **PATIENT, **unasked)
    arena.settle()
    arena.wait_progress(one, 60)
    lost, kept = TopicPartition(arena.topic, 0), TopicPartition(arena.topic, 1)
    one.connector.commit_offsets({lost: 3, kept: 3})
    client, paths = arena.watch.client, arena.watch.paths
    claim = client.transaction()
    claim.delete(paths.owner(lost))
    claim.create(paths.owner(lost), b"somebody-0", ephemeral=True)
    claim.set_data(paths.offset(lost), b"3")
    assert not [found for found in claim.commit() if isinstance(found, Exception)]
    with pytest.raises(CommitFailedError, match=f"{lost}: owned by another member now"):
        one.connector.commit_offsets({lost: 5, kept: 5})
    assert arena.watch.offsets(arena.topic) == {0: 3, 1: 5}
    before = len(one.reader.offsets(0))
    arena.wait_progress(one, 60)
    assert len(one.reader.offsets(0)) == before
    client.delete(paths.owner(lost))
    arena.settle()
    # It starts from the stored offset, as any new owner does.
    wait_until(
        lambda: one.reader.offsets(0)[before : before + 2] == [3, 4], HEAL, "the partition is read"
    )
    one.connector.commit_offsets()
    assert arena.watch.lowered == []


def test_partition_added(arena) -> None:
    """Partitions added under load get owners and are read from their first message."""
    one, two = arena.inside("a", **PATIENT), arena.outside("b", **PATIENT)
    arena.settle()
    arena.cluster.add_partitions(arena.topic, 9)
    arena.partitions = 9
    arena.producer.set_partitions(range(9))
    arena.settle()
    wait_until(lambda: {p for p, _ in arena.seen()} == set(range(9)), HEAL, "all are read")
    arena.wait_progress(one)
    arena.wait_progress(two)
    assert arena.finish() == 0


def test_topics_come_and_go_under_a_filter(arena) -> None:
    """Topics that are created and deleted under a filter do not disturb the others. No message of
    the remaining topic is lost or repeated."""
    pattern = f"/{arena.topic}.*"
    one, two = arena.inside("a", pattern, **PATIENT), arena.outside("b", pattern, **PATIENT)
    arena.settle()
    for number in range(2):
        extra = f"{arena.topic}-extra{number}"
        arena.cluster.create_topic(extra, 2)
        arena.watch.wait_owners(
            extra, lambda found: len(set(found.values())) == 2, HEAL, "the new topic is shared"
        )
        arena.wait_progress(one)
        arena.cluster.delete_topic(extra)
        arena.watch.wait_owners(extra, lambda found: not found, HEAL, "the topic is let go")
        arena.wait_progress(two)
    arena.settle()
    assert arena.finish() == 0
