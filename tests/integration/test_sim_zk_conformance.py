"""The simulated ZooKeeper and a real one: the same operations give the same replies and watches."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from kazoo.protocol.states import Callback

from tests.integration.test_zk_driver import Driven
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
from zkconsumer.zk.connection import Fired

SEEDS = (1, 2, 3, 5, 6, 7, 10, 12)  # each meets every failure and every kind of watch event
STEPS = 400
SESSIONS = 3
PATHS = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep")
CODES = {
    Code.NO_NODE,
    Code.NODE_EXISTS,
    Code.BAD_VERSION,
    Code.NOT_EMPTY,
    Code.NO_CHILDREN_FOR_EPHEMERALS,
}
WAIT = 20.0


def in_order(reply: Reply) -> Reply:
    """The reply with names of children in order, since servers list them in any order."""
    value = reply.value if isinstance(reply, Ok) else None
    if isinstance(value, Listing):
        return Ok(replace(value, names=tuple(sorted(value.names))))
    if isinstance(value, tuple) and all(isinstance(name, str) for name in value):
        return Ok(tuple(sorted(value)))  # type: ignore[type-var, arg-type]
    return reply


class RealClient(Driven):
    """A session of the driver with a real server. ``fired`` collects its watch events."""

    def __init__(self, chroot: str) -> None:
        super().__init__(chroot, 10.0)
        self.session_id = self.session
        self.fired: list[WatchEvent] = []
        self.driver._watch_fired = self._fired  # type: ignore[method-assign]

    def _fired(self, event: Fired) -> None:
        assert event.path is not None
        found = WatchEvent(WatchKind[event.type], event.path)
        # kazoo gives one DELETED packet to the data and the child watchers. A server sends one.
        if not (found.kind is WatchKind.DELETED and self.fired and self.fired[-1] == found):
            self.fired.append(found)

    def close(self) -> None:
        self.driver.close()

    def drain(self) -> list[WatchEvent]:
        """Events sent so far. A round trip makes sure they have arrived, and a marker waits for the
        thread."""
        self.value(Exists("/"))
        done = threading.Event()
        marker = Callback("watch", lambda _: done.set(), (("NONE", "CONNECTED", None),))
        self.driver._client.handler.dispatch_callback(marker)
        assert done.wait(WAIT)
        events, self.fired = self.fired, []
        return events

    def carry_out(self, op: ZkOp) -> Reply:
        return in_order(self.ask(op))


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
        return in_order(reply)


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
            created, changed = map(self.zxids.get, (value.czxid, value.pzxid))
            return replace(value, czxid=created, pzxid=changed)  # type: ignore[arg-type]
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
            self.zxids.setdefault(fake.pzxid, real.pzxid)
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


@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulated_server_answers_as_a_real_one(chroot: str, seed: int) -> None:
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
    real = [RealClient(chroot) for _ in range(SESSIONS)]
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
                fake[slot], real[slot] = FakeClient(kernel, zk), RealClient(chroot)
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
    assert seen_codes == CODES, f"seed {seed}: too few failures met: {seen_codes}"
    assert seen_kinds == set(WatchKind), f"seed {seed}: too few kinds of watch met: {seen_kinds}"
