"""The invariants of the TLA+ specification of KIP-848, in simulated groups of real members.

They are those of ``consumer_group_protocol_kip_848_v2.tla`` in Vanlightly/kafka-tlaplus (GitHub),
checked after each request to the coordinator, except ``TypeOK``, which types replace.
``EventuallyConverges`` is the rule ``stable_at_rest`` of every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

from tests.sim.runs.run import run
from tests.support.rewriting import rewrite
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.kip848_commands import MemberHeartbeat
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator, MemberSeat, SeatState

Handle = Callable[[ConsumerGroupCoordinator, Any, Any, Callable[[Any], object]], None]


class Invariants:
    """Checks a coordinator after each request. ``broken`` has the names of violated invariants."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.requests = 0
        self._epochs: dict[int, tuple[MemberSeat, int]] = {}
        self._sent: dict[str, int] = {}

    def wrap(self, handle: Handle) -> Handle:
        """Return the handler with checks."""

        def checked(
            group: ConsumerGroupCoordinator, command: Any, spec: Any, reply: Callable[[Any], object]
        ) -> None:
            if isinstance(command, MemberHeartbeat):
                self.broken.update(self._of_member(group, command))
            handle(group, command, spec, reply)
            self.requests += 1
            if not group.loading:
                self.broken.update(self._of_group(group))

        return checked

    def _of_member(
        self, group: ConsumerGroupCoordinator, command: MemberHeartbeat
    ) -> Iterator[str]:
        name, before = command.member_id, self._sent.get(command.member_id, 0)
        self._sent[name] = command.epoch
        if 0 < command.epoch < before:
            yield "ClientSideMemberEpochIsMonotonic"
        seat = group.seats.get(name)
        if seat is None or command.epoch != seat.epoch:
            return  # it is no current member
        owned = {(topic, n) for topic, numbers in (command.owned or {}).items() for n in numbers}
        for other, one in group.seats.items():
            theirs = {(topic, n) for topic, ns in group._by_id(one.assigned).items() for n in ns}
            if other != name and owned & theirs:
                yield "NoDoubleClientAssignment"

    def _of_group(self, group: ConsumerGroupCoordinator) -> Iterator[str]:
        target = group._target
        if any(one & other for one, other in combinations(target.values(), 2)):
            yield "LegalTargetAssignment"
        if group.kernel.now == group._target_at and target:
            wanted = {
                (topic, number)
                for seat in group.seats.values()
                for topic in group._wanted(seat)
                for number in range(group._topics().get(topic, 0))
            }
            if wanted - {tuple(tp) for given in target.values() for tp in given}:
                yield "LegalTargetAssignment"
        seats = {name: seat for name, seat in group.seats.items() if seat.epoch >= 0}
        for name, seat in seats.items():
            others = frozenset().union(*(t for other, t in target.items() if other != name))
            if seat.epoch == group._target_epoch and seat.assigned & others:
                yield "ValidMemberEpoch"
            if any(seat.since.get(tp, 0) <= 0 for tp in seat.assigned):
                yield "ValidPartitionEpoch"
            known, epoch = self._epochs.get(id(seat), (seat, 0))
            if known is seat and seat.epoch < epoch:
                yield "GcSideMemberEpochIsMonotonic"
            self._epochs[id(seat)] = seat, seat.epoch
        stable = all(
            seat.state is SeatState.STABLE and seat.epoch == group.generation
            for seat in seats.values()
        )
        if stable and any(
            seat.revoking or seat.assigned != target.get(name, frozenset())
            for name, seat in seats.items()
        ):
            yield "ValidStableGroupState"


@pytest.fixture
def invariants(monkeypatch: pytest.MonkeyPatch) -> Invariants:
    """Checks every coordinator of the runs."""
    found = Invariants()
    handle = ConsumerGroupCoordinator.handle
    monkeypatch.setattr(ConsumerGroupCoordinator, "handle", found.wrap(handle))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_no_run_breaks_an_invariant(invariants: Invariants, seed: int) -> None:
    """Members join, leave, die, and lose requests and answers; brokers take over."""
    assert not run(seed, coordination="consumer", events=60).violations
    assert invariants.requests > 100
    assert invariants.broken == set()


@pytest.mark.parametrize(
    ("name", "function", "texts"),
    [
        (
            "LegalTargetAssignment",
            ConsumerGroupCoordinator._make_target,
            ("start = end", "start = end - 1"),
        ),
        (
            "ClientSideMemberEpochIsMonotonic",
            Kip848Machine._accepted,
            ("self.generation = event.epoch", "self.generation = event.epoch % 5"),
        ),
        (
            "NoDoubleClientAssignment",
            ConsumerGroupCoordinator._reconcile,
            ("*(other.assigned | other.revoking for other in others)", "()"),
        ),
        (
            "ValidMemberEpoch",
            ConsumerGroupCoordinator._reconcile,
            ("kept = seat.assigned & target", "kept = seat.assigned"),
        ),
        (
            "ValidStableGroupState",
            ConsumerGroupCoordinator._reconcile,
            ("seat.revoking = kept | fresh, frozenset()", "seat.revoking = kept, frozenset()"),
        ),
        (
            "ValidPartitionEpoch",
            ConsumerGroupCoordinator._reconcile,
            ("since.get(tp, seat.epoch)", "since.get(tp, 0)"),
        ),
        (
            "GcSideMemberEpochIsMonotonic",
            ConsumerGroupCoordinator._reconcile,
            ("seat.epoch, self._target_epoch\n", "seat.epoch, self._target_epoch % 5\n"),
        ),
    ],
)
def test_a_broken_coordinator_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
    invariants: Invariants,
    name: str,
    function: Callable[..., Any],
    texts: tuple[str, str],
) -> None:
    """One of its rules is another, or a member's."""
    rewrite(monkeypatch, function, *texts)
    for seed in range(6):
        run(seed, coordination="consumer", events=60)
        if name in invariants.broken:
            return
    pytest.fail(f"only these were broken: {invariants.broken}")
