"""The configuration of a member that can change between ZooKeeper and the coordinator.

One mapping or file with the keys of both: each side takes those that it knows. Immutable; any
thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Final

from zkconsumer.config.consumer import ConsumerConfig
from zkconsumer.config.coordinator import (
    ALIASES,
    KEYS as COORDINATOR_KEYS,
    VALUES,
    CoordinatorConfig,
)
from zkconsumer.config.keys import KEYS
from zkconsumer.config.properties import read_properties
from zkconsumer.errors import ConfigError

STRATEGIES_KEY: Final = "zkconsumer.live.strategies"
"""The strategy that is offered to plain consumers, in place of
``partition.assignment.strategy``."""
_NOT_BOTH: Final = frozenset({"partition.assignment.strategy", "rebalance.backoff.ms"})
"""Keys that mean something else on each side; the value is ZooKeeper's."""
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
    """The configurations of both sides; make one with ``parse``."""

    zookeeper: ConsumerConfig
    coordinator: CoordinatorConfig

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about accepted settings, one line each."""
        return tuple(dict.fromkeys(self.zookeeper.warnings + self.coordinator.warnings))

    @classmethod
    def parse(
        cls, config: MigratableConfig | Mapping[str, object] | str | PathLike[str]
    ) -> MigratableConfig:
        """Make a configuration from another one, a mapping, or the path of a ``.properties`` file.

        Raises ConfigError with all faults.
        """
        if isinstance(config, MigratableConfig):
            return config
        if not isinstance(config, Mapping):
            entries, malformed = read_properties(config)
            if malformed:
                raise ConfigError(malformed)
            config = {name: value for name, value, _ in entries}
        return _split({name: value for name, value in config.items() if value is not None})


def _split(given: Mapping[str, object]) -> MigratableConfig:
    faults = [
        f"{name}: {why}: leave the key out"
        for name, why in _REFUSED.items()
        if name in given and str(given[name]).strip().lower() != _HARMLESS.get(name)
    ]
    present = dict(given)
    strategies = present.pop(STRATEGIES_KEY, "range")
    for alias, name in ALIASES.items():
        if alias in present and not alias.startswith("zookeeper."):
            present.setdefault(name, present.pop(alias))
    for name, words in VALUES.items():
        if (old := present.get(name)) in words:
            present[name] = words[str(old)]
    mine = {row.name for row in KEYS}
    theirs = {row.name for row in COORDINATOR_KEYS}
    zookeeper = {k: v for k, v in present.items() if k in mine or k not in theirs}
    if "zkconsumer.brokers" not in present:
        zookeeper.pop("bootstrap.servers", None)
    coordinator = {
        k: v
        for k, v in present.items()
        if k in theirs and k not in _NOT_BOTH and not k.startswith(("zookeeper.", "zkconsumer.z"))
    } | {"partition.assignment.strategy": strategies}
    coordinator.pop("zkconsumer.brokers", None)
    parsed: list[ConsumerConfig | CoordinatorConfig] = []
    for kind, values in ((ConsumerConfig, zookeeper), (CoordinatorConfig, coordinator)):
        try:
            parsed.append(kind.parse(values))
        except ConfigError as error:
            faults += [
                fault.replace("partition.assignment.strategy", STRATEGIES_KEY)
                if kind is CoordinatorConfig
                else fault
                for fault in error.faults
            ]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    first, second = parsed
    assert isinstance(first, ConsumerConfig)
    assert isinstance(second, CoordinatorConfig)
    return MigratableConfig(zookeeper=first, coordinator=second)
