"""The simulated ZooKeeper and a real one: the same operations give the same replies and watches."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import Callback, WatchedEvent, ZnodeStat

from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Listing,
    Multi,
    MultiOp,
    Node,
    Ok,
    Reply,
    SetData,
    Stat,
    Value,
    ZkOp,
)
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeSession, FakeZk, WatchEvent, WatchKind

SEEDS = (1, 2, 3, 5, 6, 7, 10, 12)  # each meets every failure and every kind of watch event
STEPS = 400
SESSIONS = 3
PATHS = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep")
CODES = {
    NoNodeError: Code.NO_NODE,
    NodeExistsError: Code.NODE_EXISTS,
    BadVersionError: Code.BAD_VERSION,
    NotEmptyError: Code.NOT_EMPTY,
    NoChildrenForEphemeralsError: Code.NO_CHILDREN_FOR_EPHEMERALS,
}
WAIT = 20.0


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner or 0)


def _code(error: Exception) -> Code:
    return CODES[type(error)]


class RealClient:
    """One kazoo session. ``events`` collects its watch events."""

    def __init__(self, hosts: str) -> None:
        self.client = KazooClient(hosts, timeout=10.0)
        self.client.start(WAIT)
        self.session_id = self.client.client_id[0]
        self.events: list[WatchEvent] = []

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def _watch(self, event: WatchedEvent) -> None:
        found = WatchEvent(WatchKind[event.type], event.path)
        # kazoo gives one DELETED packet to the data and the child watchers. A server sends one.
        if not (found.kind is WatchKind.DELETED and self.events and self.events[-1] == found):
            self.events.append(found)

    def _child_watch(self, event: WatchedEvent) -> None:
        self._watch(event)

    def drain(self) -> list[WatchEvent]:
        """Events sent so far. A round trip makes sure they have arrived, and a marker waits for the
        thread."""
        self.client.exists("/")
        done = threading.Event()
        self.client.handler.dispatch_callback(Callback("watch", lambda _: done.set(), (None,)))
        assert done.wait(WAIT)
        events, self.events = self.events, []
        return events

    def carry_out(self, op: ZkOp) -> Reply:
        try:
            return self._carry_out(op)
        except tuple(CODES) as error:
            return Failed(_code(error))

    def _carry_out(self, op: ZkOp) -> Reply:
        client = self.client
        match op:
            case Exists(path, watch):
                stat = client.exists(path, watch=self._watch if watch else None)
                return Ok(None if stat is None else _stat(stat))
            case GetData(path, watch):
                data, stat = client.get(path, watch=self._watch if watch else None)
                return Ok(Node(data, _stat(stat)))
            case GetChildren(path, watch, True):
                watcher = self._child_watch if watch else None
                names, stat = client.get_children(path, watcher, include_data=True)
                return Ok(Listing(tuple(sorted(names)), stat.czxid, stat.cversion))
            case GetChildren(path, watch):
                names = client.get_children(path, watch=self._child_watch if watch else None)
                return Ok(tuple(sorted(names)))
            case GetMany(paths, watch):
                return Ok(tuple(self._get_or_none(path, watch) for path in paths))
            case Create(path, data, ephemeral):
                client.create(path, data, ephemeral=ephemeral)
                return Ok()
            case SetData(path, data, version):
                return Ok(_stat(client.set(path, data, version)))
            case Delete(path, version):
                client.delete(path, version)
                return Ok()
            case Multi(ops):
                return self._multi(ops)
        raise AssertionError(op)

    def _get_or_none(self, path: str, watch: bool) -> Node | None:
        try:
            data, stat = self.client.get(path, watch=self._watch if watch else None)
        except NoNodeError:
            return None
        return Node(data, _stat(stat))

    def _multi(self, ops: tuple[MultiOp, ...]) -> Reply:
        transaction = self.client.transaction()
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, ephemeral=ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        results = transaction.commit()
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                return Failed(_code(result), index)
        return Ok(tuple(_stat(r) if isinstance(r, ZnodeStat) else None for r in results))


class FakeClient:
    """The same on the simulator. Each call runs the kernel until nothing is in flight."""

    def __init__(self, kernel: Kernel, zk: FakeZk) -> None:
        self.kernel = kernel
        self.events: list[WatchEvent] = []
        self.session: FakeSession = zk.connect(10.0, self.events.append, lambda *_: None)
        kernel.run()
        self.session_id = self.session.session_id

    def close(self) -> None:
        self.session.close()
        self.kernel.run()

    def drain(self) -> list[WatchEvent]:
        events = self.events[:]
        self.events.clear()
        return events

    def carry_out(self, op: ZkOp) -> Reply:
        replies: list[Reply] = []
        self.session.submit(op, replies.append)
        self.kernel.run()
        (reply,) = replies
        if isinstance(op, GetChildren) and isinstance(reply, Ok) and isinstance(reply.value, tuple):
            return Ok(tuple(sorted(reply.value)))  # type: ignore[type-var, arg-type]
        if isinstance(reply, Ok) and isinstance(reply.value, Listing):
            return Ok(replace(reply.value, names=tuple(sorted(reply.value.names))))
        return reply


class Names:
    """Matches the ids of both servers as they appear: transactions in order, sessions by slot."""

    def __init__(self) -> None:
        self.zxids: dict[int, int] = {}
        self.sessions: dict[int, int] = {0: 0}

    def same(self, fake: Reply, real: Reply) -> bool:
        """True if both replies are equal except for the numbering of the two servers."""
        return self._reply(fake) == real

    def _reply(self, reply: Reply) -> Reply:
        return reply if isinstance(reply, Failed) else Ok(self._value(reply.value))

    def _value(self, value: object) -> Value:
        if isinstance(value, Stat):
            return Stat(
                self.zxids.get(value.czxid, -1),
                self.zxids.get(value.mzxid, -1),
                value.version,
                self.sessions[value.ephemeral_owner],
            )
        if isinstance(value, Node):
            stat = self._value(value.stat)
            assert isinstance(stat, Stat)
            return Node(value.data, stat)
        if isinstance(value, Listing):
            return replace(value, czxid=self.zxids.get(value.czxid, -1))
        if isinstance(value, tuple):
            return tuple(v if isinstance(v, str) else self._value(v) for v in value)  # type: ignore[return-value]
        assert value is None
        return None

    def learn(self, fake: object, real: object) -> None:
        """Match the transaction ids of two stats from the same place."""
        if isinstance(fake, Stat) and isinstance(real, Stat):
            self.zxids.setdefault(fake.czxid, real.czxid)
            self.zxids.setdefault(fake.mzxid, real.mzxid)
        elif isinstance(fake, Listing) and isinstance(real, Listing):
            self.zxids.setdefault(fake.czxid, real.czxid)
        elif isinstance(fake, Node) and isinstance(real, Node):
            self.learn(fake.stat, real.stat)
        elif isinstance(fake, tuple) and isinstance(real, tuple) and len(fake) == len(real):
            for one, other in zip(fake, real, strict=True):
                self.learn(one, other)
        elif isinstance(fake, Ok) and isinstance(real, Ok):
            self.learn(fake.value, real.value)

    def ordered(self) -> bool:
        """True if both servers numbered the transactions in the same order, one to one."""
        reals = [real for _, real in sorted(self.zxids.items())]
        return reals == sorted(set(reals))


def _single(rng: random.Random) -> Create | SetData | Delete:
    path = rng.choice(PATHS)
    version = rng.choice((-1, -1, 0, 0, 1, 2))
    data = bytes([rng.randrange(256)]) * rng.randrange(3)
    kind = rng.randrange(8)
    if kind < 4:
        return Create(path, data, ephemeral=rng.random() < 0.45)
    if kind < 6:
        return SetData(path, data, version)
    return Delete(path, version)


def _operation(rng: random.Random) -> ZkOp:
    path = rng.choice(PATHS)
    watch = rng.random() < 0.6
    kind = rng.randrange(12)
    if kind in (0, 10, 11):
        return Exists(path, watch)
    if kind == 1:
        return GetData(path, watch)
    if kind <= 3:
        return GetChildren(rng.choice((*PATHS, "/")), watch, counted=kind == 3)
    if kind == 4:
        return GetMany(tuple(rng.sample(PATHS, 3)), watch)
    if kind <= 6:
        return _single(rng)
    ops: list[MultiOp] = []
    for _ in range(rng.randint(1, 4)):
        check = rng.random() < 0.2
        ops.append(Check(path, rng.choice((-1, 0, 1))) if check else _single(rng))
        if rng.random() < 0.3:
            # Later operations of one multi that depend on the earlier ones.
            made = ops[-1].path
            ops.append(rng.choice((SetData(made, b"m", 0), Create(made + "/n"), Delete(made))))
    return Multi(tuple(ops))


@pytest.fixture
def ensemble(zookeeper: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty chroot on the real server."""
    chroot = f"/conformance-{random.SystemRandom().randrange(10**12)}"
    admin = KazooClient(zookeeper)
    admin.start(WAIT)
    admin.create(chroot)
    yield zookeeper + chroot
    admin.delete(chroot, recursive=True)
    admin.stop()
    admin.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulated_server_answers_as_a_real_one(ensemble: str, seed: int) -> None:
    """Random operations of three sessions get the same replies, versions and watch events.

    After every step the test compares the reply with its stat, after matching transaction and
    session ids. It also compares the watch events of every session in order. At the end it checks
    that both servers numbered the transactions in one order. Sessions are closed and opened again
    on the way.
    """
    rng = random.Random(seed)
    kernel = Kernel(seed)
    zk = FakeZk(kernel, latency=(0.0, 0.01))
    names = Names()
    real = [RealClient(ensemble) for _ in range(SESSIONS)]
    fake = [FakeClient(kernel, zk) for _ in range(SESSIONS)]
    for one, other in zip(fake, real, strict=True):
        names.sessions[one.session_id] = other.session_id
    seen_codes: set[Code] = set()
    seen_kinds: set[WatchKind] = set()
    try:
        for step in range(STEPS):
            slot = rng.randrange(SESSIONS)
            where = f"seed {seed} step {step} session {slot}"
            closing = rng.random() < 0.03
            if closing:
                fake[slot].close()
                real[slot].close()
                fake[slot], real[slot] = FakeClient(kernel, zk), RealClient(ensemble)
                names.sessions[fake[slot].session_id] = real[slot].session_id
            else:
                op = _operation(rng)
                where += f" {op}"
                got, expected = fake[slot].carry_out(op), real[slot].carry_out(op)
                names.learn(got, expected)
                assert names.same(got, expected), f"{where}: fake {got}, real {expected}"
                if isinstance(got, Failed):
                    seen_codes.add(got.code)
            for index in range(SESSIONS):
                told, truth = fake[index].drain(), real[index].drain()
                if closing:  # a session's ephemerals are deleted in an unspecified order
                    told.sort(key=repr)
                    truth.sort(key=repr)
                assert told == truth, f"{where}: session {index} heard {told}, real {truth}"
                seen_kinds.update(event.kind for event in told)
        assert names.ordered(), f"seed {seed}: {names.zxids}"
    finally:
        for client in real:
            client.close()
    assert seen_codes == set(CODES.values()), f"seed {seed}: too few failures met: {seen_codes}"
    assert seen_kinds == set(WatchKind), f"seed {seed}: too few kinds of watch met: {seen_kinds}"
