r"""Compile a Java regex so that it matches topic names as ``java.util.regex`` does.

Members of a group must agree which topics a filter matches, and JVM members use Java's dialect. A
subject is always a topic's name (ASCII letters, digits, ``.``, ``_``, ``-``), which settles most
differences; the rest is translated here to pieces in the dialect of the ``regex`` library, which
`name_sets` matches, or refused:

- ``\Q..\E``, ``\x{..}``, ``\uXXXX``, ``\0oo``, ``\cX``, ``\e``, ``\h``, ``\v``, ``\z``, ``\R`` are
  rewritten; character classes with unions, ``&&`` and POSIX-like ``\p`` names too;
- syntax that Java refuses, but ``regex`` accepts with another meaning, is refused: ``{`` without a
  counted repetition, ``(?P<..>)``, ``(?#..)``, ``(?R)``, fuzzy matching, letters after a backslash
  that have no meaning in Java.

A pattern's size is limited too. One that expands to more than 20,000 parts beyond its length, nests
deeper than 100 groups, or has more than 8,192 characters is refused although Java takes it.

Known to differ: Java also refuses look-behinds without an upper bound, and takes comments mode
``(?x)`` and ``\N{..}``, which are refused here.

Pure functions; any thread may call them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import regex

from zkconsumer.core.common.name_sets import LISTS, NameList, Program

MAX_LENGTH: Final = 8_192
"""Maximum length of a pattern, unless it only lists names."""
MAX_COPIES: Final = 20_000
"""Maximum number of parts that repetitions may add when they are expanded."""
MAX_NESTING: Final = 100
"""Deepest nesting of groups, and of classes; fixed, so that all members refuse the same."""

_DIGITS: Final = tuple("123456789")
_SAME_ESCAPES: Final = "dDwWsSbBAGZ"
_REWRITTEN: Final = {"h": r"[\t ]", "H": r"[^\t ]", "v": r"[\n-\r]", "V": r"[^\n-\r]"}
_OUTSIDE_CLASS: Final = {**_REWRITTEN, "z": r"\Z", "R": r"(?:\r\n|[\n-\r])", "X": r"(?s:.)"}
_CONTROLS: Final = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_FLAGS: Final = {"i": "i", "m": "m", "s": "s", "d": "", "u": "", "U": ""}
_POSIX: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "A-Za-z",
    "Digit": "0-9",
    "Alnum": "A-Za-z0-9",
    "Punct": r"!-/\:-@\[-`\{-\~",
    "Graph": r"!-\~",
    "Print": r"\ -\~",
    "Blank": r"\ \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9A-Fa-f",
    "Space": r"\ \t-\r",
    "javaLowerCase": r"\p{Lowercase}",
    "javaUpperCase": r"\p{Uppercase}",
    "javaLetter": r"\p{L}",
    "javaDigit": r"\p{Nd}",
    "javaLetterOrDigit": r"\p{L}\p{Nd}",
    "javaAlphabetic": r"\p{Alphabetic}",
}
_IS_NAMES: Final = {"Letter": "L", "Digit": "Nd", "Punctuation": "P", "Control": "Cc"}


class InvalidRegexError(ValueError):
    """The text is not a regex that Java would compile. The message has the position."""


@lru_cache(maxsize=16)
def compile_java(pattern: str) -> Program | NameList:
    """Return the compiled pattern. Raises InvalidRegexError."""
    try:
        if LISTS.fullmatch(pattern):
            return NameList(pattern)
        if len(pattern) > MAX_LENGTH:
            raise InvalidRegexError(f"it has more than {MAX_LENGTH} characters")
        return Program(_Translator(pattern).translate())
    except InvalidRegexError:
        raise
    except (regex.error, ValueError, OverflowError) as error:
        raise InvalidRegexError(str(error)) from None


class _Translator:
    """One pass over a Java pattern. ``at`` is the index of the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.groups = 0  # capturing groups opened so far
        self.sizes = [0]  # parts of each open group when unfolded, outermost first
        self.size = 0  # parts of what a quantifier would repeat
        self.references: list[tuple[int, int]] = []  # index in the output, number of the group

    def translate(self) -> list[str]:
        """The pattern in pieces of the ``regex`` library's dialect."""
        out: list[str] = []
        repeatable = False  # whether a quantifier may come next
        while self.at < len(self.pattern):
            start, character = self.at, self.pattern[self.at]
            if character in "*+?{":
                if not repeatable and character != "{":
                    self._fail(f"nothing to repeat before {character!r}")
                out.append(self._quantifier() if repeatable else f"(?:){self._quantifier()}")
                repeatable = False
                continue
            repeatable = character not in "(|"
            if character == "(":
                out.append(self._open_group())
                continue
            if character == ")":
                self.at += 1
                if len(self.sizes) == 1:
                    self._fail("unmatched ')'")
                out.append(")")
                self._count(self.sizes.pop() + 1)
                continue
            if self.pattern[start + 1 : start + 2] in _DIGITS and character == "\\":
                self.references.append((len(out), self._reference()))
                out.append("")
            elif self._take("\\Q"):
                out += map(_literal, map(ord, self._quoted()))
            elif character == "\\":
                out.append(self._escape(in_class=False))
            elif character == "[":
                out.append(self._class(1))
            else:
                self.at += 1
                out.append(character if character in "|.^$" else _literal(ord(character)))
            self._count(self.at - start)
        for index, number in self.references:  # no such group: compiles and never matches
            out[index] = f"(?:\\{number})" if number <= self.groups else "(?!)"
        return out

    def _count(self, size: int) -> None:
        """Record the size of the last part; a quantifier may repeat it."""
        self.size = size
        self.sizes[-1] += size

    def _take(self, text: str) -> bool:
        taken = self.pattern.startswith(text, self.at)
        if taken:
            self.at += len(text)
        return taken

    def _next(self, what: str) -> str:
        if self.at >= len(self.pattern):
            self._fail(f"ends inside {what}")
        self.at += 1
        return self.pattern[self.at - 1]

    def _fail(self, reason: str) -> None:
        raise InvalidRegexError(f"{reason} at position {self.at}")

    def _quantifier(self) -> str:
        symbol = self._next("a repetition")
        copies = 1 if symbol == "+" else 0
        if symbol == "{":
            end = self.pattern.find("}", self.at)
            counts = self.pattern[self.at : end] if end >= 0 else ""
            low, comma, high = counts.partition(",")
            if not _is_number(low) or (high and not _is_number(high)):
                self._fail("'{' does not start a counted repetition")
            symbol = f"{{{low}{comma}{high}}}"
            copies = int(low)
            self.at = end + 1
        self._count(self.size * copies)
        if self.sizes[-1] > MAX_COPIES + len(self.pattern):
            self._fail(f"its repetitions unfold to more than {MAX_COPIES} parts")
        for mode in "?+":
            if self._take(mode):
                return symbol + mode
        return symbol

    def _open_group(self) -> str:
        self.at += 1
        if len(self.sizes) > MAX_NESTING:
            self._fail(f"groups are nested deeper than {MAX_NESTING}")
        self.sizes.append(0)
        if not self._take("?"):
            self.groups += 1
            return "("
        for kind in (":", "=", "!", ">", "<=", "<!"):
            if self._take(kind):
                return f"(?{kind}"
        if self._take("<"):
            end = self.pattern.find(">", self.at)
            name = self.pattern[self.at : end] if end >= 0 else ""
            if not (name.isascii() and name.isalnum() and name[0].isalpha()):
                self._fail("a group's name is missing or not letters and digits")
            self.at = end + 1
            self.groups += 1
            return f"(?<{name}>"
        flags = ""
        while (character := self._next("a group")) not in ":)":
            if character == "-" and "-" not in flags:
                flags += "-"
            elif character in _FLAGS:
                flags += _FLAGS[character]
            else:
                self._fail(f"unknown group or flag (?{character}")
        flags = flags.removesuffix("-")
        if character == ":":
            return f"(?{flags}:"
        self.sizes.pop()
        return f"(?{flags})" if flags else ""

    def _reference(self) -> int:
        """Read a reference; further digits belong to it as long as there is such a group."""
        self.at += 2
        number = int(self.pattern[self.at - 1])
        while (digit := self._peek()) in "0123456789" and number * 10 + int(digit) <= self.groups:
            number = number * 10 + int(digit)
            self.at += 1
        return number

    def _escape(self, *, in_class: bool) -> str:
        self.at += 1
        letter = self._next("an escape")
        if letter == "Q":
            return "".join(_literal(ord(character)) for character in self._quoted())
        if letter in "pP":
            return self._property(negated=letter == "P")
        if not in_class and letter == "k" and self._take("<"):
            end = self.pattern.find(">", self.at)
            name = self.pattern[self.at : end] if end >= 0 else ""
            if not (name.isascii() and name.isalnum()):
                self._fail("a reference has no group's name")
            self.at = end + 1
            return f"(?P={name})"
        if letter in (_REWRITTEN if in_class else _OUTSIDE_CLASS):
            return (_REWRITTEN if in_class else _OUTSIDE_CLASS)[letter]
        if letter in ("dDwWsS" if in_class else _SAME_ESCAPES):
            return f"\\{letter}"
        return _literal(self._code_point(letter))

    def _quoted(self) -> str:
        r"""Read the text after ``\Q``; ``at`` is the position after it."""
        end = self.pattern.find("\\E", self.at)
        quoted = self.pattern[self.at : end] if end >= 0 else self.pattern[self.at :]
        self.at = end + 2 if end >= 0 else len(self.pattern)
        return quoted

    def _code_point(self, letter: str) -> int:
        """The character of an escape; ``at`` is the position after its letter."""
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c":
            return ord(self._next("a control character")) ^ 64
        if letter == "0":
            return self._digits("01234567", 1, 3 if self._peek() in "0123" else 2, 8)
        if letter == "u":
            return self._digits("0123456789abcdefABCDEF", 4, 4, 16)
        if letter == "x":
            if not self._take("{"):
                return self._digits("0123456789abcdefABCDEF", 2, 2, 16)
            value = self._digits("0123456789abcdefABCDEF", 1, 8, 16)
            if value > 0x10FFFF or not self._take("}"):
                self._fail("a hexadecimal escape has no end or is too large")
            return value
        if letter.isascii() and letter.isalnum():
            self._fail(f"\\{letter} means nothing")
        return ord(letter)

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1] or " "

    def _digits(self, allowed: str, least: int, most: int, base: int) -> int:
        start = self.at
        while self.at - start < most and self._peek() in allowed:
            self.at += 1
        if self.at - start < least:
            self._fail("an escape has too few digits")
        return int(self.pattern[start : self.at], base)

    def _property(self, *, negated: bool) -> str:
        name = self._next("a property")
        if name == "{":
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at : end] if end >= 0 else ""
            if not name or not all(c.isascii() and (c.isalnum() or c in "_=-") for c in name):
                self._fail("a property has no name")
            self.at = end + 1
        if name in _POSIX:
            return f"[{'^' if negated else ''}{_POSIX[name]}]"
        short = name.removeprefix("Is")
        known = _IS_NAMES.get(short, short if len(short) <= 2 else name)
        return f"\\{'P' if negated else 'p'}{{{known}}}"

    def _class(self, depth: int) -> str:
        """Translate a class from its ``[``. In the result every literal is escaped."""
        if depth > MAX_NESTING:
            self._fail(f"character classes are nested deeper than {MAX_NESTING}")
        self.at += 1
        out = ["[^" if self._take("^") else "["]
        empty = True  # nothing since the start: a ']' here is a literal
        while True:
            character = self._next("a character class")
            if character == "]" and not empty:
                out.append("]")
                return "".join(out)
            if character == "[":
                self.at -= 1
                out.append(self._class(depth + 1))
            elif character == "&" and self._take("&"):
                if empty or self._peek() in "]&":
                    self._fail("'&&' needs something on both sides")
                out.append("&&")
            else:
                self.at -= 1
                out.append(self._class_item())
            empty = False

    def _class_item(self) -> str:
        """One escape, literal or range inside a class."""
        start, single = self._class_literal()
        if (
            not single
            or not self.pattern.startswith("-", self.at)
            or self.pattern[self.at + 1 : self.at + 2] in ("", "]", "[")
        ):
            return start
        self.at += 1
        end, single = self._class_literal()
        if not single:
            self._fail("a range has no end")
        return f"{start}-{end}"

    def _class_literal(self) -> tuple[str, bool]:
        """Text for the next item, and whether it is a single character (may start a range)."""
        if self.pattern[self.at] != "\\":
            self.at += 1
            return _literal(ord(self.pattern[self.at - 1])), True
        letter = self.pattern[self.at + 1 : self.at + 2]
        text = self._escape(in_class=True)
        return text, letter not in ("Q", "p", "P", "d", "D", "w", "W", "s", "S", *_REWRITTEN)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _literal(code: int) -> str:
    """Text that matches one character, in and outside of classes."""
    character = chr(code)
    if character.isalnum() and code < 128:
        return character
    if 33 <= code < 127:
        return f"\\{character}"
    return f"\\U{code:08x}"
