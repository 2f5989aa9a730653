"""The incidents. Each one has its own group, two parts, and labels.

A label is ``kind``, ``kind/effect`` or ``kind/effect/messages``, and stands for one finding. Any
other finding counts as wrong. The log of the variant *late* begins at ``yield``, without a
snapshot. So it does not show which members were registered or which partitions they owned. The
labels of *late* are the findings that such a log can show.
"""

# ruff: noqa: D103 - the name and the steps say what happens

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.exceptions import KazooException, NodeExistsError

from tests.audit.corpus.wire import Session

LIMITS = {
    "unowned_seconds": 4.0,
    "storm_seconds": 60.0,
    "flapping_seconds": 60.0,
    "stalled_seconds": 4.0,
    "herd_members": 6,
}
"""Limits of the audit, small enough that a recording takes seconds."""
RECORDED = Path(__file__).with_name("recorded")
"""Has a directory for each corpus."""
SETTLED = 6.0
"""Seconds to wait at the end: longer than ``unowned_seconds``."""

Play = Callable[["Scene"], Iterator[None]]


@dataclass(frozen=True)
class Incident:
    """``must`` has the labels for the whole log, ``late`` those for a log that begins in the
    middle. ``may`` has kinds that are not counted in either variant."""

    name: str
    play: Play | None
    """``None``: there is only the recording."""
    must: tuple[str, ...]
    late: tuple[str, ...]
    may: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """A set of incidents that are recorded together, and the audit's limits for them."""

    name: str
    limits: dict[str, float]
    incidents: dict[str, Incident] = field(default_factory=dict)

    def incident(
        self,
        *must: str,
        late: tuple[str, ...] | None = None,
        may: tuple[str, ...] = (),
    ) -> Callable[[Play], Play]:
        """Register an incident. ``late`` equals ``must`` unless it is given."""

        def add(play: Play) -> Play:
            name = play.__name__
            labels = must, must if late is None else late, may
            self.incidents[name] = Incident(name, play, *labels)
            return play

        return add


WRITTEN_WITH_THE_RULES = Corpus("with_rules", LIMITS)
INCIDENTS = WRITTEN_WITH_THE_RULES.incidents
incident = WRITTEN_WITH_THE_RULES.incident


@dataclass
class Scene:
    """A group with a topic of two partitions, its members and its tools."""

    address: str
    group: str
    admin: Session = field(init=False)

    def __post_init__(self) -> None:
        self.topic = f"t-{self.group}"
        self.admin = Session(self.address)
        self.base = f"/consumers/{self.group}"
        self.parents("/brokers/topics")
        for tree in ("ids", f"owners/{self.topic}", f"offsets/{self.topic}"):
            self.parents(f"{self.base}/{tree}")
        self.create_topic()

    def parents(self, path: str) -> None:
        parts = path.split("/")[1:]
        for end in range(1, len(parts) + 1):
            with contextlib.suppress(NodeExistsError):
                self.admin.create("/" + "/".join(parts[:end]))

    def create_topic(self) -> None:
        content = {"version": 1, "partitions": {"0": [0], "1": [0]}}
        self.admin.create(f"/brokers/topics/{self.topic}", json.dumps(content).encode())

    def delete_topic(self) -> None:
        self.admin.delete(f"/brokers/topics/{self.topic}")

    def tool(self) -> Session:
        return Session(self.address)

    def member(self, name: str = "a", **more: object) -> Member:
        return Member(self, name, **more)  # type: ignore[arg-type]

    def offset(self, partition: int) -> str:
        return f"{self.base}/offsets/{self.topic}/{partition}"

    def owner(self, partition: int) -> str:
        return f"{self.base}/owners/{self.topic}/{partition}"


class Member:
    """A scripted member: the writes of the original consumer, one at a time."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        timeout: int = 40_000,
        pattern: str = "static",
        subscription: str | dict[str, int] | None = None,
        register: bool = True,
    ) -> None:
        self.scene = scene
        self.id = f"{scene.group}_host-{name}-1700000000000-{ord(name[0]):08x}"
        self.session = Session(scene.address, timeout)
        topics = scene.topic if subscription is None else subscription
        registration = {
            "version": 1,
            "subscription": {topics: 1} if isinstance(topics, str) else topics,
            "pattern": pattern,
            "timestamp": "1700000000000",
        }
        self.path = f"{scene.base}/ids/{self.id}"
        if register:
            data = json.dumps(registration, separators=(",", ":")).encode()
            self.session.create(self.path, data, ephemeral=True)

    def claim(self, *partitions: int) -> Member:
        for partition in partitions:
            self.session.create(self.scene.owner(partition), f"{self.id}-0".encode(), True)
        return self

    def release(self, *partitions: int) -> Member:
        for partition in partitions:
            self.session.delete(self.scene.owner(partition))
        return self

    def commit(self, partition: int, *offsets: int) -> Member:
        for offset in offsets:
            write(self.session, self.scene.offset(partition), offset)
        return self

    def unregister(self) -> None:
        self.session.delete(self.path)

    def leave(self) -> None:
        self.session.close()


def write(session: Session, path: str, offset: int) -> None:
    """Write an offset as members and tools do. The znode may not exist yet."""
    try:
        session.set(path, str(offset).encode())
    except KazooException:
        session.create(path, str(offset).encode())


def wait(seconds: float) -> None:
    """Let time pass on the server's clock."""
    time.sleep(seconds)


def gone(scene: Scene, member: Member) -> None:
    """Wait until the server has ended a member's session."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            scene.admin.set(member.path, b"{}")
        except KazooException:
            return
        wait(0.2)
    raise TimeoutError(f"{member.id} did not expire")


def one(scene: Scene) -> Member:
    """One member owns both partitions and has delivered 100 messages of each."""
    return scene.member().claim(0, 1).commit(0, 10, 100).commit(1, 10, 100)


def two(scene: Scene) -> tuple[Member, Member]:
    """Two members with one partition each."""
    a = scene.member("a").claim(0).commit(0, 10, 100)
    return a, scene.member("b").claim(1).commit(1, 10, 100)


# Nothing wrong.


@incident()
def clean_handover(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 150).release(0)
    a.leave()
    b.claim(0).commit(0, 200).commit(1, 200)


@incident()
def clean_restart(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 150).release(0, 1)
    a.leave()
    s.member("b").claim(0, 1).commit(0, 200)


@incident()
def clean_expiry(s: Scene) -> Iterator[None]:
    a = s.member("a", timeout=1000).claim(0).commit(0, 10, 100)
    b = s.member("b").claim(1).commit(1, 10)
    yield
    a.session.abandon()
    gone(s, a)
    b.claim(0).commit(0, 130).commit(1, 50)


@incident()
def clean_fast_progress(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    for n in range(1, 6):
        a.commit(0, 30_000 * n)
        wait(0.4)


@incident()
def clean_idle_group(s: Scene) -> Iterator[None]:
    a, b = two(s)
    for n in range(8):
        a.commit(0, 110 + n)
        b.commit(1, 110 + n)
        wait(0.1)
    yield
    a.commit(0, 130)
    b.commit(1, 130)


@incident()
def clean_deleted_topic(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    s.delete_topic()
    a.release(0, 1)


@incident()
def clean_filter(s: Scene) -> Iterator[None]:
    a = s.member("a", pattern="white_list", subscription="t-clean_fil.*").claim(0, 1).commit(0, 5)
    yield
    a.commit(0, 9).commit(1, 9)


@incident()
def clean_slow_churn(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    for n in range(3):
        a.release(0, 1)
        a.leave()
        a = s.member("a").claim(0, 1).commit(0, 200 + n).commit(1, 200 + n)
        wait(0.5)


@incident()
def clean_two_expiries(s: Scene) -> Iterator[None]:
    b = s.member("b").claim(1).commit(1, 10)
    a = s.member("a", timeout=1000).claim(0).commit(0, 10)
    yield
    for n in range(2):
        a.session.abandon()
        gone(s, a)
        a = s.member("a", timeout=1000 if not n else 40_000).claim(0).commit(0, 20 + n)
    b.commit(1, 20)


@incident()
def clean_some_refused(s: Scene) -> Iterator[None]:
    _, b = two(s)
    yield
    for _ in range(8):
        with contextlib.suppress(NodeExistsError):
            b.claim(0)


# Offsets.


@incident("tool write/repaired")
def tool_repaired(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    write(s.tool(), s.offset(0), 3)
    a.commit(0, 120)


@incident("tool write/repaired")
def tool_raised_and_repaired(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    write(s.tool(), s.offset(0), 9000)
    a.commit(0, 120)


@incident("offset regression/repeated/90")
def tool_lowered_and_claimed(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101)
    write(s.tool(), s.offset(0), 11)
    a.release(0)
    s.member("b").claim(0).commit(0, 40, 90)


@incident("lost messages/lost/900")
def tool_raised_while_stopped(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 100).commit(1, 101).commit(0, 101).commit(0, 100 + 2)
    a.leave()
    write(s.tool(), s.offset(0), 1002)
    s.member("b").claim(0, 1).commit(0, 1050).commit(1, 110)


@incident("lost messages/lost/500")
def tool_raised_out_of_range(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101)
    a.leave()
    write(s.tool(), s.offset(0), 9000)
    s.member("b").claim(0, 1).commit(0, 601).commit(1, 110)


@incident("lost messages/lost/899", "lost messages/lost/899")
def tool_skipped_on_purpose(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101).commit(1, 101)
    a.leave()
    t = s.tool()
    write(t, s.offset(0), 1000)
    write(t, s.offset(1), 1000)
    t.close()
    s.member("b").claim(0, 1).commit(0, 1010).commit(1, 1010)


@incident("offset regression/repeated/91", "offset regression/repeated/91")
def tool_replayed_on_purpose(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101).commit(1, 101)
    a.leave()
    t = s.tool()
    write(t, s.offset(0), 10)
    write(t, s.offset(1), 10)
    t.close()
    s.member("b").claim(0, 1).commit(0, 20).commit(1, 20)


@incident("tool write/none")
def tool_read_by_nobody(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101)
    a.leave()
    write(s.tool(), s.offset(0), 50)


@incident("zombie commit/repaired", "member without its share", late=("zombie commit/repaired",))
def zombie_overwritten(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 110).release(0)
    b.claim(0).commit(0, 150)
    a.commit(0, 120)
    b.commit(0, 170)


@incident("zombie commit/repeated/50")
def zombie_lowers(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 110).release(0)
    b.claim(0).commit(0, 150)
    a.commit(0, 100)
    b.release(0)
    a.claim(0).commit(0, 130)


@incident("zombie commit/repaired")
def zombie_of_itself(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 101).release(0, 1)
    a.unregister()
    again = s.member("a").claim(0, 1).commit(0, 120).commit(1, 120)
    a.commit(0, 110)
    again.commit(0, 140)


@incident("orphan commit", "member without its share", late=("orphan commit",))
def orphan(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 110).release(0).commit(0, 140)
    b.claim(0).commit(0, 160)


@incident("orphan commit")
def orphan_unregistered(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).release(0, 1)
    a.unregister()
    a.commit(0, 140)


@incident("offset regression/repeated/60", late=("offset regression/unknown",))
def owner_goes_back(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110, 50, 70)


@incident("offset jump/unknown/5000000")
def owner_jumps(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110, 5_000_110, 5_000_150)


@incident("offset of a deleted topic/unknown")
def recreated_out_of_range(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 5000)
    s.delete_topic()
    s.create_topic()
    a.commit(0, 20, 40)


@incident("offset of a deleted topic/lost/5000")
def recreated_and_skipped(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 5000)
    s.delete_topic()
    s.create_topic()
    a.commit(0, 5020)


@incident("commit past the end of a move")
def moved_and_written(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    move(s, "kafka")
    a.commit(0, 120)


@incident()
def moved_and_back(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    move(s, "kafka")
    move(s, "zookeeper")
    a.commit(0, 120)


def move(s: Scene, store: str) -> None:
    content = {"version": 1, "moved_to": store, "at_ms": 1, "offsets": {}}
    write_text(s.tool(), f"{s.base}/migration", json.dumps(content))


def write_text(session: Session, path: str, text: str) -> None:
    try:
        session.create(path, text.encode())
    except NodeExistsError:
        session.set(path, text.encode())


# Ownership.


@incident("foreign release")
def tool_deletes_owner(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110)
    s.tool().delete(s.owner(1))
    a.claim(1).commit(1, 120)


@incident("foreign release", "member without its share", late=())
def member_deletes_owner(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.commit(0, 110)
    b.session.delete(s.owner(0))
    b.claim(0).commit(0, 130)


@incident(
    "foreign release",
    "one consumer id on two sessions",
    "one consumer id on two sessions",
    late=("foreign release",),
)
def own_old_owner_deleted(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110)
    a.unregister()
    again = s.member("a")
    again.session.delete(s.owner(0))
    a.release(1)
    again.claim(0, 1).commit(0, 130).commit(1, 130)


@incident("unowned interval", late=())
def unowned(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).release(0)
    wait(5)
    a.claim(0).commit(0, 120)


@incident("orphan partition", late=())
def orphan_partition(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).release(0)


@incident("orphan partition", late=())
def never_claimed(s: Scene) -> Iterator[None]:
    a = s.member("a").claim(0).commit(0, 10)
    yield
    a.commit(0, 20)


@incident("one consumer id on two sessions", late=())
def two_sessions(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110).release(1)
    Member(s, "a", register=False).claim(1)


@incident("member without its share", late=())
def without_share(s: Scene) -> Iterator[None]:
    a = one(s)
    yield
    a.commit(0, 110)
    s.member("b")


# Load and members.


@incident("rebalance storm")
def storm(s: Scene) -> Iterator[None]:
    s.member("b").claim(1).commit(1, 10)
    yield
    for n in range(12):
        a = s.member("a").claim(0).commit(0, 20 + n)
        wait(0.3)
        a.leave()
    s.member("a").claim(0).commit(0, 40)


@incident("rebalance storm")
def storm_of_claims(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    for _ in range(12):
        c = s.member("c")
        a.release(0)
        a.claim(0)
        b.release(1)
        b.claim(1)
        c.leave()
        wait(0.1)
    a.commit(0, 200)


@incident("claim contention", late=())
def contention(s: Scene) -> Iterator[None]:
    a, b = two(s)
    yield
    a.release(0)
    for _ in range(25):
        with contextlib.suppress(NodeExistsError):
            b.claim(1)
    a.claim(0).commit(0, 120)


# ``gone`` overwrites the registration, and a snapshot may be taken before the session ends.
@incident("flapping member", may=("unreadable registration",))
def flapping(s: Scene) -> Iterator[None]:
    b = s.member("b").claim(1).commit(1, 10)
    yield
    for n in range(4):
        a = s.member("a", timeout=1000).claim(0).commit(0, 20 + n)
        a.session.abandon()
        gone(s, a)
    b.claim(0).commit(0, 30).commit(1, 30)


@incident("stalled owner", late=())
def stalled(s: Scene) -> Iterator[None]:
    a, b = two(s)
    for n in range(4):
        a.commit(0, 110 + n)
        b.commit(1, 110 + n)
        wait(0.1)
    yield
    for n in range(8):
        a.commit(0, 120 + n)
        b.commit(1, 120 + n)
        wait(0.1)
    for n in range(12):
        b.commit(1, 130 + n)
        wait(0.5)


@incident("herd", "herd", "herd", late=())
def herd(s: Scene) -> Iterator[None]:
    for name in "abcdef":
        s.member(name)
    s.member("x").claim(0).commit(0, 5)
    s.member("y").claim(1).commit(1, 5)
    yield
    s.member("z")
