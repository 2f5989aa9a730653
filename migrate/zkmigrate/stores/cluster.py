"""Which cluster this is: its id, as a script, and a check of it."""

from __future__ import annotations

from zkconsumer.admin.reads import json_object
from zkconsumer.core.zookeeper.cluster_view import CLUSTER_ID
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.errors import MigrationError


def read_id() -> Script[str | None]:
    """Return the cluster's id; brokers before 0.10.1 have none."""
    (node,) = yield from read_many([CLUSTER_ID])
    if node is None:
        return None
    try:
        return str(json_object(CLUSTER_ID, node.data)["id"])
    except (ZnodeFormatError, KeyError):
        return None


def check_expected(expected: str | None, found: str | None, where: str) -> None:
    """Check the id that the operator expects, if any. Raises MigrationError."""
    if expected is not None and found != expected:
        this = "this cluster's id is not known" if found is None else f"this is the cluster {found}"
        raise MigrationError(
            f"{where}: {this}, and --expect-cluster is {expected}: correct --zookeeper or "
            "--bootstrap-server"
        )
