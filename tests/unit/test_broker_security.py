"""A server that refuses this client ends a member only before any server has accepted it."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.connection import ConnectionHandler

from tests.unit.test_health import Made
from zkconsumer.broker import connection as connections, security as module
from zkconsumer.broker.api_versions import SASL_HANDSHAKE
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.sasl import enabled_mechanisms
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import AuthenticationError, BrokerUnavailableError
from zkconsumer.runtime.observation.health import Membership
from zkconsumer.tls import certificate_fault
from zkconsumer.zk.connection import Connection, Handler

ONE, TWO = BrokerEndpoint(1, "b1", 9093), BrokerEndpoint(2, "b2", 9093)


def alert(reason: str) -> ssl.SSLError:
    """The error of a TLS alert."""
    error = ssl.SSLError(1, f"[SSL: {reason}] {reason.lower().replace('_', ' ')} (_ssl.c:1)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("SSLV3_ALERT_BAD_CERTIFICATE", "does not accept this client's certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "does not accept this client's certificate"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "does not accept this client's certificate"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "requires a certificate of this client"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not know the issuer"),
        ("TLSV1_ALERT_ACCESS_DENIED", "denies the owner of this client's certificate access"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "accepts no cipher suite of this client, or requires"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "none of the versions in ssl.enabled.protocols"),
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("UNEXPECTED_MESSAGE", "do not accept this client's certificate, or require one"),
        ("SSLV3_ALERT_UNEXPECTED_MESSAGE", None),
        ("SSLV3_ALERT_BAD_RECORD_MAC", None),
        ("TLSV1_ALERT_INTERNAL_ERROR", None),
        ("TLSV1_ALERT_USER_CANCELLED", None),
        ("UNEXPECTED_EOF_WHILE_READING", None),
    ],
)
def test_an_alert_is_explained_only_if_a_key_can_mend_it(reason: str, text: str | None) -> None:
    """All other alerts mean that the connection broke."""
    found = certificate_fault(alert(reason), "ssl.")
    assert found is None if text is None else found is not None and text in found


class Clock:
    """The clock of the pauses."""

    def __init__(self) -> None:
        self.now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Pauses are counted on this clock."""
    made = Clock()
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def tls() -> KafkaSecurity:
    """A client with TLS that no broker has accepted yet."""
    return KafkaSecurity(SecurityConfig.parse({"security.protocol": "SSL"}))


def test_a_refusal_before_the_first_login_is_final(tls: KafkaSecurity) -> None:
    """It is a mistake in the configuration, so no other broker is asked."""
    with pytest.raises(AuthenticationError, match=r"b1:9093: .*ssl\.keystore\.location"):
        tls.tls_failed(ONE, alert("TLSV1_ALERT_UNKNOWN_CA"))
    with pytest.raises(AuthenticationError, match="b1:9093"):
        tls.check_broker(TWO)


def test_a_refusal_after_a_login_is_a_fault_of_that_broker(
    tls: KafkaSecurity, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other brokers are used. This one is asked again, after pauses that grow to a minute."""
    tls.accepted(TWO)
    pauses = []
    for _ in range(9):
        with pytest.raises(BrokerUnavailableError, match="does not accept this client's"):
            tls.tls_failed(ONE, alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"))
        tls.check()
        tls.check_broker(TWO)
        began = clock.now
        while clock.now < began + 100:
            try:
                tls.check_broker(ONE)
            except BrokerUnavailableError:
                clock.now += 0.5
            else:
                break
        pauses.append(clock.now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert len(caplog.records) == 9
    (fault,) = tls.faults
    assert fault.startswith("broker at b1:9093: it does not accept")
    tls.accepted(ONE)
    assert tls.faults == ()


def test_a_broker_that_is_not_asked_any_more_is_forgotten(tls: KafkaSecurity, clock: Clock) -> None:
    """For example a broker that has left the cluster."""
    tls.accepted(TWO)
    with pytest.raises(BrokerUnavailableError):
        tls.refuse(ONE, "its certificate is for another host")
    clock.now += 100
    assert tls.faults == ()


def test_a_proven_connection_only_breaks(tls: KafkaSecurity) -> None:
    """The broker has accepted this client on it, so an alert means nothing else."""
    connection = BrokerConnection(ONE, "c", 1.0, 0, tls)
    connection._proven = True
    with pytest.raises(ssl.SSLError), connection._explained(1):
        raise alert("TLSV1_ALERT_UNKNOWN_CA")
    tls.check_broker(ONE)
    connection._proven = False
    with pytest.raises(AuthenticationError), connection._explained(1):
        raise alert("TLSV1_ALERT_UNKNOWN_CA")


class Broker:
    """Accepts the token ``good``. Stands in for the network under a connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: Callable[[], str]) -> None:
        self.logins = 0
        self.code = ErrorCode.SASL_AUTHENTICATION_FAILED
        self.waits = 0
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "zkconsumer.sasl.oauthbearer.token.provider": source,
        }
        self.security = KafkaSecurity(SecurityConfig.parse(config))
        self._token = b""

        def connect(connection: BrokerConnection) -> None:
            connection.security.check_broker(connection.endpoint)

        versions = {17: range(2), 36: range(2)}
        monkeypatch.setattr(BrokerConnection, "_connect", connect)
        monkeypatch.setattr(BrokerConnection, "exchange", lambda _, *given: self(*given))
        monkeypatch.setattr(connections, "supported_versions", lambda _: versions)
        monkeypatch.setattr(module.time, "sleep", self._wait)

    def _wait(self, _seconds: float) -> None:
        self.waits += 1

    def __call__(self, api_key: int, _version: int, body: bytes) -> bytes:
        if api_key == 17:
            return struct.pack(">hi", 0, 1) + struct.pack(">h", 11) + b"OAUTHBEARER"
        self.logins += 1
        code = 0 if b"Bearer good" in body else int(self.code)
        return struct.pack(">hhi", code, -1, 0) + struct.pack(">q", 0)

    def connect(self, endpoint: BrokerEndpoint = ONE) -> None:
        """Open a connection."""
        BrokerConnection(endpoint, "c", 1.0, 0, self.security).open()


def test_a_refused_token_is_read_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source may be about to renew it."""
    tokens = iter(["old", "good"])
    broker = Broker(monkeypatch, lambda: next(tokens))
    broker.connect()
    assert (broker.logins, broker.waits) == (2, 1)


def test_a_token_that_stays_wrong_is_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, when no broker has accepted this client."""
    broker = Broker(monkeypatch, lambda: "bad")
    with pytest.raises(AuthenticationError, match=r"oauthbearer\.token\.provider"):
        broker.connect()
    with pytest.raises(AuthenticationError):
        broker.connect(TWO)
    assert broker.logins == 2


def test_a_late_token_ends_no_member(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """The token is renewed too late, or its source fails for a while. Later it is accepted."""
    token: list[str] = ["good"]
    broker = Broker(monkeypatch, lambda: token[0])
    broker.connect()
    for wrong in ("expired", ""):
        token[0] = wrong
        with pytest.raises(BrokerUnavailableError):
            broker.connect(TWO)
        clock.now += 100
    broker.security.check()
    token[0] = "good"
    broker.connect(TWO)
    assert broker.security.faults == ()


def test_a_broker_that_fails_in_the_login_is_only_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any code but SASL_AUTHENTICATION_FAILED is a fault of the broker's own."""
    broker = Broker(monkeypatch, lambda: "bad")
    broker.code = ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(BrokerUnavailableError, match="UNKNOWN_SERVER_ERROR"):
        broker.connect()
    broker.security.check()


def test_health_names_a_broker_that_refuses_the_member() -> None:
    """As with any other problem, after a time."""
    made = Made()
    made.monitor._from.refusals = lambda: ["broker at b1:9093: it refuses the token"]
    made.member = Membership("RESTING", "resting", True, True, 0, 0)
    assert made.after(5) == []
    assert made.after(10) == ["security"]


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> tuple[Connection, list[Any]]:
    """A connection to ZooKeeper, and the results of the next attempts to connect."""
    results: list[Any] = []

    def connect(*_: Any) -> tuple[float, float]:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return 1.0, 1.0

    made = Connection(KazooClient("127.0.0.1:1", handler=Handler(lambda error: None)), 6.0)
    monkeypatch.setattr(ConnectionHandler, "_connect", connect)
    return made, results


@pytest.mark.parametrize(
    "fault", [alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), AuthFailedError("refused")]
)
def test_one_zookeeper_server_that_refuses_does_not_end_the_client(
    zookeeper: tuple[Connection, list[Any]], fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """If a server has accepted the client before, the next server is asked. Otherwise none is."""
    connection, results = zookeeper
    results += [(), fault, fault]
    connection._connect("z1", "127.0.0.1", 1)
    with pytest.raises(ConnectionDropped):
        connection._connect("z2", "127.0.0.1", 2)
    assert connection.refused is None
    assert "ZooKeeper at z2:2" in caplog.text
    connection._logged_in = False
    with pytest.raises(AuthFailedError):
        connection._connect("z2", "127.0.0.1", 2)
    assert connection.refused is not None


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_only_an_answer_that_needs_an_identity_counts(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A listener with SASL answers everybody's questions for its versions and mechanisms."""
    security = KafkaSecurity(SecurityConfig.parse({"security.protocol": protocol}))
    connection = BrokerConnection(ONE, "c", 1.0, 0, security)
    connection._socket = connections.socket.socket()
    monkeypatch.setattr(connections.socket.socket, "sendall", lambda *_: None)

    def receive(_socket: object, _until: float) -> memoryview:
        return memoryview(struct.pack(">i", connection._correlation) + b"ok")

    monkeypatch.setattr(connection, "_receive", receive)
    for key in (18, 17, 36):
        connection.exchange(key, 0, b"")
    assert not connection._proven
    assert not security._accepted
    connection.exchange(3, 0, b"")
    assert connection._proven
    assert security._accepted
    connection.close()


def test_a_broker_without_the_handshake_is_not_asked_for_its_mechanisms() -> None:
    """Before 0.10 there is none, so there is no version of it to send."""
    connection = BrokerConnection(ONE, "c", 1.0, 0)
    assert connection.highest(SASL_HANDSHAKE) == -1
    assert enabled_mechanisms(connection) is None
