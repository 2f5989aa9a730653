"""The configuration object: the table's values, checked, from a mapping or a properties file.

Immutable; any thread may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, NamedTuple

from zkconsumer.config.addresses import split_connect
from zkconsumer.config.keys import KEYS, ConsumerKeys
from zkconsumer.config.parse import parse
from zkconsumer.config.properties import read_properties
from zkconsumer.config.rules import RENAMED, RULES, check_rules
from zkconsumer.config.security import RENAMED as SECURITY_NAMES, RULES as SECURITY_RULES
from zkconsumer.errors import ConfigError


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
        return _need(examine_mapping(mapping, strict))

    @classmethod
    def from_properties(cls, path: str | PathLike[str], strict: bool = False) -> ConsumerConfig:
        """Create a configuration from a Java ``.properties`` file.

        Raises ConfigError if the file cannot be read, or with all faults, each with file and line.
        If a key occurs twice, the last value counts, as in Java, and a warning is added.
        """
        return _need(examine_properties(path, strict))

    @classmethod
    def parse(
        cls,
        config: ConsumerConfig | Mapping[str, object] | str | PathLike[str],
        strict: bool = False,
    ) -> ConsumerConfig:
        """Return the given configuration, or create one from a mapping or the path of a file."""
        if isinstance(config, ConsumerConfig):
            return config
        if isinstance(config, Mapping):
            return cls.from_mapping(config, strict)
        return cls.from_properties(config, strict)


class Examination(NamedTuple):
    """Faults and warnings of a configuration; ``config`` is None if there are faults."""

    config: ConsumerConfig | None
    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def examine_mapping(mapping: Mapping[str, object], strict: bool = False) -> Examination:
    """Check keys and values without raising. With ``strict`` unknown keys are faults."""
    return _examine(mapping, strict, lambda _: "", ())


def examine_properties(
    path: str | PathLike[str],
    strict: bool = False,
    overrides: Mapping[str, object] | None = None,
) -> Examination:
    """Check a Java ``.properties`` file. Raises ConfigError only if the file cannot be read.

    ``overrides`` are keys and values that take precedence over the file's.
    """
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    repeated: list[str] = []
    name = fspath(path)
    entries, malformed = read_properties(path)
    for key_, value, line in entries:
        if key_ in lines:
            repeated.append(f"{name}:{line}: {key_} replaces its value of line {lines[key_]}")
        values[key_], lines[key_] = value, line
    for key_, override in (overrides or {}).items():
        values[key_] = override
        lines.pop(key_, None)

    def place(key_: str) -> str:
        if key_ in lines:
            return f"{name}:{lines[key_]}: "
        return "" if overrides and key_ in overrides else f"{name}: "

    found = _examine(values, strict, place, tuple(repeated))
    if malformed:
        return Examination(None, (*malformed, *found.faults), found.warnings)
    return found


def _examine(
    given: Mapping[str, object],
    strict: bool,
    place: Callable[[str], str],
    notes: tuple[str, ...],
) -> Examination:
    parsed = parse(KEYS, given, place=place, renamed=RENAMED | SECURITY_NAMES)
    faults, warnings = list(parsed.faults), [*notes, *parsed.warnings]
    (faults if strict else warnings).extend(parsed.unknown)
    broken, odd = check_rules(RULES + SECURITY_RULES, parsed, place)
    faults += broken
    warnings += odd
    if faults:
        return Examination(None, tuple(faults), tuple(warnings))
    values: dict[str, Any] = dict(parsed.values)
    return Examination(ConsumerConfig(**values, warnings=tuple(warnings)), (), tuple(warnings))


def _need(examined: Examination) -> ConsumerConfig:
    if examined.config is None:
        raise ConfigError(examined.faults)
    return examined.config
