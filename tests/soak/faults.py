"""The faults, the plan of a run, and the code that applies it.

A plan depends only on its seed. It has cycles of a storm, in which faults overlap, and of one fault
alone on a quiet group. Each fault runs on its own thread. It counts only if its effect was
observed: each function returns the evidence, or raises ``NotDelivered``.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tests.soak.arena import COMMIT_INTERVAL, GROUP, SESSION, TOPIC, Arena, Member, Slot, freeze
from tests.soak.history import FaultRecord
from tests.soak.kinds import KINDS
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.errors import ClusterError
from zkconsumer.servers import wait_until
from zkconsumer.servers.servers import Server

LOCK_SECONDS = 90.0
STORM_SECONDS = 20.0
STORM_FAULTS = 22
HEAL_SECONDS = 10.0
"""Seconds after the last fault of a storm after which no member may be idle and no partition
unowned."""
JUDGED_SECONDS = 2.0
"""How long the group is then observed, in seconds."""
ALONE_SECONDS = 8.0
"""How long the group may recover from a single fault."""


class NotDelivered(Exception):
    """The fault had no effect, or none that was observed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault in the plan."""

    at: float
    """Seconds since the start of its storm."""
    kind: str
    variant: str
    target: int
    """Number of a member's slot, follower or broker."""
    seconds: float
    """How long its cause lasts, in seconds."""
    first: int = 0
    """The first slot whose member may be restarted."""

    def __str__(self) -> str:
        return (
            f"{self.at:5.1f} s  {self.kind} {self.variant} target {self.target} "
            f"for {self.seconds:.1f} s"
        )


class Act:
    """One fault in progress. Functions record times and members here."""

    def __init__(self, arena: Arena, planned: Planned, record: FaultRecord) -> None:
        self.arena = arena
        self.planned = planned
        self.record = record

    def begin(self, *members: Any) -> None:
        """Record that the cause has started."""
        self.record.members = tuple(member.name for member in members)
        self.record.began = time.time()

    def end(self) -> None:
        """Record that the cause has ended."""
        self.record.ended = time.time()

    def wait(self, seconds: float) -> None:
        """Wait while the cause lasts."""
        time.sleep(seconds)

    @property
    def slot(self) -> Slot:
        return self.arena.slots[self.planned.target]

    @property
    def member(self) -> Member:
        """The member in the slot, which must be running. Raises NotDelivered."""
        member = self.slot.member
        if not member.running:
            raise NotDelivered(f"{member.name} does not run")
        return member


# -- members ---------------------------------------------------------------------------------------


def kill(act: Act) -> str:
    """A member is killed, and another one takes its place."""
    member = act.member
    member.kill()
    act.begin(member)
    act.wait(act.planned.seconds)
    act.slot.start()
    act.end()
    return f"process {member.pid} ended with {member.process.returncode}"


def pause(act: Act) -> str:
    """A member is frozen until its session has expired, and slightly longer."""
    arena, member = act.arena, act.member
    freeze(member.pid, member.name)
    act.begin(member)
    try:
        act.wait(act.planned.seconds)
        gone = gone_from_group(arena, member)
    finally:
        member.signal(signal.SIGCONT)
        act.end()
    if not gone:
        raise NotDelivered("the session outlived the pause")
    return f"stopped for {act.record.ended - act.record.began:.1f} s; {gone}"


def gone_from_group(arena: Arena, member: Member) -> str:
    """Evidence from the servers that a frozen member's session has expired, or an empty text."""
    if arena.kind.member == "zookeeper":
        path = arena.paths.member(f"{GROUP}_{member.name}")
        found = arena.look(lambda client: client.get_children_async(arena.paths.ids))
        if found is None or path.rpartition("/")[2] in found:
            return ""
        return "its registration was gone"
    # The coordinator answers a heartbeat of an unknown member with its own error code.
    return "longer than the session timeout"


def expire(act: Act) -> str:
    """Another client ends a member's session."""
    member = act.member
    act.begin(member)
    evidence = act.arena.expel(member)
    act.end()
    return evidence


def leave(act: Act) -> str:
    """A member leaves cleanly, and another one joins."""
    member = act.member
    act.begin(member)
    took = member.leave()
    act.wait(act.planned.seconds)
    act.slot.start()
    act.end()
    if member.life.how != "left":
        raise NotDelivered(f"{member.name}: {member.life.how}")
    return f"left in {took:.2f} s"


def rolling(act: Act) -> str:
    """All members leave and return, one at a time. The caller has no lock."""
    names, took = [], []
    act.begin()
    for slot in act.arena.slots[act.planned.first :]:
        with locked(slot.lock):
            member = slot.member
            if not member.running:
                continue
            took.append(member.leave())
            names.append(member.name)
            slot.start()
            slot.wait_progress()
    act.end()
    act.record.members = tuple(names)
    if len(names) < len(act.arena.slots) // 2:
        raise NotDelivered(f"only {len(names)} members could leave")
    return f"{len(names)} members left in {max(took):.2f} s at most"


def full_disk(act: Act) -> str:
    """The disk of a member's journal is full: writes fail with ENOSPC until the member is
    restarted."""
    member = act.member
    act.begin(member)
    if not member.ask("fill"):
        raise NotDelivered("the journal has ended already")
    wait_until(
        lambda: "the journal ends here" in member.errors.read_text(errors="replace"),
        10,
        "the journal has met the full disk",
    )
    act.end()
    return "the journal ended with ENOSPC"


# -- connections -----------------------------------------------------------------------------------


def used(proxies: list[TcpProxy]) -> list[TcpProxy]:
    """The proxies that have a connection."""
    return [proxy for proxy in proxies if proxy.connections]


def silent(act: Act) -> str:
    """A member's connections forward nothing in one direction, or both, and stay open.

    Variants: ``answers``, ``requests`` or ``both``, of the ZooKeeper server in use (``one``), of
    ``all`` ZooKeeper servers, or of a ``broker``.
    """
    where, way = act.planned.variant.split(" ")
    member = act.member
    ways = ("answers", "requests") if way == "both" else (way,)
    proxies = act.slot.proxies
    if where == "broker":
        chosen = [proxies.to_brokers[act.planned.target % len(proxies.to_brokers)]]
    else:
        chosen = used(proxies.to_zookeeper) if where == "one" else proxies.to_zookeeper
    if not any(proxy.connections for proxy in chosen):
        raise NotDelivered("there is no connection")
    before = sum(proxy.held.total() for proxy in chosen)
    for proxy in chosen:
        proxy.stall(*ways)
    act.begin(member)
    act.wait(act.planned.seconds)
    for proxy in chosen:
        if act.planned.target % 2:
            proxy.cut()  # delayed data is lost
        proxy.resume()
    act.end()
    held = sum(proxy.held.total() for proxy in chosen) - before
    if not held:
        raise NotDelivered("nothing was held back")
    return f"{held} pieces of data held back"


def ambiguous(act: Act) -> str:
    """A write is carried out, and its response does not arrive.

    Variants: ``closed`` means that the connection closes after a commit was stored. ``lost`` means
    that the response to any one request is lost, and the connection stays.
    """
    arena, member = act.arena, act.member
    coordinated = arena.kind.member == "coordinator"
    proxies = act.slot.proxies.to_brokers if coordinated else used(act.slot.proxies.to_zookeeper)
    if coordinated:
        with arena.group_client() as client:
            port = arena.coordinator(client).port
        proxies = [proxy for proxy in proxies if proxy.target_port == port and proxy.connections]
    if not proxies:
        raise NotDelivered("there is no connection")
    if act.planned.variant == "lost":
        act.begin(member)
        for proxy in proxies:
            proxy.drop("answers")
        try:
            wait_until(
                lambda: not all(proxy.dropping for proxy in proxies), 5, "a response is lost"
            )
        finally:
            act.end()
            for proxy in proxies:
                proxy.resume()
        return "one answer was lost"
    before_held = sum(proxy.held["answers"] for proxy in proxies)
    owned = owned_by(arena, member)
    before = stored(arena, owned)
    for proxy in proxies:
        proxy.stall("answers")
    act.begin(member)
    # From here on, a stored offset was requested and gets no response.
    first = stored(arena, owned)
    applied: set[int] = set()
    until = time.monotonic() + max(1.2, 3 * COMMIT_INTERVAL)
    while time.monotonic() < until and not applied:
        time.sleep(0.05)
        now = stored(arena, owned)
        applied = {p for p in now if first.get(p) is not None and now[p] != first[p]}
    for proxy in proxies:
        proxy.cut()
        proxy.resume()
    act.end()
    held = sum(proxy.held["answers"] for proxy in proxies) - before_held
    if not applied or not held:
        raise NotDelivered(f"no commit was applied ({len(before)} partitions, {held} answers)")
    return f"{len(applied)} offsets were stored and {held} answers lost"


def owned_by(arena: Arena, member: Member) -> list[int]:
    """Some partitions that a member owns, according to its last deliveries."""
    with member.ledger.open("rb") as ledger:
        ledger.seek(max(0, member.delivered - 4096))
        lines = ledger.read().split(b"\n")[1:-1]
    return sorted({int(line.split()[1]) for line in lines})[:4]


def stored(arena: Arena, partitions: list[int]) -> dict[int, object]:
    """The identity of the last write of each partition's offset."""
    tps = {p: TopicPartition(TOPIC, p) for p in partitions}
    if arena.kind.member == "coordinator":
        with arena.group_client() as client:
            arena.coordinator(client)
            found = client.execute(commands.FetchOffsets(1, tuple(tps.values())))
            if not isinstance(found, events.OffsetsFetched):
                return {}
            return {p: found.offsets.get(tp) for p, tp in tps.items()}
    result: dict[int, object] = {}
    for p, tp in tps.items():
        path = arena.paths.offset(tp)
        stat = arena.look(lambda client, path=path: client.exists_async(path))
        if stat is not None:
            result[p] = stat.mzxid
    return result


# -- servers ---------------------------------------------------------------------------------------


def _disturb(act: Act, servers: list[Server]) -> str:
    """Freeze servers for a while, or kill and restart them, depending on the variant."""
    try:
        pids = [server.pid for server in servers]
        if act.planned.variant == "paused":
            for server in servers:
                server.pause()
            act.begin()
            act.wait(act.planned.seconds)
        else:
            for server in servers:
                server.kill()
            act.begin()
            act.wait(act.planned.seconds)
            for server in servers:
                server.start()
            for server in servers:
                server.wait_ready()
    finally:
        if act.planned.variant == "paused":
            for server in servers:
                server.resume()
        act.end()
    names = ", ".join(server.name for server in servers)
    seen = "stood still" if act.planned.variant == "paused" else "were gone"
    return f"{names}: processes {pids} {seen} for {act.record.ended - act.record.began:.1f} s"


def follower(act: Act) -> str:
    """A ZooKeeper follower is frozen or killed."""
    leader = act.arena.leader()
    followers = [s for s in act.arena.cluster.zookeeper_servers if s is not leader]
    return _disturb(act, [followers[act.planned.target % len(followers)]])


def leader(act: Act) -> str:
    """The ZooKeeper leader is frozen or killed."""
    return _disturb(act, [act.arena.leader()])


def ensemble(act: Act) -> str:
    """All ZooKeeper servers are frozen or killed."""
    return _disturb(act, list(act.arena.cluster.zookeeper_servers))


def broker(act: Act) -> str:
    """A broker is frozen or killed."""
    servers = act.arena.cluster.broker_servers
    return _disturb(act, [servers[act.planned.target % len(servers)]])


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    run: Callable[[Act], str]
    scope: str
    """The resource it needs alone: ``member``, ``zookeeper``, ``broker``, or ``all`` members in
    rotation."""
    weight: int
    """Its weight among the faults."""
    variants: tuple[str, ...] = ("",)
    seconds: tuple[float, float] = (0.0, 0.0)
    """The shortest and longest duration of its cause."""


RESTARTS = frozenset({"kill", "leave", "rolling restart", "full disk"})
"""Kinds that end a member's process. A journal without a disk recovers only then, too."""
WAYS = ("answers", "requests", "both")
OUTAGES = ("paused", "killed")

FAULTS: dict[str, Fault] = {
    "kill": Fault(kill, "member", 16, seconds=(0.0, 2.0)),
    "pause": Fault(pause, "member", 12, seconds=(SESSION + 1.5, SESSION + 4.0)),
    "expiry": Fault(expire, "member", 12),
    "silence": Fault(
        silent,
        "member",
        14,
        variants=tuple(f"{where} {way}" for where in ("one", "all", "broker") for way in WAYS),
        seconds=(1.0, SESSION + 2.0),
    ),
    "ambiguous write": Fault(ambiguous, "member", 10, variants=("closed", "lost")),
    "full disk": Fault(full_disk, "member", 4),
    "leave": Fault(leave, "member", 10, seconds=(0.0, 2.0)),
    "rolling restart": Fault(rolling, "all", 1),
    "follower": Fault(follower, "zookeeper", 6, variants=OUTAGES, seconds=(1.0, 6.0)),
    "leader": Fault(leader, "zookeeper", 5, variants=OUTAGES, seconds=(1.0, 6.0)),
    "ensemble": Fault(ensemble, "zookeeper", 2, variants=OUTAGES, seconds=(0.5, 5.0)),
    "broker": Fault(broker, "broker", 4, variants=OUTAGES, seconds=(1.0, 8.0)),
}


def named(names: Iterable[str]) -> frozenset[str]:
    """Return these faults, each the name of a kind or ``KIND: VARIANT``.

    Raises ValueError for a name that no fault has.
    """
    known = {f"{kind}: {one}" for kind, fault in FAULTS.items() for one in fault.variants if one}
    for name in names:
        if name not in FAULTS and name not in known:
            near = get_close_matches(name, [*FAULTS, *sorted(known)], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no fault {name!r}{hint}")
    return frozenset(names)


class Plan:
    """Draws the faults of a run. Kinds are drawn by weight, and variants in rotation."""

    def __init__(
        self, seed: int, kind: str, members: int, jvm_members: int, survivors: int = 0
    ) -> None:
        self._rng = random.Random(seed)
        self._kind = kind
        self._ours = members - jvm_members
        self._survivors = survivors
        """Number of first members that are not restarted, so that their memory can be observed."""
        self._deck: list[str] = []
        self._alone: list[Planned] = []
        self._variants: dict[str, list[str]] = {}

    def faults(self) -> list[str]:
        """The faults for a group of this kind."""
        ensemble = KINDS[self._kind].zookeeper
        return [name for name, one in FAULTS.items() if ensemble or one.scope != "zookeeper"]

    def variants(self, name: str) -> list[str]:
        """The variants for a group of this kind."""
        found = list(FAULTS[name].variants)
        if KINDS[self._kind].member == "coordinator" and name == "silence":
            found = [variant for variant in found if variant.startswith("broker")]
        return found

    def _draw(self, at: float) -> Planned:
        if not self._deck:
            self._deck = [name for name in self.faults() for _ in range(FAULTS[name].weight)]
            self._rng.shuffle(self._deck)
        name = self._deck.pop()
        variants = self._variants.setdefault(name, [])
        if not variants:
            variants += self.variants(name)
            self._rng.shuffle(variants)
        return self._planned(at, name, variants.pop())

    def _planned(self, at: float, name: str, variant: str) -> Planned:
        seconds = round(self._rng.uniform(*FAULTS[name].seconds), 1)
        first = self._survivors if name in RESTARTS else 0
        target = self._rng.randrange(first, self._ours)
        return Planned(round(at, 1), name, variant, target, seconds, self._survivors)

    def one(self) -> Planned:
        """One fault that starts at once."""
        return self._draw(0.0)

    def storm(self) -> list[Planned]:
        """The faults of one storm, in order."""
        times = sorted(self._rng.uniform(0, STORM_SECONDS) for _ in range(STORM_FAULTS))
        return [self._draw(at) for at in times]

    def every(self) -> list[Planned]:
        """One fault of each kind and variant."""
        return [self._planned(0.0, name, v) for name in self.faults() for v in self.variants(name)]

    def alone(self) -> Planned:
        """A fault on a quiet group. All kinds and variants are used in rotation."""
        if not self._alone:
            self._alone = self.every()
            self._rng.shuffle(self._alone)
        return self._alone.pop()


class locked:
    """Take locks for a while. Raises NotDelivered if one is not free in time."""

    def __init__(self, *locks: Any) -> None:
        self._locks = locks
        self._held = ExitStack()

    def __enter__(self) -> None:
        for lock in self._locks:
            if not lock.acquire(timeout=LOCK_SECONDS):
                self._held.close()
                raise NotDelivered("its target had other faults")
            self._held.callback(lock.release)

    def __exit__(self, *error: object) -> None:
        self._held.close()


def carry_out(arena: Arena, planned: Planned, alone: bool) -> FaultRecord:
    """Apply one fault and record it. Raises nothing."""
    record = FaultRecord(planned.kind, planned.variant, f"{planned.target}", alone)
    act = Act(arena, planned, record)
    scope = FAULTS[planned.kind].scope
    locks = {
        "member": (arena.away, act.slot.lock),
        "zookeeper": (arena.zookeeper_lock,),
        "broker": (arena.broker_lock,),
        "all": (),
    }[scope]
    try:
        with locked(*locks):
            if scope == "member":
                act.slot.revive()
                act.slot.wait_progress(SESSION * 3)
            record.evidence = FAULTS[planned.kind].run(act)
    except (NotDelivered, ClusterError, OSError) as error:
        record.reason = str(error) or repr(error)
    record.began = record.began or time.time()
    record.ended = record.ended or time.time()
    arena.faults.append(record)
    return record


def storm(arena: Arena, faults: list[Planned]) -> Iterator[FaultRecord]:
    """Apply each fault at its time, and yield each one when it has ended."""
    done: list[FaultRecord] = []
    threads = []
    began = time.monotonic()
    ended = threading.Event()

    def run(planned: Planned) -> None:
        if not ended.wait(max(0.0, began + planned.at - time.monotonic())):
            done.append(carry_out(arena, planned, alone=False))

    for planned in faults:
        threads.append(threading.Thread(target=run, args=(planned,), daemon=True))
        threads[-1].start()
    try:
        shown = 0
        while any(thread.is_alive() for thread in threads) or shown < len(done):
            while shown < len(done):
                yield done[shown]
                shown += 1
            time.sleep(0.1)
    finally:
        ended.set()
