"""Builds that are broken on purpose, to test that the judge notices.

Only the member process imports this, if ``SOAK_BROKEN`` names a build. The product has no such
switch.
"""

from __future__ import annotations

from typing import Any


def unfenced() -> None:
    """Claims and commits as the JVM does (no fencing), and without a lease that stops delivery."""
    from zkconsumer.core.zookeeper.scripts import legacy, ownership
    from zkconsumer.runtime.gate import DeliveryGate

    ownership.claim = legacy.claim
    ownership.commit = legacy.commit
    ownership.release = legacy.release
    made = DeliveryGate.__init__

    def always_open(self: DeliveryGate, **options: Any) -> None:
        made(self, **options | {"always_open": True})

    DeliveryGate.__init__ = always_open  # type: ignore[method-assign]


def unwatched() -> None:
    """kazoo's connection without our changes: no limit for a silent server, and no restarted
    thread."""
    import math

    from kazoo.protocol.connection import ConnectionHandler

    from zkconsumer.zk.connection import Connection

    Connection.patience = lambda self: math.inf
    for name in ("zk_loop", "_read_response", "_connect_attempt", "_expand_client_hosts"):
        setattr(Connection, name, getattr(ConnectionHandler, name))


BUILDS = {"unfenced": unfenced, "unwatched": unwatched}
