"""Each rule by which the mirror decides, from one reading of both stores. No server."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from zkmigrate.model import KafkaOffset, Mirror, Store, TopicState, ZkOffset
from zkmigrate.plan.mirror import (
    Decision,
    Reading,
    behind,
    decide,
    first_leader,
    is_marked,
    mark,
)
from zkmigrate.reasons import Reason

from zkconsumer.core.common.types import TopicPartition

ZK, KAFKA = Store.ZOOKEEPER, Store.KAFKA
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CZXID = 5


def kafka(offset: int, *, ours: bool = False) -> KafkaOffset:
    """An offset in Kafka, of a consumer or of the mirror."""
    return KafkaOffset(offset, -1, mark(offset) if ours else "")


def ours(offset: int) -> KafkaOffset:
    """An offset that the mirror has committed."""
    return kafka(offset, ours=True)


def seen(
    zk: Mapping[TopicPartition, int | ZkOffset],
    in_kafka: Mapping[TopicPartition, KafkaOffset],
    old: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
    czxid: int = CZXID,
) -> Reading:
    """One group. The topic was created before its offsets were stored."""
    nodes = {
        tp: one if isinstance(one, ZkOffset) else ZkOffset(one, 0, CZXID + 1, 0)
        for tp, one in zk.items()
    }
    return Reading(old, new, nodes, in_kafka, {"t": TopicState(czxid, (0, 1))})


def mirror(leader: Store, **values: int) -> Mirror:
    """A mirror that has agreed on offsets of partitions ``t0`` and ``t1``."""
    agreed = {TopicPartition("t", int(name[1:])): offset for name, offset in values.items()}
    return Mirror(leader, 0, agreed, {"t": CZXID})


def test_zookeeper_leads_and_is_copied() -> None:
    """What a member has committed goes to Kafka, what is equal does not."""
    found = decide(
        seen({T0: 7, T1: 3}, {T0: ours(5), T1: ours(3)}, old=("a",)), mirror(ZK, t0=5, t1=3)
    )
    assert found == Decision(ZK, {T0: 7, T1: 3}, to_kafka={T0: 7})


def test_a_partition_that_has_no_offset_in_kafka_is_copied() -> None:
    """The first time, or because it has expired there."""
    assert decide(seen({T0: 7}, {}), mirror(ZK)).to_kafka == {T0: 7}
    assert decide(seen({T0: 7}, {}), mirror(ZK, t0=7)).to_kafka == {T0: 7}


def test_kafka_leads_and_is_copied() -> None:
    """After the cut-over, the other way."""
    found = decide(seen({T0: 7}, {T0: kafka(9), T1: kafka(1)}, new=("n",)), mirror(KAFKA, t0=7))
    assert found == Decision(KAFKA, {T0: 9, T1: 1}, to_zookeeper={T0: 9, T1: 1})


@pytest.mark.parametrize("leader", Store)
def test_the_last_leader_leads_without_members(leader: Store) -> None:
    """A client that commits through the broker has no registration in ZooKeeper."""
    zk, in_kafka = ({T0: 9}, {T0: ours(7)}) if leader is ZK else ({T0: 7}, {T0: kafka(9)})
    found = decide(seen(zk, in_kafka), mirror(leader, t0=7))
    assert (found.leader, found.copies, found.stop) == (leader, 1, None)


def test_members_that_appear_on_the_other_side_make_it_lead() -> None:
    """If the side that led has moved no offset that was not copied."""
    found = decide(seen({T0: 7}, {T0: kafka(9)}, new=("n",)), mirror(ZK, t0=7))
    assert found == Decision(KAFKA, {T0: 9}, to_zookeeper={T0: 9})
    found = decide(seen({T0: 9}, {T0: kafka(7)}, old=("o",)), mirror(KAFKA, t0=7))
    assert found == Decision(ZK, {T0: 9}, to_kafka={T0: 9})


def test_members_on_both_sides_stop_it() -> None:
    """Both are named, and nothing is copied."""
    found = decide(seen({T0: 9}, {T0: ours(7)}, ("old-1",), ("new-1",)), mirror(ZK, t0=7))
    assert found.stop is not None
    assert found.stop[0] is Reason.BOTH_SIDES
    assert "old-1" in found.stop[1]
    assert "new-1" in found.stop[1]
    assert found.copies == 0
    assert found.values == {T0: 7}


@pytest.mark.parametrize(
    ("leader", "zk", "in_kafka", "members"),
    [
        (ZK, 7, kafka(600), ((), ())),
        (ZK, 8, kafka(600), (("a",), ())),
        (ZK, 7, kafka(3), ((), ())),
        (KAFKA, 600, kafka(7), ((), ())),
        (KAFKA, 3, kafka(8), ((), ("n",))),
        (ZK, 8, kafka(9), ((), ("n",))),
    ],
    ids=["moved", "both moved", "lowered", "moved back", "lowered there", "left something behind"],
)
def test_an_offset_that_moved_on_the_following_side_stops_it(
    leader: Store, zk: int, in_kafka: KafkaOffset, members: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Both values are named. In the last case new members began before the last commit of the old
    ones was copied."""
    found = decide(seen({T0: zk}, {T0: in_kafka}, *members), mirror(leader, t0=7))
    assert found.stop is not None
    assert found.stop[0] is Reason.FOLLOWER_MOVED
    assert {str(zk), str(in_kafka.offset)} <= set(re.findall(r"\d+", found.stop[1]))
    assert found.copies == 0


def test_a_commit_of_a_mirror_that_was_killed_is_known_by_its_mark() -> None:
    """It had not recorded it. Another value under the same mark is one of a consumer's tool."""
    found = decide(seen({T0: 9}, {T0: ours(8)}), mirror(ZK, t0=7))
    assert found == Decision(ZK, {T0: 9}, to_kafka={T0: 9})
    other = KafkaOffset(3, -1, mark(8))
    assert not is_marked(other)
    assert decide(seen({T0: 9}, {T0: other}), mirror(ZK, t0=7)).stop is not None


def test_a_late_commit_of_a_suspended_mirror_is_put_right_after_the_cut_over() -> None:
    """Kafka leads, and has an older offset with the mark. Members would have made it refused."""
    late = {T0: ours(5)}
    found = decide(seen({T0: 7}, late), mirror(KAFKA, t0=7))
    assert found == Decision(KAFKA, {T0: 7}, to_kafka={T0: 7})
    found = decide(seen({T0: 7}, late, new=("n",)), mirror(KAFKA, t0=7))
    assert found == Decision(KAFKA, {T0: 7})


def test_a_commit_of_a_killed_mirror_is_agreed_on_when_new_members_lead() -> None:
    """It had not recorded it, and both stores have it. So it is not put right as a late one."""
    found = decide(seen({T0: 8}, {T0: ours(8)}, new=("n",)), mirror(ZK, t0=7))
    assert (found.leader, found.values, found.copies, found.stop) == (KAFKA, {T0: 8}, 0, None)


def test_a_lower_offset_on_the_leading_side_is_followed_and_said() -> None:
    """It is a reset."""
    found = decide(seen({T0: 2}, {T0: ours(7)}), mirror(ZK, t0=7))
    assert found.to_kafka == {T0: 2}
    assert found.notes == ("t-0: zookeeper went back from 7 to 2, also copied",)


def test_offsets_in_kafka_do_not_expire() -> None:
    """They are committed again, but never over a member, nor what a consumer has committed."""
    assert decide(seen({T0: 7}, {T0: ours(7)}), mirror(ZK, t0=7)).copies == 0
    assert decide(seen({T0: 7}, {T0: ours(7)}), mirror(ZK, t0=7), True).to_kafka == {T0: 7}
    both = {T0: ours(7), T1: kafka(3)}
    agreed = mirror(KAFKA, t0=7, t1=3)
    assert decide(seen({T0: 7, T1: 3}, both), agreed, True).to_kafka == {T0: 7}
    assert decide(seen({T0: 7, T1: 3}, both, new=("n",)), agreed, True).copies == 0


def test_offsets_that_have_expired_in_kafka_are_restored() -> None:
    """As long as no member is there, whose reset policy may have decided already."""
    assert decide(seen({T0: 7}, {}), mirror(KAFKA, t0=7)).to_kafka == {T0: 7}
    assert decide(seen({T0: 7}, {}, new=("n",)), mirror(KAFKA, t0=7)).copies == 0


def test_an_offset_is_not_copied_to_a_younger_topic() -> None:
    """Its topic was deleted and created again. What its members commit then is."""
    found = decide(seen({T0: 7}, {}, czxid=90), mirror(ZK, t0=7))
    assert found.copies == 0
    assert found.values == {}
    assert found.notes == ("t-0: not copied, its topic is younger than 7",)
    late = decide(seen({T0: 7}, {T0: ours(7)}, czxid=90), mirror(ZK, t0=7))
    assert (late.copies, late.forget) == (0, {T0})
    again = {T0: ZkOffset(1, 0, 95, 0)}
    assert decide(seen(again, {}, czxid=90), mirror(ZK, t0=7)).to_kafka == {T0: 1}
    assert decide(seen({T0: 7}, {}, czxid=90), mirror(KAFKA, t0=7)).copies == 0
    found = decide(seen({T0: 7}, {T0: kafka(1)}, new=("n",), czxid=90), mirror(KAFKA, t0=7))
    assert (found.stop, found.to_zookeeper) == (None, {T0: 1})
    same = decide(seen({T0: 7}, {T0: kafka(7)}, new=("n",), czxid=90), mirror(KAFKA, t0=7))
    assert same.to_zookeeper == {T0: 7}  # otherwise it would not be known as one of this topic


def test_a_topic_that_is_gone_is_left_alone() -> None:
    """Its agreed offsets are kept, in case it is hidden for a moment only."""
    gone = seen({T0: 7}, {T0: ours(7)})._replace(topics={})
    assert decide(gone, mirror(ZK, t0=5)) == Decision(ZK, {T0: 5})


def test_an_offset_that_cannot_be_read_is_named() -> None:
    """The others are copied."""
    odd = {T0: ZkOffset(None, 0, 9, 0, "/t/0: not a number"), T1: 3}
    found = decide(seen(odd, {}), mirror(ZK))
    assert found.to_kafka == {T1: 3}
    assert found.notes == ("/t/0: not a number: not copied",)


def test_who_leads_first() -> None:
    """The side with members, otherwise ZooKeeper. Offsets that differ need a decision."""
    assert first_leader(seen({T0: 7}, {}), None) == (ZK, {})
    assert first_leader(seen({T0: 7}, {T0: kafka(7)}, new=("n",)), None) == (KAFKA, {T0: 7})
    assert first_leader(seen({T0: 7}, {}, ("o",), ("n",)), None)[0] is Reason.BOTH_SIDES
    differ = seen({T0: 7}, {T0: kafka(9)})
    assert first_leader(differ, None)[0] is Reason.CONFLICT
    assert first_leader(differ, ZK) == (ZK, {T0: 9})
    assert first_leader(differ, KAFKA) == (KAFKA, {T0: 7})
    assert first_leader(seen({T0: 7}, {T0: ours(5)}), None) == (ZK, {T0: 5})
    older = seen({T0: 7}, {T0: kafka(1)}, czxid=90)  # than the topic
    assert first_leader(older, KAFKA) == (KAFKA, {})
    assert first_leader(older._replace(new=("n",)), None) == (KAFKA, {})
    assert first_leader(seen({T0: 7}, {}, old=("o",)), KAFKA)[0] is Reason.LIVE_MEMBER
    assert first_leader(seen({T0: 7}, {}, new=("n",)), ZK)[0] is Reason.COORDINATOR_MEMBER


def test_what_is_behind() -> None:
    """By partition, in the direction of the copies."""
    now = seen({T0: 7, T1: 3}, {T0: ours(5)})
    assert behind(now, ZK) == {T0: 2, T1: 3}
    assert behind(now, KAFKA) == {T0: 2}
    assert behind(seen({T0: 7}, {T0: ours(7)}), ZK) == {}


def test_a_late_commit_for_a_topic_that_was_created_again_is_forgotten() -> None:
    """Nothing is agreed on for the new topic. Once a member has started there, nothing can be put
    right."""
    there = {T0: ours(7), T1: kafka(3)}
    found = decide(seen({}, there, czxid=CZXID + 9), mirror(KAFKA, t0=7))
    assert found == Decision(KAFKA, {T1: 3}, to_zookeeper={T1: 3}, forget=frozenset([T0]))
    found = decide(seen({}, there, new=("n",), czxid=CZXID + 9), mirror(KAFKA, t0=7))
    assert found.forget == frozenset()


def test_only_offsets_of_the_leading_store_are_committed_again() -> None:
    """Not what only Kafka has, also if ZooKeeper has a znode of the deleted topic there."""
    there = {T0: ours(7)}
    now = seen({T0: 7}, there, old=("o",))
    assert decide(now, mirror(ZK, t0=7, t1=3), refresh=True).to_kafka == {T0: 7}
    now = seen({T0: 7, T1: ZkOffset(3, 0, CZXID - 1, 0)}, there, old=("o",))
    assert decide(now, mirror(ZK, t0=7, t1=3), refresh=True).to_kafka == {T0: 7}
