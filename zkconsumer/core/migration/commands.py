"""Events and commands of a migratable member in addition to those of its two machines: data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zkconsumer.core.migration.modes import Mode

# -- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromGroup:
    """An event for ``LiveMember.group``, the member's machine on the coordinator."""

    event: Any


@dataclass(frozen=True, slots=True)
class LiveRegistered:
    """The member has registered in a transaction that checked this version of the mode."""

    token: int
    mode: Mode
    version: int


@dataclass(frozen=True, slots=True)
class ModeLoaded:
    """Answer to ``ReadMode``. ``fault``: why the mode is unusable."""

    mode: Mode
    version: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class AckStored:
    """Answer to ``StoreAck``. ``fault``: why the acknowledgement is not stored."""

    version: int
    fault: str = ""


# -- commands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToGroup:
    """A command of ``LiveMember.group``, the member's machine on the coordinator."""

    command: Any


@dataclass(frozen=True, slots=True)
class ReadMode:
    """Read the mode and watch it. Answer: ``ModeLoaded``."""


@dataclass(frozen=True, slots=True)
class StoreAck:
    """Record that the member acts on this version of the mode. Answer: ``AckStored``.

    ``epoch``: the version of the registration. ``member_id``: the id on the coordinator, for
    information only.
    """

    version: int
    epoch: int
    member_id: str


@dataclass(frozen=True, slots=True)
class NeedGroup:
    """Set whether delivery requires that the coordinator, too, treats the member as live."""

    needed: bool
