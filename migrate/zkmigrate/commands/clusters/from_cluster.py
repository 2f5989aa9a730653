"""``zkmigrate plan --from-cluster``: offsets that groups have committed in another cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import BrokerError
from zkmigrate.commands.clusters.to_cluster import (
    WHY,
    Found,
    OtherNames,
    ToCluster,
    open_other,
    problems_of,
    translated,
)
from zkmigrate.commands.options.renaming import Rename, new_names
from zkmigrate.commands.options.selection import Selection
from zkmigrate.plan.findings import problem
from zkmigrate.plan.options import Skip, covers
from zkmigrate.plan.values import Entry, GroupPlan
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers
from zkmigrate.text import shown

if TYPE_CHECKING:
    from zkconsumer.broker.groups.coordinator_calls import StoredOffset
    from zkmigrate.stores.contents import OtherCluster
    from zkmigrate.stores.sessions import Stores
    from zkmigrate.stores.translator import Translator

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
}


class FromCluster(NamedTuple):
    """What was found. ``offsets``: by group, in this cluster. ``undecided``: the plans of groups of
    which a partition has none. ``notes``: what proves the offsets, by group."""

    offsets: dict[str, dict[TopicPartition, int]]
    undecided: tuple[GroupPlan, ...]
    notes: Mapping[str, tuple[str, ...]]

    def complete(self, plans: Iterable[GroupPlan], names: Mapping[str, str]) -> Iterator[GroupPlan]:
        """Yield the undecided groups, then plans with what proves their offsets. ``names``:
        the names by which the groups were chosen."""
        yield from self.undecided
        for plan in plans:
            yield replace(plan, notes=(*plan.notes, *self.notes.get(names[plan.group], ())))


def offsets_from(
    stores: Stores,
    which: Selection,
    renames: Sequence[Rename],
    skips: tuple[Skip, ...],
    other: ToCluster,
    servers: Servers,
) -> FromCluster:
    """Find the offsets in this cluster of what groups are to read next in another one.

    ``renames``: from their names there to those here, by which all results are called. Raises
    BrokerError, MigrationError, UsageError.
    """
    found: dict[str, list[Found]] = {}
    undecided: list[GroupPlan] = []
    with open_other(stores, other, servers) as (there, translator):
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
                held = there.kafka.fetch(in_other, _every(there))
                found[group] = list(_of_group(stores, held, patterns, translator, there, other))
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
        notes[group] = tuple(
            f"{one.entry.tp} {one.entry.to} in the other cluster is {one.to} {at.low} here: "
            f"{at.proof.value}, {at.why}"
            for one, at in sure
        )
    return FromCluster(offsets, tuple(undecided), notes)


def _of_group(
    stores: Stores,
    held: Mapping[TopicPartition, StoredOffset],
    skipped: frozenset[str],
    translator: Translator,
    there: OtherCluster,
    other: ToCluster,
) -> Iterator[Found]:
    names = OtherNames(stores.topic_names(), other.topics).here
    states, _ = stores.logs.of([names[tp.topic] for tp in held if tp.topic in names])
    for tp, stored in sorted(held.items()):
        to = TopicPartition(names.get(tp.topic, tp.topic), tp.partition)
        if covers(skipped, tp) or covers(skipped, to):
            continue
        entry = Entry(tp, None, None, None, stored.offset, False, "")
        view, state = there.view.topics.get(tp.topic), states.get(to.topic)
        source = () if view is None else view.partitions
        target = None if state is None else state.partitions
        one = Found(entry, to, "", None, None, None, "")
        ids = "" if view is None else view.topic_id, "" if state is None else state.identity
        yield translated(translator, one, source, target, ids)


def _every(there: OtherCluster) -> Iterator[TopicPartition]:
    for topic, view in there.view.topics.items():
        yield from (TopicPartition(topic, number) for number in view.partitions)
