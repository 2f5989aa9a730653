"""Which of many topic names a regex matches: all names at once, in a limited number of steps.

All members must agree which topics a filter matches, even if its author is hostile. A backtracking
matcher needs a time limit for that. A slow computer would then refuse a filter that a fast one
accepts. Here the names are put into one text. A set of positions in it is one large integer, and
each part of the regex maps the positions where it may begin to those where it may end. No regex
takes exponential time. Steps are counted, not seconds, and a step is for all names at once: the
verdict depends on the regex and the names only, not on their order. More topics make a step slower
and do not add steps, so a cluster cannot outgrow a filter.

Back references, atomic groups and possessive repetitions cannot be matched like this. The ``regex``
library matches a regex that has them, if there are at most ``MAX_WAYS`` ways to match it.

Pure; a `Names` and a `Program` belong to one thread at a time.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import regex

ALPHABET: Final = string.ascii_letters + string.digits + "._-"
"""The characters of topics' names."""
MAX_WAYS: Final = 1_000
"""Maximum number of ways in which a regex may match a name, if the ``regex`` library is used."""
MAX_CLASSES: Final = 200
"""Maximum number of different character classes in a regex."""
MAX_STEPS: Final = 50_000
"""Maximum number of steps of a regex. All names take part in each step."""
MAX_LIST_STEPS: Final = 200_000
"""Steps after which the names in a list are not looked up one by one any more."""
_LONGEST: Final = 255
_SHARED_DEPTH: Final = 8
"""How many times alternatives may part again after a beginning that they share."""

LISTS: Final = re.compile(r"(?:[A-Za-z0-9_.|-]|\\[.-]|\[\.\])*")
_LIST_PIECE: Final = re.compile(r"\\.|\[\.\]|.")
_ANY: Final = frozenset(ALPHABET)
_WORD: Final = frozenset(ALPHABET) - frozenset(".-")
_FLAGS: Final = re.compile(r"\(\?([ims]*)(?:-([ims]*))?([:)])")
_NAMED: Final = re.compile(r"\(\?<[A-Za-z0-9]+>")
_LOOKS: Final = {"(?=": (False, False), "(?!": (False, True)} | {
    "(?<=": (True, False),
    "(?<!": (True, True),
}
_PLACES: Final = {"^": "^", r"\A": "^", r"\G": "^", "$": "$", r"\Z": "$", r"\b": "b", r"\B": "B"}
_NEVER: Final = "(?!)"

_Node = tuple[Any, ...]
"""Part of a regex: ``("char", set)``, ``("all", parts)``, ``("any", branches)``,
``("look", behind, negative, part)``, ``("times", part, least, most)`` or ``("place", which)``."""


class TooManyStepsError(Exception):
    """A regex is too much work for these names."""


class TooManyWaysError(ValueError):
    """A regex is not a set of positions, and could take long to match."""


class Names:
    """Legal names of topics, as one text: bit ``i`` of a set represents position ``i`` in it."""

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
        """The positions of these characters."""
        if (found := self._sets.get(characters)) is None:
            table = {ord(one): "1" if one in characters else "0" for one in ALPHABET + "\n"}
            found = int(self._backwards.translate(table) or "0", 2)
            self._sets[characters] = found
        return found

    def ending_at(self, ends: int) -> list[bool]:
        """For each name, whether its end is in the set."""
        bits = f"{ends & self.ends:0{self.size}b}"[::-1] if self.size else ""
        found, end = [], -1
        for name in self.names:
            end += len(name) + 1
            found.append(bits[end] == "1")
        return found


class Program:
    """A regex that was translated to pieces of the ``regex`` library's dialect.

    Raises ``regex.error`` for a piece that is invalid, ValueError for an unmatched parenthesis, and
    TooManyWaysError.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        parser = _Parser()
        for piece in pieces:
            parser.take(piece)
        self._node = parser.end()
        self._library: Any = None
        if parser.is_set:
            self._node = _shared(self._node, 0)
        elif _ways(self._node) > MAX_WAYS:
            raise TooManyWaysError(
                "has back references, atomic groups or possessive repetitions, and more than "
                f"{MAX_WAYS} ways to match"
            )
        else:
            self._library = regex.compile("".join(pieces), regex.V1 | regex.ASCII)

    def matches(self, names: Names) -> list[bool]:
        """For each name, whether the regex matches all of it. Raises TooManyStepsError."""
        if self._library is not None:
            return [self._library.fullmatch(name) is not None for name in names.names]
        return names.ending_at(_Walk(names).go(self._node, names.starts, False))

    def fullmatch(self, name: str) -> bool:
        """Whether the regex matches the whole of one name. Raises TooManyStepsError."""
        return self.matches(Names([name]))[0]


class NameList:
    """A regex that lists names with ``|``, also with any characters (``.``) in them.

    ``LISTS`` matches the regexes that it accepts.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._wanted: dict[int, dict[tuple[int, ...], set[str]]] = {}
        """By length and places of any characters, which are ``?`` here."""
        plain = pattern.replace("[.]", r"\.").replace(r"\-", "-")
        plain = "\n".join(part.replace(".", "?") for part in plain.split(r"\."))
        for name in dict.fromkeys(plain.replace("\n", ".").split("|")):
            places = tuple(at for at, one in enumerate(name) if one == "?")
            self._wanted.setdefault(len(name), {}).setdefault(places, set()).add(name)

    def matches(self, names: Names) -> list[bool]:
        """For each name, whether it is in the list. Raises TooManyStepsError."""
        steps, found = 0, []
        for name in names.names:
            rows = self._wanted.get(len(name), {})
            steps += sum(map(len, rows), len(rows))
            if steps > MAX_LIST_STEPS:
                return Program(_LIST_PIECE.findall(self._pattern)).matches(names)
            found.append(any(_masked(name, places) in rows[places] for places in rows))
        return found

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
        self._looks: dict[int, int] = {}

    def go(self, node: _Node, at: int, back: bool) -> int:
        """Where a match of ``node`` may end that begins in ``at``; ``back``: the other way."""
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
                found = 0
                for branch in branches:
                    found |= self.go(branch, at, back)
                return found
            case "times", part, least, most:
                return self._times(part, least, most, at, back)
            case "look", behind, negative, part:
                if id(node) not in self._looks:
                    seen = self.go(part, self._names.everywhere, not behind)
                    self._looks[id(node)] = self._names.everywhere & ~seen if negative else seen
                return at & self._looks[id(node)]
            case "place", which:
                return at & self._place(which)
        raise AssertionError(node)

    def _place(self, which: str) -> int:
        names = self._names
        if which in "^$":
            return names.starts if which == "^" else names.ends
        return names.boundaries if which == "b" else names.everywhere & ~names.boundaries

    def _times(self, part: _Node, least: int, most: int | None, at: int, back: bool) -> int:
        for _ in range(least):
            before, at = at, self.go(part, at, back)
            if at in (0, before):
                break
        if most is None and part[0] == "char" and not back:
            here = self._names.at(part[1])  # a carry runs through each row of such characters
            return at | ((at & here) + here ^ here)
        found = new = at
        count = least
        while new and (most is None or count < most):
            new = self.go(part, new, back) & ~found
            found |= new
            count += 1
        return found


class _Open:
    """A group that is not closed yet."""

    def __init__(self, kind: str, ignore_case: bool) -> None:
        self.kind = kind
        self.ignore_case = ignore_case
        self.branches: list[list[_Node]] = [[]]

    def node(self) -> _Node:
        branches = [_all(branch) for branch in self.branches]
        return branches[0] if len(branches) == 1 else ("any", tuple(branches))


class _Parser:
    """Builds a node from pieces."""

    def __init__(self) -> None:
        self._open = [_Open("", False)]
        self._pieces: set[str] = set()
        self.is_set = True

    def take(self, piece: str) -> None:
        """Add one piece."""
        group = self._open[-1]
        parts = group.branches[-1]
        if len(piece) == 1 and piece in _SINGLE and not group.ignore_case:
            parts.append(_SINGLE[piece])
        elif piece == "|":
            group.branches.append([])
        elif piece == ")":
            self._close()
        elif piece == _NEVER:
            parts.append(("char", frozenset()))
        elif piece in _PLACES:
            parts.append(("place", _PLACES[piece]))
        elif piece in ("(", "(?:", "(?>") or piece in _LOOKS or _NAMED.fullmatch(piece):
            self.is_set = self.is_set and piece != "(?>"
            self._open.append(_Open(piece, group.ignore_case))
        elif found := _FLAGS.fullmatch(piece):
            ignore = "i" in found[1] or (group.ignore_case and "i" not in (found[2] or ""))
            if found[3] == ":":
                self._open.append(_Open("(?:", ignore))
            else:
                group.ignore_case = ignore
        elif piece[:1] in tuple("*+?{"):
            if len(piece) > 1 and piece[-1] == "+":
                self.is_set = False
            if parts:
                parts.append(_repeated(parts.pop(), piece))
        elif piece.startswith(("(?P=", "(?:\\")) and not piece.startswith(r"(?:\r"):
            self.is_set = False
        elif piece and not piece.startswith("(?:)"):
            self._pieces.add(piece)
            if len(self._pieces) > MAX_CLASSES:
                raise ValueError(f"it has more than {MAX_CLASSES} different character classes")
            parts.append(("char", _matched(piece, group.ignore_case)))

    def end(self) -> _Node:
        """Return the parsed regex. Raises ValueError for an unmatched parenthesis."""
        if len(self._open) > 1:
            raise ValueError("a group has no ')'")
        return self._open[0].node()

    def _close(self) -> None:
        group = self._open.pop()
        node = group.node()
        if group.kind in _LOOKS:
            node = ("look", *_LOOKS[group.kind], node)
        self._open[-1].branches[-1].append(node)


def _all(parts: Sequence[_Node]) -> _Node:
    return parts[0] if len(parts) == 1 else ("all", tuple(parts))


def _repeated(node: _Node, quantifier: str) -> _Node:
    counts = quantifier.rstrip("?+") or quantifier[0]
    if counts[0] == "{":
        low, comma, high = counts[1:-1].partition(",")
        return ("times", node, int(low), int(high) if high else None if comma else int(low))
    return ("times", node, int(counts == "+"), 1 if counts == "?" else None)


@lru_cache(maxsize=1024)
def _matched(piece: str, ignore_case: bool) -> frozenset[str]:
    """The characters that a piece matches. Raises regex.error."""
    if len(piece) == 2 and not piece[1].isalnum():  # an escaped character
        return frozenset(piece[1]) & _ANY
    if piece.startswith("\\U"):  # not ASCII
        return frozenset()
    flags = regex.V1 | regex.ASCII | (regex.IGNORECASE if ignore_case else 0)
    program = regex.compile(piece, flags)
    return frozenset(one for one in ALPHABET if program.fullmatch(one))


_SINGLE: Final[dict[str, _Node]] = {
    one: ("char", _ANY if one == "." else frozenset(one)) for one in ALPHABET
}


def _shared(node: _Node, depth: int) -> _Node:
    """The same regex, in which alternatives with the same beginning share it: it counts once."""
    match node:
        case "all", parts:
            return ("all", tuple(_shared(part, depth) for part in parts))
        case "times", part, least, most:
            return ("times", _shared(part, depth), least, most)
        case "look", behind, negative, part:
            return ("look", behind, negative, _shared(part, depth))
        case "any", branches:
            rows = [branch[1] if branch[0] == "all" else (branch,) for branch in branches]
            return _tree([tuple(_shared(part, depth) for part in row) for row in rows], 0)
    return node


def _tree(rows: list[tuple[_Node, ...]], depth: int) -> _Node:
    groups: dict[_Node | None, list[tuple[_Node, ...]]] = {}
    for row in rows:
        groups.setdefault(row[0] if row else None, []).append(row)
    branches: list[_Node] = []
    for group in groups.values():
        if len(group) == 1 or depth == _SHARED_DEPTH or not group[0]:
            branches += map(_all, group)
            continue
        low, high = min(group, key=len), 1
        while high < len(low) and all(row[high] == low[high] for row in group):
            high += 1
        branches.append(_all((*low[:high], _tree([row[high:] for row in group], depth + 1))))
    return branches[0] if len(branches) == 1 else ("any", tuple(branches))


def _ways(node: _Node) -> int:
    """In how many ways a backtracking matcher may go through a regex; at most MAX_WAYS + 1."""
    ways = 1
    match node:
        case "all", parts:
            for part in parts:
                ways = min(ways * _ways(part), MAX_WAYS + 1)
        case "any", branches:
            ways = sum(map(_ways, branches))
        case "look", _, _, part:
            ways = _ways(part)
        case "times", part, least, most:
            each = _ways(part)
            most = _LONGEST + least if most is None else min(most, _LONGEST + least)
            ways = each ** min(least, 10)
            for _ in range(most - least):
                ways = min(ways * each + 1, MAX_WAYS + 1)
    return min(ways, MAX_WAYS + 1)
