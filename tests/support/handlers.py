"""Replaces a handler of a machine for a test."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer.core.common.machine import Handler


def replace_handler(
    patch: pytest.MonkeyPatch, machine: type[Any], name: str, handler: Handler
) -> None:
    """Replace the method ``name`` of ``machine``, also in the tables that name it.

    ``machine`` may be a base class. Subclasses whose tables name the method call the new one.
    """
    right = getattr(machine, name)
    patch.setattr(machine, name, handler)
    waiting: list[type[Any]] = [machine]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        tables = [getattr(kind, "ANYWHERE", {}), *getattr(kind, "ANSWERS", {}).values()]
        for table in tables:
            for event in [event for event, named in table.items() if named is right]:
                patch.setitem(table, event, handler)
