"""Simulates reads of all of a group's registrations in one step, but counts them separately.

When a member joins a legacy group of 10,000, every member reads 10,001 registrations one by one,
which is 10^8 reads with mostly the same results. So the real script runs once for each state of the
tree, on the committed znodes. Every member that starts the same reads in the same state gets the
same replies, at the same cost, and the same view, after the time that the reads take. If the znodes
change in the meantime, each reading member gets, in its own script, the replies to the reads that
were served before the change, and continues one by one.

Runs inside kernel events. Only for ensembles without followers and with steady latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import ceil
from typing import Any, Protocol

from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import ScriptCommand
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.ops import (
    Code,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    OffsetOp,
    Ok,
    Pipelined,
    Reply,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.by_command import script_for
from zkconsumer.core.zookeeper.scripts.common import MemberScript, ScriptContext
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.herd.wire import Cost, cost
from zkconsumer.runtime.membership.zookeeper import Running
from zkconsumer.sim.kernel import Handle, Kernel
from zkconsumer.sim.servers.zk import FakeZk, Txn


def read_now(zk: FakeZk, op: ZkOp | OffsetOp) -> Reply:
    """Return the reply to a read, from the committed state, without any delay."""
    if isinstance(op, GetMany):
        return Ok(tuple(zk.get(path) for path in op.paths))
    assert isinstance(op, Exists | GetData | GetChildren), f"not a read: {op}"
    node = zk.get(op.path)
    if isinstance(op, Exists):
        return Ok(None if node is None else node.stat)
    if node is None:
        return Failed(Code.NO_NODE)
    if isinstance(op, GetChildren):
        return Ok(zk.listing(op.path) if op.counted else zk.children(op.path))
    return Ok(node)


class Load:
    """Chains of reads that share one server, which takes ``read_us`` for each.

    A single chain needs a round trip and a service time for each read. If all chains together
    request more than the server can serve, all slow down equally.
    """

    def __init__(self, kernel: Kernel, read_us: int) -> None:
        self._kernel = kernel
        self.read_us = read_us
        self._progress = 0.0
        self._at = 0
        self._demand = 0.0
        self._chains: list[tuple[float, int, Chain]] = []
        self._count = 0
        self._handle: Handle | None = None

    @property
    def slowdown(self) -> float:
        """Factor by which the shared load slows down each chain; 1.0 if the server keeps up."""
        return max(1.0, self._demand)

    def queued(self, round_trip_us: int) -> int:
        """Microseconds that a single read waits behind the chains."""
        return round((self.slowdown - 1.0) * (round_trip_us + self.read_us))

    def start(self, reads: int, cycle_us: int, first_us: int, done: Callable[[], None]) -> Chain:
        """Start a chain of ``reads`` reads. Without a slowdown the first read is served after
        ``first_us``, and each further read ``cycle_us`` later. ``done`` is called when the last
        read is answered."""
        self._advance()
        self._count += 1
        chain = Chain(self._kernel.now_us, self._progress, cycle_us, first_us, reads, done)
        self._demand += self.read_us / cycle_us
        heappush(self._chains, (self._progress + reads * cycle_us, self._count, chain))
        self._plan()
        return chain

    def served(self, chain: Chain) -> int:
        """Return how many reads of a chain were served."""
        self._advance()
        done = self._progress - chain.start - chain.first_us
        return 0 if done < 0 else min(chain.reads, int(done // chain.cycle_us) + 1)

    def end(self, chain: Chain) -> None:
        """Abandon a chain."""
        if chain.live:
            self._advance()
            chain.live = False
            self._demand -= self.read_us / chain.cycle_us
            self._plan()

    def _advance(self) -> None:
        now = self._kernel.now_us
        self._progress += (now - self._at) / self.slowdown
        self._at = now

    def _plan(self) -> None:
        while self._chains and not self._chains[0][2].live:
            heappop(self._chains)
        if not self._chains:
            self._demand = 0.0
        if self._handle is not None:
            self._kernel.cancel(self._handle)
            self._handle = None
        if self._chains:
            wait = (self._chains[0][0] - self._progress) * self.slowdown
            due = self._kernel.now_us + max(0, ceil(wait - 1e-3))
            self._handle = self._kernel.schedule_at_us(due, self._finish)

    def _finish(self) -> None:
        self._handle = None
        self._advance()
        ended = []
        while self._chains and self._chains[0][0] <= self._progress + 1e-3 + self._progress * 1e-12:
            chain = heappop(self._chains)[2]
            if chain.live:
                chain.live = False
                self._demand -= self.read_us / chain.cycle_us
                ended.append(chain)
        self._plan()
        for chain in ended:
            chain.done()


@dataclass(slots=True, eq=False)
class Chain:
    """Reads of one client, each sent when the previous one is answered."""

    began_us: int
    start: float
    cycle_us: int
    first_us: int
    reads: int
    done: Callable[[], None]
    live: bool = True


@dataclass(frozen=True, slots=True)
class _Spent:
    """Cost of a memo's first steps: znodes read, and for each parent znode the first path read
    below it and the cost of all its reads."""

    reads: int
    costs: Mapping[str, tuple[str, Cost]]

    def plus(self, ops: tuple[GetMany, ...], replies: tuple[Reply, ...]) -> _Spent:
        """Return the cost with one more step."""
        reads, costs = self.reads, dict(self.costs)
        for op, reply in zip(ops, replies, strict=True):
            reads += len(op.paths)
            path, spent = op.paths[0], cost(op, reply)
            parent = path.rpartition("/")[0]
            if parent in costs:
                path, before = costs[parent]
                spent = before + spent
            costs[parent] = (path, spent)
        return _Spent(reads, costs)


@dataclass(frozen=True, slots=True)
class _Memo:
    """A script's reads from the first registration on, and their result."""

    event: events.ViewLoaded
    steps: tuple[tuple[GetMany, ...], ...]
    """Steps. The reads of a step are sent together."""
    replies: tuple[tuple[Reply, ...], ...]
    tail: tuple[ZkOp, ...]
    _spent: list[_Spent] = field(default_factory=lambda: [_Spent(0, {})])
    """Element ``n``: the cost of the first ``n`` steps. It is shared by all members with the same
    reads, because adding up the costs for each member would take quadratic time."""

    @property
    def reads_each(self) -> int:
        """Number of znodes read by each step."""
        return sum(len(op.paths) for op in self.steps[0])

    def spent(self, steps: int) -> _Spent:
        """Return the cost of the first ``steps`` steps."""
        for number in range(len(self._spent) - 1, steps):
            self._spent.append(self._spent[-1].plus(self.steps[number], self.replies[number]))
        return self._spent[steps]


@dataclass(slots=True, eq=False)
class _Loading:
    """A member's ``LoadView`` in progress; ``chain`` once its reads run in bulk."""

    member: BulkMember
    command: commands.LoadView
    script: MemberScript[Event]
    version: int
    session: int = 0
    listed: Reply | None = None
    memo: _Memo | None = None
    chain: Chain | None = None
    replies: list[Reply] = field(default_factory=list)


class BulkMember(Protocol):
    """A member whose reads are simulated in bulk: see ``SimMember``."""

    spec: MemberSpec

    @property
    def session(self) -> int:
        """The member's session in ZooKeeper."""

    @property
    def client(self) -> Any:
        """The client of the simulated ZooKeeper."""

    def step(self, session: int, script: MemberScript[Event], reply: Reply | None) -> None:
        """Pass a reply to the member's script."""

    def finish(self, script: MemberScript[Event], event: Event) -> None:
        """End a script, without running it, with the event that it would return."""

    def send(
        self, op: ZkOp, on_reply: Callable[[Reply], object], sent_us: int | None = None
    ) -> None:
        """Send ``op`` (as if at ``sent_us``); ``on_reply`` is called from the mailbox."""

    def bulk_done(self, began_us: int, spent: Cost, path: str) -> None:
        """Handle the answers to reads that were simulated in bulk."""


class BulkViews:
    """Simulates the members' reads of registrations in bulk."""

    def __init__(self, zk: FakeZk, paths: GroupPaths) -> None:
        self._zk = zk
        self._ids = paths.ids
        self._below = paths.ids + "/"
        self.load = Load(zk.kernel, round(zk.service[0] * 1e6) if zk.service else 0)
        self.bulk_reads = 0
        """Number of reads that were not simulated individually."""
        self._version = 0
        self._memos: dict[object, _Memo | None] = {}
        self._loading: dict[BulkMember, _Loading] = {}
        zk.on_commit(self._committed)
        zk.queued = self.load.queued

    def set_service(self, service: tuple[float, float]) -> None:
        """Set how long servers take for a read and a write from now on."""
        self._zk.service = service
        self.load.read_us = round(service[0] * 1e6)

    def expect(
        self, member: BulkMember, command: commands.LoadView, script: MemberScript[Event]
    ) -> None:
        """Record that ``member`` starts to load a view."""
        if command.scope is not commands.Scope.OWN:
            self._loading[member] = _Loading(member, command, script, self._version)

    def abandon(self, member: BulkMember) -> None:
        """Forget a member whose process has died."""
        loading = self._loading.pop(member, None)
        if loading is not None and loading.chain is not None:
            self.load.end(loading.chain)

    def takes(self, member: BulkMember, running: Running, reply: Reply) -> bool:
        """Whether the script's reads after ``reply`` are simulated in bulk. If so, the script
        waits."""
        loading = self._loading.get(member)
        if loading is None or loading.script is not running.script or loading.listed is not None:
            return False
        if not any(map(self._lists, running.ops)):
            return False
        loading.session = running.session_id
        self._listed(loading, reply)
        return True

    def _lists(self, op: ZkOp | OffsetOp) -> bool:
        return isinstance(op, GetChildren) and op.path == self._ids

    def _listed(self, loading: _Loading, reply: Reply) -> None:
        """Handle the list of members: start to read their registrations, unless something has
        changed."""
        member = loading.member
        if self._loading.get(member) is not loading or member.session != loading.session:
            return
        loading.listed = reply
        round_trip = member.client.round_trip_us
        memo = self._memo(loading) if self._alike(loading) else None
        if memo is None or round_trip is None:
            del self._loading[member]
            member.step(loading.session, loading.script, reply)
            return
        loading.memo = memo
        if not memo.steps:
            self._tail(loading)
            return
        service = memo.reads_each * self.load.read_us
        loading.chain = self.load.start(
            len(memo.steps),
            round_trip + service,
            round_trip // 2 + service,
            partial(self._read, loading),
        )

    def _alike(self, loading: _Loading) -> bool:
        """Whether the member reads what other members would read."""
        if loading.version != self._version:
            return False
        spec = loading.member.spec
        own = self._zk.get(spec.paths.member(spec.consumer_id))
        owner = own and (own.stat.ephemeral_owner, own.stat.version)
        return spec.scala or owner == (loading.session, loading.command.epoch)

    def _memo(self, loading: _Loading) -> _Memo | None:
        """Run the script once on the committed state. Return ``None`` if it fails."""
        spec, command = loading.member.spec, loading.command
        key = (command.scope, command.known, id(spec.subscription), spec.assignor, spec.scala)
        if key not in self._memos:
            context = ScriptContext(spec, loading.member.session, lambda: 0)
            command = replace(loading.command, token=0)
            self._memos[key] = self._dry_run(command, context)
        return self._memos[key]

    def _dry_run(self, command: ScriptCommand, context: ScriptContext) -> _Memo | None:
        script = script_for(command, context)
        steps: list[tuple[GetMany, ...]] = []
        replies: list[tuple[Reply, ...]] = []
        tail: list[ZkOp] = []
        listed = False
        op = next(script)
        while True:
            assert not isinstance(op, OffsetOp)
            parts = op.ops if isinstance(op, Pipelined) else (op,)
            reads = tuple(part for part in parts if isinstance(part, GetMany))
            answers = tuple(read_now(self._zk, part) for part in parts)
            if len(reads) == len(parts) and reads[0].paths[0].startswith(self._below):
                steps.append(reads)
                replies.append(answers)
            elif listed:
                assert len(parts) == 1, "a tail is sent one by one"
                tail += parts
            listed = listed or any(map(self._lists, parts))
            try:
                op = script.send(_whole(answers))
            except StopIteration as end:
                if not isinstance(end.value, events.ViewLoaded) or not end.value.view.registered:
                    return None
                return _Memo(end.value, tuple(steps), tuple(replies), tuple(tail))

    # -- under way

    def _read(self, loading: _Loading) -> None:
        """Handle the last registration."""
        memo = loading.memo
        assert memo is not None
        assert loading.chain is not None
        self.bulk_reads += self._count(loading, loading.chain, len(memo.steps))
        loading.chain = None
        self._tail(loading)

    def _count(self, loading: _Loading, chain: Chain, steps: int) -> int:
        """Count the reads of several steps. Returns the number of reads."""
        assert loading.memo is not None
        spent = loading.memo.spent(steps)
        loading.member.client.counters.reads += spent.reads
        for path, total in spent.costs.values():
            loading.member.bulk_done(chain.began_us, total, path)
        return spent.reads

    def _tail(self, loading: _Loading) -> None:
        memo, replies = loading.memo, loading.replies
        assert memo is not None
        if len(replies) < len(memo.tail):
            loading.member.send(memo.tail[len(replies)], partial(self._tail_answered, loading))
            return
        del self._loading[loading.member]
        event = replace(memo.event, token=loading.command.token)
        loading.member.finish(loading.script, event)

    def _tail_answered(self, loading: _Loading, reply: Reply) -> None:
        if self._loading.get(loading.member) is not loading:
            loading.member.step(loading.session, loading.script, reply)
            return
        loading.replies.append(reply)
        self._tail(loading)

    def _committed(self, _zxid: int, txn: Txn) -> None:
        if not any(change.path.startswith((self._below, "/brokers/")) for change in txn.changes):
            return
        self._version += 1
        self._memos.clear()
        for loading in list(self._loading.values()):
            if loading.memo is not None:
                del self._loading[loading.member]
                self._go_on_alone(loading)

    def _go_on_alone(self, loading: _Loading) -> None:
        """Handle a change of the znodes: pass the earlier replies to the script, and continue one
        by one."""
        member, memo, chain = loading.member, loading.memo, loading.chain
        assert memo is not None
        served = len(memo.steps)
        if chain is not None:
            # Served before this very commit, which has just been applied.
            served = self.load.served(chain)
            self.load.end(chain)
            self._count(loading, chain, served)
        assert loading.listed is not None
        op = loading.script.send(loading.listed)
        for answers in memo.replies[:served]:
            op = loading.script.send(_whole(answers))
        if chain is not None:
            assert not isinstance(op, OffsetOp)
            sent = chain.began_us + round(served * chain.cycle_us * self.load.slowdown)
            parts = op.ops if isinstance(op, Pipelined) else (op,)
            replies: dict[int, Reply] = {}

            def answered(place: int, reply: Reply) -> None:
                replies[place] = reply
                if len(replies) == len(parts):
                    whole = _whole([replies[place] for place in range(len(parts))])
                    member.step(loading.session, loading.script, whole)

            for place, part in enumerate(parts):
                member.send(part, partial(answered, place), sent)
            return
        for reply in loading.replies:
            loading.script.send(reply)  # then the answer under way goes to the script


def _whole(replies: Sequence[Reply]) -> Reply:
    """Return the replies to a script that has sent these operations together."""
    return Ok(tuple(replies)) if len(replies) > 1 else replies[0]
