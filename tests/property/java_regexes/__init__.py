"""Random regexes, and what Java 17 says about each of them.

``verdicts.txt`` has a random regex and Java's verdict on each line. This records others (a JDK is
needed):

    .venv/bin/python -m tests.property.java_regexes SEED COUNT > verdicts.txt
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
NAMES = (
    *("a", "b", "ab", "aa", "aab", "abab", "A", "aA1", ".", "a.b", "a-b", "_", "a_1", "abcabc"),
    *("1", "11a", "-", "b.b", "cc", "Aab", "B", "BA", "orders-eu", "Test_1"),
)

_PROPERTIES = (
    *("Lu", "Ll", "L", "IsL", "IsLatin", "IsAlphabetic", "Punct", "Alnum", "Upper", "Lower"),
    *("IsUppercase", "InBasicLatin", "sc=Latin", "gc=Lu", "javaLowerCase", "IsPunctuation"),
    *("IsWord", "XDigit", "LC", "LD", "L1", "Lt", "Sc", "Pd", "Pc", "Po", "Nope", "IsNope"),
)
_ATOMS = [*"abcA1._-", *"...", "[ab]", "[^a]", r"\d", r"\w", r"\.", "[.]", r"\-", r"\Qa.b\E"]
_ATOMS += ["^", "$", r"\b", r"\B", r"\z", r"\x61", r"\1"]
_RARE = [r"\2", r"\k<n1>", r"\D", r"\W", r"\S", r"\s", r"\h", r"\H", r"\R", r"\X", r"\e", r"\cA"]
_RARE += [r"\0141", r"\u0062", r"\G", "|", "}", "]", "{", ",", "\\", "(", ")", "[", "&", "#", "~"]
_RARE += [f"\\{letter}{{{name}}}" for name in _PROPERTIES for letter in "pP"]
_OF_CLASS = ["a", "b", "A", "a-c", "A-C", "-", "^", "&&", "[b]", "[^A]", "]", "[", r"\w", r"\d"]
_OF_CLASS += [r"\p{Lu}", r"\-", "0-9", "_", ".", r"\Q.]\E", "&", "||", "--", "[a-z&&[^b]]"]
_GROUPS = [
    "(",
    "(?:",
    "(?:",
    "(?=",
    "(?!",
    "(?<=",
    "(?<!",
    "(?i:",
    "(?<n1>",
    "(?<n2>",
    "(?>",
    "(?-i:",
]
_FLAGS = ["(?i)", "(?-i)", "(?s)", "(?u)", "(?U)", "(?d)", "(?m)"]
_REPEATED = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "??", "{3}?", "*+", "++", "{0}"]
_REPEATED += ["{2,1}", "{,2}", "{1|2}"]


def random_regex(rng: random.Random, depth: int = 3) -> str:
    """Return a text that often is a regex."""
    text = ""
    for _ in range(rng.randint(0, 3)):
        kind = rng.random()
        if depth and kind < 0.35:
            part = rng.choice(_GROUPS) + random_regex(rng, depth - 1) + ")"
        elif depth and kind < 0.42:
            text += rng.choice(_FLAGS)
            continue
        elif kind < 0.55:
            part = f"[{''.join(rng.choices(_OF_CLASS, k=rng.randint(1, 4)))}]"
        else:
            part = rng.choice(_RARE if rng.random() < 0.2 else _ATOMS)
        text += part + (rng.choice(_REPEATED) if rng.random() < 0.35 else "")
    if rng.random() < 0.3:
        text += "|" + random_regex(rng, max(0, depth - 1))
    return text


def verdicts_of_java(regexes: Sequence[str]) -> list[str]:
    """For each regex, a digit for each name: whether Java matches it. ``E``: it is invalid."""
    given = "\n".join([" ".join(NAMES), *regexes])
    argv = ["java", str(HERE / "JavaRegexes.java")]
    return subprocess.run(
        argv, input=given, capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()


def recorded() -> Iterator[tuple[str, str]]:
    """Return each recorded regex with Java's verdict."""
    for line in (HERE / "verdicts.txt").read_text(encoding="ascii").splitlines():
        regex, _, verdict = line.rpartition(" ")
        yield regex, verdict
