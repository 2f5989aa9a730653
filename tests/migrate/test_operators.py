"""Whole commands of operators on one group, and what may happen at any of their points.

A command is killed there, or another operator or a client acts there, while the first one is
stopped or its machine sleeps. The judge knows no rules of the commands: what is left must be what
they leave when they run one after the other, in either order, where one that did not report success
may be missing. A change that was interrupted is undone first. So nothing is lost, lowered or
unlocked, and the outcomes that were reported are those that happened.

Points are drawn by ``ZKC_SEED``, as many as ``ZKC_POINTS`` (or ``all`` of them). A failure names
its point: ``ZKC_POINTS=killed,moved,undo,-,12`` repeats it.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.migrate.matrix import DO
from tests.migrate.operators import (
    Command,
    End,
    World,
    commits_to_kafka,
    commits_to_zookeeper,
    joins,
    registers,
    virtual_time,
)
from tests.migrate.simulated import SENT, Ran

GROUP: Final = ("--group", "g", "--wait", "0", *DO)


def words(*line: str) -> Command:
    """A command that runs a command line."""
    return lambda machine: machine.run(*line)


UNDO: Final = words("undo", *GROUP)
COMMANDS: Final[dict[str, Command]] = {
    "apply": words("apply", "plan", *DO),
    "apply-back": words("apply", "back", *DO),
    "undo": UNDO,
    "lock": words("lock", *GROUP),
    "unlock": words("unlock", *GROUP),
    "reset": words("reset", "--group", "g", "--all-topics", "--to-offset", "700", "--execute"),
    "prepare": words("live", "prepare", *GROUP),
    "to-kafka": words("live", "to-kafka", *GROUP),
    "finalize": words("live", "finalize", *GROUP),
    "complete": words("complete", *GROUP),
    "to-zookeeper": words("live", "to-zookeeper", *GROUP),
}
CLIENTS: Final[dict[str, Command]] = {
    act.__name__: act for act in (registers, joins, commits_to_zookeeper, commits_to_kafka)
}
ACTS: Final = {**COMMANDS, **CLIENTS}
STATES: Final = (
    "untouched", "mixed", "moved", "used", "rolled_back", "moved_back", "interrupted",
    "was_in_kafka", "prepared", "live_locked", "live_kafka", "live_open", "live_open_alike",
)  # fmt: skip
UNDO: Final = "2:undo"
HOWS: Final = {
    "killed": ("2:undo", "1:undo-plan", "1:again", "2:again"),
    "stopped": tuple(f"2:{name}" for name in ACTS),
    "suspended": tuple(f"2:{name}" for name in COMMANDS),
}
"""What becomes of the first command at a point, and what is done then, by the first operator or
the second."""


class Case(NamedTuple):
    """A command of the first operator, and what is done at its point of that number."""

    how: str
    state: str
    first: str
    then: str
    number: int

    def __str__(self) -> str:
        return "ZKC_POINTS=" + ",".join(map(str, self))


def act(name: str, world: World) -> Ran:
    """Run ``2:undo``, a command of the second operator. ``again-apply``: with a new plan."""
    number, _, name = name.partition(":")
    machine = world.first if number == "1" else world.second
    if name in ("undo-apply", "undo-apply-back"):
        return machine.run("undo", "back" if name.endswith("back") else "plan", *DO)
    again = name.removeprefix("again-")
    if again != name and number == "2":
        machine.plan()
    ran = ACTS[again](machine)
    # It may have been killed before it locked or unlocked the group.
    last = {"again-apply": "lock", "again-apply-back": "unlock"}.get(name)
    if last is not None:
        COMMANDS[last](machine)
    return ran


class Judge:
    """Knows what commands leave in a world when they run one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends: dict[tuple[str, ...], End] = {}
        self._points: dict[str, int] = {}

    def after(self, *names: str) -> End:
        """The end after these."""
        if names not in self._ends:
            copy = self._world.new()
            for name in names:
                ran = act(name, copy)
                assert ran.status in (0, 3), (names, name, ran)
            self._ends[names] = copy.end()
            copy.close()
        return self._ends[names]

    def points(self, first: str) -> int:
        """Return how many points a command has."""
        if first not in self._points:
            copy = self._world.new()
            seen: list[str] = []
            copy.first.point = seen.append
            COMMANDS[first](copy.first)
            copy.close()
            self._points[first] = len(seen)
        return self._points[first]

    def play(self, case: Case) -> str | None:
        """Return what is wrong; ``None``: nothing."""
        world = self._world.new()
        came: list[str] = []
        others: list[Ran] = []
        then = case.then.replace("-plan", f"-{case.first}").replace("again", f"again-{case.first}")

        def at(what: str) -> None:
            came.append(what)
            if case.how == "killed":
                world.first.kill()
            if case.how == "suspended":
                world.first.suspend()
            others.append(act(then, world))

        try:
            ran = world.first.at(case.number, at, COMMANDS[case.first])
            assert came, "it has no such point"
            if case.how == "killed":
                assert ran is None, ran
                return self._killed(world, f"1:{case.first}", then)
            fault = self._together(world, case, came[0], f"1:{case.first}", then, ran, *others)
            return fault and f"at {came[0]}: {ran}, {others}: {fault}"
        finally:
            world.close()

    def _killed(self, world: World, first: str, then: str) -> str | None:
        """The group is as if the command had been carried out or not, once another command has
        ended it. A lock, a reset or a step of a live move may have to be run again."""
        interrupted = world.end().case == "interrupted"
        last = act(then, world)
        end = world.end()
        orders = [(then,), (first, then), *([()] if interrupted and "undo" in then else [])]
        if any(same(end, self.after(*order)) for order in orders):
            return None
        if first[2:] not in ("apply", "apply-back", "undo"):
            orders = [(then, first), (first, then), (first, then, first)]
            if self._ends_in(orders, world, f"2:again-{first[2:]}", then):
                return None
        return f"after {last}: {self._none_of(end, orders)}"

    def _together(
        self, world: World, case: Case, point: str, first: str, then: str, ran: Ran, other: Ran
    ) -> str | None:
        done = [name for name, one in ((first, ran), (then, other)) if is_done(one)]
        end = world.end()
        late = "written-late" in world.status()["reasons"]
        if point == SENT and case.how == "suspended":  # it cannot be called back
            return None if late else f"{end} does not say that it was written late"
        if late and case.how == "suspended" and first not in done:
            return None
        orders = [
            order
            for order in ((), (first,), (then,), (first, then), (then, first))
            if set(done) <= set(order)
        ]
        if any(end == self.after(*order) for order in orders):
            return None
        if first in done:
            return self._none_of(end, orders)
        world.one.kafka.joined.clear()  # who has joined or registered stops
        world.second.zk.expire()
        more: tuple[str, ...] = ()
        if end.case == "interrupted":
            last = act(UNDO, world)
            if last.status and last.rows[0]["reasons"] == ["changed"] and then[2:] in CLIENTS:
                return None  # a client has written what the command has just written
            if then == "2:unlock" and world.end().locked == "locked":
                return None  # as it was when the change began
        else:  # what it has not finished it finishes when it is run again
            orders = [(then, first), (first, then)]
            unlocked = "not-locked" in world.status()["reasons"]
            more = ("2:lock" if unlocked else first, *([] if then in done else [then]))
            if first in ("1:undo", "1:apply-back"):  # a later command has hidden that it must
                more += ("2:unlock",)
        if self._ends_in(orders, world, *more):
            return None
        return f"{end}, and later {self._none_of(world.end(), orders)}"

    def _ends_in(self, orders: Sequence[tuple[str, ...]], world: World, *more: str) -> bool:
        """Run more commands until the group is as after one of the orders."""
        for name in ("", *more):
            if name:
                act(name, world)
            end = world.end()
            if any(same(end, self.after(*order)) for order in orders):
                return True
        return False

    def _none_of(self, end: End, orders: Sequence[tuple[str, ...]]) -> str:
        return f"{end} is none of\n" + "\n".join(f"{self.after(*one)} {one}" for one in orders)


def same(one: End, other: End) -> bool:
    """Whether it is the same state. Not the case: the group may never have been moved, or moved and
    rolled back."""
    return one._replace(case="") == other._replace(case="")


def is_done(ran: Ran) -> bool:
    """Whether a command has reported success. ``reset`` has rows of partitions."""
    if ran.rows and "outcome" in ran.rows[0]:
        return any(row["outcome"] == "done" for row in ran.rows)
    return ran.status == 0 and bool(ran.rows)


PAIRS: Final = (
    "killed,untouched,apply,2:undo", "killed,mixed,apply,1:undo-plan", "killed,mixed,apply,1:again",
    "killed,mixed,apply-back,2:again", "killed,used,apply-back,2:undo", "killed,used,undo,2:undo",
    "killed,moved,undo,2:undo", "killed,moved,unlock,2:again",
    # Each of these has left something once that neither order leaves.
    "stopped,untouched,undo,2:apply", "stopped,live_locked,to-kafka,2:undo",
    "stopped,live_open,reset,2:complete", "stopped,moved_back,lock,2:prepare",
    "stopped,moved_back,undo,2:undo", "stopped,interrupted,lock,2:apply-back",
    "stopped,live_open_alike,complete,2:undo",
)  # fmt: skip
"""Commands of which every point is played."""


def thens(how: str, first: str) -> list[str]:
    """Return what may be done then."""
    return [one for one in HOWS[how] if "-plan" not in one or first.startswith("apply")]


def points(
    judges: Callable[[str], Judge], how: str, state: str, first: str, then: str
) -> list[Case]:
    """Return the cases of one command at each of its points."""
    return [Case(how, state, first, then, one) for one in range(judges(state).points(first))]


def chosen(judges: Callable[[str], Judge], how: str) -> Iterator[Case]:
    """Yield the cases to play."""
    wanted = os.environ.get("ZKC_POINTS", "30")
    if not wanted.isdigit():
        for state, first in product(STATES, COMMANDS):
            for then in thens(how, first):
                for case in points(judges, how, state, first, then):
                    if fnmatchcase(",".join(map(str, case)), wanted):
                        yield case
        return
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(2**32))
    sys.stdout.write(f"repeat with ZKC_SEED={seed}\n")
    chance = random.Random(f"{seed} {how}")
    for _ in range(int(wanted)):
        state, first = chance.choice(STATES), chance.choice(tuple(COMMANDS))
        yield chance.choice(points(judges, how, state, first, chance.choice(thens(how, first))))


@pytest.fixture
def judges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Judge]:
    """Return the judge of a state."""
    virtual_time(monkeypatch)
    return cache(lambda state: Judge(World(monkeypatch, tmp_path, state)))


def check(judges: Callable[[str], Judge], cases: Iterable[Case]) -> None:
    """Play cases, and name those that are wrong."""
    played = [(case, judges(case.state).play(case)) for case in cases]
    wrong = [f"{case}: {fault}" for case, fault in played if fault is not None]
    assert played
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


@pytest.mark.parametrize("pair", PAIRS)
def test_at_every_point(judges: Callable[[str], Judge], pair: str) -> None:
    """What is left is what one after the other leaves."""
    how, state, first, then = pair.split(",")
    check(judges, points(judges, how, state, first, then))


@pytest.mark.parametrize("how", HOWS)
def test_at_points_that_are_drawn(judges: Callable[[str], Judge], how: str) -> None:
    """With any two commands, in any state."""
    check(judges, chosen(judges, how))


def test_a_kill_of_a_group_that_is_planned_when_it_is_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run is killed at every point, and another offset is committed before the next run. If
    nothing was written, the next run moves the new offset. Otherwise it is refused and named.
    Without such a commit the next run always ends as an undisturbed run. An undo restores the old
    state."""
    virtual_time(monkeypatch)
    start = World(monkeypatch, tmp_path, "untouched")
    start.first.run("plan", "--group", "g", "--at-apply", "--out", "late")
    outcomes = set()
    for number in count():
        for disturbed in (False, True):
            world = start.new()
            reached: list[str] = []

            def kill(what: str, world: World = world, reached: list[str] = reached) -> None:
                reached.append(what)
                world.first.kill()

            world.first.at(number, kill, words("apply", "late", *DO))
            if reached:
                if disturbed:
                    world.one.in_zookeeper("g", "t", 9)
                (row,) = world.first.run("apply", "late", *DO).rows
                held = world.one.held("g", "t")[1]
                outcomes.add((disturbed, row["outcome"], held.get(0)))
                if disturbed and row["outcome"] == "refused":
                    assert "t-0" in row["why"], (number, reached, row)
                else:
                    assert row["outcome"] in ("done", "was done before"), (number, reached, row)
                    assert held == {0: 9 if disturbed else 100, 1: 50}, (number, reached)
                    assert world.first.run("undo", "late", *DO).status == 0, (number, reached)
                    assert world.one.held("g", "t")[1] == {}, (number, reached)
            world.close()
        if not reached:
            break
    assert number >= 20
    assert outcomes >= {(True, "done", 9), (False, "done", 100), (True, "refused", 100)}
