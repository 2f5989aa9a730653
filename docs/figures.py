"""Draw the figures of the documentation from the code: ``python docs/figures.py``.

Assignments come from the strategies themselves, states from the state machine's enumeration, paths
from `GroupPaths`, and curves and owners from simulated runs. Colours follow the reader's light or
dark theme. A test compares the figures with the files in the repository.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from pathlib import Path
from textwrap import wrap

from zkconsumer.core.common.assign import (
    RoundRobinHash,
    assign_range,
    assign_roundrobin,
    thread_ids,
)
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import MemberState
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.states import State
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper.states import State as ZkState
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.sim.runs.herd import Herd
from zkconsumer.sim.runs.herd_coordinator import simulate_any

IMAGES = Path(__file__).parent / "images"
STYLE = """
text { font: 14px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328; }
.small { font-size: 12px; fill: #59636e; }
.head { font-weight: 600; }
.mono { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre; }
.box { fill: #f6f8fa; stroke: #8c959f; }
.a { fill: #cfe5ff; stroke: #0969da; } .b { fill: #ffe1c2; stroke: #bc4c00; }
.c { fill: #d3f5da; stroke: #1a7f37; } .none { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
.line { stroke: #59636e; fill: none; stroke-width: 1.5; } .tip { fill: #59636e; }
.reply { stroke: #59636e; fill: none; stroke-dasharray: 5 4; }
.axis { stroke: #8c959f; stroke-width: 0.4; } .curve { fill: none; stroke-width: 2.5; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #9da7b1; } .box { fill: #21262d; stroke: #7d8590; }
.a { fill: #12355c; stroke: #4493f8; } .b { fill: #55290b; stroke: #f0883e; }
.c { fill: #12401f; stroke: #3fb950; } .none { stroke: #7d8590; }
.line, .reply { stroke: #9da7b1; } .tip { fill: #9da7b1; } .curve { fill: none; }
}
"""


class Figure:
    """One drawing. Coordinates are in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path class="tip" d="M0 0 8 4 0 8z"/>'
            "</marker></defs>",
        ]

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line of text. ``y`` is its base line."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, wide: float, high: float, lines: Sequence[str], kind: str = "box"
    ) -> None:
        """Draw a box with centred lines of text. All lines after the first are small."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="6" class="{kind}"/>'
        )
        top = y + high / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            style = "small" if number else ""
            self.text(x + wide / 2, top + 18 * number, line, style, "middle")

    def arrow(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draw a line through the points, with an arrowhead at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{kind}" marker-end="url(#tip)"/>')

    def line(self, kind: str, *points: tuple[float, float]) -> None:
        """Draw a line through the points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" class="{kind}"/>')

    def done(self) -> str:
        """Return the text of the file."""
        return "\n".join([*self._parts, "</svg>", ""])


def five_steps() -> str:
    """The partitions of member A when B joins, with the JVM consumer and with zkconsumer."""
    figure = Figure(760, 330, "The five steps of a rebalance when member B joins member A")
    steps = (
        ("1 stop", "fetchers end,", "queues cleared,", "offsets committed"),
        ("2 release", "owner znodes", "are deleted"),
        ("3 assign", "members and", "partitions are read,", "each computes all"),
        ("4 claim", "owner znodes", "are created"),
        ("5 start", "fetchers read", "from the offsets"),
    )
    for number, lines in enumerate(steps):
        x = 10 + 150 * number
        figure.box(x, 10, 130, 92, lines)
        if number < 4:
            figure.arrow((x + 130, 56), (x + 150, 56))
    rows = (
        (
            "profile scala",
            "all stop, even those that stay",
            "aaaa",
            "    ",
            "    ",
            "aabb",
        ),
        ("profile default", "only the partitions that move stop", "aaaa", "aa  ", "aa  ", "aabb"),
    )
    columns = ("before", "after 2", "after 3", "after 5")
    for number, name in enumerate(columns):
        figure.text(280 + 125 * number + 46, 136, name, "small", "middle")
    for number, (name, what, *owners) in enumerate(rows):
        y = 150 + 78 * number
        figure.text(10, y + 22, name, "head")
        figure.text(10, y + 42, what, "small")
        for column, who in enumerate(owners):
            for partition, owner in enumerate(who):
                x = 280 + 125 * column + 24 * partition
                figure.box(x, y + 6, 22, 30, [str(partition)], owner.strip() or "none")
    figure.box(280, 300, 22, 20, ["A"], "a")
    figure.box(308, 300, 22, 20, ["B"], "b")
    figure.box(336, 300, 22, 20, [""], "none")
    figure.text(366, 315, "not owned: no member reads it", "small")
    return figure.done()


def znode_tree() -> str:
    """The znodes of a group of two members."""
    paths = GroupPaths("shop")
    members = ("shop_a-1795262003537-5b79a07e", "shop_b-1795262004112-0d3c9a41")
    rows: list[tuple[int, str, str, str]] = [(0, paths.root, "", "box"), (1, "ids", "", "box")]
    text = '{"version":1,"subscription":{"pages":1},...}'
    rows += [
        (2, paths.member(one).rpartition("/")[2], text, "ab"[at]) for at, one in enumerate(members)
    ]
    owned = assign_range(
        {"pages": [ConsumerThreadId(one, 0) for one in members]}, {"pages": range(4)}
    )
    rows += [(1, "owners", "", "box"), (2, "pages", "", "box")]
    rows += [
        (3, paths.owner(tp).rpartition("/")[2], str(thread), "ab"[members.index(thread.consumer)])
        for tp, thread in sorted(owned.items())
    ]
    rows += [(1, "offsets", "", "box"), (2, "pages", "", "box")]
    rows += [(3, str(number), str(offset), "box") for number, offset in enumerate((35, 42, 39, 32))]
    figure = Figure(760, 26 * len(rows) + 64, "The znodes of a group of two members")
    for number, (level, name, data, kind) in enumerate(rows):
        x, y = 10 + 26 * level, 10 + 26 * number
        wide = 8.2 * len(name) + 16
        figure.box(x, y, wide, 22, [], kind)
        figure.text(x + 8, y + 16, name, "mono")
        if data:
            figure.text(x + wide + 10, y + 16, data, "mono")
    y = 26 * len(rows) + 26
    figure.box(10, y, 22, 22, [], "a")
    figure.box(36, y, 22, 22, [], "b")
    figure.text(66, y + 16, "ephemeral: of A's or B's session, and gone when it ends", "small")
    figure.box(430, y, 22, 22, [], "box")
    figure.text(460, y + 16, "persistent: stays when no member is left", "small")
    return figure.done()


def data_path() -> str:
    """Threads and queues between the broker and the application."""
    figure = Figure(760, 300, "How a message reaches the application: threads and queues")
    figure.box(10, 30, 110, 60, ["broker 0"])
    figure.box(10, 150, 110, 60, ["broker 1"])
    for number, y in enumerate((30, 150)):
        figure.box(190, y, 170, 60, ["fetcher thread", f"of broker {number}"], "a")
        figure.arrow((190, y + 20), (120, y + 20))
        figure.text(155, y + 14, "Fetch", "small", "middle")
        figure.arrow((120, y + 42), (190, y + 42))
        figure.text(155, y + 58, "bytes", "small", "middle")
    for number, y in enumerate((30, 150)):
        figure.box(430, y, 130, 60, ["queue", f"of stream {number}"])
        figure.box(620, y, 130, 60, ["your thread", "iterates, decodes"], "c")
        figure.arrow((560, y + 30), (620, y + 30))
    figure.arrow((360, 60), (430, 60))
    figure.arrow((360, 180), (430, 180))
    figure.arrow((360, 70), (395, 70), (395, 168), (430, 168))
    figure.box(190, 236, 170, 54, ["leader finder", "looks for moved leaders"], "b")
    figure.arrow((275, 236), (275, 210))
    figure.box(
        430, 236, 320, 54, ["member thread", "rebalances; commits the consumed offsets"], "b"
    )
    figure.text(380, 18, "a full queue stops its partitions only", "small", "middle")
    return figure.done()


def coordinator_states() -> str:
    """The states of a member on the coordinator, and the usual path through them."""
    figure = Figure(760, 470, "States of a member on the coordinator")
    rows = (
        (State.FINDING, State.LOADING, State.JOINING),
        (State.FETCHING_OFFSETS, State.SYNCING, State.LEADING),
        (State.NOTIFYING_START, State.STARTING, State.STABLE),
        (State.NOTIFYING_RELEASE, State.COMMITTING, State.STOPPING),
    )
    place: dict[State, tuple[float, float]] = {}
    for row, states in enumerate(rows):
        for column, state in enumerate(states):
            x, y = 20 + 250 * column, 20 + 94 * row
            place[state] = (x, y)
            kind = "c" if state is State.STABLE else "a" if row in (0, 1) else "box"
            lines = [state.name, *wrap(state.value.partition(";")[0], 32)]
            figure.box(x, y, 220, 62, lines, kind)

    def right(one: State, other: State) -> None:
        y = place[one][1] + 31
        figure.arrow((place[one][0] + 220, y), (place[other][0], y))

    def left(one: State, other: State) -> None:
        y = place[one][1] + 31
        figure.arrow((place[one][0], y), (place[other][0] + 220, y))

    def down(one: State, other: State, shift: float = 0) -> None:
        x = place[one][0] + 110 + shift
        figure.arrow((x, place[one][1] + 62), (x, place[other][1]))

    right(State.FINDING, State.LOADING)
    right(State.LOADING, State.JOINING)
    down(State.JOINING, State.LEADING)
    left(State.LEADING, State.SYNCING)
    left(State.SYNCING, State.FETCHING_OFFSETS)
    down(State.FETCHING_OFFSETS, State.NOTIFYING_START)
    right(State.NOTIFYING_START, State.STARTING)
    right(State.STARTING, State.STABLE)
    down(State.STABLE, State.STOPPING)
    left(State.STOPPING, State.COMMITTING)
    left(State.COMMITTING, State.NOTIFYING_RELEASE)
    figure.arrow((20, 333), (8, 333), (8, 8), (380, 8), (380, 20))
    figure.arrow((540, 82), (470, 114))
    figure.text(496, 102, "not the leader", "small", "end")
    figure.text(622, 291, "the coordinator rebalances", "small", "end")
    figure.box(20, 400, 220, 52, [State.LEAVING.name, State.LEAVING.value], "b")
    figure.box(270, 400, 220, 52, [State.CLOSED.name, State.CLOSED.value], "b")
    figure.arrow((240, 426), (270, 426))
    figure.text(505, 416, "from every state: shutdown leaves,", "small")
    figure.text(505, 434, "a permanent error fails, a lost", "small")
    figure.text(505, 452, "coordinator goes back to FINDING", "small")
    return figure.done()


def member_states() -> str:
    """The states of a member in ZooKeeper, and the usual path through them."""
    figure = Figure(760, 564, "States of a member in ZooKeeper")
    rows = (
        (ZkState.REGISTERING, ZkState.VIEWING, ZkState.CHECKING),
        (ZkState.NOTIFYING_RELEASE, ZkState.COMMITTING, ZkState.STOPPING),
        (ZkState.RELEASING, ZkState.REVIEWING, ZkState.CLAIMING),
        (ZkState.RESTING, ZkState.STARTING, ZkState.NOTIFYING_START),
    )
    place: dict[ZkState, tuple[float, float]] = {}
    for row, states in enumerate(rows):
        for column, state in enumerate(states):
            x, y = 20 + 250 * column, 20 + 106 * row
            place[state] = (x, y)
            kind = "c" if state is ZkState.RESTING else "a" if row in (0, 2) else "box"
            lines = [state.name, *wrap(state.value, 32)]
            figure.box(x, y, 220, 68, lines, kind)

    def across(one: ZkState, other: ZkState) -> None:
        y = place[one][1] + 34
        right = place[one][0] < place[other][0]
        figure.arrow((place[one][0] + 220 * right, y), (place[other][0] + 220 * (not right), y))

    def down(one: ZkState, other: ZkState) -> None:
        x = place[one][0] + 110
        figure.arrow((x, place[one][1] + 68), (x, place[other][1]))

    for states in rows:
        across(states[0], states[1]) if states[0] in _RIGHTWARD else across(states[1], states[0])
        across(states[1], states[2]) if states[0] in _RIGHTWARD else across(states[2], states[1])
    down(ZkState.CHECKING, ZkState.STOPPING)
    down(ZkState.NOTIFYING_RELEASE, ZkState.RELEASING)
    down(ZkState.CLAIMING, ZkState.NOTIFYING_START)
    figure.arrow((20, 372), (8, 372), (8, 8), (380, 8), (380, 20))
    figure.text(20, 424, "the group changes: VIEWING", "small")
    for number, (state, *words) in enumerate(_SIDE):
        x = 20 + 186 * number
        figure.box(x, 442, 172, 50, [state.name], "b")
        for line, word in enumerate(words):
            figure.text(x + 86, 508 + 17 * line, word, "small", "middle")
    return figure.done()


_RIGHTWARD = (ZkState.REGISTERING, ZkState.RELEASING)
_SIDE = (
    (ZkState.WATCHING, "an owner znode is in the", "way: waits for its end,", "then claims"),
    (ZkState.BACKING_OFF, "an attempt failed:", "waits, then VIEWING"),
    (ZkState.SESSIONLESS, "the session is lost: with a", "new one, REGISTERING"),
    (ZkState.CLOSING_STOP, "shutdown: stops, commits,", "releases, deregisters,", "then CLOSED"),
)


def member() -> str:
    """The parts of a running member, what passes between them, and the thread that runs each."""
    figure = Figure(760, 440, "The parts of a running member")
    figure.box(20, 14, 330, 44, ["application", "its threads"], "none")
    figure.box(410, 14, 330, 44, ["listener of rebalances", "a thread for each call"], "none")
    figure.box(20, 112, 330, 62, ["KafkaStream, ChunkQueue", "runtime/delivery"], "a")
    figure.box(
        20, 232, 330, 62, ["fetch workers, leader finder", "runtime/fetch: a thread each"], "a"
    )
    figure.box(410, 112, 190, 62, ["machine: pure decisions", "core: no IO, no clock"], "b")
    figure.box(410, 232, 150, 62, ["MemberLoop", "the member's thread"], "c")
    figure.box(590, 232, 150, 62, ["Coordination", "runtime/membership"], "c")
    figure.box(590, 338, 150, 44, ["ServerLine, zk", "a thread each"], "c")
    figure.box(20, 396, 330, 36, ["brokers: the partitions' leaders"])
    figure.box(410, 396, 330, 36, ["ZooKeeper, or the group's coordinator"])
    figure.arrow((120, 112), (120, 58))
    figure.text(130, 90, "messages", "small")
    figure.arrow((250, 58), (250, 112))
    figure.text(260, 90, "consumed", "small")
    figure.arrow((120, 232), (120, 174))
    figure.text(130, 208, "chunks", "small")
    figure.arrow((120, 396), (120, 294))
    figure.text(130, 350, "bytes", "small")
    figure.arrow((410, 250), (350, 250))
    figure.text(380, 264, "start", "small", "middle")
    figure.text(380, 280, "stop", "small", "middle")
    figure.arrow((410, 238), (330, 174))
    figure.text(382, 206, "drop", "small")
    figure.arrow((440, 232), (440, 174))
    figure.text(448, 200, "events", "small")
    figure.arrow((500, 174), (500, 232))
    figure.text(508, 200, "commands", "small")
    figure.arrow((560, 250), (590, 250))
    figure.arrow((590, 278), (560, 278))
    figure.arrow((650, 294), (650, 338))
    figure.arrow((690, 338), (690, 294))
    figure.text(642, 320, "requests", "small", "end")
    figure.text(700, 320, "answers", "small")
    figure.arrow((665, 382), (665, 396), kind="reply")
    figure.arrow((540, 232), (540, 214), (640, 214), (640, 58))
    for row, call in enumerate(("releasing", "assigned", "lost")):
        figure.text(650, 126 + 18 * row, call, "small")
    return figure.done()


def sequence(source: str) -> str:
    """Draw a Mermaid sequence diagram of two participants, as `zkconsumer diagram` prints it.

    GitHub draws these by itself. The site shows this drawing instead, because Mermaid's scripts
    would have to be loaded from elsewhere. Raises ValueError for a line that it does not know.
    """
    names: dict[str, str] = {}
    steps: list[tuple[str, str, list[str]]] = []  # (kind, sender, lines of text)
    for line in filter(None, map(str.strip, source.splitlines()[1:])):
        if found := re.fullmatch(r"participant (\w+) as (.+)", line):
            names[found[1]] = found[2]
        elif found := re.fullmatch(r"(\w+)(--?)>>(\w+): (.+)", line):
            steps.append(("reply" if found[2] == "--" else "line", found[1], [found[4]]))
        elif found := re.fullmatch(r"Note over (\w+): (.+)", line):
            steps.append(("note", found[1], wrap(found[2], 40)))
        else:
            raise ValueError(f"docs/figures.py cannot draw this line of a diagram: {line}")
    ends = dict(zip(names, (170.0, 590.0), strict=True))
    heights = [18 * len(lines) + 20 if kind == "note" else 34 for kind, _, lines in steps]
    bottom = 70 + sum(heights)
    figure = Figure(760, bottom + 20, " and ".join(names.values()))
    for name, x in ends.items():
        figure.line("axis", (x, 46), (x, bottom))
        figure.box(x - 80, 10, 160, 36, [names[name]], "a")
    y = 60.0
    for (kind, sender, lines), height in zip(steps, heights, strict=True):
        x = ends[sender]
        (other,) = (end for name, end in ends.items() if name != sender)
        if kind == "note":
            figure.box(x - 150, y + 2, 300, height - 8, [], "box")
            for number, line in enumerate(lines):
                figure.text(x, y + 20 + 18 * number, line, "small", "middle")
        else:
            figure.text((x + other) / 2, y + 18, lines[0], "small", "middle")
            figure.arrow((x, y + 26), (other, y + 26), kind=kind)
        y += height
    return figure.done()


Shares = Mapping[TopicPartition, int]


def legacy(strategy: str, members: int, topics: Mapping[str, int]) -> Shares:
    """The assignment of a group in ZooKeeper, with one stream for each member."""
    threads: dict[str, list[ConsumerThreadId]] = {}
    names = "abc"[:members]
    for name in names:
        for topic, ids in thread_ids(name, dict.fromkeys(topics, 1)).items():
            threads.setdefault(topic, []).extend(ids)
    partitions = {topic: range(count) for topic, count in topics.items()}
    if strategy == "range":
        owned = assign_range(threads, partitions)
    else:
        owned = assign_roundrobin(threads, partitions, RoundRobinHash.DASH)
    return {tp: names.index(thread.consumer) for tp, thread in owned.items()}


def sticky(before: Shares, members: int, topics: Mapping[str, int], cooperative: bool) -> Shares:
    """The assignment by the sticky strategy for a group that had the partitions ``before``."""
    strategy = StickyStrategy(cooperative)
    names = "abc"[:members]
    joined = []
    for number, name in enumerate(names):
        owned = frozenset(tp for tp, owner in before.items() if owner == number)
        state = MemberState(name, dict.fromkeys(topics, 1), owned, 1, (owned, 1))
        joined.append(GroupMember(name, None, strategy.subscribe(state)))
    given = strategy.assign(joined, topics)
    return {
        tp: names.index(name) for name in names for tp in decode_assignment(given[name]).partitions
    }


def assignments() -> str:
    """The worked examples of the page on assignment."""
    two = {"orders": 5, "returns": 5}
    one = {"orders": 6}
    range_before = legacy("range", 2, one)
    rows: list[tuple[str, str, Shares, Mapping[str, int]]] = [
        ("range", "3 members, 2 topics", legacy("range", 3, two), two),
        ("roundrobin", "3 members, 2 topics", legacy("roundrobin", 3, two), two),
        ("before", "2 members, 1 topic", range_before, one),
        ("range", "C joins", legacy("range", 3, one), one),
        ("sticky", "C joins", sticky(range_before, 3, one, False), one),
        ("cooperative", "C joins, round 1", sticky(range_before, 3, one, True), one),
    ]
    figure = Figure(760, 52 * len(rows) + 60, "Who gets which partition, by strategy")
    for number, (name, what, shares, topics) in enumerate(rows):
        y = 10 + 52 * number
        figure.text(10, y + 16, name, "head")
        figure.text(10, y + 34, what, "small")
        x = 170.0
        for topic, count in topics.items():
            figure.text(x, y + 24, topic, "small")
            x += 56
            for partition in range(count):
                owner = shares.get(TopicPartition(topic, partition))
                kind = "none" if owner is None else "abc"[owner]
                figure.box(x, y + 4, 36, 32, [str(partition)], kind)
                x += 40
            x += 24
    y = 52 * len(rows) + 26
    for number, name in enumerate("ABC"):
        figure.box(170 + 60 * number, y, 36, 22, [name], "abc"[number])
    figure.box(350, y, 36, 22, [], "none")
    figure.text(396, y + 16, "released in this round, assigned in the next", "small")
    return figure.done()


def herd_curves() -> str:
    """The cost of one join in simulated groups of growing size: reads, requests, and partitions
    that stop."""
    sizes = (5, 10, 20, 50, 100)
    figure = Figure(760, 372, "The cost of one member that joins, by group size")
    left, top, wide, high, decades = 70, 40, 160, 240, 6
    colours = {"scala": "b", "default": "a", "coordinator": "none", "consumer": "c"}
    runs = {name: [simulate_any(Herd(n, 100, 1, "join", name)) for n in sizes] for name in colours}
    panels = (
        ("znodes read", "reads"),
        ("requests", "requests"),
        ("partitions that stop", "stopped"),
    )
    for panel, (title, what) in enumerate(panels):
        x0 = left + panel * 248
        figure.text(x0, 24, title, "head")
        for power in range(decades):
            y = top + high - high * power / (decades - 1)
            figure.line("axis", (x0, y), (x0 + wide, y))
            figure.text(x0 - 8, y + 4, f"{10**power:,}", "small", "end")
        places = [x0 + wide * log10(n / sizes[0]) / log10(sizes[-1] / sizes[0]) for n in sizes]
        for place, n in zip(places, sizes, strict=True):
            figure.text(place, top + high + 20, str(n), "small", "middle")
        figure.text(x0 + wide / 2, top + high + 40, "members", "small", "middle")
        for name, kind in colours.items():
            found = [getattr(run, what) for run in runs[name]]
            if any(found):
                heights = [top + high - high * log10(max(1, one)) / (decades - 1) for one in found]
                figure.line(f"{kind} curve", *zip(places, heights, strict=True))
    for number, (name, kind) in enumerate(colours.items()):
        figure.box(70 + 170 * number, 338, 22, 20, [], kind)
        figure.text(100 + 170 * number, 353, name, "small")
    return figure.done()


def migration_timeline() -> str:
    """A stopped and a live move, step by step."""
    figure = Figure(760, 366, "A group moves to Kafka: stopped, and while it runs")
    figure.text(10, 24, "stopped move: zkmigrate apply", "head")
    stopped = (
        ("old consumers", "read and commit", "a"),
        ("stop", "they leave", "none"),
        ("claim", "every partition", "none"),
        ("copy", "read back", "none"),
        ("marker", "in ZooKeeper", "none"),
        ("new consumers", "on the coordinator", "c"),
    )
    for number, (name, what, kind) in enumerate(stopped):
        figure.box(10 + 124 * number, 38, 118, 52, [name, what], kind)
    figure.arrow((134, 106), (624, 106))
    figure.text(380, 126, "no message is delivered", "small", "middle")
    figure.text(10, 168, "live move: zkmigrate live", "head")
    for number, mode in enumerate(Mode):
        figure.box(150 + 152 * number, 182, 146, 36, [mode.value], "box")
    legacy, plain = {Mode.ZOOKEEPER}, {Mode.OPEN}
    by_brokers = {Mode.KAFKA, Mode.OPEN}
    for row, name in enumerate(("assignment", "other clients", "messages")):
        figure.text(10, 246 + 42 * row, name, "small")
        for number, mode in enumerate(Mode):
            kind = "c" if mode in by_brokers else "a"
            if row == 0:
                text = "coordinator" if mode in by_brokers else "ZooKeeper"
            elif row == 1:
                text = "legacy" if mode in legacy else "any Kafka" if mode in plain else "none"
                kind = "none" if text == "none" else kind
            else:
                text = "delivered"
            figure.box(150 + 152 * number, 226 + 42 * row, 146, 32, [text], kind)
    return figure.done()


def ownership_timeline() -> str:
    """The owner of each partition while a third member joins, simulated with both profiles."""
    figure = Figure(760, 420, "Owners of six partitions while a third member joins two")
    left, wide = 90, 640
    runs = {
        name: simulate_any(Herd(2, 6, 1, "join", name, service=(0.002, 0.01)))
        for name in ("scala", "default")
    }
    last = 1.25 * max(run.seconds_to_stable or 0 for run in runs.values())
    for panel, (name, run) in enumerate(runs.items()):
        top = 14 + 186 * panel
        figure.text(10, top + 10, f"profile {name}", "head")
        for row, (tp, spans) in enumerate(sorted(run.timeline.items())):
            y = top + 20 + 24 * row
            figure.text(left - 10, y + 15, tp.rpartition("-")[2], "small", "end")
            figure.box(left, y, wide, 20, [], "none")
            for start, end, thread in spans:
                member = int(thread.rpartition("-")[0].rpartition("m")[2])
                x = left + wide * min(start, last) / last
                until = left + wide * min(last if end is None else end, last) / last
                figure.box(x, y, until - x, 20, [], "abc"[member])
    for tick in range(5):
        x = left + wide * tick / 4
        figure.text(x, 384, f"{1000 * last * tick / 4:.0f} ms", "small", "middle")
    for number, name in enumerate("ABC"):
        figure.box(90 + 60 * number, 394, 36, 20, [name], name.lower())
    figure.box(270, 394, 36, 20, [], "none")
    figure.text(316, 409, "no owner", "small")
    return figure.done()


FIGURES = {
    "assignment.svg": assignments,
    "coordinator-states.svg": coordinator_states,
    "data-path.svg": data_path,
    "five-steps.svg": five_steps,
    "herd-curves.svg": herd_curves,
    "member.svg": member,
    "member-states.svg": member_states,
    "migration-timeline.svg": migration_timeline,
    "ownership-timeline.svg": ownership_timeline,
    "znode-tree.svg": znode_tree,
}


def main() -> None:
    """Write all figures."""
    for name, figure in FIGURES.items():
        (IMAGES / name).write_text(figure(), encoding="utf-8")


if __name__ == "__main__":
    main()
