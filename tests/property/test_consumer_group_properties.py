"""The KIP-848 machine accepts any event in any state."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, get_args

from tests.support.specs import kip848_spec
from zkconsumer.core.common.commands import AnswerCommit, SetTimer, StartFetching
from zkconsumer.core.common.events import CommitRequested, TimerFired
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.commands import CommitOffsets
from zkconsumer.core.groups.events import OffsetsCommitted, RequestFailed, Started
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.kip848_events import Event
from zkconsumer.core.groups.kip848_reactions import TABLE
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.groups.states import State

T, U = "id-t", "id-u"
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
CODES = [row.code for row in TABLE] + [0, 3, 12, 27, 999]
UNUSED = {State.LEADING, State.SYNCING}
"""Commands of the classic protocol only."""


def spec(rng: random.Random) -> Kip848Spec:
    """A member, static or not."""
    return kip848_spec(
        instance_id=rng.choice([None, None, "i"]),
        subscription=Subscription(Pattern.STATIC, {"t": 2, "u": 1}),
        auto_commit=rng.random() < 0.8,
        session_timeout=45,
        heartbeat_interval=5,
        commit_attempts=3,
    )


def some_event(rng: random.Random, token: int, recent: list[Any]) -> Event:
    """Return an event with any content. Its token is probably one that the machine waits for."""
    kind = rng.choice(get_args(Event))
    values: dict[str, Any] = {
        "token": token,
        "brokers": (),
        "epoch": rng.randrange(1, 9),
        "interval": rng.choice([0.0, 5.0]),
        "assignment": rng.choice([None, {}, {T: (0,)}, {T: (1, 0)}, {T: (1,), U: (0,)}]),
        "names": rng.choice([{}, {T: "t"}, {T: "t", U: "u"}]),
        "offsets": {P0: 5, P1: None},
        "partitions": rng.choice([{}, {"t": 2}]),
        "errors": rng.choice([{}, {"t": rng.choice(CODES)}]),
        "codes": {tp: rng.choice(CODES) for tp in (P0, P1)},
        "code": rng.choice(CODES),
        "detail": "",
        "member_id": "",
        "positions": {P0: 3, P1: 4},
        "error": rng.choice([None, "raised"]),
        "request": rng.choice([None, rng.randrange(10**6)]),
        "strict": rng.random() < 0.5,
        "in_listener": rng.random() < 0.5,
        "name": "",
    }
    if kind is TimerFired:
        timers = [one for one in recent if isinstance(one, SetTimer)]
        if timers:
            timer = rng.choice(timers)
            return TimerFired(timer.token, timer.name)
    fields = {field.name: values[field.name] for field in dataclasses.fields(kind)}
    found: Event = kind(**fields)
    return found


def walk(seed: int, steps: int = 250) -> set[State]:
    """Walk at random, and check the promises after each step. Return the visited states."""
    rng = random.Random(seed)
    machine = Kip848Machine(spec(rng))
    directed = rng.choice([0.0, 0.9, 0.97])
    machine.on(Started())
    recent: list[Any] = []
    asked: set[int] = set()
    reached: set[State] = set()
    for _ in range(steps):
        answered = [one for one in recent if hasattr(one, "token")][-6:]
        token = rng.choice(answered).token if answered and rng.random() < 0.9 else rng.randrange(99)
        event = some_event(rng, token, recent)
        if rng.random() < directed:
            if isinstance(event, events.MemberHeartbeatAnswered) and machine._beat is not None:
                event = dataclasses.replace(event, token=machine._beat[0], code=0)
            elif type(event) in machine.ANSWERS.get(machine.state, {}) and not isinstance(
                event, RequestFailed
            ):
                event = dataclasses.replace(event, token=machine._awaited or 0)  # type: ignore
                if isinstance(event, OffsetsCommitted):
                    event = dataclasses.replace(event, codes={P0: 0, P1: 0})
            elif not isinstance(event, TimerFired | CommitRequested):
                continue
        if isinstance(event, CommitRequested) and event.request is not None:
            if event.request in asked:
                continue
            asked.add(event.request)
        held = set(machine.held)
        for command in machine.on(event):
            recent.append(command)
            match command:
                case StartFetching(_, starting):
                    assert not held & starting.keys(), "started twice"
                    assert set(starting) <= set(machine.held)
                case CommitOffsets(_, _, epoch, positions):
                    assert epoch > 0
                    assert set(positions) <= set(machine.held)
                case AnswerCommit(request):
                    assert request in asked, "answered twice"
                    asked.remove(request)
                case commands.MemberHeartbeat(_, _, epoch, full, owned):
                    assert (epoch == 0) == (machine.generation < 0)
                    assert full <= (owned is not None)
                    said = machine._beat[1] if machine._beat is not None else {}
                    for tp in machine.held.keys() | machine._starting.keys():
                        assert tp.partition in said.get(machine._ids[tp], ()), "not named"
        if machine.generation < 0:
            assert not machine.held, "holds partitions without an epoch"
        reached.add(machine.state)
    return reached


def test_any_event_in_any_state() -> None:
    """No event in any state raises. Nothing is started twice. No partition is owned or committed
    without an epoch. Each heartbeat names all owned partitions. Each request of a user is answered
    at most once. The walks visit every state; a member backs off in one of a hundred."""
    reached: set[State] = set()
    for seed in range(1000):
        try:
            reached |= walk(seed)
        except Exception as error:
            error.add_note(f"replay with walk({seed})")
            raise
    assert reached >= set(State) - {State.NEW} - UNUSED
