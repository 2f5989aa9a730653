"""Everything that can go wrong with a move, on real servers: it is refused by name, with a fix.

The numbers are those of the table in ``docs/explanation/moving.md``. The last test compares them.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition as KafkaPartition
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from kazoo.security import make_acl
from zkmigrate.apply.outcome import Outcome
from zkmigrate.formats.plan_file import render
from zkmigrate.model import Direction, KafkaOffset
from zkmigrate.plan.options import CHOICES, Options, Skip
from zkmigrate.reasons import Reason

from tests.migrate.rows import rows_of, run
from tests.support.groups import GroupWatch
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.servers import LocalCluster, wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

BACK = Direction.KAFKA_TO_ZK


def kinds(bench: Bench, group: str, direction: Direction = Direction.ZK_TO_KAFKA) -> list[Reason]:
    """The kinds of problems that a plan of one group finds, each with a fix."""
    plan, _ = bench.plan([group], direction)
    problems = plan.groups[0].problems
    assert all(problem.fix for problem in problems)
    return [problem.kind for problem in problems]


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command and return its status and its output."""
    capsys.readouterr()
    status = run(arguments)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return status, printed.out, printed.err


@pytest.fixture
def legacy(filled: Bench, group: str, topic: str) -> Iterator[Any]:
    """Starts a live legacy member and returns its consumer id."""
    config = {
        "zookeeper.connect": filled.cluster.zookeeper,
        "group.id": group,
        "consumer.id": "live",
        "auto.commit.enable": "false",
    }
    started: list[ZookeeperConsumerConnector] = []

    def start() -> str:
        connector = ZookeeperConsumerConnector(config)
        started.append(connector)
        connector.create_message_streams({topic: 1})
        with GroupWatch(filled.cluster.zookeeper, group) as watch:
            watch.wait_owners(topic, lambda owners: len(owners) == 2, 20, "the member owns all")
        return f"{group}_live"

    yield start
    for connector in started:
        connector.shutdown()


@pytest.fixture
def joined(filled: Bench, group: str, topic: str) -> Iterator[Any]:
    """Starts a consumer that joins through the coordinator and commits nothing."""
    consumers: list[KafkaConsumer] = []

    def start() -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=filled.cluster.bootstrap,
            group_id=group,
            client_id="modern",
            enable_auto_commit=False,
            session_timeout_ms=60_000,
            metadata_max_age_ms=1000,  # it may join before it knows the partitions
        )
        consumers.append(consumer)

        def assigned() -> bool:
            consumer.poll(timeout_ms=200)
            return bool(consumer.assignment())

        wait_until(assigned, 90, "the consumer has joined")

    yield start
    for consumer in consumers:
        consumer.close()


def test_01_live_members(filled: Bench, group: str, legacy: Any) -> None:
    """A live legacy member refuses plan and apply by name, and its claims stay."""
    plan, journal = filled.plan([group])
    name = legacy()
    before = filled.znodes(group)
    assert kinds(filled, group) == [Reason.LIVE_MEMBER]
    (refused,) = filled.apply(plan, journal)
    assert refused.outcome is Outcome.REFUSED
    assert name in refused.why
    assert filled.znodes(group) == before


def test_03_a_group_that_is_moved_in_part(filled: Bench, group: str, topic: str) -> None:
    """Offsets that are already in Kafka do not hide the others. Different ones need a decision."""
    filled.set_kafka(group, topic, {0: 3})
    plan, journal = filled.plan([group])
    assert [entry.write for entry in plan.groups[0].entries] == [False, True]
    filled.set_kafka(group, topic, {0: 2})
    assert kinds(filled, group) == [Reason.CONFLICT]
    assert "it has changed since" in filled.apply(plan, journal)[0].why


def test_10_an_offset_that_is_refused_inside_a_good_answer(
    filled: Bench, group: str, topic: str
) -> None:
    """The partition is named, nothing is marked as moved, and rollback restores the old offsets."""
    other = f"{topic}-other"
    filled.topic(other, 1)
    filled.set_zk(group, other, {0: 5})
    before = filled.znodes(group)
    plan, journal = filled.plan([group])

    def effect(what: str) -> None:
        if what.startswith("before kafka commit"):
            filled.cluster.delete_topic(other)

    (result,) = filled.apply(plan, journal, effect)
    assert result.outcome is Outcome.REFUSED
    assert f"the coordinator refused 1 of 3 offsets, such as {other}-0" in result.why
    assert filled.znodes(group) == before
    assert len(filled.committed(group, {topic: 2, other: 1})) == 2
    (again,) = filled.apply(plan, journal)
    assert f"topic {other} was deleted since the plan was made: plan again" in again.why
    assert filled.rollback(plan, journal)[0].outcome is Outcome.DONE
    assert filled.committed(group, {topic: 2, other: 1}) == {}


def test_04_no_zookeeper_is_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the server is away, the status is 1 and there is one line."""
    arguments = ("plan", "--all", "--zookeeper", "127.0.0.1:9", "--timeout", "1")
    status, out, err = said(capsys, *arguments)
    assert (status, out) == (1, "")
    assert err.startswith("error: zookeeper.connect")
    assert err.count("\n") == 1


def test_05_verify_compares_every_value(
    filled: Bench, group: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """verify finds an offset that is behind, a missing one, and one that an old consumer stored
    after the move. It reports progress of the new consumers, which is not a difference."""
    zookeeper = ("--zookeeper", filled.cluster.zookeeper)
    plan = str(tmp_path / "plan")
    assert said(capsys, "plan", "--group", group, "--out", plan, *zookeeper)[0] == 0
    assert said(capsys, "apply", plan, *zookeeper)[0] == 0
    assert filled.committed(group, {topic: 2}) == {}, "a dry run wrote"
    assert said(capsys, "apply", plan, "--execute", *zookeeper)[0] == 0
    assert said(capsys, "status", plan, *zookeeper)[0] == 0

    def verified() -> tuple[int, list[tuple[object, ...]], str]:
        status, out, err = said(capsys, "status", plan, "--json", *zookeeper)
        names = ("partition", "planned", "found", "kind")
        return status, [tuple(row[name] for name in names) for row in rows_of(out)], err

    filled.set_kafka(group, topic, {1: 5})
    status, rows, err = verified()
    assert (status, rows) == (0, [(1, 4, 5, "ahead")])
    assert "compared: 1 ahead" in err
    assert said(capsys, "status", plan, "--strict", *zookeeper)[0] == 3
    filled.set_kafka(group, topic, {1: 2})
    assert verified()[:2] == (3, [(1, 4, 2, "behind")])
    filled.set_zk(group, topic, {0: 6})
    assert verified()[:2] == (3, [(0, 3, 6, "source-moved-on"), (1, 4, 2, "behind")])
    filled.set_kafka(group, topic, {1: 4})
    assert verified()[:2] == (3, [(0, 3, 6, "source-moved-on")])
    (again,) = rows_of(said(capsys, "apply", plan, "--execute", "--json", *zookeeper)[1])
    assert again["outcome"] == "refused"
    assert (
        f"{topic}-0: zookeeper holds 6, not 3: zookeeper has changed since the move" in again["why"]
    )


def test_06_a_move_is_not_undone(
    filled: Bench, group: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A moved group that has continued is ``moved`` for each further plan. No plan
    writes the old offsets back with any --on-conflict, and verify accepts such a plan too."""
    filled.set_zk(group, topic, {1: 2**63 - 1})
    plan, journal = filled.plan([group], options=Options(out_of_range="clamp"))
    assert filled.apply(plan, journal)[0].outcome is Outcome.DONE
    filled.set_kafka(group, topic, {0: 10})
    zookeeper = ("--zookeeper", filled.cluster.zookeeper)
    one = ("--group", group)
    status, out, _ = said(capsys, "plan", *one, "--json", *zookeeper)
    assert (status, rows_of(out)[0]["verdict"]) == (0, "moved")
    for rule in CHOICES["on_conflict"]:
        file = str(tmp_path / rule)
        asked = ("--on-conflict", rule, "--out", file)
        assert said(capsys, "plan", *one, *asked, *zookeeper)[0] == 0
        assert said(capsys, "apply", file, "--execute", *zookeeper)[0] == 0
        assert said(capsys, "status", file, *zookeeper)[0] == 0
    held = filled.committed(group, {topic: 2})
    assert sorted(stored.offset for stored in held.values()) == [10, 20]  # type: ignore[attr-defined]


def test_07_the_day_of_expiry(any_bench: Bench, group: str, topic: str) -> None:
    """The retention is read from the broker or depends on its version. A short one is a warning."""
    any_bench.topic(topic, 1)
    any_bench.set_zk(group, topic, {0: 3})
    plan, _ = any_bench.plan([group])
    (note,) = [note for note in plan.groups[0].notes if "deletes these offsets" in note]
    day = "2023-11-21" if any_bench.cluster.kafka == "3.9" else "2023-11-15"
    assert day in note
    assert ("start consumers" in note) == (any_bench.cluster.kafka != "3.9")
    assert ("does not report" in note) == (any_bench.cluster.kafka == "0.8.2")


def test_08_offsets_that_do_not_fit_the_log(filled: Bench, group: str, topic: str) -> None:
    """The plan refuses offsets beyond the end, in a missing partition or topic, or older than the
    topic."""
    filled.set_zk(group, topic, {0: 21})
    assert kinds(filled, group) == [Reason.OUT_OF_RANGE]
    clamped, _ = filled.plan([group], options=Options(out_of_range="clamp"))
    assert clamped.groups[0].entries[0].to == 20
    filled.set_zk(group, topic, {0: 3, 7: 1})
    assert kinds(filled, group) == [Reason.PARTITION_MISSING]
    filled.client.delete(f"/consumers/{group}/offsets/{topic}/7")
    filled.cluster.delete_topic(topic)
    assert kinds(filled, group) == [Reason.TOPIC_MISSING]
    filled.topic(topic, 2)
    assert kinds(filled, group) == [Reason.RECREATED]


def test_08_offsets_that_leave_the_log_after_the_plan(
    filled: Bench, group: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Apply checks again. An offset whose messages were deleted meanwhile is refused by name, also
    in a dry run. A recreated topic is not mistaken for the old one."""
    plan, journal = filled.plan([group])
    admin = KafkaAdminClient(bootstrap_servers=filled.cluster.bootstrap)
    admin.delete_records({KafkaPartition(topic, 1): 5})
    admin.close()
    file = tmp_path / "plan"
    file.write_text("".join(render(plan.direction, plan.made_ms, plan.groups)))
    for more in ((), ("--execute",)):
        arguments = ("apply", str(file), *more, "--json", "--zookeeper", filled.cluster.zookeeper)
        status, out, _ = said(capsys, *arguments)
        assert status == 3
        assert f"{topic}-1: the log is 5-20 now, which does not include 4" in rows_of(out)[0]["why"]
    clamped, _ = filled.plan([group], options=Options(out_of_range="clamp"))
    filled.cluster.delete_topic(topic)
    filled.topic(topic, 2)
    (refused,) = filled.apply(clamped, journal)
    assert f"topic {topic} was deleted since the plan was made: plan again" in refused.why
    assert filled.committed(group, {topic: 2}) == {}


def test_09_the_coordinator_is_away_for_a_while(
    bench_on: Callable[[LocalCluster], Bench], group: str, topic: str
) -> None:
    """A broker that restarts before and in the middle of a run delays it, but every group is
    moved."""
    with LocalCluster("3.9") as cluster:
        from_here = bench_on(cluster)
        from_here.topic(topic, 2)
        groups = [f"{group}-{number}" for number in range(3)]
        for name in groups:
            from_here.set_zk(name, topic, {0: 3})
        plan, journal = from_here.plan(groups)
        server = cluster.broker_servers[0]
        restarts: list[threading.Thread] = []

        def effect(what: str) -> None:
            middle = what.startswith("before kafka commit") and groups[1] in what
            if what == "before journal create" or middle:
                for restart in restarts:
                    restart.join()
                server.kill()
                restarts.append(threading.Thread(target=server.start))
                restarts[-1].start()

        results = from_here.apply(plan, journal, effect)
        assert len(restarts) == 2
        restarts[1].join()
        assert [result.outcome for result in results] == [Outcome.DONE] * 3, results
        from_here.close()


def test_09_the_coordinator_moves(
    bench_on: Callable[[LocalCluster], Bench], group: str, topic: str
) -> None:
    """When the coordinator's broker is killed, the same run finds the next coordinator. When the
    broker returns and leads again, requests to the other one are redirected and nothing is missed.
    When the other broker hangs, so that commits time out, they are sent again until they are
    stored."""
    properties = {
        "offsets.topic.replication.factor": "2",
        "offsets.topic.num.partitions": "1",
        "leader.imbalance.check.interval.seconds": "1",
        "offsets.commit.timeout.ms": "1000",
        "replica.lag.time.max.ms": "5000",
    }
    with LocalCluster("3.9", brokers=2, properties=properties) as cluster:
        bench = bench_on(cluster)
        cluster.create_topic(topic, 2, replication=2)
        groups = [f"{group}-{number}" for number in range(3)]
        for name in groups:
            bench.set_zk(name, topic, {0: 0})
        plan, journal = bench.plan(groups)
        ports: list[int] = []

        def effect(what: str) -> None:
            if what.startswith("before kafka commit") and groups[1] in what:
                bench.kafka.fetch(groups[1], [])
                ports.append(bench.kafka.coordinator(groups[1]).port)
                (dying,) = [one for one in cluster.broker_servers if one.port == ports[0]]
                dying.kill()

        results = bench.apply(plan, journal, effect)
        assert [result.outcome for result in results] == [Outcome.DONE] * 3, results
        assert ports
        assert len(bench.committed(groups[1], {topic: 2})) == 1
        assert bench.kafka.coordinator(groups[1]).port != ports[0]
        (dead,) = [one for one in cluster.broker_servers if not one.running]
        dead.start()

        def leads_again() -> bool:
            assert len(bench.committed(groups[1], {topic: 2})) == 1
            return bench.kafka.coordinator(groups[1]).port == ports[0]

        wait_until(leads_again, 90, "the first broker is the coordinator again")
        (other,) = [one for one in cluster.broker_servers if one.port != ports[0]]
        other.pause()
        try:
            bench.set_kafka(groups[1], topic, {0: 0, 1: 5})
        finally:
            other.resume()
        assert len(bench.committed(groups[1], {topic: 2})) == 2
        bench.close()


def test_11_metadata_has_no_place_in_zookeeper(bench: Bench, group: str, topic: str) -> None:
    """The plan names the metadata that ZooKeeper cannot store, and keeps it."""
    bench.topic(topic, 1)
    bench.set_kafka(group, topic, {0: StoredOffset(3, 0, "kept")})
    plan, journal = bench.plan([group], BACK)
    assert any("metadata" in note for note in plan.groups[0].notes)
    (entry,) = plan.groups[0].entries
    assert entry.kafka == KafkaOffset(3, 0, "kept")
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE


def test_12_names_that_zookeeper_cannot_hold(
    bench: Bench, unique: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A coordinator accepts any name. Names that cannot be part of a path are refused, others are
    moved, and both are escaped on the terminal. No file appears outside the chosen folder."""
    bench.topic(topic, 1)
    tail = unique[-8:]
    names = [
        f"../../{tail}", f"a/b/{tail}", f"<script>alert(1)</script>{tail}", f"\x1b[2J\r\n{tail}",
        f"=cmd|' /C calc'!{tail}", f"{tail}\x00end", ".", "..", tail + "x" * 30_000,
    ]  # fmt: skip
    odd = [f"\u202egnp.{tail}", f" {tail} ", f"é{tail}", f"=1,{tail}"]
    for name in (*names, *odd):
        bench.set_kafka(name, topic, {0: 3})
    bench.set_kafka(tail, topic, {0: 3})
    plan = str(tmp_path / "plan")
    chosen = [word for name in (*names, *odd, tail) for word in ("--group", name)]
    arguments = (*chosen, "--direction", "kafka-to-zk")
    zookeeper = ("--zookeeper", bench.cluster.zookeeper)
    status, out, err = said(capsys, "plan", *arguments, "--out", plan, "--csv", *zookeeper)
    assert status == 3
    assert out.count("bad-name") == len(names)
    assert all(character.isprintable() or character == "\n" for character in out + err)
    assert (out + err).isascii()
    status, out, err = said(capsys, "apply", plan, "--execute", *zookeeper)
    assert status == 3
    assert all(character.isprintable() or character == "\n" for character in out + err)
    for name in (*odd, tail):
        assert bench.znodes(name)[f"/consumers/{name}/offsets/{topic}/0"] == b"3"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan", "plan.journal"]


def test_13_a_wrong_chroot_is_no_success(
    bench: Bench, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chroot that does not exist, has no brokers, or has no matching groups is an error."""
    zookeeper = bench.cluster.zookeeper
    for where, words in (
        (f"{zookeeper}/nowhere", "does not exist"),
        (chroot, "no broker is registered"),
    ):
        status, out, err = said(capsys, "plan", "--all", "--zookeeper", where)
        assert status != 0
        assert out == ""
        assert words in err
    nothing = ("plan", "--groups-regex", "no-such-group.*", "--zookeeper", zookeeper)
    status, _, err = said(capsys, *nothing)
    assert status == 1
    assert "is the chroot right?" in err


def test_14_znodes_of_another_principal(filled: Bench, group: str, topic: str) -> None:
    """A partition that the migrator may not own fails its group before Kafka is changed, and the
    group is released. The next group is moved, although the migrator may not write its offsets. It
    does not need to."""
    other = f"{group}-other"
    filled.set_zk(other, topic, {0: 3})
    plan, journal = filled.plan([group, other])
    path = f"/consumers/{group}/owners/{topic}"
    filled.client.ensure_path(path)
    for closed in (path, f"/consumers/{other}/offsets/{topic}/0"):
        filled.client.set_acls(closed, [make_acl("world", "anyone", read=True)])
    held: list[str] = []

    def effect(what: str) -> None:
        if what.startswith("before kafka commit"):  # of the next group
            held.extend(filled.client.get_children(f"/consumers/{group}/ids"))

    first, second = filled.apply(plan, journal, effect)
    assert held == []
    assert first.outcome is Outcome.FAILED
    assert path in first.why
    assert "access list" in first.why
    assert filled.committed(group, {topic: 2}) == {}
    assert filled.client.get_children(f"/consumers/{group}/ids") == []
    assert second.outcome is Outcome.DONE


def test_14_topics_of_another_principal(
    bench_on: Callable[[LocalCluster], Bench],
    group: str,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The broker's response omits offsets of topics that the migrator may not describe. They are
    not treated as missing. The topic is named. If the group is known to have it, the operator must
    skip it or grant access before the group moves."""
    secret = f"{topic}-secret"
    properties = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with LocalCluster("3.9", properties=properties) as cluster:
        bench = bench_on(cluster)
        for name in (topic, secret):
            bench.topic(name, 1)
            bench.set_kafka(group, name, {0: 3})
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        pattern = ResourcePattern(ResourceType.TOPIC, secret)
        acl = ACL("User:ANONYMOUS", "*", ACLOperation.DESCRIBE, ACLPermissionType.DENY, pattern)
        assert not admin.create_acls([acl])["failed"]
        admin.close()

        def fetched() -> set[str]:
            return {tp.topic for tp in bench.committed(group, {})}

        wait_until(lambda: fetched() == {topic}, 30, "the broker hides the topic")
        plan, _ = bench.plan([group], BACK)
        (note,) = plan.groups[0].notes
        assert secret in note
        arguments = ("--group", group, "--zookeeper", cluster.zookeeper)
        _, _, err = said(capsys, "offsets", "export", *arguments, "--store", "kafka")
        assert secret in err
        bench.set_zk(group, secret, {0: 2})
        for way in Direction:
            plan, _ = bench.plan([group], way)
            (problem,) = plan.groups[0].problems
            assert (problem.kind, problem.names) == (Reason.HIDDEN, (f"{secret}-0",))
        without = Options(skips=(Skip(group, secret),))
        plan, journal = bench.plan([group], BACK, without)
        (note,) = plan.groups[0].notes
        assert note == f"stays behind in kafka: {secret}-0 (unknown, skipped)"
        assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
        bench.close()


def test_15_groups_that_nobody_uses_any_more(filled: Bench, group: str) -> None:
    """A group whose offsets are older than a limit is not moved without a decision. The fix names
    the option for a group that is still needed."""
    later = int(time.time() * 1000) + 400 * 86_400_000
    plan, journal = filled.plan([group], options=Options(), now=later)
    (problem,) = plan.groups[0].problems
    assert problem.kind is Reason.IDLE
    assert "400 days" in problem.what
    assert "--max-idle-days 400" in problem.fix
    (skipped,) = filled.apply(plan, journal)
    assert skipped.outcome is Outcome.SKIPPED
    wanted, second = filled.plan([group], options=Options(max_idle_days=400), now=later)
    assert filled.apply(wanted, second)[0].outcome is Outcome.DONE


def test_16_consumers_at_the_coordinator(
    filled: Bench, group: str, joined: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A consumer that has joined on the broker refuses plan and apply by its client id."""
    plan, journal = filled.plan([group])
    joined()
    assert kinds(filled, group) == [Reason.COORDINATOR_MEMBER]
    (refused,) = filled.apply(plan, journal)
    assert "modern" in refused.why
    assert refused.outcome is Outcome.REFUSED


def test_17_layouts_of_other_clients(filled: Bench, group: str, topic: str) -> None:
    """Znodes in the layout of storm-kafka or pykafka are not mistaken for a JVM group's."""
    for path in (f"partition_{0}", f"owners/{topic}/0-1", f"offsets/{topic}/0-1"):
        whole = f"/consumers/{group}/{path}"
        filled.client.create(whole, b"x", makepath=True)
        assert Reason.FOREIGN_LAYOUT in kinds(filled, group)
        filled.client.delete(whole)
    assert kinds(filled, group) == []


def test_02_offsets_of_a_broken_broker_and_unreadable_ones(
    filled: Bench, group: str, topic: str
) -> None:
    """The plan finds offsets stored below ``offset`` (1.1.0) and znodes with blanks."""
    filled.client.create(f"/consumers/{group}/offset/{topic}/0", b"9", makepath=True)
    assert kinds(filled, group) == [Reason.MISPLACED]
    filled.client.delete(f"/consumers/{group}/offset", recursive=True)
    filled.set_zk(group, topic, {1: b" 8 "})
    assert kinds(filled, group) == [Reason.UNREADABLE]


def test_a_member_that_starts_during_the_move_is_held_off(
    filled: Bench, group: str, topic: str, legacy: Any
) -> None:
    """A member that registers while the migrator claims the group cannot own a partition, and the
    migrator does not report the move as a success."""
    plan, journal = filled.plan([group])
    seen: list[str] = []
    threads: list[threading.Thread] = []

    def effect(what: str) -> None:
        if what.startswith("before kafka commit"):
            threads.append(threading.Thread(target=legacy))
            threads[0].start()
            ids = f"/consumers/{group}/ids"
            wait_until(lambda: len(filled.client.get_children(ids)) == 2, 20, "it registers")
            seen.extend(
                filled.client.get(f"/consumers/{group}/owners/{topic}/{partition}")[0].decode()
                for partition in range(2)
            )

    (result,) = filled.apply(plan, journal, effect)
    threads[0].join()
    assert all("_zkmigrate-" in owner for owner in seen)
    assert result.outcome is Outcome.REFUSED
    assert f"{group}_live registered in ZooKeeper in the meantime" in result.why


def test_every_hazard_has_a_test() -> None:
    """The page lists the 18 hazards, and each number has a test in this folder."""
    page = Path(__file__).parents[2] / "docs" / "explanation" / "moving.md"
    listed = re.findall(r"^\| (\d+) \|", page.read_text(), re.MULTILINE)
    assert listed == [str(number) for number in range(1, 19)]
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [number for number in listed if f"\ndef test_{int(number):02}_" not in tests] == []
