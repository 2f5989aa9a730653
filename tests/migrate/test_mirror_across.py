"""The mirror to another cluster: what it stores there, when it waits, and how a group is handed
over.

Both clusters are simulated: the one of the groups by ``simulated``, the other by its logs and its
coordinators. A record has an offset that is 30 higher there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import pytest
from zkmigrate.mirror import across as module
from zkmigrate.mirror.across import Across
from zkmigrate.mirror.step import Step
from zkmigrate.plan.cases import case_of
from zkmigrate.plan.clusters.across import Copy, next_copy
from zkmigrate.plan.clusters.translation import Proof, Seen, Translation
from zkmigrate.plan.table import TABLE, Action
from zkmigrate.reasons import Reason
from zkmigrate.stores import contents, record, sessions
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.contents import Contents, OtherCluster
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores
from zkmigrate.stores.translator import Translator

from tests.migrate.matrix import STATES, build
from tests.migrate.simulated import SENT, Simulated, SimulatedCoordinators, simulated
from tests.unit.test_find_offset import Log
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.cluster_view import ClusterView, PartitionView, TopicView
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import LeaderUnavailableError

__all__ = ["simulated"]
TO = ("--to-cluster", "there:9092", "--topic-map", "*=old.*")
TP = TopicPartition("old.t", 0)
MEMBER = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
APART = 30


class There:
    """The other cluster. Takes the place of ``OtherCluster``. Its mirror has copied ``copied``
    records of this cluster."""

    def __init__(self, simulated: Simulated) -> None:
        self.kafka = SimulatedCoordinators(simulated.zk)
        self.view = ClusterView("there")
        self.recreate("id of t")
        self.here = Log([Seen(at, 1000 + at, b"%d" % at) for at in range(1000)], 1000)
        self.here.close = lambda: None  # type: ignore[attr-defined]
        self.contents = Log([], APART, APART)
        self.copy(1000)

    def __call__(self, *_: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def copy(self, count: int) -> None:
        """Let the mirror of the topic have copied so many records."""
        some = [one._replace(offset=one.offset + APART) for one in self.here.records[:count]]
        self.contents.records, self.contents.latest = some, APART + count
        self.contents.offsets = [one.offset for one in some]

    def recreate(self, topic_id: str, partitions: int = 1) -> None:
        """Create the topic again."""
        parts = {number: PartitionView(0, 0, (0,), (0,)) for number in range(partitions)}
        self.view = ClusterView("there", (), {"old.t": TopicView(topic_id, parts)})

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicView]:
        """As they are now."""
        return {name: one for name, one in self.view.topics.items() if name in names}

    def partitions(self) -> list[TopicPartition]:
        """All."""
        return [TP]

    def held(self, group: str = "g") -> int | None:
        """The group's offset."""
        found = self.kafka.committed.get(group, {}).get(TP)
        return None if found is None else found.offset


@pytest.fixture
def there(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> There:
    """The other cluster, with a copy of ``t``; and a group at offset 5."""
    found = There(simulated)
    monkeypatch.setattr(contents, "OtherCluster", found)
    monkeypatch.setattr(sessions.Stores, "contents", lambda _stores: found.here)
    simulated.topic("t", (0, 1000))
    simulated.zk.set(GroupPaths("g").ids)
    simulated.in_zookeeper("g", "t", 5)
    return found


Mirror = Callable[..., Step]


@pytest.fixture
def mirror(
    simulated: Simulated, there: There, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Across, Mirror]]:
    """One process that mirrors the group, and a function that lets it pass once. Time between two
    passes is enough to try again."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with Stores(Servers("sim:1", 10.0, 10.0)) as stores:
        finder = Translator(cast(Contents, there.here), cast(Contents, there.contents))

        def names(_group: str, topics: Iterable[str]) -> Mapping[str, str]:
            return {topic: f"old.{topic}" for topic in topics}

        across = Across(stores, cast(OtherCluster, there), finder, names, False)

        def once(seconds: float = 100.0, execute: bool = True) -> Step:
            now[0] += seconds
            (step,) = across.steps(["g"], execute)
            return step

        with closing(across):
            yield across, once


def join(simulated: Simulated, name: str = "g_old") -> str:
    """Let an old member register. Return its znode."""
    path = f"{GroupPaths('g').ids}/{name}"
    simulated.zk.set(path, MEMBER)
    return path


def test_proven_offsets_are_stored_and_others_wait(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """A running group is followed as far as its records are copied. What waits is shown, with how
    far it is behind. A dry run stores nothing."""
    _, once = mirror
    join(simulated)
    assert once(execute=False)[:3] == ("g", "source", "would be done")
    assert there.held() is None
    assert once()[:3] == ("g", "source", "in step")
    assert there.held() == 35
    there.copy(40)
    simulated.in_zookeeper("g", "t", 60)
    step = once()
    assert (step.state, step.why) == ("behind", "offsets wait: the next record is not there")
    assert [one.value for one in step.reasons] == ["not-proven"]
    assert step.late_since
    step = once(execute=False)
    assert (step.state, there.held()) == ("behind", 35)
    assert step.why.startswith("1 of 1 offsets wait, up to 55 behind: t-0 60: ")
    there.copy(61)
    assert (once().state, there.held()) == ("in step", 90)
    assert once().copied == 0


def test_a_group_that_is_faster_than_the_topics_mirror_is_followed(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """Its present record is never there yet. Then its earlier offsets are stored, as soon as they
    are proven."""
    _, once = mirror
    stored = []
    for at in range(10, 90, 10):
        simulated.in_zookeeper("g", "t", at)
        there.copy(at - 5)
        assert once().state == "behind"
        stored.append(there.held())
    assert stored == [None, 40, 50, 60, 70, 80, 90, 100]


def test_what_is_not_proven_is_not_tried_each_time(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """It is tried again after ever longer pauses, and until then shown as waiting."""
    _, once = mirror
    there.copy(2)
    tries = []
    for _ in range(100):
        read = there.here.read
        assert once(0.5).state == "behind"
        tries.append(there.here.read > read)
    assert 4 <= sum(tries) <= 8
    there.copy(1000)
    assert once(60.0).state == "in step"


def test_an_offset_there_is_never_lowered(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """A group that goes back waits until it is where it was, or until an operator has deleted its
    offsets there."""
    _, once = mirror
    simulated.in_zookeeper("g", "t", 50)
    once()
    simulated.in_zookeeper("g", "t", 20)
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("behind", ["would-lower"])
    assert "went back from 50 to 20" in step.why
    assert there.held() == 80
    simulated.in_zookeeper("g", "t", 51)
    assert (once().state, there.held()) == ("in step", 81)
    simulated.in_zookeeper("g", "t", 20)
    there.kafka.committed.clear()
    assert (once().state, there.held()) == ("in step", 50)


def test_a_contradiction_is_not_stored(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """A later offset that is proven to be before an earlier one there."""
    _, once = mirror
    simulated.in_zookeeper("g", "t", 50)
    once()
    there.here.records = [one._replace(offset=one.offset + 40) for one in there.here.records]
    there.here.offsets, there.here.latest = [one.offset for one in there.here.records], 1040
    simulated.in_zookeeper("g", "t", 60)
    step = once()
    assert (step.state, there.held()) == ("behind", 80)
    assert "60 is proven to be 50 there, and 50 80, which is not the same order" in step.why


@pytest.mark.parametrize("count", [1000, 45], ids=["copied again", "lost"])
def test_a_copy_is_proven_again_before_the_hand_over(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror], count: int
) -> None:
    """The log there was truncated since, and lacks some records, so the next one is at a lower
    offset there or not there at all."""
    _, once = mirror
    simulated.in_zookeeper("g", "t", 50)
    assert (once().state, there.held()) == ("in step", 80)
    some = [one for one in there.here.records[:count] if not 20 <= one.offset < 40]
    there.contents.records = [one._replace(offset=APART + at) for at, one in enumerate(some)]
    there.contents.offsets = [one.offset for one in there.contents.records]
    there.contents.latest = APART + len(some)
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["not-proven"])
    there.kafka.committed.clear()
    there.copy(1000)
    assert (simulated.run(*words).rows[0]["outcome"], there.held()) == ("done", 80)


@pytest.mark.parametrize("side", ["topic here", "topic there"])
def test_a_recreated_topic_is_not_followed(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror], side: str
) -> None:
    """The offset that was stored is of another topic."""
    _, once = mirror
    once()
    if side == "topic there":
        there.recreate("new")
    else:
        simulated.zk.delete("/brokers/topics/t")
        simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 6)
    step = once()
    assert (step.state, there.held()) == ("behind", 35)
    assert [one.value for one in step.reasons] == ["topic-recreated"]


def test_topics_that_are_no_copies_are_shown(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """Another number of partitions, and no topic at all: shown, and stored once it is there. An
    offset that is older than its topic waits, too."""
    _, once = mirror
    there.recreate("two", partitions=2)
    assert [one.value for one in once().reasons] == ["partition-missing"]
    there.view = ClusterView("there")
    assert [one.value for one in once().reasons] == ["topic-missing"]
    assert there.held() is None
    there.recreate("id of t")
    assert (once().state, there.held()) == ("in step", 35)
    simulated.zk.delete("/brokers/topics/t")
    simulated.topic("t", (0, 100))
    step = once()
    assert [one.value for one in step.reasons] == ["topic-recreated"]
    assert "its topic is younger than 5" in step.why


def test_other_clients_there_stop_the_group(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """An offset without the mirror's mark, even with its metadata; members there; and members on
    both sides."""
    _, once = mirror
    once()
    ours = there.kafka.committed["g"][TP]
    simulated.in_zookeeper("g", "t", 50)
    for other in (StoredOffset(40, -1, ours.metadata), StoredOffset(35)):
        there.kafka.committed["g"][TP] = other
        step = once()
        assert (step.state, [one.value for one in step.reasons]) == ("stopped", ["follower-moved"])
        assert there.held() == other.offset
    there.kafka.committed["g"][TP] = ours
    there.kafka.joined["g"] = ("new",)
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("stopped", ["coordinator-member"])
    join(simulated)
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == (
        "stopped", ["members-on-both-sides"],
    )  # fmt: skip
    assert "g_old in this cluster and new in the other one" in step.why
    there.kafka.joined.clear()
    assert (once().state, there.held()) == ("in step", 80)


def test_different_offsets_in_this_cluster_are_refused(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """It is not known which one is right."""
    _, once = mirror
    simulated.in_kafka("g", "t", 7)
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("refused", ["conflict"])
    assert "t-0: zookeeper has 5, kafka 7" in step.why
    assert there.held() is None
    simulated.in_kafka("g", "t", 5)
    assert once().state == "in step"


@pytest.mark.parametrize("lead", ["zookeeper", "kafka"])
def test_the_operator_chooses_the_store_whose_offsets_are_right(
    simulated: Simulated, there: There, lead: str
) -> None:
    """As for a group that commits to both stores, which are never quite equal. An offset that only
    the other store has waits."""
    simulated.in_kafka("g", "t", 7)
    before = simulated.znodes("g")["/consumers/g/offsets/t/0"]
    words = ("--group", "g", *TO, "--lead", lead)
    ran = simulated.run("mirror", *words, "--once", "--execute")
    offset = 35 if lead == "zookeeper" else 37
    assert (ran.status, ran.rows[0]["state"], there.held()) == (0, "in step", offset)
    assert simulated.znodes("g")["/consumers/g/offsets/t/0"] == before
    if lead == "kafka":
        simulated.kafka.committed.clear()
        ran = simulated.run("mirror", *words, "--once", "--execute")
        assert (ran.status, ran.rows[0]["reasons"]) == (3, ["conflict"])
        assert "t-0: only zookeeper has an offset, 5" in ran.rows[0]["why"]
        simulated.in_kafka("g", "t", 7)
    (row,) = simulated.run("cut-over", *words, "--execute", "--wait", "0").rows
    assert (row["outcome"], there.held()) == ("done", offset)


def test_a_group_whose_offsets_are_in_kafka_is_handed_over(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """Its members are registered in ZooKeeper. Their offsets are followed, and they are locked
    out."""
    _, once = mirror
    simulated.zk.delete("/consumers/g/offsets")
    simulated.in_kafka("g", "t", 7)
    path = join(simulated)
    assert (once().state, there.held()) == ("in step", 37)
    simulated.in_kafka("g", "t", 60)
    assert (once().state, there.held()) == ("in step", 90)
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    assert simulated.run(*words).rows[0]["reasons"] == ["live-member"]
    simulated.in_kafka("g", "t", 61)
    simulated.zk.delete(path)
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], there.held()) == ("done", 91)
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["case"], row["locked"]) == ("handed over", "locked")


def test_a_group_gets_another_name_there(simulated: Simulated, there: There) -> None:
    """The members and offsets of that name count, and those of the old name do not."""
    there.kafka.store("g", {TP: StoredOffset(1)})
    there.kafka.joined["g"] = ("other",)
    words = ("--group", "g", *TO, "--rename", "g=new")
    ran = simulated.run("mirror", *words, "--once", "--execute")
    assert (ran.status, there.held("new"), there.held()) == (0, 35, 1)
    there.kafka.joined["new"] = ("early",)
    (row,) = simulated.run("cut-over", *words, "--execute", "--wait", "0").rows
    assert row["reasons"] == ["coordinator-member"]
    there.kafka.joined.pop("new")
    simulated.in_zookeeper("g", "t", 60)
    (row,) = simulated.run("cut-over", *words, "--execute", "--wait", "0").rows
    assert (row["outcome"], there.held("new"), there.held()) == ("done", 90, 1)


def test_a_copy_is_proven_again_from_time_to_time(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """The log there was truncated after the offset was stored, and the mirror of the topic has
    copied its records again, at lower offsets."""
    _, once = mirror
    simulated.in_zookeeper("g", "t", 50)
    assert once().state == "in step"
    some = [one for one in there.here.records if not 20 <= one.offset < 40]
    there.contents.records = [one._replace(offset=APART + at) for at, one in enumerate(some)]
    there.contents.offsets = [one.offset for one in there.contents.records]
    there.contents.latest = APART + len(some)
    assert once(1000.0).state == "in step"
    step = once(3000.0)
    assert (step.state, [one.value for one in step.reasons]) == ("behind", ["not-proven"])
    there.copy(1000)
    assert once().state == "in step"


def test_a_bound_is_stored_if_the_operator_chose_it(simulated: Simulated, there: There) -> None:
    """Records that cannot be told apart. A cut-over without this choice does not accept the bound
    that a mirror with it has stored."""
    there.here.records = [one._replace(timestamp=7, digest=b"x") for one in there.here.records]
    there.copy(1000)
    words = ("mirror", "--group", "g", *TO, "--once", "--execute")
    ran = simulated.run(*words)
    assert (ran.status, ran.rows[0]["reasons"], there.held()) == (3, ["not-proven"], None)
    ran = simulated.run(*words, "--not-proven", "lower")
    assert (ran.status, ran.rows[0]["state"], there.held()) == (0, "in step", APART)
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["not-proven"])
    assert simulated.run(*words, "--not-proven", "lower").rows[0]["outcome"] == "done"


def test_of_two_lower_bounds_the_higher_one_is_stored() -> None:
    """An offset that was proven for an earlier one of the group is a bound, too. A proof replaces
    a bound, even an equal one. Without the operator's choice, a bound is not enough."""
    before = Copy(50, 20, Proof.PROVEN, "ids")
    low = (25, Translation(Proof.BOUNDED, 40, 60, 0, ""))
    bound = Copy(50, 25, Proof.BOUNDED, "ids")
    assert next_copy(before, [low], True, "ids") == bound
    assert next_copy(before, [low], False, "ids") is None
    proven = (25, Translation(Proof.PROVEN, 50, 50, 5, ""))
    assert next_copy(bound, [low, proven], True, "ids") == bound._replace(proof=Proof.PROVEN)
    assert next_copy(bound, [low], True, "ids") is None


def test_two_proofs_that_contradict_each_other_store_nothing() -> None:
    """An earlier offset of the group is proven to be after the present one there."""
    found = [(at, Translation(Proof.PROVEN, to, to, 5, "")) for at, to in ((10, 50), (20, 40))]
    assert next_copy(None, found, False, "ids") == (
        Reason.NOT_PROVEN,
        "20 is proven to be 40 there, and 10 50, which is not the same order",
    )


def between(there: There, what: str, change: Callable[[], object]) -> None:
    """Do something once, before or after the permission for the next commit there."""

    def around(now: str) -> None:
        if now == what:
            there.kafka.around = lambda _now: None
            change()

    there.kafka.around = around


CHANGES: Mapping[str, Callable[[Simulated, There], object]] = {
    "another client commits there": lambda simulated, there: there.kafka.store(
        "g", {TP: StoredOffset(1)}
    ),
    "the topic there is recreated": lambda simulated, there: there.recreate("new"),
    "another command writes the record": lambda simulated, there: simulated.zk.set(
        record.path("g"), record.encode(record.Record(command="x"))
    ),
    "the lease is lost": lambda simulated, there: simulated.zk.delete(
        "/consumers/g/record/lease-there"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_commit_is_permitted_right_before(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror], change: str
) -> None:
    """Nothing is stored if one of these has changed since it was read."""
    _, once = mirror
    once()
    simulated.in_zookeeper("g", "t", 50)
    between(there, "before commit", lambda: CHANGES[change](simulated, there))
    log = len(there.kafka.log)
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("behind", ["other-operator"])
    assert [one for one in there.kafka.log[log:] if one[2] == 80] == []


def test_members_that_join_meanwhile_are_not_overtaken(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """The coordinator refuses the commit."""
    _, once = mirror
    between(there, SENT, lambda: there.kafka.joined.update(g=("new",)))
    step = once()
    assert (step.state, there.held()) == ("behind", None)
    assert once().state == "stopped"


@pytest.mark.parametrize(
    ("who", "clock"),
    [("ZooKeeper", (0.0, 0.0, 0.5)), ("the other cluster", (0.0, 2.0, 2.0)), ("", (0.0, 1.5, 1.9))],
)
def test_a_slow_answer_is_no_permission(
    there: There,
    mirror: tuple[Across, Mirror],
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    clock: tuple[float, ...],
) -> None:
    """The process may have been suspended since it asked."""
    _, once = mirror
    monkeypatch.setattr(module, "boottime", partial(next, iter(clock)))
    step = once()
    assert (step.state, there.held()) == (("failed", None) if who else ("in step", 35))
    assert step.why.startswith(f"{who} did not answer" if who else "")


def test_a_lost_answer_is_found_stored(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """A commit whose answer was lost does not look like that of another client."""
    _, once = mirror

    def fail() -> None:
        raise LeaderUnavailableError("gone")

    between(there, "after commit", fail)
    assert once().state == "failed"
    assert (once().state, there.held()) == ("in step", 35)


def test_offsets_are_committed_again_before_they_expire(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """After a quarter of the retention there. One that has expired is stored again."""
    _, once = mirror
    there.kafka.retention = (60, True)
    once()
    count = len(there.kafka.log)
    once(14 * 60.0)
    assert len(there.kafka.log) == count
    once(2 * 60.0)
    assert there.kafka.log[count:] == [("g", TP, 35)]
    there.kafka.committed.clear()
    assert (once().state, there.held()) == ("in step", 35)


def test_a_second_process_is_on_standby(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """It stores nothing while the first one has the lease."""
    _, once = mirror
    once()
    simulated.in_zookeeper("g", "t", 50)
    ran = simulated.run("mirror", "--group", "g", *TO, "--once", "--execute")
    assert (ran.status, ran.rows[0]["state"], there.held()) == (0, "standby", 35)


def test_a_group_is_handed_over(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """Old members are locked out, and the last offsets are stored as soon as they are there. The
    mirror stores nothing after it. ``unlock`` lets old members start again."""
    _, once = mirror
    once()
    words = ("cut-over", "--group", "g", *TO)
    path = join(simulated)
    assert simulated.run(*words).rows[0]["outcome"] == "would be done"
    (row,) = simulated.run(*words, "--execute", "--wait", "0").rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["live-member"])
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["case"], row["reasons"]) == ("leaving", ["leaving"])
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("behind", ["leaving"])
    simulated.in_zookeeper("g", "t", 60)  # the last commit of the member
    simulated.zk.delete(path)
    there.copy(40)
    ran = simulated.run(*words, "--execute", "--wait", "0")
    assert (ran.rows[0]["outcome"], ran.rows[0]["reasons"]) == ("refused", ["not-proven"])
    assert "the group stays locked" in ran.rows[0]["why"]
    assert there.held() == 35
    there.copy(1000)
    assert once().state == "behind"
    assert there.held() == 35
    (row,) = simulated.run(*words, "--execute", "--wait", "0").rows
    assert (row["outcome"], row["offsets"]) == ("done", 1)
    assert row["why"] == "the new program may start in the other cluster"
    assert there.held() == 90
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["case"], row["reasons"]) == ("handed over", [])
    simulated.in_zookeeper("g", "t", 70)  # a late one
    assert once()[:3] == ("g", "target", "handed over")
    there.kafka.joined["g"] = ("new",)
    there.kafka.store("g", {TP: StoredOffset(99)})
    assert once()[:3] == ("g", "target", "handed over")
    (row,) = simulated.run(*words, "--execute", "--wait", "0").rows
    assert (row["outcome"], there.held()) == ("refused", 99)
    assert "was handed over before" in row["why"]  # not: stop them, or delete the group
    there.kafka.joined.clear()
    assert "was handed over before" in simulated.run(*words).rows[0]["why"]
    back = ("plan", "--group", "g", "--from-cluster", "there:9092", *TO[2:], "--out", "back")
    assert simulated.run(*back, "--direction", "kafka-to-zk").status == 0
    (row,) = simulated.run("apply", "back", "--execute").rows
    assert (row["outcome"], simulated.held("g", "t")[0]) == ("done", {0: 69})
    assert simulated.run("unlock", "--group", "g", "--execute").status == 0
    assert (once().state, there.held()) == ("stopped", 99)


def test_a_cut_over_waits_for_the_records(
    simulated: Simulated, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And needs no mirror that runs."""
    now, pauses = [1000.0], list[float]()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        pauses.append(seconds)
        there.copy(len(pauses))

    there.copy(0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", sleep)
    (row,) = simulated.run("cut-over", "--group", "g", *TO, "--execute").rows
    assert (row["outcome"], row["offsets"], there.held()) == ("done", 1, 35)
    assert 5 <= len(pauses) < 20


def test_a_cut_over_that_was_taken_back_stores_nothing(
    simulated: Simulated, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator unlocks the group while the command waits."""
    there.copy(2)
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    unlocked: list[int] = []

    def unlock(names: Iterable[str]) -> Mapping[str, TopicView]:
        if simulated.znodes("g")["/consumers/g/record"] and len(unlocked) < 4:
            unlocked.append(1)
            if len(unlocked) == 4:
                assert simulated.run("unlock", "--group", "g", "--execute").status == 0
                there.copy(1000)
        return There.topics(there, names)

    monkeypatch.setattr(there, "topics", unlock)
    simulated.zk.set(record.path("g"), record.encode(record.Record(command="x")))
    (row,) = simulated.run("cut-over", "--group", "g", *TO, "--execute").rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["other-operator"])
    assert there.held() is None
    assert simulated.run("status", "--group", "g").rows[0]["locked"] == "no"


def test_a_cut_over_that_was_killed_before_it_locked_can_be_taken_back(
    simulated: Simulated, mirror: tuple[Across, Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says that a cut-over has begun, but old members can still start. It is shown, and
    after ``unlock`` the mirror continues."""
    _, once = mirror

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.guard, "lock", killed)
        words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
        assert simulated.run(*words).status == 130
    (row,) = simulated.run("status", "--group", "g").rows
    assert (row["locked"], row["case"], row["reasons"]) == ("no", "leaving", ["leaving"])
    assert once().state == "behind"
    (row,) = simulated.run("unlock", "--group", "g", "--execute").rows
    assert row["outcome"] == "done"
    assert once().state == "in step"
    assert simulated.run("status", "--group", "g").rows[0]["reasons"] == []


def test_a_cut_over_waits_for_a_coordinator_of_the_other_cluster(
    simulated: Simulated, there: There
) -> None:
    """It fails to answer once, while the last offsets are stored."""
    tried = []

    def away() -> None:
        tried.append("g")
        raise LeaderUnavailableError("its coordinator moves")

    between(there, "before commit", away)
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "5")
    assert simulated.run(*words).rows[0]["outcome"] == "done"
    assert (tried, there.held()) == (["g"], 35)


def test_a_group_that_leaves_for_a_cluster_does_not_leave_for_a_third(
    simulated: Simulated, there: There, mirror: tuple[Across, Mirror]
) -> None:
    """The cut-over names its cluster in the record. Nothing is stored in another one."""
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    assert simulated.run(*words).rows[0]["outcome"] == "done"
    found = record.decode("", simulated.zk.zk.get(record.path("g")))
    third = replace(found, to_cluster="third")
    simulated.zk.run(record.write("g", third))
    _, once = mirror
    step = once()
    assert (step.state, [one.value for one in step.reasons]) == ("refused", ["handed-over"])
    assert "names the cluster third" in step.why
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["handed-over"])


def test_a_plan_from_before_a_hand_over_is_not_applied(simulated: Simulated, there: There) -> None:
    """Only the way back from the other cluster may be applied."""
    assert simulated.run("plan", "--group", "g", "--out", "p").status == 0
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    assert simulated.run(*words).rows[0]["outcome"] == "done"
    before = simulated.znodes("g")
    (row,) = simulated.run("apply", "p", "--execute").rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["handed-over"])
    assert (simulated.znodes("g"), simulated.kafka.committed) == (before, {})


def test_a_client_that_is_not_registered_delays_the_hand_over(
    simulated: Simulated, there: There
) -> None:
    """It commits after the last offsets were read. The group is not recorded as handed over."""
    between(there, "after commit", lambda: simulated.in_zookeeper("g", "t", 7))
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["other-writer"])
    assert not record.decode("", simulated.zk.zk.get(record.path("g"))).handed_over
    assert (simulated.run(*words).rows[0]["outcome"], there.held()) == ("done", 37)


def test_a_topic_recreated_after_the_last_commit_delays_the_hand_over(
    simulated: Simulated, there: There
) -> None:
    """The offset that was just stored is of another topic."""
    between(there, "after commit", lambda: there.recreate("new"))
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"]) == ("refused", ["topic-recreated"])


def test_another_client_there_ends_the_hand_over(simulated: Simulated, there: There) -> None:
    """It commits after the last offsets were stored."""
    between(there, "after commit", lambda: there.kafka.store("g", {TP: StoredOffset(1)}))
    words = ("cut-over", "--group", "g", *TO, "--execute", "--wait", "0")
    (row,) = simulated.run(*words).rows
    assert (row["outcome"], row["reasons"], there.held()) == ("refused", ["follower-moved"], 1)


@pytest.mark.parametrize("command", ["mirror", "cut-over"])
@pytest.mark.parametrize("state", [one.__name__ for one in STATES])
def test_each_state_of_a_group(
    simulated: Simulated, there: There, state: str, command: str
) -> None:
    """The table of cases decides what is mirrored: groups that are not mirrored otherwise. Of
    another group, no store in either cluster is changed."""
    simulated.zk.delete("/consumers/g")
    there.recreate("id of t", partitions=2)
    build(simulated, state)
    with Stores(Servers("sim:1", 10.0, 10.0)) as stores:
        (found,) = read_states(stores, ["g"], {}, False, {"g": "g"})
    assert not isinstance(found, tuple)
    answer = TABLE[Action.MIRROR_ELSEWHERE][case_of(found)]
    before = simulated.znodes("g"), deepcopy(simulated.kafka.committed)
    words = ("--once",) if command == "mirror" else ("--wait", "0")
    ran = simulated.run(command, "--group", "g", *TO, "--execute", *words)
    (row,) = ran.rows
    word = row["state" if command == "mirror" else "outcome"]
    reason = answer.reason and answer.reason.value
    if state in ("leaving", "handed_over"):
        if command == "mirror":
            state = "behind" if state == "leaving" else "handed over"
            assert (word, there.held()) == (state, None)
        else:
            assert word == "done"
            assert there.held() is not None
        return
    if reason is None:
        assert word in ("in step", "done"), ran
        assert there.held() is not None
        return
    assert word in ("refused", "skipped", "failed"), ran
    assert row["reasons"] == [reason], ran
    assert (simulated.znodes("g"), simulated.kafka.committed) == before
    assert not there.kafka.committed


def test_options_that_have_no_effect(simulated: Simulated, there: There) -> None:
    """Are refused."""
    for words in (("--end",), ("--when-empty",)):
        ran: Any = simulated.run("mirror", "--group", "g", *TO, *words)
        assert ran.status == 2
        assert "has no effect with --to-cluster" in ran.err
    ran = simulated.run("mirror", "--group", "g", "--not-proven", "lower")
    assert "--not-proven requires --to-cluster" in ran.err
    for word in ("--rename", "g=x"), ("--lead", "kafka"):
        ran = simulated.run("cut-over", "--group", "g", *word)
        assert f"{word[0]} requires --to-cluster" in ran.err
    ran = simulated.run("cut-over", "--group", "g", *TO, "--parallel", "2")
    assert "--parallel has no effect with --to-cluster" in ran.err
