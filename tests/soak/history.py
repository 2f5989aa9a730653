"""The events of a run, as data. The judge reads nothing else.

Times are seconds since 1970 by this machine's clock, which is also the clock of ZooKeeper's logs.
Only ``save`` and ``load`` do IO.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple


class Message(NamedTuple):
    """A message that was acknowledged or delivered."""

    at: float
    offset: int
    number: int
    member: str = ""
    """The member that delivered it."""


@dataclass(slots=True)
class Life:
    """One run of a member."""

    member: str
    """Consumer id, without the group."""
    slot: int
    began: float
    ended: float | None = None
    how: str = ""
    """``killed``, ``left``, ``failed`` (it ended by itself) or ``hung`` (it did not leave in time).
    Empty if it is alive."""
    ours: bool = True
    """False for the original consumer."""


@dataclass(slots=True)
class FaultRecord:
    """One fault. It counts if ``evidence`` shows how its effect was observed."""

    kind: str
    variant: str
    target: str
    alone: bool = False
    """Whether nothing else happened from just before it until the group had recovered."""
    began: float = 0.0
    ended: float = 0.0
    """When its cause ended."""
    members: tuple[str, ...] = ()
    """The affected member. Empty for a server, which affects all members."""
    evidence: str = ""
    reason: str = ""
    """Why it was not delivered."""

    @property
    def delivered(self) -> bool:
        """Whether its effect was observed."""
        return bool(self.evidence)


@dataclass(slots=True)
class Claim:
    """An interval in which a member owned a partition, according to ZooKeeper's logs or its
    journal."""

    partition: int
    member: str
    session: int
    began: float
    ended: float | None
    how: str = ""
    """How it ended, as in zkaudit's table ``ownership``."""


@dataclass(slots=True)
class Registration:
    """An interval in which a member was registered by a session."""

    member: str
    session: int
    began: float
    ended: float | None
    how: str = ""


@dataclass(slots=True)
class Expelled:
    """A member on the coordinator noticed that it was no longer a member."""

    member: str
    at: float


@dataclass(slots=True)
class Lowered:
    """A committed offset that went down."""

    at: float
    partition: int
    member: str
    before: int
    after: int


@dataclass(slots=True)
class Foreign:
    """A committed offset for a partition that the writer did not own."""

    at: float
    partition: int
    member: str
    """The writer. Empty if it was not a member."""
    owner: str
    """The owner. Empty if there was none."""
    deleter: str = ""
    """The other member that had deleted the writer's owner znode, if any."""


@dataclass(slots=True)
class Finding:
    """One of zkaudit's findings."""

    severity: str
    kind: str
    member: str
    sentence: str


@dataclass(slots=True)
class History:
    """Everything that the judge reads."""

    kind: str
    """The group's kind: a key of ``tests.soak.kinds.KINDS``."""
    session: float
    """Session timeout in seconds."""
    commit_interval: float
    partitions: int
    acked: dict[int, dict[int, Message]] = field(default_factory=dict)
    """Messages by partition and offset."""
    delivered: dict[int, list[Message]] = field(default_factory=dict)
    """Messages by partition, in order of time."""
    lives: list[Life] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    quiet: list[tuple[float, float]] = field(default_factory=list)
    """From the end of the last of several faults to the beginning of the next one."""
    claims: list[Claim] = field(default_factory=list)
    registrations: list[Registration] = field(default_factory=list)
    expelled: list[Expelled] = field(default_factory=list)
    lowered: list[Lowered] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    commits: int = 0
    """Stored offsets, as zkaudit counts them."""
    ended: float = 0.0
    """When the last member was asked to leave."""

    def save(self, path: Path) -> None:
        """Write everything except the messages, which are in the ledgers."""
        kept = asdict(replace(self, acked={}, delivered={}))
        path.write_text(json.dumps(kept, indent=1) + "\n")


def load(path: Path) -> History:
    """Read what ``save`` wrote."""
    kept = json.loads(path.read_text())
    for name, kind in (
        ("lives", Life),
        ("faults", FaultRecord),
        ("claims", Claim),
        ("registrations", Registration),
        ("expelled", Expelled),
        ("lowered", Lowered),
        ("foreign", Foreign),
        ("findings", Finding),
    ):
        kept[name] = [kind(**one) for one in kept.get(name, ())]
    kept["quiet"] = [tuple(one) for one in kept["quiet"]]
    return History(**kept)


def read_ledger(path: Path, member: str = "") -> list[tuple[int, Message]]:
    """Partition and message of each whole line."""
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        at, partition, offset, number = line.split()
        found.append((int(partition), Message(float(at), int(offset), int(number), member)))
    return found


def read_messages(history: History, folder: Path) -> None:
    """Fill in acknowledged and delivered messages from the ledgers below ``folder``."""
    for partition, message in read_ledger(folder / "acked"):
        history.acked.setdefault(partition, {})[message.offset] = message
    for life in history.lives:
        for partition, message in read_ledger(folder / life.member, life.member):
            history.delivered.setdefault(partition, []).append(message)
    for messages in history.delivered.values():
        messages.sort()
