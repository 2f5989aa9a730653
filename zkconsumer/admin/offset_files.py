"""The file of the JVM's ``ExportZkOffsets`` and ``ImportZkOffsets``: ``PATH:OFFSET`` lines. Pure.

One line for each offset znode, ``/consumers/G/offsets/T/P:N``, each ended by a newline, in UTF-8,
with paths relative to the chroot (Scala 1.1.1 kafka.tools.ExportZkOffsets). The lines are sorted by
group, topic and number; the JVM writes them in ZooKeeper's order. The JVM's reader stops at the
first empty line and at a group with a colon in its name, and it stores any text as an offset.
This reader refuses the whole file, and reads such a group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from zkconsumer.core.zookeeper.znodes import is_legal_group, is_legal_topic
from zkconsumer.errors import OffsetsFileError

MAX_FILE_BYTES: Final = 256 * 1024 * 1024
MAX_FAULTS: Final = 100
"""The reader stops after this many bad lines."""

_LINE = re.compile(r"/consumers/([^/]+)/offsets/([^/:]+)/([0-9]{1,10}):([0-9]{1,19})")
_INT32: Final = 2**31 - 1
_INT64: Final = 2**63 - 1


class OffsetKey(NamedTuple):
    """One partition of one group. Keys sort in the order of the file's lines."""

    group: str
    topic: str
    partition: int

    @property
    def path(self) -> str:
        """The path of the partition's offset znode."""
        return f"/consumers/{self.group}/offsets/{self.topic}/{self.partition}"


def render(offsets: Mapping[OffsetKey, int]) -> str:
    """Return the text of an offsets file."""
    return "".join([f"{key.path}:{offsets[key]}\n" for key in sorted(offsets)])


def parse(name: str, data: bytes) -> dict[OffsetKey, int]:
    """Return the offsets in a file, in its order. ``name`` is the file's name for messages.

    Raises OffsetsFileError, which names each bad line. A valid line is the path of an offset znode,
    a colon, and a number from 0 to 2^63-1. Each partition may occur only once. A UTF-8 byte order
    mark at the beginning is skipped.
    """
    if len(data) > MAX_FILE_BYTES:
        raise OffsetsFileError([f"{name}: {len(data)} bytes are more than {MAX_FILE_BYTES}"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = data.count(b"\n", 0, error.start) + 1
        raise OffsetsFileError([f"{name}:{bad}: is not UTF-8"]) from None
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    offsets: dict[OffsetKey, int] = {}
    first: dict[OffsetKey, int] = {}
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if len(faults) == MAX_FAULTS:
            faults.append(f"{name}: more lines are bad")
            break
        parts = _LINE.fullmatch(line)
        reason = None if parts else _why(line)
        if parts:
            key, offset = OffsetKey(parts[1], parts[2], int(parts[3])), int(parts[4])
            if not is_legal_group(key.group) or not is_legal_topic(key.topic):
                reason = "group or topic has characters that no such name can have"
            elif key.partition > _INT32 or str(key.partition) != parts[3]:
                reason = f"{parts[3]} is not the number of a partition"
            elif offset > _INT64:
                reason = f"offset {offset} is above {_INT64}"
            elif key in first:
                reason = f"repeats the partition of line {first[key]}"
            else:
                first[key] = number
                offsets[key] = offset
        if reason is not None:
            faults.append(f"{name}:{number}: {reason}")
    if faults:
        raise OffsetsFileError(faults)
    return offsets


def _why(line: str) -> str:
    """Return the fault of a line that is not in this format."""
    shown = ascii(line[:80])
    if not line:
        return "is empty (the JVM's tool would stop here)"
    if line.endswith("\r"):
        return "ends in CR LF: save the file with LF alone"
    path, colon, value = line.partition(":")
    if not colon:
        return f"{shown} has no colon; write /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET"
    if not _LINE.fullmatch(f"{path}:0"):
        return f"{shown} does not begin with /consumers/GROUP/offsets/TOPIC/PARTITION"
    return f"{value[:40]!a} is not an offset from 0 to {_INT64}, without blanks"
