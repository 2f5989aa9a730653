"""Every event and command of both machines is written completely, and read back unchanged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import Phase, given, settings, strategies as st

from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import (
    LegacyStrategy,
    RangeStrategy,
    RoundRobinStrategy,
    Strategy,
)
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.zookeeper import commands as zk_commands, events as zk_events
from zkconsumer.core.zookeeper.known import Known
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import Stat
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.journal.codec import Codec
from zkconsumer.journal.group import GroupRecorder
from zkconsumer.journal.json_lines import check_entry
from zkconsumer.journal.recorder import Entry, MemberRecorder, Recorder

STRATEGIES = (RangeStrategy, RoundRobinStrategy, LegacyStrategy, StickyStrategy)
NUMBERS = st.integers(min_value=0, max_value=2**40)
TOPICS = st.text("abc.-_0", min_size=1, max_size=5)
st.register_type_strategy(TopicPartition, st.builds(TopicPartition, TOPICS, NUMBERS))
st.register_type_strategy(
    ConsumerThreadId, st.builds(ConsumerThreadId, st.text(min_size=1, max_size=5), NUMBERS)
)
st.register_type_strategy(GroupPaths, st.just(GroupPaths("g")))
st.register_type_strategy(
    Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=3)
)
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(
    Strategy,  # type: ignore[type-abstract]
    st.one_of(
        st.builds(RangeStrategy),
        st.builds(RoundRobinStrategy),
        st.builds(LegacyStrategy, st.just("legacy-range"), st.sampled_from(RoundRobinHash)),
        st.builds(StickyStrategy, st.booleans()),
    ),
)
st.register_type_strategy(
    GroupView,
    st.builds(
        GroupView,
        registered=st.booleans(),
        brokers=st.just(()),
        members=st.dictionaries(st.text(), st.dictionaries(st.text(), NUMBERS, max_size=3)),
        quarantined=st.dictionaries(st.text(), st.text(), max_size=3),
        partitions=st.dictionaries(st.text(), st.tuples(NUMBERS, NUMBERS), max_size=3),
    ),
)

ZOOKEEPER = [*get_args(zk_events.Event), *get_args(zk_commands.Command)]
COORDINATOR = [*get_args(group_events.Event), *get_args(group_commands.Command)]

QUICK = settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
"""Examples are small, so Hypothesis does not have to shrink them."""


def everything(value: Any) -> Any:
    """Return ``value`` in a form whose equality compares everything. Some classes compare only a
    part."""
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
        return type(value), [(name, everything(getattr(value, name))) for name in fields]
    if isinstance(value, GroupPaths):
        return value.group
    if isinstance(value, dict):
        return [(everything(key), everything(one)) for key, one in value.items()]
    if isinstance(value, frozenset):
        return value
    if isinstance(value, tuple):
        return type(value), [everything(one) for one in value]
    return type(value), value


@pytest.mark.parametrize("kind", [MemberSpec, ClassicSpec])
def test_a_specification_is_decoded_to_the_same(kind: type) -> None:
    """JSON restores it with its order. Hypothesis prints a failing example."""
    codec = Codec(STRATEGIES)

    @QUICK
    @given(st.from_type(kind))
    def check(value: Any) -> None:
        told = json.loads(json.dumps(codec.encode(value)))
        found = codec.decode(kind, told)
        assert everything(found) == everything(value)
        assert codec.encode(found) == told

    check()


class Sink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(json.loads(json.dumps(entry)))


def _recorder(coordination: str, sink: Sink) -> tuple[Recorder, type]:
    if coordination == "zookeeper":
        return MemberRecorder(sink, "g_m", lambda: 5), RebalanceMachine
    return GroupRecorder(sink, "g_m", lambda: 5), ClassicMachine


@pytest.mark.parametrize(
    ("coordination", "kind"),
    [
        *(("zookeeper", kind) for kind in ZOOKEEPER),
        *(("coordinator", kind) for kind in COORDINATOR),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_event_and_command_is_written(coordination: str, kind: type) -> None:
    """Each class of events and commands gives one line, as the schema demands, with its name and
    its kind. It restores the value with its order and all that ``==`` ignores (``Known``, times of
    znodes)."""
    sink = Sink()
    recorder, machine = _recorder(coordination, sink)
    spec = MemberSpec if machine is RebalanceMachine else ClassicSpec
    is_event = kind in (*get_args(zk_events.Event), *get_args(group_events.Event))

    @QUICK
    @given(st.from_type(kind), st.from_type(spec))
    def check(value: Any, made_from: Any) -> None:
        sink.entries.clear()
        recorder.made(machine(made_from), coordination)
        (recorder.event if is_event else recorder.command)(value, 7, 2)
        made, entry = sink.entries
        assert not check_entry(made)
        assert not check_entry(entry), entry
        assert (made["kind"], made["coordination"]) == ("member", coordination)
        assert entry["kind"] == ("event" if is_event else "command")
        assert (entry["name"], entry["state"]) == (kind.__name__, "NEW")
        found = Codec().decode(kind, entry["fields"])
        assert everything(found) == everything(value)
        assert Codec().encode(found) == entry["fields"]

    check()


def test_a_value_that_has_no_json_is_refused_when_it_is_first_seen() -> None:
    """If a field has a type that the journal does not know, writing it raises an error."""

    @dataclasses.dataclass
    class Odd:
        value: object

    with pytest.raises(TypeError, match="no JSON for"):
        Codec().encode(Odd(1))


def test_times_of_znodes_count() -> None:
    """The comparison above notices differences that ``==`` ignores."""
    assert Stat(1, 1, 0, 0, 5) == Stat(1, 1, 0, 0, 6)
    assert everything(Stat(1, 1, 0, 0, 5)) != everything(Stat(1, 1, 0, 0, 6))
    assert everything(Known()) == everything(Known())
