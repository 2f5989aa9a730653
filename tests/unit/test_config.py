"""The configuration: every key, every check, all faults at once."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import zkconsumer
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.consumer import RENAMED, RULES, examine_consumer
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.config.keys import KEYS, SECURITY
from zkconsumer.config.migratable import MigratableConfig
from zkconsumer.config.translation import CLIENTS, translate_file
from zkconsumer.errors import ConfigError

BASE = {"zookeeper.connect": "zk1:2181,zk2:2182/kafka", "group.id": "g1"}

LEGACY_DEFAULTS = {
    "zookeeper.connect": "zk1:2181,zk2:2182/kafka",
    "group.id": "g1",
    "consumer.id": None,
    "client.id": "g1",
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 6000,
    "zookeeper.sync.time.ms": 2000,
    "socket.timeout.ms": 30000,
    "socket.receive.buffer.bytes": 65536,
    "fetch.message.max.bytes": 1048576,
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 100,
    "fetch.max.bytes": 52428800,
    "num.consumer.fetchers": 1,
    "queued.max.message.chunks": 2,
    "auto.commit.enable": True,
    "auto.commit.interval.ms": 60000,
    "auto.offset.reset": "largest",
    "rebalance.max.retries": 4,
    "rebalance.backoff.ms": 2000,
    "refresh.leader.backoff.ms": 200,
    "consumer.timeout.ms": -1,
    "offsets.storage": "zookeeper",
    "dual.commit.enabled": False,
    "offsets.channel.backoff.ms": 1000,
    "offsets.channel.socket.timeout.ms": 10000,
    "offsets.commit.max.retries": 5,
    "exclude.internal.topics": True,
    "partition.assignment.strategy": "range",
}


def make(changes: dict[str, Any] | None = None, strict: bool = False) -> ConsumerConfig:
    """Return a configuration with some changed keys."""
    return ConsumerConfig.parse(BASE | (changes or {}), strict)


def faults(changes: dict[str, Any], strict: bool = False) -> tuple[str, ...]:
    """Return the faults of a configuration that must have some."""
    with pytest.raises(ConfigError) as caught:
        make(changes, strict)
    return caught.value.faults


def test_every_key_has_the_default_of_the_jvm() -> None:
    """All keys of Kafka 1.1.1 exist, with its defaults, types and attribute names."""
    config = make()
    rows = {row.name: row for row in KEYS if row.name not in SECURITY}
    for name, default in LEGACY_DEFAULTS.items():
        value = getattr(config, rows[name].attr)
        assert value == default
        assert type(value) is type(default)
    for row in rows.values():
        assert row.attr == row.name.removeprefix("zkconsumer.").replace(".", "_")
    assert config.warnings == ()


def test_rows_and_attributes_are_the_same_thing() -> None:
    """The table is the dataclass, and names are unique."""
    fields = {f.name for f in dataclasses.fields(ConsumerConfig) if f.name != "warnings"}
    assert fields == {row.attr for row in KEYS}
    for row in KEYS:
        assert row.doc
        assert not row.doc.endswith(".")
        if row.default_from is not None:
            assert row.default_from in {other.name for other in KEYS}
    attrs = {row.attr for row in KEYS}
    for rule in RULES:
        assert set(re.findall(r'values\["(\w+)"\]', inspect.getsource(rule.broken))) <= attrs
    names = {row.name for row in KEYS}
    assert set(RENAMED.values()) <= names
    assert not set(RENAMED) & names


@pytest.mark.parametrize(
    ("given", "attr", "value"),
    [
        ({"group.id": "g2"}, "client_id", "g2"),
        ({"group.id": "g2", "client.id": "c"}, "client_id", "c"),
        ({"zookeeper.sync.time.ms": "200"}, "rebalance_backoff_ms", 200),
        (
            {"zookeeper.sync.time.ms": "200", "rebalance.backoff.ms": "3"},
            "rebalance_backoff_ms",
            3,
        ),
        ({"zookeeper.session.timeout.ms": 400}, "zookeeper_connection_timeout_ms", 400),
    ],
)
def test_derived_defaults(given: dict[str, Any], attr: str, value: object) -> None:
    """A key that is not given takes the value of another one if the JVM does so."""
    assert getattr(make(given), attr) == value


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("socket.timeout.ms", " 500\t", 500),
        ("socket.timeout.ms", "+500", 500),
        ("socket.timeout.ms", 500, 500),
        ("socket.timeout.ms", "2147483647", 2147483647),
        ("consumer.timeout.ms", "-5", -5),
        ("consumer.timeout.ms", "0", 0),
        ("auto.commit.enable", " false ", False),
        ("auto.commit.enable", False, False),
        ("offsets.storage", "ZooKeeper", "zookeeper"),
        ("auto.offset.reset", " smallest", "smallest"),
        ("zkconsumer.roundrobin.hash", "[topic,partition]", "[topic,partition]"),
        ("zkconsumer.profile", "scala", "scala"),
        ("consumer.id", None, None),
        ("consumer.id", "c1", "c1"),
        ("client.id", "", ""),
    ],
)
def test_values_are_read(key: str, given: object, value: object) -> None:
    """Texts are trimmed and converted. Typed values are used as they are."""
    row = next(row for row in KEYS if row.name == key)
    assert getattr(make({key: given}), row.attr) == value


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("socket.timeout.ms", "1s", "whole number"),
        ("socket.timeout.ms", "", "whole number"),
        ("socket.timeout.ms", "1.0", "whole number"),
        ("socket.timeout.ms", 1.0, "whole number"),
        ("socket.timeout.ms", True, "whole number"),
        ("socket.timeout.ms", "1_000", "whole number"),
        ("socket.timeout.ms", "\u0661", "whole number"),
        ("socket.timeout.ms", "2147483648", "32 bits"),
        ("socket.timeout.ms", "9" * 5000, "32 bits"),
        ("socket.timeout.ms", "0", "at least 1"),
        ("queued.max.message.chunks", "0", "at least 1"),
        ("auto.commit.enable", "True", "true or false"),
        ("auto.commit.enable", "yes", "true or false"),
        ("auto.commit.enable", 1, "true or false"),
        ("auto.commit.enable", [], "true or false"),
        ("group.id", "", "must not be empty"),
        ("group.id", "a b", "letters"),
        ("group.id", "a/b", "letters"),
        ("group.id", "..", "letters"),
        ("group.id", 5, "must be a text"),
        ("consumer.id", "a/b", "letters"),
        ("client.id", "a b", "letters"),
        ("auto.offset.reset", "earliest", "write smallest"),
        ("auto.offset.reset", "latest", "write largest"),
        ("auto.offset.reset", "Smallest", "smallest or largest"),
        ("auto.offset.reset", "anything", "smallest or largest"),
        ("auto.offset.reset", "", "smallest or largest"),
        ("partition.assignment.strategy", "Range", "range or roundrobin"),
        ("offsets.storage", "file", "zookeeper or kafka"),
        ("zkconsumer.profile", "jvm", "default or scala"),
        ("zkconsumer.roundrobin.hash", "dash", "topic-partition"),
        ("zookeeper.connect", "", "names no host"),
        ("zookeeper.connect", ",", "names no host"),
        ("zookeeper.connect", "/kafka", "names no host"),
        ("zookeeper.connect", "h:x", "host:port"),
        ("zookeeper.connect", "h:0", "port 0"),
        ("zookeeper.connect", "h:70000", "port 70000"),
        ("zookeeper.connect", "a b:1", "host:port"),
        ("zookeeper.connect", "h:1/a/", "chroot"),
        ("zookeeper.connect", "h:1//a", "chroot"),
        ("zookeeper.connect", "h:1/../a", "chroot"),
        ("zookeeper.connect", "h1:1/a,h2:1/a", "chroot once"),
        ("zookeeper.connect", "zk://h:1", "host:port"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_the_fix(key: str, given: object, says: str) -> None:
    """One bad value gives one fault, a printable line that begins with the key."""
    (fault,) = faults({key: given})
    assert fault.startswith(f"{key}=")
    assert says in fault
    assert fault.isprintable()
    assert len(fault) < 400


def test_all_faults_come_at_once() -> None:
    """Every fault is listed in the order of the table, also for checks over several keys."""
    found = faults(
        {
            "group.id": "",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": "no",
            "fetch.wait.max.ms": 40_000,
        }
    )
    keys = [fault.split("=")[0] for fault in found]
    assert keys == ["group.id", "auto.commit.enable", "auto.offset.reset", "fetch.wait.max.ms"]


def test_missing_keys() -> None:
    """Required keys are named, with the probable misspelling."""
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.parse({"groupid": "g"})
    connect, group = caught.value.faults
    assert connect.startswith("zookeeper.connect is missing; set it: ")
    assert group.startswith("group.id is missing (found groupid: is that what you meant?)")


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("group.ids", "group.id"),
        ("auto.offset.rest", "auto.offset.reset"),
        ("auto_commit_enable", "auto.commit.enable"),
        ("Socket.Timeout.Ms", "socket.timeout.ms"),
        ("enable.auto.commit", "auto.commit.enable"),
        ("session.timeout.ms", "zookeeper.session.timeout.ms"),
        ("zk.connect", "zookeeper.connect"),
        ("zkconsumer.profil", "zkconsumer.profile"),
    ],
)
def test_unknown_key_warns_with_the_nearest(unknown: str, near: str) -> None:
    """An unknown key gives a warning that names the nearest known one. With strict it is a
    fault."""
    (warning,) = make({unknown: "x"}).warnings
    assert warning == f"{unknown} is not a known key and has no effect: did you mean {near}?"
    assert faults({unknown: "x"}, strict=True) == (warning,)


def test_unknown_key_without_a_near_one() -> None:
    """If no key is similar, the warning says where the keys are listed."""
    (warning,) = make({"qqq": "x"}).warnings
    assert "lists all keys" in warning


def test_external_keys_never_warn() -> None:
    """Keys that start with external are ignored, even with strict."""
    assert make({"external.x": "1", "externalized": "2"}, strict=True).warnings == ()


def test_ignored_keys_say_so() -> None:
    """A key without effect is accepted, and a warning says why."""
    ignored = [row for row in KEYS if row.ignored is not None]
    assert ignored
    for row in ignored:
        given = "x" if row.default is None else row.default
        (warning,) = make({row.name: given}).warnings
        assert warning.startswith(f"{row.name} has no effect: ")


def test_a_key_that_the_library_uses_does_not_warn() -> None:
    """Keys whose value the library reads are not called without effect."""
    package = Path(zkconsumer.__file__).parent
    code = "".join(
        path.read_text()
        for name in ("runtime", "broker", "zk")
        for path in package.rglob(f"{name}/*.py")
    )
    for row in KEYS:
        if row.ignored is not None:
            assert not re.search(rf"(config|keys)\.{row.attr}\b", code), row.name
    assert make({"fetch.max.bytes": "10"}).warnings == ()


def test_fetch_wait_must_fit_the_socket_timeout() -> None:
    """fetch.wait.max.ms above socket.timeout.ms is a fault that names both."""
    (fault,) = faults({"fetch.wait.max.ms": 101, "socket.timeout.ms": 100})
    assert fault.startswith("fetch.wait.max.ms=101: must not exceed socket.timeout.ms=100")
    assert make({"fetch.wait.max.ms": 100, "socket.timeout.ms": 100}).warnings == ()


def test_retries_should_outlast_a_session() -> None:
    """In the scala profile, retries that end before a dead member's session does warn."""
    short = {"rebalance.backoff.ms": 1500, "rebalance.max.retries": 4}
    (warning,) = make({"zkconsumer.profile": "scala", **short}).warnings
    assert warning.startswith("rebalance.max.retries=4 times rebalance.backoff.ms=1500 ")
    assert make(short).warnings == ()
    enough = {"rebalance.backoff.ms": 1501, "rebalance.max.retries": 4}
    assert make({"zkconsumer.profile": "scala", **enough}).warnings == ()


def test_hash_form_without_roundrobin_warns() -> None:
    """Setting the hash form with the range strategy gives a warning. Other combinations do not."""
    form = {"zkconsumer.roundrobin.hash": "[topic,partition]"}
    assert "has no effect" in make(form).warnings[0]
    assert make({**form, "partition.assignment.strategy": "roundrobin"}).warnings == ()


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("zk1:2181,zk2:2182/kafka", "zk1:2181,zk2:2182", "/kafka"),
        ("zk1", "zk1:2181", ""),
        ("zk1,zk2:1/", "zk1:2181,zk2:1", ""),
        (" 127.0.0.1:2181 , [::1]:2182/a/b.c ", "127.0.0.1:2181,[::1]:2182", "/a/b.c"),
    ],
)
def test_zookeeper_connect_is_split(connect: str, hosts: str, chroot: str) -> None:
    """Hosts have their ports. The chroot has its slash, or is empty."""
    config = make({"zookeeper.connect": connect})
    assert (config.zookeeper_hosts, config.zookeeper_chroot) == (hosts, chroot)


def test_parse_takes_all_forms(tmp_path: Path) -> None:
    """A configuration, a mapping, and a path as text or object are accepted."""
    file = tmp_path / "c.properties"
    file.write_text("zookeeper.connect=zk1:2181,zk2:2182/kafka\ngroup.id=g1\n")
    config = make()
    assert ConsumerConfig.parse(config) is config
    assert ConsumerConfig.parse(BASE) == config
    assert ConsumerConfig.parse(str(file)) == config
    assert ConsumerConfig.parse(file) == config
    with pytest.raises(ConfigError):
        ConsumerConfig.parse({**BASE, "x.y": 1}, strict=True)


def test_a_configuration_cannot_be_changed() -> None:
    """Values are frozen."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().group_id = "other"  # type: ignore[misc]


def test_examine_reports_faults_and_warnings_together() -> None:
    """Warnings are not lost when there are faults."""
    found = examine_consumer({**BASE, "groop.id": "x", "auto.offset.reset": "latest"})
    with pytest.raises(ConfigError):
        found.arguments()
    assert len(found.faults) == len(found.warnings) == 1


@pytest.mark.parametrize(
    ("given", "dual"),
    [
        ({}, False),
        ({"offsets.storage": "kafka"}, True),
        ({"offsets.storage": "KAFKA", "dual.commit.enabled": "false"}, False),
        ({"offsets.storage": "zookeeper", "dual.commit.enabled": "true"}, True),
    ],
)
def test_dual_commit_follows_the_storage(given: dict[str, object], dual: bool) -> None:
    """Scala 1.1.1 ConsumerConfig: dual commit is on by default exactly with Kafka storage."""
    config = ConsumerConfig.parse({"zookeeper.connect": "zk:2181", "group.id": "g", **given})
    assert config.dual_commit_enabled is dual


@pytest.mark.parametrize(
    "parse",
    [
        lambda **given: ConsumerConfig.parse({"zookeeper.connect": "z:1", **given}),
        lambda **given: CoordinatorConfig.parse({"bootstrap.servers": "b:1", **given}),
        lambda **given: MigratableConfig.parse(
            {"zookeeper.connect": "z:1", "bootstrap.servers": "b:1", **given}
        ),
    ],
)
def test_isolation_levels(parse: Any) -> None:
    """Both of Kafka's, for members of every kind, in any case, as Java reads them."""
    key = "isolation.level"
    for value in ("READ_COMMITTED", "read_committed", "read_uncommitted"):
        config = parse(**{"group.id": "g", key: value})
        assert config.warnings == ()
        for each in (config, *vars(config).values()):
            if isinstance(each, ConsumerConfig | CoordinatorConfig):
                assert each.isolation_level == value.lower()
    with pytest.raises(ConfigError, match=r"isolation\.level=serializable"):
        parse(**{"group.id": "g", key: "serializable"})


@pytest.mark.parametrize("client", CLIENTS)
def test_keys_that_new_consumers_have_too_are_translated(tmp_path: Path, client: str) -> None:
    """The brokers and the isolation level stay as they are. Security settings are named, but their
    values are not shown: they may be passwords."""
    file = tmp_path / "consumer.properties"
    security = {
        "sasl.jaas.config": "x required password=secret;",
        "ssl.keystore.password": "secret",
        "zkconsumer.zookeeper.digest": "user:secret",
        "sasl.password": "secret",  # a name of librdkafka
    }
    given = {"bootstrap.servers": "b:9", "isolation.level": "READ_COMMITTED", **security}
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    lines = list(translate_file(str(file), client))
    mark = "_" if client == "kafka-python" else "."
    assert f"bootstrap{mark}servers=b:9" in lines
    assert f"isolation{mark}level=read_committed" in lines
    assert not [line for line in lines if "secret" in line]
    for name in security:
        assert [line for line in lines if line.startswith(f"#   {name}: ")], name
    file.write_text("")
    assert f"isolation{mark}level=read_uncommitted" in list(translate_file(str(file), client))
