"""Values of keys: secrets, login modules, and the addresses of servers. Pure; any thread."""

from __future__ import annotations

import re
from typing import Final, NoReturn

DEFAULT_PORT = 2181

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_EXAMPLE = "write e.g. zk1:2181,zk2:2181/kafka"
_COMPONENT = re.compile(r"[!-.0-~]+")

PLAIN: Final = "PlainLoginModule"
SCRAM: Final = "ScramLoginModule"
OAUTH: Final = "OAuthBearerLoginModule"
DIGEST: Final = "DigestLoginModule"
KERBEROS: Final = "Krb5LoginModule"

HIDDEN: Final = "[hidden]"
"""The text shown instead of a secret wherever a configuration is printed, as in Kafka."""


class Password:
    """A secret. Only ``value`` returns the text, and it cannot be pickled.

    Source: org.apache.kafka.common.config.types.Password, whose ``toString`` is ``[hidden]`` too.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @property
    def value(self) -> str:
        """The secret itself."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Password, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be serialized: pass the path of the file that contains it")


def split_connect(connect: str) -> tuple[str, str]:
    """Return hosts as ``host:port,host:port`` and the chroot, ``""`` if there is none.

    Raises ValueError. Its text names the fault and the fix.
    """
    servers, slash, rest = connect.partition("/")
    if "," in rest:
        raise ValueError("write the chroot once, after the last host: h1:2181,h2:2181/chroot")
    hosts: list[str] = []
    for server in filter(None, (part.strip() for part in servers.split(","))):
        parts = _HOST.fullmatch(server)
        if parts is None:
            raise ValueError(f"{server[:80]!r} is not host:port; {_EXAMPLE}")
        port = int(parts[2]) if parts[2] else DEFAULT_PORT
        if not 1 <= port <= 65535:
            raise ValueError(f"port {port} of {parts[1]} is not between 1 and 65535")
        hosts.append(f"{parts[1]}:{port}")
    if not hosts:
        raise ValueError(f"names no host; {_EXAMPLE}")
    if not rest:
        return ",".join(hosts), ""
    for component in rest.split("/"):
        if _COMPONENT.fullmatch(component) is None or component in (".", ".."):
            raise ValueError(
                f"chroot {slash + rest!r} is not a ZooKeeper path: no empty parts, no blanks, no "
                "'.' or '..', no '/' at the end"
            )
    return ",".join(hosts), f"/{rest}"


def split_servers(text: str) -> list[tuple[str, int]]:
    """Return host and port of each server. Raises ValueError. Its text says what to do."""
    servers = []
    for part in map(str.strip, text.split(",")):
        host, colon, port = part.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{part!r} is not host:port; write host:port,host:port")
        servers.append((host.strip("[]"), int(port)))
    return servers
