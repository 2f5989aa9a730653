"""The demo's verdict: compares the sent messages with each member's record. Pure, except one
reader.

A member's record is a file of fixed-size entries, one for each message. An entry is written before
the next message is requested, so the record of a killed member is complete, too.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct(">HQ")


class Place(NamedTuple):
    """One message: partition and offset."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Kill:
    """A member that was killed, and the committed offsets of its partitions at that moment."""

    member: str
    committed: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the comparison. ``repeated``: deliveries that the kill explains;
    ``unexplained``: messages that were repeated without a reason, or were never sent."""

    sent: int
    delivered: int
    lost: tuple[Place, ...]
    repeated: int
    unexplained: tuple[Place, ...]

    @property
    def good(self) -> bool:
        """Whether nothing was lost and every repetition is explained."""
        return not self.lost and not self.unexplained


def read_record(path: Path) -> list[Place]:
    """Return the messages that a member delivered, in order, without an incomplete last entry."""
    data = path.read_bytes()
    whole = len(data) - len(data) % ENTRY.size
    return [Place(*entry) for entry in ENTRY.iter_unpack(data[:whole])]


def judge(
    sent: Mapping[int, int], records: Mapping[str, Iterable[Place]], kill: Kill | None
) -> Verdict:
    """Compare the messages that were sent with those that were delivered.

    Args:
        sent: partition to number of messages; their offsets begin at 0.
        records: member to its delivered messages.
        kill: the member that was killed. The next owner redelivers its messages from the committed
            offset on. No other message may be delivered twice.
    """
    times: Counter[Place] = Counter()
    excused: set[Place] = set()
    for member, record in records.items():
        for place in record:
            times[place] += 1
            if kill is not None and member == kill.member:
                committed = kill.committed.get(place.partition)
                if committed is not None and place.offset >= committed:
                    excused.add(place)
    expected = {Place(p, offset) for p, count in sent.items() for offset in range(count)}
    unexplained = sorted(
        place
        for place, count in times.items()
        if place not in expected or count > (2 if place in excused else 1)
    )
    repeated = sum(1 for place in excused if times[place] == 2)
    return Verdict(
        sent=len(expected),
        delivered=times.total(),
        lost=tuple(sorted(expected - times.keys())),
        repeated=repeated,
        unexplained=tuple(unexplained),
    )
