"""Cases of split brain in virtual time, each with its interleaving and its result.

A case is a fixed sequence of events; latencies, lags and phases are drawn from the seed. ``play``
searches the first seed in which the case occurs with legacy behaviour, and runs as many seeds
with the default profile. Everything runs in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from textwrap import wrap
from typing import Any

from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper.ops import session_text
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.herd.owner_spans import Ownership
from zkconsumer.herd.recorders import MemberCounter
from zkconsumer.herd.tally import Tally, owner_partition
from zkconsumer.journal.recorder import (
    Entry,
    MemberObserver,
    MemberRecorder,
    event_entry,
    run_entry,
)
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.members.light import SimLog
from zkconsumer.sim.members.zookeeper import SimMember
from zkconsumer.sim.runs.world import GROUP, NEVER, World
from zkconsumer.sim.servers.zk import FakeZk, Txn

#: How many seeds are tried for a case to show, and how many are played to show that it does not.
SEEDS = 150
TIMEOUT = 4.0
_TOPIC = "orders"
_SETTLED = 5.0
_WIDTH = 64


@dataclass(slots=True)
class Stage:
    """One run of a case. ``entries`` is its journal, with members named ``A``, ``B``, ``C`` ...
    ``late`` counts messages that were delivered although another member owned the partition."""

    profile: str
    seed: int
    world: World
    entries: list[Entry] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    members: dict[str, SimMember] = field(default_factory=dict)
    delivered: list[tuple[int, str, TopicPartition, int, int]] = field(default_factory=list)
    wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    disputes: list[str] = field(default_factory=list)
    late: int = 0

    @property
    def kernel(self) -> Kernel:
        """The virtual clock of the run."""
        return self.world.kernel

    def write(self, entry: Entry) -> None:
        """Add a line to the journal, and check for members that want the same partition."""
        self.entries.append(entry)
        if entry.get("name") != "ClaimPartitions":
            return
        name, wanted = entry["member"], frozenset(entry.get("partitions", ()))
        self.wanted[name] = wanted
        for other, others in self.wanted.items():
            both = wanted & others
            if other != name and both:
                self.disputes.append(
                    f"{_short(other)} and {_short(name)} both want {', '.join(sorted(both))}"
                )

    def note(self, text: str) -> None:
        """Record the delivery that a line of the run's history reports. Other lines are ignored."""
        at, member, verb, *rest = text.split(" ")
        if verb != "delivers":
            return
        topic, _, number = rest[0].rpartition("-")
        first, last = rest[1].split("..")
        tp = TopicPartition(topic, int(number))
        self.delivered.append((int(at), member, tp, int(first), int(last)))
        owner = self.tally.ownership.owner(tp)
        if owner not in (None, member):
            count = int(last) - int(first) + 1
            self.late += count
            which = f"messages {first} to {last}" if count > 1 else f"message {first}"
            text = f"{which}, though {_short(owner or '')} owns it now"
            self.write(event_entry(int(at), "deliver", member, text, [str(tp)]))

    def event(self, name: str, member: str = "", detail: str = "") -> None:
        """Record an action on the group."""
        self.write(event_entry(self.kernel.now_us, name, member, detail))

    def join(self, name: str) -> SimMember:
        """Start another member."""
        spec = MemberSpec(
            paths=self.world.paths,
            consumer_id=f"{GROUP}_{name}",
            subscription=Subscription(Pattern.STATIC, {_TOPIC: 1}),
            scala=self.profile == "scala",
            backoff=1.0,
            reread=NEVER,
            session_timeout=TIMEOUT,
        )
        habits = Habits(poll=(0.05, 0.15), stop=(0.0, 0.01), listener=(0.0, 0.0))

        def now() -> int:
            return self.kernel.now_us

        watchers: list[MemberObserver] = [
            MemberCounter(self.tally, spec.consumer_id, now),
            MemberRecorder(self, spec.consumer_id, now),
        ]
        world = self.world
        member = SimMember(world.zk, spec, world.data, world.observer, habits, self.note, watchers)
        world.members.append(member)
        self.members[name] = member
        self.event("join", spec.consumer_id)
        member.start()
        return member

    def _whose(self, session: int) -> str:
        names = (name for name, member in self.members.items() if member.session == session)
        return next((f"{name}'s" for name in names), f"the {session_text(session)}")

    def committed(self, _zxid: int, txn: Txn) -> None:
        """Record the changes of sessions and owner znodes in a committed transaction."""
        now, ownership = self.kernel.now_us, self.tally.ownership
        if txn.closes_session and txn.changes:
            owners = {str(tp) for c in txn.changes if (tp := owner_partition(c.path))}
            self.write(
                event_entry(
                    now,
                    "session-ended",
                    detail=f"the server ends {self._whose(txn.session_id)} session",
                    partitions=sorted(owners),
                )
            )
        for change in txn.changes:
            tp = owner_partition(change.path)
            if tp is None:
                continue
            if change.before is not None:
                ownership.lost(now, tp, change.before.data.decode().rpartition("-")[0])
            if change.after is not None:
                ownership.took(now, tp, change.after.data.decode().rpartition("-")[0])

    def broken(self) -> list[str]:
        """Return the rules that the group has violated, as text."""
        observer = self.world.observer
        return [str(v) for v in [*observer.violations, *observer.allowed]]


def _stage(profile: str, seed: int, followers: int = 0, max_lag: float = 0.0) -> Stage:
    kernel = Kernel(seed)
    zk = FakeZk(kernel, followers=followers, max_lag=max_lag, names_causes=True)
    world = World(kernel, zk, SimLog(kernel, 20.0), Observer())
    world.begin(range(2))
    stage = Stage(profile, seed, world)
    world.zk.on_commit(stage.committed)
    world.set_topic(_TOPIC, 4)
    return stage


# -- the cases -------------------------------------------------------------------------------------


def _torn_views(profile: str, seed: int) -> Stage:
    """Let members read from lagging servers while two more join."""
    stage = _stage(profile, seed, followers=3, max_lag=0.9)
    for name in ("A", "B"):
        stage.join(name)
    stage.kernel.run(until=_SETTLED)
    stage.tally.reset(stage.kernel.now_us)
    stage.wanted.clear()
    stage.disputes.clear()
    stage.join("C")
    stage.kernel.schedule(0.25, partial(stage.join, "D"))
    stage.kernel.run(until=_SETTLED + 5.0)
    return stage


def _zombie_fetcher(profile: str, seed: int) -> Stage:
    """Cut A off from the network for longer than its session lasts, while its fetchers continue."""
    stage = _two(profile, seed)
    stage.event("cut-off", f"{GROUP}_A", f"no connection to ZooKeeper for {2 * TIMEOUT:g} s")
    stage.members["A"].client.disconnect(2 * TIMEOUT)
    stage.kernel.run(until=_SETTLED + 3 * TIMEOUT)
    return stage


def _two_claims(profile: str, seed: int) -> Stage:
    """Stop A by a garbage collection for longer than its session lasts; then A continues as
    before."""
    stage = _two(profile, seed)
    stage.event("pause", f"{GROUP}_A", f"its process is suspended for {1.5 * TIMEOUT:g} s")
    stage.members["A"].pause(1.5 * TIMEOUT)
    stage.kernel.run(until=_SETTLED + 3 * TIMEOUT)
    return stage


def _two(profile: str, seed: int) -> Stage:
    stage = _stage(profile, seed)
    for name in ("A", "B"):
        stage.join(name)
    stage.kernel.run(until=_SETTLED)
    stage.tally.reset(stage.kernel.now_us)
    return stage


def _double_delivery(stage: Stage) -> str:
    """Describe who delivered messages while another member owned the partition; empty for at most
    one message."""
    violations = [text for text in stage.broken() if " single_delivery: " in text]
    if not violations:
        return ""
    late = [entry for entry in stage.entries if entry.get("name") == "deliver"]
    seconds = (late[-1]["at"] - late[0]["at"]) / 1e6
    return (
        f"{_short(late[0]['member'])} delivered {stage.late} messages of partitions that another "
        f"member owned, over {seconds:.2g} s"
    )


def _torn(stage: Stage) -> str:
    total = stage.tally.total
    if not stage.disputes or not total.failed_attempts:
        return ""
    unowned = stage.tally.ownership.unowned(stage.tally.start, stage.kernel.now_us)
    return (
        f"{stage.disputes[0]}; failed attempts: {total.failed_attempts}; a partition is without "
        f"an owner for up to {max(unowned.values()) / 1e6:.2f} s"
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A case. ``act`` runs it; ``shows`` describes the result, or returns nothing if the case did
    not occur."""

    title: str
    act: Callable[[str, int], Stage]
    shows: Callable[[Stage], str]
    why_not: str


SCENARIOS: Mapping[str, Scenario] = {
    "torn-views": Scenario(
        "members decide from different views",
        _torn_views,
        _torn,
        "views may be torn here as well, but a claim that is refused undoes nothing else: the "
        "member keeps its partitions, watches the owner znode that blocks it, and reads the group "
        "again when its own watch fires",
    ),
    "zombie-fetcher": Scenario(
        "an owner fetches without a session",
        _zombie_fetcher,
        _double_delivery,
        "a member that has not heard from ZooKeeper for two thirds of its session timeout "
        "delivers nothing, so it is silent before another member can own its partitions",
    ),
    "two-claims": Scenario(
        "two claims on one partition after an expiry",
        _two_claims,
        _double_delivery,
        "the clock of the lease keeps running while the process is suspended: it has expired "
        "when the process resumes, so at most the one message that was being handed over is "
        "delivered",
    ),
}


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a case: the number of ``seeds`` that were run, and the number of seeds in which
    the case occurred (``showed``)."""

    name: str
    profile: str
    seed: int
    seeds: int
    showed: int
    finding: str
    lines: list[str]
    timeline: list[str]
    entries: list[Entry]

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON, without the journal."""
        keys = ("name", "profile", "seed", "seeds", "showed", "finding", "lines", "timeline")
        return {key: getattr(self, key) for key in keys}


def play(name: str, profile: str, seed: int = 0) -> Played:
    """Run a case: with profile ``scala`` until it occurs, with ``default`` for all seeds."""
    scenario = SCENARIOS[name]
    showed, played = 0, 0
    kept: Stage | None = None
    finding = ""
    for run_seed in range(seed, seed + SEEDS):
        stage = scenario.act(profile, run_seed)
        played += 1
        shown = scenario.shows(stage)
        if shown:
            showed += 1
        if kept is None or (shown and not finding):
            kept, finding = stage, shown
        if shown and profile == "scala":
            break
    assert kept is not None
    first = run_entry(0, "virtual", {"scenario": name, "profile": profile, "seed": kept.seed})
    return Played(
        name,
        profile,
        kept.seed,
        played,
        showed,
        finding or f"it does not happen: {scenario.why_not}",
        tell(kept),
        draw(kept),
        [first, *kept.entries],
    )


# -- telling ---------------------------------------------------------------------------------------


def _short(member: str) -> str:
    return member.removeprefix(f"{GROUP}_")


def _list(entry: Entry) -> str:
    return ", ".join(name.rpartition("-")[2] for name in entry.get("partitions", ())) or "nothing"


def _say(entry: Entry, late: dict[str, int]) -> str:
    """Return one line of the story; empty if it is left out."""
    detail = str(entry.get("detail", ""))
    match entry["name"]:
        case "join":
            return "starts"
        case "cut-off" | "pause" | "session-ended":
            lost = f"; owner znodes of {_list(entry)} vanish" if entry.get("partitions") else ""
            return detail + lost
        case "SessionOpened":
            return "has a session" if entry["session"] != "0x0" else ""
        case "SessionLost":
            return "learns that its session is over"
        case "Dropped":
            return "drops what it was delivering"
        case "ViewLoaded" if entry.get("members"):
            return f"sees the members {', '.join(map(_short, entry['members']))}"
        case "ClaimPartitions":
            return f"decides to own {_list(entry)}"
        case "Claimed":
            blocked = entry.get("blocked", {})
            text = f"owns {_list(entry)}" if entry.get("partitions") else "gets nothing"
            others = [
                f"{tp.rpartition('-')[2]} still belongs to {_short(who)}"
                for tp, who in blocked.items()
            ]
            return text + ("; " + ", ".join(others) if others else "")
        case "Release" if entry.get("partitions"):
            return f"releases {_list(entry)}"
        case "SetTimer" if detail == "backoff":
            return "the attempt has failed; it waits and owns nothing"
        case "Report" if entry.get("result") == "rebalance-failed":
            return "gives up for good; it stays registered and owns nothing"
        case "deliver":
            late[entry["member"]] = late.get(entry["member"], 0) + 1
            if late[entry["member"]] > 3:
                return ""
            return f"delivers {_list(entry)}, {detail}"
    return ""


def tell(stage: Stage) -> list[str]:
    """Return the events after the change, one line for each relevant step."""
    late: dict[str, int] = {}
    lines = []
    for entry in stage.entries:
        if entry["at"] < stage.tally.start:
            continue
        text = _say(entry, late)
        if text:
            who = _short(entry.get("member", "")) or "-"
            lines.append(f"{(entry['at'] - stage.tally.start) / 1e6:9.4f} s  {who:2} {text}")
    for member, count in late.items():
        if count > 3:
            lines.append(f"{'':11}  {_short(member):2} and so on, {count} times in all")
    return lines


def draw(stage: Stage) -> list[str]:
    """Return the owners and the deliveries of each partition over time, drawn as text."""
    start, end = stage.tally.start, stage.kernel.now_us
    step = (end - start) / _WIDTH
    lines = [
        "a letter: the member; a dot: no owner; a blank: no message",
        f"{'':22}0 s{'':{_WIDTH - 10}}{(end - start) / 1e6:5.1f} s",
    ]
    ownership: Ownership = stage.tally.ownership
    for tp in sorted(ownership.spans):
        row = ["."] * _WIDTH
        for span in ownership.spans[tp]:
            first = max(0, int((span.start - start) / step))
            until = end if span.end is None else span.end
            for column in range(first, max(0, int((until - start) / step + 0.999))):
                if column < _WIDTH:
                    row[column] = _short(span.member)
        lines.append(f"{tp!s:9} owner znode  {''.join(row)}")
        for name in sorted({member for _, member, at, _, _ in stage.delivered if at == tp}):
            marks = [" "] * _WIDTH
            for at, member, partition, _, _ in stage.delivered:
                if partition == tp and member == name and start <= at < end:
                    marks[int((at - start) / step)] = _short(name)
            if any(mark != " " for mark in marks):
                lines.append(f"{'':9} {_short(name)} delivers   {''.join(marks)}")
    return lines


def story(played: Played) -> str:
    """Return the whole case as text."""
    scenario = SCENARIOS[played.name]
    seen = (
        f"seed {played.seed}"
        if played.profile == "scala"
        else f"{played.showed} of {played.seeds} seeds; seed {played.seed} is shown"
    )
    return "\n".join(
        [
            f"{played.name}: {scenario.title} ({played.profile} profile, {seen})",
            *wrap(played.finding, 100, initial_indent="  ", subsequent_indent="  "),
            "",
            *(f"  {line}" for line in played.lines),
            "",
            *(f"  {line.rstrip()}" for line in played.timeline),
            "",
        ]
    )
