"""The check before ZooKeeper is switched off passes only what it understands, and the safety copy
includes or names the same. On a simulated cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zkmigrate.stores import record

from tests.migrate import matrix
from tests.migrate.simulated import Ran, Simulated, simulated
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Code, Failed, GetMany, Reply, ZkOp
from zkconsumer.core.zookeeper.znodes import is_legal_group

__all__ = ["simulated"]
T0 = TopicPartition("t", 0)


def gate(simulated: Simulated, *words: str) -> Ran:
    """Run the check on all groups."""
    return simulated.run("gate", "--all", *words)


def moved(simulated: Simulated, *words: str, name: str = "plan") -> str:
    """Plan and move all groups; return the plan's file."""
    file = simulated.file(name)
    simulated.run("plan", "--all", "--out", file, *words)
    done = simulated.run("apply", file, "--execute", "--parallel", "1")
    assert done.status == 0, done
    return file


@pytest.fixture
def safe(simulated: Simulated) -> Simulated:
    """A group ``g`` whose offsets both stores hold, so that nothing would be lost."""
    simulated.topic("t", (0, 1000), (0, 1000))
    simulated.in_zookeeper("g", "t", 100, 200)
    simulated.in_kafka("g", "t", 100, 200)
    assert gate(simulated).status == 0
    assert simulated.run("offsets", "export", "--all", rows=False).status == 0
    return simulated


def test_without_any_group_nothing_is_lost(simulated: Simulated) -> None:
    """A clear answer; the sweep of the ensemble counts all the same. A chroot that no cluster has
    is refused."""
    found = gate(simulated)
    assert (found.status, found.rows) == (0, []), found.err
    assert "0 of 0 groups would lose something" in found.err
    simulated.zk.set("/kafka-storm/id/partition_0", b'{"topic":"t","partition":0,"offset":7}')
    assert gate(simulated).status == 3
    assert simulated.run("gate", "--group", "g").status == 1
    for path in ("/kafka-storm/id/partition_0", "/consumers", "/brokers/topics"):
        simulated.zk.delete(path)
    found = gate(simulated)
    assert (found.status, "is the chroot right?" in found.err) == (1, True), found.err


def test_topics_of_the_brokers_do_not_make_a_chroot_right(simulated: Simulated) -> None:
    """Without ZooKeeper, brokers list their topics. So this ZooKeeper may be a wrong or empty one,
    and all groups elsewhere."""
    simulated.topic("t", (0, 1000))
    simulated.leave_zookeeper()
    assert gate(simulated).status == 0
    for path in ("/consumers", "/brokers/topics"):
        simulated.zk.delete(path)
    found = gate(simulated)
    assert (found.status, "is the chroot right?" in found.err) == (1, True), found.err
    simulated.zk.set("/cluster/id", b'{"version":"1","id":"here"}')
    assert gate(simulated).status == 0


ODD = {
    "storm": ("/consumers/g/partition_0", b'{"offset":4711}'),
    "kafka 0.7": ("/consumers/g/offsets/t/0-3", b"77"),
    "spark": ("/consumers/g/offsets/t", b"0:1200,1:900"),
    "offsets in one znode": ("/consumers/g/offsets", b"t:0:1200"),
    "the group's own znode": ("/consumers/g", b'{"t-0":1200}'),
    "below offset": ("/consumers/g/offset/t", b"0:1200"),
    "not a partition below offset": ("/consumers/g/offset/t/x", b"9"),
    "not a topic": ("/consumers/g/offsets/t t/0", b"9"),
    "another child": ("/consumers/g/lastCommit", b""),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_not_understood_fails(safe: Simulated, what: str) -> None:
    """Each layout of another client is named by the check, refused by plan, and named by the
    copy."""
    path, data = ODD[what]
    safe.zk.set(path, data)
    found = gate(safe)
    assert (found.status, found.rows[0]["not_understood"]) == (3, 1)
    assert found.rows[0]["why"] == f"not understood: {path}"
    made = safe.run("plan", "--all")
    kind = "other-znodes" if what == "another child" else "foreign-layout"
    assert (made.status, made.rows[0]["kind"]) == (3, kind)
    copy = safe.run("offsets", "export", "--all", rows=False)
    assert copy.status == 3
    assert f"note: {path} is" in copy.err


@pytest.mark.parametrize(
    "path",
    ["offsets/t/0/x", "offset/t/0/x", "ids/g_a/x", "migration/x", "record/x", "record/before/x",
     "live/x", "live/mode/x"],
)  # fmt: skip
def test_znodes_below_the_data_of_a_group_fail(safe: Simulated, path: str) -> None:
    """No client of Kafka has any there."""
    where = f"/consumers/g/{path}"
    if path.startswith("live"):
        assert safe.run("live", "prepare", "--group", "g", "--execute", "--wait", "0").status == 0
    else:
        moved(safe)
    if path.startswith("offset/"):
        safe.zk.set(where.removesuffix("/x"), b"-1")
    assert gate(safe).status == 0
    safe.zk.set(where, b"9")
    if path.startswith("ids"):
        safe.zk.set(where.removesuffix("/x"), b"{}")
    found = gate(safe)
    assert found.status == 3
    assert f"not understood: {where}" in found.rows[0]["why"]


def test_what_cannot_be_looked_at_fails(simulated: Simulated) -> None:
    """Something may be below a znode that zkmigrate may not read."""
    matrix.moved(simulated)
    assert gate(simulated).status == 0

    def after(op: ZkOp, reply: Reply) -> Reply:
        below = isinstance(op, GetMany) and op.children and record.before_path("g") in op.paths
        return Failed(Code.NO_AUTH) if below else reply

    simulated.zk.after = after
    found = gate(simulated)
    assert (found.status, found.rows[0]["reasons"]) == (3, ["unreadable"]), found


def test_owners_that_are_not_registered_fail(safe: Simulated) -> None:
    """A member may run whose registration was deleted by hand."""
    safe.zk.set("/consumers/g/owners/t/0", b"g_a-0")
    found = gate(safe)
    assert (found.status, found.rows[0]["reasons"]) == (3, ["owned"])


def test_offsets_below_offset_count(safe: Simulated) -> None:
    """A 1.1.0 broker stores them there. The copy includes the only one of a partition, and names
    one that differs."""
    safe.zk.set("/consumers/g/offset/t/0", b"900")
    found = gate(safe)
    assert (found.status, found.rows[0]["lost"]) == (3, 1)
    copy = safe.run("offsets", "export", "--all", rows=False)
    assert copy.status == 3
    assert "/consumers/g/offset/t/0 holds 900; it is left out" in copy.err
    safe.in_kafka("g", "t", 900)
    assert gate(safe).status == 0
    safe.zk.set("/consumers/only/offset/t/1", b"3")
    assert gate(safe).status == 3
    copy = safe.run("offsets", "export", "--group", "only", rows=False)
    assert (copy.status, "t/1:3" in copy.err) == (0, True)


def test_a_hidden_topic_is_not_missing(simulated: Simulated) -> None:
    """After the change to KRaft, brokers list only topics that zkmigrate may describe. One that is
    not listed is missing only if a broker says so when it is asked for the name."""
    simulated.topic("t", (0, 1000))
    simulated.topic("secret", (0, 1000))
    simulated.in_zookeeper("g", "secret", 5)
    simulated.in_zookeeper("g", "gone", 5)
    simulated.in_kafka("g", "t", 5)
    simulated.kafka.denied = {"secret"}
    simulated.leave_zookeeper()
    found = gate(simulated)
    assert (found.status, found.rows[0]["lost"]) == (3, 1)
    assert "is not authorized to describe: allow it to (secret)" in found.rows[0]["why"]
    kinds = {row["kind"]: row["what"] for row in simulated.run("plan", "--all").rows}
    assert set(kinds) == {"hidden-offsets", "topic-missing"}
    assert "secret-0" in kinds["hidden-offsets"]
    assert "gone-0" in kinds["topic-missing"]
    file = simulated.file("plan")
    made = simulated.run("plan", "--all", "--missing-topics", "skip", "--out", file)
    assert [row["kind"] for row in made.rows] == ["hidden-offsets"], "skipping hides nothing"


def test_a_topic_that_cannot_be_read_is_not_missing(safe: Simulated) -> None:
    """Its znode is damaged, so nothing is known about it."""
    safe.zk.set("/brokers/topics/t", b"{")
    found = gate(safe)
    assert found.status == 3
    assert "/brokers/topics/t is not JSON" in found.rows[0]["why"]
    (row,) = safe.run("status", "--all").rows
    assert "/brokers/topics/t is not JSON" in row["attention"]


def test_offsets_that_a_plan_left_behind_pass(simulated: Simulated) -> None:
    """The decision is recorded in the group's marker. An offset that has changed since does not
    pass."""
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper("g", "t", 100)
    simulated.in_zookeeper("g", "old", 5, 6)
    simulated.topic("old", (0, 1000), (0, 1000))  # created after the offsets were stored
    moved(simulated, "--recreated-topics", "skip")
    found = gate(simulated)
    assert (found.status, found.rows[0]["decided"]) == (0, 2), found
    assert "2 offsets stay in ZooKeeper because a plan skipped them" in found.err
    simulated.in_zookeeper("g", "old", 7)
    found = gate(simulated)
    assert (found.status, found.rows[0]["decided"], found.rows[0]["lost"]) == (3, 1, 1)


def decisions(simulated: Simulated, text: str) -> str:
    """Write a decisions file."""
    file = simulated.folder / "decisions.toml"
    file.write_text(text)
    return str(file)


def test_an_ignored_group_passes_and_is_named_everywhere(safe: Simulated) -> None:
    """The check, plan, apply, verify and report honour the decision, and print the reason."""
    safe.zk.set("/consumers/storm/partition_0", b"4711")
    name = "x" * 256
    safe.zk.set(f"/consumers/{name}/offsets/t/0", b"1")
    assert gate(safe).status == 3
    file = decisions(
        safe,
        '[[rule]]\ngroup = "storm"\nignore = "reads nothing since 2019"\n'
        '[[rule]]\ngroup = "x*"\nignore = "a test"\n',
    )
    found = gate(safe, "--decisions", file)
    assert found.status == 0, found
    assert "note: group storm is ignored: reads nothing since 2019" in found.err
    plan = safe.file("plan")
    assert safe.run("plan", "--all", "--decisions", file, "--out", plan).status == 0
    done = safe.run("apply", plan, "--execute", "--parallel", "1")
    whys = {row["group"]: (row["outcome"], row["why"]) for row in done.rows}
    assert done.status == 0
    assert whys["storm"] == ("nothing to do", "is ignored: reads nothing since 2019")
    checked = safe.run("status", plan)
    assert checked.status == 0
    assert ("storm", "ignored", "reads nothing since 2019") in {
        (row["group"], row["kind"], row["what"]) for row in checked.rows
    }
    page = safe.file("page.html")
    report = safe.run("report", plan, "--out", page, servers=False)
    assert report.status == 0, report
    assert "2 ignored" in report.err
    assert "reads nothing since 2019" in (safe.folder / "page.html").read_text()


@pytest.mark.parametrize(
    "text",
    ['ignore = ""', 'ignore = "why"\ntopic = "t"', 'ignore = "why"\nskip = true', "ignore = true"],
)
def test_an_ignore_rule_needs_a_reason_and_means_whole_groups(safe: Simulated, text: str) -> None:
    """Anything else is an error that names the rule."""
    found = gate(safe, "--decisions", decisions(safe, f'[[rule]]\ngroup = "g"\n{text}\n'))
    assert found.status == 2
    assert "rule 1" in found.err


@pytest.mark.parametrize("name", ["my group", "größe", "100%", "%41", "a,b", 'a"b', "a:b"])
def test_names_that_only_zookeeper_accepts_are_moved(simulated: Simulated, name: str) -> None:
    """Kafka accepts any name, so such a group keeps its own, or gets another with --rename."""
    assert is_legal_group(name)
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper(name, "t", 7)
    assert gate(simulated).status == 3
    csv = simulated.file("offsets.csv")
    assert simulated.run("offsets", "export", "--all", "--out", csv, rows=False).status == 0
    made = simulated.run("plan", "--all", "--from-file", csv, "--out", simulated.file("plan"))
    assert made.rows[0]["group"] == name, made
    moved(simulated, name="first")
    assert simulated.held(name, "t")[1] == {0: 7}
    assert gate(simulated).status == 0
    assert simulated.run("status", "--all").rows[0]["locked"] == "locked"
    back = simulated.run("undo", simulated.file("first"), "--execute", "--parallel", "1")
    assert back.status == 0, back
    assert gate(simulated).status == 3
    moved(simulated, "--rename", f"{name}=plain", name="second")
    assert simulated.held("plain", "t")[1] == {0: 7}
    assert gate(simulated).status == 0


def test_status_fails_for_groups_that_it_cannot_read(simulated: Simulated) -> None:
    """Also for a name that zkmigrate does not take. A group that Kafka alone can hold is none."""
    simulated.topic("t", (0, 1000))
    simulated.in_kafka("team/app", "t", 5)
    found = simulated.run("status", "--all")
    assert [(row["group"], row["truth"]) for row in found.rows] == [("team/app", "kafka")]
    assert found.status == 0
    simulated.zk.set(f"/consumers/{'x' * 256}/offsets/t/0", b"1")
    found = simulated.run("status", "--all")
    assert {row["truth"] for row in found.rows} == {"kafka", "unknown"}
    assert found.status == 1


@pytest.mark.parametrize("command", ["gate", "export"])
def test_places_that_are_not_looked_at_are_named(safe: Simulated, command: str) -> None:
    """Other clients keep offsets beside /consumers, and other clusters in other chroots."""
    for path in ("/controller", "/storm/topology", "/transactional/x", "/zookeeper/quota"):
        safe.zk.set(path)
    for path in ("/kafka/consumers", "/kafka2/consumers/g", "/kafka2/brokers/ids", "/zookeeper",
                 "/storm/partition_0"):  # fmt: skip
        safe.whole.set(path)

    def lines() -> list[str]:
        ran = (
            safe.run("gate", "--group", "g")
            if command == "gate"
            else safe.run("offsets", "export", "--all", rows=False)
        )
        return [line for line in ran.err.splitlines() if "not looked at" in line]

    assert lines() == ["note: not looked at: /storm", "note: not looked at: /transactional"]
    safe.connect = "sim:1/kafka"
    assert lines()[2:] == [
        "note: not looked at: /kafka2 (has /consumers and /brokers)",
        "note: not looked at: /storm",
    ]


@pytest.mark.parametrize(
    ("after", "lost", "passes"),
    [
        (lambda one: None, 0, True),
        (lambda one: one.kafka.committed["g"].update({T0: StoredOffset(0)}), 0, True),
        (lambda one: one.kafka.committed["g"].pop(T0), 1, False),
        (lambda one: one.in_zookeeper("g", "t", 101), 1, False),
        (lambda one: one.zk.set("/consumers/g/offsets/t/0", b"x"), 1, False),
        (lambda one: one.zk.set("/consumers/g/migration", b"x"), 0, False),
        (lambda one: one.zk.set("/consumers/g/ids/g_m", b"x"), 0, False),
    ],
)
def test_a_moved_group(
    simulated: Simulated, after: Callable[[Simulated], object], lost: int, passes: bool
) -> None:
    """It passes while Kafka has some offset, and ZooKeeper is as it was moved."""
    simulated.topic("t", (0, 1000))
    simulated.in_zookeeper("g", "t", 100)
    moved(simulated)
    after(simulated)
    found = gate(simulated)
    assert (found.rows[0]["lost"], found.status) == (lost, 0 if passes else 3), found
