"""Bounded model of a mirrored group: two stores that are kept in step until an operator decides.

The old program commits to ZooKeeper, the new one to Kafka. Processes of two kinds work on the
group: mirrors, of which one has the lease, and commands of operators: ``cut-over``, ``undo``,
``complete`` and ``end``. Each one reads first the record with what was agreed on, then the offsets
in ZooKeeper, its members, the offsets in Kafka, its members, and then acts on what it has read. Any
of these steps may be late, and a process may be killed between any two. So the model has every
course of the commands.

    effect                   it is carried out only if
    a commit to Kafka        record and lease were as read right before, and Kafka has no members
    a write to ZooKeeper     record and offset znodes are as they were read (one transaction)
    a change of the leader   record and *all* offset znodes are as they were read

A fault is one of: a process is suspended between the permission and its commit to Kafka, which then
arrives at any later time; the answer to a commit is lost, for example because the coordinator
moved; the session of a mirror ends while it runs; an offset in Kafka expires.

Not in the model: resets, topics that are deleted, the access list itself (``test_guard``), and
offsets that are committed to Kafka without membership after the cut-over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.model import search
from tests.model.search import Result

ZOOKEEPER, KAFKA = 0, 1
MIRRORED, STOPPED, COMPLETED, ENDED = range(4)
ABSENT = -1
"""No offset is stored."""
FREE = -1
"""No mirror has the lease. Otherwise it is the process's index."""
OLD, NEW = 0, 1
"""Whose turn it is to start. Otherwise 2 + the index of the command that decides it."""
COMMANDS = ("cut-over", "undo", "complete", "end")

Offsets = tuple[int, ...]
Stored = tuple[tuple[int, bool], ...]
"""By partition: an offset in Kafka, and whether it has the mirror's mark."""
SUSPENDED, EXPIRED = 1, 2
"""A fault after which an older offset, or none, may be in Kafka for a while."""
NOTHING = (ABSENT, False)


class Plan(NamedTuple):
    """What a process has decided: offsets to write (``ABSENT`` for none), what is agreed on then,
    and which store leads. ``stop``: members on both sides, or the follower has moved."""

    leader: int
    agreed: Offsets
    to_kafka: Offsets
    to_zk: Offsets
    stop: bool = False


class Process(NamedTuple):
    """A mirror or a command. ``at``: its next step. ``fresh``: record and agreed offsets are as it
    read them; ``same``: so is each offset znode; ``still``: so is Kafka, but for the mirror's own
    offsets. ``leader``, ``agreed``,
    ``zk``, ``kafka``, ``old``: what it has read."""

    at: str = ""
    what: str = ""
    fresh: bool = False
    same: tuple[bool, ...] = ()
    still: bool = False
    leader: int = ZOOKEEPER
    agreed: Offsets = ()
    zk: Offsets = ()
    kafka: Stored = ()
    old: bool = False
    plan: Plan | None = None


IDLE = Process()
KEEPS_OUT = Process("ids", "mirror")
"""A mirror that has let Kafka lead, or found that another one was killed before it locked."""


class State(NamedTuple):
    """``zk``, ``kafka``: the committed offsets. ``leader``, ``agreed``, ``status``, ``locked``: of
    the record. ``shut``: old members cannot register. ``old``, ``new``: that program runs.
    ``committed``: the last offset that a program committed. ``late``: ``SUSPENDED`` or ``EXPIRED``
    after such a fault, otherwise 0."""

    zk: Offsets
    kafka: Stored
    leader: int
    agreed: Offsets
    status: int
    locked: bool
    shut: bool
    old: bool
    new: bool
    turn: int
    committed: Offsets
    lease: int
    faults: int
    late: int
    processes: tuple[Process, ...]


class Design(NamedTuple):
    """The protocol. The defaults are ours. A weaker variant lacks one part."""

    permit: bool = True  # right before a commit to Kafka the record is as it was read
    together: bool = True  # offsets in ZooKeeper and what is agreed on are one transaction
    versions: bool = True  # a write to ZooKeeper names the versions that were read
    mark: bool = True  # commits of the mirror can be told from those of consumers
    right: bool = True  # a late commit with the mark is put right while Kafka leads
    lease: bool = True  # a mirror commits to Kafka only with the lease
    lock: bool = True  # a cut-over locks old members out before its last copy
    settle: bool = True  # a mirror that begins locks or unlocks, as the record has it
    wait: bool = True  # a cut-over waits until old members have left
    wait_back: bool = True  # an undo waits until new members have left
    exact: bool = True  # a change of the leader names the versions of all offset znodes
    again: bool = True  # before ZooKeeper leads, Kafka has not changed since the copy
    has: bool = True  # before Kafka leads, it has what was agreed on
    copy_back: bool = True  # an undo copies before it unlocks
    alone: bool = True  # an undo looks at Kafka also if ZooKeeper leads
    moved: bool = True  # an offset that moved on the side that follows stops the mirror
    both: bool = True  # members on both sides stop it
    check: bool = True  # ``complete`` compares both stores once more
    back_first: bool = True  # ``end`` is refused while Kafka leads


OURS = Design()


class Bounds(NamedTuple):
    """Limits of the search. ``most``: the highest offset of each partition. ``mirrors`` and
    ``operators``: how many at a time. ``commands``: those that operators run. ``astray``: programs
    also start when it is not their turn. ``early``: the new one also starts while a cut-over waits.
    ``free``: the old program does not register, so the operator stops it before a cut-over."""

    most: Offsets = (1, 1)
    mirrors: int = 1
    operators: int = 1
    commands: tuple[str, ...] = COMMANDS
    faults: int = 1
    first: int = ZOOKEEPER
    astray: bool = False
    early: bool = False
    free: bool = False

    @property
    def loose(self) -> bool:
        """Whether the new program may start before a command has reported that it may."""
        return self.astray or self.early


Step = tuple[str, State]


def put(s: State, i: int, p: Process, **others: object) -> State:
    """Replace process ``i``."""
    processes = (*s.processes[:i], p, *s.processes[i + 1 :])
    return s._replace(processes=processes, **others)  # type: ignore[arg-type]


def at(offsets: Offsets, tp: int, offset: int) -> Offsets:
    """Replace an offset."""
    return (*offsets[:tp], offset, *offsets[tp + 1 :])


def over(p: Process) -> Process:
    """A mirror after its pass; a command that reads again."""
    return IDLE if p.what == "mirror" else Process("look", p.what)


def record_written(s: State, by: int, d: Design) -> State:
    """All other processes have read an older record. What they do next is refused, so they read
    again at once, but for a late commit."""

    def one(p: Process) -> Process:
        if not p.fresh:
            return p
        stays = p.at == "flight" or not (d.permit and d.versions and d.check)
        return p._replace(fresh=False) if stays else over(p)

    processes = tuple(p if i == by else one(p) for i, p in enumerate(s.processes))
    return s._replace(processes=processes)


def in_zookeeper(s: State, tp: int, offset: int, by: int = -1) -> State:
    """Write an offset znode."""

    def one(p: Process) -> Process:
        if tp >= len(p.same) or not p.same[tp]:
            return p
        return p._replace(same=tuple(x and n != tp for n, x in enumerate(p.same)))

    processes = tuple(p if i == by else one(p) for i, p in enumerate(s.processes))
    return s._replace(zk=at(s.zk, tp, offset), processes=processes)


def of_programs(kafka: Stored) -> Stored:
    """The offsets in Kafka without those of the mirror."""
    return tuple(NOTHING if one[1] else one for one in kafka)


def in_kafka(s: State, kafka: Stored) -> State:
    """Write offsets to Kafka."""
    same = of_programs(kafka) == of_programs(s.kafka)
    processes = tuple(p._replace(still=p.still and same) for p in s.processes)
    return s._replace(kafka=kafka, processes=processes)


def decide(p: Process, new: bool, d: Design) -> Plan:
    """The decision of a mirror, from one reading."""
    nothing = (ABSENT,) * len(p.zk)
    stop = Plan(p.leader, p.agreed, nothing, nothing, stop=True)
    if p.old and new and d.both:
        return stop
    leader = KAFKA if new else ZOOKEEPER if p.old else p.leader
    agreed, to_kafka, to_zk = list(p.agreed), list(nothing), list(nothing)
    for tp, (zk, (kafka, marked)) in enumerate(zip(p.zk, p.kafka, strict=True)):
        here, there, before = (*((zk, kafka) if leader == ZOOKEEPER else (kafka, zk)), p.agreed[tp])
        ours = leader == ZOOKEEPER and marked
        if there not in (ABSENT, before, here) and not ours and d.moved:
            return stop
        if leader == ZOOKEEPER:
            agreed[tp] = here
            to_kafka[tp] = here if here != there else ABSENT
        elif here == ABSENT or (marked and here not in (before, there) and d.right):
            to_kafka[tp] = ABSENT if new else before
        else:
            agreed[tp] = here
            to_zk[tp] = here if here != there else ABSENT
    return Plan(leader, tuple(agreed), tuple(to_kafka), tuple(to_zk))


def steps(s: State, d: Design, b: Bounds) -> Iterator[Step]:
    """Every possible next step."""
    yield from programs(s, b)
    yield from faults(s, b)
    for i, p in enumerate(s.processes):
        if p.at:
            yield from process(s, i, p, d, b)
            yield f"kill {i}", put(s, i, IDLE, lease=FREE if s.lease == i else s.lease)
        elif i >= b.mirrors:
            yield from command_begins(s, i, d, b)
        elif s.status == MIRRORED and (s.lease in (FREE, i) or not d.lease):
            mirror = look(s, Process("look", "mirror"))
            if d.settle and s.leader == KAFKA and s.locked and not s.shut:
                mirror = KEEPS_OUT
            elif d.settle and s.leader == ZOOKEEPER and not s.locked and s.shut:
                mirror = Process("let in", "mirror")
            yield f"look {i}", put(s, i, mirror, lease=i if s.lease == FREE else s.lease)


def programs(s: State, b: Bounds) -> Iterator[Step]:
    """The old and the new program start, commit and stop."""
    turn = s.turn == OLD or (s.turn != NEW and not b.free)
    if not s.old and not s.shut and (b.astray or turn):
        yield "start old", s._replace(old=True)
    waiting = s.processes[s.turn - 2] if b.early and s.turn > NEW else IDLE
    early = waiting.what == "cut-over" and waiting.at != "ids" and not s.old
    if not s.new and (b.astray or early or s.turn == NEW):
        yield "start new", s._replace(new=True)
    if s.old:
        yield "stop old", s._replace(old=False)
        for tp, offset in enumerate(s.zk):
            if offset < b.most[tp]:
                committed = at(s.committed, tp, max(offset + 1, s.committed[tp]))
                yield "commit old", in_zookeeper(s, tp, offset + 1)._replace(committed=committed)
    if s.new:
        yield "stop new", s._replace(new=False)
        for tp, (offset, _) in enumerate(s.kafka):
            if offset < b.most[tp]:
                kafka = (*s.kafka[:tp], (offset + 1, False), *s.kafka[tp + 1 :])
                committed = at(s.committed, tp, max(offset + 1, s.committed[tp]))
                yield "commit new", in_kafka(s, kafka)._replace(committed=committed)


def faults(s: State, b: Bounds) -> Iterator[Step]:
    """What happens to servers and sessions. Processes have more faults of their own."""
    if s.faults == b.faults:
        return
    if s.lease != FREE and s.processes[s.lease].at:
        yield "session ends", s._replace(lease=FREE, faults=s.faults + 1)
    for tp, (offset, _) in enumerate(s.kafka):
        if offset != ABSENT and not s.new and s.status == MIRRORED:
            kafka = (*s.kafka[:tp], NOTHING, *s.kafka[tp + 1 :])
            yield "offset expires", in_kafka(s._replace(faults=s.faults + 1, late=EXPIRED), kafka)


def look(s: State, p: Process) -> Process:
    """The process reads the record and what is agreed on, and then the first offset. (Between the
    two, only a write of the record would make a difference.)"""
    same = (True,) * len(s.zk)
    step = "old" if len(s.zk) == 1 else "zk"
    return Process(step, p.what, True, same, True, s.leader, s.agreed, s.zk[:1])


def command_begins(s: State, i: int, d: Design, b: Bounds) -> Iterator[Step]:
    """An operator begins a command in a group that is mirrored. A cut-over locks the group first.
    If the old program does not register, the operator stops it before."""
    if s.status != MIRRORED:
        return
    for what in b.commands:
        p = Process("look", what)
        if what == "cut-over" and not (b.free and s.old and not b.astray):
            t = record_written(s._replace(locked=True, turn=2 + i), i, d)
            yield f"cut-over {i}", put(t, i, Process("ids", what) if d.lock else p)
        elif what == "undo" and s.leader == ZOOKEEPER and not s.shut:
            yield f"nothing to undo {i}", s._replace(turn=OLD)
        elif what == "undo":
            weak = not d.copy_back or (not d.alone and s.leader == ZOOKEEPER)
            step = "unlock" if weak else "look"
            yield f"undo {i}", put(s._replace(turn=2 + i), i, Process(step, what))
        elif what == "complete" and s.leader == KAFKA:
            yield f"complete {i}", put(s, i, p)
        elif what == "end" and ((s.leader == ZOOKEEPER and not s.locked) or not d.back_first):
            yield f"end {i}", put(s, i, Process("end", what, fresh=True))


def process(s: State, i: int, p: Process, d: Design, b: Bounds) -> Iterator[Step]:
    """The next step of a process."""
    if p.at == "ids":
        then = Process("let in", p.what) if p.what == "mirror" else over(p)
        yield f"lock ids {i}", put(s, i, then, shut=True)
    elif p.at == "let in":
        shut = s.shut and s.locked
        back = p.what == "undo" and not shut and s.turn == 2 + i
        yield f"let in {i}", put(s, i, IDLE, shut=shut, turn=OLD if back else s.turn)
    elif p.at == "look":
        yield f"look {i}", looks(s, i, p)
    elif p.at == "zk":
        tp = len(p.zk)
        same = tuple(x or n == tp for n, x in enumerate(p.same))
        step = "old" if tp + 1 == len(s.zk) else "zk"
        read = p._replace(zk=(*p.zk, s.zk[tp]), same=same, at=step)
        yield f"read zookeeper {i}", put(s, i, read)
    elif p.at == "old":
        old = s.old and not b.free
        yield f"read old members {i}", put(s, i, p._replace(at="kafka", old=old))
    elif p.at == "kafka":
        yield f"read kafka {i}", put(s, i, p._replace(at="new", kafka=s.kafka, still=True))
    elif p.at == "new":
        yield f"decide {i}", decides(s, i, p, d)
    elif p.at == "commit":
        yield from commits(s, i, p, d, b)
    elif p.at == "flight":
        t = s if s.new else in_kafka(s, copied(s, p, d))
        yield f"late commit {i}", put(t, i, p._replace(at="write") if p.fresh else over(p))
    elif p.at == "write":
        yield f"write {i}", writes(s, i, p, d)
    elif p.at == "agree":  # only where offsets and what is agreed on are not one transaction
        yield f"agree {i}", agrees(s, i, p, d)
    elif p.at == "again":
        yield f"look again {i}", looks_again(s, i, p, d)
    elif p.at == "lead":
        yield f"lead {i}", leads(s, i, p, d)
    elif p.at == "mark":
        yield f"mark {i}", marks(s, i, p, d)
    elif p.at == "unlock":
        yield f"unlock {i}", unlocks(s, i, p, d)
    elif p.at == "end":
        t = record_written(s._replace(status=ENDED, locked=False, shut=False), i, d)
        yield f"ends {i}", put(t, i, Process("delete", p.what, fresh=True))
    elif p.at == "delete":
        kafka = tuple(NOTHING if marked else (one, marked) for one, marked in s.kafka)
        yield f"delete {i}", put(in_kafka(s, kafka), i, IDLE)


def looks(s: State, i: int, p: Process) -> State:
    """A command reads the record. Some have nothing to copy then."""
    if s.status != MIRRORED:
        return put(s, i, IDLE)
    if (p.what == "complete" and s.leader == ZOOKEEPER) or (p.what == "cut-over" and not s.locked):
        return put(s, i, IDLE)
    return put(s, i, look(s, p))


def decides(s: State, i: int, p: Process, d: Design) -> State:
    """The process has read everything, and decides."""
    waits = {"cut-over": p.old and d.wait, "undo": s.new and d.wait_back, "complete": p.old}
    if waits.get(p.what):
        return put(s, i, over(p))
    plan = decide(p, s.new, d)
    if plan.stop and (d.check or p.what != "complete"):
        if p.what == "complete":
            return put(s, i, IDLE)
        if not p.fresh:
            return put(s, i, over(p))
        return put(record_written(s._replace(status=STOPPED), i, d), i, IDLE)
    leader = {"cut-over": KAFKA, "undo": ZOOKEEPER}.get(p.what, plan.leader)
    plan = plan._replace(leader=leader, stop=False)
    step = "commit" if any_of(plan.to_kafka) else "write"
    still = p.still and leader == ZOOKEEPER
    return put(s, i, Process(step, p.what, p.fresh, p.same, still, plan=plan))


def any_of(offsets: Offsets) -> bool:
    """Whether there is any offset."""
    return any(one != ABSENT for one in offsets)


def copied(s: State, p: Process, d: Design) -> Stored:
    """Kafka after a process has committed."""
    assert p.plan is not None
    pairs = zip(p.plan.to_kafka, s.kafka, strict=True)
    return tuple(there if one == ABSENT else (one, d.mark) for one, there in pairs)


def commits(s: State, i: int, p: Process, d: Design, b: Bounds) -> Iterator[Step]:
    """The process asks for permission and commits to Kafka at once. A fault: it is suspended
    between, or the answer is lost."""
    leased = p.what != "mirror" or s.lease == i or not d.lease
    if (d.permit and not p.fresh) or not leased:
        yield f"not permitted {i}", put(s, i, over(p))
        return
    if s.new:
        yield f"refused {i}", put(s, i, over(p))
    else:
        t = in_kafka(s, copied(s, p, d))
        yield f"commit {i}", put(t, i, t.processes[i]._replace(at="write"))
        if s.faults < b.faults:
            yield f"answer lost {i}", put(t, i, IDLE, faults=s.faults + 1)
    if s.faults < b.faults:
        flight = p._replace(at="flight", still=False)
        yield f"suspend {i}", put(s, i, flight, faults=s.faults + 1, late=SUSPENDED)


def writes(s: State, i: int, p: Process, d: Design) -> State:
    """The process writes offsets to ZooKeeper together with what is agreed on."""
    assert p.plan is not None
    pairs = zip(p.same, p.plan.to_zk, strict=True)
    if d.versions and not (p.fresh and all(same or one == ABSENT for same, one in pairs)):
        return put(s, i, over(p))
    t = s
    for tp, one in enumerate(p.plan.to_zk):
        if one != ABSENT:
            t = in_zookeeper(t, tp, one, i)
    if any_of(p.plan.to_zk) and not d.together:
        return put(t, i, p._replace(at="agree"))
    return agrees(t, i, p, d)


def agrees(s: State, i: int, p: Process, d: Design) -> State:
    """What was copied is agreed on. Then the leader changes, if that was decided."""
    assert p.plan is not None
    t = s
    if p.plan.agreed != s.agreed:
        t = record_written(s._replace(agreed=p.plan.agreed), i, d)
    if p.what == "complete":
        return put(t, i, p._replace(at="mark", plan=None))
    if p.plan.leader != t.leader or p.what == "undo":
        return put(t, i, p._replace(at="again"))
    if p.what == "cut-over":
        return put(t, i, IDLE, turn=NEW if s.turn == 2 + i else s.turn)
    return put(t, i, over(p))


def looks_again(s: State, i: int, p: Process, d: Design) -> State:
    """Before the leader changes, or an undo unlocks, the process looks once more at the store that
    is left."""
    assert p.plan is not None
    if p.plan.leader == ZOOKEEPER:
        right = p.still or not d.again
    else:
        pairs = zip(s.kafka, s.agreed, strict=True)
        right = s.new or not d.has or all(there[0] == one for there, one in pairs)
    return put(s, i, p._replace(at="lead") if right else over(p))


def leads(s: State, i: int, p: Process, d: Design) -> State:
    """The process lets the other store lead. If ZooKeeper leads already, an undo only unlocks."""
    assert p.plan is not None
    to = p.plan.leader
    same = all(p.same) or not d.exact or to == s.leader
    if not (p.fresh or not d.versions) or not same:
        return put(s, i, over(p))
    t = record_written(s._replace(leader=to, locked=to == KAFKA), i, d)
    if p.what == "undo":
        return put(t, i, Process("let in", p.what))
    if p.what == "mirror":
        return put(t, i, KEEPS_OUT if to == KAFKA else IDLE)
    return put(t, i, IDLE, turn=NEW if s.turn == 2 + i else s.turn)


def marks(s: State, i: int, p: Process, d: Design) -> State:
    """``complete`` records that the group has moved."""
    if d.check and not (p.fresh and all(p.same)):
        return put(s, i, over(p))
    return put(record_written(s._replace(status=COMPLETED), i, d), i, IDLE)


def unlocks(s: State, i: int, p: Process, d: Design) -> State:
    """A weaker ``undo``, which has not looked at Kafka, unlocks the group if ZooKeeper leads."""
    if not d.copy_back and s.leader == KAFKA and s.shut:
        return put(s, i, over(p), shut=False, locked=False)
    if s.status != MIRRORED or s.leader != ZOOKEEPER:
        return put(s, i, IDLE)
    t = record_written(s._replace(locked=False), i, d) if s.locked else s
    return put(t, i, IDLE, shut=False, turn=OLD if s.turn == 2 + i else s.turn)


def violations(s: State, name: str, t: State, d: Design, b: Bounds) -> Iterator[str]:
    """The promises that the step ``name`` from ``s`` to ``t`` violates."""
    kafka = tuple(one for one, _ in t.kafka)
    if (name == "start old" and not b.astray) or (name == "start new" and not b.loose):
        found = t.zk if name == "start old" else kafka
        if t.old and t.new:
            yield "both programs run"
        if found != t.committed and not s.late:
            yield "started elsewhere"
        if any(here > committed for here, committed in zip(found, t.committed, strict=True)):
            yield "started too late in the log"
    if t.status == STOPPED != s.status and not b.loose:
        yield "stopped without a cause"
    if t.status == COMPLETED != s.status:
        each = zip(t.zk, t.agreed, kafka, strict=True)
        if any(zk not in (agreed, one) for zk, agreed, one in each):
            yield "completed with an offset that was not copied"
    if t.leader != s.leader and not s.late and not b.loose and t.zk != kafka:
        yield "led without the last offsets"
    who = name.rpartition(" ")[2]
    if who.isdigit() and s.processes[int(who)].at in ("kafka", "new"):
        p = s.processes[int(who)]
        alone = all(one == IDLE for one in s.processes if one is not p)
        settled = s.shut == s.locked or s.locked != (s.leader == KAFKA)
        if p.what == "mirror" and p.fresh and alone and not settled:
            yield "locked against the record"
    if who.isdigit():
        yield from wrong_copies(s, int(who), t, b)


def wrong_copies(s: State, i: int, t: State, b: Bounds) -> Iterator[str]:
    """The promises that a step of process ``i`` violates."""
    p = s.processes[i]
    if p.old and s.new and t.processes[i].at in ("commit", "write"):
        yield "copied between two programs that run"
    if (s.zk, s.kafka) == (t.zk, t.kafka):
        return
    for there, one, kafka_has in zip(s.zk, t.zk, s.kafka, strict=True):
        if one < there and (not s.late or (s.late == SUSPENDED and kafka_has == (one, True))):
            yield "went back in ZooKeeper"
    if s.late:
        return
    if s.kafka != t.kafka and p.what == "mirror" and s.lease not in (i, FREE):
        yield "two mirrors"
    if s.status != MIRRORED and p.what != "end":
        yield "written after the end"
    for tp, ((there, marked), (one, _)) in enumerate(zip(s.kafka, t.kafka, strict=True)):
        if there in (ABSENT, one) or p.what == "end":
            continue
        if one < there and s.leader == KAFKA and not b.loose:
            yield "went back in Kafka"
        if there not in (s.agreed[tp], s.zk[tp]) and not marked:
            yield "overwritten in Kafka"
        if s.leader == KAFKA and one != s.agreed[tp] and not b.loose:
            yield "moved both ways"
    for tp, (there, one) in enumerate(zip(s.zk, t.zk, strict=True)):
        if there == one:
            continue
        if there not in (s.agreed[tp], s.kafka[tp][0]):
            yield "overwritten in ZooKeeper"
        if s.leader == ZOOKEEPER and not b.loose:
            yield "moved both ways"


def start(b: Bounds) -> State:
    """A group that is mirrored and in step."""
    zeros, moved = (0,) * len(b.most), b.first == KAFKA
    kafka = ((0, not moved),) * len(b.most)
    record = (b.first, zeros, MIRRORED, moved, moved)
    processes = (IDLE,) * (b.mirrors + b.operators)
    turn = NEW if moved else OLD
    return State(zeros, kafka, *record, False, False, turn, zeros, FREE, 0, 0, processes)


def explore(
    d: Design, b: Bounds, wanted: str | None = None, most: int = 10_000_000
) -> Result[State]:
    """Visit every reachable state, but about ``most``, the nearest ones. With ``wanted``, stop as
    soon as that violation is found."""
    return search.explore(
        start(b),
        lambda state: steps(state, d, b),
        lambda state, name, end: violations(state, name, end, d, b),
        () if wanted is None else (wanted,),
        most,
    )


WHOLE = pytest.mark.skipif(
    os.environ.get("ZKC_MODELS") != "all", reason="takes a minute: ZKC_MODELS=all"
)
CUT_OVER = Bounds(commands=("cut-over",))
UNDO = Bounds(commands=("undo",), first=KAFKA)
COMPLETE = Bounds(commands=("complete",), first=KAFKA)
END = Bounds(commands=("end",))
THERE_AND_END = Bounds(most=(1,), commands=("cut-over", "end"))
EVERY = Bounds(most=(1,))
TWO = Bounds(most=(1,), mirrors=2, commands=("cut-over",))
FREE_CLIENTS = Bounds(most=(1,), free=True)
EARLY = Bounds(most=(1,), early=True, faults=0, commands=("cut-over", "undo"))
ASTRAY = Bounds(most=(1,), astray=True, commands=("complete",))
ONE_THERE, ONE_BACK = CUT_OVER._replace(most=(1,)), UNDO._replace(most=(1,))
NEEDED = [
    ("permit", ONE_THERE, "started elsewhere"),
    ("together", ONE_BACK, "stopped without a cause"),
    ("versions", ONE_BACK, "moved both ways"),
    ("mark", ONE_THERE, "stopped without a cause"),
    ("right", ONE_THERE, "went back in ZooKeeper"),
    ("lease", TWO, "two mirrors"),
    ("lock", ONE_THERE, "both programs run"),
    ("settle", EVERY, "locked against the record"),
    ("wait", ONE_THERE, "both programs run"),
    ("wait_back", ONE_BACK, "both programs run"),
    ("exact", ONE_THERE, "led without the last offsets"),
    ("again", ONE_BACK, "led without the last offsets"),
    ("has", ONE_THERE, "started elsewhere"),
    ("copy_back", ONE_BACK, "started elsewhere"),
    ("alone", EARLY, "both programs run"),
    ("moved", ASTRAY, "overwritten in Kafka"),
    ("both", ASTRAY, "copied between two programs that run"),
    ("check", ASTRAY, "completed with an offset that was not copied"),
    ("back_first", THERE_AND_END, "started elsewhere"),
]
"""The omitted part, the group in which this shows, and the promise that is violated."""


@pytest.mark.parametrize(
    ("bounds", "at_least", "must_happen"),
    [
        pytest.param(ONE_THERE, 5_000, "lead 1|start new|late commit 0", id="there"),
        pytest.param(
            UNDO._replace(faults=0), 30_000, "lead 1|let in 1|start old", id="back without a fault"
        ),
        pytest.param(ONE_BACK, 20_000, "lead 1|let in 1|start old|late commit 0", id="back"),
        pytest.param(COMPLETE, 40_000, "mark 1|commit new|session ends", id="to the end"),
        pytest.param(END, 38_000, "delete 1|commit old|session ends", id="ended"),
        pytest.param(EVERY, 30_000, "lead 1|let in 1|mark 1|delete 1", id="every command"),
        pytest.param(TWO, 56_000, "session ends|commit 0|commit 1", id="two mirrors"),
        pytest.param(FREE_CLIENTS, 20_000, "lead 1|let in 1", id="clients without registration"),
        pytest.param(ASTRAY, 50_000, "decide 0|lead 0|mark 1", id="programs that start early"),
        pytest.param(EARLY, 15_000, "lead 1|let in 1|start old", id="a new program starts early"),
        pytest.param(
            CUT_OVER,
            150_000,
            "lead 1|start new|late commit 0",
            marks=[WHOLE],
            id="there and two partitions",
        ),
        pytest.param(
            UNDO,
            300_000,
            "lead 1|let in 1|start old|late commit 0",
            marks=[WHOLE, pytest.mark.timeout(3600)],
            id="back and two partitions",
        ),
        pytest.param(
            Bounds(),
            600_000,
            "lead 1|let in 1|mark 1|delete 1",
            marks=[WHOLE, pytest.mark.timeout(3600)],
            id="every command and two partitions",
        ),
    ],
)
def test_a_mirror_keeps_its_promises(bounds: Bounds, at_least: int, must_happen: str) -> None:
    """No offset is lost or lowered, a program starts exactly where the other one has stopped, and
    nothing is copied both ways, by two mirrors, or after the end. A mirror stops only with a cause.

    The search must have visited the dangerous steps, so the empty result does not come from an
    empty search.
    """
    result = explore(OURS, bounds)
    assert result.found == {}
    assert result.states >= at_least
    assert set(must_happen.split("|")) <= result.taken


@pytest.mark.parametrize(("without", "bounds", "found"), NEEDED, ids=[case[0] for case in NEEDED])
def test_every_part_of_the_mirror_is_needed(without: str, bounds: Bounds, found: str) -> None:
    """Without any one of its parts the protocol violates a promise, so each part is necessary."""
    assert found in explore(OURS._replace(**{without: False}), bounds, found).found
    assert {case[0] for case in NEEDED} == set(Design._fields)
