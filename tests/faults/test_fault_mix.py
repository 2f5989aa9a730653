"""Random faults for a while. ``FAULT_SECONDS`` (default 30) and ``FAULT_SEED`` change the run."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter

import pytest

HEAL = 7.0
#: Messages per second, and seconds for which a member may deliver without a commit in ZooKeeper.
#: The second figure is the commit interval plus 2/3 of a session timeout, in which a disconnected
#: member still delivers.
RATE = 1 / 0.005
UNCOMMITTED = 0.2 + 2.0

SECONDS = float(os.environ.get("FAULT_SECONDS", "30"))


class Mix:
    """Applies one random fault at a time to four members and two servers."""

    def __init__(self, arena, chance: random.Random) -> None:
        self.arena = arena
        self.chance = chance
        self.done: Counter[str] = Counter()
        self.born = 0
        for _ in range(2):
            self.join(arena.inside)
            self.join(arena.outside)

    def join(self, how) -> None:
        self.born += 1
        how(f"m{self.born:03}")

    def alive(self, kind: str):
        found = [m for m in self.arena.members if m.alive and type(m).__name__ == kind]
        return self.chance.choice(found)

    def expire(self) -> None:
        """The server ends a member's session."""
        self.alive("Inside").expire()

    def cut(self) -> None:
        """A member's connection breaks."""
        self.alive("Inside").proxy.cut()

    def stall(self) -> None:
        """A member's connection hangs, for less or more than its session timeout."""
        member = self.alive("Inside")
        member.proxy.stall(*self.chance.choice([(), ("answers",), ("requests",)]))
        time.sleep(self.chance.uniform(0.2, 3.5))
        if self.chance.random() < 0.5:
            member.proxy.cut()
        member.proxy.resume()

    def kill(self) -> None:
        """A member is killed, and another one joins."""
        self.alive("Outside").kill()
        self.join(self.arena.outside)

    def stop(self) -> None:
        """A member is frozen, for less or more than its session timeout."""
        member = self.alive("Outside")
        member.signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.5, 4.0))
        member.signal(signal.SIGCONT)

    def leave(self) -> None:
        """A member leaves cleanly, and another one joins. This does not happen during the previous
        fault: a member that has just lost its session cannot commit, and reports an error."""
        self.arena.settle(4 * HEAL)
        kind = self.chance.choice(["Inside", "Outside"])
        self.alive(kind).leave()
        self.join(self.arena.inside if kind == "Inside" else self.arena.outside)

    def restart_zookeeper(self) -> None:
        """ZooKeeper is killed and restarted."""
        server = self.arena.cluster.zookeeper_server
        server.kill()
        time.sleep(self.chance.uniform(0, 1))
        server.start()
        server.wait_ready()

    def restart_broker(self) -> None:
        """The broker is killed or stopped, and restarted."""
        server = self.arena.cluster.broker_servers[0]
        self.chance.choice([server.kill, server.stop])()
        server.start()
        server.wait_ready()

    def one(self) -> None:
        """Apply one fault, and sometimes wait for recovery."""
        usual = [self.expire, self.cut, self.stall, self.kill, self.stop, self.leave]
        rare = [self.restart_zookeeper, self.restart_broker]
        fault = self.chance.choice(usual * 2 + rare)
        fault()
        self.done[fault.__name__] += 1
        if self.chance.random() < 0.4:
            self.arena.settle(4 * HEAL)
        else:
            time.sleep(self.chance.uniform(0, 1.5))


@pytest.mark.timeout(SECONDS + 150)
def test_fault_mix(make_arena) -> None:
    """After random faults in random order nothing is lost, no stored offset goes down, and every
    member reads forwards. Every partition ends with one owner. Repetitions stay within the number
    of messages that can be in flight at each fault."""
    seed = int(os.environ.get("FAULT_SEED", str(random.randrange(10**6))))
    print(f"FAULT_SEED={seed} FAULT_SECONDS={SECONDS:g}")  # noqa: T201
    arena = make_arena(partitions=8)
    mix = Mix(arena, random.Random(seed))
    arena.settle()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        mix.one()
    began = time.monotonic()
    arena.settle(2 * HEAL)
    healed = time.monotonic() - began
    for member in arena.members:
        if member.alive:
            arena.wait_progress(member, 10)
    repeated = arena.finish()
    print(  # noqa: T201
        f"{dict(mix.done)}; {len(arena.producer.acked)} messages, {repeated} repeated, "
        f"healed {healed:.1f} s after the last fault"
    )
    harmful = sum(count for name, count in mix.done.items() if name not in ("leave", "cut"))
    assert repeated <= harmful * RATE * UNCOMMITTED + len(arena.members)
