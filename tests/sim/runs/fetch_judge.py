"""Checks the rules of one member's delivery, for all faults of brokers, logs and claims.

The judge gets the data of an application and a group: messages, positions, reports. It also has the
logs, which the simulation owns. It does not use queues, chunks or workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim.runs.broker_log import STAMP, PartitionLog, SimBrokers
from zkconsumer.broker.fetching.records import MessageAndMetadata
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo


class Claim:
    """One claim of a partition, from its start on, as the application sees it."""

    def __init__(
        self,
        info: PartitionTopicInfo,
        stream: int,
        start: int | None,
        log: PartitionLog,
        scala: bool,
        session: int = 0,
    ) -> None:
        self.info = info
        self.session = session
        """In which the member claimed it."""
        self.open = True
        """Neither dropped nor released: an unacknowledged message may still be processed."""
        self._scala = scala
        self.stream = stream
        self.log = log
        self.expected = start
        """The next message has this offset, or a later one if it does not exist; ``None`` at
        first."""
        self.processed = start
        """Everything below is processed; ``None`` until known."""
        self.resets: deque[int] = deque()
        """Positions that ``auto.offset.reset`` has chosen since the last message, in order."""
        self.generation = log.generation
        """Of the last message: records appended since may be where other records were before."""
        self.in_hand: int | None = None

    @property
    def behind(self) -> bool:
        """Whether the log has records that were not delivered."""
        self.settle()
        positions = [self.expected, *self.resets]
        return all(
            first is None or next(self.log.records(first, self.log.end), None) is not None
            for first in (positions if self._scala else positions[-1:])
        )

    def settle(self) -> None:
        """Apply resets that have reached the application.

        In the scala profile, as in the JVM, a position counts at once, and earlier messages are
        delivered after that. Which position applies is known only with the next message.
        """
        while self.resets and self.info.pending_reset is None:
            if self._scala and self.expected is not None:
                break
            self.apply_reset()

    def apply_reset(self) -> None:
        """The next message must be the one at the chosen position."""
        self.expected = self.processed = self.resets.popleft()
        self.generation = self.log.generation

    def missed(self, first: int, offset: int, generation: int) -> list[int]:
        """Return the offsets in ``[first, offset)`` whose records should have been delivered."""
        return [o for o, g in self.log.records(first, offset) if g <= generation]


class Judge:
    """Follows all claims of one member and records broken rules.

    Args:
        brokers: the simulated brokers and their logs.
        broken: called with the name of a broken rule and a line about it.
        scala: a message counts as consumed when it is returned.
    """

    def __init__(
        self, brokers: SimBrokers, broken: Callable[[str, str], object], scala: bool
    ) -> None:
        self.claims: dict[TopicPartition, Claim] = {}
        """Those that are started and not stopped."""
        self.deliveries = 0
        self.broken = broken
        self.scala = scala
        self._brokers = brokers
        self._final: deque[tuple[PartitionTopicInfo, int | None]] = deque(maxlen=12)

    def reset(self, tp: TopicPartition, replaced: int | None) -> None:
        """It was reported that ``auto.offset.reset`` chose a position for ``tp``."""
        claim = self.claims.get(tp)
        if claim is None:
            return
        if replaced is None:
            fair = claim.expected is None
        else:
            fair = (tp, replaced) in self._brokers.refused
        if not fair:
            self.broken("reset_with_reason", f"{tp} at {replaced}")
        assert claim.info.fetched_offset is not None
        claim.resets.append(claim.info.fetched_offset)
        claim.settle()

    def delivered(self, stream: int, message: MessageAndMetadata, *, gate_open: bool) -> None:
        """``stream`` has returned ``message``."""
        self.deliveries += 1
        tp = TopicPartition(message.topic, message.partition)
        claim = self.claims.get(tp)
        what = f"{tp} at {message.offset}"
        if not gate_open:
            self.broken("gate", what)
        if claim is None or claim.stream != stream:
            self.broken("nothing_after_revoke", what)
            return
        offset, generation = STAMP.unpack_from(message.value)
        if offset != message.offset:
            self.broken("content", f"{what} holds {offset}")
        if claim.log.is_aborted(offset, generation):
            self.broken("none_aborted", what)
        claim.settle()
        while True:
            first = claim.expected
            if first is not None and offset >= first:
                missed = claim.missed(first, offset, generation) if offset > first else []
                if not missed:
                    break
            if not claim.resets:
                if first is None or offset < first:
                    self.broken("none_twice", f"{what}, expected {first}")
                else:
                    self.broken("none_lost", f"{what}, missed {missed}")
                break
            claim.apply_reset()
        claim.expected = offset + 1
        claim.generation = generation
        claim.in_hand = offset
        if self.scala:
            self.processed(claim)

    def processed(self, claim: Claim) -> None:
        """The application has processed the message."""
        if claim.in_hand is not None:
            claim.processed = claim.in_hand + 1
            claim.in_hand = None

    def committed(self, claim: Claim, position: int) -> None:
        """``position`` will be committed for ``claim``."""
        claim.settle()
        for first in (claim.processed, *claim.resets):
            if position == first:
                return
            # Beyond what is processed there may be a gap, but no record, now or later.
            if first is not None and position > first:
                in_log = position <= claim.log.end or claim.log.generation > claim.generation
                if in_log and not claim.missed(first, position, claim.generation):
                    return
        self.broken(
            "committed_is_processed",
            f"{claim.info} at {position}, processed {claim.processed}, resets {claim.resets}",
        )

    def ended(self, claim: Claim, position: int | None) -> None:
        """``claim`` has ended, with this final position."""
        self._final.append((claim.info, position))

    def check(self) -> None:
        """Check the rules that apply at every moment: a commit may follow now."""
        for claim in self.claims.values():
            position = claim.info.position
            if position != claim.processed and position is not None:
                self.committed(claim, position)
        for info, position in self._final:
            if info.position != position:
                self.broken("final_is_final", f"{info} was {position}")
