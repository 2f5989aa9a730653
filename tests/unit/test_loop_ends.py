"""The end of a member's loop, by whichever thread, and the limit of its commits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from zkconsumer.core.common import commands, events
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import AuthenticationError, ConnectorClosedError, ConnectorFailedError
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import MemberLoop

P0 = TopicPartition("t", 0)


class Bench:
    """The loop of a member whose machine, servers and clock are the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.events: list[Any] = []
        self.following: list[Any] = []
        """The commands that follow the next event."""
        self.done: list[Any] = []
        self.on_command: Callable[[Any], object] = self.done.append
        host: Any = SimpleNamespace(
            log=lambda *_: None,
            post=lambda action: action(),
            now=lambda: self.now,
            after=lambda seconds, action: self.timers.append((self.now + seconds, action)),
        )
        data: Any = SimpleNamespace(
            fail=lambda error: self.done.append(error),
            close=lambda timeout: self.done.append("data closed"),
        )
        coordination: Any = SimpleNamespace(
            close=lambda timeout: self.done.append("servers left"),
            carry_out=lambda command: self.on_command(command),
        )
        machine: Any = SimpleNamespace(state=None, closing=False, on=self._on)
        self.loop: MemberLoop[Any] = MemberLoop(
            "c",
            machine,
            coordination,
            data,
            DeliveryGate(now=lambda: self.now),
            host,
            None,
            auto_commit_interval=None,
            rebalances=RebalanceCounts((), (), ()),
        )

    def _on(self, event: Any) -> list[Any]:
        self.events.append(event)
        following, self.following = self.following, []
        return following

    def wait(self, seconds: float) -> None:
        """Let time pass, and run the timers that are due."""
        self.now += seconds
        due = [one for one in self.timers if one[0] <= self.now]
        self.timers = [one for one in self.timers if one[0] > self.now]
        for _, action in due:
            action()


def test_the_first_cause_of_the_end_counts() -> None:
    """The watchdog ends the member while the loop is in a step. The step then fails, because
    everything is closed."""
    bench = Bench()
    first = AuthenticationError("broker at b1:9093: it refuses the token")
    bench.loop.crashed(first)
    done = list(bench.done)
    bench.loop.crashed(ConnectorClosedError("fetching has been shut down"))
    failure = bench.loop.failure
    assert isinstance(failure, ConnectorFailedError)
    assert failure.__cause__ is first
    assert bench.loop.closed.exception(0) is failure
    assert bench.done == done == [failure, "data closed", "servers left"]


def test_nothing_is_carried_out_after_the_end() -> None:
    """The member ends between two commands of one step. Callers of commits are still answered."""
    bench = Bench()
    answered = bench.loop.commit({P0: 1}, strict=False)

    def end(command: Any) -> None:
        bench.done.append(command)
        bench.loop.crashed(RuntimeError("a check has failed"))

    bench.on_command = end
    bench.following = ["claim", "fetch", commands.AnswerCommit(1, ())]
    bench.loop.take("event")
    assert bench.done[0] == "claim"
    assert "fetch" not in bench.done
    assert "a check has failed" in answered.result(0)[0]
    bench.loop.take("later")
    assert "later" not in bench.events


def test_a_member_that_was_given_up_does_nothing_more() -> None:
    """The servers do not answer, so ``shutdown`` ends it on the application's thread. The loop may
    be in a step."""
    bench = Bench()

    def end(command: Any) -> None:
        bench.done.append(command)
        bench.loop.give_up("no answer", 1.0)
        bench.loop.crashed(ConnectorClosedError("fetching has been shut down"))

    bench.on_command = end
    bench.following = ["claim", "fetch"]
    bench.loop.take("event")
    assert bench.done == ["claim", "data closed", "servers left"]
    assert bench.loop.closed.result(0) == ("no answer",)
    assert bench.loop.failure is None
    assert bench.loop.left


def test_commits_need_one_timer_however_many_wait() -> None:
    """Each is answered at its own time. The machine drops those that it has not sent."""
    bench = Bench()
    futures = []
    for _ in range(1000):
        futures.append(bench.loop.commit({P0: 1}, False, (20.0, "no answer in 20 s")))
        bench.now += 0.01
    assert len(bench.timers) == 1
    bench.following = [commands.AnswerCommit(number, ()) for number in range(1, 900)]
    bench.loop.take("answers")
    assert len(bench.loop._limits) == 101
    bench.wait(20.0 - bench.now + 9.005)
    while any(at <= bench.now for at, _ in bench.timers):
        bench.wait(0.0)
    assert [future.done() for future in futures] == [True] * 901 + [False] * 99
    assert futures[898].result(0) == ()
    assert futures[899].result(0) == ("no answer in 20 s",)
    abandoned = [one.request for one in bench.events if isinstance(one, events.CommitAbandoned)]
    assert abandoned == [900, 901]
    assert len(bench.timers) == 1
    bench.wait(30.0)
    assert all(future.done() for future in futures)
    assert not bench.timers
    bench.loop.commit({P0: 1}, False, (20.0, "no answer in 20 s"))
    assert len(bench.timers) == 1
