"""``zkmigrate plan --from-cluster``: offsets that groups have committed in another cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import BrokerError
from zkmigrate.commands.clusters.to_cluster import (
    WHY,
    Found,
    ToCluster,
    Wanted,
    name_there,
    open_other,
    problems_of,
    translated,
)
from zkmigrate.commands.options.renaming import Rename, new_names
from zkmigrate.commands.options.selection import Selection
from zkmigrate.commands.output.progress import Progress
from zkmigrate.formats.plan_file import To
from zkmigrate.model import GroupState, number
from zkmigrate.plan.findings import problem
from zkmigrate.plan.options import Skip, covers
from zkmigrate.plan.values import Entry, GroupPlan, Origin
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers
from zkmigrate.text import shown

if TYPE_CHECKING:
    from zkconsumer.broker.groups.coordinator_calls import StoredOffset
    from zkmigrate.stores.contents import OtherCluster
    from zkmigrate.stores.sessions import Stores

_WHY: Final = {
    **WHY,
    Reason.TOPIC_MISSING: (
        "this cluster has no such topic",
        "correct --topic-map, or leave it out with --skip",
    ),
    Reason.PARTITION_MISSING: (
        "this cluster's topic has another number of partitions",
        "records are in other partitions, so leave it out with --skip",
    ),
    Reason.HIDDEN: (
        "the other cluster's access lists hide the topic's offsets",
        "allow the migrator to describe the topic there, or leave it out with --skip",
    ),
}


class FromCluster(NamedTuple):
    """Groups' offsets in another cluster, translated to offsets in this one.

    ``offsets``: the translated offsets, by group. ``undecided``: plans of groups that have a
    problem. ``notes``: remarks about the offsets, by group, such as how they were proven.
    ``cluster``: the other cluster. ``origins``: the offsets before the translation, by group.
    ``unlisted``: partitions without a leader, whose groups could not be listed. ``away``: whether
    some brokers did not answer.
    """

    offsets: dict[str, dict[TopicPartition, int]]
    undecided: tuple[GroupPlan, ...]
    notes: Mapping[str, tuple[str, ...]]
    cluster: To
    origins: Mapping[str, Origin]
    unlisted: tuple[str, ...]
    away: bool

    def complete(self, plans: Iterable[GroupPlan], names: Mapping[str, str]) -> Iterator[GroupPlan]:
        """Yield the undecided groups' plans, then ``plans``, with notes and origins added.
        ``names``: each group's name in ``notes`` and ``origins``."""
        yield from self.undecided
        for plan in plans:
            name = names[plan.group]
            notes = (*plan.notes, *self.notes.get(name, ()))
            yield replace(plan, notes=notes, origin=self.origins[name])


def offsets_from(
    stores: Stores,
    which: Selection,
    renames: Sequence[Rename],
    skips: tuple[Skip, ...],
    other: ToCluster,
    servers: Servers,
    progress: Progress,
) -> FromCluster:
    """Read groups' offsets in another cluster, and translate them to this cluster.

    ``renames``: the rules for the groups' names in this cluster, which all results use. Raises
    BrokerError, MigrationError, UsageError.
    """
    found: dict[str, list[Found]] = {}
    undecided: list[GroupPlan] = []
    alone: dict[str, tuple[str, ...]] = {}
    origins: dict[str, Origin] = {}
    with open_other(stores, other, servers) as (there, translator):
        names = _Names(stores.topic_names(), other.topics)
        hidden = there.kafka.hidden(names.here.keys() - there.view.topics.keys())
        known = which.among(there.kafka.list_groups(), other.bootstrap, "check the name")
        named = new_names(renames, known)
        for in_other in known:
            group = named.get(in_other, in_other)
            try:
                if members := there.kafka.members(in_other):
                    text = f"joined at a coordinator of the other cluster: {shown(members)}"
                    one = problem(Reason.COORDINATOR_MEMBER, text, "stop these consumers")
                    undecided.append(GroupPlan(group, (one,)))
                    continue
                patterns = frozenset(skip.pattern for skip in skips if skip.is_of(group))
                held = there.kafka.fetch(in_other, there.partitions())
                wanted = list(_of_group(stores, held, patterns, there, names))
                read = list(translated(translator, wanted, in_other, progress))
                mine = _only_here(stores, group, held, patterns, names)
                found[group] = [*read, *_hidden(mine, hidden)]
                alone[group] = _notes(mine, hidden)
                numbers = {tp: one.offset for tp, one in held.items()}
                origins[group] = Origin(in_other, numbers)
            except BrokerError as error:
                one = problem(Reason.COORDINATOR_AWAY, str(error), "try again")
                undecided.append(GroupPlan(group, (one,)))
    offsets: dict[str, dict[TopicPartition, int]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    for group, read in found.items():
        judged = [one.judged(translator, other.lower) for one in read]
        problems = problems_of(group, judged, _WHY)
        if problems:
            undecided.append(GroupPlan(group, problems))
            continue
        sure = [(one, one.there) for one in judged if one.there is not None]
        offsets[group] = {one.to: at.low for one, at in sure if at.low is not None}
        notes[group] = (
            *alone[group],
            *(
                f"{one.entry.tp} {one.entry.to} in the other cluster is {one.to} {at.low} here: "
                f"{at.proof.value}, {at.why}"
                for one, at in sure
            ),
        )
    unlisted = () if which.all_named else _unlisted(there)
    away = any(one.kind is Reason.UNKNOWN for plan in undecided for one in plan.problems)
    cluster = To(other.bootstrap, there.view.cluster_id)
    return FromCluster(offsets, tuple(undecided), notes, cluster, origins, unlisted, away)


class _Names:
    """The names of this cluster's topics in the other cluster. ``here``: from the other cluster's
    names to this cluster's."""

    def __init__(self, topics: Iterable[str], renames: Sequence[Rename]) -> None:
        self._renames = renames
        self.here: dict[str, list[str]] = {}
        for topic in topics:
            new = self.there(topic)
            if is_legal_topic(new):
                self.here.setdefault(new, []).append(topic)

    def there(self, topic: str) -> str:
        """Return a topic's name in the other cluster."""
        return name_there(topic, self._renames)

    def back(self, topic: str) -> str:
        """Return a topic's name in this cluster. Raises UsageError if it is ambiguous."""
        found = self.here.get(topic, [topic])
        if len(found) > 1:
            raise click.UsageError(
                f"--topic-map: {' and '.join(found)} would be called {topic}: give each its own "
                "name"
            )
        return found[0]


def _only_here(
    stores: Stores,
    group: str,
    held: Collection[TopicPartition],
    skipped: frozenset[str],
    names: _Names,
) -> list[tuple[TopicPartition, TopicPartition]]:
    """Return the partitions with an offset of the group in this cluster only, under both names."""
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which is slow

    (state,) = read_states(stores, [group], {}, False)
    if not isinstance(state, GroupState):
        return []  # the plan for this cluster shows why
    mine = {*state.zk, *(tp for tp, one in state.kafka.items() if number(one) is not None)}
    pairs = ((tp, TopicPartition(names.there(tp.topic), tp.partition)) for tp in sorted(mine))
    return [
        (tp, to)
        for tp, to in pairs
        if to not in held and not covers(skipped, tp) and not covers(skipped, to)
    ]


def _hidden(
    pairs: Iterable[tuple[TopicPartition, TopicPartition]], hidden: frozenset[str]
) -> Iterator[Found]:
    for tp, there in pairs:
        if there.topic in hidden:
            entry = Entry(there, None, None, None, None, False, "")
            yield Found(entry, tp, "", None, None, Reason.HIDDEN, "")


def _notes(
    pairs: Iterable[tuple[TopicPartition, TopicPartition]], hidden: frozenset[str]
) -> tuple[str, ...]:
    """Return notes on data that the other cluster lacks, or may have without showing it."""
    alone = [str(tp) for tp, there in pairs if there.topic not in hidden]
    notes: list[str] = []
    if alone:
        notes.append(
            "the group has no offset in the other cluster, so its offset here is left unchanged: "
            f"{shown(alone)}"
        )
    if hidden:
        notes.append(
            "the other cluster does not show the offsets of topics that may not be described: "
            f"{shown(sorted(hidden))}"
        )
    return tuple(notes)


def _unlisted(there: OtherCluster) -> tuple[str, ...]:
    topic = there.view.topics.get("__consumer_offsets")
    return tuple(
        f"__consumer_offsets-{one} in the other cluster"
        for one, part in ({} if topic is None else topic.partitions).items()
        if part.leader < 0
    )


def _of_group(
    stores: Stores,
    held: Mapping[TopicPartition, StoredOffset],
    skipped: frozenset[str],
    there: OtherCluster,
    names: _Names,
) -> Iterator[Wanted]:
    called = {topic: names.back(topic) for topic in {tp.topic for tp in held}}
    states, _ = stores.logs.of(called.values())
    for tp, stored in sorted(held.items()):
        to = TopicPartition(called[tp.topic], tp.partition)
        if covers(skipped, tp) or covers(skipped, to):
            continue
        entry = Entry(tp, None, None, None, stored.offset, False, "")
        view, state = there.view.topics.get(tp.topic), states.get(to.topic)
        source = () if view is None else view.partitions
        target = None if state is None else state.partitions
        one = Found(entry, to, "", None, None, None, "")
        ids = "" if view is None else view.topic_id, "" if state is None else state.identity
        yield Wanted.of(one, source, target, ids)
