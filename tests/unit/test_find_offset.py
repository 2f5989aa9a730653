"""The search for a partition's copy in another cluster, in logs without a broker."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import cast

import pytest
from zkmigrate.formats.proofs_file import Asked
from zkmigrate.plan.clusters.translation import NO_TIME, Excerpt, Proof, Seen, Translation
from zkmigrate.stores import translator
from zkmigrate.stores.contents import Contents, Times
from zkmigrate.stores.translator import Translator

from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerUnavailableError

TP = TopicPartition("t", 0)


class Log:
    """A log in memory, read as a broker's. Counts the records that were read."""

    def __init__(self, records: Sequence[Seen], latest: int, earliest: int = 0) -> None:
        self.records = records
        self.earliest, self.latest = earliest, latest
        self.offsets = [one.offset for one in records]
        self.read = 0
        self.internal: dict[TopicPartition, list[tuple[bytes, bytes]]] = {}

    def around(self, _tp: TopicPartition, middle: int, span: int) -> Excerpt:
        """As ``Contents``."""
        middle = min(max(self.earliest, middle), self.latest)
        begin, end = max(self.earliest, middle - span), min(self.latest, middle + span)
        some = self.records[bisect_left(self.offsets, begin) : bisect_left(self.offsets, end)]
        self.read += len(some)
        return Excerpt(some, begin, end, self.earliest, self.latest)

    def forget(self) -> None:
        """As ``Contents``."""

    def read_ahead(self, _places: object, _span: int) -> dict[TopicPartition, Excerpt]:
        """As ``Contents``."""
        return {}

    def look_ahead(self, _times: object) -> dict[TopicPartition, int | None]:
        """As ``Contents``."""
        return {}

    def times_at(self, _tp: TopicPartition, offset: int) -> tuple[Times, int] | None:
        """As ``Contents``."""
        return times_of(next(iter(self.records[bisect_left(self.offsets, offset) :]), None))

    def end(self, _tp: TopicPartition) -> int:
        """As ``Contents``."""
        return self.latest

    def topics(self) -> list[str]:
        """As ``Contents``."""
        return [tp.topic for tp in self.internal]

    def each(self, tp: TopicPartition, take: Callable[[bytes, bytes], object]) -> None:
        """As ``Contents``."""
        for key, value in self.internal[tp]:
            take(key, value)

    def at(self, _tp: TopicPartition, timestamp: int) -> int | None:
        """As ``Contents``."""
        return next((one.offset for one in self.records if one.timestamp >= timestamp), None)


def times_of(record: Seen | None) -> tuple[Times, int] | None:
    """What ``Contents`` returns, if each record has its own batch."""
    if record is None:
        return None
    offset, time, _ = record
    return Times(offset, offset + 1, array("q", [offset]), array("q", [time])), time


def found(
    offset: int, here: Log, there: Log, back: bool = False
) -> tuple[Proof, int | None, int | None]:
    """The translation."""
    finder = Translator(cast(Contents, here), cast(Contents, there), None, back)
    (result,) = finder.find([(Asked(TP, offset, TP), [0])])
    assert isinstance(result, Translation)
    return result.proof, result.low, result.high


def test_few_records_are_read_to_prove_a_position() -> None:
    """Long logs with holes, of which the other has records before, other offsets, and many records
    with equal times: each position is proven, and a small part of the logs is read."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    source: list[Seen] = []
    target = [Seen(at, 5, b"own %d" % at) for at in range(1000)]
    offset, other = 0, 1000
    for number in range(20_000):
        offset += rng.choice((1, 1, 1, 2, 9))
        other += rng.choice((1, 1, 2))
        late = rng.randrange(4)  # the clocks of several producers
        source.append(Seen(offset, 1000 + number // 10 - late, b"%d" % number))
        target.append(source[-1]._replace(offset=other))
    here, there = Log(source, offset + 1), Log(target, other + 1)
    for number in rng.sample(range(20_000), 100):
        at = target[1000 + number].offset
        assert found(source[number].offset, here, there) == (Proof.PROVEN, at, at)
    assert found(offset + 1, here, there) == (Proof.PROVEN, other + 1, other + 1)
    assert here.read + there.read < 101 * 600
    last = target[14_999].offset  # of a mirror that is behind
    behind = Log(target[:15_000], last + 1)
    assert found(source[14_000].offset, here, behind) == (Proof.PROVEN, last + 1, last + 1)
    assert found(source[14_002].offset, here, behind) == (Proof.BOUNDED, last + 1, last + 1)


def test_long_logs_of_equal_records_are_bounded() -> None:
    """By the whole log, after a limited number of reads; with times that differ, by them."""
    same = [Seen(at, 7, b"x") for at in range(100_000)]
    here, there = Log(same, 100_000), Log(same[:90_000], 90_000)
    assert found(50_000, here, there) == (Proof.BOUNDED, 0, 90_000)
    assert here.read + there.read < 60_000
    timed = [Seen(at, 7 + at // 50, b"x") for at in range(10_000)]
    proof, low, high = found(5_020, Log(timed, 10_000), Log(timed, 10_000))
    assert proof is Proof.BOUNDED
    assert low is not None
    assert high is not None
    assert low <= 5_020 <= high


@pytest.mark.parametrize("count", [34, 40, 100])
def test_records_that_a_producer_has_sent_twice(count: int) -> None:
    """An exact copy of a log with a batch that is there twice: the offset in either copy of the
    batch is never proven to be in the other one."""
    order = [*range(500), *range(500 - count, 1000)]
    records = [Seen(at, 1000 + number, b"%d" % number) for at, number in enumerate(order)]
    here, there = Log(records, len(records)), Log(records, len(records))
    for offset in range(300, 800):
        proof, low, high = found(offset, here, there)
        assert low is not None
        assert high is not None
        assert low <= offset <= high
        assert proof is not Proof.PROVEN or low == offset == high


def test_a_lower_bound_skips_no_record_that_follows_the_parts() -> None:
    """Equal records among others without times: where retention has removed the first part of the
    target, it begins with records that follow the part of the source that was read."""
    source = [Seen(at, NO_TIME, b"beat" if at % 50 == 0 else b"%d" % at) for at in range(60_000)]
    there = Log(source[30_010:], 60_000, 30_010)
    proof, low, _ = found(20_000, Log(source, 60_000), there)
    assert proof is not Proof.PROVEN
    assert low in (None, 30_010)


def test_records_without_times_are_searched_from_the_beginning() -> None:
    """They are proven in logs that are read completely, otherwise bounded or unknown."""
    source = [Seen(at, NO_TIME, b"%d" % at) for at in range(3000)]
    here = Log(source, 3000)
    there = Log([one._replace(offset=one.offset + 100) for one in source], 3100, 100)
    assert found(1500, here, there) == (Proof.PROVEN, 1600, 1600)
    longer = [Seen(at, NO_TIME, b"%d" % at) for at in range(30_000)]
    assert found(15_000, Log(longer, 30_000), Log(longer, 30_000))[0] is not Proof.PROVEN


def test_the_copies_are_after_newer_records() -> None:
    """Records of the other cluster's own, with later times, are before and after the copies: the
    first record of a time is no candidate. A search finds the copies, and MirrorMaker 2's records
    find them in a log that is too long for it, in either form, damaged ones aside."""
    source = [Seen(at, 1000 + at, b"%d" % at) for at in range(3000)]
    own = [Seen(at, 9000 + at % 50, b"own %d" % at) for at in range(60_000)]
    here = Log(source, 3000)
    copies = [one._replace(offset=one.offset + 40_000) for one in source]
    later = [one._replace(offset=one.offset + 3000) for one in own[40_000:]]
    there = Log([*own[:40_000], *copies, *later], 63_000)
    assert found(700, here, there) == (Proof.PROVEN, 40_700, 40_700)
    assert found(3000, here, there) == (Proof.PROVEN, 43_000, 43_000)
    assert there.read < 30_000
    after = [one._replace(offset=one.offset + 300) for one in own[40_600:]]
    few = Log([*own[:40_600], *copies[600:900], *after], 60_300)
    assert found(700, here, few)[0] is not Proof.PROVEN
    key, pair = pack(">h1si", 1, b"t", 0), pack(">qq", 650, 40_650)
    name = TopicPartition("mm2-offset-syncs.new.internal", 0)
    here.internal = {name: [(key[:-1], pair), (key, pair[1:]), (key, pair), (b"", b"")]}
    assert found(700, here, few) == (Proof.PROVEN, 40_700, 40_700)
    here.internal = {}
    name = TopicPartition("old.checkpoints.internal", 0)
    few.internal = {name: [(pack(">h1s", 1, b"g") + key, pack(">h", 0) + pair + b"\0\0")]}
    assert found(700, here, few) == (Proof.PROVEN, 40_700, 40_700)
    copied_here = pack(">qq", 40_650, 650)
    for where, log, record in (
        (TopicPartition("mm2-offset-syncs.new.internal", 0), few, (key, copied_here)),
        (name, here, (pack(">h1s", 1, b"g") + key, pack(">h", 0) + copied_here + b"\0\0")),
    ):
        here.internal, few.internal = {}, {}
        log.internal = {where: [record]}
        assert found(700, here, few)[0] is not Proof.PROVEN
        assert found(700, here, few, back=True) == (Proof.PROVEN, 40_700, 40_700)
    untimed = Log([one._replace(timestamp=NO_TIME) for one in source], 3000)
    assert found(700, untimed, few)[0] is not Proof.PROVEN  # nothing shows that it occurs once


class Topic(Log):
    """A log, and a second partition without records."""

    def around(self, tp: TopicPartition, middle: int, span: int) -> Excerpt:
        """As ``Contents``."""
        return Excerpt([], 0, 0, 0, 0) if tp.partition else super().around(tp, middle, span)

    def at(self, tp: TopicPartition, timestamp: int) -> int | None:
        """As ``Contents``."""
        return None if tp.partition else super().at(tp, timestamp)


def test_what_was_not_searched_for_is_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that only one log has may be in another partition. After many reads of a topic, the
    others are not searched any more."""
    source = [Seen(at, 1000 + at, b"%d" % at) for at in range(100)]
    logs = Topic(source, 100), Topic(source[:52] + source[53:], 100)
    for most, proof in ((512, Proof.PROVEN), (0, Proof.BOUNDED)):
        monkeypatch.setattr(translator, "_READ", (most, 0))
        finder = Translator(*cast(tuple[Contents, Contents], logs))
        (one,) = finder.find([(Asked(TP, 50, TP), [0, 1])])
        assert isinstance(one, Translation)
        assert (one.proof, one.low) == (proof, 50)
        assert ("too many records" in one.why) is (proof is Proof.BOUNDED)


def test_each_of_many_positions_is_proven() -> None:
    """Each needs a search of other partitions, as compaction has removed records nearby."""
    source = [Seen(at, 1000 + at, b"%d" % at) for at in range(200)]
    logs = Topic(source, 200), Topic([one for one in source if one.offset % 10], 200)
    finder = Translator(*cast(tuple[Contents, Contents], logs))
    for one in logs[1].records:
        (result,) = finder.find([(Asked(TP, one.offset, TP), range(9))])
        assert isinstance(result, Translation)
        assert (result.proof, result.low) == (Proof.PROVEN, one.offset)
    read = logs[0].read
    assert finder.find([(Asked(TP, one.offset, TP), range(9))]) == [result]  # of another group
    assert logs[0].read == read


def test_a_leader_that_has_moved_is_found_after_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that was killed is not always asked again: another one leads the partition."""
    contents = Contents(lambda: [], 5.0)
    leaders = iter(("old", "new", "newer"))

    def leader(tp: TopicPartition) -> object:
        return contents._leaders.setdefault(tp, cast(BrokerConnection, next(leaders)))

    def ask(connection: object) -> object:
        if connection == "old":
            raise BrokerUnavailableError("the connection was lost")
        return connection

    monkeypatch.setattr(contents, "_leader", leader)
    assert contents._at_leader(TP, ask) == "new"
    monkeypatch.setattr(contents, "_timeout", 0.0)
    contents._leaders[TP] = cast(BrokerConnection, "old")
    with pytest.raises(BrokerUnavailableError):
        contents._at_leader(TP, ask)
    assert not contents._leaders


class Batched(Log):
    """A log of many equal partitions, of which all can be read in one request. Counts requests."""

    requests = 0

    def around(self, tp: TopicPartition, middle: int, span: int) -> Excerpt:
        """As ``Contents``."""
        self.requests += 1
        return super().around(tp, middle, span)

    def at(self, tp: TopicPartition, timestamp: int) -> int | None:
        """As ``Contents``."""
        self.requests += 1
        return super().at(tp, timestamp)

    def read_ahead(
        self, places: Mapping[TopicPartition, int], span: int
    ) -> dict[TopicPartition, Excerpt]:
        """As ``Contents``."""
        self.requests += 1
        return {tp: super(Batched, self).around(tp, at, span) for tp, at in places.items()}

    def look_ahead(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """As ``Contents``."""
        self.requests += 1
        return {tp: super(Batched, self).at(tp, time) for tp, time in times.items()}


def test_many_positions_are_found_with_few_requests() -> None:
    """Even if the copies are after newer records, so that their times do not show where."""
    source = [Seen(at, 1000 + at, b"%d" % at) for at in range(20)]
    own = [Seen(at, 9000 + at, b"own %d" % at) for at in range(300)]
    copies = [one._replace(offset=one.offset + 300) for one in source]
    here, there = Batched(source, 20), Batched([*own, *copies], 320)
    key, pair = pack(">h1si", 1, b"t", 0), pack(">qq", 0, 300)
    name = TopicPartition("mm2-offset-syncs.new.internal", 0)
    here.internal = {name: [(key[:-1] + bytes([number]), pair) for number in range(100)]}
    tps = [TopicPartition("t", number) for number in range(100)]
    finder = Translator(*cast(tuple[Contents, Contents], (here, there)))
    results = finder.find([(Asked(tp, tp.partition % 20, tp), [tp.partition]) for tp in tps])
    for tp, one in zip(tps, results, strict=True):
        assert isinstance(one, Translation)
        assert (one.proof, one.low) == (Proof.PROVEN, 300 + tp.partition % 20)
    assert here.requests + there.requests <= 150
