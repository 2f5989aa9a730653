"""The script that reads a group's mode. Any thread may carry it out."""

from __future__ import annotations

from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, decode_mode
from zkconsumer.core.zookeeper.scripts.common import Script, read_many


def read_mode(paths: LivePaths, watch: bool = False) -> Script[tuple[Mode, int]]:
    """Return the mode and its version: ``ZOOKEEPER`` and -1 in a group that has no mode znode.

    Raises ZnodeFormatError.
    """
    (node,) = yield from read_many([paths.mode], watch)
    if node is None:
        return Mode.ZOOKEEPER, -1
    return decode_mode(paths.mode, node.data), node.stat.version
