"""Configurations of members of groups on the brokers, for tests that name what matters to them."""

from __future__ import annotations

from typing import Any

from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.groups.assignors.strategies import RangeStrategy
from zkconsumer.core.groups.spec import ClassicSpec, Kip848Spec


def classic_spec(**changes: Any) -> ClassicSpec:
    """A member of the classic protocol with the keys in ``changes``."""
    return ClassicSpec(**{"strategies": (RangeStrategy(),)} | _common() | changes)


def kip848_spec(**changes: Any) -> Kip848Spec:
    """A KIP-848 member with the keys in ``changes``."""
    own = {"member_id": "m", "assignor": None, "rack": None}
    return Kip848Spec(**own | _common() | changes)


def _common() -> dict[str, Any]:
    return {
        **{"group": "g", "consumer_id": "c", "instance_id": None, "exclude_internal": True},
        **{"subscription": Subscription(Pattern.STATIC, {"t": 1}), "auto_commit": True},
        **{"session_timeout": 30.0, "rebalance_timeout": 30.0, "heartbeat_interval": 3.0},
        **{"backoff": 0.1, "reread": 30.0},
    }


__all__ = ["classic_spec", "kip848_spec"]
