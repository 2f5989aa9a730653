"""A member that gets nothing says why: in its health, in the log, and at the start if only a change
of the program helps."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.runs.zookeeper_scenario import JVM_REGISTRATION
from tests.support.specs import classic_spec
from tests.unit.test_scripts import Bench
from zkconsumer import Trouble
from zkconsumer.broker.groups import group_coordinators
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common import name_sets
from zkconsumer.core.common.commands import Fail, Report, SetBrokers
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.expansion import Expansions, expand
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.states import State as GroupState
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Create, Delete, SetData
from zkconsumer.core.zookeeper.view import GroupView, decide, obstacle
from zkconsumer.core.zookeeper.znodes import (
    MAX_TOPIC_ZNODE_BYTES,
    GroupPaths,
    broker_path,
    encode_registration,
    topic_path,
)
from zkconsumer.errors import BrokerError, ConfigError
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Member, Switch  # type: ignore[import-not-found]

SOON = 10.0
PATHS = GroupPaths("g")
WORDS = ["orders", "carts", "users", "stock", "mails", "logs", "prices", "taxes"]
KINDS = ["payments", "clicks", "views", "events", "errors", "audits", "counts", "states"]
PLAIN = "|".join(rf"prod[.]{word}[.]{kind}[.]v\d+[.].*" for word in WORDS for kind in KINDS)
"""64 plain alternatives."""
DOTTED = [f"{'a' * at}.{'b' * (length - at)}" for length in range(25, 40) for at in range(5, 25)]
"""Names whose dots, in a list, are any character."""


def many_topics(count: int) -> list[str]:
    """``count`` topics' names of everyday length."""
    return [f"prod.{WORDS[n % 8]}.{KINDS[n // 8 % 8]}.v{n % 7}.eu-west-1.{n}" for n in range(count)]


def white(regex: str) -> Subscription:
    """A white list with one stream."""
    return Subscription(Pattern.WHITE_LIST, {regex: 1})


# -- filters ------------------------------------------------------------------------------------


def test_a_filter_is_not_refused_because_the_cluster_grew() -> None:
    """64 alternatives are the same work for 40,000 topics as for ten, counted in steps."""
    topics = many_topics(40_000)
    assert len(expand("/z", white(PLAIN), topics, True)) == len(topics)
    assert len(expand("/z", white(".*|.*".join(WORDS)), topics, True)) == len(topics) * 3 // 4


def test_a_list_of_names_is_not_refused_because_the_cluster_grew() -> None:
    """Nor is a list of 300 names with dots."""
    topics = [*many_topics(20_000), DOTTED[7], DOTTED[8].replace(".", "-"), DOTTED[9] + "b"]
    assert list(expand("/z", white("|".join(DOTTED)), topics, True)) == topics[-3:]


def test_a_filter_keeps_the_topics_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one more topic makes a filter too much work, it keeps its topics, without deleted ones.
    A filter that is new then cannot be used."""
    expansions, old, new = Expansions(), white("(a|b)x*c"), white("(a|b)y*c")
    assert expansions.of({"m": old}, ["ac", "bc"], True) == ({"m": {"ac": 1, "bc": 1}}, {})
    monkeypatch.setattr(name_sets, "MAX_STEPS", 1)
    for topics in (["ac", "bc", "axc"], ["bc", "axc"], ["bc", "bxc"]):
        found, faults = expansions.of({"m": old, "n": new}, topics, True)
        kept = {name: 1 for name in ("ac", "bc") if name in topics}
        assert found == {"m": kept}
        assert faults.keys() == {"m", "n"}
        assert "keeps the topics" in faults["m"]
    monkeypatch.undo()
    found, faults = expansions.of({"m": old, "n": new}, ["bc", "axc"], True)
    assert (found, faults) == ({"m": {"bc": 1, "axc": 1}, "n": {"bc": 1}}, {})


# -- what a member reads ------------------------------------------------------------------------


class Group(Bench):
    """A group with one broker, topic ``t`` with two partitions, and member ``g_m``."""

    def __init__(self, subscription: Subscription | None = None) -> None:
        super().__init__()
        for path in ("/brokers", "/brokers/ids", "/brokers/topics"):
            self.zk.do(Create(path))
        self.zk.do(Create(broker_path(0), b'{"version":1,"host":"b0","port":1}'))
        self.zk.do(Create(topic_path("t"), b'{"version":1,"partitions":{"0":[0],"1":[0]}}'))
        self.spec = self.context.spec
        if subscription is not None:
            self.spec = self.context.spec = replace(self.spec, subscription=subscription)
        self.run(commands.Register(1, 0))

    def view(self) -> GroupView:
        """The group as the member reads it now."""
        event = self.run(commands.LoadView(2))
        assert isinstance(event, events.ViewLoaded)
        return event.view

    def why(self) -> str:
        """Why nothing can be assigned to the member."""
        return obstacle(self.view(), self.spec)

    def mine(self) -> set[int]:
        """The partitions that it should own."""
        return {tp.partition for tp in decide(self.view(), "g_m", self.spec.assignor).mine}


def test_there_is_a_text_for_each_reason_that_nothing_can_be_assigned() -> None:
    """A missing or unusable broker, a missing or unusable topic, and the own registration."""
    group = Group()
    assert group.why() == ""
    group.zk.do(Delete(broker_path(0)))
    assert "no broker is registered in /brokers/ids" in group.why()
    elsewhere = replace(group.spec, bootstrap=True)
    assert "check bootstrap.servers" in obstacle(group.view(), elsewhere)
    group.zk.do(Create(broker_path(0), b'{"version":4,"endpoints":["SASL_SSL://b0:1"]}'))
    assert "no broker can be used: /brokers/ids/0: broker 0 offers SASL_SSL" in group.why()
    group.zk.do(SetData(broker_path(0), b'{"version":1,"host":"b0","port":1}'))
    group.zk.do(Delete(topic_path("t")))
    assert "topic t does not exist" in group.why()
    group.context.decoded = {}
    group.zk.do(Create(topic_path("t"), b"{"))
    assert "no topic of this member can be used: /brokers/topics/t is not JSON" in group.why()
    assert Group(Subscription(Pattern.STATIC, {})).why() == ""
    assert Group(white("nothing.*")).why() == ""


def test_a_registration_that_cannot_be_used_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The own one is named. At the start it is an error."""
    monkeypatch.setattr(name_sets, "MAX_STEPS", 1)
    why = Group(white("(a|b)c")).why()
    assert why.startswith("this member's registration cannot be used: /consumers/g/ids/g_m: topic")


@pytest.mark.parametrize("data", [b"{", b"[]", b" " * (MAX_TOPIC_ZNODE_BYTES + 1)])
def test_a_topic_that_cannot_be_read_any_more_keeps_its_partitions(data: bytes) -> None:
    """They are not released, and the reason is kept with the view."""
    group = Group()
    assert group.mine() == {0, 1}
    group.zk.do(SetData(topic_path("t"), data))
    for _ in range(2):
        assert group.mine() == {0, 1}
        assert topic_path("t") in group.view().quarantined
    three = {"version": 1, "partitions": {"0": [0], "1": [0], "2": [0]}}
    group.zk.do(SetData(topic_path("t"), json.dumps(three).encode()))
    assert group.mine() == {0, 1, 2}
    assert group.view().quarantined == {}


def test_a_white_list_with_several_names_is_doubtful() -> None:
    """kafka-node registers so. Members of the JVM, and so this one, read the first name only."""
    group = Group()
    path = PATHS.member("g_n")
    listed = {"version": 1, "subscription": {"t": 1, "u": 1}, "pattern": "white_list"}
    group.zk.do(Create(path, json.dumps(listed).encode()))
    view = group.view()
    assert view.members["g_n"] == {"t": 1}
    assert view.quarantined == {}
    (reason,) = view.doubtful.values()
    assert reason.startswith(f"{path} has a topic filter with 2 names")
    assert "'u'" in reason
    group.zk.do(SetData(path, encode_registration(white("t"), 1)))
    assert group.view().doubtful == {}


def test_members_of_other_libraries_are_in_one_order() -> None:
    """ZooKeeper lists names in any order. Two readings of the same group are equal."""
    views = []
    for names in (["a", "z"], ["z", "a"]):
        group = Group()
        group.context.spec = replace(group.spec, bootstrap=True)
        for name in names:
            group.zk.do(Create(PATHS.member(name), JVM_REGISTRATION))
        views.append(group.view())
    assert views[0].foreign == (PATHS.member("a"), PATHS.member("z"))
    assert views[0] == views[1]


# -- what the member does with it ---------------------------------------------------------------


@pytest.fixture
def impatient(switch: Switch) -> ZookeeperConsumerConnector:
    """A member in ZooKeeper, not started."""
    return ZookeeperConsumerConnector({"group.id": "g", "zookeeper.connect": "nowhere:1"})


def reasons(member: Member) -> dict[Trouble, str]:
    """The member's troubles at this moment."""
    return {reason.trouble: reason.text for reason in member.health(0.0).reasons}


@pytest.mark.parametrize("version", [None, 0])
def test_without_brokers_a_member_is_not_healthy(
    version: int | None,
    switch: Switch,
    impatient: ZookeeperConsumerConnector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has joined, gets nothing, and says so in its health and as a warning."""
    switch.brokers = version
    with caplog.at_level(logging.INFO, "zkconsumer.member"):
        member = ZookeeperConsumerConnector({"group.id": "g", "zookeeper.connect": "nowhere:1"})
        member.create_message_streams({"t": 1})
        assert "broker" in reasons(member)[Trouble.UNASSIGNABLE]
        member.shutdown()
    impatient.shutdown()
    warned = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert any(text.startswith("unassignable: no broker") for text in warned)


@pytest.mark.parametrize("kind", ["zookeeper", "coordinator"])
def test_an_own_filter_that_cannot_be_used_is_an_error_at_the_start(
    kind: str, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only another filter helps."""
    wanted = Whitelist("(t|u)x*")
    monkeypatch.setattr(name_sets, "MAX_STEPS", 1)
    if kind == "zookeeper":
        member: Member = ZookeeperConsumerConnector(
            {"group.id": "g", "zookeeper.connect": "nowhere:1"}
        )
    else:
        member = CoordinatorConsumerConnector({"group.id": "g", "bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises((ConfigError, BrokerError), match="takes too long to match"):
        member.create_message_streams_by_filter(wanted)


def test_too_many_topics_are_a_config_error(switch: Switch) -> None:
    """It is raised before the member has joined, and names the limit."""
    member = ZookeeperConsumerConnector({"group.id": "g", "zookeeper.connect": "nowhere:1"})
    with pytest.raises(ConfigError, match="1001 topics: at most 1000"):
        member.create_message_streams({f"t{n}": 1 for n in range(1001)})
    assert member.health().alive
    member.shutdown()


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_a_hidden_topic_on_the_coordinator(code: int, switch: Switch) -> None:
    """A topic that may not be described is an error at the start; one that does not exist may be
    created later, so it is a reason in the health."""
    switch.topic_error = code
    member = CoordinatorConsumerConnector({"group.id": "g", "bootstrap.servers": "127.0.0.1:1"})
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        with pytest.raises(BrokerError, match="not authorized to describe t: allow it Describe"):
            member.create_message_streams({"t": 1})
        return
    member.create_message_streams({"t": 1})
    assert reasons(member)[Trouble.UNASSIGNABLE].startswith("topic t does not exist")
    switch.topic_error = ErrorCode.NONE
    switch.heartbeat = ErrorCode.UNKNOWN_MEMBER_ID
    wait_until(lambda: Trouble.UNASSIGNABLE not in reasons(member), SOON, "the topic exists")
    member.shutdown()


@pytest.mark.parametrize("has_topic", [True, False])
def test_offsets_in_the_other_store_are_named_at_the_start(
    has_topic: bool,
    switch: Switch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client of the group has committed to Kafka, and this member reads ZooKeeper only. Without
    ``__consumer_offsets`` nothing is asked, as that would create it."""
    asked = []

    class Coordinator:
        def __init__(self, *_: object, **_settings: object) -> None: ...

        def stored(self, _: str, partitions: Iterable[TopicPartition]) -> dict[Any, StoredOffset]:
            asked.append(list(partitions))
            return {TopicPartition("t", 0): StoredOffset(123)}

        def close(self) -> None: ...

    monkeypatch.setattr(group_coordinators, "GroupCoordinators", Coordinator)
    with caplog.at_level(logging.WARNING, "zkconsumer.member"):
        member = ZookeeperConsumerConnector({"group.id": "g", "zookeeper.connect": "nowhere:1"})
        if has_topic:
            member._zk._zk.do(Create(topic_path("__consumer_offsets")))  # type: ignore[attr-defined]
        member.create_message_streams({"t": 1})
        text = "group g has offsets in Kafka for 1 partitions that have none in ZooKeeper"
        if has_topic:
            wait_until(lambda: any(text in one for one in caplog.messages), SOON, "the warning")
            assert asked == [[TopicPartition("t", 0)]]
        member.shutdown()
    assert bool(asked) == has_topic


# -- on the coordinator -------------------------------------------------------------------------


def machine() -> ClassicMachine:
    """A member with a filter, which reads topics next."""
    spec = classic_spec(subscription=white("(a|b)x*"), session_timeout=10)
    made = ClassicMachine(spec)
    made.on(group_events.Started())
    made.on(group_events.CoordinatorFound(made._awaited or 0))
    assert made.state is GroupState.LOADING
    return made


def test_a_filter_on_the_coordinator_keeps_its_topics_whenever_it_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the member joins and when it reads topics again: the same answer to the same fault. A
    member without earlier topics ends."""
    member = machine()
    (_, join) = member.on(group_events.TopicsLoaded(member._awaited or 0, {"a": 1}))
    assert isinstance(join, group_commands.JoinGroup)
    monkeypatch.setattr(name_sets, "MAX_STEPS", 1)
    member._load()
    given = member.on(group_events.TopicsLoaded(member._awaited or 0, {"a": 1, "bx": 1}))
    assert isinstance(given[-1], group_commands.JoinGroup)
    reports = [one for one in given if isinstance(one, Report)]
    assert [one.event for one in reports] == ["misread"]
    assert "keeps the topics" in member.misread
    member.state = GroupState.STABLE
    member._reread = 99
    assert [
        one
        for one in member.on(group_events.TopicsLoaded(99, {"a": 1, "bx": 1, "bxx": 1}))
        if not isinstance(one, SetBrokers)
    ] == []
    monkeypatch.undo()
    member._reread = 99
    given = member.on(group_events.TopicsLoaded(99, {"a": 1, "bx": 1}))
    assert any(isinstance(one, Report) for one in given)
    assert member.misread == ""
    fresh = machine()
    monkeypatch.setattr(name_sets, "MAX_STEPS", 1)
    failed = fresh.on(group_events.TopicsLoaded(fresh._awaited or 0, {"a": 1}))
    assert isinstance(failed[-1], Fail)
