"""Matches a regex with many topic names at once, in a limited number of steps.

All members must agree on the topics that a filter matches, even if its author is malicious. A
backtracking matcher would need a time limit, and a slow computer would then refuse a filter that a
fast one accepts. So this module joins the names to one text. A set of positions in it is one large
integer, and each part of the regex maps the positions where it may begin to those where it may end.
No regex takes exponential time. Steps are counted instead of seconds, and each step is for all
names. So the result depends only on the regex and the names, not on their order. More topics make a
step slower but do not add steps, so a filter does not fail because the cluster grows.

Back references, atomic groups and possessive repetitions cannot be matched like this. The module
``re`` matches a regex that has them, if there are at most ``MAX_WAYS`` ways to match it.

Pure; a `Names` and a `Program` belong to one thread at a time.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import Any, Final

ALPHABET: Final = string.ascii_letters + string.digits + "._-"
"""The characters of topic names."""
MAX_WAYS: Final = 1_000
"""Maximum number of ways in which a regex may match a name, if ``re`` is used."""
MAX_STEPS: Final = 50_000
"""Maximum number of steps of a regex. All names take part in each step."""
MAX_LIST_STEPS: Final = 200_000
"""Maximum number of steps for looking up the names in a list one at a time."""
_LONGEST: Final = 255
_SHARED_DEPTH: Final = 8
"""How many times alternatives may branch again after a shared beginning."""

LISTS: Final = re.compile(r"(?:[A-Za-z0-9_.|-]|\\[.-]|\[\.\])*")
_WORD: Final = frozenset(ALPHABET) - frozenset(".-")

Node = tuple[Any, ...]
"""A part of a regex:

- ``("char", set)``: one of these characters;
- ``("place", which)``: ``^`` start, ``$`` end, ``b`` boundary of a word, ``B`` no boundary;
- ``("all", parts)`` and ``("any", branches)``;
- ``("times", part, least, most, mode)``: ``most`` may be None; ``mode`` is ``""``, ``?`` or ``+``;
- ``("look", behind, negative, part)``;
- ``("group", number, part)``: number 0 does not capture;
- ``("atomic", 0, part)`` and ``("reference", number, ignore_case)``.
"""


class TooManyStepsError(Exception):
    """Matching a regex against these names takes too many steps."""


class TooManyWaysError(ValueError):
    """A regex that cannot be matched with sets of positions has too many ways to match."""


class Names:
    """Valid topic names, joined to one text. Bit ``i`` of a set represents position ``i`` in that
    text."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        text = "".join(f"{name}\n" for name in self.names)
        self.size = len(text)
        self.everywhere = (1 << self.size) - 1
        self._backwards = text[::-1]
        self._sets: dict[frozenset[str], int] = {}
        self.ends = self.at(frozenset("\n"))
        self.starts = (self.ends << 1 | 1) & self.everywhere
        word = self.at(_WORD)
        self.boundaries = (word << 1 ^ word) & self.everywhere

    def at(self, characters: frozenset[str]) -> int:
        """Return the set of positions at which there is one of these characters."""
        if (positions := self._sets.get(characters)) is None:
            table = {
                ord(character): "1" if character in characters else "0"
                for character in ALPHABET + "\n"
            }
            positions = int(self._backwards.translate(table) or "0", 2)
            self._sets[characters] = positions
        return positions

    def ending_at(self, ends: int) -> list[bool]:
        """Return for each name whether the position after its last character is in ``ends``."""
        bits = f"{ends & self.ends:0{self.size}b}"[::-1] if self.size else ""
        inside, end = [], -1
        for name in self.names:
            end += len(name) + 1
            inside.append(bits[end] == "1")
        return inside


class Program:
    """A compiled regex.

    ``is_set``: it has no back reference, atomic group or possessive repetition. Raises
    TooManyWaysError, and ValueError if the regex needs ``re``, which cannot compile it.
    """

    def __init__(self, node: Node, is_set: bool) -> None:
        self._node = node
        self._backtracking: re.Pattern[str] | None = None
        if is_set:
            self._node = _shared(node, 0)
        elif _ways(node) > MAX_WAYS:
            raise TooManyWaysError(
                f"it has more than {MAX_WAYS} ways to match, too many for a regex with back "
                "references, atomic groups or possessive repetitions"
            )
        else:
            try:
                self._backtracking = re.compile(_source(node))
            except (re.error, OverflowError) as error:
                raise ValueError(str(error)) from None

    def matches(self, names: Names) -> list[bool]:
        """Return for each name whether the regex matches all of it. Raises TooManyStepsError."""
        if self._backtracking is not None:
            return [self._backtracking.fullmatch(name) is not None for name in names.names]
        return names.ending_at(_Walk(names).go(self._node, names.starts, False))

    def fullmatch(self, name: str) -> bool:
        """Whether the regex matches one whole name. Raises TooManyStepsError."""
        return self.matches(Names([name]))[0]


class NameList:
    """A regex that only lists names, such as ``a|b.c``, matched by set lookup.

    ``LISTS`` matches the supported regexes.
    """

    def __init__(self, pattern: str) -> None:
        self._wanted: dict[int, dict[tuple[int, ...], set[str]]] = {}
        """Names by length and positions of wildcards, which are ``?``."""
        plain = pattern.replace("[.]", r"\.").replace(r"\-", "-")
        plain = "\n".join(part.replace(".", "?") for part in plain.split(r"\."))
        for name in dict.fromkeys(plain.replace("\n", ".").split("|")):
            places = tuple(at for at, character in enumerate(name) if character == "?")
            self._wanted.setdefault(len(name), {}).setdefault(places, set()).add(name)

    def matches(self, names: Names) -> list[bool]:
        """Return for each name whether it is in the list. Raises TooManyStepsError."""
        steps, inside = 0, []
        for name in names.names:
            rows = self._wanted.get(len(name), {})
            steps += sum(map(len, rows), len(rows))
            if steps > MAX_LIST_STEPS:
                return self._program().matches(names)
            inside.append(any(_masked(name, places) in rows[places] for places in rows))
        return inside

    def _program(self) -> Program:
        rows = [row for rows in self._wanted.values() for row in rows.values()]
        branches = tuple(sequence([_SINGLE[c] for c in name]) for row in rows for name in row)
        return Program(("any", branches), is_set=True)

    def fullmatch(self, name: str) -> bool:
        """Whether the name is in the list. Raises TooManyStepsError."""
        return self.matches(Names([name]))[0]


def _masked(name: str, places: tuple[int, ...]) -> str:
    if not places:
        return name
    characters = list(name)
    for at in places:
        characters[at] = "?"
    return "".join(characters)


class _Walk:
    """Maps sets of positions through a regex, and counts the steps."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._steps = 0
        self._looks: dict[Node, int] = {}
        self._look_ids: dict[int, int] = {}
        """The same results by the node's id, because hashing a node takes long."""

    def go(self, node: Node, at: int, back: bool) -> int:
        """Return where a match of ``node`` that begins in ``at`` may end. ``back``: match
        backwards."""
        if not at:
            return 0
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooManyStepsError
        match node:
            case "char", characters:
                here = self._names.at(characters)
                return at >> 1 & here if back else (at & here) << 1
            case "all", parts:
                for part in reversed(parts) if back else parts:
                    at = self.go(part, at, back)
                return at
            case "any", branches:
                ends = 0
                for branch in branches:
                    ends |= self.go(branch, at, back)
                return ends
            case "times", part, least, most, _:
                return self._times(part, least, most, at, back)
            case "look", behind, negative, part:
                if id(node) not in self._look_ids:
                    if node not in self._looks:
                        ends = self.go(part, self._names.everywhere, not behind)
                        self._looks[node] = self._names.everywhere & ~ends if negative else ends
                    self._look_ids[id(node)] = self._looks[node]
                return at & self._look_ids[id(node)]
            case "place", which:
                return at & self._place(which)
        raise AssertionError(node)

    def _place(self, which: str) -> int:
        names = self._names
        if which in "^$":
            return names.starts if which == "^" else names.ends
        return names.boundaries if which == "b" else names.everywhere & ~names.boundaries

    def _times(self, part: Node, least: int, most: int | None, at: int, back: bool) -> int:
        for _ in range(least):
            before, at = at, self.go(part, at, back)
            if at in (0, before):
                break
        if most is None and part[0] == "char" and not back:
            here = self._names.at(part[1])  # a carry runs through each row of such characters
            return at | ((at & here) + here ^ here)
        ends = new = at
        count = least
        while new and (most is None or count < most):
            new = self.go(part, new, back) & ~ends
            ends |= new
            count += 1
        return ends


def sequence(parts: Sequence[Node]) -> Node:
    """Return a node for consecutive parts."""
    return parts[0] if len(parts) == 1 else ("all", tuple(parts))


_SINGLE: Final[dict[str, Node]] = {
    **{each: ("char", frozenset(each)) for each in ALPHABET},
    "?": ("char", frozenset(ALPHABET)),
}
"""A character in a list of names; ``?`` means any."""


def _shared(node: Node, depth: int) -> Node:
    """Return an equivalent regex in which alternatives share a beginning, so that it counts only
    once, and directly nested repetitions such as ``(x+)*`` are one."""
    match node:
        case "group", _, part:
            return _shared(part, depth)
        case "all", parts:
            return ("all", tuple(_shared(part, depth) for part in parts))
        case "times", part, least, most, _:
            shared = _shared(part, depth)
            match shared:
                case "times", inner, 0 | 1 as fewest, None, _ if most is None and least < 2:
                    return ("times", inner, min(fewest, least), None, "")
            return ("times", shared, least, most, "")
        case "look", behind, negative, part:
            return ("look", behind, negative, _shared(part, depth))
        case "any", branches:
            rows = [_shared(branch, depth) for branch in branches]
            return _tree([row[1] if row[0] == "all" else (row,) for row in rows], 0)
    return node


def _tree(rows: list[tuple[Node, ...]], depth: int) -> Node:
    groups: dict[Node | None, list[tuple[Node, ...]]] = {}
    for row in rows:
        groups.setdefault(row[0] if row else None, []).append(row)
    branches: list[Node] = []
    for group in groups.values():
        if len(group) == 1 or depth == _SHARED_DEPTH or not group[0]:
            branches += map(sequence, group)
            continue
        low, high = min(group, key=len), 1
        while high < len(low) and all(row[high] == low[high] for row in group):
            high += 1
        branches.append(sequence((*low[:high], _tree([row[high:] for row in group], depth + 1))))
    return branches[0] if len(branches) == 1 else ("any", tuple(branches))


def _ways(node: Node) -> int:
    """Return in how many ways a backtracking matcher may match a regex; at most MAX_WAYS + 1."""
    ways = 1
    match node:
        case "all", parts:
            for part in parts:
                ways = min(ways * _ways(part), MAX_WAYS + 1)
        case "any", branches:
            ways = sum(map(_ways, branches))
        case "look", _, _, part:
            ways = _ways(part)
        case "group" | "atomic", _, part:
            ways = _ways(part)
        case "times", part, least, most, _:
            each = _ways(part)
            most = _LONGEST + least if most is None else min(most, _LONGEST + least)
            ways = each ** min(least, 10)
            for _ in range(most - least):
                ways = min(ways * each + 1, MAX_WAYS + 1)
    return min(ways, MAX_WAYS + 1)


def _source(node: Node) -> str:
    """Return the regex in the dialect of ``re``."""
    match node:
        case "char", characters:
            return f"[{re.escape(''.join(sorted(characters)))}]" if characters else "(?!)"
        case "place", which:
            return {"^": r"\A", "$": r"\Z", "b": r"\b", "B": r"\B"}[which]
        case "all", parts:
            return "".join(map(_source, parts))
        case "any", branches:
            return f"(?:{'|'.join(map(_source, branches))})"
        case "times", part, least, most, mode:
            return f"(?:{_source(part)}){{{least},{'' if most is None else most}}}{mode}"
        case "look", behind, negative, part:
            return f"(?{'<' if behind else ''}{'!' if negative else '='}{_source(part)})"
        case "group", number, part:
            return f"({_source(part)})" if number else f"(?:{_source(part)})"
        case "atomic", _, part:
            return f"(?>{_source(part)})"
        case "reference", number, ignore_case:
            return f"(?i:\\{number})" if ignore_case else f"(?:\\{number})"
    raise AssertionError(node)
