"""ZooKeeper with digest, SASL and TLS: which clients are accepted, and which may change znodes."""

from __future__ import annotations

import ssl
import time
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from tests.secure.stage import (
    MESSAGES,
    PARTITIONS,
    TOPIC,
    RefusedError,
    Stage,
    Timer,
    migrate,
    write_properties,
)
from tests.support.secured import USER
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.errors import (
    AuthenticationError,
    ConnectorFailedError,
    ZkConsumerError,
    ZooKeeperError,
)
from zkconsumer.servers import LocalZooKeeper
from zkconsumer.tls import for_brokers
from zkconsumer.zk.blocking import BlockingZk

WRONG_SECONDS = 5.0
DIGEST = "zkconsumer.zookeeper.digest"
SASL = "zkconsumer.zookeeper.sasl.jaas.config"


class Way(NamedTuple):
    """A way to connect to ZooKeeper: address, properties, and wrong properties with their key."""

    connect: str
    right: dict[str, str]
    wrong: dict[str, str]
    key: str


def tls(stage: Stage) -> dict[str, str]:
    """Properties of a client with a certificate."""
    return {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(stage.cluster.authority.ca),
        "zookeeper.ssl.keystore.location": str(stage.cluster.certificates / "client.pem"),
    }


def way_of(stage: Stage, name: str) -> Way:
    """The way with this name."""
    password = stage.cluster.password
    open_ = f"{stage.cluster.zookeeper}/PLAINTEXT"
    secure = f"127.0.0.1:{stage.cluster.secure_port}/PLAINTEXT"
    if name == "digest":
        return Way(
            open_, {DIGEST: f"{USER}:{password}"}, {DIGEST: f"{USER}:not-the-password"}, DIGEST
        )
    if name == "SASL":
        line = stage.cluster.jaas("DIGEST-MD5", USER, password)
        return Way(open_, {SASL: line}, {SASL: line.replace(password, "not-the-password")}, SASL)
    right = tls(stage)
    if name == "TLS":
        key = "zookeeper.ssl.truststore.location"
        return Way(secure, right, right | {key: str(stage.stranger.ca)}, key)
    key = "zookeeper.ssl.keystore.location"
    return Way(secure, right, right | {key: str(stage.stranger.issue("foreign-zk"))}, key)


WAYS = ("digest", "SASL", "TLS", "mTLS")


@pytest.fixture
def group(stage: Stage, request: pytest.FixtureRequest) -> str:
    """A group with offsets that only this identity may change. Other clients cannot read it."""
    name = stage.group()
    client = KazooClient(f"{stage.cluster.zookeeper}/PLAINTEXT")
    client.start()
    way = request.getfixturevalue("way") if "way" in request.fixturenames else ""
    acl = {
        "digest": [make_digest_acl(USER, stage.cluster.password, all=True)],
        "SASL": [make_acl("sasl", USER, all=True)],
    }.get(way)
    client.ensure_path("/consumers")
    base = f"/consumers/{name}"
    paths = [f"{base}/ids", f"{base}/owners"]
    for number in range(PARTITIONS):
        paths.append(f"{base}/offsets/{TOPIC}/{number}")
        client.create(paths[-1], b"0", makepath=True)
    client.ensure_path(paths[0])
    client.ensure_path(paths[1])
    if acl is not None:
        for path in (*paths, f"{base}/offsets/{TOPIC}", f"{base}/offsets", base):
            client.set_acls(path, acl)
    client.stop()
    client.close()
    return name


def consume(way: Way, properties: dict[str, str], group: str, folder: Path) -> None:
    """A member reads everything and commits."""
    config = {"zookeeper.connect": way.connect, "group.id": group, "consumer.timeout.ms": "8000"}
    config["zookeeper.connection.timeout.ms"] = "20000"
    config["auto.offset.reset"] = "smallest"
    file = write_properties(folder / "consumer.properties", config | properties)
    with ZookeeperConsumerConnector(file) as connector:
        (stream,) = connector.create_message_streams({TOPIC: 1})[TOPIC]
        seen = [int(message.value) for message in islice(stream, MESSAGES)]
    assert sorted(seen) == list(range(MESSAGES))


def move(way: Way, properties: dict[str, str], group: str, folder: Path) -> None:
    """zkmigrate moves the group."""
    migrate(way.connect, group, properties, folder)


TOOLS = {"consume": consume, "zkmigrate": move}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("way", WAYS)
def test_the_right_identity_is_let_in(
    stage: Stage, way: str, tool: str, group: str, tmp_path: Path
) -> None:
    """A group whose ACL names the identity is consumed and moved."""
    found = way_of(stage, way)
    TOOLS[tool](found, found.right, group, tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_identity_is_refused(
    stage: Stage,
    way: str,
    tool: str,
    group: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The error appears within 5 s and names the key to correct."""
    found = way_of(stage, way)
    errors = (AuthenticationError, ConnectorFailedError, ZooKeeperError, RefusedError)
    with Timer() as timer, pytest.raises(errors) as caught:
        TOOLS[tool](found, found.wrong, group, tmp_path)
    printed = capfd.readouterr()
    told = f"{caught.value} {printed.err} {printed.out}"
    assert found.key in told
    assert "not-the-password" not in told
    assert timer.seconds < WRONG_SECONDS


def test_no_server_is_asked_twice_with_a_wrong_password(stage: Stage) -> None:
    """The client ends instead of reconnecting, and it does not continue without an identity."""
    found = way_of(stage, "SASL")
    zk = BlockingZk(found.connect, 3.0, SecurityConfig.parse(found.wrong))
    with pytest.raises(AuthenticationError):
        zk.__enter__()
    assert not zk._driver._connection.running
    assert zk._driver.operations == 0


def test_a_server_without_sasl_is_an_error(stage: Stage) -> None:
    """An identity that no server checks does not count as accepted."""
    security = SecurityConfig.parse(way_of(stage, "SASL").right)
    with LocalZooKeeper() as plain:
        begun = time.monotonic()
        with pytest.raises(AuthenticationError, match=SASL):
            BlockingZk(plain.zookeeper, 10.0, security).__enter__()
        assert time.monotonic() - begun < WRONG_SECONDS


def test_the_host_name_is_compared(stage: Stage) -> None:
    """The certificate is for 127.0.0.1. Another name of the same server is refused."""
    connect = f"localhost:{stage.cluster.secure_port}/PLAINTEXT"
    with pytest.raises(AuthenticationError, match=r"zookeeper\.ssl\.endpoint\.identification"):
        BlockingZk(connect, 5.0, SecurityConfig.parse(tls(stage))).__enter__()
    off = {"zookeeper.ssl.endpoint.identification.algorithm": ""}
    with BlockingZk(connect, 10.0, SecurityConfig.parse(tls(stage) | off)):
        pass


@pytest.mark.parametrize("way", ["digest", "SASL", "mTLS"])
def test_what_is_created_belongs_to_its_creator(stage: Stage, way: str, tmp_path: Path) -> None:
    """With ``zookeeper.set.acl`` every client may read a member's znodes, and only the member may
    change them."""
    found, name = way_of(stage, way), stage.group()
    consume(found, found.right | {"zookeeper.set.acl": "true"}, name, tmp_path)
    client = KazooClient(f"{stage.cluster.zookeeper}/PLAINTEXT")
    client.start()
    try:
        for path in ("", "/ids", "/offsets", f"/offsets/{TOPIC}", f"/offsets/{TOPIC}/0"):
            acl, _ = client.get_acls(f"/consumers/{name}{path}")
            assert {(one.id.scheme, one.perms) for one in acl} == {
                ({"digest": "digest", "SASL": "sasl", "mTLS": "x509"}[way], 31),
                ("world", 1),
            }, path
    finally:
        client.stop()
        client.close()
    with pytest.raises(ZkConsumerError):  # another client's commit is refused
        consume(found, {}, name, tmp_path) if way != "mTLS" else consume(
            way_of(stage, "digest"), {}, name, tmp_path
        )


def test_tls_is_not_older_than_1_2(stage: Stage) -> None:
    """``ssl.enabled.protocols`` limits the versions."""
    for given, lowest, highest in (
        ("TLSv1.2,TLSv1.3", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        ("TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
    ):
        properties = stage.properties("SSL") | {"ssl.enabled.protocols": given}
        context = for_brokers(SecurityConfig.parse(properties))
        assert context.minimum_version == lowest
        assert context.maximum_version == highest
