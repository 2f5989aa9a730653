"""Offsets in the layouts of other clients: each is read as its client's source writes it.

The writers follow the sources of these clients: storm-kafka 1.2.4 (``PartitionManager.commit``,
``TridentKafkaEmitter.doEmitNewPartitionBatch``), spark-kafka-source
(``ZooKeeperOffsetsStore.saveOffsets``), Brooklin (``ZookeeperCheckpointProvider``,
``KafkaConnectorTask.translate``, ``KafkaMirrorMakerCheckpoint``), uReplicator
(``ZookeeperCheckpointManager``, ``IdealStateBuilder``) and Secor (``ZookeeperConnector``).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable

import pytest
from hypothesis import event, given, strategies as st
from zkmigrate.plan.layout import LAYOUTS, looks_like_offsets, read_offsets, recognized
from zkmigrate.stores.surroundings import Place, Sweep

from tests.migrate.simulated import Ran, Simulated, simulated
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Code, Failed, GetMany, Node, Reply, Stat, ZkOp
from zkconsumer.errors import ZnodeFormatError

__all__ = ["simulated"]
Nodes = dict[str, Node]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def node(data: bytes | str, version: int = 3) -> Node:
    """A znode. ``version`` 0: it was created with these data."""
    raw = data.encode() if isinstance(data, str) else data
    return Node(raw, Stat(1, 1 + version, version, 0))


def compact(document: object) -> str:
    """JSON as json-simple and Jackson write it."""
    return json.dumps(document, separators=(",", ":"))


def storm(partition: int, offset: int, topic: str = "t") -> str:
    """What ``PartitionManager.commit`` writes."""
    return compact(
        {
            "topology": {"id": "a1b2", "name": "topology"},
            "offset": offset,
            "partition": partition,
            "broker": {"host": "broker1", "port": 9092},
            "topic": topic,
        }
    )


def trident(partition: int, offset: int, following: int) -> str:
    """What ``TridentKafkaEmitter`` returns as the metadata of a batch."""
    return compact(
        {
            "offset": offset,
            "nextOffset": following,
            "instanceId": "a1b2",
            "partition": partition,
            "broker": {"host": "broker1", "port": 9092},
            "topic": "t",
            "topology": {"name": "topology", "id": "a1b2"},
        }
    )


TASK = "/brooklin/connectors/kafkaMirroringConnector/task"
WRITTEN: dict[str, tuple[str, Nodes, str, dict[TopicPartition, int]]] = {
    "storm": (
        "storm",
        {
            "/kafka-storm/topology": node(""),
            "/kafka-storm/topology/partition_0": node(storm(0, 4711)),
            "/kafka-storm/topology/partition_1": node(storm(1, 0)),
        },
        "",
        {T0: 4711},
    ),
    "storm, wildcard": (
        "storm",
        {
            "/s/id/t/partition_0": node(storm(0, 5)),
            "/s/id/u/partition_0": node(storm(0, 6, "u")),
        },
        "",
        {T0: 5, TopicPartition("u", 0): 6},
    ),
    "trident": (
        "trident",
        {
            "/transactional/tx/coordinator/currtx": node("9"),
            "/transactional/tx/coordinator/currattempts": node('{"9":0}'),
            "/transactional/tx/user/partition_0/7": node(trident(0, 10, 20)),
            "/transactional/tx/user/partition_0/8": node(trident(0, 20, 30)),
            "/transactional/tx/user/partition_0/9": node(trident(0, 30, 40)),
            "/transactional/tx/user/partition_1/10": node(trident(1, 70, 80)),
            "/transactional/tx/user/partition_1/9": node(trident(1, 60, 70)),
        },
        "",
        {T0: 30, T1: 60},
    ),
    "spark-list": ("spark-list", {"/spark/job": node("0:1200,1:0")}, "t", {T0: 1200, T1: 0}),
    "brooklin, mirror": (
        "brooklin",
        {
            f"{TASK}/state/sourceCheckpoint": node(compact({"0": "t/0/41", "1": "t/1/0"})),
            f"{TASK}/config": node("offsets"),
        },
        "",
        {T0: 41, T1: 0},
    ),
    "brooklin, one topic": (
        "brooklin",
        {f"{TASK}/state/sourceCheckpoint": node(compact({"0": "0-41"}))},
        "t",
        {T0: 41},
    ),
    "ureplicator": (
        "ureplicator",
        {
            "/consumers/ureplicator-a-b/offsets/t/0": node("41"),
            "/consumers/ureplicator-a-b/offsets/t/1": node("0", 0),
            "/consumers/ureplicator-a-b/offsets/t/2": node("0", 1),
            "/consumers/ureplicator-a-b/offsets/t/3": node("", 0),
        },
        "",
        {T0: 41, TopicPartition("t", 2): 0},
    ),
    "secor": (
        "secor",
        {
            "/k/consumers/secor/offsets/t/0": node("41"),
            "/k/consumers/secor/offsets/t/1": node("10.1.2.3", 0),
            "/k/consumers/secor/lastSeen/t/0": node("57"),
        },
        "",
        {T0: 41},
    ),
    "offset": (
        "offset",
        {
            "/k/consumers/g/offset/t/0": node("41"),
            "/k/consumers/g/offset/t/1": node("-1"),
        },
        "",
        {T0: 41},
    ),
    "kafka": ("kafka", {"/kafka2/consumers/g/offsets/t/0": node("41", 0)}, "", {T0: 41}),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_what_a_client_has_written_is_read(what: str) -> None:
    """With what its number means, and what stands for no commit. The sweep recognizes it."""
    name, nodes, topic, offsets = WRITTEN[what]
    found = read_offsets(name, nodes, topic)
    assert {tp: one.offset for tp, one in found.items()} == offsets
    swept = {
        recognized(path, one.data)[0]
        for path, one in nodes.items()
        if LAYOUTS[name].pattern.fullmatch(path) and looks_like_offsets(path, one.data)
    }
    assert swept == {"kafka" if name == "secor" else name}


def test_every_layout_is_tested() -> None:
    """Each of the table."""
    assert {one[0] for one in WRITTEN.values()} == set(LAYOUTS)


@pytest.mark.parametrize(
    ("name", "path", "data"),
    [
        ("storm", "/s/partition_0", "{"),
        ("storm", "/s/partition_0", "[]"),
        ("storm", "/s/partition_0", b"\xff"),
        ("storm", "/s/partition_0", '{"offset":1e3,"partition":0,"topic":"t"}'),
        ("storm", "/s/partition_0", '{"offset":true,"partition":0,"topic":"t"}'),
        ("storm", "/s/partition_0", f'{{"offset":{"9" * 5000},"partition":0,"topic":"t"}}'),
        ("storm", "/s/partition_0", '{"offset":9223372036854775807,"partition":0,"topic":"t"}'),
        ("storm", "/s/partition_0", '{"offset":5,"partition":0,"topic":"a b"}'),
        ("storm", "/s/partition_1", storm(0, 5)),
        ("storm", "/s/host:9092:0", '{"id":"x","offset":5}'),
        ("trident", "/tx/user/partition_0/1", trident(0, 1, 2)),
        ("spark-list", "/job", "0:1,1"),
        ("spark-list", "/job", "0:1,2147483648:1"),
        ("spark-list", "/job", f"0:{'9' * 30}"),
        ("spark-list", "/job", "\u0660:1"),
        ("brooklin", f"{TASK}/state/sourceCheckpoint", '{"0":5}'),
        ("brooklin", f"{TASK}/state/sourceCheckpoint", '{"0":"mysql-bin.1:4"}'),
        ("brooklin", f"{TASK}/state/sourceCheckpoint", '{"0":"t/0/-9-"}'),
        ("secor", "/consumers/secor/offsets/t/0", "10.1.2.3"),
        ("kafka", "/consumers/g/offsets/t/0-3", "77"),
        ("kafka", "/consumers/g/offsets/t/x", "77"),
        ("kafka", "/consumers/g/offset/t/0", "77"),
    ],
)
def test_what_a_client_does_not_write_is_refused_by_name(
    name: str, path: str, data: bytes | str
) -> None:
    """The error names the znode."""
    with pytest.raises(ZnodeFormatError) as refused:
        read_offsets(name, {path: node(data)}, "t")
    named = "/tx/coordinator/currtx" if name == "trident" else path
    assert str(refused.value).startswith(named), refused.value


def test_a_list_needs_its_topic() -> None:
    """The text says which option gives it."""
    with pytest.raises(ZnodeFormatError, match=":TOPIC"):
        read_offsets("spark-list", {"/job": node("0:1")}, "")


def test_two_offsets_of_one_partition_are_refused() -> None:
    """No rule says which of them is right."""
    nodes = {"/s/a/partition_0": node(storm(0, 5)), "/s/b/partition_0": node(storm(0, 6))}
    with pytest.raises(ZnodeFormatError, match=r"^/s/b/partition_0.* /s/a/partition_0$"):
        read_offsets("storm", nodes, "")


PATHS: dict[str, Callable[[str], str]] = {
    "storm": lambda name: f"/s/{name}/partition_0",
    "trident": lambda name: f"/tx/user/partition_0/{name}",
    "spark-list": lambda name: f"/{name}",
    "brooklin": lambda name: f"{TASK}/state/{name}",
    "ureplicator": lambda name: f"/consumers/ureplicator-x/offsets/t/{name}",
    "secor": lambda name: f"/consumers/secor/offsets/t/{name}",
    "offset": lambda name: f"/consumers/g/offset/{name}/0",
    "kafka": lambda name: f"/consumers/g/offsets/{name}/0",
}
HOSTILE = st.one_of(
    st.binary(max_size=40),
    st.integers().map(lambda number: str(number).encode()),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["offset", "nextOffset", "partition", "topic", "0"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)


@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.lists(
        st.tuples(st.sampled_from(["0", "1", "0-3", "x", "sourceCheckpoint"]), HOSTILE), max_size=3
    ),
    st.booleans(),
)
def test_hostile_znodes_give_offsets_or_an_error_that_names_one(
    name: str, written: list[tuple[str, bytes]], began: bool
) -> None:
    """Never another exception, and never a number that Kafka does not accept."""
    nodes = {PATHS[name](part): node(data) for part, data in written}
    if began:
        nodes["/tx/coordinator/currtx"] = node("1")
    try:
        found = read_offsets(name, nodes, "t")
    except ZnodeFormatError as error:
        found, named = {}, str(error)
        event("refused")
    else:
        event("read")
        named = "/tx/coordinator"
    assert named.startswith(("/tx/coordinator", *nodes))
    assert all(one.offset is not None and 0 <= one.offset < 2**63 for one in found.values())
    assert all(0 <= tp.partition < 2**31 for tp in found)
    for path, one in nodes.items():
        recognized(path, one.data)
        looks_like_offsets(f"/other{path}", one.data, {"t", "topic"})


# -- on a simulated cluster ----------------------------------------------------------------------


def write(simulated: Simulated, nodes: Nodes) -> None:
    """Write znodes, one that was never set with its first data."""
    for path, one in nodes.items():
        simulated.zk.set(path, one.data)
        if one.stat.version:
            simulated.zk.set(path, one.data)


def planned(simulated: Simulated, what: str, *words: str) -> Ran:
    """Plan a move of what a client has written, to group g."""
    name, nodes, topic, _ = WRITTEN[what]
    write(simulated, nodes)
    found = (LAYOUTS[name].pattern.fullmatch(path) for path in nodes)
    root = os.path.commonpath([match["root"] for match in found if match])
    where = ":".join(filter(None, (name, root, topic)))
    return simulated.run("plan", "--layout", where, *words)


@pytest.mark.parametrize("what", WRITTEN)
def test_offsets_of_another_client_are_moved_to_kafka(simulated: Simulated, what: str) -> None:
    """The group gets the next record to read, also if the client stores the last one. The plan
    shows where an offset is from."""
    name, _, _, offsets = WRITTEN[what]
    for topic in ("t", "u"):
        simulated.topic(topic, (0, 10_000), (0, 10_000), (0, 10_000), (0, 10_000))
    made = planned(simulated, what, "--group", "g", "--out", simulated.file("plan"))
    assert (made.status, made.rows[0]["verdict"]) == (0, "ready"), made
    assert "stop that client before apply" in made.rows[0]["notes"]
    text = (simulated.folder / "plan").read_text()
    assert f"from the layout {name}" in text
    assert ("was read last" in text) == (name == "brooklin")
    ran = simulated.run("apply", simulated.file("plan"), "--execute", "--parallel", "1")
    assert ran.status == 0, ran
    found = {tp: one.offset for tp, one in simulated.kafka.committed["g"].items()}
    assert found == {tp: offset + (name == "brooklin") for tp, offset in offsets.items()}


def test_znodes_older_than_the_topic_need_a_decision(simulated: Simulated) -> None:
    """As offsets of a JVM consumer do: they are of an earlier topic of that name."""
    simulated.zk.set("/s/partition_0", storm(0, 40).encode())
    simulated.topic("t", (0, 10_000))
    words = ("plan", "--layout", "storm:/s", "--group", "g")
    ran = simulated.run(*words)
    assert (ran.status, ran.rows[0]["kind"]) == (3, "topic-recreated"), ran
    ran = simulated.run(*words, "--recreated-topics", "skip")
    assert ran.rows[0]["verdict"] == "ready"
    simulated.zk.set("/s/partition_0", storm(0, 41).encode())
    assert simulated.run(*words).rows[0]["verdict"] == "ready"


@pytest.mark.parametrize("means", ["next", "last"])
def test_the_operator_may_know_better_what_a_number_means(simulated: Simulated, means: str) -> None:
    """For a layout, for a group in ZooKeeper, and for one group by a file of decisions."""
    simulated.topic("t", (0, 10_000), (0, 10_000))
    simulated.in_zookeeper("plain", "t", 40)
    simulated.in_zookeeper("other", "t", 40)
    words = ("--source-means", means, "--out", simulated.file("plan"))
    for name, more in (("plain", ()), ("g", ("--layout", "storm:/s"))):
        simulated.zk.set("/s/partition_0", storm(0, 40).encode())
        assert simulated.run("plan", "--group", name, *more, *words).status == 0
        assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
        assert simulated.kafka.committed[name][T0].offset == 40 + (means == "last")
        assert simulated.run("status", simulated.file("plan")).status == 0
        for file in simulated.folder.glob("plan*"):
            file.unlink()
    assert simulated.run("gate", "--group", "plain").status == 0
    decided = f'[[rule]]\ngroup = "other"\nsource_means = "{means}"\n'
    (simulated.folder / "rules").write_text(decided)
    rules = ("--decisions", simulated.file("rules"), "--out", simulated.file("plan"))
    assert simulated.run("plan", "--group", "other", *rules).status == 0
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    assert simulated.kafka.committed["other"][T0].offset == 40 + (means == "last")


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("--source-means", "last"), 41),
        (("--decisions", "rules"), 41),
        (("--layout", "brooklin:/b:t"), 41),
        (("--layout", "storm:/s"), 40),
        (("--from-file", "exported"), 40),
    ],
)
def test_next_offsets_are_not_copied_to_another_client(
    simulated: Simulated, words: tuple[str, ...], first: int
) -> None:
    """A client that stores the last record would skip one, and one with a layout reads other
    znodes. A roll back is possible, also with ``--force``. A later plan does not forget it."""
    simulated.topic("t", (0, 10_000), (0, 10_000))
    simulated.topic("u", (0, 10_000))
    layout = words[0] in ("--layout", "--from-file")
    (simulated.folder / "exported").write_text("t,0,40\n")
    old = {
        "/s/partition_0": storm(0, 40).encode(),
        "/b/connectors/type/task/state/sourceCheckpoint": compact({"0": "0-40"}).encode(),
        "/consumers/g/offsets/t/0": b"40",
    }
    for path, data in list(old.items())[: 2 if layout else 3]:
        simulated.zk.set(path, data)
    rule = '[[rule]]\ngroup = "g"\ntopic = "t"\nsource_means = "last"\n'
    (simulated.folder / "rules").write_text(rule)
    files = ("rules", "exported")
    more = [simulated.file(word) if word in files else word for word in words]

    def move(*more: str) -> None:
        for file in simulated.folder.glob("plan*"):
            file.unlink()
        ran = simulated.run("plan", "--group", "g", *more, "--out", simulated.file("plan"))
        assert ran.status == 0, ran
        assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0

    def refused() -> None:
        for dry in ((), ("--execute",)):
            ran = simulated.run("undo", "--group", "g", *dry)
            assert (ran.status, ran.rows[0]["reasons"]) == (3, ["other-client"]), ran
        ran = simulated.run("plan", "--direction", "kafka-to-zk", "--group", "g")
        assert (ran.status, ran.rows[0]["kind"]) == (3, "other-client"), ran
        assert simulated.held("g", "t") == (before, {0: 60})

    before = simulated.held("g", "t")[0]
    for force in ((), ("--force",)):
        move(*more)
        assert simulated.held("g", "t") == (before, {0: first})
        if force:
            simulated.in_kafka("g", "t", 60)
            refused()
        assert simulated.run("undo", "--group", "g", *force, "--execute").status == 0
        assert simulated.held("g", "t") == (before, {})
    if not layout:
        move(*more)
        simulated.in_zookeeper("g", "u", 7)
        move()
        simulated.in_kafka("g", "t", 60)
        refused()


def test_an_operator_can_write_the_last_records_read(simulated: Simulated) -> None:
    """With ``--from-file``, as the refusal advises."""
    simulated.topic("t", (0, 10_000))
    simulated.in_zookeeper("g", "t", 40)
    words = ("--group", "g", "--source-means", "last", "--out", simulated.file("plan"))
    assert simulated.run("plan", *words).status == 0
    assert simulated.run("apply", simulated.file("plan"), "--execute").status == 0
    simulated.in_kafka("g", "t", 60)
    (simulated.folder / "file").write_text("t,0,59\n")
    words = ("--group", "g", "--direction", "kafka-to-zk", "--from-file", simulated.file("file"))
    assert simulated.run("plan", *words, "--out", simulated.file("back")).status == 0
    assert simulated.run("apply", simulated.file("back"), "--execute").status == 0
    assert simulated.held("g", "t")[0] == {0: 59}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--layout", "storm"), "LAYOUT:ZNODE"),
        (("--layout", "storm:s"), "LAYOUT:ZNODE"),
        (("--layout", "none:/s"), "storm, trident"),
        (("--layout", "storm:/s", "--all"), "--group"),
        (("--layout", "storm:/s", "--direction", "kafka-to-zk"), "--direction"),
        (("--source-means", "last", "--direction", "kafka-to-zk"), "--direction"),
        (("--layout", "storm:/s", "--from-file", "x"), "--from-file"),
    ],
)
def test_options_that_do_not_fit(simulated: Simulated, words: tuple[str, ...], text: str) -> None:
    """They are named."""
    group = () if "--all" in words else ("--group", "g")
    ran = simulated.run("plan", *group, *words)
    assert ran.status == 2
    assert text in ran.err


@pytest.mark.parametrize(
    ("path", "data", "named"),
    [
        ("/s/partition_0", b"{", "/s/partition_0 is not JSON"),
        ("/s/other/0", b"77", "/s/other/0 looks like an offset"),
        ("/else", b"", "/s does not exist"),
        ("/s", b"", "/s has no offset in the layout storm"),
    ],
)
def test_what_cannot_be_read_is_named(
    simulated: Simulated, path: str, data: bytes, named: str
) -> None:
    """Nothing is planned then."""
    simulated.zk.set(path, data)
    words = ("--layout", "storm:/s", "--group", "g")
    ran = simulated.run("plan", *words, "--out", simulated.file("plan"))
    assert (ran.status, named in ran.err) == (1, True), ran
    assert not list(simulated.folder.glob("plan*"))


@pytest.mark.parametrize("what", ["storm", "brooklin, one topic"])
def test_an_export_has_the_next_offsets(simulated: Simulated, what: str) -> None:
    """For a ZooKeeper of its own, from which ``plan --from-file`` reads them."""
    name, nodes, topic, offsets = WRITTEN[what]
    simulated.topic("t", (0, 10_000), (0, 10_000))
    write(simulated, nodes)
    path = {"storm": "/kafka-storm", "brooklin": f"/brooklin:{topic}"}[name]
    words = ("--layout", f"{name}:{path}", "--group", "g")
    file = simulated.file("file")
    ran = simulated.run("offsets", "export", *words, "--out", file, rows=False)
    assert ran.status == 0, ran
    assert simulated.run("plan", "--from-file", file, "--all", "--out", file + "2").status == 0
    assert simulated.run("apply", file + "2", "--execute").status == 0
    assert simulated.kafka.committed["g"][T0].offset == offsets[T0] + (name == "brooklin")


def test_storm_in_a_group_s_znode_is_moved(simulated: Simulated) -> None:
    """Where ``zkRoot`` is /consumers. Without the layout, the group is refused."""
    simulated.topic("t", (0, 10_000))
    simulated.zk.set("/consumers/g/partition_0", storm(0, 40).encode())
    assert simulated.run("plan", "--group", "g").rows[0]["kind"] == "foreign-layout"
    words = ("--layout", "storm:/consumers/g", "--out", simulated.file("plan"))
    assert simulated.run("plan", "--group", "g", *words).rows[0]["verdict"] == "ready"
    ran = simulated.run("apply", simulated.file("plan"), "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (0, "done"), ran
    assert simulated.kafka.committed["g"][T0].offset == 40


@pytest.mark.parametrize(
    ("path", "data", "named"),
    [
        ("/s/partition_0", storm(0, 41).encode(), "/s: offsets of t-0 have changed"),
        ("/s/partition_1", storm(1, 7).encode(), "/s: offsets of t-1 have changed"),
        ("/s/partition_0", None, "/s has no offset in the layout storm"),
        ("/s/partition_0", b"{", "/s/partition_0"),
    ],
)
def test_what_a_client_stores_after_the_plan_is_not_lost(
    simulated: Simulated, path: str, data: bytes | None, named: str
) -> None:
    """apply reads its znodes again, right before it writes, and refuses the group."""
    simulated.topic("t", (0, 10_000), (0, 10_000))
    simulated.zk.set("/s/partition_0", storm(0, 40).encode())
    file = simulated.file("plan")
    simulated.run("plan", "--layout", "storm:/s", "--group", "g", "--out", file)
    assert simulated.run("apply", file).status == 0
    if data is None:
        simulated.zk.delete(path)
    else:
        simulated.zk.set(path, data)
    ran = simulated.run("apply", file, "--execute")
    assert (ran.status, ran.rows[0]["outcome"]) == (3, "refused"), ran
    assert named in ran.rows[0]["why"]
    assert "g" not in simulated.kafka.committed


def test_the_gate_finds_all_layouts_in_one_tree(simulated: Simulated) -> None:
    """Each with its layout and the path for ``plan --layout``. Everything else that looks like an
    offset is not understood. What has nothing to do with offsets passes."""
    simulated.topic("t", (0, 10_000))
    simulated.in_zookeeper("g", "t", 40)
    simulated.in_kafka("g", "t", 40)
    for path in ("/storm/nimbus", "/hbase/rs/1", "/zookeeper/quota", "/config/topics/t/0"):
        simulated.zk.set(path, b"x")
    assert simulated.run("gate", "--all").status == 0
    for name, nodes, *_ in WRITTEN.values():
        write(simulated, {path: one for path, one in nodes.items()
                          if name != "ureplicator" and not path.endswith("/config")})  # fmt: skip
    write(simulated, {f"/u{path}": one for path, one in WRITTEN["ureplicator"][1].items()})
    simulated.zk.set("/job/offsets/t/0-3", b"77")
    simulated.zk.set("/hbase/x/7", b"12")
    for path in ("/kafka2/brokers/ids/1", "/kafka2/brokers/topics/__consumer_offsets"):
        simulated.zk.set(path, b'{"offset":1}')
    ran = simulated.run("gate", "--all")
    assert ran.status == 3
    found = {row["group"]: row["why"].split(",")[0] for row in ran.rows if row["group"] != "g"}
    layouts = {"/kafka-storm/topology": "storm", "/s/id/t": "storm", "/s/id/u": "storm",
               "/transactional/tx": "trident", "/spark/job": "spark-list", "/brooklin": "brooklin",
               "/u/consumers/ureplicator-a-b": "ureplicator", "/k/consumers/secor": "secor",
               "/k/consumers/g": "offset", "/kafka2/consumers/g": "kafka"}  # fmt: skip
    odd = {"/job/offsets/t": "/job/offsets/t/0-3", "/hbase/x": "/hbase/x/7"}
    assert found == {
        **{path: f"offsets in the layout {name}" for path, name in layouts.items()},
        **{path: f"not understood: {example} looks like an offset"
           for path, example in odd.items()},
    }  # fmt: skip


JAVA = b"\xac\xed\x00\x05"
LONG = (
    JAVA + b"sr\x00\x0ejava.lang.Long;\x8b\xe4\x90\xcc\x8f#\xdf\x02\x00\x01J\x00\x05value"
    b"xr\x00\x10java.lang.Number\x86\xac\x95\x1d\x0b\x94\xe0\x8b\x02\x00\x00xp"
)
"""What the default serializer of ZkClient writes before the eight bytes of a ``Long``."""
FORMS: list[tuple[str, bytes]] = [
    *(
        (path, data)
        for path in ("/app/mytopic/0", "/app/mytopic/x", "/app/mytopic-0/x", "/app/else/0",
                     "/app/else/0/position", "/app/else/partition_0/position")
        for data in (b"12345", b' "12345"\n', struct.pack(">q", 12345),
                     LONG + struct.pack(">q", 12345), JAVA + b"t\x00\x0512345")
    ),
    *(
        ("/spark/checkpoints/job", data)
        for data in (b'{"mytopic":{"0":12345,"1":678}}', b'{"0":1,"1":2}', b'{"else":{"0":"1"}}',
                     b'[{"topic":"mytopic","next":5}]', b'{"mytopic-0":5}', b'{"mytopic":[5,6]}',
                     b"0:12,1:15\n", b"0:12, 1:15", b"0:12;1:15", b"0=12;1=15", b"0:12\n1:15\n",
                     b"mytopic:0:12,mytopic:1:15", b"mytopic:0=12; else:1=15;")
    ),
    ("/app/mytopic/0", b'{"next":12345}'),
    ("/app/mytopic", b"[5,6]"),
]  # fmt: skip
NO_OFFSETS: dict[str, bytes] = {
    "/app/config": b'{"timeout":5,"retries":{"0":"x"},"none":{},"on":{"1":true}}',
    "/app/epoch": b"5",
    "/app/mytopic": b"x",
    "/app/mytopic/leader": b'{"host":"a","new":true}',
    "/app/mytopic/name": b"abcdefgh",
    "/app/name/0": b"abcdefgh",
    "/app/broken": b'{"0":5',
    "/app/deep": b"[" * 100_000,
    "/app/blank": b" " * 100_000 + b"1:",
    "/app/moment": b"2026-11-28T12:30:15",
    "/app/server": b"zk1:2181,zk2:2181",
    "/app/worker0/epoch": b"5",
    "/app/0": LONG.replace(b"Long", b"Void"),
    "/hadoop-ha/ns/lock/mytopic": b"\x0a\x02ns\x12\x03nn1",
    "/zookeeper/config": b"version=100000000",
    "/zookeeper/quota/mytopic/zookeeper_limits": b"count=5,bytes=-1",
    "/zookeeper/quota/mytopic/0": b"5",
    "/kafka2/consumers/other/ids/other_a": (
        b'{"version":1,"subscription":{"mytopic":1},"pattern":"static","timestamp":"1"}'
    ),
    "/kafka2/consumers/other/owners/mytopic/0": b"other_a-0",
    "/kafka2/brokers/topics/mytopic": b'{"version":1,"partitions":{"0":[0]}}',
    "/kafka2/config/topics/mytopic": b'{"version":1,"config":{}}',
    "/kafka3/controller_epoch": b"5",
    "/kafka3/brokers/topics/mytopic/partitions/0/state": b'{"controller_epoch":5,"leader":0}',
    "/controller_epoch": b"5",
    "/config/topics/mytopic": b'{"version":1,"config":{}}',
    "/storm/mytopic/coordinator/currtx": b"9",
    "/storm/mytopic/coordinator/currattempts": b'{"9":0}',
}


@pytest.mark.parametrize(
    ("path", "data"), FORMS, ids=[f"{path} {data[-20:]!a}" for path, data in FORMS]
)
def test_the_gate_finds_offsets_in_other_forms(
    simulated: Simulated, path: str, data: bytes
) -> None:
    """Numbers, lists and JSON whose layout nobody declared, also if only the name of a topic tells
    what they are."""
    simulated.topic("mytopic", (0, 10_000))
    simulated.zk.set("/consumers/g")
    simulated.zk.set(path, data)
    ran = simulated.run("gate", "--all")
    assert ran.status == 3
    assert [path in row["why"] for row in ran.rows] == [False, True], ran


def test_the_gate_knows_topics_that_brokers_do_not_list(simulated: Simulated) -> None:
    """In KRaft, those that zkmigrate may not describe."""
    simulated.topic("mytopic", (0, 10_000))
    simulated.zk.set("/consumers/g")
    simulated.zk.set("/app/mytopic/position", b"5")
    simulated.kafka.denied.add("mytopic")
    simulated.leave_zookeeper()
    assert simulated.run("gate", "--all").status == 3


def test_the_gate_passes_what_holds_no_offsets(simulated: Simulated) -> None:
    """Znodes of ZooKeeper, of Kafka, and of programs that only resemble offsets."""
    simulated.topic("mytopic", (0, 10_000))
    simulated.zk.set("/consumers/g")
    for path, data in NO_OFFSETS.items():
        simulated.zk.set(path, data)
    ran = simulated.run("gate", "--all")
    assert (ran.status, [row["why"] for row in ran.rows]) == (0, [""]), ran


def test_a_rule_for_groups_does_not_ignore_paths(simulated: Simulated) -> None:
    """Its pattern may match a path by accident."""
    simulated.zk.set("/consumers/g")
    simulated.zk.set("/kafka-storm/billing-test/partition_0", storm(0, 40).encode())
    rules = (f'[[rule]]\ngroup = "{one}"\nignore = "old"\n' for one in ("*", "*-test"))
    (simulated.folder / "rules").write_text("".join(rules))
    assert simulated.run("gate", "--all", "--decisions", simulated.file("rules")).status == 3


def test_a_path_that_is_ignored_is_not_looked_at(simulated: Simulated) -> None:
    """With the reason, which is printed. The znodes that were looked at are counted."""
    simulated.zk.set("/kafka-storm/topology/partition_0", storm(0, 40).encode())
    simulated.zk.set("/hbase/x/7", b"12")
    simulated.in_zookeeper("g", "t")
    simulated.zk.set("/consumers/g")
    rules = '[[rule]]\ngroup = "{}"\nignore = "switched off"\n'
    decided = rules.format("/kafka-storm") + rules.format("/hbase/*")
    (simulated.folder / "rules").write_text(decided)
    ran = simulated.run("gate", "--all", "--decisions", simulated.file("rules"))
    assert ran.status == 0, ran
    assert "/kafka-storm is ignored: switched off" in ran.err
    assert "looked at /hbase: 1 znodes" in ran.err
    assert "not looked at: /zookeeper, and what Kafka itself keeps" in ran.err


def test_a_large_tree_takes_little_memory(simulated: Simulated) -> None:
    """Places are counted, not kept: 20,000 znodes in one, and more places than are shown."""
    simulated.zk.set("/consumers/g")
    sweep = Sweep(lambda path: "")
    for number in range(30_000):
        sweep._add(Place(f"/app/{number}", "", f"/app/{number}/0"))
    assert len(sweep.places) == 10_001
    assert sweep.places["/", ""].znodes == 20_000


def test_what_the_sweep_cannot_read_fails(simulated: Simulated) -> None:
    """A part of the tree that zkmigrate may not read, perhaps with offsets."""
    simulated.zk.set("/consumers/g")
    simulated.zk.set("/closed/app/partition_0", storm(0, 40).encode())
    simulated.zk.set("/open/x", b"")
    assert simulated.run("gate", "--all").status == 3

    def after(op: ZkOp, reply: Reply) -> Reply:
        below = isinstance(op, GetMany) and "/closed/app" in op.paths
        return Failed(Code.NO_AUTH) if below else reply

    simulated.zk.after = after
    ran = simulated.run("gate", "--all")
    assert ran.status == 3
    (row,) = [row for row in ran.rows if row["group"] != "g"]
    assert (row["group"], row["reasons"]) == ("/closed/app", ["unreadable"])
