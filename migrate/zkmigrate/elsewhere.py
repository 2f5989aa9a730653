"""Stores groups' offsets in another cluster, according to a plan with ``to``. One thread.

The cluster of the plan is not changed: the group's record, its lock and its offsets stay as they
are. So there is nothing to resume, and offsets that were stored before are found in the other
cluster.

``check_origin`` is for the way back. Any thread may call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.cluster_view import TopicView
from zkmigrate.apply.checks import check_layout
from zkmigrate.apply.outcome import Outcome, Result, by_table, not_ready, unreadable
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import ELSEWHERE
from zkmigrate.errors import GroupRefusedError, MigrationError, check_members, in_use, refused
from zkmigrate.formats.plan_file import PlanFile, To
from zkmigrate.model import GroupState, number
from zkmigrate.plan.clusters.across import differing
from zkmigrate.plan.layout import Place
from zkmigrate.plan.options import covers
from zkmigrate.plan.table import Action, Do, decide
from zkmigrate.plan.values import GroupPlan, There, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.stores.contents import OtherCluster
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import shown


def store_elsewhere(
    plan: PlanFile, stores: Stores, other: OtherCluster, run: Run
) -> Iterator[Result]:
    """Store the planned offsets of each ready group in another cluster, and yield the outcomes.
    Without a journal, only check."""
    plans = {one.group: one for one in plan.groups}

    def one(_worker: None, name: str) -> Result:
        return _store(plans[name], stores, other, run)

    def stop_waiting() -> None:
        stores.kafka.stop_waiting()
        other.kafka.stop_waiting()

    return run.each([None], list(plans), one, stop_waiting)


def check_origin(plan: GroupPlan, other: OtherCluster) -> None:
    """Check that a group has no members in the other cluster, and that its offsets there are
    unchanged since the plan was made. Raises GroupRefusedError, BrokerError."""
    assert plan.origin is not None
    group, numbers = plan.origin
    with other.kafka.another() as kafka:
        if members := kafka.members(group):
            text = f"consumers are on the coordinator of the other cluster: {shown(members)}"
            raise in_use(plan.group, Reason.COORDINATOR_MEMBER, f"{text}: stop them")
        held = kafka.fetch(group, sorted({*numbers, *other.partitions()}))
    changed = differing(numbers, {tp: one.offset for tp, one in held.items()})
    changed = sorted({*changed, *(numbers.keys() ^ held.keys())})
    if changed:
        text = f"have changed since the plan: {shown(map(str, changed))}: plan again"
        raise refused(plan.group, Reason.CHANGED, f"offsets in the other cluster {text}")


def unchecked(plan: PlanFile, to: To, other: OtherCluster) -> Iterator[str]:
    """Yield a sentence for each check that the other cluster's brokers are too old for."""
    if None in (to.cluster, other.view.cluster_id):
        yield f"not checked whether {to.servers} is the planned cluster: its id is not known"
    there = (one.there for group in plan.groups for one in group.entries)
    if any(one is not None and not one.topic_id for one in there):
        yield "not checked whether topics of the other cluster were recreated: they have no ids"


def _store(plan: GroupPlan, stores: Stores, other: OtherCluster, run: Run) -> Result:
    name, to = plan.group, plan.in_kafka

    def result(outcome: Outcome, offsets: int = 0) -> Result:
        return Result(name, outcome, offsets, kafka_group=plan.kafka_group, stays=plan.stays)

    if plan.verdict is not Verdict.READY:
        idle = not_ready(plan) or result(Outcome.SKIPPED)
        return replace(idle, kafka_group=plan.kafka_group, stays=plan.stays)
    run.begin(name, in_kafka=to)
    blocked = _check_source(plan, stores)
    if blocked is not None:
        return blocked
    left = _check_target(plan, stores, other)
    if run.journal is None:
        return result(Outcome.WOULD, len(left)) if left else result(Outcome.WAS_DONE)
    if not left:
        run.step(name, "done")
        return result(Outcome.WAS_DONE)
    run.step(name, ELSEWHERE)
    planned = {tp: one.offset for tp, one in _entries_there(plan).items()}
    with other.kafka.another() as asked:  # the connection that commits is ready

        def permit() -> None:
            _check_held(to, planned, asked.fetch(to, list(planned)))

        offsets = {tp: StoredOffset(offset) for tp, offset in left.items()}
        faults = other.kafka.commit(to, offsets, permit)
    if faults:
        why = f"group {to}: {next(iter(faults.values()))}: then apply again"
        if len(faults) < len(left):
            why += f". {len(left) - len(faults)} other offsets of the group were stored"
        raise MigrationError(why)
    topics = " ".join(f"--topic {name}" for name in sorted({tp.topic for tp in planned}))
    stored = (
        "offsets were stored in the other cluster. Before you plan again, delete them there: "
        f"kafka-consumer-groups.sh --delete-offsets --group {to} {topics}"
    )
    try:
        if _check_target(plan, stores, other):
            raise refused(to, Reason.OTHER_WRITER, "its offsets in the other cluster have changed")
        late = _check_source(plan, stores)
    except GroupRefusedError as error:
        raise GroupRefusedError(f"{error}; {stored}", error.reason) from None
    if late is not None:
        return replace(late, offsets=len(left), why=f"{late.why}; {stored}")
    run.step(name, "done")
    return result(Outcome.DONE, len(left))


def _check_source(plan: GroupPlan, stores: Stores) -> Result | None:
    """Check that the group is stopped and unchanged since the plan. Return its outcome if its
    case does not allow the move. Raises MigrationError, GroupRefusedError."""
    name = plan.group
    (state,) = read_states(stores, [name], {}, False)
    if not isinstance(state, GroupState):
        raise unreadable(*state)
    if plan.layout is not None:
        check_layout(name, plan.layout, stores)
        place = Place.parse(plan.layout.place)
        below = tuple(one for one in state.foreign if not place.covers(one))
        state = replace(state, foreign=below)
    answer = decide(state, Action.PLAN)
    if answer.do in (Do.REFUSE, Do.FAIL) and answer.reason is not Reason.NOTHING:
        return by_table(state, Action.PLAN)
    check_members(name, state.members, state.coordinator_members, sorted(state.owners))
    planned = {one.tp: (one.zk, number(one.kafka), one.misplaced) for one in plan.entries}
    kept = {one.tp for one in plan.stays}
    nothing = None, None, None
    changed = [
        tp
        for tp in sorted({*planned, *state.zk, *state.kafka, *state.misplaced} - kept)
        if not covers(plan.skipped, tp) and planned.get(tp, nothing) != _now(state, tp)
    ]
    if changed:
        text = f"offsets have changed since the plan: {shown(map(str, changed))}: plan again"
        raise refused(name, Reason.CHANGED, text)
    return None


def _now(state: GroupState, tp: TopicPartition) -> tuple[int | None, int | None, int | None]:
    """Return a partition's offsets in this cluster, in the form of a plan's entry."""
    znode = state.zk.get(tp)
    held = None if znode is None else znode.offset
    return held, number(state.kafka.get(tp)), state.misplaced.get(tp)


def _check_target(
    plan: GroupPlan, stores: Stores, other: OtherCluster
) -> dict[TopicPartition, int]:
    """Check that topics and group in the other cluster are as planned. Return the offsets to
    store. Raises GroupRefusedError, BrokerError."""
    group = plan.in_kafka
    if members := other.kafka.members(group):
        text = f"consumers are on the coordinator of the other cluster: {shown(members)}: stop them"
        raise in_use(group, Reason.COORDINATOR_MEMBER, text)
    wanted = _entries_there(plan)
    held = other.kafka.fetch(group, list(wanted))
    _check_held(group, {tp: one.offset for tp, one in wanted.items()}, held)
    topics = other.topics({tp.topic for tp in wanted})
    for tp, one in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None or topic.topic_id != one.topic_id:
            text = f"topic {tp.topic} of the other cluster has changed: plan again"
            raise refused(group, Reason.CHANGED, text)
    left = {tp: one.offset for tp, one in wanted.items() if tp not in held}
    _check_logs(plan, left, stores, other, topics)
    return left


def _entries_there(plan: GroupPlan) -> dict[TopicPartition, There]:
    """Return what is planned for each partition of the other cluster."""
    return {
        TopicPartition(one.there.topic, one.tp.partition): one.there
        for one in plan.entries
        if one.there is not None
    }


def _check_held(
    group: str, planned: Mapping[TopicPartition, int], held: Mapping[TopicPartition, StoredOffset]
) -> None:
    """Check that no planned partition has another offset. The group may have offsets of other
    partitions: they stay as they are. Raises GroupRefusedError."""
    for tp in differing(planned, {tp: one.offset for tp, one in held.items()}):
        text = f"{tp} has the offset {held[tp].offset} in the other cluster: plan again"
        raise refused(group, Reason.CHANGED, text)


def _check_logs(
    plan: GroupPlan,
    left: Mapping[TopicPartition, int],
    stores: Stores,
    other: OtherCluster,
    there: Mapping[str, TopicView],
) -> None:
    """Check that the other cluster's logs still have the offsets, and that topics have as many
    partitions as here. Raises GroupRefusedError, BrokerError."""
    topics = {one.there.topic: one.tp.topic for one in plan.entries if one.there is not None}
    states = stores.logs.topics(set(topics.values()))
    for tp, offset in left.items():
        state = states.get(topics[tp.topic])
        if state is None or len(state.partitions) != len(there[tp.topic].partitions):
            text = f"topic {tp.topic} in the other cluster has a different number of partitions"
            raise refused(plan.in_kafka, Reason.CHANGED, f"{text}: plan again")
        log = other.contents.around(tp, offset, 0)
        if not log.earliest <= offset <= log.latest:
            text = f"{tp} has no offset {offset} in the other cluster any more"
            text += f"; its log is {log.earliest}-{log.latest}: plan again"
            raise refused(plan.in_kafka, Reason.OUT_OF_RANGE, text)
