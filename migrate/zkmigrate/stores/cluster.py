"""Addresses of a cluster's servers, and a check of the cluster's id."""

from __future__ import annotations

from typing import NamedTuple

from zkconsumer.config.tool_security import SecurityConfig
from zkmigrate.errors import MigrationError
from zkmigrate.stores.pace import Pace


class Servers(NamedTuple):
    """The addresses of the servers, and the options for using them.

    Args:
        zookeeper: ``host:port/chroot``.
        timeout: seconds to wait for ZooKeeper, and for each answer of a broker.
        coordinator_timeout: seconds to wait for a coordinator that is moving, is loading its data
            or does not answer.
        security: how to encrypt and log in; None for neither.
        bootstrap: brokers as ``host:port,host:port``. Needed if the cluster no longer uses this
            ZooKeeper (KRaft). See ``ClusterZk``.
        expect: the cluster id that the operator expects, if any. It is checked. It also confirms
            ``bootstrap`` brokers whose cluster id is not the one in ZooKeeper.
        pace: the limit for requests to all servers.
    """

    zookeeper: str
    timeout: float = 30.0
    coordinator_timeout: float = 60.0
    security: SecurityConfig | None = None
    bootstrap: str | None = None
    expect: str | None = None
    pace: Pace = Pace()


def check_expected(expected: str | None, found: str | None, where: str) -> None:
    """Check the id that the operator expects, if any. Raises MigrationError."""
    if expected is not None and found != expected:
        this = "this cluster's id is not known" if found is None else f"this is the cluster {found}"
        raise MigrationError(
            f"{where}: {this}, but --expect-cluster is {expected}: correct --zookeeper or "
            "--bootstrap-server"
        )
