"""The gate alone, with the test's clock."""

from __future__ import annotations

import math
import time

from zkconsumer.runtime.gate import CLOCK, DeliveryGate


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_clock_counts_while_the_machine_sleeps() -> None:
    """The session ends meanwhile, so nothing may be delivered when the machine wakes up."""
    assert CLOCK == time.CLOCK_BOOTTIME


def test_an_answer_that_is_late_shortens_nothing() -> None:
    """Answers may overtake each other. The answer to the latest request counts."""
    gate = DeliveryGate(now=Clock())
    gate.extend(110)
    gate.extend(105)
    assert gate.valid_until == 110


def test_an_answer_that_is_too_late_opens_nothing() -> None:
    """Its lease is over already."""
    clock = Clock()
    gate = DeliveryGate(now=clock)
    gate.extend(clock.now)
    assert (gate.is_open, gate.valid_until) == (False, -math.inf)


def test_who_waits_is_called_once_at_each_opening() -> None:
    """Even if the gate was closed in between."""
    clock, called = Clock(), []
    gate = DeliveryGate(now=clock)
    for opening in (1, 2):
        assert not gate.wait_turn(lambda: called.append(clock.now))
        gate.extend(clock.now + 1)
        gate.extend(clock.now + 2)
        assert len(called) == opening
        assert gate.wait_turn(lambda: called.append(clock.now))
        gate.close()
        assert not gate.is_open
        clock.now += 10
