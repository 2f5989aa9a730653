"""Held-out incidents about ownership, membership and load.

Their author had not read the rules, and did not know their mistakes. The labels are from the
reference and the how-to alone, and were written before the first audit. A label that was corrected
later says so in a comment.
"""

# ruff: noqa: D103 - the name and the steps say what happens

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import copy

from kazoo.exceptions import NodeExistsError, NoNodeError

from tests.audit.corpus.held_out import expired
from tests.audit.corpus.incidents import LIMITS, Corpus, Member, Scene, one, two, wait

HELD_OUT_OWNERSHIP = Corpus("held_out_ownership", {**LIMITS, "standstill_seconds": 5.0})
incident = HELD_OUT_OWNERSHIP.incident


def topic_of(s: Scene, name: str, partitions: int = 1) -> Scene:
    """Another topic of the same group."""
    return Scene(s.address, s.group, s.chroot, partitions, f"t-{name}-{s.group}")


def reading(member: Member, other: Scene) -> Member:
    """The same member and session, for another topic."""
    same = copy(member)
    same.scene = other
    return same


def refused(member: Member, *partitions: int) -> None:
    """Try to claim partitions that have an owner."""
    for partition in partitions:
        with contextlib.suppress(NodeExistsError):
            member.claim(partition)
            raise AssertionError(f"{member.id} owns {partition}")


def release_anything(member: Member, *partitions: int) -> None:
    """Delete owner znodes as a member does: it ignores those that do not exist."""
    for partition in partitions:
        with contextlib.suppress(NoNodeError):
            member.release(partition)


def expired_owner(s: Scene, partition: int) -> None:
    """Wait until an owner znode is gone."""
    with contextlib.suppress(NoNodeError):
        for _ in range(600):
            s.admin.exists(s.owner(partition))
            wait(0.1)
        raise TimeoutError(s.owner(partition))


def both_commit(a: Member, b: Member, first: int, count: int) -> None:
    """Commit partition 0 and partition 1 regularly."""
    for n in range(first, first + count):
        a.commit(0, n)
        b.commit(1, n)
        wait(0.25)


# Nothing wrong.


@incident(partitions=3)
def blue_green_switch(s: Scene) -> Iterator[None]:
    """Three new members join as spares. Then the three old ones stop."""
    blue = [s.member(name) for name in "abc"]
    for number, member in enumerate(blue):
        member.claim(number).commit(number, 10, 100)
    yield
    green = [s.member(name) for name in "xyz"]
    for number, member in enumerate(blue):
        member.commit(number, 150).release(number)
    for number, member in enumerate(blue):
        member.claim(number)
    wait(1)
    for number, member in enumerate(blue):
        member.commit(number, 180)
        member.leave()
        if number == 0:
            refused(green[0], 2)
    for number, member in enumerate(green):
        member.claim(number).commit(number, 200)


@incident()
def broker_outage_pauses_all_commits(s: Scene) -> Iterator[None]:
    a, b = two(s)
    both_commit(a, b, 110, 8)
    yield
    both_commit(a, b, 120, 6)
    wait(6)
    both_commit(a, b, 130, 6)


@incident()
def one_topic_dries_up(s: Scene) -> Iterator[None]:
    """Both members have partitions of two topics. No messages arrive in one of them."""
    busy = topic_of(s, "busy", partitions=2)
    subscription = {s.topic: 1, busy.topic: 1}
    a, b = (s.member(name, subscription=subscription) for name in "ab")
    a2, b2 = reading(a, busy), reading(b, busy)
    for number, members in enumerate(((a, a2), (b, b2))):
        for member in members:
            member.claim(number).commit(number, 10)
    yield
    for n in range(8):
        both_commit(a, b, 20 + n, 1)
        both_commit(a2, b2, 20 + n, 1)
    both_commit(a2, b2, 30, 26)


@incident()
def last_reader_of_a_topic_leaves(s: Scene) -> Iterator[None]:
    """The member that stays has never subscribed to the second topic."""
    other = topic_of(s, "other")
    a = s.member("a", subscription={s.topic: 1, other.topic: 1}).claim(0).commit(0, 10)
    b = s.member("b").claim(1).commit(1, 10)
    a2 = reading(a, other).claim(0).commit(0, 10)
    yield
    a.commit(0, 20)
    a2.commit(0, 20)
    a.leave()
    b.commit(1, 20).release(1)
    b.claim(0, 1).commit(0, 30)
    wait(5.5)
    c = other.member("c")
    b.commit(0, 40).commit(1, 40).release(0, 1)
    b.claim(0, 1)
    c.claim(0).commit(0, 30)


@incident()
def crash_loop_before_the_first_claim(s: Scene) -> Iterator[None]:
    """Three processes register and exit before they claim. No member stays for four seconds."""
    one(s).leave()
    yield
    for name in "bcd":
        member = s.member(name)
        wait(1.8)
        member.leave()
        wait(0.3)
    s.member("e").claim(0, 1).commit(0, 120).commit(1, 120)


def configured(s: Scene, name: str, streams: int) -> Member:
    """A member with ``consumer.id`` = ``name``."""
    member = s.member("c", subscription={s.topic: streams}, register=False)
    member.id = f"{s.group}_{name}"
    member.path = f"{s.base}/ids/{member.id}"
    member.session.create(member.path, member.registration, ephemeral=True)
    return member


def claim_as(member: Member, stream: int, *partitions: int) -> None:
    for partition in partitions:
        owner = member.scene.owner(partition)
        member.session.create(owner, f"{member.id}-{stream}".encode(), ephemeral=True)


@incident(partitions=3)
def ids_that_end_like_streams(s: Scene) -> Iterator[None]:
    """The first stream of member ``c`` has the id of the member ``c-0``."""
    c = configured(s, "c", streams=2)
    claim_as(c, 0, 0, 1)
    claim_as(c, 1, 2)
    c.commit(0, 10, 100).commit(1, 10, 100).commit(2, 10, 100)
    yield
    for n in range(2):
        other = configured(s, "c-0", streams=1)
        c.commit(1, 110 + 20 * n).release(0, 1, 2)
        claim_as(c, 0, 0)
        claim_as(other, 0, 1)
        claim_as(c, 1, 2)
        c.commit(0, 110 + 20 * n).commit(2, 110 + 20 * n)
        other.commit(1, 120 + 20 * n)
        if n == 0:
            other.leave()
            c.release(0, 2)
            claim_as(c, 0, 0, 1)
            claim_as(c, 1, 2)


@incident(partitions=1)
def range_leaves_one_member_idle(s: Scene) -> Iterator[None]:
    """Each topic has one partition. Strategy ``range`` gives all of them to the first member."""
    topics = [s, topic_of(s, "second"), topic_of(s, "third")]
    subscription = {scene.topic: 1 for scene in topics}
    a, b = (s.member(name, subscription=subscription) for name in "ab")
    for scene in topics:
        reading(a, scene).claim(0).commit(0, 10, 100)
    yield
    for scene in topics:
        reading(a, scene).commit(0, 120)
    a.leave()
    for scene in topics:
        reading(b, scene).claim(0).commit(0, 130)
    wait(0.5)
    again = s.member("a", subscription=subscription)
    for scene in topics:
        reading(b, scene).commit(0, 150).release(0)
    for scene in topics:
        reading(again, scene).claim(0).commit(0, 160)


@incident(partitions=3)
def supervisor_starts_a_second_process(s: Scene) -> Iterator[None]:
    """All its processes have the ``consumer.id`` of a running member. Meanwhile a member joins."""
    a = s.member("a").claim(0, 1).commit(0, 10, 100).commit(1, 10, 100)
    b = s.member("b").claim(2).commit(2, 10, 100)
    yield

    def second_process() -> None:
        process = s.member("a", register=False)
        with contextlib.suppress(NodeExistsError):
            process.session.create(process.path, process.registration, ephemeral=True)
            raise AssertionError("registered")
        process.leave()

    for n in range(24):
        second_process()
        if n == 8:
            c = s.member("c")
        if n == 12:
            a.commit(0, 120).commit(1, 120).release(0, 1)
            b.commit(2, 120).release(2)
        if n == 16:
            a.claim(0)
            b.claim(1)
            c.claim(2)
    a.commit(0, 130)
    b.commit(1, 130)
    c.commit(2, 130)


# Owners that are missing, wrong or contested.


@incident(
    "one consumer id on two sessions",
    "one consumer id on two sessions",
    "orphan commit",
    "unowned interval",
    "unowned interval",
)
def restarted_under_the_same_id(s: Scene) -> Iterator[None]:
    """An operator kills a process and deletes its registration, so that the next one can register.

    The next process finds owner znodes with its own id and treats them as its own. They disappear
    when the old session expires. Another member joins later, and all rebalance.
    """
    yield
    a = s.member("a", timeout=3000).claim(0, 1).commit(0, 10, 100).commit(1, 10, 100)
    a.session.abandon()
    s.tool().delete(a.path)
    again = s.member("a")
    refused(again, 0, 1)
    expired_owner(s, 0)
    wait(0.5)
    again.commit(0, 150)
    wait(5)
    b = s.member("b")
    release_anything(again, 0, 1)
    again.claim(0).commit(0, 170)
    b.claim(1).commit(1, 130)


@incident("unowned interval", "unowned interval", "unreadable registration")
def unreadable_registration(s: Scene) -> Iterator[None]:
    """A home-made client registers without content. No member can rebalance until it leaves."""
    a, b = two(s)
    yield
    client = s.member("c", register=False)
    client.session.create(client.path, b"", ephemeral=True)
    a.commit(0, 120).release(0)
    b.commit(1, 120).release(1)
    wait(5.5)
    client.leave()
    a.claim(0).commit(0, 130)
    b.claim(1).commit(1, 130)


@incident("unowned interval")
def registration_deleted_by_hand(s: Scene) -> Iterator[None]:
    """A member without its registration cannot rebalance, and keeps its partition. The other member
    wants both partitions, and gives up after four attempts."""
    a, b = two(s)
    yield
    s.tool().delete(a.path)
    b.commit(1, 120).release(1)
    for _ in range(4):
        refused(b, 0)
        b.claim(1).release(1)
        wait(0.2)
    wait(5.5)
    a.leave()
    c = s.member("c")
    b.claim(0).commit(0, 130)
    c.claim(1).commit(1, 130)


@incident(
    "foreign release",
    "foreign release",
    "orphan commit",
    "orphan commit",
    "unowned interval",
    "unowned interval",
)
def cleanup_script_deletes_owners(s: Scene) -> Iterator[None]:
    """The member does not notice, and continues. The next change of the members helps."""
    a = one(s)
    yield
    a.commit(0, 110).commit(1, 110)
    script = s.tool()
    script.delete(s.owner(0))
    script.delete(s.owner(1))
    script.close()
    a.commit(0, 120, 140).commit(1, 120, 130)
    wait(5.5)
    b = s.member("b")
    release_anything(a, 0, 1)
    a.claim(0).commit(0, 150)
    b.claim(1).commit(1, 150)


@incident("foreign release", "orphan commit", partitions=3)
def returning_member_deletes_a_fresh_claim(s: Scene) -> Iterator[None]:
    """It releases what it owned in its old session. The new owner commits before it rebalances."""
    yield
    a = s.member("a", timeout=3000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10, 100)
    c = s.member("c").claim(2).commit(2, 10, 100)
    expired(s, a)
    b.commit(1, 120).release(1)
    c.commit(2, 120).release(2)
    b.claim(0, 1).commit(0, 150)
    c.claim(2)
    again = s.member("a")
    release_anything(again, 0)
    b.commit(0, 170).commit(1, 130)
    release_anything(b, 0, 1)
    c.commit(2, 130).release(2)
    again.claim(0).commit(0, 190)
    b.claim(1).commit(1, 150)
    c.claim(2).commit(2, 150)


# Member c owns nothing, and one partition has no owner. The pages have a finding for each of these.
@incident("member without its share", "orphan partition", partitions=6)
def deadlocked_owner_blocks_a_joiner(s: Scene) -> Iterator[None]:
    """Member a never releases. Member c wants one of its partitions, and gives up after four
    attempts. Only the new member gets its share."""
    a = s.member("a").claim(0, 1, 2).commit(0, 10, 100).commit(1, 10)
    c = s.member("c").claim(3, 4, 5).commit(3, 10, 100).commit(4, 10)
    yield
    d = s.member("d")
    refused(d, 4, 5)
    c.commit(3, 120).release(3, 4, 5)
    d.claim(4, 5)
    for _ in range(4):
        refused(c, 2)
        c.claim(3).release(3)
        wait(0.2)
    d.commit(4, 30).commit(5, 30)
    a.commit(0, 130)


# Load, and members that come and go.


@incident("claim contention", partitions=24)
def slow_release_of_many_partitions(s: Scene) -> Iterator[None]:
    """A new member tries to claim its twelve partitions three times. Then the owner releases."""
    a = s.member("a").claim(*range(24)).commit(0, 10).commit(23, 10)
    yield
    b = s.member("b")
    a.commit(0, 20).commit(23, 20)
    for _ in range(3):
        refused(b, *range(12, 24))
        wait(0.1)
    a.release(*range(24))
    a.claim(*range(12)).commit(0, 30)
    b.claim(*range(12, 24)).commit(23, 30)


@incident("rebalance storm")
def partitions_added_one_at_a_time(s: Scene) -> Iterator[None]:
    """A script adds 14 partitions. The only member rebalances each time."""
    a = one(s)
    yield
    for total in range(3, 17):
        s.add_partitions(total)
        a.commit(0, 100 + total).release(*range(total - 1))
        a.claim(*range(total))
        wait(0.4)
    a.commit(15, 5)


@incident("flapping member", "flapping member", "rebalance storm", partitions=3)
def rack_loses_its_network_three_times(s: Scene) -> Iterator[None]:
    """Two members expire and return three times, one after the other. That is 12 rebalances."""
    yield
    c = s.member("c").claim(2).commit(2, 10)
    a, b = s.member("a", timeout=2000), s.member("b", timeout=2500)
    a.claim(0).commit(0, 10)
    b.claim(1).commit(1, 10)
    for n in range(20, 50, 10):
        a.session.abandon()
        wait(1)
        b.commit(1, n)
        b.session.abandon()
        expired(s, a)
        c.commit(2, n).release(2)
        c.claim(2)
        expired(s, b)
        c.release(2)
        c.claim(0, 1, 2).commit(0, n).commit(1, n + 1)
        a = s.member("a", timeout=2000 if n < 40 else 40_000)
        c.commit(0, n + 2).release(0, 1, 2)
        a.claim(0, 1).commit(0, n + 4)
        c.claim(2)
        wait(0.4)
        b = s.member("b", timeout=2500 if n < 40 else 40_000)
        a.commit(1, n + 4).release(0, 1)
        c.commit(2, n + 4).release(2)
        a.claim(0)
        b.claim(1)
        c.claim(2)
    a.commit(0, 60)
    b.commit(1, 60)
    c.commit(2, 60)


@incident("flapping member", partitions=1)
def spare_expires_three_times(s: Scene) -> Iterator[None]:
    """It has never owned a partition. The owner rebalances each time."""
    b = s.member("b").claim(0).commit(0, 10, 100)
    yield
    for n in range(3):
        spare = s.member("z", timeout=2000)
        b.commit(0, 110 + 10 * n).release(0)
        b.claim(0)
        expired(s, spare)
        b.commit(0, 115 + 10 * n).release(0)
        b.claim(0)
    b.commit(0, 150)


@incident("herd", "herd", partitions=7)
def fleet_of_seven_loses_two(s: Scene) -> Iterator[None]:
    """The seventh member wakes six others, and so does the first expiry. The second wakes five."""
    yield
    members = [s.member(name) for name in "abcde"]
    members += [s.member(name, timeout=4000) for name in "fg"]
    for number, member in enumerate(members):
        member.claim(number).commit(number, 10, 100)
    f, g = members[5:]
    f.session.abandon()
    expired(s, g)
    expired(s, f)
    shares = ((0, 1), (2, 3), (4,), (5,), (6,))
    for number, member in enumerate(members[:5]):
        member.commit(number, 120).release(number)
    for member, share in zip(members, shares, strict=False):
        member.claim(*share)
        for partition in share:
            member.commit(partition, 130)


@incident("stalled owner")
def stuck_thread_until_restart(s: Scene) -> Iterator[None]:
    """A thread of the application blocks. The session stays open until the process is restarted."""
    a, b = two(s)
    yield
    both_commit(a, b, 110, 10)
    for n in range(14):
        b.commit(1, 130 + n)
        wait(0.4)
    a.leave()
    b.release(1)
    b.claim(0, 1).commit(0, 140)
    c = s.member("c")
    b.commit(0, 150).commit(1, 150).release(0, 1)
    b.claim(0).commit(0, 160)
    c.claim(1).commit(1, 160)
