"""Znodes of a group in a live move: paths and exact contents. Pure.

``/consumers/GROUP/live/mode``: the group's mode, persistent. It is written only if its version has
not changed; its version is the number of the mode. A group without it is in ZooKeeper.
``/consumers/GROUP/live/members/MEMBER``: a migratable member, ephemeral, with the number of the
mode that it has acknowledged. Legacy consumers ignore both.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final, NoReturn

from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError

FORMAT: Final = 1
MAX_BYTES: Final = 64 * 1024
_INT32: Final = 2**31 - 1
LIVE_USER: Final = "zkconsumer-live:member"
"""The digest user with which migratable members log in to ZooKeeper. It is not a secret. It only
distinguishes them from legacy consumers, which do not use it, while the group's ``ids`` are
locked."""
LIVE_CREDENTIAL: Final = "zkconsumer-live:" + b64encode(sha1(LIVE_USER.encode()).digest()).decode()
"""The user as an entry of an ACL, with ZooKeeper's scheme ``digest``."""


@dataclass(frozen=True, slots=True)
class LivePaths:
    """The paths of a group's live move. ``of`` raises ConfigError for a name that cannot be in a
    path."""

    group: GroupPaths
    mode: str
    members: str

    @staticmethod
    def of(group: str) -> LivePaths:
        """Return the paths of a group."""
        paths = GroupPaths(group)
        return LivePaths(paths, f"{paths.root}/live/mode", f"{paths.root}/live/members")

    def member(self, consumer_id: str) -> str:
        """Return the path of a member's znode. Raises ZnodeFormatError."""
        name = self.group.member(consumer_id).rpartition("/")[2]
        return f"{self.members}/{name}"


def encode_mode(mode: Mode) -> bytes:
    """Return the content of the mode znode."""
    return _text({"version": FORMAT, "mode": mode.value})


def decode_mode(path: str, data: bytes) -> Mode:
    """Return the mode. Raises ZnodeFormatError, because a group's mode is never guessed."""
    name = _object(path, data).get("mode")
    try:
        return Mode(name)
    except ValueError:
        _refuse(path, "names no mode that this version knows")


def encode_member(acknowledged: int | None, member_id: str = "") -> bytes:
    """Return the content of a member's znode.

    Args:
        acknowledged: the version of the mode that the member has acknowledged, if any.
        member_id: the id on the coordinator, for information only.
    """
    if acknowledged is not None and not 0 <= acknowledged <= _INT32:
        raise ValueError(f"{acknowledged} is not a version of a znode")
    document = {"version": FORMAT, "acknowledged": acknowledged}
    return _text({**document, "member_id": member_id} if member_id else document)


def member_id_of(data: bytes) -> str:
    """Return the coordinator's member id in a member's znode, or an empty string."""
    try:
        member_id = json.loads(data.decode())["member_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return member_id if isinstance(member_id, str) else ""


def decode_member(path: str, data: bytes) -> int | None:
    """Return the version of the mode that a member has acknowledged. Raises ZnodeFormatError."""
    number = _object(path, data).get("acknowledged")
    if number is not None and (type(number) is not int or not 0 <= number <= _INT32):
        _refuse(path, "field 'acknowledged' is not the version of a znode")
    return number


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _object(path: str, data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        _refuse(path, f"holds {len(data)} bytes, more than {MAX_BYTES}")
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError):
        _refuse(path, "is not JSON")
    if not isinstance(document, dict) or type(document.get("version")) is not int:
        _refuse(path, "is not a JSON object with a version")
    if document["version"] != FORMAT:
        _refuse(path, f"has format {document['version']}, and this version knows {FORMAT}")
    return document


def _refuse(path: str, reason: str) -> NoReturn:
    raise ZnodeFormatError(path, reason)


def read_mode(paths: LivePaths, watch: bool = False) -> Script[tuple[Mode, int]]:
    """Return the mode and its version, or ``ZOOKEEPER`` and -1 if the group has no mode znode.

    Raises ZnodeFormatError.
    """
    (node,) = yield from read_many([paths.mode], watch)
    if node is None:
        return Mode.ZOOKEEPER, -1
    return decode_mode(paths.mode, node.data), node.stat.version
