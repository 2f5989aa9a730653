"""Every message format and codec of each broker version, read by our member alone and with a JVM
member.

Our member gets no setting about the brokers. It finds them in ZooKeeper and asks for their
versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from kafka import KafkaProducer

from tests.support.legacy_jvm import JvmMembers
from zkconsumer.servers import LocalCluster, wait_until

CODECS = ["none", "gzip", "snappy", "lz4"]
FORMATS = {"0": "0.9.0", "1": "0.10.2", "2": "1.1"}
BROKERS = [
    *(("3.9.1", "2", codec) for codec in [*CODECS, "zstd"]),
    *(("1.1.1", form, codec) for form in FORMATS for codec in CODECS),
    *(("0.8.2.2", "0", codec) for codec in CODECS),
]
SHARED = [
    (jvm, *case)
    for jvm in ("1.1.1", "0.8.2.2")
    for case in BROKERS
    if case[2] != "zstd" and not (jvm == "1.1.1" and case[0] == "0.8.2.2")
]
COUNT = 60


def topic_config(broker: str, form: str) -> dict[str, str]:
    """Settings that make the broker store this message format."""
    return {"message.format.version": FORMATS[form]} if broker == "1.1.1" else {}


def produce(
    cluster: LocalCluster,
    jvms: Callable[[str], JvmMembers],
    topic: str,
    partition: int,
    codec: str,
    start: int = 0,
) -> list[bytes]:
    """Send messages as compressed sets, and return their values. Their offsets count from
    ``start``.

    Brokers of 0.8.2 get them from that release's own producer, because only it writes lz4 as they
    expect.
    """
    values = [
        b"%d-%d-" % (partition, number) + b"x" * number for number in range(start, start + COUNT)
    ]
    offsets: Sequence[int]
    if cluster.kafka == "0.8.2":
        offsets = jvms("0.8.2.2").produce(cluster.bootstrap, topic, partition, values, codec)
    else:
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=100,
            enable_idempotence=False,  # formats 0 and 1 do not have it
        )
        sent = [producer.send(topic, value, partition=partition) for value in values]
        offsets = [future.get(30).offset for future in sent]
        producer.close(5)
    assert list(offsets) == list(range(start, start + COUNT))
    return values


@pytest.mark.parametrize(("broker", "form", "codec"), BROKERS)
def test_ours_alone(
    clusters: Callable, jvms: Callable, groups: Callable, broker: str, form: str, codec: str
) -> None:
    """A zkconsumer member reads everything and commits. The next member continues from there."""
    cluster = clusters(broker)
    group = groups(cluster, jvms("0.8.2.2"))
    topic = group.create("a", 2, topic_config(broker, form))
    for turn in (0, COUNT):
        values = [produce(cluster, jvms, topic, number, codec, turn) for number in (0, 1)]
        member = group.join("p1", topics={topic: 1})
        member.reader.wait(2 * COUNT)
        group.leave("p1")
        assert len(member.deliveries) == 2 * COUNT
        for partition in (0, 1):
            found = [d for d in member.deliveries if d.partition == partition]
            assert [delivery.value for delivery in found] == values[partition]
            assert [delivery.offset for delivery in found] == list(range(turn, turn + COUNT))


@pytest.mark.parametrize(("jvm", "broker", "form", "codec"), SHARED)
def test_shared(
    clusters: Callable,
    jvms: Callable,
    groups: Callable,
    jvm: str,
    broker: str,
    form: str,
    codec: str,
) -> None:
    """JVM and zkconsumer members start at an offset inside a compressed message set, skip the
    earlier messages in it, and share the rest."""
    cluster = clusters(broker)
    group = groups(cluster, jvms(jvm))
    topic = group.create("a", 2, topic_config(broker, form))
    values = [produce(cluster, jvms, topic, number, codec) for number in (0, 1)]
    middle = COUNT // 2 + 1
    for partition in (0, 1):
        path = f"{group.watch.paths.offsets_topic(topic)}/{partition}"
        group.watch.client.create(path, str(middle).encode(), makepath=True)
    both = [group.join(name, topics={topic: 1}) for name in ("p1", "j1")]
    assert set(group.settled().values()) == {f"{group.group}_{name}-0" for name in ("j1", "p1")}
    late = [produce(cluster, jvms, topic, number, codec, COUNT) for number in (0, 1)]
    wanted = {value for number in (0, 1) for value in values[number][middle:] + late[number]}

    def read() -> set[bytes]:
        return {delivery.value for member in both for delivery in member.deliveries}

    wait_until(lambda: read() >= wanted, 20, "both have read their share")
    assert read() == wanted
    assert all(member.deliveries for member in both)
