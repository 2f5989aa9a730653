"""The security keys of a tool, from a file of client properties. Loaded by tools only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from zkconsumer.config.key_table import Source, examine, given_in
from zkconsumer.config.security_keys import KEYS, RENAMED, RULES, SecurityKeys


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(SecurityKeys):
    """The security settings of a tool. Without a file: PLAINTEXT and no login."""

    warnings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, source: Source) -> Self:
        """Create a configuration from a mapping, or a file of client properties
        (``--command-config``).

        Other keys are ignored. An unknown key that resembles a security key causes a warning.
        Raises ConfigError with all faults.
        """
        given = given_in(source)
        near = {name: value for name, value in given.values.items() if is_security(name)}
        return cls(**examine(KEYS, RULES, RENAMED, given._replace(values=near)).arguments())


def is_security(name: str) -> bool:
    """Whether a key is a security key, or resembles one."""
    return name.startswith(
        ("security.", "sasl.", "ssl.", "zookeeper.ssl.", "zookeeper.set.", "zookeeper.clientCnxn")
    ) or name.startswith(("zkconsumer.sasl.", "zkconsumer.zookeeper.", "zkconsumer.listener."))
