"""The configuration object: the table's values, checked, from a mapping or a properties file.

Immutable; any thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

from zkconsumer.config.examine import Examined, Source, examine, given_in
from zkconsumer.config.keys import KEYS, ConsumerKeys
from zkconsumer.config.rules import RENAMED, RULES
from zkconsumer.config.security_keys import RENAMED as SECURITY_NAMES, RULES as SECURITY_RULES
from zkconsumer.config.values import split_connect


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConsumerKeys):
    """The configuration of one consumer. Times are in milliseconds, sizes in bytes.

    Create one with `from_mapping`, `from_properties` or `parse`, which check values and fill in
    defaults. The name of an attribute is its key with ``_`` for ``.`` and without the prefix
    ``zkconsumer.``. ``warnings`` lists values that are accepted but probably wrong, one line each.
    """

    warnings: tuple[str, ...]

    @property
    def zookeeper_hosts(self) -> str:
        """The servers of ``zookeeper.connect`` as ``host:port,host:port``."""
        return split_connect(self.zookeeper_connect)[0]

    @property
    def zookeeper_chroot(self) -> str:
        """The chroot of ``zookeeper.connect`` with its leading ``/``; empty without a chroot."""
        return split_connect(self.zookeeper_connect)[1]

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], strict: bool = False) -> ConsumerConfig:
        """Create a configuration from a mapping. Values may be texts or already have their type.

        A value of None counts as not given. Raises ConfigError with all faults; with ``strict``
        unknown keys are faults too.
        """
        return cls.parse(mapping, strict)

    @classmethod
    def from_properties(cls, path: str | PathLike[str], strict: bool = False) -> ConsumerConfig:
        """Create a configuration from a Java ``.properties`` file.

        Raises ConfigError if the file cannot be read, or with all faults, each with file and line.
        If a key occurs twice, the last value counts, as in Java, and a warning is added.
        """
        return cls.parse(path, strict)

    @classmethod
    def parse(cls, config: ConsumerConfig | Source, strict: bool = False) -> ConsumerConfig:
        """Return the given configuration, or create one from a mapping or the path of a file."""
        if isinstance(config, ConsumerConfig):
            return config
        return cls(**examine_consumer(config, strict).arguments())


def examine_consumer(source: Source, strict: bool = False) -> Examined:
    """Check keys and values. With ``strict`` unknown keys are faults.

    Raises ConfigError only if a file cannot be read.
    """
    rules, renamed = RULES + SECURITY_RULES, RENAMED | SECURITY_NAMES
    return examine(KEYS, rules, renamed, given_in(source), strict)
