"""The machines of both protocols on the coordinator accept any event in any state."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, get_args

import pytest

from tests.support.specs import classic_spec, kip848_spec
from zkconsumer.core.common.commands import AnswerCommit, SetTimer, StartFetching
from zkconsumer.core.common.events import CommitRequested, TimerFired
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import (
    commands,
    events,
    kip848_commands,
    kip848_events,
    kip848_reactions,
    reactions,
)
from zkconsumer.core.groups.assignors.strategies import MemberState, RangeStrategy
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import AssignmentData, encode_assignment
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.states import State

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
T, U = "id-t", "id-u"
OTHERS = RangeStrategy().subscribe(MemberState("d", {"u": 1}, frozenset(), -1))
MEANT = RangeStrategy().subscribe(MemberState("c", {"t": 1}, frozenset(), -1))
CLASSIC_CODES = [*(row.code for row in reactions.TABLE), 0, 3, 12, 23, 26, 999]
KIP848_CODES = [*(row.code for row in kip848_reactions.TABLE), 0, 3, 12, 27, 999]
Rng = random.Random
Values = Mapping[str, Callable[[Rng], Any]]


class Protocol(NamedTuple):
    """A machine, and what the coordinator may answer."""

    machine: Callable[[Rng, dict[str, Any]], Any]
    """A member with the given keys."""
    events: tuple[type, ...]
    values: Values
    """The contents of events, by field."""
    right: Callable[[Rng, Any, Any], Any]
    """Changes an event that fits the machine's state so that the group makes progress."""
    check: Callable[[Any, Any], None]
    """Checks a command of the machine."""
    unused: frozenset[State]


# -- the classic protocol


def classic_machine(rng: Rng, keys: dict[str, Any]) -> ClassicMachine:
    """A member, eager or cooperative."""
    strategy = dataclasses.replace(RangeStrategy(), cooperative=rng.random() < 0.5)
    subscription = Subscription(Pattern.STATIC, {"t": 2})
    return ClassicMachine(
        classic_spec(subscription=subscription, strategies=(strategy,), session_timeout=10, **keys)
    )


CLASSIC_VALUES: Final[Values] = {
    "partitions": lambda rng: {"t": rng.choice([0, 1, 2])},
    "errors": lambda rng: rng.choice([{}, {}, {"t": rng.choice(CLASSIC_CODES)}]),
    "member_id": lambda rng: rng.choice(["", "m1", "m2"]),
    "generation": lambda rng: rng.randrange(9),
    "leader": lambda rng: rng.choice(["m1", "m2"]),
    "protocol": lambda rng: rng.choice(["range"] * 9 + ["other"]),
    "members": lambda rng: (GroupMember("m1", None, rng.choice([MEANT, OTHERS, b"", b"junk"])),),
    "assignment": lambda rng: rng.choice(
        [encode_assignment(AssignmentData(frozenset({rng.choice([P0, P1])}))), b"", b"\0\0\7"]
    ),
    "codes": lambda rng: {tp: rng.choice(CLASSIC_CODES) for tp in (P0, P1)},
    "code": lambda rng: rng.choice(CLASSIC_CODES),
}


def classic_right(rng: Rng, machine: Any, event: Any) -> Any:
    """See ``Protocol``."""
    if isinstance(event, events.HeartbeatAnswered) and machine._beat is not None:
        return events.HeartbeatAnswered(machine._beat[0], rng.choice([0, 27]))
    if isinstance(event, events.Joined):
        return dataclasses.replace(event, protocol="range")
    return event


def check_classic(_machine: Any, command: Any) -> None:
    """Heartbeats and commits are in a generation."""
    if isinstance(command, commands.Heartbeat | commands.CommitOffsets):
        assert command.generation >= 0


# -- KIP-848


def kip848_machine(_rng: Rng, keys: dict[str, Any]) -> Kip848Machine:
    """A member."""
    subscription = Subscription(Pattern.STATIC, {"t": 2, "u": 1})
    return Kip848Machine(
        kip848_spec(subscription=subscription, session_timeout=45, heartbeat_interval=5, **keys)
    )


KIP848_VALUES: Final[Values] = {
    "epoch": lambda rng: rng.randrange(1, 9),
    "interval": lambda rng: rng.choice([0.0, 5.0]),
    "assignment": lambda rng: rng.choice([None, {}, {T: (0,)}, {T: (1, 0)}, {T: (1,), U: (0,)}]),
    "names": lambda rng: rng.choice([{}, {T: "t"}, {T: "t", U: "u"}]),
    "partitions": lambda rng: rng.choice([{}, {"t": 2}]),
    "errors": lambda rng: rng.choice([{}, {"t": rng.choice(KIP848_CODES)}]),
    "codes": lambda rng: {tp: rng.choice(KIP848_CODES) for tp in (P0, P1)},
    "code": lambda rng: rng.choice(KIP848_CODES),
    "member_id": lambda _: "",
}


def kip848_right(_rng: Rng, machine: Any, event: Any) -> Any:
    """See ``Protocol``."""
    if isinstance(event, kip848_events.MemberHeartbeatAnswered) and machine._beat is not None:
        return dataclasses.replace(event, token=machine._beat[0], code=0)
    return event


def check_kip848(machine: Any, command: Any) -> None:
    """Commits are in an epoch. A heartbeat names all partitions that the member owns."""
    match command:
        case commands.CommitOffsets(_, _, epoch, _):
            assert epoch > 0
        case kip848_commands.MemberHeartbeat(_, _, epoch, full, owned):
            assert (epoch == 0) == (machine.generation < 0)
            assert full <= (owned is not None)
            said = machine._beat[1] if machine._beat is not None else {}
            for tp in machine.held.keys() | machine._starting.keys():
                assert tp.partition in said.get(machine._ids[tp], ()), "not named"


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "classic": Protocol(
        classic_machine,
        get_args(events.Event),
        CLASSIC_VALUES,
        classic_right,
        check_classic,
        frozenset(),
    ),
    "consumer": Protocol(
        kip848_machine,
        get_args(kip848_events.Event),
        KIP848_VALUES,
        kip848_right,
        check_kip848,
        frozenset({State.LEADING, State.SYNCING}),
    ),
}


# -- the walks


COMMON_VALUES: Final[Values] = {
    "brokers": lambda _: (),
    "offsets": lambda _: {P0: 5, P1: None},
    "detail": lambda _: "",
    "positions": lambda _: {P0: 3, P1: 4},
    "error": lambda rng: rng.choice([None, "raised"]),
    "request": lambda rng: rng.choice([None, rng.randrange(10**6)]),
    "strict": lambda rng: rng.random() < 0.5,
    "in_listener": lambda rng: rng.random() < 0.5,
    "name": lambda _: "",
}


def some_event(rng: Rng, protocol: Protocol, token: int, timers: list[SetTimer]) -> Any:
    """Return an event with any content. Its token is probably one that the machine waits for."""
    kind = rng.choice(protocol.events)
    if kind is TimerFired and timers:
        timer = rng.choice(timers)
        return TimerFired(timer.token, timer.name)
    values = {**COMMON_VALUES, **protocol.values, "token": lambda _: token}
    return kind(**{field.name: values[field.name](rng) for field in dataclasses.fields(kind)})


def directed(rng: Rng, protocol: Protocol, machine: Any, event: Any) -> Any:
    """Return the event as a coordinator without faults sends it; ``None``: it sends no such."""
    fits = type(event) in machine.ANSWERS.get(machine.state, {})
    if fits and not isinstance(event, events.RequestFailed):
        event = dataclasses.replace(event, token=machine._awaited or 0)
        if isinstance(event, events.OffsetsCommitted):
            event = dataclasses.replace(event, codes={P0: 0, P1: 0})
        return protocol.right(rng, machine, event)
    better = protocol.right(rng, machine, event)
    usual = better is not event or isinstance(event, TimerFired | CommitRequested)
    return better if usual else None


def walk(name: str, seed: int, steps: int = 250) -> set[State]:
    """Walk at random, and check the promises after each step. Return the visited states."""
    rng, protocol = random.Random(seed), PROTOCOLS[name]
    keys = {
        "instance_id": rng.choice([None, None, "i"]),
        "auto_commit": rng.random() < 0.8,
        "commit_attempts": 3,
    }
    machine = protocol.machine(rng, keys)
    rate = rng.choice([0.0, 0.9, 0.97])
    machine.on(events.Started())
    tokens: list[int] = []
    timers: list[SetTimer] = []
    asked: set[int] = set()
    reached: set[State] = set()
    for _ in range(steps):
        token = rng.choice(tokens[-6:]) if tokens and rng.random() < 0.9 else rng.randrange(99)
        event = some_event(rng, protocol, token, timers)
        if rng.random() < rate:
            event = directed(rng, protocol, machine, event)
        if event is None:
            continue
        if isinstance(event, CommitRequested) and event.request is not None:
            if event.request in asked:
                continue
            asked.add(event.request)
        held = set(machine.held)
        for command in machine.on(event):
            if hasattr(command, "token"):
                tokens.append(command.token)
            protocol.check(machine, command)
            match command:
                case SetTimer():
                    timers.append(command)
                case StartFetching(_, starting):
                    assert not held & starting.keys(), "started twice"
                    assert set(starting) <= set(machine.held)
                case commands.CommitOffsets(_, _, _, positions):
                    assert set(positions) <= set(machine.held)
                case AnswerCommit(request):
                    assert request in asked, "answered twice"
                    asked.remove(request)
        if machine.generation < 0:
            assert not machine.held, "holds partitions without a generation"
        reached.add(machine.state)
    return reached


@pytest.mark.parametrize("name", PROTOCOLS)
def test_any_event_in_any_state(name: str) -> None:
    """No event in any state raises. Nothing is started twice. Without a generation or an epoch, no
    partition is owned or committed, and no heartbeat counts. Each heartbeat of KIP-848 names all
    owned partitions. Each request of a user is answered at most once. The walks visit every state;
    a member of KIP-848 backs off in one of a hundred."""
    reached: set[State] = set()
    for seed in range(400):
        try:
            reached |= walk(name, seed)
        except Exception as error:
            error.add_note(f"replay with walk({name!r}, {seed})")
            raise
    assert reached >= set(State) - {State.NEW} - PROTOCOLS[name].unused
