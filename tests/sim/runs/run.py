"""The engine: plays one scenario of any kind from a seed, and judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tests.sim.runs.broker_scenario import BrokerGroup, MixedGroup
from tests.sim.runs.fetch_scenario import PlaneAlone
from tests.sim.runs.live_scenario import LiveGroup
from tests.sim.runs.mirror_scenario import MirroredGroup
from tests.sim.runs.result import EVENTS, Result
from tests.sim.runs.scenario import Scenario
from tests.sim.runs.zookeeper_scenario import ZooKeeperGroup

KINDS: Final[Mapping[str, Callable[..., Scenario[Any]]]] = {
    "zookeeper": ZooKeeperGroup,
    "coordinator": BrokerGroup,
    "bootstrap": partial(ZooKeeperGroup, legacy=False, bootstrap=True),
    "consumer": partial(BrokerGroup, consumer=True),
    "live": LiveGroup,
    "mixed": MixedGroup,
    "mirror": MirroredGroup,
    "restored": partial(ZooKeeperGroup, legacy=False, restores=True),
    "live-restored": partial(LiveGroup, restores=True),
    "fetch": PlaneAlone,
    "fetch-committed": partial(PlaneAlone, committed=True),
}
"""What decides about ownership. ``bootstrap``: ZooKeeper, and the brokers describe the cluster;
``consumer``: the coordinator by KIP-848; ``live``: a group that moves between ZooKeeper and the
coordinator; ``mixed``: members of both protocols of the coordinator, which converts the group;
``restored`` and ``live-restored``: ZooKeeper's servers lose transactions;
``fetch``: no group, but one data plane, whose threads are interleaved more finely;
``fetch-committed``: the same on logs with transactions, with ``read_committed``."""
COORDINATIONS: Final = tuple(kind for kind in KINDS if not kind.startswith("fetch"))
"""Kinds of groups."""


def run(
    seed: int,
    *,
    coordination: str,
    events: int = EVENTS,
    legacy: bool = False,
    record: bool = False,
    **options: Any,
) -> Result[Any]:
    """Simulate a group of whole members. A pure function of its arguments.

    All faults end, and the group must come to rest. Then all records must be delivered and
    committed.

    Args:
        seed: determines all random choices.
        coordination: one of ``KINDS``.
        events: how many faults are injected into members, servers and brokers.
        legacy: in ZooKeeper, one member has exact legacy behaviour; otherwise in one run of five.
        record: keep the history, with a line for each event.
        options: for the class in ``KINDS``.
    """
    if legacy:
        options["legacy"] = True
    scenario = KINDS[coordination](seed, record, **options)
    violations = scenario.play(events)
    return Result(
        coordination,
        seed,
        events,
        legacy,
        violations,
        scenario.counts,
        scenario.deliveries,
        scenario.history,
        scenario,
    )


__all__ = ["COORDINATIONS", "KINDS", "run"]
