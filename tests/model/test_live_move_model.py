"""Bounded model of a live move of one running group from ZooKeeper to the coordinator, and back.

The model has one partition and a log of a few messages. There are migratable members, a legacy
consumer that may start at any time, and an operator. A plain Kafka consumer starts while it is
allowed, and may join much later. The group's mode znode defines the rules:

    mode       who decides    legacy consumers    plain consumers      a migratable member delivers
    zookeeper  ZooKeeper      may register        are refused (*)      with the owner znode
    locked     ZooKeeper      cannot register     are refused          ... and while it refuses them
    kafka      coordinator    cannot register     are refused          ... and with its assignment
    open       coordinator    cannot register     may join             ... and with its assignment

The coordinator itself refuses plain consumers: a migratable member that has not read ``open``
offers one strategy, which they do not support. (*) This holds as long as one migratable member is
in the group.

Anything may be late. A member reads a mode long after it was written, and the operator writes long
after the check. Each command (``lock``, ``to-kafka``, ``finalize``, ``to-zookeeper``, ``unlock``,
``undo``, ``complete``, ``reset``) is a sequence of the operators' steps. The model takes these in
any order, so it has every command, and several at once. A ZooKeeper session may expire, and the
coordinator may remove a member. Both are noticed later. The operator's tool may stop after any
step, because no step is mandatory. Leases are assumed: a member without a session, or a removed
member, delivers nothing.

The model does not include a legacy or plain consumer that delivers without a session, or more than
one partition. ``test_fencing_model`` covers lost responses to claims and commits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from zkmigrate.plan import gates

from tests.model import search
from tests.model.search import Result
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration import modes

ZOOKEEPER, LOCKED, KAFKA, OPEN = range(4)
NAMES = ("zookeeper", "locked", "kafka", "open")
NOBODY, LEGACY, PLAIN = -1, -2, -3
"""Owners that are not migratable members. A member is its index."""
ABSENT = -1
"""No offset is stored."""

EXPELLED, OUT, CLOSED, WIDE = -1, 0, 1, 2
"""A member's state on the coordinator: removed without knowing it, outside, a member that offers
only its own strategy, or a member that offers the usual strategies."""


class Member(NamedTuple):
    """``session``: it has a session, and so is registered. ``seen`` and ``version``: the mode on
    which it acts. ``acked``: the version that it has acknowledged. ``position``: the next
    message."""

    session: bool = True
    seen: int = ZOOKEEPER
    version: int = 0
    acked: int = 0
    place: int = CLOSED
    position: int = 0


class State(NamedTuple):
    """``acl``: who cannot register: 0 everyone can, 1 legacy consumers, 2 migratable members
    neither. ``sealed``: the ids were locked, perhaps again,
    after the mode was written. ``lifting``: an operator is about to unlock the ids, and no one has
    locked them since it read their lock and then the mode. ``checked``: the mode that the operator
    is about to write, and the version that it read. ``owner``: of the owner znode. ``assigned``: by
    the coordinator. ``in_zk``, ``in_kafka``: committed offsets. ``told``: all messages below it
    were delivered. ``legacy``: 0 not registered, 1 registered. ``plain``: 0 not started, 1 started,
    2 member. ``their``: positions of both. ``reset``: offsets were set back, and no one has begun
    there yet. ``moved``: the move is recorded as finished. ``completing``: an operator has locked
    out everyone and is about to record that, and no one has locked the ids since. ``locking``: an
    operator that locks the ids has read them (1), has noted it in their data (2), and is about to
    let only migratable members in; nothing has changed their list since."""

    mode: int
    version: int
    acl: int
    sealed: bool
    lifting: bool
    checked: tuple[int, int] | None
    owner: int
    assigned: int
    in_zk: int
    in_kafka: int
    told: int
    faults: int
    legacy: int
    plain: int
    their: tuple[int, int]
    members: tuple[Member, ...]
    reset: bool = False
    moved: bool = False
    completing: bool = False
    locking: int = 0


class Design(NamedTuple):
    """The protocol. The defaults are ours. A weaker variant lacks one part."""

    ids_lock: bool = True  # the ACL keeps legacy consumers out before the tool checks for them
    lift: bool = True  # ids are unlocked only if no one has locked them again since the check
    seal: bool = True  # before ``kafka`` the ids are locked again: an unlocking tool may be late
    barrier: bool = True  # every registered member has acknowledged the present mode
    dual: bool = True  # a member that follows the coordinator also needs the owner znode
    door: bool = True  # only members that have seen ``open`` offer strategies of plain consumers
    stay: bool = True  # while locked, a member delivers only while it refuses plain consumers
    fresh: bool = True  # a new session registers with the present mode
    cas: bool = True  # the mode is written only if it has not changed since the check
    drop: bool = True  # a removed member releases its owner znode before it rejoins
    offsets_lock: bool = True  # before ``locked`` the offset in Kafka is not ahead
    offsets_open: bool = True  # before ``open`` the offset in Kafka is not behind
    offsets_back: bool = True  # before ``zookeeper`` the offset in ZooKeeper is not behind
    furthest: bool = True  # a claim between the modes begins at the higher of both offsets
    release: bool = True  # the command ``release`` asks for the mode before it unlocks the ids
    gates: bool = True  # every gate after ``kafka`` also looks for the lock and legacy consumers
    keep: bool = True  # import and delete keep the ids of a group, with their access list
    both: bool = True  # a reset sets the offsets in both stores
    exact: bool = True  # a move is completed only if no one has locked the ids since its lock
    late: bool = True  # who locks the ids last asks whether the move is completed
    finished: bool = True  # no step begins in a group whose move is completed


OURS = Design()


class Bounds(NamedTuple):
    """Limits of the search. ``old`` is an offset in Kafka from an earlier use of the group
    there. ``unlocked``: the ids have lost their lock. ``resets``: an operator may set the offsets
    back once all members have stopped. ``completes``: an operator may record the finished move."""

    members: int = 2
    messages: int = 1
    changes: int = 6
    faults: int = 1
    legacy: bool = True
    first: int = ZOOKEEPER
    old: int = ABSENT
    unlocked: bool = False
    resets: bool = False
    completes: bool = False


Step = tuple[str, State]


def refuses(m: Member, d: Design) -> bool:
    """Return whether the coordinator refuses plain consumers because of this member."""
    return m.place == (CLOSED if d.door else WIDE) or not d.stay


def delivers(s: State, i: int, d: Design) -> bool:
    """Return whether member ``i`` may deliver."""
    m = s.members[i]
    if not m.session:
        return False
    if m.seen == ZOOKEEPER:
        return s.owner == i
    if m.seen == LOCKED:
        return s.owner == i and refuses(m, d)
    return s.assigned == i and m.place > OUT and (s.owner == i or not d.dual)


def may_claim(s: State, i: int, d: Design) -> bool:
    """Return whether member ``i`` may claim the owner znode, if it is free."""
    m = s.members[i]
    if m.seen == ZOOKEEPER:
        return True
    return refuses(m, d) if m.seen == LOCKED else s.assigned == i and m.place > OUT


def may_give_back(s: State, i: int, d: Design) -> bool:
    """Return whether member ``i`` may let the coordinator revoke its assignment."""
    m = s.members[i]
    return s.owner != i or (m.seen < KAFKA and m.place == (CLOSED if d.door else WIDE))


def deliverers(s: State, d: Design) -> list[int]:
    """All members and consumers that may deliver now."""
    found = [i for i in range(len(s.members)) if delivers(s, i, d)]
    if s.owner == LEGACY:
        found.append(LEGACY)
    if s.assigned == PLAIN:
        found.append(PLAIN)
    return found


def put(s: State, i: int, m: Member, **others: object) -> State:
    """Replace member ``i``."""
    members = (*s.members[:i], m, *s.members[i + 1 :])
    return s._replace(members=members, **others)  # type: ignore[arg-type]


def stored(s: State, m: Member) -> bool:
    """Return whether a member may release: its position is stored wherever it must be."""
    return s.in_zk == m.position and (m.seen == ZOOKEEPER or s.in_kafka == m.position)


def steps(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """Every possible next step."""
    yield from operator(s, d, b)
    yield from others(s, d, b)
    for i, m in enumerate(s.members):
        yield from member(s, i, m, d, b)


def operator(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """The tool checks a gate, and later writes the mode for which it has checked."""
    if b.completes:
        yield from complete(s, d, b)
        yield "look before locking", s._replace(locking=1)
    elif (s.mode in (ZOOKEEPER, LOCKED) or not s.acl) and d.ids_lock:
        lifting = s.lifting and not d.lift
        yield "lock ids", s._replace(acl=1, sealed=s.mode == LOCKED, lifting=lifting)
    if s.locking == 1:  # an unlock and a completion that began before do not end
        yield "note the lock", s._replace(locking=2, lifting=False, completing=False)
    if s.locking == 2:
        acl = 2 if s.moved and d.late else 1
        yield "lock ids", s._replace(acl=acl, sealed=s.mode == LOCKED, lifting=False, locking=0)
    let = s.mode == ZOOKEEPER and not (s.moved and d.finished)
    if (let or not d.release) and s.acl:
        yield "look before unlocking", s._replace(lifting=True)
    if s.lifting:
        yield "unlock ids", s._replace(acl=0, lifting=False, locking=0)
    stopped = not s.legacy and not any(m.session for m in s.members)
    if not d.keep and s.acl and stopped:
        yield "import recreates the ids", s._replace(acl=0)
    away = s.owner == NOBODY and s.plain != 2 and all(m.place <= OUT for m in s.members)
    if b.resets and stopped and away and not s.reset:
        in_kafka = 0 if d.both and s.in_kafka != ABSENT else s.in_kafka
        yield "reset", s._replace(in_zk=0, in_kafka=in_kafka, reset=True)
    if s.checked is not None:
        mode, version = s.checked
        after = s._replace(checked=None)
        yield "give up", after
        if (s.version == version or not d.cas) and s.version < b.changes:
            written = after._replace(mode=mode, version=s.version + 1, sealed=False)
            yield f"write {NAMES[mode]}", written
    everyone = all(m.acked == s.version or not d.barrier for m in s.members if m.session)
    if s.version >= b.changes or not everyone:
        return
    for mode in (s.mode - 1, s.mode + 1) if not (s.moved and d.finished) else ():
        look = s
        shut = (s.acl or not d.ids_lock) and not s.legacy
        if mode == LOCKED and s.mode == ZOOKEEPER:
            passes = shut and (s.in_kafka <= s.in_zk or not d.offsets_lock)
        elif mode == OPEN:
            passes = s.in_kafka >= s.in_zk or not d.offsets_open
            passes = passes and (shut or not d.gates)
        elif mode == ZOOKEEPER:
            passes = s.plain != 2 and (s.in_zk >= s.in_kafka or not d.offsets_back)
            look = s._replace(plain=0)  # from here on the operator does not start plain consumers
        elif mode == KAFKA and s.mode == OPEN:
            passes = s.plain != 2 and (shut or not d.gates)
            look = s._replace(plain=0)
        elif mode == KAFKA:
            passes = (s.acl and (s.sealed or not d.seal) and not s.legacy) or not d.ids_lock
        else:
            passes = mode == LOCKED and (shut or not d.gates)
        if passes and 0 <= mode <= OPEN:
            if s.checked is None:
                yield f"check {NAMES[mode]}", look._replace(checked=(mode, s.version))
            else:  # another operator, before the first has written
                other = look._replace(mode=mode, version=s.version + 1, sealed=False)
                yield f"other writes {NAMES[mode]}", other


def complete(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """An operator locks everyone out, and then records that the move is finished."""
    running = s.legacy or any(m.session for m in s.members)
    if s.mode == OPEN and not running:
        yield "lock everyone out", s._replace(acl=2, lifting=False, completing=True, locking=0)
        if (s.completing or not d.exact) and s.version < b.changes:
            version = s.version + 1
            yield "complete", s._replace(mode=ZOOKEEPER, version=version, moved=True)


def others(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """The legacy consumer and the plain consumer. Each stops only after a commit."""
    old, new = s.their
    if b.legacy and not s.legacy and not s.acl:
        yield "legacy registers", s._replace(legacy=1)
    if s.legacy:
        if s.owner != LEGACY:
            yield "legacy leaves", s._replace(legacy=0)
            if s.owner == NOBODY:
                at = max(s.in_zk, 0)
                yield "legacy claims", s._replace(owner=LEGACY, their=(at, new), reset=False)
        else:
            if old < b.messages:
                told = max(s.told, old + 1)
                yield f"deliver legacy {old}", s._replace(their=(old + 1, new), told=told)
            if s.in_zk != old:
                yield "legacy commits", s._replace(in_zk=old)
            else:
                yield "legacy releases", s._replace(owner=NOBODY, their=(0, new))
    if (s.mode == OPEN or s.moved) and not s.plain:
        yield "start plain", s._replace(plain=1)
    if s.plain == 1:
        yield "plain is not started", s._replace(plain=0)
        if not any(m.place == CLOSED for m in s.members) or not d.door:
            yield "plain joins", s._replace(plain=2)
    if s.plain == 2:
        if s.assigned != PLAIN:
            yield "plain leaves", s._replace(plain=0)
            if s.assigned == NOBODY:
                first = (old, s.in_kafka)
                yield "assign plain", s._replace(assigned=PLAIN, their=first, reset=False)
        else:
            if new < b.messages:
                at = max(new, 0)
                told = max(s.told, at + 1)
                yield f"deliver plain {new}", s._replace(their=(old, at + 1), told=told)
            if new != ABSENT and s.in_kafka != new:
                yield "plain commits", s._replace(in_kafka=new)
            elif s.in_kafka == new:
                yield "plain gives up", s._replace(assigned=NOBODY, their=(old, 0))


def member(s: State, i: int, m: Member, d: Design, b: Bounds) -> Iterator[Step]:
    """A migratable member's own steps, and the events that affect it."""
    mine = s.owner == i
    if s.faults < b.faults:
        if m.session:
            owner = NOBODY if mine else s.owner
            gone = m._replace(session=False, acked=-1, position=0)
            yield f"expire {i}", put(s, i, gone, owner=owner, faults=s.faults + 1)
        if m.place > OUT:
            assigned = NOBODY if s.assigned == i else s.assigned
            out = m._replace(place=EXPELLED)
            yield f"expel {i}", put(s, i, out, assigned=assigned, faults=s.faults + 1)
        if m.session and m.place > OUT:
            owner = NOBODY if mine else s.owner
            assigned = NOBODY if s.assigned == i else s.assigned
            dead = m._replace(session=False, acked=-1, position=0, place=OUT)
            faults = s.faults + 1
            yield f"crash {i}", put(s, i, dead, owner=owner, assigned=assigned, faults=faults)
    if m.place == EXPELLED:
        owner = NOBODY if mine and m.seen != ZOOKEEPER and d.drop else s.owner
        kept = m.position if owner == i else 0
        yield f"notice expulsion {i}", put(s, i, m._replace(place=OUT, position=kept), owner=owner)
    # A member that must not offer the strategies of plain consumers cannot join a group with one.
    place = WIDE if m.seen == OPEN or not d.door else CLOSED
    if m.place >= OUT and m.place != place and (place == WIDE or s.plain != 2):
        yield f"join {i}", put(s, i, m._replace(place=place))
    if s.assigned == NOBODY and m.place > OUT:
        yield f"assign {i}", s._replace(assigned=i)
    if s.assigned == i and m.place > OUT and may_give_back(s, i, d) and d.dual:
        yield f"revoke {i}", s._replace(assigned=NOBODY)
    if s.assigned == i and m.place > OUT and not d.dual and stored(s, m):
        yield f"revoke {i}", s._replace(assigned=NOBODY)
    if not m.session and s.acl == 2:
        return
    if not m.session:
        new = m._replace(session=True)
        if d.fresh:
            new = new._replace(seen=s.mode, version=s.version)
        yield f"register {i}", put(s, i, new)
        return
    if m.version != s.version:
        yield f"see {i} {NAMES[s.mode]}", put(s, i, m._replace(seen=s.mode, version=s.version))
    follows = m.seen < KAFKA or not mine or s.assigned == i
    if m.acked != m.version and follows and m.place in (place, WIDE if m.seen == OPEN else CLOSED):
        yield f"acknowledge {i}", put(s, i, m._replace(acked=m.version))
    if s.owner == NOBODY and may_claim(s, i, d):
        # In mode ``zookeeper`` the offset in Kafka is ignored, as legacy consumers do.
        at = max(s.in_zk, s.in_kafka if d.furthest and m.seen != ZOOKEEPER else 0, 0)
        yield f"claim {i}", put(s, i, m._replace(position=at), owner=i, reset=False)
    if delivers(s, i, d) and m.position < b.messages:
        told, after = max(s.told, m.position + 1), m._replace(position=m.position + 1)
        yield f"deliver {i} {m.position}", put(s, i, after, told=told)
    if mine:
        # First in Kafka, then in ZooKeeper, so that a plain consumer does not find an older offset.
        also = m.seen != ZOOKEEPER and m.place > OUT
        if also and s.in_kafka != m.position:
            yield f"commit kafka {i}", s._replace(in_kafka=m.position)
        elif s.in_zk != m.position:
            yield f"commit zookeeper {i}", s._replace(in_zk=m.position)
        if stored(s, m):
            yield f"release {i}", put(s, i, m._replace(position=0), owner=NOBODY)


def violations(s: State, name: str, t: State, d: Design) -> Iterator[str]:
    """The promises that the step ``name`` from ``s`` to ``t`` violates."""
    if len(deliverers(t, d)) > 1:
        yield "two deliver"
    if t.moved and (t.mode != ZOOKEEPER or t.acl != 2):
        yield "finished move changed"
    verb, _, rest = name.partition(" ")
    if verb == "deliver":
        at = int(rest.split()[1])
        if at == ABSENT:
            yield "began without an offset"
        if at > s.told:
            yield "message skipped"
        if at < s.told and not s.faults:
            yield "repeated without a fault"
    if verb == "claim" and s.reset and t.members[int(rest)].position:
        yield "reset undone"
    if name == "assign plain" and s.reset and t.their[1] > 0:
        yield "reset undone"
    # A member may crash between its two commits. The next one, still in mode ``zookeeper``, begins
    # at the lower offset and stores it in Kafka later. Nothing has read the higher offset
    # meanwhile.
    between = s.faults and verb == "commit" and t.in_kafka >= s.in_zk
    if verb == "reset":
        return
    if t.in_zk < s.in_zk or (t.in_kafka < s.in_kafka and not between):
        yield "committed offset went back"
    if (t.in_zk, t.in_kafka) != (s.in_zk, s.in_kafka) and max(t.in_zk, t.in_kafka) > t.told:
        yield "committed what was not delivered"


def start(b: Bounds) -> State:
    """A group whose members are all migratable and have acknowledged the first mode.

    In mode ``zookeeper`` the only offset in Kafka is the one from an earlier use.
    """
    first, moved = b.first, b.first != ZOOKEEPER
    place = WIDE if first == OPEN else CLOSED
    members = (Member(seen=first, place=place),) * b.members
    in_kafka = 0 if moved else b.old
    lock = (int(moved and not b.unlocked), False, False)
    return State(first, 0, *lock, None, NOBODY, NOBODY, 0, in_kafka, 0, 0, 0, 0, (0, 0), members)


def mirror(s: State) -> State:
    """The same state with its two members exchanged."""
    owner, assigned = (1 - who if who >= 0 else who for who in (s.owner, s.assigned))
    return s._replace(owner=owner, assigned=assigned, members=s.members[::-1])


def explore(
    d: Design, b: Bounds, wanted: str | None = None, most: int = 10_000_000
) -> Result[State]:
    """Visit every reachable state, but about ``most``, the nearest ones. With ``wanted``, stop as
    soon as that violation is found."""
    return search.explore(
        start(b),
        lambda state: steps(state, d, b),
        lambda state, name, end: violations(state, name, end, d),
        () if wanted is None else (wanted,),
        most,
        mirror if b.members == 2 else None,
    )


WHOLE = pytest.mark.skipif(
    os.environ.get("ZKC_MODELS") != "all", reason="takes minutes: ZKC_MODELS=all"
)
FORTH = Bounds(changes=3, faults=0)
BACK = Bounds(changes=3, faults=0, first=OPEN)
ONE_FORTH = Bounds(members=1, changes=3, faults=0)
ONE_BACK = Bounds(members=1, changes=3, faults=0, first=OPEN)
ONE_OLD = Bounds(members=1, changes=3, faults=0, old=1)
ALONE_FORTH = Bounds(members=1, changes=3)
ALONE_BACK = Bounds(members=1, changes=3, first=OPEN)
RESET = Bounds(members=1, changes=3, resets=True)
COMPLETE = Bounds(members=1, changes=2, first=OPEN, completes=True)
UNLOCKED = Bounds(members=1, changes=3, faults=0, first=KAFKA, unlocked=True)
NEEDED = [
    ("ids_lock", ONE_FORTH, "repeated without a fault"),
    ("lift", ONE_FORTH, "two deliver"),
    ("seal", ONE_FORTH, "two deliver"),
    ("barrier", ONE_FORTH, "repeated without a fault"),
    ("dual", FORTH, "two deliver"),
    ("door", BACK, "two deliver"),
    ("stay", ALONE_BACK, "two deliver"),
    ("fresh", ALONE_FORTH, "committed offset went back"),
    ("cas", ONE_BACK, "repeated without a fault"),
    ("drop", ALONE_BACK, "committed offset went back"),
    ("offsets_lock", ONE_OLD, "committed what was not delivered"),
    ("offsets_open", ONE_FORTH, "began without an offset"),
    ("offsets_back", ONE_BACK, "repeated without a fault"),
    ("furthest", ONE_BACK, "repeated without a fault"),
    ("release", ONE_BACK, "repeated without a fault"),
    ("gates", UNLOCKED, "repeated without a fault"),
    ("keep", ALONE_BACK, "two deliver"),
    ("both", RESET, "reset undone"),
    ("exact", COMPLETE, "two deliver"),
    ("late", COMPLETE, "two deliver"),
    ("finished", COMPLETE, "two deliver"),
]
"""The omitted part, the group in which this shows, and the promise that is violated."""
HAPPENS = {
    "forth": "lock ids|see 0 open|start plain|plain joins|deliver plain 0|commit kafka 0",
    "back": "plain gives up|see 0 locked|see 0 zookeeper|legacy claims|deliver legacy 0",
    "faults": "expire 0|expel 0|notice expulsion 0|crash 0|register 0|join 0|deliver 0 0",
}


@pytest.mark.parametrize(
    ("bounds", "at_least", "must_happen"),
    [
        pytest.param(FORTH, 5_000, HAPPENS["forth"], id="forth"),
        pytest.param(BACK, 5_000, HAPPENS["back"], id="back"),
        pytest.param(ALONE_FORTH, 10_000, HAPPENS["faults"], id="forth with a fault"),
        pytest.param(ALONE_BACK, 10_000, HAPPENS["faults"], id="back with a fault"),
        pytest.param(ONE_OLD, 100, "lock ids|see 0 locked", id="with an old offset in Kafka"),
        pytest.param(UNLOCKED, 5_000, "lock ids|see 0 open", id="without the lock"),
        pytest.param(RESET, 50_000, "reset|see 0 locked|register 0", id="with a reset"),
        pytest.param(COMPLETE, 30_000, "complete|note the lock|plain joins", id="to the end"),
        pytest.param(
            Bounds(changes=6),
            500_000,
            "|".join(HAPPENS.values()),
            marks=[WHOLE, pytest.mark.timeout(3600)],
            id="there and back",
        ),
    ],
)
def test_a_live_move_keeps_its_promises(bounds: Bounds, at_least: int, must_happen: str) -> None:
    """Two members never deliver at the same time, no message is skipped, and no committed offset
    goes back.

    Without faults no message is repeated either. The search must have visited the dangerous steps,
    so the empty result does not come from an empty search.
    """
    result = explore(OURS, bounds)
    assert result.found == {}
    assert result.states >= at_least
    assert set(must_happen.split("|")) <= result.taken


@pytest.mark.parametrize(
    ("without", "bounds", "found"),
    NEEDED,
    ids=[case[0] for case in NEEDED],
)
def test_every_part_of_a_live_move_is_needed(without: str, bounds: Bounds, found: str) -> None:
    """Without any one of its parts the protocol violates a promise, so each part is necessary."""
    assert found in explore(OURS._replace(**{without: False}), bounds, found).found
    assert {case[0] for case in NEEDED} == set(Design._fields)


def test_members_keep_the_rules_of_the_model() -> None:
    """In every case the rules on which members act are the rules of the model."""
    offers = {OUT: None, CLOSED: modes.Offer.OWN, WIDE: modes.Offer.USUAL}
    for (seen, mode), place, owner, assigned in product(
        enumerate(modes.Mode), offers, (0, NOBODY, LEGACY, PLAIN), (0, NOBODY, PLAIN)
    ):
        assert mode.value == NAMES[seen]
        m = Member(seen=seen, place=place)
        s = start(Bounds())._replace(owner=owner, assigned=assigned, members=(m,))
        joined, mine, has = offers[place], owner == 0, assigned == 0
        assert delivers(s, 0, OURS) == modes.may_deliver(mode, joined, has, mine)
        assert may_claim(s, 0, OURS) == modes.may_claim(mode, joined, has)
        assert may_give_back(s, 0, OURS) == modes.may_give_back(mode, joined, mine)
        assert modes.RULES[mode].offer is (modes.Offer.USUAL if seen == OPEN else modes.Offer.OWN)


def test_the_tool_keeps_the_gates_of_the_model() -> None:
    """In every case the tool writes the next mode exactly when the operator of the model may write
    it."""
    tp, passed = TopicPartition("t", 0), 0
    for mode, acl, acked, legacy, plain, in_zk, in_kafka in product(
        range(4), (False, True), (0, 1), (0, 1), (0, 2), (0, 1), (ABSENT, 0, 1)
    ):
        s = start(Bounds())._replace(
            mode=mode,
            version=1,
            acl=acl,
            sealed=True,
            legacy=legacy,
            plain=plain,
            in_zk=in_zk,
            in_kafka=in_kafka,
            members=(Member(acked=acked),),
        )
        facts = gates.Facts(
            modes.Mode(NAMES[mode]),
            1,
            frozenset({"mine", "old"} if legacy else {"mine"}),
            {"mine": acked},
            acl,
            frozenset({"java"} if plain else ()),
            {tp: in_zk},
            {} if in_kafka == ABSENT else {tp: in_kafka},
        )
        allowed = {name for name, _ in operator(s, OURS, Bounds()) if name.startswith("check ")}
        for target in modes.Mode:
            assert (gates.obstacles(facts, target) == ()) == (f"check {target.value}" in allowed)
        passed += len(allowed)
    assert passed > 60
