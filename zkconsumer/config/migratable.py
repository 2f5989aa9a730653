"""The configuration of a member that can change between ZooKeeper and the coordinator.

One mapping or file has the keys of both sides; each side uses those that it knows. Immutable; any
thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.config.coordinator_keys import (
    KEYS as COORDINATOR_KEYS,
    CoordinatorConfig,
    translated,
)
from zkconsumer.config.key_table import Given, Source, given_in
from zkconsumer.config.keys import KEYS
from zkconsumer.errors import ConfigError

STRATEGIES_KEY: Final = "zkconsumer.live.strategies"
"""The key of the group's strategies in Kafka, in place of ``partition.assignment.strategy``."""
_STRATEGIES: Final = "partition.assignment.strategy"
_NOT_BOTH: Final = frozenset({_STRATEGIES, "rebalance.backoff.ms"})
"""Keys with a different meaning on each side. Their value applies to ZooKeeper."""
_REFUSED: Final[Mapping[str, str]] = {
    "offsets.storage": "the group's mode says where offsets are stored",
    "dual.commit.enabled": "the group's mode says where offsets are stored",
    "zkconsumer.profile": "the scala profile cannot change to the coordinator",
    "zookeeper.set.acl": "members recognize each other by an identity that is not secret",
    "group.instance.id": "a static member cannot change to ZooKeeper",
}
_HARMLESS: Final[Mapping[str, str]] = {
    "zkconsumer.profile": "default",
    "zookeeper.set.acl": "false",
}


@dataclass(frozen=True, kw_only=True)
class MigratableConfig:
    """The configurations of a migratable member for ZooKeeper and for the coordinator.

    Create one with ``parse``.
    """

    zookeeper: ConsumerConfig
    coordinator: CoordinatorConfig

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about accepted settings, one line each."""
        return tuple(dict.fromkeys(self.zookeeper.warnings + self.coordinator.warnings))

    @classmethod
    def parse(cls, config: MigratableConfig | Source) -> MigratableConfig:
        """Create a configuration from another one, a mapping, or the path of a ``.properties``
        file.

        Raises ConfigError with all faults.
        """
        return config if isinstance(config, MigratableConfig) else _split(given_in(config))


def _split(source: Given) -> MigratableConfig:
    given = translated(source)
    present = dict(given.values)
    faults = [
        f"{given.place(name)}{name}: {why}: leave the key out"
        for name, why in _REFUSED.items()
        if name in present and str(present[name]).strip().lower() != _HARMLESS.get(name)
    ]
    strategies = present.pop(STRATEGIES_KEY, "range")
    mine = {row.name for row in KEYS}
    theirs = {row.name for row in COORDINATOR_KEYS}
    zookeeper = {k: v for k, v in present.items() if k in mine or k not in theirs}
    if "zkconsumer.brokers" not in present:
        zookeeper.pop("bootstrap.servers", None)
    coordinator = {
        k: v
        for k, v in present.items()
        if k in theirs and k not in _NOT_BOTH and not k.startswith(("zookeeper.", "zkconsumer.z"))
    } | {_STRATEGIES: strategies}
    coordinator.pop("zkconsumer.brokers", None)

    def place(name: str) -> str:
        return given.place(STRATEGIES_KEY if name == _STRATEGIES else name)

    first = second = None
    try:
        first = ConsumerConfig.parse(given._replace(values=zookeeper))
    except ConfigError as error:
        faults += error.faults
    try:
        second = CoordinatorConfig.parse(given._replace(values=coordinator, place=place))
    except ConfigError as error:
        faults += [fault.replace(_STRATEGIES, STRATEGIES_KEY) for fault in error.faults]
    if first is None or second is None or faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return MigratableConfig(zookeeper=first, coordinator=second)
