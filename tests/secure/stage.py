"""The clients of a secured cluster, and the tools that are tested against it.

``SECURE=all`` runs every combination. Otherwise a sample runs, with every mechanism and every tool.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from kazoo.client import KazooClient
from zkmigrate.cli import run as zkmigrate

from tests.support.kerberos import REALM, jaas
from tests.support.secured import Authority, SecuredCluster
from zkconsumer import CoordinatorConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.broker import connection as connections
from zkconsumer.broker.api_versions import SASL_AUTHENTICATE, supported_versions
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.types import OpenConnection
from zkconsumer.errors import BrokerUnavailableError

EVERYTHING = os.environ.get("SECURE") == "all"
TOPIC = "secured"
MESSAGES = 40
PARTITIONS = 2

WAYS: Mapping[str, tuple[str, str | None, str]] = {
    "PLAINTEXT": ("PLAINTEXT", None, "PLAINTEXT"),
    "SSL": ("SSL", None, "SSL"),
    "mTLS": ("SSL", None, "MTLS"),
    "PLAIN": ("SASL_SSL", "PLAIN", "SASL_SSL"),
    "SCRAM-256": ("SASL_SSL", "SCRAM-SHA-256", "SASL_SSL"),
    "SCRAM-512": ("SASL_SSL", "SCRAM-SHA-512", "SASL_SSL"),
    "OAUTHBEARER": ("SASL_SSL", "OAUTHBEARER", "SASL_SSL"),
    "GSSAPI": ("SASL_SSL", "GSSAPI", "SASL_SSL"),
    "SCRAM-512 without TLS": ("SASL_PLAINTEXT", "SCRAM-SHA-512", "SASL_PLAINTEXT"),
}
"""The ways to connect to a broker: security.protocol, mechanism, and the listener."""


@dataclass
class Stage:
    """A secured cluster with a topic of ``MESSAGES`` messages."""

    cluster: SecuredCluster
    stranger: Authority
    """A CA that no server trusts."""
    numbers: Iterator[int]

    @property
    def kafka_python(self) -> dict[str, Any]:
        """The arguments of a client of kafka-python without security. It cannot recognize 0.9."""
        version = {"api_version": (0, 9)} if self.cluster.kafka == "0.9" else {}
        return {"bootstrap_servers": self.cluster.at("PLAINTEXT"), **version}

    def group(self) -> str:
        """A name that no other test uses."""
        return f"group-{next(self.numbers)}"

    def properties(self, way: str) -> dict[str, str]:
        """The properties of an authorized client."""
        protocol, mechanism, listener = WAYS[way]
        return self.cluster.client(protocol, mechanism, mtls=listener == "MTLS")

    def wrong(self, way: str, folder: Path) -> tuple[dict[str, str], str]:
        """The properties of a client with a wrong secret, and the key that an error must name."""
        given = self.properties(way)
        if way == "SSL":
            return given | {"ssl.truststore.location": str(self.stranger.ca)}, (
                "ssl.truststore.location"
            )
        if way == "mTLS":
            foreign = str(self.stranger.issue("foreign"))
            return given | {"ssl.keystore.location": foreign}, "ssl.keystore.location"
        if way == "OAUTHBEARER":
            token = folder / "token"
            token.write_text("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIiwiaWF0IjoxLCJleHAiOjJ9.")  # expired
            del given["sasl.jaas.config"]
            key = "sasl.oauthbearer.token.endpoint.url"
            return given | {key: f"file://{token}"}, key
        if way == "GSSAPI":
            name, kdc = f"old-{secrets.token_hex(4)}", self.cluster.kdc
            line = jaas(f"{name}@{REALM}", kdc.add(name))
            kdc.change_key(name)
            return given | {"sasl.jaas.config": line}, "sasl.jaas.config"
        line = given["sasl.jaas.config"].replace(self.cluster.password, "not-the-password")
        return given | {"sasl.jaas.config": line}, "sasl.jaas.config"

    def zookeeper(self, way: str) -> str:
        """``zookeeper.connect`` of a tree in which the broker has only this listener."""
        return f"{self.cluster.zookeeper}/{WAYS[way][2]}"


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a file as an operator would, readable only by its owner."""
    path.touch(0o600)
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def make_trees(cluster: SecuredCluster) -> None:
    """Create a chroot for each listener, like the tree of a cluster that has only this listener.

    Kafka 4 does not have such a tree, so the chroot is only a place for groups.
    """
    client = KazooClient(cluster.zookeeper)
    client.start()
    try:
        if cluster.kraft:
            for name in cluster.ports:
                client.ensure_path(f"/{name}/consumers")
            return
        broker = json.loads(client.get("/brokers/ids/0")[0])
        topic = client.get(f"/brokers/topics/{TOPIC}")[0]
        states = {
            number: client.get(f"/brokers/topics/{TOPIC}/partitions/{number}/state")[0]
            for number in range(PARTITIONS)
        }
        for name, listener in [*((one, one) for one in cluster.ports), ("how-to", "SASL_SSL")]:
            named = "listener_security_protocol_map" in broker  # otherwise these are protocols
            scheme = "SSL" if listener == "MTLS" and not named else listener
            endpoint = f"{scheme}://127.0.0.1:{cluster.ports[listener]}"
            only = broker | {"endpoints": [endpoint]}
            client.create(f"/{name}/brokers/ids/0", json.dumps(only).encode(), makepath=True)
            client.create(f"/{name}/brokers/topics/{TOPIC}", topic, makepath=True)
            client.ensure_path(f"/{name}/consumers")
            for number, state in states.items():
                path = f"/{name}/brokers/topics/{TOPIC}/partitions/{number}/state"
                client.create(path, state, makepath=True)
    finally:
        client.stop()
        client.close()


Tool = Callable[[Stage, str, dict[str, str], Path], None]
"""Does its work with these properties. Raises AssertionError or a zkconsumer error."""


class RefusedError(Exception):
    """A command has ended with an error. The text is its output."""


def _read_all(connector: ZookeeperConsumerConnector | CoordinatorConsumerConnector) -> None:
    with connector:
        (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
        seen = {int(message.value) for message in islice(stream, MESSAGES)}
    assert seen == set(range(MESSAGES))


def consume_on_zookeeper(stage: Stage, way: str, properties: dict[str, str], folder: Path) -> None:
    """A member of a group in ZooKeeper reads everything."""
    config = {
        "zookeeper.connect": stage.zookeeper(way),
        "group.id": stage.group(),
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": "20000",
    }
    if stage.cluster.kraft:
        config["bootstrap.servers"] = stage.cluster.at(WAYS[way][2])
        config["zkconsumer.brokers"] = "bootstrap"
    file = write_properties(folder / "consumer.properties", config | properties)
    _read_all(ZookeeperConsumerConnector(file))


def consume_on_coordinator(
    stage: Stage, way: str, properties: dict[str, str], folder: Path
) -> None:
    """A member of a group on the brokers reads everything."""
    config = {
        "bootstrap.servers": stage.cluster.at(WAYS[way][2]),
        "group.id": stage.group(),
        "auto.offset.reset": "earliest",
        "consumer.timeout.ms": "20000",
    }
    file = write_properties(folder / "consumer.properties", config | properties)
    _read_all(CoordinatorConsumerConnector(file))


def move_a_group(stage: Stage, way: str, properties: dict[str, str], folder: Path) -> None:
    """``zkmigrate plan``, ``apply`` and ``status`` move a group to Kafka."""
    group = stage.group()
    client = KazooClient(stage.zookeeper(way))
    client.start()
    for number in range(PARTITIONS):
        client.create(f"/consumers/{group}/offsets/{TOPIC}/{number}", b"7", makepath=True)
    client.stop()
    client.close()
    servers: list[str] = []
    decided: list[str] = []
    if stage.cluster.kraft:
        servers = ["--bootstrap-server", stage.cluster.at(WAYS[way][2])]
        decided = ["--unproven-topics", "trust"]
    plan = migrate(stage.zookeeper(way), group, properties, folder, servers, decided)
    for shape in (["--out", str(folder / f"{group}.html")], ["--json"]):
        assert zkmigrate(["report", str(plan), *shape]) == 0
    assert committed(stage, group) == dict.fromkeys(range(PARTITIONS), 7)


def migrate(
    zookeeper: str,
    group: str,
    properties: Mapping[str, str],
    folder: Path,
    servers: Sequence[str] = (),
    decided: Sequence[str] = (),
) -> Path:
    """Move a group with ``zkmigrate``. Return the plan. Raises RefusedError if a command fails."""
    file = write_properties(folder / "command.properties", properties)
    plan = folder / f"{group}.plan"
    for words in (
        ["plan", "--group", group, "--out", str(plan), *decided],
        ["apply", str(plan), "--execute"],
        ["status", str(plan)],
    ):
        where = ["--zookeeper", zookeeper, "--command-config", str(file), *servers]
        if zkmigrate([*words, *where]) != 0:
            raise RefusedError
    return plan


def committed(stage: Stage, group: str) -> dict[int, int]:
    """The offsets of a group in Kafka, read without security."""
    from kafka import KafkaConsumer

    asked = KafkaConsumer(**stage.kafka_python, group_id=group)
    try:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return {place.partition: asked.committed(place) for place in places}
    finally:
        asked.close()


def read_offsets(stage: Stage, way: str, properties: dict[str, str], folder: Path) -> None:
    """zkaudit's reader of ``__consumer_offsets``, used without Spark."""
    file = write_properties(folder / "command.properties", properties)
    check_offsets_read(stage.kafka_python, stage.cluster.at(WAYS[way][2]), stage.group(), file)


def check_offsets_read(plain: Mapping[str, Any], secured: str, group: str, file: Path) -> None:
    """Commit an offset without security, and find its group with zkaudit's reader. ``plain``:
    kafka-python's arguments. ``secured``: the address of a listener. ``file``: the reader's
    properties."""
    from kafka import KafkaConsumer
    from zkaudit.sources.offsets import _OffsetsReader

    client = KafkaConsumer(**plain, group_id=group)
    client.assign([TopicPartition(TOPIC, 0)])
    client.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(5, "", -1)})
    client.close()
    reader = _OffsetsReader(secured, str(file))
    found = [
        row
        for part in reader.partitions()
        for rows in reader.read(part)
        for row in rows["group_id"].to_pylist()
    ]
    assert group in found


TOOLS: Mapping[str, Tool] = {
    "zookeeper": consume_on_zookeeper,
    "coordinator": consume_on_coordinator,
    "zkmigrate": move_a_group,
    "zkaudit": read_offsets,
}


@dataclass
class Timer:
    """The duration of a block, in seconds."""

    begun: float = 0.0
    seconds: float = 0.0

    def __enter__(self) -> Timer:
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.begun


def without_authenticate_requests(
    monkeypatch: pytest.MonkeyPatch, handshake: bool = True
) -> list[int]:
    """Log in as to a broker of 0.10, or of 0.9 if there is no ``handshake`` either. Return the
    sizes of what is sent without a request around it."""
    sent: list[int] = []
    exchange_bytes = BrokerConnection.exchange_bytes

    def versions(connection: OpenConnection) -> Mapping[int, range] | None:
        if not handshake:
            raise BrokerUnavailableError("closed") from ConnectionResetError()
        found = supported_versions(connection)
        assert found is not None
        return {key: known for key, known in found.items() if key != SASL_AUTHENTICATE}

    def counted(self: BrokerConnection, data: bytes, answered: bool) -> bytes:
        sent.append(len(data))
        return exchange_bytes(self, data, answered)

    monkeypatch.setattr(connections, "supported_versions", versions)
    monkeypatch.setattr(BrokerConnection, "exchange_bytes", counted)
    return sent
