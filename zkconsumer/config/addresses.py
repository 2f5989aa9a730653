"""Splits ``zookeeper.connect`` and ``bootstrap.servers``. Pure; any thread may call it."""

from __future__ import annotations

import re

DEFAULT_PORT = 2181

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_EXAMPLE = "write e.g. zk1:2181,zk2:2181/kafka"
_COMPONENT = re.compile(r"[!-.0-~]+")


def split_connect(connect: str) -> tuple[str, str]:
    """Return hosts as ``host:port,host:port`` and the chroot, ``""`` if there is none.

    Raises ValueError, whose text names the fault and the fix.
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
    """Return host and port of each server. Raises ValueError, whose text says what to do."""
    servers = []
    for part in map(str.strip, text.split(",")):
        host, colon, port = part.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{part!r} is not host:port; write host:port,host:port")
        servers.append((host.strip("[]"), int(port)))
    return servers
