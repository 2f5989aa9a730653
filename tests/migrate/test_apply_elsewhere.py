"""Plans for another cluster: what they contain, who carries them out, and what is refused.

Both clusters are simulated: the one of the groups by ``simulated``, the other by its logs and its
coordinator's offsets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import pytest
from zkmigrate.formats.proofs_file import ProofsFile
from zkmigrate.plan.clusters.translation import Excerpt, Seen
from zkmigrate.stores import contents, sessions

from tests.migrate.rows import run
from tests.migrate.simulated import Simulated, simulated
from tests.unit.test_find_offset import Log
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.cluster_view import ClusterView, PartitionView, TopicView
from zkconsumer.errors import BrokerError, BrokerUnavailableError, LeaderUnavailableError

__all__ = ["simulated"]
TO = ("--to-cluster", "there:9092", "--topic-map", "*=old.*")
TP = TopicPartition("old.t", 0)


class There:
    """The other cluster. Takes the place of ``OtherCluster``, and of its coordinators."""

    def __init__(self) -> None:
        parts = {0: PartitionView(0, 0, (0,), (0,))}
        self.view = ClusterView("id of there", (), {"old.t": TopicView("id of t", parts)})
        records = [Seen(at, 1000 + at, b"%d" % at) for at in range(100)]
        self.here = Log(records, 100)
        self.contents = Log([one._replace(offset=one.offset + 30) for one in records], 130, 30)
        self.kafka = self
        self.waits = True
        self.denied: frozenset[str] = frozenset()
        self.joined: tuple[str, ...] = ()
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.fault: BrokerError | None = None
        self.away = ""
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None

    def __call__(self, *_: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def another(self) -> Self:
        """For the permission."""
        return self

    def stop_waiting(self) -> None:
        """Nothing waits."""
        self.waits = False

    def topics(self, _names: Iterable[str]) -> Mapping[str, TopicView]:
        """As they are now."""
        return self.view.topics

    def members(self, group: str) -> tuple[str, ...]:
        """The members of each group."""
        if group == self.away:
            raise BrokerUnavailableError("its coordinator is away")
        return self.joined

    def partitions(self) -> Iterable[TopicPartition]:
        """All."""
        return [TP]

    def hidden(self, topics: Iterable[str]) -> frozenset[str]:
        """Those that may not be described."""
        return self.denied.intersection(topics)

    def list_groups(self) -> list[str]:
        """The groups with offsets."""
        return sorted(self.offsets)

    def fetch(
        self, group: str, _tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """A group's offsets."""
        return {tp: StoredOffset(one) for tp, one in self.offsets.get(group, {}).items()}

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], None],
    ) -> dict[TopicPartition, BrokerError]:
        """Store offsets, or refuse all."""
        self.before_commit()
        permit()
        if self.fault is not None:
            return dict.fromkeys(offsets, self.fault)
        numbers = {tp: one.offset for tp, one in offsets.items()}
        self.offsets.setdefault(group, {}).update(numbers)
        self.after_commit()
        return {}


@pytest.fixture
def there(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> There:
    """The other cluster, with a copy of ``t``; and two groups."""
    found = There()
    found.here.close = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(contents, "OtherCluster", found)
    monkeypatch.setattr(sessions.Stores, "contents", lambda _stores: found.here)
    simulated.topic("t", (0, 100))
    for group in ("g", "h"):
        simulated.in_zookeeper(group, "t", 5)
    return found


def plan(simulated: Simulated, *words: str, group: str = "g", status: int = 0) -> None:
    """Write a plan."""
    ran = simulated.run("plan", "--group", group, *TO, "--out", "a.plan", *words)
    assert ran.status == status, ran.err


def test_a_plan_is_carried_out_in_the_other_cluster(simulated: Simulated, there: There) -> None:
    """The plan has offset and proof; apply stores it there under the new name, changes nothing in
    this cluster, and finds its work done the second time."""
    before = simulated.znodes("g")
    plan(simulated, "--rename", "g=new")
    head, _, entry, _ = map(json.loads, Path("a.plan").read_text().splitlines())
    assert head["to"] == {"servers": "there:9092", "cluster": "id of there"}
    assert entry["to"] == 5
    assert entry["there"] == {
        "topic": "old.t", "topic_id": "id of t", "offset": 35, "highest": 35, "proof": "proven",
        "compared": 10, "why": "the next record and its neighbours are equal",
    }  # fmt: skip
    (row,) = simulated.run("apply", "a.plan").rows
    assert (row["outcome"], row["offsets"], row["kafka_group"]) == ("would be done", 1, "new")
    assert not there.offsets
    (row,) = simulated.run("apply", "a.plan", "--execute").rows
    assert (row["outcome"], row["offsets"]) == ("done", 1)
    assert there.offsets == {"new": {TP: 35}}
    (row,) = simulated.run("apply", "a.plan", "--execute").rows
    assert (row["outcome"], row["offsets"]) == ("was done before", 0)
    assert simulated.znodes("g") == before


def test_offsets_of_another_client_are_stored_in_the_other_cluster(
    simulated: Simulated, there: There
) -> None:
    """Those of a layout, inside the group's znode or elsewhere, unless its client has stored others
    since."""
    found = b'{"topic":"t","partition":0,"offset":%d}'
    for number, path in enumerate(("/s", "/consumers/new")):
        words = ("--layout", f"storm:{path}", "--out", f"{number}.plan")
        simulated.zk.set(f"{path}/partition_0", found % 7)
        ran = simulated.run("plan", "--group", "new", *TO, *words)
        assert [(row["offset"], row["to_offset"]) for row in ran.rows] == [(7, 37)], ran.err
        simulated.zk.set(f"{path}/partition_0", found % 8)
        (row,) = simulated.run("apply", f"{number}.plan", "--execute").rows
        assert row["outcome"] == "refused"
        assert f"{path}: offsets of t-0 have changed since the plan" in row["why"]
        assert not there.offsets
        simulated.zk.set(f"{path}/partition_0", found % 7)
        (row,) = simulated.run("apply", f"{number}.plan", "--execute").rows
        assert (row["outcome"], there.offsets) == ("done", {"new": {TP: 37}})
        there.offsets.clear()


def test_an_interrupted_plan_continues(simulated: Simulated, there: There) -> None:
    """Offsets that were proven are in a file, and are not looked for again. A line that was cut off
    is; a file that is damaged, of other clusters, or another one is refused and kept."""
    words = ("plan", "--group", "g", *TO, "--proofs", "proofs")
    first = simulated.run(*words)
    assert first.rows[0]["to_offset"] == 35
    read = there.here.read
    assert simulated.run(*words).rows == first.rows
    assert there.here.read == read
    ran = simulated.run("plan", "--group", "h", *TO[:3], "t=old.t", "--proofs", "proofs")
    assert there.here.read == read  # the same partition and offset
    file = Path("proofs")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    assert simulated.run(*words).rows == first.rows
    assert there.here.read > read
    assert file.read_bytes() == whole
    for cut_off in (b"", whole[:9]):
        file.write_bytes(cut_off)
        assert simulated.run(*words).rows == first.rows
        assert file.read_bytes() == whole
    other = "proofs is not a proofs file for these two clusters: name a new file"
    for content, text in (
        (whole.replace(b" 35", b" 37"), "proofs:2 is damaged"),
        (whole.replace(b" 35", b" x"), "proofs:2 is damaged"),
        (whole + b"\xff\n", "proofs:3 is damaged"),
        (whole.replace(b"there", b"elsewhere"), other),
        (b"\xff\n", other),
        (b"a,b\n", other),
        (b"\na,b\n", other),
        (b"sasl.password=abc", other),
    ):
        file.write_bytes(content)
        ran = simulated.run(*words)
        assert (ran.status, text in ran.err) == (2, True), ran.err
        assert file.read_bytes() == content


@pytest.mark.parametrize("side", ["here", "there", "no ids"])
def test_what_was_proven_of_a_deleted_topic_is_not_used(
    simulated: Simulated, there: There, side: str
) -> None:
    """A topic was recreated since the interruption, and its records are at other offsets. It is
    noticed in the cluster that is left by ZooKeeper, and there by the topic's id: without one,
    nothing is remembered."""
    parts = there.view.topics["old.t"].partitions
    if side == "no ids":
        there.view = ClusterView("id of there", (), {"old.t": TopicView("", parts)})
    words = ("plan", "--group", "g", *TO, "--proofs", "proofs")
    assert simulated.run(*words).rows[0]["to_offset"] == 35
    if side == "here":
        simulated.zk.delete("/brokers/topics/t")
        simulated.topic("t", (0, 100))
        simulated.in_zookeeper("g", "t", 5)
    elif side == "there":
        there.view = ClusterView("id of there", (), {"old.t": TopicView("new", parts)})
    again = [one._replace(offset=one.offset + 3) for one in there.here.records]
    there.contents = Log(again, 103)
    assert simulated.run(*words).rows[0]["to_offset"] == 8


def test_clusters_without_ids_are_told_apart_by_address(simulated: Simulated, there: There) -> None:
    """A file of two other such clusters is refused."""
    there.view = ClusterView(None, (), there.view.topics)
    words = ("plan", "--group", "g", *TO[2:], "--proofs", "proofs", "--to-cluster")
    assert simulated.run(*words, "there:9092").status == 0
    assert simulated.run(*words, "there:9092").status == 0
    assert simulated.run(*words, "elsewhere:9092").status == 2
    simulated.connect = "sim:1/another"
    assert simulated.run(*words, "there:9092").status == 2


def test_a_file_that_cannot_be_written_is_an_error(
    simulated: Simulated, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such folder, or a full disk: a line that names the file, and no traceback."""
    words = ("plan", "--group", "g", *TO, "--proofs")
    ran = simulated.run(*words, "none/proofs")
    assert (ran.status, "--proofs: none/proofs: No such file" in ran.err) == (2, True), ran.err

    def full(file: ProofsFile, _asked: object, _answer: object) -> None:
        file._file.close()
        file._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
        file._write(b"[]")

    monkeypatch.setattr(ProofsFile, "add", full)
    ran = simulated.run(*words, "proofs")
    assert (ran.status, "--proofs: proofs: No space left" in ran.err) == (1, True), ran.err


BACK = ("plan", "--from-cluster", "there:9092", "--topic-map", "*=old.*", "--out", "back.plan")
ZK = ("--direction", "kafka-to-zk")


def test_the_way_back_is_planned_by_content_too(simulated: Simulated, there: There) -> None:
    """What the group is to read next in the other cluster is what it reads next here, in either
    store, under its name here."""
    plan(simulated, "--rename", "g=new")
    assert simulated.run("apply", "a.plan", "--execute").status == 0
    there.offsets["new"][TP] = 71
    (row,) = simulated.run(*BACK, "--group", "new", *ZK, "--rename", "new=g").rows
    assert (row["group"], row["verdict"]) == ("g", "ready"), row["what"]
    assert "old.t-0 71 in the other cluster is t-0 41 here: proven" in row["notes"]
    (row,) = simulated.run("apply", "back.plan", "--execute").rows
    assert row["outcome"] == "done", row
    assert simulated.held("g", "t")[0] == {0: 41}
    for file in ("back.plan", "back.plan.journal"):
        Path(file).unlink()
    (row,) = simulated.run(*BACK, "--group", "new").rows
    assert (row["group"], row["verdict"]) == ("new", "ready")
    assert simulated.run("apply", "back.plan", "--execute").status == 0
    assert simulated.held("new", "t")[1] == {0: 41}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ("joined", "coordinator-member", "joined at a coordinator of the other cluster"),
        ("bounded", "not-proven", "not proven: old.t-0"),
        ("topic", "topic-missing", "this cluster has no such topic: other-0"),
        ("partitions", "partition-missing", "this cluster's topic has another number"),
        ("away", "coordinator-away", "its coordinator is away"),
        ("group", None, "there is no group g among"),
    ],
)
def test_what_has_no_way_back_is_a_problem_of_its_group(
    simulated: Simulated, there: There, change: str, kind: str | None, text: str
) -> None:
    """The others are planned. An offset that is left out is none."""
    there.offsets = {"g": {TP: 71}, "h": {TP: 72}}
    match change:
        case "joined":
            there.joined = ("m",)
        case "bounded":
            there.offsets["g"] = {TP: 10}  # retention
        case "topic":
            there.offsets["g"] = {TopicPartition("other", 0): 3}
        case "partitions":
            simulated.topic("t", (0, 100), (0, 100))
        case "away":
            there.away = "g"
        case "group":
            del there.offsets["g"]
    ran = simulated.run(*BACK, "--group", "g", "--group", "h", *ZK)
    if kind is None:
        assert (ran.status, text in ran.err) == (1, True), ran.err
        return
    row = next(row for row in ran.rows if row["group"] == "g")
    assert (row["kind"], text in row["what"]) == (kind, True), row
    if change not in ("joined", "partitions"):
        assert [row["verdict"] for row in ran.rows if row["group"] == "h"] == ["ready"]
    if change == "topic":
        ran = simulated.run(*BACK[:-2], "--group", "h", "--group", "g", *ZK, "--skip", "g:other:0")
        assert "needs a decision" not in {row["verdict"] for row in ran.rows}
    if change == "bounded":
        words = ("--group", "g", "--not-proven", "lower", *ZK)
        assert [row["verdict"] for row in simulated.run(*BACK[:-2], *words).rows] == ["ready"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("joined", "consumers are on the coordinator of the other cluster: m: stop them"),
        ("commit", "offsets in the other cluster have changed since the plan: old.t-0: plan again"),
        ("new", "offsets in the other cluster have changed since the plan: new-0"),
        ("gone", "offsets in the other cluster have changed since the plan: old.t-0"),
        ("away", "its coordinator is away"),
    ],
)
def test_what_has_changed_there_has_no_way_back(
    simulated: Simulated, there: There, change: str, text: str
) -> None:
    """The plan has the other cluster and the group's offsets there. If a consumer continues there
    after the plan, its records would be read again here: nothing is stored."""
    there.offsets = {"new": {TP: 71}}
    assert simulated.run(*BACK, "--group", "new", *ZK, "--rename", "new=g").status == 0
    head, group = map(json.loads, Path("back.plan").read_text().splitlines()[:2])
    assert head["from"] == {"servers": "there:9092", "cluster": "id of there"}
    assert group["from"] == {"group": "new", "numbers": {"old.t": {"0": 71}}}
    match change:
        case "joined":
            there.joined = ("m",)
        case "commit":
            there.offsets["new"][TP] = 99
        case "new":
            there.offsets["new"][TopicPartition("new", 0)] = 1
        case "gone":
            del there.offsets["new"]
        case "away":
            there.away = "new"
    before = simulated.znodes("g")
    for words in ((), ("--execute", "--to-config", "/dev/null")):
        ran = simulated.run("apply", "back.plan", *words)
        outcome = "failed" if change == "away" else "refused"
        assert (ran.rows[0]["outcome"], text in ran.rows[0]["why"]) == (outcome, True), ran.rows
    assert simulated.znodes("g") == before
    there.joined, there.away, there.offsets = (), "", {"new": {TP: 71}}
    (row,) = simulated.run("apply", "back.plan", "--execute").rows
    assert row["outcome"] == "done"
    there.offsets["new"][TP] = 99
    (row,) = simulated.run("apply", "back.plan", "--execute").rows
    assert row["outcome"] == "was done before"


def test_an_offset_that_the_other_cluster_hides_is_a_problem(
    simulated: Simulated, there: There
) -> None:
    """If the group has an offset of that topic here; else it is a note. So is an offset that only
    this cluster has."""
    simulated.topic("u", (0, 100))
    simulated.in_zookeeper("g", "u", 7)
    there.offsets = {"g": {TP: 71}, "h": {TP: 72}}
    words = (*BACK[:-2], "--group", "g", "--group", "h", *ZK)
    there.denied = frozenset({"old.u"})
    ran = simulated.run(*words)
    one, other = ran.rows
    assert (ran.status, one["kind"]) == (3, "hidden-offsets")
    assert "access lists hide the topic's offsets: old.u-0" in one["what"]
    assert one["fix"].endswith("--skip g:old.u:0")
    assert other["verdict"] == "ready"
    assert "of topics that may not be described: old.u" in other["notes"]
    ran = simulated.run(*words, "--skip", "g:old.u:0")
    assert [row["verdict"] for row in ran.rows] == ["ready", "ready"]
    there.denied = frozenset()
    ran = simulated.run(*words)
    assert [row["verdict"] for row in ran.rows] == ["ready", "ready"]
    assert (
        "no offset in the other cluster, so its offset here is left unchanged: u-0"
        in (ran.rows[0]["notes"])
    )


def test_a_partition_without_a_leader_fails_either_plan(simulated: Simulated, there: There) -> None:
    """The same command may succeed later."""

    def away(*_: object) -> Excerpt:
        raise LeaderUnavailableError("old.t-0 has no leader")

    there.offsets = {"h": {TP: 71}}
    there.contents.around = away  # type: ignore[assignment]
    for words in (("plan", *TO, "--group", "g"), (*BACK[:-2], *ZK, "--group", "h")):
        ran = simulated.run(*words)
        assert (ran.status, ran.rows[0]["kind"]) == (1, "unknown"), ran.err


def test_topics_of_no_planned_group_may_have_any_name(simulated: Simulated, there: There) -> None:
    """On the way back, all topics of this cluster are mapped. Those whose names would be illegal,
    or equal, do not end the plan, unless a group has read one of these."""
    for topic in ("a-v1", "a", "b"):
        simulated.topic(topic, (0, 100))
    there.offsets = {"g": {TP: 71}}
    maps = ("--topic-map", r"/(.+)-v1/=\1", "--topic-map", "/b/=b b", "--topic-map", "t=old.t")
    words = ("plan", "--from-cluster", "there:9092", *maps, "--group", "g", *ZK)
    assert simulated.run(*words).status == 0
    there.offsets["g"][TopicPartition("a", 0)] = 3
    ran = simulated.run(*words)
    assert (ran.status, "--topic-map: a and a-v1 would be called a" in ran.err) == (2, True), (
        ran.err
    )


def test_groups_that_the_other_cluster_cannot_list_are_named(
    simulated: Simulated, there: There
) -> None:
    """A partition of its offsets topic has no leader. The plan has failed, unless all groups were
    named."""
    parts = {one: PartitionView(one - 1, 0, (0,), (0,)) for one in range(2)}
    topics = {**there.view.topics, "__consumer_offsets": TopicView("", parts)}
    there.view = ClusterView("id of there", (), topics)
    there.offsets = {"g": {TP: 71}}
    ran = simulated.run(*BACK[:-2], *ZK, "--all")
    assert ran.status == 1
    assert "these partitions have no leader: __consumer_offsets-0 in the other cluster" in ran.err
    assert simulated.run(*BACK[:-2], *ZK, "--group", "g").status == 0


def test_a_topic_map_may_be_a_regular_expression(simulated: Simulated, there: There) -> None:
    """What it makes of a topic must be a legal name."""
    to = ("plan", "--group", "g", "--to-cluster", "there:9092", "--topic-map")
    (row,) = simulated.run(*to, r"/(.*)/=old.\1").rows
    assert (row["to_topic"], row["to_offset"]) == ("old.t", 35)
    ran = simulated.run(*to, r"/(.*)/=old.\g<x>")
    assert (ran.status, "unknown group name 'x'" in ran.err) == (2, True), ran.err
    ran = simulated.run(*to, r"/(.*)/=old \1")
    assert (ran.status, "'old t' cannot be the name of a topic" in ran.err) == (2, True), ran.err


def test_what_old_brokers_do_not_report_is_named(simulated: Simulated, there: There) -> None:
    """Without ids of cluster and topics, a recreated topic or another cluster is not noticed."""
    parts = there.view.topics["old.t"].partitions
    there.view = ClusterView(None, (), {"old.t": TopicView("", parts)})
    plan(simulated)
    ran = simulated.run("apply", "a.plan")
    assert ran.status == 0
    assert "note: not checked whether there:9092 is the planned cluster" in ran.err
    assert "note: not checked whether topics of the other cluster were recreated" in ran.err


def test_a_group_without_coordinator_does_not_end_the_plan(
    simulated: Simulated, there: There
) -> None:
    """It is that group's problem, and the others are planned."""
    there.away = "g"
    ran = simulated.run("plan", "--group", "g", "--group", "h", *TO, "--out", "a.plan")
    assert ran.status == 1, ran.err
    assert "groups: 1 refused, 1 ready" in ran.err
    ran = simulated.run("apply", "a.plan")
    assert [(row["group"], row["reasons"]) for row in ran.rows] == [
        ("g", ["coordinator-away"]),
        ("h", []),
    ]


def test_an_offset_that_is_stored_before_the_commit_is_kept(
    simulated: Simulated, there: There
) -> None:
    """A consumer commits there while the commit waits for the coordinator: nothing is stored."""
    plan(simulated)
    there.before_commit = lambda: there.offsets.update(g={TP: 50})
    ran = simulated.run("apply", "a.plan", "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (3, "refused")
    assert "old.t-0 has the offset 50 in the other cluster" in ran.rows[0]["why"]
    assert there.offsets == {"g": {TP: 50}}


def test_ctrl_c_ends_waits_for_coordinators_of_both_clusters(
    simulated: Simulated, there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with the request that is on its way."""
    plan(simulated)
    stopped: list[str] = []
    monkeypatch.setattr(simulated.kafka, "stop_waiting", lambda: stopped.append("here"))

    def interrupt() -> None:
        raise KeyboardInterrupt

    there.before_commit = interrupt
    simulated.run("apply", "a.plan", "--execute", rows=False)
    assert (stopped, there.waits) == (["here"], False)


def test_a_topic_that_is_recreated_meanwhile_is_refused(simulated: Simulated, there: There) -> None:
    """Its id is asked again for each group, also when the command has run for long."""
    plan(simulated)
    parts = there.view.topics["old.t"].partitions
    there.topics = lambda _names: {"old.t": TopicView("other", parts)}  # type: ignore[method-assign]
    ran = simulated.run("apply", "a.plan", "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (3, "refused")
    assert not there.offsets


def test_some_groups_at_a_time(simulated: Simulated, there: There) -> None:
    """Each run with --limit continues with the groups that are not done, also after a kill."""
    ran = simulated.run("plan", "--group", "g", "--group", "h", *TO, "--out", "a.plan")
    assert ran.status == 0
    words = ("apply", "a.plan", "--limit", "1", "--execute")
    assert [row["group"] for row in simulated.run(*words).rows] == ["g"]
    there.offsets["h"] = {TP: 35}
    (row,) = simulated.run(*words).rows
    assert (row["group"], row["outcome"]) == ("h", "was done before")
    assert simulated.run(*words).rows == []


def test_an_offset_past_the_end_of_the_log_is_not_translated(
    simulated: Simulated, there: There
) -> None:
    """A topic may have been created again, and the offset be in Kafka alone. No record is equal to
    one that is not there, and the lower bound would skip all of them."""
    for path in ("/offsets/t/0", "/offsets/t", "/offsets"):
        simulated.zk.delete(f"/consumers/g{path}")
    simulated.in_kafka("g", "t", 500)
    ran = simulated.run("plan", "--group", "g", *TO, "--not-proven", "lower", "--out", "a.plan")
    assert (ran.status, ran.rows[0]["kind"]) == (3, "not-proven")
    assert "the offset is past the end of its log" in ran.rows[0]["why"]
    assert simulated.run("apply", "a.plan", "--execute").rows[0]["outcome"] == "skipped"
    assert not there.offsets


def test_the_exit_status_is_that_of_any_plan(simulated: Simulated, there: There) -> None:
    """If the group's own coordinator does not answer, plan has failed, whichever cluster it is
    for."""
    simulated.kafka.away = {"g"}
    assert simulated.run("plan", "--group", "g").status == 1
    plan(simulated, status=1)


def test_no_other_command_takes_it(
    simulated: Simulated, there: There, capsys: pytest.CaptureFixture[str]
) -> None:
    """undo, status and report say what the plan is and change nothing; undo without it has nothing
    to do."""
    plan(simulated)
    assert simulated.run("apply", "a.plan", "--execute").status == 0
    where = ("--zookeeper", "sim:1")
    for words in (("undo", "--execute", *where), ("status", *where), ("report", "--json")):
        assert run([*words, "a.plan"]) == 2
        err = capsys.readouterr().err
        assert "is a plan for another cluster, and only zkmigrate apply accepts such plans" in err
    ran = simulated.run("undo", "--group", "g", "--execute")
    assert [row["outcome"] for row in ran.rows] == ["nothing to do"]
    assert there.offsets == {"g": {TP: 35}}
    ran = simulated.run("gate", "--group", "g")
    assert [row["left"] for row in ran.rows] == [True]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("members", "registered in ZooKeeper"),
        ("commit", "offsets have changed since the plan: t-0"),
        ("partition", "offsets have changed since the plan: u-0"),
        ("joined", "consumers are on the coordinator of the other cluster"),
        ("offset", "old.t-0 has the offset 7 in the other cluster"),
        ("topic", "topic old.t of the other cluster has changed"),
        ("partitions", "topic old.t in the other cluster has a different number of partitions"),
        ("retention", "old.t-0 has no offset 35 in the other cluster any more; its log is 40-130"),
        ("mirrored", "mirror"),
    ],
)
def test_what_has_changed_is_refused(
    simulated: Simulated, there: There, change: str, why: str
) -> None:
    """Members on either side, a commit, a new partition, an offset or a recreated topic there,
    partitions or retention there, and a group that is mirrored meanwhile: nothing is stored."""
    plan(simulated)
    match change:
        case "members":
            simulated.znode("/consumers/g/ids/m", b"{}")
        case "commit":
            simulated.in_zookeeper("g", "t", 6)
        case "partition":
            simulated.topic("u", (0, 100))
            simulated.in_zookeeper("g", "u", 6)
        case "joined":
            there.joined = ("m",)
        case "offset":
            there.offsets["g"] = {TP: 7}
        case "topic":
            parts = there.view.topics["old.t"].partitions
            there.view = ClusterView("id of there", (), {"old.t": TopicView("other", parts)})
        case "partitions":
            parts = {number: PartitionView(0, 0, (0,), (0,)) for number in range(2)}
            there.view = ClusterView("id of there", (), {"old.t": TopicView("id of t", parts)})
        case "retention":
            there.contents.earliest = 40
        case "mirrored":
            words = ("mirror", "--group", "g", "--execute", "--once")
            assert simulated.run(*words).status == 0
    held = {group: dict(one) for group, one in there.offsets.items()}
    ran = simulated.run("apply", "a.plan", "--execute")
    (row,) = ran.rows
    assert (ran.status, row["outcome"]) == (3, "refused")
    assert why in row["why"]
    assert there.offsets == held


@pytest.mark.parametrize("side", ["here", "there"])
def test_what_changes_after_the_commit_is_named(
    simulated: Simulated, there: There, side: str
) -> None:
    """A member that starts here, or another writer there: the offsets are stored, and the refusal
    names them and the way to delete them."""
    plan(simulated)

    def late() -> None:
        if side == "here":
            simulated.znode("/consumers/g/ids/m", b"{}")
        else:
            there.offsets["g"] = {TP: 7}

    there.after_commit = late
    ran = simulated.run("apply", "a.plan", "--execute")
    (row,) = ran.rows
    assert (ran.status, row["outcome"]) == (3, "refused")
    assert "offsets were stored in the other cluster" in row["why"]
    assert "kafka-consumer-groups.sh --delete-offsets --group g --topic old.t" in row["why"]


@pytest.mark.parametrize("stored", [False, True])
def test_offsets_outside_the_plan_stay_as_they_are(
    simulated: Simulated, there: There, stored: bool
) -> None:
    """The group has an offset of another topic in the other cluster, and perhaps one of two planned
    ones already, from a run that was interrupted: the rest is stored."""
    outside, second = TopicPartition("other", 0), TopicPartition("old.t", 1)
    parts = {number: PartitionView(0, 0, (0,), (0,)) for number in range(2)}
    there.view = ClusterView("id of there", (), {"old.t": TopicView("id of t", parts)})
    simulated.topic("t", (0, 100), (0, 100))
    simulated.in_zookeeper("g", "t", 5, 6)
    there.offsets["g"] = {outside: 3}
    plan(simulated)
    if stored:
        there.offsets["g"][TP] = 35
    (row,) = simulated.run("apply", "a.plan", "--execute").rows
    assert (row["outcome"], row["offsets"]) == ("done", 1 if stored else 2), row
    assert there.offsets == {"g": {outside: 3, TP: 35, second: 36}}


def test_what_is_not_ready_is_skipped(simulated: Simulated, there: There) -> None:
    """A group without all offsets is not applied; what the coordinator refuses fails."""
    simulated.topic("u", (0, 100))
    simulated.in_zookeeper("h", "u", 6)
    plan(simulated, group="h", status=3)
    ran = simulated.run("apply", "a.plan", "--execute")
    assert [(row["outcome"], row["reasons"]) for row in ran.rows] == [
        ("skipped", ["topic-missing"])
    ]
    for file in ("a.plan", "a.plan.journal"):
        Path(file).unlink()
    plan(simulated, "--skip", "h:u", group="h")
    there.fault = BrokerUnavailableError("no room")
    ran = simulated.run("apply", "a.plan", "--execute")
    assert (ran.status, [row["outcome"] for row in ran.rows]) == (1, ["failed"])
    assert not there.offsets


def test_options_that_have_no_effect_are_refused(simulated: Simulated, there: There) -> None:
    """Those of a plan for this cluster, and the other way round."""
    plan(simulated)
    assert simulated.run("plan", "--group", "g", "--out", "b.plan").status == 0
    for words, text in (
        (("apply", "a.plan", "--no-lock"), "--lock has no effect with a plan for another cluster"),
        (("apply", "b.plan", "--to-config", "x"), "--to-config has no effect with a plan for this"),
        (("plan", "--group", "g", *TO, "--at-apply"), "--at-apply has no effect with --to-cluster"),
        (("plan", "--group", "g", "--not-proven", "lower"), "--not-proven requires --to-cluster"),
        ((*BACK[:-2], "--group", "g", "--at-apply"), "--at-apply has no effect with --from-cl"),
        (("plan", "--group", "g", *TO, *BACK[1:3]), "--from-cluster has no effect with --to-cl"),
    ):
        ran = simulated.run(*words)
        assert (ran.status, text in ran.err) == (2, True), ran.err
    simulated.zk.set("/cluster/id", b'{"version":"1","id":"id of there"}')
    ran = simulated.run("plan", "--group", "g", *TO)
    assert (ran.status, "is the cluster that the groups are already in" in ran.err) == (2, True), (
        ran.err
    )
    assert not there.offsets
