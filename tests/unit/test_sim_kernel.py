"""The virtual clock: order, exactness, cancelling, and repeatability from the seed."""

from __future__ import annotations

import random

import pytest

from zkconsumer.sim.kernel import Handle, Kernel


def test_events_of_one_moment_run_in_the_order_they_were_scheduled() -> None:
    """Equal due times never depend on the heap. The first scheduled runs first."""
    kernel = Kernel(0)
    ran: list[int] = []
    for number in range(100):
        kernel.schedule(0.5 if number % 2 else 0.25, lambda n=number: ran.append(n))
    kernel.run()
    assert ran == [*range(0, 100, 2), *range(1, 100, 2)]


def test_time_is_counted_in_whole_microseconds() -> None:
    """A million steps of 0.1 s end at exactly 100,000 s, so no rounding error adds up."""
    kernel = Kernel(0)
    left = 1_000_000

    def tick() -> None:
        nonlocal left
        left -= 1
        if left:
            kernel.schedule(0.1, tick)

    kernel.schedule(0.1, tick)
    assert kernel.run() == 1_000_000
    assert kernel.now_us == 100_000 * 1_000_000
    assert kernel.now == 100_000.0


def test_the_rest_of_a_period_passes_also_when_it_is_a_rounding_error() -> None:
    """An event that waits until ``until`` does not run endlessly at one moment."""
    kernel = Kernel(0)
    until, looks = 0.1 + 0.2, 0  # 0.30000000000000004, which is no whole microsecond

    def look() -> None:
        nonlocal looks
        looks += 1
        if kernel.now < until:
            kernel.schedule(until - kernel.now, look)

    kernel.schedule(0, look)
    kernel.run(max_events=100)
    assert (looks, kernel.now_us) == (3, 300_001)


@pytest.mark.parametrize("seed", [20_261_121, 4, 5])
def test_a_cancelled_event_never_runs_and_others_are_not_disturbed(seed: int) -> None:
    """Random schedules and cancellations, also from inside events, equal a plain sorted list."""
    rng = random.Random(seed)
    for _ in range(50):
        kernel = Kernel(0)
        handles: list[tuple[int, int, Handle]] = []
        ran: list[int] = []
        cancelled: set[int] = set()

        def fire(
            number: int,
            kernel: Kernel = kernel,
            handles: list[tuple[int, int, Handle]] = handles,
            ran: list[int] = ran,
            cancelled: set[int] = cancelled,
        ) -> None:
            ran.append(number)
            for _, victim, handle in rng.sample(handles, 3):
                if kernel.cancel(handle):
                    assert victim not in ran
                    cancelled.add(victim)
                else:
                    assert victim in ran or victim in cancelled

        for number in range(400):
            due = rng.randrange(1000)
            handle = kernel.schedule_at_us(due, lambda n=number, fire=fire: fire(n))
            handles.append((due, number, handle))
        kernel.run()
        expected = [n for _, n, _ in sorted(handles, key=lambda h: h[:2]) if n not in cancelled]
        assert ran == expected
        assert len(cancelled) > 100
        assert kernel.pending == 0


def test_run_until_stops_the_clock_there_and_keeps_later_events() -> None:
    """``until`` is inclusive. An event after it waits. The clock never runs past it or back."""
    kernel = Kernel(0)
    ran: list[float] = []
    for due in (1, 2, 3):
        kernel.schedule(due, lambda: ran.append(kernel.now))
    assert kernel.run(until=2) == 2
    assert ran == [1.0, 2.0]
    kernel.run(until=2.5)
    assert kernel.now == 2.5
    kernel.run(until=1)
    assert kernel.now == 2.5
    assert kernel.run(until=9, max_events=1) == 1
    assert kernel.now == 3.0
    assert not kernel.step()


def test_the_past_cannot_be_scheduled() -> None:
    """A negative, infinite or undefined delay and a past due time are refused, and change
    nothing."""
    kernel = Kernel(0)
    kernel.run(until=1)
    for delay in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="delay"):
            kernel.schedule(delay, lambda: None)
    with pytest.raises(ValueError, match="before now"):
        kernel.schedule_at_us(999_999, lambda: None)
    assert kernel.pending == 0


def test_an_exception_in_an_event_leaves_the_kernel_usable() -> None:
    """The failing event counts as run. Later events still run."""
    kernel = Kernel(0)
    ran: list[str] = []
    kernel.schedule(1, lambda: 1 / 0)
    kernel.schedule(2, lambda: ran.append("later"))
    with pytest.raises(ZeroDivisionError):
        kernel.run()
    kernel.run()
    assert ran == ["later"]


def test_one_seed_gives_one_history() -> None:
    """A run depends on its seed alone: the same seed gives the same events, another one different
    events."""

    def history(seed: int) -> list[tuple[int, int]]:
        kernel = Kernel(seed)
        log: list[tuple[int, int]] = []

        def branch(depth: int) -> None:
            log.append((kernel.now_us, depth))
            for _ in range(kernel.rng.randrange(3) if depth < 12 else 0):
                kernel.schedule(kernel.rng.random(), lambda: branch(depth + 1))

        for _ in range(20):
            kernel.schedule(kernel.rng.random(), lambda: branch(0))
        kernel.run()
        return log

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_cancelled_timers_do_not_fill_the_queue() -> None:
    """A timer that is set again 100,000 times costs the memory of one."""
    kernel = Kernel(0)
    handle = kernel.schedule(1000, lambda: None)
    for _ in range(100_000):
        kernel.cancel(handle)
        handle = kernel.schedule(1000, lambda: None)
    assert kernel.pending == 1
    assert len(kernel._queue) < 1000
