"""Held-out incidents that are also labelled for a log that begins late.

Their author had not read the rules, and did not know their mistakes. The labels of both variants
are from the reference and the how-to alone, and were written before the first audit. A label that
was corrected later says so in a comment.

The late log begins at ``yield``. A label of ``late`` is there if that log alone shows the fault:
its members, owners and offsets are from after the ``yield``, or the end of a session lists them.
"""

# ruff: noqa: D103 - the name and the steps say what happens

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from kazoo.exceptions import NodeExistsError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE

from tests.audit.corpus.held_out import (
    Live,
    Operator,
    expired,
    live,
    migrate,
    mode_text,
    set_all,
    stages,
)
from tests.audit.corpus.held_out_ownership import (
    claim_as,
    configured,
    reading,
    refused,
    release_anything,
    topic_of,
)
from tests.audit.corpus.incidents import LIMITS, Corpus, Member, Scene, one, two, wait, write

HELD_OUT_LATE = Corpus("held_out_late", {**LIMITS, "standstill_seconds": 5.0})
incident = HELD_OUT_LATE.incident

Share = tuple[Member, tuple[int, ...]]
"""A member and its partitions."""


def start(*shares: Share) -> None:
    """Each member claims its partitions and delivers 100 messages of each."""
    for member, partitions in shares:
        for partition in partitions:
            member.claim(partition).commit(partition, 10, 100)


def rebalance(old: Iterable[Share], new: Iterable[Share]) -> None:
    """All members release what they own. Then all claim."""
    for member, partitions in old:
        member.release(*partitions)
    for member, partitions in new:
        member.claim(*partitions)


def commit_all(offset: int, *shares: Share) -> None:
    """Each member commits the same offset for all its partitions."""
    for member, partitions in shares:
        for partition in partitions:
            member.commit(partition, offset)


def guarded(s: Scene) -> tuple[Delete, Create]:
    """Parts of a multi that succeed only while no member is registered."""
    return Delete(f"{s.base}/ids", -1), Create(f"{s.base}/ids", b"", OPEN_ACL_UNSAFE, 0)


def share_a_topic(s: Scene) -> None:
    """Let the scene use a topic that another group reads too."""
    s.topic = "t-shared-clicks"
    s.parents(f"{s.base}/owners/{s.topic}")
    s.parents(f"{s.base}/offsets/{s.topic}")
    with contextlib.suppress(NodeExistsError):
        s.create_topic()


# Nothing wrong: members come and go.


@incident(partitions=3)
def billing(s: Scene) -> Iterator[None]:
    """Each new process starts before an old one stops. The first was replaced a day before."""
    a, b, c = (s.member(name) for name in "abc")
    start((a, (0,)), (b, (1,)), (c, (2,)))
    d = s.member("d")
    rebalance(((a, (0,)), (b, (1,)), (c, (2,))), ((a, (0,)), (b, (1,)), (c, (2,))))
    a.commit(0, 120).leave()
    rebalance(((b, (1,)), (c, (2,))), ((b, (0,)), (c, (1,)), (d, (2,))))
    commit_all(130, (b, (0,)), (c, (1,)), (d, (2,)))
    yield
    e = s.member("e")
    commit_all(140, (b, (0,)), (c, (1,)), (d, (2,)))
    rebalance(((b, (0,)), (c, (1,)), (d, (2,))), ((b, (0,)), (c, (1,)), (d, (2,))))
    b.commit(0, 150).leave()
    c.commit(1, 150)
    rebalance(((c, (1,)), (d, (2,))), ((c, (0,)), (d, (1,)), (e, (2,))))
    commit_all(160, (c, (0,)), (d, (1,)), (e, (2,)))


@incident(partitions=4)
def billing_eu(s: Scene) -> Iterator[None]:
    """The group stops in the evening. It starts the next day with other processes."""
    a, b = s.member("a"), s.member("b")
    start((a, (0, 1)), (b, (2, 3)))
    commit_all(130, (a, (0, 1)), (b, (2, 3)))
    a.leave()
    b.leave()
    yield
    wait(1)
    x, y = s.member("x"), s.member("y")
    x.claim(0, 1)
    y.claim(2, 3)
    commit_all(135, (x, (0, 1)), (y, (2, 3)))


@incident(partitions=3)
def old_session_expires_late(s: Scene) -> Iterator[None]:
    """The process had registered long before. It dies, and the other member takes over."""
    a, b = s.member("a", timeout=14_000), s.member("b")
    start((a, (0, 1)), (b, (2,)))
    yield
    expired(s, a)
    rebalance(((b, (2,)),), ((b, (0, 1, 2)),))
    commit_all(120, (b, (0, 1, 2)))


@incident()
def lonely_member_renews_its_session(s: Scene) -> Iterator[None]:
    """No other member could take over. The process reads some messages again."""
    one(s).leave()
    yield
    a = s.member("a", timeout=3000).claim(0, 1).commit(0, 110).commit(1, 110)
    expired(s, a)
    wait(1)
    again = s.member("a").claim(0, 1)
    commit_all(120, (again, (0, 1)))


@incident()
def topic_name_with_a_typo(s: Scene) -> Iterator[None]:
    """A new member subscribes to a topic that does not exist, and stays."""
    a = one(s)
    yield
    s.member("b", subscription={"t-topic_nmae_with_a_typo": 2})
    a.commit(0, 110).commit(1, 110)
    rebalance(((a, (0, 1)),), ((a, (0, 1)),))
    a.commit(0, 130).commit(1, 130)
    wait(1)
    a.commit(0, 140)


@incident(partitions=3)
def monitor_registers_without_topics(s: Scene) -> Iterator[None]:
    """The monitor has an empty subscription, and comes twice. All members rebalance each time."""
    a, b = s.member("a"), s.member("b")
    shares = ((a, (0, 1)), (b, (2,)))
    start(*shares)
    yield
    for n in range(2):
        monitor = s.member("m", subscription={})
        commit_all(110 + 10 * n, *shares)
        rebalance(shares, shares)
        wait(0.5)
        monitor.leave()
        rebalance(shares, shares)
    commit_all(140, *shares)


@incident(partitions=4)
def scale_in_to_one(s: Scene) -> Iterator[None]:
    a, b, c, d = (s.member(name) for name in "abcd")
    start((a, (0,)), (b, (1,)), (c, (2,)), (d, (3,)))
    yield
    d.commit(3, 110).leave()
    rebalance(((a, (0,)), (b, (1,)), (c, (2,))), ((a, (0, 1)), (b, (2,)), (c, (3,))))
    c.commit(3, 120).leave()
    rebalance(((a, (0, 1)), (b, (2,))), ((a, (0, 1)), (b, (2, 3))))
    b.commit(2, 120).commit(3, 130).leave()
    rebalance(((a, (0, 1)),), ((a, (0, 1, 2, 3)),))
    commit_all(140, (a, (0, 1, 2, 3)))


@incident(partitions=1)
def five_members_take_turns(s: Scene) -> Iterator[None]:
    """Four of five members are spares. The owner stops three times."""
    a, b, c, d, e = (s.member(name) for name in "abcde")
    a.claim(0).commit(0, 10, 100)
    yield
    e.session.exists(e.path)  # keeps the session open
    a.commit(0, 110).leave()
    b.claim(0).commit(0, 120)
    wait(0.5)
    b.leave()
    c.claim(0).commit(0, 130)
    wait(0.5)
    c.commit(0, 140).leave()
    d.claim(0).commit(0, 150)


@incident(partitions=3)
def odd_consumer_ids(s: Scene) -> Iterator[None]:
    """The operators choose ``consumer.id``: a number, a negative number, and a host's name."""
    ids = ("-1", "42", "host.example.com-0")
    first, second, third = (configured(s, name, streams=1) for name in ids)
    for number, member in enumerate((first, second, third)):
        claim_as(member, 0, number)
        member.commit(number, 10, 100)
    yield
    second.commit(1, 110).leave()
    first.commit(0, 110).release(0)
    third.commit(2, 110).release(2)
    claim_as(first, 0, 0, 1)
    claim_as(third, 0, 2)
    first.commit(1, 120)
    wait(0.5)
    second = configured(s, "42", streams=1)
    first.commit(1, 125).release(0, 1)
    third.release(2)
    for number, member in enumerate((first, second, third)):
        claim_as(member, 0, number)
        member.commit(number, 130)


@incident()
def nightly_job(s: Scene) -> Iterator[None]:
    """A job reads what is there and stops, twice before and twice after."""

    def run(n: int) -> None:
        job = s.member(f"run{n}").claim(0, 1)
        wait(0.3)
        job.commit(0, 100 * n).commit(1, 110 * n)
        job.leave()

    run(1)
    wait(0.5)
    run(2)
    yield
    run(3)
    wait(2)
    run(4)


@incident(partitions=1)
def spare_expires_once_a_day(s: Scene) -> Iterator[None]:
    a = s.member("a").claim(0).commit(0, 10, 100)
    spare = s.member("z", timeout=2000)
    expired(s, spare)
    a.release(0).claim(0).commit(0, 110)
    yield
    spare = s.member("z", timeout=2000)
    a.commit(0, 120).release(0).claim(0)
    expired(s, spare)
    a.commit(0, 130).release(0).claim(0)
    s.member("z")
    a.commit(0, 140).release(0).claim(0)


@incident(partitions=3)
def returns_with_two_streams(s: Scene) -> Iterator[None]:
    """A process is started again with another number of streams."""
    a, b = s.member("a"), s.member("b")
    start((a, (0, 1)), (b, (2,)))
    yield
    a.commit(0, 110).commit(1, 110).leave()
    rebalance(((b, (2,)),), ((b, (0, 1, 2)),))
    b.commit(0, 115).commit(2, 110)
    again = s.member("a", subscription={s.topic: 2})
    b.release(0, 1, 2)
    claim_as(again, 0, 0)
    claim_as(again, 1, 1)
    b.claim(2)
    commit_all(130, (again, (0, 1)), (b, (2,)))


@incident(partitions=4)
def joiner_waits_for_a_slow_owner(s: Scene) -> Iterator[None]:
    """Three attempts of the new member fail while the owner finishes its work."""
    a = s.member("a").claim(0, 1, 2, 3)
    commit_all(100, (a, (0, 1, 2, 3)))
    yield
    b = s.member("b")
    for _ in range(3):
        refused(b, 2, 3)
        wait(0.3)
    commit_all(120, (a, (0, 1, 2, 3)))
    rebalance(((a, (0, 1, 2, 3)),), ((a, (0, 1)), (b, (2, 3))))
    commit_all(130, (a, (0, 1)), (b, (2, 3)))


@incident(partitions=3)
def members_that_tidy_up(s: Scene) -> Iterator[None]:
    """A member deletes its owner znodes and its registration before it closes its session."""
    a, b, c = (s.member(name) for name in "abc")
    start((a, (0,)), (b, (1,)), (c, (2,)))
    yield
    c.commit(2, 120).release(2).unregister()
    c.leave()
    rebalance(((a, (0,)), (b, (1,))), ((a, (0, 1)), (b, (2,))))
    commit_all(130, (a, (0, 1)), (b, (2,)))
    wait(0.5)
    b.commit(2, 140).release(2).unregister()
    b.leave()
    rebalance(((a, (0, 1)),), ((a, (0, 1, 2)),))
    commit_all(150, (a, (0, 1, 2)))


@incident(partitions=3)
def replicas_are_reassigned(s: Scene) -> Iterator[None]:
    """The topic's znode is written twice with the same partitions. All rebalance each time."""
    a, b = s.member("a"), s.member("b")
    shares = ((a, (0, 1)), (b, (2,)))
    start(*shares)
    yield
    for n in range(2):
        s.add_partitions(3)
        commit_all(110 + 10 * n, *shares)
        rebalance(shares, shares)
        wait(0.5)
    commit_all(130, *shares)


@incident()
def restarts_without_its_second_topic(s: Scene) -> Iterator[None]:
    """The other member still reads the second topic, and takes all of it."""
    other = topic_of(s, "other", partitions=2)
    both = {s.topic: 1, other.topic: 1}
    a, b = (s.member(name, subscription=both) for name in "ab")
    a2, b2 = reading(a, other), reading(b, other)
    start((a, (0,)), (a2, (0,)), (b, (1,)), (b2, (1,)))
    yield
    a.commit(0, 110)
    a2.commit(0, 110)
    a.leave()
    rebalance(((b, (1,)), (b2, (1,))), ((b, (0, 1)), (b2, (0, 1))))
    commit_all(120, (b, (0, 1)), (b2, (0, 1)))
    again = s.member("a")
    rebalance(((b, (0, 1)), (b2, (0, 1))), ((again, (0,)), (b, (1,)), (b2, (0, 1))))
    commit_all(140, (again, (0,)), (b, (1,)), (b2, (0, 1)))


# Nothing wrong: topics, offsets and tools.


@incident()
def filter_group_loses_a_topic(s: Scene) -> Iterator[None]:
    regex = "t-filter_group_loses.*"
    old = Scene(s.address, s.group, partitions=1, topic="t-filter_group_loses_old")
    a, b = (s.member(name, pattern="white_list", subscription=regex) for name in "ab")
    start((a, (0,)), (b, (1,)), (reading(a, old), (0,)))
    yield
    old.delete_topic()
    a.commit(0, 110).release(0)
    reading(a, old).release(0)
    b.commit(1, 110).release(1)
    a.claim(0).commit(0, 120)
    b.claim(1).commit(1, 120)


@incident()
def recreated_before_its_first_message(s: Scene) -> Iterator[None]:
    """An operator chooses another replication factor. The group has no offsets yet."""
    a = s.member("a").claim(0, 1)
    yield
    s.delete_topic()
    s.create_topic()
    a.release(0, 1).claim(0, 1).commit(0, 3).commit(1, 4)
    a.commit(0, 20).commit(1, 30)


@incident()
def partitions_added_twice(s: Scene) -> Iterator[None]:
    a, b = two(s)
    s.add_partitions(4)
    rebalance(((a, (0,)), (b, (1,))), ((a, (0, 1)), (b, (2, 3))))
    commit_all(110, (a, (0, 1)))
    commit_all(10, (b, (2, 3)))
    yield
    s.add_partitions(8)
    a.commit(0, 120)
    rebalance(((a, (0, 1)), (b, (2, 3))), ((a, (0, 1, 2, 3)), (b, (4, 5, 6, 7))))
    commit_all(130, (a, (0, 1, 2, 3)))
    commit_all(5, (b, (4, 5, 6, 7)))


@incident()
def tools_look_and_create_parents(s: Scene) -> Iterator[None]:
    """A monitoring tool makes sure every minute that the parents exist, and writes nothing."""
    a, b = two(s)
    yield
    for n in range(8):
        tool = s.tool()
        for path in (s.base, f"{s.base}/ids", f"{s.base}/offsets", f"{s.base}/owners"):
            with contextlib.suppress(NodeExistsError):
                tool.create(path)
        tool.exists(s.offset(0))
        tool.close()
        a.commit(0, 110 + n)
        b.commit(1, 110 + n)
        wait(0.2)


@incident()
def first_offsets_are_imported(s: Scene) -> Iterator[None]:
    """The import succeeds only while no member is registered. Then the new group starts."""
    yield
    tool = s.tool()
    tool.multi(*guarded(s))
    tool.create(s.offset(0), b"5000")
    tool.create(s.offset(1), b"6000")
    tool.close()
    a, b = s.member("a").claim(0), s.member("b").claim(1)
    a.commit(0, 5010)
    b.commit(1, 6010)


@incident()
def unchanged_offsets_are_written_again(s: Scene) -> Iterator[None]:
    """Consumers of version 0.8.0 write an offset even if it has not changed."""
    a, b = two(s)
    yield
    for n in range(6):
        a.commit(0, 110 + n)
        b.commit(1, 100)
        wait(0.2)
    b.leave()
    rebalance(((a, (0,)),), ((a, (0, 1)),))
    a.commit(0, 115).commit(1, 100)
    c = s.member("c")
    a.commit(0, 115).commit(1, 100)
    rebalance(((a, (0, 1)),), ((a, (0,)), (c, (1,))))
    a.commit(0, 120)
    c.commit(1, 100)


@incident()
def backlog_after_a_long_outage(s: Scene) -> Iterator[None]:
    """The producer was quiet for hours, then sends much. The consumer reads it in seconds."""
    a = one(s)
    yield
    wait(3)
    a.commit(0, 200_000).commit(1, 110)
    wait(2)
    a.commit(0, 260_000).commit(1, 60_000)


@incident()
def clicks_daily(s: Scene) -> Iterator[None]:
    """Group ``clicks_hourly`` reads the same topic, and has another offset."""
    share_a_topic(s)
    a, b = s.member("a"), s.member("b")
    start((a, (0,)), (b, (1,)))
    yield
    commit_all(700, (a, (0,)), (b, (1,)))
    b.commit(1, 720).leave()
    rebalance(((a, (0,)),), ((a, (0, 1)),))
    commit_all(750, (a, (0, 1)))


@incident(chroot="/sites/eu/kafka")
def fenced_claims_in_a_deep_chroot(s: Scene) -> Iterator[None]:
    """A member expires. The other one claims in a transaction that writes the offset unchanged."""
    twin = one(Scene(s.address, s.group, "/sites/us/kafka"))
    yield
    a = s.member("a", timeout=3000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10, 100)
    expired(s, a)
    b.session.multi(
        CheckVersion(b.path, 0),
        Delete(s.owner(1), -1),
        SetData(s.offset(1), b"120", -1),
    )
    for partition, offset in ((0, b"100"), (1, b"120")):
        b.session.multi(
            CheckVersion(b.path, 0),
            Create(s.owner(partition), f"{b.id}-0".encode(), OPEN_ACL_UNSAFE, 1),
            SetData(s.offset(partition), offset, -1),
        )
    b.commit(0, 140).commit(1, 140)
    twin.commit(0, 110).commit(1, 5000)


# Nothing wrong: moves.


@incident()
def move_is_rolled_back_next_day(s: Scene) -> Iterator[None]:
    one(s).leave()
    migrate(s, "kafka")
    yield
    migrate(s, "zookeeper", 150)
    x = s.member("x").claim(0, 1)
    commit_all(170, (x, (0, 1)))


@incident(partitions=3)
def dry_run_of_a_move(s: Scene) -> Iterator[None]:
    """The tool registers and claims, so that nothing can start. Then it changes its mind."""
    a = s.member("a")
    start((a, (0, 1, 2)))
    yield
    a.commit(0, 110)
    a.leave()
    mover = s.member("zkmigrate", subscription={}).claim(0, 1, 2)
    wait(0.5)
    mover.release(0, 1, 2)
    mover.leave()
    b = s.member("b").claim(0, 1, 2)
    commit_all(120, (b, (0, 1, 2)))


@incident()
def live_back_again_next_day(s: Scene) -> Iterator[None]:
    """An old consumer joins when the group is unlocked again."""
    a, b = live(s)
    done = stages(s, "locked kafka open", 0, a, b)
    yield
    a.commit(0, 140)
    b.commit(1, 140)
    stages(s, "kafka locked zookeeper", done, a, b)
    a.commit(0, 150)
    b.commit(1, 150)
    s.member("old")


@incident()
def live_member_lost_in_open(s: Scene) -> Iterator[None]:
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b", timeout=6000).acknowledge(0)
    start((a, (0,)), (b, (1,)))
    done = stages(s, "locked kafka open", 0, a, b)
    expired(s, b)
    a.claim(1).commit(1, 110).commit(0, 110)
    again = Live(s, "b").acknowledge(done)
    a.commit(1, 120).release(1)
    again.claim(1).commit(1, 130)


@incident()
def live_members_replace_old_ones(s: Scene) -> Iterator[None]:
    """Two old consumers are replaced one at a time. Then the group moves."""
    a, b = two(s)
    yield
    a.commit(0, 110).leave()
    b.commit(1, 110).release(1).claim(0, 1)
    c = Live(s, "c").acknowledge(0)
    rebalance(((b, (0, 1)),), ((b, (0,)), (c, (1,))))
    b.commit(0, 120).leave()
    c.commit(1, 120).release(1).claim(0, 1)
    d = Live(s, "d").acknowledge(0)
    rebalance(((c, (0, 1)),), ((c, (0,)), (d, (1,))))
    stages(s, "locked kafka open", 0, c, d)
    c.commit(0, 130)
    d.commit(1, 130)


@incident()
def live_lock_is_called_off(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    stages(s, "locked zookeeper", 0, a, b)
    s.member("old").leave()
    a.commit(0, 130)
    b.commit(1, 130)


# Offsets that members write.


# The end of a session lists what it owned, and that it was a member. So the late log shows who the
# owner was.
@incident("zombie commit/repaired")
def sessions_end_and_name_the_zombie(s: Scene) -> Iterator[None]:
    a, b, c = (s.member(name) for name in "abc")
    start((a, (0,)), (b, (1,)))
    a.commit(0, 110).release(0)
    c.claim(0).commit(0, 150)
    yield
    a.commit(0, 130)
    c.commit(0, 170)
    b.commit(1, 120)
    a.leave()
    rebalance(((b, (1,)),), ((b, (1,)),))
    c.commit(0, 175).leave()
    rebalance(((b, (1,)),), ((b, (0, 1)),))
    b.commit(0, 180)


@incident("zombie commit/repeated/120", partitions=3)
def old_thread_lowers_before_the_handover(s: Scene) -> Iterator[None]:
    """A member returns after an expiry. Its old thread commits, and then it gets the partition."""
    yield
    a, b = s.member("a", timeout=3000), s.member("b")
    start((a, (0, 1)), (b, (2,)))
    expired(s, a)
    rebalance(((b, (2,)),), ((b, (0, 1, 2)),))
    commit_all(300, (b, (0, 1, 2)))
    again = s.member("a")
    again.commit(0, 180)
    rebalance(((b, (0, 1, 2)),), ((again, (0, 1)), (b, (2,))))
    again.commit(0, 250).commit(1, 320)
    b.commit(2, 320)


@incident("orphan commit", "orphan commit", partitions=3)
def position_stored_after_the_release(s: Scene) -> Iterator[None]:
    """Two members commit when they have already released."""
    yield
    a, b, c = (s.member(name) for name in "abc")
    start((a, (0,)), (b, (1,)), (c, (2,)))
    c.commit(2, 110).leave()
    a.release(0).commit(0, 150)
    b.release(1).commit(1, 160)
    a.claim(0, 1)
    b.claim(2)
    commit_all(180, (a, (0, 1)), (b, (2,)))


@incident("offset jump", "offset jump", "offset jump", partitions=3)
def seeks_to_the_end(s: Scene) -> Iterator[None]:
    yield
    a = s.member("a")
    start((a, (0, 1, 2)))
    wait(0.3)
    for partition in range(3):
        a.commit(partition, 60_000_000 + partition, 60_000_050)


# The offset before the first jump is not in the late log.
@incident("offset jump", "offset jump", late=("offset jump",))
def first_of_two_jumps_is_hidden(s: Scene) -> Iterator[None]:
    a = one(s)
    a.commit(0, 120)
    yield
    a.commit(0, 90_000_000).commit(1, 130)
    wait(0.3)
    a.commit(1, 70_000_000).commit(0, 90_000_100)


@incident("offset regression/repeated/500")
def consumer_rewinds_itself(s: Scene) -> Iterator[None]:
    """The application seeks back to read one hour again."""
    yield
    a, b = s.member("a"), s.member("b")
    start((a, (0,)), (b, (1,)))
    wait(0.5)
    a.commit(0, 900)
    b.commit(1, 900)
    for offset in (400, 600, 800, 950):
        a.commit(0, offset)
        wait(0.2)
    b.commit(1, 950)


# The pages do not say what the effect is when the late log does not show the owner.
@incident("offset regression/repeated/300", late=("offset regression",))
def owner_from_before_rewinds(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 500).commit(1, 500)
    a.commit(0, 200, 260)


@incident("offset of a deleted topic/lost/500", late=(), partitions=1)
def recreated_later_and_not_reset(s: Scene) -> Iterator[None]:
    """The topic is deleted one day and created the next. The late log has only its creation."""
    a = s.member("a").claim(0).commit(0, 10)
    wait(0.5)
    a.commit(0, 500)
    s.delete_topic()
    yield
    s.create_topic()
    a.release(0).claim(0).commit(0, 520)


@incident("offset of a deleted topic/lost/110", "offset of a deleted topic/lost/140")
def recreated_while_stopped(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).commit(1, 140)
    a.leave()
    s.delete_topic()
    s.create_topic()
    x = s.member("x").claim(0, 1)
    x.commit(0, 130).commit(1, 150)


@incident("commit past the end of a move", late=())
def started_after_yesterdays_move(s: Scene) -> Iterator[None]:
    """An old job starts a day after the move. The late log does not show the marker."""
    one(s).leave()
    migrate(s, "kafka")
    yield
    job = s.member("job").claim(0, 1).commit(0, 140)
    wait(0.5)
    job.leave()


@incident("commit past the end of a move", partitions=1)
def init_script_starts_the_old_program(s: Scene) -> Iterator[None]:
    s.member("a").claim(0).commit(0, 10, 100).leave()
    yield
    migrate(s, "kafka")
    wait(0.5)
    old = s.member("a").claim(0).commit(0, 110, 120, 130)
    old.leave()


# Offsets that tools write.


@incident("lost messages/lost/290", "lost messages/lost/790", partitions=3)
def two_of_three_raised(s: Scene) -> Iterator[None]:
    a = s.member("a")
    start((a, (0, 1, 2)))
    yield
    commit_all(110, (a, (0, 1, 2)))
    a.leave()
    t = s.tool()
    write(t, s.offset(0), 400)
    write(t, s.offset(1), 900)
    t.close()
    x = s.member("x").claim(0, 1, 2)
    x.commit(0, 420).commit(1, 930).commit(2, 130)


@incident("lost messages/lost/5", "lost messages/lost/5")
def poisoned_messages_are_skipped(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 110)
    b.commit(1, 110)
    a.leave()
    b.leave()
    t = s.tool()
    set_all(t, s, 115)
    t.close()
    a, b = s.member("a").claim(0), s.member("b").claim(1)
    a.commit(0, 140)
    b.commit(1, 140)


@incident(
    "lost messages/lost/400",
    "lost messages/lost/400",
    "lost messages/lost/400",
)
def new_topic_is_skipped(s: Scene) -> Iterator[None]:
    yield
    new = topic_of(s, "new", partitions=3)
    a = new.member("a")
    start((a, (0, 1, 2)))
    a.leave()
    t = s.tool()
    set_all(t, new, 500)
    t.close()
    x = new.member("x").claim(0, 1, 2)
    commit_all(520, (x, (0, 1, 2)))


@incident("lost messages/lost/200", "offset regression/repeated/60", partitions=3)
def raised_here_and_lowered_there(s: Scene) -> Iterator[None]:
    """An operator imports an old dump, in which one partition has a typo."""
    a = s.member("a")
    start((a, (0, 1, 2)))
    yield
    commit_all(110, (a, (0, 1, 2)))
    a.leave()
    t = s.tool()
    t.multi(*guarded(s), SetData(s.offset(0), b"310", -1), SetData(s.offset(1), b"50", -1))
    t.close()
    x, y = s.member("x").claim(0, 1), s.member("y").claim(2)
    x.commit(0, 330).commit(1, 130)
    y.commit(2, 130)


@incident("offset regression/repeated/60")
def clicks_hourly(s: Scene) -> Iterator[None]:
    """Group ``clicks_daily`` reads the same topic. Its offsets stay as they are."""
    share_a_topic(s)
    a = one(s)
    yield
    a.commit(0, 110).commit(1, 110)
    a.leave()
    t = s.tool()
    write(t, s.offset(1), 50)
    t.close()
    b = s.member("b").claim(0, 1)
    b.commit(0, 130).commit(1, 80)


@incident("tool write/none", "tool write/none")
def prepared_but_never_started(s: Scene) -> Iterator[None]:
    one(s).leave()
    yield
    t = s.tool()
    set_all(t, s, 400)
    t.close()


# The late log does not show whether the offset was raised or lowered. The pages do not say which
# finding that is.
@incident("lost messages/lost/600", late=(), may=("lost messages", "tool write"))
def raised_from_an_unknown_offset(s: Scene) -> Iterator[None]:
    one(s).leave()
    yield
    t = s.tool()
    write(t, s.offset(0), 700)
    t.close()
    x = s.member("x").claim(0, 1)
    x.commit(0, 720).commit(1, 120)


@incident("lost messages/lost/400", "zombie commit/repaired", late=("zombie commit/repaired",))
def monday_and_tuesday(s: Scene) -> Iterator[None]:
    """On Monday a tool raises an offset. On Tuesday a member commits after a rebalance."""
    one(s).leave()
    t = s.tool()
    write(t, s.offset(0), 500)
    t.close()
    x = s.member("x").claim(0, 1).commit(0, 520).commit(1, 120)
    yield
    y = s.member("y")
    x.commit(0, 540).commit(1, 130)
    rebalance(((x, (0, 1)),), ((x, (0,)), (y, (1,))))
    y.commit(1, 150)
    x.commit(1, 140)
    y.commit(1, 170)
    x.commit(0, 560).leave()
    rebalance(((y, (1,)),), ((y, (0, 1)),))
    y.commit(0, 570)


@incident("claim contention", "tool write/repaired", late=("tool write/repaired",), partitions=10)
def contention_before_and_tool_after(s: Scene) -> Iterator[None]:
    a = s.member("a")
    start((a, tuple(range(10))))
    b = s.member("b")
    for _ in range(6):
        refused(b, *range(5, 10))
        wait(0.1)
    rebalance(((a, tuple(range(10))),), ((a, tuple(range(5))), (b, tuple(range(5, 10)))))
    commit_all(120, (a, tuple(range(5))), (b, tuple(range(5, 10))))
    yield
    c = s.member("c")
    refused(c, 7, 8, 9)
    a.commit(0, 130).release(*range(5))
    b.commit(5, 130).release(*range(5, 10))
    a.claim(0, 1, 2, 3)
    b.claim(4, 5, 6)
    c.claim(7, 8, 9).commit(7, 140)
    t = s.tool()
    write(t, s.offset(8), 1)
    t.close()
    c.commit(8, 150).commit(7, 150)


# Owners that are missing, wrong or contested.


@incident("foreign release", "foreign release", partitions=3)
def stale_list_of_a_returning_member(s: Scene) -> Iterator[None]:
    """The returning member releases what it owned in its old session: two fresh claims."""
    yield
    a = s.member("a", timeout=3000)
    b, c = s.member("b"), s.member("c")
    start((a, (0,)), (b, (1,)), (c, (2,)))
    c.leave()
    rebalance(((a, (0,)), (b, (1,))), ((a, (0, 1)), (b, (2,))))
    a.commit(0, 110).commit(1, 110)
    expired(s, a)
    rebalance(((b, (2,)),), ((b, (0, 1, 2)),))
    commit_all(130, (b, (0, 1, 2)))
    again = s.member("a")
    release_anything(again, 0, 1)
    release_anything(b, 0, 1, 2)
    again.claim(0, 1)
    b.claim(2)
    commit_all(150, (again, (0, 1)), (b, (2,)))


@incident("foreign release", "orphan commit")
def script_frees_an_owner_from_before(s: Scene) -> Iterator[None]:
    """The owner commits, then notices and claims again."""
    a, b = two(s)
    yield
    b.commit(1, 110)
    script = s.tool()
    script.delete(s.owner(1))
    script.close()
    b.commit(1, 130)
    b.claim(1).commit(1, 150)
    a.commit(0, 150)
    b.leave()
    rebalance(((a, (0,)),), ((a, (0, 1)),))
    a.commit(1, 160)


@incident("one consumer id on two sessions", "one consumer id on two sessions")
def client_with_two_connections(s: Scene) -> Iterator[None]:
    """A home-made client registers with one session, and claims and commits with another."""
    yield
    a = s.member("a")
    worker = s.member("a", register=False)
    start((worker, (0, 1)))
    wait(0.5)
    commit_all(120, (worker, (0, 1)))
    worker.leave()
    a.leave()


@incident("unowned interval", "unowned interval")
def listener_raises_in_a_rebalance(s: Scene) -> Iterator[None]:
    """The member releases, and its listener raises in all attempts. The next joiner helps."""
    yield
    a = s.member("a")
    start((a, (0, 1)))
    spare = s.member("x", subscription={})
    a.commit(0, 110).commit(1, 110).release(0, 1)
    wait(6.5)
    spare.leave()
    b = s.member("b")
    a.claim(0).commit(0, 120)
    b.claim(1).commit(1, 120)


@incident("unowned interval")
def new_partition_goes_unnoticed(s: Scene) -> Iterator[None]:
    """A member of version 0.8.0 does not see the new partition until another member joins."""
    yield
    new = topic_of(s, "new", partitions=2)
    a = new.member("a")
    start((a, (0, 1)))
    new.add_partitions(3)
    wait(6.5)
    b = new.member("b")
    rebalance(((a, (0, 1)),), ((a, (0, 1)), (b, (2,))))
    a.commit(0, 110)
    b.commit(2, 30)


# The late log does not show that the member is subscribed.
@incident("unowned interval", late=())
def member_from_before_is_slow(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    b.commit(1, 110).release(1)
    wait(6.5)
    b.claim(1).commit(1, 120)
    a.commit(0, 120)


# Each topic has one partition. ``range`` gives both to the first member, ``roundrobin`` one to
# each. So no member certainly has less than its share.
@incident("orphan partition", partitions=1)
def returning_member_claims_nothing(s: Scene) -> Iterator[None]:
    yield
    other = topic_of(s, "other")
    subscription = {s.topic: 1, other.topic: 1}
    a = s.member("a", subscription=subscription)
    b = s.member("b", timeout=3000, subscription=subscription)
    start((a, (0,)), (reading(b, other), (0,)))
    expired(s, b)
    s.member("b", subscription=subscription)
    a.commit(0, 120)


# The late log does not show the topic or the subscriptions.
@incident("orphan partition", late=(), partitions=1)
def second_topic_is_never_claimed(s: Scene) -> Iterator[None]:
    other = topic_of(s, "other")
    subscription = {s.topic: 1, other.topic: 1}
    a, b = (s.member(name, subscription=subscription) for name in "ab")
    start((a, (0,)))
    yield
    b.session.exists(b.path)  # keeps the session open
    a.commit(0, 120)


@incident("member without its share", late=(), partitions=6)
def joiner_that_gave_up(s: Scene) -> Iterator[None]:
    """Four attempts fail, because the others have missed the event. The member stays."""
    a, b = s.member("a"), s.member("b")
    start((a, (0, 1, 2)), (b, (3, 4, 5)))
    c = s.member("c")
    for _ in range(4):
        refused(c, 4, 5)
        wait(0.2)
    yield
    c.session.exists(c.path)  # keeps the session open
    commit_all(120, (a, (0, 1, 2)), (b, (3, 4, 5)))


@incident("claim contention", "foreign release", "foreign release", partitions=12)
def operator_helps_the_joiner(s: Scene) -> Iterator[None]:
    """The owner does not release. An operator deletes two of its owner znodes."""
    every = tuple(range(12))
    a = s.member("a")
    start((a, every))
    yield
    a.commit(0, 110).commit(11, 110)
    b = s.member("b")
    for _ in range(5):
        refused(b, *range(6, 12))
        wait(0.1)
    operator = s.tool()
    operator.delete(s.owner(10))
    operator.delete(s.owner(11))
    operator.close()
    refused(b, 6, 7, 8, 9)
    b.claim(10, 11).release(10, 11)
    release_anything(a, *every)
    a.claim(*range(6)).commit(0, 130)
    b.claim(*range(6, 12)).commit(11, 130)


@incident(
    "zombie commit/repaired", "offset regression/repeated/100", "foreign release", partitions=4
)
def a_bad_night(s: Scene) -> Iterator[None]:
    yield
    a, b = s.member("a", timeout=3000), s.member("b")
    start((a, (0, 1)), (b, (2, 3)))
    expired(s, a)
    rebalance(((b, (2, 3)),), ((b, (0, 1, 2, 3)),))
    commit_all(200, (b, (0, 1, 2, 3)))
    again = s.member("a")
    again.commit(0, 150)  # a zombie
    b.commit(0, 220)
    rebalance(((b, (0, 1, 2, 3)),), ((again, (0, 1)), (b, (2, 3))))
    commit_all(230, (again, (0, 1)), (b, (2, 3)))
    again.leave()
    b.leave()
    t = s.tool()
    write(t, s.offset(3), 130)
    t.close()
    x = s.member("x").claim(0, 1, 2, 3)
    x.commit(3, 180).commit(0, 240)
    t = s.tool()
    t.delete(s.owner(2))
    t.close()
    x.claim(2)
    commit_all(250, (x, (0, 1, 2, 3)))


@incident("orphan commit", "unowned interval", "unowned interval", "foreign release")
def cleanup_of_a_living_group(s: Scene) -> Iterator[None]:
    """A script deletes both owner znodes. Only one of the members is busy."""
    yield
    a, b = s.member("a"), s.member("b")
    start((a, (0,)), (b, (1,)))
    script = s.tool()
    script.delete(s.owner(0))
    script.close()
    a.commit(0, 120, 130)
    b.commit(1, 110).release(1)  # a rebalance that fails
    wait(6.5)
    c = s.member("c")
    a.claim(0).commit(0, 140)
    b.claim(1).commit(1, 120)
    c.leave()


# Load, and members that come and go.


@incident("rebalance storm", partitions=3)
def crash_loop_of_the_only_member(s: Scene) -> Iterator[None]:
    """A message crashes the program. The supervisor starts it again and again."""
    s.member("first").claim(0, 1, 2).commit(0, 10, 100).leave()
    yield
    for n in range(15):
        a = s.member(f"try{n}").claim(0, 1, 2)
        a.commit(0, 101 + n)
        wait(0.3)
        a.leave()
        wait(0.3)
    a = s.member("fixed").claim(0, 1, 2)
    commit_all(200, (a, (0, 1, 2)))


@incident("rebalance storm", late=())
def half_of_the_storm_before(s: Scene) -> Iterator[None]:
    """A script adds 14 partitions, one at a time. The member rebalances each time."""
    a = one(s)

    def grow(first: int, last: int) -> None:
        for total in range(first, last + 1):
            s.add_partitions(total)
            a.commit(0, 100 + total)
            rebalance(((a, tuple(range(total - 1))),), ((a, tuple(range(total))),))
            wait(0.4)

    grow(3, 9)
    yield
    grow(10, 16)
    a.commit(15, 5)


@incident("flapping member", late=())
def two_expiries_before_and_two_after(s: Scene) -> Iterator[None]:
    b = s.member("b").claim(1).commit(1, 10, 100)

    def twice(offset: int) -> None:
        for n in range(2):
            a = s.member("a", timeout=2500).claim(0).commit(0, offset + n)
            expired(s, a)
        b.claim(0).commit(0, offset + 5)

    twice(110)
    yield
    b.release(0)
    twice(130)
    b.commit(1, 120)


@incident("flapping member")
def expiry_of_an_old_session_counts(s: Scene) -> Iterator[None]:
    """The first of four sessions is from long before. Its end lists the registration."""
    a = s.member("a", timeout=12_000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10, 100)
    yield
    expired(s, a)
    for n in range(3):
        a = s.member("a", timeout=2000).claim(0).commit(0, 110 + n)
        expired(s, a)
    b.claim(0).commit(0, 120).commit(1, 120)


@incident("flapping member", "zombie commit/repaired")
def flapping_member_commits_late(s: Scene) -> Iterator[None]:
    yield
    b = s.member("b").claim(1).commit(1, 10, 100)
    for n in range(3):
        a = s.member("a", timeout=2000).claim(0).commit(0, 110 + 10 * n)
        expired(s, a)
    b.claim(0).commit(0, 200)
    a = s.member("a")
    a.commit(0, 190)  # before it rebalances
    b.commit(0, 210).release(0)
    a.claim(0).commit(0, 220)
    b.commit(1, 220)


# The late log shows that one member leaves, but not how many others there are.
@incident("herd", "herd", "herd", late=(), partitions=8)
def fleet_of_eight_loses_one(s: Scene) -> Iterator[None]:
    members = [s.member(name) for name in "abcdefgh"]
    for number, member in enumerate(members):
        member.claim(number).commit(number, 10, 100)
    yield
    members.pop().leave()
    for number, member in enumerate(members):
        member.commit(number, 110).release(number)
    shares = ((0, 1), (2,), (3,), (4,), (5,), (6,), (7,))
    for member, share in zip(members, shares, strict=True):
        member.claim(*share)
        commit_all(120, (member, share))


@incident("stalled owner", partitions=3)
def one_of_three_owners_stalls(s: Scene) -> Iterator[None]:
    """A database blocks one application. It continues later."""
    yield
    a, b, c = (s.member(name) for name in "abc")
    start((a, (0,)), (b, (1,)), (c, (2,)))
    for n in range(12):
        commit_all(110 + n, (a, (0,)), (b, (1,)), (c, (2,)))
        wait(0.25)
    for n in range(18):
        commit_all(130 + n, (b, (1,)), (c, (2,)))
        wait(0.4)
    commit_all(150, (a, (0,)), (b, (1,)), (c, (2,)))


# The late log shows neither the members nor the owners.
@incident("stalled owner", late=())
def owner_from_before_stalls(s: Scene) -> Iterator[None]:
    a, b = two(s)
    for n in range(8):
        commit_all(110 + n, (a, (0,)), (b, (1,)))
        wait(0.25)
    yield
    for n in range(12):
        commit_all(120 + n, (a, (0,)), (b, (1,)))
        wait(0.25)
    for n in range(18):
        b.commit(1, 140 + n)
        wait(0.4)
    commit_all(170, (a, (0,)), (b, (1,)))


# Live moves.


@incident("migration stands still")
def live_frozen_member(s: Scene) -> Iterator[None]:
    """One member acknowledges mode ``kafka`` only after eight seconds."""
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b").acknowledge(0)
    start((a, (0,)), (b, (1,)))
    done = stages(s, "locked", 0, a, b)
    done = stages(s, "kafka", done, a)
    wait(8)
    b.acknowledge(done)
    stages(s, "open", done, a, b)
    a.commit(0, 120)
    b.commit(1, 120)


# The late log does not show member b, which does nothing. But it shows that mode ``kafka`` stays.
@incident("mode written too early", "migration stands still", late=("migration stands still",))
def live_impatient_operator(s: Scene) -> Iterator[None]:
    """Someone writes the modes by hand, and does not wait for the second member."""
    a, b = live(s)
    yield
    b.session.exists(b.path)  # keeps the session open
    stages(s, "locked kafka", 0, a)
    a.commit(0, 120)


@incident("mode out of order")
def live_kafka_is_left_out(s: Scene) -> Iterator[None]:
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b").acknowledge(0)
    start((a, (0,)), (b, (1,)))
    stages(s, "locked open", 0, a, b)
    a.commit(0, 120)
    b.commit(1, 120)


@incident("mode out of order", late=())
def live_disorder_before(s: Scene) -> Iterator[None]:
    """Nobody locked the group on the way to Kafka. The way back is in order."""
    a, b = live(s)
    done = stages(s, "kafka open", 0, a, b)
    yield
    stages(s, "kafka locked zookeeper", done, a, b)
    a.commit(0, 120)
    b.commit(1, 120)


@incident("mode out of order")
def live_mode_with_a_typo(s: Scene) -> Iterator[None]:
    """Someone writes a mode by hand, and then stops all members."""
    a, b = live(s)
    yield
    someone = Operator(s)
    someone.session.set(f"{s.base}/live/mode", mode_text("lock"))
    someone.end()
    a.commit(0, 120).leave()
    b.commit(1, 120).leave()


@incident("unlocked during a move")
def live_lock_removed_in_open(s: Scene) -> Iterator[None]:
    """An operator wants to tidy up, and restores the access list by hand."""
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b").acknowledge(0)
    start((a, (0,)), (b, (1,)))
    stages(s, "locked kafka open", 0, a, b)
    wait(0.5)
    someone = Operator(s)
    someone.unlock()
    someone.end()
    a.commit(0, 120)
    b.commit(1, 120)


@incident("mode written by a member", "legacy member in a locked group")
def live_member_locks_by_itself(s: Scene) -> Iterator[None]:
    """A patched application writes the mode while an old consumer runs."""
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b").acknowledge(0)
    start((a, (0,)), (b, (1,)))
    old = s.member("old")
    a.session.set(f"{s.base}/live/mode", mode_text("locked"))
    a.acknowledge(1)
    b.acknowledge(1)
    wait(0.5)
    old.leave()
    stages(s, "kafka open", 1, a, b)
    a.commit(0, 120)
    b.commit(1, 120)


@incident("two operators")
def live_second_operator_turns_back(s: Scene) -> Iterator[None]:
    """The first operator is in mode ``kafka``. The second wants the group back in ZooKeeper."""
    a, b = live(s)
    yield
    first = Operator(s).lock().mode("locked")
    for member in (a, b):
        member.acknowledge(1)
    first.mode("kafka")
    for member in (a, b):
        member.acknowledge(2)
    second = Operator(s).mode("locked")
    for member in (a, b):
        member.acknowledge(3)
    second.mode("zookeeper")
    for member in (a, b):
        member.acknowledge(4)
    second.unlock().end()
    first.end()
    a.commit(0, 120)
    b.commit(1, 120)
