"""Java's regex dialect: a golden list made with Java 17, and hostile patterns."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from zkconsumer.core.common.java_regex import InvalidRegexError, compile_java
from zkconsumer.core.common.name_sets import Names, TooManyStepsError

SUBJECTS = (
    "a b ab aab t1 t12 orders orders-eu ORDERS a.b a-b a_b test-good test-bad aaaa x 9 - abab"
)

GOLDEN = [
    (r"\Qa.b\E", "a.b"),
    (r"\Qa.b", "a.b"),
    (r"a\Q.\Eb", "a.b"),
    (r"a++b", "ab aab"),
    (r"a++ab", ""),
    (r"a*+", "a aaaa"),
    (r"(?>a|ab)b", "ab"),
    (r"\p{Lower}+", "a b ab aab orders aaaa x abab"),
    (r"\p{Upper}+", "ORDERS"),
    (r"\p{Alpha}+", "a b ab aab orders ORDERS aaaa x abab"),
    (r"\p{Alnum}+", "a b ab aab t1 t12 orders ORDERS aaaa x 9 abab"),
    (r"[\p{Punct}]", "-"),
    (r"a\p{Punct}b", "a.b a-b a_b"),
    (r"\P{Lower}+", "ORDERS 9 -"),
    (r"\pL+", "a b ab aab orders ORDERS aaaa x abab"),
    (r"\p{javaLowerCase}+", "a b ab aab orders aaaa x abab"),
    (r"\p{IsAlphabetic}+", "a b ab aab orders ORDERS aaaa x abab"),
    (r"\p{IsDigit}", "9"),
    (r"\p{IsL}", "a b x"),
    (r"\p{Nope}", None),
    (r"[a-z&&[^b]]+", "a orders aaaa x"),
    (r"[a-c[x-z]]", "a b x"),
    (r"[^a-z]+", "ORDERS 9 -"),
    (r"[a[^b]]", "a x 9 -"),
    (r"[]a]", "a"),
    (r"[a-]+", "a aaaa -"),
    (r"[a\-b]+", "a b ab aab a-b aaaa - abab"),
    (r"[[:alpha:]]+", "a aaaa"),
    (r"[a--b]", None),
    (r"[a||b]+", "a b ab aab aaaa abab"),
    (r"(?i)orders", "orders ORDERS"),
    (r"(?i:ORD)ers", "orders"),
    (r"(?i)ord(?-i)ers", "orders"),
    (r"(?u)a", "a"),
    (r"(?d)a", "a"),
    (r"(?P<n>a)", None),
    (r"(?<n>a)b\k<n>b", "abab"),
    (r"(ab)\1", "abab"),
    (r"(a)\2", ""),
    (r"\1(a)", ""),
    (r"a{2}b", "aab"),
    (r"a{1|2}b", None),
    (r"{2}", ""),
    (r"a{", None),
    (r"(?#c)a", None),
    (r"(?R)", None),
    (r"a{e<=1}", None),
    (r"\ma", None),
    (r"\y", None),
    (r"\x61", "a"),
    (r"\x{61}", "a"),
    (r"\u0061", "a"),
    (r"\0141", "a"),
    (r"\cA", ""),
    (r"a\z", "a"),
    (r"a\Z", "a"),
    (r"^a$", "a"),
    (r"\Aa", "a"),
    (r"\ba\b", "a"),
    (r"test-(?!bad\b)[\w]+", "test-good"),
    (r"(?<=t)1", ""),
    (r"t(?<=t)\d+", "t1 t12"),
    (r"a|", "a"),
    (r"*a", None),
    (r"a**", None),
    (r"(a", None),
    (r"a)", None),
    (r"a]", ""),
    (r"a}", ""),
    (r"[a", None),
    (r"\h", ""),
    (r"a\Hb", "aab a.b a-b a_b"),
    (r"\R", ""),
    (r"#", ""),
    (r".*", SUBJECTS),
    (r"t[12]|a\.b", "t1 a.b"),
    (r"a\\.b", ""),
    (r"a[.]b", "a.b"),
    (r"\\", ""),
    (r"a&&b", ""),
    (r"~", ""),
    (r"[~]", ""),
    (r"[a~~b]", "a b"),
    (r"(?s).+", SUBJECTS),
    (r"()", ""),
    (r"(?:)a", "a"),
    (r"(?!a).", "b x 9 -"),
    (r"a\B.b", "aab a_b"),
]
"""Pattern, and the subjects that it matches completely. None: Java does not compile it."""


@pytest.mark.parametrize(("pattern", "expected"), GOLDEN, ids=[repr(p) for p, _ in GOLDEN])
def test_golden_list_of_java(pattern: str, expected: str | None) -> None:
    """A pattern compiles where Java compiles it and matches what Java matches."""
    if expected is None:
        with pytest.raises(InvalidRegexError):
            compile_java(pattern)
    else:
        program = compile_java(pattern)
        assert " ".join(s for s in SUBJECTS.split() if program.fullmatch(s)) == expected


HOSTILE = {
    "nested counts": "(((((a{9999}){9999}){9999}){9999}){9999})",
    "large count": "(?:ab|c){999999}",
    "huge count": "a{999999999}",
    "nested plus": "(" * 60 + "a" + ")+" * 60,
    "nested twice": "(?:" * 20 + "a" + "){2}" * 20,
    "deep groups": "(" * 20_000 + ")" * 20_000,
    "deep look-behinds": "(?<!" * 900 + "a" + ")" * 900,
    "deep classes": "[" * 20_000,
    "long count": "a{" + "9" * 5000 + "}",
    "lookbehind copies": "(?<=(a|b|c){1000}){1000}" * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_patterns_that_would_eat_memory_or_time(name: str) -> None:
    """Patterns of a few bytes that would take all memory or hours are decided or refused at
    once."""
    names = Names(["a" * length for length in range(1, 250)])
    start = time.thread_time()
    with contextlib.suppress(InvalidRegexError, TooManyStepsError):
        compile_java(HOSTILE[name]).matches(names)
    assert time.thread_time() - start < 1.0


def test_ordinary_repetition_is_not_refused() -> None:
    """The limits leave room for real patterns. Length alone does not count for lists."""
    assert compile_java("([a-z]+-)+v[0-9]{1}").fullmatch("orders-eu-v1")
    assert compile_java("(?:ab){100}").fullmatch("ab" * 100)
    long = "|".join(f"topic{n}" for n in range(4_000))
    assert compile_java(long).fullmatch("topic77")


QUANTIFIERS = ["*", "+", "?", "{2,}", "{0,2}", "*?"]


@pytest.mark.parametrize("outer", QUANTIFIERS)
@pytest.mark.parametrize("inner", QUANTIFIERS)
def test_nested_repetitions_match_as_in_java(inner: str, outer: str) -> None:
    """Python's ``re`` agrees with Java about these patterns."""
    subjects = ["b" * bs + "ca" * cas + "b" * bs for bs in (0, 1) for cas in range(6)]
    for part in ("ca", "(?:ca|c)a?", "(?=c)ca"):
        pattern = f"b?((?:{part}){inner}){outer}b?"
        expected = [re.fullmatch(pattern, subject) is not None for subject in subjects]
        assert compile_java(pattern).matches(Names(subjects)) == expected, pattern
