"""Every way to connect to a broker works with every tool and every release of Kafka, or is refused
with a reason. A wrong secret is refused. What else Kerberos needs has a file of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.secure.stage import (
    EVERYTHING,
    TOOLS,
    WAYS,
    RefusedError,
    Stage,
    Timer,
    without_authenticate_requests,
)
from zkconsumer import CoordinatorConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.errors import AuthenticationError, ConnectorFailedError, UnsupportedBrokerError

STAGES = ("oldest_stage", "old_stage", "stage", "kraft_stage")
REFUSED = {
    ("old_stage", "OAUTHBEARER"): "it knows PLAIN",
    ("oldest_stage", "coordinator"): "is older than 0.10.1",
    ("oldest_stage", "zkaudit"): "needs Kafka 0.10.1 or later",
}
"""Ways and tools that a release does not have, and how the error says so."""
CELLS = [
    (stage, way, tool)
    for stage in STAGES
    for way in WAYS
    for tool in TOOLS
    if stage != "oldest_stage" or way in ("PLAINTEXT", "SSL", "mTLS", "GSSAPI")
]
SAMPLE = [
    (stage, way, tool)
    for stage, way, tool in CELLS
    if way in ("SCRAM-512", "GSSAPI")
    or (stage == "stage" and (tool == "coordinator" or way == "mTLS"))
    or (stage, way) in REFUSED
    or (stage, way) == ("oldest_stage", "SSL")
]
RIGHT = CELLS if EVERYTHING else SAMPLE
ERRORS = (AuthenticationError, ConnectorFailedError, UnsupportedBrokerError, RefusedError)


@pytest.fixture
def chosen(request: pytest.FixtureRequest, name: str) -> Stage:
    """The cluster of one combination."""
    found: Stage = request.getfixturevalue(name)
    return found


WRONG_SECONDS = 5.0


def reason(name: str, way: str, tool: str) -> str | None:
    """Why a cell is refused, if it is."""
    return REFUSED.get((name, way)) or REFUSED.get((name, tool))


@pytest.mark.parametrize(("name", "way", "tool"), RIGHT)
def test_the_right_secret_is_let_in(
    chosen: Stage, name: str, way: str, tool: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every tool does all its work over every protocol and mechanism, or says what the brokers
    have instead."""
    why = reason(name, way, tool)
    if why is None:
        TOOLS[tool](chosen, way, chosen.properties(way), tmp_path)
        return
    with Timer() as timer, pytest.raises(ERRORS) as caught:
        TOOLS[tool](chosen, way, chosen.properties(way), tmp_path)
    assert why in f"{caught.value} {capfd.readouterr().err}"
    assert timer.seconds < WRONG_SECONDS


@pytest.mark.parametrize(
    ("name", "way", "tool"),
    [cell for cell in RIGHT if cell[1] != "PLAINTEXT" and reason(*cell) is None],
)
def test_a_wrong_secret_is_refused_once(
    chosen: Stage,
    way: str,
    tool: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error appears within 5 s and names the key to correct. The client tries to log in exactly
    once. With a token it tries twice."""
    properties, key = chosen.wrong(way, tmp_path)
    attempts: list[str] = []
    log_in = KafkaSecurity.log_in

    def counted(self: KafkaSecurity, connection: BrokerConnection, again: bool) -> float | None:
        attempts.append(connection.endpoint.host)
        return log_in(self, connection, again)

    monkeypatch.setattr(KafkaSecurity, "log_in", counted)
    with Timer() as timer, pytest.raises(ERRORS) as caught:
        TOOLS[tool](chosen, way, properties, tmp_path)
    printed = capfd.readouterr()
    told = f"{caught.value} {printed.err}"
    assert key in told
    assert "not-the-password" not in told + printed.out
    tries = 2 if "OAUTHBEARER" in way else 1  # a token may be about to be renewed
    assert len(attempts) == (tries if properties["security.protocol"].startswith("SASL") else 0)
    assert timer.seconds < WRONG_SECONDS


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-512"])
def test_bytes_without_requests_around_them(
    stage: Stage, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of 0.10 and 0.11 do not know SaslAuthenticate. Later brokers still accept their way,
    and close the connection after a wrong password."""
    sent = without_authenticate_requests(monkeypatch)
    TOOLS["coordinator"](stage, way, stage.properties(way), tmp_path)
    assert sent
    properties, key = stage.wrong(way, tmp_path)
    with pytest.raises((AuthenticationError, ConnectorFailedError), match=key):
        TOOLS["coordinator"](stage, way, properties, tmp_path)


@pytest.mark.parametrize("tool", ["zookeeper", "coordinator"])
def test_a_session_with_a_limit_is_renewed(
    stage: Stage, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member logs in again before the broker ends its connection (KIP-368), and continues
    reading. Nothing is lost or repeated."""
    renewed: list[float | None] = []
    log_in = KafkaSecurity.log_in

    def counted(self: KafkaSecurity, connection: BrokerConnection, again: bool) -> float | None:
        renewed.append(log_in(self, connection, again))
        return renewed[-1]

    monkeypatch.setattr(KafkaSecurity, "log_in", counted)
    config = stage.cluster.client("SASL_PLAINTEXT", "PLAIN") | {
        "group.id": stage.group(),
        "consumer.timeout.ms": "20000",
    }
    if tool == "zookeeper":
        config |= {"zookeeper.connect": stage.cluster.zookeeper}
        member = ZookeeperConsumerConnector(config | {"auto.offset.reset": "smallest"})
    else:
        config |= {"bootstrap.servers": stage.cluster.at("SASL_PLAINTEXT")}
        member = CoordinatorConsumerConnector(config | {"auto.offset.reset": "earliest"})
    producer = KafkaProducer(bootstrap_servers=stage.cluster.at("PLAINTEXT"))
    topic = f"renewed-{tool}"
    stage.cluster.create_topic(topic, 1)
    until, sent, seen = time.monotonic() + 60, 0, []
    with member:
        (stream,) = member.create_message_streams({topic: 1})[topic]
        while len(renewed) < 9 and time.monotonic() < until:
            producer.send(topic, b"%d" % sent).get(10)
            for message in stream:
                seen.append(int(message.value))
                if seen[-1] == sent:
                    break
            sent += 1
    producer.close()
    assert len(renewed) >= 9
    assert all(at is not None for at in renewed)
    assert seen == list(range(sent))
