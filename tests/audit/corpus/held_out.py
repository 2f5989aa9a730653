"""The held-out incidents. Their author had not read the rules, and labelled them from the reference
and the how-to alone, before the first audit.

``docs/explanation/audit.md`` has the figures of that first audit. A label that was
corrected later says so in a comment.
"""

# ruff: noqa: D103 - the name and the steps say what happens

from __future__ import annotations

import contextlib
import json
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha1

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from tests.audit.corpus.incidents import LIMITS, Corpus, Member, Scene, one, two, wait, write
from tests.audit.corpus.wire import Session

HELD_OUT = Corpus("held_out", {**LIMITS, "standstill_seconds": 5.0})
incident = HELD_OUT.incident
USER = "zkconsumer-live:member"
CREDENTIAL = "zkconsumer-live:" + b64encode(sha1(USER.encode()).digest()).decode()


def expired(s: Scene, member: Member) -> None:
    """Let a member's session end at the server."""
    member.session.abandon()
    deadline = time.monotonic() + 60
    with contextlib.suppress(NoNodeError):
        while time.monotonic() < deadline:
            s.admin.exists(member.path)
            wait(0.1)
        raise TimeoutError(f"{member.id} did not expire")


def set_all(session: Session, s: Scene, offset: int) -> None:
    """Write the offsets of all partitions, as tools do."""
    for partition in range(s.partitions):
        write(session, s.offset(partition), offset)


# Nothing wrong: members come, go and share.


@incident(partitions=3)
def quiet_rolling_restart(s: Scene) -> Iterator[None]:
    members = {name: s.member(name) for name in "abc"}
    for number, member in enumerate(members.values()):
        member.claim(number).commit(number, 10, 100)
    yield
    for number, name in ((0, "a"), (2, "c")):
        members[name].commit(number, 150 + number).leave()
        other = members["b"].claim(number).commit(number, 180)
        wait(0.2)
        members[name] = s.member(name)
        other.commit(number, 190).release(number)
        members[name].claim(number).commit(number, 200)
    members["b"].commit(1, 200)


@incident(partitions=4)
def quiet_scale_out(s: Scene) -> Iterator[None]:
    a = s.member("a").claim(0, 1, 2, 3)
    for partition in range(4):
        a.commit(partition, 10, 50)
    yield
    b = s.member("b")
    a.commit(3, 60).release(0, 1, 2, 3)
    a.claim(0, 1)
    b.claim(2, 3).commit(2, 70).commit(3, 70)
    wait(0.5)
    c = s.member("c")
    a.commit(0, 80).release(0, 1)
    b.commit(2, 80).release(2, 3)
    a.claim(0, 1)
    b.claim(2)
    c.claim(3).commit(3, 90)
    a.commit(1, 90)


@incident()
def quiet_spare_takes_over(s: Scene) -> Iterator[None]:
    a, b = two(s)
    c = s.member("c")
    yield
    a.commit(0, 120)
    a.leave()
    b.commit(1, 120).release(1)
    b.claim(0).commit(0, 130)
    c.claim(1).commit(1, 140)


@incident(partitions=3)
def quiet_two_topics(s: Scene) -> Iterator[None]:
    other = Scene(s.address, s.group, partitions=1, topic="t-other-quiet_two_topics")
    a = s.member("a").claim(0, 1, 2).commit(0, 10).commit(2, 10)
    b = Member(other, "b").claim(0).commit(0, 10)
    yield
    b.commit(0, 20)
    a.commit(0, 40).commit(1, 30).commit(2, 50)


@incident(partitions=3)
def quiet_two_streams(s: Scene) -> Iterator[None]:
    a = s.member("a", subscription={s.topic: 2})
    for partition in (0, 1):
        a.session.create(s.owner(partition), f"{a.id}-{partition}".encode(), True)
    b = s.member("b").claim(2).commit(2, 5)
    yield
    a.commit(0, 10, 20).commit(1, 10, 20)
    b.commit(2, 30)


@incident(chroot="/kafka-black")
def quiet_black_list(s: Scene) -> Iterator[None]:
    Scene(s.address, s.group, s.chroot, topic="audit.log")
    a = s.member("a", pattern="black_list", subscription="audit.*").claim(0, 1).commit(0, 10)
    yield
    a.commit(0, 20, 30).commit(1, 30)


@incident()
def quiet_regex_gets_a_topic(s: Scene) -> Iterator[None]:
    regex = "t-quiet_regex_gets.*"
    a = s.member("a", pattern="white_list", subscription=regex).claim(0).commit(0, 10)
    b = s.member("b", pattern="white_list", subscription=regex).claim(1).commit(1, 10)
    yield
    new = Scene(s.address, s.group, topic="t-quiet_regex_gets_more")
    a.commit(0, 20).release(0)
    b.commit(1, 20).release(1)
    a.claim(0)
    b.claim(1)
    Member(new, "a", session=a.session, register=False).claim(0).commit(0, 1)
    Member(new, "b", session=b.session, register=False).claim(1).commit(1, 1)


@incident()
def quiet_partitions_added(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    s.add_partitions(4)
    a.commit(0, 110).release(0)
    b.commit(1, 110).release(1)
    a.claim(0, 1).commit(1, 115)
    b.claim(2, 3).commit(2, 7).commit(3, 9)


@incident(partitions=3)
def quiet_recreated_with_fewer_partitions(s: Scene) -> Iterator[None]:
    """The operator also deletes the offsets."""
    a = s.member("a").claim(0, 1, 2).commit(0, 500, 900).commit(1, 800).commit(2, 700)
    yield
    s.delete_topic()
    a.release(0, 1, 2)
    t = s.tool()
    for partition in range(3):
        t.delete(s.offset(partition))
    s.partitions = 1
    s.create_topic()
    a.claim(0).commit(0, 3, 20)


@incident()
def quiet_offsets_before_the_first_start(s: Scene) -> Iterator[None]:
    """The group is new. Its offsets are imported from elsewhere."""
    set_all(s.tool(), s, 5000)
    yield
    a = s.member("a").claim(0, 1).commit(0, 5010).commit(1, 5020)
    a.commit(0, 5030)


@incident()
def quiet_all_die_and_return(s: Scene) -> Iterator[None]:
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b", timeout=2000).claim(1).commit(1, 10, 100)
    a.session.abandon()
    expired(s, b)
    expired(s, a)
    yield
    wait(5)
    s.member("a").claim(0).commit(0, 140)
    s.member("b").claim(1).commit(1, 140)


@incident()
def quiet_stopped_for_good(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    b.commit(1, 130)
    b.leave()
    a.commit(0, 130).release(0)
    a.claim(0, 1).commit(1, 140).commit(0, 140)
    a.leave()


@incident(partitions=6)
def quiet_six_members(s: Scene) -> Iterator[None]:
    members = [s.member(name) for name in "abcdef"]
    for number, member in enumerate(members):
        member.claim(number).commit(number, 10)
    yield
    for number, member in enumerate(members):
        member.commit(number, 50 + number)


@incident()
def quiet_topic_of_little_traffic(s: Scene) -> Iterator[None]:
    """No message arrives in partition 1."""
    a, b = s.member("a").claim(0), s.member("b").claim(1).commit(1, 7)
    yield
    for n in range(12):
        a.commit(0, 20 + n)
        wait(0.5)
    b.commit(1, 8)


@incident()
def quiet_catch_up(s: Scene) -> Iterator[None]:
    """A consumer was blocked for three seconds, then commits what it had fetched."""
    a = one(s)
    yield
    a.commit(0, 200)
    wait(3)
    a.commit(0, 400_000)
    wait(0.5)
    a.commit(0, 420_000)


@incident()
def quiet_second_process_of_one_id(s: Scene) -> Iterator[None]:
    """The second process cannot register, and ends."""
    a = one(s)
    yield
    again = s.member("a", register=False)
    with contextlib.suppress(NodeExistsError):
        again.session.create(again.path, again.registration, True)
    again.leave()
    a.commit(0, 130).commit(1, 130)


@incident()
def quiet_two_members_expire_twice(s: Scene) -> Iterator[None]:
    c = s.member("c").claim(0, 1).commit(0, 5)
    yield
    a, b = s.member("a", timeout=2000), s.member("b", timeout=2000)
    for n in range(2):
        a.session.abandon()
        expired(s, b)
        expired(s, a)
        more = 2000 if n == 0 else 40_000
        a, b = s.member("a", timeout=more), s.member("b", timeout=more)
    c.leave()
    a.claim(0).commit(0, 10)
    b.claim(1).commit(1, 10)


@incident()
def quiet_claims_before_release(s: Scene) -> Iterator[None]:
    """A new member tries to claim until the owner has released."""
    a = one(s)
    yield
    b = s.member("b")
    for _ in range(12):
        with contextlib.suppress(NodeExistsError):
            b.claim(1)
        wait(0.02)
    a.commit(0, 150).commit(1, 150).release(0, 1)
    a.claim(0)
    b.claim(1).commit(1, 170)


@incident()
def quiet_transactions(s: Scene) -> Iterator[None]:
    """Members that fence: they commit, release and claim in multis."""
    a, b = two(s)
    yield
    a.session.multi(CheckVersion(a.path, 0), SetData(s.offset(0), b"150", -1))
    a.session.multi(
        CheckVersion(a.path, 0), SetData(s.offset(0), b"160", -1), Delete(s.owner(0), -1)
    )
    a.leave()
    b.session.multi(
        CheckVersion(b.path, 0),
        Create(s.owner(0), f"{b.id}-0".encode(), OPEN_ACL_UNSAFE, 1),
        SetData(s.offset(0), b"160", -1),
    )
    b.session.multi(SetData(s.offset(0), b"190", -1), SetData(s.offset(1), b"190", -1))


@incident(chroot="/kafka-a")
def quiet_same_name_in_two_chroots(s: Scene) -> Iterator[None]:
    """Both groups have the same names and ids. Only the offsets differ."""
    there = Scene(s.address, s.group, "/kafka-b")
    a, b = one(s), one(there)
    yield
    a.commit(0, 9000).commit(1, 8000)
    b.commit(0, 150).commit(1, 150)
    a.release(0, 1)
    a.leave()
    b.commit(0, 160)
    s.member("b").claim(0, 1).commit(0, 9100).commit(1, 8100)


# Nothing wrong: moves.


def migrate(s: Scene, to: str, offset: int | None = None) -> None:
    """Write what ``zkmigrate`` writes: it registers, claims, writes the target and the marker."""
    mover = s.member("zkmigrate", subscription={})
    partitions = range(s.partitions)
    mover.claim(*partitions)
    if offset is not None:
        for partition in partitions:
            mover.session.multi(
                CheckVersion(mover.path, 0), SetData(s.offset(partition), b"%d" % offset, -1)
            )
    content = {"version": 1, "moved_to": to, "at_ms": int(time.time() * 1000), "offsets": {}}
    marker, text = f"{s.base}/migration", json.dumps(content, separators=(",", ":")).encode()
    try:
        mover.session.multi(CheckVersion(mover.path, 0), Create(marker, text, OPEN_ACL_UNSAFE, 0))
    except NodeExistsError:
        mover.session.multi(CheckVersion(mover.path, 0), SetData(marker, text, -1))
    mover.release(*partitions)
    mover.leave()


@incident()
def quiet_stop_and_move(s: Scene) -> Iterator[None]:
    a = one(s)
    a.commit(0, 150)
    yield
    a.leave()
    migrate(s, "kafka")


@incident()
def quiet_moved_back_with_progress(s: Scene) -> Iterator[None]:
    """The group reads two million messages in Kafka. Then it is moved back."""
    a = one(s)
    a.leave()
    migrate(s, "kafka")
    yield
    migrate(s, "zookeeper", 2_000_000)
    b = s.member("b").claim(0, 1).commit(0, 2_000_100).commit(1, 2_000_150)
    b.commit(0, 2_000_300)


class Live(Member):
    """A migratable member. It has a second registration, with the mode that it acknowledged."""

    def __init__(self, scene: Scene, name: str, timeout: int = 40_000) -> None:
        session = Session(scene.address, timeout)
        session.log_in(USER)
        super().__init__(scene, name, session=session, register=False)
        self.live = f"{scene.base}/live/members/{self.id}"
        scene.parents(f"{scene.base}/live/members")
        with contextlib.suppress(NodeExistsError):
            session.create(f"{scene.base}/live/mode", mode_text("zookeeper"))
        session.multi(
            Create(self.path, self.registration, OPEN_ACL_UNSAFE, 1),
            Create(self.live, b'{"version":1,"acknowledged":null}', OPEN_ACL_UNSAFE, 1),
        )

    def acknowledge(self, version: int) -> Live:
        text = json.dumps({"version": 1, "acknowledged": version}, separators=(",", ":"))
        self.session.multi(CheckVersion(self.path, 0), SetData(self.live, text.encode(), -1))
        return self


def mode_text(mode: str) -> bytes:
    return json.dumps({"version": 1, "mode": mode}, separators=(",", ":")).encode()


class Operator:
    """``zkmigrate live``: one session that writes modes, and locks ``ids`` as it does."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.session = scene, scene.tool()

    def mode(self, mode: str) -> Operator:
        self.session.set(f"{self.scene.base}/live/mode", mode_text(mode))
        return self

    def lock(self) -> Operator:
        note = {"zkmigrate": "locked", "version": 1, "at_ms": 1, "acl": [[31, "world", "anyone"]]}
        ids = f"{self.scene.base}/ids"
        self.session.set(ids, json.dumps({**note, "data": ""}).encode())
        closed = [ACL(27, Id("world", "anyone")), ACL(31, Id("digest", CREDENTIAL))]
        self.session.set_acl(ids, closed)
        return self

    def unlock(self) -> Operator:
        ids = f"{self.scene.base}/ids"
        self.session.set_acl(ids, OPEN_ACL_UNSAFE)
        self.session.set(ids, b"")
        return self

    def end(self) -> None:
        self.session.close()


def live(s: Scene) -> tuple[Live, Live]:
    """Two migratable members that have acknowledged mode 0, ``zookeeper``."""
    a, b = Live(s, "a").acknowledge(0), Live(s, "b").acknowledge(0)
    a.claim(0).commit(0, 10, 100)
    b.claim(1).commit(1, 10, 100)
    return a, b


def stages(s: Scene, modes: str, version: int, *members: Live) -> int:
    """Write modes, each by an operator of its own. All members acknowledge each."""
    for mode in modes.split():
        operator = Operator(s)
        if mode == "locked":
            operator.lock()
        operator.mode(mode)
        version += 1
        for member in members:
            member.acknowledge(version)
        if mode == "zookeeper":
            operator.unlock()
        operator.end()
    return version


@incident()
def quiet_live_move(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    stages(s, "locked kafka open", 0, a, b)
    a.commit(0, 140)
    b.commit(1, 140)


@incident()
def quiet_live_there_and_back(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    done = stages(s, "locked kafka open", 0, a, b)
    a.commit(0, 140)
    stages(s, "kafka locked zookeeper", done, a, b)
    a.commit(0, 150)
    b.commit(1, 150)
    legacy = s.member("c")
    legacy.leave()


@incident()
def quiet_live_member_restarts(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    done = stages(s, "locked", 0, a, b)
    b.commit(1, 130).leave()
    a.claim(1)
    b = Live(s, "b").acknowledge(done)
    a.commit(1, 135).release(1)
    b.claim(1)
    stages(s, "kafka open", done, a, b)
    a.commit(0, 140)
    b.commit(1, 140)


@incident()
def quiet_live_members_stop(s: Scene) -> Iterator[None]:
    """Plain consumers have replaced all members. The mode stays open."""
    a, b = live(s)
    yield
    stages(s, "locked kafka open", 0, a, b)
    a.commit(0, 140).release(0)
    a.leave()
    b.commit(1, 140).release(1)
    b.leave()


# Offsets that tools write.


@incident("offset regression/repeated/60", "offset regression/repeated/70")
def both_lowered_in_one_transaction(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).commit(1, 120)
    a.leave()
    s.tool().multi(SetData(s.offset(0), b"50", -1), SetData(s.offset(1), b"50", -1))
    s.member("b").claim(0, 1).commit(0, 60).commit(1, 65)


@incident("offset regression/repeated/60")
def lowered_then_owner_expires(s: Scene) -> Iterator[None]:
    yield
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10, 100)
    write(s.tool(), s.offset(0), 40)
    expired(s, a)
    b.claim(0).commit(0, 70).commit(1, 110)


@incident("lost messages/lost/500")
def raised_then_owner_closes(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    write(s.tool(), s.offset(0), 600)
    a.leave()
    b.claim(0).commit(0, 640).commit(1, 130)


@incident("lost messages/lost/900", "lost messages/lost/900")
def raised_by_one_shell_for_each_partition(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.leave()
    for partition in (0, 1):
        t = s.tool()
        write(t, s.offset(partition), 1000)
        t.close()
    s.member("b").claim(0, 1).commit(0, 1010).commit(1, 1020)


# The second write restores the offset. The pages do not say whether that is a finding.
@incident("tool write/repaired", may=("tool write",))
def operator_undoes_a_mistake(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.leave()
    t = s.tool()
    write(t, s.offset(0), 10)
    write(t, s.offset(0), 100)
    s.member("b").claim(0, 1).commit(0, 120).commit(1, 120)


@incident("tool write/repaired", "offset regression/repeated/100")
def reset_to_the_beginning_while_running(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    set_all(s.tool(), s, 0)
    a.commit(0, 130)
    b.leave()
    a.claim(1).commit(1, 15)


@incident("lost messages/lost/400", "lost messages/lost/400")
def one_topic_of_two_skipped(s: Scene) -> Iterator[None]:
    other = Scene(s.address, s.group, partitions=1, topic="t-other-one_topic_of_two")
    both = {s.topic: 1, other.topic: 1}
    a = s.member("a", subscription=both).claim(0, 1).commit(0, 10, 100).commit(1, 10, 100)
    Member(other, "a", session=a.session, register=False).claim(0).commit(0, 10, 100)
    yield
    a.leave()
    set_all(s.tool(), s, 500)
    b = s.member("b", subscription=both).claim(0, 1).commit(0, 510).commit(1, 510)
    Member(other, "b", session=b.session, register=False).claim(0).commit(0, 110)


@incident("tool write/repaired")
def written_by_a_member_of_another_group(s: Scene) -> Iterator[None]:
    a = one(s)
    elsewhere = Scene(s.address, "elsewhere", topic="t-elsewhere")
    stranger = elsewhere.member("x").claim(0, 1)
    yield
    write(stranger.session, s.offset(0), 20)
    a.commit(0, 130)


# Offsets that members write.


@incident("zombie commit/repaired")
def delayed_commit_of_an_expired_owner(s: Scene) -> Iterator[None]:
    """The commit was under way when the session ended. The client sends it again in its next
    session, before it registers."""
    yield
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10)
    expired(s, a)
    b.claim(0).commit(0, 150)
    again = s.member("a", register=False)
    again.commit(0, 120)
    again.session.create(again.path, again.registration, True)
    b.commit(0, 180).commit(1, 40).release(0, 1)
    again.claim(0).commit(0, 200)
    b.claim(1).commit(1, 50)


@incident("orphan commit")
def delayed_commit_before_the_next_claim(s: Scene) -> Iterator[None]:
    yield
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10)
    expired(s, a)
    again = s.member("a", register=False)
    again.commit(0, 120)
    again.session.create(again.path, again.registration, True)
    b.claim(0).commit(0, 150).release(0)
    again.claim(0).commit(0, 160)
    b.commit(1, 30)


@incident("zombie commit/repaired")
def zombie_is_ahead(s: Scene) -> Iterator[None]:
    a, b = two(s)
    c = s.member("c")
    yield
    a.commit(0, 110).release(0)
    c.claim(0).commit(0, 120)
    a.commit(0, 400)
    c.commit(0, 130)
    b.commit(1, 120)
    a.leave()


# The pages do not say what is lost when the zombie had read the messages in between.
@incident("zombie commit")
def next_member_starts_ahead(s: Scene) -> Iterator[None]:
    a, b = two(s)
    c = s.member("c")
    yield
    a.commit(0, 110).release(0)
    c.claim(0).commit(0, 150)
    a.commit(0, 300)
    c.leave()
    a.unregister()
    b.claim(0).commit(0, 320).commit(1, 130)


@incident("zombie commit/repaired", chroot="/clusters/eu")
def zombie_in_a_chroot(s: Scene) -> Iterator[None]:
    twin = one(Scene(s.address, s.group))
    a, b = s.member("a").claim(0, 1).commit(0, 10, 100).commit(1, 10), s.member("b")
    yield
    a.commit(0, 110).commit(1, 20).release(0, 1)
    a.claim(0)
    b.claim(1).commit(1, 50)
    a.commit(1, 30)
    b.commit(1, 70)
    twin.commit(0, 130).commit(1, 130)


@incident("offset regression")
def log_was_truncated(s: Scene) -> Iterator[None]:
    """An unclean leader election. The next owner finds its offset out of range and goes back."""
    a = one(s)
    a.commit(0, 5000)
    yield
    a.leave()
    b = s.member("b").claim(0, 1).commit(0, 2000)
    b.commit(0, 2050).commit(1, 110)


@incident("offset of a deleted topic/unknown", "offset of a deleted topic/lost/100")
def recreated_with_more_partitions(s: Scene) -> Iterator[None]:
    a = one(s)
    a.commit(0, 5000)
    yield
    s.delete_topic()
    s.partitions = 4
    s.create_topic()
    a.release(0, 1)
    a.claim(0, 1, 2, 3).commit(0, 20).commit(1, 130).commit(2, 4).commit(3, 4)


@incident("commit past the end of a move")
def forgotten_member_after_a_move(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.leave()
    migrate(s, "kafka")
    forgotten = s.member("b").claim(0, 1).commit(0, 130)
    forgotten.leave()


# Ownership and load.


@incident("foreign release", "zombie commit/repaired")
def deposed_by_a_returning_member(s: Scene) -> Iterator[None]:
    """A returns with a new session and still releases what it owned in the old one."""
    yield
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10)
    expired(s, a)
    b.claim(0).commit(0, 150)
    again = s.member("a")
    again.release(0)
    again.claim(0)
    b.commit(0, 160)
    again.commit(0, 180)
    b.commit(1, 20)


@incident("foreign release", "unowned interval")
def deleted_owner_stays_free(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 120)
    s.tool().delete(s.owner(1))
    wait(5)
    a.release(0)
    a.claim(0, 1).commit(1, 120)


@incident("orphan partition")
def all_die_and_one_returns(s: Scene) -> Iterator[None]:
    a = s.member("a", timeout=2000).claim(0).commit(0, 10, 100)
    b = s.member("b", timeout=2000).claim(1).commit(1, 10, 100)
    a.session.abandon()
    expired(s, b)
    expired(s, a)
    yield
    s.member("a").claim(0).commit(0, 130)


@incident("unowned interval")
def second_topic_is_claimed_late(s: Scene) -> Iterator[None]:
    other = Scene(s.address, s.group, partitions=1, topic="t-other-second_topic")
    a = s.member("a", subscription={s.topic: 1, other.topic: 1}).claim(0, 1).commit(0, 10)
    more = Member(other, "a", session=a.session, register=False).claim(0).commit(0, 10)
    yield
    a.commit(0, 20).release(0, 1)
    more.commit(0, 20).release(0)
    a.claim(0, 1)
    wait(5)
    more.claim(0).commit(0, 30)
    a.commit(0, 40)


@incident("member without its share", partitions=4)
def one_of_two_has_three(s: Scene) -> Iterator[None]:
    a = s.member("a").claim(0, 1, 2).commit(0, 10)
    b = s.member("b").claim(3).commit(3, 10)
    yield
    a.commit(0, 20).commit(1, 20).commit(2, 20)
    b.commit(3, 20)


@incident("claim contention")
def two_members_claim_too_early(s: Scene) -> Iterator[None]:
    """The owner's application does not return from its listener. Two others try again and again."""
    a = s.member("a").claim(0, 1).commit(0, 10).commit(1, 10)
    yield
    b, c = s.member("b"), s.member("c")
    for _ in range(14):
        for other in (b, c):
            with contextlib.suppress(NodeExistsError):
                other.claim(1)
    a.commit(0, 30).commit(1, 30).release(0, 1)
    b.claim(0).commit(0, 40)
    c.claim(1).commit(1, 40)
    a.leave()


@incident("rebalance storm")
def storm_of_short_consumers(s: Scene) -> Iterator[None]:
    """A job starts a consumer with a new id every 0.4 s. Every time all members rebalance."""
    a = one(s)
    yield
    for n in range(14):
        job = Member(s, f"job{n}")
        a.release(0, 1)
        a.claim(0)
        job.claim(1).commit(1, 101 + n)
        wait(0.2)
        job.leave()
        a.release(0)
        a.claim(0, 1).commit(0, 101 + n)
        wait(0.2)


@incident("zombie commit/repaired", "offset regression/repeated/60", "foreign release")
def three_faults_in_one_group(s: Scene) -> Iterator[None]:
    other = Scene(s.address, s.group, partitions=2, topic="t-other-three_faults")
    both = {s.topic: 1, other.topic: 1}
    a, b = s.member("a", subscription=both), s.member("b", subscription=both)
    a.claim(0).commit(0, 10, 100)
    b.claim(1).commit(1, 10, 100)
    a2 = Member(other, "a", session=a.session, register=False).claim(0).commit(0, 10, 100)
    b2 = Member(other, "b", session=b.session, register=False).claim(1).commit(1, 10, 100)
    yield
    a.commit(0, 110).release(0)
    b.commit(1, 110).release(1)
    a.claim(1)
    b.claim(0).commit(0, 150)
    a.commit(0, 120)  # a zombie
    b.commit(0, 170)
    t = s.tool()
    write(t, other.offset(0), 40)  # the owner restarts from it
    a2.release(0)
    a2.claim(0).commit(0, 50)
    t.delete(other.owner(1))  # the owner claims it again
    b2.claim(1).commit(1, 130)
    a.commit(1, 130)


# Live moves.


@incident("mode written too early")
def live_mode_too_early(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    stages(s, "locked", 0, a)
    stages(s, "kafka open", 1, a, b)
    a.commit(0, 130)


@incident("mode out of order")
def live_mode_left_out(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    stages(s, "kafka open", 0, a, b)
    b.commit(1, 130)


@incident("mode out of order")
def live_mode_deleted(s: Scene) -> Iterator[None]:
    """An operator deletes the znode by hand, to start over."""
    a, b = live(s)
    yield
    operator = Operator(s).mode("locked")
    a.acknowledge(1)
    b.acknowledge(1)
    operator.session.delete(f"{s.base}/live/mode")
    operator.end()
    a.commit(0, 130)


@incident("mode written by a member")
def live_mode_by_a_member(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    a.session.set(f"{s.base}/live/mode", mode_text("locked"))
    a.acknowledge(1)
    b.acknowledge(1)
    stages(s, "kafka open", 1, a, b)
    b.commit(1, 130)


@incident("legacy member in a locked group")
def live_legacy_stays(s: Scene) -> Iterator[None]:
    """The mode is written by hand while an old consumer runs. The old one leaves later."""
    a, b = live(s)
    legacy = s.member("old")
    yield
    stages(s, "locked", 0, a, b)
    legacy.leave()
    stages(s, "kafka open", 1, a, b)
    a.commit(0, 140)


@incident("unlocked during a move", "legacy member in a locked group")
def live_lock_removed(s: Scene) -> Iterator[None]:
    """Someone resets the access list in mode kafka, and an old consumer starts."""
    a, b = live(s)
    yield
    stages(s, "locked kafka", 0, a, b)
    someone = Operator(s).unlock()
    someone.end()
    legacy = s.member("old")
    legacy.leave()
    stages(s, "open", 2, a, b)
    a.commit(0, 140)


@incident("migration stands still")
def live_member_does_not_follow(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    stages(s, "locked", 0, a)
    a.commit(0, 130)
    wait(3)
    b.commit(1, 130)


@incident("migration stands still")
def live_left_in_kafka(s: Scene) -> Iterator[None]:
    """All have acknowledged, and the operator goes home."""
    a, b = live(s)
    yield
    stages(s, "locked kafka", 0, a, b)
    a.commit(0, 140)
    b.commit(1, 140)


@incident("two operators")
def live_two_operators(s: Scene) -> Iterator[None]:
    a, b = live(s)
    yield
    first = Operator(s).lock().mode("locked")
    a.acknowledge(1)
    b.acknowledge(1)
    second = Operator(s).mode("zookeeper")
    a.acknowledge(2)
    b.acknowledge(2)
    second.unlock().end()
    first.end()
    a.commit(0, 130)


@incident("zombie commit/repaired")
def live_two_deliverers(s: Scene) -> Iterator[None]:
    """A member has lost its session. Its old thread commits after another member has claimed."""
    yield
    a, b = Live(s, "a").acknowledge(0), Live(s, "b", timeout=2000).acknowledge(0)
    a.claim(0).commit(0, 10, 100)
    b.claim(1).commit(1, 10, 100)
    expired(s, b)
    a.claim(1)
    b = Live(s, "b").acknowledge(0)
    stages(s, "locked kafka", 0, a, b)
    a.commit(1, 150)
    b.commit(1, 120)
    a.commit(1, 170).release(1)
    b.claim(1)
    stages(s, "open", 2, a, b)
    b.commit(1, 190)
