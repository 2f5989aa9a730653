"""Scripts that read and write a group's mode. Any thread may carry them out."""

from __future__ import annotations

from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, decode_mode, encode_mode
from zkconsumer.core.zookeeper.ops import Code, Create, Ok, SetData
from zkconsumer.core.zookeeper.scripts.common import (
    Script,
    attempt,
    ensure_path,
    read_many,
)


def read_mode(paths: LivePaths) -> Script[tuple[Mode, int]]:
    """Return the mode and its version: ``ZOOKEEPER`` and -1 in a group that has no mode znode.

    Raises ZnodeFormatError.
    """
    (node,) = yield from read_many([paths.mode])
    if node is None:
        return Mode.ZOOKEEPER, -1
    return decode_mode(paths.mode, node.data), node.stat.version


def write_mode(paths: LivePaths, target: Mode, version: int) -> Script[bool]:
    """Write the mode if its version is still ``version`` (-1: there is no znode).

    Return whether it was written. If not, another operator has written one. After a lost answer the
    znode decides. Another operator who writes the same mode at the same moment cannot be
    distinguished, and need not be. Raises ZnodeFormatError, Refused.
    """
    data = encode_mode(target)
    while True:
        if version < 0:
            yield from ensure_path(set(), paths.mode.rpartition("/")[0])
            reply = yield from attempt(Create(paths.mode, data))
        else:
            reply = yield from attempt(SetData(paths.mode, data, version))
        if isinstance(reply, Ok):
            return True
        if reply.code is not Code.CONNECTION_LOSS:
            return False
        current = yield from read_mode(paths)
        if current == (target, version + 1):
            return True
        if current[1] != version:
            return False
