"""The machine on the coordinator accepts any event in any state."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, get_args

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common.commands import AnswerCommit, SetTimer, StartFetching
from zkconsumer.core.common.events import CommitRequested, TimerFired
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.events import Event, GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData, encode_assignment
from zkconsumer.core.groups.reactions import TABLE
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.groups.states import State
from zkconsumer.core.groups.strategies import MemberState, RangeStrategy

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
CODES = [row.code for row in TABLE] + [0, 3, 12, 23, 26, 999]
OTHERS = RangeStrategy().subscribe(MemberState("d", {"u": 1}, frozenset(), -1))
MEANT = RangeStrategy().subscribe(MemberState("c", {"t": 1}, frozenset(), -1))


def spec(rng: random.Random) -> ClassicSpec:
    """A member: eager or cooperative, static or not."""
    return classic_spec(
        instance_id=rng.choice([None, None, "i"]),
        subscription=Subscription(Pattern.STATIC, {"t": 2}),
        strategies=(dataclasses.replace(RangeStrategy(), cooperative=rng.random() < 0.5),),
        auto_commit=rng.random() < 0.8,
        session_timeout=10,
        commit_attempts=3,
    )


def some_fact(rng: random.Random, token: int, outstanding: list[Any]) -> Event:
    """Return an event with any content. Its token is probably one that the machine waits for."""
    kind = rng.choice(get_args(Event))
    values: dict[str, Any] = {
        "token": token,
        "partitions": {"t": rng.choice([0, 1, 2])},
        "brokers": (),
        "errors": rng.choice([{}, {}, {"t": rng.choice(CODES)}]),
        "member_id": rng.choice(["", "m1", "m2"]),
        "generation": rng.randrange(9),
        "leader": rng.choice(["m1", "m2"]),
        "protocol": rng.choice(["range"] * 9 + ["other"]),
        "members": (GroupMember("m1", None, rng.choice([MEANT, OTHERS, b"", b"junk"])),),
        "assignment": rng.choice(
            [encode_assignment(AssignmentData(frozenset(rng.sample([P0, P1], 1)))), b"", b"\0\0\7"]
        ),
        "offsets": {P0: 5, P1: None},
        "codes": {tp: rng.choice(CODES) for tp in (P0, P1)},
        "code": rng.choice(CODES),
        "detail": "",
        "positions": {P0: 3, P1: 4},
        "error": rng.choice([None, "raised"]),
        "request": rng.choice([None, rng.randrange(10**6)]),
        "strict": rng.random() < 0.5,
        "in_listener": rng.random() < 0.5,
        "name": "",
    }
    if kind is TimerFired:
        timers = [one for one in outstanding if isinstance(one, SetTimer)]
        if timers:
            timer = rng.choice(timers)
            return TimerFired(timer.token, timer.name)
    fields = {field.name: values[field.name] for field in dataclasses.fields(kind)}
    found: Event = kind(**fields)
    return found


def walk(seed: int, steps: int = 250) -> set[State]:
    """Walk at random, and check the promises after each step. Return the visited states."""
    rng = random.Random(seed)
    machine = ClassicMachine(spec(rng))
    directed = rng.choice([0.0, 0.9, 0.97])
    machine.on(events.Started())
    recent: list[Any] = []
    asked: set[int] = set()
    reached: set[State] = set()
    for _ in range(steps):
        answered = [one for one in recent if hasattr(one, "token")][-6:]
        token = rng.choice(answered).token if answered and rng.random() < 0.9 else rng.randrange(99)
        benign = rng.random() < directed
        fact = some_fact(rng, token, recent)
        if benign:
            if isinstance(fact, events.HeartbeatAnswered) and machine._beat is not None:
                fact = events.HeartbeatAnswered(machine._beat[0], rng.choice([0, 27]))
            elif type(fact) in ClassicMachine.ANSWERS.get(machine.state, {}) and not isinstance(
                fact, events.RequestFailed
            ):
                fact = dataclasses.replace(fact, token=machine._awaited or 0)  # type: ignore
                if isinstance(fact, events.Joined):
                    fact = dataclasses.replace(fact, protocol="range")
                elif isinstance(fact, events.OffsetsCommitted):
                    fact = dataclasses.replace(fact, codes={P0: 0, P1: 0})
            elif not isinstance(fact, TimerFired | CommitRequested):
                continue
        if isinstance(fact, CommitRequested) and fact.request is not None:
            if fact.request in asked:
                continue
            asked.add(fact.request)
        held = set(machine.held)
        for order in machine.on(fact):
            recent.append(order)
            match order:
                case StartFetching(_, starting):
                    assert not held & starting.keys(), "started twice"
                    assert set(starting) <= set(machine.held)
                case commands.CommitOffsets(_, _, generation, positions):
                    assert generation >= 0
                    assert set(positions) <= set(machine.held)
                case AnswerCommit(request):
                    assert request in asked, "answered twice"
                    asked.remove(request)
                case commands.Heartbeat(_, _, generation):
                    assert generation >= 0
        if machine.generation < 0:
            assert not machine.held, "holds partitions without a generation"
        reached.add(machine.state)
    return reached


@pytest.mark.parametrize("block", range(5))
def test_any_fact_in_any_state(block: int) -> None:
    """No event in any state raises. Nothing is started twice. Without a generation, no partition is
    owned or committed, and no heartbeat counts. Each request of a user is answered at most once.
    The walks visit every state."""
    reached: set[State] = set()
    for seed in range(block * 200, block * 200 + 200):
        try:
            reached |= walk(seed)
        except Exception as error:
            error.add_note(f"replay with walk({seed})")
            raise
    assert reached >= set(State) - {State.NEW}
