"""The judge of ``tests.bench.mixed_groups`` sees what must not happen in a group."""

from __future__ import annotations

import pytest

from tests.bench.mixed_groups import Delivery, judge

SENT = [(0, offset) for offset in range(4)]
ONE, TWO = 0, 1
NEVER = [0.0, 0.0]


def read(member: int, *offsets: int, at: float = 100.0, every: float = 0.1) -> list[Delivery]:
    """Messages of partition 0 that a member delivers."""
    return [Delivery(at + every * n, member, 0, offset) for n, offset in enumerate(offsets)]


def test_a_partition_that_changes_its_member_in_order_is_good() -> None:
    """The second member continues where the first one has stopped."""
    found = judge(read(ONE, 0, 1) + read(TWO, 2, 3, at=101.0), SENT, NEVER, 100.0, 101.2)
    assert found.good
    assert (found.sent, found.lost, found.repeated) == (4, 0, 0)
    assert found.silence == found.partition_silence == pytest.approx(0.9)


def test_a_lost_message_is_seen() -> None:
    """A message that was sent and not delivered."""
    found = judge(read(ONE, 0, 1, 3), SENT, NEVER, 100.0, 101.0)
    assert (found.lost, found.good) == (1, False)


@pytest.mark.parametrize(("killed", "good"), [(100.5, True), (0.0, False), (110.0, False)])
def test_only_a_kill_explains_a_repeat(killed: float, good: bool) -> None:
    """Messages of a member that was killed soon after it delivered them are delivered again."""
    twice = read(ONE, 0, 1, 2) + read(TWO, 1, 2, 3, at=106.0)
    found = judge(twice, SENT, [killed, 0.0], 100.0, 107.0)
    assert (found.repeated, found.unexplained == 0, found.good) == (2, good, good)


def test_two_members_that_deliver_at_the_same_time_are_seen() -> None:
    """One member delivers an earlier message after the other one has delivered a later one."""
    both = sorted(read(ONE, 0, 2) + read(TWO, 3, at=100.05), key=lambda one: one.at)
    found = judge([*both, *read(ONE, 1, at=100.3)], SENT, NEVER, 100.0, 101.0)
    assert (found.two_owners, found.lost, found.good) == (2, 0, False)


def test_a_killed_member_is_no_second_owner() -> None:
    """What it had delivered is delivered again by its successor."""
    found = judge(read(ONE, 0, 1) + read(TWO, 0, 1, at=103.0), SENT[:2], [100.2, 0.0], 100.0, 104.0)
    assert (found.two_owners, found.unexplained) == (0, 0)
    assert found.oldest_repeat == pytest.approx(0.2)
