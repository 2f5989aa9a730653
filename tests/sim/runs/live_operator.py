"""The operator's tool in a simulation: takes a group from mode to mode, and may die at any point.

The steps of ``zkmigrate live`` on a ``FakeSession``, with its gates and its scripts; only who waits
is replaced. Everything runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.gates import Facts, obstacles
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.scripts import read_mode, write_mode
from zkconsumer.core.migration.znodes import LivePaths, decode_member, member_id_of
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Failed,
    GetChildren,
    Multi,
    MultiOp,
    Ok,
    Reply,
    SetData,
)
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    SessionGone,
    attempt,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.scripts.ownership import stored_offset
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeSession, FakeZk

_POLL_S: Final = 0.2
_ORDER: Final = tuple(Mode)
_OPEN: Final = b"open"
_LOCKED: Final = b"locked"


class IdsLock:
    """Whether legacy consumers are kept from registering below the group's ``ids``.

    A znode of its own that stands for the access list of ``ids``: its version is that of the list,
    and each server shows both as of the same transaction.
    """

    path: Final = "/ids-acl"

    def __init__(
        self, zk: FakeZk, ids: str, is_migratable: Callable[[FakeSession], bool] = lambda _: False
    ) -> None:
        self._zk = zk
        self._below = f"{ids}/"
        self._is_migratable = is_migratable
        zk.do(Create(self.path, _OPEN))
        zk.refuses = self._refuses

    def _refuses(self, client: FakeSession, op: MultiOp | Multi) -> bool:
        """Only migratable members register while the ids are locked."""
        ops = op.ops if isinstance(op, Multi) else (op,)
        creates = any(
            isinstance(each, Create) and each.path.startswith(self._below) for each in ops
        )
        return self.locked and creates and not self._is_migratable(client)

    @property
    def locked(self) -> bool:
        """As committed."""
        node = self._zk.get(self.path)
        return node is not None and node.data == _LOCKED


@dataclass(frozen=True, slots=True)
class _Ask:
    """What takes a round trip to a server: do it, and have its result."""

    act: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Continue later."""

    seconds: float


Steps = Generator[Any, Any, Any]


class SimOperator:
    """One run of the tool.

    Args:
        zk: the ensemble.
        paths: of the group.
        partitions: those that exist.
        offsets: committed in Kafka.
        seats: ids of the members of the coordinator's group.
        goal: the mode to go to, over all that lie between.
        wait: seconds at each gate.
        say: takes a line for the history.
    """

    def __init__(
        self,
        zk: FakeZk,
        paths: LivePaths,
        partitions: Callable[[], list[TopicPartition]],
        offsets: Mapping[TopicPartition, int],
        seats: Callable[[], frozenset[str]],
        goal: Mode,
        wait: float,
        say: Callable[[str], object],
    ) -> None:
        self.alive = True
        self.reached = False
        """Whether the goal was reached, and all members have acknowledged it."""
        self.why: tuple[str, ...] = ()
        """The obstacles when it failed."""
        self.written: list[Mode] = []
        self._kernel: Kernel = zk.kernel
        self._paths = paths
        self._partitions = partitions
        self._offsets = offsets
        self._seats = seats
        self._goal = goal
        self._wait = wait
        self._say = say
        self._until = 0.0
        self._steps = self._move()
        self._client = zk.connect(10.0, lambda event: None, lambda state, session: None)
        self._step(None)

    def crash(self) -> None:
        """The process is killed; requests in flight may still be carried out."""
        self.alive = False
        self._client.kill()
        self._say("killed")

    def stall(self, seconds: float) -> None:
        """The process is suspended for this long."""
        self._until = max(self._until, self._kernel.now + seconds)

    def cut(self, seconds: float) -> None:
        """Its connection to ZooKeeper breaks, with the requests in flight."""
        self._client.disconnect(seconds)

    def _end(self) -> None:
        if self.alive:
            self.alive = False
            self._client.kill()

    def _step(self, answer: Any) -> None:
        if not self.alive:
            return
        if self._until > self._kernel.now:
            self._kernel.schedule(self._until - self._kernel.now + 1e-6, lambda: self._step(answer))
            return
        try:
            wanted = next(self._steps) if answer is None else self._steps.send(answer)
        except (StopIteration, SessionGone, Refused):
            self._end()
            return
        match wanted:
            case _Ask(act):
                wait = 0.001 + 0.004 * self._kernel.rng.random()

                def ask() -> None:
                    found = act() if self.alive else None
                    self._kernel.schedule(wait, lambda: self._step(Ok(found)))

                self._kernel.schedule(wait, ask)
            case _Wait(seconds):
                self._kernel.schedule(seconds, lambda: self._step(Ok()))
            case _:
                self._client.submit(wanted, self._step)

    # -- what ``zkmigrate.apply.live`` does

    def _move(self) -> Steps:
        while True:
            mode, _ = yield from read_mode(self._paths)
            if mode is self._goal:
                break
            at = _ORDER.index(mode)
            target = _ORDER[at + (1 if _ORDER.index(self._goal) > at else -1)]
            why = yield from (self._to_locked() if mode is Mode.ZOOKEEPER else self._go(target))
            if why:
                self._give_up(why)
                return
        why = yield from self._go(self._goal)
        if not why and self._goal is Mode.ZOOKEEPER:
            yield from self._unlock()
        if why:
            self._give_up(why)
        else:
            self._say(f"reached {self._goal.value}")
            self.reached = True

    def _give_up(self, why: tuple[str, ...]) -> None:
        self.why = why
        self._say(f"gives up: {why}")

    def _to_locked(self) -> Steps:
        facts = yield from self._look()
        first = obstacles(facts, Mode.LOCKED)
        if any("not migratable" in text or "higher in Kafka" in text for text in first):
            return first
        was = facts.ids_locked
        yield from self._keep_out()
        why = yield from self._go(Mode.LOCKED)
        if why and not was:
            mode, _ = yield from read_mode(self._paths)
            if mode is Mode.ZOOKEEPER:
                yield from self._unlock()
        return why

    def _keep_out(self) -> Steps:
        """Keep legacy consumers from registering."""
        reply = yield from attempt(SetData(IdsLock.path, _LOCKED))
        while not isinstance(reply, Ok):
            reply = yield from attempt(SetData(IdsLock.path, _LOCKED))
        self._say("legacy consumers are kept out")

    def _seal(self) -> Steps:
        """Lock again: another operator may still be about to unlock, from before this mode."""
        yield from self._keep_out()

    def _unlock(self) -> Steps:
        """Let legacy consumers in, if the group is still in a mode that has them."""
        (node,) = yield from read_many([IdsLock.path])
        assert node is not None
        mode, _ = yield from read_mode(self._paths)
        reply: Reply | None = None
        while mode is Mode.ZOOKEEPER and not isinstance(reply, Ok):
            reply = yield from attempt(SetData(IdsLock.path, _OPEN, node.stat.version))
            if isinstance(reply, Failed) and reply.code is not Code.CONNECTION_LOSS:
                return
        self._say("legacy consumers may register")

    def _go(self, target: Mode) -> Steps:
        deadline = self._kernel.now + self._wait
        sealed: int | None = None
        while True:
            facts = yield from self._look()
            seal = target is Mode.KAFKA and facts.mode is Mode.LOCKED
            lost = not facts.ids_locked and Mode.ZOOKEEPER not in (target, facts.mode)
            if (seal or lost) and sealed != facts.version:
                yield from self._seal()
                sealed = facts.version
                continue
            if facts.mode is target:
                late = {m for m, number in facts.members.items() if number != facts.version}
                if not late or facts.version < 0:
                    return ()
                why: tuple[str, ...] = (f"not acknowledged by {sorted(late)}",)
            else:
                why = obstacles(facts, target)
                if not why:
                    script = write_mode(self._paths, target, facts.version)
                    if (yield from script):
                        self._say(f"mode {target.value} is written")
                        self.written.append(target)
                        deadline = self._kernel.now + self._wait
                    continue
            if self._kernel.now >= deadline:
                return why
            yield _Wait(_POLL_S)

    def _look(self) -> Steps:
        before = (yield _Ask(lambda: dict(self._offsets))).value
        paths = self._paths
        mode, version = yield from read_mode(paths)
        ids = frozenset((yield from _children(paths.group.ids)))
        names = yield from _children(paths.members)
        where = [f"{paths.members}/{name}" for name in names]
        nodes = yield from read_many(where)
        members: dict[str, int | None] = {}
        member_ids: set[str] = set()
        for name, path, node in zip(names, where, nodes, strict=True):
            if node is not None:
                members[name] = decode_member(path, node.data)
                member_ids.add(member_id_of(node.data))
        (ids_acl,) = yield from read_many([IdsLock.path])
        locked = ids_acl is not None and ids_acl.data == _LOCKED
        partitions = self._partitions()
        znodes = [paths.group.offset(tp) for tp in partitions]
        found = yield from read_many(znodes)
        in_zookeeper = {}
        for tp, path, node in zip(partitions, znodes, found, strict=True):
            offset = stored_offset(path, node) if node is not None else None
            if offset is not None:
                in_zookeeper[tp] = offset
        after = (yield _Ask(lambda: dict(self._offsets))).value
        seats = (yield _Ask(self._seats)).value
        back = mode in (Mode.LOCKED, Mode.ZOOKEEPER)
        in_kafka = before if back else after
        plain = frozenset(seats - member_ids)
        return Facts(mode, version, ids, members, locked, plain, in_zookeeper, in_kafka)


def _children(path: str) -> Script[list[str]]:
    reply = yield from read(GetChildren(path))
    if not isinstance(reply, Ok):
        return []
    assert isinstance(reply.value, tuple)
    return sorted(map(str, reply.value))


__all__ = ["IdsLock", "SimOperator"]
