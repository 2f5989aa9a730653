r"""Parses a Java regex so that it matches topic names as ``java.util.regex`` does.

Members of a group must agree on the topics that a filter matches, and JVM members use Java's
dialect. The input is always a topic name (ASCII letters, digits, ``.``, ``_``, ``-``). So a
character, an escape or a class is represented by the set of those 65 characters that it matches.
The result is a tree of nodes that `name_sets` matches.

The size of a pattern is limited: patterns with more than 8,192 characters, with groups or classes
that are nested deeper than 100, or with more than 200 different character classes are refused
although Java accepts them.

Known differences: Java also accepts comments mode ``(?x)``, ``\N{..}``, ``[a&&]``, some
look-behinds with unlimited repetitions, and the names of scripts and blocks other than Latin and
Basic Latin. This parser refuses them.

Pure functions; any thread may call them.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NoReturn

from zkconsumer.core.common.name_sets import (
    ALPHABET,
    LISTS,
    NameList,
    Node,
    Program,
    sequence,
)

MAX_LENGTH: Final = 8_192
"""Maximum length of a pattern, unless it is only a list of names."""
MAX_NESTING: Final = 100
"""Maximum nesting of groups and classes. It is fixed, so that all members refuse the same."""
MAX_CLASSES: Final = 200
"""Maximum number of different character classes in a regex."""
MAX_REPETITIONS: Final = 2**31 - 1
"""Maximum count of a repetition, as in Java."""

_ANY: Final = frozenset(ALPHABET)
_EMPTY: Final[Node] = ("all", ())
_NEVER: Final[Node] = ("char", frozenset())
_LOOKS: Final = {
    "=": (False, False),
    "!": (False, True),
    "<=": (True, False),
    "<!": (True, True),
}
"""Group prefix -> (behind, negative)."""
_PLACES: Final = {"A": "^", "G": "^", "Z": "$", "z": "$", "b": "b", "B": "B"}
_CONTROLS: Final = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_FLAGS: Final = "imsduU"  # of these, only i makes a difference for topics' names

_CharacterSet = frozenset[str]


def _those(condition: Callable[[str], bool]) -> _CharacterSet:
    return frozenset(filter(condition, ALPHABET))


_LOWER, _UPPER, _DIGIT = _those(str.islower), _those(str.isupper), _those(str.isdigit)
_LETTER: Final = _LOWER | _UPPER
_SYMBOLS: Final = _ANY - _LETTER - _DIGIT
_WORD: Final = _LETTER | _DIGIT | {"_"}
_NONE: Final[_CharacterSet] = frozenset()
_ESCAPES: Final = {
    **{"d": _DIGIT, "D": _ANY - _DIGIT, "w": _WORD, "W": _ANY - _WORD, "s": _NONE, "S": _ANY},
    **{"h": _NONE, "H": _ANY, "v": _NONE, "V": _ANY},
}
"""Letter after a backslash -> the characters it matches, in and outside of classes."""
_CASES: Final = {"Lower", "Upper", "Lu", "Ll", "Lt", "LOWERCASE", "UPPERCASE", "TITLECASE"} | {
    f"java{word}Case" for word in ("Lower", "Upper", "Title")
}
"""Properties that match letters of any case while case is ignored."""


def _named(*rows: tuple[str, _CharacterSet]) -> dict[str, _CharacterSet]:
    return {name: characters for names, characters in rows for name in names.split()}


def _category(name: str) -> _CharacterSet:
    return frozenset(each for each in ALPHABET if unicodedata.category(each).startswith(name))


_CATEGORIES: Final = (
    "C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps "
    "S Sc Sk Sm So Z Zl Zp Zs"
)
_HEX: Final = frozenset(string.hexdigits)
_PROPERTIES: Final = {
    **{name: _category(name) for name in _CATEGORIES.split()},
    **_named(
        ("ASCII Graph Print L1 all javaDefined", _ANY),
        ("Alpha LC javaAlphabetic javaLetter javaUnicodeIdentifierStart", _LETTER),
        ("Alnum LD javaLetterOrDigit", _LETTER | _DIGIT),
        ("Lower javaLowerCase", _LOWER),
        ("Upper javaUpperCase", _UPPER),
        ("Digit javaDigit", _DIGIT),
        ("XDigit", _HEX),
        ("Punct", _SYMBOLS),
        ("javaJavaIdentifierStart", _LETTER | {"_"}),
        ("javaJavaIdentifierPart javaUnicodeIdentifierPart", _WORD),
        ("Blank Cntrl Space javaTitleCase javaWhitespace javaSpaceChar javaIdeographic", _NONE),
        ("javaISOControl javaMirrored javaIdentifierIgnorable", _NONE),
    ),
}
r"""Name in ``\p{..}`` -> the characters it matches."""
_BINARY: Final = _named(
    ("ASSIGNED GRAPH PRINT", _ANY),
    ("ALPHABETIC LETTER", _LETTER),
    ("ALNUM", _LETTER | _DIGIT),
    ("LOWERCASE", _LOWER),
    ("UPPERCASE", _UPPER),
    ("DIGIT", _DIGIT),
    ("HEX_DIGIT HEXDIGIT", _HEX),
    ("WORD", _WORD),
    ("PUNCTUATION", _SYMBOLS),
    ("TITLECASE IDEOGRAPHIC WHITE_SPACE WHITESPACE CONTROL BLANK JOIN_CONTROL JOINCONTROL", _NONE),
    ("NONCHARACTER_CODE_POINT NONCHARACTERCODEPOINT", _NONE),
)
r"""Name in ``\p{Is..}``, in any case, -> the characters it matches."""
_SCRIPTS: Final = {"LATIN": _LETTER, "LATN": _LETTER, "COMMON": _ANY - _LETTER}
_BLOCKS: Final = {"BASICLATIN": _ANY, "BASIC_LATIN": _ANY, "BASIC LATIN": _ANY}


class InvalidRegexError(ValueError):
    """The text is not a regex that Java would compile. The message gives the position of the
    error."""


@lru_cache(maxsize=16)
def compile_java(pattern: str) -> Program | NameList:
    """Return the compiled pattern. Raises InvalidRegexError."""
    if LISTS.fullmatch(pattern):
        return NameList(pattern)
    if len(pattern) > MAX_LENGTH:
        raise InvalidRegexError(f"it has more than {MAX_LENGTH} characters")
    parser = _Parser(pattern)
    try:
        return Program(parser.parse(), parser.is_set)
    except InvalidRegexError:
        raise
    except ValueError as error:
        raise InvalidRegexError(str(error)) from None


class _Parser:
    """A single pass over a Java pattern. ``at`` is the index of the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.groups = 0  # capturing groups opened so far
        self.names: dict[str, int] = {}  # of capturing groups
        self.depth = 0
        self.ignore_case = False
        self.classes: set[_CharacterSet] = set()
        self.repeated: set[int] = set()  # groups of such references that are repeated
        self.closed: set[int] = set()  # capturing groups that were read whole
        self.early: list[tuple[int, int]] = []  # index and group of references before its end
        self.is_set = True
        """False if a back reference, an atomic group or a possessive repetition was found."""

    def parse(self) -> Node:
        """Return the pattern's tree. Raises InvalidRegexError."""
        node = self._alternatives()
        if self.at < len(self.pattern):
            self._fail("unmatched ')'")
        if any(number <= self.groups for number in self.repeated):
            self._fail("a repetition has a reference to a group that is not complete")
        return node

    def _alternatives(self) -> Node:
        """Read up to the ``)`` of the group, or the end of the pattern."""
        branches: list[list[Node]] = [[]]
        repeatable = False  # whether a quantifier may come next
        start = self.at  # index of what it would repeat
        while (character := self.pattern[self.at : self.at + 1]) not in ("", ")"):
            parts = branches[-1]
            if character == "|":
                self.at += 1
                branches.append([])
                repeatable = False
                continue
            if character in "*+?{":
                if not repeatable and character != "{":
                    self._fail(f"nothing to repeat before {character!r}")
                parts.append(self._repeated(parts.pop() if repeatable else _EMPTY, start))
                repeatable = False
                continue
            start = self.at
            if self._take("\\Q"):
                quoted = self._quoted()
                parts += [self._characters(self._folded(frozenset(each))) for each in quoted]
                repeatable = repeatable or bool(quoted)
            elif character == "(":
                groups = self._group()
                parts += groups
                repeatable = bool(groups)
            else:
                parts.append(self._atom(character))
                repeatable = True
        nodes = [sequence(parts) for parts in branches]
        return nodes[0] if len(nodes) == 1 else ("any", tuple(nodes))

    def _atom(self, character: str) -> Node:
        """Read a class, an escape, a place or a character."""
        if character == "[":
            return self._characters(self._class(1))
        if character == "\\":
            return self._escape()
        self.at += 1
        if character in "^$":
            return ("place", character)
        return self._characters(_ANY if character == "." else self._folded(frozenset(character)))

    def _characters(self, characters: _CharacterSet) -> Node:
        if len(characters) > 1:
            self.classes.add(characters)
            if len(self.classes) > MAX_CLASSES:
                self._fail(f"it has more than {MAX_CLASSES} different character classes")
        return ("char", characters & _ANY)

    def _folded(self, characters: _CharacterSet) -> _CharacterSet:
        if not self.ignore_case:
            return characters
        return characters | {each.swapcase() for each in characters if each.isascii()}

    def _take(self, text: str) -> bool:
        taken = self.pattern.startswith(text, self.at)
        if taken:
            self.at += len(text)
        return taken

    def _next(self, what: str) -> str:
        character = self._peek(what)
        self.at += 1
        return character

    def _peek(self, what: str) -> str:
        if self.at >= len(self.pattern):
            self._fail(f"ends inside {what}")
        return self.pattern[self.at]

    def _fail(self, reason: str) -> NoReturn:
        shown = "".join(one if " " <= one <= "~" else ascii(one)[1:-1] for one in reason)
        raise InvalidRegexError(f"{shown} at position {self.at}")

    def _repeated(self, node: Node, start: int) -> Node:
        symbol = self._next("a repetition")
        least, most = (1 if symbol == "+" else 0), (1 if symbol == "?" else None)
        if symbol == "{":
            counts, end = self._until("}")
            low, comma, high = counts.partition(",")
            if not end or not _is_count(low) or (high and not _is_count(high)):
                self._fail("'{' does not start a counted repetition")
            least = int(low)
            most = int(high) if high else None if comma else least
            if most is not None and most < least:
                self._fail("a repetition ends below its start")
        if most not in (0, 1):
            self.repeated |= {number for index, number in self.early if index > start}
        mode = next((mode for mode in "?+" if self._take(mode)), "")
        self.is_set = self.is_set and mode != "+"
        return ("times", node, least, most, mode)

    def _until(self, end: str) -> tuple[str, bool]:
        """Read up to a character and skip it. Return the text before, and whether it was found."""
        text, closed, _ = self.pattern[self.at :].partition(end)
        self.at += len(text) + len(closed)
        return text, bool(closed)

    def _group(self) -> list[Node]:
        """Read a group. Flags for the rest of the enclosing group produce no node."""
        self.at += 1
        before = self.ignore_case
        kind, number = "", 0
        if not self._take("?"):
            kind, number = "group", self._new_group()
        elif prefix := next((each for each in (":", *_LOOKS, ">") if self._take(each)), ""):
            kind = prefix
        elif self._take("<"):
            name, closed = self._until(">")
            if not closed or not (name.isascii() and name.isalnum() and name[0].isalpha()):
                self._fail("a group's name is missing or not letters and digits")
            if name in self.names:
                self._fail(f"there are two groups {name!r}")
            kind, number = "group", self._new_group()
            self.names[name] = number
        elif self._flags() == ")":
            return []
        if self.depth == MAX_NESTING:
            self._fail(f"groups are nested deeper than {MAX_NESTING}")
        self.depth += 1
        part = self._alternatives()
        self.depth -= 1
        self.closed.add(number)
        if not self._take(")"):
            self._fail("a group has no ')'")
        self.ignore_case = before
        if kind in _LOOKS:
            behind, negative = _LOOKS[kind]
            if behind and not _is_bounded(part):
                self._fail("a look-behind has no maximum length")
            return [("look", behind, negative, part)]
        if kind == ">":
            self.is_set = False
            return [("atomic", 0, part)]
        return [("group", number, part)]  # number 0: does not capture

    def _new_group(self) -> int:
        self.groups += 1
        return self.groups

    def _flags(self) -> str:
        """Read flags, which apply to the rest of the group. Return the character after them."""
        on = True
        while (character := self._next("a group")) not in ":)":
            if character == "-" and on:
                on = False
            elif character in _FLAGS:
                self.ignore_case = on if character == "i" else self.ignore_case
            else:
                self._fail(f"unknown group or flag (?{character}")
        return character

    def _reference(self, digit: str) -> Node:
        """Read a reference. Further digits belong to it as long as such a group exists."""
        number = int(digit)
        for digit in self.pattern[self.at :]:
            if digit not in string.digits or number * 10 + int(digit) > self.groups:
                break
            number = number * 10 + int(digit)
            self.at += 1
        self.is_set = False
        return self._reference_to(number)

    def _reference_to(self, number: int) -> Node:
        """Return a reference's node. Before the end of its group it never matches, unless
        repeated."""
        if number not in self.closed:
            self.early.append((self.at, number))
            return _NEVER
        return ("reference", number, self.ignore_case)

    def _escape(self) -> Node:
        """Read an escape outside classes."""
        letter = self.pattern[self.at + 1 : self.at + 2]
        if letter in _PLACES:
            self.at += 2
            return ("place", _PLACES[letter])
        if letter and letter in "123456789":
            self.at += 2
            return self._reference(letter)
        if self._take("\\k<"):
            name, closed = self._until(">")
            if not closed or name not in self.names:
                self._fail("a reference has no name of a group before it")
            self.is_set = False
            return self._reference_to(self.names[name])
        if self._take("\\R"):
            return _NEVER
        if self._take("\\X"):
            return ("char", _ANY)
        return self._characters(self._class_escape()[0])

    def _class_escape(self) -> tuple[_CharacterSet, str]:
        """Read an escape that stands for characters. Return their set, and the character if the
        escape stands for exactly one."""
        self.at += 1
        letter = self._next("an escape")
        if letter in "pP":
            characters = self._property()
            return (_ANY - characters if letter == "P" else characters), ""
        if letter in _ESCAPES:
            return _ESCAPES[letter], ""
        character = chr(self._code_point(letter))
        return self._folded(frozenset(character)), character

    def _quoted(self) -> str:
        r"""Read the text after ``\Q``. ``at`` is the position after it."""
        text, _, _ = self.pattern[self.at :].partition("\\E")
        self.at = min(self.at + len(text) + 2, len(self.pattern))
        return text

    def _code_point(self, letter: str) -> int:
        """Return the character of an escape. ``at`` is the position after its letter."""
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c":
            return ord(self._next("a control character")) ^ 64
        if letter == "0":
            return self._digits(
                "01234567", 1, 3 if self.pattern[self.at : self.at + 1] in tuple("0123") else 2, 8
            )
        if letter == "u":
            return self._digits(string.hexdigits, 4, 4, 16)
        if letter == "x":
            if not self._take("{"):
                return self._digits(string.hexdigits, 2, 2, 16)
            value = self._digits(string.hexdigits, 1, 8, 16)
            if value > 0x10FFFF or not self._take("}"):
                self._fail("a hexadecimal escape has no end or is too large")
            return value
        if letter.isascii() and letter.isalnum():
            self._fail(f"\\{letter} means nothing")
        return ord(letter)

    def _digits(self, allowed: str, least: int, most: int, base: int) -> int:
        text = self.pattern[self.at : self.at + most]
        digits = text[: len(text) - len(text.lstrip(allowed))]
        self.at += len(digits)
        if len(digits) < least:
            self._fail("an escape has too few digits")
        return int(digits, base)

    def _property(self) -> _CharacterSet:
        name = self._next("a property")
        if name == "{":
            name, closed = self._until("}")
            if not closed:
                self._fail("a property has no end")
        key, equals, value = name.partition("=")
        if equals:
            tables = {"sc": _SCRIPTS, "script": _SCRIPTS, "blk": _BLOCKS, "block": _BLOCKS}
            if key.lower() in ("gc", "general_category"):
                characters = _PROPERTIES.get(value)
            else:
                characters = tables.get(key.lower(), {}).get(value.upper())
        elif name.startswith("In"):
            characters = _BLOCKS.get(name[2:].upper())
        elif name.startswith("Is"):
            value = name[2:]
            characters = _BINARY.get(value.upper(), _PROPERTIES.get(value))
            if characters is None:
                characters = _SCRIPTS.get(value.upper())
        else:
            value, characters = name, _PROPERTIES.get(name)
        if characters is None:
            self._fail(f"unknown property {name!r}")
        ignored = self.ignore_case and (value in _CASES or value.upper() in _CASES)
        return _LETTER if ignored else characters

    def _class(self, depth: int) -> _CharacterSet:
        """Read a class from its ``[`` to its ``]``."""
        if depth > MAX_NESTING:
            self._fail(f"character classes are nested deeper than {MAX_NESTING}")
        self.at += 1
        negative = self._take("^")
        characters = self._class_items(depth)
        self.at += 1
        return _ANY - characters if negative else characters

    def _class_items(self, depth: int) -> _CharacterSet:
        """Read items up to the ``]`` of the class, and return their union.

        ``&&`` intersects the items before it with a class, or with all items after it. A ``]``
        before any item is a literal.
        """
        characters, empty = _NONE, True
        while (character := self._peek("a character class")) != "]" or empty:
            if character == "[":
                characters |= self._class(depth + 1)
            elif not self._take("&&"):
                characters |= self._class_item()
            else:
                right: _CharacterSet | None = None
                while (character := self._peek("a character class")) not in "]&":
                    item = self._class(depth + 1) if character == "[" else self._class_items(depth)
                    right = item if right is None else right | item
                if right is None:
                    self._fail("'&&' needs something after it")
                characters = right if empty else characters & right
            empty = False
        return characters

    def _class_item(self) -> _CharacterSet:
        """Return one escape, literal or range inside a class."""
        characters, first = self._class_literal()
        if (
            not first
            or not self.pattern.startswith("-", self.at)
            or self.pattern[self.at + 1 : self.at + 2] in ("", "]", "[")
        ):
            return characters
        self.at += 1
        _, last = self._class_literal()
        if not last or last < first:
            self._fail("a range has no end")
        return self._folded(frozenset(each for each in ALPHABET if first <= each <= last))

    def _class_literal(self) -> tuple[_CharacterSet, str]:
        """Return the next item, and the character if it is one, which may start a range."""
        if self._take("\\Q"):
            quoted = self._quoted()
            return self._folded(frozenset(quoted)), ""
        if self.pattern[self.at] == "\\":
            return self._class_escape()
        self.at += 1
        character = self.pattern[self.at - 1]
        return self._folded(frozenset(character)), character


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_REPETITIONS


def _is_bounded(node: Node) -> bool:
    """Return whether the length of a match is limited."""
    match node:
        case "all" | "any", parts:
            return all(map(_is_bounded, parts))
        case "times", part, _, most, _:
            return most is not None and _is_bounded(part)
        case "group" | "atomic", _, part:
            return _is_bounded(part)
        case "reference", _, _:
            return False
    return True
