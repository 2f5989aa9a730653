"""What a mirror begins with: which group of Kafka, whose offsets, and whether members may start."""

from __future__ import annotations

from tests.migrate import matrix
from tests.migrate.simulated import Simulated, simulated
from tests.migrate.test_mirror import COMPLETE, CUT_OVER, ONCE, PREPARE, held, row

__all__ = ["simulated"]  # the fixture


def was_renamed(one: Simulated) -> None:
    """Move the group to Kafka as ``new``, and back. Kafka then has another group of its name."""
    matrix.renamed(one)
    one.in_kafka("new", "t", 400, 300)
    matrix.good(one.run("undo", "--group", "g", "--execute"))
    one.in_kafka("g", "t", 999, 998)


def test_a_group_that_was_renamed_is_mirrored_under_its_own_name(simulated: Simulated) -> None:
    """A group of Kafka with this name is compared before anything is copied, and no command
    touches the group that it was moved to before."""
    was_renamed(simulated)
    simulated.kafka.joined["g"] = ("other",)
    assert row(simulated, *ONCE, status=3)["reasons"] == ["conflict"]
    assert held(simulated) == ([400, 300], [999, 998])
    del simulated.kafka.joined["g"]
    row(simulated, *ONCE, "--lead", "zookeeper")
    row(simulated, *CUT_OVER)
    assert row(simulated, "status", "--group", "g", status=3)["kafka_group"] == ""
    matrix.good(
        simulated.run("reset", "--group", "g", "--to-offset", "7", "--all-topics", "--execute")
    )
    row(simulated, *ONCE)
    assert held(simulated) == ([7, 7], [7, 7])
    assert simulated.held("new", "t")[1] == {0: 400, 1: 300}


def test_a_live_move_of_a_group_that_was_renamed_uses_its_own_name(simulated: Simulated) -> None:
    """So does the reset that its refusal recommends, and the status of a prepared group."""
    was_renamed(simulated)
    assert "reset --store kafka" in row(simulated, *PREPARE, status=3)["why"]
    words = ("--to-offset", "7", "--all-topics", "--store", "kafka", "--execute")
    matrix.good(simulated.run("reset", "--group", "g", *words))
    assert held(simulated)[1] == [7, 7]
    assert simulated.held("new", "t")[1] == {0: 400, 1: 300}
    row(simulated, *PREPARE)
    found = row(simulated, "status", "--group", "g", status=3)
    assert (found["kafka_group"], found["case"]) == ("", "prepared")


def test_a_choice_does_not_keep_what_the_chosen_store_lacks(simulated: Simulated) -> None:
    """The new program would begin at an offset that the operator has rejected."""
    matrix.untouched(simulated)
    simulated.in_kafka("g", "t", None, None, 777)
    simulated.topic("t", *[(0, 1000)] * 3)
    for lead, lacks in (("zookeeper", "zookeeper has none, kafka 777"), ("kafka", "t-0: kafka")):
        found = row(simulated, *ONCE, "--lead", lead, status=3)
        assert (lacks in found["why"], found["reasons"]) == (True, ["conflict"])
    assert held(simulated) == ([100, 50], [777])


def test_an_offset_that_has_expired_is_restored_by_a_choice_of_kafka(simulated: Simulated) -> None:
    """Both stores had it when the mirror stopped."""
    matrix.mirror_stopped(simulated)
    kept = dict(simulated.kafka.committed["g"])
    one = next(tp for tp in kept if tp.partition == 1)
    simulated.forget("g", one)
    row(simulated, *ONCE, "--lead", "kafka")
    assert simulated.kafka.committed["g"][one].offset == kept[one].offset


def test_a_choice_of_zookeeper_after_a_cut_over_lets_old_members_in(simulated: Simulated) -> None:
    """ZooKeeper leads again, as after ``undo``."""
    matrix.mirror_stopped(simulated)
    row(simulated, *ONCE, "--lead", "zookeeper")
    assert row(simulated, "status", "--group", "g", status=3)["locked"] == "no"


def test_a_group_that_was_prepared_for_a_live_move_is_mirrored_again(simulated: Simulated) -> None:
    """Its mode is ``zookeeper`` for good. Only while migratable members run it is left alone."""
    matrix.prepared(simulated)
    member = "/consumers/g/live/members/g_m"
    simulated.znode(member, b"{}")
    assert row(simulated, *ONCE, status=3)["reasons"] == ["live-move"]
    simulated.zk.delete(member)
    assert row(simulated, *ONCE)["state"] == "in step"
    row(simulated, *CUT_OVER)
    row(simulated, *COMPLETE)
    assert row(simulated, "status", "--group", "g")["case"] == "moved"
