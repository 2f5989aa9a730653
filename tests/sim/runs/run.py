"""A simulated run of either kind of group, by name."""

from __future__ import annotations

from typing import Any

from tests.sim.runs import group_scenario, live_scenario, mixed_scenario, scenario
from tests.sim.runs.result import EVENTS, Result

COORDINATIONS = ("zookeeper", "coordinator", "bootstrap", "consumer", "live", "mixed")
"""Who decides about ownership; ``bootstrap``: ZooKeeper, and the brokers describe the cluster;
``consumer``: the coordinator by KIP-848; ``live``: a group that moves between ZooKeeper and the
coordinator; ``mixed``: members of both protocols of the coordinator, which converts the group."""


def run(
    seed: int,
    *,
    coordination: str,
    events: int = EVENTS,
    legacy: bool = False,
    record: bool = False,
) -> Result[Any]:
    """Simulate a group of whole members. A pure function of its arguments.

    Args:
        seed: determines all random choices.
        coordination: one of ``COORDINATIONS``.
        events: how many faults are injected into members, servers and brokers.
        legacy: in ZooKeeper, one member has exact legacy behaviour; otherwise in one run of five.
        record: keep the history, with a line for each event.
    """
    if coordination == "zookeeper":
        return scenario.run(seed, legacy=legacy or None, events=events, record=record)
    if coordination == "bootstrap":
        return scenario.run(seed, legacy=False, bootstrap=True, events=events, record=record)
    if coordination == "live":
        return live_scenario.run(seed, events=events, record=record)
    if coordination == "mixed":
        return mixed_scenario.run(seed, events=events, record=record)
    by_broker = coordination == "consumer"
    return group_scenario.run(seed, events=events, record=record, consumer=by_broker)


__all__ = ["COORDINATIONS", "run"]
