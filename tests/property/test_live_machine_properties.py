"""LiveMachine accepts any event, never delivers without its locks, and always completes a mode."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.machine import (
    Acknowledge,
    Acknowledged,
    ChangeClaims,
    Command,
    Event,
    Held,
    Join,
    Joined,
    Left,
    LiveMachine,
    ModeRead,
    Registered,
    SessionLost,
    TakeBack,
)
from zkconsumer.core.migration.modes import RULES, Follows, Mode, Offer

ALL = [TopicPartition("t", n) for n in range(3)]
PARTITIONS = st.frozensets(st.sampled_from(ALL))
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(SessionLost()),
    st.builds(ModeRead, st.sampled_from(Mode), st.integers(-1, 5)),
    st.builds(Registered, st.sampled_from(Mode), st.integers(-1, 5)),
    st.builds(Joined, st.sampled_from(Offer), PARTITIONS),
    st.just(Left()),
    st.builds(Held, PARTITIONS),
    st.builds(Acknowledged, st.integers(-1, 5)),
)


def check(machine: LiveMachine, commands: list[Command]) -> None:
    """Check what always holds after a step."""
    mode, delivered = machine.mode, machine.delivered
    assert delivered <= machine.held
    if mode is None:
        assert not delivered
        assert not any(map(machine.may_claim, ALL))
        assert all(isinstance(command, TakeBack) for command in commands)
        return
    rule = RULES[mode]
    if rule.follows is Follows.COORDINATOR:
        assert delivered <= machine.assigned
    if mode is Mode.LOCKED and machine.joined is not Offer.OWN:
        assert not delivered
    for command in commands:
        if isinstance(command, Acknowledge):
            assert command.version == machine.version
            assert machine.joined is rule.offer
            if rule.follows is Follows.COORDINATOR:
                assert machine.held <= machine.assigned
        elif isinstance(command, TakeBack):
            assert not command.partitions & delivered


@given(st.lists(EVENTS, max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_event_is_legal_and_both_locks_are_kept(happens: list[Event]) -> None:
    """Nothing raises. A partition that was given up is delivered again only after its release."""
    machine = LiveMachine()
    given_up: set[TopicPartition] = set()
    for event in happens:
        if isinstance(event, Held):
            given_up &= event.partitions
        elif isinstance(event, SessionLost):
            given_up.clear()
        check(machine, machine.on(event))
        given_up |= machine.giving_up
        assert not machine.delivered & given_up
        assert not any(map(machine.may_claim, given_up))


@given(st.lists(EVENTS, max_size=15), st.sampled_from(Mode), PARTITIONS)
@settings(max_examples=200, deadline=None)
def test_a_member_whose_commands_are_carried_out_reaches_every_mode(
    happens: list[Event], mode: Mode, assigned: frozenset[TopicPartition]
) -> None:
    """In the end, the member has acknowledged the mode and delivers its partitions, whatever
    happened."""
    machine = LiveMachine()
    for event in happens:
        machine.on(event)
    machine.on(SessionLost())  # unfinished commands are done
    machine.on(Left())
    waiting: list[Event] = [ModeRead(mode, 6)]
    held = frozenset[TopicPartition]()
    for _ in range(20):
        if not waiting:
            break
        for command in machine.on(waiting.pop(0)):
            match command:
                case Join(offer):
                    waiting.append(Joined(offer, assigned))
                case Acknowledge(version):
                    waiting.append(Acknowledged(version))
                case TakeBack(partitions):
                    held -= partitions
                    waiting.append(Held(held))
                case ChangeClaims() if RULES[mode].follows is Follows.COORDINATOR:
                    held = held - machine.giving_up
                    held |= frozenset(filter(machine.may_claim, machine.assigned))
                    waiting.append(Held(held))
                case _:
                    pass
    assert machine.acknowledged == 6
    if RULES[mode].follows is Follows.COORDINATOR:
        assert machine.delivered == machine.held == assigned
