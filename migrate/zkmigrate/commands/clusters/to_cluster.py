"""``zkmigrate plan --to-cluster``: the offsets of stopped groups in another cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.exclusive import no_effect, only_with
from zkconsumer.console.tables import How, print_notes, read_security
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import is_legal_topic
from zkconsumer.errors import BrokerError
from zkmigrate.commands.options.files import write_out
from zkmigrate.commands.options.renaming import Rename, parse_renames, rename_option
from zkmigrate.commands.output.cells import problem_cells
from zkmigrate.commands.output.progress import Progress
from zkmigrate.commands.output.rows import print_table
from zkmigrate.exits import exit_status
from zkmigrate.formats import offset_csv
from zkmigrate.formats.plan_file import To
from zkmigrate.formats.proofs_file import Asked, ProofsFile
from zkmigrate.model import Store
from zkmigrate.plan.clusters.across import differing
from zkmigrate.plan.clusters.translation import Proof, Translation
from zkmigrate.plan.findings import problem
from zkmigrate.plan.values import Entry, GroupPlan, Problem, There, Verdict
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers
from zkmigrate.text import shown

if TYPE_CHECKING:
    from zkmigrate.stores.contents import OtherCluster
    from zkmigrate.stores.sessions import Stores
    from zkmigrate.stores.translator import Translator

F = TypeVar("F", bound=Callable[..., Any])
_AT_ONCE: Final = 100
"""Number of partitions that are requested together."""
_OWN: Final = ("to_config", "topic_map", "not_proven", "offsets_out", "proofs")
_SHARED: Final = (
    click.option(
        "--not-proven",
        type=click.Choice(["refuse", "lower"]),
        default="refuse",
        help="Offsets known only as a range; lower: use its lower bound, which may repeat records.",
    ),
    click.option(
        "--topic-map",
        metavar="OLD=NEW",
        multiple=True,
        callback=parse_renames,
        help="A topic's name in the other cluster, or a rule for many: '*=source.*', "
        "'/(.+)-v1/=\\1'. May be repeated.",
    ),
    click.option(
        "--to-config",
        metavar="FILE",
        help="The --command-config of the other cluster.",
    ),
)
_OTHERS: Final = ("decisions_out", "at_apply", "direction", "only_problems")


class ToCluster(NamedTuple):
    """The other cluster, and the options for translating offsets.

    ``topics``: the rules for the topics' names in the other cluster. ``lower``: use the lower bound
    of an offset that is not proven. ``out``: the file to write. ``back``: translate from the other
    cluster to this one. ``proofs``: the file with the results of an interrupted plan. ``lead`` and
    ``groups``: for a mirror, the leading store, and the rules for the groups' names.
    """

    bootstrap: str
    security: SecurityConfig
    topics: tuple[Rename, ...]
    lower: bool
    out: str | None = None
    back: bool = False
    proofs: str | None = None
    lead: Store | None = None
    groups: tuple[Rename, ...] = ()


def to_cluster_options(command: F) -> F:
    """Add the options for planning offsets in another cluster. The command receives them as
    ``elsewhere``, which is ``None`` without another cluster."""

    @wraps(command)
    def bundled(
        to_cluster: str | None,
        from_cluster: str | None,
        to_config: str | None,
        topic_map: tuple[Rename, ...],
        not_proven: str,
        offsets_out: str | None,
        proofs: str | None,
        **others: Any,
    ) -> Any:
        bootstrap = to_cluster or from_cluster
        if bootstrap is None:
            only_with("--to-cluster or --from-cluster", *_OWN)
            return command(elsewhere=None, **others)
        back = to_cluster is None
        if back:
            no_effect("--from-cluster", "from_file", "layout", "at_apply", "offsets_out")
        else:
            no_effect("--to-cluster", "from_cluster", *_OTHERS)
        lower = not_proven == "lower"
        security = read_security(to_config)
        elsewhere = ToCluster(bootstrap, security, topic_map, lower, offsets_out, back, proofs)
        return command(elsewhere=elsewhere, **others)

    for option in (
        click.option(
            "--proofs",
            metavar="FILE",
            help="Keep proven offsets in this file. After an interruption, repeat the command.",
        ),
        click.option(
            "--offsets-out",
            metavar="FILE",
            help="Write the offsets of ready groups to this new file for kafka-consumer-groups.",
        ),
        *_SHARED,
        click.option(
            "--from-cluster",
            metavar="HOST:PORT[,..]",
            help="Plan the move back from this other cluster.",
        ),
        click.option(
            "--to-cluster",
            metavar="HOST:PORT[,..]",
            help="Plan the move of stopped groups to this other cluster, which mirrors their "
            "topics.",
        ),
    ):
        bundled = option(bundled)
    return bundled  # type: ignore[return-value]


def target_options(text: str) -> Callable[[F], F]:
    """Add ``--to-cluster`` and its options to a command that works on another cluster.

    ``text``: the help of ``--to-cluster``. The command receives the options as ``elsewhere``, which
    is ``None`` without another cluster.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def bundled(
            to_cluster: str | None,
            to_config: str | None,
            topic_map: tuple[Rename, ...],
            not_proven: str,
            renames: tuple[Rename, ...],
            **others: Any,
        ) -> Any:
            if to_cluster is None:
                only_with("--to-cluster", *_OWN, "renames")
                return command(elsewhere=None, **others)
            lower, security = not_proven == "lower", read_security(to_config)
            elsewhere = ToCluster(to_cluster, security, topic_map, lower, groups=renames)
            return command(elsewhere=elsewhere, **others)

        where = click.option("--to-cluster", metavar="HOST:PORT[,..]", help=text)
        for option in (*_SHARED, rename_option, where):
            bundled = option(bundled)
        return bundled  # type: ignore[return-value]

    return decorate


class Found(NamedTuple):
    """A partition with its offset in both clusters.

    ``to``: the partition in the other cluster. ``there``: the translated offset. ``now``: the
    group's present offset in the other cluster. ``kind``: the problem, if there is one.
    """

    entry: Entry
    to: TopicPartition
    topic_id: str
    there: Translation | None
    now: int | None
    kind: Reason | None
    why: str

    def judged(self, translator: Translator, lower: bool) -> Found:
        """Return the partition with its final verdict. Call it after all partitions were read.
        ``lower``: a lower bound is accepted."""
        if self.there is None or self.kind is not None:
            return self
        found = translator.judged(self.to.topic, self.there)
        kind = None
        if found.proof is not Proof.PROVEN and not (lower and found.proof is Proof.BOUNDED):
            kind = Reason.NOT_PROVEN
        elif self.now is not None and differing({self.to: found.low}, {self.to: self.now}):
            kind = Reason.GROUP_EXISTS
        why = "" if kind is Reason.GROUP_EXISTS else found.why
        return self._replace(there=found, kind=kind, why=why)

    def cells(self, plan: GroupPlan) -> tuple[object, ...]:
        """Return the cells of the partition's row in the output."""
        found = self.there
        bounds = (None, None) if found is None else (found.low, found.high)
        compared = ("", 0) if found is None else (found.proof.value, found.compared)
        kind, why = "", self.why
        if self.kind is not None:
            kind, why = self.kind.value, f"{why or WHY[self.kind][0]}: {WHY[self.kind][1]}"
        return (
            plan.group, *self.entry.tp, self.entry.to, self.to.topic, *bounds, self.now, *compared,
            kind, why, plan.kafka_group,
        )  # fmt: skip

    @property
    def planned(self) -> Entry:
        """The partition's entry in a plan."""
        found = self.there
        if self.kind is not None or found is None or found.low is None or found.high is None:
            return self.entry
        proof = found.low, found.high, found.proof.value, found.compared, found.why
        return replace(self.entry, there=There(self.to.topic, self.topic_id, *proof))


WHY: Final = {
    Reason.TOPIC_MISSING: (
        "the other cluster has no such topic",
        "mirror it, correct --topic-map, or leave it out with --skip",
    ),
    Reason.PARTITION_MISSING: (
        "the other cluster's topic has another number of partitions",
        "records are in other partitions, so leave it out with --skip",
    ),
    Reason.NOT_PROVEN: (
        "not proven",
        "choose --not-proven lower if it is bounded, or leave it out with --skip",
    ),
    Reason.GROUP_EXISTS: (
        "the group has another offset in the other cluster",
        "delete the group there, and let no mirror write its offsets, or choose another name with "
        "--rename",
    ),
    Reason.UNKNOWN: (
        "the brokers did not answer",
        "make sure that the partition has a leader in both clusters, then plan again",
    ),
}
"""Why an offset is not ready, and what to do."""


class Translated(NamedTuple):
    """The plans for all groups in another cluster, that cluster, and the exit status."""

    plans: list[GroupPlan]
    to: To
    status: int


@contextmanager
def open_other(
    stores: Stores, elsewhere: ToCluster, servers: Servers
) -> Iterator[tuple[OtherCluster, Translator]]:
    """Connect to the other cluster, and yield it with a translator of offsets. Raises BrokerError,
    PlanFileError, and UsageError if it is this cluster."""
    from zkmigrate.stores.contents import OtherCluster  # loads kafka-python, which takes long
    from zkmigrate.stores.translator import Translator

    where = servers._replace(bootstrap=elsewhere.bootstrap, security=elsewhere.security)
    with ExitStack() as stack:
        other = stack.enter_context(OtherCluster(where))
        own, others = stores.cluster_id(), other.view.cluster_id
        if own is not None and own == others:
            option = "--from-cluster" if elsewhere.back else "--to-cluster"
            raise click.UsageError(
                f"{option} {elsewhere.bootstrap} is the cluster that the groups are already in: "
                f"name another cluster, or leave out {option}"
            )
        here = stack.enter_context(closing(stores.contents()))
        sides = here, other.contents
        names = own or servers.bootstrap or servers.zookeeper, others or elsewhere.bootstrap
        if elsewhere.back:
            sides, names = sides[::-1], names[::-1]
        proofs = None
        if elsewhere.proofs is not None:
            proofs = stack.enter_context(ProofsFile(elsewhere.proofs, names))
        yield other, Translator(*sides, proofs, elsewhere.back)


def translate_plans(
    stores: Stores,
    plans: Iterator[GroupPlan],
    renamed: Mapping[str, str],
    elsewhere: ToCluster,
    servers: Servers,
    progress: Progress,
    how: How,
) -> Translated:
    """Find the offsets of planned groups in another cluster, and print them.

    ``renamed``: the groups' names in the other cluster, if different. Raises BrokerError,
    UsageError.
    """
    from zkmigrate.stores.group_states import unreadable_group  # loads kafka-python, which is slow

    read: list[tuple[GroupPlan, list[Found]]] = []
    away = False
    with open_other(stores, elsewhere, servers) as (other, translator):
        cluster = other.view.cluster_id
        for plan in plans:
            there = replace(
                plan, moved=False, kafka_group=renamed.get(plan.group, plan.kafka_group)
            )
            print_notes(f"group {plan.group}: {note}" for note in plan.notes)
            found: list[Found] = []
            try:
                members = stores.kafka.members(plan.in_kafka) if plan.moved else ()
                members += other.kafka.members(there.in_kafka)
                if members:
                    text = f"joined at a coordinator: {shown(members)}"
                    one = problem(Reason.COORDINATOR_MEMBER, text, "stop these consumers")
                    there = replace(there, problems=(*plan.problems, one))
                if not there.problems:
                    wanted = list(_wanted(stores, there, other, elsewhere))
                    found = list(translated(translator, wanted, plan.group, progress))
            except BrokerError as error:
                one, away = unreadable_group(plan.group, error), True
                there = replace(there, problems=(*plan.problems, one))
            read.append((there, found))
    rows: list[tuple[object, ...]] = []
    made: list[GroupPlan] = []
    proofs: Counter[Proof] = Counter()
    for there, one_by_one in read:
        found = [one.judged(translator, elsewhere.lower) for one in one_by_one]
        if there.problems:
            rows += [
                (there.group, *(None,) * 7, "", 0, kind, f"{what}: {fix}", there.kafka_group)
                for kind, what, fix in (problem_cells(one, how) for one in there.problems)
            ]
            made.append(there)
            away = away or any(one.kind is Reason.COORDINATOR_AWAY for one in there.problems)
            continue
        rows += [one.cells(there) for one in found]
        entries = tuple(one.planned for one in found)
        made.append(replace(there, entries=entries, problems=problems_of(there.group, found)))
        proofs.update(one.there.proof for one in found if one.there is not None)
        away = away or any(one.kind is Reason.UNKNOWN for one in found)
    print_table("translation", rows, how)
    verdicts = Counter(one.verdict for one in made)
    counts = ", ".join(f"{proofs[one]} {one.value}" for one in Proof)
    groups = ", ".join(f"{count} {one.value}" for one, count in verdicts.items())
    click.echo(f"groups: {groups}; offsets: {counts}", err=True)
    attention = bool(verdicts.keys() - {Verdict.READY, Verdict.IGNORED})
    status = exit_status(failed=away, attention=attention)
    return Translated(made, To(elsewhere.bootstrap, cluster), status)


def write_offsets(plans: Iterable[GroupPlan], out: str, one_group: bool) -> None:
    """Write the offsets of ready groups to a new file."""
    offsets = {
        OffsetKey(plan.in_kafka, one.there.topic, one.tp.partition): one.there.offset
        for plan in plans
        if plan.verdict is Verdict.READY
        for one in plan.entries
        if one.there is not None
    }
    write_out(out, [offset_csv.render(offsets, "csv", one_group)], "--offsets-out")
    click.echo(f"{len(offsets)} offsets are in {out}", err=True)


def problems_of(
    group: str, found: Iterable[Found], whys: Mapping[Reason, tuple[str, str]] = WHY
) -> tuple[Problem, ...]:
    """Return a group's problems, one for each kind, with the values for ``--skip``. ``whys``: the
    text and the fix for each kind."""
    by_kind: dict[Reason, list[TopicPartition]] = {}
    for one in found:
        if one.kind is not None:
            by_kind.setdefault(one.kind, []).append(one.entry.tp)
    return tuple(
        problem(
            kind,
            f"{whys[kind][0]}: ",
            whys[kind][1].removesuffix(" --skip"),
            map(str, tps),
            [f"{group}:{tp.topic}:{tp.partition}" for tp in tps if whys[kind][1].endswith("skip")],
        )
        for kind, tps in by_kind.items()
    )


def names_there(topics: Iterable[str], renames: Sequence[Rename]) -> dict[str, str]:
    """Return the name of each topic in the other cluster. Raises UsageError if a name is illegal or
    occurs twice."""
    names = {topic: name_there(topic, renames) for topic in topics}
    for name in names.values():
        if not is_legal_topic(name):
            raise click.UsageError(f"--topic-map: {name!a} cannot be the name of a topic")
    twice = [new for new, count in Counter(names.values()).items() if count > 1]
    if twice:
        raise click.UsageError(
            f"--topic-map: two topics would be called {twice[0]}: give each its own name"
        )
    return names


class Wanted(NamedTuple):
    """A partition whose offset is to be translated.

    ``target``: the partitions of the other cluster's topic; empty if it has a problem. ``ids``: the
    ids of both topics; empty if unknown.
    """

    found: Found
    target: Collection[int]
    ids: tuple[str, str]

    @classmethod
    def of(
        cls,
        found: Found,
        source: Collection[int],
        target: Collection[int] | None,
        ids: tuple[str, str],
    ) -> Wanted:
        """Return a partition, with the kind of its problem if the topics do not match. ``source``
        and ``target``: the topics' partitions; ``None``: the other cluster has no such topic."""
        if target is None:
            return cls(found._replace(kind=Reason.TOPIC_MISSING), (), ids)
        if len(source) != len(target):
            return cls(found._replace(kind=Reason.PARTITION_MISSING), (), ids)
        return cls(found, target, ids)

    @property
    def asked(self) -> Asked:
        """The offset to find in the other cluster."""
        entry = self.found.entry
        assert entry.to is not None
        return Asked(entry.tp, entry.to, self.found.to, self.ids)


def translated(
    translator: Translator, wanted: Sequence[Wanted], group: str, progress: Progress
) -> Iterator[Found]:
    """Translate a group's offsets. Yield each partition with the result, or with its problem."""
    for begin in range(0, len(wanted), _AT_ONCE):
        some = wanted[begin : begin + _AT_ONCE]
        results = iter(
            translator.find((one.asked, one.target) for one in some if one.found.kind is None)
        )
        for one in some:
            found = one.found
            if found.kind is None:
                there = next(results)
                if isinstance(there, BrokerError):
                    found = found._replace(kind=Reason.UNKNOWN, why=str(there))
                else:
                    found = found._replace(there=there)
            yield found
        progress.within(group, min(begin + _AT_ONCE, len(wanted)), len(wanted))


def _wanted(
    stores: Stores,
    plan: GroupPlan,
    other: OtherCluster,
    elsewhere: ToCluster,
) -> Iterator[Wanted]:
    names = names_there({entry.tp.topic for entry in plan.entries}, elsewhere.topics)
    states, _ = stores.logs.of(names)
    tps = [TopicPartition(names[one.tp.topic], one.tp.partition) for one in plan.entries]
    held = {tp: one.offset for tp, one in other.kafka.fetch(plan.in_kafka, tps).items()}
    for entry, to in zip(plan.entries, tps, strict=True):
        if entry.to is None:
            continue
        view, state = other.view.topics.get(to.topic), states.get(entry.tp.topic)
        topic_id = "" if view is None else view.topic_id
        found = Found(entry, to, topic_id, None, held.get(to), None, "")
        source = () if state is None else state.partitions
        target = None if view is None else view.partitions
        ids = "" if state is None else state.identity, topic_id
        yield Wanted.of(found, source, target, ids)


def name_there(topic: str, renames: Sequence[Rename]) -> str:
    """Return a topic's name in the other cluster, by the first matching rule."""
    return next((new for one in renames if (new := one.of(topic)) is not None), topic)
