"""What happened in a run, as data: the judge reads nothing else. Times are seconds since 1970, by
the one clock of this machine; those of ZooKeeper's logs too. No IO, except ``save`` and ``load``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple


class Message(NamedTuple):
    """A message that was acknowledged, or handed out."""

    at: float
    offset: int
    number: int
    member: str = ""
    """Who handed it out."""


@dataclass(slots=True)
class Life:
    """One run of a member."""

    member: str
    """Consumer id, without the group."""
    slot: int
    began: float
    ended: float | None = None
    how: str = ""
    """``killed``, ``left``, ``failed`` (it ended by itself) or ``hung`` (it did not leave in its
    time); empty: it lives."""
    ours: bool = True
    """Not the original consumer."""


@dataclass(slots=True)
class FaultRecord:
    """One fault. It counts when ``evidence`` says how its delivery was seen."""

    kind: str
    variant: str
    target: str
    alone: bool = False
    """Nothing else happened from before it until the group had recovered."""
    began: float = 0.0
    ended: float = 0.0
    """When its cause was gone."""
    members: tuple[str, ...] = ()
    """Whom it hit; empty: a server, so all of them."""
    evidence: str = ""
    reason: str = ""
    """Why it was not delivered."""

    @property
    def delivered(self) -> bool:
        """Whether its delivery was seen."""
        return bool(self.evidence)


@dataclass(slots=True)
class Claim:
    """An interval in which a member owned a partition, by ZooKeeper's logs or by its journal."""

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
    """A member on the coordinator found that it was not a member any more."""

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
    """A committed offset of a partition that the writer did not own."""

    at: float
    partition: int
    member: str
    """The writer; empty: not a member."""
    owner: str
    """Empty: there was none."""
    deleter: str = ""
    """The other member that had deleted the writer's owner znode, where one had."""


@dataclass(slots=True)
class Finding:
    """One of zkaudit's findings."""

    severity: str
    kind: str
    member: str
    sentence: str


@dataclass(slots=True)
class History:
    """Everything that the judge looks at."""

    kind: str
    """Of the group: a key of ``tests.soak.kinds.KINDS``."""
    session: float
    """Session timeout, seconds."""
    commit_interval: float
    partitions: int
    acked: dict[int, dict[int, Message]] = field(default_factory=dict)
    """By partition and offset."""
    delivered: dict[int, list[Message]] = field(default_factory=dict)
    """By partition, in the order of time."""
    lives: list[Life] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    quiet: list[tuple[float, float]] = field(default_factory=list)
    """From the end of the last fault of several to the next one's beginning."""
    claims: list[Claim] = field(default_factory=list)
    registrations: list[Registration] = field(default_factory=list)
    expelled: list[Expelled] = field(default_factory=list)
    lowered: list[Lowered] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    commits: int = 0
    """Offsets that were stored, as zkaudit counts them."""
    ended: float = 0.0
    """When the last member was asked to leave."""

    def save(self, path: Path) -> None:
        """Write all but the messages, which the ledgers hold."""
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
    """Fill in what was acknowledged and what was handed out, from the ledgers below ``folder``."""
    for partition, message in read_ledger(folder / "acked"):
        history.acked.setdefault(partition, {})[message.offset] = message
    for life in history.lives:
        for partition, message in read_ledger(folder / life.member, life.member):
            history.delivered.setdefault(partition, []).append(message)
    for messages in history.delivered.values():
        messages.sort()
