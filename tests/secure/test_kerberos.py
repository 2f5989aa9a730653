"""Kerberos with brokers and ZooKeeper of old and of today: who gets in, and for how long.

A real KDC, ZooKeepers with access lists by principal, and brokers that accept GSSAPI only. The
tests fail, rather than skip, where the programs or the library are not installed: run
``make kerberos``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kazoo.client import KazooClient
from kazoo.security import make_acl

from tests.secure.stage import (
    MESSAGES,
    PARTITIONS,
    TOPIC,
    RefusedError,
    Timer,
    check_offsets_read,
    migrate,
    without_authenticate_requests,
    write_properties,
)
from tests.secure.test_how_to import blocks, shell
from tests.support.kerberos import HOST, REALM, Kdc, KerberosCluster, jaas, jaas_of_cache
from zkconsumer import CoordinatorConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.cli.main import run as zkconsumer
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.ops import GetChildren, Ok
from zkconsumer.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConfigError,
    ConnectorFailedError,
    ZkConsumerError,
    ZkUnavailableError,
)
from zkconsumer.kerberos import Kerberos
from zkconsumer.servers import wait_until
from zkconsumer.zk.blocking import BlockingZk

ALICE, DAVE = f"alice@{REALM}", f"dave@{REALM}"
BROKER_KEY, ZK_KEY = "sasl.jaas.config", "zkconsumer.zookeeper.sasl.jaas.config"
WRONG_SECONDS = 5.0
TICKET_SECONDS = 4
LEASE_SECONDS = 4.0

pytestmark = pytest.mark.filterwarnings("ignore:.*SASL_PLAINTEXT encrypts nothing")


@pytest.fixture(scope="module")
def alice(kdc: Kdc) -> Path:
    """The keytab of the user that the access lists name."""
    return kdc.keytab("alice")


@contextmanager
def running(kdc: Kdc, kafka: str) -> Iterator[KerberosCluster]:
    """A cluster with a topic of ``MESSAGES`` messages, whose ``/consumers`` is for alice only."""
    with KerberosCluster(kdc, kafka) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        send(cluster, range(MESSAGES))
        client = KazooClient(cluster.zookeeper)
        client.start()
        client.ensure_path("/consumers")
        client.set_acls("/consumers", [make_acl("sasl", one, all=True) for one in (ALICE, DAVE)])
        client.stop()
        client.close()
        yield cluster


@pytest.fixture(scope="module", params=["1.1", "3.9"])
def cluster(request: pytest.FixtureRequest, kdc: Kdc) -> Iterator[KerberosCluster]:
    """A cluster of each age. The tests of one run before the other starts."""
    with running(kdc, request.param) as made:
        yield made


def send(cluster: KerberosCluster, numbers: range) -> None:
    """Send messages past the security."""
    producer = KafkaProducer(bootstrap_servers=cluster.plain)
    for number in numbers:
        producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    producer.flush()
    producer.close()


def client(line: str, zookeeper_line: str | None = None) -> dict[str, str]:
    """The properties of a client that logs in to brokers and to ZooKeeper."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        BROKER_KEY: line,
        ZK_KEY: line if zookeeper_line is None else zookeeper_line,
    }


numbers = itertools.count()


def legacy(cluster: KerberosCluster, properties: dict[str, str]) -> dict[str, str]:
    """The configuration of a member of a new group in ZooKeeper."""
    return properties | {
        "zookeeper.connect": cluster.zookeeper,
        "zookeeper.session.timeout.ms": str(int(LEASE_SECONDS * 1000)),
        "zookeeper.connection.timeout.ms": "8000",
        "group.id": f"group-{next(numbers)}",
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": "20000",
    }


Tool = Callable[[KerberosCluster, dict[str, str], Path], None]


def read_all(member: ZookeeperConsumerConnector | CoordinatorConsumerConnector) -> None:
    """Read and commit everything."""
    with member:
        (stream,) = member.create_message_streams({TOPIC: 1})[TOPIC]
        assert {int(m.value) for m in islice(stream, MESSAGES)} >= set(range(MESSAGES))
        member.commit_offsets()


def consume_on_zookeeper(
    cluster: KerberosCluster, properties: dict[str, str], folder: Path
) -> None:
    """A member of a group in ZooKeeper, whose offsets are stored."""
    config = legacy(cluster, properties)
    read_all(ZookeeperConsumerConnector(write_properties(folder / "c.properties", config)))
    with BlockingZk(cluster.zookeeper, 10.0, SecurityConfig.parse(properties)) as zk:
        path = f"/consumers/{config['group.id']}/offsets/{TOPIC}"
        reply = zk.do(GetChildren(path))
    assert isinstance(reply, Ok)
    assert sorted(reply.value) == ["0", "1"]


def consume_on_coordinator(
    cluster: KerberosCluster, properties: dict[str, str], folder: Path
) -> None:
    """A member of a group on the brokers."""
    config = properties | {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": f"group-{next(numbers)}",
        "auto.offset.reset": "earliest",
        "consumer.timeout.ms": "20000",
    }
    read_all(CoordinatorConsumerConnector(write_properties(folder / "c.properties", config)))


def list_groups(cluster: KerberosCluster, properties: dict[str, str], folder: Path) -> None:
    """``zkconsumer groups list`` reads below /consumers."""
    file = write_properties(folder / "c.properties", properties)
    words = ["groups", "list", "--zookeeper", cluster.zookeeper, "--command-config", str(file)]
    if zkconsumer(words) != 0:
        raise RefusedError


def move_a_group(cluster: KerberosCluster, properties: dict[str, str], folder: Path) -> None:
    """``zkmigrate plan``, ``apply`` and ``status`` move a group to Kafka."""
    config = legacy(cluster, properties)
    read_all(ZookeeperConsumerConnector(config))
    migrate(cluster.zookeeper, config["group.id"], properties, folder)


def read_offsets(cluster: KerberosCluster, properties: dict[str, str], folder: Path) -> None:
    """zkaudit's reader of ``__consumer_offsets``, through kafka-python."""
    file = write_properties(folder / "c.properties", properties)
    check_offsets_read(
        {"bootstrap_servers": cluster.plain}, cluster.bootstrap, f"group-{next(numbers)}", file
    )


TOOLS: Mapping[str, Tool] = {
    tool.__name__: tool
    for tool in (
        consume_on_zookeeper, consume_on_coordinator, list_groups, move_a_group, read_offsets
    )
}  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_a_keytab_is_let_in(
    cluster: KerberosCluster, alice: Path, tool: str, tmp_path: Path
) -> None:
    """Every tool does its work."""
    TOOLS[tool](cluster, client(jaas(ALICE, alice)), tmp_path)


@pytest.mark.parametrize("cluster", ["3.9"], indirect=True)
def test_the_page_s_properties_work(cluster: KerberosCluster, alice: Path, tmp_path: Path) -> None:
    """docs/how-to/secure.md, with another principal."""
    shell(blocks()["kerberos"], tmp_path)
    text = (tmp_path / "client.properties").read_text()
    text = text.replace("alice@EXAMPLE.COM", ALICE).replace("alice.keytab", str(alice))
    (tmp_path / "client.properties").write_text(text)
    servers = ["--zookeeper", cluster.zookeeper]
    command = ["--command-config", str(tmp_path / "client.properties")]
    assert zkconsumer(["groups", "list", *servers, *command]) == 0


@pytest.mark.parametrize("named", [True, False])
def test_a_credential_cache_is_let_in(
    cluster: KerberosCluster,
    kdc: Kdc,
    alice: Path,
    named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache in ``ticketCache``, or the process's own."""
    cache = kdc.cache(ALICE, alice, tmp_path / "cache")
    line = jaas_of_cache(cache)
    if not named:
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
        line = line.replace(f' ticketCache="{cache}"', "")
    consume_on_zookeeper(cluster, client(line), tmp_path)


@pytest.mark.parametrize("age", ["0.10", "0.9"])
def test_bytes_without_requests_around_them(
    cluster: KerberosCluster,
    alice: Path,
    age: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers before 1.0 do not know SaslAuthenticate, and 0.9 does not know SaslHandshake either.
    Later brokers still accept both ways."""
    sent = without_authenticate_requests(monkeypatch, handshake=age != "0.9")
    consume_on_zookeeper(cluster, client(jaas(ALICE, alice)), tmp_path)
    assert sent


def test_without_the_identity_the_group_is_closed(
    cluster: KerberosCluster, alice: Path, kdc: Kdc, tmp_path: Path
) -> None:
    """The access list names alice. The error names the identity that was refused."""
    name = f"mallory-{next(numbers)}"
    mallory = f"{name}@{REALM}"
    line = jaas(mallory, kdc.add(name))
    for zookeeper_line, named in ((line, mallory), ("", "a client without identity")):
        properties = client(jaas(ALICE, alice), zookeeper_line)
        if not zookeeper_line:
            del properties[ZK_KEY]
        with pytest.raises(ZkConsumerError) as caught:
            consume_on_zookeeper(cluster, properties, tmp_path)
        assert named in str(caught.value)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("another key", ("export the keytab again", ALICE)),
        ("another principal", ("has no key of this principal", "bob@")),
        ("no keytab", ("cannot be read", "/none.keytab")),
        ("another service", ("nobody/127.0.0.1", "service")),
        ("an old cache", ("run kinit", "old.cache")),
        ("no cache", ("run kinit", "none.cache")),
    ],
)
@pytest.mark.parametrize("server", ["broker", "ZooKeeper"])
@pytest.mark.parametrize("cluster", ["3.9"], indirect=True)
def test_what_gets_no_ticket_is_refused_at_once(
    cluster: KerberosCluster,
    kdc: Kdc,
    alice: Path,
    case: str,
    words: tuple[str, ...],
    server: str,
    tmp_path: Path,
) -> None:
    """The error names the configuration key, the principal or file, and what to do."""
    wrong = {
        "another principal": jaas(f"bob@{REALM}", alice),
        "no keytab": jaas(ALICE, tmp_path / "none.keytab"),
        "another service": jaas(ALICE, alice, ' serviceName="nobody"'),
        "no cache": jaas_of_cache(tmp_path / "none.cache"),
    }.get(case)
    if case == "another key":
        name = f"carol-{next(numbers)}"
        old = kdc.add(name)
        kdc.change_key(name)
        wrong = jaas(f"{name}@{REALM}", old)
        words = (words[0], name)
    elif case == "an old cache":
        cache = kdc.cache(ALICE, alice, tmp_path / "old.cache", life="1s")
        wait_until(lambda: expired(cache), 10, "the ticket has expired")
        wrong = jaas_of_cache(cache)
    assert wrong is not None
    right = jaas(ALICE, alice)
    properties = client(*((wrong, right) if server == "broker" else (right, wrong)))
    del properties["sasl.kerberos.service.name"]
    faults = (AuthenticationError, ConnectorFailedError, ConfigError)
    with Timer() as timer, pytest.raises(faults) as caught:
        consume_on_zookeeper(cluster, properties, tmp_path)
    text = str(caught.value)
    assert (BROKER_KEY if server == "broker" else ZK_KEY) in text
    for word in words:
        assert word in text
    assert timer.seconds < WRONG_SECONDS


def expired(cache: Path) -> bool:
    """Whether a credential cache has no good ticket."""
    import gssapi

    try:
        return not gssapi.Credentials(usage="initiate", store={"ccache": f"FILE:{cache}"}).lifetime
    except gssapi.exceptions.GSSError:
        return True


class Reader:
    """A member that reads in a thread; what it has read so far."""

    def __init__(self, config: dict[str, str]) -> None:
        self.member = ZookeeperConsumerConnector(config | {"consumer.timeout.ms": "-1"})
        (stream,) = self.member.create_message_streams({TOPIC: 1})[TOPIC]
        self.seen: list[int] = []
        self._thread = threading.Thread(
            target=lambda: self.seen.extend(int(m.value) for m in stream), daemon=True
        )
        self._thread.start()

    def has(self, many: int) -> None:
        """Wait until so many messages have been read."""
        wait_until(lambda: len(self.seen) >= many, 30, f"{many} messages have been read")

    def close(self) -> None:
        """Leave the group."""
        self.member.shutdown()
        self._thread.join(10)


@pytest.mark.parametrize("cluster", ["3.9"], indirect=True)
def test_tickets_are_renewed_while_a_member_runs(
    cluster: KerberosCluster, kdc: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tickets live for seconds, and every server asks for them again.

    The member gets new ones. If the KDC is down when the last one has ended, the member keeps
    trying, its lease ends on time, and it reads on when the KDC is back.
    """
    ends: list[float] = []
    acquired = Kerberos._acquired

    def noted(self: Kerberos) -> object:
        ticket = acquired(self)
        ends.append(time.monotonic() + ticket.lifetime)
        return ticket

    def ended() -> bool:
        return time.monotonic() > max(ends)

    monkeypatch.setattr(Kerberos, "_acquired", noted)
    keytab = kdc.add("dave", life=f"{TICKET_SECONDS}s")
    reader = Reader(legacy(cluster, client(jaas(DAVE, keytab))))
    try:
        reader.has(MESSAGES)
        first = max(ends)
        wait_until(lambda: time.monotonic() > first, 30, "the first ticket has ended")
        cluster.zookeeper_server.kill()
        cluster.zookeeper_server.start()
        send(cluster, range(MESSAGES, MESSAGES + 10))
        reader.has(MESSAGES + 10)
        assert max(ends) > first
        wait_until(lambda: reader.member.health().delivering, 20, "the member has a lease")
        kdc.stop()
        wait_until(ended, 30, "the last ticket has ended")
        cluster.zookeeper_server.kill()
        cluster.zookeeper_server.start()
        killed = time.monotonic()
        wait_until(lambda: not reader.member.health().delivering, 30, "the lease has ended")
        assert time.monotonic() - killed < LEASE_SECONDS + 1
        send(cluster, range(MESSAGES + 10, MESSAGES + 20))
        assert len(reader.seen) == MESSAGES + 10
        assert reader.member.health().alive
        kdc.start()
        reader.has(MESSAGES + 20)
        assert sorted(set(reader.seen)) == list(range(MESSAGES + 20))
    finally:
        reader.close()


@pytest.mark.parametrize("cluster", ["3.9"], indirect=True)
def test_a_kdc_that_is_down_at_the_start_is_named(
    cluster: KerberosCluster, kdc: Kdc, alice: Path
) -> None:
    """It is not a refusal: the same may succeed later."""
    properties = client(jaas(ALICE, alice))
    keys = SecurityConfig.parse(properties)
    security = KafkaSecurity(keys)
    broker = BrokerConnection(BrokerEndpoint(0, HOST, cluster.sasl_port), "c", 5.0, 0, security)
    kdc.stop()
    try:
        with pytest.raises(BrokerUnavailableError, match="check that the KDC") as caught:
            broker.open()
        assert f"{BROKER_KEY}: {ALICE}" in str(caught.value)
        with (
            pytest.raises(ZkUnavailableError, match="check that the KDC") as unavailable,
            BlockingZk(cluster.zookeeper, 2.0, keys),
        ):
            pass
        assert f"{ZK_KEY}: {ALICE}" in str(unavailable.value)
    finally:
        kdc.start()
    broker.open()
    broker.close()
