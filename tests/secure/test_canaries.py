"""No secret leaves the process: not in a log, a traceback, a written file, or a file's name."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyarrow import parquet

from tests.secure.stage import (
    EVERYTHING,
    MESSAGES,
    TOPIC,
    RefusedError,
    Stage,
    consume_on_coordinator,
    consume_on_zookeeper,
    move_a_group,
    read_offsets,
    write_properties,
)
from tests.support.secured import USER
from zkconsumer.broker.sasl import unsecured_token
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import wait_until
from zkconsumer.zk.security import ZkSecurity

KEY_PASSWORD = "canary-of-the-private-key"
ZOOKEEPER = "canary-of-zookeeper-digest"
WRONG = "canary-that-is-refused"


@dataclasses.dataclass
class Canaries:
    """Properties with secrets in every place, and the secrets that must not appear."""

    properties: dict[str, str]
    secrets: dict[str, str]


@pytest.fixture
def canaries(stage: Stage) -> Canaries:
    """Six secrets: a SASL password, a wrong one, a digest, a key, its password, and a token."""
    pem = stage.cluster.authority.issue("canary").read_text()
    private, _, chain = pem.partition("-----BEGIN CERTIFICATE-----")
    key = serialization.load_pem_private_key(private.encode(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
    ).decode()
    properties = stage.properties("SCRAM-512") | {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}".replace("\n", " "),
        "ssl.keystore.key": locked.replace("\n", " "),
        "ssl.key.password": KEY_PASSWORD,
        "zkconsumer.zookeeper.digest": f"{USER}:{ZOOKEEPER}",
    }
    secrets = {
        "password": stage.cluster.password,
        "wrong password": WRONG,
        "digest": ZOOKEEPER,
        "key": locked.splitlines()[2],
        "key's password": KEY_PASSWORD,
    }
    return Canaries(properties, secrets)


def seen(secrets: Mapping[str, str], *texts: str) -> list[str]:
    """The secrets that appear in the texts."""
    return [name for name, secret in secrets.items() if any(secret in text for text in texts)]


def written(folder: Path) -> list[str]:
    """Names and contents of all files, except for the properties that the tests wrote."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".properties"]
    return [f"{path}\n{path.read_text(errors='replace')}" for path in files]


MECHANISMS = ("SCRAM-SHA-512", "PLAIN", "token")
TOOLS = (consume_on_zookeeper, consume_on_coordinator, move_a_group, read_offsets)
CELLS = [(tool, mechanism) for tool in TOOLS for mechanism in MECHANISMS]
SAMPLE = [cell for cell in CELLS if read_offsets in cell or "SCRAM-SHA-512" in cell]


@pytest.mark.parametrize(("tool", "mechanism"), CELLS if EVERYTHING else SAMPLE)
def test_nothing_of_a_tool_shows_a_secret(
    stage: Stage,
    canaries: Canaries,
    tool: object,
    mechanism: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """All loggers, including those of kazoo and kafka-python, log at their lowest level. The test
    uses a right secret and a wrong one."""
    caplog.set_level(1)
    for name in ("kafka", "kazoo", "zkconsumer", "zkconsumer.zk.kazoo", "puresasl"):
        caplog.set_level(1, name)
    secrets = dict(canaries.secrets)
    right = dict(canaries.properties)
    if mechanism == "token":
        token = tmp_path / "token.properties"
        token.write_text(unsecured_token(USER))
        secrets["token"] = token.read_text().split(".")[1]
        del right["sasl.jaas.config"]
        right["sasl.mechanism"] = "OAUTHBEARER"
        right["sasl.oauthbearer.token.endpoint.url"] = f"file://{token}"
    else:
        right["sasl.mechanism"] = mechanism
        right["sasl.jaas.config"] = stage.cluster.jaas(mechanism, USER, stage.cluster.password)
    if tool in (consume_on_zookeeper, consume_on_coordinator):
        right["zkconsumer.journal.dir"] = str(tmp_path / "journals")
    assert callable(tool)
    tool(stage, "SCRAM-512", right, tmp_path)
    told = []
    if mechanism != "token":
        wrong = right["sasl.jaas.config"].replace(stage.cluster.password, WRONG)
        with pytest.raises((ZkConsumerError, RefusedError)) as caught:
            tool(stage, "SCRAM-512", right | {"sasl.jaas.config": wrong}, tmp_path)
        told = [repr(caught.value), *traceback.format_exception(caught.value)]
    printed = capfd.readouterr()
    records = [f"{record.getMessage()} {record.args!r}" for record in caplog.records]
    assert records
    everything = (caplog.text, printed.out, printed.err, *records, *told, *written(tmp_path))
    assert seen(secrets, *everything) == []


def test_kazoo_shows_no_session_password(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anyone who knows a session's password can take over the session."""
    caplog.set_level(1, "zkconsumer.zk.kazoo")
    consume_on_zookeeper(stage, "SSL", stage.properties("SSL"), tmp_path)
    assert "Sending request" in caplog.text
    found = re.findall(r"passwd\S*", caplog.text)
    assert found
    assert set(found) == {"passwd='[hidden]',"}


def test_a_command_line_shows_no_secret(stage: Stage, canaries: Canaries, tmp_path: Path) -> None:
    """``consume -vv`` reads its configuration from a file. Other users of the machine see no secret
    of the process."""
    file = write_properties(
        tmp_path / "consumer.properties",
        canaries.properties | {"group.id": stage.group(), "auto.offset.reset": "smallest"},
    )
    words = ["consume", "-vv", "--topic", TOPIC, "--consumer-config", str(file)]
    words += ["--zookeeper", stage.zookeeper("SCRAM-512"), "--timeout-ms", "20000"]
    start = "import sys; from zkconsumer.cli.main import run; sys.exit(run(sys.argv[1:]))"
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", start, *words], stdout=stdout, stderr=stderr
        )
        try:
            wait_until(lambda: out.read_text().count("\n") == MESSAGES, 30, "it has read all")
            proc = Path(f"/proc/{process.pid}")
            shown = [(proc / name).read_text(errors="replace") for name in ("cmdline", "environ")]
        finally:
            process.terminate()
            process.wait(30)
    assert "Sending request" in err.read_text()
    assert seen(canaries.secrets, out.read_text(), err.read_text(), *shown) == []


def test_an_audit_with_spark_shows_no_secret(
    stage: Stage, canaries: Canaries, tmp_path: Path
) -> None:
    """``zkaudit run`` reads offsets in Kafka over SASL_SSL. Its output and its files, including the
    page and Spark's own messages, have no secret."""
    group = stage.group()
    asked = KafkaConsumer(bootstrap_servers=stage.cluster.at("PLAINTEXT"), group_id=group)
    asked.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(5, "", -1)})
    asked.close()
    file = write_properties(tmp_path / "command.properties", canaries.properties)
    out = tmp_path / "audit"
    command = [str(Path(sys.executable).with_name("zkaudit")), "run", "--out", str(out)]
    command += ["--zookeeper-logs", str(stage.cluster.zookeeper_data), "--master", "local[1]"]
    command += ["--bootstrap-server", stage.cluster.at("SASL_SSL"), "--command-config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    commits = parquet.read_table(out / "tables" / "commits").to_pylist()
    assert any((row["group_id"], row["committed_offset"]) == (group, 5) for row in commits)
    assert seen(canaries.secrets, done.stdout, done.stderr, *written(tmp_path)) == []


def test_a_secret_on_the_command_line_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """``--consumer-property`` does not accept a secret, and the error does not repeat it."""
    from zkconsumer.cli.main import run

    words = ["consume", "--topic", "t", "--zookeeper", "127.0.0.1:1"]
    assert run([*words, "--consumer-property", f"ssl.key.password={KEY_PASSWORD}"]) == 2
    printed = capfd.readouterr()
    assert "--consumer-property ssl.key.password" in printed.err
    assert KEY_PASSWORD not in printed.out + printed.err


def test_objects_show_no_secret(stage: Stage, canaries: Canaries) -> None:
    """``repr``, ``str``, ``vars``, ``asdict`` and ``format`` show none, and pickling is refused."""
    needed = {"zookeeper.connect": "h:1", "group.id": "g"}
    config = ConsumerConfig.parse(canaries.properties | needed)
    security = SecurityConfig.parse(canaries.properties)
    for one in (config, security):
        texts = [repr(one), str(one), repr(vars(one)), f"{one.sasl_jaas_config:>9}", f"{one.login}"]
        texts.append(repr(dataclasses.fields(one)))
        assert "[hidden]" in repr(one)
        assert seen(canaries.secrets, *texts) == []
        with pytest.raises(TypeError, match="cannot be serialized"):
            pickle.dumps(one)
    made = (KafkaSecurity(config), ZkSecurity(config))
    assert seen(canaries.secrets, *map(repr, made)) == []


@pytest.mark.parametrize("key", ["sasl.jaas.config", "zkconsumer.zookeeper.digest"])
def test_a_fault_in_a_secret_does_not_repeat_it(key: str, tmp_path: Path) -> None:
    """The error names file, line and key, but not the secret."""
    file = write_properties(tmp_path / "c.properties", {key: f"{KEY_PASSWORD}"})
    with pytest.raises(ZkConsumerError) as caught:
        SecurityConfig.parse(file)
    assert f"{file}:1: {key}=[hidden]: " in str(caught.value)
    assert KEY_PASSWORD not in str(caught.value)


def test_logging_is_as_it_was() -> None:
    """The filter belongs to one of our own loggers. Other loggers are unchanged."""
    assert not logging.getLogger().filters
