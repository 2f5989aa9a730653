"""The configuration of a member on the coordinator: what is refused, and what gives a warning.

See ``tests/unit/test_config.py`` for the table and the values that both kinds of member share.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import zkconsumer
from zkconsumer.broker.messages import FindCoordinatorRequest
from zkconsumer.config.coordinator_keys import (
    ALIASES,
    KEYS,
    RULES,
    ZOOKEEPER_ONLY,
    CoordinatorConfig,
)
from zkconsumer.config.keys import KEYS as CONSUMER_KEYS, SECURITY
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.groups.assignors.strategies import LegacyStrategy, MemberState
from zkconsumer.core.groups.formats.consumer_protocol import decode_subscription
from zkconsumer.errors import ConfigError

NEEDED = {"group.id": "g", "bootstrap.servers": "h:1"}


def faults(**given: object) -> tuple[str, ...]:
    """Return the faults of these keys, written with ``_`` for ``.``."""
    with pytest.raises(ConfigError) as caught:
        CoordinatorConfig.parse(NEEDED | {key.replace("_", "."): v for key, v in given.items()})
    return caught.value.faults


def test_the_scala_profile_is_refused() -> None:
    """It is a profile of groups in ZooKeeper, and only half of it would apply here."""
    (fault,) = faults(zkconsumer_profile="scala")
    assert fault.startswith("zkconsumer.profile=scala: ")
    assert "leave the key out" in fault
    config = CoordinatorConfig.parse(NEEDED | {"zkconsumer.profile": "default"})
    assert config.profile == "default"


def test_offsets_in_zookeeper_are_refused() -> None:
    """The coordinator stores offsets itself, so the group's offsets have to be migrated first."""
    (fault,) = faults(offsets_storage="zookeeper")
    assert fault.startswith("offsets.storage=zookeeper: ")
    assert "leave the key out" in fault
    assert CoordinatorConfig.parse(NEEDED | {"offsets.storage": "KAFKA"}).warnings == ()


def test_a_fetch_must_not_wait_longer_than_its_socket() -> None:
    """As in ZooKeeper, with either name of the key."""
    (fault,) = faults(fetch_wait_max_ms=101, socket_timeout_ms=100)
    assert fault.startswith("fetch.wait.max.ms=101: must not exceed socket.timeout.ms=100")
    assert faults(fetch_max_wait_ms=101, request_timeout_ms=100) == (fault,)
    CoordinatorConfig.parse(NEEDED | {"fetch.wait.max.ms": 100, "socket.timeout.ms": 100})


def test_heartbeats_must_fit_into_the_session() -> None:
    """Even if only one of the two is given, with either name."""
    (fault,) = faults(session_timeout_ms=3000)
    assert fault.startswith("heartbeat.interval.ms=3000: must be smaller than session.timeout.ms")
    assert faults(zookeeper_session_timeout_ms=3000) == (fault,)


@pytest.mark.parametrize(
    ("strategy", "odd"),
    [("roundrobin", True), ("range", True), ("range, legacy-roundrobin", False)],
)
def test_a_hash_without_the_strategy_that_uses_it(strategy: str, odd: bool) -> None:
    """Only legacy-roundrobin sorts by the text's hash."""
    config = CoordinatorConfig.parse(
        NEEDED
        | {
            "zkconsumer.roundrobin.hash": "topic-partition",
            "partition.assignment.strategy": strategy,
        }
    )
    assert len(config.warnings) == odd
    assert all("add legacy-roundrobin" in warning for warning in config.warnings)


def test_faults_of_a_file_name_the_line(tmp_path: Path) -> None:
    """Faults over several keys name the line of the key to change, as for a single key."""
    path = tmp_path / "consumer.properties"
    path.write_text(
        "group.id=g\nbootstrap.servers=h:1\nfetch.wait.max.ms=60000\nzkconsumer.profile=scala\n"
    )
    with pytest.raises(ConfigError) as caught:
        CoordinatorConfig.parse(path)
    assert sorted(fault.split(": ")[0] for fault in caught.value.faults) == [
        f"{path}:3",
        f"{path}:4",
    ]


def test_rules_read_the_table() -> None:
    """A rule reads values of keys that exist."""
    attrs = {row.attr for row in KEYS}
    for rule in RULES:
        assert set(re.findall(r'values\["(\w+)"\]', inspect.getsource(rule.broken))) <= attrs
    assert {rule.key for rule in RULES} <= {row.name for row in KEYS}


def test_the_protocol_of_kafka_4() -> None:
    """The broker's session timeout is the default, whatever ZooKeeper's was. Keys without effect
    give a warning. The other values of the key are refused."""
    base = {"bootstrap.servers": "a:1", "group.id": "g"}
    found = CoordinatorConfig.parse(
        base
        | {
            "group.protocol": "consumer",
            "zookeeper.session.timeout.ms": 6000,
            "heartbeat.interval.ms": 100,
        }
    )
    assert (found.group_protocol, found.session_timeout_ms) == ("consumer", 45_000)
    assert any("heartbeat.interval.ms" in text for text in found.warnings)
    classic = CoordinatorConfig.parse(base | {"group.remote.assignor": "range"})
    assert (classic.group_protocol, classic.session_timeout_ms) == ("classic", 10_000)
    assert any("needs group.protocol=consumer" in text for text in classic.warnings)
    with pytest.raises(ConfigError, match="neither classic nor consumer"):
        CoordinatorConfig.parse(base | {"group.protocol": "share"})


def test_keys_without_effect_are_named_so() -> None:
    """The code for members on the coordinator reads each key that it shares with the legacy
    consumer, except those of ``ZOOKEEPER_ONLY`` and those that are ignored everywhere.

    Keys of security are left out, because they are read by other names, and ``other_store``, which
    only a member in ZooKeeper uses.
    """
    root = Path(zkconsumer.__file__).parent
    sources = {root / "coordinator.py", *(root / "runtime").rglob("*.py")}
    sources.remove(root / "runtime/membership/other_store.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    for row in KEYS:
        if row not in CONSUMER_KEYS or row.name in SECURITY:
            continue
        unused = row.name in ZOOKEEPER_ONLY | ALIASES.keys() or row.status != "supported"
        read = re.search(rf"\.{row.attr}\b", text) is not None
        assert read is not unused, row.name


ODD_GROUPS = [
    "pay:eu",
    "a b",
    "x/y",
    "grüppe",
    "g%41",
    "日本",
    "..",
    "a" * 300,
    "~!@#$^&*()[]{}|\\'\"",
]


@pytest.mark.parametrize("group", ODD_GROUPS)
def test_a_group_may_have_any_name_that_kafka_accepts(group: str) -> None:
    """Other clients have made such groups. Names of members, threads and journals stay plain."""
    member = CoordinatorConsumerConnector({"group.id": group, "bootstrap.servers": "127.0.0.1:1"})
    assert member.config.group_id == group
    assert re.fullmatch("[!-.0-~]{1,512}", member.consumer_id)
    member.shutdown()
    given = CoordinatorConfig.parse({"group.id": group, "bootstrap.servers": "b:1"})
    spec = LegacyStrategy("legacy-range", RoundRobinHash.DASH)
    state = MemberState(member.consumer_id, {"t": 1}, frozenset(), -1)
    assert decode_subscription(spec.subscribe(state)).topics == ("t",)
    assert given.group_id.encode() in FindCoordinatorRequest(key=given.group_id).encode(version=0)


@pytest.mark.parametrize(("group", "why"), [("", "must not be empty"), ("\ud800", "Unicode")])
def test_a_group_that_no_client_can_have(group: str, why: str) -> None:
    """It cannot be sent."""
    with pytest.raises(ConfigError, match=rf"group\.id.*{why}"):
        CoordinatorConfig.parse({"group.id": group, "bootstrap.servers": "b:1"})
    with pytest.raises(ConfigError, match="bytes, more than 32767"):
        CoordinatorConfig.parse({"group.id": "ü" * 20_000, "bootstrap.servers": "b:1"})
